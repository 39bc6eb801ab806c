package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
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
	// stale is how long ago the witnesses may have answered when something is touched,
	// tooSlow how long they may take to answer.
	stale   = 500 * time.Millisecond
	tooSlow = 5 * time.Second
	// delTime bounds the DELs of one batch together. One that hangs cannot hold an
	// address alive, so it must not keep one either.
	delTime = time.Minute
	// moveTime bounds the moves of one batch, moveTries how often they are confirmed
	// anew because the lock came late.
	moveTime  = time.Minute
	moveTries = 64
)

// Released is one reservation, cache file or namespace that went.
type Released struct {
	ID      string
	Finding *verdict.Finding
	Steps   []journal.StepResult
	// Err says that it went but may come back after a power loss: an fsync failed.
	Err error
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
// An error is the journal's, the memory's or ctx's; Result still says what was done and
// what was not begun.
func (e *Engine) Reap(ctx context.Context, a *Audit, p *plan.Plan) (*Result, error) {
	res := &Result{}
	var err error
	if res.Sweep, err = e.newSweep(); err != nil {
		return res, err
	}
	if a.Unheld != nil {
		err = fmt.Errorf("the holds cannot be read, so nothing is released: %w", a.Unheld)
	}
	n := 0
	stuck := map[string]error{}
	for _, groups := range batches(p.Groups) {
		b := newBatch(e, a, groups)
		b.res, b.stuck = res, stuck
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			// Gate 3: asked again, judged again, by the same code.
			err = b.confirm(ctx)
		}
		for i := range groups {
			if err != nil {
				b.withhold(&groups[i], err)
			} else {
				b.add(&groups[i], &n)
			}
		}
		if err == nil {
			// What is begun is ended, whatever becomes of the caller.
			err = b.release(context.WithoutCancel(ctx))
		}
	}
	if a.revived {
		a.revived = false
		err = errors.Join(err, e.Memory.Save(a.Judgement.Memory))
	}
	return res, err
}

// release is gates 4 to 8 for one batch.
func (b *batch) release(ctx context.Context) error {
	if len(b.groups) == 0 {
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
	if err := failpoint.At(failpoint.ReapIntents); err != nil {
		return err
	}
	// Gate 6: what can hold an address alive goes before the address, and is seen gone.
	for _, g := range b.groups {
		if b.still(ctx, g) {
			b.run(ctx, g, plan.StepVeth, plan.StepNetns)
		}
	}
	if slices.ContainsFunc(b.groups, func(g *running) bool { return g.unpinned }) {
		b.reprieve(b.confirm(ctx))
	}
	dels, cancel := context.WithTimeout(ctx, delTime)
	for _, g := range b.groups {
		if b.still(ctx, g) {
			b.run(dels, g, plan.StepDel)
			b.run(ctx, g, plan.StepCache)
		}
	}
	cancel()
	if err := failpoint.At(failpoint.ReapSides); err != nil {
		return err
	}
	// Gates 5 and 7: under the allocator's lock, the same incarnation, moved.
	b.move(ctx)
	if err := failpoint.At(failpoint.ReapMoved); err != nil {
		return err
	}
	b.putBack()
	// Gate 8.
	if err := b.e.Journal.Append(b.outcomes()...); err != nil {
		return fmt.Errorf("the outcome could not be written; the next run settles it: %w", err)
	}
	return failpoint.At(failpoint.ReapOutcomes)
}

// confirm asks the witnesses again. An answer that took too long is none.
func (b *batch) confirm(ctx context.Context) error {
	b.e.renewLate(ctx, b.a)
	asked := b.e.Clock()
	j, holds, err := b.e.again(ctx, b.a)
	b.answered, b.holds = b.e.Clock(), holds
	if err != nil {
		return err
	}
	if d, ok := b.answered.Since(asked); !ok || d > tooSlow {
		return fmt.Errorf("the witnesses took %s to answer, more than %s, so their answer is too old", d.Round(time.Millisecond), tooSlow)
	}
	clear(b.now)
	for i := range j.Findings {
		if k := keyOf(j.Findings[i].Resource); b.mine[k] {
			b.now[k] = j.Findings[i]
		}
	}
	return nil
}

// fresh reports whether the confirmation is young enough to act on, and the holds are
// still those that it was made with: a hold counts from when its command has returned.
func (b *batch) fresh() bool {
	d, ok := b.e.Clock().Since(b.answered)
	if !ok || d > stale {
		return false
	}
	holds, err := b.e.Holds.List()
	return err == nil && slices.Equal(holds, b.holds)
}

// still reports whether a group may go on, with a fresh confirmation.
func (b *batch) still(ctx context.Context, g *running) bool {
	if g.over() {
		return false
	}
	if !b.fresh() {
		b.reprieve(b.confirm(ctx))
	}
	return !g.over()
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
	e      *Engine
	a      *Audit
	res    *Result
	groups []*running
	items  []*item
	// mine is what the batch is to release; now is what the last confirmation found of it,
	// answered when its last witness had answered and it was judged.
	mine     map[verdict.Key]bool
	now      map[verdict.Key]verdict.Finding
	answered claim.Instant
	holds    []verdict.Hold
	// stuck are stores of no use in this sweep, shared by its batches.
	stuck map[string]error
	// unpinned are the namespaces that went.
	unpinned map[uint64]bool
}

func newBatch(e *Engine, a *Audit, groups []plan.Group) *batch {
	b := &batch{e: e, a: a, mine: map[verdict.Key]bool{}, now: map[verdict.Key]verdict.Finding{}, unpinned: map[uint64]bool{}}
	for i := range groups {
		for _, f := range groups[i].Findings {
			b.mine[keyOf(f.Resource)] = true
		}
	}
	return b
}

type running struct {
	g     *plan.Group
	items []*item
	// kept are cache files that stay, with the reason: what cannot be journalled cannot
	// be brought back, so it is not removed (I3). A failed DEL keeps its file too.
	kept map[string]string
	// removed are the cache files that went; unpinned: a namespace went.
	removed  []string
	unpinned bool
}

// over reports whether every item of the group has its outcome.
func (g *running) over() bool {
	return !slices.ContainsFunc(g.items, func(it *item) bool { return it.outcome == "" })
}

// keep ends what is left of the group.
func (g *running) keep(err error) {
	for _, it := range g.items {
		if it.outcome == "" {
			it.outcome, it.err = journal.OutcomeFailed, err
		}
	}
}

// maxCache bounds a cache file that goes into the journal, in bytes; real ones have some
// thousand.
const maxCache = 256 << 10

// add takes a group in if everything in it is confirmed; a group goes as a whole.
func (b *batch) add(g *plan.Group, n *int) {
	for _, f := range g.Findings {
		if err := b.stuck[f.Resource.Store]; err != nil {
			b.withhold(g, err)
			return
		}
		if !b.now[keyOf(f.Resource)].Releasable {
			for _, f := range g.Findings {
				b.res.Reprieved = append(b.res.Reprieved, Reprieve{f, b.now[keyOf(f.Resource)]})
			}
			return
		}
	}
	run := &running{g: g, kept: map[string]string{}}
	for _, f := range g.Findings {
		*n++
		run.items = append(run.items, &item{f: f, id: journal.BatchID(b.res.Sweep, *n)})
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
		Why: it.f.Why, FirstSeen: it.f.First(), Cache: it.cache,
	}
	for _, s := range it.f.Says {
		rel.Says = append(rel.Says, journal.Say{Witness: s.Witness, Word: string(s.Word), Detail: s.About(it.f.Resource)})
	}
	return journal.Record{Type: journal.Intent, At: b.e.Clock(), Sweep: b.res.Sweep, ReleaseID: it.id, Release: rel}
}

// run does the steps of some kinds of a group, in order. A piece that can hold the address
// alive and stands keeps the group; another is only reported.
func (b *batch) run(ctx context.Context, g *running, kinds ...plan.StepKind) {
	for _, s := range g.g.Steps {
		if !slices.Contains(kinds, s.Kind) || g.over() {
			continue
		}
		r := journal.StepResult{Step: string(s.Kind), Object: s.Object, State: journal.StepFailed}
		if s.Kind == plan.StepCache || s.Kind == plan.StepDel {
			r.Detail = g.kept[s.Object]
		}
		if r.Detail == "" {
			r = b.e.Sides.Run(ctx, s)
		}
		r.Irreversible = s.Irreversible && r.State == journal.StepDone
		if r.State != journal.StepSkipped || r.Detail != "" {
			g.items[0].steps = append(g.items[0].steps, r)
		}
		switch {
		case r.State == journal.StepFailed && s.Blocks:
			g.keep(fmt.Errorf("kept, since this could hold it alive: %s %s: %s", s.Kind, s.Object, r.Detail))
			return
		case r.State == journal.StepFailed && s.Kind == plan.StepDel:
			// The cache file is what the next try is made with.
			g.kept[s.Object] = "kept for the next try, since DEL failed"
		case r.State == journal.StepDone && s.Kind == plan.StepCache:
			g.removed = append(g.removed, s.Object)
		case s.Kind == plan.StepNetns && (r.State == journal.StepDone || r.State == journal.StepSkipped && b.unpinned[s.NetnsID]):
			// Also when it went with another group of this batch, whose addresses it held too.
			g.unpinned, b.unpinned[s.NetnsID] = true, true
		}
		for _, it := range g.items {
			own := it.f.Resource == s.Resource && s.Kind == plan.StepCache ||
				s.Kind == plan.StepNetns && it.f.Resource.Kind == claim.KindNetns && it.f.Resource.NetnsID == s.NetnsID
			if own {
				it.settleBy(r)
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

// reprieve takes out the groups that are not wholly releasable any more; err says that
// nobody could tell.
func (b *batch) reprieve(err error) {
	for _, g := range b.groups {
		if g.over() {
			continue
		}
		if err != nil {
			g.keep(err)
			continue
		}
		for _, it := range g.items {
			if it.outcome != "" {
				continue
			}
			now := b.now[keyOf(it.f.Resource)]
			// With its namespace removed by ourselves an orphan is plainly absent, which
			// begins a new run of sightings; what counts is that nothing holds it any more.
			if g.unpinned && now.Gone || !g.unpinned && now.Releasable {
				continue
			}
			why := now.Why
			if len(now.Netns) > 0 && g.unpinned {
				why = "its network namespace is still there"
			}
			b.res.Reprieved = append(b.res.Reprieved, Reprieve{it.f, now})
			g.keep(errors.New("no longer certain when the witnesses were asked again: " + why))
			break
		}
	}
}

// move releases the addresses, store by store, in the order of the plan. When a store's
// lock came too late for the confirmation, the witnesses are asked again.
func (b *batch) move(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	for range moveTries {
		late := false
		dirs, byDir := b.waiting()
		for _, dir := range dirs {
			if !b.fresh() {
				b.reprieve(b.confirm(ctx))
			}
			late = b.moveDir(ctx, dir, byDir[dir]) || late
		}
		if !late {
			break
		}
		b.reprieve(b.confirm(ctx))
	}
	_, left := b.waiting()
	for _, items := range left {
		for _, it := range items {
			it.outcome, it.err = journal.OutcomeFailed, ErrStale
		}
	}
}

// waiting are the reservations without an outcome, by store.
func (b *batch) waiting() (dirs []string, byDir map[string][]*item) {
	byDir = map[string][]*item{}
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
	return dirs, byDir
}

// moveDir moves the waiting reservations of one store, and reports whether some are left
// because the lock came late.
func (b *batch) moveDir(ctx context.Context, dir string, items []*item) (late bool) {
	var moves []Move
	byID := map[string]*item{}
	for _, it := range items {
		if it.outcome == "" { // the last confirmation may have taken it out
			moves = append(moves, Move{ReleaseID: it.id, Path: it.f.Resource.Path, Inc: it.f.Resource.Inc})
			byID[it.id] = it
		}
	}
	if len(moves) == 0 {
		return false
	}
	moved, err := b.e.Vault.Release(ctx, dir, moves, b.fresh)
	if err != nil {
		b.stuck[dir] = err
	}
	for _, m := range moved {
		it := byID[m.ReleaseID]
		switch {
		case it == nil:
		case m.Outcome == journal.OutcomeFailed && errors.Is(m.Err, ErrStale):
			late = true
		default:
			it.outcome, it.err = m.Outcome, m.Err
		}
	}
	if err != nil {
		for _, it := range byID {
			if it.outcome == "" {
				it.outcome, it.err = journal.OutcomeFailed, err
			}
		}
		return false
	}
	return late
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
		rec := journal.Record{Type: journal.Outcome, At: now, Sweep: b.res.Sweep, ReleaseID: it.id, Outcome: it.outcome, Steps: it.steps}
		if it.err != nil {
			rec.Detail = it.err.Error()
		}
		recs = append(recs, rec)
		if it.outcome == journal.OutcomeReleased {
			b.res.Released = append(b.res.Released, Released{ID: it.id, Finding: it.f, Steps: it.steps, Err: it.err})
		} else {
			b.res.Failed = append(b.res.Failed, Failure{ID: it.id, Finding: it.f, Outcome: it.outcome, Err: it.err, Steps: it.steps})
		}
	}
	return recs
}
