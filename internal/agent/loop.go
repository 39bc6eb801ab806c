package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Request is what a sweep is asked to be.
type Request struct {
	Trigger Trigger
	// Pressed are the stores whose range runs low, or that lose addresses fast.
	Pressed []string
}

// Node is the node as the agent sees it. Its methods are called one at a time.
type Node interface {
	// Pass makes one sweep: looks, judges, releases what may go. It never fails as a whole:
	// what went wrong is in the Pass.
	Pass(ctx context.Context, r Request) *Pass
}

// Config is what an Agent needs.
type Config struct {
	Node Node
	// Interval is the time between two sweeps, PressureInterval the least time between two
	// while a range runs low.
	Interval, PressureInterval time.Duration
	Fill                       *Fill
	// Observers are told of every pass, in their order.
	Observers []Observer
	// Rand gives numbers in [0, 1), for the jitter.
	Rand func() float64
}

// Agent makes sweeps. Its methods may be called concurrently.
type Agent struct {
	conf Config
	// turn has one element, which whoever works on the node has taken.
	turn chan struct{}
	wake chan Trigger

	losses losses // of whoever has the turn

	mu      sync.Mutex
	answers int // passes in which every required witness spoke
}

// New makes an agent; Run starts it.
func New(conf Config) *Agent {
	a := &Agent{conf: conf, turn: make(chan struct{}, 1), wake: make(chan Trigger, 1)}
	a.turn <- struct{}{}
	return a
}

// startDelay is the first wait at start until every witness has answered; it doubles.
const startDelay = time.Second

// Run sweeps until ctx ends; a sweep in flight is ended first.
func (a *Agent) Run(ctx context.Context) {
	trigger, delay := AtStart, startDelay
	var last time.Time
	for {
		pressed := a.conf.Fill.Pressed()
		if len(pressed) > 0 && trigger == AtInterval {
			trigger = OnPressure
		}
		last = time.Now()
		a.pass(ctx, Request{Trigger: trigger, Pressed: pressed})
		if ctx.Err() != nil {
			return
		}
		wait := time.Duration(float64(a.conf.Interval) * (0.9 + 0.2*a.conf.Rand()))
		if !a.Answered() {
			wait, delay = min(wait, time.Duration(float64(delay)*(0.5+a.conf.Rand()))), min(2*delay, a.conf.Interval)
		}
		if len(a.conf.Fill.Pressed()) > 0 {
			wait = min(wait, a.conf.PressureInterval)
		}
		trigger = a.sleep(ctx, wait, last)
		if ctx.Err() != nil {
			return
		}
	}
}

// sleep waits for the time to be over, or for somebody to wake us, and says why it ended. Who
// wakes again and again gets a sweep at most every PressureInterval.
func (a *Agent) sleep(ctx context.Context, wait time.Duration, last time.Time) Trigger {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ""
	case <-timer.C:
		if !a.Answered() {
			return AtStart
		}
		return AtInterval
	case why := <-a.wake:
		rest := time.NewTimer(a.conf.PressureInterval - time.Since(last))
		defer rest.Stop()
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		return why
	}
}

// Wake asks for a sweep soon. Those who ask while one is due already get that one.
func (a *Agent) Wake(why Trigger) {
	select {
	case a.wake <- why:
	default:
	}
}

// Answered reports whether every required witness has spoken in one pass at least.
func (a *Agent) Answered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answers > 0
}

func (a *Agent) pass(ctx context.Context, r Request) {
	// The error is ctx's, which ends the loop.
	_ = a.Exclusive(ctx, func() {
		p := a.conf.Node.Pass(ctx, r)
		p.Trigger = r.Trigger
		a.losses.note(p)
		// Before anybody is told: who then sees names come counts them on top of it.
		a.conf.Fill.Note(p)
		a.tell(ctx, p)
	})
}

// Exclusive runs f while nobody else works on the node. The error is ctx's; then f did not run.
func (a *Agent) Exclusive(ctx context.Context, f func()) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.turn:
	}
	defer func() { a.turn <- struct{}{} }()
	f()
	return nil
}

// Yield lets others work on the node while f runs. It is called by who is in Exclusive, as
// long as it only waits. When ctx has ended the node is had again all the same.
func (a *Agent) Yield(f func()) {
	a.turn <- struct{}{}
	f()
	<-a.turn
}

// Tell lets the observers know of a pass that somebody else has made, within Exclusive.
func (a *Agent) Tell(ctx context.Context, p *Pass) {
	a.losses.note(p)
	a.tell(ctx, p)
}

func (a *Agent) tell(ctx context.Context, p *Pass) {
	if p.Err == nil && p.Audit != nil && len(p.Audit.Judgement.Silent) == 0 && p.Unanswered == "" {
		a.mu.Lock()
		a.answers++
		a.mu.Unlock()
	}
	for _, o := range a.conf.Observers {
		o.Observe(ctx, p)
	}
}

// Fill knows how full the ranges are: as the last pass saw them, and what came and went
// since. It is for concurrent use.
type Fill struct {
	// Threshold is the part of a range from which on it is under pressure.
	Threshold float64

	mu     sync.Mutex
	stores map[string]*level
}

type level struct {
	reserved, delta int
	capacity        uint64
	fast            bool // addresses are being lost fast
}

func (l *level) pressed(threshold float64) bool {
	return l.fast || l.capacity > 0 && float64(l.reserved+l.delta) >= threshold*float64(l.capacity)
}

// Note takes in what a pass saw. A pass without a look changes nothing.
func (f *Fill) Note(p *Pass) {
	if p.Audit == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stores = map[string]*level{}
	for _, n := range p.Levels() {
		f.stores[n.Dir] = &level{reserved: n.Reserved - n.Released, capacity: n.Capacity, fast: slices.Contains(p.Fast, n.Dir)}
	}
}

// Changed notes that names came (+1) or went (-1) in a store, and reports whether that put it
// under pressure.
func (f *Fill) Changed(store string, by int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.stores[store]
	if l == nil {
		return false
	}
	before := l.pressed(f.Threshold)
	l.delta += by
	return !before && l.pressed(f.Threshold)
}

// Pressed are the stores under pressure, sorted.
func (f *Fill) Pressed() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, dir := range slices.Sorted(maps.Keys(f.stores)) {
		if f.stores[dir].pressed(f.Threshold) {
			out = append(out, dir)
		}
	}
	return out
}

// Dirs are the stores that the last pass saw, sorted.
func (f *Fill) Dirs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.stores))
}
