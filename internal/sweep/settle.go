package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Settled is one release or undo that a crash had left half way, and what it came to.
type Settled struct {
	ID      string
	Release *journal.Release
	Outcome string
	Steps   []journal.StepResult
}

// Settle brings every release and undo that a crash left open to an end (I4). The
// disk says what happened, not the journal:
//
//	origin  quarantine  a release was ...          an undo was ...
//	yes     no          not begun: rolled-back     restored
//	no      yes         done: released             not ended: tried once more
//	yes     yes         a copy, not unlinked:      likewise
//	                    copy discarded,
//	                    rolled-back
//	no      no          gone by another's hand     restored
//
// owns says for which stores the caller holds the reaper lock; others are left alone.
// What cannot be looked at stays open.
func (e *Engine) Settle(ctx context.Context, owns func(store string) bool) ([]Settled, error) {
	recs, _, err := e.Journal.Load()
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	var done []Settled
	var out []journal.Record
	var errs []error
	for _, en := range journal.Replay(recs) {
		if !en.State.Unsettled() || en.Release == nil || !owns(en.Release.Store) {
			continue
		}
		if err := ctx.Err(); err != nil {
			errs = append(errs, err) // what is done already is written
			break
		}
		rec, err := e.settleOne(ctx, en)
		if err == nil {
			err = failpoint.At(failpoint.SettleAfter)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("settle %s: %w", en.ID, err))
			continue
		}
		out = append(out, rec)
		done = append(done, Settled{ID: en.ID, Release: en.Release, Outcome: rec.Outcome, Steps: rec.Steps})
	}
	if len(out) > 0 {
		if err := e.Journal.Append(out...); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}
	return done, errors.Join(append(errs, failpoint.At(failpoint.SettleWritten))...)
}

func (e *Engine) settleOne(ctx context.Context, en journal.Entry) (journal.Record, error) {
	rec := journal.Record{Type: journal.Outcome, At: e.Clock(), Sweep: en.Sweep, ReleaseID: en.ID, Detail: "settled after a crash"}
	if err := failpoint.At(failpoint.SettleBefore); err != nil {
		return rec, err
	}
	if en.Adopts {
		return e.settleAdoption(rec, en)
	}
	undo := en.State == journal.StateUndoOpen
	if undo {
		rec.Type = journal.UndoOutcome
	}
	if k := en.Release.Kind; k != claim.KindReservation && k != "" {
		// Cache files and namespaces have no quarantine: what still stands did not go.
		rec.Outcome = journal.OutcomeFailed
		if undo {
			rec.Outcome = journal.UndoFailed
		} else if e.cacheGone(en) {
			rec.Outcome = journal.OutcomeReleased
		}
		return rec, nil
	}
	m := Move{ReleaseID: en.ID, Path: en.Release.Path, Inc: en.Release.Inc}
	origin, quarantined, err := e.Vault.Place(m)
	if err != nil {
		return rec, err
	}
	switch {
	case undo && quarantined && en.Intent.Boot != rec.At.Boot:
		// Its Pod is gone for good; putting it back would only hold the address.
		rec.Outcome = journal.UndoFailed
		return rec, e.Holds.Unhold(holdOf(en))
	case undo && en.Intent.Boot != rec.At.Boot:
		// Put back in a boot that is past: what lies there is judged as anything else.
		rec.Outcome = journal.UndoRestored
		return rec, errors.Join(e.discardTorn(en, rec), e.Holds.Unhold(holdOf(en)))
	case undo:
		// The hold first, as in undoOne: it may not have been written.
		if _, err := e.Holds.Hold(holdOf(en), en.ID); err != nil {
			return rec, err
		}
		rec.Outcome = journal.UndoRestored
		if quarantined {
			// A copy may stand in the store already; Restore knows its own.
			taken, err := e.Vault.Restore(ctx, m)
			if taken {
				rec.Outcome = journal.UndoTaken
				return rec, e.Holds.Unhold(holdOf(en))
			}
			if err != nil {
				return rec, err
			}
		}
		return rec, e.cacheBack(&rec, en)
	case quarantined && !origin:
		rec.Outcome = journal.OutcomeReleased
	case origin:
		rec.Outcome = journal.OutcomeRolledBack
	default:
		rec.Outcome = journal.OutcomeGone
	}
	if origin {
		// The copy that was not followed by an unlink, or a part of one.
		if err := e.Vault.Discard(en.ID); err != nil {
			return rec, err
		}
		if rel := en.Release; rel.Undoes != "" {
			// Not taken back after all.
			if err := e.Holds.Unhold(adoptionHold(rel, rel.Undoes)); err != nil {
				return rec, err
			}
		}
		// An address that stays keeps its cache file, which may be gone already.
		return rec, e.cacheBack(&rec, en)
	}
	if rec.Outcome == journal.OutcomeGone {
		return rec, e.discardTorn(en, rec)
	}
	return rec, nil
}

// discardTorn removes what a power loss left of a quarantined file: the allocator does not
// fsync what it writes. In the boot of the release a file that is not the judged one may
// be another's that could not be put back; it stays.
func (e *Engine) discardTorn(en journal.Entry, rec journal.Record) error {
	if en.Intent.Boot == rec.At.Boot {
		return nil
	}
	return e.Vault.Discard(en.ID)
}

// cacheBack writes the cache file of an address that stands in its store, if it went
// along. An error is worth another try.
func (e *Engine) cacheBack(rec *journal.Record, en journal.Entry) error {
	c := en.Release.Cache
	if c == nil {
		return nil
	}
	step := journal.StepResult{Step: "cache-back", Object: c.Path, State: journal.StepDone}
	if err := e.Sides.Restore(c.Path, c.Content); err != nil {
		if again(err) {
			return err
		}
		step.State, step.Detail = journal.StepFailed, err.Error()
	}
	rec.Steps = append(rec.Steps, step)
	return nil
}

// again reports whether writing a cache file may come out otherwise another time: not when
// another is there, or its directory is not.
func again(err error) bool {
	return !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist)
}

// cacheGone reports whether a cache file that was released by itself went.
func (e *Engine) cacheGone(en journal.Entry) bool {
	if en.Release.Kind != claim.KindCache {
		return false
	}
	r := &claim.Resource{Kind: claim.KindCache, Store: en.Release.Store, Path: en.Release.Path, Inc: en.Release.Inc}
	_, err := e.Sides.Content(plan.Step{Kind: plan.StepCache, Object: r.Path, Resource: r})
	return errors.Is(err, fs.ErrNotExist)
}

// holdOf is the hold that an undo puts on what it puts back: on its owner's reservation, or
// on the address of a file that names no container.
func holdOf(en journal.Entry) verdict.Hold {
	h := verdict.Hold{Store: en.Release.Store, Addr: en.Release.Addr, Why: "put back by undo " + en.ID}
	if en.Release.Owner.Shape == claim.ShapeContainer {
		h.Owner = en.Release.Owner
	}
	return h
}

// Undone is what became of one undo.
type Undone struct {
	ID      string
	Release *journal.Release
	Outcome string // "restored", "taken" or "failed"; of an adoption "released", "changed", "gone" or "failed"
	// ReleasedAs is the ID of the release that took an adoption back.
	ReleasedAs string
	Err        error
	Steps      []journal.StepResult
	// Lost are the pieces that cannot be brought back.
	Lost []journal.StepResult
}

// ErrNotUndoable: the release is not in the quarantine, or was made in another boot.
var ErrNotUndoable = errors.New("cannot be undone")

// Undo puts releases back, in the order given, each with a hold so that the next sweep
// leaves it. The hold comes first: between the two the address must not be released
// again. When ctx ends, the undo at hand is finished and the rest is left.
func (e *Engine) Undo(ctx context.Context, ids []string) ([]Undone, error) {
	recs, _, err := e.Journal.Load()
	if err != nil {
		return nil, fmt.Errorf("undo: %w", err)
	}
	entries := journal.Replay(recs)
	run, err := e.newSweep()
	if err != nil {
		return nil, err
	}
	var out []Undone
	for n, id := range ids {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		i := slices.IndexFunc(entries, func(en journal.Entry) bool { return en.ID == id })
		if i < 0 {
			return out, fmt.Errorf("undo %q: %w: the journal has no such release", id, ErrNotUndoable)
		}
		u, err := e.undoOne(run, n+1, entries[i])
		if u.Outcome != "" {
			out = append(out, u)
		}
		if err != nil {
			return out, err
		}
		if u.Outcome == journal.UndoRestored || u.Outcome == journal.OutcomeReleased {
			entries[i].State = journal.StateUndone // it may be named twice
		}
	}
	return out, nil
}

func (e *Engine) undoOne(run string, n int, en journal.Entry) (Undone, error) {
	u := Undone{ID: en.ID, Release: en.Release}
	if why := e.notUndoable(en); why != "" {
		u.Outcome, u.Err = journal.UndoFailed, fmt.Errorf("undo %s: %w: %s", en.ID, ErrNotUndoable, why)
		return u, nil
	}
	if en.Adopts {
		return e.unadopt(run, journal.BatchID(run, n), en)
	}
	if err := e.Journal.Append(journal.Record{Type: journal.UndoIntent, At: e.Clock(), Sweep: run, ReleaseID: en.ID}); err != nil {
		return u, fmt.Errorf("no intent could be written, so nothing is undone: %w", err)
	}
	if err := failpoint.At(failpoint.UndoIntent); err != nil {
		return u, err
	}
	for _, s := range en.Steps {
		if s.Irreversible && s.State == journal.StepDone {
			u.Lost = append(u.Lost, s)
		}
	}
	if r := en.Release; r.Kind == claim.KindReservation || r.Kind == "" {
		e.restore(&u, en)
	} else {
		u.Outcome = journal.UndoRestored
	}
	if err := failpoint.At(failpoint.UndoRestored); err != nil {
		return u, err
	}
	if c := en.Release.Cache; c != nil && u.Outcome == journal.UndoRestored {
		step := journal.StepResult{Step: "cache", Object: c.Path, State: journal.StepDone}
		if err := e.Sides.Restore(c.Path, c.Content); err != nil {
			step.State, step.Detail = journal.StepFailed, err.Error()
			if en.Release.Kind == claim.KindCache {
				u.Outcome, u.Err = journal.UndoFailed, err
			} else if again(err) {
				u.Steps = append(u.Steps, step)
				u.Err = errors.Join(u.Err, fmt.Errorf("its cache file is not back, and the next run tries once more: %w", err))
				return u, nil
			}
		}
		u.Steps = append(u.Steps, step)
	}
	if err := failpoint.At(failpoint.UndoCache); err != nil {
		return u, err
	}
	rec := journal.Record{Type: journal.UndoOutcome, At: e.Clock(), Sweep: run, ReleaseID: en.ID, Outcome: u.Outcome, Steps: append(u.Steps, u.Lost...)}
	if u.Err != nil {
		rec.Detail = u.Err.Error()
	}
	if err := e.Journal.Append(rec); err != nil {
		return u, fmt.Errorf("the outcome could not be written; the next run settles it: %w", err)
	}
	return u, failpoint.At(failpoint.UndoOutcome)
}

func (e *Engine) restore(u *Undone, en journal.Entry) {
	r := en.Release
	hold := holdOf(en)
	added, err := e.Holds.Hold(hold, en.ID)
	if err != nil {
		u.Outcome, u.Err = journal.UndoFailed, fmt.Errorf("no hold could be written, so the next sweep would release it again: %w", err)
		return
	}
	m := Move{ReleaseID: en.ID, Path: r.Path, Inc: r.Inc}
	taken, err := false, failpoint.At(failpoint.UndoHeld)
	if err == nil {
		taken, err = e.Vault.Restore(context.Background(), m)
	}
	if err != nil && !taken && !errors.Is(err, fs.ErrNotExist) {
		// It may be back all the same, such as when an fsync failed after the move: then
		// the hold stays, and it is not called what it is not.
		if _, quarantined, lookErr := e.Vault.Place(m); lookErr == nil && !quarantined {
			u.Outcome, u.Err = journal.UndoRestored, fmt.Errorf("back, but it may not survive a power loss: %w", err)
			return
		}
	}
	switch {
	case taken:
		u.Outcome, u.Err = journal.UndoTaken, fmt.Errorf("%s is reserved again by another: not put back", r.Addr)
	case err != nil:
		u.Outcome, u.Err = journal.UndoFailed, err
	default:
		u.Outcome = journal.UndoRestored
		return
	}
	if added {
		if err := e.Holds.Unhold(hold); err != nil {
			u.Err = errors.Join(u.Err, err)
		}
	}
}

func (e *Engine) notUndoable(en journal.Entry) string {
	now := e.Clock()
	switch {
	case en.Release == nil:
		return "its record is damaged"
	case en.State == journal.StateUndone:
		return "it is undone already"
	case en.State == journal.StateUndoOpen:
		return "an earlier undo of it could not be brought to an end; try again"
	case en.Adopts && en.State == journal.StateAdopted && en.Intent.Boot == now.Boot && now.Boot != "":
	case en.Adopts && en.State == journal.StateAdopted:
		return "it was adopted in an earlier boot; the Pod it belonged to is gone for good"
	case en.State != journal.StateReleased && en.Adopts:
		return "it was not adopted (" + string(en.State) + ")"
	case en.State != journal.StateReleased:
		return "it was not released (" + string(en.State) + ")"
	case !en.Undoable(now.Boot):
		return "it was released in an earlier boot; the Pod it belonged to is gone for good"
	case en.Release.Kind == claim.KindNetns:
		return "a network namespace cannot be made again"
	case en.Release.Kind == claim.KindCache && en.Release.Cache == nil:
		return "the content of the cache file was not kept"
	}
	return ""
}
