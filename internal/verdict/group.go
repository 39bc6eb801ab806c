package verdict

import (
	"net/netip"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// gather lets the living keep their dead-looking siblings (I8):
//   - one live resource of an owner keeps all of that owner's: a dual-stack attachment
//     whose IPv6 address went from the link, a second interface of a live sandbox;
//   - within one attachment, what is in conflict, cannot be read or is held keeps the
//     rest, since an attachment goes as a whole;
//   - a conflict keeps all of its owner's, who may be the one that is alive, and what
//     keeps a reservation keeps its owner's cache entries, and with them DEL and veth.
//
// Owners are compared by whole container ID, never by Pod name (case F4).
func gather(list []assessment, held func(*claim.Resource) string) {
	alive := map[string]bool{}
	stuck := map[claim.Attachment]string{}
	conflict := map[string]string{}
	kept := map[string]string{}
	for i := range list {
		a := &list[i]
		for _, id := range a.Resource.Owner.Aliases() {
			switch a.class {
			case classAlive:
				alive[id] = true
			case classConflict, classUnknown:
				if a.Resource.Kind == claim.KindReservation {
					stuck[attachment(a.Resource)] = a.Why
					kept[id] = a.Why
				}
				if a.class == classConflict {
					conflict[id] = a.Why
				}
			}
		}
		if why := held(a.Resource); why != "" && a.Resource.Owner.Shape == claim.ShapeContainer {
			stuck[attachment(a.Resource)] = why
			for _, id := range a.Resource.Owner.Aliases() {
				kept[id] = why
			}
		}
	}
	for i := range list {
		a := &list[i]
		if a.class != classAbsent && a.class != classOrphan {
			continue
		}
		for _, id := range a.Resource.Owner.Aliases() {
			if alive[id] {
				a.class, a.Rule, a.Why = classAlive, "sibling-alive", "another resource of the same container is alive"
			}
		}
		if a.class == classAlive || a.Resource.Owner.Shape != claim.ShapeContainer || held(a.Resource) != "" {
			continue
		}
		why := stuck[attachment(a.Resource)]
		for _, id := range a.Resource.Owner.Aliases() {
			if why == "" && a.Resource.Kind != claim.KindReservation {
				why = kept[id]
			}
			if why == "" {
				why = conflict[id]
			}
		}
		if why != "" {
			a.class, a.Rule, a.Why = classUnknown, "sibling-kept", "another reservation of the same attachment is kept: "+why
		}
	}
}

// attachment is the unit that is kept or released as a whole. The network is the
// store's directory where there is one, since a renamed network has two.
func attachment(r *claim.Resource) claim.Attachment {
	t := r.Attachment()
	if r.Kind == claim.KindReservation {
		t.Network = r.Store
	}
	return t
}

// together keeps what belongs to a reservation that does not go yet: a container that
// was started again under its old ID (case F21) has a young reservation, and DEL or the
// loss of its veth would hit the new run. And a namespace goes only if everything that
// it holds goes.
func together(list []Finding) {
	for again := true; again; {
		// Also for what has come to wait by its namespace.
		again = addressLast(list)
		pinned := map[uint64]*Finding{}
		for i := range list {
			for _, n := range list[i].Netns {
				if f := &list[i]; !f.Releasable {
					pinned[n.ID] = f
				}
			}
		}
		for i := range list {
			f := &list[i]
			for _, n := range f.Netns {
				if p := pinned[n.ID]; p != nil && f.Releasable {
					f.Releasable, f.Wait = false, p.Wait
					f.Why = "its network namespace also holds " + nameOf(p.Resource) + ", which is " + p.Verdict.String()
					again = true
				}
			}
		}
	}
	if !slices.ContainsFunc(list, func(f Finding) bool { return f.Resource.Kind != claim.KindReservation && f.Releasable }) {
		return
	}
	late := map[string]*Finding{}
	for i := range list {
		f := &list[i]
		if f.Resource.Kind != claim.KindReservation || f.Releasable || f.Verdict == Missing {
			continue
		}
		for _, id := range f.Resource.Owner.Aliases() {
			if l := late[id]; l == nil || l.Wait >= 0 && (f.Wait < 0 || f.Wait > l.Wait) {
				late[id] = f
			}
		}
	}
	for i := range list {
		f := &list[i]
		if f.Resource.Kind == claim.KindReservation || !f.Releasable {
			continue
		}
		for _, id := range f.Resource.Owner.Aliases() {
			if l := late[id]; l != nil {
				f.Releasable, f.Wait = false, l.Wait
				f.Verdict, f.Rule, f.Why = Suspect, "with-reservation", "goes together with "+l.Resource.Addr.String()+", which is "+l.Verdict.String()
			}
		}
	}
}

// addressLast lets a reservation wait for a cache entry of its container that only waits
// for its own grace, as after an unhold or when it was written later: DEL and veth must not
// come when the address is free already (I8). And for one of its attachment whose namespace
// stays, since nobody vouches for it or another's reservation pins it: that is a piece that
// can hold an address alive. What else keeps a cache entry keeps no address. It
// reports whether it kept any.
func addressLast(list []Finding) (kept bool) {
	waits := map[string]*Finding{}
	stays := map[claim.Attachment]*Finding{}
	for i := range list {
		f := &list[i]
		switch {
		case f.Resource.Kind != claim.KindCache || f.Releasable:
		case f.Wait > 0:
			for _, id := range f.Resource.Owner.Aliases() {
				if l := waits[id]; l == nil || f.Wait > l.Wait {
					waits[id] = f
				}
			}
		case f.Verdict == Orphaned:
			stays[f.Resource.Attachment()] = f
		}
	}
	if len(waits)+len(stays) == 0 {
		return false
	}
	for i := range list {
		f := &list[i]
		if f.Resource.Kind != claim.KindReservation || !f.Releasable {
			continue
		}
		l := stays[f.Resource.Attachment()]
		for _, id := range f.Resource.Owner.Aliases() {
			if l == nil {
				l = waits[id]
			}
		}
		if l != nil {
			f.Releasable, f.Wait = false, l.Wait
			f.Why = "the address goes last, and its cache entry is still " + l.Verdict.String()
			kept = true
		}
	}
	return kept
}

// keepPinned keeps a namespace while a reservation of one of its addresses does not go:
// in conflict, unreadable, foreign, another's. And all of them while a store could not be
// listed whole, since nobody knows what is reserved there. It reports whether it kept any.
func (s *scene) keepPinned(list []Finding) (kept bool) {
	if !slices.ContainsFunc(list, func(f Finding) bool { return f.Releasable && len(f.Netns) > 0 }) {
		return false
	}
	all := ""
	for _, st := range s.stores {
		if st.Problem != "" {
			all = "a directory could not be listed whole"
		}
	}
	stays := map[netip.Addr]*Finding{}
	for i := range list {
		if f := &list[i]; f.Resource.Kind == claim.KindReservation && !f.Releasable && f.Verdict != Missing {
			stays[f.Resource.Addr] = f
		}
	}
	for i := range list {
		f := &list[i]
		for _, pin := range f.Netns {
			n := s.byID[pin.ID]
			if n == nil || !f.Releasable {
				continue
			}
			why := all
			for _, a := range n.Addrs {
				if r := stays[plain(a.Addr)]; r != nil && why == "" {
					why = "its network namespace holds " + r.Resource.Addr.String() + ", which is " + r.Verdict.String()
				}
			}
			if why != "" {
				f.Releasable, f.Wait, f.Why = false, -1, "kept: "+why
				kept = true
			}
		}
	}
	return kept
}

// nameOf is what people call a resource.
func nameOf(r *claim.Resource) string {
	if r.Addr.IsValid() {
		return r.Addr.String()
	}
	return r.Path
}
