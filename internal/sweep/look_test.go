package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// I6: whatever round it is, no witness whose word counts was asked before a listing ended.
func checkI6(t *testing.T, a *Audit) {
	t.Helper()
	for _, s := range a.Case.Snapshots {
		for _, w := range a.Case.Testimonies {
			if _, ok := w.Asked.Since(s.Listed); !ok {
				t.Errorf("%s asked at %v, %s listed at %v", w.Witness, w.Asked.Mono, s.Source, s.Listed.Mono)
			}
			if _, ok := a.Case.Now.Since(w.Asked); !ok {
				t.Errorf("judged at %v, %s asked at %v", a.Case.Now.Mono, w.Witness, w.Asked.Mono)
			}
		}
	}
	if r := a.Case.Relisted; r != nil {
		for _, w := range a.Case.Testimonies {
			if _, ok := r.Listed.Since(w.Asked); !ok {
				t.Errorf("listed again at %v, %s asked at %v: an ADD between the two reads as Missing", r.Listed.Mono, w.Witness, w.Asked.Mono)
			}
		}
	}
}

// Look asks for details only when the judge needs them, and lists again only when
// something seems missing, in that order.
func TestLookRounds(t *testing.T) {
	for _, tt := range []struct {
		name          string
		plant         func(n *node)
		asked, listed int
		verdict       verdict.Verdict
	}{
		{"nothing", func(n *node) {}, 1, 2, ""},
		{"plain", func(n *node) { n.reserve("pods", "10.1.0.2", id(1), "eth0") }, 1, 2, verdict.Suspect},
		{"detail", func(n *node) { n.reserve("pods", "10.1.0.2", "", "") }, 2, 2, verdict.Malformed},
		{"relist", func(n *node) {
			n.reserve("pods", "10.1.0.9", id(8), "eth0")
			n.live[id(8)], n.live[id(1)] = true, true
			n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
		}, 1, 3, verdict.Missing},
		{"both", func(n *node) {
			n.reserve("pods", "10.1.0.9", "", "")
			n.live[id(1)] = true
			n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
		}, 2, 3, verdict.Missing},
		{"missing by the details", func(n *node) {
			n.reserve("pods", "10.1.0.9", "", "")
			n.unready = []claim.Sandbox{{ID: id(1), Endpoint: endpoint, Netns: n.netns(50, 1)}}
			n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
		}, 2, 3, verdict.Missing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			tt.plant(n)
			e := n.engine()
			a := n.look(e)
			checkI6(t, a)
			if n.asked != tt.asked || n.listed != tt.listed {
				t.Errorf("asked %d, listed %d; want %d, %d", n.asked, n.listed, tt.asked, tt.listed)
			}
			found := tt.verdict == ""
			for _, f := range a.Judgement.Findings {
				found = found || f.Verdict == tt.verdict
			}
			if !found {
				t.Errorf("no %s in %+v", tt.verdict, a.Judgement.Findings)
			}
			if a.Took <= 0 {
				t.Errorf("took %v", a.Took)
			}
		})
	}
}

// An ADD between listing and asking is not Missing: the second listing has it.
func TestRelistSeesTheADD(t *testing.T) {
	n := newNode(t)
	n.reserve("pods", "10.1.0.9", id(8), "eth0")
	n.live[id(8)], n.live[id(1)] = true, true
	n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
	n.onAsk = func(nth int) {
		if nth == 1 {
			n.reserve("pods", "10.1.0.2", id(1), "eth0")
		}
	}
	a := n.look(n.engine())
	for _, f := range a.Judgement.Findings {
		if f.Verdict == verdict.Missing {
			t.Errorf("%s is Missing", f.Resource.Path)
		}
	}
}

// Sightings that cannot be loaded or saved: told, and nothing of the old ones is written over.
func TestUnremembered(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	n.look(e)
	before := n.memory
	n.wait(2 * grace)
	n.memErr = errors.New("checksum")
	a := n.look(e)
	if !errors.Is(a.Unremembered, n.memErr) || len(n.memory) != len(before) || n.memory[0].Absent != before[0].Absent {
		t.Errorf("unremembered %v, memory %+v", a.Unremembered, n.memory)
	}
	n.memErr, n.saveErr = nil, errFull
	if a = n.look(e); !errors.Is(a.Unremembered, errFull) {
		t.Errorf("unremembered %v", a.Unremembered)
	}
	n.saveErr = nil
	n.memory = nil
	if r := n.sweep(e); len(r.Released) != 0 || !exists(path) {
		t.Error("released on one sighting")
	}
}

// What is remembered already is not written again, unless something may go: then a disk
// that takes nothing more must be noticed before.
func TestWrittenWhenNew(t *testing.T) {
	full := errors.New("disk full")
	for _, tt := range []struct {
		name  string
		then  func(n *node)
		write bool
	}{
		{"nothing new", func(n *node) { n.wait(time.Second) }, false},
		{"new", func(n *node) { n.reserve("pods", "10.1.0.3", id(2), "eth0") }, true},
		{"alive", func(n *node) { n.live[id(1)] = true }, true},
		{"may go", func(n *node) { n.wait(2 * orphanGrace) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.reserve("pods", "10.1.0.2", id(1), "eth0")
			e := n.engine()
			n.look(e)
			tt.then(n)
			n.saveErr = full
			if a := n.look(e); errors.Is(a.Unremembered, full) != tt.write {
				t.Errorf("unremembered: %v, want it written: %t", a.Unremembered, tt.write)
			}
		})
	}
}

// A sighting counts for the incarnation that was seen and for nothing else (F11).
func TestSightingOfAnotherFile(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	n.look(e)
	n.wait(2 * grace)
	n.replace(path)
	if r := n.sweep(e); len(r.Released) != 0 || !exists(path) {
		t.Errorf("result: %v", outcomes(r))
	}
}

// L4, F23: a boot that our own history saw replaced proves death at once; a boot ID that
// merely differs proves nothing.
func TestReboot(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known=%v", known), func(t *testing.T) {
			n := newNode(t)
			path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
			n.look(n.engine())
			n.reboot("boot-3")
			if !known {
				n.past = nil
			}
			e := n.engine()
			r := n.sweep(e)
			if exists(path) != !known {
				t.Errorf("known=%v: %v", known, outcomes(r))
			}
			n.once("after")
			n.honest("after")
		})
	}
}

func TestLookInterrupted(t *testing.T) {
	n := newNode(t)
	n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	ctx, cancel := context.WithCancel(t.Context())
	n.onAsk = func(int) { cancel() }
	if a, err := e.Look(ctx, n.policy); !errors.Is(err, context.Canceled) || a != nil {
		t.Errorf("%+v, %v", a, err)
	}
}

// Look writes nothing anywhere.
func TestLookWritesNothing(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	if _, err := e.Look(t.Context(), n.policy); err != nil {
		t.Fatal(err)
	}
	if len(n.ops) > 0 || n.memory != nil || !exists(path) || exists(filepath.Join(n.stateDir, "quarantine")) {
		t.Errorf("did %q", n.ops)
	}
}

// The second sighting counts by the monotonic clock: an hour's step of the wall clock
// neither hastens nor delays it (F8).
func TestWallClockDoesNotCount(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		n := newNode(t)
		path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
		e := n.engine()
		n.look(e)
		n.now.Wall = n.now.Wall.Add(step)
		n.wait(grace / 2)
		if n.sweep(e); !exists(path) {
			t.Errorf("step %v: gone within the grace", step)
		}
		n.wait(grace)
		if n.sweep(e); exists(path) {
			t.Errorf("step %v: there after the grace", step)
		}
	}
}
