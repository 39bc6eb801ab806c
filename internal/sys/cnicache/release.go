package cnicache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
	"golang.org/x/sys/unix"
)

// ErrChanged says that a file is not the incarnation that was judged (I7).
var ErrChanged = errors.New("not the file that was judged")

// ErrOutside says that a path is no direct entry of a configured cache.
var ErrOutside = errors.New("not inside a configured cache directory")

// Error is a failed act on a cache entry. Err is or wraps fs.ErrNotExist (gone),
// fs.ErrExist (Restore: there is one), ErrChanged, ErrOutside or the system's.
type Error struct {
	Op   string // "read", "remove", "restore"
	Path string
	Err  error
}

func (e *Error) Error() string {
	return "cnicache: " + e.Op + " " + strconv.QuoteToASCII(e.Path) + ": " + clean(e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// tempPrefix starts the names of our temporary files. A network name cannot start
// with a dot, so no runtime makes one.
const tempPrefix = ".holdfast-"

// Read returns the content of an entry if it is still the incarnation inc.
func (v *Inventory) Read(ctx context.Context, path string, inc claim.Incarnation) ([]byte, error) {
	content, err := v.withEntry(ctx, path, inc, nil)
	if err != nil {
		return nil, &Error{"read", path, err}
	}
	return content, nil
}

// Remove removes an entry if it is still the incarnation inc, and returns what it
// held, for Restore. Links are not followed. An entry that was never read whole
// (inc without Sum) is ErrChanged: what it is cannot be said.
//
// Not covered: libcni takes no lock, so an ADD for the very same attachment that
// writes its result between our last look and the unlink, some microseconds, loses
// the new entry. Runtimes that use an ID twice (podman, nerdctl, Nomad) can do
// that; losing a cache entry loses no address.
func (v *Inventory) Remove(ctx context.Context, path string, inc claim.Incarnation) ([]byte, error) {
	content, err := v.withEntry(ctx, path, inc, func(dir directory, name string) error {
		if err := failpoint.At(failpoint.CacheRemoveBefore); err != nil {
			return err
		}
		// The name may have been given to another file while we read.
		st, err := dir.fs.Fstatat(dir.fd, name, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return os.NewSyscallError("fstatat", err)
		}
		now := incarnation(&st)
		now.Sum = inc.Sum
		if now != inc {
			return ErrChanged
		}
		if err := dir.fs.Unlinkat(dir.fd, name, 0); err != nil {
			return os.NewSyscallError("unlinkat", err)
		}
		return failpoint.At(failpoint.CacheRemoveAfter)
	})
	if err != nil {
		return nil, &Error{"remove", path, err}
	}
	return content, nil
}

func (v *Inventory) withEntry(ctx context.Context, path string, inc claim.Incarnation, act func(directory, string) error) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, name, err := v.locate(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var buf []byte
	f, err := readAt(dir, name, &buf)
	switch {
	case errors.Is(err, errNotRegular), errors.Is(err, errTooLarge), errors.Is(err, errRestless):
		return nil, fmt.Errorf("%w: %w", ErrChanged, err)
	case err != nil:
		return nil, err
	case inc.Sum == "" || f.inc != inc:
		return nil, ErrChanged
	}
	if act != nil {
		if err := act(dir, name); err != nil {
			return nil, err
		}
	}
	return f.content, nil
}

// locate opens the directory of a path that names a direct entry of a configured
// cache.
func (v *Inventory) locate(path string) (dir directory, name string, err error) {
	parent, name := filepath.Split(path)
	known := slices.ContainsFunc(v.dirs, func(d string) bool {
		return filepath.Join(d, "results") == filepath.Clean(parent)
	})
	if !known || name == "" || name == "." || name == ".." {
		return directory{}, "", ErrOutside
	}
	dir, err = openDir(v.fs, filepath.Clean(parent))
	return dir, name, err
}

// Restore writes an entry again, with mode 0600 as libcni has it, whole or not at
// all, and durably. An entry that is there meanwhile stays: fs.ErrExist.
func (v *Inventory) Restore(ctx context.Context, path string, content []byte) error {
	if err := ctx.Err(); err != nil {
		return &Error{"restore", path, err}
	}
	dir, name, err := v.locate(path)
	if err != nil {
		return &Error{"restore", path, err}
	}
	defer dir.Close()
	err = restoreTmpfile(dir, name, content)
	if errors.Is(err, errNoTmpfile) {
		err = restoreTemp(dir, name, content)
	}
	if err == nil {
		err = failpoint.At(failpoint.CacheRestoreLinked)
	}
	if err == nil {
		err = os.NewSyscallError("fsync", dir.fs.Fsync(dir.fd))
	}
	if err == nil {
		err = failpoint.At(failpoint.CacheRestoreDirSynced)
	}
	if err != nil {
		return &Error{"restore", path, err}
	}
	return nil
}

var errNoTmpfile = errors.New("no O_TMPFILE here")

// restoreTmpfile uses a file without a name: a crash leaves nothing behind.
func restoreTmpfile(dir directory, name string, content []byte) error {
	if failpoint.At(failpoint.CacheRestoreTmpfile) != nil {
		return errNoTmpfile
	}
	f, err := fsys.Open(dir.fs, dir.fd, ".", unix.O_TMPFILE|unix.O_WRONLY, 0o600)
	switch err {
	case nil:
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL, unix.ENOENT:
		return errNoTmpfile
	default:
		return os.NewSyscallError("open(O_TMPFILE)", err)
	}
	defer f.Close()
	if err := fill(f, content); err != nil {
		return err
	}
	err = dir.fs.LinkFD(f.FD(), dir.fd, name)
	if err == unix.ENOENT {
		return errNoTmpfile // no /proc here
	}
	return os.NewSyscallError("linkat", err)
}

// restoreTemp uses a named file of its own and a hard link, which unlike a rename
// does not replace.
func restoreTemp(dir directory, name string, content []byte) error {
	// One name for each entry, so that the next try takes away what a crash left. No two
	// try at a time: whoever puts an address back has the reaper lock of its store.
	sum := sha256.Sum256([]byte(name))
	temp := tempPrefix + hex.EncodeToString(sum[:16])
	if err := dir.fs.Unlinkat(dir.fd, temp, 0); err != nil && err != unix.ENOENT {
		return os.NewSyscallError("unlinkat", err)
	}
	f, err := fsys.Open(dir.fs, dir.fd, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	err = fill(f, content)
	if err == nil {
		err = os.NewSyscallError("linkat", dir.fs.Linkat(dir.fd, temp, dir.fd, name, 0))
	}
	if err == nil {
		err = failpoint.At(failpoint.CacheRestoreTemp)
	}
	return errors.Join(err, f.Close(), os.NewSyscallError("unlinkat", dir.fs.Unlinkat(dir.fd, temp, 0)))
}

func fill(f *fsys.File, content []byte) error {
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := failpoint.At(failpoint.CacheRestoreWritten); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return failpoint.At(failpoint.CacheRestoreSynced)
}
