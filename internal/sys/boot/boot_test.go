package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

const (
	idA = "0d0b61b2-3f6c-4f04-9a5b-1b7a3a1f0e01"
	idB = "1d0b61b2-3f6c-4f04-9a5b-1b7a3a1f0e02"
	idC = "2d0b61b2-3f6c-4f04-9a5b-1b7a3a1f0e03"
)

func TestFacts(t *testing.T) {
	for _, tc := range []struct {
		name    string
		history []string
		current string
		past    []string
	}{
		{"first run ever", nil, idA, nil},
		{"same boot", []string{idA}, idA, nil},
		{"one reboot, not yet recorded", []string{idA}, idB, []string{idA}},
		{"one reboot, recorded", []string{idA, idB}, idB, []string{idA}},
		{"recorded twice", []string{idA, idB, idB}, idB, []string{idA}},
		{"two reboots", []string{idA, idB}, idC, []string{idA, idB}},
		{"an ID came back: two sources, nothing is over", []string{idA, idB}, idA, nil},
		{"an ID came back and is recorded", []string{idA, idB, idA}, idA, nil},
		{"current unknown", []string{idA, idB}, "", nil},
		{"current no boot ID", []string{idA, idB}, "today", nil},
		{"broken entries prove nothing", []string{"", "x", strings.ToUpper(idA), idA}, idB, []string{idA}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Facts(tc.history, tc.current)
			if got.Current != tc.current {
				t.Errorf("current = %q", got.Current)
			}
			if d := cmp.Diff(tc.past, got.Past); d != "" {
				t.Errorf("past (-want +got):\n%s", d)
			}
		})
	}
}

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
	return dir
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
		write(t, filepath.Join(dir, bootID), idB+"\n")
		if got, err := ReadID(dir); err == nil {
			t.Fatalf("took %+v", got)
		}
	})
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
