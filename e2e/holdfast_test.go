package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
)

// binEnv and ipamEnv name the programs under test. TestMain sets what is not set. The second
// ends with /holdfast-ipam.
const (
	binEnv  = "HOLDFAST_BIN"
	ipamEnv = "HOLDFAST_IPAM_BIN"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the programs as they are released, static, once for all tests.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hfbin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for name, env := range map[string]string{"holdfast": binEnv, "holdfast-ipam": ipamEnv} {
		if os.Getenv(env) != "" {
			continue
		}
		bin := filepath.Join(dir, name)
		if err := errors.Join(build(bin), os.Setenv(env, bin)); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n", name, err)
			return 1
		}
	}
	return m.Run()
}

func build(to string) error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", to, "./cmd/"+filepath.Base(to))
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	return cmd.Run()
}

// cli is holdfast on one scene's node, with directories of its own.
type cli struct {
	s      scene
	global []string // flags that every verb takes
}

func newCLI(t *testing.T, s scene) cli {
	dir := t.TempDir()
	nodecheck.Watch(t, func() nodecheck.Node {
		return nodecheck.Node{
			DataDirs: []string{s.node.DataDir()}, Networks: s.networks, CacheDir: s.node.CacheDir(),
			StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Pods: s.pods(),
		}
	})
	return cli{s: s, global: []string{"--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run")}}
}

// node points holdfast at the scene and at nothing else of the machine.
func (c cli) node() []string {
	n := c.s.node
	out := []string{
		"--cni-conf-dir", n.ConfDir(), "--data-dir", n.DataDir(), "--cni-cache-dir", n.CacheDir(),
		"--cni-bin-dir", n.BinDir(), "--cri-endpoint", n.Endpoint,
	}
	for _, name := range c.s.networks {
		out = append(out, "--network", name)
	}
	return out
}

// outcome is how one run of holdfast ended.
type outcome struct {
	code           int
	stdout, stderr string
}

// holdfast runs one command. It may take as long as
// a busy machine needs; it never asks anybody.
func (c cli) holdfast(t *testing.T, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out, msg bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Getenv(binEnv), slices.Concat(args, c.global)...)
	cmd.Stdout, cmd.Stderr = &out, &msg
	err := c.s.node.RunOnNode(t, cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("holdfast %s: %v", strings.Join(args, " "), err)
	}
	return outcome{code: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: msg.String()}
}

// sweep is what the tests read of a Sweep document.
type sweep struct {
	Kind     string
	Released []struct {
		resource
		ReleaseID string
		Steps     []step
	}
	Kept []struct {
		resource
		Verdict string
		Why     string
		// Withheld says what else held a releasable one back.
		Withheld string
	}
	Errors    []any
	Witnesses []any
}

type step struct{ Step, Object, State, Detail string }

// digest is what a person needs of a sweep that a test did not expect.
func (d sweep) digest(o outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "gc ended with %d\nstderr: %s\nwitnesses: %v\n", o.code, o.stderr, d.Witnesses)
	for _, r := range d.Released {
		fmt.Fprintf(&b, "released %s %s %+v\n", r.Kind, r.reservation(), r.Steps)
	}
	for _, r := range d.Kept {
		if r.Verdict != "InUse" {
			fmt.Fprintf(&b, "kept %s %s as %s: %s %s\n", r.Kind, r.reservation(), r.Verdict, r.Why, r.Withheld)
		}
	}
	for _, e := range d.Errors {
		fmt.Fprintf(&b, "error %v\n", e)
	}
	return b.String()
}

type resource struct {
	Kind        string
	Network     string
	Address     netip.Addr
	ContainerID string
}

func (r resource) reservation() reservation {
	return reservation{network: r.Network, addr: r.Address, id: r.ContainerID}
}

// gc runs one sweep with a grace of two seconds and reads its document. The exit code
// must be the one given.
func (c cli) gc(t *testing.T, code int, extra ...string) sweep {
	t.Helper()
	o := c.holdfast(t, slices.Concat([]string{"gc", "--wait", "--grace", "2s", "-o", "json"}, c.node(), extra)...)
	var doc sweep
	if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || doc.Kind != "Sweep" {
		t.Fatalf("gc ended with %d and printed no Sweep document: %v\nstdout: %s\nstderr: %s", o.code, err, o.stdout, o.stderr)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(doc.digest(o))
		}
	})
	if o.code != code {
		t.Fatalf("gc ended with %d, want %d", o.code, code)
	}
	return doc
}

// released returns the reservations that the document says are gone. Cache entries,
// veths and netns of the dead may be in it too.
func (d sweep) released(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, r := range d.Released {
		if r.ReleaseID == "" {
			t.Errorf("a release of a %s %s without an ID cannot be undone", r.Kind, r.Address)
		}
		if r.Kind == "reservation" {
			out = append(out, r.reservation().String())
		}
	}
	slices.Sort(out)
	return out
}

// kept returns the reservations that stayed with the given verdict.
func (d sweep) kept(verdict string) []string {
	var out []string
	for _, r := range d.Kept {
		if r.Kind == "reservation" && r.Verdict == verdict {
			out = append(out, r.reservation().String())
		}
	}
	slices.Sort(out)
	return out
}

func names(rs []reservation) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.String())
	}
	slices.Sort(out)
	return out
}
