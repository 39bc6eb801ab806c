package cniexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// initAt says whether a thread is where a PID 1 is that is in the namespaces at the given
// paths.
func initAt(mnt, net string) func(kind string) (bool, error) {
	return func(kind string) (bool, error) {
		path := map[string]string{"mnt": mnt, "net": net}[kind]
		var host, own unix.Stat_t
		err := errors.Join(unix.Stat(path, &host), unix.Stat("/proc/thread-self/ns/"+kind, &own))
		return err == nil && host.Dev == own.Dev && host.Ino == own.Ino, err
	}
}

const ownMnt, ownNet = "/proc/thread-self/ns/mnt", "/proc/thread-self/ns/net"

// here says that PID 1 is where the calling thread is.
func here(string) (bool, error) { return true, nil }

// plugin writes a shell script as plugin "tuning", and returns its bin directory.
func plugin(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tuning"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tuningCall is a call that no verification follows.
func tuningCall(t *testing.T) Call {
	t.Helper()
	calls, _, err := Plan(entry(t, `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"tuning","ipam":{"type":"host-local"}}]}`), false)
	if err != nil || len(calls) != 1 {
		t.Fatalf("Plan = %v, %v", calls, err)
	}
	return calls[0]
}

func TestRunGivesWhatLibcniGives(t *testing.T) {
	t.Setenv("SECRET_OF_THE_CALLER", "x")
	out := t.TempDir()
	bin := plugin(t, fmt.Sprintf("env > %s/env\ncat > %s/stdin\npwd > %s/pwd\n", out, out, out))
	r := New(Config{BinDirs: []string{"/nonexistent", bin}, InInit: here})
	call := tuningCall(t)
	if err := r.Run(context.Background(), call); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(read(t, out, "env")), "\n") {
		k, v, _ := strings.Cut(line, "=")
		env[k] = v
	}
	for k, want := range map[string]string{
		"CNI_COMMAND": "DEL", "CNI_NETNS": "", "CNI_CONTAINERID": hexA, "CNI_IFNAME": "eth0",
		"CNI_PATH": "/nonexistent:" + bin, "PATH": DefaultPath, "CNI_ARGS": call.args,
	} {
		if got, ok := env[k]; !ok || got != want {
			t.Errorf("%s = %q, %v; want %q", k, got, ok, want)
		}
	}
	if _, ok := env["SECRET_OF_THE_CALLER"]; ok {
		t.Error("the caller's environment reached the plugin")
	}
	if got := read(t, out, "stdin"); got != string(call.Stdin) || strings.Contains(got, "ipam") {
		t.Errorf("stdin = %s", got)
	}
	if got := read(t, out, "pwd"); got != "/\n" {
		t.Errorf("working directory %q", got)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRunFailures(t *testing.T) {
	for _, tc := range []struct {
		what, script string
		want         PluginError
	}{
		{"a CNI error", `printf '%s' '{"cniVersion":"1.0.0","code":11,"msg":"later \u001b[2J","details":"d\n"}'; exit 1`, PluginError{1, 11, `later \x1b[2J`, "d"}},
		{"a CNI error without a code", `echo '{"msg":"m"}'; exit 3`, PluginError{3, 0, "m", ""}},
		{"text on stderr", `printf 'bad\tthing\n' >&2; exit 2`, PluginError{2, 0, `bad\tthing`, ""}},
		{"text on stdout", `echo oops; exit 2`, PluginError{2, 0, "oops", ""}},
		{"nothing", `exit 1`, PluginError{1, 0, "", ""}},
		{"a signal", `kill -9 $$`, PluginError{-1, 0, "", ""}},
		{"an endless error", `head -c 10000000 /dev/zero | tr '\0' x >&2; exit 1`, PluginError{1, 0, strings.Repeat("x", 400) + "...", ""}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			err := New(Config{BinDirs: []string{plugin(t, tc.script)}, InInit: here}).Run(context.Background(), tuningCall(t))
			var e *Error
			var pe *PluginError
			if !errors.As(err, &e) || !errors.As(err, &pe) || e.Plugin != "tuning" || e.Step != StepDEL || e.Attachment.ContainerID != hexA {
				t.Fatalf("Run = %v", err)
			}
			if *pe != tc.want {
				t.Errorf("Run = %+v, want %+v", *pe, tc.want)
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) || len(err.Error()) > 1500 {
				t.Errorf("error text %q", err)
			}
		})
	}
}

func TestRunMissing(t *testing.T) {
	r := New(Config{BinDirs: []string{t.TempDir()}, InInit: here})
	if err := r.Run(context.Background(), tuningCall(t)); !errors.Is(err, ErrMissing) {
		t.Errorf("Run = %v, want ErrMissing", err)
	}
	if err := New(Config{InInit: here}).Run(context.Background(), tuningCall(t)); !errors.Is(err, ErrMissing) {
		t.Errorf("without directories: %v, want ErrMissing", err)
	}
}

func TestRunHang(t *testing.T) {
	for what, script := range map[string]string{
		"the plugin hangs":   "sleep 600",
		"its child hangs":    "sleep 600 & echo $! > %s/pid; wait",
		"it does not listen": "trap '' TERM INT; sleep 600 & echo $! > %s/pid; wait; wait",
	} {
		t.Run(what, func(t *testing.T) {
			out := t.TempDir()
			bin := plugin(t, strings.ReplaceAll(script, "%s", out))
			r := New(Config{BinDirs: []string{bin}, Timeout: 500 * time.Millisecond, InInit: here})
			start := time.Now()
			err := r.Run(context.Background(), tuningCall(t))
			if !errors.Is(err, ErrTimeout) {
				t.Errorf("Run = %v, want ErrTimeout", err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			if b, err := os.ReadFile(filepath.Join(out, "pid")); err == nil {
				pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; alive(pid); i++ {
					if i == 100 {
						_ = syscall.Kill(pid, syscall.SIGKILL)
						t.Fatal("the child outlived its plugin")
					}
					time.Sleep(20 * time.Millisecond)
				}
			} else if strings.Contains(script, "pid") {
				t.Error("the script did not get to its child: the test proves nothing")
			}
		})
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := New(Config{BinDirs: []string{plugin(t, "sleep 600")}, InInit: here}).Run(ctx, tuningCall(t))
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) {
		t.Errorf("Run = %v, want the caller's deadline", err)
	}
}

// TestRunDaemon: a child that stays in the background with our pipes is not waited
// for, and does not make a success a failure.
func TestRunDaemon(t *testing.T) {
	out := t.TempDir()
	bin := plugin(t, fmt.Sprintf("sleep 60 & echo $! > %s/pid; exit 0", out))
	start := time.Now()
	err := New(Config{BinDirs: []string{bin}, InInit: here}).Run(context.Background(), tuningCall(t))
	if pid, perr := strconv.Atoi(strings.TrimSpace(read(t, out, "pid"))); perr == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil || time.Since(start) > 15*time.Second {
		t.Errorf("Run = %v after %v", err, time.Since(start))
	}
}

func TestRunNotOnTheHost(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	bin := plugin(t, "touch "+marker)
	const uts = "/proc/thread-self/ns/uts"
	none := filepath.Join(t.TempDir(), "none")
	for what, in := range map[string]func(string) (bool, error){
		"PID 1 is not there":      initAt(none, none),
		"other mount namespace":   initAt(uts, ownNet),
		"other network namespace": initAt(ownMnt, uts),
	} {
		if err := New(Config{BinDirs: []string{bin}, InInit: in}).Run(context.Background(), tuningCall(t)); !errors.Is(err, ErrNotHost) {
			t.Errorf("%s: %v, want ErrNotHost", what, err)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a plugin ran (I13)")
	}
}

func TestRunNoTools(t *testing.T) {
	calls, _, err := Plan(entry(t, `{"cniVersion":"1.0.0","name":"cbr0","type":"ptp","ipMasq":true,"ipam":{"type":"host-local"}}`), false)
	if err != nil || len(calls) != 1 {
		t.Fatal(calls, err)
	}
	r := New(Config{Path: t.TempDir() + ":relative", InInit: here})
	if err := r.Run(context.Background(), calls[0]); !errors.Is(err, ErrMissing) {
		t.Errorf("Run = %v, want ErrMissing", err)
	}
}

// TestRunOnlyWhatPlanMakes: a call made by hand gets no further than one by Plan.
func TestRunOnlyWhatPlanMakes(t *testing.T) {
	r := New(Config{BinDirs: []string{plugin(t, "exit 0")}, InInit: here})
	for _, c := range []Call{{Step: "x", Plugin: "tuning"}, {Step: StepDEL, Plugin: "host-local"}, {Step: StepDEL, Plugin: "../tuning"}, {Step: StepDEL}, {}} {
		if err := r.Run(context.Background(), c); err == nil || errors.Is(err, ErrMissing) {
			t.Errorf("Run(%+v) = %v, want a refusal", c, err)
		}
	}
}

// binDirs gives the real plugins: built from their module, else Debian's.
func binDirs(t *testing.T, names ...string) string {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containernetworking/plugins").Output()
	if err != nil {
		t.Logf("go list: %v", err)
		return distribution(t, names)
	}
	dir := t.TempDir()
	args := []string{"build", "-C", strings.TrimSpace(string(module)), "-trimpath", "-o", dir + "/"}
	for _, n := range names {
		args = append(args, "./plugins/"+n)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("go build: %v\n%s", err, out)
		return distribution(t, names)
	}
	return dir
}

func distribution(t *testing.T, names []string) string {
	t.Helper()
	const dir = "/usr/lib/cni"
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(dir, filepath.Base(n))); err != nil {
			t.Fatalf("the CNI plugins can neither be built nor are they installed: %v", err)
		}
	}
	return dir
}

// TestRunWithPID1sMounts: in a container a step is run with the node's plugins, which the
// container does not have, and nothing of the process is there afterwards.
func TestRunWithPID1sMounts(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	dir, out := t.TempDir(), t.TempDir()
	var node *os.File
	err := onDoomedThread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("none", dir, "tmpfs", 0, "")); err != nil {
			return err
		}
		script := fmt.Sprintf("#!/bin/sh\nreadlink /proc/self/ns/mnt > %s/where\n", out)
		if err := os.WriteFile(filepath.Join(dir, "tuning"), []byte(script), 0o700); err != nil {
			return err
		}
		var err error
		node, err = os.Open(ownMnt)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	atNode := fmt.Sprintf("/proc/self/fd/%d", node.Fd())
	open := func(string) (*os.File, error) { return os.Open(atNode) }
	for _, tc := range []struct {
		name string
		c    Config
		want error
	}{
		{"in a container", Config{InInit: initAt(atNode, ownNet), OpenInit: open}, nil},
		{"with no way to the node", Config{InInit: initAt(atNode, ownNet)}, ErrNotHost},
		{"refused", Config{InInit: initAt(atNode, ownNet), OpenInit: func(string) (*os.File, error) { return nil, os.ErrPermission }}, ErrNotHost},
		{"in another network", Config{InInit: initAt(atNode, ownMnt), OpenInit: open}, ErrNotHost},
		{"on the node itself", Config{InInit: here, OpenInit: open}, ErrMissing}, // its directory is empty here
	} {
		os.Remove(filepath.Join(out, "where"))
		tc.c.BinDirs = []string{dir}
		if err := New(tc.c).Run(context.Background(), tuningCall(t)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		where, err := os.ReadFile(filepath.Join(out, "where"))
		link, linkErr := os.Readlink(ownMnt)
		switch {
		case linkErr != nil:
			t.Fatal(linkErr)
		case tc.want == nil && (err != nil || strings.TrimSpace(string(where)) == link || len(where) == 0):
			t.Errorf("%s: ran in %q, %v; we are in %s", tc.name, where, err, link)
		case tc.want != nil && err == nil:
			t.Errorf("%s: it was run", tc.name)
		}
	}
}
