package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// StoreConfig says where a store lies.
type StoreConfig struct {
	FS fsys.FS // nil: the kernel
	// Serial: a lock that another holds is not waited for, and nothing runs beside the
	// caller. For a simulator.
	Serial bool
	// Dir is <dataDir>/<network>. Open makes it (0755) if it is missing.
	Dir string
	// RunDir holds the index; made if missing. It should be empty after a boot. Empty:
	// no index, every transaction reads the directory.
	RunDir string
	// LockWait bounds the wait for host-local's lock; 30 s when zero.
	LockWait time.Duration
	// Proc is where procfs is mounted, to name the holders of the lock.
	Proc string
	// Boot is the boot ID, Mono CLOCK_MONOTONIC. Without a boot ID nothing is stamped.
	Boot string
	Mono func() time.Duration
	// Wall is the clock that file times are taken from, ns; the kernel's
	// CLOCK_REALTIME_COARSE when nil.
	Wall func() int64
	// Rand gives random numbers; the process's own when nil.
	Rand func() uint64
}

// Store is one network's directory, open for allocating. The directory and its format are
// host-local's, as is the lock: both can write the same directory in turn. Not safe for
// concurrent use; several processes are.
type Store struct {
	cfg   StoreConfig
	fs    files
	dirfd int
	key   fsys.Key
	locks locker
	anew  bool // see Anew
	buf   []byte
	// Fresh is true when this call made the directory.
	Fresh bool
	// NewBoot is true once a Begin saw no earlier look at this directory in this boot.
	NewBoot bool
	// Unstamped says why the last draft has no stamp; nil when it has one.
	Unstamped error
}

// OpenStore opens the directory, and makes it durable if it had to be made.
func OpenStore(cfg StoreConfig) (*Store, error) {
	s := &Store{cfg: cfg, fs: files{fsys.Or(cfg.FS), cfg.Serial}, dirfd: -1, buf: make([]byte, maxContent+1)}
	if s.cfg.LockWait <= 0 {
		s.cfg.LockWait = 30 * time.Second
	}
	if s.cfg.Wall == nil {
		s.cfg.Wall = coarseWall
	}
	if s.cfg.Rand == nil {
		s.cfg.Rand = rand.Uint64
	}
	var err error
	s.dirfd, err = s.fs.Openat(unix.AT_FDCWD, cfg.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == unix.ENOENT {
		if err = fsys.MkdirAll(s.fs, cfg.Dir, 0o755); err != nil {
			return nil, &Error{"mkdir", cfg.Dir, err}
		}
		if err = failpoint.At(failpoint.IpamDirMade); err != nil {
			return nil, &Error{"mkdir", cfg.Dir, err}
		}
		s.Fresh = true
		s.dirfd, err = s.fs.Openat(unix.AT_FDCWD, cfg.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, &Error{"open", cfg.Dir, err}
	}
	st, err := s.fs.Fstat(s.dirfd)
	if err != nil {
		s.Close()
		return nil, &Error{"open", cfg.Dir, err}
	}
	s.key = st.Key()
	return s, nil
}

func coarseWall() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// Close closes the directory.
func (s *Store) Close() error { return s.fs.Close(s.dirfd) }

// Sync makes the names of the directory durable. Call it without the lock.
func (s *Store) Sync() error {
	err := s.fs.Fsync(s.dirfd)
	if err == nil {
		err = failpoint.At(failpoint.IpamStoreSynced)
	}
	if err != nil {
		return &Error{"fsync", s.cfg.Dir, err}
	}
	return nil
}

// SyncName makes the directory's own name durable, and those above it on its device: whoever
// made them, host-local or an ADD that was killed, may not have. Call it without the lock, and
// before Trust, so that where the distrust has ended no later ADD of this boot needs to.
func (s *Store) SyncName() error {
	for dir := filepath.Clean(s.cfg.Dir); filepath.Dir(dir) != dir; {
		dir = filepath.Dir(dir)
		st, err := fsys.StatPath(s.fs, dir)
		if err == nil && st.Key().Dev != s.key.Dev {
			return nil
		}
		if err == nil {
			err = fsys.SyncDir(s.fs, dir)
		}
		if err != nil {
			return &Error{"fsync", dir, err}
		}
	}
	return nil
}

// Content is what host-local 1.10 writes for an attachment (backend/disk, Reserve).
func Content(id, ifName string) []byte {
	return append(bytes.TrimSpace([]byte(id)), "\r\n"+ifName...)
}

// Draft is a reservation that has no name yet: whole, stamped and durable, so that
// whatever crashes, a name never stands for less.
type Draft struct {
	fd      int
	temp    string // its name where the file system has no O_TMPFILE
	content []byte
}

// Draft writes a reservation for an attachment, and fsyncs it, before any lock is taken.
// netns is the nsfs inode of its namespace, 0 if unknown. Without support for attributes,
// or without a boot ID, it is unstamped and Unstamped says why. Discard or Reserve ends it.
func (s *Store) Draft(id, ifName string, netns uint64) (*Draft, error) {
	d := &Draft{content: Content(id, ifName)}
	fail := func(err error) (*Draft, error) { return nil, &Error{"reserve", s.cfg.Dir, err} }
	if len(d.content) > maxContent {
		return fail(fmt.Errorf("container ID and interface have %d bytes; allowed are %d", len(d.content), maxContent))
	}
	var err error
	if failpoint.At(failpoint.IpamTmpfile) != nil {
		err = unix.EOPNOTSUPP
	} else {
		d.fd, err = s.fs.Openat(s.dirfd, ".", unix.O_TMPFILE|unix.O_WRONLY, 0o600)
	}
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL {
		// host-local's GC and our listing pass over names that begin so.
		d.temp = tempPrefix + strconv.FormatUint(s.cfg.Rand(), 16)
		d.fd, err = s.fs.Openat(s.dirfd, d.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return fail(err)
	}
	for b := d.content; len(b) > 0 && err == nil; {
		var n int
		n, err = s.fs.Write(d.fd, b)
		b = b[n:]
	}
	if err == nil {
		err = failpoint.At(failpoint.IpamDraftWritten)
	}
	if err == nil {
		s.Unstamped = s.stamp(d, netns)
		err = failpoint.At(failpoint.IpamDraftStamped)
	}
	if err == nil {
		err = s.fs.Fsync(d.fd)
	}
	if err == nil {
		err = failpoint.At(failpoint.IpamDraftSynced)
	}
	if err != nil {
		s.Discard(d)
		return fail(err)
	}
	return d, nil
}

var errNoBoot = errors.New("the boot ID is not known")

func (s *Store) stamp(d *Draft, netns uint64) error {
	if !claim.IsUUID(s.cfg.Boot) || s.cfg.Mono == nil {
		return errNoBoot
	}
	if err := failpoint.At(failpoint.IpamXattr); err != nil {
		return err
	}
	st := claim.Stamp{Boot: s.cfg.Boot, Mono: s.cfg.Mono(), Netns: netns}
	return s.fs.Fsetxattr(d.fd, StampAttr, formatStamp(st, d.content), 0)
}

// Discard ends a draft that got no name. Safe to call after Reserve.
func (s *Store) Discard(d *Draft) {
	if d.fd < 0 {
		return
	}
	s.fs.Close(d.fd)
	d.fd = -1
	if d.temp != "" {
		_ = s.fs.Unlinkat(s.dirfd, d.temp, 0)
	}
}

// Tx is a turn at the store, under host-local's lock. End gives the lock back.
type Tx struct {
	s     *Store
	lock  *held
	x     *index
	dirty bool // something was done
	stale bool // the directory was not as the index said
	// Distrust is since when, on CLOCK_MONOTONIC, an address that nobody has reserved may
	// be in use all the same; 0 = not. Trust ends it. It begins when the directory is
	// new, when a last_reserved_ip is lost, and, as sinceBoot, with the first look at the
	// directory in this boot and when others removed names.
	Distrust time.Duration
	// Unread is set by Owned where a file could not be read, so that it may be the
	// attachment's too; nil if all could.
	Unread error
}

// sinceBoot: nothing says that names were lost; it is only not known.
const sinceBoot = 1

// Lost reports whether names of the directory are lost, so that even an ADD that was in
// flight may have no reservation any more.
func (tx *Tx) Lost() bool { return tx.Distrust > sinceBoot }

func (s *Store) indexPath() string {
	return filepath.Join(s.cfg.RunDir, fmt.Sprintf("ipam-%d-%d.index", s.key.Dev, s.key.Ino))
}

// Begin waits for the lock, and returns with it held and with the directory known. Where
// the index does not count, the lock is given back while the directory is read. *ErrLocked when the lock
// cannot be had in time.
func (s *Store) Begin(ctx context.Context) (*Tx, error) {
	dir := storeDir{s.fs, s.dirfd, s.cfg.Dir}
	lock, err := s.locks.lockDir(ctx, dir, s.cfg.LockWait, s.cfg.Proc)
	if err != nil {
		return nil, err
	}
	// Under the lock, since whoever had it until now may have left an index that counts.
	x := s.load()
	if s.anew || !s.counts(x) {
		s.anew = false
		if x != nil {
			x.head.mtime = 0
		}
		lock.release()
		if x, err = s.scanned(x, 3); err != nil {
			return nil, err
		}
		if lock, err = s.locks.lockDir(ctx, dir, s.cfg.LockWait, s.cfg.Proc); err != nil {
			return nil, err
		}
		// Another may have had its turn since; its index is as good a beginning.
		if !s.counts(x) {
			if y := s.load(); y != nil {
				x = y
			}
		}
		y := x
		if x, err = s.scanned(y, 1); err == nil && x == y {
			err = s.readEmpty(x)
		}
		if err != nil {
			lock.release()
			return nil, err
		}
	}
	tx := &Tx{s: s, lock: lock, x: x}
	tx.x.before = s.mono() - keepFreed
	switch {
	case s.Fresh:
		tx.x.head.distrust = max(s.mono(), sinceBoot+1)
	case tx.x.head.distrust == 0 && (s.cfg.Boot == "" || tx.x.head.boot != s.cfg.Boot):
		tx.x.head.distrust = sinceBoot
	}
	s.NewBoot = s.NewBoot || tx.x.head.boot != s.cfg.Boot
	tx.x.head.boot = s.cfg.Boot
	tx.Distrust = tx.x.head.distrust
	return tx, nil
}

// Anew lets the next Begin read the directory whatever the index says, without the lock as
// far as nobody writes meanwhile: before somebody is told that there is nothing left.
func (s *Store) Anew() { s.anew = true }

func (s *Store) mono() time.Duration {
	if s.cfg.Mono == nil {
		return 0
	}
	return s.cfg.Mono()
}

// Held is a reservation of an attachment.
type Held struct {
	Addr netip.Addr
	// Stamp is nil when there is none that counts.
	Stamp *claim.Stamp
	name  string
	inc   claim.Incarnation
}

// Owned returns what (id, ifName) has reserved, those of the interface and, as host-local
// of before 0.7 wrote them, those of the ID alone. legacy tells which.
func (tx *Tx) Owned(id, ifName string) (own, legacy []Held, err error) {
	if own, err = tx.withContent(Content(id, ifName)); err == nil {
		legacy, err = tx.withContent(bytes.TrimSpace([]byte(id)))
	}
	return own, legacy, err
}

// withContent looks at the files that the index names: what it says is never believed.
func (tx *Tx) withContent(content []byte) ([]Held, error) {
	content = bytes.TrimSpace(content)
	var out []Held
	known := tx.x.withKey(keyOfContent(content))
	for i, addr := range append(known, tx.x.withKey(unreadKey)...) {
		name, err := tx.nameOf(addr)
		if err != nil {
			return nil, err
		}
		h, ok, err := tx.look(name, content)
		if err != nil && i >= len(known) {
			tx.Unread = err
			continue
		}
		if err != nil {
			return nil, err
		}
		if ok {
			h.Addr = addr
			out = append(out, h)
		}
	}
	return out, nil
}

// nameOf returns the name under which an address is reserved: host-local's spelling
// nearly always, any other if a person wrote the file.
func (tx *Tx) nameOf(addr netip.Addr) (string, error) {
	s, name := tx.s, addr.String()
	_, err := s.fs.Fstatat(s.dirfd, name, unix.AT_SYMLINK_NOFOLLOW)
	if err != unix.ENOENT {
		return name, nil // an error shows when it is opened
	}
	fd, err := s.fs.Openat(s.dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", &Error{"read", s.cfg.Dir, err}
	}
	defer s.fs.Close(fd)
	err = fsys.ReadDir(s.fs, fd, func(n []byte, _ byte) bool {
		a, kind := parseName(string(n))
		if kind == nameReservation && a == addr {
			name = string(n)
			return false
		}
		return true
	})
	if err != nil {
		return "", &Error{"read", s.cfg.Dir, err}
	}
	return name, nil
}

func (tx *Tx) look(name string, content []byte) (Held, bool, error) {
	s := tx.s
	fd, err := s.fs.openReservation(s.dirfd, name)
	if err == unix.ENOENT {
		return Held{}, false, nil
	}
	if err != nil {
		return Held{}, false, &Error{"read", filepath.Join(s.cfg.Dir, name), err}
	}
	defer s.fs.Close(fd)
	got, inc, err := s.fs.readFD(fd, s.buf)
	if err != nil {
		return Held{}, false, &Error{"read", filepath.Join(s.cfg.Dir, name), err}
	}
	if !bytes.Equal(bytes.TrimSpace(got), content) {
		return Held{}, false, nil
	}
	h := Held{name: name, inc: inc}
	if h.Stamp, err = s.fs.stamp(fd, inc.Sum); err != nil {
		return Held{}, false, &Error{"read the stamp of", filepath.Join(s.cfg.Dir, name), err}
	}
	return h, true, nil
}

// Taken reports whether an address has a reservation.
func (tx *Tx) Taken(addr netip.Addr) bool {
	i, ok := tx.x.find(addr)
	return ok && tx.x.slot(i).used()
}

// Cooling reports whether an address was freed less than d ago, as far as is known.
func (tx *Tx) Cooling(addr netip.Addr, d time.Duration) bool {
	i, ok := tx.x.find(addr)
	if !ok || tx.x.slot(i).used() || tx.x.slot(i).freed() == 0 || tx.x.head.boot != tx.s.cfg.Boot {
		return false
	}
	since := tx.s.mono() - tx.x.slot(i).freed()
	return since >= 0 && since < d
}

// Reserved returns how many addresses have a reservation.
func (tx *Tx) Reserved() (n int) {
	for i := range tx.x.slots() {
		if tx.x.slot(i).used() {
			n++
		}
	}
	return n
}

// Reserve gives a draft its name. ok is false when the address has a reservation, whatever
// the index says. The draft is used up when ok, and the name is there, even beside an error.
func (tx *Tx) Reserve(d *Draft, addr netip.Addr) (ok bool, err error) {
	s := tx.s
	name := addr.String()
	if d.temp != "" {
		err = s.fs.moveNoReplace(s.dirfd, d.temp, s.dirfd, name)
	} else {
		err = s.fs.LinkFD(d.fd, s.dirfd, name)
	}
	if err == unix.EEXIST {
		tx.x.take(addr, ownerKey{}, &fsys.Stat{}, 0)
		tx.stale = true
		return false, nil
	}
	if err != nil {
		return false, &Error{"reserve", filepath.Join(s.cfg.Dir, name), err}
	}
	tx.dirty = true
	st, err := s.fs.Fstat(d.fd)
	if err == nil {
		tx.x.take(addr, keyOfContent(bytes.TrimSpace(d.content)), &st, s.cfg.Wall())
		err = failpoint.At(failpoint.IpamReserved)
	}
	if err != nil {
		tx.stale = true
		err = &Error{"reserve", filepath.Join(s.cfg.Dir, name), err}
	}
	d.temp = ""
	s.Discard(d)
	return true, err
}

// Renew writes a new stamp onto a reservation that its attachment takes over. It is not
// fsynced, since the lock is held: if the power goes, old and new stamp are both of a boot
// that is past.
func (tx *Tx) Renew(h Held, netns uint64) error {
	s := tx.s
	fail := func(err error) error { return &Error{"take over", filepath.Join(s.cfg.Dir, h.name), err} }
	fd, err := s.fs.openReservation(s.dirfd, h.name)
	if err != nil {
		return fail(err)
	}
	defer s.fs.Close(fd)
	content, inc, err := s.fs.readFD(fd, s.buf)
	if err != nil {
		return fail(err)
	}
	if inc != h.inc {
		return fail(errUnsteady)
	}
	err = s.stamp(&Draft{fd: fd, content: content}, netns)
	if err == nil {
		err = failpoint.At(failpoint.IpamRenewed)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// Remove takes a reservation back if it is still the one that Owned gave.
func (tx *Tx) Remove(h Held) error {
	s := tx.s
	fail := func(err error) error { return &Error{"release", filepath.Join(s.cfg.Dir, h.name), err} }
	if _, inc, err := s.fs.readReservation(s.dirfd, h.name, s.buf); err != nil {
		if err == unix.ENOENT {
			return nil
		}
		return fail(err)
	} else if inc != h.inc {
		return fail(errUnsteady)
	}
	return tx.unlink(h.Addr, h.name)
}

// Unreserve takes back what this very turn reserved.
func (tx *Tx) Unreserve(addr netip.Addr) error { return tx.unlink(addr, addr.String()) }

func (tx *Tx) unlink(addr netip.Addr, name string) error {
	s := tx.s
	tx.dirty = true
	err := failpoint.At(failpoint.IpamRemoveBefore)
	if err == nil {
		err = s.fs.unlinkIfThere(s.dirfd, name)
	}
	if err != nil {
		return &Error{"release", filepath.Join(s.cfg.Dir, name), err}
	}
	// A file system that reports success and keeps the name (case L18).
	if _, err := s.fs.Fstatat(s.dirfd, name, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return &Error{"release", filepath.Join(s.cfg.Dir, name), errStays}
	}
	tx.x.drop(addr, max(s.mono(), 1))
	if err := failpoint.At(failpoint.IpamRemoved); err != nil {
		return &Error{"release", filepath.Join(s.cfg.Dir, name), err}
	}
	return nil
}

// Last reads last_reserved_ip.<set>. ok is false when there is none that can be read;
// then candidates are not trusted from now on (I11), and the search begins at the start.
func (tx *Tx) Last(set int) (addr netip.Addr, ok bool) {
	s := tx.s
	fd, err := s.fs.openReservation(s.dirfd, lastPrefix+strconv.Itoa(set))
	if err == nil {
		defer s.fs.Close(fd)
		var b []byte
		if b, _, err = s.fs.readFD(fd, s.buf); err == nil {
			addr, err = netip.ParseAddr(string(b))
		}
	}
	if err != nil {
		// Anew with each loss: an ADD that was in flight at this one may have begun after the last.
		tx.x.head.distrust, tx.dirty = max(s.mono(), sinceBoot+1), true
		tx.Distrust = tx.x.head.distrust
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// SetLast writes last_reserved_ip.<set> as host-local does. It is a hint, so it is not
// fsynced, but a failure is an error: the caller takes its reservation back (case L19).
func (tx *Tx) SetLast(set int, addr netip.Addr) error {
	s := tx.s
	name := lastPrefix + strconv.Itoa(set)
	fail := func(err error) error { return &Error{"write", filepath.Join(s.cfg.Dir, name), err} }
	fd, err := s.fs.Openat(s.dirfd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fail(err)
	}
	defer s.fs.Close(fd)
	text := []byte(addr.String())
	if err := pwriteAll(s.fs, fd, text, 0); err != nil {
		return fail(err)
	}
	if err := failpoint.At(failpoint.IpamLastWritten); err != nil {
		return fail(err)
	}
	// A mark that stamps are to be looked for here; see hasStamp.
	_ = s.fs.Fsetxattr(fd, StampAttr, []byte{stampVersion}, 0)
	// Cut after writing: host-local reads an empty one as "no such address".
	err = s.fs.Ftruncate(fd, int64(len(text)))
	if err == nil {
		err = failpoint.At(failpoint.IpamLastCut)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// Trust ends the distrust: every address that the kernel holds has a reservation.
func (tx *Tx) Trust() {
	if tx.x.head.distrust != 0 {
		tx.x.head.distrust, tx.Distrust, tx.dirty = 0, 0, true
	}
}

// End writes the index and gives the lock back. Failing to write the index costs time and
// nothing else, so it is no error. Safe to call twice.
func (tx *Tx) End() {
	if tx.lock == nil {
		return
	}
	s := tx.s
	if s.cfg.RunDir != "" && (tx.dirty || tx.stale || tx.x.whole) {
		tx.leave()
	}
	tx.lock.release()
	tx.lock = nil
}

// leave marks the directory, and saves the index with that mark.
func (tx *Tx) leave() {
	s := tx.s
	st, err := s.fs.Fstat(s.dirfd)
	if err != nil {
		return
	}
	// In the past, so that no later change can have it; odd, so that none has had it.
	mark := s.cfg.Wall() - int64(tick) - int64(s.cfg.Rand()%uint64(time.Second))
	if s.fs.Utimes(s.dirfd, st.Atime, mark) != nil || failpoint.At(failpoint.IpamIndexMarked) != nil {
		return
	}
	// What the file system keeps of it: some have no nanoseconds.
	if st, err = s.fs.Fstat(s.dirfd); err != nil || st.Mtime != mark {
		return
	}
	tx.x.head.mtime, tx.x.head.ctime = mark, st.Ctime
	if tx.stale {
		tx.x.head.mtime = 0
	}
	path := s.indexPath()
	if err := tx.x.save(s.fs, path); err == unix.ENOENT {
		if fsys.MkdirAll(s.fs, s.cfg.RunDir, 0o755) == nil {
			tx.x.whole = true
			_ = tx.x.save(s.fs, path)
		}
	}
}

// Is reports whether the directory is the one with that key.
func (s *Store) Is(k fsys.Key) bool { return s.key == k }
