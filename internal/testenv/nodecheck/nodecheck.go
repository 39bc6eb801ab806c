package nodecheck

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
)

// Kind says what does not agree.
type Kind string

// The kinds of findings.
const (
	Unreadable Kind = "unreadable" // the check could not look: never taken for sound

	// Stores.
	Odd       Kind = "odd file"            // no regular file, or a name that is no allocator's
	Spelling  Kind = "address spelling"    // a name that is an address, but not as host-local writes it
	Half      Kind = "half reservation"    // empty, of NULs, or cut off
	HalfMoved Kind = "half-moved file"     // a reservation with a second name, or both in its store and released
	Twice     Kind = "address twice"       // two files of one store for one address, or two Pods with it
	Leftover  Kind = "temporary leftover"  // of an interrupted write
	Locked    Kind = "lock held"           // somebody has a store, a state directory or a reaper's lock
	CacheBad  Kind = "damaged cache entry" // no JSON, or it names no container
	CacheOnly Kind = "stray cache entry"   // an address whose reservation is not there, or not that container's

	// Living Pods.
	NoAddress   Kind = "address not in the Pod"
	Unreserved  Kind = "Pod without reservation"
	Misreserved Kind = "Pod's address reserved for another"

	// The state directory.
	JournalBad  Kind = "damaged journal"
	Unsettled   Kind = "unsettled release"
	NotThere    Kind = "released, not in the quarantine"
	NotTheSame  Kind = "quarantined file changed"
	Unknown     Kind = "quarantined file without entry" // or whose entry says that it must not lie there
	NotRestored Kind = "undone, not in its store"
	Inside      Kind = "state inside a data directory"
	StateBad    Kind = "damaged state file"
	Future      Kind = "sighting of the future"
	WrongBoot   Kind = "sighting of an unknown boot"
	WrongPath   Kind = "sighting of an impossible path"
)

// Finding is one thing that does not agree.
type Finding struct {
	Kind   Kind
	Object string // a path, a Pod, a release
	Text   string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Kind, f.Object, f.Text) }

// Pod is a living one: a process is in its namespace.
type Pod struct {
	Name        string
	ContainerID string
	// Netns is a path that can be opened: a mount, or /proc/PID/ns/net. Empty: the kernel
	// is not asked.
	Netns string
	// Addrs are those that it has and that are reserved for it in DataDirs.
	Addrs []netip.Addr
}

// Node is where the files of a node are. Empty fields are not looked at.
type Node struct {
	DataDirs []string // host-local's, the parents of the networks' directories
	// Networks are the names of the directories to look at in DataDirs, all if empty.
	// Cache entries of other networks are never looked at.
	Networks []string
	CacheDir string // libcni's, the parent of results
	StateDir string // holdfast's
	RunDir   string // of the reapers' locks
	Pods     []Pod
	// Planted are paths of stores and cache that the test itself made odd: nothing is
	// said about them.
	Planted []string
	// Expected are the kinds that the test brought about on purpose. Watch wants each of
	// them found, and no other.
	Expected []Kind
}

// Watch checks the node at the end of the test, or rather of what was begun after this
// call: the directories must still be there, so it is called after they were made, and
// before the Pods. node is asked at the end, for the Pods that live then.
func Watch(t testing.TB, node func() Node) {
	t.Helper()
	t.Cleanup(func() { node().Verify(t) })
}

// Verify fails the test for what Check finds and was not expected, or was and is not
// found.
func (n Node) Verify(t testing.TB) {
	t.Helper()
	found := n.Check()
	for _, f := range found {
		if !slices.Contains(n.Expected, f.Kind) {
			t.Errorf("the node does not agree: %s", f)
		}
	}
	for _, k := range n.Expected {
		if !slices.ContainsFunc(found, func(f Finding) bool { return f.Kind == k }) {
			t.Errorf("the node was to have a finding %q, and has none", k)
		}
	}
}

// Check returns everything that does not agree, in the order of kinds and objects.
// Nothing is changed; locks are tried for a moment, so nobody may be at work.
func (n Node) Check() []Finding {
	c := &checker{Node: n, reserved: map[string]map[netip.Addr][]reservation{}}
	now, err := boot.Now("/proc")
	if err != nil {
		c.add(Unreadable, "/proc", "the clock: %v", err)
	}
	c.now = now
	for _, d := range n.DataDirs {
		c.dataDir(d)
	}
	if n.CacheDir != "" {
		c.cacheDir(filepath.Join(n.CacheDir, "results"))
	}
	if n.StateDir != "" {
		c.stateDir()
	}
	if n.RunDir != "" {
		for _, e := range c.list(n.RunDir) {
			c.unlocked(filepath.Join(n.RunDir, e.Name()))
		}
	}
	c.pods()
	slices.SortFunc(c.found, func(a, b Finding) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Object, b.Object), strings.Compare(a.Text, b.Text))
	})
	return slices.Compact(c.found)
}

type checker struct {
	Node
	now   claim.Instant
	found []Finding
	// reserved has what lies in each network's directory.
	reserved map[string]map[netip.Addr][]reservation
}

func (c *checker) add(k Kind, object, format string, args ...any) {
	if !slices.Contains(c.Planted, object) {
		c.found = append(c.found, Finding{k, object, fmt.Sprintf(format, args...)})
	}
}

// list reads a directory that may not exist.
func (c *checker) list(dir string) []fs.DirEntry {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.add(Unreadable, dir, "%v", err)
	}
	return entries
}

// regular reports whether it is a regular file, and says so if not.
func (c *checker) regular(path string, e fs.DirEntry) bool {
	if !e.Type().IsRegular() {
		c.add(Odd, path, "is %v", e.Type())
		return false
	}
	return true
}

// read reads a small file whole.
func (c *checker) read(path string) ([]byte, bool) {
	const limit = 16 << 20
	if st, err := os.Lstat(path); err == nil && st.Size() > limit {
		c.add(Odd, path, "has %d bytes", st.Size())
		return nil, false
	}
	b, err := os.ReadFile(path)
	if err != nil {
		c.add(Unreadable, path, "%v", err)
	}
	return b, err == nil
}

// unlocked finds a lock by trying to share it.
func (c *checker) unlocked(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == unix.ENOENT {
		return
	}
	if err != nil {
		c.add(Unreadable, path, "%v", err)
		return
	}
	defer unix.Close(fd)
	switch err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err {
	case nil:
	case unix.EWOULDBLOCK:
		c.add(Locked, path, "by somebody")
	default:
		c.add(Unreadable, path, "flock: %v", err)
	}
}
