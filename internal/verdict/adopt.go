package verdict

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// A reservation is made for a living attachment (I14) only where everything that it says is
// certain: who it is of, by the libcni cache; that the address is on its own interface, by
// the kernel; and that it is alive, by its runtime. Anything less is only reported: a
// reservation for the wrong one would keep the right one from going.

// Readopt says of each finding of an earlier judgement of the same listing why it may not
// get its reservation back by what the witnesses say now; "" if it may. Whether the
// address has a reservation by now is not asked: the file is made exclusively.
func Readopt(c *Case, list []*Finding) []string {
	s := newScene(c)
	out := make([]string, len(list))
	for i, f := range list {
		out[i] = s.unadoptable(f.Resource)
	}
	return out
}

// adoption adds to findings of what is Missing whether it may have its reservation back.
func (s *scene) adoption(found []Finding) {
	if !s.c.Policy.Adopt {
		return
	}
	for i := range found {
		f := &found[i]
		if f.Unadoptable = s.unadoptable(f.Resource); f.Unadoptable == "" {
			f.Adoptable = true
		} else {
			f.Why += "; it is not given its reservation back, since " + f.Unadoptable
		}
	}
}

// unadoptable says why a reservation of r must not be made, or "".
func (s *scene) unadoptable(r *claim.Resource) string {
	if !s.c.Policy.Adopt {
		return "nobody asked for that"
	}
	if ok, why := s.mayConvict(); !ok {
		return why
	}
	// The API server's word adds nothing here, and where it is away nobody else guards.
	if why := s.firstSilent(claim.WitnessKube); why != "" {
		return why
	}
	if why := s.c.Policy.held(r); why != "" {
		return "it is held: " + why
	}
	if why := s.unknownCache(r); why != "" {
		return why
	}
	if why := s.notMakeable(r); why != "" {
		return why
	}
	if why := s.notItsOwn(r); why != "" {
		return why
	}
	return s.notAlive(r.Owner.Aliases())
}

// unknownCache: the cached result of exactly this attachment has the address, and its
// configuration keeps it in this directory.
func (s *scene) unknownCache(r *claim.Resource) string {
	if r.Owner.Shape != claim.ShapeContainer || !claim.IsIfName(r.Owner.IfName) {
		return "nobody knows whose it is"
	}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			e := &s.c.Snapshots[i].Resources[j]
			if e.Kind == claim.KindCache && e.Problem == "" && e.Owner == r.Owner && e.Network == r.Network && e.Cache != nil &&
				e.Cache.DataDir != "" && path.Join(e.Cache.DataDir, e.Network) == r.Store &&
				slices.ContainsFunc(e.Cache.Addrs, func(a netip.Addr) bool { return plain(a) == r.Addr }) {
				return ""
			}
		}
	}
	return "no cached result says whose it is"
}

// notMakeable: the directory is one of host-local's that was looked at, whole, and can be
// written; or it is not there, and the data directory was looked at.
func (s *scene) notMakeable(r *claim.Resource) string {
	// From a cached configuration, which is anybody's text.
	if r.Network == "" || r.Network == "." || r.Network == ".." || strings.ContainsAny(r.Network, "/\x00") ||
		path.Base(r.Store) != r.Network || path.Clean(r.Store) != r.Store || !path.IsAbs(r.Store) {
		return "its directory cannot be told"
	}
	if !claim.KernelSpeaksFor(r.Addr) {
		return "the kernel does not speak for such an address"
	}
	st := s.store(r.Store)
	if st == nil {
		st = s.store(path.Dir(r.Store))
	}
	switch {
	case st == nil:
		return r.Store + " was not looked at"
	case st.Problem != "":
		return st.Dir + " could not be listed whole: " + st.Problem
	case !st.Writable:
		return st.Dir + " is read-only"
	}
	return ""
}

// notItsOwn: exactly one namespace holds the address, on the attachment's own interface;
// processes use it, and it is this container's and no other one's.
func (s *scene) notItsOwn(r *claim.Resource) string {
	ids := r.Owner.Aliases()
	holders := s.byAddr[r.Addr]
	if len(holders) != 1 {
		return fmt.Sprintf("%d network namespaces hold the address", len(holders))
	}
	n := holders[0]
	switch {
	case n.Host:
		return "the host itself holds the address"
	case !s.used(n):
		return s.describe(n) + " holds the address, and no process uses that"
	case !slices.ContainsFunc(n.Addrs, func(a claim.IfAddr) bool { return plain(a.Addr) == r.Addr && a.If == r.Owner.IfName }):
		return fmt.Sprintf("the address is not on its interface %q", r.Owner.IfName)
	case !slices.ContainsFunc(s.tenants[n.ID], func(id string) bool { return slices.Contains(ids, id) }):
		return s.describe(n) + " holds the address, and nothing says that it is of " + short(r.Owner.ID)
	}
	for _, id := range s.tenants[n.ID] {
		if !slices.Contains(ids, id) {
			return s.describe(n) + " holds the address, and may be of " + short(id) + " too"
		}
	}
	for _, id := range ids {
		for _, h := range s.homes[id] {
			if h != n {
				return s.describe(h) + " may be its network namespace too"
			}
		}
	}
	if other, _ := s.claimedBy(r.Addr, ids); other != "" {
		return "the living " + short(other) + " is said to have the address too"
	}
	return ""
}

// notAlive: its runtime lists it, Ready; or, without a CRI runtime, a process carries its
// ID. And no plugin is at work for it: after a DEL the reservation is gone for good.
func (s *scene) notAlive(ids []string) string {
	carried, ready := false, false
	for _, id := range ids {
		for _, h := range s.hits[id] {
			if h.Via == "cni" {
				return "a plugin is at work for it"
			}
			carried = true
		}
		ready = ready || slices.ContainsFunc(s.sandboxes[id], func(b *claim.Sandbox) bool { return b.Ready })
	}
	switch {
	case s.c.Policy.CRINone && s.cri == nil:
		if !carried {
			return "no process carries its ID"
		}
	case s.cri == nil || !s.cri.Detailed:
		return "its runtime was not asked for the addresses of all sandboxes"
	case !ready:
		return "no runtime lists it, Ready"
	}
	return ""
}
