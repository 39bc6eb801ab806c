package sweep_test

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// memDir is a directory where an fsync costs nothing, so that thousands of nodes can be
// tried; the machine's temp directory where there is none.
func memDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-sweep-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// crowd plants every kind of dead thing, and something alive.
func crowd(n *node) (dead, alive []string) {
	mount := n.netns(50, 0, "10.1.0.2")
	dead = append(dead,
		n.reserve("pods", "10.1.0.2", id(1), "eth0"), n.result("pods", id(1), "eth0", mount, 0, "10.1.0.2"), // orphaned
		n.reserve("pods", "10.1.0.3", id(2), "eth0"), n.reserve("pods", "fd00::3", id(2), "eth0"), // dual-stack
		n.result("pods", id(2), "eth0", "", 0, "10.1.0.3", "fd00::3"),
		n.reserve("z-more", "10.2.0.2", id(2), "net1"), n.result("z-more", id(2), "net1", "", 0, "10.2.0.2"),
		n.reserve("z-more", "10.2.0.3", "", ""), // malformed
		n.result("gone", id(3), "eth0", "", 0),
	)
	n.live[id(4)] = true
	alive = append(alive, n.reserve("pods", "10.1.0.4", id(4), "eth0"), n.reserve("z-more", "10.2.0.4", id(4), "net1"),
		n.result("pods", id(4), "eth0", "", 0, "10.1.0.4"))
	return dead, alive
}

func (n *node) expect(when string, there bool, paths []string) {
	n.t.Helper()
	for _, p := range paths {
		if exists(p) != there {
			n.t.Fatalf("%s: %s is there: %v, want %v", when, p, !there, there)
		}
	}
}

// killAt makes the nth moment the last one of this process; half leaves a write or a move
// half done. It returns a counter of moments.
func (n *node) killAt(nth int, half bool) *int {
	count := 0
	n.at = func(op string) error {
		n.once(op)
		count++
		if count-1 != nth {
			return nil
		}
		if half && !strings.HasSuffix(op, "+") && (strings.HasPrefix(op, "append") || strings.HasPrefix(op, "move")) {
			return errHalf
		}
		panic(killed{})
	}
	return &count
}

// I4: a sweep that is killed at any moment, before or after an effect or in the middle of
// one, converges: the next run settles it, goes on, and nothing was ever lost, doubled or
// half done.
func TestKilledAnywhere(t *testing.T) {
	t.Run("one file system", func(t *testing.T) {
		killAnywhere(t, memDir(t), func(n *node) {})
	})
	// Where /dev/shm is another file system than the temp directory, files are copied.
	t.Run("quarantine elsewhere", func(t *testing.T) {
		elsewhere := t.TempDir()
		killAnywhere(t, memDir(t), func(n *node) { n.vault.Dir = filepath.Join(elsewhere, filepath.Base(n.root)) })
	})
}

func killAnywhere(t *testing.T, root string, arrange func(n *node)) {
	moments := 1
	for nth := 0; nth < moments; nth++ {
		for _, half := range []bool{false, true} {
			when := fmt.Sprintf("killed at moment %d, half=%v", nth, half)
			n := newNodeIn(t, filepath.Join(root, fmt.Sprint(nth, half)))
			arrange(n)
			dead, alive := crowd(n)
			e := n.engine()
			a, p := n.due(e)
			n.killAt(nth, half)
			dead1 := n.dies(func() { _, _ = e.Reap(t.Context(), a, p) })
			if !dead1 && nth < moments-1 {
				t.Fatalf("%s: it was not", when)
			}
			if nth == 0 && !half {
				// How many moments a whole sweep has.
				m := newNodeIn(t, filepath.Join(root, "whole"))
				arrange(m)
				crowd(m)
				e := m.engine()
				a, p := m.due(e)
				count := m.killAt(-1, false)
				if _, err := e.Reap(t.Context(), a, p); err != nil {
					t.Fatal(err)
				}
				moments = *count
			}
			n.at = nil
			n.once(when)
			n.expect(when, true, alive)
			e = n.engine()
			n.sweep(e)
			n.once(when + ", swept")
			n.honest(when + ", swept")
			// An orphan whose namespace went before the kill, and a cache file that came back
			// with its address, begin a new run of sightings.
			for range 2 {
				n.wait(2 * grace)
				n.sweep(e)
				n.honest(when + ", swept again")
			}
			n.expect(when, false, dead)
			n.expect(when, true, alive)
			if r := n.sweep(e); len(r.Released)+len(r.Failed)+len(r.Reprieved) > 0 {
				t.Fatalf("%s: not at rest: %v", when, outcomes(r))
			}
			n.undoAll(when)
		}
	}
	if moments < 20 {
		t.Errorf("only %d moments", moments)
	}
}

// undoAll takes back every release and checks that all of it is there again.
func (n *node) undoAll(when string) {
	n.t.Helper()
	e := n.engine()
	for _, en := range n.entries() {
		if !en.Undoable(n.now.Boot) {
			continue
		}
		u, err := e.Undo(n.t.Context(), []string{en.ID})
		if err != nil || u[0].Outcome != journal.UndoRestored {
			n.t.Fatalf("%s: undo %s: %+v, %v", when, en.Release.Path, u, err)
		}
	}
	for path, content := range n.planted {
		if b, err := os.ReadFile(path); err != nil || string(b) != content {
			n.t.Fatalf("%s: undone, and %s holds %q, %v", when, path, b, err)
		}
	}
	n.once(when + ", undone")
	n.honest(when + ", undone")
}

// An undo that is killed at any moment converges likewise: the reservation is back in its
// store or still in the quarantine, and can then be undone.
func TestUndoKilledAnywhere(t *testing.T) {
	root := memDir(t)
	for nth := 0; ; nth++ {
		when := fmt.Sprintf("undo killed at moment %d", nth)
		n := newNodeIn(t, filepath.Join(root, fmt.Sprint(nth)))
		n.reserve("pods", "10.1.0.3", id(2), "eth0")
		n.reserve("pods", "fd00::3", id(2), "eth0")
		n.result("pods", id(2), "eth0", "", 0, "10.1.0.3", "fd00::3")
		e := n.engine()
		a, p := n.due(e)
		if _, err := e.Reap(t.Context(), a, p); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, en := range n.entries() {
			ids = append(ids, en.ID)
		}
		n.killAt(nth, false)
		dead := n.dies(func() { _, _ = e.Undo(t.Context(), ids) })
		n.at = nil
		n.once(when)
		e = n.engine()
		if _, err := e.Settle(t.Context(), everywhere); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		n.once(when + ", settled")
		n.honest(when + ", settled")
		for path := range n.planted {
			inQ := false
			for _, en := range n.entries() {
				inQ = inQ || en.Release.Path == path && en.Undoable(n.now.Boot)
			}
			if exists(path) == inQ {
				t.Fatalf("%s: %s is there: %v, undoable: %v", when, path, exists(path), inQ)
			}
		}
		for _, en := range n.entries() {
			if c := en.Release.Cache; c != nil && en.State == journal.StateUndone && !exists(c.Path) {
				t.Fatalf("%s: %s is back without its cache entry", when, en.Release.Addr)
			}
		}
		if !dead {
			if nth < 12 {
				t.Errorf("only %d moments", nth)
			}
			break
		}
	}
}

// schedules is how many random lives of a node are tried.
const schedules = 600

// Whatever happens in whatever order: what is alive stays, nothing is lost or doubled, a
// silent witness releases nothing, and when all is quiet every leak is gone (I1, I2, I4).
func TestRandomSchedules(t *testing.T) {
	root := memDir(t)
	var stat struct{ released, kills, undone, taken int }
	for seed := range int64(schedules) {
		dir := filepath.Join(root, fmt.Sprint(seed))
		n := newNodeIn(t, dir)
		n.rng = rand.New(rand.NewSource(seed))
		s := &schedule{node: n, r: n.rng, e: n.engine()}
		for range 3 {
			s.trace = append(s.trace, s.add())
		}
		for range 8 {
			what := s.step()
			s.trace = append(s.trace, what)
			if why := s.broken(); why != "" {
				t.Fatalf("seed %d: %s after %q", seed, why, s.trace)
			}
			n.once(fmt.Sprintf("seed %d after %q", seed, s.trace))
		}
		s.quiet(t, fmt.Sprintf("seed %d after %q", seed, s.trace))
		for _, en := range n.entries() {
			if en.State == journal.StateReleased {
				stat.released++
			}
		}
		stat.kills += s.kills
		stat.undone += s.undone
		stat.taken += s.taken
		n.log.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if stat.released < schedules || stat.kills < schedules/5 || stat.undone < schedules/10 || stat.taken == 0 {
		t.Errorf("the schedules prove little: %+v", stat)
	}
}

// schedule is one random life of a node.
type schedule struct {
	*node
	r                    *rand.Rand
	e                    *Engine
	next                 int
	trace                []string
	kills, undone, taken int
}

func (s *schedule) step() string {
	s.silent = map[string]string{}
	switch s.r.Intn(12) {
	case 0, 1:
		return s.add()
	case 2:
		s.wait([]time.Duration{time.Second, grace, 2 * orphanGrace}[s.r.Intn(3)])
		return "wait"
	case 3:
		return s.turn()
	case 4:
		w := []string{"kernel", "process", "cri", "boot"}[s.r.Intn(4)]
		s.silent[w] = "does not answer"
		r := s.run(-1, false)
		if r != nil && len(r.Released) > 0 {
			s.t.Fatalf("released while %s was silent, after %q", w, s.trace)
		}
		return "sweep without " + w
	case 5, 9:
		return s.undoOne()
	case 6:
		if s.r.Intn(3) > 0 {
			return "nothing"
		}
		// A reboot ends every container and its namespace.
		s.live, s.nets = map[string]bool{}, map[uint64]claim.Netns{}
		s.reboot(fmt.Sprintf("boot-%d", 10+len(s.past)))
		s.e = s.engine()
		return "reboot"
	case 7, 8:
		s.run(-1, false)
		s.wait(2 * orphanGrace)
		k := s.r.Intn(8)
		s.run(k, s.r.Intn(2) == 0)
		return fmt.Sprintf("sweep killed at %d", k)
	}
	s.run(-1, false)
	return "sweep"
}

// add is an ADD: a new container takes free addresses.
func (s *schedule) add() string {
	s.next++
	owner := id(s.next)
	network := []string{"pods", "z-more"}[s.r.Intn(2)]
	addr := fmt.Sprintf("10.%d.0.%d", len(network), 2+s.r.Intn(3))
	if exists(filepath.Join(s.store(network), addr)) {
		return "full"
	}
	s.reserve(network, addr, owner, "eth0")
	mount := ""
	if s.r.Intn(4) == 0 && !s.held(addr) {
		mount = s.netns(uint64(100+s.next), 0, addr)
	}
	if s.r.Intn(2) == 0 {
		s.result(network, owner, "eth0", mount, 0, addr)
	}
	if v6 := fmt.Sprintf("fd00::%d", s.next); s.r.Intn(3) == 0 {
		s.reserve(network, v6, owner, "eth0")
	}
	s.live[owner] = s.r.Intn(3) == 0
	return fmt.Sprintf("add %d at %s/%s, alive %v", s.next, network, addr, s.live[owner])
}

func (s *schedule) held(addr string) bool {
	for _, n := range s.nets {
		for _, a := range n.Addrs {
			if a.Addr.String() == addr {
				return true
			}
		}
	}
	return false
}

// turn makes a container dead, or one that was only missed by the runtime alive again.
func (s *schedule) turn() string {
	if s.next == 0 {
		return "nothing"
	}
	owner := id(1 + s.r.Intn(s.next))
	if !s.live[owner] && !s.whole(owner) {
		return "nothing"
	}
	s.live[owner] = !s.live[owner]
	return fmt.Sprintf("%s alive %v", owner[56:], s.live[owner])
}

// whole reports whether everything that was reserved for owner still is.
func (s *schedule) whole(owner string) bool {
	stand := 0
	for path, content := range s.planted {
		if strings.HasPrefix(content, owner) && exists(path) {
			stand++
		}
	}
	return stand == s.contents[owner+"\r\neth0"]
}

// broken names a reservation of something alive that is gone, or "".
func (s *schedule) broken() string {
	for owner, alive := range s.live {
		if alive && !s.whole(owner) {
			return "a reservation of the live " + owner[56:] + " is gone"
		}
	}
	return ""
}

// run is one sweep, killed at a moment if nth is not negative; then the process starts
// anew.
func (s *schedule) run(nth int, half bool) (r *Result) {
	if nth >= 0 {
		s.killAt(nth, half)
	}
	defer func() { s.at = nil }()
	if s.dies(func() { r = s.sweep(s.e) }) {
		s.kills++
		s.at = nil
		s.e = s.engine()
		return nil
	}
	return r
}

func (s *schedule) undoOne() string {
	for _, en := range s.entries() {
		if !en.Undoable(s.now.Boot) || s.r.Intn(2) == 0 || en.State.Unsettled() {
			continue
		}
		if s.r.Intn(3) == 0 {
			s.killAt(s.r.Intn(8), false)
		}
		var u []Undone
		var err error
		if s.dies(func() { u, err = s.e.Undo(s.t.Context(), []string{en.ID}) }) {
			s.at = nil
			s.kills++
			s.e = s.engine()
			return "undo killed"
		}
		s.at = nil
		if err != nil {
			s.t.Fatalf("undo: %v after %q", err, s.trace)
		}
		switch u[0].Outcome {
		case journal.UndoRestored:
			s.undone++
		case journal.UndoTaken:
			s.taken++
		default:
			s.t.Fatalf("undo: %+v after %q", u, s.trace)
		}
		return "undo " + u[0].Outcome
	}
	return "nothing to undo"
}

// quiet lets everything speak and every grace pass: then the dead are gone (I2), and the
// journal tells the truth.
func (s *schedule) quiet(t *testing.T, when string) {
	t.Helper()
	s.silent, s.holds = map[string]string{}, map[verdict.Hold]bool{}
	s.e = s.engine()
	s.sweep(s.e)
	for range 2 {
		s.holds = map[verdict.Hold]bool{} // of an undo that was settled
		s.wait(2 * orphanGrace)
		s.sweep(s.e)
	}
	s.once(when)
	s.honest(when)
	for path, content := range s.planted {
		owner, _, _ := strings.Cut(content, "\r\n")
		if b, err := os.ReadFile(path); err == nil && string(b) == content && !s.live[owner] {
			for _, f := range s.look(s.e).Judgement.Findings {
				t.Logf("%s: %s, %s: %+v", f.Resource.Path, f.Verdict, f.Why, f.Says)
			}
			t.Fatalf("%s: the dead %s is still there", when, path)
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if why := s.broken(); why != "" {
		t.Fatalf("%s: %s", when, why)
	}
}
