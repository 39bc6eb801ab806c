package cause

import (
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Hint is what somebody else told of one failed sandbox: a kubelet's Event.
type Hint struct {
	// ContainerID is the sandbox's, whole; empty when the Event does not name it.
	ContainerID string
	Pod         claim.Pod
	// Plugin is the CNI plugin that failed, Verb "add" or "del".
	Plugin, Verb string
}

// The verbs of a Hint.
const (
	VerbAdd = "add"
	VerbDel = "del"
)

const (
	// wipeMin is how many sandboxes that left something behind a runtime must forget between
	// two passes, and keep none, before that is called a loss of its state.
	wipeMin = 3
	// maxHints bounds what is kept of Events.
	maxHints = 4096
	// maxEndpoints is how many runtimes are told apart.
	maxEndpoints = 16
)

// flags are what is known of one container that has something on the node.
type flags uint8

const (
	wasListed flags = 1 << iota // a runtime listed it in some pass
	isListed                    // and in the last one that counted
	wasCached                   // the libcni cache had a result of it in some pass
	isCached                    // and in the last one
	sawBirth                    // it was not there in the pass before the first one that had it
	wasWiped                    // its runtime forgot it with everything else
	wasInUse                    // some witness said alive
	carryOver = wasListed | wasCached | sawBirth | wasWiped | wasInUse
)

// known is what is remembered of one container: 16 bytes with its key, so that of 65,536
// reservations it is some 3 MB.
type known struct {
	flags flags
	by    uint8 // index of the runtime that listed it last
}

// History is what earlier passes saw. It remembers of what is on the node now, and of
// nothing else. The zero value works. Not safe for concurrent use.
type History struct {
	boot string
	ids  map[uint64]known
	// whole are the directories that the pass before had listed whole, nil when anything else
	// could not be listed: what is new in one of them was made since.
	whole     map[string]bool
	endpoints []string
	hints     map[string]Hint // by container ID, or by Pod UID where the Event names no sandbox
	order     []string        // keys of hints, oldest first
}

// key stands for a container ID. Two that have the same one are mixed up in an explanation,
// and in nothing else.
func key(id string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	k := uint64(offset)
	for i := range len(id) {
		k = (k ^ uint64(id[i])) * prime
	}
	return k
}

// Hints adds what was told of failed sandboxes. It is kept, since a kubelet that tells of the
// same Pod again and again tells of the last sandbox only.
func (h *History) Hints(list []Hint) {
	if h.hints == nil {
		h.hints = map[string]Hint{}
	}
	for _, t := range list {
		k := t.ContainerID
		if k == "" && t.Verb == VerbDel {
			// Of an ADD without a sandbox nobody can say which address it lost.
			k = podKey(t.Pod)
		}
		if k == "" || t.Plugin == "" || t.Verb != VerbAdd && t.Verb != VerbDel {
			continue
		}
		if _, ok := h.hints[k]; !ok {
			h.order = append(h.order, k)
		}
		h.hints[k] = t
	}
	if n := len(h.order) - maxHints; n > 0 {
		for _, k := range h.order[:n] {
			delete(h.hints, k)
		}
		h.order = slices.Clone(h.order[n:])
	}
}

// podKey is no container ID.
func podKey(p claim.Pod) string {
	if p.UID == "" {
		return ""
	}
	return "pod " + p.UID
}

// Feed takes a pass in. Of speaks of the pass that was fed last. What a witness said that
// did not count changes nothing.
func (h *History) Feed(c *verdict.Case, j *verdict.Judgement) {
	if c.Now.Boot != h.boot {
		h.ids, h.whole, h.boot = nil, nil, strings.Clone(c.Now.Boot)
	}
	listed, criCounts := h.listed(c, j)
	next := make(map[uint64]known, len(h.ids))
	note := func(o claim.Owner, store string, set flags) {
		if o.Shape != claim.ShapeContainer {
			return
		}
		k := key(o.ID)
		v, ok := next[k]
		if !ok {
			old, seen := h.ids[k]
			v = known{old.flags & carryOver, old.by}
			if !criCounts {
				v.flags |= old.flags & isListed
			}
			if !seen && h.whole[store] {
				v.flags |= sawBirth
			}
			for _, id := range o.Aliases() {
				if by, ok := listed[id]; ok {
					v.flags |= wasListed | isListed
					v.flags &^= wasWiped // it came back
					v.by = by
				}
			}
		}
		v.flags |= set
		next[k] = v
	}
	for i := range c.Snapshots {
		for n := range c.Snapshots[i].Resources {
			switch r := &c.Snapshots[i].Resources[n]; r.Kind {
			case claim.KindReservation:
				note(r.Owner, r.Store, 0)
			case claim.KindCache:
				note(r.Owner, "", wasCached|isCached)
			}
		}
	}
	for i := range j.Findings {
		if f := &j.Findings[i]; f.Verdict == verdict.InUse {
			if k := key(f.Resource.Owner.ID); f.Resource.Owner.Shape == claim.ShapeContainer && next[k] != (known{}) {
				v := next[k]
				v.flags |= wasInUse
				next[k] = v
			}
		}
	}
	if criCounts {
		h.wiped(next)
	}
	h.ids, h.whole = next, listedWhole(c)
}

// listedWhole are the directories that a pass listed whole; nil when some was not, or
// something in it could not be read.
func listedWhole(c *verdict.Case) map[string]bool {
	out := map[string]bool{}
	for i := range c.Snapshots {
		for n := range c.Snapshots[i].Stores {
			if c.Snapshots[i].Stores[n].Problem != "" {
				return nil
			}
			out[strings.Clone(c.Snapshots[i].Stores[n].Dir)] = true
		}
		for n := range c.Snapshots[i].Resources {
			if c.Snapshots[i].Resources[n].Problem != "" {
				return nil
			}
		}
	}
	return out
}

// listed are the sandboxes that the runtimes list, with the runtime, and whether that counts.
func (h *History) listed(c *verdict.Case, j *verdict.Judgement) (map[string]uint8, bool) {
	if _, silent := j.Reasons[claim.WitnessCRI]; silent {
		return nil, false
	}
	for i := range c.Testimonies {
		t := &c.Testimonies[i]
		if t.CRI == nil || t.State != claim.StateComplete {
			continue
		}
		out := make(map[string]uint8, len(t.CRI.Sandboxes))
		for n := range t.CRI.Sandboxes {
			b := &t.CRI.Sandboxes[n]
			out[b.ID] = h.endpoint(b.Endpoint)
		}
		return out, true
	}
	return nil, false
}

// endpoint numbers the runtimes from 1; 0 is one too many.
func (h *History) endpoint(name string) uint8 {
	i := slices.Index(h.endpoints, name)
	if i < 0 && len(h.endpoints) < maxEndpoints {
		h.endpoints = append(h.endpoints, strings.Clone(name))
		i = len(h.endpoints) - 1
	}
	return uint8(i + 1)
}

// wiped notes what a runtime has forgotten with everything else. Who is drained forgets many
// too, but their DELs take along what they left, so that they are not here any more.
func (h *History) wiped(next map[uint64]known) {
	var forgotten, kept [maxEndpoints + 1]int
	for k, v := range next {
		if old := h.ids[k]; old.flags&isListed != 0 {
			if v.flags&isListed != 0 {
				kept[old.by]++
			} else {
				forgotten[old.by]++
			}
		}
	}
	for k, v := range next {
		old := h.ids[k]
		if old.flags&isListed != 0 && v.flags&isListed == 0 && old.by > 0 && kept[old.by] == 0 && forgotten[old.by] >= wipeMin {
			v.flags |= wasWiped
			next[k] = v
		}
	}
}
