package verdict

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// scene is the join of all snapshots and testimonies: who holds which address, which
// attachment lives in which namespace. Built once for a Case, read-only afterwards but
// for the last texts of timed and shared.
type scene struct {
	c      *Case
	silent map[string]string // witness -> why it does not count; absent key: it counts

	kernel  *claim.KernelFacts
	process *claim.ProcessFacts
	cri     *claim.CRIFacts
	boot    *claim.BootFacts
	kube    *claim.KubeFacts
	// unasked: the API server was not asked yet. lacksKube: and it is required, and nobody else
	// is silent.
	unasked, lacksKube bool
	podAddrs           map[netip.Addr][]*claim.KubePod // of Pods that have not ended
	podUIDs            map[string][]*claim.KubePod     // by UID, and by that of the static Pod

	byAddr    map[netip.Addr][]*claim.Netns
	byID      map[uint64]*claim.Netns
	byMount   map[string][]*claim.Netns // normalised path -> namespaces, one for each mount namespace that has it
	hits      map[string][]claim.ProcessHit
	sandboxes map[string][]*claim.Sandbox
	// tenants: namespace -> IDs of attachments known to live in it, by any evidence.
	// Only IDs that are attachments (a sandbox, a reservation or a cache entry): the
	// ID of an application container in the same namespace says nothing of an owner.
	tenants map[uint64][]string
	// homes is the inverse of tenants.
	homes map[string][]*claim.Netns
	// ownAddrs: addresses that an ID has reserved, in any store. claims: IDs that a
	// reservation, a cache entry or a sandbox's status says have an address. Both only
	// of IDs in a process, a sandbox or a namespace. cachedBy: IDs of the cache entries
	// that have an address.
	ownAddrs map[string][]netip.Addr
	claims   map[netip.Addr][]string
	cachedBy map[netip.Addr][]string
	pods     map[string]claim.Pod

	stores map[string]*claim.Store
	past   map[string]bool // boots proven past
	// stamps: the youngest stamp of an attachment that has a cache entry; see stampOf. valid:
	// Policy.Valid by container ID.
	stamps map[claim.Attachment]*claim.Stamp
	valid  map[string][]claim.Attachment
	// mayBeAdding says which namespace may be that of an ADD in flight, "" if none; see
	// addInFlight.
	mayBeAdding string
	// occupied are namespaces in which the process witness saw some container's process.
	occupied map[uint64]bool
	now      claim.Instant

	// What is the same for every resource, found once. The slices are shared: cloned
	// before they are changed.
	witnesses, sortedWitnesses []string
	whyNot                     string // see mayConvict
	silentWhy                  string // see silentRequired
	notListed                  string // sayCRI's detail of a sandbox that nobody lists

	// of timed
	lastFormat, lastWhy string
	lastTime            time.Duration

	says, lastSays []Say // see shared
}

func newScene(c *Case) *scene {
	s := &scene{
		c: c, now: c.Now,
		silent: map[string]string{}, byAddr: map[netip.Addr][]*claim.Netns{}, byID: map[uint64]*claim.Netns{},
		byMount: map[string][]*claim.Netns{}, hits: map[string][]claim.ProcessHit{}, sandboxes: map[string][]*claim.Sandbox{},
		tenants: map[uint64][]string{}, homes: map[string][]*claim.Netns{}, ownAddrs: map[string][]netip.Addr{},
		claims: map[netip.Addr][]string{}, cachedBy: map[netip.Addr][]string{},
		pods: map[string]claim.Pod{}, stores: map[string]*claim.Store{}, past: map[string]bool{}, occupied: map[uint64]bool{},
		stamps: map[claim.Attachment]*claim.Stamp{}, valid: map[string][]claim.Attachment{},
	}
	// Whoever is required and never heard is silent, also a witness that this version
	// does not know.
	for _, w := range append([]string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI, claim.WitnessBoot}, c.Policy.Required...) {
		s.silent[w] = "was not asked"
	}
	heard := map[string]bool{}
	for i := range c.Testimonies {
		t := &c.Testimonies[i]
		if heard[t.Witness] {
			s.mute(t.Witness, "answered twice")
			continue
		}
		heard[t.Witness] = true
		s.hear(t)
	}
	for _, v := range c.Policy.Valid {
		s.valid[v.ContainerID] = append(s.valid[v.ContainerID], v)
	}
	s.unasked = !heard[claim.WitnessKube]
	s.contradictCRI()
	s.contradictKube()
	s.index()
	s.indexKube()
	s.indexStamps()
	s.witnesses = slices.Clip(s.witnessSet())
	s.sortedWitnesses = slices.Clip(slices.Sorted(slices.Values(s.witnesses)))
	s.whyNot = s.mayNotConvict()
	s.silentWhy = s.firstSilent("")
	s.lacksKube = s.unasked && s.silentWhy != "" && s.firstSilent(claim.WitnessKube) == ""
	if s.cri != nil {
		s.notListed = fmt.Sprintf("not among the %d sandboxes of %s", len(s.cri.Sandboxes), s.endpoints())
	}
	return s
}

// hear takes one testimony in, or notes why it does not count.
func (s *scene) hear(t *claim.Testimony) {
	why := ""
	switch {
	case t.State == claim.StateNone:
		why = "there is no such witness here"
		if t.Detail != "" {
			why = t.Detail
		}
	case t.State != claim.StateComplete:
		why = "gave no reason"
		if t.Detail != "" {
			why = t.Detail
		}
	default:
		why = s.tooEarly(t)
	}
	if why == "" {
		why = s.take(t)
	}
	if why != "" {
		s.mute(t.Witness, why)
		return
	}
	delete(s.silent, t.Witness)
}

// mute makes a witness silent: what it said before does not count either.
func (s *scene) mute(witness, why string) {
	s.silent[witness] = why
	switch witness {
	case claim.WitnessKernel:
		s.kernel = nil
	case claim.WitnessProcess:
		s.process = nil
	case claim.WitnessCRI:
		s.cri = nil
	case claim.WitnessBoot:
		s.boot, s.past = nil, map[string]bool{}
	case claim.WitnessKube:
		s.kube = nil
	}
}

// take keeps the facts of a complete testimony, or says why they cannot be true.
func (s *scene) take(t *claim.Testimony) string {
	switch {
	case t.Witness == claim.WitnessKernel && t.Kernel != nil:
		if !slices.ContainsFunc(t.Kernel.Netns, func(n claim.Netns) bool { return n.Host }) {
			return "did not see the host's own network namespace"
		}
		s.kernel = t.Kernel
	case t.Witness == claim.WitnessProcess && t.Process != nil:
		s.process = t.Process
	case t.Witness == claim.WitnessCRI && t.CRI != nil:
		complete := false
		for _, rt := range t.CRI.Runtimes {
			if rt.State != claim.StateComplete && (rt.Named || rt.Known || rt.State != claim.StateNone) {
				return rt.Endpoint + " is required and gave no answer"
			}
			complete = complete || rt.State == claim.StateComplete
		}
		if !complete {
			return "no runtime answered"
		}
		s.cri = t.CRI
	case t.Witness == claim.WitnessBoot && t.Boot != nil:
		if t.Boot.Current == "" || t.Boot.Current != s.now.Boot {
			return "the boot ID changed while the witnesses were asked"
		}
		s.boot = t.Boot
		for _, b := range t.Boot.Past {
			if b != t.Boot.Current && b != "" {
				s.past[b] = true
			}
		}
	case t.Witness == claim.WitnessKube && t.Kube != nil:
		s.kube = t.Kube
	default:
		return "says complete but gave no facts that are known here"
	}
	return ""
}

// tooEarly is I6: a witness that was asked before an inventory was listed cannot
// speak of what was added in between (whereabouts #207, case F2).
func (s *scene) tooEarly(t *claim.Testimony) string {
	for i := range s.c.Snapshots {
		l := s.c.Snapshots[i].Listed
		if l.Boot != t.Asked.Boot || t.Asked.Boot != s.now.Boot || t.Asked.Boot == "" {
			return "was asked in another boot than the inventory was listed in"
		}
		if t.Asked.Mono > s.now.Mono {
			return "was asked in the future"
		}
		if t.Asked.Mono < l.Mono {
			return "was asked before the inventory " + s.c.Snapshots[i].Source + " was listed"
		}
	}
	return ""
}

// contradictCRI: a runtime that lists no sandbox at all while shims of Kubernetes hold
// containers has lost its memory or has not read it yet (aws-cni #711, case F6). Shims
// of another runtime that answered do not count; all others do, since a socket may be
// seen here at another path than its shims name.
func (s *scene) contradictCRI() {
	if s.cri == nil || s.process == nil {
		return
	}
	others := map[string]bool{}
	for _, b := range s.cri.Sandboxes {
		others[socketOf(b.Endpoint)] = true
	}
	// conmon names no socket; a CRI-O that lists sandboxes explains them all.
	crio := slices.ContainsFunc(s.cri.Runtimes, func(rt claim.Runtime) bool { return rt.Name == "cri-o" && others[socketOf(rt.Endpoint)] })
	for _, rt := range s.cri.Runtimes {
		if rt.State != claim.StateComplete || others[socketOf(rt.Endpoint)] {
			continue
		}
		n := 0
		for _, sh := range s.process.Shims {
			if sh.Namespace == "k8s.io" && !others[socketOf(sh.Address)] || sh.Namespace == "cri-o" && !crio {
				n++
			}
		}
		if n > 0 {
			s.mute(claim.WitnessCRI, fmt.Sprintf("%s lists no sandbox while %d shims run: not believed", rt.Endpoint, n))
			return
		}
	}
}

func socketOf(endpoint string) string { return normalise(strings.TrimPrefix(endpoint, "unix://")) }

// normalise makes two spellings of a path comparable: /var/run is /run, and trailing
// ".ttrpc" of a shim's runtime address is dropped.
func normalise(p string) string {
	p = strings.TrimSuffix(path.Clean(p), ".ttrpc")
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

func (s *scene) index() {
	// The IDs in processes; true for those that are attachments.
	attached := map[string]bool{}
	if s.process != nil {
		for _, h := range s.process.Hits {
			s.hits[h.ID] = append(s.hits[h.ID], h)
			s.occupied[h.Netns] = true
			attached[h.ID] = false
		}
	}
	for i := range s.c.Snapshots {
		snap := &s.c.Snapshots[i]
		for j := range snap.Stores {
			st := &snap.Stores[j]
			// A data directory may be a network's own, too: what says more stays.
			if old := s.stores[st.Dir]; old == nil || old.Problem == "" && (st.Network != "" || st.Problem != "") {
				s.stores[st.Dir] = st
			}
			// A second name of the directory, for configurations that spell it so.
			if n := normalise(st.Dir); s.stores[n] == nil {
				s.stores[n] = st
			}
		}
		for j := range snap.Resources {
			r := &snap.Resources[j]
			if r.Kind == claim.KindReservation && r.Problem != "" {
				continue
			}
			for _, id := range r.Owner.Aliases() {
				if _, hit := attached[id]; hit {
					attached[id] = true
				}
				if r.Cache != nil && r.Cache.Pod.Name != "" {
					s.pods[id] = r.Cache.Pod
				}
			}
		}
	}
	if s.cri != nil {
		for i := range s.cri.Sandboxes {
			b := &s.cri.Sandboxes[i]
			s.sandboxes[b.ID] = append(s.sandboxes[b.ID], b)
			attached[b.ID] = true
			s.pods[b.ID] = b.Pod
		}
	}
	if s.kernel != nil {
		for i := range s.kernel.Netns {
			n := &s.kernel.Netns[i]
			s.byID[n.ID] = n
			for _, m := range n.Mounts {
				if p := normalise(m); !slices.Contains(s.byMount[p], n) {
					s.byMount[p] = append(s.byMount[p], n)
				}
			}
			for _, a := range n.Addrs {
				if addr := plain(a.Addr); !slices.Contains(s.byAddr[addr], n) {
					s.byAddr[addr] = append(s.byAddr[addr], n)
				}
			}
		}
		s.attribute(attached)
	}
	s.indexClaims()
}

// indexClaims notes who is said to have which address. Only of what may be alive: on a
// full node these are few, and nobody asks what the others have.
func (s *scene) indexClaims() {
	mayLive := func(id string) bool {
		return len(s.hits[id]) > 0 || len(s.sandboxes[id]) > 0 || len(s.homes[id]) > 0
	}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			r := &s.c.Snapshots[i].Resources[j]
			if r.Cache != nil {
				for _, a := range r.Cache.Addrs {
					s.cachedBy[plain(a)] = append(s.cachedBy[plain(a)], r.Owner.Aliases()...)
				}
			}
			if r.Kind == claim.KindReservation && r.Problem != "" {
				continue
			}
			for _, id := range r.Owner.Aliases() {
				if !mayLive(id) {
					continue
				}
				if r.Kind == claim.KindReservation {
					s.ownAddrs[id] = append(s.ownAddrs[id], r.Addr)
					s.claims[r.Addr] = append(s.claims[r.Addr], id)
				}
				if r.Cache != nil {
					for _, a := range r.Cache.Addrs {
						s.claims[plain(a)] = append(s.claims[plain(a)], id)
					}
				}
			}
		}
	}
	if s.cri == nil {
		return
	}
	for i := range s.cri.Sandboxes {
		b := &s.cri.Sandboxes[i]
		for _, a := range b.Addrs {
			s.claims[plain(a)] = append(s.claims[plain(a)], b.ID)
		}
	}
}

// indexStamps gives the cache entries of an attachment the stamp of its reservation. Nothing
// but an ADD of that attachment writes either, and it fails while the reservation lies there
// unless it stamps it anew: so what one proves of age and boot, it proves of the other.
func (s *scene) indexStamps() {
	stamped := false
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			r := &s.c.Snapshots[i].Resources[j]
			stamped = stamped || r.Stamp != nil
			if r.Kind == claim.KindCache && r.Cache != nil && r.Cache.DataDir != "" {
				s.stamps[s.reservedAs(r)] = nil
			}
		}
	}
	if !stamped || len(s.stamps) == 0 {
		return
	}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			r := &s.c.Snapshots[i].Resources[j]
			if r.Kind != claim.KindReservation || r.Stamp == nil || r.Problem != "" || byAddress(r) {
				continue
			}
			k := attachment(r)
			if old, cached := s.stamps[k]; cached && (old == nil || s.younger(r.Stamp, old)) {
				s.stamps[k] = r.Stamp
			}
		}
	}
}

// reservedAs is what attachment gives for the reservations of a cache entry.
func (s *scene) reservedAs(r *claim.Resource) claim.Attachment {
	t := r.Attachment()
	t.Network = path.Join(r.Cache.DataDir, r.Network)
	if st := s.store(t.Network); st != nil {
		t.Network = st.Dir
	}
	return t
}

// younger reports whether a proves less than b: of this boot, or of one that may be, and later.
func (s *scene) younger(a, b *claim.Stamp) bool {
	rank := func(x *claim.Stamp) int {
		switch {
		case x.Boot == s.now.Boot:
			return 2
		case !s.past[x.Boot]:
			return 1
		}
		return 0
	}
	if ra, rb := rank(a), rank(b); ra != rb {
		return ra > rb
	}
	return a.Mono > b.Mono
}

// stampOf is what our own IPAM wrote of r's attachment, nil if nothing. What has no owner has
// none: nobody but us writes stamps, and we write an owner.
func (s *scene) stampOf(r *claim.Resource) *claim.Stamp {
	switch {
	case r.Kind == claim.KindReservation && !byAddress(r):
		return r.Stamp
	case r.Cache != nil && r.Cache.DataDir != "":
		return s.stamps[s.reservedAs(r)]
	}
	return nil
}

// isValid reports whether r belongs to one of Policy.Valid.
func (s *scene) isValid(r *claim.Resource) bool {
	if len(s.valid) == 0 {
		return false
	}
	for _, id := range r.Owner.Aliases() {
		for _, v := range s.valid[id] {
			if v.Network == r.Network && (v.IfName == "" || r.Owner.IfName == "" || v.IfName == r.Owner.IfName) {
				return true
			}
		}
	}
	return false
}

// attribute fills tenants and homes: which attachments live in which namespace.
func (s *scene) attribute(attached map[string]bool) {
	settle := func(id string, n *claim.Netns) {
		// The host's own namespace is nobody's: hostNetwork Pods live there too.
		if n == nil || n.Host || slices.Contains(s.tenants[n.ID], id) {
			return
		}
		s.tenants[n.ID] = append(s.tenants[n.ID], id)
		s.homes[id] = append(s.homes[id], n)
	}
	if s.process != nil {
		for _, h := range s.process.Hits {
			// A shim or a plugin holds an ID from outside of the Pod's namespace.
			if h.Via == "cgroup" && attached[h.ID] {
				settle(h.ID, s.byID[h.Netns])
			}
		}
	}
	if s.cri != nil {
		for i := range s.cri.Sandboxes {
			for _, n := range s.mounted(s.cri.Sandboxes[i].Netns) {
				settle(s.cri.Sandboxes[i].ID, n)
			}
		}
	}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			if r := &s.c.Snapshots[i].Resources[j]; r.Cache != nil {
				for _, id := range r.Owner.Aliases() {
					for _, n := range s.mounted(r.Cache.Netns) {
						settle(id, n)
					}
				}
			}
		}
	}
}

// plain is an address as reservations spell it: unmapped, without zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// used reports whether any witness saw a process in n or holding it.
func (s *scene) used(n *claim.Netns) bool { return n.Host || n.Used() || s.occupied[n.ID] }

// living reports whether anything says that a container is alive: a process, a runtime
// that lists it in whatever state or calls an attachment of it valid, a namespace of its own
// in use.
func (s *scene) living(id string) bool {
	return len(s.hits[id]) > 0 || len(s.sandboxes[id]) > 0 || len(s.valid[id]) > 0 ||
		slices.ContainsFunc(s.homes[id], s.used)
}

// claimedBy returns a living container, other than ids, that is said to have addr, and
// whether it has a reservation of its own for it.
func (s *scene) claimedBy(addr netip.Addr, ids []string) (id string, own bool) {
	for _, c := range s.claims[addr] {
		if slices.Contains(ids, c) || !s.living(c) {
			continue
		}
		if !slices.Contains(s.ownAddrs[c], addr) {
			return c, false
		}
		id, own = c, true
	}
	return id, own
}

// livesIn returns a living container that n may belong to: one that is known to be in
// it, or that is said to have one of its addresses.
func (s *scene) livesIn(n *claim.Netns) string {
	for _, id := range s.tenants[n.ID] {
		if s.living(id) {
			return id
		}
	}
	for _, a := range n.Addrs {
		for _, id := range s.claims[plain(a.Addr)] {
			if s.living(id) {
				return id
			}
		}
	}
	return ""
}

// mounted returns the namespaces that are pinned at p, in whatever mount namespace: a
// container that mounts something there in its own must not hide the runtime's. A path
// below /proc names a process, whose number may be another's by now (cri-o #2849, F13).
func (s *scene) mounted(p string) []*claim.Netns {
	if p == "" || strings.HasPrefix(p, "/proc/") {
		return nil
	}
	return s.byMount[normalise(p)]
}

// vantage is I13. The kernel and process witnesses must see the whole node: the
// initial PID namespace, or the one in which every runtime lives.
func (s *scene) vantage() (ok bool, why string) {
	if s.kernel == nil {
		return false, "the kernel witness is silent"
	}
	v := s.kernel.Vantage
	if !v.Proven {
		for _, c := range v.Checks {
			if !c.OK {
				return false, c.Name + ": " + c.Detail
			}
		}
		return false, "it is not proven that the whole node is seen"
	}
	if v.InitialPIDNS {
		return true, ""
	}
	if s.cri == nil {
		return false, "this process is not in the initial PID namespace, and no runtime shows that it shares the node's"
	}
	n := 0
	for _, rt := range s.cri.Runtimes {
		if rt.State != claim.StateComplete {
			continue
		}
		if rt.PeerPID <= 0 {
			return false, "the runtime at " + rt.Endpoint + " lives in a PID namespace that cannot be seen from here"
		}
		if v.PIDNS == 0 || rt.PeerPIDNS != v.PIDNS {
			return false, "the runtime at " + rt.Endpoint + " does not live in the PID namespace whose processes were read"
		}
		n++
	}
	if n == 0 {
		return false, "this process is not in the initial PID namespace, and no runtime shows that it shares the node's"
	}
	return true, ""
}

// witnessSet names what testifies now. A sighting counts later only if it was made by
// at least these.
func (s *scene) witnessSet() []string {
	set := []string{claim.WitnessKernel, claim.WitnessProcess}
	if s.cri != nil {
		for _, rt := range s.cri.Runtimes {
			if rt.State == claim.StateComplete {
				set = append(set, "cri:"+rt.Endpoint)
			}
		}
	} else if s.c.Policy.CRINone {
		set = append(set, "cri:none")
	}
	// Who need not speak vouches for nothing: a run must not end whenever it speaks again.
	if s.kube != nil && slices.Contains(s.c.Policy.Required, claim.WitnessKube) {
		set = append(set, claim.WitnessKube)
	}
	return set
}

// silentRequired returns the first required witness that does not count, with why.
func (s *scene) silentRequired() string { return s.silentWhy }

// firstSilent is silentRequired of all but one.
func (s *scene) firstSilent(except string) string {
	for _, w := range s.c.Policy.Required {
		if w == claim.WitnessCRI && s.c.Policy.CRINone || w == except {
			continue
		}
		if why, silent := s.silent[w]; silent {
			return w + " is silent: " + why
		}
	}
	if s.now.Boot == "" {
		return "the boot ID could not be read"
	}
	if why, silent := s.silent[claim.WitnessBoot]; silent {
		return "boot is silent: " + why
	}
	return ""
}

// vouched reports whether runtimes that answered name their namespaces the way every
// mount of n is named, and so would know n if it were their own. A second name that a
// person gave it speaks against it.
func (s *scene) vouched(n *claim.Netns) bool {
	if s.cri == nil || len(n.Mounts) == 0 {
		return false
	}
	for _, m := range n.Mounts {
		if !slices.ContainsFunc(s.cri.Runtimes, func(rt claim.Runtime) bool {
			return rt.State == claim.StateComplete && namesLike(rt.Name, path.Base(m))
		}) {
			return false
		}
	}
	return true
}

// containerdNetns: containerd's internal/cri and pkg/netns use "cni-" and a random UUID.
func containerdNetns(base string) bool {
	id, ok := strings.CutPrefix(base, "cni-")
	return ok && claim.IsUUID(id)
}

// crioNetns: CRI-O (internal/config/nsmgr) uses a bare UUID.
func crioNetns(base string) bool { return claim.IsUUID(base) }

func namesLike(runtime, base string) bool {
	switch runtime {
	case "containerd":
		return containerdNetns(base)
	case "cri-o":
		return crioNetns(base)
	}
	return false
}

// runtimeNamed reports whether a mount of n is named as some runtime names its own.
// `ip netns add` by a person is none of our business.
func runtimeNamed(n *claim.Netns) bool {
	return slices.ContainsFunc(n.Mounts, func(m string) bool {
		b := path.Base(m)
		return containerdNetns(b) || crioNetns(b)
	})
}
