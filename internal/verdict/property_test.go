package verdict_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// seeds is how many random nodes each property is tried on.
const seeds = 2000

var (
	someIDs   = []string{idA, idB, idC, idAA, idShort, "0a1b2c3d-1111-2222-3333-444455556666", "default-" + idA}
	someAddrs = []string{"10.1.0.9", "10.1.0.10", "10.1.0.11", "fd00::9", "fd00::a"}
	somePaths = []string{cniMount, cniMount2, podmanMount, "/run/netns/0a1b2c3d-1111-2222-3333-444455556666"}
)

func pick[T any](r *rand.Rand, list []T) T { return list[r.Intn(len(list))] }

// randomNode makes a small crowded node: few IDs, addresses and namespaces, so that they
// meet. Mostly dead, or nothing would ever be releasable.
func randomNode(t testing.TB, seed int64) *node {
	r := rand.New(rand.NewSource(seed))
	n := newNode(t)
	n.bystander()
	n.boxes[0].ID, n.hits[0].ID, n.shims[0].ID = "bystander", "bystander", "bystander"
	seen := map[string]bool{}
	for range 1 + r.Intn(5) {
		dir, addr := pick(r, []string{netDir, netDir, otherDir}), pick(r, someAddrs)
		if seen[dir+addr] {
			continue
		}
		seen[dir+addr] = true
		content := pick(r, someIDs) + "\r\n" + pick(r, []string{"eth0", "eth0", "net1"})
		switch r.Intn(12) {
		case 0:
			content = ""
		case 1:
			content = "reserved-vip"
		}
		p := n.file(dir, addr, content)
		if r.Intn(25) == 0 {
			n.at(p).Problem = "EIO"
		}
	}
	for i := range r.Intn(4) {
		var addrs []string
		if r.Intn(2) == 0 {
			addrs = append(addrs, pick(r, someAddrs))
		}
		n.netns(uint64(50+i), r.Intn(2), somePaths[i], addrs...)
	}
	for range r.Intn(3) {
		id := pick(r, someIDs)
		if p := "/var/lib/cni/results/pods-" + id + "-eth0"; !seen[p] {
			seen[p] = true
			n.cache(id, pick(r, append(somePaths, "", "/proc/9/ns/net")), pick(r, someAddrs))
		}
	}
	for range r.Intn(2) {
		n.proc(pick(r, someIDs), pick(r, []string{"cgroup", "shim", "cni"}), uint64(50+r.Intn(3)))
	}
	for range r.Intn(3) {
		b := n.box(pick(r, someIDs), pick(r, []string{"u1", "u2"}), r.Intn(3) == 0)
		if r.Intn(2) == 0 {
			b.Netns = pick(r, somePaths)
		}
		if r.Intn(3) == 0 {
			b.Addrs = append(b.Addrs, ip(pick(r, someAddrs)))
		}
	}
	n.policy.Orphans, n.policy.Foreign = r.Intn(2) == 0, r.Intn(2) == 0
	if r.Intn(10) == 0 {
		n.policy.Holds = []Hold{{Addr: ip(pick(r, someAddrs))}}
	}
	if r.Intn(20) == 0 {
		n.stores[0].Problem = "EIO"
	}
	if r.Intn(2) == 0 {
		n.kube(r.Intn(2) == 0)
		n.pods = slices.DeleteFunc(n.pods, func(p claim.KubePod) bool { return p.UID != "bystander" && r.Intn(2) == 0 })
		for range r.Intn(2) {
			p := n.pod(pick(r, []string{"u1", "u2", "u3"}), pick(r, []string{"Pending", "Running", "Failed"}), pick(r, someAddrs))
			p.HostNetwork = r.Intn(8) == 0
		}
	}
	return n
}

// later lets a random node be seen twice across every grace, or through a reboot, and
// gives the Case of the second sweep, with every detail.
func later(n *node, seed int64) *Case {
	n.sweep()
	if seed%5 == 0 {
		n.past = append(n.past, n.now.Boot)
		n.now.Boot = "boot-3"
		n.wait(time.Minute)
	} else {
		n.wait([]time.Duration{0, 1, grace, orphanGrace, 2 * orphanGrace}[seed%5])
	}
	n.asked = n.apiServer
	return n.build(seed%7 != 0, seed%3 == 0)
}

func each(t *testing.T, f func(t *testing.T, seed int64, c *Case, j *Judgement)) {
	released := 0
	for seed := range int64(seeds) {
		n := randomNode(t, seed)
		c := later(n, seed)
		j := Judge(c)
		for _, x := range j.Findings {
			if x.Releasable {
				released++
			}
		}
		f(t, seed, c, j)
		if t.Failed() {
			b, _ := json.Marshal(c)
			t.Fatalf("seed %d, the case is %s", seed, b)
		}
	}
	if released < seeds/10 {
		t.Errorf("only %d releasable in %d cases: the property proves little", released, seeds)
	}
}

// facts is an independent, simple-minded look at a Case: whose ID is alive by any word,
// and which addresses are held by a namespace in use.
type facts struct {
	alive  map[string]bool
	held   map[netip.Addr][]uint64
	tenant map[uint64][]string // by any evidence
}

func factsOf(c *Case) facts {
	f := facts{map[string]bool{}, map[netip.Addr][]uint64{}, map[uint64][]string{}}
	mounts, used := map[string]uint64{}, map[uint64]bool{}
	live := func(netns uint64, id string) {
		f.tenant[netns] = append(f.tenant[netns], id)
		if used[netns] {
			f.alive[id] = true
		}
	}
	for _, t := range c.Testimonies {
		if t.Kernel != nil {
			for _, n := range t.Kernel.Netns {
				used[n.ID] = n.Used()
				for _, m := range n.Mounts {
					mounts[m] = n.ID
				}
				for _, a := range n.Addrs {
					if n.Used() && !slices.Contains(f.held[a.Addr], n.ID) {
						f.held[a.Addr] = append(f.held[a.Addr], n.ID)
					}
				}
			}
		}
		if t.Process != nil {
			for _, h := range t.Process.Hits {
				f.alive[h.ID] = true
				if h.Via == "cgroup" {
					f.tenant[h.Netns] = append(f.tenant[h.Netns], h.ID)
				}
			}
		}
		if t.CRI != nil {
			for _, b := range t.CRI.Sandboxes {
				if b.Ready {
					f.alive[b.ID] = true
				}
				if n, ok := mounts[b.Netns]; ok {
					live(n, b.ID)
				}
			}
		}
	}
	for _, s := range c.Snapshots {
		for _, r := range s.Resources {
			if r.Cache != nil {
				if n, ok := mounts[r.Cache.Netns]; ok {
					for _, id := range r.Owner.Aliases() {
						live(n, id)
					}
				}
			}
		}
	}
	return f
}

// owns reports whether one of ids has a readable reservation for addr outside of store.
func owns(c *Case, ids []string, addr netip.Addr, store string) bool {
	for _, s := range c.Snapshots {
		for _, r := range s.Resources {
			if r.Kind != claim.KindReservation || r.Problem != "" || r.Addr != addr || r.Store == store {
				continue
			}
			if slices.ContainsFunc(r.Owner.Aliases(), func(id string) bool { return slices.Contains(ids, id) }) {
				return true
			}
		}
	}
	return false
}

// P1: nothing with any evidence of life for its owner, or with its address held by a
// namespace in use, is ever releasable. The one exception: the holder is another
// attachment that has a reservation of its own for that address (a renamed network).
func TestP1AliveIsNeverReleasable(t *testing.T) {
	each(t, func(t *testing.T, _ int64, c *Case, j *Judgement) {
		f := factsOf(c)
		for _, x := range j.Findings {
			r := x.Resource
			if !x.Releasable || r.Kind == claim.KindNetns {
				continue
			}
			for _, id := range r.Owner.Aliases() {
				if f.alive[id] {
					t.Errorf("%s is releasable by %s, though %s is alive", r.Path, x.Rule, id)
				}
			}
			if p := podWith(c, r); p != "" {
				t.Errorf("%s is releasable by %s, though the Pod %s has the address", r.Path, x.Rule, p)
			}
			if n := f.holder(c, r, r.Addr); n != 0 {
				t.Errorf("%s is releasable by %s, though namespace %d is in use and holds %s", r.Path, x.Rule, n, r.Addr)
			}
		}
	})
}

// podWith returns the UID of a Pod that has r's address by the API server, if nothing else
// reserves it.
func podWith(c *Case, r *claim.Resource) string {
	if r.Kind != claim.KindReservation || owns(c, someIDs, r.Addr, r.Store) {
		return ""
	}
	for _, t := range c.Testimonies {
		if t.Kube == nil {
			continue
		}
		for _, p := range t.Kube.Pods {
			if (p.Phase == "Pending" || p.Phase == "Running") && !p.HostNetwork && slices.Contains(p.Addrs, r.Addr) {
				return p.UID
			}
		}
	}
	return ""
}

// holder returns a namespace in use that holds addr, and that is not excused by another
// attachment's own reservation; 0: there is none.
func (f facts) holder(c *Case, r *claim.Resource, addr netip.Addr) uint64 {
	for _, n := range f.held[addr] {
		if r.Owner.Shape == claim.ShapeContainer && len(f.held[addr]) == 1 && owns(c, f.tenant[n], addr, r.Store) {
			continue
		}
		return n
	}
	return 0
}

func releasable(j *Judgement) map[string]bool {
	m := map[string]bool{}
	for _, f := range j.Findings {
		if f.Releasable {
			m[f.Resource.Path] = true
		}
	}
	return m
}

func clone(t testing.TB, c *Case) *Case {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var out Case
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// copied is a Case whose testimonies and facts can be added to; P3 shows that Judge
// changes none of what it shares.
func copied(c *Case) *Case {
	d := *c
	d.Testimonies = slices.Clone(c.Testimonies)
	for i := range d.Testimonies {
		x := &d.Testimonies[i]
		if x.Kernel != nil {
			k := *x.Kernel
			k.Netns = slices.Clone(k.Netns)
			x.Kernel = &k
		}
		if x.Process != nil {
			x.Process = &claim.ProcessFacts{Hits: slices.Clone(x.Process.Hits), Shims: x.Process.Shims}
		}
		if x.CRI != nil {
			k := *x.CRI
			k.Sandboxes = slices.Clone(k.Sandboxes)
			x.CRI = &k
		}
	}
	return &d
}

// P2, first half: no silence makes anything releasable.
func TestP2SilenceReleasesNothing(t *testing.T) {
	each(t, func(t *testing.T, _ int64, c *Case, j *Judgement) {
		for i := range c.Testimonies {
			if w := c.Testimonies[i].Witness; w == claim.WitnessKube && !slices.Contains(c.Policy.Required, w) {
				continue // only what it says counts, not that it says it
			}
			d := copied(c)
			d.Testimonies[i] = claim.Testimony{Witness: d.Testimonies[i].Witness, State: claim.StateSilent, Detail: "x", Asked: d.Testimonies[i].Asked}
			for p := range releasable(Judge(d)) {
				t.Errorf("%s is releasable while %s is silent", p, d.Testimonies[i].Witness)
			}
			d.Testimonies = slices.Delete(d.Testimonies, i, i+1)
			for p := range releasable(Judge(d)) {
				t.Errorf("%s is releasable without any word of a witness", p)
			}
		}
	})
}

// P2, second half: no fact of life of an owner makes anything of that owner releasable.
func TestP2LifeReleasesNothingOfItsOwner(t *testing.T) {
	each(t, func(t *testing.T, seed int64, c *Case, j *Judgement) {
		before := releasable(j)
		for _, id := range someIDs {
			for name, add := range map[string]func(*Case){
				"process": func(d *Case) {
					p := d.Testimonies[1].Process
					p.Hits = append(p.Hits, claim.ProcessHit{ID: id, PID: 9, Via: "cgroup", Netns: uint64(50 + seed%3)})
				},
				"sandbox": func(d *Case) {
					p := d.Testimonies[2].CRI
					p.Sandboxes = append(p.Sandboxes, claim.Sandbox{ID: id, Endpoint: endpoint, Ready: true, Created: 1})
				},
			} {
				d := copied(c)
				add(d)
				k := Judge(d)
				for _, f := range k.Findings {
					if f.Releasable && slices.Contains(f.Resource.Owner.Aliases(), id) {
						t.Errorf("%s is releasable (before: %v) though a %s of %s is alive", f.Resource.Path, before[f.Resource.Path], name, id)
					}
				}
			}
		}
	})
}

// P3: the same Case gives the same Judgement, and is not changed.
func TestP3PureAndDeterministic(t *testing.T) {
	each(t, func(t *testing.T, _ int64, c *Case, j *Judgement) {
		before, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if d := diff(j, Judge(c)); d != "" {
				t.Errorf("two judgements of one case differ: %s", d)
			}
		}
		if after, _ := json.Marshal(c); string(after) != string(before) {
			t.Errorf("the case was changed: %s", gocmp.Diff(string(before), string(after)))
		}
	})
}

// P4, I10: a saved Case gives the same Judgement.
func TestP4SavedCase(t *testing.T) {
	each(t, func(t *testing.T, _ int64, c *Case, j *Judgement) {
		if d := diff(j, Judge(clone(t, c))); d != "" {
			t.Errorf("judged again from JSON: %s", d)
		}
	})
}

// P5: nothing is releasable at its first sighting unless an earlier boot proves it dead,
// and that never without a sighting.
func TestP5FirstSighting(t *testing.T) {
	each(t, func(t *testing.T, seed int64, c *Case, j *Judgement) {
		known := map[Key]*Sighting{}
		for _, s := range c.Memory {
			known[s.Key] = s
		}
		for _, f := range j.Findings {
			s := known[Key{Path: f.Resource.Path, Inc: f.Resource.Inc}]
			seen := s != nil
			if !seen {
				s = &Sighting{}
			}
			if f.Releasable && !f.BootProven && (s.Absent.Boot != c.Now.Boot || s.Absent.Mono >= c.Now.Mono) {
				t.Errorf("%s is releasable by %s at its first sighting", f.Resource.Path, f.Rule)
			}
			if f.BootProven && (!seen || s.First.Boot == c.Now.Boot) {
				t.Errorf("%s is proven dead by the boot, seen %v in %s", f.Resource.Path, seen, s.First.Boot)
			}
		}
		d := clone(t, c)
		d.Memory = nil
		for p := range releasable(Judge(d)) {
			t.Errorf("%s is releasable without memory", p)
		}
	})
}

// P6: the order of what was listed and said changes the order of the findings alone.
func TestP6OrderDoesNotMatter(t *testing.T) {
	each(t, func(t *testing.T, seed int64, c *Case, j *Judgement) {
		r := rand.New(rand.NewSource(seed))
		d := clone(t, c)
		shuffle(r, d.Testimonies)
		shuffle(r, d.Snapshots)
		shuffle(r, d.Memory)
		for i := range d.Snapshots {
			shuffle(r, d.Snapshots[i].Resources)
			shuffle(r, d.Snapshots[i].Stores)
		}
		for _, x := range d.Testimonies {
			if x.Kernel != nil {
				shuffle(r, x.Kernel.Netns)
			}
			if x.Process != nil {
				shuffle(r, x.Process.Hits)
			}
			if x.CRI != nil {
				shuffle(r, x.CRI.Sandboxes)
			}
			if x.Kube != nil {
				shuffle(r, x.Kube.Pods)
			}
		}
		// Texts name the first of several: only what is decided is compared.
		decided := func(j *Judgement) []string {
			var list []string
			for _, f := range j.Findings {
				list = append(list, fmt.Sprint(f.Resource.Path, " ", f.Verdict, " ", f.Releasable, " ", f.BootProven, " ", f.Wait, " ", f.Absent().Mono))
			}
			slices.SortFunc(list, cmp.Compare[string])
			return list
		}
		k := Judge(d)
		if x := gocmp.Diff(decided(j), decided(k)); x != "" {
			t.Errorf("in another order: %s", x)
		}
		if x := gocmp.Diff(j.Memory, k.Memory); x != "" {
			t.Errorf("in another order the memory is: %s", x)
		}
		if j.Needs != k.Needs {
			t.Errorf("in another order it needs %v, not %v", k.Needs, j.Needs)
		}
	})
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
}

func diff(a, b *Judgement) string {
	if x, y := text(a), text(b); x != y {
		return gocmp.Diff(x, y)
	}
	return ""
}

// text is the whole Judgement, its memory in order.
func text(j *Judgement) string {
	b, err := json.Marshal(struct {
		Findings []Finding
		Memory   Memory
		Needs    Needs
		Silent   []string
		Vantage  string
	}{j.Findings, j.Memory, j.Needs, j.Silent, j.Vantage})
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// FuzzJudge: no Case, however made, makes Judge panic or release without the facts that
// a release stands on.
func FuzzJudge(f *testing.F) {
	for seed := range int64(20) {
		b, err := json.Marshal(later(randomNode(f, seed), seed))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"snapshots":[{"resources":[{"kind":"cache"},{"kind":"netns"},{"kind":"reservation"}]}],"testimonies":[{"state":"complete","witness":"kernel"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c Case
		if json.Unmarshal(b, &c) != nil {
			return
		}
		j := Judge(&c)
		for _, x := range j.Findings {
			if x.Resource == nil {
				t.Fatal("a finding without a resource")
			}
			if x.Releasable {
				mayRelease(t, &c, x)
			}
		}
		if k := Judge(&c); text(j) != text(k) {
			t.Error("not deterministic")
		}
	})
}

// mayRelease checks what every release stands on, straight from the Case.
func mayRelease(t *testing.T, c *Case, x Finding) {
	t.Helper()
	if c.Now.Boot == "" {
		t.Error("released without a boot ID")
	}
	heard := map[string]bool{}
	for _, w := range c.Testimonies {
		if w.State == claim.StateComplete && w.Asked.Boot == c.Now.Boot {
			heard[w.Witness] = true
		}
	}
	need := []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessBoot}
	if !c.Policy.CRINone {
		need = append(need, claim.WitnessCRI)
	}
	if slices.Contains(c.Policy.Required, claim.WitnessKube) {
		need = append(need, claim.WitnessKube)
	}
	for _, w := range need {
		if !heard[w] {
			t.Errorf("released without %s", w)
		}
		if w != claim.WitnessBoot && !slices.Contains(c.Policy.Required, w) {
			t.Errorf("released though the policy leaves out %s", w)
		}
	}
	if !slices.ContainsFunc(c.Testimonies, func(w claim.Testimony) bool { return w.Kernel != nil && w.Kernel.Vantage.Proven }) {
		t.Error("released without vantage")
	}
	switch x.Verdict {
	case Leaked, Orphaned, Malformed, Foreign:
	default:
		t.Errorf("%s is releasable", x.Verdict)
	}
	if x.Resource.Kind == claim.KindReservation && x.Resource.Owner.Shape == claim.ShapeForeign && !c.Policy.Foreign {
		t.Error("a foreign reservation is released without being asked")
	}
	for _, w := range c.Testimonies {
		if w.Witness == claim.WitnessCRI && w.CRI != nil && heard[w.Witness] && !w.CRI.Detailed && !c.Policy.CRINone {
			t.Error("released before the runtime was asked who has the address")
		}
	}
	if x.Resource.Problem != "" && x.Resource.Kind != claim.KindCache {
		t.Error("released though it could not be read")
	}
	if !slices.ContainsFunc(c.Memory, func(s *Sighting) bool {
		return s.Path == x.Resource.Path && s.Inc == x.Resource.Inc
	}) {
		t.Error("released at the first sighting")
	}
}
