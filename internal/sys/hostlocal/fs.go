package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// This file holds every primitive that touches a data directory or the quarantine,
// each relative to a directory descriptor. There is no interface over them: nothing
// but the real file system stands behind it today, and one indirect call with an
// escaping buffer per file is measurable at 10,000 files. A simulator with crash
// semantics would replace exactly these functions.

// Error is a failure on one object, for an operator to act on.
type Error struct {
	Op     string // such as "open", "release", "lock"
	Object string // a path
	Err    error
}

// Error quotes the object: paths may hold what a terminal must not get raw.
func (e *Error) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reasons why a directory entry cannot be read as a reservation.
type (
	notRegularError struct{ mode uint32 }
	tooLargeError   struct{ size int64 }
)

func (e *notRegularError) Error() string {
	return "is " + typeWord(e.mode) + ", not a regular file; not opened further"
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("too large: %d bytes; a reservation has at most %d", e.size, maxContent)
}

var errUnsteady = errors.New("changed while it was read")

// openDir opens a directory for *at calls. nofollow refuses a symlink as its last
// component.
func openDir(path string, nofollow bool) (int, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	if nofollow {
		flags |= unix.O_NOFOLLOW
	}
	return ignoringEINTR(func() (int, error) { return unix.Open(path, flags, 0) })
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// readReservation opens name in dirfd and reads it whole into buf, which must hold
// maxContent+1 bytes. The content returned lies in buf. The incarnation is filled
// as far as it is known, also beside an error.
//
// O_NONBLOCK keeps a FIFO from hanging and O_NOFOLLOW a symlink from leading away;
// what was opened is looked at again by fstat, since the name can be replaced in
// between. Reading changes neither ctime nor the incarnation.
func readReservation(dirfd int, name string, buf []byte) ([]byte, claim.Incarnation, error) {
	for range 3 {
		content, inc, err := readOnce(dirfd, name, buf)
		if err != errUnsteady {
			return content, inc, err
		}
	}
	return nil, claim.Incarnation{}, errUnsteady
}

func readOnce(dirfd int, name string, buf []byte) ([]byte, claim.Incarnation, error) {
	fd, err := openReservation(dirfd, name)
	if err != nil {
		return nil, claim.Incarnation{}, err
	}
	defer unix.Close(fd)
	return readFD(fd, buf)
}

func openReservation(dirfd int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		switch err {
		case unix.EINTR:
			continue
		case unix.ELOOP:
			return -1, &notRegularError{unix.S_IFLNK}
		case unix.ENXIO:
			return -1, &notRegularError{unix.S_IFSOCK}
		}
		return fd, err
	}
}

func readFD(fd int, buf []byte) ([]byte, claim.Incarnation, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, claim.Incarnation{}, err
	}
	inc := incarnationOf(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, inc, &notRegularError{st.Mode}
	}
	if st.Size > maxContent {
		return nil, inc, &tooLargeError{st.Size}
	}
	n, err := ignoringEINTR(func() (int, error) { return unix.Pread(fd, buf[:maxContent+1], 0) })
	if err != nil {
		return nil, inc, err
	}
	if int64(n) != st.Size {
		return nil, inc, errUnsteady
	}
	inc.Sum = sum(buf[:n])
	return buf[:n], inc, nil
}

// incarnationOf is everything of an incarnation but the sum.
func incarnationOf(st *unix.Stat_t) claim.Incarnation {
	return claim.Incarnation{
		Dev:   uint64(st.Dev), //nolint:unconvert // 32 bits on some architectures
		Ino:   st.Ino,
		Ctime: st.Ctim.Nano(),
		Size:  st.Size,
	}
}

// fileKey identifies a file or directory while it is open or exists.
type fileKey struct{ dev, ino uint64 }

func keyOf(st *unix.Stat_t) fileKey {
	return fileKey{uint64(st.Dev), st.Ino} //nolint:unconvert // 32 bits on some architectures
}

func fdKey(fd int) (fileKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileKey{}, err
	}
	return keyOf(&st), nil
}

// lstatAt stats a name without following it. ok is false when it is not there.
func lstatAt(dirfd int, name string) (st unix.Stat_t, ok bool, err error) {
	err = unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return st, false, nil
	}
	return st, err == nil, err
}

// moveNoReplace renames and never overwrites. Where the file system has no
// RENAME_NOREPLACE it links and unlinks: a crash in between leaves both names on one
// inode, which Place understands.
func moveNoReplace(fromFD int, from string, toFD int, to string) error {
	err := unix.Renameat2(fromFD, from, toFD, to, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS && err != unix.EOPNOTSUPP {
		return err
	}
	return linkMove(fromFD, from, toFD, to)
}

func linkMove(fromFD int, from string, toFD int, to string) error {
	if err := unix.Linkat(fromFD, from, toFD, to, 0); err != nil {
		return err
	}
	if err := unix.Unlinkat(fromFD, from, 0); err != nil {
		return errors.Join(err, unix.Unlinkat(toFD, to, 0))
	}
	return nil
}

func fsync(fd int) error {
	_, err := ignoringEINTR(func() (int, error) { return 0, unix.Fsync(fd) })
	return err
}

// unlinkIfThere removes a name; it is no error when it is not there.
func unlinkIfThere(dirfd int, name string) error {
	if err := unix.Unlinkat(dirfd, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// writeCopy writes content to fd with the mode, owner, time and extended attributes
// of src, and fsyncs it. Owner and attributes are kept where that is permitted: the
// content decides what a reservation means. The mode is set, since host-local must
// be able to read it again.
func writeCopy(fd, src int, content []byte) error {
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	for b := content; len(b) > 0; {
		n, err := ignoringEINTR(func() (int, error) { return unix.Write(fd, b) })
		if err != nil {
			return err
		}
		b = b[n:]
	}
	copyXattrs(fd, src)
	_ = unix.Fchown(fd, int(st.Uid), int(st.Gid))
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return err
	}
	ts := []unix.Timespec{st.Atim, st.Mtim}
	// The time is for people; it decides nothing (case F8).
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), ts, 0)
	return fsync(fd)
}

// copyXattrs copies extended attributes as far as that is permitted: the stamp of our
// own IPAM, SELinux labels. At most 64 KiB of names and values.
func copyXattrs(fd, src int) {
	names := make([]byte, 4096)
	n, err := unix.Flistxattr(src, names)
	if err != nil || n <= 0 {
		return
	}
	val := make([]byte, 4096)
	for _, name := range splitNUL(names[:n]) {
		if m, err := unix.Fgetxattr(src, name, val); err == nil {
			_ = unix.Fsetxattr(fd, name, val[:m], 0)
		}
	}
}

func splitNUL(b []byte) []string {
	var out []string
	start := 0
	for i, c := range b {
		if c == 0 {
			if i > start && len(out) < 16 {
				out = append(out, string(b[start:i]))
			}
			start = i + 1
		}
	}
	return out
}

// writable reports whether entries can be added to and removed from the directory.
// An immutable attribute is not seen: then the release fails and says so.
func writable(dirfd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(dirfd, &fs) != nil || int64(fs.Flags)&unix.ST_RDONLY != 0 {
		return false
	}
	return unix.Faccessat(dirfd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

// isNotThere reports whether a path does not exist, as opposed to cannot be read.
func isNotThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// readBounded reads a small regular file by path, symlinks followed (configuration
// files are often links), without hanging on a FIFO.
func readBounded(path string, limit int64) ([]byte, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &notRegularError{st.Mode}
	}
	if st.Size > limit {
		return nil, fmt.Errorf("too large: %d bytes; allowed are %d", st.Size, limit)
	}
	buf := make([]byte, st.Size)
	n := 0
	for n < len(buf) {
		m, err := ignoringEINTR(func() (int, error) { return unix.Pread(fd, buf[n:], int64(n)) })
		if err != nil {
			return nil, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return buf[:n], nil
}
