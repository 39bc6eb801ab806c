package hostlocal

import (
	"bytes"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// How a Store knows its directory: by the index if that counts, or by reading.

// load returns the index of this boot, nil when there is none. Of another boot nothing
// counts: its instants are of another clock, and a power loss changes what is where.
func (s *Store) load() *index {
	if s.cfg.RunDir == "" {
		return nil
	}
	x := loadIndex(s.fs, s.indexPath())
	if x == nil || x.head.boot != s.cfg.Boot {
		return nil
	}
	return x
}

// readEmpty reads again what was empty when the lock was not held: host-local makes the
// name first and writes then, which the directory does not show.
func (s *Store) readEmpty(x *index) error {
	names := x.empty
	x.empty = nil
	for _, name := range names {
		addr, _ := parseName(name)
		if err := s.scanFile(x, nil, name, addr, s.cfg.Wall()); err != nil {
			return err
		}
	}
	return nil
}

// counts reports whether the directory is as the index was left.
func (s *Store) counts(x *index) bool {
	if x == nil || x.head.dir != s.key || x.head.mtime == 0 {
		return false
	}
	st, err := s.fs.Fstat(s.dirfd)
	return err == nil && st.Mtime == x.head.mtime && st.Ctime == x.head.ctime
}

// scanned returns an index that fits the directory: x, or one that is read anew with the
// help of what x knows, in at most tries rounds while others write.
func (s *Store) scanned(x *index, tries int) (*index, error) {
	for range tries {
		if s.counts(x) {
			return x, nil
		}
		before, err := s.fs.Fstat(s.dirfd)
		if err != nil {
			return nil, &Error{"read", s.cfg.Dir, err}
		}
		now := s.cfg.Wall()
		if x, err = s.scan(x); err != nil {
			return nil, err
		}
		// A change within the tick of the last one would not show; nor need it under the
		// lock, where there is none.
		if tries == 1 || !settled(before.Mtime, now) {
			break
		}
		x.head.mtime, x.head.ctime = before.Mtime, before.Ctime
	}
	return x, nil
}

// scan reads the directory. What old knows of a file that is the same is not read again.
func (s *Store) scan(old *index) (*index, error) {
	x := &index{whole: true, byIP: newSlotMap(0)}
	x.head.dir = s.key
	if old != nil && old.head.dir == s.key {
		x.head.boot, x.head.distrust = old.head.boot, old.head.distrust
	} else {
		old = nil
	}
	fd, err := s.fs.Openat(s.dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &Error{"read", s.cfg.Dir, err}
	}
	defer s.fs.Close(fd)
	now := s.cfg.Wall()
	var rerr error
	err = fsys.ReadDir(s.fs, fd, func(name []byte, _ byte) bool {
		addr, kind := parseName(string(name))
		switch {
		case kind == nameReservation:
			rerr = s.scanFile(x, old, string(name), addr, now)
		case strings.HasPrefix(string(name), tempPrefix):
			s.sweepTemp(string(name), now)
		}
		return rerr == nil
	})
	if rerr != nil {
		return nil, rerr
	}
	if err != nil {
		return nil, &Error{"read", s.cfg.Dir, err}
	}
	if old != nil {
		// What vanished was freed at some time before now (for the cooldown).
		for i := range old.slots() {
			e := old.slot(i)
			if _, ok := x.byIP.get(e.addr()); ok {
				continue
			}
			at := e.freed()
			if e.used() {
				at = max(s.mono(), 1)
				// By host-local's DEL or a collector, or by a person who empties the directory
				// while Pods live (case F12): the kernel tells, in one look.
				x.head.distrust = max(x.head.distrust, sinceBoot)
			} else if at < s.mono()-keepFreed {
				continue
			}
			x.byIP.set(e.addr(), x.slots())
			x.data = append(x.data, e...)
			x.slot(x.slots() - 1).free(at)
		}
	}
	x.changed = nil
	return x, nil
}

// tempPrefix begins the names of drafts where there is no O_TMPFILE.
const tempPrefix = lastPrefix + "holdfast-new-"

// sweepTemp removes the draft of somebody who died.
func (s *Store) sweepTemp(name string, now int64) {
	st, err := s.fs.Fstatat(s.dirfd, name, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && now-st.Ctime > int64(10*time.Minute) {
		_ = s.fs.Unlinkat(s.dirfd, name, 0)
	}
}

func (s *Store) scanFile(x, old *index, name string, addr netip.Addr, now int64) error {
	if old != nil {
		if i, ok := old.find(addr); ok && old.slot(i).used() && old.slot(i).settled() {
			e := old.slot(i)
			st, err := s.fs.Fstatat(s.dirfd, name, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil && st.Ino == e.ino() && st.Ctime == e.ctime() {
				x.take(addr, e.key(), &st, now)
				return nil
			}
		}
	}
	content, inc, err := s.fs.readReservation(s.dirfd, name, s.buf)
	var odd *notRegularError
	var large *tooLargeError
	switch {
	case err == unix.ENOENT:
		return nil
	case errors.As(err, &odd), errors.As(err, &large):
		content = nil // nobody's, but the name is taken
	case slices.Contains([]error{unix.EIO, unix.EACCES, unix.EPERM, unix.EUCLEAN, errUnsteady}, err):
		// One bad file must not stop the network. Its name is taken; whose it is is asked
		// again when that would matter.
		x.take(addr, unreadKey, &fsys.Stat{Ctime: now}, now)
		return nil
	case err != nil:
		return &Error{"read", filepath.Join(s.cfg.Dir, name), err}
	}
	// Of two spellings of an address host-local's own counts: the other is a person's.
	if i, ok := x.find(addr); ok && x.slot(i).used() && name != addr.String() && !slices.Contains(x.empty, name) {
		return nil
	}
	st := fsys.Stat{Ino: inc.Ino, Ctime: inc.Ctime}
	if len(content) == 0 {
		// host-local makes the name first and writes then, which may happen now.
		st.Ctime = now
		x.empty = append(x.empty, name)
	}
	x.take(addr, keyOfContent(bytes.TrimSpace(content)), &st, now)
	return nil
}
