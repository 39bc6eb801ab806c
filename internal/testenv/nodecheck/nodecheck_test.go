package nodecheck_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// The releases of every node here.
const (
	released = "20261130-062137-1a2b3c-00001"
	undone   = "20261130-062137-1a2b3c-00002"
)

// node is a sound one: two living Pods, a dead one's reservation released by the real
// quarantine, another released and undone, each in a real journal.
type node struct {
	*testing.T
	nodecheck.Node
	subnet netip.Prefix
	ns     []*netns.NS // of the Pods
	now    claim.Instant
}

func (n *node) ok(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) addr(i int) netip.Addr        { return netns.Host(n.subnet, i) }
func (n *node) store(name string) string     { return filepath.Join(n.DataDirs[0], "pods", name) }
func (n *node) file(i int) string            { return n.store(n.addr(i).String()) }
func (n *node) state(name string) string     { return filepath.Join(n.StateDir, name) }
func (n *node) quarantined(id string) string { return n.state("quarantine/" + id) }

// id is the container ID of the i-th address.
func id(i int) string { return fmt.Sprintf("%064x", i+0xabc) }

func (n *node) write(path, content string) {
	n.Helper()
	n.ok(os.MkdirAll(filepath.Dir(path), 0o700))
	n.ok(os.WriteFile(path, []byte(content), 0o600))
}

func (n *node) reserve(i int) { n.write(n.file(i), id(i)+"\r\neth0") }

func (n *node) cached(i int, addr netip.Addr) {
	n.write(filepath.Join(n.CacheDir, "results/pods-"+id(i)+"-eth0"), fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"networkName":"pods","result":{"ips":[{"address":"%s/24"}]}}`, id(i), addr))
}

func (n *node) journal(recs ...journal.Record) {
	n.Helper()
	j, err := journal.Open(n.StateDir, journal.Options{})
	n.ok(err)
	defer j.Close()
	n.ok(j.Append(recs...))
}

func (n *node) sightings(list ...verdict.Sighting) {
	n.Helper()
	d, err := state.Open(n.StateDir, state.Options{})
	n.ok(err)
	defer d.Close()
	_, err = d.ObserveBoot(n.now.Boot)
	n.ok(err)
	_, err = d.AddHolds(state.Hold{Addr: n.addr(2), By: state.ByPerson, At: n.now})
	n.ok(err)
	n.ok(d.RememberRuntimes("unix:///run/containerd/containerd.sock"))
	n.ok(d.SaveSightings(verdict.NewMemory(list)))
}

// sighted is a sound sighting of the second Pod's reservation.
func (n *node) sighted() verdict.Sighting {
	path := n.file(3)
	return verdict.Sighting{Key: verdict.Key{Path: path, Inc: n.incarnation(path)}, First: n.now}
}

func (n *node) incarnation(path string) claim.Incarnation {
	n.Helper()
	snap := hostlocal.New(hostlocal.Config{DataDirs: n.DataDirs, Clock: func() claim.Instant { return n.now }}).List(context.Background())
	for _, r := range snap.Resources {
		if r.Path == path {
			return r.Inc
		}
	}
	n.Fatalf("%s is not listed", path)
	return claim.Incarnation{}
}

func (n *node) release(i int, releaseID string) *hostlocal.Quarantine {
	n.Helper()
	inc := n.incarnation(n.file(i))
	n.journal(journal.Record{Type: journal.Intent, At: n.now, ReleaseID: releaseID, Release: &journal.Release{
		Kind: claim.KindReservation, Store: filepath.Dir(n.file(i)), Path: n.file(i), Addr: n.addr(i), Inc: inc, Verdict: "Leaked",
	}})
	q := &hostlocal.Quarantine{Dir: n.state("quarantine")}
	out, err := q.Release(context.Background(), filepath.Dir(n.file(i)), []hostlocal.Move{{ReleaseID: releaseID, Path: n.file(i), Inc: inc}}, hostlocal.ReleaseOptions{})
	n.ok(err)
	if out[0].Err != nil {
		n.Fatal(out[0].Err)
	}
	n.journal(journal.Record{Type: journal.Outcome, At: n.now, ReleaseID: releaseID, Outcome: journal.OutcomeReleased})
	return q
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{T: t, subnet: netns.Subnet(t)}
	n.Node = nodecheck.Node{
		DataDirs: []string{filepath.Join(dir, "data")}, CacheDir: filepath.Join(dir, "cache"),
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
	}
	n.ok(os.Mkdir(n.RunDir, 0o700))
	for i := 2; i <= 3; i++ {
		ns := netns.New(t)
		ns.AddAddr("lo", n.addr(i).String()+"/32")
		n.ns = append(n.ns, ns)
		n.Pods = append(n.Pods, nodecheck.Pod{Name: fmt.Sprint("pod-", i), ContainerID: id(i), Netns: ns.Path, Addrs: []netip.Addr{n.addr(i)}})
		n.reserve(i)
	}
	n.cached(2, n.addr(2))
	n.write(n.store("lock"), "")
	n.write(n.store("last_reserved_ip.0"), n.addr(5).String())
	n.reserve(4)
	n.reserve(5)
	var err error
	n.now, err = boot.Now("/proc")
	n.ok(err)
	n.release(4, released)
	q := n.release(5, undone)
	n.ok(q.Restore(context.Background(), undone, n.file(5)))
	n.journal(
		journal.Record{Type: journal.UndoIntent, At: n.now, ReleaseID: undone},
		journal.Record{Type: journal.UndoOutcome, At: n.now, ReleaseID: undone, Outcome: journal.UndoRestored},
	)
	n.sightings(n.sighted())
	return n
}

// TestEachKindIsFound plants one thing that does not agree on a sound node, and sees it
// found by name, alone.
func TestEachKindIsFound(t *testing.T) {
	for _, tc := range []struct {
		name   string
		want   nodecheck.Kind // "": still sound
		object string         // part of the finding's object
		plant  func(n *node)
	}{
		{"nothing", "", "", func(*node) {}},

		{"one more reservation", "", "", func(n *node) { n.reserve(9) }},
		{"an empty reservation", nodecheck.Half, ".9", func(n *node) { n.write(n.file(9), "") }},
		{"a reservation of NULs", nodecheck.Half, ".9", func(n *node) { n.write(n.file(9), "\x00\x00\x00") }},
		{"a reservation cut off in the ID", nodecheck.Half, ".9", func(n *node) { n.write(n.file(9), id(9)[:40]) }},
		{"a reservation cut off before the interface", nodecheck.Half, ".9", func(n *node) { n.write(n.file(9), id(9)+"\r\n") }},
		{"an old reservation of one line", "", "", func(n *node) { n.write(n.file(9), id(9)) }},
		{"a person's reservation", "", "", func(n *node) { n.write(n.file(9), "reserved-vip") }},
		{"a link for a reservation", nodecheck.Odd, ".9", func(n *node) { n.ok(os.Symlink(n.file(2), n.file(9))) }},
		{"a name of nobody's", nodecheck.Odd, "notes", func(n *node) { n.write(n.store("notes"), "") }},
		{"IPv6 as host-local writes it", "", "", func(n *node) { n.write(n.store("fd00::9"), id(9)) }},
		{"IPv6 in other letters", nodecheck.Spelling, "FD00::9", func(n *node) { n.write(n.store("FD00::9"), id(9)) }},
		{"a temporary file in a store", nodecheck.Leftover, ".tmp-", func(n *node) { n.write(n.store(".tmp-"+released), id(9)) }},
		{"a cut-off undo in a store", nodecheck.Leftover, "holdfast-undo", func(n *node) { n.write(n.store("last_reserved_ip.holdfast-undo-"+released), id(9)) }},
		{"a reservation linked elsewhere", nodecheck.HalfMoved, ".9", func(n *node) {
			n.reserve(9)
			n.ok(os.Link(n.file(9), filepath.Join(n.RunDir, "elsewhere")))
		}},
		{"the store's lock held", nodecheck.Locked, "lock", func(n *node) { n.lock(n.store("lock")) }},
		{"a reaper's lock held", nodecheck.Locked, "reaper", func(n *node) {
			n.write(filepath.Join(n.RunDir, "reaper"), "")
			n.lock(filepath.Join(n.RunDir, "reaper"))
		}},

		{"a cache entry without reservation", nodecheck.CacheOnly, id(9), func(n *node) { n.cached(9, n.addr(9)) }},
		{"a cache entry whose address is another's", nodecheck.CacheOnly, id(9), func(n *node) { n.cached(9, n.addr(2)) }},
		{"an empty cache entry", nodecheck.CacheBad, "pods-x", func(n *node) { n.write(filepath.Join(n.CacheDir, "results/pods-x-eth0"), "") }},
		{"another network's broken entry", "", "", func(n *node) { n.write(filepath.Join(n.CacheDir, "results/other-x-eth0"), "") }},

		{"a living Pod whose reservation is missing", nodecheck.Unreserved, "pod-3", func(n *node) { n.ok(os.Remove(n.file(3))) }},
		{"a living Pod's address given to another", nodecheck.Misreserved, "pod-3", func(n *node) { n.write(n.file(3), id(9)) }},
		{"a living Pod that lost its address", nodecheck.NoAddress, "pod-3", func(n *node) {
			h := n.ns[1].Handle()
			lo, err := h.LinkByName("lo")
			n.ok(err)
			list, err := h.AddrList(lo, unix.AF_INET)
			n.ok(err)
			for _, a := range list {
				if !a.IP.IsLoopback() {
					n.ok(h.AddrDel(lo, &a))
				}
			}
		}},
		{"two Pods with one address", nodecheck.Twice, "twin", func(n *node) {
			n.Pods = append(n.Pods, nodecheck.Pod{Name: "twin", ContainerID: id(3), Addrs: []netip.Addr{n.addr(3)}})
		}},
		{"a namespace that cannot be entered", nodecheck.Unreadable, "pod-3", func(n *node) { n.Pods[1].Netns += "-gone" }},

		{"a release that nobody settled", nodecheck.Unsettled, "00009", func(n *node) {
			n.reserve(9)
			n.journal(journal.Record{Type: journal.Intent, At: n.now, ReleaseID: "20261130-062137-1a2b3c-00009", Release: &journal.Release{
				Kind: claim.KindReservation, Path: n.file(9), Addr: n.addr(9), Inc: n.incarnation(n.file(9)), Verdict: "Leaked",
			}})
		}},
		{"an undo that nobody settled", nodecheck.Unsettled, released, func(n *node) {
			n.journal(journal.Record{Type: journal.UndoIntent, At: n.now, ReleaseID: released})
		}},
		{"a damaged record", nodecheck.JournalBad, "journal", func(n *node) {
			b, err := os.ReadFile(n.state("journal"))
			n.ok(err)
			// The end of the journal: the undo, without which the entry is another.
			at := strings.Index(string(b), `"undo-intent"`)
			b[at+1] ^= 1
			n.ok(os.WriteFile(n.state("journal"), b, 0o600))
		}},
		{"a torn end", nodecheck.JournalBad, "journal", func(n *node) {
			f, err := os.OpenFile(n.state("journal"), os.O_WRONLY|os.O_APPEND, 0)
			n.ok(err)
			_, err = f.WriteString("0123")
			n.ok(err)
			n.ok(f.Close())
		}},
		{"a released file that is not there", nodecheck.NotThere, released, func(n *node) { n.ok(os.Remove(n.quarantined(released))) }},
		{"a released file that changed", nodecheck.NotTheSame, released, func(n *node) { n.write(n.quarantined(released), "other") }},
		{"a released file that stands in its store too", nodecheck.HalfMoved, ".4", func(n *node) {
			n.ok(os.Link(n.quarantined(released), n.file(4)))
		}},
		{"a quarantined file without entry", nodecheck.Unknown, "00009", func(n *node) { n.write(n.quarantined("20261130-062137-1a2b3c-00009"), id(9)) }},
		{"an undone release's file", nodecheck.Unknown, undone, func(n *node) { n.write(n.quarantined(undone), id(5)+"\r\neth0") }},
		{"an undone file that is not there", nodecheck.NotRestored, ".5", func(n *node) { n.ok(os.Remove(n.file(5))) }},
		{"a copy that was cut off", nodecheck.Leftover, ".tmp-", func(n *node) { n.write(n.quarantined(".tmp-"+released), "") }},
		{"a quarantine inside a data directory", nodecheck.Inside, "data", func(n *node) {
			// Where no network is, so that it is nothing else.
			to := filepath.Join(n.DataDirs[0], "pods2")
			n.ok(os.Rename(n.StateDir, to))
			n.StateDir, n.Networks = to, []string{"pods"}
		}},

		{"a sighting of the future", nodecheck.Future, ".3", func(n *node) {
			s := n.sighted()
			s.First.Mono += time.Hour
			n.sightings(s)
		}},
		{"a sighting of a file of the future", nodecheck.Future, ".3", func(n *node) {
			s := n.sighted()
			s.Inc.Ctime += int64(time.Hour)
			n.sightings(s)
		}},
		{"a sighting of a boot that never was", nodecheck.WrongBoot, ".3", func(n *node) {
			s := n.sighted()
			s.First.Boot = "5c1fbd5c-8b3b-4f0e-9a55-0e7b5a0c2d11"
			n.sightings(s)
		}},
		{"a sighting of an impossible path", nodecheck.WrongPath, "lock", func(n *node) {
			s := n.sighted()
			s.Path = n.store("lock")
			n.sightings(s)
		}},
		{"damaged sightings", nodecheck.StateBad, "sightings", func(n *node) { n.damage("sightings") }},
		{"damaged holds", nodecheck.StateBad, "holds", func(n *node) { n.damage("holds") }},
		{"damaged runtimes", nodecheck.StateBad, "runtimes", func(n *node) { n.damage("runtimes") }},
		{"a state file half written", nodecheck.Leftover, "sightings.tmp", func(n *node) { n.write(n.state("sightings.tmp"), "") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testenv.Need(t, testenv.Netns)
			n := newNode(t)
			if found := n.Check(); len(found) > 0 {
				t.Fatalf("before: %v", found)
			}
			tc.plant(n)
			found := n.Check()
			if tc.want != "" && len(found) == 0 {
				t.Errorf("found nothing, want %q", tc.want)
			}
			for _, f := range found {
				if f.Kind != tc.want || !strings.Contains(f.Object, tc.object) {
					t.Errorf("found %q, want %q of %s alone", f, tc.want, tc.object)
				}
			}
		})
	}
}

func (n *node) damage(name string) {
	n.Helper()
	b, err := os.ReadFile(n.state(name))
	n.ok(err)
	b[len(b)-2] ^= 1
	n.ok(os.WriteFile(n.state(name), b, 0o600))
}

func (n *node) lock(path string) {
	n.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	n.ok(err)
	n.Cleanup(func() { f.Close() })
	n.ok(unix.Flock(int(f.Fd()), unix.LOCK_EX))
}

// failures takes down what a test would have failed with.
type failures struct {
	testing.TB
	list []string
}

func (f *failures) Helper() {}
func (f *failures) Errorf(format string, args ...any) {
	f.list = append(f.list, fmt.Sprintf(format, args...))
}

func TestVerify(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	n := newNode(t)
	verify := func(want int) {
		t.Helper()
		var f failures
		if n.Verify(&f); len(f.list) != want {
			t.Errorf("failures %q, want %d", f.list, want)
		}
	}
	verify(0)
	n.write(n.file(9), "")
	verify(1)
	n.Expected = []nodecheck.Kind{nodecheck.Half}
	verify(0)
	n.Expected = []nodecheck.Kind{nodecheck.Half, nodecheck.Odd}
	verify(1)
	n.Planted, n.Expected = []string{n.file(9)}, nil
	verify(0)
}
