// Package passes makes passes of the agent for the tests of its observers.
//
// Scope: passes as the agent hands them out, made by hand, so that every verdict and every
// outcome is there. Non-scope: judging; observers show what they are given.
package passes

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	Node    = "node-1"
	Boot    = "0a1b2c3d-1111-2222-3333-444455556666"
	DataDir = "/var/lib/cni/networks"
	// Evil drives a terminal, turns text around, hides it, and is no UTF-8.
	Evil = "a\x1b[2Jb\x00\t\r\nc\x7f\u009b31m\u202ed\u2066e\u200bf\ufeffg\xff\xc3(h\u2028i"
	// Sweep is the ID of the sweep of every pass.
	Sweep = "20260301-120000-1a2b3c"
)

// At is a clock reading d after the node of these passes was first looked at.
func At(d time.Duration) claim.Instant {
	return claim.Instant{Boot: Boot, Mono: 100*time.Hour + d, Wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(d)}
}

// Store is a network with one range, first to last.
func Store(dataDir, network, first, last string) claim.Store {
	f, l := netip.MustParseAddr(first), netip.MustParseAddr(last)
	a, b := f.As4(), l.As4()
	n := func(x [4]byte) uint64 { return uint64(x[0])<<24 | uint64(x[1])<<16 | uint64(x[2])<<8 | uint64(x[3]) }
	return claim.Store{
		Dir: dataDir + "/" + network, DataDir: dataDir, Network: network, Configs: []string{"/etc/cni/net.d/10-" + network + ".conflist"},
		Ranges: []claim.Range{{First: f, Last: l}}, Capacity: n(b) - n(a) + 1, Writable: true,
	}
}

// Finding is a reservation of addr; the dead ones are absent since At(0).
func Finding(s claim.Store, addr string, v verdict.Verdict) verdict.Finding {
	h := fnv.New64a()
	h.Write([]byte(addr))
	id := fmt.Sprintf("%016x", h.Sum64())
	r := &claim.Resource{
		Kind: claim.KindReservation, Store: s.Dir, Network: s.Network, Addr: netip.MustParseAddr(addr), Path: s.Dir + "/" + addr,
		Owner: claim.Owner{Shape: claim.ShapeContainer, ID: id + id + id + id, IfName: "eth0"}, Inc: claim.Incarnation{Dev: 1, Ino: h.Sum64(), Size: 70},
	}
	f := verdict.Finding{Resource: r, Verdict: v, Rule: "rule", Why: "why it is so", Wait: -1}
	if v == verdict.Missing {
		r.Inc = claim.Incarnation{}
		return f
	}
	f.Sight = &verdict.Sighting{Key: verdict.Key{Path: r.Path, Inc: r.Inc}, First: At(-time.Hour)}
	word := verdict.Alive
	switch v {
	case verdict.Leaked, verdict.Orphaned, verdict.Suspect, verdict.Malformed:
		word = verdict.Absent
		f.Sight.Absent = At(0)
	}
	f.Releasable = v == verdict.Leaked
	f.Says = []verdict.Say{
		{Witness: claim.WitnessKernel, Word: word, Detail: "kernel on ", Addressed: true},
		{Witness: claim.WitnessProcess, Word: word, Detail: "process"},
		{Witness: claim.WitnessCRI, Word: word, Detail: "runtime"},
	}
	return f
}

// Of is a pass at now that found this and did nothing.
func Of(now claim.Instant, stores []claim.Store, findings ...verdict.Finding) *agent.Pass {
	snap := claim.Snapshot{Source: "hostlocal", Listed: now, Stores: stores}
	for i := range findings {
		snap.Resources = append(snap.Resources, *findings[i].Resource)
	}
	return &agent.Pass{
		Trigger: agent.AtInterval, Node: Node, Started: now, Took: 25 * time.Millisecond,
		Audit: &sweep.Audit{
			Case: verdict.Case{
				Now: now, Snapshots: []claim.Snapshot{snap},
				Policy: verdict.Policy{Required: []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI}, Grace: 5 * time.Minute},
				Testimonies: []claim.Testimony{
					{Witness: claim.WitnessKernel, State: claim.StateComplete, Took: 4 * time.Millisecond, Kernel: &claim.KernelFacts{
						Vantage: claim.Vantage{Proven: true, InitialPIDNS: true, Checks: []claim.Check{{Name: "capabilities", OK: true}, {Name: "hidepid", OK: true}}},
					}},
					{Witness: claim.WitnessProcess, State: claim.StateComplete, Took: 4 * time.Millisecond, Process: &claim.ProcessFacts{}},
					{Witness: claim.WitnessCRI, State: claim.StateComplete, Took: 9 * time.Millisecond, CRI: &claim.CRIFacts{
						Runtimes: []claim.Runtime{{Endpoint: "unix:///run/containerd/containerd.sock", Name: "containerd", State: claim.StateComplete}},
					}},
					{Witness: claim.WitnessBoot, State: claim.StateComplete, Took: time.Millisecond, Boot: &claim.BootFacts{Current: now.Boot}},
				},
			},
			Judgement: &verdict.Judgement{Findings: findings},
		},
		Plan: &plan.Plan{}, Causes: map[string]cause.Cause{},
	}
}

// Silence makes one witness of a pass silent.
func Silence(p *agent.Pass, witness, why string) {
	for i := range p.Audit.Case.Testimonies {
		if t := &p.Audit.Case.Testimonies[i]; t.Witness == witness {
			t.State, t.Detail = claim.StateSilent, why
		}
	}
}

// Release makes a pass have released the i-th finding, for a cause.
func Release(p *agent.Pass, i int, c cause.Cause) {
	if len(p.Results) == 0 {
		p.Results = []*sweep.Result{{Sweep: Sweep}}
	}
	res, f := p.Results[0], &p.Audit.Judgement.Findings[i]
	res.Released = append(res.Released, sweep.Released{
		ID: fmt.Sprintf("%s-%05d", Sweep, len(res.Released)+1), Finding: f,
		Steps: []journal.StepResult{{Step: "cni-del", Object: "/var/lib/cni/results/x", State: journal.StepDone, Irreversible: true}},
	})
	p.Causes[f.Resource.Path] = c
}

// Full is a pass in which everything happened, on a node with hostile names: two networks
// of one name, one named in escape sequences, every verdict, every outcome.
func Full() *agent.Pass {
	pods, twin := Store(DataDir, "podnet", "10.1.0.1", "10.1.0.30"), Store("/run/cni-ipam-state", "podnet", "10.2.0.1", "10.2.0.4")
	evil := claim.Store{Dir: DataDir + "/" + Evil, DataDir: DataDir, Network: Evil}
	var list []verdict.Finding
	for i, v := range verdict.All() {
		list = append(list, Finding(pods, fmt.Sprintf("10.1.0.%d", i+1), v))
	}
	leaked := func(addr string) int {
		list = append(list, Finding(pods, addr, verdict.Leaked))
		return len(list) - 1
	}
	released, failed, reprieved, withheld := leaked("10.1.0.21"), leaked("10.1.0.22"), leaked("10.1.0.23"), leaked("10.1.0.24")
	list[released].Pod = claim.Pod{Namespace: "default", Name: "web-0", UID: "u-1"}
	list = append(list, Finding(pods, "10.1.0.25", verdict.Missing), Finding(pods, "10.99.0.1", verdict.InUse), Finding(twin, "10.2.0.1", verdict.InUse))
	adopted := len(list) - 3
	hostile := Finding(evil, "10.9.0.1", verdict.Orphaned)
	hostile.Resource.Owner, hostile.Why, hostile.Pod = claim.Owner{Shape: claim.ShapeForeign, ID: Evil}, Evil, claim.Pod{Namespace: Evil, Name: Evil, UID: Evil}
	hostile.Says = []verdict.Say{{Witness: Evil, Word: verdict.Other, Detail: Evil}}
	list = append(list, hostile)

	p := Of(At(10*time.Minute), []claim.Store{pods, twin, evil}, list...)
	at := func(i int) *verdict.Finding { return &p.Audit.Judgement.Findings[i] }
	Release(p, released, cause.Cause{Kind: cause.AddFailed, Plugin: "portmap", Pod: at(released).Pod, Why: "ADD failed in portmap"})
	Release(p, len(list)-1, cause.Cause{Kind: "new-kind", Plugin: Evil, Why: Evil})
	res := p.Results[0]
	res.Failed = []sweep.Failure{
		{ID: Sweep + "-00003", Finding: at(failed), Outcome: journal.OutcomeFailed, Err: errors.New("the lock " + Evil)},
		{Finding: at(withheld), Outcome: "withheld", Err: errors.New("the disk is full")},
	}
	now := *at(reprieved)
	now.Verdict, now.Why = verdict.InUse, "a live process"
	res.Reprieved = []sweep.Reprieve{{Finding: at(reprieved), Now: now}}
	p.Plan.Withheld = []plan.Withheld{{Finding: at(withheld), Why: "over the cap", Cap: true}}
	p.Settled = []sweep.Settled{{ID: Sweep + "-00099", Outcome: journal.OutcomeRolledBack, Release: &journal.Release{Store: pods.Dir, Path: pods.Dir + "/10.1.0.29", Addr: netip.MustParseAddr("10.1.0.29")}}}
	p.Adopted = []sweep.Adopted{{ID: Sweep + "-00004", Finding: at(adopted), Outcome: "adopted"}}
	p.Stopped = []line.Stop{{Store: pods.Dir, Since: At(10 * time.Minute), Why: "two namespaces hold 10.1.0.7 " + Evil, ReleaseIDs: []string{Sweep + "-00001"}}}
	p.Stops = p.Stopped
	p.Undone = map[string]string{Sweep + "-00001": journal.UndoRestored}
	p.Busy = map[string]string{twin.Dir: "holdfast gc, process 17, " + Evil}
	p.Locks = []time.Duration{400 * time.Microsecond, 12 * time.Millisecond}
	return p
}
