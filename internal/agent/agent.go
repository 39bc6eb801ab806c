// Package agent is the collector that stays on a node: it sweeps at start, at every
// interval, under pressure and when asked, and tells its observers what came of it.
//
// Scope: when a sweep is made, one at a time, and who is told. Non-scope: what may be
// released (package verdict), how (package sweep), where the node is (cmd wires a Node).
package agent

import (
	"context"
	"time"

	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Trigger is why a sweep was made.
type Trigger string

// The triggers, for logs and metrics.
const (
	AtStart    Trigger = "start"
	AtInterval Trigger = "interval"
	OnPressure Trigger = "pressure" // a range runs low
	OnLoss     Trigger = "loss"     // addresses are being lost fast
	OnRequest  Trigger = "request"  // gc over the socket
	OnHeal     Trigger = "heal"     // holdfast-ipam found a network full
	OnWatch    Trigger = "watch"    // a Pod of this node went
)

// Triggers returns all triggers, in the order of documents and metrics.
func Triggers() []Trigger {
	return []Trigger{AtStart, AtInterval, OnPressure, OnLoss, OnRequest, OnHeal, OnWatch}
}

// Pass is one sweep and everything that came of it. Observers read it during their call and
// keep nothing of Audit, which is large on a full node.
type Pass struct {
	Trigger Trigger
	// Node is the node's name.
	Node    string
	Started claim.Instant
	Took    time.Duration
	// Audit is the look; nil when it failed, as Err says.
	Audit *sweep.Audit
	Plan  *plan.Plan
	// Results are what was released and what was not.
	Results []*sweep.Result
	// Settled are releases that an earlier run had left half way.
	Settled []sweep.Settled
	// Adopted are live attachments that got their reservation back, and those that should have.
	Adopted []sweep.Adopted
	// Causes are by path of a resource, of everything Leaked, Orphaned or Malformed.
	Causes map[string]cause.Cause
	// Stops are the networks whose line is stopped now; Stopped those that this pass stopped.
	Stops   []line.Stop
	Stopped []line.Stop
	// Undone are the releases that a stop took back, by ID, with the outcome ("restored", "taken", "failed").
	Undone map[string]string
	// Resumed are the networks whose line goes again, with the reason.
	Resumed []line.Ended
	// Lost are the addresses whose owner went without a DEL, each in one pass only; Fast the
	// stores that lose many. The Agent finds both.
	Lost []*verdict.Finding
	Fast []string
	// Unanswered says which required witness that this pass did not need has never answered.
	Unanswered string
	// Busy says by store why it cannot be released from: another reaper.
	Busy map[string]string
	// Locks are how long host-local's lock was held, one for each time.
	Locks []time.Duration
	// Unwritable says why the journal cannot be written; then nothing is released.
	Unwritable error
	// Err is why the sweep was not made, or not to its end.
	Err error
}

// Observer is told of every pass, in order, one at a time. It does not keep the agent
// waiting: what talks to others does that on its own time.
type Observer interface {
	Observe(ctx context.Context, p *Pass)
}

// Level is how full one store is.
type Level struct {
	Dir, Network string
	// Reserved were there at the look, Released went since by this pass.
	Reserved, Released int
	// Capacity is how many addresses its configured ranges hold; 0 when not known.
	Capacity uint64
}

// Levels are the stores of the look, in its order; none without one.
func (p *Pass) Levels() []Level {
	if p.Audit == nil {
		return nil
	}
	var out []Level
	at := map[string]int{}
	for i := range p.Audit.Case.Snapshots {
		for _, st := range p.Audit.Case.Snapshots[i].Stores {
			if st.Network == "" {
				continue
			}
			if _, ok := at[st.Dir]; !ok {
				at[st.Dir] = len(out)
				out = append(out, Level{Dir: st.Dir, Network: st.Network, Capacity: st.Capacity})
			}
		}
	}
	for i := range p.Audit.Judgement.Findings {
		f := &p.Audit.Judgement.Findings[i]
		if n, ok := at[f.Resource.Store]; ok && f.Resource.Kind == claim.KindReservation && f.Verdict != verdict.Missing {
			out[n].Reserved++
		}
	}
	for _, res := range p.Results {
		for _, r := range res.Released {
			if n, ok := at[r.Finding.Resource.Store]; ok && r.Finding.Resource.Kind == claim.KindReservation {
				out[n].Released++
			}
		}
	}
	return out
}
