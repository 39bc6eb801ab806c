package hostlocal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// Adopter makes reservations for attachments that live without one (I14, case F12), as
// host-local would have written them.
//
// They are unstamped: a stamp says when an ADD reserved the address, which nobody knows any
// more, and where there is none nothing is less safe. last_reserved_ip is not touched: it
// only says where the next search begins.
//
// The zero value works. Safe for concurrent use.
type Adopter struct {
	// Wait is how long the store's lock is waited for; 5 s when zero.
	Wait time.Duration
	// Proc is where procfs is mounted, to name the holders of the lock.
	Proc string
	// FS is where the stores lie; the kernel's when nil. Serial: a lock that another holds
	// is not waited for.
	FS     fsys.FS
	Serial bool
	// Held is told how long each hold of the lock took, if not nil.
	Held func(time.Duration)

	locks locker
}

// Adoption is one reservation that is to be made.
type Adoption struct {
	// ReleaseID names the draft where it needs a name: see Move.
	ReleaseID string
	Path      string // <store directory>/<address>, as host-local spells it
	// Owner is written; without an interface as host-local of before 0.7 did.
	Owner claim.Owner
}

// Adopted and Taken are the states of an adoption, beside Failed.
const (
	// Adopted: the reservation stands, and was made by this call.
	Adopted State = "adopted"
	// Taken: the address has a reservation, which was not touched.
	Taken State = "taken"
)

// Made is what became of one adoption.
type Made struct {
	ReleaseID string
	State     State
	Inc       claim.Incarnation // when Adopted
	// Err is the cause of Failed, and says whose it is when Taken. Beside Adopted it says
	// that the reservation may not survive a power loss.
	Err error
}

var (
	errOwner     = errors.New("its owner is no container with a name")
	errItsOwn    = errors.New("the attachment has its reservation again")
	errAnothers  = errors.New("the address is reserved for another")
	errSpelling  = errors.New("not spelled as host-local spells an address")
	errNoDataDir = errors.New("the data directory is not there")
)

const adoptPrefix = lastPrefix + "holdfast-adopt-" // host-local's GC and our listing pass over it

// Adopt makes reservations of one store directory, each only where the address has none,
// under host-local's lock. Give it few: the lock is held for all of them. What is written
// is whole and durable before it has its name, so that a crash leaves a whole reservation
// or none. The network's directory is made (0755) if only that is missing.
//
// fresh is asked once the lock is had; false: what the caller knows is too old by now.
// There is always one Made for each, in order. The error, if any, is what ended all:
// *ErrLocked, ErrStale, ctx, a directory that cannot be used.
//
// A name that spells the same address otherwise is not looked for: host-local does not
// either, and the listing has it.
func (a *Adopter) Adopt(ctx context.Context, dir string, list []Adoption, fresh func() bool) ([]Made, error) {
	r := &adoptRun{a: a, fs: files{fsys.Or(a.FS), a.Serial}, dir: dir, fd: -1, list: list, out: make([]Made, len(list)), drafts: make([]adoptDraft, len(list))}
	for i := range list {
		r.out[i].ReleaseID = list[i].ReleaseID
		r.drafts[i].fd = -1
	}
	err := r.run(ctx, fresh)
	for i := range r.out {
		if r.out[i].State == "" {
			r.out[i].State, r.out[i].Err = Failed, err
		}
	}
	return r.out, err
}

type adoptRun struct {
	a      *Adopter
	fs     files
	dir    string
	fd     int
	list   []Adoption
	out    []Made
	drafts []adoptDraft
}

// adoptDraft is a reservation without its name.
type adoptDraft struct {
	fd   int
	temp string
}

func (r *adoptRun) fail(i int, err error) {
	r.out[i].State, r.out[i].Err = Failed, &Error{"adopt", r.list[i].Path, err}
}

func (r *adoptRun) run(ctx context.Context, fresh func() bool) error {
	var err error
	if r.fd, err = r.openDir(); err != nil {
		return &Error{"adopt", r.dir, err}
	}
	defer r.fs.Close(r.fd)
	defer r.discard()
	for i := range r.list {
		if err := r.draft(i); err != nil {
			r.fail(i, err)
		}
	}
	if err := r.place(ctx, fresh); err != nil {
		return err
	}
	// Once for all, and without the lock (I12).
	if err := r.fs.syncErr(r.fd, r.dir); err != nil {
		r.doubt(err)
		return nil
	}
	if err := failpoint.At(failpoint.AdoptStoreSynced); err != nil {
		r.doubt(err)
	}
	return nil
}

func (r *adoptRun) doubt(err error) {
	for i := range r.out {
		if r.out[i].State == Adopted {
			r.out[i].Err = errors.Join(r.out[i].Err, err)
		}
	}
}

// openDir opens the store, and makes it if it was removed as a whole. The data directory is
// not made: where it is gone, it may only be not mounted yet.
func (r *adoptRun) openDir() (int, error) {
	fd, err := r.fs.openDir(r.dir, false)
	if err != unix.ENOENT {
		return fd, err
	}
	parent := filepath.Dir(r.dir)
	if err := r.fs.Mkdirat(unix.AT_FDCWD, r.dir, 0o755); err == unix.ENOENT {
		return -1, fmt.Errorf("%w: %q", errNoDataDir, parent)
	} else if err != nil && err != unix.EEXIST {
		return -1, err
	}
	if err := failpoint.At(failpoint.AdoptDirMade); err != nil {
		return -1, err
	}
	if err := fsys.SyncDir(r.fs, parent); err != nil {
		return -1, err
	}
	return r.fs.openDir(r.dir, false)
}

// content checks an adoption and returns what is to be written.
func (r *adoptRun) content(m Adoption) ([]byte, error) {
	name := filepath.Base(m.Path)
	addr, kind := parseName(name)
	switch {
	case !isReleaseID(m.ReleaseID):
		return nil, errReleaseID
	case kind != nameReservation:
		return nil, errNotIP
	case addr.String() != name:
		return nil, errSpelling
	case filepath.Dir(filepath.Clean(m.Path)) != filepath.Clean(r.dir):
		return nil, errElsewhere
	case m.Owner.Shape != claim.ShapeContainer || !claim.IsContainerID(m.Owner.ID) || m.Owner.IfName != "" && !claim.IsIfName(m.Owner.IfName):
		return nil, errOwner
	}
	return ownerContent(m.Owner), nil
}

// ownerContent is what host-local writes for an owner.
func ownerContent(o claim.Owner) []byte {
	if o.IfName == "" {
		return []byte(o.ID)
	}
	return Content(o.ID, o.IfName)
}

// draft writes one, and fsyncs it, before any lock is taken.
func (r *adoptRun) draft(i int) error {
	content, err := r.content(r.list[i])
	if err != nil {
		return err
	}
	d := &r.drafts[i]
	if failpoint.At(failpoint.AdoptTmpfile) != nil {
		err = unix.EOPNOTSUPP
	} else {
		d.fd, err = r.fs.Openat(r.fd, ".", unix.O_TMPFILE|unix.O_WRONLY, 0o600) // as host-local makes them
	}
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL {
		name := adoptPrefix + r.list[i].ReleaseID
		if err = r.fs.unlinkIfThere(r.fd, name); err == nil {
			if d.fd, err = r.fs.Openat(r.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600); err == nil {
				d.temp = name
			}
		}
	}
	if err != nil {
		d.fd = -1
		return err
	}
	for len(content) > 0 && err == nil {
		var n int
		n, err = r.fs.Write(d.fd, content)
		content = content[n:]
	}
	if err == nil {
		err = failpoint.At(failpoint.AdoptDraftWritten)
	}
	if err == nil {
		err = r.fs.Fsync(d.fd)
	}
	if err == nil {
		err = failpoint.At(failpoint.AdoptDraftSynced)
	}
	return err
}

// discard ends the drafts that got no name.
func (r *adoptRun) discard() {
	for i := range r.drafts {
		d := &r.drafts[i]
		if d.fd >= 0 {
			r.fs.Close(d.fd)
		}
		if d.temp != "" {
			_ = r.fs.unlinkIfThere(r.fd, d.temp)
		}
	}
}

// place gives the drafts their names.
func (r *adoptRun) place(ctx context.Context, fresh func() bool) error {
	defer r.fs.hurry()()
	h, err := r.a.locks.lockDir(ctx, storeDir{r.fs, r.fd, r.dir}, cmp.Or(r.a.Wait, 5*time.Second), cmp.Or(r.a.Proc, "/proc"))
	if err != nil {
		return err
	}
	start := time.Now().Add(-h.late)
	defer func() {
		h.release()
		if r.a.Held != nil {
			r.a.Held(time.Since(start))
		}
	}()
	if err := failpoint.At(failpoint.AdoptLockHad); err != nil {
		return err
	}
	if fresh != nil && !fresh() {
		return ErrStale
	}
	buf := make([]byte, maxContent+1)
	for i := range r.list {
		if r.out[i].State == "" {
			r.placeOne(i, buf)
		}
	}
	return nil
}

func (r *adoptRun) placeOne(i int, buf []byte) {
	d, name := &r.drafts[i], filepath.Base(r.list[i].Path)
	var err error
	if d.temp != "" {
		err = r.fs.moveNoReplace(r.fd, d.temp, r.fd, name)
	} else {
		err = r.fs.LinkFD(d.fd, r.fd, name)
	}
	if err == unix.EEXIST {
		r.out[i].State, r.out[i].Err = Taken, errAnothers
		if got, _, err := r.fs.readReservation(r.fd, name, buf); err == nil && bytes.Equal(bytes.TrimSpace(got), ownerContent(r.list[i].Owner)) {
			r.out[i].Err = errItsOwn
		}
		return
	}
	if err != nil {
		r.fail(i, err)
		return
	}
	d.temp = ""
	r.out[i].State = Adopted
	// As the listing will see it: the link changed its ctime.
	if _, r.out[i].Inc, err = r.fs.readReservation(r.fd, name, buf); err != nil {
		r.out[i].Err = &Error{"read", r.list[i].Path, err}
	}
	if err := failpoint.At(failpoint.AdoptLinked); err != nil {
		r.out[i].Err = errors.Join(r.out[i].Err, err)
	}
}

// Look tells after a crash whether the reservation of an adoption stands, and removes what
// was left of its draft. One of the same attachment that another made since is as good: it
// keeps the same address for the same container. An error means that it could not be told.
func (a *Adopter) Look(m Adoption) (inc claim.Incarnation, stands bool, err error) {
	f := files{fsys.Or(a.FS), a.Serial}
	fail := func(err error) (claim.Incarnation, bool, error) {
		return claim.Incarnation{}, false, &Error{"adopt", m.Path, err}
	}
	dir := filepath.Dir(m.Path)
	if !isReleaseID(m.ReleaseID) {
		return fail(errReleaseID)
	}
	fd, err := f.openDir(dir, false)
	if isNotThere(err) {
		return claim.Incarnation{}, false, nil
	}
	if err != nil {
		return fail(err)
	}
	defer f.Close(fd)
	if err := f.unlinkIfThere(fd, adoptPrefix+m.ReleaseID); err != nil {
		return fail(err)
	}
	got, inc, err := f.readReservation(fd, filepath.Base(m.Path), make([]byte, maxContent+1))
	switch {
	case err == unix.ENOENT || isOtherFile(err):
		return claim.Incarnation{}, false, nil
	case err != nil:
		return fail(err)
	case !bytes.Equal(bytes.TrimSpace(got), ownerContent(m.Owner)):
		return claim.Incarnation{}, false, nil
	}
	// It may have its name and not be durable yet.
	if err := f.Fsync(fd); err != nil {
		return fail(err)
	}
	return inc, true, nil
}
