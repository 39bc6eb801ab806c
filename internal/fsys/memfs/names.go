package memfs

import (
	"slices"

	"golang.org/x/sys/unix"
)

// change is one name in one directory: what it meant, and means now; nil for nothing.
type change struct {
	dir      *inode
	name     string
	old, new *inode
	ctime    int64 // before, of old, or else of new
}

// op is one operation on names. A rename has two changes and is atomic.
type op struct {
	c [2]change
	n int
}

// maxLog bounds what is not durable yet: the kernel, too, writes it out in time.
const maxLog = 4096

// do changes names, now and in the log.
func (d *Disk) do(o op) {
	now := d.now()
	for i := range o.n {
		c := &o.c[i]
		if c.old != nil {
			c.ctime = c.old.ctime
		} else {
			c.ctime = c.new.ctime
		}
	}
	for i := range o.n {
		c := &o.c[i]
		c.dir.set(c.name, c.new)
		c.dir.mtime, c.dir.ctime = now, now
		for _, ino := range [2]*inode{c.old, c.new} {
			if ino != nil {
				ino.ctime = now
			}
		}
	}
	dev := o.c[0].dir.dev
	if len(dev.log) >= maxLog {
		dev.log = append(dev.log[:0], dev.log[maxLog/2:]...)
	}
	dev.log = append(dev.log, o)
}

// create makes a file at a name where nothing is.
func (d *Disk) create(at spot, mode uint32) (*inode, error) {
	if !at.dir.dev.room(inodeBytes) {
		return nil, unix.ENOSPC
	}
	ino := d.newInode(at.dir.dev, mode)
	ino.nlink = 1
	if ino.isDir() {
		ino.nlink, ino.parent = 2, at.dir
		at.dir.nlink++
	}
	d.do(op{c: [2]change{{dir: at.dir, name: at.name, new: ino}}, n: 1})
	return ino, nil
}

// vacant checks that something can be made at the name.
func (at *spot) vacant() error {
	if at.ino != nil {
		return unix.EEXIST
	}
	return at.dir.mayChange()
}

// Mkdirat implements fsys.FS.
func (p *Process) Mkdirat(dirfd int, name string, mode uint32) error {
	if err := p.enter("Mkdirat", dirfd, name); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	at, err := p.walk(dirfd, name, false)
	if err == nil {
		err = at.vacant()
	}
	if err == nil {
		_, err = p.d.create(at, unix.S_IFDIR|mode&0o7777)
	}
	return err
}

// Linkat implements fsys.FS.
func (p *Process) Linkat(olddirfd int, oldname string, newdirfd int, newname string, flags int) error {
	if err := p.enter("Linkat", newdirfd, newname); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	from, err := p.walk(olddirfd, oldname, flags&unix.AT_SYMLINK_FOLLOW != 0)
	if err == nil && from.ino == nil {
		err = unix.ENOENT
	}
	if err != nil {
		return err
	}
	return p.link(from.ino, newdirfd, newname)
}

// LinkFD implements fsys.FS.
func (p *Process) LinkFD(fd, newdirfd int, newname string) error {
	if err := p.enter("LinkFD", newdirfd, newname); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.file(fd)
	if err != nil {
		return err
	}
	return p.link(f.ino, newdirfd, newname)
}

func (p *Process) link(ino *inode, newdirfd int, newname string) error {
	at, err := p.walk(newdirfd, newname, false)
	if err != nil {
		return err
	}
	if err := at.vacant(); err != nil {
		return err
	}
	switch {
	case at.slash:
		return unix.ENOENT
	case ino.dev != at.dir.dev:
		return unix.EXDEV
	case ino.isDir():
		return unix.EPERM
	case ino.nlink == 0 && !ino.linkable:
		return unix.ENOENT
	}
	ino.nlink++
	ino.linkable = false
	p.d.do(op{c: [2]change{{dir: at.dir, name: at.name, new: ino}}, n: 1})
	return nil
}

// Unlinkat implements fsys.FS.
func (p *Process) Unlinkat(dirfd int, name string, flags int) error {
	if err := p.enter("Unlinkat", dirfd, name); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	at, err := p.walk(dirfd, name, false)
	if err != nil {
		return err
	}
	return p.d.unlink(at, flags&unix.AT_REMOVEDIR != 0)
}

func (d *Disk) unlink(at spot, rmdir bool) error {
	switch {
	case at.dir == nil && rmdir:
		return unix.EINVAL
	case at.dir == nil:
		return unix.EISDIR
	case at.ino == nil:
		return unix.ENOENT
	case at.ino != at.dir.child(at.name):
		return unix.EBUSY // something is mounted there
	case rmdir && !at.ino.isDir():
		return unix.ENOTDIR
	case !rmdir && at.ino.isDir():
		return unix.EISDIR
	case rmdir && !at.ino.empty():
		return unix.ENOTEMPTY
	}
	if err := at.dir.mayChange(); err != nil {
		return err
	}
	d.do(op{c: [2]change{{dir: at.dir, name: at.name, old: at.ino}}, n: 1})
	at.ino.drop(at.dir)
	return nil
}

// drop takes the name in dir away from the count of links.
func (ino *inode) drop(dir *inode) {
	ino.nlink--
	if ino.isDir() {
		ino.nlink = 0
		dir.nlink--
	}
	ino.put()
}

// Renameat2 implements fsys.FS.
func (p *Process) Renameat2(olddirfd int, oldname string, newdirfd int, newname string, flags uint) error {
	if err := p.enter("Renameat2", newdirfd, newname); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	from, err := p.walk(olddirfd, oldname, false)
	if err != nil {
		return err
	}
	to, err := p.walk(newdirfd, newname, false)
	if err != nil {
		return err
	}
	return p.d.rename(from, to, flags)
}

func (d *Disk) rename(from, to spot, flags uint) error {
	noReplace := flags == unix.RENAME_NOREPLACE
	switch {
	case flags != 0 && !noReplace:
		return unix.EINVAL
	case from.dir != nil && to.dir != nil && from.dir.dev != to.dir.dev:
		return unix.EXDEV
	case from.dir == nil:
		return unix.EBUSY
	case to.dir == nil && noReplace:
		return unix.EEXIST
	case to.dir == nil:
		return unix.EBUSY
	case from.dir.dev.ro:
		return unix.EROFS
	case from.ino == nil:
		return unix.ENOENT
	case noReplace && to.ino != nil:
		return unix.EEXIST
	case to.ino == nil && to.slash && !from.ino.isDir():
		return unix.ENOTDIR
	}
	if from.ino.isDir() {
		for up := to.dir; ; up = up.parent {
			if up == from.ino {
				return unix.EINVAL
			}
			if up.parent == up {
				break
			}
		}
	}
	switch {
	case to.ino == from.ino:
		return nil // two names of one inode stay both
	case from.ino != from.dir.child(from.name), to.ino != to.dir.child(to.name):
		return unix.EBUSY
	case to.ino != nil && to.ino.isDir() && !from.ino.isDir():
		return unix.EISDIR
	case to.ino != nil && !to.ino.isDir() && from.ino.isDir():
		return unix.ENOTDIR
	case to.ino != nil && to.ino.isDir() && !to.ino.empty():
		return unix.ENOTEMPTY
	case noReplace && from.dir.dev.caps.NoReplace:
		return unix.EINVAL
	}
	for _, dir := range []*inode{from.dir, to.dir} {
		if err := dir.mayChange(); err != nil {
			return err
		}
	}
	d.do(op{n: 2, c: [2]change{
		{dir: from.dir, name: from.name, old: from.ino},
		{dir: to.dir, name: to.name, old: to.ino, new: from.ino},
	}})
	if to.ino != nil {
		to.ino.drop(to.dir)
	}
	if from.ino.isDir() {
		from.ino.parent = to.dir
		from.dir.nlink--
		to.dir.nlink++
	}
	return nil
}

// flocks are the flocks on one inode, by open file description.
type flocks struct {
	ex    *openFile
	sh    []*openFile
	queue []*openFile // those who wait, in turn
}

// release takes the description's lock away and reports whether it had one.
func (l *flocks) release(f *openFile) bool {
	if l.ex == f {
		l.ex = nil
		return true
	}
	i := slices.Index(l.sh, f)
	if i < 0 {
		return false
	}
	l.sh = slices.Delete(l.sh, i, i+1)
	return true
}

// try takes the lock if nobody is in the way.
func (l *flocks) try(f *openFile, how int) bool {
	if l.ex != nil || how == unix.LOCK_EX && len(l.sh) > 0 {
		return false
	}
	if how == unix.LOCK_EX {
		l.ex = f
	} else {
		l.sh = append(l.sh, f)
	}
	return true
}

// Flock implements fsys.FS. Who waits is served in turn; who does not wait may come
// between, as in the kernel.
func (p *Process) Flock(fd int, how int) error {
	if err := p.enter("Flock", fd, ""); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	if err != nil {
		return err
	}
	l, kind := &f.ino.lock, how&^unix.LOCK_NB
	switch {
	case kind == unix.LOCK_UN:
		if l.release(f) {
			p.d.wake.Broadcast()
		}
		return nil
	case kind != unix.LOCK_EX && kind != unix.LOCK_SH:
		return unix.EINVAL
	case l.ex == f && kind == unix.LOCK_EX, kind == unix.LOCK_SH && slices.Contains(l.sh, f):
		return nil
	}
	// A change of kind gives the old lock back first, and may lose it.
	if l.release(f) {
		p.d.wake.Broadcast()
	}
	if l.try(f, kind) {
		return nil
	}
	if how&unix.LOCK_NB != 0 {
		return unix.EWOULDBLOCK
	}
	l.queue = append(l.queue, f)
	for err == nil {
		p.d.wake.Wait()
		switch {
		case p.dead:
			err = ErrKilled
		case f.closed:
			err = unix.EBADF
		case l.queue[0] == f && l.try(f, kind):
			l.queue = l.queue[1:]
			p.d.wake.Broadcast() // the next one may share it
			return nil
		}
	}
	l.queue = slices.DeleteFunc(l.queue, func(g *openFile) bool { return g == f })
	p.d.wake.Broadcast()
	return err
}

func (d *Disk) closeFile(f *openFile) {
	f.closed = true
	if f.ino.lock.release(f) || len(f.ino.lock.queue) > 0 {
		d.wake.Broadcast()
	}
	f.ino.open--
	f.ino.put()
}
