package boot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

const (
	idA = "0d0b61b2-3f6c-4f04-9a5b-1b7a3a1f0e01"
	idB = "1d0b61b2-3f6c-4f04-9a5b-1b7a3a1f0e02"
)

func TestIsUUID(t *testing.T) {
	for s, want := range map[string]bool{
		idA:                                    true,
		strings.ToUpper(idA):                   false,
		idA + "\n":                             false,
		idA[:35]:                               false,
		strings.ReplaceAll(idA, "-", "_"):      false,
		"00000000-0000-0000-0000-000000000000": false,
		"":                                     false,
	} {
		if IsUUID(s) != want {
			t.Errorf("IsUUID(%q) = %v", s, !want)
		}
	}
}

func TestCoversBootID(t *testing.T) {
	const proc = "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
	for _, tc := range []struct {
		name, text string
		want       bool
	}{
		{"plain", proc, false},
		{"/proc/sys over itself", proc + "23 22 0:21 /sys /proc/sys ro - proc proc rw\n", false},
		{"nspawn, LXC, kind", proc + "24 22 0:30 /x /proc/sys/kernel/random/boot_id ro - tmpfs tmpfs rw\n", true},
		{"a directory above it", proc + "24 22 0:30 / /proc/sys/kernel/random ro - tmpfs tmpfs rw\n", true},
		{"a file beside it", proc + "24 22 0:30 / /proc/sys/kernel/random/uuid ro - tmpfs tmpfs rw\n", false},
	} {
		if got := coversBootID([]byte(tc.text)); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// fakeProc is a directory in the shape of /proc.
func fakeProc(t *testing.T, pid1 string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1/root/proc", bootID), pid1)
	timeNS(t, dir, "/proc/self/ns/time")
	return dir
}

// timeNS puts a PID 1 into the time namespace at a path.
func timeNS(t *testing.T, proc, path string) {
	t.Helper()
	dir := filepath.Join(proc, "1/ns")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(path, filepath.Join(dir, "time"))); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestReadIDTakesPID1sView(t *testing.T) {
	dir := fakeProc(t, idA+"\n")
	write(t, filepath.Join(dir, bootID), idB+"\n")
	got, err := ReadID(dir)
	if want := (ID{Value: idA}); err != nil || got != want {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestReadIDRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "no UUID": "hello\n", "cut off": idA[:20], "two": idA + idB,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ReadID(fakeProc(t, text)); err == nil {
				t.Fatalf("took %+v", got)
			}
		})
	}
	t.Run("PID 1's view is missing, the other is not taken for it", func(t *testing.T) {
		dir := t.TempDir()
		timeNS(t, dir, "/proc/self/ns/time")
		write(t, filepath.Join(dir, bootID), idB+"\n")
		if got, err := ReadID(dir); err == nil {
			t.Fatalf("took %+v", got)
		}
	})
}

func TestHostClocks(t *testing.T) {
	const own = "/proc/self/ns/time"
	var st unix.Stat_t
	if unix.Stat(own, &st) != nil {
		t.Log("a kernel without time namespaces: nothing to test")
		return
	}
	proc := func(link string) string {
		dir := t.TempDir()
		timeNS(t, dir, link)
		return dir
	}
	empty := t.TempDir()
	for _, tc := range []struct {
		name, proc, own string
		ok              bool
	}{
		{"PID 1's", proc(own), own, true},
		{"another", proc("/proc/self/ns/uts"), own, false},
		{"a kernel that has none", proc(own), "/proc/self/ns/none", true},
		{"no proc file system of ours", proc(own), filepath.Join(empty, "ns/time"), false},
		{"no PID 1", empty, own, false},
	} {
		if err := hostClocks(tc.proc, tc.own); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// childEnv makes the test binary say which instant it reads.
const childEnv = "HOLDFAST_BOOT_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	link, _ := os.Readlink("/proc/self/ns/time")
	at, err := Now("/proc")
	fmt.Printf("in %s boot=%q clock=%q mono=%d %v\n", link, at.Boot, NewClock("/proc").Now().Boot, at.Mono, err)
}

// A time namespace whose monotonic clock is an hour ahead: a grace would be over there
// at once.
func TestAnotherTimeNamespaceIsNoBoot(t *testing.T) {
	testenv.Need(t, testenv.Root)
	own, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		t.Log("a kernel without time namespaces: nothing to test")
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The shell forks, since before Linux 6.3 a namespace for children is not entered
	// by an exec.
	child := func() (string, error) {
		cmd := exec.Command("sh", "-c", `"$0"; true`, exe)
		cmd.Env = append(os.Environ(), childEnv+"=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	before, err := Now("/proc")
	if err != nil {
		t.Fatal(err)
	}
	out, err := child()
	if err != nil || !strings.Contains(out, own) || !strings.Contains(out, "boot="+strconv.Quote(before.Boot)+" clock="+strconv.Quote(before.Boot)) {
		t.Errorf("on the node itself: %v\n%s", err, out)
	}
	err = testenv.OnDoomedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
			return os.NewSyscallError("unshare(CLONE_NEWTIME)", err)
		}
		file := fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid())
		if err := os.WriteFile(file, []byte("monotonic 3600 0\n"), 0o644); err != nil {
			return err
		}
		out, err = child()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var mono time.Duration
	if _, text, ok := strings.Cut(out, "mono="); ok {
		fmt.Sscan(text, &mono)
	}
	if strings.Contains(out, own) || mono < before.Mono+time.Hour {
		t.Fatalf("not in a time namespace whose clock is ahead:\n%s", out)
	}
	if !strings.Contains(out, `boot="" clock=""`) || !strings.Contains(out, "time namespace") {
		t.Errorf("its clock is believed:\n%s", out)
	}
}

func TestNowOnThisNode(t *testing.T) {
	a, err := Now("/proc")
	if err != nil {
		t.Log(err)
		// PID 1's view is root's; without root, what a container covers may be all there is.
		testenv.Need(t, testenv.Root)
		t.Fatal("this node gives no boot ID")
	}
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || a.Boot != strings.TrimSpace(string(text)) {
		t.Errorf("boot = %q, the kernel says %q (%v)", a.Boot, text, err)
	}
	clock := NewClock("/proc")
	b := clock.Now()
	if d, ok := b.Since(a); !ok || d < 0 || d > time.Minute {
		t.Errorf("Since = %v, %v", d, ok)
	}
	if id, err := clock.ID(); err != nil || id.Value != a.Boot {
		t.Errorf("ID = %+v, %v", id, err)
	}
}

func TestNoBootIDComparesWithNothing(t *testing.T) {
	at, err := Now(t.TempDir())
	if err == nil || at.Boot != "" {
		t.Fatalf("boot %q, %v", at.Boot, err)
	}
	if at.Mono <= 0 || at.Wall.IsZero() {
		t.Errorf("clocks are unset: %+v", at)
	}
	if _, ok := at.Since(at); ok {
		t.Error("an instant of no boot was compared")
	}
}
