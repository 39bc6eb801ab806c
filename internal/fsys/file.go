package fsys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is an open file for those who read and write streams. Its errors are
// *os.SyscallError, or io.EOF and io.ErrShortWrite as package io wants them. Read must
// not run concurrently; the rest may.
type File struct {
	fs  FS
	fd  int
	off int64 // of Read
}

// Open opens path below dirfd; flags and mode are those of Openat. The error is a bare
// errno.
func Open(fs FS, dirfd int, path string, flags int, mode uint32) (*File, error) {
	fd, err := fs.Openat(dirfd, path, flags, mode)
	if err != nil {
		return nil, err
	}
	return &File{fs: fs, fd: fd}, nil
}

// FD returns the descriptor, which stays the File's.
func (f *File) FD() int { return f.fd }

// Close closes the file. It is safe to call it twice.
func (f *File) Close() error {
	if f.fd < 0 {
		return nil
	}
	fd := f.fd
	f.fd = -1
	return os.NewSyscallError("close", f.fs.Close(fd))
}

// Read reads on behind what the last Read read, whatever was written.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.pread(p, f.off)
	f.off += int64(n)
	return n, err
}

func (f *File) pread(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.fs.Pread(f.fd, p, off)
	if err == nil && n == 0 {
		return 0, io.EOF
	}
	return n, os.NewSyscallError("read", err)
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = f.pread(p[n:], off+int64(n))
		n += m
	}
	return n, err
}

// Write goes on after a short write, so only an error leaves some of p unwritten.
func (f *File) Write(p []byte) (n int, err error) {
	for n < len(p) {
		m, err := f.fs.Write(f.fd, p[n:])
		n += m
		if err != nil {
			return n, os.NewSyscallError("write", err)
		}
		if m == 0 {
			return n, io.ErrShortWrite
		}
	}
	return n, nil
}

// Truncate sets the size.
func (f *File) Truncate(size int64) error {
	return os.NewSyscallError("truncate", f.fs.Ftruncate(f.fd, size))
}

// Sync makes content and size durable.
func (f *File) Sync() error { return os.NewSyscallError("fsync", f.fs.Fsync(f.fd)) }

// Stat looks at the open file.
func (f *File) Stat() (Stat, error) {
	st, err := f.fs.Fstat(f.fd)
	return st, os.NewSyscallError("fstat", err)
}

// ReadDir calls yield for every entry of an open directory but "." and "..", from its
// present position on, until yield says no. typ is DT_REG and its like, or DT_UNKNOWN. The
// name is valid during the call only.
func ReadDir(fs FS, fd int, yield func(name []byte, typ byte) bool) error {
	// Most directories are small; a second call tells that there is no more.
	buf := make([]byte, 4<<10)
	for {
		n, err := fs.Getdents(fd, buf)
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		more, err := eachDirent(buf[:n], yield)
		if err != nil || !more {
			return err
		}
		if len(buf) < 64<<10 && n > len(buf)/2 {
			buf = make([]byte, 64<<10)
		}
	}
}

var errDirents = errors.New("the kernel's directory entries could not be parsed")

// eachDirent walks a buffer that getdents64 filled. A record that does not fit is an
// error: the listing is not whole.
func eachDirent(buf []byte, yield func(name []byte, typ byte) bool) (more bool, err error) {
	// struct linux_dirent64: ino u64, off s64, reclen u16, type u8, name, NUL.
	const head = 8 + 8 + 2 + 1
	for len(buf) > 0 {
		if len(buf) < head {
			return false, errDirents
		}
		n := int(binary.NativeEndian.Uint16(buf[16:]))
		if n <= head || n > len(buf) {
			return false, errDirents
		}
		name, _, ok := bytes.Cut(buf[head:n], []byte{0})
		if !ok || len(name) == 0 {
			return false, errDirents
		}
		if string(name) != "." && string(name) != ".." && !yield(name, buf[18]) {
			return false, nil
		}
		buf = buf[n:]
	}
	return true, nil
}

// StatPath looks at path, through a symlink.
func StatPath(fs FS, path string) (Stat, error) { return fs.Fstatat(unix.AT_FDCWD, path, 0) }

// LstatPath looks at path itself.
func LstatPath(fs FS, path string) (Stat, error) {
	return fs.Fstatat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

// SyncDir makes durable which names a directory has.
func SyncDir(fs FS, path string) error {
	fd, err := fs.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = fs.Fsync(fd)
	if cerr := fs.Close(fd); err == nil {
		err = cerr
	}
	return err
}

// MkdirAll makes a directory with what is missing above it, and makes the name of each
// that it made durable. A directory that is there is no error, whatever its mode.
func MkdirAll(fs FS, path string, mode uint32) error {
	st, err := StatPath(fs, path)
	switch {
	case err == nil && st.Dir():
		return nil
	case err == nil:
		return unix.ENOTDIR
	case err != unix.ENOENT:
		return err
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := MkdirAll(fs, parent, mode); err != nil {
			return err
		}
	}
	if err := fs.Mkdirat(unix.AT_FDCWD, path, mode); err != nil {
		if st, serr := StatPath(fs, path); err == unix.EEXIST && serr == nil && st.Dir() {
			return nil // another was faster
		}
		return err
	}
	return SyncDir(fs, parent)
}
