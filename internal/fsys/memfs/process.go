package memfs

import (
	"encoding/binary"
	"errors"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// ErrKilled is what every call of a killed process gives.
var ErrKilled = errors.New("memfs: the process was killed")

// fdBase keeps our descriptors apart from the kernel's: one that is handed to the wrong
// side is EBADF there.
const fdBase = 1 << 20

// Call is what a hook is told of a call that is about to be made.
type Call struct {
	Op   string // the method's name, such as "Openat"
	Name string // the call's path argument; of a link or rename the new one; "" for none
	at   *openFile
}

// Path is the path that the call is about, as far as the path tells by which its
// descriptor was opened: a file may have been renamed since.
func (c Call) Path() string {
	switch {
	case c.at == nil:
		return c.Name
	case c.Name == "":
		return c.at.path()
	}
	return path.Join(c.at.path(), c.Name)
}

// Process is one process's view of a disk: a table of descriptors, and flocks. Safe for
// concurrent use.
type Process struct {
	d *Disk

	// Guarded by d.mu.
	files  []*openFile // by descriptor less fdBase; nil is free
	low    int         // no free descriptor below
	calls  int64
	killAt int64
	hook   func(Call) error
	dead   bool
}

var _ fsys.FS = (*Process)(nil)

// openFile is an open file description.
type openFile struct {
	ino   *inode
	flags int
	pos   int64 // offset of Write, or the last seq that Getdents gave
	dots  int   // of "." and "..", how many Getdents gave
	// The path is put together when somebody asks.
	dir, name string
	closed    bool
}

func (f *openFile) path() string {
	if f.dir == "" {
		return f.name
	}
	return path.Join(f.dir, f.name)
}

// Process starts a process. Its current directory is "/".
func (d *Disk) Process() *Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &Process{d: d}
	d.procs = append(d.procs, p)
	return p
}

// SetHook makes h be called before each call of the process, without any lock held: it
// may use the disk, other processes, and Kill. An error that it returns is the call's
// result, and nothing is done then. nil takes it away.
func (p *Process) SetHook(h func(Call) error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.hook = h
}

// KillAt kills the process in place of its kth call from now on; 1 is the next one, 0
// never.
func (p *Process) KillAt(k int64) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.killAt = 0
	if k > 0 {
		p.killAt = p.calls + k
	}
}

// Calls returns how many calls were made so far.
func (p *Process) Calls() int64 {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.calls
}

// Alive reports whether it was not killed yet.
func (p *Process) Alive() bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return !p.dead
}

// OpenFiles returns the paths by which the open descriptors were opened.
func (p *Process) OpenFiles() []string {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	var out []string
	for _, f := range p.files {
		if f != nil {
			out = append(out, f.path())
		}
	}
	return out
}

// Kill ends the process: its descriptors are closed and its flocks released, and every
// call gives ErrKilled from now on, also one that blocks.
func (p *Process) Kill() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.kill()
}

func (p *Process) kill() {
	if p.dead {
		return
	}
	p.dead = true
	for _, f := range p.files {
		if f != nil {
			p.d.closeFile(f)
		}
	}
	p.files = nil
	p.d.procs = slices.DeleteFunc(p.d.procs, func(q *Process) bool { return q == p })
	p.d.wake.Broadcast()
}

// enter begins a call. Without an error the disk is locked on return.
func (p *Process) enter(op string, dirfd int, name string) error {
	d := p.d
	d.mu.Lock()
	if !p.dead {
		p.calls++
		if p.calls == p.killAt {
			p.kill()
		}
	}
	if p.dead {
		d.mu.Unlock()
		return ErrKilled
	}
	if p.hook == nil {
		return nil
	}
	h, c := p.hook, Call{Op: op, Name: name}
	if name == "" || name[0] != '/' {
		if f, err := p.file(dirfd); err == nil {
			c.at = f
		}
	}
	d.mu.Unlock()
	err := h(c)
	d.mu.Lock()
	if p.dead {
		err = ErrKilled
	}
	if err != nil {
		d.mu.Unlock()
	}
	return err
}

func (p *Process) file(fd int) (*openFile, error) {
	if fd -= fdBase; fd >= 0 && fd < len(p.files) && p.files[fd] != nil {
		return p.files[fd], nil
	}
	return nil, unix.EBADF
}

// data is file for calls that reach the content or attributes, which O_PATH does not.
func (p *Process) data(fd int) (*openFile, error) {
	f, err := p.file(fd)
	if err == nil && f.flags&unix.O_PATH != 0 {
		return nil, unix.EBADF
	}
	return f, err
}

func (p *Process) walk(dirfd int, name string, follow bool) (spot, error) {
	dir := p.d.root
	if dirfd != unix.AT_FDCWD && (name == "" || name[0] != '/') {
		f, err := p.file(dirfd)
		if err != nil {
			return spot{}, err
		}
		if dir = f.ino; !dir.isDir() {
			return spot{}, unix.ENOTDIR
		}
	}
	return p.d.walk(dir, name, follow)
}

// Openat implements fsys.FS.
func (p *Process) Openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	if err := p.enter("Openat", dirfd, name); err != nil {
		return -1, err
	}
	defer p.d.mu.Unlock()
	ino, err := p.opened(dirfd, name, flags, mode)
	if err != nil {
		return -1, err
	}
	f := &openFile{ino: ino, flags: flags, name: name}
	if dirfd != unix.AT_FDCWD && name[0] != '/' {
		if at, err := p.file(dirfd); err == nil {
			f.dir = at.path()
		}
	}
	ino.open++
	for p.low < len(p.files) && p.files[p.low] != nil {
		p.low++
	}
	if p.low == len(p.files) {
		p.files = append(p.files, nil)
	}
	p.files[p.low] = f
	return fdBase + p.low, nil
}

// opened finds or makes what is to be opened.
func (p *Process) opened(dirfd int, name string, flags int, mode uint32) (*inode, error) {
	writes := flags&unix.O_ACCMODE != unix.O_RDONLY
	if flags&unix.O_TMPFILE == unix.O_TMPFILE {
		return p.tmpfile(dirfd, name, flags, mode)
	}
	excl := flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
	at, err := p.walk(dirfd, name, flags&unix.O_NOFOLLOW == 0 && !excl)
	if err != nil {
		return nil, err
	}
	ino := at.ino
	if ino == nil {
		switch {
		case flags&unix.O_CREAT == 0:
			return nil, unix.ENOENT
		case at.slash:
			return nil, unix.EISDIR
		}
		if err := at.dir.mayChange(); err != nil {
			return nil, err
		}
		return p.d.create(at, unix.S_IFREG|mode&0o7777)
	}
	switch kind := ino.kind(); {
	case excl:
		return nil, unix.EEXIST
	case flags&unix.O_DIRECTORY != 0 && kind != unix.S_IFDIR:
		return nil, unix.ENOTDIR
	case flags&unix.O_PATH != 0:
		return ino, nil
	case kind == unix.S_IFLNK:
		return nil, unix.ELOOP
	case kind == unix.S_IFDIR && (writes || flags&unix.O_CREAT != 0):
		return nil, unix.EISDIR
	case ino.deny != nil:
		return nil, ino.deny
	case kind == unix.S_IFSOCK,
		kind == unix.S_IFIFO && (flags&unix.O_NONBLOCK == 0 || flags&unix.O_ACCMODE == unix.O_WRONLY):
		return nil, unix.ENXIO
	case kind == unix.S_IFREG && (writes || flags&unix.O_TRUNC != 0) && ino.dev.ro:
		return nil, unix.EROFS
	}
	if flags&unix.O_TRUNC != 0 && ino.kind() == unix.S_IFREG {
		p.d.truncate(ino, 0)
	}
	return ino, nil
}

func (p *Process) tmpfile(dirfd int, name string, flags int, mode uint32) (*inode, error) {
	at, err := p.walk(dirfd, name, true)
	switch {
	case err != nil:
		return nil, err
	case flags&unix.O_ACCMODE == unix.O_RDONLY:
		return nil, unix.EINVAL
	case at.ino == nil:
		return nil, unix.ENOENT
	case !at.ino.isDir():
		return nil, unix.ENOTDIR
	case at.ino.dev.caps.NoTmpfile:
		return nil, unix.EOPNOTSUPP
	}
	if err := at.ino.mayChange(); err != nil {
		return nil, err
	}
	if !at.ino.dev.room(inodeBytes) {
		return nil, unix.ENOSPC
	}
	ino := p.d.newInode(at.ino.dev, unix.S_IFREG|mode&0o7777)
	ino.linkable = flags&unix.O_EXCL == 0
	return ino, nil
}

// Close implements fsys.FS.
func (p *Process) Close(fd int) error {
	if err := p.enter("Close", fd, ""); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.file(fd)
	if err != nil {
		return err
	}
	p.files[fd-fdBase] = nil
	p.low = min(p.low, fd-fdBase)
	p.d.closeFile(f)
	return nil
}

// Fstat implements fsys.FS.
func (p *Process) Fstat(fd int) (fsys.Stat, error) {
	if err := p.enter("Fstat", fd, ""); err != nil {
		return fsys.Stat{}, err
	}
	defer p.d.mu.Unlock()
	f, err := p.file(fd)
	if err != nil {
		return fsys.Stat{}, err
	}
	return f.ino.stat(), nil
}

// Fstatat implements fsys.FS.
func (p *Process) Fstatat(dirfd int, name string, flags int) (fsys.Stat, error) {
	if err := p.enter("Fstatat", dirfd, name); err != nil {
		return fsys.Stat{}, err
	}
	defer p.d.mu.Unlock()
	at, err := p.walk(dirfd, name, flags&unix.AT_SYMLINK_NOFOLLOW == 0)
	if err == nil && at.ino == nil {
		err = unix.ENOENT
	}
	if err != nil {
		return fsys.Stat{}, err
	}
	return at.ino.stat(), nil
}

// ReadOnly implements fsys.FS.
func (p *Process) ReadOnly(fd int) (bool, error) {
	if err := p.enter("ReadOnly", fd, ""); err != nil {
		return false, err
	}
	defer p.d.mu.Unlock()
	f, err := p.file(fd)
	if err != nil {
		return false, err
	}
	return f.ino.dev.ro, nil
}

// Faccessat implements fsys.FS. Everything is permitted but what is denied.
func (p *Process) Faccessat(dirfd int, name string, mode uint32, flags int) error {
	if err := p.enter("Faccessat", dirfd, name); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	at, err := p.walk(dirfd, name, flags&unix.AT_SYMLINK_NOFOLLOW == 0)
	switch {
	case err != nil:
		return err
	case at.ino == nil:
		return unix.ENOENT
	case at.ino.dev.ro && mode&unix.W_OK != 0:
		return unix.EROFS
	}
	return at.ino.deny
}

// Getdents implements fsys.FS.
func (p *Process) Getdents(fd int, buf []byte) (int, error) {
	if err := p.enter("Getdents", fd, ""); err != nil {
		return -1, err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	if err != nil {
		return -1, err
	}
	dir := f.ino
	if !dir.isDir() {
		return -1, unix.ENOTDIR
	}
	if dir.nlink == 0 {
		return -1, unix.ENOENT
	}
	n, full := 0, false
	for ; f.dots < 2 && !full; f.dots++ {
		full = !putDirent(buf, &n, ".."[:f.dots+1], dir)
	}
	if full {
		f.dots--
	}
	from, _ := slices.BinarySearchFunc(dir.list, f.pos+1, func(e dirent, seq int64) int { return int(e.seq - seq) })
	for _, e := range dir.list[from:] {
		if e.ino != nil {
			full = full || !putDirent(buf, &n, e.name, e.ino)
		}
		if full {
			break
		}
		f.pos = e.seq
	}
	if n == 0 && full {
		return -1, unix.EINVAL // not even one fits
	}
	return n, nil
}

// putDirent appends a struct linux_dirent64 at *n.
func putDirent(buf []byte, n *int, name string, ino *inode) bool {
	size := (8 + 8 + 2 + 1 + len(name) + 1 + 7) &^ 7
	if len(buf)-*n < size {
		return false
	}
	b := buf[*n : *n+size]
	clear(b)
	binary.NativeEndian.PutUint64(b, ino.slot.num)
	binary.NativeEndian.PutUint16(b[16:], uint16(size))
	b[18] = byte(ino.mode >> 12)
	copy(b[19:], name)
	*n += size
	return true
}

// Pread implements fsys.FS.
func (p *Process) Pread(fd int, buf []byte, off int64) (int, error) {
	if err := p.enter("Pread", fd, ""); err != nil {
		return 0, err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	switch {
	case err != nil:
		return 0, err
	case f.flags&unix.O_ACCMODE == unix.O_WRONLY:
		return 0, unix.EBADF
	case f.ino.isDir():
		return 0, unix.EISDIR
	case f.ino.kind() != unix.S_IFREG:
		return 0, unix.ESPIPE
	case off < 0:
		return 0, unix.EINVAL
	case off >= int64(len(f.ino.data)):
		return 0, nil
	}
	return copy(buf, f.ino.data[off:]), nil
}

// Pwrite implements fsys.FS.
func (p *Process) Pwrite(fd int, buf []byte, off int64) (int, error) {
	if err := p.enter("Pwrite", fd, ""); err != nil {
		return 0, err
	}
	defer p.d.mu.Unlock()
	f, err := p.writable(fd)
	switch {
	case err != nil:
		return 0, err
	case off < 0:
		return 0, unix.EINVAL
	case f.flags&unix.O_APPEND != 0:
		off = int64(len(f.ino.data)) // so does Linux
	}
	return p.d.write(f.ino, off, buf)
}

// Write implements fsys.FS.
func (p *Process) Write(fd int, buf []byte) (int, error) {
	if err := p.enter("Write", fd, ""); err != nil {
		return 0, err
	}
	defer p.d.mu.Unlock()
	f, err := p.writable(fd)
	if err != nil {
		return 0, err
	}
	if f.flags&unix.O_APPEND != 0 {
		f.pos = int64(len(f.ino.data))
	}
	n, err := p.d.write(f.ino, f.pos, buf)
	f.pos += int64(n)
	return n, err
}

func (p *Process) writable(fd int) (*openFile, error) {
	f, err := p.data(fd)
	switch {
	case err != nil:
		return nil, err
	case f.flags&unix.O_ACCMODE == unix.O_RDONLY:
		return nil, unix.EBADF
	case f.ino.kind() != unix.S_IFREG:
		return nil, unix.ESPIPE
	case f.ino.dev.ro:
		return nil, unix.EROFS
	}
	return f, nil
}

// Ftruncate implements fsys.FS.
func (p *Process) Ftruncate(fd int, size int64) error {
	if err := p.enter("Ftruncate", fd, ""); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	switch {
	case err != nil:
		return err
	case f.flags&unix.O_ACCMODE == unix.O_RDONLY, f.ino.kind() != unix.S_IFREG, size < 0:
		return unix.EINVAL
	case f.ino.dev.ro:
		return unix.EROFS
	case !f.ino.dev.room(size - int64(len(f.ino.data))):
		return unix.ENOSPC
	}
	p.d.truncate(f.ino, size)
	return nil
}

// Fsync implements fsys.FS.
func (p *Process) Fsync(fd int) error {
	if err := p.enter("Fsync", fd, ""); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	switch {
	case err != nil:
		return err
	case f.ino.kind() == unix.S_IFIFO:
		return unix.EINVAL
	case f.ino.isDir():
		p.d.syncDir(f.ino)
	}
	f.ino.sync()
	return nil
}

// Fchmod implements fsys.FS.
func (p *Process) Fchmod(fd int, mode uint32) error {
	return p.change("Fchmod", fd, func(m *meta) { m.mode = m.mode&unix.S_IFMT | mode&0o7777 })
}

// Fchown implements fsys.FS.
func (p *Process) Fchown(fd int, uid, gid int) error {
	return p.change("Fchown", fd, func(m *meta) { m.uid, m.gid = uint32(uid), uint32(gid) })
}

// Utimes implements fsys.FS.
func (p *Process) Utimes(fd int, _, mtime int64) error {
	return p.change("Utimes", fd, func(m *meta) { m.mtime = mtime })
}

func (p *Process) change(op string, fd int, do func(*meta)) error {
	if err := p.enter(op, fd, ""); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	if err != nil {
		return err
	}
	if f.ino.dev.ro {
		return unix.EROFS
	}
	do(&f.ino.meta)
	f.ino.ctime, f.ino.metaDirty = p.d.now(), true
	return nil
}

// Flistxattr implements fsys.FS.
func (p *Process) Flistxattr(fd int, buf []byte) (int, error) {
	if err := p.enter("Flistxattr", fd, ""); err != nil {
		return -1, err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	if err != nil {
		return -1, err
	}
	if f.ino.dev.caps.NoXattr {
		return -1, unix.EOPNOTSUPP
	}
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(f.ino.xattr)) {
		all = append(append(all, name...), 0)
	}
	return fit(buf, string(all))
}

// Fgetxattr implements fsys.FS.
func (p *Process) Fgetxattr(fd int, name string, buf []byte) (int, error) {
	if err := p.enter("Fgetxattr", fd, ""); err != nil {
		return -1, err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	if err != nil {
		return -1, err
	}
	if f.ino.dev.caps.NoXattr {
		return -1, unix.EOPNOTSUPP
	}
	v, ok := f.ino.xattr[name]
	if !ok {
		return -1, unix.ENODATA
	}
	return fit(buf, v)
}

func fit(buf []byte, v string) (int, error) {
	if len(buf) > 0 && len(buf) < len(v) {
		return -1, unix.ERANGE
	}
	copy(buf, v)
	return len(v), nil
}

// Fsetxattr implements fsys.FS.
func (p *Process) Fsetxattr(fd int, name string, value []byte, flags int) error {
	if err := p.enter("Fsetxattr", fd, ""); err != nil {
		return err
	}
	defer p.d.mu.Unlock()
	f, err := p.data(fd)
	if err != nil {
		return err
	}
	_, there := f.ino.xattr[name]
	switch {
	case f.ino.dev.caps.NoXattr:
		return unix.EOPNOTSUPP
	case f.ino.dev.ro:
		return unix.EROFS
	case flags == unix.XATTR_CREATE && there:
		return unix.EEXIST
	case flags == unix.XATTR_REPLACE && !there:
		return unix.ENODATA
	}
	m := maps.Clone(f.ino.xattr)
	if m == nil {
		m = make(map[string]string)
	}
	m[name] = string(value)
	f.ino.xattr = m
	f.ino.ctime, f.ino.metaDirty = p.d.now(), true
	return nil
}
