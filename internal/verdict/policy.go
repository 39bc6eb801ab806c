package verdict

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Verdict is what is concluded for one resource. The zero value is Unknown, which
// keeps (I5).
type Verdict string

// The verdicts; docs/design.md has the table.
const (
	Unknown   Verdict = ""
	InUse     Verdict = "InUse"
	Suspect   Verdict = "Suspect"
	Leaked    Verdict = "Leaked"
	Orphaned  Verdict = "Orphaned"
	Conflict  Verdict = "Conflict"
	Missing   Verdict = "Missing"
	Malformed Verdict = "Malformed"
	Foreign   Verdict = "Foreign"
	Held      Verdict = "Held"
)

var all = [...]Verdict{Conflict, Missing, Leaked, Orphaned, Malformed, Unknown, Suspect, Foreign, Held, InUse}

// All returns the verdicts, worst first: the order in which a person wants them.
func All() []Verdict { return slices.Clone(all[:]) }

// String gives the zero value its name.
func (v Verdict) String() string {
	if v == Unknown {
		return "Unknown"
	}
	return string(v)
}

// Rank orders verdicts, worst first.
func (v Verdict) Rank() int { return slices.Index(all[:], v) }

// MarshalText writes the verdict's name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads a name; "Unknown", the empty text and whatever is not known
// to this version read as Unknown, which keeps.
func (v *Verdict) UnmarshalText(b []byte) error {
	*v = Verdict(b)
	if v.Rank() < 0 {
		*v = Unknown
	}
	return nil
}

// Policy is what the operator chose. Durations are of CLOCK_MONOTONIC.
type Policy struct {
	// Required witnesses. Nothing is released unless kernel and process are among
	// them, and cri too unless CRINone: each alone is blind to something (case F20).
	Required []string `json:"required"`
	// CRINone: a person said that this node has no CRI runtime.
	CRINone bool `json:"criNone,omitempty"`
	// Grace is the least time between the two sightings.
	Grace time.Duration `json:"grace"`
	// OrphanGrace is the longer one: orphaned namespaces, malformed and foreign
	// files, sandboxes that stay NotReady.
	OrphanGrace time.Duration `json:"orphanGrace"`
	// PressureGrace, if positive, is the age at which a stamped reservation may go whose
	// namespace is gone too: for a range that has run out (an emergency sweep).
	PressureGrace time.Duration `json:"pressureGrace,omitempty"`
	// Pressed are the stores, by directory, whose range runs out: there the pressure grace
	// is enough for what carries no stamp too, where no ADD can be in flight; see
	// scene.pressed. If there are any, stamped reservations of other stores have no pressure
	// grace.
	Pressed []string `json:"pressed,omitempty"`
	// Valid are attachments that a runtime said it has, or is adding: alive, whatever the
	// witnesses see. What is not listed is judged like anything else (cni #1086). Without
	// an interface, all of the container's in that network.
	Valid []claim.Attachment `json:"valid,omitempty"`
	// Orphans releases orphaned addresses even where no runtime vouches for the name
	// of the namespace. Foreign releases foreign reservations by address.
	Orphans bool `json:"orphans,omitempty"`
	Foreign bool `json:"foreign,omitempty"`
	// Adopt gives what is Missing its reservation back where everything about it is certain.
	Adopt bool `json:"adopt,omitempty"`
	// Exclude are addresses that a person wants left alone; Holds likewise, by store.
	Exclude []netip.Prefix `json:"exclude,omitempty"`
	Holds   []Hold         `json:"holds,omitempty"`
	// Unheld says why the holds could not be read; then nobody knows what a person wanted
	// kept, and nothing is releasable.
	Unheld string `json:"unheld,omitempty"`
}

// Hold is one address that a person, or an undo, said to hold.
type Hold struct {
	// Store is the directory; empty means every store.
	Store string     `json:"store,omitempty"`
	Addr  netip.Addr `json:"addr"`
	// Owner, if not zero, is the only one whose reservation is held: an undo holds what it
	// put back and not whoever has the address next.
	Owner claim.Owner `json:"owner,omitzero"`
	Why   string      `json:"why,omitempty"`
}

// Covers reports whether the hold is of a reservation of addr in store by o.
func (h Hold) Covers(store string, addr netip.Addr, o claim.Owner) bool {
	return h.Addr == addr && (h.Store == "" || h.Store == store) && (h.Owner == claim.Owner{} || h.Owner == o)
}

// held returns why r is held, or "".
func (p Policy) held(r *claim.Resource) string {
	for _, h := range p.Holds {
		if h.Covers(r.Store, r.Addr, r.Owner) {
			return h.why()
		}
	}
	for _, e := range p.Exclude {
		if r.Addr.IsValid() && e.Contains(r.Addr) {
			return "excluded by " + e.String()
		}
	}
	return ""
}

func (h Hold) why() string {
	if h.Why == "" {
		return "a person said hold"
	}
	return h.Why
}

// heldAnywhere returns why an address is held in some store, or "". A hold of one owner's
// reservation counts where its store was not read: elsewhere the reservation, if it is
// there, is held itself.
func (p Policy) heldAnywhere(addr netip.Addr, read func(store string) bool) string {
	for _, h := range p.Holds {
		if h.Addr == addr && (h.Owner == claim.Owner{} || !read(h.Store)) {
			return h.why()
		}
	}
	return p.held(&claim.Resource{Addr: addr})
}

// convicts says whether this policy can ever convict, or why not.
func (p Policy) convicts() (bool, string) {
	if p.Unheld != "" {
		return false, "the holds cannot be read: " + p.Unheld
	}
	for _, w := range []string{claim.WitnessKernel, claim.WitnessProcess} {
		if !slices.Contains(p.Required, w) {
			return false, "the policy leaves out the witness " + w + ", without which nothing is released"
		}
	}
	if !p.CRINone && !slices.Contains(p.Required, claim.WitnessCRI) {
		return false, "the policy leaves out the witness cri, and kernel and process alone convict nobody; say --cri-endpoint none if this node has no CRI runtime"
	}
	return true, ""
}
