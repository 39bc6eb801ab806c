package hostlocal

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/crc32c"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// The index of one store: which address has which content, so that neither ADD nor DEL
// reads every file. It is a cache, never the truth: it counts only while the directory is
// exactly as the index's last writer left it, and what it says is looked at again before
// anything is done. The format is in docs/format/ipam-index.md.
//
// The writer, under host-local's lock, gives the directory a modification time of its
// own choosing that lies in the past, and writes the same into the index. Whoever else
// makes or removes a name sets that time to the present, so that it differs whatever the
// clock's tick (1 to 10 ms before Linux 6.13).
const (
	indexMagic  = "hfipam1\n"
	indexHeader = 128
	indexEntry  = 64
	// maxIndex bounds the entries of an index: 4 million are 256 MiB.
	maxIndex = 4 << 20
)

// ownerKey stands for the trimmed content of a reservation. Two that collide cost a
// look at a file; the content decides.
type ownerKey [16]byte

// unreadKey stands for what could not be read.
var unreadKey = ownerKey{0: 0xff, 15: 0xff}

func keyOfContent(content []byte) (k ownerKey) {
	h := fnv.New128a()
	_, _ = h.Write(content)
	h.Sum(k[:0])
	return k
}

// indexHead is the header.
type indexHead struct {
	dir   fsys.Key
	mtime int64 // of the directory when the index was written, ns
	// ctime likewise. Whoever sets the modification time back, as a restored backup does,
	// cannot set this one.
	ctime int64
	boot  string
	// distrust is since when, on CLOCK_MONOTONIC, candidates are compared with the
	// kernel (I11); 0 = they need not.
	distrust time.Duration
	entries  int
}

func (h *indexHead) marshal() []byte {
	b := make([]byte, indexHeader)
	copy(b, indexMagic)
	le := binary.LittleEndian
	le.PutUint64(b[8:], h.dir.Dev)
	le.PutUint64(b[16:], h.dir.Ino)
	le.PutUint64(b[24:], uint64(h.mtime))
	copy(b[32:72], h.boot)
	le.PutUint64(b[72:], uint64(h.distrust))
	le.PutUint32(b[80:], uint32(h.entries))
	le.PutUint64(b[84:], uint64(h.ctime))
	le.PutUint32(b[indexHeader-4:], crc32c.Checksum(b[:indexHeader-4]))
	return b
}

// parseIndexHead returns false for everything but a whole header of this version.
func parseIndexHead(b []byte) (h indexHead, ok bool) {
	le := binary.LittleEndian
	if len(b) < indexHeader || string(b[:8]) != indexMagic ||
		crc32c.Checksum(b[:indexHeader-4]) != le.Uint32(b[indexHeader-4:]) {
		return h, false
	}
	h.dir = fsys.Key{Dev: le.Uint64(b[8:]), Ino: le.Uint64(b[16:])}
	h.mtime = int64(le.Uint64(b[24:]))
	boot := b[32:72]
	for len(boot) > 0 && boot[len(boot)-1] == 0 {
		boot = boot[:len(boot)-1]
	}
	h.boot = string(boot)
	h.distrust = time.Duration(le.Uint64(b[72:]))
	h.entries = int(le.Uint32(b[80:]))
	h.ctime = int64(le.Uint64(b[84:]))
	return h, h.entries <= maxIndex && h.distrust >= 0
}

// slot is one entry of an index: a name of the directory, or one that was freed.
type slot []byte // of indexEntry bytes

func (e slot) addr() netip.Addr { return netip.AddrFrom16([16]byte(e[:16])).Unmap() }
func (e slot) key() ownerKey    { return ownerKey(e[16:32]) }
func (e slot) ino() uint64      { return binary.LittleEndian.Uint64(e[32:]) }
func (e slot) ctime() int64     { return int64(binary.LittleEndian.Uint64(e[40:])) }
func (e slot) used() bool       { return e[56] == 1 }

// settled: when the file was looked at, its ctime was older than a tick of the clock, so
// that a file with the same inode and ctime is the same (ext4 uses inodes again at once).
func (e slot) settled() bool { return e[57] == 1 }

// freed is since when the slot is free, on CLOCK_MONOTONIC; 0 for a used one.
func (e slot) freed() time.Duration { return time.Duration(binary.LittleEndian.Uint64(e[48:])) }

func (e slot) take(addr netip.Addr, key ownerKey, st *fsys.Stat, now int64) {
	a := addr.As16()
	copy(e, a[:])
	copy(e[16:], key[:])
	binary.LittleEndian.PutUint64(e[32:], st.Ino)
	binary.LittleEndian.PutUint64(e[40:], uint64(st.Ctime))
	binary.LittleEndian.PutUint64(e[48:], 0)
	e[56], e[57] = 1, 0
	if settled(st.Ctime, now) {
		e[57] = 1
	}
}

// tick bounds the step of the clock that file times are taken from, with room: HZ=100
// makes 10 ms.
const tick = 20 * time.Millisecond

func settled(then, now int64) bool { return now-then >= int64(tick) }

func (e slot) free(at time.Duration) {
	binary.LittleEndian.PutUint64(e[48:], uint64(at))
	e[56] = 0
}

// index is one in memory.
type index struct {
	head  indexHead
	data  []byte   // the slots, back to back
	byIP  *slotMap // slot by address; built when first needed
	asked int
	// changed are the slots to be written; whole means all.
	changed []int
	whole   bool
	// from is the header that it was loaded with.
	from []byte
	// empty are the names of files that were empty when they were read; see readEmpty.
	empty []string
	// before: what was freed before it need not be known any more.
	before time.Duration
}

// keepFreed is how long it is known when an address was freed; a cooldown is no longer.
const keepFreed = time.Hour

func (x *index) slots() int      { return len(x.data) / indexEntry }
func (x *index) slot(i int) slot { return x.data[i*indexEntry : (i+1)*indexEntry] }

// slotMap maps addresses to slots. IPv4 ones go by their number, which takes a third of the
// time: a search through a full /16 is most of an ADD.
type slotMap struct {
	v4 map[uint32]int32
	v6 map[netip.Addr]int32
}

func newSlotMap(size int) *slotMap {
	return &slotMap{v4: make(map[uint32]int32, size), v6: map[netip.Addr]int32{}}
}

func v4Number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func (m *slotMap) get(a netip.Addr) (int, bool) {
	var i int32
	var ok bool
	if a.Is4() {
		i, ok = m.v4[v4Number(a)]
	} else {
		i, ok = m.v6[a]
	}
	return int(i), ok
}

func (m *slotMap) set(a netip.Addr, i int) {
	if a.Is4() {
		m.v4[v4Number(a)] = int32(i) // at most maxIndex
	} else {
		m.v6[a] = int32(i)
	}
}

func (m *slotMap) remove(a netip.Addr) {
	if a.Is4() {
		delete(m.v4, v4Number(a))
	} else {
		delete(m.v6, a)
	}
}

// find returns the slot of an address, used or freed. Most processes ask for two
// addresses, for which a map of all is not worth it.
func (x *index) find(addr netip.Addr) (int, bool) {
	if x.byIP == nil && x.asked < 8 {
		x.asked++
		a := addr.As16()
		for i := range x.slots() {
			if [16]byte(x.slot(i)[:16]) == a {
				return i, true
			}
		}
		return 0, false
	}
	if x.byIP == nil {
		x.byIP = newSlotMap(x.slots() + 1)
		for i := range x.slots() {
			x.byIP.set(x.slot(i).addr(), i)
		}
	}
	i, ok := x.byIP.get(addr)
	return i, ok
}

// withKey returns the addresses of all used slots with that key. It looks at each slot
// once: 60,000 take less than a millisecond, and a process asks twice at most.
func (x *index) withKey(k ownerKey) (out []netip.Addr) {
	for i := range x.slots() {
		if e := x.slot(i); e.key() == k && e.used() {
			out = append(out, e.addr())
		}
	}
	return out
}

func (x *index) take(addr netip.Addr, key ownerKey, st *fsys.Stat, now int64) {
	i, ok := x.find(addr)
	if !ok {
		if i = x.spare(); i == x.slots() {
			x.data = append(x.data, make([]byte, indexEntry)...)
		}
		if x.byIP != nil {
			x.byIP.remove(x.slot(i).addr())
			x.byIP.set(addr, i)
		}
	}
	x.slot(i).take(addr, key, st, now)
	x.changed = append(x.changed, i)
}

// spare returns the slot of an address that was freed long ago, or a new one: a network
// as wide as IPv6 comes back to no address.
func (x *index) spare() int {
	if x.before > 0 {
		for i := range x.slots() {
			if e := x.slot(i); !e.used() && e.freed() < x.before {
				return i
			}
		}
	}
	return x.slots()
}

func (x *index) drop(addr netip.Addr, at time.Duration) {
	if i, ok := x.find(addr); ok && x.slot(i).used() {
		x.slot(i).free(at)
		x.changed = append(x.changed, i)
	}
}

// loadIndex reads an index file; nil for none, or one that is not whole. Whether it
// counts is for the caller to say.
func loadIndex(fs fsys.FS, path string) *index {
	fd, err := fs.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer fs.Close(fd)
	st, err := fs.Fstat(fd)
	if err != nil || !st.Regular() || st.Size < indexHeader || st.Size > indexHeader+maxIndex*indexEntry {
		return nil
	}
	buf := make([]byte, st.Size, st.Size+4*indexEntry) // most who read it add one
	for n := 0; n < len(buf); {
		m, err := fs.Pread(fd, buf[n:], int64(n))
		if err != nil || m == 0 {
			return nil
		}
		n += m
	}
	h, ok := parseIndexHead(buf)
	end := indexHeader + h.entries*indexEntry
	if !ok || len(buf) < end {
		return nil
	}
	return &index{head: h, data: buf[indexHeader:end], from: bytes.Clone(buf[:indexHeader])}
}

// save writes what changed, the header last: whoever dies before leaves a header that
// does not fit the directory any more. Nothing is fsynced, since a power loss empties the
// place (/run), or leaves what does not fit.
func (x *index) save(fs fsys.FS, path string) error {
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := fs.Openat(unix.AT_FDCWD, path, flags, 0o600)
	if err != nil {
		return err
	}
	defer fs.Close(fd)
	st, err := fs.Fstat(fd)
	if err != nil {
		return err
	}
	if !st.Regular() {
		return &notRegularError{st.Mode}
	}
	// Somebody may have removed, cut or replaced the one that was loaded.
	if !x.whole {
		now := make([]byte, indexHeader)
		n, err := fs.Pread(fd, now, 0)
		x.whole = err != nil || !bytes.Equal(now[:n], x.from) || st.Size < int64(indexHeader+x.head.entries*indexEntry)
	}
	x.head.entries = x.slots()
	if x.whole {
		// No header until all is there.
		if err := fs.Ftruncate(fd, 0); err != nil {
			return err
		}
		if err := failpoint.At(failpoint.IpamIndexCut); err != nil {
			return err
		}
		if err := pwriteAll(fs, fd, x.data, indexHeader); err != nil {
			return err
		}
	} else {
		for _, i := range x.changed {
			if err := pwriteAll(fs, fd, x.slot(i), int64(indexHeader+i*indexEntry)); err != nil {
				return err
			}
		}
	}
	if err := failpoint.At(failpoint.IpamIndexSlots); err != nil {
		return err
	}
	if err := pwriteAll(fs, fd, x.head.marshal(), 0); err != nil {
		return err
	}
	return failpoint.At(failpoint.IpamIndexSaved)
}

func pwriteAll(fs fsys.FS, fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := fs.Pwrite(fd, b, off)
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.EIO
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}
