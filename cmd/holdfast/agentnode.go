package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/config"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// agentNode is the node in the agent's hands: opened once, with the reaper's locks held.
// Its methods are called one at a time (agent.Agent.Exclusive).
type agentNode struct {
	conf *config.Config
	log  *slog.Logger
	app  *app
	// n is nil until it could be opened.
	n *node
	// settled: what a crash left half way was brought to an end by this process.
	settled bool
	// retained is when what need not be done at each sweep was done last: shortening the journal
	// reads all of it.
	retained claim.Instant
	// heard: the API server has answered once.
	heard   bool
	history cause.History
	// hinted is when hints were asked for last; hints are those that came since.
	hinted claim.Instant
	mu     sync.Mutex
	hints  []cause.Hint
	known  []string // runtimes that must answer, as they were when n.cri was made
	clock  *boot.Clock
}

// hintEvery is the least time between two questions for the Events of failed sandboxes, hintTime
// how long one may take.
const (
	hintEvery = 15 * time.Second
	hintTime  = 10 * time.Second
)

// retainEvery is how often the journal is shortened.
const retainEvery = time.Hour

func newAgentNode(conf *config.Config, o *options, log *slog.Logger) *agentNode {
	a := &app{opts: o, sink: func(text string) { log.Warn(text) }}
	return &agentNode{conf: conf, log: log, app: a, clock: boot.NewClock(o.proc)}
}

// optionsOf are the flags that say the same as a configuration.
func optionsOf(c *config.Config) *options {
	o := &options{
		output: "table", confDirs: c.Paths.CNIConfDirs, dataDirs: c.Paths.DataDirs, cacheDirs: c.Paths.CNICacheDirs, binDirs: c.Paths.CNIBinDirs,
		criEndpoints: c.CRIEndpoints, witnesses: []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI},
		grace: c.Grace, orphanGrace: c.OrphanGrace, timeout: c.WitnessTimeout, orphans: c.Orphans, foreign: c.Foreign,
		networks: c.Networks, exclude: c.Exclude, stateDir: c.Paths.StateDir, runDir: c.Paths.RunDir, proc: c.Paths.Proc,
		maxReleases: c.MaxReleases, noDel: !c.SideResources, adopt: c.Adopt, stays: true, kubeletConfig: c.Paths.KubeletConfig,
	}
	return o
}

// Pass is one sweep.
func (x *agentNode) Pass(ctx context.Context, req agent.Request) *agent.Pass {
	p := &agent.Pass{Node: x.conf.NodeName, Started: x.clock.Now()}
	defer func() {
		if d, ok := x.clock.Now().Since(p.Started); ok {
			p.Took = d
		}
	}()
	if p.Err = x.open(); p.Err != nil {
		return p
	}
	n := x.n
	n.policy.PressureGrace, n.policy.Pressed = 0, req.Pressed
	if len(req.Pressed) > 0 {
		n.policy.PressureGrace = x.conf.PressureGrace
	}
	r := &sweepRun{a: x.app, n: n, dryRun: x.conf.DryRun}
	x.settle(ctx, r)
	if p.Err = r.look(ctx); p.Err == nil {
		p.Unanswered = x.heardKube(ctx, r.audit)
		x.explain(ctx, p, r.audit)
		x.sweep(ctx, p, r)
	}
	if p.Err != nil || len(p.Undone) > 0 {
		// An intent may be without its outcome, also of an undo.
		x.settled = false
	}
	if d, ok := p.Started.Since(x.retained); !ok || d >= retainEvery {
		r.retain()
		x.retained = p.Started
		n.setGrace() // the kubelet may have another configuration by now
		n.warnings = nil
	}
	x.fill(p, r)
	return p
}

// sweep is what follows a look: the releases of before are held against it, and then more may go.
func (x *agentNode) sweep(ctx context.Context, p *agent.Pass, r *sweepRun) {
	w, err := x.n.watchLine(ctx, r.audit, r.dryRun)
	p.Stops, p.Stopped, p.Resumed, p.Undone = w.stops, w.fresh, w.over, w.undone
	if p.Err = err; err != nil {
		return
	}
	if r.adopt(ctx); r.err == nil {
		r.paced = true
		r.reap(ctx)
	}
	p.Err = r.err
}

// heardKube says why the API server has never answered, or "". It is asked when a sweep needs it, and
// for once at the start, since a configured witness that cannot answer should show before it is needed.
func (x *agentNode) heardKube(ctx context.Context, au *sweep.Audit) string {
	if x.n.kube == nil || x.heard {
		return ""
	}
	for _, t := range au.Case.Testimonies {
		x.heard = x.heard || t.Witness == claim.WitnessKube && t.State == claim.StateComplete
	}
	why := ""
	if !x.heard {
		t := x.n.kube.Ask(ctx)
		x.heard, why = t.State == claim.StateComplete, "kube: "+t.Detail
	}
	if x.heard || !x.app.opts.kube.required {
		return ""
	}
	return why
}

// explain names what lost the addresses of a look. What a kubelet tells of failed sandboxes is
// asked for beside the sweeps, while something is lost.
func (x *agentNode) explain(ctx context.Context, p *agent.Pass, au *sweep.Audit) {
	x.mu.Lock()
	x.history.Hints(x.hints)
	x.hints = nil
	x.mu.Unlock()
	x.history.Feed(&au.Case, au.Judgement)
	p.Causes = map[string]cause.Cause{}
	lost := false
	for i := range au.Judgement.Findings {
		f := &au.Judgement.Findings[i]
		switch f.Verdict {
		case verdict.Leaked, verdict.Orphaned, verdict.Malformed:
			p.Causes[f.Resource.Path] = cause.Of(f, &au.Case, &x.history)
			lost = true
		case verdict.Suspect:
			lost = true
		}
	}
	k := x.app.opts.kube
	since, ok := p.Started.Since(x.hinted)
	if !lost || k == nil || ok && since < hintEvery {
		return
	}
	x.hinted = p.Started
	go func() {
		// Not the sweep's context: this one goes on while the agent does, and not for long.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintTime)
		defer cancel()
		failed, err := k.client.FailedSandboxes(ctx, k.node)
		if err != nil {
			x.log.Debug("why sandboxes failed is not known", "error", report.Clean(err.Error()))
			return
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, f := range failed {
			x.hints = append(x.hints, cause.Hint{ContainerID: f.ID, Pod: f.Pod, Plugin: f.Plugin, Verb: f.Op})
		}
	}()
}

// fill puts a sweep's outcome into what the observers see.
func (x *agentNode) fill(p *agent.Pass, r *sweepRun) {
	p.Adopted = r.adopted
	p.Audit, p.Plan, p.Results, p.Settled, p.Busy = r.audit, r.plan, r.results, r.settled, r.busy
	p.Err = errors.Join(p.Err, r.unsettled)
	p.Locks, r.n.lockHolds = r.n.lockHolds, nil
	p.Unwritable = r.n.unwritable
	if p.Plan == nil {
		p.Plan = &plan.Plan{}
	}
}

// open opens the node, if it is not. What keeps it from being opened may pass: another
// reaper, a full disk. A journal that is not to be written any more, since somebody replaced or
// removed the state directory, or since a disk would not take back half a line, is as good as
// none: the node is opened anew, with the reaper's lock of what lies there now.
func (x *agentNode) open() error {
	if x.n != nil && !x.conf.DryRun {
		if err := x.n.journal.Writable(); err != nil {
			x.log.Warn("the node is opened anew", "why", report.Clean(err.Error()))
			x.Close()
		}
	}
	if x.n == nil {
		want := releases
		if x.conf.DryRun {
			want = remembers
		}
		n, err := openNode(x.app.opts, want)
		if err != nil {
			return err
		}
		x.app.warn(n)
		n.watch = newWatch()
		x.n, x.settled = n, false
		x.known, _ = n.knownRuntimes()
	}
	x.n.dropGone()
	return x.asked()
}

// asked makes the CRI witness anew when the list of runtimes that must answer has changed: one
// that answered for the first time must from then on, and "holdfast forget-runtime" takes one off.
func (x *agentNode) asked() error {
	n := x.n
	known, err := n.knownRuntimes()
	if err == nil && slices.Equal(known, x.known) {
		return nil
	}
	w, newErr := cri.New(cri.Config{Endpoints: n.o.criEndpoints, WellKnown: cri.DefaultEndpoints(), Known: known, Clock: n.clock.Now, Timeout: n.o.timeout})
	if newErr != nil {
		return newErr
	}
	n.cri.Close()
	n.cri, x.known = w, known
	for i, old := range n.engine.Witnesses {
		if _, ok := old.(criWitness); ok {
			n.engine.Witnesses[i] = criWitness{w, err, n.clock.Now}
		}
	}
	return nil
}

// settle brings what an earlier run left half way to an end, until that has worked once.
func (x *agentNode) settle(ctx context.Context, r *sweepRun) {
	if x.settled || r.dryRun {
		return
	}
	if r.settled, r.unsettled = x.n.settle(ctx); r.unsettled != nil {
		x.app.say("%v", r.unsettled)
		return
	}
	x.settled = true
}

// Close gives everything back.
func (x *agentNode) Close() {
	if x.n != nil {
		x.n.Close()
		x.n = nil
	}
}

// borrow lets a command work on the node with its own selection, and gives back what restores the
// agent's. The command is run within agent.Exclusive.
func (x *agentNode) borrow(o *options, want access) (n *node, restore func(), err error) {
	if x.conf.DryRun && want == releases {
		return nil, nil, withheldError{errors.New("the agent's configuration says dryRun, so nothing is released or put back")}
	}
	if err := x.open(); err != nil {
		return nil, nil, err
	}
	n = x.n
	oldO, oldPolicy := n.o, n.policy
	mine := *oldO
	mine.output, mine.networks, mine.maxReleases, mine.forceOverCap = o.output, o.networks, cmp.Or(o.maxReleases, oldO.maxReleases), o.forceOverCap
	mine.noDel, mine.orphans, mine.foreign = oldO.noDel || o.noDel, oldO.orphans || o.orphans, oldO.foreign || o.foreign
	mine.adopt = oldO.adopt || o.adopt
	*o = mine
	n.o = o
	n.policy.Adopt, n.policy.Orphans, n.policy.Foreign, n.policy.PressureGrace, n.policy.Pressed = mine.adopt, mine.orphans, mine.foreign, 0, nil
	return n, func() {
		n.o, n.policy = oldO, oldPolicy
		x.settled = false // what the command left half way, if anything, the next sweep ends
	}, nil
}
