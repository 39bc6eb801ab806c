package v1alpha1

import (
	"time"

	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// APIVersion of every document of this package.
const APIVersion = "holdfast.dev/v1alpha1"

// The kinds of documents.
const (
	KindAudit       = "Audit"
	KindSweep       = "Sweep"
	KindExplanation = "Explanation"
	KindJournal     = "Journal"
	KindUndo        = "Undo"
	KindDoctor      = "Doctor"
	KindHolds       = "Holds"
	KindRuntimes    = "Runtimes"
	KindStops       = "Stops"
	KindVersion     = "Version"
	KindMap         = "Map"
	KindStatus      = "Status"
)

// TypeMeta opens every document.
type TypeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Audit is what `holdfast audit` found: the node, who was asked, and a verdict with its
// reasons for every resource, worst first.
type Audit struct {
	TypeMeta
	Node   string    `json:"node"`
	BootID string    `json:"bootID"`
	At     time.Time `json:"at"`
	// Took is the time of the whole look.
	Took      string     `json:"took"`
	Policy    Policy     `json:"policy"`
	Vantage   Vantage    `json:"vantage"`
	Witnesses []Witness  `json:"witnesses"`
	Networks  []Network  `json:"networks"`
	Resources []Resource `json:"resources"`
	// Notes are findings that belong to no resource.
	Notes []Note `json:"notes,omitempty"`
	// Summary counts the resources by verdict.
	Summary map[string]int `json:"summary"`
	// Evidence is everything the judge was given. `holdfast explain --from FILE` judges
	// it again.
	Evidence *Evidence `json:"evidence,omitempty"`
}

// Evidence is the judge's whole input: listings, the facts of every testimony, policy,
// memory and the clock reading.
type Evidence = verdict.Case

// Policy is what the operator chose.
type Policy struct {
	Witnesses   []string `json:"witnesses"`
	CRINone     bool     `json:"criNone,omitempty"`
	Grace       string   `json:"grace"`
	OrphanGrace string   `json:"orphanGrace"`
	// PressureGrace is set by an emergency sweep.
	PressureGrace string `json:"pressureGrace,omitempty"`
	Orphans       bool   `json:"orphans,omitempty"`
	Foreign       bool   `json:"foreign,omitempty"`
	// Adopt gives what is Missing its reservation back where all about it is certain.
	Adopt        bool     `json:"adopt,omitempty"`
	Exclude      []string `json:"exclude,omitempty"`
	Networks     []string `json:"networks,omitempty"`
	MaxReleases  int      `json:"maxReleases,omitempty"`
	ForceOverCap bool     `json:"forceOverCap,omitempty"`
}

// Vantage says whether the whole node was seen; without that nothing is released.
type Vantage struct {
	Proven bool    `json:"proven"`
	Detail string  `json:"detail,omitempty"`
	Checks []Check `json:"checks,omitempty"`
}

// Check is one thing that was looked at, with what to do when it is not well.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	Fix    string `json:"fix,omitempty"`
}

// Witness is one witness and how it answered.
type Witness struct {
	Name string `json:"name"`
	// State is "complete", "silent", or "none" where there is no such witness here.
	State    string `json:"state"`
	Required bool   `json:"required"`
	Detail   string `json:"detail,omitempty"`
	Took     string `json:"took"`
}

// Network is one directory of reservations.
type Network struct {
	Name    string `json:"name"`
	DataDir string `json:"dataDir"`
	// Dir is the directory of the reservations, <dataDir>/<name>.
	Dir string `json:"dir"`
	// Configs are the CNI configuration files that name it.
	Configs []string `json:"configs,omitempty"`
	// Capacity is how many addresses the configured ranges hold; 0 when there is no
	// configuration for it.
	Capacity uint64 `json:"capacity"`
	Reserved int    `json:"reserved"`
	InUse    int    `json:"inUse"`
	Leaked   int    `json:"leaked"`
	// Suspect is what every witness calls absent and whose grace is not over.
	Suspect int `json:"suspect"`
	// Free is Capacity less what is reserved of it; 0 when Capacity is not known.
	// Reservations outside of the configured ranges take nothing from it.
	Free     uint64         `json:"free"`
	Writable bool           `json:"writable"`
	Problem  string         `json:"problem,omitempty"`
	Verdicts map[string]int `json:"verdicts"`
}

// Resource is one thing found, with its verdict.
type Resource struct {
	Kind        string `json:"kind"`
	Store       string `json:"store,omitempty"`
	Network     string `json:"network,omitempty"`
	Address     string `json:"address,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Path        string `json:"path"`
	Pod         *Pod   `json:"pod,omitempty"`
	Verdict     string `json:"verdict"`
	// Rule names the rule that decided.
	Rule string `json:"rule"`
	Says []Say  `json:"says"`
	Why  string `json:"why"`
	// FirstSeen is when this incarnation was first seen.
	FirstSeen *time.Time `json:"firstSeen,omitempty"`
	// AbsentSince is when every required witness first said absent.
	AbsentSince *time.Time `json:"absentSince,omitempty"`
	// ReleasableAt is when its grace is over if nothing changes; absent where waiting
	// does not help.
	ReleasableAt *time.Time `json:"releasableAt,omitempty"`
	// Releasable: the next gc may release it.
	Releasable bool `json:"releasable"`
	// Adoptable: it is Missing, and gc --adopt may give it its reservation back.
	Adoptable bool `json:"adoptable,omitempty"`
	// Holder is the container that holds the address of a Conflict, where known.
	Holder string `json:"holder,omitempty"`
	// Stamp is what holdfast-ipam wrote beside the reservation when it made it.
	Stamp *Stamp `json:"stamp,omitempty"`
}

// Stamp says when, in which boot and for which network namespace a reservation was made.
type Stamp struct {
	BootID string `json:"bootID"`
	// Age is absent when the reservation is of another boot.
	Age string `json:"age,omitempty"`
	// NetnsID is the inode of the network namespace; absent when it was not known.
	NetnsID uint64 `json:"netnsID,omitempty"`
}

// Pod names the Pod of an attachment, for people.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Say is one witness's word: alive, absent, silent, dead or other.
type Say struct {
	Witness string `json:"witness"`
	Word    string `json:"word"`
	Detail  string `json:"detail,omitempty"`
}

// Note is a finding about a path.
type Note struct {
	Path string `json:"path"`
	Text string `json:"text"`
}
