package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	// A batch is confirmed, journalled and released together: large enough that a
	// mass release does not take one /proc snapshot each, small enough that the
	// confirmation is fresh. Plugins take long, so few groups with them go together.
	batchGroups = 512
	batchExecs  = 64
	// stale is how old a confirmation may be when the addresses go, from when the
	// witnesses were asked.
	stale = 500 * time.Millisecond
	// delTime bounds the DELs of one batch together. One that hangs cannot hold an
	// address alive, so it must not keep one either.
	delTime = time.Minute
	// moveTime bounds the moves of one batch.
	moveTime = time.Minute
)

// Released is one reservation, cache file or namespace that went.
type Released struct {
	ID      string
	Finding *verdict.Finding
	Steps   []journal.StepResult
}

// Failure is one that should have gone and did not. Outcome is the journal's word, or
// "withheld" when nothing was begun.
type Failure struct {
	ID      string
	Finding *verdict.Finding
	Outcome string
	Err     error
	Steps   []journal.StepResult
}

// Result is what Reap did.
type Result struct {
	Sweep    string
	Released []Released
	Failed   []Failure
	// Reprieved were releasable, and no longer when the witnesses were asked again.
	Reprieved []Reprieve
}

// Reprieve is a finding that was releasable, and what was found of it at the last moment.
type Reprieve struct {
	*verdict.Finding
	Now verdict.Finding
}

// Reap releases what p holds, batch by batch, each through the gates: confirmed live,
// journalled, side pieces first, the reservation last and only if unchanged.
// An error means that the journal failed; Result still says what was done.
func (e *Engine) Reap(ctx context.Context, a *Audit, p *plan.Plan) (*Result, error) {
	sweep, err := e.newSweep()
	if err != nil {
		return &Result{}, err
	}
	res := &Result{Sweep: sweep}
	n := 0
	todo := batches(p.Groups)
	for i, groups := range todo {
		if err := ctx.Err(); err != nil {
			return res, err
		}
		b := &batch{e: e, a: a, res: res, sweep: sweep, confirmedAt: e.Clock()}
		// Gate 3: asked again, judged again, by the same code.
		confirmed := e.again(ctx, a)
		for i := range groups {
			b.add(&groups[i], confirmed, &n)
		}
		// What is begun is ended, whatever becomes of the caller.
		if err := b.release(context.WithoutCancel(ctx)); err != nil {
			for _, rest := range todo[i+1:] {
				for _, g := range rest {
					b.withhold(&g, err)
				}
			}
			return res, err
		}
	}
	return res, nil
}

// release is gates 4 to 8 for one batch.
func (b *batch) release(ctx context.Context) error {
	if len(b.items) == 0 {
		return nil
	}
	// Gate 4: intent, durable, before anything is touched.
	if err := b.e.Journal.Append(b.intents()...); err != nil {
		err = fmt.Errorf("no intent could be written, so nothing is released: %w", err)
		for _, g := range b.groups {
			b.withhold(g.g, err)
		}
		return err
	}
	// Gate 6: what can hold an address alive goes before the address.
	dels, cancel := context.WithTimeout(ctx, delTime)
	for _, g := range b.groups {
		b.sides(ctx, dels, g)
	}
	cancel()
	if d, ok := b.e.Clock().Since(b.confirmedAt); !ok || d > stale {
		b.reprieve(b.e.again(ctx, b.a))
	}
	// Gates 5 and 7: under the allocator's lock, the same incarnation, moved.
	moves, cancel := context.WithTimeout(ctx, moveTime)
	b.move(moves)
	cancel()
	b.putBack()
	// Gate 8.
	if err := b.e.Journal.Append(b.outcomes()...); err != nil {
		return fmt.Errorf("the outcome could not be written; the next run settles it: %w", err)
	}
	return nil
}

// withhold reports a group with which nothing was begun.
func (b *batch) withhold(g *plan.Group, err error) {
	for _, f := range g.Findings {
		b.res.Failed = append(b.res.Failed, Failure{Finding: f, Outcome: "withheld", Err: err})
	}
}

func batches(groups []plan.Group) [][]plan.Group {
	var out [][]plan.Group
	start, execs := 0, 0
	for i := range groups {
		if groups[i].Execs {
			execs++
		}
		if i+1-start == batchGroups || execs == batchExecs || i+1 == len(groups) {
			out = append(out, groups[start:i+1])
			start, execs = i+1, 0
		}
	}
	return out
}

// item is one resource with a release ID of its own.
type item struct {
	id      string
	f       *verdict.Finding
	cache   *journal.CacheFile
	outcome string
	err     error
	steps   []journal.StepResult
}

type batch struct {
	e           *Engine
	a           *Audit
	res         *Result
	sweep       string
	groups      []*running
	items       []*item
	confirmedAt claim.Instant
}

type running struct {
	g     *plan.Group
	items []*item
	// kept are cache files that stay, with the reason: what cannot be journalled cannot
	// be brought back, so it is not removed (I3).
	kept map[string]string
	// removed are the cache files that went.
	removed []string
}

// maxCache bounds a cache file that goes into the journal, in bytes; real ones have some
// thousand.
const maxCache = 256 << 10

// add takes a group in if everything in it is confirmed; a group goes as a whole.
func (b *batch) add(g *plan.Group, confirmed map[verdict.Key]verdict.Finding, n *int) {
	for _, f := range g.Findings {
		if !confirmed[keyOf(f.Resource)].Releasable {
			for _, f := range g.Findings {
				b.res.Reprieved = append(b.res.Reprieved, Reprieve{f, confirmed[keyOf(f.Resource)]})
			}
			return
		}
	}
	run := &running{g: g, kept: map[string]string{}}
	for _, f := range g.Findings {
		*n++
		run.items = append(run.items, &item{f: f, id: journal.BatchID(b.sweep, *n)})
	}
	run.items = slices.DeleteFunc(run.items, func(it *item) bool {
		return it.f.Resource.Kind == claim.KindCache && b.attach(run, it)
	})
	for _, it := range run.items {
		// What the journal cannot hold is not released (I3), and the group is whole.
		if err := b.intent(it).Check(); err != nil {
			b.withhold(g, err)
			return
		}
	}
	b.groups = append(b.groups, run)
	b.items = append(b.items, run.items...)
}

// attach records the content of a cache file with the reservation of its attachment, so
// that one undo brings both back, and reports whether there is one. A cache file without
// stays an item of its own.
func (b *batch) attach(run *running, c *item) bool {
	r := c.f.Resource
	content, err := b.e.Sides.Content(plan.Step{Kind: plan.StepCache, Object: r.Path, Resource: r})
	switch {
	case err != nil:
		run.kept[r.Path] = err.Error()
		return false
	case len(content) > maxCache:
		run.kept[r.Path] = fmt.Sprintf("%d bytes, more than the journal takes (%d), so it stays", len(content), maxCache)
		return false
	}
	file := &journal.CacheFile{Path: r.Path, Content: content}
	for _, it := range run.items {
		o := it.f.Resource
		if o.Kind == claim.KindReservation && it.cache == nil && (o.Owner.IfName == "" || o.Owner.IfName == r.Owner.IfName) && o.Network == r.Network {
			it.cache = file
			return true
		}
	}
	c.cache = file
	return false
}

func (b *batch) intents() []journal.Record {
	recs := make([]journal.Record, 0, len(b.items))
	for _, it := range b.items {
		recs = append(recs, b.intent(it))
	}
	return recs
}

func (b *batch) intent(it *item) journal.Record {
	r := it.f.Resource
	rel := &journal.Release{
		Kind: r.Kind, Store: r.Store, Path: r.Path, Network: r.Network, Addr: r.Addr, Owner: r.Owner,
		Attachment: r.Attachment(), Inc: r.Inc, Pod: it.f.Pod, Verdict: it.f.Verdict.String(), Rule: it.f.Rule,
		Why: it.f.Why, FirstSeen: it.f.First, Cache: it.cache,
	}
	for _, s := range it.f.Says {
		rel.Says = append(rel.Says, journal.Say{Witness: s.Witness, Word: string(s.Word), Detail: s.Detail})
	}
	return journal.Record{Type: journal.Intent, At: b.e.Clock(), Sweep: b.sweep, ReleaseID: it.id, Release: rel}
}

// sides runs the steps of a group that come before its addresses. A piece that can
// hold the address alive and stands keeps the address; another is only reported.
func (b *batch) sides(ctx, dels context.Context, run *running) {
	first := run.items[0]
	var blocked error
	undone := map[string]bool{} // cache files whose DEL failed
	for _, s := range run.g.Steps {
		if s.Kind == plan.StepReservation {
			continue
		}
		if s.Kind == plan.StepCache && (blocked != nil || undone[s.Object]) {
			// The cache file is what the next try is made with.
			for _, it := range run.items {
				if it.f.Resource == s.Resource {
					it.outcome, it.err = journal.OutcomeFailed, errors.New("kept for the next try, since DEL failed")
				}
			}
			continue
		}
		r := journal.StepResult{Step: string(s.Kind), Object: s.Object, State: journal.StepFailed}
		if s.Kind == plan.StepCache || s.Kind == plan.StepDel {
			r.Detail = run.kept[s.Resource.Path]
		}
		switch {
		case r.Detail != "":
		case s.Kind == plan.StepDel:
			r = b.e.Sides.Run(dels, s)
		default:
			r = b.e.Sides.Run(ctx, s)
		}
		r.Irreversible = s.Irreversible && r.State == journal.StepDone
		if r.State != journal.StepSkipped || r.Detail != "" {
			first.steps = append(first.steps, r)
		}
		if r.State == journal.StepFailed && s.Kind == plan.StepDel {
			undone[s.Object] = true
		}
		if s.Kind == plan.StepCache && r.State == journal.StepDone {
			run.removed = append(run.removed, s.Object)
		}
		if r.State == journal.StepFailed && s.Blocks {
			blocked = fmt.Errorf("%s %s: %s", s.Kind, s.Object, r.Detail)
		}
		for _, it := range run.items {
			own := it.f.Resource == s.Resource && s.Kind == plan.StepCache ||
				s.Kind == plan.StepNetns && it.f.Resource.Kind == claim.KindNetns && it.f.Resource.NetnsID == s.NetnsID
			if own {
				it.settleBy(r)
			}
		}
	}
	if blocked != nil {
		for _, it := range run.items {
			if it.outcome == "" {
				it.outcome, it.err = journal.OutcomeFailed, fmt.Errorf("kept, since this could hold it alive: %w", blocked)
			}
		}
	}
}

// settleBy ends an item that is no reservation with the result of its own step.
func (it *item) settleBy(r journal.StepResult) {
	switch r.State {
	case journal.StepDone:
		it.outcome = journal.OutcomeReleased
	case journal.StepSkipped:
		it.outcome = journal.OutcomeGone
	default:
		it.outcome, it.err = journal.OutcomeFailed, errors.New(r.Detail)
	}
}

// reprieve takes out what is not releasable any more.
func (b *batch) reprieve(confirmed map[verdict.Key]verdict.Finding) {
	for _, run := range b.groups {
		for _, it := range run.items {
			now := confirmed[keyOf(it.f.Resource)]
			// With its namespace removed by ourselves an orphan is plainly absent, which
			// begins a new run of sightings: Suspect is then as good.
			ok := now.Releasable || it.f.Verdict == verdict.Orphaned && now.Verdict == verdict.Suspect
			if it.f.Resource.Kind == claim.KindReservation && it.outcome == "" && !ok {
				it.outcome, it.err = journal.OutcomeFailed, errors.New("a witness no longer says absent")
				b.res.Reprieved = append(b.res.Reprieved, Reprieve{it.f, now})
			}
		}
	}
}

// move releases the addresses, store by store, in the order of the plan.
func (b *batch) move(ctx context.Context) {
	var dirs []string
	byDir := map[string][]*item{}
	for _, it := range b.items {
		if it.outcome != "" || it.f.Resource.Kind != claim.KindReservation {
			continue
		}
		dir := it.f.Resource.Store
		if byDir[dir] == nil {
			dirs = append(dirs, dir)
		}
		byDir[dir] = append(byDir[dir], it)
	}
	for _, dir := range dirs {
		items := byDir[dir]
		moves := make([]Move, len(items))
		byID := make(map[string]*item, len(items))
		for i, it := range items {
			moves[i] = Move{ReleaseID: it.id, Path: it.f.Resource.Path, Inc: it.f.Resource.Inc}
			byID[it.id] = it
		}
		moved, err := b.e.Vault.Release(ctx, dir, moves)
		if err != nil {
			for _, it := range items {
				it.outcome, it.err = journal.OutcomeFailed, err
			}
			continue
		}
		for _, m := range moved {
			if it := byID[m.ReleaseID]; it != nil {
				it.outcome, it.err = m.Outcome, m.Err
			}
		}
	}
}

// putBack writes the cache file of an address again that did not go after all: it is what
// DEL and the next try need.
func (b *batch) putBack() {
	for _, run := range b.groups {
		for _, it := range run.items {
			if it.cache == nil || it.outcome != journal.OutcomeFailed || !slices.Contains(run.removed, it.cache.Path) {
				continue
			}
			r := journal.StepResult{Step: "cache-back", Object: it.cache.Path, State: journal.StepDone}
			if err := b.e.Sides.Restore(it.cache.Path, it.cache.Content); err != nil {
				r.State, r.Detail = journal.StepFailed, err.Error()
			}
			it.steps = append(it.steps, r)
		}
	}
}

func (b *batch) outcomes() []journal.Record {
	now := b.e.Clock()
	recs := make([]journal.Record, 0, len(b.items))
	for _, it := range b.items {
		if it.outcome == "" {
			it.outcome, it.err = journal.OutcomeFailed, errors.New("nothing was said of it")
		}
		rec := journal.Record{Type: journal.Outcome, At: now, Sweep: b.sweep, ReleaseID: it.id, Outcome: it.outcome, Steps: it.steps}
		if it.err != nil {
			rec.Detail = it.err.Error()
		}
		recs = append(recs, rec)
		if it.outcome == journal.OutcomeReleased {
			b.res.Released = append(b.res.Released, Released{ID: it.id, Finding: it.f, Steps: it.steps})
		} else {
			b.res.Failed = append(b.res.Failed, Failure{ID: it.id, Finding: it.f, Outcome: it.outcome, Err: it.err, Steps: it.steps})
		}
	}
	return recs
}
