package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	// lostAfter is how long an address must have been absent to be lost: a DEL that is just
	// under way takes seconds.
	lostAfter = 30 * time.Second
	// LossMany addresses of one network that are lost within LossTime are lost fast. What a
	// reboot has lost was lost at once and is over, so it does not count here.
	LossMany = 5
	LossTime = 10 * time.Minute
)

// losses finds in each pass what was lost since the pass before, each address once.
type losses struct {
	// seen is when each store was looked at last.
	seen map[string]claim.Instant
	// recent are the latest losses of each store, LossMany at most.
	recent map[string][]claim.Instant
}

// note sets Lost and Fast of a pass. It walks the findings once.
func (l *losses) note(p *Pass) {
	p.Lost, p.Fast = nil, nil
	if p.Audit == nil || p.Audit.Judgement == nil {
		return
	}
	now := p.Audit.Case.Now
	gone := map[string]bool{}
	for _, res := range p.Results {
		for i := range res.Released {
			gone[res.Released[i].Finding.Resource.Path] = true
		}
	}
	seen, recent := map[string]claim.Instant{}, map[string][]claim.Instant{}
	for i := range p.Audit.Case.Snapshots {
		for _, s := range p.Audit.Case.Snapshots[i].Stores {
			if s.Network != "" {
				seen[s.Dir] = now
			}
		}
	}
	for i := range p.Audit.Judgement.Findings {
		f := &p.Audit.Judgement.Findings[i]
		if f.Resource.Kind != claim.KindReservation || f.Sight == nil || f.Sight.Absent.Boot == "" {
			continue
		}
		elapsed, ok := now.Since(f.Sight.Absent)
		if !ok {
			continue
		}
		before, looked := l.seen[f.Resource.Store]
		// Absence that began after the pass before counts as none then.
		then, _ := before.Since(f.Sight.Absent)
		switch {
		case elapsed < lostAfter:
			// What goes before that went for good, and there is no other pass to count it.
			if !gone[f.Resource.Path] {
				continue
			}
		case !looked || then >= lostAfter:
			continue // counted then, or by whoever was here before
		}
		p.Lost = append(p.Lost, f)
		if store := f.Resource.Store; !f.BootProven {
			if recent[store] == nil {
				recent[store] = slices.Clone(l.recent[store])
			}
			recent[store] = append(recent[store], now)
		}
	}
	for store := range seen {
		list := recent[store]
		if list == nil {
			list = l.recent[store]
		}
		list = slices.DeleteFunc(list, func(at claim.Instant) bool {
			age, ok := now.Since(at)
			return !ok || age > LossTime
		})
		if n := len(list) - LossMany; n > 0 {
			list = slices.Delete(list, 0, n)
		}
		recent[store] = list
		if len(list) == LossMany {
			p.Fast = append(p.Fast, store)
		}
	}
	slices.Sort(p.Fast)
	// A store that this pass did not list may be back in the next one.
	old := maps.Clone(l.seen)
	if old == nil {
		old = map[string]claim.Instant{}
	}
	maps.DeleteFunc(old, func(_ string, at claim.Instant) bool {
		age, ok := now.Since(at)
		return !ok || age > LossTime
	})
	maps.Copy(old, seen)
	l.seen, l.recent = old, recent
}
