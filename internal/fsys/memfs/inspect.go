package memfs

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

const errNoSpace = unix.ENOSPC

// find is for inspection: what lies at an absolute path, at its end a symlink only if
// follow says so. The disk is locked.
func (d *Disk) find(name string, follow bool) (*inode, error) {
	at, err := d.walk(d.root, name, follow)
	if err == nil && at.ino == nil {
		err = unix.ENOENT
	}
	return at.ino, err
}

// Lstat looks at a path itself.
func (d *Disk) Lstat(name string) (fsys.Stat, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.find(name, false)
	if err != nil {
		return fsys.Stat{}, err
	}
	return ino.stat(), nil
}

// ReadFile returns the content of a regular file; a symlink is followed.
func (d *Disk) ReadFile(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.find(name, true)
	switch {
	case err != nil:
		return nil, err
	case ino.kind() != unix.S_IFREG:
		return nil, unix.EINVAL
	}
	return slices.Clone(ino.data), nil
}

// List returns the names in a directory, sorted.
func (d *Disk) List(name string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.find(name, true)
	switch {
	case err != nil:
		return nil, err
	case !ino.isDir():
		return nil, unix.ENOTDIR
	}
	return ino.names(), nil
}

func (ino *inode) names() []string {
	names := make([]string, 0, len(ino.index))
	for _, e := range ino.list {
		if e.ino != nil {
			names = append(names, e.name)
		}
	}
	slices.Sort(names)
	return names
}

// Walk calls do for root and everything below it, sorted, across mounts. data is the
// content of a file or a symlink, and must be neither kept nor changed. The disk is
// locked meanwhile.
func (d *Disk) Walk(root string, do func(name string, st fsys.Stat, data []byte)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.find(root, true)
	if err == nil {
		ino.walk(path.Clean(root), do)
	}
	return err
}

func (ino *inode) walk(name string, do func(string, fsys.Stat, []byte)) {
	for ino.mount != nil {
		ino = ino.mount
	}
	data := ino.data
	if ino.target != "" {
		data = []byte(ino.target)
	}
	do(name, ino.stat(), data)
	for _, n := range ino.names() {
		ino.child(n).walk(path.Join(name, n), do)
	}
}

// WriteFile makes a file or overwrites it in place, as a foreign process does that
// never fsyncs. Denied and full it fails like one.
func (d *Disk) WriteFile(name string, data []byte) error {
	p := d.Process()
	defer p.Kill()
	fd, err := p.Openat(unix.AT_FDCWD, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := p.Write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Remove removes a file or an empty directory.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, err := d.walk(d.root, name, false)
	if err != nil {
		return err
	}
	return d.unlink(at, at.ino != nil && at.ino.isDir())
}

// Rename renames and replaces what is there.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, err := d.walk(d.root, from, false)
	if err != nil {
		return err
	}
	b, err := d.walk(d.root, to, false)
	if err != nil {
		return err
	}
	return d.rename(a, b, 0)
}

// MkdirAll makes a directory and what is missing above it, with mode 0755.
func (d *Disk) MkdirAll(name string) error {
	p := d.Process()
	defer p.Kill()
	return fsys.MkdirAll(p, name, 0o755)
}

// Symlink makes a symlink.
func (d *Disk) Symlink(target, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.special(name, unix.S_IFLNK|0o777)
	if err == nil {
		ino.target = target
	}
	return err
}

// Mkfifo makes a FIFO.
func (d *Disk) Mkfifo(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.special(name, unix.S_IFIFO|0o600)
	return err
}

func (d *Disk) special(name string, mode uint32) (*inode, error) {
	at, err := d.walk(d.root, name, false)
	if err == nil {
		err = at.vacant()
	}
	if err != nil {
		return nil, err
	}
	return d.create(at, mode)
}

// Mount puts an empty file system of its own device on a directory.
func (d *Disk) Mount(name string, caps Caps) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, err := d.walk(d.root, name, true)
	switch {
	case err != nil:
		return err
	case at.ino == nil:
		return unix.ENOENT
	case !at.ino.isDir():
		return unix.ENOTDIR
	}
	dev := d.addDevice(caps)
	dev.parent = at.ino
	at.ino.mount = dev.root
	return nil
}

// Unmount takes the file system at name away, with all that is on it, and whatever is
// open there.
func (d *Disk) Unmount(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.find(name, true)
	if err != nil {
		return err
	}
	if ino != ino.dev.root || ino.dev.parent == nil {
		return unix.EINVAL
	}
	ino.dev.parent.mount = nil
	d.devs = slices.DeleteFunc(d.devs, func(dev *device) bool { return dev == ino.dev })
	return nil
}

// SetCaps changes what the file system of a path cannot do.
func (d *Disk) SetCaps(name string, caps Caps) error {
	return d.at(name, func(ino *inode) { ino.dev.caps = caps })
}

// SetReadOnly remounts the file system of a path. Writing through a descriptor that was
// open before fails too, as it does after an error of the disk.
func (d *Disk) SetReadOnly(name string, ro bool) error {
	return d.at(name, func(ino *inode) { ino.dev.ro = ro })
}

// SetFree leaves so many bytes free on the file system of a path; below zero there is no
// limit. An inode takes 256.
func (d *Disk) SetFree(name string, bytes int64) error {
	return d.at(name, func(ino *inode) {
		ino.dev.limit = -1
		if bytes >= 0 {
			ino.dev.limit = ino.dev.used + bytes
		}
	})
}

// Deny makes every opening of what lies at a path fail, such as with EACCES or EIO, and
// so every change of the names in a directory, until err is nil. What is open stays so.
func (d *Disk) Deny(name string, err error) error {
	return d.at(name, func(ino *inode) { ino.deny = err })
}

// Chown changes the owner, as a foreign hand does.
func (d *Disk) Chown(name string, uid, gid uint32) error {
	return d.at(name, func(ino *inode) { ino.uid, ino.gid, ino.metaDirty = uid, gid, true })
}

// Chmod changes the permissions. They bind nobody: whoever is root is not bound either.
func (d *Disk) Chmod(name string, mode uint32) error {
	return d.at(name, func(ino *inode) {
		ino.mode, ino.metaDirty = ino.mode&unix.S_IFMT|mode&0o7777, true
	})
}

func (d *Disk) at(name string, do func(*inode)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ino, err := d.find(name, true)
	if err == nil {
		do(ino)
	}
	return err
}
