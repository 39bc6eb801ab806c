package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/failpoint"
)

// ErrOutside says that a path is no direct entry of a configured directory.
var ErrOutside = errors.New("not inside a configured netns directory")

// ErrHost says that a namespace is the node's own. Docker mounts it as "default".
var ErrHost = errors.New("the host network namespace")

// ErrMounted says that the namespace is still mounted somewhere, so that it lives on with
// its addresses.
var ErrMounted = errors.New("the namespace is still mounted")

// RemoveNetns takes away the mounts at path, and the file under them, if the namespace
// mounted there is still netnsID and is not the host's. Then it looks whether the
// path is gone and no mount of the namespace is left. The namespace itself ends when
// nobody else holds it: no process, no descriptor. Whether it may end is the caller's
// judgement.
//
// A mount at path may lie below another, as podman's first run leaves it (see
// removeCovered); it goes, too.
//
// Errors: fs.ErrNotExist (nothing at path, and no mount of the namespace anywhere),
// ErrChanged, ErrMounted, ErrOutside, ErrHost, or the system's. After an error in the
// middle the path may be a plain file, which List shows as a Note.
//
// Not covered: a runtime that takes the mount away and mounts a new namespace on the
// very same path between the last look and the unmount, some microseconds. Runtimes
// use a random name for each.
func (v *Inventory) RemoveNetns(ctx context.Context, path string, netnsID uint64) error {
	if err := v.removeNetns(ctx, path, netnsID); err != nil {
		return &Error{"remove netns", path, err}
	}
	return nil
}

func (v *Inventory) removeNetns(ctx context.Context, path string, netnsID uint64) error {
	parent, name := filepath.Split(path)
	parent = filepath.Clean(parent)
	if !slices.Contains(v.dirs, parent) || name == "" || name == "." || name == ".." {
		return ErrOutside
	}
	host, err := v.hostNetns()
	if err != nil {
		return noView("network", err)
	}
	if host == netnsID {
		return ErrHost
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return v.inHostMounts(func(host view) error {
		if err := failpoint.At(failpoint.NetnsBefore); err != nil {
			return err
		}
		dir, err := os.OpenFile(parent, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			defer dir.Close()
			err = unmountAndUnlink(host, dir, filepath.Join(parent, name), netnsID)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := failpoint.At(failpoint.NetnsAfter); err != nil {
			return err
		}
		// Gone from this path is not gone: another mount keeps it as well.
		all, tableErr := host.mounts()
		if tableErr != nil {
			return fmt.Errorf("it cannot be seen whether it is still mounted: %v", tableErr)
		}
		for _, m := range all {
			if m.netns == netnsID {
				return fmt.Errorf("%w: at %q", ErrMounted, m.path)
			}
		}
		return err
	})
}

// hostNetns returns the nsfs inode of PID 1's network namespace.
func (v *Inventory) hostNetns() (uint64, error) {
	f, err := v.openInit("net")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Ino, nil
}

func unmountAndUnlink(host view, dir *os.File, path string, netnsID uint64) error {
	name := filepath.Base(path)
	// A namespace may be mounted several times on one path; each mount pins it.
	unmounted := false
	for range 16 {
		ns, err := look(dir, name)
		switch {
		case errors.Is(err, errPlain):
			covered, err := isCovered(host, dir, name, netnsID)
			switch {
			case err != nil:
				return err
			case covered:
				return removeCovered(host, dir, name, netnsID)
			case unmounted:
				return unlink(dir, name)
			}
			return fmt.Errorf("%w: %w", ErrChanged, errPlain)
		case errors.Is(err, fs.ErrNotExist) && unmounted:
			return nil // somebody else finished it
		case errors.Is(err, fs.ErrNotExist):
			return fs.ErrNotExist
		case errors.Is(err, errLink), errors.Is(err, errOther), errors.Is(err, errOtherNS):
			return fmt.Errorf("%w: %w", ErrChanged, err)
		case err != nil:
			return err
		case ns.ino != netnsID:
			return ErrChanged
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return os.NewSyscallError("umount2", err)
		}
		if err := failpoint.At(failpoint.NetnsUnmounted); err != nil {
			return err
		}
		unmounted = true
	}
	return errors.New("mounted too many times on one path")
}

// isCovered reports whether the namespace, and nothing else, is mounted below a path
// where only a plain file is to be seen, on that very file. ErrChanged: something else is
// mounted there as well. ErrMounted: it is mounted on another file, out of reach.
func isCovered(host view, dir *os.File, name string, netnsID uint64) (bool, error) {
	all, err := host.mounts()
	if err != nil {
		return false, err
	}
	path := filepath.Join(dir.Name(), name)
	covered, other := false, false
	for _, m := range all {
		if m.path == path {
			covered = covered || m.netns == netnsID
			other = other || m.netns != netnsID
		}
	}
	if !covered {
		return false, nil
	}
	if other {
		return false, fmt.Errorf("%w: something else is mounted there, too", ErrChanged)
	}
	same, err := host.showsMountPoint(dir, name, all, netnsID)
	if err == nil && !same {
		err = fmt.Errorf("%w: below another file system; unmount what lies above it first", ErrMounted)
	}
	return same, err
}

// removeCovered takes away a mount that lies below another, and the file that it is
// mounted on. That happens where a directory of namespaces was bound on itself with all
// that was mounted in it (podman's first run, and ip netns add, where /run is not
// shared): of two mounts on one path only the upper one can be unmounted, and the file
// cannot be removed, since it is a mount point (EBUSY).
//
// But the upper directory shows the very same file, and the kernel (3.18 and later)
// takes the mounts of a file away that is removed by somebody who has no mount on it in
// his own mount namespace. So it is removed from a private copy of the mounts that does
// not have them. Where it is not the same file (isCovered), the mount is for a person.
func removeCovered(host view, dir *os.File, name string, netnsID uint64) error {
	return host.inPrivateCopy(func(copied view) error {
		if err := copied.hide(netnsID); err != nil {
			return err
		}
		if _, err := look(dir, name); !errors.Is(err, errPlain) {
			return fmt.Errorf("%w: it changes", ErrChanged)
		}
		return unlink(dir, name)
	})
}

// unlink removes the plain file that was under the mount. Where it is a mount point
// in another mount namespace the kernel takes that mount away as well.
func unlink(dir *os.File, name string) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && err != unix.ENOENT {
		return os.NewSyscallError("unlinkat", err)
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case unix.ENOENT:
		return nil
	case nil:
		return errors.New("removed, but still there")
	default:
		return fmt.Errorf("removed, but it cannot be seen whether it is gone: %w", err)
	}
}
