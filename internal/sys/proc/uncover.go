package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A namespace may be kept by a mount that no path reaches. Where /run is not shared,
// the first run of podman, or of ip netns add, binds /run/netns recursively on itself:
// every namespace that another runtime had mounted there has two mounts on one path then.
// The runtime takes the upper one away; the lower one stays, below the bind, without a
// process and without a way in. Silence about one such namespace would last until the
// next boot, so there is a last resort, uncover: in a private copy of the mounts what
// lies above is taken away.
//
// What it costs: for some milliseconds there is a copy of every mount of that mount
// namespace. The kernel's lock on all mounts is held while the copy is made, and a file
// system that is unmounted elsewhere meanwhile stays busy until the copy is gone. It
// happens only where a namespace was out of reach in two enumerations in a row, which a
// node without such a leftover never has.
const (
	// maxUncovers bounds the private copies that are made for one snapshot. PID 1's
	// mount namespace comes first; the others are mostly copies of it.
	maxUncovers = 16
	// maxCovers bounds the mounts that are taken from above one namespace.
	maxCovers = 64
)

// uncover pins those namespaces that were out of reach in the last enumeration, too.
// What fails here is no error: the namespace stays missing, and the reason is kept.
func (s *snapshot) uncover(ctx context.Context, keys []mountKey, pids map[mountKey][]int) error {
	for _, key := range keys {
		for {
			var want []uint64
			for _, m := range s.tables[key].nets {
				if s.spaces[m.ino] == nil && s.unseen[m.ino] > 0 && !slices.Contains(want, m.ino) && !s.stuck[stuckPath{ns: key.ns, path: m.path}] {
					want = append(want, m.ino)
				}
			}
			// The kernel keeps covers locked where another user namespace has them.
			if len(want) == 0 || s.uncovers >= maxUncovers || s.foreign(key, pids[key]) {
				break
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			s.uncovers++
			found, err := s.uncoverIn(key, pids[key], want)
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				return s.failed("open", pids[key][0], "ns/mnt", err)
			}
			if err != nil {
				s.uncoverErr = err
			}
			// What was taken away for one may have taken another along, so the rest is
			// tried in a fresh copy, as long as that helps.
			if found == 0 {
				break
			}
		}
	}
	return nil
}

// uncoverIn makes one private copy of a mount namespace and pins what it can of want.
func (s *snapshot) uncoverIn(key mountKey, pids []int, want []uint64) (found int, err error) {
	ns, err := s.openMountNS(key, pids)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	err = onDoomedThread(func() error {
		self, err := openat(s.proc, "thread-self", unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			self, err = openat(unix.AT_FDCWD, "/proc/thread-self", unix.O_PATH|unix.O_DIRECTORY)
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: "/proc/thread-self", Err: err}
		}
		defer unix.Close(self)
		if err := enterPrivateCopy(int(ns.Fd())); err != nil {
			return err
		}
		var errs []error
		for _, ino := range want {
			if err := s.uncoverOne(self, ino); err != nil {
				errs = append(errs, fmt.Errorf("network namespace %d: %w", ino, err))
				continue
			}
			found++
		}
		return errors.Join(errs...)
	})
	return found, err
}

// openMountNS opens the mount namespace of a key.
func (s *snapshot) openMountNS(key mountKey, pids []int) (*os.File, error) {
	if key.ns == 0 {
		return OpenInit(s.path, "mnt") // PID 1 is guarded
	}
	err := error(unix.ESRCH)
	for _, pid := range pids {
		var fd int
		if fd, err = openat(s.proc, itoa(pid)+"/ns/mnt", unix.O_RDONLY); err != nil {
			continue
		}
		// The number may be another process's by now, or that process have moved.
		if err = verify(fd, s.nsDev, key.ns); err == nil {
			return os.NewFile(uintptr(fd), "mount namespace"), nil
		}
		unix.Close(fd)
	}
	return nil, err
}

// enterPrivateCopy moves the calling thread, which must end afterwards, into a copy of a
// mount namespace from which nothing propagates.
func enterPrivateCopy(ns int) error {
	// Threads share root and working directory, and a thread that does cannot change
	// its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare(CLONE_FS)", err)
	}
	// Also where it is our own: that leads out of a chroot.
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare(CLONE_NEWNS)", err)
	}
	return os.NewSyscallError("mount(MS_PRIVATE)", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// uncoverOne pins a namespace, in the private copy that the calling thread is in, whose
// own /proc directory is self. What lies above the namespace's mount is taken away, the
// outermost first.
func (s *snapshot) uncoverOne(self int, ino uint64) error {
	var last error = errMoved
	for range maxCovers {
		table, err := readFile(self, "mountinfo", nil, maxMountinfo)
		if err != nil {
			return err
		}
		tree, err := mountTree(table)
		if err != nil {
			return err
		}
		// The word of the kernel, not of our own call: what propagates would take the
		// node's mounts away.
		if i := slices.IndexFunc(tree, func(m mountLine) bool { return m.shared }); i >= 0 {
			return fmt.Errorf("the copy of the mount at %q is not private", tree[i].path)
		}
		cover := ""
		for _, m := range tree {
			if m.ino != ino {
				continue
			}
			if c, ok := coverOf(tree, m); ok {
				cover = c.path
				continue
			}
			last = s.pin(ino, func() (int, error) {
				root, err := openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY)
				if err != nil {
					return -1, err
				}
				return s.openMount(root, stuckPath{path: m.path}, ino)
			})
			if s.spaces[ino] != nil {
				s.coveredAt = append(s.coveredAt, m.path)
				return nil
			}
		}
		if cover == "" {
			return errors.Join(errors.New("no mount of it can be opened"), last)
		}
		if err := unix.Unmount(cover, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			// EINVAL where the mount namespace belongs to another user namespace: the
			// kernel keeps covers locked there.
			return fmt.Errorf("take away the copy of the mount at %q: %w", cover, err)
		}
	}
	return fmt.Errorf("more than %d mounts lie above it", maxCovers)
}

// mountLine is one mount of a mount namespace.
type mountLine struct {
	id, parent string
	path       string
	shared     bool
	ino        uint64 // of the network namespace that is mounted there, else 0
}

// mountTree reads a whole mountinfo: "ID parent maj:min root mountpoint options
// [optional fields] - type source options".
func mountTree(mountinfo []byte) ([]mountLine, error) {
	var out []mountLine
	for line := range bytes.Lines(mountinfo) {
		f := mountFields(line)
		end := slices.IndexFunc(f, func(x []byte) bool { return string(x) == "-" })
		if end < 6 || end+1 >= len(f) || slices.ContainsFunc(f[:6], isEmpty) {
			return nil, fmt.Errorf("mountinfo: cannot read the line %q", clip(line))
		}
		path, err := unescape(f[4])
		if err != nil {
			return nil, err
		}
		m := mountLine{id: string(f[0]), parent: string(f[1]), path: path}
		for _, o := range f[6:end] {
			m.shared = m.shared || bytes.HasPrefix(o, []byte("shared:"))
		}
		if string(f[end+1]) == "nsfs" {
			m.ino, _ = nsLink(f[3], "net")
		}
		out = append(out, m)
	}
	return out, nil
}

// coverOf returns the outermost mount that lies above m: one that is mounted on m, or on
// a mount that leads to m at a place before the one where that goes on to m. Its path is
// therefore not covered by anything else that lies above m.
func coverOf(tree []mountLine, m mountLine) (cover mountLine, ok bool) {
	byID := make(map[string]mountLine, len(tree))
	for _, x := range tree {
		byID[x.id] = x
	}
	// Where the way to m leaves each of the mounts that lead to it.
	leaves := map[string]string{m.id: m.path}
	for at := m; ; {
		up, known := byID[at.parent]
		if _, loop := leaves[at.parent]; !known || loop {
			break
		}
		leaves[up.id] = at.path
		at = up
	}
	for _, x := range tree {
		if _, leads := leaves[x.id]; leads {
			continue
		}
		leave, on := leaves[x.parent]
		if on && within(leave, x.path) && (!ok || len(x.path) < len(cover.path)) {
			cover, ok = x, true
		}
	}
	return cover, ok
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}
