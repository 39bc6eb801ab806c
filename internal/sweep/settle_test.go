package sweep_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// open puts a release into the journal as a crash leaves it: an intent, and for an undo
// the words up to its beginning. It returns the release ID.
func (n *node) open(path string, undo bool) string {
	n.t.Helper()
	e := n.engine()
	a, p := n.due(e)
	n.at = func(op string) error {
		if op == "move pods" {
			panic(killed{})
		}
		return nil
	}
	if !n.dies(func() { _, _ = e.Reap(n.t.Context(), a, p) }) {
		n.t.Fatal("nothing was moved")
	}
	n.at = nil
	n.engine()
	en := n.entries()
	i := slices.IndexFunc(en, func(x journal.Entry) bool { return x.Release.Path == path })
	if undo {
		for _, r := range []journal.Record{
			{Type: journal.Outcome, At: n.clock(), ReleaseID: en[i].ID, Outcome: journal.OutcomeReleased},
			{Type: journal.UndoIntent, At: n.clock(), ReleaseID: en[i].ID},
		} {
			if err := n.log.Append(r); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	return en[i].ID
}

// dies runs f as a process that may be killed, and reports whether it was.
func (n *node) dies(f func()) (dead bool) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case killed:
			dead = true
		default:
			panic(r)
		}
	}()
	f()
	return false
}

// The whole table of Settle: where the file lies says what happened (I4).
func TestSettle(t *testing.T) {
	const addr = "10.1.0.2"
	for _, tt := range []struct {
		name                string
		undo                bool
		origin, quarantined bool
		taken               bool // another reservation has the address
		reboot              bool
		want                string
		wantOrigin, wantQ   bool
		state               journal.State
	}{
		{name: "release not begun", origin: true, want: journal.OutcomeRolledBack, wantOrigin: true, state: journal.StateRolledBack},
		{name: "release done", quarantined: true, want: journal.OutcomeReleased, wantQ: true, state: journal.StateReleased},
		{name: "release done, another boot", quarantined: true, reboot: true, want: journal.OutcomeReleased, wantQ: true, state: journal.StateReleased},
		{name: "release copied", origin: true, quarantined: true, want: journal.OutcomeRolledBack, wantOrigin: true, state: journal.StateRolledBack},
		{name: "release of what is gone", want: journal.OutcomeGone, state: journal.StateGone},
		{name: "release done and taken", quarantined: true, taken: true, want: journal.OutcomeReleased, wantOrigin: true, wantQ: true, state: journal.StateReleased},
		{name: "undo done", undo: true, origin: true, want: journal.UndoRestored, wantOrigin: true, state: journal.StateUndone},
		{name: "undo not ended", undo: true, quarantined: true, want: journal.UndoRestored, wantOrigin: true, state: journal.StateUndone},
		{name: "undo copied", undo: true, origin: true, quarantined: true, want: journal.UndoRestored, wantOrigin: true, state: journal.StateUndone},
		{name: "undo of what went since", undo: true, want: journal.UndoRestored, state: journal.StateUndone},
		{name: "undo of what is taken", undo: true, quarantined: true, taken: true, want: journal.UndoTaken, wantOrigin: true, wantQ: true, state: journal.StateReleased},
		{name: "undo not ended, another boot", undo: true, quarantined: true, reboot: true, want: journal.UndoFailed, wantQ: true, state: journal.StateReleased},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			path := n.reserve("pods", addr, id(1), "eth0")
			release := n.open(path, tt.undo)
			q := filepath.Join(n.vault.Dir, release)
			if err := os.MkdirAll(n.vault.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.origin && tt.quarantined:
				n.put(q, n.planted[path])
			case tt.quarantined:
				if err := os.Rename(path, q); err != nil {
					t.Fatal(err)
				}
			case !tt.origin:
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if tt.taken {
				n.put(path, id(2)+"\r\neth0")
			}
			if tt.reboot {
				n.reboot("boot-3")
			}
			e := n.engine()
			done, err := e.Settle(t.Context(), everywhere)
			if err != nil || len(done) != 1 || done[0].ID != release || done[0].Outcome != tt.want {
				t.Errorf("settled %+v, %v; want %s", done, err, tt.want)
			}
			if exists(path) != tt.wantOrigin || exists(q) != tt.wantQ {
				t.Errorf("origin %v, quarantined %v; want %v, %v", exists(path), exists(q), tt.wantOrigin, tt.wantQ)
			}
			if b, err := os.ReadFile(path); tt.taken && (err != nil || string(b) != id(2)+"\r\neth0") {
				t.Errorf("the other's reservation is %q, %v", b, err)
			}
			if en := n.entries(); en[0].State != tt.state {
				t.Errorf("state %s, want %s", en[0].State, tt.state)
			}
			if done, err := e.Settle(t.Context(), everywhere); err != nil || len(done) != 0 {
				t.Errorf("settled again: %+v, %v", done, err)
			}
		})
	}
}

// What another reaper owns is left open, and what cannot be looked at too; the rest goes on.
func TestSettleLeavesOpen(t *testing.T) {
	n := newNode(t)
	mine := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	n.reserve("z-others", "10.2.0.2", id(2), "eth0")
	n.open(mine, false)
	e := n.engine()
	done, err := e.Settle(t.Context(), func(store string) bool { return store == n.store("pods") })
	if err != nil || len(done) != 1 || done[0].Release.Path != mine {
		t.Errorf("settled %+v, %v", done, err)
	}
	// A quarantine that cannot be read says nothing of where things are.
	n.vault.Dir = filepath.Join(n.stateDir, strings.Repeat("x", 300))
	if done, err = e.Settle(t.Context(), everywhere); err == nil || len(done) != 0 {
		t.Errorf("settled %+v, %v: nothing can be known", done, err)
	}
	if en := n.entries(); !en[1].State.Unsettled() {
		t.Errorf("state %s", en[1].State)
	}
}

// An interrupted Settle does nothing more, and what it could not write stays open.
func TestSettleInterrupted(t *testing.T) {
	n := newNode(t)
	n.open(n.reserve("pods", "10.1.0.2", id(1), "eth0"), false)
	e := n.engine()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Settle(ctx, everywhere); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	n.at = func(string) error { return errFull }
	if _, err := e.Settle(t.Context(), everywhere); !errors.Is(err, errFull) {
		t.Errorf("err = %v", err)
	}
	if en := n.entries(); en[0].State != journal.StateOpen {
		t.Errorf("state %s", en[0].State)
	}
}

// released gives a node on which two attachments went, and the ID of the first.
func released(t *testing.T) (n *node, e *Engine, path, c, first string) {
	t.Helper()
	n = newNode(t)
	mount := n.netns(50, 0, "10.1.0.2")
	path = n.reserve("pods", "10.1.0.2", id(1), "eth0")
	n.reserve("pods", "10.1.0.3", id(2), "eth0")
	c = n.result("pods", id(1), "eth0", mount, 0, "10.1.0.2")
	e = n.engine()
	a, p := n.due(e)
	r := reap(t, n, e, a, p)
	for _, x := range r.Released {
		if x.Finding.Resource.Path == path {
			first = x.ID
		}
	}
	if first == "" || exists(path) || exists(c) {
		t.Fatalf("not released: %v", outcomes(r))
	}
	n.ops = nil
	return n, e, path, c, first
}

func undo(t *testing.T, e *Engine, ids ...string) []Undone {
	t.Helper()
	u, err := e.Undo(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// An undo holds first, then puts the reservation and the cache file back as they were,
// and names what it cannot bring back. The next sweep leaves what is held.
func TestUndo(t *testing.T) {
	n, e, path, c, release := released(t)
	u := undo(t, e, release)
	if len(u) != 1 || u[0].Outcome != journal.UndoRestored || u[0].Err != nil {
		t.Fatalf("undone: %+v", u)
	}
	want := []string{"append undo-intent", "hold 10.1.0.2", "restore 10.1.0.2", "cache-restore " + filepath.Base(c), "append undo-outcome"}
	if !slices.Equal(n.ops, want) {
		t.Errorf("order %q, want %q", n.ops, want)
	}
	if len(u[0].Lost) != 2 || u[0].Lost[0].Step != "netns" || u[0].Lost[1].Step != "cni-del" {
		t.Errorf("lost: %+v", u[0].Lost)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != n.planted[path] {
		t.Errorf("reservation %q, %v", b, err)
	}
	if b, err := os.ReadFile(c); err != nil || string(b) != string(n.cached[c]) {
		t.Errorf("cache %q, %v", b, err)
	}
	n.once("undone")
	n.honest("undone")
	n.look(e)
	n.wait(2 * orphanGrace)
	if r := n.sweep(e); len(r.Released) > 0 || !exists(path) {
		t.Errorf("what is held went again: %v", outcomes(r))
	}
	// The cache file's grace begins with the end of the hold, and the address goes last.
	n.holds = map[verdict.Hold]bool{}
	if r := n.sweep(e); !exists(path) {
		t.Errorf("the address went before its cache file: %v", outcomes(r))
	}
	n.wait(grace)
	if r := n.sweep(e); exists(path) {
		t.Errorf("without the hold it goes: %v", outcomes(r))
	}
	n.once("swept")
	n.honest("swept")
}

func TestUndoRefused(t *testing.T) {
	t.Run("twice", func(t *testing.T) {
		n, e, path, _, release := released(t)
		undo(t, e, release)
		if u := undo(t, e, release); u[0].Outcome != journal.UndoFailed || !errors.Is(u[0].Err, ErrNotUndoable) {
			t.Errorf("second undo: %+v", u)
		}
		if !exists(path) || len(n.holds) != 1 {
			t.Errorf("the first undo is not as it was: %v", n.holds)
		}
		n.honest("after")
	})
	t.Run("another boot", func(t *testing.T) {
		n, _, path, _, release := released(t)
		n.reboot("boot-3")
		e := n.engine()
		if u := undo(t, e, release); u[0].Outcome != journal.UndoFailed || !errors.Is(u[0].Err, ErrNotUndoable) {
			t.Errorf("undo: %+v", u)
		}
		if exists(path) || len(n.holds) != 0 {
			t.Error("something was done")
		}
		n.once("after")
		n.honest("after")
	})
	t.Run("no boot ID", func(t *testing.T) {
		n, e, path, _, release := released(t)
		n.now.Boot = ""
		if u := undo(t, e, release); u[0].Outcome != journal.UndoFailed || exists(path) {
			t.Errorf("undo: %+v", u)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		_, e, _, _, release := released(t)
		u, err := e.Undo(t.Context(), []string{release, "20260101-000000-abcdef", release})
		if !errors.Is(err, ErrNotUndoable) || len(u) != 1 || u[0].Outcome != journal.UndoRestored {
			t.Errorf("undo: %+v, %v", u, err)
		}
	})
	t.Run("failed release", func(t *testing.T) {
		n := newNode(t)
		n.reserve("pods", "10.1.0.2", id(1), "eth0")
		flock(t, n.store("pods"))
		e := n.engine()
		a, p := n.due(e)
		r := reap(t, n, e, a, p)
		if u := undo(t, e, r.Failed[0].ID); u[0].Outcome != journal.UndoFailed || !errors.Is(u[0].Err, ErrNotUndoable) {
			t.Errorf("undo: %+v", u)
		}
		n.honest("after")
	})
}

// When the address is not put back, its hold does not stay either: it would hold another's.
func TestUndoFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(n *node, path string)
		fails  string
		want   string
		state  journal.State
	}{
		{"taken", func(n *node, path string) { n.put(path, id(9)+"\r\neth0") }, "", journal.UndoTaken, journal.StateReleased},
		{"taken in another spelling", func(n *node, path string) {
			n.put(filepath.Join(filepath.Dir(path), "::ffff:10.1.0.2"), id(9)+"\r\neth0")
		}, "", journal.UndoTaken, journal.StateReleased},
		{"restore fails", func(*node, string) {}, "restore", journal.UndoFailed, journal.StateReleased},
		{"hold fails", func(*node, string) {}, "hold", journal.UndoFailed, journal.StateReleased},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, e, path, c, release := released(t)
			tt.before(n, path)
			n.at = func(op string) error {
				if tt.fails != "" && strings.HasPrefix(op, tt.fails+" ") && !strings.HasSuffix(op, "+") {
					return errFull
				}
				return nil
			}
			u := undo(t, e, release)
			if u[0].Outcome != tt.want || u[0].Err == nil {
				t.Errorf("undo: %+v", u)
			}
			if len(n.holds) != 0 || exists(c) || n.quarantine()[release] == "" {
				t.Errorf("holds %v, cache file there %v, quarantine %q", n.holds, exists(c), n.quarantine())
			}
			n.at = nil
			n.honest("after")
			// It can be tried again.
			_ = os.Remove(path)
			_ = os.Remove(filepath.Join(filepath.Dir(path), "::ffff:10.1.0.2"))
			if u := undo(t, e, release); u[0].Outcome != journal.UndoRestored || !exists(path) || !exists(c) {
				t.Errorf("again: %+v", u)
			}
			n.once("again")
			n.honest("again")
		})
	}
}

// A hold that a person set before the undo stays when the undo fails.
func TestUndoKeepsAPersonsHold(t *testing.T) {
	n, e, path, _, release := released(t)
	h := verdict.Hold{Store: n.store("pods"), Addr: netip.MustParseAddr("10.1.0.2")}
	n.holds[h] = true
	n.put(path, id(9)+"\r\neth0")
	if u := undo(t, e, release); u[0].Outcome != journal.UndoTaken || !n.holds[h] {
		t.Errorf("undo %+v, holds %v", u, n.holds)
	}
}

// A cache file that a new ADD wrote meanwhile stays; the reservation comes back all the same.
func TestUndoWithCacheFileThere(t *testing.T) {
	n, e, path, c, release := released(t)
	n.put(c, "newer")
	u := undo(t, e, release)
	b, _ := os.ReadFile(c)
	if u[0].Outcome != journal.UndoRestored || !exists(path) || string(b) != "newer" || len(u[0].Steps) != 1 || u[0].Steps[0].State != journal.StepFailed {
		t.Errorf("undo: %+v, the cache file holds %q", u, b)
	}
	n.honest("after")
}

// A cache file without a reservation of its own comes back by its own release; when it
// cannot, that is no undo.
func TestUndoLoneCacheFile(t *testing.T) {
	for _, there := range []bool{false, true} {
		n := newNode(t)
		c := n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
		e := n.engine()
		a, p := n.due(e)
		r := reap(t, n, e, a, p)
		if exists(c) || len(r.Released) != 1 {
			t.Fatalf("result: %v", outcomes(r))
		}
		if there {
			n.put(c, "newer")
		}
		u := undo(t, e, r.Released[0].ID)
		if there != (u[0].Outcome == journal.UndoFailed) || len(n.holds) != 0 || !exists(c) {
			t.Errorf("there=%v: %+v", there, u)
		}
		n.honest("after")
	}
}

// The intent of an undo cannot be written: nothing is undone. Its outcome cannot: the next
// run says that it was.
func TestUndoWithoutJournal(t *testing.T) {
	n, e, path, _, release := released(t)
	n.at = func(op string) error {
		if op == "append undo-intent" {
			return errFull
		}
		return nil
	}
	if _, err := e.Undo(t.Context(), []string{release}); !errors.Is(err, errFull) || exists(path) || len(n.holds) != 0 {
		t.Errorf("err = %v, holds %v", err, n.holds)
	}
	n.at = func(op string) error {
		if op == "append undo-outcome" {
			return errFull
		}
		return nil
	}
	if _, err := e.Undo(t.Context(), []string{release}); !errors.Is(err, errFull) || !exists(path) || len(n.holds) != 1 {
		t.Errorf("err = %v, holds %v", err, n.holds)
	}
	n.at = nil
	e = n.engine()
	done, err := e.Settle(t.Context(), everywhere)
	if err != nil || len(done) != 1 || done[0].Outcome != journal.UndoRestored {
		t.Errorf("settled %+v, %v", done, err)
	}
	n.once("settled")
	n.honest("settled")
}

// Namespaces that went cannot be made again.
func TestUndoOfNetns(t *testing.T) {
	n := newNode(t)
	n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	a, p := n.due(e)
	for i := range p.Groups[0].Findings {
		p.Groups[0].Findings[i].Resource.Kind = claim.KindNetns
	}
	_ = reap(t, n, e, a, p)
	for _, en := range n.entries() {
		if u := undo(t, e, en.ID); u[0].Outcome != journal.UndoFailed || !errors.Is(u[0].Err, ErrNotUndoable) {
			t.Errorf("undo: %+v", u)
		}
	}
}
