package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// The files, and the lock.
const (
	sightingsFile = "sightings"
	bootsFile     = "boots"
	runtimesFile  = "runtimes"
	holdsFile     = "holds"
	stopsFile     = "stops"
	lockFile      = "state.lock"
	asideMark     = ".corrupt-" // + time
	asideKept     = 4           // of each file, the latest
)

// Options for Open.
type Options struct {
	// ReadOnly: nothing is created, written, locked or moved aside; what does not
	// exist reads as never written.
	ReadOnly bool
	// LockWait bounds the wait for the lock of a short read-modify-write. Default 2 s.
	LockWait time.Duration
	// Now is the wall clock, used only to name damaged files that are kept aside.
	// Default time.Now.
	Now func() time.Time
	// FS is where the directory lies; the kernel's when nil.
	FS fsys.FS
}

// Dir is an open state directory. Its methods may be called concurrently, also by
// several processes: every change is made under a lock and by an atomic replacement,
// so that a crash or a full disk leaves the old file or the new one, whole.
//
// The sightings have one writer at a time by the reaper lock (I9); two would not
// damage the file, but the later would undo what the earlier remembered.
type Dir struct {
	path string
	fs   fsys.FS
	opts Options
	// root is the directory, so that whatever becomes of its path, all files are of one;
	// -1: read-only and it does not exist, or closed. Names are never followed.
	root int
}

// Open opens the state directory, making it (0700) unless read-only.
//
// It refuses a directory that is a symbolic link (a link further up is fine), that
// belongs to another user than ourselves or root, or that its group or others may
// write to, sticky or not: whoever can replace its files could make us release what
// is in use. A read-only file system is an error here already, unless ReadOnly.
func Open(dir string, opts Options) (*Dir, error) {
	if opts.LockWait <= 0 {
		opts.LockWait = 2 * time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	d := &Dir{path: dir, fs: fsys.Or(opts.FS), opts: opts, root: -1}
	if err := d.open(); err != nil {
		d.Close()
		return nil, &Error{Op: "open", Object: dir, Err: err}
	}
	return d, nil
}

func (d *Dir) open() error {
	if !d.opts.ReadOnly {
		if err := d.makeDir(); err != nil {
			return os.NewSyscallError("mkdir", err)
		}
	}
	// Not through a link as the last component, which O_DIRECTORY answers with ENOTDIR.
	if d.path == "" {
		return unix.ENOENT
	}
	root, err := d.fs.Openat(unix.AT_FDCWD, filepath.Clean(d.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch {
	case err == unix.ENOENT && d.opts.ReadOnly:
		return nil
	case err == unix.ENOTDIR:
		return fmt.Errorf("not a directory itself, but a link or a file: %w", err)
	case err != nil:
		return os.NewSyscallError("open", err)
	}
	d.root = root
	st, err := d.fs.Fstat(root)
	if err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("its mode is %v: others could write to it; chmod go-w", fs.FileMode(st.Mode&0o777))
	}
	if st.UID != 0 && int(st.UID) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d", st.UID)
	}
	if d.opts.ReadOnly {
		return nil
	}
	// Without a lock it is new, or whoever made it was killed before its name was durable:
	// then a power loss would take journal and quarantine with it.
	if _, err := d.fs.Fstatat(root, lockFile, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
		if err := fsys.SyncDir(d.fs, filepath.Dir(filepath.Clean(d.path))); err != nil {
			return os.NewSyscallError("fsync", err)
		}
	}
	f, err := d.openLock()
	if err != nil {
		return err
	}
	return f.Close()
}

// makeDir makes the directory, and its parents with a wider mode. What is no directory
// is left for open to refuse.
func (d *Dir) makeDir() error {
	if _, err := fsys.LstatPath(d.fs, d.path); err != unix.ENOENT {
		return nil
	}
	if err := fsys.MkdirAll(d.fs, filepath.Dir(d.path), 0o755); err != nil {
		return err
	}
	return fsys.MkdirAll(d.fs, d.path, 0o700)
}

// Close releases the directory. It is safe to call it twice, but not beside other
// methods.
func (d *Dir) Close() error {
	if d.root < 0 {
		return nil
	}
	root := d.root
	d.root = -1
	return d.fs.Close(root)
}

// Path returns the path that was given to Open.
func (d *Dir) Path() string { return d.path }

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

func (d *Dir) openLock() (*fsys.File, error) {
	return d.openFile(lockFile, unix.O_RDWR|unix.O_CREAT)
}

// openFile opens a file of the directory. O_NONBLOCK: a FIFO does not hang us.
func (d *Dir) openFile(name string, flags int) (*fsys.File, error) {
	f, err := fsys.Open(d.fs, d.root, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	return f, nil
}

// locked runs fn under the lock. It waits by polling: the lock is our own and held
// for one small write, so nobody starves.
func (d *Dir) locked(fn func() error) error {
	if d.opts.ReadOnly {
		return &Error{Op: "write", Object: d.path, Err: ErrReadOnly}
	}
	f, err := d.openLock()
	if err != nil {
		return &Error{Op: "lock", Object: d.file(lockFile), Err: err}
	}
	defer f.Close() // this unlocks
	ctx, cancel := context.WithTimeout(context.Background(), d.opts.LockWait)
	defer cancel()
	for {
		err := d.fs.Flock(f.FD(), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return fn()
		case err != unix.EWOULDBLOCK:
			return &Error{Op: "lock", Object: d.file(lockFile), Err: os.NewSyscallError("flock", err)}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return &Error{Op: "lock", Object: d.file(lockFile), Err: fmt.Errorf("%w for %v", ErrBusy, d.opts.LockWait)}
		}
	}
}

// read hands the lines of a file to fn. found is false when there is no such file. A
// damaged one is a *CorruptError.
func (d *Dir) read(name string, fn func(line []byte) error) (found bool, err error) {
	if d.root < 0 {
		return false, nil
	}
	f, err := d.openFile(name, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, &Error{Op: "read", Object: d.file(name), Err: err}
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil && !st.Regular() {
		err = fmt.Errorf("not a regular file (mode %o)", st.Mode)
	}
	if err == nil && st.Size > maxFile {
		err = damaged(fmt.Sprintf("it has %d bytes", st.Size))
	}
	if err == nil {
		err = readLines(io.LimitReader(f, st.Size), st.Size, name, fn)
	}
	var why damaged
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &why):
		return true, &CorruptError{File: d.file(name), Reason: string(why)}
	}
	return true, &Error{Op: "read", Object: d.file(name), Err: err}
}

// aside moves a damaged file out of the way, under the lock, and fills in Kept.
func (d *Dir) aside(name string, why *CorruptError) error {
	if d.opts.ReadOnly {
		return nil
	}
	to := name + asideMark + d.opts.Now().UTC().Format("20060102-150405")
	if err := d.fs.Renameat2(d.root, name, d.root, to, 0); err != nil {
		return &Error{Op: "keep", Object: d.file(name), Err: err}
	}
	why.Kept = d.file(to)
	if err := failpoint.At(failpoint.StateAsideRenamed); err != nil {
		return &Error{Op: "keep", Object: d.file(name), Err: err}
	}
	return d.pruneAside(name)
}

// pruneAside removes all but the latest files that were kept of name.
func (d *Dir) pruneAside(name string) error {
	old, err := d.names(name + asideMark)
	if err != nil {
		return &Error{Op: "read", Object: d.path, Err: err}
	}
	for _, n := range oldest(old, asideKept) {
		if err := d.fs.Unlinkat(d.root, n, 0); err != nil {
			return &Error{Op: "remove", Object: d.file(n), Err: err}
		}
	}
	return nil
}

// names lists what begins with prefix.
func (d *Dir) names(prefix string) ([]string, error) {
	// A descriptor of its own, whose position is at the beginning.
	self, err := fsys.Open(d.fs, d.root, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer self.Close()
	var out []string
	err = fsys.ReadDir(d.fs, self.FD(), func(name []byte, _ byte) bool {
		if strings.HasPrefix(string(name), prefix) {
			out = append(out, string(name))
		}
		return true
	})
	return out, err
}

// replace writes a file anew: temporary file, fsync, rename, fsync of the directory.
// The caller holds the lock, and has read the file or calls replaceable.
func (d *Dir) replace(name string, fill func(*lineWriter) error) error {
	temp := name + ".tmp"
	err := d.writeFile(temp, name, fill)
	if err == nil {
		err = os.NewSyscallError("rename", d.fs.Renameat2(d.root, temp, d.root, name, 0))
	}
	if err == nil {
		err = failpoint.At(failpoint.StateRenamed)
	}
	if err == nil {
		err = os.NewSyscallError("fsync", d.fs.Fsync(d.root))
	}
	if err == nil {
		err = failpoint.At(failpoint.StateDirSynced)
	}
	if err != nil {
		// Nothing more to say if this fails too: the next write removes it.
		_ = d.fs.Unlinkat(d.root, temp, 0)
		return &Error{Op: "write", Object: d.file(name), Err: err}
	}
	return nil
}

func (d *Dir) writeFile(temp, name string, fill func(*lineWriter) error) error {
	if err := d.fs.Unlinkat(d.root, temp, 0); err != nil && err != unix.ENOENT {
		return os.NewSyscallError("unlink", err)
	}
	f, err := d.openFile(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	lw := newLineWriter(f, name)
	err = fill(lw)
	if err == nil {
		err = lw.finish()
	}
	if err == nil {
		err = failpoint.At(failpoint.StateTempWritten)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = failpoint.At(failpoint.StateTempSynced)
	}
	return errors.Join(err, f.Close())
}

// oldest returns all but the last keep names; their order is that of time.
func oldest(names []string, keep int) []string {
	slices.Sort(names)
	return names[:max(0, len(names)-keep)]
}
