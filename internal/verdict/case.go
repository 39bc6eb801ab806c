package verdict

import (
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Case is everything that Judge needs. A saved audit holds it whole.
type Case struct {
	Now         claim.Instant     `json:"now"`
	Policy      Policy            `json:"policy"`
	Snapshots   []claim.Snapshot  `json:"snapshots"`
	Testimonies []claim.Testimony `json:"testimonies"`
	// Relisted is host-local listed again after the witnesses were asked. Only what
	// both listings lack is Missing: an ADD may have been between them. nil: not done.
	Relisted *claim.Snapshot `json:"relisted,omitempty"`
	// Memory is in any order here: a saved document is anybody's.
	Memory Memory `json:"memory,omitempty"`
}

// Word is what one witness says of one resource.
type Word string

// The words. Dead is the boot witness's, Other means alive for another attachment.
const (
	Alive  Word = "alive"
	Absent Word = "absent"
	Silent Word = "silent"
	Dead   Word = "dead"
	Other  Word = "other"
)

// Say is a witness's word with its detail, safe to print.
type Say struct {
	Witness string `json:"witness"`
	Word    Word   `json:"word"`
	Detail  string `json:"detail,omitempty"`
	// Addressed: the resource's address belongs behind the detail; see About. So what is
	// said of nearly every reservation is the same, and kept once.
	Addressed bool `json:"addressed,omitempty"`
}

// About is the whole detail of what was said of r.
func (s Say) About(r *claim.Resource) string {
	if s.Addressed {
		return s.Detail + r.Addr.String()
	}
	return s.Detail
}

// Finding is the verdict on one resource with the whole reasoning.
type Finding struct {
	Resource *claim.Resource `json:"resource"`
	Verdict  Verdict         `json:"verdict"`
	// Rule names the rule that decided, for example "address-held".
	Rule string `json:"rule"`
	// Why is one line in plain words.
	Why string `json:"why"`
	// Says are shared between findings.
	Says []Say     `json:"says,omitempty"`
	Pod  claim.Pod `json:"pod,omitzero"`
	// Sight is what is remembered of this incarnation from now on, shared with the next
	// memory; see First and Absent.
	Sight *Sighting `json:"sighting,omitempty"`
	// Releasable: every gate that the judge can check is passed. Wait is how long the
	// grace still takes for what is Suspect or waits likewise; negative: waiting does
	// not help.
	Releasable bool          `json:"releasable,omitempty"`
	Wait       time.Duration `json:"wait"`
	// Gone: every required witness says absent now, whatever the grace.
	Gone bool `json:"gone,omitempty"`
	// BootProven: an earlier boot proves it dead; such releases are not capped.
	BootProven bool `json:"bootProven,omitempty"`
	// Netns are the namespaces that must go with an Orphaned address.
	Netns []Pin `json:"netns,omitempty"`
	// Shared: the address is alive for another attachment, which has a reservation of
	// its own. Nothing may be cleaned by this address.
	Shared bool `json:"shared,omitempty"`
	// Adoptable: it is Missing, and all that its reservation would say is certain, so that it
	// may be made again. Unadoptable says why not; empty where nobody asked (Policy.Adopt).
	Adoptable   bool   `json:"adoptable,omitempty"`
	Unadoptable string `json:"unadoptable,omitempty"`
	// Holder is the container ID that holds the address of a Conflict, where known.
	Holder string `json:"holder,omitempty"`
}

// First is when this incarnation was first seen.
func (f *Finding) First() claim.Instant {
	if f.Sight == nil {
		return claim.Instant{}
	}
	return f.Sight.First
}

// Absent is since when every required witness says absent (zero Boot: they do not).
func (f *Finding) Absent() claim.Instant {
	if f.Sight == nil {
		return claim.Instant{}
	}
	return f.Sight.Absent
}

// Pin is a network namespace and the path of a mount that keeps it.
type Pin struct {
	ID   uint64 `json:"id"`
	Path string `json:"path"`
}

// Needs is what the judge lacks to decide some resources; the engine fetches it and
// judges again.
type Needs struct {
	// Detail: every sandbox's status (netns path, addresses).
	Detail bool
	// Relist: host-local listed again.
	Relist bool
	// Kube: the API server's Pods, who were not asked for yet. Nothing on a node without
	// anything dead needs them.
	Kube bool
}

// Judgement is Judge's result.
type Judgement struct {
	// Findings in the order of the snapshots' resources, the Missing ones last.
	Findings []Finding
	// Memory replaces the old one: sightings of what no longer lies there are gone,
	// except those of stores that could not be listed.
	Memory Memory
	Needs  Needs
	// Silent are the required witnesses that were silent, with the reason: "kernel: ...".
	Silent []string
	// Reasons says for every witness that does not count why.
	Reasons map[string]string
	// Vantage says why the node is not seen whole; empty when it is.
	Vantage string
}
