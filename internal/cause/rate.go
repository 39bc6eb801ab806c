package cause

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Window is the time over which losses are counted, by CLOCK_MONOTONIC.
const Window = 5 * time.Minute

// maxLosses bounds what is remembered of each store within a window; what is more is counted
// no more, which nobody misses.
const maxLosses = 4096

// Rate counts how fast addresses are lost (case L10). An address is lost when its loss has
// lasted for two passes, or it may be released already: what is absent in one pass alone may
// be an ADD that has just ended. What an earlier boot left was not lost now. The zero value
// works. Not safe for concurrent use.
type Rate struct {
	last   claim.Instant // of the pass before
	stores map[string][]loss
}

type loss struct {
	at     time.Duration
	path   string
	pod    claim.Pod
	plugin string
}

// Lost is what one store lost within the window.
type Lost struct {
	Store string
	// N is how many addresses, PerMinute that by the time over which they were lost: the
	// window.
	N         int
	PerMinute float64
	// Pod and Plugin are what most of those have of which it is known, more than half of
	// them; zero otherwise. Known is of how many it is known that a plugin failed: a kubelet
	// that tells of the same Pod again and again tells of the last sandbox only.
	Pod    claim.Pod
	Plugin string
	Known  int
}

// Feed takes a pass in. of gives the cause of a finding.
func (r *Rate) Feed(c *verdict.Case, j *verdict.Judgement, of func(*verdict.Finding) Cause) {
	if r.last.Boot != c.Now.Boot {
		*r = Rate{}
	}
	if r.stores == nil {
		r.stores = map[string][]loss{}
	}
	// What might have gone in the pass before and did not was counted then.
	counted := map[string]bool{}
	for _, list := range r.stores {
		for _, l := range list {
			if l.at == r.last.Mono {
				counted[l.path] = true
			}
		}
	}
	for i := range j.Findings {
		f := &j.Findings[i]
		if !r.news(f, c.Now) {
			continue
		}
		list := r.stores[f.Resource.Store]
		if len(list) >= maxLosses || f.Absent().Mono == r.last.Mono && counted[f.Resource.Path] {
			continue
		}
		what := of(f)
		r.stores[strings.Clone(f.Resource.Store)] = append(list, loss{f.Absent().Mono, strings.Clone(f.Resource.Path), podOf(what.Pod), strings.Clone(what.Plugin)})
	}
	r.last = claim.Instant{Boot: c.Now.Boot, Mono: c.Now.Mono}
	r.forget()
}

// podOf keeps the texts alone of a pass, which is large.
func podOf(p claim.Pod) claim.Pod {
	return claim.Pod{Namespace: strings.Clone(p.Namespace), Name: strings.Clone(p.Name), UID: strings.Clone(p.UID)}
}

// news reports whether a finding's loss is known since this pass.
func (r *Rate) news(f *verdict.Finding, now claim.Instant) bool {
	if f.Resource.Kind != claim.KindReservation || f.BootProven || f.Verdict != verdict.Suspect && f.Verdict != verdict.Leaked {
		return false
	}
	absent := f.Absent()
	if absent.Boot != now.Boot || absent.Boot == "" {
		return false
	}
	return absent.Mono == now.Mono && f.Releasable || r.last.Boot != "" && absent.Mono == r.last.Mono
}

func (r *Rate) forget() {
	for dir, list := range r.stores {
		list = slices.DeleteFunc(list, func(l loss) bool { return r.last.Mono-l.at > Window })
		if r.stores[dir] = list; len(list) == 0 {
			delete(r.stores, dir)
		}
	}
}

// Losses are those of every store that lost any within the window, in the order of stores.
func (r *Rate) Losses() []Lost {
	var out []Lost
	for _, dir := range slices.Sorted(maps.Keys(r.stores)) {
		list := r.stores[dir]
		l := Lost{Store: dir, N: len(list), PerMinute: float64(len(list)) / Window.Minutes()}
		l.Pod, _ = most(list, func(l loss) claim.Pod { return l.pod })
		l.Plugin, l.Known = most(list, func(l loss) string { return l.plugin })
		out = append(out, l)
	}
	return out
}

// most is what more than half of those have that have any.
func most[K comparable](list []loss, of func(loss) K) (top K, known int) {
	var none K
	n := map[K]int{}
	for _, l := range list {
		if k := of(l); k != none {
			n[k]++
			known++
		}
	}
	for k, m := range n { // at most one can
		if 2*m > known {
			return k, known
		}
	}
	return none, known
}
