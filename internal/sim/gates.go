package sim

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// The gates as duties (Duties.Gates): the oracle keeps what each process was told, and
// holds each release against it. It knows what could be remembered at most, so that a
// Subject may be more careful, and never less.

const (
	// maxAge is how old a witness's answer may be when something goes: 5 s to answer,
	// 500 ms to act.
	maxAge = 5*time.Second + 600*time.Millisecond
	minCap = 16
)

// mark is one incarnation of one path.
type mark struct {
	path  string
	ino   uint64
	ctime int64
}

// seen is what all processes together know of one incarnation.
type seen struct {
	boots []int // in which it was listed
	// runs are the beginnings of absences that somebody may remember: who hears another set
	// of witnesses begins anew, but another process, or one that dies, does not save it.
	runs []absence
}

type absence struct {
	boot  int
	since time.Duration
	who   []string // testified then
}

// since returns the earliest beginning in this boot by whoever says so now.
func (s *seen) since(boot int, who []string) (time.Duration, bool) {
	for _, a := range s.runs {
		if a.boot == boot && within(who, a.who) {
			return a.since, true
		}
	}
	return 0, false
}

// told is a witness's last answer to a process.
type told struct {
	at time.Duration // when it was asked
	claim.Testimony
}

// mark notes which incarnations a listing shows.
func (w *World) mark(r *run) {
	r.reserved = map[string]int{}
	for p, f := range w.ledger.files {
		r.reserved[filepath.Dir(p)]++
		w.markFile(f)
	}
}

func (w *World) markFile(f *file) {
	st, err := w.disk.Lstat(f.path)
	if err != nil {
		return
	}
	f.mark = mark{f.path, st.Ino, st.Ctime}
	s := w.seen[f.mark]
	if s == nil {
		s = &seen{}
		w.seen[f.mark] = s
	}
	if n := len(s.boots); n == 0 || s.boots[n-1] < w.bootN {
		s.boots = append(s.boots, w.bootN)
	}
}

// hear takes an answer in. ok: it is whole, and its witness sees the node.
func (w *World) hear(r *run, t told, ok bool) {
	bit := witnessBit(t.Witness)
	r.told[slices.Index([]int{1, 2, 4, 8}, bit)] = t
	if ok {
		r.unheard &^= bit
		r.unasked &^= bit
	} else {
		r.unheard |= bit
		r.unasked |= bit
	}
	if ok && t.Witness == claim.WitnessBoot {
		w.knownBoots[w.bootN] = true
	}
	if !w.subject.Duties().Gates {
		return
	}
	for _, f := range w.ledger.files {
		if f.seq > r.listed {
			w.markFile(f) // the listing may have come to it after that
		}
	}
	if r.unheard == 0 {
		w.sighting(r)
	}
}

// hearKube takes the API server's answer in. It is one more moment at which everybody has
// spoken.
func (w *World) hearKube(r *run, t told) {
	r.kube = &t
	if w.subject.Duties().Gates && r.unheard == 0 {
		w.sighting(r)
	}
}

// kubeFor is how old the API server's word may be when something goes.
const kubeFor = 30*time.Second + maxAge

// checkKube: where the API server must answer, something was released. It has, since the
// listing, and not long ago.
func (w *World) checkKube(r *run, f *file) {
	at := w.mono
	if r.lockAt > 0 {
		at = r.lockAt
	}
	switch {
	case r.kube == nil || r.kube.State != claim.StateComplete || w.kubeContradicted(r):
		w.violate("I5", "%s was released, and the API server, which must answer, had not", f.path)
	case r.kube.at < r.listedAt:
		w.violate("I6", "%s was released on the word of the API server, asked before the listing", f.path)
	case at-r.kube.at > kubeFor:
		w.violate("G3", "%s was released %s after the API server was asked", f.path, at-r.kube.at)
	}
}

// kubeContradicted: the runtimes have Ready sandboxes of Pods from the API, and it lists none
// of these Pods (case F6).
func (w *World) kubeContradicted(r *run) bool {
	c, ready := r.told[2].CRI, 0
	if c == nil {
		return false
	}
	for i := range c.Sandboxes {
		if b := &c.Sandboxes[i]; b.Ready && b.FromAPI {
			if ready++; r.kubeHas(b.Pod.UID) {
				return false
			}
		}
	}
	return ready > 0
}

func (r *run) kubeHas(uid string) bool {
	return slices.ContainsFunc(r.kube.Kube.Pods, func(p claim.KubePod) bool { return p.UID == uid })
}

// kubeGone: the API server was heard, and lacks the Pod of b, which came from it.
func (w *World) kubeGone(r *run, b *claim.Sandbox) bool {
	return r.kube != nil && r.kube.State == claim.StateComplete && b.FromAPI && !w.kubeContradicted(r) && !r.kubeHas(b.Pod.UID)
}

// podHas: by the API server a Pod has f's address, and no other reservation of it is there.
func (w *World) podHas(r *run, f *file) bool {
	if r.kube == nil || r.kube.State != claim.StateComplete || w.kubeContradicted(r) {
		return false
	}
	for _, g := range w.ledger.files {
		if g != f && g.addr == f.addr {
			return false
		}
	}
	return slices.ContainsFunc(r.kube.Kube.Pods, func(p claim.KubePod) bool {
		return !p.Ended() && slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return a.String() == f.addr })
	})
}

// sighting is a moment at which every required witness has spoken.
func (w *World) sighting(r *run) {
	if !r.judged {
		r.alive = r.alive[:0]
	}
	for _, f := range w.ledger.files {
		s := w.seen[f.mark]
		if s == nil {
			continue
		}
		who, _, alive := w.says(r, f)
		switch {
		case alive:
			r.alive = append(r.alive, s)
		case !r.judged:
			if _, ok := s.since(w.bootN, who); !ok {
				s.runs = append(s.runs, absence{w.bootN, w.mono, who})
			}
		}
	}
}

// noMemory: containerd lists nothing at all while shims of it run, so that it has not read
// yet what there is, or has forgotten it.
func (r *run) noMemory(c *claim.CRIFacts) bool {
	p := r.told[1].Process
	return c != nil && p != nil && len(c.Sandboxes) == 0 && len(c.Runtimes) == 1 && c.Runtimes[0].Name == "containerd" &&
		c.Runtimes[0].State == claim.StateComplete && slices.ContainsFunc(p.Shims, func(s claim.Shim) bool { return s.Namespace == "k8s.io" })
}

// within: whoever says so now also said it then. Of a runtime that did not list it at all
// then, NotReady is no less.
func within(now, then []string) bool {
	return !slices.ContainsFunc(now, func(x string) bool {
		return !slices.Contains(then, x) && !slices.Contains(then, strings.TrimPrefix(x, notReady))
	})
}

// notReady begins what a runtime says that has it, NotReady.
const notReady = "NotReady at "

// says is what a process was last told of f: who says so, whether an absence by that takes
// the longer grace, and whether somebody says alive. Where it is not plain it is taken for
// plain absence.
func (w *World) says(r *run, f *file) (who []string, slow, alive bool) {
	if w.podHas(r, f) {
		return nil, false, true
	}
	kernel := "kernel"
	noOwner := claim.ParseOwner(f.content).Shape == claim.ShapeNone
	if k := r.told[0].Kernel; k != nil && f.c != nil && !noOwner {
		for i := range k.Netns {
			n := &k.Netns[i]
			if n.ID != f.c.nsID || !slices.ContainsFunc(n.Addrs, func(a claim.IfAddr) bool { return a.Addr.String() == f.addr }) {
				continue
			}
			if n.Procs > 0 || n.FDHolders > 0 {
				return nil, false, true
			}
			kernel, slow = fmt.Sprint("netns ", n.ID), true
		}
	}
	if p := r.told[1].Process; p != nil && f.c != nil && !noOwner {
		for i := range p.Hits {
			if p.Hits[i].ID == f.c.id {
				return nil, false, true
			}
		}
	}
	who = append(make([]string, 0, 4), kernel, "process")
	slow = slow || noOwner
	c := r.told[2].CRI
	if c == nil {
		return who, slow, false
	}
	stale, gone := "", false
	for i := range c.Sandboxes {
		b := &c.Sandboxes[i]
		if f.c == nil || noOwner || b.ID != f.c.id {
			continue
		}
		if b.Ready {
			return nil, false, true
		}
		stale = b.Endpoint
		newer := slices.ContainsFunc(c.Sandboxes, func(o claim.Sandbox) bool {
			return o.Ready && o.Endpoint == b.Endpoint && o.Pod.UID == b.Pod.UID && o.Created > b.Created
		})
		gone = gone || !newer && w.kubeGone(r, b)
		slow = slow || !newer && !gone
	}
	for i := range c.Runtimes {
		if rt := &c.Runtimes[i]; rt.State == claim.StateComplete && rt.Endpoint != stale {
			who = append(who, rt.Endpoint)
		}
	}
	if stale != "" && kernel != "kernel" {
		return nil, false, true // NotReady is gone only without its namespace
	}
	if stale != "" {
		who = append(who, notReady+stale)
	}
	if gone {
		who = append(who, "its Pod is gone")
	}
	return who, slow, false
}

// judge is the moment at which a process has decided what is to go. What does not pass
// gate 2 is noted with the reason.
func (w *World) judge(r *run) {
	r.judged, r.unasked, r.unjudged = true, w.witnesses(), r.unheard
	r.early, r.proven = map[string]string{}, map[string]bool{}
	r.doubles = w.toldDoubles(r)
	for p, f := range w.ledger.files {
		if s := w.seen[f.mark]; s != nil {
			r.proven[p] = w.bootProven(s) || w.stampedBefore(f)
		}
		if why := w.early(r, f); why != "" {
			r.early[p] = why
		}
	}
}

func (w *World) early(r *run, f *file) string {
	s := w.seen[f.mark]
	if s == nil {
		return "it was not listed"
	}
	who, slow, alive := w.says(r, f)
	need := grace
	if slow {
		need = orphanGrace
	}
	since, ok := s.since(w.bootN, who)
	switch d := w.mono - since; {
	case alive:
		return "it was said to be alive"
	case w.bootProven(s) || w.stampedBefore(f) || w.stampProves(r, f, slow) || ok && d >= pressureGrace && w.presses(r) && !slow:
		return ""
	case !ok:
		return "nobody has seen it absent in this boot"
	case d < need:
		return fmt.Sprintf("it was seen absent for %s, and must be for %s", d.Round(time.Second), need)
	}
	return ""
}

// bootProven: it was seen in a boot that was known, and is over.
func (w *World) bootProven(s *seen) bool {
	return slices.ContainsFunc(s.boots, func(b int) bool { return b < w.bootN && w.knownBoots[b] })
}

// checkGates holds a release against gates 1, 2, 3 and 9.
func (w *World) checkGates(r *run, f *file) {
	if !r.judged {
		w.violate("G3", "%s was released before anything was judged", f.path)
		return
	}
	if dir := filepath.Dir(f.path); r.doubles[dir] != "" && w.presses(r) {
		w.violate("line", "%s was released, though two namespaces hold %s of its network", f.path, r.doubles[dir])
	}
	if r.unjudged != 0 {
		w.violate("G1", "%s was released, and witnesses %04b had not testified since the listing when it was judged", f.path, r.unjudged)
	}
	if why := r.early[f.path]; why != "" {
		w.violate("G2", "%s was released, though %s", f.path, why)
	}
	if r.unasked != 0 {
		w.violate("G3", "%s was released and witnesses %04b were not asked again since it was judged", f.path, r.unasked)
	}
	// What stops a process while it holds the lock nobody can help: the age counts there.
	at := w.mono
	if r.lockAt > 0 {
		at = r.lockAt
	}
	for i, t := range r.told {
		if w.witnesses()&(1<<i) != 0 && at-t.at > maxAge {
			w.violate("G3", "%s was released %s after %s was asked", f.path, at-t.at, t.Witness)
		}
	}
	if _, _, alive := w.says(r, f); alive {
		w.violate("G3", "%s was released, though the last answers call it alive", f.path)
	}
	s, dir := w.seen[f.mark], filepath.Dir(f.path)
	if r.cmd.Force || s == nil || r.proven[f.path] {
		return
	}
	r.capped = append(r.capped, f)
	n, alone := 0, true
	for _, g := range r.capped {
		if filepath.Dir(g.path) == dir {
			n++
			alone = alone && g.c != nil && f.c != nil && g.c.id == f.c.id
		}
	}
	limit := w.cfg.Cap
	if limit == 0 {
		limit = max(minCap, (r.reserved[dir]+9)/10)
	}
	if n > limit && !alone {
		w.violate("G9", "%s was released, the %d-th of its store in one sweep, over the cap of %d", f.path, n, limit)
	}
}

// checkNetns holds the removal of a namespace against the rules for orphans.
func (w *World) checkNetns(r *run, n *netns) {
	if !w.subject.Duties().Gates {
		return
	}
	if w.rts[n.c.rt].endpoint == "" {
		w.violate("orphan", "%s was removed, for whose name no runtime vouches", n.mount)
	}
	for _, a := range n.addrs {
		if w.ledger.holds[a.Addr.String()] && !r.dirty {
			w.violate("I3", "%s was removed, which has %s, that a person holds", n.mount, a.Addr)
		}
	}
	if r.unheard != 0 {
		w.violate("I5", "%s was removed on a pass where witnesses %04b had not testified wholly", n.mount, r.unheard)
	}
	if r.unasked != 0 || !r.judged {
		w.violate("G3", "%s was removed and witnesses %04b were not asked again since it was judged", n.mount, r.unasked)
	}
}

// remembered: what a process was told to be alive is known from now on.
func (r *run) remembered() {
	for _, s := range r.alive {
		s.runs = nil
	}
}

// storeLock reports whether a path is the lock of a store.
func storeLock(path string) bool {
	return strings.HasPrefix(path, dataDir) && strings.HasSuffix(path, "/lock")
}
