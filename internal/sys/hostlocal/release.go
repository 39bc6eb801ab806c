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

// State says what became of a move.
type State string

// The states. Only Moved took anything away.
const (
	// Failed: an error; the reservation stands, unless Err says that it could not be
	// put back. Nothing is claimed (case L18).
	Failed State = "failed"
	// Moved: it is in the quarantine and its name is gone from the store.
	Moved State = "moved"
	// Changed: another file, or another content, lies there now. Not touched (I7).
	Changed State = "changed"
	// Gone: nothing lies there any more.
	Gone State = "gone"
)

// Outcome is what became of one move.
type Outcome struct {
	ReleaseID string
	State     State
	// Err is the cause of Failed. Beside Moved it says that the move is done but may
	// not survive a power loss.
	Err error
}

// ReleaseOptions tune Release; the zero value is right in production.
type ReleaseOptions struct {
	// MaxHold is how long the lock is held at most before it is given back between
	// two reservations; 2 ms when zero. One more reservation may be under way: some
	// tens of microseconds, or some milliseconds where the node is so busy that we are
	// preempted in the middle, which the other 8 ms of I12 are for. A shorter hold
	// waits more often behind the allocators.
	MaxHold time.Duration
	// Mono reads a monotonic clock; the process's own when nil.
	Mono func() time.Duration
	// Fresh is asked each time the lock is had, if not nil. False gives it back; what is
	// left is Failed with ErrStale: the caller waited too long to be sure still.
	Fresh func() bool
	// Held is told how long each hold of the lock took, if not nil.
	Held func(time.Duration)
}

// ErrStale says that ReleaseOptions.Fresh said no when the lock was had at last.
var ErrStale = errors.New("the lock came too late")

var (
	errStays       = errors.New("the file system reported success, but the name is still there")
	errLost        = errors.New("the file system reported success, but the file is not in the quarantine")
	errIDUsed      = errors.New("the quarantine already holds a file of this release ID")
	errElsewhere   = errors.New("path does not lie in the store")
	errNotPutBack  = errors.New("another file was moved, and could not be put back; it is in the quarantine")
	errCrossDevice = unix.EXDEV
)

// Release moves reservations of one store directory into the quarantine, each only if
// it is the incarnation that was judged (I7), under host-local's lock, which is never
// held across an fsync (I12). Both directories are fsynced once at the end.
//
// There is always one outcome per move, in order. The error, if any, is what ended
// the batch: *ErrLocked, ErrStale, a quarantine that cannot be used, ctx, a failed fsync; the
// moves that it prevented are Failed with it. Safe for concurrent use.
func (q *Quarantine) Release(ctx context.Context, dir string, moves []Move, opt ReleaseOptions) ([]Outcome, error) {
	r := &releaseRun{
		q: q, fs: q.files(), store: storeDir{q.files(), -1, dir}, qfd: -1, moves: moves, opt: opt,
		out: make([]Outcome, len(moves)), buf: make([]byte, maxContent+1),
	}
	r.opt.MaxHold = cmp.Or(opt.MaxHold, 2*time.Millisecond)
	if r.opt.Mono == nil {
		start := time.Now()
		r.opt.Mono = func() time.Duration { return time.Since(start) }
	}
	for i, m := range moves {
		r.out[i].ReleaseID = m.ReleaseID
	}
	err := r.run(ctx)
	for i := range r.out {
		if r.out[i].State == "" {
			r.out[i].State, r.out[i].Err = Failed, err
		}
	}
	return r.out, err
}

// releaseRun is one call of Release.
type releaseRun struct {
	q       *Quarantine
	fs      files
	store   storeDir
	qfd     int
	moves   []Move
	opt     ReleaseOptions
	out     []Outcome // State "" is undecided
	buf     []byte
	dropped bool // a copy was taken back
	back    bool // another's file was moved, and put back or not
}

func (r *releaseRun) name(i int) string { return filepath.Base(r.moves[i].Path) }

func (r *releaseRun) set(i int, s State, err error) {
	if err != nil {
		err = &Error{"release", r.moves[i].Path, err}
	}
	r.out[i].State, r.out[i].Err = s, err
}

func (r *releaseRun) run(ctx context.Context) error {
	var err error
	if r.qfd, err = r.q.open(); err != nil {
		return err
	}
	defer r.fs.Close(r.qfd)
	if r.store.fd, err = r.fs.openDir(r.store.path, false); err != nil {
		if err != unix.ENOENT {
			return &Error{"release", r.store.path, err}
		}
		for i := range r.moves {
			r.set(i, Gone, nil)
		}
		return nil
	}
	defer r.fs.Close(r.store.fd)
	if err := r.q.outside(r.qfd, r.store.path, filepath.Dir(filepath.Clean(r.store.path))); err != nil {
		return err
	}
	todo := r.valid()
	cross := r.crossDevice()
	if !cross {
		todo, err = r.underLock(ctx, todo, r.rename)
		// What is left without an error met EXDEV: two mounts of one file system.
		cross = err == nil
	}
	if cross && len(todo) > 0 {
		err = r.copyAndUnlink(ctx, todo)
	}
	return errors.Join(err, r.sync())
}

// valid returns the moves that may be tried and fails the others.
func (r *releaseRun) valid() []int {
	todo := make([]int, 0, len(r.moves))
	dir := filepath.Clean(r.store.path)
	for i, m := range r.moves {
		_, kind := parseName(filepath.Base(m.Path))
		switch {
		case !isReleaseID(m.ReleaseID):
			r.set(i, Failed, errReleaseID)
		case kind != nameReservation:
			r.set(i, Failed, errNotIP)
		case filepath.Dir(filepath.Clean(m.Path)) != dir:
			r.set(i, Failed, errElsewhere)
		default:
			todo = append(todo, i)
		}
	}
	return todo
}

func (r *releaseRun) crossDevice() bool {
	a, err1 := r.fs.fdKey(r.qfd)
	b, err2 := r.fs.fdKey(r.store.fd)
	return err1 == nil && err2 == nil && a.Dev != b.Dev
}

// underLock calls do for each move under the lock, giving it back every MaxHold. do
// returns false to stop; that move and the later ones are returned, as they are with
// an error.
func (r *releaseRun) underLock(ctx context.Context, todo []int, do func(i int) bool) ([]int, error) {
	for len(todo) > 0 {
		if err := ctx.Err(); err != nil {
			return todo, err
		}
		if err := failpoint.At(failpoint.ReleaseLockBefore); err != nil {
			return todo, err
		}
		calm := r.fs.hurry()
		h, err := r.q.lock(ctx, r.store)
		if err != nil {
			calm()
			return todo, err
		}
		if err := failpoint.At(failpoint.ReleaseLockHad); err != nil {
			h.release()
			calm()
			return todo, err
		}
		start := r.opt.Mono() - h.late
		if r.opt.Fresh != nil && !r.opt.Fresh() {
			h.release()
			calm()
			return todo, ErrStale
		}
		more := true
		for more && len(todo) > 0 && r.opt.Mono()-start < r.opt.MaxHold {
			if more = do(todo[0]); more {
				todo = todo[1:]
			}
		}
		h.release()
		calm()
		if r.opt.Held != nil {
			r.opt.Held(r.opt.Mono() - start)
		}
		if !more {
			return todo, nil
		}
	}
	return nil, nil
}

// unchanged reports whether the judged incarnation lies at its name; otherwise the
// outcome is set.
func (r *releaseRun) unchanged(i int) bool {
	_, inc, err := r.fs.readReservation(r.store.fd, r.name(i), r.buf)
	return r.matches(i, inc, err)
}

func (r *releaseRun) matches(i int, inc claim.Incarnation, err error) bool {
	switch {
	case err == unix.ENOENT:
		r.set(i, Gone, nil)
	case isOtherFile(err) || err == errUnsteady:
		r.set(i, Changed, nil)
	case err != nil:
		r.set(i, Failed, err)
	case inc != r.moves[i].Inc:
		r.set(i, Changed, nil)
	default:
		return true
	}
	return false
}

// rename moves one reservation within a file system. False on EXDEV.
func (r *releaseRun) rename(i int) bool {
	if !r.unchanged(i) {
		return true
	}
	err := failpoint.At(failpoint.ReleaseRenameBefore)
	if err == nil {
		err = r.fs.moveNoReplace(r.store.fd, r.name(i), r.qfd, r.moves[i].ReleaseID)
	}
	switch err {
	case nil:
		s, err := r.moved(i)
		r.set(i, s, errors.Join(err, failpoint.At(failpoint.ReleaseRenameAfter)))
	case errCrossDevice:
		return false
	case unix.EEXIST:
		r.set(i, Failed, errIDUsed)
	case unix.ENOENT:
		r.set(i, Gone, nil)
	default:
		r.set(i, Failed, err)
	}
	return true
}

// moved checks what a rename did: that the judged file lies in the quarantine and
// that its name is gone.
func (r *releaseRun) moved(i int) (State, error) {
	m := r.moves[i]
	inQ, ok, err := r.fs.lstatAt(r.qfd, m.ReleaseID)
	if err != nil || !ok {
		return Failed, errors.Join(errLost, err)
	}
	if inQ.Key() != (fsys.Key{Dev: m.Inc.Dev, Ino: m.Inc.Ino}) || inQ.Size != m.Inc.Size {
		// Overlay may give a copied-up file another number: then the content tells.
		_, inc, err := r.fs.readReservation(r.qfd, m.ReleaseID, r.buf)
		if err != nil || inc.Sum != m.Inc.Sum || inc.Size != m.Inc.Size {
			// Somebody replaced it without the lock, between our look and our move.
			r.back = true
			if err := r.fs.moveNoReplace(r.qfd, m.ReleaseID, r.store.fd, r.name(i)); err != nil {
				return Failed, errors.Join(errNotPutBack, err)
			}
			return Changed, nil
		}
	}
	left, ok, err := r.fs.lstatAt(r.store.fd, r.name(i))
	if err != nil {
		return Failed, err
	}
	if ok && left.Key() == inQ.Key() {
		if left.Nlink > 1 { // then the second name is ours to take back
			err = r.drop(i)
		}
		return Failed, errors.Join(errStays, err)
	}
	return Moved, nil
}

// copyAndUnlink releases across file systems: copies first, fsynced and in place, then
// the originals are unlinked under the lock, each after it was compared again.
func (r *releaseRun) copyAndUnlink(ctx context.Context, todo []int) error {
	var copied []int
	var err error
	for _, i := range todo {
		if err = ctx.Err(); err != nil {
			break
		}
		if r.copy(i) {
			copied = append(copied, i)
		}
	}
	if err == nil && len(copied) > 0 {
		// The copies must be durable before an original goes.
		if serr := r.fs.Fsync(r.qfd); serr != nil {
			err = &Error{"fsync", r.q.Dir, serr}
		}
	}
	if err == nil {
		err = failpoint.At(failpoint.ReleaseCopiesSynced)
	}
	if err == nil {
		copied, err = r.underLock(ctx, copied, r.unlink)
	}
	for _, i := range copied {
		err = errors.Join(err, r.drop(i))
	}
	return err
}

// drop takes a copy back whose original stays.
func (r *releaseRun) drop(i int) error {
	r.dropped = true
	return r.fs.unlinkIfThere(r.qfd, r.moves[i].ReleaseID)
}

// copy puts a copy of one reservation into the quarantine. False: the outcome is set.
func (r *releaseRun) copy(i int) bool {
	id := r.moves[i].ReleaseID
	src, err := r.fs.openReservation(r.store.fd, r.name(i))
	if err != nil {
		return r.matches(i, claim.Incarnation{}, err)
	}
	defer r.fs.Close(src)
	content, inc, err := r.fs.readFD(src, r.buf)
	if !r.matches(i, inc, err) {
		return false
	}
	if err := r.copyTo(id, src, content); err != nil {
		if err == unix.EEXIST {
			err = errIDUsed
		}
		r.set(i, Failed, errors.Join(err, r.fs.unlinkIfThere(r.qfd, tmpName(id))))
		return false
	}
	return true
}

func (r *releaseRun) copyTo(id string, src int, content []byte) error {
	tmp := tmpName(id)
	if err := r.fs.unlinkIfThere(r.qfd, tmp); err != nil {
		return err
	}
	fd, err := r.fs.Openat(r.qfd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = r.fs.writeCopy(fd, src, content)
	if cerr := r.fs.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := r.fs.moveNoReplace(r.qfd, tmp, r.qfd, id); err != nil {
		return err
	}
	if err := failpoint.At(failpoint.ReleaseCopyPlaced); err != nil {
		return errors.Join(err, r.fs.unlinkIfThere(r.qfd, id))
	}
	return nil
}

// unlink removes one original whose copy is in place. It never stops the batch.
func (r *releaseRun) unlink(i int) bool {
	if r.unchanged(i) {
		s, err := r.unlinked(i)
		r.set(i, s, err)
	}
	if r.out[i].State != Moved {
		if err := r.drop(i); err != nil {
			r.out[i].Err = errors.Join(r.out[i].Err, &Error{"discard", r.moves[i].ReleaseID, err})
		}
	}
	return true
}

func (r *releaseRun) unlinked(i int) (State, error) {
	if err := failpoint.At(failpoint.ReleaseUnlinkBefore); err != nil {
		return Failed, err
	}
	switch err := r.fs.Unlinkat(r.store.fd, r.name(i), 0); err {
	case nil:
	case unix.ENOENT:
		return Gone, nil
	default:
		return Failed, err
	}
	left, ok, err := r.fs.lstatAt(r.store.fd, r.name(i))
	inc := r.moves[i].Inc
	if err == nil && ok && left.Key() == (fsys.Key{Dev: inc.Dev, Ino: inc.Ino}) && left.Ctime == inc.Ctime {
		// An untouched ctime: nothing was unlinked. A new file with the same inode
		// number has a new one.
		return Failed, errStays
	}
	// A failed stat leaves it open whether it is gone: the copy stays, and so does the
	// claim that it was moved.
	return Moved, errors.Join(err, failpoint.At(failpoint.ReleaseUnlinkAfter))
}

// sync makes the moves durable, once per batch and after the lock, and so that a copy was
// taken back or another's file put back: after a power loss the quarantine would hold what its
// journal calls failed or changed, and the store would lack it.
func (r *releaseRun) sync() error {
	any := false
	for _, o := range r.out {
		any = any || o.State == Moved
	}
	switch {
	case !any && r.back:
		// It came last into the store: there first, or the power could take both names.
		return errors.Join(r.fs.syncErr(r.store.fd, r.store.path), r.fs.syncErr(r.qfd, r.q.Dir))
	case !any && r.dropped:
		return r.fs.syncErr(r.qfd, r.q.Dir)
	case !any:
		return nil
	}
	err := errors.Join(r.fs.syncErr(r.qfd, r.q.Dir), failpoint.At(failpoint.ReleaseVaultSynced), r.fs.syncErr(r.store.fd, r.store.path), failpoint.At(failpoint.ReleaseStoreSynced))
	if err != nil {
		for i := range r.out {
			if r.out[i].State == Moved {
				r.out[i].Err = errors.Join(r.out[i].Err, err)
			}
		}
	}
	return err
}

func (f files) syncErr(fd int, path string) error {
	if err := f.Fsync(fd); err != nil {
		return &Error{"fsync", path, err}
	}
	return nil
}
