package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// DELs that hang until their own time-out (20 s in the driver) keep nothing (I2): they
// cannot hold an address alive, and neither the re-confirmation nor the moves may run out
// of time on their account.
func TestHangingPluginsKeepNothing(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := newNodeIn(t, root)
		var paths []string
		for i := range 10 {
			addr := fmt.Sprintf("10.1.0.%d", 2+i)
			paths = append(paths, n.reserve("pods", addr, id(i), "eth0"))
			n.result("pods", id(i), "eth0", "", 0, addr)
		}
		e := n.engine()
		a, p := n.due(e)
		e.Sides = hangingSides{sideTap{n}}
		r, err := e.Reap(t.Context(), a, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if exists(path) {
				t.Fatalf("%d released, %d failed, the first: %v", len(r.Released), len(r.Failed), r.Failed[0].Err)
			}
		}
	})
}

type hangingSides struct{ sideTap }

func (s hangingSides) Run(ctx context.Context, step plan.Step) journal.StepResult {
	if step.Kind != plan.StepDel {
		return s.sideTap.Run(ctx, step)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	<-ctx.Done()
	s.n.wait(time.Since(start))
	return journal.StepResult{Step: string(step.Kind), Object: step.Object, State: journal.StepFailed, Detail: "timed out"}
}

// killedUndo releases one address and kills its undo right before op.
func killedUndo(t *testing.T, op string) (n *node, path string) {
	n, e, path, _, release := released(t)
	n.at = func(o string) error {
		if o == op {
			panic(killed{})
		}
		return nil
	}
	if !n.dies(func() { _, _ = e.Undo(t.Context(), []string{release}) }) {
		t.Fatalf("never came to %q: %q", op, n.ops)
	}
	n.at = nil
	return n, path
}

// An undo that was killed before its hold was written is ended by Settle with one:
// otherwise the address goes again after the next grace.
func TestSettledUndoIsHeld(t *testing.T) {
	n, path := killedUndo(t, "hold 10.1.0.2")
	if _, err := n.engine().Settle(t.Context(), everywhere); err != nil {
		t.Fatal(err)
	}
	if exists(path) && len(n.holds) == 0 {
		t.Error("put back by Settle, and not held")
	}
}

// An undo that Settle finds taken or of another boot leaves no hold behind: whoever gets
// the address next could then leak it for ever (I2).
func TestSettledUndoLeavesNoHold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(n *node, path string)
	}{
		{"taken", func(n *node, path string) { n.put(path, id(9)+"\r\neth0") }},
		{"another boot", func(n *node, _ string) { n.reboot("boot-3") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, path := killedUndo(t, "restore 10.1.0.2")
			tt.before(n, path)
			if _, err := n.engine().Settle(t.Context(), everywhere); err != nil {
				t.Fatal(err)
			}
			if len(n.holds) != 0 {
				t.Errorf("holds %v", n.holds)
			}
		})
	}
}

// Ctrl-C ends an undo of many between two of them: with a held lock each waits its 5 s.
func TestUndoInterrupted(t *testing.T) {
	n := newNode(t)
	for i := range 3 {
		n.reserve("pods", fmt.Sprintf("10.1.0.%d", 2+i), id(i), "eth0")
	}
	e := n.engine()
	a, p := n.due(e)
	r := reap(t, n, e, a, p)
	var ids []string
	for _, x := range r.Released {
		ids = append(ids, x.ID)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.at = func(op string) error {
		if strings.HasPrefix(op, "restore") && strings.HasSuffix(op, "+") {
			cancel()
		}
		return nil
	}
	u, err := e.Undo(ctx, ids)
	if !errors.Is(err, context.Canceled) || len(u) != 1 {
		t.Errorf("%d undone, %v", len(u), err)
	}
	n.honest("after")
}

// What took longer than some seconds to be said is too old to act on.
func TestConfirmationAge(t *testing.T) {
	n := newNode(t)
	n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	a, p := n.due(e)
	n.asked = 0
	n.onAsk = func(nth int) {
		if nth == 1 {
			n.wait(8 * time.Second)
		}
	}
	r, err := e.Reap(t.Context(), a, p)
	if err == nil || len(r.Released) != 0 || len(r.Failed) != 1 {
		t.Errorf("released %d, failed %d, %v: what was asked 8 s ago counts as fresh", len(r.Released), len(r.Failed), err)
	}
}

// Only host-local listed again can deny a Missing. Another inventory that has a store (links
// and the cache have, when a directory cannot be listed) does not take its place.
func TestRelistIsHostLocals(t *testing.T) {
	n := newNode(t)
	n.reserve("pods", "10.1.0.9", id(8), "eth0")
	n.live[id(8)], n.live[id(1)] = true, true
	n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
	n.onAsk = func(int) { n.reserve("pods", "10.1.0.2", id(1), "eth0") }
	e := n.engine()
	e.Inventories = append(e.Inventories, brokenLinks{n})
	a := n.look(e)
	if a.Case.Relisted == nil || a.Case.Relisted.Source != "hostlocal" {
		t.Errorf("listed again: %+v", a.Case.Relisted)
	}
	for _, f := range a.Judgement.Findings {
		if f.Verdict == verdict.Missing {
			t.Errorf("%s is Missing, and lies there", f.Resource.Path)
		}
	}
}

type brokenLinks struct{ n *node }

func (brokenLinks) Name() string { return "links" }
func (l brokenLinks) List(context.Context) claim.Snapshot {
	return claim.Snapshot{Source: "links", Listed: l.n.clock(), Stores: []claim.Store{{Dir: "/run/netns", DataDir: "/run", Problem: "EPERM"}}}
}

// Two namespaces in one group: each is settled by its own step, not by the last one, and
// when the first stays the second is not tried, since a group goes as a whole.
func TestEachNetnsByItsOwnStep(t *testing.T) {
	n := newNode(t)
	e := n.engine()
	a := n.look(e)
	owner := claim.Owner{Shape: claim.ShapeContainer, ID: id(1)}
	var fs []*verdict.Finding
	g := plan.Group{}
	for i := range 2 {
		mount := n.netns(uint64(50+i), 0)
		r := &claim.Resource{Kind: claim.KindNetns, Store: "/run/netns", Path: mount, NetnsID: uint64(50 + i), Owner: owner}
		a.Case.Snapshots[0].Resources = append(a.Case.Snapshots[0].Resources, *r)
		fs = append(fs, &verdict.Finding{Resource: r, Verdict: verdict.Orphaned})
		g.Steps = append(g.Steps, plan.Step{Kind: plan.StepNetns, Object: mount, NetnsID: r.NetnsID, Blocks: true, Irreversible: true})
	}
	g.Findings = fs
	// Twice, an orphan grace apart, so that the confirmation lets them go.
	a.Judgement = verdict.Judge(&a.Case)
	n.wait(2 * orphanGrace)
	n.sideState = func(s plan.Step) (journal.StepResult, bool) {
		return journal.StepResult{Step: "netns", Object: s.Object, State: journal.StepFailed, Detail: "EBUSY"}, s.NetnsID == 50
	}
	c := a.Case
	c.Memory = a.Judgement.Memory
	c.Testimonies = oracle{n}.Ask(t.Context(), true)
	a.Case.Testimonies, a.Case.Now = c.Testimonies, n.clock()
	a.Judgement = verdict.Judge(&a.Case)
	n.wait(2 * orphanGrace)
	r := reap(t, n, e, a, &plan.Plan{Groups: []plan.Group{g}})
	got := outcomes(r)
	if got[filepath.Base(fs[0].Resource.Path)] != journal.OutcomeFailed || got[filepath.Base(fs[1].Resource.Path)] != journal.OutcomeFailed || len(n.nets) != 2 {
		t.Errorf("result: %v", got)
	}
}

// The same release twice in one command: the second is refused like any second undo, and
// the journal has no record that does not fit.
func TestUndoNamedTwice(t *testing.T) {
	n, e, path, _, release := released(t)
	u, err := e.Undo(t.Context(), []string{release, release})
	if err != nil || u[0].Outcome != journal.UndoRestored || !exists(path) {
		t.Errorf("undone %+v, %v", u, err)
	}
	if len(u) == 2 && !errors.Is(u[1].Err, ErrNotUndoable) {
		t.Errorf("the second: %+v", u[1])
	}
	n.honest("after")
}

// What was put back is told even when its outcome could not be journalled.
func TestUndoIsTold(t *testing.T) {
	n, e, path, _, release := released(t)
	n.at = func(op string) error {
		if op == "append undo-outcome" {
			return errFull
		}
		return nil
	}
	u, err := e.Undo(t.Context(), []string{release})
	if !exists(path) || err == nil || len(u) != 1 || u[0].Outcome != journal.UndoRestored {
		t.Errorf("the reservation is back, and Undo says %+v, %v", u, err)
	}
}

// When no intent can be written, every group that should have gone is reported, those of
// later batches too.
func TestAllBatchesReported(t *testing.T) {
	n := newNode(t)
	for i := range 600 {
		n.reserve("pods", fmt.Sprintf("10.1.%d.%d", i/250, 2+i%250), id(i), "eth0")
	}
	n.planOpt.ForceOverCap = true
	e := n.engine()
	a, p := n.due(e)
	n.at = func(string) error { return errFull }
	r, err := e.Reap(t.Context(), a, p)
	if err == nil || len(r.Failed) != 600 {
		t.Errorf("%d reported, %v", len(r.Failed), err)
	}
}

// A hold that is given while a store's lock is waited for counts: its command has returned.
func TestHoldUnderTheLock(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	other := n.reserve("pods", "10.1.0.3", id(2), "eth0")
	e := n.engine()
	a, p := n.due(e)
	n.at = func(op string) error {
		if op == "move pods" {
			n.holds[verdict.Hold{Addr: netip.MustParseAddr("10.1.0.2")}] = true
		}
		return nil
	}
	reap(t, n, e, a, p)
	if !exists(path) || exists(other) {
		t.Errorf("held: there %v; not held: there %v", exists(path), exists(other))
	}
}

// An undo of an earlier boot that a crash left half way holds nothing in this one.
func TestSettledUndoOfAPastBootHoldsNothing(t *testing.T) {
	n, _ := killedUndo(t, "restore 10.1.0.2+")
	n.reboot("boot-3")
	if _, err := n.engine().Settle(t.Context(), everywhere); err != nil {
		t.Fatal(err)
	}
	if len(n.holds) != 0 {
		t.Errorf("holds %v", n.holds)
	}
}

// A namespace whose removal said "done" and that is still there holds the address alive: a
// second mount, a process that came (case F14). The address stays.
func TestNamespaceThatStays(t *testing.T) {
	for _, stays := range []bool{false, true} {
		n := newNode(t)
		mount := n.netns(50, 0, "10.1.0.2")
		path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
		n.result("pods", id(1), "eth0", mount, 0, "10.1.0.2")
		e := n.engine()
		a, p := n.due(e)
		n.sideState = func(s plan.Step) (journal.StepResult, bool) {
			return journal.StepResult{Step: "netns", Object: s.Object, State: journal.StepDone}, stays && s.Kind == plan.StepNetns
		}
		reap(t, n, e, a, p)
		if exists(path) != stays {
			t.Errorf("the namespace stays: %v, the address stays: %v", stays, exists(path))
		}
	}
}
