package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// build builds the demo once for a test; the test binary cannot play its roles.
func build(t *testing.T) string {
	t.Helper()
	testenv.Need(t, testenv.Netns)
	bin := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// demo returns a command that keeps everything below a directory of the test's own.
func demo(t *testing.T, bin string, args ...string) (cmd *exec.Cmd, tmp string, out *bytes.Buffer) {
	t.Helper()
	tmp, out = t.TempDir(), &bytes.Buffer{}
	cmd = exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, tmp, out
}

// clean checks that the demo left no file and no mount.
func clean(t *testing.T, tmp string) {
	t.Helper()
	left, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), "go-build") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), tmp) {
		t.Errorf("a mount below %s is left", tmp)
	}
}

func TestDemo(t *testing.T) {
	cmd, tmp, out := demo(t, build(t))
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.HasSuffix(out.String(), "\nAs it should be.\n") {
		t.Errorf("the demo is not content:\n%s", out)
	}
	clean(t, tmp)
}

// TestNoticesNothingReleased: with a holdfast that does nothing, the demo must fail.
func TestNoticesNothingReleased(t *testing.T) {
	cmd, tmp, out := demo(t, build(t), "-holdfast", "/bin/true")
	if err := cmd.Run(); err == nil {
		t.Errorf("content with a holdfast that does nothing:\n%s", out)
	}
	if !strings.Contains(out.String(), "3 of the lost reservations are there") {
		t.Errorf("it failed for another reason:\n%s", out)
	}
	clean(t, tmp)
}

// TestNoticesTooMuchReleased: a holdfast that empties the directory, as operators do
// by hand, must not please it.
func TestNoticesTooMuchReleased(t *testing.T) {
	wipe := filepath.Join(t.TempDir(), "wipe")
	script := "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --data-dir ] && rm -f \"$2\"/*/10.*; shift; done\n"
	if err := os.WriteFile(wipe, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, tmp, out := demo(t, build(t), "-holdfast", wipe)
	if err := cmd.Run(); err == nil {
		t.Errorf("content with an emptied directory:\n%s", out)
	}
	clean(t, tmp)
}

// TestInterrupted: whatever is killed when, the stage cleans up.
func TestInterrupted(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\ntouch \"$0.started\"\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, tmp, out := demo(t, build(t), "-holdfast", slow)
	// The sleeping child outlives its parent by a SIGTERM; it must not hold our pipe.
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(slow + ".started"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it never came to holdfast:\n%s", out)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted demo says that all is well")
	}
	clean(t, tmp)
}
