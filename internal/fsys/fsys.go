package fsys

import "golang.org/x/sys/unix"

// FS is the kernel's file calls. Errors are bare unix.Errno as openat(2) and its like
// give them, but for EINTR, which is never seen: the call is made again. Paths and flags
// are the kernel's; dirfd may be unix.AT_FDCWD. O_CLOEXEC and O_LARGEFILE are always
// added. Safe for concurrent use as far as the kernel's calls are.
//
// It has more than four methods because it is the kernel's table, not ours.
type FS interface {
	// Openat opens or makes a file. A descriptor is good for this FS alone.
	Openat(dirfd int, path string, flags int, mode uint32) (int, error)
	Close(fd int) error

	Fstat(fd int) (Stat, error)
	// Fstatat follows a symlink unless flags has AT_SYMLINK_NOFOLLOW.
	Fstatat(dirfd int, path string, flags int) (Stat, error)
	// ReadOnly reports whether the file system of fd is mounted read-only.
	ReadOnly(fd int) (bool, error)
	// Faccessat asks for the effective user with AT_EACCESS.
	Faccessat(dirfd int, path string, mode uint32, flags int) error
	// Getdents fills buf with struct linux_dirent64 and moves the position of fd.
	Getdents(fd int, buf []byte) (int, error)

	Pread(fd int, buf []byte, off int64) (int, error)
	Pwrite(fd int, buf []byte, off int64) (int, error)
	// Write writes at the position of fd, or at the end with O_APPEND. It may be short.
	Write(fd int, buf []byte) (int, error)
	Ftruncate(fd int, size int64) error
	Fsync(fd int) error

	Mkdirat(dirfd int, path string, mode uint32) error
	Linkat(olddirfd int, oldpath string, newdirfd int, newpath string, flags int) error
	// LinkFD gives a file of O_TMPFILE its name. ENOENT also where /proc is missing and
	// the right to do without.
	LinkFD(fd, newdirfd int, newpath string) error
	Renameat2(olddirfd int, oldpath string, newdirfd int, newpath string, flags uint) error
	Unlinkat(dirfd int, path string, flags int) error

	// Flock may block without LOCK_NB, and then nothing but the lock ends it. Signals
	// do not.
	Flock(fd int, how int) error

	Fchmod(fd int, mode uint32) error
	Fchown(fd int, uid, gid int) error
	// Utimes sets access and modification time, in ns since the epoch.
	Utimes(fd int, atime, mtime int64) error
	// Flistxattr gives the names, each with a NUL behind it.
	Flistxattr(fd int, buf []byte) (int, error)
	Fgetxattr(fd int, name string, buf []byte) (int, error)
	Fsetxattr(fd int, name string, value []byte, flags int) error
}

// Stat is what is used of struct stat. Times are ns since the epoch.
type Stat struct {
	Dev, Ino            uint64
	Mode                uint32 // type and permissions, as S_IFMT and below
	UID, GID            uint32
	Nlink               uint64
	Size                int64
	Atime, Mtime, Ctime int64
}

// Regular reports whether it is a regular file.
func (st *Stat) Regular() bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// Dir reports whether it is a directory.
func (st *Stat) Dir() bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// Key identifies a file while it is open or exists.
type Key struct{ Dev, Ino uint64 }

// Key returns the file's identity.
func (st *Stat) Key() Key { return Key{st.Dev, st.Ino} }

// Or returns fs, or the kernel when it is nil.
func Or(fs FS) FS {
	if fs == nil {
		return OS{}
	}
	return fs
}
