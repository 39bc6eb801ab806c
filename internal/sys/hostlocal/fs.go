package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// files are the primitives that touch a data directory or the quarantine, each relative
// to a directory descriptor.
type files struct {
	fsys.FS
	// serial: nothing runs beside the caller, and a lock that another holds is not
	// waited for.
	serial bool
}

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
func (f files) openDir(path string, nofollow bool) (int, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY
	if nofollow {
		flags |= unix.O_NOFOLLOW
	}
	return f.Openat(unix.AT_FDCWD, path, flags, 0)
}

// readReservation opens name in dirfd and reads it whole into buf, which must hold
// maxContent+1 bytes. The content returned lies in buf. The incarnation is filled
// as far as it is known, also beside an error.
//
// O_NONBLOCK keeps a FIFO from hanging and O_NOFOLLOW a symlink from leading away;
// what was opened is looked at again by fstat, since the name can be replaced in
// between. Reading changes neither ctime nor the incarnation.
func (f files) readReservation(dirfd int, name string, buf []byte) ([]byte, claim.Incarnation, error) {
	return f.readStamped(dirfd, name, buf, nil)
}

// readStamped is readReservation that also reads the stamp, if stamp is not nil. A stamp
// that cannot be read is none: it would only prove something.
func (f files) readStamped(dirfd int, name string, buf []byte, stamp **claim.Stamp) ([]byte, claim.Incarnation, error) {
	for range 3 {
		content, inc, err := f.readOnce(dirfd, name, buf, stamp)
		if err != errUnsteady {
			return content, inc, err
		}
	}
	return nil, claim.Incarnation{}, errUnsteady
}

func (f files) readOnce(dirfd int, name string, buf []byte, stamp **claim.Stamp) ([]byte, claim.Incarnation, error) {
	fd, err := f.openReservation(dirfd, name)
	if err != nil {
		return nil, claim.Incarnation{}, err
	}
	defer f.Close(fd)
	content, inc, err := f.readFD(fd, buf)
	if err == nil && stamp != nil {
		*stamp, _ = f.stamp(fd, inc.Sum)
	}
	return content, inc, err
}

func (f files) openReservation(dirfd int, name string) (int, error) {
	fd, err := f.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch err {
	case unix.ELOOP:
		return -1, &notRegularError{unix.S_IFLNK}
	case unix.ENXIO:
		return -1, &notRegularError{unix.S_IFSOCK}
	}
	return fd, err
}

func (f files) readFD(fd int, buf []byte) ([]byte, claim.Incarnation, error) {
	st, err := f.Fstat(fd)
	if err != nil {
		return nil, claim.Incarnation{}, err
	}
	inc := incarnationOf(&st)
	if !st.Regular() {
		return nil, inc, &notRegularError{st.Mode}
	}
	if st.Size > maxContent {
		return nil, inc, &tooLargeError{st.Size}
	}
	n, err := f.Pread(fd, buf[:maxContent+1], 0)
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
func incarnationOf(st *fsys.Stat) claim.Incarnation {
	return claim.Incarnation{Dev: st.Dev, Ino: st.Ino, Ctime: st.Ctime, Size: st.Size}
}

func (f files) fdKey(fd int) (fsys.Key, error) {
	st, err := f.Fstat(fd)
	return st.Key(), err
}

// lstatAt stats a name without following it. ok is false when it is not there.
func (f files) lstatAt(dirfd int, name string) (st fsys.Stat, ok bool, err error) {
	st, err = f.Fstatat(dirfd, name, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return st, false, nil
	}
	return st, err == nil, err
}

// moveNoReplace renames and never overwrites. Where the file system has no
// RENAME_NOREPLACE it links and unlinks: a crash in between leaves both names on one
// inode, which Place understands.
func (f files) moveNoReplace(fromFD int, from string, toFD int, to string) error {
	if failpoint.At(failpoint.MoveNoReplace) != nil {
		return f.linkMove(fromFD, from, toFD, to)
	}
	err := f.Renameat2(fromFD, from, toFD, to, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS && err != unix.EOPNOTSUPP {
		return err
	}
	return f.linkMove(fromFD, from, toFD, to)
}

func (f files) linkMove(fromFD int, from string, toFD int, to string) error {
	if err := f.Linkat(fromFD, from, toFD, to, 0); err != nil {
		return err
	}
	err := failpoint.At(failpoint.MoveLinked)
	if err == nil {
		err = f.Unlinkat(fromFD, from, 0)
	}
	if err != nil {
		return errors.Join(err, f.Unlinkat(toFD, to, 0))
	}
	return nil
}

// unlinkIfThere removes a name; it is no error when it is not there.
func (f files) unlinkIfThere(dirfd int, name string) error {
	if err := f.Unlinkat(dirfd, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// writeCopy writes content to fd with the mode, owner, time and extended attributes
// of src, and fsyncs it. Owner and attributes are kept where that is permitted: the
// content decides what a reservation means. The mode is set, since host-local must
// be able to read it again.
func (f files) writeCopy(fd, src int, content []byte) error {
	st, err := f.Fstat(src)
	if err != nil {
		return err
	}
	for b := content; len(b) > 0; {
		n, err := f.Write(fd, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	f.copyXattrs(fd, src)
	_ = f.Fchown(fd, int(st.UID), int(st.GID))
	if err := f.Fchmod(fd, st.Mode&0o7777); err != nil {
		return err
	}
	// The time is for people; it decides nothing (case F8).
	_ = f.Utimes(fd, st.Atime, st.Mtime)
	if err := failpoint.At(failpoint.CopyWritten); err != nil {
		return err
	}
	if err := f.Fsync(fd); err != nil {
		return err
	}
	return failpoint.At(failpoint.CopySynced)
}

// copyXattrs copies extended attributes as far as that is permitted: the stamp of our
// own IPAM, SELinux labels. At most 64 KiB of names and values.
func (f files) copyXattrs(fd, src int) {
	names := make([]byte, 4096)
	n, err := f.Flistxattr(src, names)
	if err != nil || n <= 0 {
		return
	}
	val := make([]byte, 4096)
	for _, name := range splitNUL(names[:n]) {
		if m, err := f.Fgetxattr(src, name, val); err == nil {
			_ = f.Fsetxattr(fd, name, val[:m], 0)
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
func (f files) writable(dirfd int) bool {
	if ro, err := f.ReadOnly(dirfd); err != nil || ro {
		return false
	}
	return f.Faccessat(dirfd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

// isNotThere reports whether a path does not exist, as opposed to cannot be read.
func isNotThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// readBounded reads a small regular file by path, symlinks followed (configuration
// files are often links), without hanging on a FIFO.
func (f files) readBounded(path string, limit int64) ([]byte, error) {
	fd, err := f.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close(fd)
	st, err := f.Fstat(fd)
	if err != nil {
		return nil, err
	}
	if !st.Regular() {
		return nil, &notRegularError{st.Mode}
	}
	if st.Size > limit {
		return nil, fmt.Errorf("too large: %d bytes; allowed are %d", st.Size, limit)
	}
	buf := make([]byte, st.Size)
	n := 0
	for n < len(buf) {
		m, err := f.Pread(fd, buf[n:], int64(n))
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

// readDir calls yield for every entry but "." and "..". The name is only valid during
// the call.
func (f files) readDir(fd int, yield func(name []byte, typ byte)) error {
	return fsys.ReadDir(f.FS, fd, func(name []byte, typ byte) bool {
		yield(name, typ)
		return true
	})
}

// dirEntry is a name in a directory.
type dirEntry struct {
	name string
	mode uint32 // file type
}

// entries reads a directory by path, sorted by name.
func (f files) entries(path string) ([]dirEntry, error) {
	fd, err := f.openDir(path, false)
	if err != nil {
		return nil, err
	}
	defer f.Close(fd)
	var out []dirEntry
	err = f.readDir(fd, func(name []byte, typ byte) {
		out = append(out, dirEntry{string(name), modeOfType(typ)})
	})
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].mode == 0 {
			if st, ok, err := f.lstatAt(fd, out[i].name); err == nil && ok {
				out[i].mode = st.Mode & unix.S_IFMT
			}
		}
	}
	slices.SortFunc(out, func(a, b dirEntry) int { return strings.Compare(a.name, b.name) })
	return out, nil
}
