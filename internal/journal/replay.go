package journal

import "github.com/holdfast-cni/holdfast/internal/claim"

// State is what became of a release.
type State string

// The states. Those marked * ask for an action at the next start.
const (
	// StateOpen *: an intent without an outcome. Whether the reservation was moved is
	// for the quarantine and the store to say.
	StateOpen State = "open"
	// StateReleased: in the quarantine; may be undone while the boot is the same and
	// the address is free.
	StateReleased   State = "released"
	StateChanged    State = "changed"
	StateGone       State = "gone"
	StateFailed     State = "failed"
	StateRolledBack State = "rolled-back"
	// StateUndoOpen *: an undo began and its end is not known.
	StateUndoOpen State = "undo-open"
	// StateUndone: back in its store.
	StateUndone State = "undone"
	// StateDiscarded: the quarantined file is gone for good.
	StateDiscarded State = "discarded"
	// StateAdoptOpen *: an adoption began and its end is not known.
	StateAdoptOpen State = "adopt-open"
	// StateAdopted: the reservation was made. Undone when a release took it back, or found
	// it gone.
	StateAdopted State = "adopted"
	// StateTaken: the address had a reservation by then. An adoption that failed is
	// StateFailed.
	StateTaken State = "taken"
)

// Unsettled reports whether a crash left it half way.
func (s State) Unsettled() bool {
	return s == StateOpen || s == StateUndoOpen || s == StateAdoptOpen
}

// Entry is one release with everything that the journal says of it.
type Entry struct {
	ID    string
	Sweep string
	State State
	// Release is nil when the record of the intent was lost to damage.
	Release *Release
	Intent  claim.Instant // of the first record
	Last    claim.Instant // of the last record
	Detail  string        // of the last outcome
	Steps   []StepResult  // of the release's outcome
	// Undo holds the steps of the last undo that ended.
	Undo []StepResult
	// Adopts: it is an adoption. Inc is what was made.
	Adopts bool
	Inc    claim.Incarnation
	// Problems are records that do not fit those before them, in plain words.
	Problems []string
}

// Undoable reports whether an undo may be tried under the given boot ID: the
// reservation is in the quarantine and was released in that boot (I3), or was made by an
// adoption of that boot.
func (e Entry) Undoable(boot string) bool {
	return (e.State == StateReleased || e.State == StateUndoOpen || e.State == StateAdopted) && boot != "" && e.Intent.Boot == boot
}

// Replay adds the records up: one entry for each release, in the order of their
// first records. It never fails: what does not fit is a Problem of its entry.
// It is pure, and the records are not changed; entries share memory with them.
func Replay(recs []Record) []Entry {
	index := make(map[string]int)
	var out []Entry
	for _, r := range recs {
		i, ok := index[r.ReleaseID]
		if !ok {
			i = len(out)
			index[r.ReleaseID] = i
			out = append(out, Entry{ID: r.ReleaseID, Sweep: r.Sweep, Intent: r.At})
		}
		out[i].add(r)
	}
	for _, e := range out {
		if e.Release == nil || e.Release.Undoes == "" {
			continue
		}
		i, ok := index[e.Release.Undoes]
		if !ok || out[i].State != StateAdopted {
			continue
		}
		switch e.State {
		case StateOpen, StateFailed, StateRolledBack: // it stands, as far as is known
		default:
			out[i].State = StateUndone
		}
	}
	return out
}

func (e *Entry) add(r Record) {
	state, problem := next(e.State, r)
	if problem != "" {
		e.Problems = append(e.Problems, problem)
	}
	e.Last = r.At
	switch r.Type {
	case Intent, AdoptIntent:
		if e.Release == nil {
			e.Release, e.Adopts = r.Release, r.Type == AdoptIntent
		}
	case AdoptOutcome:
		if e.State == "" || e.State == StateAdoptOpen {
			e.Adopts = true
			e.Detail, e.Steps, e.Inc = r.Detail, r.Steps, r.Inc
		}
	case Outcome:
		if e.State == "" || e.State == StateOpen {
			e.Detail, e.Steps = r.Detail, r.Steps
		}
	case UndoOutcome:
		e.Detail, e.Undo = r.Detail, r.Steps
	}
	e.State = state
}

// next is the whole state machine. A record that does not fit, which damage or two
// writers can bring about, never takes an entry out of a state that keeps its
// quarantined file: the first outcome stands.
func next(s State, r Record) (State, string) {
	switch r.Type {
	case Intent:
		if s != "" {
			return s, "a second intent for this ID"
		}
		return StateOpen, ""
	case AdoptIntent:
		if s != "" {
			return s, "a second intent for this ID"
		}
		return StateAdoptOpen, ""
	case AdoptOutcome:
		problem := ""
		switch s {
		case StateAdoptOpen:
		case "":
			problem = "an outcome whose intent is lost"
		default:
			return s, "a second outcome: " + r.Outcome
		}
		return outcomeState(r.Outcome), problem
	case Outcome:
		problem := ""
		switch s {
		case StateOpen:
		case "":
			problem = "an outcome whose intent is lost"
		default:
			return s, "a second outcome: " + r.Outcome
		}
		return outcomeState(r.Outcome), problem
	case UndoIntent:
		switch s {
		case StateReleased, StateUndoOpen:
			return StateUndoOpen, ""
		case StateOpen, "":
			return StateUndoOpen, "an undo of something that is not known to be released"
		}
		return s, "an undo of something that is " + string(s)
	case UndoOutcome:
		problem := ""
		switch s {
		case StateUndoOpen, StateReleased:
		case StateOpen, "":
			problem = "an undo's outcome for something that is not known to be released"
		default:
			return s, "an undo's outcome for something that is " + string(s)
		}
		switch r.Outcome {
		case UndoRestored:
			return StateUndone, problem
		case UndoDiscarded:
			return StateDiscarded, problem
		}
		return StateReleased, problem // taken, failed: it still lies in the quarantine
	}
	return s, "a record of type " + string(r.Type)
}

func outcomeState(word string) State {
	switch word {
	case OutcomeReleased:
		return StateReleased
	case OutcomeChanged:
		return StateChanged
	case OutcomeGone:
		return StateGone
	case OutcomeRolledBack:
		return StateRolledBack
	case AdoptAdopted:
		return StateAdopted
	case AdoptTaken:
		return StateTaken
	}
	return StateFailed
}
