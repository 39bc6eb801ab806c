package hostlocal

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// settledAfter is how much older than the listing a file's ctime must be, so that what is written
// into it later cannot have the same one: ctime is of the kernel's coarse clock, whose tick is
// at most 10 ms (HZ=100, before Linux 6.13).
const settledAfter = int64(100e6) // ns

// kept is what a long-lived inventory remembers of its last listing: a file that is still the same
// incarnation by stat (device, inode, ctime, size) is not read again.
//
// A release does not rest on it: the file is read and compared under the allocator's lock (I7).
// NOT covered: a clock that is set back to the very nanosecond of a file's ctime, with the file
// rewritten in that tick in its inode and size.
type kept struct {
	mu     sync.Mutex
	stores map[string]*keptStore
}

type keptStore struct {
	dir     fsys.Key
	stamped bool
	at      int64 // the clock before the directory was read, ns
	res     []claim.Resource
}

// of returns what is kept of a directory, nil if that is another one or was read otherwise.
func (k *kept) of(dir string, key fsys.Key, stamped bool) *keptStore {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.stores[dir]
	if s == nil || s.dir != key || s.stamped != stamped {
		return nil
	}
	return s
}

// replace keeps this listing's stores and no others.
func (k *kept) replace(stores map[string]*keptStore) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stores = stores
}

// cursor finds entries, which come in order, in a kept listing.
type cursor struct {
	s  *keptStore
	at int
}

func (s *keptStore) cursor(first *entry) cursor {
	if s == nil {
		return cursor{}
	}
	at, _ := slices.BinarySearchFunc(s.res, first, func(r claim.Resource, e *entry) int { return compareEntries(r.Addr, r.Path, e) })
	return cursor{s, at}
}

// find returns the kept resource of e if the file of that name is still the one that was read.
func (c *cursor) find(fs files, dirfd int, e *entry, name string) *claim.Resource {
	if c.s == nil {
		return nil
	}
	for c.at < len(c.s.res) && compareEntries(c.s.res[c.at].Addr, c.s.res[c.at].Path, e) < 0 {
		c.at++
	}
	if c.at == len(c.s.res) || c.s.res[c.at].Path != e.path {
		return nil
	}
	r := &c.s.res[c.at]
	if r.Problem != "" || r.Inc.Ctime > c.s.at-settledAfter {
		return nil
	}
	st, ok, err := fs.lstatAt(dirfd, name)
	if err != nil || !ok || !st.Regular() {
		return nil // who reads it says why
	}
	inc := incarnationOf(&st)
	if inc.Sum = r.Inc.Sum; inc != r.Inc {
		return nil
	}
	return r
}

// realtime is the clock of which ctime is, ns. 0 when it cannot be read: nothing is kept then.
func realtime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
