package journal

import (
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// adopt is the intent of the nth adoption, adopted its outcome.
func adopt(n int) Record {
	r := intent(n)
	r.Type = AdoptIntent
	r.Release.Inc, r.Release.Verdict, r.Release.Rule, r.Release.Cache = claim.Incarnation{}, "Missing", "no-reservation", nil
	return r
}

func adopted(n int, word string) Record {
	r := Record{Type: AdoptOutcome, At: at("b1", 2), Sweep: sweepID, ReleaseID: BatchID(sweepID, n), Outcome: word}
	if word == AdoptAdopted {
		r.Inc = claim.Incarnation{Dev: 1, Ino: 2, Ctime: 3, Size: 4, Sum: "5"}
	}
	return r
}

func TestReplay(t *testing.T) {
	in := intent(1)
	out := func(word string) Record { return outcome(1, word) }
	un := undo(UndoIntent, 1, "")
	und := func(word string) Record { return undo(UndoOutcome, 1, word) }
	ad := adopt(1)
	ado := func(word string) Record { return adopted(1, word) }
	// A release with the ID of another takes the adoption back.
	back := intent(2)
	back.Release.Undoes = ad.ReleaseID
	for _, tc := range []struct {
		name     string
		recs     []Record
		want     State
		problems int
		undoable bool
	}{
		{"intent alone", []Record{in}, StateOpen, 0, false},
		{"released", []Record{in, out(OutcomeReleased)}, StateReleased, 0, true},
		{"changed", []Record{in, out(OutcomeChanged)}, StateChanged, 0, false},
		{"gone", []Record{in, out(OutcomeGone)}, StateGone, 0, false},
		{"failed", []Record{in, out(OutcomeFailed)}, StateFailed, 0, false},
		{"rolled back", []Record{in, out(OutcomeRolledBack)}, StateRolledBack, 0, false},
		{"undo open", []Record{in, out(OutcomeReleased), un}, StateUndoOpen, 0, true},
		{"undo tried again", []Record{in, out(OutcomeReleased), un, un}, StateUndoOpen, 0, true},
		{"undone", []Record{in, out(OutcomeReleased), un, und(UndoRestored)}, StateUndone, 0, false},
		{"taken: still there", []Record{in, out(OutcomeReleased), un, und(UndoTaken)}, StateReleased, 0, true},
		{"undo failed: still there", []Record{in, out(OutcomeReleased), un, und(UndoFailed)}, StateReleased, 0, true},
		{"discarded", []Record{in, out(OutcomeReleased), und(UndoDiscarded)}, StateDiscarded, 0, false},
		{"second intent", []Record{in, out(OutcomeReleased), in}, StateReleased, 1, true},
		{"second outcome", []Record{in, out(OutcomeReleased), out(OutcomeFailed)}, StateReleased, 1, true},
		{"intent lost", []Record{out(OutcomeReleased)}, StateReleased, 1, true},
		{"outcome lost", []Record{in, un}, StateUndoOpen, 1, true},
		{"all but the undo lost", []Record{un}, StateUndoOpen, 1, true},
		{"undo's intent lost", []Record{in, und(UndoRestored)}, StateUndone, 1, false},
		{"undo of a failure", []Record{in, out(OutcomeFailed), un, und(UndoRestored)}, StateFailed, 2, false},
		{"an adoption's intent alone", []Record{ad}, StateAdoptOpen, 0, false},
		{"adopted", []Record{ad, ado(AdoptAdopted)}, StateAdopted, 0, true},
		{"not adopted: taken", []Record{ad, ado(AdoptTaken)}, StateTaken, 0, false},
		{"not adopted", []Record{ad, ado(AdoptFailed)}, StateFailed, 0, false},
		{"adopted, intent lost", []Record{ado(AdoptAdopted)}, StateAdopted, 1, true},
		{"adopted twice", []Record{ad, ado(AdoptAdopted), ado(AdoptFailed)}, StateAdopted, 1, true},
		{"a second adoption of one ID", []Record{ad, ado(AdoptTaken), ad}, StateTaken, 1, false},
		{"a release's outcome for an adoption", []Record{ad, out(OutcomeReleased)}, StateAdoptOpen, 1, false},
		{"an adoption's outcome for a release", []Record{in, ado(AdoptAdopted)}, StateOpen, 1, false},
		{"an undo's records for an adoption", []Record{ad, ado(AdoptAdopted), un, und(UndoRestored)}, StateAdopted, 2, true},
		{"taken back, open", []Record{ad, ado(AdoptAdopted), back}, StateAdopted, 0, true},
		{"taken back, failed", []Record{ad, ado(AdoptAdopted), back, outcome(2, OutcomeFailed)}, StateAdopted, 0, true},
		{"taken back, rolled back", []Record{ad, ado(AdoptAdopted), back, outcome(2, OutcomeRolledBack)}, StateAdopted, 0, true},
		{"taken back", []Record{ad, ado(AdoptAdopted), back, outcome(2, OutcomeReleased)}, StateUndone, 0, false},
		{"taken back, and that undone", []Record{ad, ado(AdoptAdopted), back, outcome(2, OutcomeReleased), undo(UndoIntent, 2, ""), undo(UndoOutcome, 2, UndoRestored)}, StateUndone, 0, false},
		{"gone by another's hand", []Record{ad, ado(AdoptAdopted), back, outcome(2, OutcomeGone)}, StateUndone, 0, false},
		{"another's by then", []Record{ad, ado(AdoptAdopted), back, outcome(2, OutcomeChanged)}, StateUndone, 0, false},
		{"undo twice", []Record{in, out(OutcomeReleased), un, und(UndoRestored), un}, StateUndone, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			es := Replay(tc.recs)
			if others := len(es) - 1; others > 0 && tc.recs[0].Type != AdoptIntent {
				t.Fatalf("%d entries", len(es))
			}
			e := es[0]
			if first := tc.recs[0].Type; e.Adopts != (first == AdoptIntent || first == AdoptOutcome) || (e.Inc != claim.Incarnation{}) != (e.Adopts && (e.State == StateAdopted || e.State == StateUndone)) {
				t.Fatalf("adopts %v, made %+v", e.Adopts, e.Inc)
			}
			if e.State != tc.want || len(e.Problems) != tc.problems {
				t.Fatalf("%s with problems %q, want %s with %d", e.State, e.Problems, tc.want, tc.problems)
			}
			if e.Undoable("b1") != tc.undoable || e.Undoable("b2") || e.Undoable("") {
				t.Fatalf("undoable in its boot %v, in another %v, in an unread one %v", e.Undoable("b1"), e.Undoable("b2"), e.Undoable(""))
			}
			if (e.Release != nil) != (tc.recs[0].Type == Intent || tc.recs[0].Type == AdoptIntent) {
				t.Fatalf("release %v", e.Release)
			}
		})
	}
}

func TestReplayKeepsOrderAndSteps(t *testing.T) {
	es := Replay([]Record{intent(3), intent(1), outcome(1, OutcomeReleased), outcome(3, OutcomeFailed), intent(2)})
	if len(es) != 3 || es[0].ID != BatchID(sweepID, 3) || es[1].ID != BatchID(sweepID, 1) || es[2].ID != BatchID(sweepID, 2) {
		t.Fatalf("%+v", es)
	}
	if len(es[0].Steps) != 2 || !es[0].Steps[1].Irreversible || es[0].Sweep != sweepID || es[0].Last != at("b1", 4) {
		t.Fatalf("%+v", es[0])
	}
}
