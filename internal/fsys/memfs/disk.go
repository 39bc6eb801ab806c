package memfs

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// Options for New.
type Options struct {
	// Now reads the wall clock, in ns since the epoch, for file times; it is called with
	// the disk locked. A clock that goes on by 1 µs at each look when nil. The kernel's is
	// coarser: two changes within 4 ms may have one ctime.
	Now func() int64
}

// Disk is one node's file systems. Safe for concurrent use.
type Disk struct {
	mu    sync.Mutex
	wake  sync.Cond // a flock was released, a descriptor closed, a process killed
	now   func() int64
	root  *inode
	devs  []*device
	procs []*Process
	made  uint64 // devices so far
	pass  uint64 // number of the last walk over marks
}

// device is one mounted file system.
type device struct {
	num    uint64
	root   *inode
	slots  []*slot
	free   []*slot // the last is used first, as ext4 uses the number that was just freed
	limit  int64   // bytes, -1 for none
	used   int64
	caps   Caps
	ro     bool
	log    []op // names that are not durable yet, oldest first
	parent *inode
}

// Caps are what a file system cannot do.
type Caps struct {
	NoXattr   bool // EOPNOTSUPP
	NoTmpfile bool // O_TMPFILE: EOPNOTSUPP
	NoReplace bool // RENAME_NOREPLACE: EINVAL
}

// slot is one number of an inode. Inodes that have it one after the other share it, so
// that their operations keep their order.
type slot struct {
	num  uint64
	mark uint64
}

// meta is what fsync makes durable besides content.
type meta struct {
	mode     uint32
	uid, gid uint32
	mtime    int64
	xattr    map[string]string // replaced, never changed
}

type inode struct {
	dev  *device
	slot *slot
	meta
	nlink        uint64
	atime, ctime int64
	open         int
	linkable     bool // made by O_TMPFILE without O_EXCL
	deny         error

	// A regular file: content as processes see it, and how to take back what is not
	// durable, oldest first.
	data      []byte
	undo      []undo
	synced    meta
	metaDirty bool

	target string // of a symlink

	// A directory.
	list   []dirent // in the order of seq, with nil inodes for removed names
	index  map[string]int
	dead   int
	seq    int64
	parent *inode
	mount  *inode // root of what is mounted here
	mark   uint64

	lock flocks
}

type dirent struct {
	name string
	ino  *inode
	seq  int64
}

// New returns an empty disk with "/" on device 0xfe00.
func New(opts Options) *Disk {
	d := &Disk{now: opts.Now}
	d.wake.L = &d.mu
	if d.now == nil {
		at := int64(1_800_000_000_000_000_000)
		d.now = func() int64 { at += 1000; return at }
	}
	d.root = d.addDevice(Caps{}).root
	return d
}

func (d *Disk) addDevice(caps Caps) *device {
	dev := &device{num: 0xfe00 + d.made, limit: -1, caps: caps}
	d.made++
	dev.root = d.newInode(dev, unix.S_IFDIR|0o755)
	dev.root.nlink, dev.root.parent = 2, dev.root
	d.devs = append(d.devs, dev)
	return dev
}

// inodeBytes is what an inode with its name costs of a device's space.
const inodeBytes = 256

// newInode takes a number; room is the caller's to check.
func (d *Disk) newInode(dev *device, mode uint32) *inode {
	var s *slot
	if n := len(dev.free); n > 0 {
		s, dev.free = dev.free[n-1], dev.free[:n-1]
	} else {
		s = &slot{num: uint64(11 + len(dev.slots))}
		dev.slots = append(dev.slots, s)
	}
	now := d.now()
	ino := &inode{dev: dev, slot: s, atime: now, ctime: now}
	ino.mode, ino.mtime = mode, now
	ino.synced = ino.meta
	if ino.isDir() {
		ino.index = make(map[string]int)
	}
	dev.used += inodeBytes
	return ino
}

// put drops an inode that has neither a name nor an opener.
func (ino *inode) put() {
	if ino.nlink == 0 && ino.open == 0 {
		ino.dev.free = append(ino.dev.free, ino.slot)
		ino.dev.used -= inodeBytes + int64(len(ino.data))
	}
}

func (dev *device) room(bytes int64) bool { return dev.limit < 0 || dev.used+bytes <= dev.limit }

func (ino *inode) kind() uint32 { return ino.mode & unix.S_IFMT }
func (ino *inode) isDir() bool  { return ino.kind() == unix.S_IFDIR }

func (ino *inode) stat() fsys.Stat {
	size := int64(len(ino.data))
	switch ino.kind() {
	case unix.S_IFDIR:
		size = 4096
	case unix.S_IFLNK:
		size = int64(len(ino.target))
	}
	return fsys.Stat{
		Dev: ino.dev.num, Ino: ino.slot.num, Mode: ino.mode, UID: ino.uid, GID: ino.gid, Nlink: ino.nlink,
		Size: size, Atime: ino.atime, Mtime: ino.mtime, Ctime: ino.ctime,
	}
}

func (ino *inode) child(name string) *inode {
	if i, ok := ino.index[name]; ok {
		return ino.list[i].ino
	}
	return nil
}

// set gives a name to new, or takes it away when new is nil.
func (ino *inode) set(name string, to *inode) {
	i, ok := ino.index[name]
	switch {
	case ok && to != nil:
		ino.list[i].ino = to
	case ok:
		ino.list[i].ino = nil
		delete(ino.index, name)
		if ino.dead++; ino.dead > 32 && ino.dead > len(ino.list)/2 {
			ino.list = slices.DeleteFunc(ino.list, func(e dirent) bool { return e.ino == nil })
			for i := range ino.list {
				ino.index[ino.list[i].name] = i
			}
			ino.dead = 0
		}
	case to != nil:
		ino.seq++
		ino.index[name] = len(ino.list)
		ino.list = append(ino.list, dirent{name, to, ino.seq})
	}
}

func (ino *inode) empty() bool { return len(ino.index) == 0 }

// mayChange says whether names may be added to or removed from a directory.
func (ino *inode) mayChange() error {
	if ino.dev.ro {
		return unix.EROFS
	}
	if ino.deny != nil {
		return ino.deny
	}
	if ino.nlink == 0 {
		return unix.ENOENT
	}
	return nil
}

const (
	maxLinks = 40
	maxName  = 255
	maxPath  = 4096
)

// spot is what a path leads to: a name in a directory, and what lies there, nil for
// nothing. name is empty when the path ends in "." or "..", or is "/".
type spot struct {
	dir  *inode
	name string
	ino  *inode
	// slash: the path ends in one, so only a directory will do.
	slash bool
}

// walk follows path from dir, at the end a symlink only if follow says so.
func (d *Disk) walk(dir *inode, path string, follow bool) (spot, error) {
	links := 0
	return d.walkLinks(dir, path, follow, &links)
}

func (d *Disk) walkLinks(dir *inode, path string, follow bool, links *int) (spot, error) {
	if path == "" {
		return spot{}, unix.ENOENT
	}
	if len(path) >= maxPath {
		return spot{}, unix.ENAMETOOLONG
	}
	if path[0] == '/' {
		dir = d.root
	}
	at := spot{ino: dir}
	for i := 0; ; {
		for i < len(path) && path[i] == '/' {
			i++
		}
		if i == len(path) {
			at.slash = path[i-1] == '/'
			return at, at.check()
		}
		from := i
		for i < len(path) && path[i] != '/' {
			i++
		}
		name := path[from:i]
		more := i < len(path)
		// What came before must be a directory.
		if at.ino == nil {
			return spot{}, unix.ENOENT
		}
		if !at.ino.isDir() {
			return spot{}, unix.ENOTDIR
		}
		dir = at.ino
		switch {
		case name == ".":
			at = spot{ino: dir}
			continue
		case name == "..":
			if dir == dir.dev.root && dir.dev.parent != nil {
				dir = dir.dev.parent
			}
			at = spot{ino: dir.parent}
			continue
		case len(name) > maxName:
			return spot{}, unix.ENAMETOOLONG
		}
		at = spot{dir: dir, name: name, ino: dir.child(name)}
		if at.ino != nil && at.ino.kind() == unix.S_IFLNK && (more || follow) {
			if *links++; *links > maxLinks {
				return spot{}, unix.ELOOP
			}
			var err error
			if at, err = d.walkLinks(dir, at.ino.target, true, links); err != nil {
				return spot{}, err
			}
		}
		for at.ino != nil && at.ino.mount != nil {
			at.ino = at.ino.mount
		}
	}
}

// check refuses a trailing slash behind what is no directory.
func (at *spot) check() error {
	if at.slash && at.ino != nil && !at.ino.isDir() {
		return unix.ENOTDIR
	}
	return nil
}
