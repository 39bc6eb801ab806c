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
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Adoption is one reservation to make: Owner as it is to be written.
type Adoption struct {
	ReleaseID string
	Path      string
	Owner     claim.Owner
}

// Made is what became of an Adoption: "adopted", "taken" or "failed", the journal's words.
type Made struct {
	ReleaseID string
	Outcome   string
	Inc       claim.Incarnation // when adopted
	// Err says why it was not; beside "adopted", that it may not survive a power loss.
	Err error
}

// Maker makes reservations, under the allocator's own lock.
type Maker interface {
	// Adopt makes those whose address has no reservation; what is there is never touched.
	// fresh is asked once the lock is had; when it says no, nothing is made and the error is
	// ErrStale. There is one Made for every Adoption. An error means that nothing was made.
	Adopt(ctx context.Context, dir string, list []Adoption, fresh func() bool) ([]Made, error)
	// Look says after a crash whether such a reservation stands, durably, and removes what
	// was left of a try.
	Look(m Adoption) (inc claim.Incarnation, stands bool, err error)
}

// Adopted is one live attachment whose reservation was missing, and what became of it.
type Adopted struct {
	// ID is empty when nothing was begun.
	ID      string
	Finding *verdict.Finding
	// Outcome is the journal's word, or "withheld" when nothing was begun.
	Outcome string
	Err     error
}

const (
	// Few go together: each is fsynced between the confirmation and the lock, which is
	// held for all of them (I12).
	adoptBatch = 16
	// adoptTries is how often a batch is confirmed anew because the lock came late.
	adoptTries = 16
)

// ruleUnadopted is the rule of a release that takes an adoption back.
const ruleUnadopted = "adoption-undone"

// Adopt gives what a calls Adoptable its reservation back (I14), each through the gates of a
// release: confirmed live, journalled, and made under the allocator's lock, only where there
// is none. skip, unless nil, gives the reasons outside of the judge why one waits.
//
// An error is the journal's, the holds' or ctx's; what is returned still says what was done
// and what was not begun.
func (e *Engine) Adopt(ctx context.Context, a *Audit, skip func(*claim.Resource) string) ([]Adopted, error) {
	run := &adopting{e: e, a: a}
	byStore := map[string][]*verdict.Finding{}
	var stores []string
	for i := range a.Judgement.Findings {
		f := &a.Judgement.Findings[i]
		if !f.Adoptable {
			continue
		}
		if why := skipped(skip, f.Resource); why != "" {
			run.withhold(f, errors.New(why))
			continue
		}
		dir := f.Resource.Store
		if byStore[dir] == nil {
			stores = append(stores, dir)
		}
		byStore[dir] = append(byStore[dir], f)
	}
	if len(stores) == 0 {
		return run.out, nil
	}
	var err error
	if run.sweep, err = e.newSweep(); err != nil {
		return run.out, err
	}
	for _, dir := range stores {
		for batch := range slices.Chunk(byStore[dir], adoptBatch) {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = run.batch(ctx, dir, batch)
				continue
			}
			for _, f := range batch {
				run.withhold(f, err)
			}
		}
	}
	return run.out, err
}

func skipped(skip func(*claim.Resource) string, r *claim.Resource) string {
	if skip == nil {
		return ""
	}
	return skip(r)
}

// adopting is one call of Adopt.
type adopting struct {
	e     *Engine
	a     *Audit
	sweep string
	n     int
	out   []Adopted
	// answered is when the last confirmation was given, holds are what it was made with.
	answered claim.Instant
	holds    []verdict.Hold
}

func (r *adopting) withhold(f *verdict.Finding, err error) {
	r.out = append(r.out, Adopted{Finding: f, Outcome: "withheld", Err: err})
}

// batch makes the reservations of one store that are confirmed. An error ends the whole.
func (r *adopting) batch(ctx context.Context, dir string, list []*verdict.Finding) error {
	whys, err := r.confirm(ctx, list)
	if err != nil {
		for _, f := range list {
			r.withhold(f, err)
		}
		return err
	}
	var begun []Adopted
	var todo []Adoption
	var intents []journal.Record
	for i, f := range list {
		if whys[i] != "" {
			r.withhold(f, uncertain(whys[i]))
			continue
		}
		r.n++
		rec := r.intent(f, journal.BatchID(r.sweep, r.n))
		if err := rec.Check(); err != nil {
			r.withhold(f, err) // what cannot be journalled is not made (I3)
			continue
		}
		intents = append(intents, rec)
		begun = append(begun, Adopted{ID: rec.ReleaseID, Finding: f})
		todo = append(todo, adoptionOf(rec.ReleaseID, rec.Release))
	}
	if len(intents) == 0 {
		return nil
	}
	if err := r.e.Journal.Append(intents...); err != nil {
		err = fmt.Errorf("no intent could be written, so nothing is adopted: %w", err)
		for i := range begun {
			r.withhold(begun[i].Finding, err)
		}
		return err
	}
	if err := failpoint.At(failpoint.AdoptIntents); err != nil {
		return err
	}
	// What is begun is ended, whatever becomes of the caller.
	made := r.make(context.WithoutCancel(ctx), dir, begun, todo)
	if err := failpoint.At(failpoint.AdoptMade); err != nil {
		return err
	}
	recs := make([]journal.Record, len(begun))
	now := r.e.Clock()
	for i := range begun {
		begun[i].Outcome, begun[i].Err = made[i].Outcome, made[i].Err
		recs[i] = journal.Record{Type: journal.AdoptOutcome, At: now, Sweep: r.sweep, ReleaseID: begun[i].ID, Outcome: made[i].Outcome, Inc: made[i].Inc}
		if made[i].Err != nil {
			recs[i].Detail = made[i].Err.Error()
		}
	}
	r.out = append(r.out, begun...)
	if err := r.e.Journal.Append(recs...); err != nil {
		return fmt.Errorf("the outcome could not be written; the next run settles it: %w", err)
	}
	return failpoint.At(failpoint.AdoptOutcomes)
}

func uncertain(why string) error {
	return errors.New("no longer certain when the witnesses were asked again: " + why)
}

// make asks the driver, with a confirmation that is young when the lock is had. There is one
// Made for each of todo.
func (r *adopting) make(ctx context.Context, dir string, begun []Adopted, todo []Adoption) []Made {
	out := make([]Made, len(todo))
	at := map[string]int{}
	for i := range todo {
		at[todo[i].ReleaseID] = i
		out[i] = Made{ReleaseID: todo[i].ReleaseID, Outcome: journal.AdoptFailed, Err: ErrStale}
	}
	for range adoptTries {
		made, err := r.e.Maker.Adopt(ctx, dir, todo, r.fresh)
		if !errors.Is(err, ErrStale) {
			for _, m := range made {
				if i, ok := at[m.ReleaseID]; ok {
					out[i] = m
				}
			}
			if err != nil {
				for i := range todo {
					out[at[todo[i].ReleaseID]] = Made{ReleaseID: todo[i].ReleaseID, Outcome: journal.AdoptFailed, Err: err}
				}
			}
			return out
		}
		// The lock came late: they are asked again, and what is not certain now stays out.
		list := make([]*verdict.Finding, len(todo))
		for i := range todo {
			list[i] = begun[at[todo[i].ReleaseID]].Finding
		}
		whys, err := r.confirm(ctx, list)
		var left []Adoption
		for i, m := range todo {
			switch o := &out[at[m.ReleaseID]]; {
			case err != nil:
				o.Err = err
			case whys[i] != "":
				o.Err = uncertain(whys[i])
			default:
				left = append(left, m)
			}
		}
		if todo = left; len(todo) == 0 {
			break
		}
	}
	return out
}

// confirm asks the witnesses and reads the holds again (gate 3), and says of each finding
// why it may not be adopted any more. The name need not be looked for again: it is made
// only if there is none.
func (r *adopting) confirm(ctx context.Context, list []*verdict.Finding) ([]string, error) {
	asked := r.e.Clock()
	c := r.a.Case
	var err error
	if c.Policy.Holds, err = r.e.Holds.List(); err != nil {
		return nil, fmt.Errorf("the holds cannot be read: %w", err)
	}
	c.Testimonies = append(slices.Concat(ask(ctx, r.e.Witnesses, r.e.beside(), detailed(&r.a.Case), func(int) bool { return true })...), r.a.late...)
	r.answered, r.holds = r.e.Clock(), c.Policy.Holds
	if d, ok := r.answered.Since(asked); !ok || d > tooSlow {
		return nil, fmt.Errorf("the witnesses took %s to answer, more than %s, so their answer is too old", d.Round(time.Millisecond), tooSlow)
	}
	c.Now = r.e.Clock()
	return verdict.Readopt(&c, list), nil
}

// fresh is as in a release: a young confirmation, and the same holds.
func (r *adopting) fresh() bool {
	d, ok := r.e.Clock().Since(r.answered)
	if !ok || d > stale {
		return false
	}
	holds, err := r.e.Holds.List()
	return err == nil && slices.Equal(holds, r.holds)
}

func (r *adopting) intent(f *verdict.Finding, id string) journal.Record {
	o := f.Resource
	rel := &journal.Release{
		Kind: claim.KindReservation, Store: o.Store, Path: o.Path, Network: o.Network, Addr: o.Addr, Owner: o.Owner,
		Attachment: o.Attachment(), Pod: f.Pod, Verdict: f.Verdict.String(), Rule: f.Rule, Why: f.Why, FirstSeen: f.First(),
	}
	if r.onlyIDs(o.Store) {
		rel.Owner.IfName = ""
	}
	for _, s := range f.Says {
		rel.Says = append(rel.Says, journal.Say{Witness: s.Witness, Word: string(s.Word), Detail: s.About(o)})
	}
	return journal.Record{Type: journal.AdoptIntent, At: r.e.Clock(), Sweep: r.sweep, ReleaseID: id, Release: rel}
}

// onlyIDs reports whether the reservations of a store name no interfaces, as host-local of
// before 0.7 wrote them: its DEL would pass over any other.
func (r *adopting) onlyIDs(store string) bool {
	n := 0
	for i := range r.a.Case.Snapshots {
		for j := range r.a.Case.Snapshots[i].Resources {
			o := &r.a.Case.Snapshots[i].Resources[j]
			if o.Kind != claim.KindReservation || o.Store != store || o.Problem != "" || o.Owner.Shape != claim.ShapeContainer {
				continue
			}
			if o.Owner.IfName != "" {
				return false
			}
			n++
		}
	}
	return n > 0
}

func adoptionOf(id string, rel *journal.Release) Adoption {
	return Adoption{ReleaseID: id, Path: rel.Path, Owner: rel.Owner}
}

// settleAdoption brings an adoption that a crash left open to an end (I4): what stands was
// adopted, and nothing is made any more, since nobody knows who lives now.
func (e *Engine) settleAdoption(rec journal.Record, en journal.Entry) (journal.Record, error) {
	rec.Type, rec.Outcome = journal.AdoptOutcome, journal.AdoptFailed
	inc, stands, err := e.Maker.Look(adoptionOf(en.ID, en.Release))
	if err == nil && stands {
		rec.Outcome, rec.Inc = journal.AdoptAdopted, inc
	}
	return rec, err
}

// adoptionHold keeps an attachment from being adopted again after an undo.
func adoptionHold(rel *journal.Release, id string) verdict.Hold {
	o := rel.Owner
	o.IfName = rel.Attachment.IfName
	return verdict.Hold{Store: rel.Store, Addr: rel.Addr, Owner: o, Why: "adopted and taken back by undo " + id}
}

// unadopt takes an adoption back, because a person said so: a release like any other, of
// the very file that was made, that an undo in its turn puts back. The attachment is held,
// or the next sweep would adopt it again.
func (e *Engine) unadopt(run, id string, en journal.Entry) (Undone, error) {
	u := Undone{ID: en.ID, Release: en.Release, ReleasedAs: id}
	rel := *en.Release
	rel.Inc, rel.Undoes, rel.Rule, rel.Says = en.Inc, en.ID, ruleUnadopted, nil
	rel.Why = "a person took back that it was adopted"
	if err := e.Journal.Append(journal.Record{Type: journal.Intent, At: e.Clock(), Sweep: run, ReleaseID: id, Release: &rel}); err != nil {
		return u, fmt.Errorf("no intent could be written, so nothing is undone: %w", err)
	}
	if err := failpoint.At(failpoint.UnadoptIntent); err != nil {
		return u, err
	}
	hold := adoptionHold(&rel, en.ID)
	added, err := e.Holds.Hold(hold, en.ID)
	if err != nil {
		u.Outcome, u.Err = journal.OutcomeFailed, fmt.Errorf("no hold could be written, so the next sweep would adopt it again: %w", err)
	} else {
		u.Outcome, u.Err = e.takeBack(rel.Store, Move{ReleaseID: id, Path: rel.Path, Inc: rel.Inc})
		if u.Outcome == journal.OutcomeFailed && added {
			u.Err = errors.Join(u.Err, e.Holds.Unhold(hold))
		}
	}
	if err := failpoint.At(failpoint.UnadoptMoved); err != nil {
		return u, err
	}
	rec := journal.Record{Type: journal.Outcome, At: e.Clock(), Sweep: run, ReleaseID: id, Outcome: u.Outcome}
	if u.Err != nil {
		rec.Detail = u.Err.Error()
	}
	if err := e.Journal.Append(rec); err != nil {
		return u, fmt.Errorf("the outcome could not be written; the next run settles it: %w", err)
	}
	return u, failpoint.At(failpoint.UnadoptOutcome)
}

// takeBack moves what was adopted into the quarantine, if it is still the same.
func (e *Engine) takeBack(dir string, m Move) (outcome string, err error) {
	if err := failpoint.At(failpoint.UnadoptHeld); err != nil {
		return journal.OutcomeFailed, err
	}
	moved, err := e.Vault.Release(context.Background(), dir, []Move{m}, func() bool { return true })
	for _, o := range moved {
		if o.ReleaseID != m.ReleaseID {
			continue
		}
		switch o.Outcome {
		case journal.OutcomeGone:
			return o.Outcome, errors.New("its reservation is gone already")
		case journal.OutcomeChanged:
			return o.Outcome, errors.New("another reservation lies there by now; not touched")
		}
		return o.Outcome, errors.Join(o.Err, err)
	}
	return journal.OutcomeFailed, err
}
