package sweep_test

import (
	"errors"
	"fmt"
	"net/netip"
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

// robbed is a node on which n Pods live whose reservations somebody removed; the paths.
func robbed(n *node, pods int) (paths []string) {
	n.policy.Adopt = true
	if err := os.MkdirAll(n.store("pods"), 0o755); err != nil {
		n.t.Fatal(err)
	}
	for i := range pods {
		addr := fmt.Sprintf("10.1.0.%d", i+10)
		mount := n.netns(uint64(60+i), 1, addr)
		n.result("pods", id(i), "eth0", mount, 0, addr)
		n.live[id(i)] = true
		paths = append(paths, filepath.Join(n.store("pods"), addr))
	}
	return paths
}

func (n *node) adopt(e *Engine) ([]Adopted, error) {
	n.t.Helper()
	a := n.look(e)
	return e.Adopt(n.t.Context(), a, nil)
}

func content(path string) string { b, _ := os.ReadFile(path); return string(b) }

func words(list []Adopted) string {
	var out []string
	for _, a := range list {
		out = append(out, a.Outcome)
	}
	return strings.Join(out, " ")
}

// I14: what lives without a reservation has it back, in host-local's own words, on record.
func TestAdopt(t *testing.T) {
	n := newNode(t)
	paths := robbed(n, 20)
	e := n.engine()
	got, err := n.adopt(e)
	if err != nil || len(got) != 20 {
		t.Fatal(words(got), err)
	}
	for i, p := range paths {
		if want := id(i) + "\r\neth0"; content(p) != want {
			t.Errorf("%s holds %q, want %q", p, content(p), want)
		}
		if fi, err := os.Stat(p); err != nil || fi.Mode() != 0o600 {
			t.Errorf("%v, %v", fi, err)
		}
	}
	for _, en := range n.entries() {
		if en.State != journal.StateAdopted || !en.Adopts || !en.Undoable(n.now.Boot) || en.Release.Rule != "no-reservation" || len(en.Release.Says) == 0 || en.Inc.Sum == "" {
			t.Errorf("the journal has %+v", en)
		}
	}
	for i, want := range []string{"append adopt-intent", "make pods", "append adopt-outcome"} {
		if n.ops[i] != want {
			t.Errorf("did %q, want %q", n.ops, want)
			break
		}
	}
	// Nothing is left to do, and what was made is alive.
	if again, err := n.adopt(e); err != nil || len(again) > 0 {
		t.Error(words(again), err)
	}
	n.wait(2 * orphanGrace)
	if r := n.sweep(e); len(r.Released)+len(r.Failed) > 0 {
		t.Errorf("released %v", outcomes(r))
	}
	// It is a reservation like any other: when its Pod is gone it goes too.
	n.live[id(3)] = false
	delete(n.nets, 63)
	n.look(e)
	n.wait(2 * grace)
	n.sweep(e)
	if exists(paths[3]) || !exists(paths[4]) {
		t.Errorf("the dead one's is there: %v, the living one's: %v", exists(paths[3]), exists(paths[4]))
	}
}

// An old host-local's DEL finds a reservation by the ID alone.
func TestAdoptInTheFormOfTheStore(t *testing.T) {
	for _, r := range []struct{ other, want string }{
		{"", id(0)}, {"eth0", id(0) + "\r\neth0"},
	} {
		n := newNode(t)
		n.reserve("pods", "10.1.0.200", id(9), r.other)
		n.live[id(9)] = true
		p := robbed(n, 1)[0]
		e := n.engine()
		got, err := n.adopt(e)
		if err != nil || words(got) != "adopted" || content(p) != r.want {
			t.Errorf("%q beside %q: %s, %v", content(p), r.other, words(got), err)
		}
		u, err := e.Undo(t.Context(), []string{got[0].ID})
		if err != nil || u[0].Outcome != journal.OutcomeReleased || exists(p) {
			t.Fatalf("%+v, %v", u, err)
		}
		if got, _ := n.adopt(e); len(got) > 0 {
			t.Errorf("adopted again after an undo: %s", words(got))
		}
	}
}

// The whole directory may be gone, and a data directory that is gone is not made.
func TestAdoptWithoutADirectory(t *testing.T) {
	n := newNode(t)
	p := robbed(n, 1)[0]
	if err := os.Remove(n.store("pods")); err != nil {
		t.Fatal(err)
	}
	a := n.look(n.engine())
	e := n.engine()
	if got, err := e.Adopt(t.Context(), a, nil); err != nil || words(got) != "adopted" || !exists(p) {
		t.Fatal(words(got), err)
	}
	if fi, err := os.Stat(n.store("pods")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := os.RemoveAll(n.dataDir); err != nil {
		t.Fatal(err)
	}
	if got, err := e.Adopt(t.Context(), a, nil); err != nil || words(got) != "failed" || exists(n.dataDir) {
		t.Error(words(got), err)
	}
}

// What changes between the look and the lock counts.
func TestAdoptIsConfirmed(t *testing.T) {
	for _, r := range []struct {
		name   string
		change func(n *node, p string)
		want   string
		stands string // what lies there then
	}{
		{"nothing changes", func(*node, string) {}, "adopted", id(0) + "\r\neth0"},
		{"it dies", func(n *node, _ string) { delete(n.live, id(0)) }, "withheld", ""},
		{"its namespace is gone", func(n *node, _ string) { delete(n.nets, 60) }, "withheld", ""},
		{"another holds its address too", func(n *node, _ string) { n.netns(99, 1, "10.1.0.10") }, "withheld", ""},
		{"the runtime falls silent", func(n *node, _ string) { n.silent["cri"] = "EOF" }, "withheld", ""},
		{"a person holds it", func(n *node, _ string) { n.holds[verdict.Hold{Addr: netip.MustParseAddr("10.1.0.10")}] = true }, "withheld", ""},
		{"another has it reserved by now", func(n *node, p string) { n.put(p, id(7)+"\r\neth0") }, "taken", id(7) + "\r\neth0"},
		{"an empty file lies there by now", func(n *node, p string) { n.put(p, "") }, "taken", ""},
		{"it has it again by now", func(n *node, p string) { n.put(p, id(0)+"\r\neth0") }, "taken", id(0) + "\r\neth0"},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			p := robbed(n, 1)[0]
			e := n.engine()
			a := n.look(e)
			r.change(n, p)
			got, err := e.Adopt(t.Context(), a, nil)
			if err != nil || words(got) != r.want || content(p) != r.stands {
				t.Errorf("%s, %v: %q; want %s and %q", words(got), err, content(p), r.want, r.stands)
			}
			if (r.want == "adopted") != (got[0].Err == nil) {
				t.Errorf("said %v", got[0].Err)
			}
			if r.want == "withheld" && len(n.entries()) > 0 {
				t.Error("something was journalled")
			}
		})
	}
}

// A confirmation that is too old when the lock is had is made again, and not for ever.
func TestAdoptStaleConfirmation(t *testing.T) {
	for _, r := range []struct {
		late int // how often the lock comes late
		dies bool
		want string
	}{{0, false, "adopted"}, {1, false, "adopted"}, {1, true, "failed"}, {1000, false, "failed"}} {
		n := newNode(t)
		p := robbed(n, 1)[0]
		e := n.engine()
		a := n.look(e)
		late := r.late
		n.at = func(op string) error {
			if op == "make pods" && late > 0 {
				late--
				n.wait(time.Second)
				if r.dies {
					delete(n.live, id(0))
				}
			}
			return nil
		}
		got, err := e.Adopt(t.Context(), a, nil)
		if err != nil || words(got) != r.want || exists(p) != (r.want == "adopted") {
			t.Errorf("late %d times, dies %v: %s, %v; want %s", r.late, r.dies, words(got), err, r.want)
		}
	}
}

// Witnesses that take long, or a hold that comes under the lock.
func TestAdoptConfirmationAge(t *testing.T) {
	n := newNode(t)
	p := robbed(n, 1)[0]
	e := n.engine()
	a := n.look(e)
	n.onAsk = func(int) { n.wait(6 * time.Second) }
	if got, err := e.Adopt(t.Context(), a, nil); err == nil || words(got) != "withheld" || exists(p) {
		t.Error(words(got), err)
	}
	n.onAsk = nil
	n.at = func(op string) error {
		if op == "make pods" {
			n.holds[verdict.Hold{Addr: netip.MustParseAddr("10.1.0.10")}] = true
		}
		return nil
	}
	if got, err := e.Adopt(t.Context(), a, nil); err != nil || words(got) != "failed" || exists(p) {
		t.Error(words(got), err)
	}
}

// skip keeps one and lets another go.
func TestAdoptSkips(t *testing.T) {
	n := newNode(t)
	paths := robbed(n, 2)
	e := n.engine()
	a := n.look(e)
	got, err := e.Adopt(t.Context(), a, func(r *claim.Resource) string {
		if r.Path == paths[0] {
			return "busy"
		}
		return ""
	})
	if err != nil || words(got) != "withheld adopted" || exists(paths[0]) || !exists(paths[1]) {
		t.Error(words(got), err)
	}
}

// Without a durable intent nothing is made; without an outcome the next run finds it (I3, I4).
func TestAdoptJournal(t *testing.T) {
	for _, r := range []struct {
		op     string
		words  string
		stands bool
		state  journal.State
	}{
		{"append adopt-intent", "withheld", false, ""},
		{"make pods", "failed", false, journal.StateFailed},
		{"append adopt-outcome", "adopted", true, journal.StateAdopted},
	} {
		n := newNode(t)
		p := robbed(n, 1)[0]
		e := n.engine()
		a := n.look(e)
		n.at = func(op string) error {
			if op == r.op {
				return errFull
			}
			return nil
		}
		got, err := e.Adopt(t.Context(), a, nil)
		if (err == nil) != (r.op == "make pods") || words(got) != r.words || exists(p) != r.stands {
			t.Errorf("%s fails: %s, %v", r.op, words(got), err)
		}
		n.at = nil
		if _, err := e.Settle(t.Context(), everywhere); err != nil {
			t.Fatal(err)
		}
		var state journal.State
		if list := n.entries(); len(list) > 0 {
			state = list[0].State
		}
		if state != r.state || exists(p) != r.stands {
			t.Errorf("%s fails: it is %s, want %s", r.op, state, r.state)
		}
	}
}

// An adoption, and the undo of one, that is killed at any moment converges (I4): the
// reservation is whole or not there, the journal says which, and the next run ends it.
func TestAdoptKilledAnywhere(t *testing.T) {
	root := memDir(t)
	for nth, alive := 0, false; !alive; nth++ {
		when := fmt.Sprintf("killed at moment %d", nth)
		n := newNodeIn(t, filepath.Join(root, fmt.Sprint("a", nth)))
		paths := robbed(n, 3)
		e := n.engine()
		a := n.look(e)
		n.killAt(nth, nth%2 == 1)
		alive = !n.dies(func() { _, _ = e.Adopt(t.Context(), a, nil) })
		n.at = nil
		for i, p := range paths {
			if c := content(p); c != "" && c != id(i)+"\r\neth0" {
				t.Fatalf("%s: %s holds %q", when, p, c)
			}
		}
		e = n.engine()
		if _, err := e.Settle(t.Context(), everywhere); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		for _, en := range n.entries() {
			if want := exists(en.Release.Path); en.State.Unsettled() || (en.State == journal.StateAdopted) != want {
				t.Fatalf("%s, settled: %s is %s, and it is there: %v", when, en.Release.Path, en.State, want)
			}
		}
		if _, err := n.adopt(e); err != nil {
			t.Fatal(err)
		}
		n.expect(when+", and again", true, paths)
		if nth > 40 {
			t.Fatal("it never ends")
		}
	}
	for nth, alive := 0, false; !alive; nth++ {
		when := fmt.Sprintf("its undo killed at moment %d", nth)
		n := newNodeIn(t, filepath.Join(root, fmt.Sprint("u", nth)))
		p := robbed(n, 1)[0]
		e := n.engine()
		got, err := n.adopt(e)
		if err != nil {
			t.Fatal(err)
		}
		n.killAt(nth, false)
		alive = !n.dies(func() { _, _ = e.Undo(t.Context(), []string{got[0].ID}) })
		n.at = nil
		e = n.engine()
		if _, err := e.Settle(t.Context(), everywhere); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		n.honest(when)
		state := n.entries()[0].State
		if want := map[bool]journal.State{true: journal.StateAdopted, false: journal.StateUndone}[exists(p)]; state != want {
			t.Fatalf("%s: it is %s, want %s", when, state, want)
		}
		if state == journal.StateAdopted {
			if len(n.holds) > 0 {
				t.Errorf("%s: what stands is held", when)
			}
			if u, err := e.Undo(t.Context(), []string{got[0].ID}); err != nil || u[0].Outcome != journal.OutcomeReleased {
				t.Fatalf("%s: again: %+v, %v", when, u, err)
			}
		}
		if got, _ := n.adopt(e); exists(p) || len(got) > 0 {
			t.Fatalf("%s: adopted again", when)
		}
		if nth > 40 {
			t.Fatal("it never ends")
		}
	}
}

// What an adoption made can be taken back while it is that file, once, and put back again.
func TestUndoAdoption(t *testing.T) {
	n := newNode(t)
	p := robbed(n, 1)[0]
	e := n.engine()
	got, _ := n.adopt(e)
	undo := func(id string) Undone {
		t.Helper()
		u, err := e.Undo(t.Context(), []string{id})
		if err != nil || len(u) != 1 {
			t.Fatal(u, err)
		}
		return u[0]
	}
	u := undo(got[0].ID)
	if u.Outcome != journal.OutcomeReleased || u.Err != nil || exists(p) || n.quarantine()[u.ReleasedAs] != id(0)+"\r\neth0" {
		t.Fatalf("%+v; quarantine %q", u, n.quarantine())
	}
	n.honest("undone")
	if u := undo(got[0].ID); !errors.Is(u.Err, ErrNotUndoable) {
		t.Errorf("twice: %+v", u)
	}
	if a := n.look(e); !strings.Contains(a.Judgement.Findings[len(a.Judgement.Findings)-1].Unadoptable, "it is held") {
		t.Errorf("not held: %+v", a.Judgement.Findings)
	}
	if u := undo(u.ReleasedAs); u.Outcome != journal.UndoRestored || content(p) != id(0)+"\r\neth0" {
		t.Errorf("put back: %+v", u)
	}
	n.wait(2 * orphanGrace)
	if r := n.sweep(e); len(r.Released) > 0 {
		t.Errorf("released %v", outcomes(r))
	}
}

func TestUndoAdoptionOfWhatChanged(t *testing.T) {
	for _, r := range []struct {
		name   string
		change func(n *node, p string)
		want   string
	}{
		{"another file of the same words", func(n *node, p string) { n.planted[p] = content(p); n.replace(p) }, journal.OutcomeChanged},
		{"another's", func(n *node, p string) { n.put(p, id(7)+"\r\neth0") }, journal.OutcomeChanged},
		{"gone", func(n *node, p string) { os.Remove(p) }, journal.OutcomeGone},
		{"another boot", func(n *node, _ string) { n.reboot("boot-3") }, journal.OutcomeFailed},
	} {
		n := newNode(t)
		p := robbed(n, 1)[0]
		e := n.engine()
		got, _ := n.adopt(e)
		r.change(n, p)
		before := content(p)
		u, err := e.Undo(t.Context(), []string{got[0].ID})
		if err != nil || u[0].Outcome != r.want || u[0].Err == nil || content(p) != before {
			t.Errorf("%s: %+v, %v", r.name, u, err)
		}
	}
}
