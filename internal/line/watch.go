package line

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Release is one address that was released, as far as it may be contradicted.
type Release struct {
	ID    string
	Store string
	Addr  netip.Addr
	Owner claim.Owner
	At    claim.Instant
}

// Contradiction is what speaks against releases of one store.
type Contradiction struct {
	Store string
	// Why is one line for people, safe to print.
	Why string
	// ReleaseIDs are the releases that it is about, if any.
	ReleaseIDs []string
}

// Recent leaves out what is not looked after any more: of another boot, of the future, or older than
// Remembered; and of what is left all but the latest MaxRemembered. While the boot is not
// known only that. list is in the order of time, and is changed.
func Recent(list []Release, now claim.Instant) []Release {
	list = slices.DeleteFunc(list, func(r Release) bool {
		d, ok := now.Since(r.At)
		return now.Boot != "" && (!ok || d > Remembered)
	})
	return list[max(0, len(list)-MaxRemembered):]
}

// Watch looks for what contradicts releases of this boot that were not undone.
//
// A duplicate: the judge found an address of a store that two namespaces hold, both of them in
// use, the host's, or of a Ready sandbox: what a dead container left is none, and would stop its
// network for as long as it lies there. Nor is it one if each of them is a container's that has a
// reservation of its own: their networks have overlapping ranges, as on two VLANs.
//
// A sign of life of what was released: a process in its cgroup, its sandbox Ready in a
// runtime's list, or a namespace in use that holds the address and is not known to be another
// container's. None of these is one:
//   - a plugin or a shim with the ID: DEL comes late for the dead, and a shim is started to
//     clean up after them;
//   - a sandbox that is NotReady, a namespace that nobody uses, or the host's;
//   - a container that was started again under its old ID (case F21) and has a reservation that
//     came after the release;
//   - an address in use that is reserved again, by whomever, in whatever store.
//
// The last two are only seen in a listing that is later than the witnesses, as for Missing: an ADD
// may have been in between. relist: there may be more, and c.Relisted is needed to say.
func Watch(list []Release, c *verdict.Case, j *verdict.Judgement) (found []Contradiction, relist bool) {
	s := newScene(c, j)
	byStore := map[string]*Contradiction{}
	var order []string
	note := func(store, why string, ids ...string) {
		n := byStore[store]
		if n == nil {
			n = &Contradiction{Store: store, Why: why}
			byStore[store] = n
			order = append(order, store)
		}
		n.ReleaseIDs = join(n.ReleaseIDs, ids)
	}
	for i := range list {
		r := &list[i]
		if d, ok := c.Now.Since(r.At); !ok || d > Remembered {
			continue
		}
		lives := s.lives(r)
		held := s.held(r)
		switch {
		case lives == "" && !held:
		case s.later == nil:
			relist = true
		case lives != "" && !s.addedAgain(r):
			note(r.Store, fmt.Sprintf("%s was released, and %s", r.Addr, lives), r.ID)
		case held && !s.reserved(r):
			note(r.Store, fmt.Sprintf("%s was released, and a network namespace in use holds it", r.Addr), r.ID)
		}
	}
	for i := range j.Findings {
		f := &j.Findings[i]
		if f.Verdict == verdict.Conflict && f.Rule == "held-twice" && f.Resource.Kind == claim.KindReservation && s.duplicate(f.Resource.Addr) {
			note(f.Resource.Store, fmt.Sprintf("two network namespaces hold %s", f.Resource.Addr))
		}
	}
	for _, store := range order {
		found = append(found, *byStore[store])
	}
	return found, relist
}

// scene is what Watch asks for, by ID and by address. Witnesses that the judge does not
// believe are not believed here either.
type scene struct {
	c     *verdict.Case
	j     *verdict.Judgement
	later *claim.Snapshot // Relisted, if it is later than every witness
	procs map[string]int  // ID -> a process in its cgroup
	ready map[string]string
	// holders are by address the namespaces in use, but the host's; others the host's and those that
	// nobody uses; tenants are the attachments known to live in one.
	holders map[netip.Addr][]uint64
	others  map[netip.Addr][]*claim.Netns
	tenants map[uint64][]string
	first   map[verdict.Key]claim.Instant // see firstSeen
}

func newScene(c *verdict.Case, j *verdict.Judgement) *scene {
	s := &scene{
		c: c, j: j, later: c.Relisted, procs: map[string]int{}, ready: map[string]string{},
		holders: map[netip.Addr][]uint64{}, others: map[netip.Addr][]*claim.Netns{}, tenants: map[uint64][]string{},
	}
	mounts := map[string][]uint64{}
	var kernel *claim.KernelFacts
	var process *claim.ProcessFacts
	var cri *claim.CRIFacts
	for i := range c.Testimonies {
		t := &c.Testimonies[i]
		if _, refused := j.Reasons[t.Witness]; refused || t.State != claim.StateComplete {
			continue
		}
		if s.later != nil {
			if _, ok := s.later.Listed.Since(t.Asked); !ok {
				s.later = nil
			}
		}
		kernel, process, cri = cmp.Or(kernel, t.Kernel), cmp.Or(process, t.Process), cmp.Or(cri, t.CRI)
	}
	if kernel != nil {
		for i := range kernel.Netns {
			n := &kernel.Netns[i]
			for _, a := range n.Addrs {
				addr := a.Addr.Unmap().WithZone("")
				switch {
				case n.Host || !n.Used():
					if !slices.Contains(s.others[addr], n) {
						s.others[addr] = append(s.others[addr], n)
					}
				case !slices.Contains(s.holders[addr], n.ID):
					s.holders[addr] = append(s.holders[addr], n.ID)
				}
			}
			if n.Host {
				continue // nobody's
			}
			for _, m := range n.Mounts {
				mounts[plainPath(m)] = append(mounts[plainPath(m)], n.ID)
			}
		}
	}
	var inside []claim.ProcessHit
	if process != nil {
		for _, h := range process.Hits {
			if h.Via == "cgroup" {
				s.procs[h.ID] = h.PID
				inside = append(inside, h)
			}
		}
	}
	settle := func(id, mount string) {
		for _, n := range mounts[plainPath(mount)] {
			s.tenants[n] = append(s.tenants[n], id)
		}
	}
	// Of an application container's ID nobody knows whose sandbox it is in.
	attached := map[string]bool{}
	for i := range c.Snapshots {
		for k := range c.Snapshots[i].Resources {
			r := &c.Snapshots[i].Resources[k]
			for _, id := range r.Owner.Aliases() {
				if _, runs := s.procs[id]; runs {
					attached[id] = true
				}
				if r.Cache != nil {
					settle(id, r.Cache.Netns)
				}
			}
		}
	}
	if cri != nil {
		for i := range cri.Sandboxes {
			b := &cri.Sandboxes[i]
			attached[b.ID] = true
			settle(b.ID, b.Netns)
			if b.Ready {
				s.ready[b.ID] = b.Endpoint
			}
		}
	}
	for _, h := range inside {
		if attached[h.ID] {
			s.tenants[h.Netns] = append(s.tenants[h.Netns], h.ID)
		}
	}
	return s
}

// plainPath makes two spellings of a mount comparable: /var/run is /run.
func plainPath(p string) string {
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

// lives says what shows that the container of a release lives, or "".
func (s *scene) lives(r *Release) string {
	for _, id := range r.Owner.Aliases() {
		if pid, ok := s.procs[id]; ok {
			return fmt.Sprintf("process %d is in the cgroup of its container", pid)
		}
		if at, ok := s.ready[id]; ok {
			return at + " lists its sandbox, Ready"
		}
	}
	return ""
}

// held: a namespace in use holds the address, and it is not known to be another container's.
func (s *scene) held(r *Release) bool {
	return slices.ContainsFunc(s.holders[r.Addr], func(n uint64) bool {
		t := s.tenants[n]
		return len(t) == 0 || slices.ContainsFunc(r.Owner.Aliases(), func(id string) bool { return slices.Contains(t, id) })
	})
}

// duplicate reports whether addr, which the judge saw held twice, is that by the living, and not
// by containers that have each reserved it.
func (s *scene) duplicate(addr netip.Addr) bool {
	holders := slices.Clone(s.holders[addr])
	for _, n := range s.others[addr] {
		ready := slices.ContainsFunc(s.tenants[n.ID], func(id string) bool { return s.ready[id] != "" })
		if n.Host || ready {
			holders = append(holders, n.ID)
		}
	}
	by := map[string]bool{} // holders with a reservation of their own, each by another ID
	for _, n := range holders {
		for _, id := range s.tenants[n] {
			if !by[id] && s.anyReservation(func(o *claim.Resource) bool {
				return o.Addr == addr && o.Problem == "" && slices.Contains(o.Owner.Aliases(), id)
			}) {
				by[id] = true
				break
			}
		}
	}
	return len(holders) > 1 && len(by) < len(holders)
}

// addedAgain: its owner has a reservation that came after the release, in whatever network.
// One that was there before, such as of another interface, says nothing.
func (s *scene) addedAgain(r *Release) bool {
	return s.anyReservation(func(o *claim.Resource) bool {
		if !slices.ContainsFunc(o.Owner.Aliases(), func(id string) bool { return slices.Contains(r.Owner.Aliases(), id) }) {
			return false
		}
		first, known := s.firstSeen(o)
		d, ok := first.Since(r.At)
		return !known || ok && d > 0
	})
}

// firstSeen is when the judge saw an incarnation first. Hardly anybody asks.
func (s *scene) firstSeen(r *claim.Resource) (at claim.Instant, known bool) {
	if s.first == nil {
		s.first = map[verdict.Key]claim.Instant{}
		for i := range s.j.Findings {
			if f := &s.j.Findings[i]; f.Resource.Kind == claim.KindReservation && f.Verdict != verdict.Missing {
				s.first[verdict.Key{Path: f.Resource.Path, Inc: f.Resource.Inc}] = f.First()
			}
		}
	}
	at, known = s.first[verdict.Key{Path: r.Path, Inc: r.Inc}]
	return at, known
}

// reserved: the address is reserved again, by whomever.
func (s *scene) reserved(r *Release) bool {
	return s.anyReservation(func(o *claim.Resource) bool { return o.Addr == r.Addr })
}

func (s *scene) anyReservation(is func(*claim.Resource) bool) bool {
	any := func(snap *claim.Snapshot) bool {
		for i := range snap.Resources {
			if r := &snap.Resources[i]; r.Kind == claim.KindReservation && is(r) {
				return true
			}
		}
		return false
	}
	for i := range s.c.Snapshots {
		if any(&s.c.Snapshots[i]) {
			return true
		}
	}
	return s.later != nil && any(s.later)
}
