package netns

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// abandonedAfter is beyond any time-out of a test that makes namespaces.
const abandonedAfter = time.Hour

var pinned = regexp.MustCompile(`^hf-([0-9]+)$`)

// TakeAwayAbandoned unmounts the namespaces that killed tests left pinned, by the names that
// New gives: an idle namespace that nobody knows keeps a pressed range from draining, so tests
// of that begin with this. Only what is an hour old goes, and whose process is gone.
func TakeAwayAbandoned(t testing.TB) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[3], "net:[") || !strings.HasPrefix(f[4], os.TempDir()+"/") {
			continue
		}
		path := f[4]
		m := pinned.FindStringSubmatch(filepath.Base(path))
		if m == nil || alive(m[1]) {
			continue
		}
		// The directory changed last when the name was made in it.
		if st, err := os.Stat(filepath.Dir(path)); err != nil || time.Since(st.ModTime()) < abandonedAfter {
			continue
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Logf("unmount %s, which a killed test left: %v", path, err)
			continue
		}
		t.Logf("unmounted %s, which a killed test left", path)
	}
}

func alive(pid string) bool {
	_, err := os.Stat(filepath.Join("/proc", pid))
	return err == nil
}
