package verdict

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// ruleSilent is the rule by which a required witness's silence keeps.
const ruleSilent = "witness-silent"

// WitnessValid is the name under which Policy.Valid speaks.
const WitnessValid = "cni"

// class is what the witnesses' words come to for one resource, before siblings and
// memory are looked at. The zero value keeps.
type class uint8

const (
	classUnknown  class = iota // somebody required is silent, or it cannot be read
	classAlive                 // somebody says alive
	classConflict              // alive, for another attachment or twice
	classOrphan                // only namespaces without any process hold it
	classAbsent                // every required witness says absent
)

// assessment is the class of one resource, and its finding as far as the witnesses give
// it: resource, rule, reason, words, namespaces, holder and whether it is shared.
type assessment struct {
	*Finding
	prior *Sighting
	odd   *oddity // nil for nearly all
	at    int32   // of prior in the memory
	class class
	// slow: absence must last for the orphan grace.
	slow bool
	dead bool // an earlier boot proves it dead
}

// oddity is what few assessments have: there is one of these for each resource of a full
// node.
type oddity struct {
	// witnesses replaces the sighting's witness set where the evidence is of another
	// kind (orphaned, NotReady), so that the kinds never vouch for each other.
	witnesses []string
	podGone   bool   // the API server's word that a Pod is gone is a part of the evidence
	held      string // a namespace that would go holds an address that a person held
}

// witnessesOf are the witnesses of a's next sighting.
func (s *scene) witnessesOf(a *assessment) []string {
	if a.odd != nil && a.odd.witnesses != nil {
		return a.odd.witnesses
	}
	return s.witnesses
}

// oddly gives a an oddity.
func (a *assessment) oddly() *oddity {
	if a.odd == nil {
		a.odd = &oddity{}
	}
	return a.odd
}

func (a *assessment) say(w string, word Word, format string, args ...any) Word {
	return a.word(w, word, fmt.Sprintf(format, args...))
}

// word is say for a detail that needs no formatting.
func (a *assessment) word(w string, word Word, detail string) Word {
	a.Says = append(a.Says, Say{Witness: w, Word: word, Detail: detail})
	return word
}

// byAddress reports whether only the address can be asked for: no owner is known.
func byAddress(r *claim.Resource) bool {
	return r.Kind == claim.KindReservation && r.Owner.Shape != claim.ShapeContainer
}

// assess lets every witness speak of f's resource and combines the words. It never looks
// at memory, and it releases nothing.
func (s *scene) assess(f *Finding, prior *Sighting) assessment {
	a, r := assessment{Finding: f, prior: prior}, f.Resource
	if r.Kind != claim.KindCache && r.Problem != "" {
		a.Rule, a.Why = "unreadable", "could not be read: "+r.Problem
		return a
	}
	if why := s.incomplete(r); why != "" {
		a.Rule, a.Why = "store-incomplete", why
		return a
	}
	if r.Kind == claim.KindCache && r.Owner.Shape != claim.ShapeContainer {
		a.Rule, a.Why = "no-owner", "a cache entry that names no container"
		if r.Problem != "" {
			a.Why += ": " + r.Problem
		}
		return a
	}
	if why := s.unlisted(r); why != "" {
		a.Rule, a.Why = "store-unlisted", why
		return a
	}
	ids := s.ids(r)
	a.Says = s.says[:0]
	kernel, homes := s.sayKernel(&a, ids)
	process := s.sayProcess(&a, ids)
	cri := s.sayCRI(&a, ids)
	s.sayBoot(&a)
	var kube Word
	if kernel != Other {
		kube = s.sayKube(&a, ids)
	}
	valid := s.isValid(r)
	if valid {
		a.word(WitnessValid, Alive, "among the attachments that its runtime has or is adding")
	}
	s.says = a.Says
	a.Says = s.shared(a.Says)

	switch {
	case kernel == Other:
		a.class = classConflict // rule and why are set by sayKernel
	case valid:
		a.class, a.Rule, a.Why = classAlive, "valid-attachment", "its runtime has or is adding the attachment"
	case process == Alive:
		a.class, a.Rule, a.Why = classAlive, "process-alive", "a live process belongs to its container"
	case cri == Alive:
		a.class, a.Rule, a.Why = classAlive, "sandbox-listed", "its runtime lists the sandbox"
	case kernel == Alive && slices.ContainsFunc(homes, s.used):
		a.class, a.Rule, a.Why = classAlive, "address-held", "a network namespace in use holds the address"
		if !s.holds(homes, r.Addr) {
			a.Why = "its network namespace is in use"
		}
	case kube == Alive:
		a.class = classAlive // rule and why are set by sayKube
	case s.silentRequired() != "":
		a.class, a.Rule, a.Why = classUnknown, ruleSilent, s.silentRequired()
	case kernel == Silent || process == Silent || cri == Silent:
		// A witness that counts but cannot speak of this one resource.
		a.class, a.Rule, a.Why = classUnknown, "cannot-say", s.cannotSay(&a)
	case kernel == Alive:
		a.orphan(s, homes)
	default:
		a.class = classAbsent
	}
	if a.class == classAbsent || a.class == classOrphan {
		s.claimed(&a, ids)
	}
	return a
}

// shared returns says, which stand in scratch memory, as a slice that lasts: the last one
// where they are the same, as for nearly all that is dead.
func (s *scene) shared(says []Say) []Say {
	if !slices.Equal(says, s.lastSays) {
		s.lastSays = slices.Clone(says)
	}
	return s.lastSays
}

// claimed: a living container is said to have the address, by its runtime's status or
// by its cached result, though the kernel does not show it (gVisor, vfio: case F20).
// Without a reservation of its own (case F12) this one's would be its only guard.
func (s *scene) claimed(a *assessment, ids []string) {
	if a.Resource.Kind != claim.KindReservation {
		return
	}
	other, own := s.claimedBy(a.Resource.Addr, ids)
	switch {
	case other == "":
	case own:
		a.Shared = true
	default:
		a.class, a.Rule, a.Holder = classConflict, "claimed-by-other", other
		a.Why = "the address belongs to the living " + short(other) + ", which has no reservation for it"
		if byAddress(a.Resource) {
			a.class, a.Why = classAlive, "the address belongs to the living "+short(other)
		}
	}
}

// unlisted says why nobody knows what a cache entry's attachment has reserved: its
// directory was not looked at. It goes with its reservation or not at all (I8).
func (s *scene) unlisted(r *claim.Resource) string {
	if r.Cache == nil || r.Cache.DataDir == "" {
		return ""
	}
	dir := path.Join(r.Cache.DataDir, r.Network)
	if s.store(dir) != nil {
		return ""
	}
	// A data directory that was read whole and lacks the network's.
	if d := s.store(r.Cache.DataDir); d != nil && d.Problem == "" {
		return ""
	}
	return dir + " was not looked at"
}

// store finds a directory of the listings, in either spelling of /run.
func (s *scene) store(dir string) *claim.Store {
	if st := s.stores[dir]; st != nil {
		return st
	}
	return s.stores[normalise(dir)]
}

// incomplete says which directory that must have been listed whole to speak of r was
// not: its own, or for a cache entry one of its reservations.
func (s *scene) incomplete(r *claim.Resource) string {
	why := s.notWhole(r.Store)
	if why == "" && r.Cache != nil && r.Cache.DataDir != "" {
		why = cmp.Or(s.notWhole(path.Join(r.Cache.DataDir, r.Network)), s.notWhole(r.Cache.DataDir))
	}
	return why
}

// read reports whether a store was listed whole.
func (s *scene) read(dir string) bool {
	st := s.store(dir)
	return st != nil && st.Problem == ""
}

func (s *scene) notWhole(dir string) string {
	if st := s.store(dir); st != nil && st.Problem != "" {
		return dir + " could not be listed whole: " + st.Problem
	}
	return ""
}

// cannotSay gives the detail of the first silent word.
func (s *scene) cannotSay(a *assessment) string {
	for _, y := range a.Says {
		if y.Word == Silent {
			return y.Witness + " cannot say: " + y.Detail
		}
	}
	return "a witness cannot say"
}

// ids returns the IDs whose life keeps r: its owner's, and for a file without a
// readable owner those of the cache entries that hold its address.
func (s *scene) ids(r *claim.Resource) []string {
	if !byAddress(r) {
		return r.Owner.Aliases()
	}
	return s.cachedBy[r.Addr]
}

func (s *scene) holds(list []*claim.Netns, addr netip.Addr) bool {
	return slices.ContainsFunc(list, func(n *claim.Netns) bool {
		return slices.ContainsFunc(n.Addrs, func(a claim.IfAddr) bool { return plain(a.Addr) == addr })
	})
}

// sayKernel: who holds the address, and does the owner's own namespace still exist.
// The namespaces that keep r alive are returned.
func (s *scene) sayKernel(a *assessment, ids []string) (Word, []*claim.Netns) {
	r := a.Resource
	if s.kernel == nil {
		return a.say(claim.WitnessKernel, Silent, "%s", s.silent[claim.WitnessKernel]), nil
	}
	var homes []*claim.Netns // the owner's own namespaces
	for _, id := range ids {
		for _, n := range s.homes[id] {
			if !slices.Contains(homes, n) {
				homes = append(homes, n)
			}
		}
	}
	if n := s.stampedFor(r); n != nil && !slices.Contains(homes, n) {
		homes = append(homes, n)
	}
	if r.Kind != claim.KindReservation {
		if holders := s.cacheHolders(r, ids, homes); len(holders) > 0 {
			return a.say(claim.WitnessKernel, Alive, "%s holds an address of its result", s.describe(holders[0])), append(homes, holders...)
		}
		if len(homes) > 0 {
			return a.say(claim.WitnessKernel, Alive, "its network namespace %s exists", s.describe(homes[0])), homes
		}
		return a.say(claim.WitnessKernel, Absent, "its network namespace is gone"), nil
	}
	if !claim.KernelSpeaksFor(r.Addr) {
		return a.say(claim.WitnessKernel, Silent, "a loopback, link-local or multicast address is on many interfaces at once"), homes
	}
	holders := s.byAddr[r.Addr]
	if len(holders) > 1 {
		a.Rule, a.Why = "held-twice", fmt.Sprintf("%d network namespaces hold the address", len(holders))
		return a.say(claim.WitnessKernel, Other, "held by %s and %s", s.describe(holders[0]), s.describe(holders[1])), holders
	}
	if len(holders) == 1 {
		n := holders[0]
		other, excused := s.otherTenant(r, n, ids, homes)
		a.Shared = excused
		switch {
		case other == "" || !excused && s.deserted(n):
			for _, h := range homes {
				if h != n {
					return a.say(claim.WitnessKernel, Alive, "%s holds the address, and its own network namespace %s exists", s.describe(n), s.describe(h)), append(homes, n)
				}
			}
			return a.say(claim.WitnessKernel, Alive, "%s holds the address", s.describe(n)), []*claim.Netns{n}
		case !excused:
			a.Rule, a.Holder = "held-by-other", other
			a.Why = "the address is alive for " + short(other) + ", which has no reservation for it"
			return a.say(claim.WitnessKernel, Other, "%s holds the address for %s", s.describe(n), short(other)), holders
		case len(homes) > 0:
			return a.say(claim.WitnessKernel, Alive, "its network namespace %s exists", s.describe(homes[0])), homes
		}
		return a.say(claim.WitnessKernel, Absent, "%s holds the address for %s, which has a reservation of its own", s.describe(n), short(other)), nil
	}
	if len(homes) > 0 {
		return a.say(claim.WitnessKernel, Alive, "its network namespace %s exists, without the address", s.describe(homes[0])), homes
	}
	a.Says = append(a.Says, Say{claim.WitnessKernel, Absent, "no network namespace of this node holds ", true})
	return Absent, nil
}

// stampedFor returns the namespace that a reservation was made for, if processes use it and
// nobody is known to live in it, nor has reserved what it holds: it may be the container's whom no link and no runtime
// shows. Inode numbers are used again, so one in which an attachment is known to live, or
// that is unused, says nothing.
func (s *scene) stampedFor(r *claim.Resource) *claim.Netns {
	if r.Stamp == nil || r.Stamp.Boot != s.now.Boot || byAddress(r) {
		return nil
	}
	n := s.byID[r.Stamp.Netns]
	if n == nil || n.Host || !n.Used() || len(s.tenants[n.ID]) > 0 || s.hasReserved(n, r.Owner.ID) {
		return nil
	}
	return n
}

// hasReserved reports whether an address of n is reserved by somebody else than id: then n
// is theirs. Hardly anybody asks, so it looks through all there is.
func (s *scene) hasReserved(n *claim.Netns, id string) bool {
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			o := &s.c.Snapshots[i].Resources[j]
			if o.Kind == claim.KindReservation && o.Owner.Shape == claim.ShapeContainer && o.Owner.ID != id &&
				slices.ContainsFunc(n.Addrs, func(a claim.IfAddr) bool { return plain(a.Addr) == o.Addr }) {
				return true
			}
		}
	}
	return false
}

// cacheHolders returns the namespaces that hold an address of a cached result, without
// one that is known to be another's who reserved it: the container may live there though
// its netns path says nothing any more (case F13).
func (s *scene) cacheHolders(r *claim.Resource, ids []string, homes []*claim.Netns) []*claim.Netns {
	if r.Cache == nil {
		return nil
	}
	var out []*claim.Netns
	for _, addr := range r.Cache.Addrs {
		as := *r
		as.Addr = plain(addr)
		holders := s.byAddr[as.Addr]
		for _, n := range holders {
			if _, excused := s.otherTenant(&as, n, ids, homes); (!excused || len(holders) > 1) && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

// otherTenant says which other attachment the holder n belongs to: "" when it is the
// owner's, or nobody's that we know. excused: that attachment has its own reservation
// for the address, so this one is a leftover (renamed network, overlapping ranges).
func (s *scene) otherTenant(r *claim.Resource, n *claim.Netns, ids []string, homes []*claim.Netns) (other string, excused bool) {
	if slices.Contains(homes, n) || byAddress(r) {
		return "", false
	}
	for _, id := range s.tenants[n.ID] {
		if slices.Contains(ids, id) {
			return "", false
		}
	}
	for _, id := range s.tenants[n.ID] {
		if slices.Contains(s.ownAddrs[id], r.Addr) {
			return id, true
		}
	}
	if t := s.tenants[n.ID]; len(t) > 0 {
		return t[0], false
	}
	return "", false
}

// deserted: nobody uses n, and whoever it was of is dead by every witness; none of them is
// silent. What it holds is then in conflict with nobody: one dead container's namespace and
// another's reservation would keep each other for ever.
func (s *scene) deserted(n *claim.Netns) bool {
	return !s.used(n) && s.silentRequired() == "" && s.process != nil && (s.cri != nil || s.c.Policy.CRINone) &&
		!slices.ContainsFunc(s.tenants[n.ID], s.living)
}

func (s *scene) describe(n *claim.Netns) string {
	switch {
	case n.Host:
		return "the host's network namespace"
	case len(n.Mounts) > 0:
		return fmt.Sprintf("%q", n.Mounts[0])
	case len(n.PIDs) > 0:
		return fmt.Sprintf("the network namespace of process %d", n.PIDs[0])
	}
	return fmt.Sprintf("network namespace net:[%d]", n.ID)
}

// sayProcess: is the container's ID whole in a live process.
func (s *scene) sayProcess(a *assessment, ids []string) Word {
	if s.process == nil {
		return a.say(claim.WitnessProcess, Silent, "%s", s.silent[claim.WitnessProcess])
	}
	for _, id := range ids {
		if h := s.hits[id]; len(h) > 0 {
			return a.say(claim.WitnessProcess, Alive, "process %d carries the ID (%s)", h[0].PID, h[0].Via)
		}
	}
	if len(ids) == 0 {
		return a.say(claim.WitnessProcess, Absent, "there is no ID to look for")
	}
	return a.word(claim.WitnessProcess, Absent, "no live process carries the ID")
}

// sayCRI: does a runtime list the sandbox.
func (s *scene) sayCRI(a *assessment, ids []string) Word {
	if s.cri == nil {
		if s.c.Policy.CRINone {
			return "" // a person said that there is none
		}
		return a.say(claim.WitnessCRI, Silent, "%s", s.silent[claim.WitnessCRI])
	}
	var stale *claim.Sandbox
	staleWhy, waits, gone := "", false, false
	for _, id := range ids {
		for _, b := range s.sandboxes[id] {
			if b.Ready {
				return a.say(claim.WitnessCRI, Alive, "%s lists it, Ready", b.Endpoint)
			}
			if newer := s.newerReady(b); newer != nil {
				stale, staleWhy = b, "its Pod has the newer Ready sandbox "+short(newer.ID)
				continue
			}
			switch s.fateOf(b) {
			case fateLives:
				return a.say(claim.WitnessCRI, Alive, "%s lists it, NotReady, and its Pod has not ended in the API", b.Endpoint)
			case fateGone:
				stale, staleWhy, gone = b, "its Pod is gone in the API", true
			default:
				stale, staleWhy, waits = b, "counts as gone if kernel and process stay absent across the orphan grace", true
			}
		}
	}
	if stale != nil {
		if s.aliveElsewhere(ids) {
			return a.say(claim.WitnessCRI, Alive, "%s lists it, NotReady, and it is not dead otherwise", stale.Endpoint)
		}
		if !s.cri.Detailed {
			return a.say(claim.WitnessCRI, Silent, "%s lists it, NotReady, and was not asked yet for its network namespace", stale.Endpoint)
		}
		if waits {
			a.slow = true
		}
		// Of a clipped slice: append copies.
		others := append(s.witnessesOf(a), "cri~notready")
		if gone {
			others = append(others, "kube~gone")
			a.oddly().podGone = true
		}
		a.oddly().witnesses = slices.DeleteFunc(others, func(w string) bool { return w == "cri:"+stale.Endpoint })
		return a.say(claim.WitnessCRI, Absent, "%s lists it, NotReady: %s", stale.Endpoint, staleWhy)
	}
	if byAddress(a.Resource) {
		if !s.cri.Detailed {
			return a.say(claim.WitnessCRI, Silent, "the addresses of the sandboxes were not asked")
		}
		for i := range s.cri.Sandboxes {
			if b := &s.cri.Sandboxes[i]; slices.Contains(b.Addrs, a.Resource.Addr) {
				return a.say(claim.WitnessCRI, Alive, "sandbox %s has this address", short(b.ID))
			}
		}
		return a.say(claim.WitnessCRI, Absent, "no sandbox has this address")
	}
	return a.word(claim.WitnessCRI, Absent, s.notListed)
}

// aliveElsewhere: kernel and process must both be heard, and absent, before a NotReady
// sandbox may count as gone.
func (s *scene) aliveElsewhere(ids []string) bool {
	if s.kernel == nil || s.process == nil {
		return true
	}
	for _, id := range ids {
		if len(s.hits[id]) > 0 || len(s.homes[id]) > 0 {
			return true
		}
	}
	return false
}

// newerReady returns a Ready sandbox of the same Pod in the same runtime that was made
// later than b.
func (s *scene) newerReady(b *claim.Sandbox) *claim.Sandbox {
	if b.Pod.UID == "" {
		return nil
	}
	for i := range s.cri.Sandboxes {
		n := &s.cri.Sandboxes[i]
		if n.Ready && n.Endpoint == b.Endpoint && n.Pod.UID == b.Pod.UID && n.ID != b.ID && n.Created > b.Created {
			return n
		}
	}
	return nil
}

func (s *scene) endpoints() string {
	var list []string
	for _, rt := range s.cri.Runtimes {
		if rt.State == claim.StateComplete {
			list = append(list, rt.Endpoint)
		}
	}
	return strings.Join(list, ", ")
}

// sayBoot: only our own history of boots proves death (azure #947, #643; case F23),
// and only death.
func (s *scene) sayBoot(a *assessment) {
	stamp := s.stampOf(a.Resource)
	switch {
	case s.boot == nil:
		a.say(claim.WitnessBoot, Silent, "%s", s.silent[claim.WitnessBoot])
	case a.prior != nil && s.past[a.prior.First.Boot]:
		a.dead = true
		a.say(claim.WitnessBoot, Dead, "first seen in boot %s, which is past", a.prior.First.Boot)
	case stamp != nil && s.past[stamp.Boot]:
		a.dead = true
		a.say(claim.WitnessBoot, Dead, "reserved in boot %s, which is past (its stamp)", stamp.Boot)
	}
}

// orphan: nothing but namespaces without any process keeps r.
func (a *assessment) orphan(s *scene, homes []*claim.Netns) {
	if s.cri != nil && !s.cri.Detailed {
		a.class, a.Rule, a.Why = classUnknown, "cannot-say", "cri was not asked yet which network namespaces its sandboxes have"
		return
	}
	for _, n := range homes {
		if id := s.livesIn(n); id != "" {
			a.class, a.Rule, a.Why = classAlive, "netns-of-living", "its network namespace may be that of the living "+short(id)
			return
		}
		for _, x := range n.Addrs {
			if why := s.c.Policy.heldAnywhere(plain(x.Addr), s.read); why != "" {
				a.oddly().held = "its network namespace has " + plain(x.Addr).String() + ": " + why
			}
		}
		a.Netns = append(a.Netns, s.pin(n))
	}
	a.class = classOrphan
	a.slow = true
	// A run that was begun for one namespace does not count for another.
	others := slices.DeleteFunc(slices.Clone(s.witnessesOf(a)), func(w string) bool { return w == claim.WitnessKernel })
	for _, n := range a.Netns {
		others = append(others, fmt.Sprintf("kernel~orphan:%d", n.ID))
	}
	a.oddly().witnesses = others
}

// pin finds the mount that keeps n: one that the links inventory listed, where a
// release can reach it, else the first one that the kernel witness saw.
func (s *scene) pin(n *claim.Netns) Pin {
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			if r := &s.c.Snapshots[i].Resources[j]; r.Kind == claim.KindNetns && r.NetnsID == n.ID {
				return Pin{n.ID, r.Path}
			}
		}
	}
	if len(n.Mounts) > 0 {
		return Pin{n.ID, n.Mounts[0]}
	}
	return Pin{ID: n.ID}
}

// short is an ID as people read it. IDs that are attachments have a known shape, so
// this is safe to print.
func short(id string) string {
	if len(id) > 13 {
		return id[:13]
	}
	return id
}
