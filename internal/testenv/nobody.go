package testenv

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// nobody is the UID and GID that own nothing, by convention.
const nobody = 65534

func asNobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
}

// AsNobody is for a test of what the kernel refuses to people without root. It reports
// true where the test runs without root, and the test then goes on. As root it runs
// this very test once more in a child with UID 65534, fails if that fails, and reports
// false: the test returns. The child has a temporary directory of its own, so what the
// test made outside of its own temporary directories may be closed to it.
//
// Whatever stands before the call runs twice. A machine on which root cannot become
// UID 65534 lacks Nobody.
func AsNobody(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	demand(t, Nobody)
	// The test binary lies in a directory that is closed to others, and so may be what
	// t.TempDir makes.
	dir, err := os.MkdirTemp("", "holdfast-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "test")
	if err := copyExecutable(bin); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.run="+onlyTest(t.Name()), "-test.v", "-test.count=1")
	if testing.Short() {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = asNobody()
	out, err := cmd.CombinedOutput()
	// A pattern that matches nothing passes as well.
	if ran := strings.Contains(string(out), "--- PASS: "+t.Name()+" "); err != nil || !ran {
		t.Errorf("as UID %d: %v, ran to its end: %t\n%s", nobody, err, ran, out)
	}
	return false
}

// onlyTest is the -test.run pattern of one test, given by its full name.
func onlyTest(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// copyExecutable copies this test binary to a path, for everybody to run.
func copyExecutable(path string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}
