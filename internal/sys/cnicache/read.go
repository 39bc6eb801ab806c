package cnicache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of one entry, in bytes. A real one has a few KiB.
const maxFile = 1 << 20

var (
	errNotRegular = errors.New("no regular file")
	errTooLarge   = fmt.Errorf("larger than %d bytes", maxFile)
	errRestless   = errors.New("changes while it is read")
)

// file is one entry as read. content is nil when it could not be read whole; then
// inc has no Sum.
type file struct {
	content []byte
	inc     claim.Incarnation
}

// directory is an open one.
type directory struct {
	fs fsys.FS
	fd int
}

func (d directory) Close() error { return d.fs.Close(d.fd) }

// openDir opens a directory. The path itself may lead through links: the operator
// configured it. What lies inside is never followed.
func openDir(fs fsys.FS, path string) (directory, error) {
	fd, err := fs.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return directory{fs, fd}, os.NewSyscallError("open", err)
}

// readAt reads the entry name of dir. It neither follows a link nor waits for a
// FIFO. *buf is scratch space: file.content aliases it until the next call.
// Errors: fs.ErrNotExist, errNotRegular, errTooLarge, errRestless, or the
// system's.
func readAt(dir directory, name string, buf *[]byte) (file, error) {
	fd, err := dir.fs.Openat(dir.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch err {
	case nil:
	case unix.ELOOP, unix.ENXIO, unix.ENODEV:
		// A link; a socket or a device without a driver.
		return file{}, errNotRegular
	default:
		return file{}, os.NewSyscallError("openat", err)
	}
	defer dir.fs.Close(fd)
	for range 3 {
		before, err := fstat(dir.fs, fd)
		if err != nil {
			return file{}, err
		}
		if before.Size > maxFile {
			return file{inc: before}, errTooLarge
		}
		content, err := readWhole(dir.fs, fd, buf)
		if err != nil {
			return file{inc: before}, err
		}
		after, err := fstat(dir.fs, fd)
		if err != nil {
			return file{}, err
		}
		// Equal size and ctime around the read: these bytes are one state of it.
		if before == after && int64(len(content)) == after.Size {
			sum := sha256.Sum256(content)
			after.Sum = hex.EncodeToString(sum[:16])
			return file{content: content, inc: after}, nil
		}
	}
	return file{}, errRestless
}

// fstat gives the incarnation of an open regular file, without Sum.
func fstat(fs fsys.FS, fd int) (claim.Incarnation, error) {
	st, err := fs.Fstat(fd)
	if err != nil {
		return claim.Incarnation{}, os.NewSyscallError("fstat", err)
	}
	if !st.Regular() {
		return claim.Incarnation{}, errNotRegular
	}
	return incarnation(&st), nil
}

func incarnation(st *fsys.Stat) claim.Incarnation {
	return claim.Incarnation{Dev: st.Dev, Ino: st.Ino, Ctime: st.Ctime, Size: st.Size}
}

func readWhole(fs fsys.FS, fd int, buf *[]byte) ([]byte, error) {
	if *buf == nil {
		*buf = make([]byte, 16<<10)
	}
	n := 0
	for {
		if n == len(*buf) {
			if n > maxFile {
				return nil, errTooLarge
			}
			*buf = append(*buf, make([]byte, n)...)
		}
		m, err := fs.Pread(fd, (*buf)[n:], int64(n))
		if err != nil {
			return nil, os.NewSyscallError("read", err)
		}
		if m == 0 {
			return (*buf)[:n], nil
		}
		n += m
	}
}
