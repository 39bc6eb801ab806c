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
)

// The files, and the lock.
const (
	sightingsFile = "sightings"
	bootsFile     = "boots"
	runtimesFile  = "runtimes"
	holdsFile     = "holds"
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
}

// Dir is an open state directory. Its methods may be called concurrently, also by
// several processes: every change is made under a lock and by an atomic replacement,
// so that a crash or a full disk leaves the old file or the new one, whole.
//
// The sightings have one writer at a time by the reaper lock (I9); two would not
// damage the file, but the later would undo what the earlier remembered.
type Dir struct {
	path string
	root *os.Root // nil: read-only and it does not exist
	opts Options
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
	d := &Dir{path: dir, opts: opts}
	if err := d.open(); err != nil {
		d.Close()
		return nil, &Error{Op: "open", Object: dir, Err: bare(err)}
	}
	return d, nil
}

func (d *Dir) open() error {
	if !d.opts.ReadOnly {
		if err := makeDir(d.path); err != nil {
			return err
		}
	}
	named, err := os.Lstat(d.path)
	if errors.Is(err, fs.ErrNotExist) && d.opts.ReadOnly {
		return nil
	}
	if err != nil {
		return err
	}
	if !named.IsDir() {
		return fmt.Errorf("not a directory but %v", named.Mode().Type())
	}
	if d.root, err = os.OpenRoot(d.path); err != nil {
		return err
	}
	// What was opened is judged, not the name: that could have been replaced since.
	fi, err := d.root.Stat(".")
	if err != nil {
		return err
	}
	if !os.SameFile(fi, named) {
		return errors.New("replaced while it was opened")
	}
	if fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("its mode is %v: others could write to it; chmod go-w", fi.Mode().Perm())
	}
	var st unix.Stat_t
	if err := d.withSelf(func(f *os.File) error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return err
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d", st.Uid)
	}
	if d.opts.ReadOnly {
		return nil
	}
	f, err := d.openLock()
	if err != nil {
		return err
	}
	return f.Close()
}

func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

func (d *Dir) withSelf(fn func(*os.File) error) error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return fn(f)
}

// Close releases the directory. It is safe to call it twice.
func (d *Dir) Close() error {
	if d.root == nil {
		return nil
	}
	return d.root.Close()
}

// Path returns the path that was given to Open.
func (d *Dir) Path() string { return d.path }

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

func (d *Dir) openLock() (*os.File, error) {
	return d.root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE|unix.O_NONBLOCK, 0o600)
}

// locked runs fn under the lock. It waits by polling: the lock is our own and held
// for one small write, so nobody starves.
func (d *Dir) locked(fn func() error) error {
	if d.opts.ReadOnly {
		return &Error{Op: "write", Object: d.path, Err: ErrReadOnly}
	}
	f, err := d.openLock()
	if err != nil {
		return &Error{Op: "lock", Object: d.file(lockFile), Err: bare(err)}
	}
	defer f.Close() // this unlocks
	ctx, cancel := context.WithTimeout(context.Background(), d.opts.LockWait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return fn()
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return &Error{Op: "lock", Object: d.file(lockFile), Err: os.NewSyscallError("flock", err)}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &Error{Op: "lock", Object: d.file(lockFile), Err: fmt.Errorf("%w for %v", ErrBusy, d.opts.LockWait)}
		}
	}
}

// read hands the lines of a file to fn. found is false when there is no such file. A
// damaged one is a *CorruptError.
func (d *Dir) read(name string, fn func(line []byte) error) (found bool, err error) {
	if d.root == nil {
		return false, nil
	}
	// O_NONBLOCK: a FIFO does not hang us; the check for a regular file follows.
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, &Error{Op: "read", Object: d.file(name), Err: bare(err)}
	}
	defer f.Close()
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("not a regular file but %v", fi.Mode().Type())
	}
	if err == nil && fi.Size() > maxFile {
		err = damaged(fmt.Sprintf("it has %d bytes", fi.Size()))
	}
	if err == nil {
		err = readLines(io.LimitReader(f, maxFile), name, fn)
	}
	var why damaged
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &why):
		return true, &CorruptError{File: d.file(name), Reason: string(why)}
	}
	return true, &Error{Op: "read", Object: d.file(name), Err: bare(err)}
}

// aside moves a damaged file out of the way, under the lock, and fills in Kept.
func (d *Dir) aside(name string, why *CorruptError) error {
	if d.opts.ReadOnly {
		return nil
	}
	to := name + asideMark + d.opts.Now().UTC().Format("20060102-150405")
	if err := d.root.Rename(name, to); err != nil {
		return &Error{Op: "keep", Object: d.file(name), Err: bare(err)}
	}
	why.Kept = d.file(to)
	return d.withSelf(func(f *os.File) error {
		names, err := f.Readdirnames(-1)
		if err != nil {
			return &Error{Op: "read", Object: d.path, Err: bare(err)}
		}
		var old []string
		for _, n := range names {
			if strings.HasPrefix(n, name+asideMark) {
				old = append(old, n)
			}
		}
		for _, n := range oldest(old, asideKept) {
			if err := d.root.Remove(n); err != nil {
				return &Error{Op: "remove", Object: d.file(n), Err: bare(err)}
			}
		}
		return nil
	})
}

// replace writes a file anew: temporary file, fsync, rename, fsync of the directory.
// The caller holds the lock, and has read the file or calls replaceable.
func (d *Dir) replace(name string, fill func(*lineWriter) error) error {
	temp := name + ".tmp"
	err := d.writeFile(temp, name, fill)
	if err == nil {
		err = d.root.Rename(temp, name)
	}
	if err == nil {
		err = d.withSelf((*os.File).Sync)
	}
	if err != nil {
		// Nothing more to say if this fails too: the next write removes it.
		_ = d.root.Remove(temp)
		return &Error{Op: "write", Object: d.file(name), Err: bare(err)}
	}
	return nil
}

func (d *Dir) writeFile(temp, name string, fill func(*lineWriter) error) error {
	if err := d.root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	lw := newLineWriter(f, name)
	err = fill(lw)
	if err == nil {
		err = lw.finish()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// oldest returns all but the last keep names; their order is that of time.
func oldest(names []string, keep int) []string {
	slices.Sort(names)
	return names[:max(0, len(names)-keep)]
}
