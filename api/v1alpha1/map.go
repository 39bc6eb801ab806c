package v1alpha1

import "time"

// Map is the node's ranges with a verdict for what is reserved and what is missing: small
// enough to be asked for every few seconds.
type Map struct {
	TypeMeta
	Node string `json:"node"`
	Seen
}

// Seen is one look at the node, as the agent remembers it.
type Seen struct {
	// Sequence counts the agent's sweeps; 0 in a report of one look.
	Sequence uint64 `json:"sequence"`
	// At is when the node was looked at.
	At   time.Time `json:"at"`
	Took string    `json:"took"`
	// Trigger is why the sweep was made.
	Trigger string `json:"trigger,omitempty"`
	// Failed says why a sweep after At was not made, or not to its end.
	Failed    string       `json:"failed,omitempty"`
	FailedAt  *time.Time   `json:"failedAt,omitempty"`
	Vantage   Vantage      `json:"vantage"`
	Witnesses []Witness    `json:"witnesses"`
	Stops     []Stop       `json:"stops"`
	Networks  []MapNetwork `json:"networks"`
	// Summary counts everything found by verdict, what has no address among it.
	Summary map[string]int `json:"summary"`
	// Released is how many addresses the sweep released: they are not in the map.
	Released int `json:"released"`
	// Worst are the worst of what is neither InUse nor Held, More how many others there are.
	Worst []Trouble `json:"worst"`
	More  int       `json:"more"`
	Notes []Note    `json:"notes,omitempty"`
}

// Stop is a network whose releases are stopped, because one was contradicted.
type Stop struct {
	Network string    `json:"network"`
	Dir     string    `json:"dir"`
	Since   time.Time `json:"since"`
	Why     string    `json:"why"`
	// ReleaseIDs are the releases that were contradicted.
	ReleaseIDs []string `json:"releaseIDs,omitempty"`
}

// MapNetwork is one directory of reservations.
type MapNetwork struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
	// Configs are the CNI configuration files that name it.
	Configs []string   `json:"configs,omitempty"`
	Ranges  []MapRange `json:"ranges"`
	// Capacity is how many addresses the ranges can hand out; 0 when that is not known.
	Capacity uint64 `json:"capacity"`
	Reserved int    `json:"reserved"`
	Free     uint64 `json:"free"`
	// Outside is how many reserved addresses lie in no range.
	Outside  int    `json:"outside,omitempty"`
	Writable bool   `json:"writable"`
	Problem  string `json:"problem,omitempty"`
	// Busy says why nothing can be released here: another reaper.
	Busy     string         `json:"busy,omitempty"`
	Verdicts map[string]int `json:"verdicts"`
	// Addresses are by verdict, ascending; "10.1.0.2-10.1.0.9" are all from the first to
	// the last.
	Addresses map[string][]string `json:"addresses,omitempty"`
}

// MapRange is an inclusive range of addresses.
type MapRange struct {
	First   string `json:"first"`
	Last    string `json:"last"`
	Gateway string `json:"gateway,omitempty"`
}

// Trouble is one finding in short.
type Trouble struct {
	Kind        string     `json:"kind"`
	Network     string     `json:"network,omitempty"`
	Address     string     `json:"address,omitempty"`
	Path        string     `json:"path"`
	ContainerID string     `json:"containerID,omitempty"`
	Pod         *Pod       `json:"pod,omitempty"`
	Verdict     string     `json:"verdict"`
	Why         string     `json:"why"`
	AbsentSince *time.Time `json:"absentSince,omitempty"`
	// ReleasableAt is when its grace is over if nothing changes.
	ReleasableAt *time.Time `json:"releasableAt,omitempty"`
	// Cause is what lost it, where that can be told, Blame the plugin that failed.
	Cause string `json:"cause,omitempty"`
	Blame string `json:"blame,omitempty"`
	// Told is the cause in one line.
	Told string `json:"told,omitempty"`
}

// Status is the agent in short: a Map without addresses, and whether the agent is well.
type Status struct {
	TypeMeta
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Live    Condition `json:"live"`
	Ready   Condition `json:"ready"`
	// Seen is the latest look; absent before the first.
	Seen *Seen `json:"seen,omitempty"`
}

// Condition is whether something is well, and if not, why.
type Condition struct {
	OK      bool     `json:"ok"`
	Reasons []string `json:"reasons"`
}
