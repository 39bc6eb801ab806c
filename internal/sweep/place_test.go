package sweep_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// readOnly mounts dir read-only over itself for the rest of the test.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
		if err := unix.Mount(dir, dir, "", flags, ""); err != nil {
			t.Fatal(err)
		}
		if flags == unix.MS_BIND {
			t.Cleanup(func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// flock holds host-local's lock of a store. An open file description of its own excludes
// the one of the code under test, within one process too.
func flock(t *testing.T, store string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(store, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}
