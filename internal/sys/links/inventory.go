package links

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"golang.org/x/sys/unix"
)

// Source is the name of this inventory in snapshots.
const Source = "links"

// maxEntries bounds the names read of one directory.
const maxEntries = 1 << 18

// DefaultNetnsDirs are the directories in which runtimes keep namespaces:
// containerd, CRI-O, podman and iproute2 the first (under both of its names), Docker
// the last.
func DefaultNetnsDirs() []string {
	return []string{"/run/netns", "/var/run/netns", "/run/docker/netns"}
}

// Config says where to look.
type Config struct {
	// NetnsDirs are directories of namespace mounts, as PID 1 sees them. Empty means
	// DefaultNetnsDirs.
	NetnsDirs []string
	// InInit reports whether the calling thread is in PID 1's namespace of a kind, "net"
	// or "mnt". Required.
	InInit func(kind string) (bool, error)
	// OpenInit opens PID 1's namespace of a kind. Required.
	OpenInit func(kind string) (*os.File, error)
	// Clock reads the node's clocks. Required.
	Clock func() claim.Instant
}

// Inventory lists namespace mounts and veths. It holds no state between calls; safe
// for concurrent use.
type Inventory struct {
	dirs     []string
	inInit   func(kind string) (bool, error)
	openInit func(kind string) (*os.File, error)
	clock    func() claim.Instant
}

// New returns the inventory of cfg.
func New(cfg Config) *Inventory {
	v := &Inventory{inInit: cfg.InInit, openInit: cfg.OpenInit, clock: cfg.Clock}
	dirs := cfg.NetnsDirs
	if len(dirs) == 0 {
		dirs = DefaultNetnsDirs()
	}
	for _, d := range dirs {
		if d = filepath.Clean(d); !slices.Contains(v.dirs, d) {
			v.dirs = append(v.dirs, d)
		}
	}
	return v
}

// Name returns "links".
func (v *Inventory) Name() string { return Source }

// List gives a KindNetns resource for every network namespace that is mounted in
// the configured directories, sorted by path: Store is the directory, NetnsID the
// nsfs inode, Inc holds Dev and Ino. The directory of /run/netns and of
// /var/run/netns is usually one: it is listed once, under its first name.
//
// An entry on which no namespace is mounted is a Note: after a reboot, or after a
// deletion that was cut off, the plain file may remain. A Note is also what is mounted
// there out of reach, below another mount. A directory that is missing
// holds nothing; one that cannot be read whole gives a Note and a Store with a
// Problem.
func (v *Inventory) List(ctx context.Context) claim.Snapshot {
	snap := claim.Snapshot{Source: Source}
	err := v.inHostMounts(func(host view) error {
		seen := map[fileID]bool{}
		for _, d := range v.dirs {
			if err := listDir(ctx, d, seen, &snap); err != nil {
				fail(&snap, d, err)
				continue
			}
			// Looked at whole: what was remembered of it and is not listed is gone.
			snap.Stores = append(snap.Stores, claim.Store{Dir: d, DataDir: filepath.Dir(d), Writable: true})
		}
		if err := v.noteCovered(host, &snap); err != nil {
			snap.Notes = append(snap.Notes, claim.Note{Path: "/proc/thread-self/mountinfo", Text: "covered mounts cannot be found: " + clean(err)})
		}
		return nil
	})
	if err != nil {
		for _, d := range v.dirs {
			fail(&snap, d, err)
		}
	}
	slices.SortFunc(snap.Resources, func(a, b claim.Resource) int { return strings.Compare(a.Path, b.Path) })
	slices.SortStableFunc(snap.Notes, func(a, b claim.Note) int { return strings.Compare(a.Path, b.Path) })
	snap.Listed = v.clock()
	return snap
}

// noteCovered notes the namespaces that are mounted in the directories but that no path
// leads to: a mount lies above them. Their owner cannot remove them.
func (v *Inventory) noteCovered(host view, snap *claim.Snapshot) error {
	listed := map[uint64]bool{}
	for _, r := range snap.Resources {
		listed[r.NetnsID] = true
	}
	find := func() ([]entry, error) {
		all, err := host.mounts()
		return slices.DeleteFunc(all, func(m entry) bool {
			return m.netns == 0 || listed[m.netns] || !slices.Contains(v.dirs, filepath.Dir(m.path)) || reaches(m)
		}), err
	}
	found, err := find()
	if err != nil || len(found) == 0 {
		return err
	}
	// One that came or went meanwhile looks the same, but not twice.
	again, err := find()
	if err != nil {
		return err
	}
	for _, m := range again {
		if !slices.Contains(found, m) {
			continue
		}
		// That a plain file is to be seen there is half the truth.
		snap.Notes = slices.DeleteFunc(snap.Notes, func(n claim.Note) bool { return n.Path == m.path })
		snap.Notes = append(snap.Notes, claim.Note{Path: m.path, Text: fmt.Sprintf("network namespace %d is still mounted here below another mount, where its owner cannot "+
			"remove it: it goes with the last address that it holds; by hand, drain the node, unmount what lies above (umount %s), then this path",
			m.netns, strconv.QuoteToASCII(filepath.Dir(m.path)))})
	}
	return nil
}

// reaches reports whether the path of a mount shows what is mounted there.
func reaches(m entry) bool {
	dir, err := os.OpenFile(filepath.Dir(m.path), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	ns, err := look(dir, filepath.Base(m.path))
	return err == nil && ns.ino == m.netns
}

type fileID struct{ dev, ino uint64 }

func fail(snap *claim.Snapshot, dir string, err error) {
	text := clean(err)
	snap.Notes = append(snap.Notes, claim.Note{Path: dir, Text: "cannot be listed: " + text})
	snap.Stores = append(snap.Stores, claim.Store{Dir: dir, DataDir: filepath.Dir(dir), Problem: text})
}

func listDir(ctx context.Context, path string, seen map[fileID]bool, snap *claim.Snapshot) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	id := fileID{uint64(st.Dev), st.Ino}
	if seen[id] {
		return nil
	}
	seen[id] = true
	for n := 0; ; {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if n++; n > maxEntries {
				return errors.New("too many entries")
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			entry := filepath.Join(path, name)
			ns, err := look(dir, name)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				snap.Notes = append(snap.Notes, claim.Note{Path: entry, Text: clean(err)})
			default:
				snap.Resources = append(snap.Resources, claim.Resource{
					Kind: claim.KindNetns, Store: path, Path: entry, NetnsID: ns.ino,
					Inc: claim.Incarnation{Dev: ns.dev, Ino: ns.ino},
				})
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var (
	errLink    = errors.New("a link: pins no namespace by itself")
	errPlain   = errors.New("a plain file: no namespace is mounted on it")
	errOther   = errors.New("no file that a namespace could be mounted on")
	errOtherNS = errors.New("a namespace of another type is mounted on it")
)

// look says which network namespace is mounted on the entry name of dir. Nothing is
// opened for reading before it is known to be a namespace: neither a link is
// followed nor a FIFO waited for. Errors: fs.ErrNotExist, one of the above, or the
// system's.
func look(dir *os.File, name string) (fileID, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fileID{}, os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileID{}, os.NewSyscallError("fstat", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return fileID{}, errLink
	default:
		return fileID{}, errOther
	}
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(fd, &fsys); err != nil {
		return fileID{}, os.NewSyscallError("fstatfs", err)
	}
	if fsys.Type != unix.NSFS_MAGIC {
		return fileID{}, errPlain
	}
	// O_PATH takes no ioctl. Opening a namespace file has no side effect.
	ns, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fileID{}, os.NewSyscallError("openat", err)
	}
	defer unix.Close(ns)
	var again unix.Stat_t
	if err := unix.Fstat(ns, &again); err != nil {
		return fileID{}, os.NewSyscallError("fstat", err)
	}
	if again.Dev != st.Dev || again.Ino != st.Ino {
		return fileID{}, errors.New("changes while it is looked at")
	}
	typ, err := unix.IoctlRetInt(ns, unix.NS_GET_NSTYPE)
	if err != nil {
		return fileID{}, os.NewSyscallError("NS_GET_NSTYPE", err)
	}
	if typ != unix.CLONE_NEWNET {
		return fileID{}, errOtherNS
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}

// clean makes an error printable: it may hold a path.
func clean(err error) string {
	s := err.Error()
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return s
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// ErrChanged says that a namespace or a link is not the one that was judged (I7).
var ErrChanged = errors.New("not the one that was judged")

// Error is a failed act. Err is or wraps fs.ErrNotExist (gone), ErrChanged,
// ErrMounted, ErrOutside, ErrHost, ErrNoView or the system's.
type Error struct {
	Op     string // "list veths", "remove veth", "remove netns"
	Object string // a path, or an interface's name
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("links: %s %s: %s", e.Op, strconv.QuoteToASCII(e.Object), clean(e.Err))
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
