package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// Quarantine is the directory to which released reservations are moved, one file
// per release, named by the release's ID and otherwise unchanged.
//
// It must lie outside every data directory: host-local walks sub-directories and
// would still read, match and delete what lies there (case L20).
//
// # What a crash leaves, and how Place tells
//
// The caller journals the intent before Release and the outcome after it (I3), and
// after a restart asks Place for every intent without an outcome (I4).
//
//	crash                                        original   quarantine        Place
//	before the rename (one file system)          stands     -                 origin
//	after the rename                             gone       whole             quarantined
//	between link and unlink (no NOREPLACE)       stands     same inode        origin, quarantined
//	EXDEV: while the copy is written             stands     .tmp-<id>         origin
//	EXDEV: copy in place, before the unlink      stands     whole             origin, quarantined
//	EXDEV: after the unlink                      gone       whole             quarantined
//	Restore, before its rename                   gone       whole             quarantined
//	Restore, after its rename                    restored   -                 neither
//	Restore EXDEV: original placed               restored   whole             quarantined
//	the allocator took the address meanwhile     another's  whole             quarantined
//	power loss before the directories' fsync     any of the states of before or after, since rename is atomic
//
// So: origin => not released; Discard what is quarantined, and judge it anew.
// Quarantined alone => released; or an undo that did not end: Restore again, it knows
// its own file. Neither => the reservation was gone or changed before we came, or the
// undo ended; nothing to do. Every one of these ends in one of two states, never half.
//
// The zero value but for Dir works. Safe for concurrent use.
type Quarantine struct {
	// Dir is made with mode 0700 when missing. Required, absolute.
	Dir string
	// Wait is how long the store's lock is waited for, each time; 5 s when zero.
	Wait time.Duration
	// Proc is where procfs is mounted, to name who holds a lock; "/proc" when empty.
	Proc string
	// FS is where it and the stores lie; the kernel's when nil.
	FS fsys.FS
	// Serial: no goroutine waits for a lock, and one that another holds is not waited
	// for at all: for a simulation that must be repeatable.
	Serial bool

	locks locker
}

// Move is one reservation to be released: the one that was judged, no other (I7).
type Move struct {
	// ReleaseID names the quarantine file: letters, digits, '.', '_', '-', at most
	// 128, the first a letter or digit.
	ReleaseID string
	Path      string // <store directory>/<address>
	Inc       claim.Incarnation
}

func isReleaseID(s string) bool {
	if len(s) == 0 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

var (
	errReleaseID = errors.New("not a release ID")
	errNotIP     = errors.New("not named by an IP address")
	errInside    = errors.New("quarantine lies inside a data directory, where host-local would still read it")
)

func (q *Quarantine) files() files { return files{fsys.Or(q.FS), q.Serial} }

func (q *Quarantine) lock(ctx context.Context, dir storeDir) (*held, error) {
	return q.locks.lockDir(ctx, dir, cmp.Or(q.Wait, 5*time.Second), cmp.Or(q.Proc, "/proc"))
}

func tmpName(id string) string { return ".tmp-" + id }

// Check makes the quarantine directory if it is missing and reports an error when it
// cannot be used, or when it is or lies inside one of dirs (data directories or
// stores; those that do not exist are left out).
func (q *Quarantine) Check(dirs ...string) error {
	fd, err := q.open()
	if err != nil {
		return err
	}
	defer q.files().Close(fd)
	return q.outside(fd, dirs...)
}

// open opens the quarantine, making it first if need be.
func (q *Quarantine) open() (int, error) {
	if !filepath.IsAbs(q.Dir) {
		return -1, &Error{"quarantine", q.Dir, errors.New("not an absolute path")}
	}
	f := q.files()
	// Its own name must be durable before a reservation's only copy lies in it.
	if err := fsys.MkdirAll(f, q.Dir, 0o700); err != nil {
		return -1, &Error{"quarantine", q.Dir, err}
	}
	fd, err := f.openDir(q.Dir, false)
	if err != nil {
		return -1, &Error{"quarantine", q.Dir, err}
	}
	return fd, nil
}

// outside walks from the quarantine up to the root and compares every directory by
// device and inode, so that symlinks and bind mounts of a whole data directory count.
func (q *Quarantine) outside(qfd int, dirs ...string) error {
	f := q.files()
	inner := make(map[fsys.Key]bool)
	for _, dir := range dirs {
		if filepath.Clean(dir) == "/" {
			continue // everything lies inside; only the store itself can be told apart
		}
		if st, err := fsys.StatPath(f, dir); err == nil {
			inner[st.Key()] = true
		} else if !isNotThere(err) {
			return &Error{"quarantine", dir, err}
		}
	}
	fd, err := f.Openat(qfd, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return &Error{"quarantine", q.Dir, err}
	}
	defer func() { f.Close(fd) }()
	key, err := f.fdKey(fd)
	// A path has at most 4096 bytes, so no more than 2048 parents.
	for range 2048 {
		if err != nil {
			return &Error{"quarantine", q.Dir, err}
		}
		if inner[key] {
			return &Error{"quarantine", q.Dir, errInside}
		}
		up, oerr := f.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY, 0)
		if oerr != nil {
			return &Error{"quarantine", q.Dir, oerr}
		}
		f.Close(fd)
		fd = up
		var next fsys.Key
		next, err = f.fdKey(fd)
		if err == nil && next == key {
			return nil // the root
		}
		key = next
	}
	return &Error{"quarantine", q.Dir, errors.New("has too many parents")}
}

// Place tells after a crash where a release stands: whether the judged incarnation
// still is at its path, and whether the quarantine holds it whole (its content's sum
// is Inc.Sum). An error means that it could not be told; then nothing is known.
//
// A link made by an unfinished move changes the original's ctime; it counts as the
// judged one when the quarantine file is the same inode with the same content. The
// device number is not compared here: disks and overlays get others at a reboot, and
// taking a standing original for a released one would be the worse mistake.
func (q *Quarantine) Place(m Move) (origin, quarantined bool, err error) {
	if !isReleaseID(m.ReleaseID) {
		return false, false, &Error{"place", m.ReleaseID, errReleaseID}
	}
	buf := make([]byte, maxContent+1)
	oInc, oThere, err := q.files().incarnationAt(m.Path, buf)
	if err != nil {
		return false, false, err
	}
	qInc, qThere, err := q.files().incarnationAt(filepath.Join(q.Dir, m.ReleaseID), buf)
	if err != nil {
		return false, false, err
	}
	quarantined = qThere && qInc.Sum == m.Inc.Sum && qInc.Size == m.Inc.Size
	judged := m.Inc
	judged.Dev = oInc.Dev
	origin = oThere && oInc == judged
	if quarantined && oThere && oInc == qInc {
		origin = true
	}
	return origin, quarantined, nil
}

// incarnationAt reads the reservation at path. Not there, and no regular file of a
// reservation's size (which is nothing that was ever judged), are both false.
func (f files) incarnationAt(path string, buf []byte) (claim.Incarnation, bool, error) {
	dirfd, err := f.openDir(filepath.Dir(path), false)
	if err != nil {
		if isNotThere(err) {
			return claim.Incarnation{}, false, nil
		}
		return claim.Incarnation{}, false, &Error{"place", path, err}
	}
	defer f.Close(dirfd)
	_, inc, err := f.readReservation(dirfd, filepath.Base(path), buf)
	switch {
	case err == nil:
		return inc, true, nil
	case err == unix.ENOENT || isOtherFile(err):
		return claim.Incarnation{}, false, nil
	}
	return claim.Incarnation{}, false, &Error{"place", path, err}
}

// isOtherFile reports that what lies there is readable, but nothing that was judged.
func isOtherFile(err error) bool {
	var nr *notRegularError
	var tl *tooLargeError
	return errors.As(err, &nr) || errors.As(err, &tl)
}

// Discard removes a release's file from the quarantine, with what an interrupted copy
// left: for retention, and to roll a copy back whose original still stands. Not there
// is no error.
func (q *Quarantine) Discard(id string) error {
	if !isReleaseID(id) {
		return &Error{"discard", id, errReleaseID}
	}
	fd, err := q.open()
	if err != nil {
		return err
	}
	f := q.files()
	defer f.Close(fd)
	err = errors.Join(f.unlinkIfThere(fd, id), f.unlinkIfThere(fd, tmpName(id)))
	if err == nil {
		err = failpoint.At(failpoint.DiscardUnlinked)
	}
	if err == nil {
		err = f.Fsync(fd)
	}
	if err == nil {
		err = failpoint.At(failpoint.DiscardSynced)
	}
	if err != nil {
		return &Error{"discard", filepath.Join(q.Dir, id), err}
	}
	return nil
}

// Stands reports whether the judged incarnation still lies at its path, right now and
// without the allocator's lock. An error means that it could not be told. A nil fs is the
// kernel's.
func Stands(fs fsys.FS, path string, inc claim.Incarnation) (bool, error) {
	now, ok, err := files{FS: fsys.Or(fs)}.incarnationAt(path, make([]byte, maxContent+1))
	return err == nil && ok && now == inc, err
}

// OwnerAt reads whose reservation lies at path. There is none: fs.ErrNotExist. What is no
// regular file, or is too large for a reservation, is an error and is not read.
func OwnerAt(path string) (claim.Owner, error) {
	f := files{FS: fsys.OS{}}
	dirfd, err := f.openDir(filepath.Dir(path), false)
	if err != nil {
		return claim.Owner{}, &Error{"read", path, err}
	}
	defer f.Close(dirfd)
	content, _, err := f.readReservation(dirfd, filepath.Base(path), make([]byte, maxContent+1))
	if err != nil {
		return claim.Owner{}, &Error{"read", path, err}
	}
	return claim.ParseOwner(content), nil
}
