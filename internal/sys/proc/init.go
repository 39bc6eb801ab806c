package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// InInit reports whether the calling thread is in PID 1's namespace of a kind, "net" or
// "mnt", through the procfs mounted at proc. An error means that it cannot be told.
//
// Where a security module refuses PID 1's ns links, the answer comes from what is not
// protected: every network namespace has its own /proc/PID/net/dev, with its own inode,
// and a mount ID belongs to one mount namespace alone. PID 1 being chrooted can then
// only turn "the same" into "another", never the other way round.
func InInit(proc, kind string) (bool, error) {
	host, err := identity(filepath.Join(proc, "1/ns", kind))
	if err == nil {
		own, err := identity("/proc/thread-self/ns/" + kind)
		return err == nil && host == own, err
	}
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return false, err
	}
	return alike(filepath.Join(proc, "1"), "/proc/thread-self", kind)
}

// alike reports whether two processes, by their directories in a procfs, are in one
// namespace of a kind, by what is readable without ptrace access.
func alike(a, b, kind string) (bool, error) {
	switch kind {
	case "net":
		x, err := identity(filepath.Join(a, "net/dev"))
		if err != nil {
			return false, err
		}
		y, err := identity(filepath.Join(b, "net/dev"))
		// The device is that of the mount, which may be another; procfs numbers these
		// inodes once for all mounts.
		return err == nil && x.ino == y.ino, err
	case "mnt":
		x, err := firstMount(filepath.Join(a, "mountinfo"))
		if err != nil {
			return false, err
		}
		y, err := firstMount(filepath.Join(b, "mountinfo"))
		return err == nil && x == y, err
	}
	return false, fmt.Errorf("unknown kind of namespace %q", kind)
}

// OpenInit opens PID 1's namespace of a kind, "net" or "mnt". Where PID 1 is refused it
// is opened through PID 2, if that (kthreadd in the initial PID namespace) proves to be
// in the same one.
func OpenInit(proc, kind string) (*os.File, error) {
	f, err := os.Open(filepath.Join(proc, "1/ns", kind))
	if err == nil || !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return f, err
	}
	same, err2 := alike(filepath.Join(proc, "1"), filepath.Join(proc, "2"), kind)
	if err2 != nil || !same {
		return nil, errors.Join(err, err2)
	}
	return os.Open(filepath.Join(proc, "2/ns", kind))
}

type fileIdentity struct{ dev, ino uint64 }

func identity(path string) (fileIdentity, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileIdentity{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileIdentity{st.Dev, st.Ino}, nil
}

// firstMount returns the ID of the first mount in a mountinfo.
func firstMount(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [64]byte
	n, err := f.Read(b[:])
	if err != nil {
		return "", err
	}
	id, _, ok := bytes.Cut(b[:n], []byte(" "))
	if !ok || len(id) == 0 {
		return "", &os.PathError{Op: "read", Path: path, Err: errors.New("no mount in it")}
	}
	return string(id), nil
}

// InitSees reports whether PID 1 has at an absolute path the file or directory that we have
// there, or neither has one. In a container it is another one, or none, where nothing is
// mounted, and also where the node's was made anew after the mount. An error means that it
// cannot be told.
func InitSees(proc, path string) (bool, error) {
	if same, err := InInit(proc, "mnt"); err != nil || same {
		return same, err
	}
	root, err := initRoot(proc)
	if err != nil {
		return false, err
	}
	defer unix.Close(root)
	// Links that are absolute lead to the node's own, too.
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	gone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
	if err != nil && !gone {
		return false, &os.PathError{Op: "open as PID 1 sees it", Path: path, Err: err}
	}
	own, ownErr := identity(path)
	if gone {
		return errors.Is(ownErr, unix.ENOENT), nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, &os.PathError{Op: "stat as PID 1 sees it", Path: path, Err: err}
	}
	return ownErr == nil && own == fileIdentity{st.Dev, st.Ino}, nil
}

// initRoot opens PID 1's root directory, or that of PID 2 where PID 1 is refused and both are
// in one mount namespace.
func initRoot(proc string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	fd, err := openat(unix.AT_FDCWD, filepath.Join(proc, "1/root"), flags)
	if err == nil || err != unix.EACCES && err != unix.EPERM {
		return fd, pathError("open", filepath.Join(proc, "1/root"), err)
	}
	same, err2 := alike(filepath.Join(proc, "1"), filepath.Join(proc, "2"), "mnt")
	if err2 != nil || !same {
		return -1, errors.Join(pathError("open", filepath.Join(proc, "1/root"), err), err2)
	}
	fd, err = openat(unix.AT_FDCWD, filepath.Join(proc, "2/root"), flags)
	return fd, pathError("open", filepath.Join(proc, "2/root"), err)
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}
