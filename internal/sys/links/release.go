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
)

// ErrOutside says that a path is no direct entry of a configured directory.
var ErrOutside = errors.New("not inside a configured netns directory")

// ErrHost says that a namespace is the node's own. Docker mounts it as "default".
var ErrHost = errors.New("the host network namespace")

// RemoveNetns takes away the mount at path, and the file under it, if the namespace
// mounted there is still netnsID and is not the host's. Then it looks whether the
// path is gone. The namespace itself ends when nobody else holds it: no process, no
// descriptor, no other mount. Whether it may end is the caller's judgement.
//
// Errors: fs.ErrNotExist, ErrChanged, ErrOutside, ErrHost, or the system's. After
// an error in the middle the path may be a plain file, which List shows as a Note.
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
	var host unix.Stat_t
	if err := unix.Stat(filepath.Join(v.proc, "1/ns/net"), &host); err != nil {
		return noView("network", os.NewSyscallError("stat", err))
	}
	if host.Ino == netnsID {
		return ErrHost
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return v.inHostMounts(func() error {
		dir, err := os.OpenFile(parent, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer dir.Close()
		return unmountAndUnlink(dir, filepath.Join(parent, name), netnsID)
	})
}

func unmountAndUnlink(dir *os.File, path string, netnsID uint64) error {
	name := filepath.Base(path)
	// A namespace may be mounted several times on one path; each mount pins it.
	unmounted := false
	for range 16 {
		ns, err := look(dir, name)
		switch {
		case errors.Is(err, errPlain) && unmounted:
			return unlink(dir, name)
		case errors.Is(err, fs.ErrNotExist) && unmounted:
			return nil // somebody else finished it
		case errors.Is(err, fs.ErrNotExist):
			return fs.ErrNotExist
		case errors.Is(err, errPlain), errors.Is(err, errLink), errors.Is(err, errOther), errors.Is(err, errOtherNS):
			return fmt.Errorf("%w: %w", ErrChanged, err)
		case err != nil:
			return err
		case ns.ino != netnsID:
			return ErrChanged
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return os.NewSyscallError("umount2", err)
		}
		unmounted = true
	}
	return errors.New("mounted too many times on one path")
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
