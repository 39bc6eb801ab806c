package sim

import (
	"slices"
	"time"
)

// What the stamps of our allocator prove, by what was stamped in truth and not by what the
// disk says: the oracle reads none.

// stamp is when, in which boot and for which namespace a reservation was made.
type stamp struct {
	boot  int
	at    time.Duration
	netns uint64
}

func stampKey(f *file) string { return f.path + " " + string(f.content) }

// stamped notes a stamp that our allocator wrote just now. It may be as old as its draft.
func (w *World) stamped(f *file) {
	at := w.mono
	if p := f.c.plug; p != nil {
		at = p.drafted
	}
	w.stamps[stampKey(f)] = append(w.stamps[stampKey(f)], stamp{w.bootN, at, f.c.nsID})
}

// stampedBefore: it was made in a boot that was known, and is over.
func (w *World) stampedBefore(f *file) bool {
	list := w.stamps[stampKey(f)]
	// One that replaced it may be lost with the power.
	return len(list) > 0 && list[len(list)-1].boot < w.bootN &&
		slices.ContainsFunc(list, func(s stamp) bool { return w.knownBoots[s.boot] })
}

// stampProves: plain absence, and it is as old as a process that is told so must wait; or it
// is older than the short grace, its namespace is gone, a runtime has spoken, and the network
// is said to be full.
func (w *World) stampProves(r *run, f *file, slow bool) bool {
	list := w.stamps[stampKey(f)]
	if len(list) == 0 || slow {
		return false
	}
	s := list[len(list)-1]
	age := w.mono - s.at
	switch {
	case s.boot != w.bootN:
		return false
	case age >= grace:
		return true
	case age < pressureGrace || !(r.cmd.Verb == Heal && r.cmd.Valid == nil || w.presses(r)) || r.told[2].CRI == nil || r.told[0].Kernel == nil:
		return false
	}
	for i := range r.told[0].Kernel.Netns {
		if r.told[0].Kernel.Netns[i].ID == s.netns {
			return false
		}
	}
	return true
}
