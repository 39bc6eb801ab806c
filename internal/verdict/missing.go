package verdict

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// missing finds live attachments whose address nobody has reserved: the next ADD could
// hand it out again (cases F12, F14).
//
// A candidate comes from the libcni cache (a live attachment of a host-local network)
// or from the kernel (a Pod's namespace holds an address of a configured range).
// It must be missing in both listings: an ADD may be between address and file.
func (s *scene) missing(out *Judgement) {
	if s.kernel == nil || s.process == nil {
		return
	}
	// Of tens of thousands of reservations only those of addresses that somebody alive
	// has are of interest.
	wanted := s.wanted()
	taken := make(map[slot]bool, 3*len(wanted))
	reserved := func(snap *claim.Snapshot) {
		for i := range snap.Resources {
			r := &snap.Resources[i]
			if r.Kind != claim.KindReservation || !wanted[r.Addr] {
				continue
			}
			// In this store by whomever, or by the same owner in any store (a renamed
			// network: case L15).
			taken[slot{r.Store, r.Addr}] = true
			taken[slot{"", r.Addr}] = true
			for _, id := range r.Owner.Aliases() {
				taken[slot{id, r.Addr}] = true
			}
		}
	}
	for i := range s.c.Snapshots {
		reserved(&s.c.Snapshots[i])
	}
	again := s.relisted()
	if again != nil {
		reserved(again)
	}
	found := s.missingByCache(taken)
	found = append(found, s.missingByKernel(taken)...)
	if len(found) == 0 {
		return
	}
	// Nothing is made before every runtime was asked who has which address.
	if s.c.Policy.Adopt && s.cri != nil && !s.cri.Detailed {
		out.Needs.Detail = true
	}
	if again == nil {
		out.Needs.Relist = true
		return
	}
	found = slices.DeleteFunc(found, func(f Finding) bool {
		return slices.ContainsFunc(again.Stores, func(st claim.Store) bool { return st.Dir == f.Resource.Store && st.Problem != "" })
	})
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Resource.Store, b.Resource.Store), a.Resource.Addr.Compare(b.Resource.Addr))
	})
	s.adoption(found)
	out.Findings = append(out.Findings, found...)
}

// slot is an address in a store, of an owner, or (with neither) anywhere.
type slot struct {
	where string
	addr  netip.Addr
}

// wanted are the addresses of cached results and of namespaces other than the host's:
// every candidate for Missing has one of them.
func (s *scene) wanted() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			if e := s.c.Snapshots[i].Resources[j].Cache; e != nil {
				for _, a := range e.Addrs {
					out[plain(a)] = true
				}
			}
		}
	}
	for i := range s.kernel.Netns {
		if n := &s.kernel.Netns[i]; !n.Host {
			for _, a := range n.Addrs {
				out[plain(a.Addr)] = true
			}
		}
	}
	return out
}

// relisted is the second listing, if it was made after every witness was asked that says
// something of what is Missing.
func (s *scene) relisted() *claim.Snapshot {
	r := s.c.Relisted
	if r == nil {
		return nil
	}
	for _, t := range s.c.Testimonies {
		if _, ok := r.Listed.Since(t.Asked); !ok && t.State == claim.StateComplete && t.Witness != claim.WitnessKube {
			return nil
		}
	}
	return r
}

func (s *scene) missingByCache(taken map[slot]bool) []Finding {
	var found []Finding
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			e := &s.c.Snapshots[i].Resources[j]
			if e.Kind != claim.KindCache || e.Cache == nil || e.Cache.DataDir == "" || e.Owner.Shape != claim.ShapeContainer {
				continue
			}
			says := s.aliveSays(e.Owner)
			if len(says) == 0 {
				continue
			}
			dir := path.Join(e.Cache.DataDir, e.Network)
			for _, addr := range e.Cache.Addrs {
				addr = plain(addr)
				here, own := slot{dir, addr}, slot{e.Owner.ID, addr}
				if st := s.stores[dir]; taken[here] || taken[own] || st != nil && st.Problem != "" || !claim.KernelSpeaksFor(addr) {
					continue
				}
				taken[here], taken[slot{"", addr}] = true, true
				found = append(found, s.missingFinding(dir, e.Network, addr, e.Owner, says))
			}
		}
	}
	return found
}

// aliveSays are the words of the witnesses for which this attachment is alive.
func (s *scene) aliveSays(o claim.Owner) []Say {
	var says []Say
	for _, id := range o.Aliases() {
		if h := s.hits[id]; len(h) > 0 {
			says = append(says, Say{Witness: claim.WitnessProcess, Word: Alive, Detail: fmt.Sprintf("process %d carries the ID (%s)", h[0].PID, h[0].Via)})
		}
		for _, b := range s.sandboxes[id] {
			if b.Ready {
				says = append(says, Say{Witness: claim.WitnessCRI, Word: Alive, Detail: b.Endpoint + " lists it, Ready"})
			}
		}
		for _, n := range s.homes[id] {
			if s.used(n) {
				says = append(says, Say{Witness: claim.WitnessKernel, Word: Alive, Detail: "its network namespace " + s.describe(n) + " is in use"})
			}
		}
	}
	return says
}

func (s *scene) missingByKernel(taken map[slot]bool) []Finding {
	var found []Finding
	var stores []*claim.Store
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Stores {
			if st := &s.c.Snapshots[i].Stores[j]; len(st.Ranges) > 0 && st.Problem == "" {
				stores = append(stores, st)
			}
		}
	}
	for i := range s.kernel.Netns {
		n := &s.kernel.Netns[i]
		if n.Host || !s.used(n) && len(s.tenants[n.ID]) == 0 {
			continue
		}
		for _, a := range n.Addrs {
			addr := plain(a.Addr)
			// Reserved somewhere: by whom is for the judge of that file to say.
			if taken[slot{"", addr}] {
				continue
			}
			for _, st := range stores {
				if !slices.ContainsFunc(st.Ranges, func(r claim.Range) bool { return r.Contains(addr) && r.Gateway != addr }) {
					continue
				}
				taken[slot{"", addr}] = true
				o := claim.Owner{}
				if t := s.tenants[n.ID]; len(t) > 0 {
					o = claim.Owner{Shape: claim.ShapeContainer, ID: t[0], IfName: a.If}
				}
				found = append(found, s.missingFinding(st.Dir, st.Network, addr, o,
					[]Say{{Witness: claim.WitnessKernel, Word: Alive, Detail: s.describe(n) + " holds the address on " + fmt.Sprintf("%q", a.If)}}))
				break
			}
		}
	}
	return found
}

func (s *scene) missingFinding(dir, network string, addr netip.Addr, o claim.Owner, says []Say) Finding {
	r := &claim.Resource{
		Kind: claim.KindReservation, Store: dir, Network: network, Addr: addr, Owner: o,
		Path: path.Join(dir, addr.String()),
	}
	return Finding{
		Resource: r, Verdict: Missing, Rule: "no-reservation", Wait: -1, Sight: &Sighting{First: s.now}, Says: says, Pod: s.podOf(r),
		Why: "a live attachment uses the address, but no reservation file holds it; the next ADD could hand it out again",
	}
}

// idleNetns judges pinned namespaces that no process uses and that no attachment of a
// listed reservation or cache entry explains: what is left when a DEL released the
// address and then could not remove the namespace. Only names that a runtime gives are
// looked at: `ip netns add` by a person is none of our business.
func (s *scene) idleNetns(out *Judgement, old Memory) {
	if s.kernel == nil {
		return
	}
	explained := map[uint64]bool{}
	for i := range out.Findings {
		for _, pin := range out.Findings[i].Netns {
			explained[pin.ID] = true
		}
	}
	var seen []*Sighting
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			r := &s.c.Snapshots[i].Resources[j]
			n := s.byID[r.NetnsID]
			if r.Kind != claim.KindNetns || n == nil || n.Host || !runtimeNamed(n) {
				continue
			}
			f := Finding{Resource: r}
			a := s.assessNetns(&f, n)
			a.prior = old.Get(Key{r.Path, r.Inc})
			next := s.remember(&a)
			seen = append(seen, next)
			if a.class == classAlive || explained[n.ID] {
				continue
			}
			if s.needsDetail(&a) {
				out.Needs.Detail = true
			}
			if s.wantsKube(&a) {
				out.Needs.Kube = true
			}
			s.conclude(&a, next)
			if f.Verdict == Orphaned {
				f.Why = "a network namespace that no process uses and no runtime knows"
			}
			out.Findings = append(out.Findings, f)
		}
	}
	out.Memory = out.Memory.With(seen...)
}

// assessNetns lets the witnesses speak of a pinned namespace, f's resource.
func (s *scene) assessNetns(f *Finding, n *claim.Netns) assessment {
	a := assessment{Finding: f}
	if s.used(n) {
		a.class = classAlive
		return a
	}
	if t := s.tenants[n.ID]; len(t) > 0 {
		as := *f.Resource
		as.Owner = claim.Owner{Shape: claim.ShapeContainer, ID: t[0]}
		f.Resource = &as
	}
	a.say(claim.WitnessKernel, Absent, "no process is in it or holds it open")
	if why := s.silentRequired(); why != "" {
		a.Rule, a.Why = ruleSilent, why
		return a
	}
	ids := a.Resource.Owner.Aliases()
	if s.sayProcess(&a, ids) == Alive || s.sayCRI(&a, ids) == Alive {
		a.class = classAlive
		return a
	}
	a.orphan(s, []*claim.Netns{n})
	return a
}
