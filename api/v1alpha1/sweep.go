package v1alpha1

import "time"

// Sweep is what `holdfast gc` did.
type Sweep struct {
	TypeMeta
	Node      string    `json:"node"`
	BootID    string    `json:"bootID"`
	At        time.Time `json:"at"`
	SweepID   string    `json:"sweepID,omitempty"`
	DryRun    bool      `json:"dryRun,omitempty"`
	Policy    Policy    `json:"policy"`
	Vantage   Vantage   `json:"vantage"`
	Witnesses []Witness `json:"witnesses"`
	Networks  []Network `json:"networks"`
	// Released went, or with DryRun would go.
	Released []Release `json:"released"`
	// Kept is everything else that was found, with the reason.
	Kept []Kept `json:"kept"`
	// Errors are what should have gone and could not.
	Errors []SweepError `json:"errors"`
	// Adopted are live attachments without a reservation, and whether they have it back.
	Adopted []Adopted `json:"adopted,omitempty"`
	// Settled are releases that an earlier run left half way.
	Settled []Settled      `json:"settled,omitempty"`
	Notes   []Note         `json:"notes,omitempty"`
	Summary map[string]int `json:"summary"`
}

// Release is one resource that was released.
type Release struct {
	// ReleaseID is what `holdfast undo` takes. Empty with DryRun.
	ReleaseID string `json:"releaseID,omitempty"`
	Resource
	Steps []Step `json:"steps,omitempty"`
}

// Adopted is one live attachment whose reservation was gone.
type Adopted struct {
	// ReleaseID is what `holdfast undo` takes. Empty when nothing was begun.
	ReleaseID string `json:"releaseID,omitempty"`
	Resource
	// Outcome is adopted, taken (the address had a reservation by then), failed, withheld (it
	// was not certain any more, or something else stood in the way), or with DryRun adoptable.
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// Step is one piece of a release or an undo.
type Step struct {
	Step         string `json:"step"`
	Object       string `json:"object,omitempty"`
	State        string `json:"state"`
	Detail       string `json:"detail,omitempty"`
	Irreversible bool   `json:"irreversible,omitempty"`
}

// Kept is one resource that was not released, and what held it back.
type Kept struct {
	Resource
	// Withheld is set where the verdict lets it go and something else does not: the
	// cap, a lock, a read-only directory, another reaper.
	Withheld string `json:"withheld,omitempty"`
}

// SweepError is a release that was tried or should have been.
type SweepError struct {
	ReleaseID string `json:"releaseID,omitempty"`
	Path      string `json:"path,omitempty"`
	Address   string `json:"address,omitempty"`
	// Outcome is changed, gone, failed, withheld, adopted or released: it went, and may come back after a power loss.
	Outcome string `json:"outcome"`
	Error   string `json:"error"`
	Steps   []Step `json:"steps,omitempty"`
}

// Settled is one release that a crash had left half way.
type Settled struct {
	ReleaseID string `json:"releaseID"`
	Path      string `json:"path"`
	Outcome   string `json:"outcome"`
	Steps     []Step `json:"steps,omitempty"`
}

// Explanation is what `holdfast explain` says of what matches its argument.
type Explanation struct {
	TypeMeta
	Node      string          `json:"node"`
	At        time.Time       `json:"at"`
	Query     string          `json:"query"`
	Vantage   Vantage         `json:"vantage"`
	Witnesses []Witness       `json:"witnesses"`
	Resources []ExplainedItem `json:"resources"`
}

// ExplainedItem is one resource with what would be done to release it.
type ExplainedItem struct {
	Resource
	// Plan are the steps of its release, in order; empty when it is not releasable and
	// waiting does not help.
	Plan []PlannedStep `json:"plan,omitempty"`
	// Releases are the entries of the journal for the same address.
	Releases []JournalEntry `json:"releases,omitempty"`
}

// PlannedStep is one step of a release that was not done yet.
type PlannedStep struct {
	Step   string `json:"step"`
	Object string `json:"object"`
	// Inverse says how undo brings it back, or that it cannot.
	Inverse string `json:"inverse"`
}

// Journal lists releases, newest last.
type Journal struct {
	TypeMeta
	Entries []JournalEntry `json:"entries"`
	// Damage are places of the journal that could not be read.
	Damage []string `json:"damage,omitempty"`
}

// JournalEntry is one release and what became of it.
type JournalEntry struct {
	ReleaseID   string    `json:"releaseID"`
	SweepID     string    `json:"sweepID,omitempty"`
	At          time.Time `json:"at"`
	BootID      string    `json:"bootID"`
	State       string    `json:"state"`
	Kind        string    `json:"kind,omitempty"`
	Network     string    `json:"network,omitempty"`
	Address     string    `json:"address,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifName,omitempty"`
	Path        string    `json:"path,omitempty"`
	Pod         *Pod      `json:"pod,omitempty"`
	Verdict     string    `json:"verdict,omitempty"`
	Rule        string    `json:"rule,omitempty"`
	Why         string    `json:"why,omitempty"`
	Says        []Say     `json:"says,omitempty"`
	Detail      string    `json:"detail,omitempty"`
	Steps       []Step    `json:"steps,omitempty"`
	Undoable    bool      `json:"undoable"`
	// Adoption: a reservation was made, and none released.
	Adoption bool `json:"adoption,omitempty"`
	// Undoes is the ID of the adoption that this release took back.
	Undoes   string   `json:"undoes,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Undo is what `holdfast undo` did.
type Undo struct {
	TypeMeta
	Undone []Undone `json:"undone"`
}

// Undone is one undo.
type Undone struct {
	ReleaseID string `json:"releaseID"`
	Address   string `json:"address,omitempty"`
	Path      string `json:"path,omitempty"`
	// Outcome is restored, taken or failed; of an adoption released, changed, gone or failed.
	Outcome string `json:"outcome"`
	// ReleasedAs is the ID of the release that took an adoption back.
	ReleasedAs string `json:"releasedAs,omitempty"`
	Error      string `json:"error,omitempty"`
	Steps      []Step `json:"steps,omitempty"`
	// Lost are the pieces that cannot be brought back.
	Lost []Step `json:"lost,omitempty"`
}

// Doctor is what `holdfast doctor` found.
type Doctor struct {
	TypeMeta
	Node     string    `json:"node"`
	BootID   string    `json:"bootID"`
	At       time.Time `json:"at"`
	Version  string    `json:"version"`
	Commit   string    `json:"commit"`
	Kernel   string    `json:"kernel"`
	Sections []Section `json:"sections"`
	// OK: nothing stands in the way of a release.
	OK bool `json:"ok"`
}

// Section groups checks.
type Section struct {
	Name   string  `json:"name"`
	Checks []Check `json:"checks"`
}

// Holds lists the addresses that stay.
type Holds struct {
	TypeMeta
	Holds []Hold `json:"holds"`
}

// Hold is one address that a person, or an undo, said to hold.
type Hold struct {
	Address string `json:"address"`
	// Store is the directory; empty means every one.
	Store string `json:"store,omitempty"`
	// ContainerID and IfName name the only one whose reservation is held, which is what an
	// undo holds; empty means whoever has the address.
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifName,omitempty"`
	Why         string    `json:"why,omitempty"`
	By          string    `json:"by"`
	At          time.Time `json:"at"`
	ReleaseID   string    `json:"releaseID,omitempty"`
	// Expired says why it holds nothing any more.
	Expired string `json:"expired,omitempty"`
}

// Stops lists the networks whose releases are stopped.
type Stops struct {
	TypeMeta
	Stops []Stop `json:"stops"`
	// Resumed are the stops that this command ended.
	Resumed []Stop `json:"resumed,omitempty"`
}

// Runtimes lists the CRI endpoints that ever answered on this node and so must answer.
type Runtimes struct {
	TypeMeta
	Endpoints []string `json:"endpoints"`
	// Forgotten were taken off the list by this command.
	Forgotten []string `json:"forgotten,omitempty"`
}

// Version of the program.
type Version struct {
	TypeMeta
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}
