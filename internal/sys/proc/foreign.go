package proc

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Every user can make a user namespace, a mount namespace in it and mounts in that, and
// can cover a namespace's mount or put a file system above it that never answers. Such a
// mount must not silence the node. It cannot be where a runtime of the node keeps a
// Pod's only mount either: the runtime is in PID 1's user namespace, and so is its mount
// namespace. So a network namespace that nothing but such mounts shows is left out, and
// the vantage says so. If a link of the node leads into it, that is noticed all the same
// (peers.go).

const (
	// maxUserNS bounds the nesting of user namespaces, which the kernel does at 32.
	maxUserNS = 33
	// patience bounds how long one path or process may take, and maxStuck how many of a
	// sort may take longer at a time: a thread of ours hangs with each.
	patience = 500 * time.Millisecond
	maxStuck = 4
)

// hangs counts what hangs, also from earlier snapshots. What another user makes hang is
// counted apart, so that it cannot use up the patience for the node's own.
type hangs struct{ paths, foreignPaths, memory atomic.Int32 }

// patiently runs f until it ends or patience does; in the latter case it reports errHangs,
// counts f until it ends, and calls undo with its result then. f and undo must use
// nothing of a snapshot, which may have ended.
func patiently[T any](count *atomic.Int32, f func() (T, error), undo func(T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done, late := make(chan result), make(chan struct{})
	go func() {
		v, err := f()
		select {
		case done <- result{v, err}:
		case <-late:
			undo(v, err)
			count.Add(-1)
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
		count.Add(1)
		close(late)
		var none T
		return none, errHangs
	}
}

// foreign reports whether a mount namespace is owned by a user namespace below PID 1's.
// Whatever cannot be told is not.
func (s *snapshot) foreign(key mountKey, pids []int) bool {
	if key.ns == 0 {
		return false // a guarded PID 1's
	}
	if known, ok := s.foreignNS[key.ns]; ok {
		return known
	}
	if s.initUser == 0 {
		var err error
		if s.initUser, err = initUserNS(s.path); err != nil {
			return false
		}
	}
	ns, err := s.openMountNS(key, pids)
	if err != nil {
		return false
	}
	defer ns.Close()
	below, err := belowUserNS(int(ns.Fd()), s.initUser)
	if err != nil {
		return false
	}
	s.foreignNS[key.ns] = below // its table holds it, so its inode stays its own
	return below
}

// initUserNS returns the inode of PID 1's user namespace; where PID 1 is guarded, of the
// one that owns its mount namespace.
func initUserNS(proc string) (uint64, error) {
	id, err := identity(filepath.Join(proc, "1/ns/user"))
	if err == nil || !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return id.ino, err
	}
	mnt, err := OpenInit(proc, "mnt")
	if err != nil {
		return 0, err
	}
	defer mnt.Close()
	owner, err := unix.IoctlRetInt(int(mnt.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return 0, os.NewSyscallError("NS_GET_USERNS", err)
	}
	defer unix.Close(owner)
	return inode(owner)
}

// belowUserNS reports whether a namespace is owned by a user namespace that lies below
// another. An error: it cannot be told, as where the owner lies outside of our own.
func belowUserNS(ns int, user uint64) (bool, error) {
	at, err := unix.IoctlRetInt(ns, unix.NS_GET_USERNS)
	if err != nil {
		return false, os.NewSyscallError("NS_GET_USERNS", err)
	}
	for depth := range maxUserNS {
		ino, err := inode(at)
		if err == nil && ino == user {
			unix.Close(at)
			return depth > 0, nil
		}
		up, err2 := unix.IoctlRetInt(at, unix.NS_GET_PARENT)
		unix.Close(at)
		if err := errors.Join(err, os.NewSyscallError("NS_GET_PARENT", err2)); err != nil {
			return false, err
		}
		at = up
	}
	unix.Close(at)
	return false, unix.ELOOP
}

func inode(fd int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Ino, os.NewSyscallError("fstat", err)
}

// where says at which mount, and of which process, a namespace of the last enumeration
// is to be seen. others is true when every mount of it lies in a foreign mount namespace.
func (s *snapshot) where(ino uint64) (text string, others bool) {
	for _, key := range s.keys {
		for _, m := range s.tables[key].nets {
			if m.ino != ino {
				continue
			}
			pids := s.keyPIDs[key]
			foreign := s.foreign(key, pids)
			if text == "" {
				text, others = fmt.Sprintf("mounted at %q, as process %d sees it", m.path, pids[0]), true
			}
			others = others && foreign
			break
		}
	}
	return text, others
}

// isStuck reports whether a path to a namespace hangs.
func (s *snapshot) isStuck(ino uint64) bool {
	for _, key := range s.keys {
		for _, m := range s.tables[key].nets {
			if m.ino == ino && (s.stuck[stuckPath{key.ns, m.path, false}] || s.stuck[stuckPath{key.ns, m.path, true}]) {
				return true
			}
		}
	}
	return false
}

// leftOut lists, in a fixed order, the namespaces that were left out in the end.
func (s *snapshot) leftOut() []string {
	var out []string
	for _, ino := range slices.Sorted(maps.Keys(s.others)) {
		if s.spaces[ino] == nil && s.last[ino] != nil {
			out = append(out, fmt.Sprintf("%d, %s", ino, s.others[ino]))
		}
	}
	return out
}

// errHangs: a file system on the way to a path does not answer.
var errHangs = errors.New("a file system on the way there does not answer")

// stuckPath is a path in a mount namespace.
type stuckPath struct {
	ns      uint64
	path    string
	foreign bool
}

// openMount opens the namespace that is mounted at a path below an open root, which it
// closes. A path that takes too long is given up, and not tried again.
func (s *snapshot) openMount(root int, at stuckPath, ino uint64) (int, error) {
	count := &s.hangs.paths
	if at.foreign {
		count = &s.hangs.foreignPaths
	}
	if s.stuck[at] || count.Load() >= maxStuck {
		unix.Close(root)
		s.stuck[at] = true
		return -1, errHangs
	}
	device := s.nsDev
	fd, err := patiently(count, func() (int, error) {
		defer unix.Close(root)
		return pathTo(root, strings.TrimPrefix(at.path, "/"), device, ino)
	}, func(fd int, err error) {
		if err == nil {
			unix.Close(fd)
		}
	})
	if err != nil {
		if err == errHangs {
			s.stuck[at] = true
		}
		return -1, err
	}
	defer unix.Close(fd)
	return openat(s.selfFD, itoa(fd), unix.O_RDONLY)
}

// pathTo resolves a path that others control to the namespace with that inode, without
// opening it.
func pathTo(root int, path string, device, ino uint64) (int, error) {
	at, err := openat(root, path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	if err := verify(at, device, ino); err != nil {
		unix.Close(at)
		return -1, err
	}
	return at, nil
}

// errDeaf: the memory of another user's process was not read.
var errDeaf = errors.New("the memory of another user's process cannot be read")

// memory reads a file of a process that shows its memory into w.file. What stands for
// the memory may be a file of a file system that never answers, which every user may
// arrange with FUSE, and then reading it hangs.
//
// Such a process of another user than root is left out (errDeaf): it holds no container
// for a runtime of the node and is no plugin that such a runtime started. Where it is,
// what it holds and its cgroup are known all the same. Of root's it is an error.
func (w *walker) memory(dir, pid int, name string, limit int) error {
	if w.s.hangs.memory.Load() >= maxStuck && !ofRoot(dir) {
		w.deaf = append(w.deaf, pid)
		return errDeaf
	}
	fd, err := openat(dir, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	buf := w.file
	w.file = nil
	w.file, err = patiently(&w.s.hangs.memory, func() ([]byte, error) {
		defer unix.Close(fd)
		return readAll(fd, buf, limit)
	}, func([]byte, error) {})
	if err == errHangs && !ofRoot(dir) {
		w.deaf = append(w.deaf, pid)
		return errDeaf
	}
	return err
}

// ofRoot reports whether root has a part in a process, by /proc/PID/status; the owner of
// the directory may be root's for any process. Whatever cannot be told is of root.
func ofRoot(dir int) bool {
	text, err := readFile(dir, "status", nil, 64<<10)
	if err != nil {
		return true
	}
	_, rest, ok := bytes.Cut(text, []byte("\nUid:\t"))
	if !ok {
		return true
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	uids := bytes.Fields(line)
	for _, uid := range uids {
		if string(uid) == "0" {
			return true
		}
	}
	return len(uids) != 4
}
