package links

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxMountinfo bounds the table of mounts, in bytes: 100,000 mounts or more.
	maxMountinfo = 64 << 20
	// maxCovers bounds the mounts that are taken away in a private copy.
	maxCovers = 64
)

// entry is one mount of a mount namespace.
type entry struct {
	id, parent string
	dev        string // of its file system
	root       string // what of the file system is mounted
	path       string // where
	netns      uint64 // the network namespace that is mounted there, else 0
	shared     bool   // what is mounted or unmounted below it propagates
}

// view is what a thread sees of the file system. It holds the thread's own /proc
// directory, since the thread's /proc may show another node's processes, or none.
type view struct{ self *os.File }

// mounts reads the table of mounts, covered ones included.
func (w view) mounts() ([]entry, error) {
	f, err := w.open("mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMountinfo+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxMountinfo {
		return nil, fmt.Errorf("mountinfo: more than %d bytes", maxMountinfo)
	}
	return parseMounts(text)
}

func (w view) open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(w.self.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/thread-self/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// inPrivateCopy runs f on a thread that ends with it, in a copy of the mount namespace
// that the calling thread is in. Nothing that f does to the mounts is seen elsewhere:
// the table of the copy must say so itself, or f does not run.
func (w view) inPrivateCopy(f func(copied view) error) error {
	ns, err := w.open("ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	return onDoomedThread(func() error {
		own, err := thisThread()
		if err != nil {
			return err
		}
		defer own.self.Close()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare(CLONE_FS)", err)
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare(CLONE_NEWNS)", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return os.NewSyscallError("mount(MS_PRIVATE)", err)
		}
		all, err := own.mounts()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(m entry) bool { return m.shared }) {
			return errors.New("a copy of the mounts is not private")
		}
		return f(own)
	})
}

// thisThread is the view of the calling thread, which must be locked.
func thisThread() (view, error) {
	f, err := os.OpenFile("/proc/thread-self", unix.O_PATH|unix.O_DIRECTORY, 0)
	return view{f}, err
}

// inFS says where a path of mount m lies in the file system that is mounted there.
func (m entry) inFS(p string) (string, bool) {
	rest, ok := strings.CutPrefix(p, strings.TrimSuffix(m.path, "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	return m.dev + " " + path.Join(m.root, rest), true
}

// showsMountPoint reports whether the entry name of dir, seen as plain file, is the file
// on which the network namespace is mounted below.
func (w view) showsMountPoint(dir *os.File, name string, all []entry, netnsID uint64) (bool, error) {
	f, err := w.open(fmt.Sprintf("fdinfo/%d", dir.Fd()))
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return false, err
	}
	_, after, ok := bytes.Cut(info, []byte("mnt_id:"))
	id := bytes.Fields(after)
	if !ok || len(id) == 0 {
		return false, errors.New("fdinfo: no mnt_id")
	}
	byID := map[string]entry{}
	for _, m := range all {
		byID[m.id] = m
	}
	p := filepath.Join(dir.Name(), name)
	seen, ok := byID[string(id[0])].inFS(p)
	for _, m := range all {
		if m.netns != netnsID || m.path != p {
			continue
		}
		under, known := byID[m.parent]
		// Or it is on another copy of itself, which is on the file.
		for range maxCovers {
			if !known || under.netns != netnsID || under.path != p {
				break
			}
			under, known = byID[under.parent]
		}
		if below, found := under.inFS(p); !ok || !known || !found || below != seen {
			return false, nil
		}
	}
	return ok, nil
}

// hide takes every mount of a network namespace out of a private copy, with all that
// lies above or around it.
func (w view) hide(netnsID uint64) error {
	for range maxCovers {
		all, err := w.mounts()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(m entry) bool { return m.netns == netnsID })
		if i < 0 {
			return nil
		}
		// The outermost is not covered by any other on that path.
		outer := all[i].path
		for _, m := range all {
			if m.path != "/" && len(m.path) < len(outer) && strings.HasPrefix(all[i].path, m.path+"/") {
				outer = m.path
			}
		}
		if err := unix.Unmount(outer, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return os.NewSyscallError("umount2", err)
		}
	}
	return fmt.Errorf("more than %d mounts lie above it", maxCovers)
}

// parseMounts reads a mountinfo: "ID parent maj:min root mountpoint options [optional
// fields] - type source options". A line that cannot be read is an error: it may be the
// one that matters.
func parseMounts(mountinfo []byte) ([]entry, error) {
	var out []entry
	for line := range bytes.Lines(mountinfo) {
		f := mountFields(line)
		end := slices.IndexFunc(f, func(x []byte) bool { return string(x) == "-" })
		if end < 6 || end+1 >= len(f) || slices.ContainsFunc(f[:6], func(x []byte) bool { return len(x) == 0 }) {
			return nil, fmt.Errorf("mountinfo: cannot read the line %q", line[:min(len(line), 256)])
		}
		at, err := unescape(f[4])
		if err != nil {
			return nil, err
		}
		root, err := unescape(f[3])
		if err != nil {
			return nil, err
		}
		m := entry{id: string(f[0]), parent: string(f[1]), dev: string(f[2]), root: root, path: at}
		m.shared = slices.ContainsFunc(f[6:end], func(o []byte) bool { return bytes.HasPrefix(o, []byte("shared:")) })
		if root, ok := bytes.CutPrefix(f[3], []byte("net:[")); ok && string(f[end+1]) == "nsfs" {
			if m.netns, err = strconv.ParseUint(string(bytes.TrimSuffix(root, []byte("]"))), 10, 64); err != nil {
				return nil, fmt.Errorf("mountinfo: %q is no namespace", f[3][:min(len(f[3]), 256)])
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// mountFields splits a line of a mountinfo. One blank stands between fields, and a source
// may be empty. The kernel escapes blank, tab and newline in a path, and no other white
// space: whoever owns a mount namespace could move the fields with that.
func mountFields(line []byte) [][]byte {
	return bytes.Split(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
}

// unescape undoes the kernel's \ooo in mountinfo.
func unescape(b []byte) (string, error) {
	var out []byte
	for rest := b; ; {
		plain, esc, found := bytes.Cut(rest, []byte(`\`))
		out = append(out, plain...)
		if !found {
			return string(out), nil
		}
		if len(esc) < 3 {
			return "", fmt.Errorf("mountinfo: cut-off escape in %q", b[:min(len(b), 256)])
		}
		n, err := strconv.ParseUint(string(esc[:3]), 8, 8)
		if err != nil {
			return "", fmt.Errorf("mountinfo: bad escape in %q", b[:min(len(b), 256)])
		}
		out, rest = append(out, byte(n)), esc[3:]
	}
}
