package metrics

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/agent/events"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Options say what the metrics tell beside the passes.
type Options struct {
	Version, Commit string
	// Start is the wall time at which the agent started.
	Start time.Time
	// Events gives the counts of the recorder of events; nil where there is none.
	Events func() events.Stats
}

// maxSeries bounds the label values that come from the node one by one: endpoints of
// runtimes, checks of the vantage.
const maxSeries = 32

// Metrics observes passes. It is an agent.Observer; its registry may be gathered at any
// time, from any goroutine.
type Metrics struct {
	registry *prometheus.Registry
	opt      Options

	sweeps    *prometheus.HistogramVec
	witnesses *prometheus.HistogramVec
	locks     prometheus.Histogram
	results   *prometheus.CounterVec
	settled   *prometheus.CounterVec

	mu       sync.Mutex
	seen     *digest.Digest // of the last pass that looked
	done     map[digest.Name]*done
	stopped  map[digest.Name]bool
	busy     map[digest.Name]bool
	descs    descs
	withheld map[digest.Name]int
	runtimes []endpoint
	checks   map[string]bool
	success  time.Time // of the last sweep that was made
	writable bool
}

// done is what was done in one network since it was first seen. A network that goes takes
// its counts with it.
type done struct {
	releases, failures, undone, adopted map[string]int
	lost                                int
}

type endpoint struct {
	name, runtime string
	up            bool
}

// New makes a registry. Nothing is registered globally.
func New(opt Options) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), opt: opt,
		sweeps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_sweep_duration_seconds", Help: "How long sweeps took, by what they were made for.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"trigger"}),
		witnesses: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_witness_duration_seconds", Help: "How long a witness took to answer, or to fail.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"witness"}),
		locks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_lock_hold_seconds", Help: "How long the lock of an allocator was held, each time: ADD and DEL wait meanwhile.",
			Buckets: []float64{.0005, .001, .0025, .005, .0075, .01, .015, .02, .05, .1, .25, 1},
		}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_sweeps_total",
			Help: "Sweeps by trigger and result: complete; blind, where a silent witness or a missing vantage kept everything; failed.",
		}, []string{"trigger", "result"}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_settled_total", Help: "Releases that an earlier run had left half way, by what they came to.",
		}, []string{"outcome"}),
		done: map[digest.Name]*done{}, writable: true, descs: newDescs(),
	}
	for _, t := range append(agent.Triggers(), other) {
		for _, r := range []string{resultComplete, resultBlind, resultFailed} {
			m.results.WithLabelValues(string(t), r)
		}
	}
	for _, o := range append(releaseOutcomes(), journal.OutcomeReleased, journal.UndoRestored, journal.UndoTaken) {
		m.settled.WithLabelValues(o)
	}
	m.registry.MustRegister(m.sweeps, m.witnesses, m.locks, m.results, m.settled, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Registry is what is served.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler serves the registry in Prometheus' formats.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

const (
	other          = "other"
	resultComplete = "complete"
	resultBlind    = "blind"
	resultFailed   = "failed"
)

// releaseOutcomes are what becomes of a release that does not succeed.
func releaseOutcomes() []string {
	return []string{journal.OutcomeChanged, journal.OutcomeGone, journal.OutcomeFailed, journal.OutcomeRolledBack, "withheld", "reprieved", other}
}

func undoOutcomes() []string {
	return []string{journal.UndoRestored, journal.UndoTaken, journal.UndoFailed, other}
}

func adoptOutcomes() []string { return []string{"adopted", "taken", "failed", "withheld", other} }

func kinds() []string {
	var out []string
	for _, k := range cause.Kinds() {
		out = append(out, string(k))
	}
	return out
}

// known bounds a label to the words that it may have.
func known(word string, words []string) string {
	if slices.Contains(words, word) {
		return word
	}
	return other
}

// Observe counts a pass. It does not wait for anybody.
func (m *Metrics) Observe(_ context.Context, p *agent.Pass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := digest.Of(p)
	m.writable = d.Unwritable == ""

	trigger := known(string(p.Trigger), triggers())
	m.sweeps.WithLabelValues(trigger).Observe(p.Took.Seconds())
	m.results.WithLabelValues(trigger, result(p, d)).Inc()
	for _, l := range p.Locks {
		m.locks.Observe(l.Seconds())
	}
	for _, s := range p.Settled {
		m.settled.WithLabelValues(known(s.Outcome, append(releaseOutcomes(), journal.OutcomeReleased, journal.UndoRestored, journal.UndoTaken))).Inc()
	}
	if p.Err == nil && d.Seen {
		m.success = p.Started.Wall.Add(p.Took)
	}
	if d.Seen {
		m.look(p, d)
	} else if m.seen != nil {
		// The line may be stopped, or go on, without a look.
		d = m.seen
	}
	m.stopped, m.busy = d.Stopped(p.Stops), map[digest.Name]bool{}
	for store := range p.Busy {
		m.busy[d.NameOf(store)] = true
	}
	m.count(p, d)
}

func triggers() []string {
	var out []string
	for _, t := range agent.Triggers() {
		out = append(out, string(t))
	}
	return out
}

func result(p *agent.Pass, d *digest.Digest) string {
	switch {
	case p.Err != nil || !d.Seen:
		return resultFailed
	case d.Vantage != "" || slices.ContainsFunc(d.Witnesses, func(w digest.Witness) bool { return w.Required && !w.Up }):
		return resultBlind
	}
	return resultComplete
}

// look takes what a look has shown, and forgets the networks that are gone.
func (m *Metrics) look(p *agent.Pass, d *digest.Digest) {
	m.seen = d
	for _, w := range d.Witnesses {
		m.witnesses.WithLabelValues(w.Name).Observe(w.Took.Seconds())
	}
	old := m.done
	m.done = make(map[digest.Name]*done, len(d.Networks))
	for i := range d.Networks {
		n := &d.Networks[i]
		c := old[n.Name]
		if c == nil {
			c = &done{releases: map[string]int{}, failures: map[string]int{}, undone: map[string]int{}, adopted: map[string]int{}}
		}
		c.lost += n.Lost
		m.done[n.Name] = c
	}
	m.withheld = map[digest.Name]int{}
	if p.Plan != nil {
		for i := range p.Plan.Withheld {
			if r := p.Plan.Withheld[i].Finding.Resource; r.Kind == claim.KindReservation {
				m.withheld[d.NameOf(r.Store)]++
			}
		}
	}
	m.runtimes, m.checks = m.runtimes[:0], map[string]bool{}
	for _, t := range p.Audit.Case.Testimonies {
		if t.CRI != nil {
			for _, r := range t.CRI.Runtimes {
				m.addRuntime(r)
			}
		}
		if t.Kernel != nil {
			for _, c := range t.Kernel.Vantage.Checks {
				if name := digest.Text(c.Name); len(m.checks) < maxSeries {
					ok, before := m.checks[name]
					m.checks[name] = c.OK && (ok || !before)
				}
			}
		}
	}
}

// addRuntime takes one endpoint in. A socket whose owner is no runtime of ours is none.
func (m *Metrics) addRuntime(r claim.Runtime) {
	e := endpoint{name: digest.Text(r.Endpoint), runtime: digest.Text(r.Name), up: r.State == claim.StateComplete}
	if r.State == claim.StateNone || len(m.runtimes) >= maxSeries ||
		slices.ContainsFunc(m.runtimes, func(o endpoint) bool { return o.name == e.name }) {
		return
	}
	m.runtimes = append(m.runtimes, e)
}

// count adds what was done. d names the networks.
func (m *Metrics) count(p *agent.Pass, d *digest.Digest) {
	of := func(store string) *done {
		name := d.NameOf(store)
		if store == "" {
			name.Network = digest.Other
		}
		if m.done[name] == nil {
			m.done[name] = &done{releases: map[string]int{}, failures: map[string]int{}, undone: map[string]int{}, adopted: map[string]int{}}
		}
		return m.done[name]
	}
	outcomes, causes := releaseOutcomes(), kinds()
	fail := func(f *verdict.Finding, outcome string) {
		if f.Resource.Kind == claim.KindReservation {
			of(f.Resource.Store).failures[known(outcome, outcomes)]++
		}
	}
	for _, res := range p.Results {
		for i := range res.Released {
			if r := res.Released[i].Finding.Resource; r.Kind == claim.KindReservation {
				kind := string(p.Causes[r.Path].Kind)
				if !slices.Contains(causes, kind) {
					kind = string(cause.Unknown)
				}
				of(r.Store).releases[kind]++
			}
		}
		for i := range res.Failed {
			fail(res.Failed[i].Finding, res.Failed[i].Outcome)
		}
		for i := range res.Reprieved {
			fail(res.Reprieved[i].Finding, "reprieved")
		}
	}
	for id, outcome := range p.Undone {
		of(stopOf(p, id)).undone[known(outcome, undoOutcomes())]++
	}
	for i := range p.Adopted {
		a := &p.Adopted[i]
		store := ""
		if a.Finding != nil {
			store = a.Finding.Resource.Store
		}
		of(store).adopted[known(a.Outcome, adoptOutcomes())]++
	}
}

// stopOf is the store of the stop that took a release back; empty when it cannot be told, since
// a stop does not name all of many releases.
func stopOf(p *agent.Pass, id string) string {
	for _, s := range slices.Concat(p.Stopped, p.Stops) {
		if slices.Contains(s.ReleaseIDs, id) {
			return s.Store
		}
	}
	if len(p.Stopped) == 1 {
		return p.Stopped[0].Store
	}
	return ""
}
