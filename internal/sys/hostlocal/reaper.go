package hostlocal

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// ErrBusy says that another reaper works on the directory (I9).
type ErrBusy struct {
	Path string // the lock file
	PID  int    // who holds it, 0 when unknown
}

// Error names the other process.
func (e *ErrBusy) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another holdfast works on this directory (lock %q)", e.Path)
	}
	return fmt.Sprintf("another holdfast (PID %d) works on this directory (lock %q)", e.PID, e.Path)
}

// Reaper is the right to release from one directory.
type Reaper struct {
	file *fsys.File
	fs   fsys.FS
	key  fsys.Key
}

// Of reports whether dir is the directory that is locked, by whatever path.
func (r *Reaper) Of(dir string) bool {
	st, err := fsys.StatPath(r.fs, dir)
	return err == nil && fsys.Key{Dev: st.Dev, Ino: st.Ino} == r.key
}

// AcquireReaper takes the reaper lock of a data or store directory without waiting:
// <runDir>/reaper-<dev>-<ino>.lock, so that two paths to one directory, or two state
// directories, make one reaper (I9). runDir is made if missing; it should be on a
// file system that a reboot empties, such as /run/holdfast. Held by a live process:
// *ErrBusy. A crash releases it; the file stays and is never removed, since removing
// it would let two in. A nil fs is the kernel's.
func AcquireReaper(fs fsys.FS, runDir, dir string) (*Reaper, error) {
	fs = fsys.Or(fs)
	st, err := fsys.StatPath(fs, dir)
	if err != nil {
		return nil, &Error{"reaper lock", dir, err}
	}
	if err := fsys.MkdirAll(fs, runDir, 0o755); err != nil {
		return nil, &Error{"reaper lock", runDir, err}
	}
	path := filepath.Join(runDir, fmt.Sprintf("reaper-%d-%d.lock", st.Dev, st.Ino))
	f, err := fsys.Open(fs, unix.AT_FDCWD, path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &Error{"reaper lock", path, err}
	}
	if err := fs.Flock(f.FD(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if err != unix.EWOULDBLOCK {
			return nil, &Error{"reaper lock", path, err}
		}
		return nil, &ErrBusy{path, readPID(f)}
	}
	// The PID is for people; without it (a full disk) the lock still holds.
	if f.Truncate(0) == nil {
		_, _ = f.Write([]byte(strconv.Itoa(os.Getpid()) + "\n"))
	}
	return &Reaper{f, fs, fsys.Key{Dev: st.Dev, Ino: st.Ino}}, nil
}

// Close gives the right back.
func (r *Reaper) Close() error { return r.file.Close() }

func readPID(f *fsys.File) int {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
