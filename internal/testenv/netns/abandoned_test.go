package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// What is old and whose process is gone goes; what lacks either stays.
func TestTakeAwayAbandoned(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	const nobody = 4_000_000_000 // above any PID
	for _, tc := range []struct {
		name string
		pid  int
		age  time.Duration
		goes bool
	}{
		{"old, of a process that is gone", nobody, 2 * abandonedAfter, true},
		{"young, of a process that is gone", nobody, 0, false},
		{"old, of a living process", os.Getpid(), 2 * abandonedAfter, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, fmt.Sprintf("hf-%d", tc.pid))
			NewAt(t, path)
			then := time.Now().Add(-tc.age)
			if err := os.Chtimes(dir, then, then); err != nil {
				t.Fatal(err)
			}
			TakeAwayAbandoned(t)
			var st unix.Statfs_t
			if err := unix.Statfs(path, &st); err != nil {
				t.Fatal(err)
			}
			if gone := st.Type != unix.NSFS_MAGIC; gone != tc.goes {
				t.Errorf("gone: %t, want %t", gone, tc.goes)
			}
		})
	}
}
