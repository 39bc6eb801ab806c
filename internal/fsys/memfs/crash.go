package memfs

import (
	"math/rand/v2"
	"slices"
)

// undo takes one write or truncation back. The bytes that it wrote are in the content.
type undo struct {
	off          int64
	n            int    // bytes written; -1 for a truncation
	old          []byte // what lay there
	size         int64  // before
	ctime, mtime int64  // before
}

// write writes what there is room for.
func (d *Disk) write(ino *inode, off int64, buf []byte) (int, error) {
	size := int64(len(ino.data))
	end := off + int64(len(buf))
	if grow := end - size; grow > 0 && !ino.dev.room(grow) {
		end = size + max(0, ino.dev.limit-ino.dev.used)
		if end <= off {
			return 0, errNoSpace
		}
		buf = buf[:end-off]
	}
	if len(buf) == 0 {
		return 0, nil
	}
	u := undo{off: off, n: len(buf), size: size, ctime: ino.ctime, mtime: ino.mtime}
	if off < size {
		u.old = slices.Clone(ino.data[off:min(end, size)])
	}
	ino.undo = append(ino.undo, u)
	ino.resize(max(size, end))
	copy(ino.data[off:], buf)
	ino.touch(d.now())
	return len(buf), nil
}

func (d *Disk) truncate(ino *inode, size int64) {
	now, was := d.now(), int64(len(ino.data))
	if size != was {
		u := undo{n: -1, off: size, size: was, ctime: ino.ctime, mtime: ino.mtime}
		if size < was {
			u.old = slices.Clone(ino.data[size:])
		}
		ino.undo = append(ino.undo, u)
		ino.resize(size)
	}
	ino.touch(now)
}

func (ino *inode) touch(now int64) { ino.mtime, ino.ctime = now, now }

// resize sets the length of the content; what is new is zero.
func (ino *inode) resize(size int64) {
	was := int64(len(ino.data))
	ino.dev.used += size - was
	if size <= was {
		ino.data = ino.data[:size]
		return
	}
	ino.data = slices.Grow(ino.data, int(size-was))[:size]
	clear(ino.data[was:])
}

// sync makes content and attributes durable.
func (ino *inode) sync() {
	clear(ino.undo) // lets go of what it held
	ino.undo = ino.undo[:0]
	ino.synced, ino.metaDirty = ino.meta, false
}

// syncDir makes the operations on a directory durable, and what they rest on.
func (d *Disk) syncDir(dir *inode) {
	log := dir.dev.log
	if len(log) == 0 {
		return
	}
	d.pass++
	dir.mark = d.pass
	// Backwards: whatever touches what must be durable must be so itself.
	keep := len(log)
	for i := len(log) - 1; i >= 0; i-- {
		if log[i].marked(d.pass) {
			log[i].touch(d.pass)
			continue
		}
		keep--
		log[keep] = log[i]
	}
	n := copy(log, log[keep:])
	clear(log[n:])
	dir.dev.log = log[:n]
}

// marked reports whether the operation touches a directory or an inode's number that
// this pass has marked.
func (o *op) marked(pass uint64) bool {
	for i := range o.n {
		c := &o.c[i]
		if c.dir.mark == pass || c.old != nil && c.old.slot.mark == pass || c.new != nil && c.new.slot.mark == pass {
			return true
		}
	}
	// A directory's removal comes after all that was done inside.
	c := &o.c[0]
	return o.n == 1 && c.new == nil && c.old.isDir() && c.old.mark == pass
}

func (o *op) touch(pass uint64) {
	for i := range o.n {
		c := &o.c[i]
		c.dir.mark = pass
		if c.old != nil {
			c.old.slot.mark = pass
		}
		if c.new != nil {
			c.new.slot.mark = pass
		}
	}
	if c := &o.c[0]; o.n == 1 && c.new == nil && c.old.isDir() {
		c.old.mark = pass
	}
}

// Sync makes everything durable, as the kernel does some seconds after it was written.
func (d *Disk) Sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncAll()
}

func (d *Disk) syncAll() {
	for _, dev := range d.devs {
		clear(dev.log)
		dev.log = dev.log[:0]
		dev.root.each(func(ino *inode) { ino.sync() })
	}
}

// each visits the inode and everything below it on its device, in a fixed order; an
// inode with two names twice.
func (ino *inode) each(do func(*inode)) {
	do(ino)
	for _, e := range ino.list {
		if e.ino != nil {
			e.ino.each(do)
		}
	}
}

// Crash is a power loss: every process is killed, and of what was not durable some is
// lost, as rng has it. See the package's documentation. Afterwards all that is left is
// durable.
func (d *Disk) Crash(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.procs) > 0 {
		d.procs[0].kill()
	}
	for _, dev := range d.devs {
		d.crashNames(dev, rng)
		d.pass++
		dev.root.each(func(ino *inode) {
			if ino.mark != d.pass {
				ino.mark = d.pass
				ino.crash(rng)
			}
		})
		d.recount(dev)
	}
	d.syncAll()
}

// crashNames loses operations: each stays only if it is the next one of everything that
// it touches.
func (d *Disk) crashNames(dev *device, rng *rand.Rand) {
	// How much is lost of a disk goes together: little, much, all or nothing.
	odds := []float64{0, 1, 0.5, 0.1, 0.02}[rng.IntN(5)]
	d.pass++
	lost := dev.log[:0:0]
	for _, o := range dev.log {
		if !o.marked(d.pass) && rng.Float64() >= odds {
			continue
		}
		o.touch(d.pass)
		// Nothing happened inside a directory that was never made.
		if c := &o.c[0]; o.n == 1 && c.old == nil && c.new.isDir() {
			c.new.mark = d.pass
		}
		lost = append(lost, o)
	}
	for _, o := range slices.Backward(lost) {
		for i := o.n - 1; i >= 0; i-- {
			c := &o.c[i]
			c.dir.set(c.name, c.old)
			if c.old != nil {
				c.old.ctime = c.ctime
			} else {
				c.new.ctime = c.ctime
			}
		}
	}
}

// crash loses content and attributes that were not fsynced.
func (ino *inode) crash(rng *rand.Rand) {
	if ino.metaDirty {
		if rng.IntN(2) == 0 {
			mtime := ino.mtime
			ino.meta = ino.synced
			ino.mtime = mtime
		}
	}
	if len(ino.undo) == 0 {
		return
	}
	whole := rng.IntN(4) == 0
	if whole {
		return
	}
	none := rng.IntN(3) == 0
	// Take all back, and do again what survives, as far as it does.
	ctime, mtime := ino.ctime, ino.mtime
	wrote := make([][]byte, len(ino.undo))
	for i, u := range slices.Backward(ino.undo) {
		if u.n >= 0 {
			wrote[i] = slices.Clone(ino.data[u.off : u.off+int64(u.n)])
			ino.resize(u.size)
			copy(ino.data[min(u.off, u.size):], u.old)
		} else {
			ino.resize(u.size)
			copy(ino.data[min(u.off, u.size):], u.old)
		}
		ino.ctime, ino.mtime = u.ctime, u.mtime
	}
	if none {
		return
	}
	for i, u := range ino.undo {
		b := wrote[i]
		switch rng.IntN(4) {
		case 0:
			continue
		case 1: // torn
			b = b[:rng.IntN(len(b)+1)]
		case 2: // the size came through, and of the bytes not all
			from := rng.IntN(len(b) + 1)
			clear(b[from:])
		}
		if u.n < 0 {
			ino.resize(u.off)
		} else if len(b) > 0 {
			end := u.off + int64(len(b))
			ino.resize(max(int64(len(ino.data)), end))
			copy(ino.data[u.off:end], b)
		}
		ino.ctime, ino.mtime = ctime, mtime
	}
}

// recount makes a device's numbers agree with the names that are left.
func (d *Disk) recount(dev *device) {
	d.pass++
	dev.used = 0
	dev.root.parent = dev.root
	dev.root.each(func(ino *inode) {
		ino.open, ino.lock, ino.linkable = 0, flocks{}, false
		if ino.mark == d.pass {
			ino.nlink++
			return
		}
		if ino.slot.mark == d.pass {
			panic("memfs: two inodes have one number")
		}
		ino.mark, ino.slot.mark = d.pass, d.pass
		ino.nlink = 1
		dev.used += inodeBytes + int64(len(ino.data))
		if !ino.isDir() {
			return
		}
		ino.nlink = 2
		for _, e := range ino.list {
			if e.ino != nil && e.ino.isDir() {
				e.ino.parent = ino
				ino.nlink++
			}
		}
	})
	dev.free = dev.free[:0]
	for _, s := range slices.Backward(dev.slots) {
		if s.mark != d.pass {
			dev.free = append(dev.free, s)
		}
	}
}
