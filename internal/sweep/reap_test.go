package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

func reap(t *testing.T, n *node, e *Engine, a *Audit, p *plan.Plan) *Result {
	t.Helper()
	r, err := e.Reap(t.Context(), a, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// I3, I8: the intent is durable before anything is touched, the address goes last, and
// the outcome is written after it.
func TestOrder(t *testing.T) {
	n := newNode(t)
	mount := n.netns(50, 0, "10.1.0.2")
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	c := n.result("pods", id(1), "eth0", mount, 0, "10.1.0.2")
	e := n.engine()
	a, p := n.due(e)
	n.ops = nil
	n.at = func(op string) error {
		if op == "append intent" || op == "append intent+" || strings.HasPrefix(op, "netns") && !strings.HasSuffix(op, "+") {
			if !exists(path) || !exists(c) || n.nets[50].ID == 0 {
				t.Errorf("%s: something is gone already", op)
			}
		}
		if strings.HasPrefix(op, "netns") {
			if en := n.entries(); len(en) != 1 || en[0].State != journal.StateOpen || en[0].Release.Cache == nil {
				t.Errorf("%s: the journal holds %+v", op, en)
			}
		}
		return nil
	}
	r := reap(t, n, e, a, p)
	want := []string{"append intent", "netns " + filepath.Base(mount), "cni-del " + filepath.Base(c), "cache " + filepath.Base(c), "move pods", "append outcome"}
	if d := cmp.Diff(want, n.ops); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	if len(r.Failed)+len(r.Reprieved) > 0 || exists(path) || exists(c) {
		t.Errorf("result: %v", outcomes(r))
	}
	n.at = nil
	n.once("after")
	n.honest("after")
}

// A piece that can hold the address alive keeps it; one that cannot does not.
func TestSideFailures(t *testing.T) {
	for _, tt := range []struct {
		name, fails string
		kept        bool
	}{
		{"nothing", "none", false},
		{"veth", "veth", true},
		{"netns", "netns", true},
		{"cni-del", "cni-del", false},
		{"cache", "cache", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			mount := n.netns(50, 0, "10.1.0.2")
			path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
			other := n.reserve("pods", "10.1.0.3", id(2), "eth0")
			c := n.result("pods", id(1), "eth0", mount, 0, "10.1.0.2")
			e := n.engine()
			a, p := n.due(e)
			// Results here name no host interface; give the group its veth.
			for i := range p.Groups {
				if len(p.Groups[i].Steps) > 1 {
					p.Groups[i].Steps = slices.Insert(p.Groups[i].Steps, 0, plan.Step{
						Kind: plan.StepVeth, Object: "veth0", Resource: p.Groups[i].Findings[0].Resource, Blocks: true, Irreversible: true,
					})
				}
			}
			n.at = func(op string) error {
				if strings.HasPrefix(op, tt.fails+" ") {
					return errors.New("EBUSY")
				}
				return nil
			}
			r := reap(t, n, e, a, p)
			n.at = nil
			if exists(path) != tt.kept {
				t.Errorf("the address is there: %v, want %v (%v)", exists(path), tt.kept, outcomes(r))
			}
			if want := tt.kept || tt.fails == "cache" || tt.fails == "cni-del"; exists(c) != want {
				t.Errorf("the cache file is there: %v, want %v: the next try is made with it", exists(c), want)
			}
			if exists(other) {
				t.Error("another group must not be kept")
			}
			told := tt.fails == "none"
			for _, f := range r.Failed {
				told = told || f.Err != nil
			}
			for _, x := range r.Released {
				for _, s := range x.Steps {
					told = told || s.State == journal.StepFailed && s.Detail != ""
				}
			}
			if !told {
				t.Error("the failure is not reported")
			}
			n.once("after")
			n.honest("after")
		})
	}
}

// Gate 3: what turns alive, or cannot be told any more, between look and release stays
// with its whole group, and nothing of it is touched.
func TestConfirmReprieves(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(n *node)
	}{
		{"alive in the runtime", func(n *node) { n.live[id(1)] = true }},
		{"alive in the kernel", func(n *node) { n.netns(60, 1, "10.1.0.2") }},
		{"kernel silent", func(n *node) { n.silent[claim.WitnessKernel] = "EPERM" }},
		{"process silent", func(n *node) { n.silent[claim.WitnessProcess] = "EPERM" }},
		{"runtime silent", func(n *node) { n.silent[claim.WitnessCRI] = "refused" }},
		{"boot silent", func(n *node) { n.silent[claim.WitnessBoot] = "EPERM" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
			second := n.reserve("pods6", "fd00::2", id(1), "eth0")
			c := n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
			e := n.engine()
			a, p := n.due(e)
			if len(p.Groups) != 1 || len(p.Groups[0].Findings) != 3 {
				t.Fatalf("plan: %+v", p)
			}
			tt.change(n)
			n.ops = nil
			r := reap(t, n, e, a, p)
			if len(r.Reprieved) != 3 || len(r.Released)+len(r.Failed) != 0 {
				t.Errorf("result: %v", outcomes(r))
			}
			if len(n.ops) > 0 || !exists(path) || !exists(second) || !exists(c) {
				t.Errorf("something was done: %q", n.ops)
			}
		})
	}
}

// Sides that take long make the confirmation stale, and the witnesses are asked again
// before the addresses go.
func TestStaleConfirmation(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration
		alive bool
		asks  int
		kept  bool
	}{
		{"quick", 100 * time.Millisecond, true, 1, false},
		{"slow", time.Second, false, 2, false},
		{"slow and alive meanwhile", time.Second, true, 2, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
			n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
			free := n.reserve("pods", "10.1.0.3", id(2), "eth0")
			e := n.engine()
			a, p := n.due(e)
			n.asked = 0
			n.at = func(op string) error {
				if strings.HasPrefix(op, "cni-del") && strings.HasSuffix(op, "+") {
					n.wait(tt.takes)
					n.live[id(1)] = tt.alive
				}
				return nil
			}
			r := reap(t, n, e, a, p)
			if n.asked != tt.asks || exists(path) != tt.kept || exists(free) {
				t.Errorf("asked %d times, want %d; kept %v, want %v; %v", n.asked, tt.asks, exists(path), tt.kept, outcomes(r))
			}
			n.at = nil
			n.once("after")
			n.honest("after")
		})
	}
}

// An orphan whose namespace we removed ourselves is Suspect when asked again, and goes.
func TestOrphanGoesAfterItsNetns(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprintf("slow=%v", slow), func(t *testing.T) {
			n := newNode(t)
			mount := n.netns(50, 0, "10.1.0.2")
			path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
			n.result("pods", id(1), "eth0", mount, 0, "10.1.0.2")
			e := n.engine()
			a, p := n.due(e)
			if len(p.Groups) != 1 || p.Groups[0].Findings[0].Verdict != verdict.Orphaned {
				t.Fatalf("plan: %+v", p.Groups)
			}
			n.at = func(op string) error {
				if slow && strings.HasPrefix(op, "netns") && strings.HasSuffix(op, "+") {
					n.wait(time.Second)
				}
				return nil
			}
			r := reap(t, n, e, a, p)
			if exists(path) || len(n.nets) != 0 || len(r.Failed)+len(r.Reprieved) > 0 {
				t.Errorf("result: %v", outcomes(r))
			}
			lost := 0
			for _, x := range r.Released {
				for _, s := range x.Steps {
					if s.Irreversible && s.Step == "netns" {
						lost++
					}
				}
			}
			if lost != 1 {
				t.Errorf("the namespace must be told as lost once, not %d times", lost)
			}
		})
	}
}

// No intent, no release: everything of the batch is reported and nothing is touched.
func TestIntentCannotBeWritten(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	c := n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
	e := n.engine()
	a, p := n.due(e)
	n.ops = nil
	n.at = func(op string) error {
		if op == "append intent" {
			return errFull
		}
		return nil
	}
	r, err := e.Reap(t.Context(), a, p)
	if !errors.Is(err, errFull) {
		t.Errorf("err = %v", err)
	}
	if len(r.Failed) != 2 || r.Failed[0].Outcome != "withheld" || r.Failed[0].Err == nil || len(r.Released) != 0 {
		t.Errorf("result: %v", outcomes(r))
	}
	if !exists(path) || !exists(c) || len(n.ops) != 1 || len(n.entries()) != 0 {
		t.Errorf("something was done: %q", n.ops)
	}
}

// The outcome cannot be written: what happened is on the disk, and the next run says so.
func TestOutcomeCannotBeWritten(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	changed := n.reserve("pods", "10.1.0.3", id(2), "eth0")
	e := n.engine()
	a, p := n.due(e)
	n.replace(changed)
	n.at = func(op string) error {
		if op == "append outcome" {
			return errFull
		}
		return nil
	}
	r, err := e.Reap(t.Context(), a, p)
	if !errors.Is(err, errFull) || len(r.Released) != 1 || len(r.Failed) != 1 {
		t.Errorf("err = %v, result: %v", err, outcomes(r))
	}
	n.at = nil
	n.once("after")
	e = n.engine()
	done, err := e.Settle(t.Context(), everywhere)
	if err != nil || len(done) != 2 {
		t.Fatalf("settled %+v, %v", done, err)
	}
	words := map[string]string{}
	for _, s := range done {
		words[s.Release.Path] = s.Outcome
	}
	if words[path] != journal.OutcomeReleased || words[changed] != journal.OutcomeGone {
		t.Errorf("settled as %v", words)
	}
	n.once("settled")
	n.honest("settled")
}

// Reap is interrupted between batches: what was begun is ended, the rest is untouched.
func TestInterruptedBetweenBatches(t *testing.T) {
	n := newNode(t)
	for i := range 600 {
		n.reserve("pods", fmt.Sprintf("10.1.%d.%d", i/250, 2+i%250), id(i), "eth0")
	}
	n.planOpt.ForceOverCap = true
	e := n.engine()
	a, p := n.due(e)
	ctx, cancel := context.WithCancel(t.Context())
	n.at = func(op string) error {
		if op == "append intent+" {
			cancel()
		}
		return nil
	}
	r, err := e.Reap(ctx, a, p)
	if !errors.Is(err, context.Canceled) || len(r.Released) != 512 || len(r.Failed) != 88 || r.Failed[0].Outcome != "withheld" {
		t.Errorf("released %d, failed %d, %v", len(r.Released), len(r.Failed), err)
	}
	n.at = nil
	n.once("after")
	n.honest("after")
}

// More groups than fit in a batch: each batch is confirmed anew, IDs are never used twice.
func TestManyBatches(t *testing.T) {
	n := newNode(t)
	for i := range 1300 {
		n.reserve("pods", fmt.Sprintf("10.1.%d.%d", i/250, 2+i%250), id(i), "eth0")
	}
	n.planOpt.ForceOverCap = true
	e := n.engine()
	a, p := n.due(e)
	n.asked, n.ops = 0, nil
	n.onAsk = func(nth int) {
		if nth == 3 {
			n.live[id(1299)] = true // alive before the last batch, not before the first
		}
	}
	r := reap(t, n, e, a, p)
	if n.asked != 3 || len(r.Released) != 1299 || len(r.Reprieved) != 1 {
		t.Errorf("asked %d times, released %d, reprieved %d, failed %d", n.asked, len(r.Released), len(r.Reprieved), len(r.Failed))
	}
	if got := strings.Count(strings.Join(n.ops, "\n"), "append intent"); got != 3 {
		t.Errorf("%d intents written, want one write for each batch", got)
	}
	ids := map[string]bool{}
	for _, x := range r.Released {
		if ids[x.ID] || !journal.ValidID(x.ID) {
			t.Fatalf("release ID %q", x.ID)
		}
		ids[x.ID] = true
	}
	n.once("after")
	n.honest("after")
}

// One container with several networks and cache files: one group, and each cache file is
// in the journal beside the reservation of its own attachment.
func TestSeveralNetworks(t *testing.T) {
	n := newNode(t)
	want := map[string]string{} // reservation -> cache
	for i, network := range []string{"a", "b", "c"} {
		ifName := fmt.Sprintf("net%d", i)
		addr := fmt.Sprintf("10.%d.0.2", i)
		want[n.reserve(network, addr, id(1), ifName)] = n.result(network, id(1), ifName, "", 0, addr)
	}
	lone := n.result("d", id(1), "net9", "", 0) // its reservation went before
	e := n.engine()
	a, p := n.due(e)
	if len(p.Groups) != 1 {
		t.Fatalf("%d groups", len(p.Groups))
	}
	reap(t, n, e, a, p)
	for _, en := range n.entries() {
		c := en.Release.Cache
		switch {
		case en.Release.Kind == claim.KindReservation && (c == nil || c.Path != want[en.Release.Path]):
			t.Errorf("%s went with cache %+v", en.Release.Path, c)
		case en.Release.Path == lone && (c == nil || c.Path != lone):
			t.Errorf("%s went without its content", lone)
		}
		if en.State != journal.StateReleased {
			t.Errorf("%s is %s", en.Release.Path, en.State)
		}
	}
	n.once("after")
	n.honest("after")
}

// What the journal cannot hold is not removed, and does not keep the address.
func TestCacheFileOverTheLimit(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	c := n.result("pods", id(1), "eth0", "", 256<<10, "10.1.0.2")
	e := n.engine()
	a, p := n.due(e)
	r := reap(t, n, e, a, p)
	if exists(path) || !exists(c) || outcomes(r)[filepath.Base(c)] != journal.OutcomeFailed {
		t.Errorf("result: %v", outcomes(r))
	}
	if slices.ContainsFunc(n.ops, func(op string) bool { return strings.HasPrefix(op, "cni-del") }) {
		t.Error("a plugin was run of what cannot be journalled")
	}
	n.honest("after")
}

// A cache file that changed after it was judged stays (F21).
func TestCacheFileRewritten(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	c := n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
	e := n.engine()
	a, p := n.due(e)
	n.result("pods", id(1), "eth0", "/run/netns/new", 1, "10.1.0.2")
	r := reap(t, n, e, a, p)
	if exists(path) || !exists(c) {
		t.Errorf("result: %v", outcomes(r))
	}
	n.honest("after")
}

// I7, F11: the same content at the same path in another file is another reservation.
func TestReplacedAfterJudgement(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	gone := n.reserve("pods", "10.1.0.3", id(2), "eth0")
	e := n.engine()
	a, p := n.due(e)
	n.at = func(op string) error {
		if op == "move pods" {
			n.replace(path)
			n.contents[n.planted[gone]]--
			return os.Remove(gone)
		}
		return nil
	}
	r := reap(t, n, e, a, p)
	got := outcomes(r)
	if !exists(path) || got["10.1.0.2"] != journal.OutcomeChanged || got["10.1.0.3"] != journal.OutcomeGone || len(r.Released) != 0 {
		t.Errorf("result: %v", got)
	}
	n.at = nil
	n.once("after")
	n.honest("after")
	if r := n.sweep(e); len(r.Released) != 0 {
		t.Error("the new file has a grace of its own")
	}
}

// L18: a store that cannot be changed is an error; nothing is claimed.
func TestReadOnlyStore(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	other := n.reserve("writable", "10.2.0.2", id(2), "eth0")
	e := n.engine()
	a, p := n.due(e)
	readOnly(t, n.store("pods"))
	r := reap(t, n, e, a, p)
	got := outcomes(r)
	if !exists(path) || exists(other) || got["10.1.0.2"] != journal.OutcomeFailed || got["10.2.0.2"] != "released" {
		t.Errorf("result: %v", got)
	}
	for _, f := range r.Failed {
		if f.Err == nil {
			t.Errorf("%s failed without a reason", f.Finding.Resource.Path)
		}
	}
	n.once("after")
	n.honest("after")
}

// L7: a lock that is held keeps its own store alone.
func TestOneStoreLocked(t *testing.T) {
	n := newNode(t)
	locked := n.reserve("a-locked", "10.1.0.2", id(1), "eth0")
	free := n.reserve("b-free", "10.2.0.2", id(2), "eth0")
	both := n.reserve("a-locked", "10.1.0.3", id(3), "eth0")
	half := n.reserve("b-free", "10.2.0.3", id(3), "net1")
	unlock := flock(t, n.store("a-locked"))
	e := n.engine()
	a, p := n.due(e)
	r := reap(t, n, e, a, p)
	if !exists(locked) || !exists(both) || exists(free) || exists(half) {
		t.Errorf("result: %v", outcomes(r))
	}
	var held *hostlocal.ErrLocked
	if len(r.Failed) != 2 || !errors.As(r.Failed[0].Err, &held) {
		t.Errorf("failed: %+v", r.Failed)
	}
	n.once("after")
	n.honest("after")
	unlock()
	if r := n.sweep(e); exists(locked) || exists(both) {
		t.Errorf("with the lock free: %v", outcomes(r))
	}
}

// What the journal refuses as a record withholds its group and no other.
func TestPathThatTheJournalCannotHold(t *testing.T) {
	n := newNode(t)
	// A network whose name is no UTF-8 gives such a path.
	bad := n.reserve("pods\xff", "10.1.0.2", id(1), "eth0")
	good := n.reserve("pods", "10.1.0.3", id(2), "eth0")
	e := n.engine()
	a, p := n.due(e)
	r := reap(t, n, e, a, p)
	if !exists(bad) || exists(good) {
		t.Errorf("result: %v", outcomes(r))
	}
	if len(p.Groups) == 2 && (len(r.Failed) != 1 || !errors.Is(r.Failed[0].Err, journal.ErrInvalid) || r.Failed[0].Outcome != "withheld") {
		t.Errorf("failed: %+v", r.Failed)
	}
}

// An empty plan does nothing at all.
func TestNothingToDo(t *testing.T) {
	n := newNode(t)
	n.reserve("pods", "10.1.0.2", id(1), "eth0")
	n.live[id(1)] = true
	e := n.engine()
	a, p := n.due(e)
	n.asked, n.ops = 0, nil
	r := reap(t, n, e, a, p)
	if n.asked != 0 || len(n.ops) != 0 || len(r.Released) != 0 || r.Sweep == "" {
		t.Errorf("asked %d, did %q", n.asked, n.ops)
	}
}

// The address of a leftover in a renamed network's directory was handed out again by the new
// directory (L15). The idle namespace that made the leftover Orphaned is gone, removed by
// hand; the one that holds the address now belongs to an ADD in flight, so no process is in
// it yet and no runtime lists it. An hour of the old namespace must not count for the new
// one: it would be removed under the ADD (I1).
func TestOrphanRunIsOfOneNetns(t *testing.T) {
	n := newNode(t)
	n.netns(50, 0, "10.1.0.2")
	n.reserve("old-name", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	n.look(e)
	n.wait(2 * orphanGrace)
	delete(n.nets, 50)
	n.reserve("new-name", "10.1.0.2", id(2), "eth0")
	n.netns(51, 0, "10.1.0.2")
	a := n.look(e)
	r := reap(t, n, e, a, n.plan(a))
	if _, ok := n.nets[51]; !ok {
		t.Errorf("the namespace of an ADD in flight was removed: %v", outcomes(r))
	}
}
