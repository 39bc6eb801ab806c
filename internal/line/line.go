// Package line says when the releases of a network must stop, and when they may go on.
//
// Scope: what contradicts a release that was made, and how long the line stays stopped.
// Ring 0: pure. Non-scope: undoing, keeping what is stopped, telling anybody.
package line

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	// Clean is how long nothing may contradict before releases go on, by CLOCK_MONOTONIC.
	Clean = time.Hour
	// Remembered is how long a release is looked after, MaxRemembered how many are.
	Remembered    = 6 * time.Hour
	MaxRemembered = 1 << 14
	// MaxIDs is how many contradicted releases a stop names.
	MaxIDs = 64
)

// Stop is one network whose releases are stopped.
type Stop struct {
	// Store is the directory of reservations, <dataDir>/<network>. Empty: every network, until
	// a person resumes.
	Store string `json:"store,omitempty"`
	// Since is when it was stopped, or stopped again.
	Since claim.Instant `json:"since"`
	// Why is one line for people, safe to print.
	Why string `json:"why"`
	// ReleaseIDs are the releases that were contradicted, MaxIDs at most; none for a duplicate
	// of others' making.
	ReleaseIDs []string `json:"releaseIDs,omitempty"`
}

// Covers reports whether nothing of a store is released.
func (s Stop) Covers(store string) bool { return s.Store == "" || s.Store == store }

// All stops every network, until a person resumes.
func All(now claim.Instant, why string) Stop { return Stop{Since: now, Why: why} }

// Ended is a stop that is over, with the reason.
type Ended struct {
	Stop
	Reason string
}

// Change is what Next did to the stops.
type Change struct {
	// Stops are those of now, in the order of their stores.
	Stops []Stop
	// Fresh are those that were none before.
	Fresh []Stop
	// Over are those that ended.
	Over []Ended
}

// Next gives the stops of now. A contradiction begins a stop, or begins its hour again. A
// stop ends after Clean without one in its boot, and with its boot: nothing that it was
// about lives on. While the boot is not known none ends. A stop of the future begins now: that
// is its hour at the most.
func Next(stops []Stop, now claim.Instant, found []Contradiction) Change {
	var c Change
	byStore := map[string]*Stop{}
	for _, s := range stops {
		if old := byStore[s.Store]; old != nil {
			old.ReleaseIDs = join(old.ReleaseIDs, s.ReleaseIDs)
			if d, ok := s.Since.Since(old.Since); ok && d > 0 {
				old.Since, old.Why = s.Since, s.Why
			}
			continue
		}
		s.ReleaseIDs = join(nil, s.ReleaseIDs)
		byStore[s.Store] = &s
	}
	for store, s := range byStore {
		passed, ok := now.Since(s.Since)
		switch {
		case store == "" || now.Boot == "":
		case s.Since.Boot != now.Boot:
			c.Over = append(c.Over, Ended{*s, "the node was rebooted since"})
			delete(byStore, store)
		case !ok:
			s.Since = now
		case passed >= Clean:
			c.Over = append(c.Over, Ended{*s, "nothing contradicted a release for " + Clean.String()})
			delete(byStore, store)
		}
	}
	for i := range found {
		f := &found[i]
		if f.Store == "" {
			continue
		}
		s := byStore[f.Store]
		if s == nil {
			s = &Stop{Store: f.Store}
			byStore[f.Store] = s
		}
		s.Since, s.ReleaseIDs = now, join(s.ReleaseIDs, f.ReleaseIDs)
		s.Why = f.Why
	}
	for _, s := range byStore {
		c.Stops = append(c.Stops, *s)
	}
	inOrder := func(a, b Stop) int { return cmp.Compare(a.Store, b.Store) }
	slices.SortFunc(c.Stops, inOrder)
	slices.SortFunc(c.Over, func(a, b Ended) int { return inOrder(a.Stop, b.Stop) })
	// What ended and begins again at once was no end.
	c.Over = slices.DeleteFunc(c.Over, func(e Ended) bool { return byStore[e.Store] != nil && e.Since.Boot == now.Boot })
	for _, s := range c.Stops {
		if !slices.ContainsFunc(stops, func(o Stop) bool { return o.Store == s.Store && (o.Since.Boot == s.Since.Boot || s.Store == "") }) {
			c.Fresh = append(c.Fresh, s)
		}
	}
	return c
}

// join adds more to ids, each once, MaxIDs at most.
func join(ids, more []string) []string {
	for _, id := range more {
		if len(ids) < MaxIDs && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return slices.Clip(ids)
}
