package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Judge gives a verdict on every resource of the case. It is deterministic and does
// not change c.
func Judge(c *Case) *Judgement {
	s := newScene(c)
	old := c.Memory.ordered()
	s.mayBeAdding = s.addInFlight(old)
	total := 0
	for i := range c.Snapshots {
		total += len(c.Snapshots[i].Resources)
	}
	out := &Judgement{Reasons: s.silent, Findings: make([]Finding, 0, total)}
	_, out.Vantage = s.vantage()
	list := make([]assessment, 0, total)
	at := 0 // in old
	for i := range c.Snapshots {
		for j := range c.Snapshots[i].Resources {
			r := &c.Snapshots[i].Resources[j]
			if !ours(r) {
				continue
			}
			// There is room for all, so that the finding stays where it is.
			out.Findings = append(out.Findings, Finding{Resource: r})
			var prior *Sighting
			prior, at = old.near(&Key{r.Path, r.Inc}, at)
			a := s.assess(&out.Findings[len(out.Findings)-1], prior)
			a.at = int32(at)
			list = append(list, a)
		}
	}
	for i := range list {
		out.Needs.Kube = out.Needs.Kube || s.wantsKube(&list[i])
	}
	gather(list, c.Policy.held)
	// What was known stays where it stood, which is in order.
	memory, fresh := make(Memory, len(old)), Memory(nil)
	for i := range list {
		a := &list[i]
		if s.needsDetail(a) {
			out.Needs.Detail = true
		}
		next := s.remember(a)
		if a.Resource.Problem == "" || a.Resource.Kind == claim.KindCache {
			if a.prior != nil {
				memory[a.at] = next
			} else {
				fresh = append(fresh, next)
			}
		}
		s.conclude(a, next)
	}
	memory = slices.DeleteFunc(memory, func(s *Sighting) bool { return s == nil })
	out.Memory = s.keepUnlisted(old, memory.With(fresh...))
	s.idleNetns(out, old)
	for together(out.Findings); s.keepPinned(out.Findings); {
		together(out.Findings)
	}
	// Whoever the kernel cannot see may still have the address by its runtime's word, so
	// nothing goes before that was asked.
	if s.cri != nil && !s.cri.Detailed {
		for i := range out.Findings {
			if out.Findings[i].Releasable {
				out.Findings[i].Releasable = false
				out.Needs.Detail = true
			}
		}
	}
	s.missing(out)
	if s.unasked && !out.Needs.Kube {
		delete(out.Reasons, claim.WitnessKube) // nothing needs it, so it keeps nothing
	}
	out.Silent = s.silences()
	if s.now.Boot == "" {
		out.Memory = old // no instant can be remembered
	}
	return out
}

// silences are the required witnesses that are silent.
func (s *scene) silences() (list []string) {
	for _, w := range s.c.Policy.Required {
		if w == claim.WitnessCRI && s.c.Policy.CRINone {
			continue
		}
		if why, silent := s.silent[w]; silent {
			list = append(list, w+": "+why)
		}
	}
	if why, silent := s.silent[claim.WitnessBoot]; silent && !slices.Contains(s.c.Policy.Required, claim.WitnessBoot) {
		list = append(list, claim.WitnessBoot+": "+why)
	}
	return list
}

// ours: cache entries of networks that do not use host-local are another's business,
// and namespaces are judged by idleNetns.
func ours(r *claim.Resource) bool {
	switch r.Kind {
	case claim.KindReservation:
		return true
	case claim.KindCache:
		return r.Problem != "" || r.Cache != nil && r.Cache.DataDir != ""
	}
	return false
}

// needsDetail: the sandboxes' namespaces and addresses could change what is said of a.
// Status calls are dear, so they are made for suspects only.
func (s *scene) needsDetail(a *assessment) bool {
	if s.cri == nil || s.cri.Detailed {
		return false
	}
	if a.class == classAbsent && s.mayBePressed(a) {
		return true // which namespaces are theirs
	}
	return a.Rule == "cannot-say" || a.class == classConflict || byAddress(a.Resource) && a.class == classUnknown ||
		// Only the kernel keeps it: the namespace may be another sandbox's.
		a.Rule == "address-held"
}

// remember gives the next sighting of a resource. Alive ends the run of absent
// sightings, silent neither counts nor ends it, a run that was made by fewer
// witnesses, in another boot or in the future starts anew.
func (s *scene) remember(a *assessment) *Sighting {
	next := Sighting{Key: Key{a.Resource.Path, a.Resource.Inc}, First: s.now}
	if a.prior != nil {
		next = *a.prior
	}
	if _, ok := s.now.Since(next.First); !ok && (next.First.Boot == s.now.Boot || next.First.Boot == "") {
		next.First = s.now // from the future, or never read: dropped
	}
	switch a.class {
	case classAlive, classConflict:
		next.Absent, next.Witnesses = claim.Instant{}, nil
	case classAbsent, classOrphan:
		if ok, _ := s.mayConvict(); !ok {
			break
		}
		_, sameRun := s.now.Since(next.Absent)
		if !sameRun || !covers(next.Witnesses, s.witnessesOf(a)) {
			next.Absent = s.now
			next.Witnesses = s.sorted(s.witnessesOf(a))
		}
	}
	if p := a.prior; p != nil && p.First == next.First && p.Absent == next.Absent && slices.Equal(p.Witnesses, next.Witnesses) {
		return p // nearly always: no memory for a second one
	}
	sight := next
	return &sight
}

// sorted returns a sighting's witnesses in order. Nearly all sightings have the same,
// and share them.
func (s *scene) sorted(witnesses []string) []string {
	if slices.Equal(witnesses, s.witnesses) {
		return s.sortedWitnesses
	}
	return slices.Sorted(slices.Values(witnesses))
}

// covers reports whether every witness of now also testified then.
func covers(then, now []string) bool {
	for _, w := range now {
		if !slices.Contains(then, w) {
			return false
		}
	}
	return len(then) > 0
}

// mayConvict: the policy asks enough witnesses, and the node is seen whole (I13).
func (s *scene) mayConvict() (bool, string) { return s.whyNot == "", s.whyNot }

func (s *scene) mayNotConvict() string {
	if ok, why := s.c.Policy.convicts(); !ok {
		return why
	}
	if ok, why := s.vantage(); !ok {
		return "no vantage: " + why
	}
	return ""
}

// conclude is the only place that sets Releasable. Everything that can be released
// comes through here.
func (s *scene) conclude(a *assessment, sight *Sighting) {
	f := a.Finding
	f.Pod, f.Sight, f.Wait = s.podOf(f.Resource), sight, -1
	held := s.c.Policy.held(f.Resource)
	if held == "" && a.odd != nil {
		held = a.odd.held
	}
	switch a.class {
	case classAlive:
		f.Verdict = InUse
		return
	case classConflict:
		f.Verdict = Conflict
		return
	case classUnknown:
		f.Verdict = Unknown
		if held != "" {
			f.Verdict, f.Rule, f.Why = Held, "held", held
		} else if a.Rule != "unreadable" && byAddress(a.Resource) {
			f.Verdict = addressVerdict(a.Resource)
		}
		return
	}
	// From here on every required witness has said absent, or only unused namespaces
	// hold it.
	if held != "" {
		f.Verdict, f.Rule, f.Why = Held, "held", held
		return
	}
	if ok, why := s.mayConvict(); !ok {
		f.Verdict, f.Rule, f.Why = Unknown, "may-not-convict", why
		return
	}
	f.Gone = a.class == classAbsent
	grace := s.c.Policy.Grace
	if a.slow || byAddress(a.Resource) {
		grace = max(grace, s.c.Policy.OrphanGrace)
	}
	elapsed, ok := s.now.Since(sight.Absent)
	// Two sightings: the one that starts the run does not count for itself.
	twice := ok && sight.Absent.Mono != s.now.Mono
	f.Wait = max(grace-elapsed, time.Nanosecond)
	over := twice && elapsed >= grace
	if over {
		f.Wait = 0
	}
	aged, why := s.aged(a)
	if aged > 0 {
		f.Wait = min(f.Wait, aged)
	}
	early, pressed := s.pressed(a)
	if early && !over {
		f.Wait = min(f.Wait, max(s.c.Policy.PressureGrace-elapsed, time.Nanosecond))
	}
	switch {
	case a.class == classOrphan && (s.c.Policy.Foreign || !isForeign(a.Resource)):
		s.concludeOrphan(a, over)
	case isForeign(a.Resource):
		f.Verdict, f.Rule = Foreign, "foreign-owner"
		f.Why = "its owner is no container ID; --foreign releases it by its address"
		f.Releasable = over && s.c.Policy.Foreign
		if !s.c.Policy.Foreign {
			f.Wait = -1
		}
	case a.Resource.Owner.Shape == claim.ShapeNone:
		f.Verdict, f.Rule, f.Why = Malformed, "empty-file", "names no owner; nobody holds the address"
		f.Releasable, f.BootProven = over || a.dead, a.dead
	case a.dead:
		f.Verdict, f.Rule, f.Why = Leaked, "boot-past", "its sandbox is of an earlier boot and every witness says absent"
		f.Releasable, f.BootProven, f.Wait = true, true, 0
	case why != "":
		f.Verdict, f.Rule, f.Why, f.Releasable, f.Wait = Leaked, "stamp-age", why, true, 0
	case over:
		f.Verdict, f.Rule = Leaked, "absent-twice"
		f.Why = s.timed("every witness said absent, twice, %s apart", elapsed.Round(time.Second))
		f.Releasable = true
	case early && twice && elapsed >= s.c.Policy.PressureGrace:
		f.Verdict, f.Rule = Leaked, "absent-under-pressure"
		f.Why = s.timed("every witness said absent, twice, %s apart, no ADD can be in flight, and the range runs out", elapsed.Round(time.Second))
		f.Releasable, f.Wait = true, 0
	default:
		f.Verdict, f.Rule = Suspect, "grace"
		f.Why = s.timed("every witness says absent; must stay so for another %s", f.Wait.Round(time.Second))
		if pressed != "" {
			f.Why += "; not sooner, though the range runs out: " + pressed
		}
	}
}

// aged judges by the stamp of our own IPAM, which proves how old a reservation is, so that
// no ADD of it can be in flight any more and one sighting is enough (with the one of the
// confirmation). why is not empty if it is old enough; else wait is how long until then,
// negative if it never is.
//
// Only plain absence: what must stay absent for longer is not proven by its age, and that the
// API server has no such Pod must be heard twice. Under
// pressure the shorter grace needs more: the namespace that the address was made for is gone
// from this kernel, and a runtime was asked.
func (s *scene) aged(a *assessment) (wait time.Duration, why string) {
	stamp := s.stampOf(a.Resource)
	if stamp == nil || a.class != classAbsent || a.slow || a.odd != nil && a.odd.podGone {
		return -1, ""
	}
	age, ok := s.now.Since(claim.Instant{Boot: stamp.Boot, Mono: stamp.Mono})
	if !ok {
		return -1, ""
	}
	if age >= s.c.Policy.Grace {
		return 0, s.timed("its stamp says reserved %s ago, so no ADD of it is in flight, and every witness says absent", age.Round(time.Second))
	}
	wait = s.c.Policy.Grace - age
	if p := s.c.Policy.PressureGrace; p > 0 && s.cri != nil && (len(s.c.Policy.Pressed) == 0 || s.underPressure(a.Resource)) && stamp.Netns != 0 && s.byID[stamp.Netns] == nil {
		if age >= p {
			return 0, s.timed("its stamp says reserved %s ago, for a network namespace that is gone, and every witness says absent", age.Round(time.Second))
		}
		wait = min(wait, p-age)
	}
	return wait, ""
}

// timed formats a reason and keeps the last one, since most have begun their grace
// together.
func (s *scene) timed(format string, d time.Duration) string {
	if format != s.lastFormat || d != s.lastTime {
		s.lastFormat, s.lastTime, s.lastWhy = format, d, fmt.Sprintf(format, d)
	}
	return s.lastWhy
}

func isForeign(r *claim.Resource) bool {
	return r.Kind == claim.KindReservation && r.Owner.Shape == claim.ShapeForeign
}

// concludeOrphan: the address sits in a namespace that no process uses and no
// complete runtime knows. It goes after the orphan grace, with its namespace, where
// a runtime that would name it that way answered; otherwise only when asked.
func (s *scene) concludeOrphan(a *assessment, over bool) {
	f := a.Finding
	f.Verdict, f.Rule = Orphaned, "netns-unused"
	f.Why = "held only by a network namespace that no process uses and no runtime knows"
	vouched := true
	for _, pin := range a.Netns {
		n := s.byID[pin.ID]
		if n == nil || n.Host || !s.vouched(n) {
			vouched = false
		}
	}
	if !vouched && !s.c.Policy.Orphans {
		f.Why += "; kept, since no runtime here names its namespaces that way (--orphans releases it)"
		f.Wait = -1
		return
	}
	f.Releasable = over
}

// addressVerdict names what an unowned file is, whatever the witnesses could say.
func addressVerdict(r *claim.Resource) Verdict {
	if r.Owner.Shape == claim.ShapeNone {
		return Malformed
	}
	return Foreign
}

func (s *scene) podOf(r *claim.Resource) claim.Pod {
	for _, id := range r.Owner.Aliases() {
		if p, ok := s.pods[id]; ok {
			return p
		}
	}
	return claim.Pod{}
}

// keepUnlisted carries over the sightings of stores that could not be listed whole:
// not seeing a file there is no proof that it is gone. A file that could not be read
// keeps its sightings too, and so do stores that this pass did not look at, within
// this boot.
func (s *scene) keepUnlisted(old, next Memory) Memory {
	unread := map[string]bool{}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			if r := &s.c.Snapshots[i].Resources[j]; r.Problem != "" {
				unread[r.Path] = true
			}
		}
	}
	var kept []*Sighting
	for _, v := range old {
		st := s.storeOf(v.Path)
		unseen := unread[v.Path] || st != nil && st.Problem != "" || st == nil && v.First.Boot == s.now.Boot
		if unseen && next.Get(v.Key) == nil {
			kept = append(kept, v)
		}
	}
	return next.With(kept...)
}

func (s *scene) storeOf(p string) *claim.Store {
	for i := len(p) - 1; i > 0; i-- {
		if p[i] == '/' {
			return s.stores[p[:i]]
		}
	}
	return nil
}
