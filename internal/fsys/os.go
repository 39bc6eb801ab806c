package fsys

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// OS is the kernel.
type OS struct{}

var _ FS = OS{}

// Openat is openat(2).
func (OS) Openat(dirfd int, path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dirfd, path, flags|unix.O_CLOEXEC|unix.O_LARGEFILE, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// Close is close(2). It is not made again after EINTR: Linux has closed it by then.
func (OS) Close(fd int) error {
	if err := unix.Close(fd); err != unix.EINTR {
		return err
	}
	return nil
}

// Fstat is fstat(2).
func (OS) Fstat(fd int) (Stat, error) {
	var st unix.Stat_t
	for {
		err := unix.Fstat(fd, &st)
		if err != unix.EINTR {
			return statOf(&st), err
		}
	}
}

// Fstatat is fstatat(2).
func (OS) Fstatat(dirfd int, path string, flags int) (Stat, error) {
	var st unix.Stat_t
	for {
		err := unix.Fstatat(dirfd, path, &st, flags)
		if err != unix.EINTR {
			return statOf(&st), err
		}
	}
}

//nolint:unconvert // some fields have 32 bits on some architectures
func statOf(st *unix.Stat_t) Stat {
	return Stat{
		Dev: uint64(st.Dev), Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink),
		Size: st.Size, Atime: st.Atim.Nano(), Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
	}
}

// ReadOnly is fstatfs(2).
func (OS) ReadOnly(fd int) (bool, error) {
	var st unix.Statfs_t
	for {
		err := unix.Fstatfs(fd, &st)
		if err != unix.EINTR {
			return int64(st.Flags)&unix.ST_RDONLY != 0, err
		}
	}
}

// Faccessat is faccessat2(2), or faccessat(2) where it is missing.
func (OS) Faccessat(dirfd int, path string, mode uint32, flags int) error {
	return again(func() error { return unix.Faccessat(dirfd, path, mode, flags) })
}

// Getdents is getdents64(2).
func (OS) Getdents(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Getdents(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// Pread is pread(2).
func (OS) Pread(fd int, buf []byte, off int64) (int, error) {
	for {
		n, err := unix.Pread(fd, buf, off)
		if err != unix.EINTR {
			return max(0, n), err
		}
	}
}

// Pwrite is pwrite(2).
func (OS) Pwrite(fd int, buf []byte, off int64) (int, error) {
	for {
		n, err := unix.Pwrite(fd, buf, off)
		if err != unix.EINTR {
			return max(0, n), err
		}
	}
}

// Write is write(2).
func (OS) Write(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Write(fd, buf)
		if err != unix.EINTR {
			return max(0, n), err
		}
	}
}

// Ftruncate is ftruncate(2).
func (OS) Ftruncate(fd int, size int64) error {
	return again(func() error { return unix.Ftruncate(fd, size) })
}

// Fsync is fsync(2).
func (OS) Fsync(fd int) error { return again(func() error { return unix.Fsync(fd) }) }

// Mkdirat is mkdirat(2).
func (OS) Mkdirat(dirfd int, path string, mode uint32) error {
	return again(func() error { return unix.Mkdirat(dirfd, path, mode) })
}

// Linkat is linkat(2).
func (OS) Linkat(olddirfd int, oldpath string, newdirfd int, newpath string, flags int) error {
	return again(func() error { return unix.Linkat(olddirfd, oldpath, newdirfd, newpath, flags) })
}

// LinkFD is linkat(2) of an open file. AT_EMPTY_PATH needs CAP_DAC_READ_SEARCH, the path
// in /proc needs procfs.
func (o OS) LinkFD(fd, newdirfd int, newpath string) error {
	err := o.Linkat(unix.AT_FDCWD, procPath(fd), newdirfd, newpath, unix.AT_SYMLINK_FOLLOW)
	if err == unix.ENOENT {
		err = o.Linkat(fd, "", newdirfd, newpath, unix.AT_EMPTY_PATH)
	}
	return err
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Renameat2 is renameat2(2).
func (OS) Renameat2(olddirfd int, oldpath string, newdirfd int, newpath string, flags uint) error {
	return again(func() error { return unix.Renameat2(olddirfd, oldpath, newdirfd, newpath, flags) })
}

// Unlinkat is unlinkat(2).
func (OS) Unlinkat(dirfd int, path string, flags int) error {
	return again(func() error { return unix.Unlinkat(dirfd, path, flags) })
}

// Flock is flock(2).
func (OS) Flock(fd int, how int) error { return again(func() error { return unix.Flock(fd, how) }) }

// Fchmod is fchmod(2).
func (OS) Fchmod(fd int, mode uint32) error {
	return again(func() error { return unix.Fchmod(fd, mode) })
}

// Fchown is fchown(2).
func (OS) Fchown(fd int, uid, gid int) error {
	return again(func() error { return unix.Fchown(fd, uid, gid) })
}

// Utimes is utimensat(2) by way of /proc.
func (OS) Utimes(fd int, atime, mtime int64) error {
	ts := []unix.Timespec{unix.NsecToTimespec(atime), unix.NsecToTimespec(mtime)}
	return again(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), ts, 0) })
}

// Flistxattr is flistxattr(2).
func (OS) Flistxattr(fd int, buf []byte) (int, error) { return unix.Flistxattr(fd, buf) }

// Fgetxattr is fgetxattr(2).
func (OS) Fgetxattr(fd int, name string, buf []byte) (int, error) {
	return unix.Fgetxattr(fd, name, buf)
}

// Fsetxattr is fsetxattr(2).
func (OS) Fsetxattr(fd int, name string, value []byte, flags int) error {
	return again(func() error { return unix.Fsetxattr(fd, name, value, flags) })
}

func again(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
