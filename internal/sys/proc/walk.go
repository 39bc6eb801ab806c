package proc

import (
	"bytes"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	maxPIDs    = 8 // the sample of PIDs that claim.Netns carries
	maxCmdline = 32 << 10
	// The kernel bounds arguments and environment of a process at 6 MiB together.
	maxEnviron = 8 << 20
	maxCgroup  = 1 << 20
)

// sighting is what one enumeration saw of one network namespace.
type sighting struct {
	procs     int
	pids      []int
	fdHolders int
	mounts    []string
}

func (s *sighting) add(o *sighting) {
	s.procs += o.procs
	s.fdHolders += o.fdHolders
	s.pids = append(s.pids, o.pids...)
	s.mounts = append(s.mounts, o.mounts...)
}

// mountKey names what a mountinfo shows: it lists the mounts below the reader's root,
// so a chrooted process shows fewer than its mount namespace has.
type mountKey struct {
	ns   uint64
	root string
}

// process is one process, not one number: a number that is used again has a directory
// with another inode in the proc file system.
type process struct {
	pid int
	dir uint64
}

type hitKey struct {
	id    string
	netns uint64
	via   string
}

// walker reads processes, one after the other, into maps of its own. Several walk at
// once, each its own part of the PIDs.
type walker struct {
	s *snapshot

	seen   map[uint64]*sighting
	keys   map[mountKey][]int // a sample of PIDs that see those mounts
	hits   map[hitKey]int     // the lowest PID
	shims  []claim.Shim
	read   []process // whose IDs were read
	deaf   []int     // PIDs of other users whose memory was not read, see memory
	exempt bool      // PID 1 was guarded, see guarded

	link   [unix.PathMax]byte
	dents  []byte
	dents2 []byte
	file   []byte
	held   []uint64

	lastCgroup []byte
	lastIDs    []string
}

// errOurs ends the listing of another holdfast's descriptors.
var errOurs = errors.New("ours")

func newWalker(s *snapshot) *walker {
	return &walker{
		s: s, seen: map[uint64]*sighting{}, keys: map[mountKey][]int{}, hits: map[hitKey]int{},
		dents: make([]byte, 16<<10), dents2: make([]byte, 4<<10), file: make([]byte, 16<<10),
	}
}

// process reads one process. That it has ended is no error.
func (w *walker) process(pid int) error {
	dir, err := openat(w.s.proc, itoa(pid), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		if gone(err) {
			return nil
		}
		return w.s.failed("open", pid, "", err)
	}
	defer unix.Close(dir)
	net, err := w.namespace(dir, "ns/net", "net")
	switch {
	case gone(err):
		// It has ended, or its main thread has: then its other threads live on.
		return w.threads(dir, pid, 0, nil, func(thread int) error { return w.task(thread, pid, 0) })
	case refused(err):
		if !alive(dir) {
			return nil
		}
		if pid == 1 && w.s.powers.both() {
			return w.guarded(dir)
		}
		return w.s.failed("read", pid, "ns/net", err)
	case err != nil:
		return w.s.failed("read", pid, "ns/net", err)
	}
	if err := w.task(dir, pid, net); err != nil {
		return err
	}
	if pid == w.s.self {
		return nil // our own threads walk through namespaces
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, "task", &st, 0); err != nil {
		return w.ended(dir, pid, "task", err)
	}
	// "." and ".." count as well (proc_task_getattr).
	if st.Nlink <= 3 {
		return nil
	}
	last := net
	same := func(list int, tid string) bool {
		// Most threads are where their process is: one call tells.
		n, err := w.namespace(list, tid+"/ns/net", "net")
		return err == nil && n == last
	}
	return w.threads(dir, pid, pid, same, func(thread int) error {
		n, err := w.namespace(thread, "ns/net", "net")
		// Whether it is ours the process tells: a thread that is ending loses its executable
		// and its descriptors before it leaves the namespace.
		if err != nil || n == last || w.s.ours(dir) {
			return w.ended(thread, pid, "task/.../ns/net", err)
		}
		// As with descriptors: a snapshot's thread has left before the mark goes.
		if again, err := w.namespace(thread, "ns/net", "net"); err != nil || again != n {
			return w.ended(thread, pid, "task/.../ns/net", err)
		}
		last = n
		return w.in(thread, pid, n)
	})
}

// threads calls each with an open directory of every thread but skip and those for
// which dull, if not nil, is true.
func (w *walker) threads(dir, pid, skip int, dull func(list int, tid string) bool, each func(thread int) error) error {
	list, err := openat(dir, "task", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return w.ended(dir, pid, "task", err)
	}
	defer unix.Close(list)
	err = numbers(list, w.dents2, false, func(tid int) error {
		name := itoa(tid)
		if tid == skip || dull != nil && dull(list, name) {
			return nil
		}
		thread, err := openat(list, name, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return w.ended(dir, pid, "task", err)
		}
		defer unix.Close(thread)
		return each(thread)
	})
	if gone(err) {
		return nil
	}
	return err
}

// ended returns nil when err came from the end of the process, else the failure.
func (w *walker) ended(dir, pid int, what string, err error) error {
	if err == nil || gone(err) || refused(err) && !alive(dir) {
		return nil
	}
	if _, ok := err.(*Error); ok {
		return err
	}
	return w.s.failed("read", pid, what, err)
}

// task reads what a live process (or thread) shows: where it is, what it holds, whose
// it is. net is its network namespace, 0 if that is still to be read.
func (w *walker) task(dir, pid int, net uint64) (err error) {
	if net == 0 {
		if net, err = w.namespace(dir, "ns/net", "net"); err != nil {
			return w.ended(dir, pid, "ns/net", err)
		}
	}
	if err := w.in(dir, pid, net); err != nil {
		return err
	}
	if err := w.mounts(dir, pid); err != nil {
		return w.ended(dir, pid, "ns/mnt", err)
	}
	if pid != w.s.self {
		if err := w.descriptors(dir, pid, net); err != nil {
			return w.ended(dir, pid, "fd", err)
		}
	}
	this, err := cached(dir, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return w.ended(dir, pid, "", err)
	}
	if w.s.known[process{pid, this.ino}] {
		return nil
	}
	if err := w.identity(dir, pid, net); err != nil {
		return w.ended(dir, pid, "its cgroup, command line or environment", err)
	}
	w.read = append(w.read, process{pid, this.ino})
	return nil
}

func (w *walker) namespace(dir int, file, kind string) (uint64, error) {
	n, err := readlinkat(dir, file, w.link[:])
	if err != nil {
		return 0, err
	}
	ino, ok := nsLink(w.link[:n], kind)
	if !ok {
		return 0, unix.EBADMSG
	}
	return ino, nil
}

func (w *walker) sighting(ino uint64) *sighting {
	x := w.seen[ino]
	if x == nil {
		x = &sighting{}
		w.seen[ino] = x
	}
	return x
}

// in notes that a process is in a namespace, and pins that.
func (w *walker) in(dir, pid int, ino uint64) error {
	x := w.sighting(ino)
	x.procs++
	if len(x.pids) < maxPIDs && !slices.Contains(x.pids, pid) {
		x.pids = append(x.pids, pid)
	}
	if pid == 1 {
		w.s.setHost(ino)
	}
	err := w.s.pin(ino, func() (int, error) { return openat(dir, "ns/net", unix.O_RDONLY) })
	return w.ended(dir, pid, "ns/net", err)
}

// mounts notes which mounts a process sees. Their mountinfo is opened now, while the
// process is there, and read after the walk.
func (w *walker) mounts(dir, pid int) error {
	for range 10 {
		ns, err := w.namespace(dir, "ns/mnt", "mnt")
		if err != nil {
			return err
		}
		n, err := readlinkat(dir, "root", w.link[:])
		if err != nil {
			return err
		}
		key := mountKey{ns: ns, root: "/"}
		if r := w.link[:n]; string(r) != "/" {
			key.root = string(r)
		}
		pids, seen := w.keys[key]
		if seen {
			if len(pids) < maxPIDs {
				w.keys[key] = append(pids, pid)
			}
			return nil
		}
		opened, err := w.s.openMounts(key, func() (int, error) { return openat(dir, "mountinfo", unix.O_RDONLY) })
		if err == unix.EINVAL {
			return unix.ESRCH // of a process that is just ending
		}
		if err != nil {
			return err
		}
		if opened {
			// It may have moved to another mount namespace before we opened.
			now, err := w.namespace(dir, "ns/mnt", "mnt")
			if err != nil || now != ns {
				w.s.forgetMounts(key)
			}
			if err != nil {
				return err
			}
			if now != ns {
				continue
			}
		}
		w.keys[key] = append(pids, pid)
		return nil
	}
	return unix.EAGAIN
}

// descriptors notes the namespaces that a process holds open.
func (w *walker) descriptors(dir, pid int, net uint64) error {
	list, err := openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(list)
	w.held = w.held[:0]
	asked := false
	err = numbers(list, w.dents, true, func(fd int) error {
		name := itoa(fd)
		n, err := readlinkat(list, name, w.link[:64])
		if err != nil {
			if gone(err) {
				return nil // closed, or the process has ended: the listing tells
			}
			return err
		}
		if n < 5 || w.link[0] != 'n' || string(w.link[:5]) != "net:[" {
			return nil
		}
		ino, ok := nsLink(w.link[:n], "net")
		if !ok || slices.Contains(w.held, ino) {
			return nil
		}
		if !asked {
			if w.s.ours(dir) {
				return errOurs
			}
			// Had it the mark and lost it before ours looked, it has lost this as well.
			var again [64]byte
			if m, err := readlinkat(list, name, again[:]); err != nil || string(again[:m]) != string(w.link[:n]) {
				if err == nil || gone(err) {
					return nil
				}
				return err
			}
			asked = true
		}
		w.held = append(w.held, ino)
		x := w.sighting(ino)
		if ino != net {
			x.fdHolders++
		}
		return w.s.pin(ino, func() (int, error) { return w.s.openPath(list, name, ino, 0) })
	})
	if err == errOurs {
		return nil
	}
	return err
}

// identity reads the container IDs of a process.
func (w *walker) identity(dir, pid int, net uint64) (err error) {
	n, err := readlinkat(dir, "exe", w.link[:])
	if gone(err) {
		return nil // a thread of the kernel
	}
	if err != nil {
		return err
	}
	exe := string(w.link[:n])
	if w.file, err = readFile(dir, "cgroup", w.file, maxCgroup); err != nil {
		return err
	}
	if !bytes.Equal(w.file, w.lastCgroup) {
		w.lastCgroup = append(w.lastCgroup[:0], w.file...)
		w.lastIDs = cgroupIDs(w.file)
	}
	for _, id := range w.lastIDs {
		w.hit(id, pid, net, "cgroup")
	}
	err = w.memory(dir, pid, "cmdline", maxCmdline)
	if err == errDeaf {
		return nil
	}
	if err != nil && err != errTooLong {
		return err
	}
	if shim, via, ok := shimOf(w.file); ok {
		shim.PID = pid
		w.shims = append(w.shims, shim)
		if claim.IsContainerID(shim.ID) {
			w.hit(shim.ID, pid, net, via)
		}
	}
	first, second := arguments(w.file)
	if w.s.isPlugin(exe) || w.s.isPlugin(first) || w.s.isPlugin(second) {
		return w.plugin(dir, pid, net)
	}
	return nil
}

// plugin reads the environment of a process that may be a CNI plugin. Between the
// kernel's exchange of the executable and its setting up of the environment, that
// reads as empty.
func (w *walker) plugin(dir, pid int, net uint64) (err error) {
	for range 5 {
		switch err = w.memory(dir, pid, "environ", maxEnviron); {
		case err == errDeaf:
			return nil
		case err != nil:
			return err
		}
		if len(w.file) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if id, ok := cniContainer(w.file); ok {
		w.hit(id, pid, net, "cni")
		// The namespace that it works on is in use, though no process is in it yet.
		var st unix.Stat_t
		if path, ok := cniNetns(w.file); ok && unix.Fstatat(dir, "root"+path, &st, 0) == nil {
			w.hit(id, pid, st.Ino, "cni")
		}
	}
	return nil
}

func (w *walker) hit(id string, pid int, net uint64, via string) {
	k := hitKey{id, net, via}
	if p, ok := w.hits[k]; !ok || pid < p {
		w.hits[k] = pid
	}
}

// guarded reads PID 1 where a security module refuses it to us although we hold the
// capabilities that read every process (a container's init under a BPF LSM, say).
// What ptrace access protects is then learnt otherwise: its network namespace by the
// inode of <proc>/1/net/dev, which every namespace has of its own, and its mounts by
// mountinfo, which is not protected. Its descriptors stay unseen: a namespace that
// nothing but a descriptor of PID 1 holds is missed. That is accepted for PID 1
// alone, which is no container's process; a descriptor that it has in flight
// in a socket (systemd's PrivateNetwork=) could not be seen either.
func (w *walker) guarded(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, "net/dev", &st, 0); err != nil {
		return w.s.failed("stat", 1, "net/dev", err)
	}
	key := mountKey{root: "of PID 1"}
	if _, err := w.s.openMounts(key, func() (int, error) { return openat(dir, "mountinfo", unix.O_RDONLY) }); err != nil {
		return w.s.failed("open", 1, "mountinfo", err)
	}
	w.keys[key] = []int{1}
	w.exempt = true
	w.s.setGuarded(st.Ino)
	var err error
	// The cgroup and the command line are not protected; its executable is no plugin.
	if w.file, err = readFile(dir, "cgroup", w.file, maxCgroup); err != nil {
		return w.s.failed("read", 1, "cgroup", err)
	}
	for _, id := range cgroupIDs(w.file) {
		w.hit(id, 1, 0, "cgroup")
	}
	return nil
}

// isPlugin reports whether an executable lies in a CNI bin directory.
func (s *snapshot) isPlugin(exe string) bool {
	if len(s.binDirs) == 0 || !strings.HasPrefix(exe, "/") {
		return false
	}
	return slices.Contains(s.binDirs, path.Dir(strings.TrimSuffix(exe, " (deleted)")))
}
