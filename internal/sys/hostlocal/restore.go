package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
)

// ErrTaken says that the address is reserved again, under whatever spelling.
var ErrTaken = errors.New("the address is taken again")

// errRestored says that the very file is there already: an earlier Restore did not
// come to its end.
var errRestored = errors.New("restored already")

// Restore puts a quarantined reservation back to the path that it was released from,
// with content, mode and modification time as they were (I3), if no file there names
// that address in any spelling; otherwise ErrTaken. Not in the quarantine:
// fs.ErrNotExist. Lock not had in time: *ErrLocked. Done under host-local's lock.
//
// When a file with the same name and content is there, the reservation stands already
// (an interrupted Restore, or the runtime asked for it again): that is success, and the
// quarantine's copy goes.
//
// The network directory must still exist. The incarnation of the restored file is a
// new one: its ctime changes.
func (q *Quarantine) Restore(ctx context.Context, id, origPath string) error {
	fail := func(err error) error { return &Error{"restore", origPath, err} }
	addr, kind := parseName(filepath.Base(origPath))
	if !isReleaseID(id) {
		return &Error{"restore", id, errReleaseID}
	}
	if kind != nameReservation || !filepath.IsAbs(origPath) {
		return fail(errNotIP)
	}
	qfd, err := q.open()
	if err != nil {
		return err
	}
	f := q.files()
	defer f.Close(qfd)
	src, err := f.openReservation(qfd, id)
	if err != nil {
		if err == unix.ENOENT {
			err = fmt.Errorf("release %s is not in the quarantine: %w", id, fs.ErrNotExist)
		}
		return fail(err)
	}
	defer f.Close(src)
	content, inc, err := f.readFD(src, make([]byte, maxContent+1))
	if err != nil {
		return fail(err)
	}
	dir := filepath.Dir(origPath)
	sfd, err := f.openDir(dir, false)
	if err != nil {
		return &Error{"restore", dir, err}
	}
	defer f.Close(sfd)

	r := &restoreRun{q: q, fs: f, store: storeDir{f, sfd, dir}, name: filepath.Base(origPath), addr: addr, inc: inc}
	err = r.place(ctx, func() error { return f.moveNoReplace(qfd, id, sfd, r.name) })
	if errors.Is(err, errCrossDevice) {
		err = r.copyBack(ctx, id, src, content)
	}
	if err != nil && !errors.Is(err, errRestored) {
		var locked *ErrLocked
		if errors.As(err, &locked) {
			return err
		}
		return fail(err)
	}
	// The reservation must be durable before its copy goes.
	if err := f.syncErr(sfd, dir); err != nil {
		return err
	}
	if err := failpoint.At(failpoint.RestoreStoreSynced); err != nil {
		return err
	}
	if err := f.unlinkIfThere(qfd, id); err != nil {
		return &Error{"discard", filepath.Join(q.Dir, id), err}
	}
	if err := failpoint.At(failpoint.RestoreVaultUnlinked); err != nil {
		return err
	}
	if err := f.syncErr(qfd, q.Dir); err != nil {
		return err
	}
	return failpoint.At(failpoint.RestoreVaultSynced)
}

// restoreRun is one call of Restore.
type restoreRun struct {
	q     *Quarantine
	fs    files
	store storeDir
	name  string
	addr  netip.Addr
	inc   claim.Incarnation // of the quarantine's file
}

// place does put under the lock if the address is free.
func (r *restoreRun) place(ctx context.Context, put func() error) error {
	if err := failpoint.At(failpoint.RestoreLockBefore); err != nil {
		return err
	}
	h, err := r.q.lock(ctx, r.store)
	if err != nil {
		return err
	}
	defer h.release()
	if err := failpoint.At(failpoint.RestoreLockHad); err != nil {
		return err
	}
	if err := r.free(); err != nil {
		return err
	}
	switch err := put(); err {
	case nil:
		return failpoint.At(failpoint.RestorePlaced)
	case unix.EEXIST:
		return ErrTaken
	default:
		return err
	}
}

// free looks through all names: 10,000 take some milliseconds of the lock (I12).
func (r *restoreRun) free() error {
	// A fresh descriptor: the other one's position in the directory is used up.
	fd, err := r.fs.Openat(r.store.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer r.fs.Close(fd)
	var taken []string
	err = r.fs.readDir(fd, func(name []byte, _ byte) {
		if a, kind := parseName(string(name)); kind == nameReservation && a == r.addr {
			taken = append(taken, string(name))
		}
	})
	if err != nil {
		return err
	}
	if len(taken) == 0 {
		return nil
	}
	if len(taken) == 1 && taken[0] == r.name {
		_, inc, err := r.fs.readReservation(r.store.fd, r.name, make([]byte, maxContent+1))
		if err == nil && inc.Sum == r.inc.Sum && inc.Size == r.inc.Size {
			return errRestored
		}
	}
	return ErrTaken
}

// copyBack restores across file systems. The copy is written and fsynced before the
// lock is taken. host-local reads every file of its directory, so the copy has no name
// there until it is whole (O_TMPFILE, then linkat). Where that is unsupported (NFS,
// older overlay) it gets a name that host-local's GC and our listing pass over,
// last_reserved_ip.holdfast-undo-<id>; a DEL of that very container would remove it,
// and then the undo fails and nothing is lost but the try. A crash leaves such a file
// behind at most; the next Restore of that release removes it.
func (r *restoreRun) copyBack(ctx context.Context, id string, src int, content []byte) error {
	if failpoint.At(failpoint.RestoreTmpfile) != nil {
		return r.copyBackNamed(ctx, id, src, content)
	}
	fd, err := r.fs.Openat(r.store.fd, ".", unix.O_TMPFILE|unix.O_WRONLY, 0o600)
	if err == nil {
		defer r.fs.Close(fd)
		if err := r.fs.writeCopy(fd, src, content); err != nil {
			return err
		}
		return r.place(ctx, func() error { return r.fs.LinkFD(fd, r.store.fd, r.name) })
	}
	if err != unix.EOPNOTSUPP && err != unix.EISDIR && err != unix.EINVAL {
		return err
	}
	return r.copyBackNamed(ctx, id, src, content)
}

func (r *restoreRun) copyBackNamed(ctx context.Context, id string, src int, content []byte) error {
	tmp := lastPrefix + "holdfast-undo-" + id
	if err := r.fs.unlinkIfThere(r.store.fd, tmp); err != nil {
		return err
	}
	fd, err := r.fs.Openat(r.store.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = r.fs.writeCopy(fd, src, content)
	if cerr := r.fs.Close(fd); err == nil {
		err = cerr
	}
	if err == nil {
		err = r.place(ctx, func() error { return r.fs.moveNoReplace(r.store.fd, tmp, r.store.fd, r.name) })
	}
	if err != nil {
		return errors.Join(err, r.fs.unlinkIfThere(r.store.fd, tmp))
	}
	return nil
}
