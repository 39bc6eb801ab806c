package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
)

// outcome is all that a caller sees, and what the plugin was called with.
type outcome struct {
	Err            *types.Error
	Stdout, Stderr string
	Called         string
	Args           cmdArgs
}

// called runs one call with the process's standard files in the place of a plugin's.
func called(t *testing.T, dir, stdin string, run func(o *outcome)) (o outcome) {
	t.Helper()
	in, out, errs := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "err")
	if err := os.WriteFile(in, []byte(stdin), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err1 := os.Open(in)
	w, err2 := os.Create(out)
	e, err3 := os.Create(errs)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	wasIn, wasOut, wasErr := os.Stdin, os.Stdout, os.Stderr
	os.Stdin, os.Stdout, os.Stderr = r, w, e
	func() {
		defer func() { os.Stdin, os.Stdout, os.Stderr = wasIn, wasOut, wasErr }()
		run(&o)
	}()
	for _, f := range []io.Closer{r, w, e} {
		f.Close()
	}
	text := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	o.Stdout, o.Stderr = text(out), text(errs)
	return o
}

// TestProtocol: a caller sees what it would see with package skel of the CNI module.
func TestProtocol(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	reached, dir := map[string]int{}, t.TempDir()
	often := func(usual string, others ...string) string {
		if rng.IntN(5) > 0 {
			return usual
		}
		return pick(others...)
	}
	for range 1500 {
		env := map[string]string{
			"CNI_COMMAND":     pick("ADD", "ADD", "DEL", "DEL", "CHECK", "GC", "STATUS", "VERSION", "", "add", "X"),
			"CNI_CONTAINERID": often("abc", "a.b_c-D9", "", "-a", "a/b", "a\n", "\u00e4"),
			"CNI_NETNS":       often("/x", "", "/proc/self/ns/net", "/proc/self/ns/mnt", "/dev/null"),
			"CNI_IFNAME":      often("eth0", "", ".", "..", "a:b", "a b", "a\u00a0b", "\xff", "a23456789012345", "a234567890123456", "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"),
			"CNI_ARGS":        pick("", "K=V"),
			"CNI_PATH":        often("/p", ""),

			"CNI_NETNS_OVERRIDE": pick("", "", "1", "true", "no"),
		}
		for k, v := range env {
			t.Setenv(k, v)
		}
		name := often(`"name": "n", `, `"name": "", `, `"name": "a/b", `, `"name": 7, `, `"name": null, `, `"NAME": "n", `, ``, `"name": "\u006e", `, `"name": "x", "name": "n", `)
		version := often("1.1.0", "1.0.0", "0.4.0", "0.3.1", "0.1.0", "0.5.0", "2.0.0", "1.2.0", "x", "")
		stdin := "{" + name + often(`"cniVersion": "`+version+`", `, ``, `"cniVersion": 1, `, `"CNIVERSION": "1.0.0", `) + `"ipam": ` + pick(`{}`, `{"subnet": 7}`, `[]`) + "}"
		stdin = often(stdin, "", "null", "[]", stdin+"x", "{")
		result := pick("", "", "typed", "wrapped", "plain")
		answer := func() error {
			switch typed := types.NewError(99, "m", "d"); result {
			case "typed":
				return typed
			case "wrapped":
				return fmt.Errorf("with words: %w", typed)
			case "plain":
				return errors.New("plain")
			}
			return nil
		}
		got := called(t, dir, stdin, func(o *outcome) {
			verb := func(called string) func(*cmdArgs) error {
				return func(a *cmdArgs) error { o.Called, o.Args = called, *a; return answer() }
			}
			o.Err = protocol(verbs{verb("add"), verb("del"), verb("check"), verb("gc"), verb("status")}, "about")
		})
		want := called(t, dir, stdin, func(o *outcome) {
			verb := func(called string) func(*skel.CmdArgs) error {
				return func(a *skel.CmdArgs) error {
					o.Called, o.Args = called, cmdArgs{a.ContainerID, a.Netns, a.IfName, a.Args, a.StdinData}
					return answer()
				}
			}
			o.Err = skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: verb("add"), Del: verb("del"), Check: verb("check"), GC: verb("gc"), Status: verb("status")}, cniversion.All, "about")
		})
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%v, %s:\n%s", env, stdin, d)
		}
		reached[want.Called]++
		if want.Err != nil {
			reached[fmt.Sprintf("code %d", want.Err.Code)]++
		}
	}
	for _, what := range []string{"add", "del", "check", "gc", "status", "", "code 1", "code 4", "code 6", "code 7", "code 8", "code 99", "code 999"} {
		if reached[what] == 0 {
			t.Errorf("%q was never met: %v", what, reached)
		}
	}
}
