package verdict

import "github.com/holdfast-cni/holdfast/internal/claim"

// gather lets the living keep their dead-looking siblings (I8):
//   - one live resource of an owner keeps all of that owner's: a dual-stack attachment
//     whose IPv6 address went from the link, a second interface of a live sandbox;
//   - within one attachment, what is in conflict, cannot be read or is held keeps the
//     rest, since an attachment goes as a whole.
//
// Owners are compared by whole container ID, never by Pod name (case F4).
func gather(list []assessment, held func(*claim.Resource) string) {
	alive := map[string]bool{}
	stuck := map[claim.Attachment]string{}
	for i := range list {
		a := &list[i]
		for _, id := range a.r.Owner.Aliases() {
			switch a.class {
			case classAlive:
				alive[id] = true
			case classConflict, classUnknown:
				if a.r.Kind == claim.KindReservation {
					stuck[attachment(a.r)] = a.why
				}
			}
		}
		if why := held(a.r); why != "" && a.r.Owner.Shape == claim.ShapeContainer {
			stuck[attachment(a.r)] = why
		}
	}
	for i := range list {
		a := &list[i]
		if a.class != classAbsent && a.class != classOrphan {
			continue
		}
		for _, id := range a.r.Owner.Aliases() {
			if alive[id] {
				a.class, a.rule, a.why = classAlive, "sibling-alive", "another resource of the same container is alive"
			}
		}
		if a.class == classAlive || a.r.Owner.Shape != claim.ShapeContainer || held(a.r) != "" {
			continue
		}
		if why := stuck[attachment(a.r)]; why != "" {
			a.class, a.rule, a.why = classUnknown, "sibling-kept", "another reservation of the same attachment is kept: "+why
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
