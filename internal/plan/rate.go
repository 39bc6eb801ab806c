package plan

import (
	"math"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// RateWindow is the time of CLOCK_MONOTONIC in which a whole cap is refilled.
const RateWindow = 30 * time.Second

// Rate is gate 9 where sweeps follow each other by themselves: the cap of one sweep is a bucket
// for each store, refilled linearly over RateWindow, however many sweeps there are. What an earlier
// boot proves dead does not count, as in a sweep.
//
// With caps of at most C, no RateWindow sees more than C releases of a store and the larger of
// C and the addresses of one container that has more than C, which goes alone from a full
// bucket. So at most 2 C, where no container has more.
//
// The zero value is full buckets. It is a value: its methods change nothing, and it keeps
// nothing of a store whose bucket is full again. It is of the boot that it saw first: the time of
// another one, of a clock that cannot be read or that goes back gains nothing.
type Rate struct {
	at claim.Instant
	// owed is by store what was released and not refilled, in releases times RateWindow.
	owed map[string]time.Duration
}

// Used is what counts against the cap of each store now, for Options.Used. capOf is of Caps.
func (r Rate) Used(now claim.Instant, capOf func(store string) int) map[string]int {
	used := map[string]int{}
	for store, owed := range r.refilled(now, capOf).owed {
		used[store] = int((owed + RateWindow - 1) / RateWindow)
	}
	return used
}

// Spend is the rate after releases, by store, that were made until now.
func (r Rate) Spend(now claim.Instant, capOf func(store string) int, released map[string]int) Rate {
	next := r.refilled(now, capOf)
	for store, n := range released {
		if n > 0 {
			next.owed[store] += min(time.Duration(n), maxOwed) * RateWindow
			next.owed[store] = min(next.owed[store], maxOwed*RateWindow)
		}
	}
	return next
}

// maxOwed is more than any store can hold, and far from where a time.Duration ends.
const maxOwed = 1 << 24

func (r Rate) refilled(now claim.Instant, capOf func(store string) int) Rate {
	next := Rate{at: r.at, owed: make(map[string]time.Duration, len(r.owed))}
	var passed time.Duration
	if d, ok := now.Since(r.at); ok {
		passed, next.at = d, now
	} else if r.at.Boot == "" {
		next.at = now
	}
	for store, owed := range r.owed {
		c := time.Duration(max(capOf(store), 1))
		if passed >= math.MaxInt64/c || passed*c >= owed {
			continue
		}
		next.owed[store] = owed - passed*c
	}
	return next
}

// Caps says how many releases one sweep may make of a store by itself; see
// Options.MaxReleases.
func Caps(j *verdict.Judgement, maxReleases int) func(store string) int {
	total := map[string]int{}
	for i := range j.Findings {
		if f := &j.Findings[i]; f.Resource.Kind == claim.KindReservation && f.Verdict != verdict.Missing {
			total[f.Resource.Store]++
		}
	}
	return func(store string) int { return capOf(total[store], maxReleases) }
}
