package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Subject is a collector under test. It does one command at a time, each in a process of
// its own: what it keeps in its own fields is what a restart would not lose.
//
// Everything that it learns and does goes through the Node. It holds no reference to
// the Node after Do has returned.
type Subject interface {
	// Do runs a command to its end. When its process was killed every file call fails, and
	// what it returns is not looked at.
	Do(n *Node, c Command) Report
	// Duties says which invariants it undertakes to hold beside I1 and I7.
	Duties() Duties
}

// Duties are what a Subject can be held to. A policy that only decides and unlinks has
// none of them.
type Duties struct {
	// Reclaims: every leak goes once the witnesses speak (I2).
	Reclaims bool
	// Silence: nothing is released on a pass where a required witness was silent or had no
	// vantage, or that was not asked after the listing (I5, I6, I13).
	Silence bool
	// Journals: journal, quarantine, undo, holds and the reaper lock of Holdfast (I3, I4,
	// I8, I9), and the sampled replay (I10).
	Journals bool
	// Gates: two sightings of the incarnation with the grace between them in one boot, asked
	// again after the judgement, the cap, and vouched namespaces only.
	Gates bool
}

// Verb is what a Subject is told to do.
type Verb string

// The commands. A policy treats Audit as it likes, and the others but GC as nothing.
const (
	Audit  Verb = "audit"
	GC     Verb = "gc"
	Undo   Verb = "undo" // the newest release
	Hold   Verb = "hold" // Command.Addr
	Unhold Verb = "unhold"
	Heal   Verb = "heal" // Command.Network, Spare and Valid
)

// Command is one command line.
type Command struct {
	Verb  Verb
	Addr  string // of Hold and Unhold
	Force bool   // of GC: over the cap
	// Of Heal: the network, the container that is being added, and what a runtime has.
	Network, Spare string
	Valid          []claim.Attachment
}

// Report is what a command said. The zero value says nothing.
type Report struct {
	// Refused says why nothing was done: another reaper, no journal, an unusable quarantine.
	Refused error
	// Undone are the paths that Undo says it put back.
	Undone []string
	// Remembered: what it saw counts for later commands.
	Remembered bool
	// Saved is what "audit -o json" would save of the look, of some looks only: judged again it
	// must say the same (I10).
	Saved []byte
	// Verdicts by path, for the expectations of scripts.
	Verdicts map[string]verdict.Verdict
}

// Node is what a Subject can see and do, as one process. Its methods return what a real
// node would give at that moment, in the order in which they are called: the world goes
// on between them.
type Node struct {
	w *World
	r *run
}

// FS are the file calls of this process; each may be its last.
func (n *Node) FS() fsys.FS { return n.r.proc }

// Now reads the clocks.
func (n *Node) Now() claim.Instant { return n.w.now() }

// List is host-local's stores, read by the real inventory. The resources of one listing
// stay what they were.
func (n *Node) List() claim.Snapshot {
	inv := hostlocal.New(hostlocal.Config{ConfDirs: []string{confDir}, DataDirs: []string{dataDir}, Clock: n.Now, FS: n.FS()})
	n.listing()
	return inv.ListAlso(context.Background(), nil)
}

// listing notes that the stores are about to be listed: what comes later cannot be judged
// by that (I7).
func (n *Node) listing() {
	all := n.w.witnesses()
	n.r.before |= all &^ n.r.unheard
	n.r.listed, n.r.unheard, n.r.blind = n.w.seq, all, false
	n.r.listedAt = n.w.mono
	if n.w.subject.Duties().Gates {
		n.w.mark(n.r)
	}
}

// Judged says that it is decided what is to go, all but the last look.
func (n *Node) Judged() { n.w.judge(n.r) }

// Kernel asks the kernel and process witnesses.
func (n *Node) Kernel() []claim.Testimony {
	if !n.ask() {
		return nil
	}
	t := n.w.askKernel()
	n.heard(t...)
	return t
}

// Runtimes asks the cri witness; known are the endpoints that answered before.
func (n *Node) Runtimes(known []string, detail bool) claim.Testimony {
	if !n.ask() {
		return claim.Testimony{Witness: claim.WitnessCRI, State: claim.StateSilent, Asked: n.w.now()}
	}
	t := n.w.askCRI(known, detail)
	n.heard(t)
	return t
}

// Boot reads the boot ID.
func (n *Node) Boot() (string, error) {
	if !n.ask() {
		return "", errKilled
	}
	t := told{n.w.mono, claim.Testimony{Witness: claim.WitnessBoot}}
	id, err := n.w.askBoot()
	n.w.hear(n.r, t, err == nil && id == n.w.boot())
	return id, err
}

// Kube asks the API server, as a witness.
func (n *Node) Kube() claim.Testimony {
	if !n.ask() {
		return claim.Testimony{Witness: claim.WitnessKube, State: claim.StateSilent, Asked: n.w.now()}
	}
	t := n.w.askKube()
	n.w.hearKube(n.r, told{t.Asked.Mono, t})
	return t
}

// Pods lists this node's Pods from the API server: fresh, stale, empty or an error.
func (n *Node) Pods() ([]Pod, error) {
	if !n.ask() {
		return nil, errKilled
	}
	return n.w.pods.list(n.w.mode.api)
}

// Remove unlinks a reservation, whatever lies at its path by now.
func (n *Node) Remove(path string) error {
	return n.FS().Unlinkat(-100, path, 0) // AT_FDCWD
}

// RemoveNetns removes a pinned network namespace, as links.RemoveNetns does: not when
// the path shows another, nor when a process uses it.
func (n *Node) RemoveNetns(path string, id uint64) error { return n.w.removeNetns(n.r, path, id) }

// ask is one question to a witness: a point at which the world may change. False: this
// process was killed there.
func (n *Node) ask() bool { return n.w.question(n.r) }

func (n *Node) heard(list ...claim.Testimony) {
	for _, t := range list {
		ok := t.State == claim.StateComplete
		if t.Witness == claim.WitnessKernel && n.w.mode.half() {
			ok = false
		}
		if t.Kernel != nil {
			n.r.blind = n.w.mode.half() && n.w.mode.kernel != noHost
		}
		if n.w.subject.Duties().Gates && n.r.noMemory(t.CRI) {
			ok = false
		}
		n.w.hear(n.r, told{t.Asked.Mono, t}, ok)
	}
}

var errKilled = errors.New("this process was killed")

// Policy is a Subject that decides in one function, at every gc. It may keep what it saw
// in its own variables.
type Policy func(n *Node) error

// Do runs the policy for gc.
func (p Policy) Do(n *Node, c Command) Report {
	if c.Verb != GC {
		return Report{}
	}
	if err := p(n); err != nil {
		return Report{Refused: fmt.Errorf("policy: %w", err)}
	}
	return Report{}
}

// Duties has none: a Policy is held to I1 and I7 alone.
func (p Policy) Duties() Duties { return Duties{} }

func (n *Node) wall() time.Time { return n.w.now().Wall }
