package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// watcher looks at one node from outside, over and over: which namespaces do the processes of
// its Pods use, and which addresses do they hold. It shares nothing with the product: Pods are
// found by their cgroups, addresses in /proc/PID/net/fib_trie, so that no namespace is ever
// entered and kept.
//
// bridge's DEL gives an address back before it takes the link down. So an overlap may be seen
// that lasts for a moment and is nobody's fault but that plugin's; what holdfast has done is
// told by the journal (check).
type watcher struct {
	node *node
	top  string // the cgroup of the node's Pods

	mu     sync.Mutex
	now    map[use]bool
	spans  map[use][]span
	twice  map[[2]use]span
	looks  int
	took   time.Duration
	longst time.Duration
	err    error
}

// use is an address in a namespace that a Pod's processes are in.
type use struct {
	addr  netip.Addr
	pod   string // UID
	netns string // such as net:[4026532281]
}

// span is a time by CLOCK_MONOTONIC.
type span struct{ first, last time.Duration }

const (
	lookEvery = 100 * time.Millisecond
	// overlap is how long bridge's DEL may take from giving the address back to the end of
	// the link, on a busy machine.
	overlap = 2 * time.Second
)

// watch begins, and fails the test at its end for what was wrong.
func watch(t *testing.T, n *node) *watcher {
	w := &watcher{
		node: n, top: filepath.Join(testenv.CgroupBase(), n.Runtime.Cgroup()),
		now: map[use]bool{}, spans: map[use][]span{}, twice: map[[2]use]span{},
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			w.look()
			select {
			case <-done:
				return
			case <-time.After(lookEvery):
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		t.Logf("%s: looked at %d times, %s each, at most %s apart; %d uses", n.Name, w.looks, (w.took / time.Duration(w.looks)).Round(10*time.Microsecond), w.longst.Round(time.Millisecond), len(w.spans))
	})
	return w
}

func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it always is there
	}
	return time.Duration(ts.Nano())
}

func (w *watcher) look() {
	began := monotonic()
	found, err := w.uses()
	at := monotonic()
	pairs := w.overlaps(found)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.err = errors.Join(w.err, err)
		return
	}
	w.looks++
	w.took += at - began
	for u := range found {
		list := w.spans[u]
		if w.now[u] {
			w.longst = max(w.longst, at-list[len(list)-1].last)
			list[len(list)-1].last = at
		} else {
			list = append(list, span{began, at})
		}
		w.spans[u] = list
	}
	for _, p := range pairs {
		s, ok := w.twice[p]
		if !ok || !w.now[p[0]] || !w.now[p[1]] {
			s.first = at
		}
		s.last = at
		w.twice[p] = s
	}
	w.now = map[use]bool{}
	for u := range found {
		w.now[u] = true
	}
}

// uses lists what is in use now, with a process that showed it.
func (w *watcher) uses() (map[use]int, error) {
	out := map[use]int{}
	seen := map[string]bool{}
	err := filepath.WalkDir(w.top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		pod := podOf(path)
		if pod == "" {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for pid := range strings.FieldsSeq(string(b)) {
			netns, err := os.Readlink("/proc/" + pid + "/ns/net")
			if err != nil || seen[netns+pod] {
				continue // it has ended, or shows nothing new
			}
			seen[netns+pod] = true
			addrs, err := addresses(pid)
			if err != nil {
				delete(seen, netns+pod) // another process may show it
				continue
			}
			var number int
			if _, err := fmt.Sscan(pid, &number); err != nil {
				return err
			}
			for _, a := range addrs {
				if w.node.subnet().Contains(a) {
					out[use{a, pod, netns}] = number
				}
			}
		}
		return nil
	})
	return out, err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// podOf finds the Pod's UID in the path of a cgroup: .../kubepods/besteffort/pod<UID>/<container>.
func podOf(path string) string {
	for part := range strings.SplitSeq(path, "/") {
		if uid, ok := strings.CutPrefix(part, "pod"); ok && len(uid) >= 32 {
			return uid
		}
	}
	return ""
}

// addresses are the IPv4 addresses of the namespace of a process, but for loopback's.
func addresses(pid string) ([]netip.Addr, error) {
	b, err := os.ReadFile("/proc/" + pid + "/net/fib_trie")
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	var last netip.Addr
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "|-- "); ok {
			last, _ = netip.ParseAddr(text)
			continue
		}
		if line == "/32 host LOCAL" && last.IsValid() && !last.IsLoopback() {
			out = append(out, last)
		}
	}
	return out, nil
}

// overlaps are the addresses that two namespaces in use hold at once: each is looked at again
// after the other was seen with it.
func (w *watcher) overlaps(found map[use]int) [][2]use {
	by := map[netip.Addr][]use{}
	for u := range found {
		by[u.addr] = append(by[u.addr], u)
	}
	var out [][2]use
	for _, us := range by {
		for i, a := range us {
			for _, b := range us[i+1:] {
				if a.netns != b.netns && still(found[a], a) && still(found[b], b) && still(found[a], a) {
					if b.netns < a.netns {
						a, b = b, a
					}
					out = append(out, [2]use{a, b})
				}
			}
		}
	}
	return out
}

func still(pid int, u use) bool {
	netns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil || netns != u.netns {
		return false
	}
	addrs, err := addresses(fmt.Sprint(pid))
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if a == u.addr {
			return true
		}
	}
	return false
}

// has reports whether a Pod's namespace was seen with the address at the last look.
func (w *watcher) has(pod string, addr netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for u := range w.now {
		if u.pod == pod && u.addr == addr {
			return true
		}
	}
	return false
}

// check fails the test for every address that two namespaces held at once for longer than a DEL
// takes, and for every release of an address that was in use before it and after it.
func (w *watcher) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		t.Errorf("%s: looking: %v", w.node.Name, w.err)
	}
	for p, s := range w.twice {
		if d := s.last - s.first; d > overlap {
			t.Errorf("%s: %s was in two namespaces for %s: %v and %v", w.node.Name, p[0].addr, d, p[0], p[1])
		} else {
			t.Logf("%s: %s was in two namespaces for %s, as in the middle of a DEL: %v and %v", w.node.Name, p[0].addr, d, p[0], p[1])
		}
	}
	for _, e := range w.node.entries(t) {
		if e.Release == nil || !e.Release.Addr.IsValid() || e.State != journal.StateReleased {
			continue
		}
		for u, spans := range w.spans {
			if u.addr != e.Release.Addr {
				continue
			}
			for _, s := range spans {
				if s.first < e.Intent.Mono && s.last > e.Last.Mono {
					t.Errorf("%s: %s of %s was released at %s while Pod %s used it, from %s to %s: %s",
						w.node.Name, u.addr, e.Release.Owner.ID, e.Last.Mono, u.pod, s.first, s.last, e.Release.Why)
				}
			}
		}
	}
}

// subnet is where the node's Pods have their addresses.
func (n *node) subnet() netip.Prefix { return n.Runtime.Network().Subnet }
