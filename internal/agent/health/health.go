// Package health says whether the agent lives and whether it is ready, and if not, why.
//
// Scope: what passes and clock readings come to. Non-scope: answering probes (package web),
// reading the clock.
package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/claim"
)

// maxBusy is how many directories Ready names.
const maxBusy = 8

// Options say what is expected.
type Options struct {
	// Interval is how often a sweep is due.
	Interval time.Duration
	// Missed is how many intervals may pass without the end of a sweep; at least 2.
	Missed int
	// Longest is how long one sweep may take: the time-outs of its witnesses, asked
	// twice, and of its releases. A loop within it lives.
	Longest time.Duration
	// Started is when the agent started.
	Started claim.Instant
}

// Health is an agent.Observer. Its methods may be called concurrently.
type Health struct {
	opt Options

	mu       sync.Mutex
	turned   claim.Instant // when the loop was seen turning last
	err      string        // why the last sweep failed
	looked   bool
	required map[string]string // witnesses that have not answered yet, with the reason
	answered map[string]bool
	// unanswered is of one that no pass has needed yet.
	unanswered string
	busy       map[string]string
	faults     map[string]string
}

// New knows of no pass.
func New(opt Options) *Health {
	opt.Missed = max(opt.Missed, 2)
	return &Health{opt: opt, turned: opt.Started, answered: map[string]bool{}, faults: map[string]string{}}
}

// Observe takes a pass.
func (h *Health) Observe(_ context.Context, p *agent.Pass) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turned = p.Started
	h.turned.Mono += p.Took
	h.err = ""
	if p.Err != nil {
		h.err = digest.Text(p.Err.Error())
	}
	h.busy = maps.Clone(p.Busy)
	d := digest.Of(p)
	if !d.Seen {
		return
	}
	h.looked, h.required, h.unanswered = true, map[string]string{}, digest.Text(p.Unanswered)
	for _, w := range d.Witnesses {
		if w.Up {
			h.answered[w.Name] = true
		}
		if w.Required && !h.answered[w.Name] {
			h.required[w.Name] = w.Why
		}
	}
}

// Fault makes the agent not ready for a reason that no pass tells, such as a configuration
// that cannot be read; an empty why ends it.
func (h *Health) Fault(name, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why == "" {
		delete(h.faults, name)
	} else {
		h.faults[name] = digest.Text(why)
	}
}

// Live reports whether the loop turns, or why not. A sweep that fails is one, so a node where
// nothing works is not restarted for ever. Only CLOCK_MONOTONIC counts.
func (h *Health) Live(now claim.Instant) (ok bool, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	most := time.Duration(h.opt.Missed)*h.opt.Interval + h.opt.Longest
	if d := now.Mono - h.turned.Mono; d > most {
		return false, fmt.Sprintf("no sweep has ended for %s, more than %s", d.Round(time.Second), most)
	}
	return true, ""
}

// Ready reports whether every required witness has answered once and this agent is the
// reaper, or why not, in lines for people.
func (h *Health) Ready() (ok bool, why []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.faults)) {
		why = append(why, name+": "+h.faults[name])
	}
	if !h.looked {
		s := "no sweep has been made yet"
		if h.err != "" {
			s += ": " + h.err
		}
		why = append(why, s)
	}
	for _, name := range slices.Sorted(maps.Keys(h.required)) {
		why = append(why, "witness "+name+" has not answered yet: "+h.required[name])
	}
	if h.unanswered != "" {
		why = append(why, "a witness has not answered yet: "+h.unanswered)
	}
	for i, store := range slices.Sorted(maps.Keys(h.busy)) {
		if i == maxBusy {
			why = append(why, fmt.Sprintf("and %d directories more", len(h.busy)-i))
			break
		}
		why = append(why, digest.Text(store)+": "+digest.Text(h.busy[store]))
	}
	return len(why) == 0, why
}
