package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/sweep"
)

// loadStops reads which networks are stopped, and notes it in the look. What cannot be read stops
// all of them.
func (n *node) loadStops(a *sweep.Audit) {
	n.stops = nil
	if n.state == nil {
		return // never written, or nothing is released anyway
	}
	list, err := n.state.LoadStops(a.Case.Now)
	if err != nil {
		n.trouble.add("every network is stopped: " + err.Error())
	}
	n.stops = n.byEachName(line.Next(list, a.Case.Now, nil).Stops, a.Case.Now)
	if len(a.Case.Snapshots) == 0 {
		return
	}
	snap := &a.Case.Snapshots[len(a.Case.Snapshots)-1]
	for _, s := range n.stops {
		where := s.Store
		if where == "" {
			where = "every network"
		}
		snap.Notes = append(snap.Notes, claim.Note{Path: where, Text: stopText(s)})
	}
}

// byEachName adds to stops those of the other names under which a stopped directory was listed, as
// for a hold: a link or a bind mount leads to the same files.
func (n *node) byEachName(stops []line.Stop, now claim.Instant) []line.Stop {
	out := stops
	for _, s := range stops {
		if s.Store == "" {
			continue
		}
		names, err := n.holds.otherNames(s.Store)
		if err != nil {
			return append(slices.Clip(out), line.All(now, "a stopped network cannot be looked at: "+err.Error()))
		}
		for _, name := range names {
			s.Store = name
			out = append(slices.Clip(out), s)
		}
	}
	return out
}

func stopText(s line.Stop) string {
	resume := "holdfast resume"
	if s.Store == "" {
		resume += " --all"
	}
	return fmt.Sprintf("releases are stopped since %s: %s; %q lets them go on", s.Since.Wall.UTC().Format(time.RFC3339), s.Why, resume)
}

// stopped says why nothing of a resource's network is released, or "". A namespace is of any
// network.
func (n *node) stopped(r *claim.Resource) string {
	dir := r.Store
	if r.Kind == claim.KindCache && r.Cache != nil {
		dir = filepath.Join(r.Cache.DataDir, r.Network)
	}
	for _, s := range n.stops {
		if r.Kind == claim.KindNetns || s.Covers(dir) {
			return stopText(s)
		}
	}
	return ""
}

// watch is what the agent keeps of the releases of this boot: to see them contradicted, and to
// bound their rate. It is used by one at a time, as its node is.
type watch struct {
	loaded bool
	recent []line.Release
	rate   plan.Rate
	// taken are releases that cannot be undone, since their address is another's by now.
	taken map[string]bool
}

// newWatch knows nothing yet: a command may come before the first sweep.
func newWatch() *watch { return &watch{taken: map[string]bool{}} }

// load reads the journal once: an agent that was started again goes on.
func (w *watch) load(log sweep.Log, now claim.Instant, capOf func(store string) int) error {
	if w.loaded {
		return nil
	}
	recs, _, err := log.Load()
	if err != nil {
		return fmt.Errorf("the releases of before are not known: %w", err)
	}
	w.recent, w.rate = nil, plan.Rate{}
	for _, e := range journal.Replay(recs) {
		r := e.Release
		if r != nil && r.Undoes != "" {
			continue // a person took an adoption back: that it lives contradicts nobody
		}
		if r == nil || e.State != journal.StateReleased || !e.Undoable(now.Boot) || r.Kind != claim.KindReservation && r.Kind != "" {
			continue
		}
		w.recent = append(w.recent, line.Release{ID: e.ID, Store: r.Store, Addr: r.Addr, Owner: r.Owner, At: e.Last})
		if r.Rule != "boot-past" {
			w.rate = w.rate.Spend(e.Last, capOf, map[string]int{r.Store: 1})
		}
	}
	w.recent, w.loaded = line.Recent(w.recent, now), true
	return nil
}

// reap releases, and keeps what went.
func (n *node) reap(ctx context.Context, au *sweep.Audit, p *plan.Plan) (*sweep.Result, error) {
	res, err := n.engine.Reap(ctx, au, p)
	if n.watch == nil {
		return res, err
	}
	now, went := n.clock.Now(), map[string]int{}
	for _, rel := range res.Released {
		r := rel.Finding.Resource
		if r.Kind != claim.KindReservation {
			continue
		}
		n.watch.recent = append(n.watch.recent, line.Release{ID: rel.ID, Store: r.Store, Addr: r.Addr, Owner: r.Owner, At: now})
		if !rel.Finding.BootProven {
			went[r.Store]++
		}
	}
	n.watch.rate = n.watch.rate.Spend(now, plan.Caps(au.Judgement, n.o.maxReleases), went)
	return res, err
}

// undo puts releases back, and forgets those.
func (n *node) undo(ctx context.Context, ids []string) ([]sweep.Undone, error) {
	undone, err := n.engine.Undo(ctx, ids)
	if n.watch != nil {
		n.watch.undone(undone)
	}
	return undone, err
}

func (w *watch) undone(list []sweep.Undone) {
	for _, u := range list {
		switch u.Outcome {
		case journal.UndoRestored:
			w.recent = slices.DeleteFunc(w.recent, func(r line.Release) bool { return r.ID == u.ID })
		case journal.UndoTaken:
			w.taken[u.ID] = true
		}
	}
}

// paced adds to what a command has released what the rate does not allow yet.
func (n *node) paced(au *sweep.Audit, used map[string]int) map[string]int {
	if n.watch == nil {
		return used
	}
	for store, k := range n.watch.rate.Used(n.clock.Now(), plan.Caps(au.Judgement, n.o.maxReleases)) {
		used[store] = max(used[store], k)
	}
	return used
}

// watched is what watchLine came to.
type watched struct {
	stops, fresh []line.Stop
	over         []line.Ended
	undone       map[string]string // outcomes by release ID
}

// watchLine holds the releases of this boot against a look, before anything more is released.
// Where one is contradicted, or two hold an address, the network is stopped; that is durable
// before the releases in question are undone. With an error nothing may be released: nobody knows
// what must be stopped, or it cannot be written down.
func (n *node) watchLine(ctx context.Context, au *sweep.Audit, dryRun bool) (watched, error) {
	w := n.watch
	out := watched{undone: map[string]string{}}
	if err := w.load(n.engine.Journal, n.clock.Now(), plan.Caps(au.Judgement, n.o.maxReleases)); err != nil {
		return out, err
	}
	w.recent = line.Recent(w.recent, au.Case.Now)
	found, relist := line.Watch(w.recent, &au.Case, au.Judgement)
	if relist {
		n.engine.Relist(ctx, au)
		found, _ = line.Watch(w.recent, &au.Case, au.Judgement)
	}
	if n.state == nil || n.unwritable != nil {
		if dryRun {
			return out, nil
		}
		return out, fmt.Errorf("which networks are stopped cannot be written, so nothing is released: %w", cmp.Or(n.unwritable, fs.ErrNotExist))
	}
	var change line.Change
	list, err := n.state.EditStops(func(list []line.Stop) []line.Stop {
		change = line.Next(list, au.Case.Now, found)
		return change.Stops
	})
	if err != nil {
		n.stops = []line.Stop{line.All(au.Case.Now, "which networks are stopped cannot be written: "+err.Error())}
		return out, fmt.Errorf("which networks are stopped cannot be written, so nothing is released: %w", err)
	}
	n.stops = n.byEachName(list, au.Case.Now)
	out.stops, out.fresh, out.over = list, change.Fresh, change.Over
	if dryRun {
		return out, nil
	}
	var ids []string
	for _, c := range found {
		left := slices.DeleteFunc(slices.Clone(c.ReleaseIDs), func(id string) bool { return w.taken[id] })
		if len(left) == 0 {
			continue
		}
		if err := n.lockStore(c.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
			// Its network is stopped all the same, and the next sweep tries again: the others go on.
			n.trouble.add(fmt.Sprintf("releases of %s cannot be undone: %v", c.Store, err))
			for _, id := range left {
				out.undone[id] = journal.UndoFailed
			}
			continue
		}
		ids = append(ids, left...)
	}
	if len(ids) == 0 {
		return out, nil
	}
	undone, err := n.undo(ctx, ids)
	for _, u := range undone {
		out.undone[u.ID] = u.Outcome
	}
	return out, err
}
