package cause

import (
	"fmt"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Of names what lost f, a finding of the pass that h was fed last. Where more than one thing
// may have, or nobody was there to see it, it is Unknown: a wrong cause sends a person to the
// wrong place.
func Of(f *verdict.Finding, c *verdict.Case, h *History) Cause {
	out := of(f, c, h)
	if out.Pod == (claim.Pod{}) {
		out.Pod = f.Pod
	}
	return out
}

func of(f *verdict.Finding, c *verdict.Case, h *History) Cause {
	r := f.Resource
	switch {
	case f.BootProven:
		return Cause{Kind: Reboot, Why: "its sandbox is of an earlier boot, and no DEL came after the reboot"}
	case r.Kind == claim.KindReservation && r.Owner.Shape == claim.ShapeNone && r.Problem == "":
		return Cause{Kind: EmptyFile, Why: "the file names no owner, as a crash or a full disk leaves it"}
	case r.Owner.Shape != claim.ShapeContainer:
		return Cause{Kind: Unknown}
	}
	if out, ok := h.hinted(f); ok {
		return out
	}
	k := h.ids[key(r.Owner.ID)].flags
	switch {
	case k&wasWiped != 0:
		return Cause{Kind: RuntimeWiped, Why: "its runtime forgot it together with everything else that it had listed"}
	case k&isListed != 0:
		// It is not forgotten: its end, whatever that will be, has not come.
		return Cause{Kind: Unknown}
	case renamed(r, c):
		return Cause{Kind: NetworkRenamed, Why: "no configuration names its network any more, so that a DEL looks elsewhere"}
	case k&wasListed != 0 && k&isCached != 0:
		return Cause{Kind: NoDel, Why: "its runtime has forgotten the sandbox and its cached result is still there, so no DEL came to its end"}
	case k&sawBirth != 0 && k&(wasListed|wasCached|wasInUse) == 0:
		return Cause{Kind: AddCrashed, Why: "since it was reserved no result of it was ever kept and no runtime ever listed it, so its ADD failed or was killed"}
	}
	return Cause{Kind: Unknown}
}

// hinted is what an Event told of this very sandbox. That the ADD failed explains nothing of
// one that a runtime listed, or of which a result was kept: it had an end of its own.
func (h *History) hinted(f *verdict.Finding) (Cause, bool) {
	for _, id := range f.Resource.Owner.Aliases() {
		t, ok := h.hints[id]
		k := h.ids[key(f.Resource.Owner.ID)].flags
		switch {
		case !ok:
		case t.Verb == VerbDel:
			return Cause{Kind: DelFailed, Plugin: t.Plugin, Pod: t.Pod, Why: "its DEL failed in plugin " + t.Plugin}, true
		case k&(wasListed|wasCached) == 0:
			return Cause{Kind: AddFailed, Plugin: t.Plugin, Pod: t.Pod, Why: fmt.Sprintf("its ADD failed in plugin %s, and nothing took back what was reserved", t.Plugin)}, true
		}
	}
	if t, ok := h.hints[podKey(f.Pod)]; ok && f.Pod.UID != "" {
		return Cause{Kind: DelFailed, Plugin: t.Plugin, Pod: t.Pod, Why: "a DEL of its Pod failed in plugin " + t.Plugin}, true
	}
	return Cause{}, false
}

// renamed: configurations were found in which this network should be, and it is not. Where
// none is found at all they lie somewhere that nobody looked at. A cache entry belongs to its
// attachment's directory.
func renamed(r *claim.Resource, c *verdict.Case) bool {
	if r.Kind != claim.KindReservation {
		return false
	}
	named, here := false, false
	for i := range c.Snapshots {
		for n := range c.Snapshots[i].Stores {
			st := &c.Snapshots[i].Stores[n]
			if len(st.Configs) > 0 {
				named = true
			}
			if st.Dir == r.Store && st.Network != "" {
				if len(st.Configs) > 0 {
					return false
				}
				here = true
			}
		}
	}
	return named && here
}
