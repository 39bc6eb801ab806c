package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/crc32c"
)

// Type says what a record tells.
type Type string

// The types of records.
const (
	Intent      Type = "intent"       // a release is about to begin
	Outcome     Type = "outcome"      // how it ended
	UndoIntent  Type = "undo-intent"  // an undo is about to begin
	UndoOutcome Type = "undo-outcome" // how that ended
	// An adoption makes a reservation for what lives without one. A version that does not
	// know these passes over them, as over damage, and so takes none for a release.
	AdoptIntent  Type = "adopt-intent"
	AdoptOutcome Type = "adopt-outcome"
)

// The outcomes of a release.
const (
	OutcomeReleased   = "released"    // the reservation lies in the quarantine
	OutcomeChanged    = "changed"     // another incarnation was found: nothing touched (I7)
	OutcomeGone       = "gone"        // there was nothing any more
	OutcomeFailed     = "failed"      // the reservation is still in its store
	OutcomeRolledBack = "rolled-back" // found half done after a crash, and put back
)

// The outcomes of an undo.
const (
	UndoRestored  = "restored"  // the reservation is back in its store
	UndoTaken     = "taken"     // the address is in use by another: not restored
	UndoFailed    = "failed"    // an error; it may be tried again
	UndoDiscarded = "discarded" // the quarantined file was removed for good
)

// The outcomes of an adoption.
const (
	AdoptAdopted = "adopted" // the reservation stands
	AdoptTaken   = "taken"   // the address had a reservation by then: not touched
	AdoptFailed  = "failed"  // an error, or it was not certain any more: nothing was made
)

// Record is one line of the journal.
type Record struct {
	Type      Type          `json:"type"`
	At        claim.Instant `json:"at"`
	Sweep     string        `json:"sweep,omitempty"` // ID of the sweep or of the undo command
	ReleaseID string        `json:"releaseID"`
	// Release comes with an intent of a release or an adoption, and with nothing else.
	Release *Release `json:"release,omitempty"`
	// Outcome comes with the outcomes: one of the words above.
	Outcome string       `json:"outcome,omitempty"`
	Detail  string       `json:"detail,omitempty"`
	Steps   []StepResult `json:"steps,omitempty"`
	// Inc comes with the outcome of an adoption: what stands there.
	Inc claim.Incarnation `json:"inc,omitzero"`
}

// Release is what was known of a resource when its release was decided: enough to
// explain it later without any other file, and to put it back. Of an adoption it is what
// is to be made: Owner as it is written, without an interface where the store has none.
type Release struct {
	Kind       claim.Kind        `json:"kind,omitempty"`
	Store      string            `json:"store"`
	Path       string            `json:"path"`
	Network    string            `json:"network,omitempty"`
	Addr       netip.Addr        `json:"addr,omitzero"`
	Owner      claim.Owner       `json:"owner,omitzero"`
	Attachment claim.Attachment  `json:"attachment,omitzero"`
	Inc        claim.Incarnation `json:"inc,omitzero"`
	Pod        claim.Pod         `json:"pod,omitzero"`
	Verdict    string            `json:"verdict"`
	Rule       string            `json:"rule,omitempty"`
	Why        string            `json:"why,omitempty"`
	Says       []Say             `json:"says,omitempty"`
	FirstSeen  claim.Instant     `json:"firstSeen,omitzero"`
	// Cache is the libcni cache file that is removed along with it, if any.
	Cache *CacheFile `json:"cache,omitempty"`
	// Undoes is the ID of the adoption that a person took back by this release.
	Undoes string `json:"undoes,omitempty"`
}

// Say is one witness's word at the time of the decision.
type Say struct {
	Witness string `json:"witness"`
	Word    string `json:"word"`
	Detail  string `json:"detail,omitempty"`
}

// CacheFile is a libcni cache file, whole. The content is bytes and not JSON, for a
// broken one is removed, and restored, as it was (case L6).
type CacheFile struct {
	Path    string `json:"path"`
	Content []byte `json:"content"`
}

// The states of a step.
const (
	StepDone    = "done"
	StepFailed  = "failed"
	StepSkipped = "skipped"
)

// StepResult is what became of one step of a release or an undo.
type StepResult struct {
	Step   string `json:"step"`
	Object string `json:"object,omitempty"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	// Irreversible: an undo cannot bring it back.
	Irreversible bool `json:"irreversible,omitempty"`
}

// Limits of the format. A record beyond them is refused when it is written and is
// damage when it is read, so no file makes a reader hold more than MaxLine for it.
const (
	MaxLine = 1 << 20 // bytes of one line, newline included
	prefix  = 9       // 8 hex digits and a space
)

// Check says why a record cannot be written, or nil. A caller that journals many in
// one batch asks first and leaves out what cannot be journalled; that is then not
// released (I3).
func (r Record) Check() error {
	if err := r.check(); err != nil {
		return err
	}
	_, err := appendLine(nil, r)
	return err
}

func (r Record) check() error {
	if !ValidID(r.ReleaseID) {
		return fmt.Errorf("%w: release ID %q", ErrInvalid, clip(r.ReleaseID))
	}
	if (r.Type == Intent || r.Type == AdoptIntent) != (r.Release != nil) {
		return fmt.Errorf("%w: a release comes with an intent, and only with that", ErrInvalid)
	}
	if r.Type != AdoptOutcome && r.Inc != (claim.Incarnation{}) {
		return fmt.Errorf("%w: an incarnation in a record of type %q", ErrInvalid, r.Type)
	}
	switch r.Type {
	case Intent, AdoptIntent:
		// JSON would replace bytes that are no UTF-8, and an undo would then act on
		// another path than the release did.
		paths := []string{r.Release.Store, r.Release.Path}
		if c := r.Release.Cache; c != nil {
			paths = append(paths, c.Path)
		}
		for _, p := range paths {
			if !utf8.ValidString(p) {
				return fmt.Errorf("%w: path %q is not UTF-8", ErrInvalid, clip(p))
			}
		}
	case UndoIntent:
	case Outcome:
		switch r.Outcome {
		case OutcomeReleased, OutcomeChanged, OutcomeGone, OutcomeFailed, OutcomeRolledBack:
			return nil
		}
		return fmt.Errorf("%w: outcome %q", ErrInvalid, clip(r.Outcome))
	case UndoOutcome:
		switch r.Outcome {
		case UndoRestored, UndoTaken, UndoFailed, UndoDiscarded:
			return nil
		}
		return fmt.Errorf("%w: outcome %q of an undo", ErrInvalid, clip(r.Outcome))
	case AdoptOutcome:
		switch r.Outcome {
		case AdoptAdopted, AdoptTaken, AdoptFailed:
			return nil
		}
		return fmt.Errorf("%w: outcome %q of an adoption", ErrInvalid, clip(r.Outcome))
	default:
		return fmt.Errorf("%w: type %q", ErrInvalid, clip(string(r.Type)))
	}
	if r.Outcome != "" {
		return fmt.Errorf("%w: an outcome in a record of type %q", ErrInvalid, r.Type)
	}
	return nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64]
	}
	return s
}

// header is the first line's JSON.
type header struct {
	V      int    `json:"v"`
	Format string `json:"format"`
}

const (
	version    = 1
	formatName = "holdfast journal"
)

// appendLine appends one line holding v's JSON.
func appendLine(dst []byte, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if prefix+len(body)+1 > MaxLine {
		return dst, fmt.Errorf("%w: a record of %d bytes, more than %d", ErrInvalid, prefix+len(body)+1, MaxLine)
	}
	dst = fmt.Appendf(dst, "%08x ", crc32c.Checksum(body))
	dst = append(dst, body...)
	return append(dst, '\n'), nil
}

func headerLine() []byte {
	line, err := appendLine(nil, header{V: version, Format: formatName})
	if err != nil {
		panic(err) // a constant: marshalling it cannot fail
	}
	return line
}

var errCRC = errors.New("checksum does not match")

// body checks a line, without its newline, and returns the JSON in it.
func body(line []byte) ([]byte, error) {
	if len(line) <= prefix || line[prefix-1] != ' ' {
		return nil, errors.New("no checksum in front")
	}
	var want uint32
	for _, c := range line[:prefix-1] {
		switch {
		case '0' <= c && c <= '9':
			want = want<<4 | uint32(c-'0')
		case 'a' <= c && c <= 'f':
			want = want<<4 | uint32(c-'a'+10)
		default:
			return nil, errors.New("no checksum in front")
		}
	}
	if crc32c.Checksum(line[prefix:]) != want {
		return nil, errCRC
	}
	return line[prefix:], nil
}

func parseHeader(line []byte) (header, error) {
	b, err := body(line)
	if err != nil {
		return header{}, err
	}
	var h header
	if err := json.Unmarshal(b, &h); err != nil {
		return header{}, fmt.Errorf("not JSON: %w", err)
	}
	if h.Format != formatName || h.V < 1 {
		return header{}, errors.New("not the header of a journal")
	}
	return h, nil
}

func parseRecord(line []byte) (Record, error) {
	b, err := body(line)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("not a record: %w", err)
	}
	return r, r.check() // it fits: it was read from a line
}

// skimRecord is parseRecord for who asks for type, release ID and outcome alone; the rest
// of the record may be missing.
func skimRecord(fields []field, line []byte) (Record, error) {
	b, err := body(line)
	if err != nil {
		return Record{}, err
	}
	if r, ok := skim(fields, b); ok {
		return r, nil
	}
	return parseRecord(line)
}
