package verdict_test

import (
	"encoding/json"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

const pressure = 30 * time.Second

// stamp lays a stamp of that age onto a reservation, made for namespace netns in boot.
func (n *node) stamp(path, boot string, age time.Duration, netns uint64) {
	n.at(path).Stamp = &claim.Stamp{Boot: boot, Mono: n.now.Mono - age, Netns: netns}
}

// Every row departs by one thing from a stamped reservation that was never seen before, on a
// node where a living Pod is and all witnesses say absent. There is one sweep: nothing is
// remembered, so only the stamp can release. The pairs stand together.
func TestStampTable(t *testing.T) {
	const (
		p    = netDir + "/10.1.0.9"
		gone = 4026530000 // a namespace that no longer is
	)
	silence := func(w string) func(*node) { return func(n *node) { n.silent[w] = "timed out" } }
	press := func(f func(*node)) func(*node) {
		return func(n *node) {
			n.policy.PressureGrace = pressure
			if f != nil {
				f(n)
			}
		}
	}
	for _, r := range []struct {
		name  string
		age   time.Duration
		netns uint64
		set   func(*node)
		want  Verdict
		rel   bool
		rule  string
	}{
		{name: "at the grace", age: grace, want: Leaked, rel: true, rule: "stamp-age"},
		{name: "a nanosecond below it", age: grace - 1, want: Suspect},
		{name: "made this instant", age: 0, want: Suspect},
		{name: "no stamp", age: grace, set: func(n *node) { n.at(p).Stamp = nil }, want: Suspect},
		{name: "a stamp of the future", age: -1, want: Suspect},
		{name: "far in the future", age: -1000 * time.Hour, want: Suspect},
		{name: "old by the wall clock alone", age: time.Second, set: func(n *node) { n.now.Wall = n.now.Wall.Add(1000 * time.Hour) }, want: Suspect},

		{name: "a boot that our history saw replaced", age: time.Second, set: func(n *node) { n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-1"} }, want: Leaked, rel: true, rule: "boot-past"},
		{name: "another boot, old, not in our history", age: 10 * grace, set: func(n *node) { n.at(p).Stamp.Boot = "boot-1" }, want: Suspect},
		{name: "another boot is past", age: 10 * grace, set: func(n *node) { n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-0"} }, want: Suspect},
		{name: "the present boot is in the history too", age: time.Second, set: func(n *node) { n.past = []string{"boot-2"} }, want: Suspect},
		{name: "no boot in the stamp", age: 10 * grace, set: func(n *node) { n.at(p).Stamp.Boot, n.past = "", []string{""} }, want: Suspect},
		{name: "our own boot is not known", age: 10 * grace, set: func(n *node) { n.now.Boot = "" }, want: Unknown},
		{name: "past boot, and alive", age: grace, set: func(n *node) { n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-1"}; n.box(idA, "a", true) }, want: InUse},
		{name: "past boot, boot silent", age: grace, set: func(n *node) {
			n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-1"}
			n.silent["boot"] = "damaged"
		}, want: Unknown},

		{name: "pressure: namespace gone, at the pressure grace", age: pressure, netns: gone, set: press(nil), want: Leaked, rel: true, rule: "stamp-age"},
		{name: "pressure: a nanosecond below it", age: pressure - 1, netns: gone, set: press(nil), want: Suspect},
		{name: "no pressure", age: pressure, netns: gone, want: Suspect},
		{name: "pressure: namespace not known", age: pressure, netns: 0, set: press(nil), want: Suspect},
		{name: "pressure: namespace there, empty", age: pressure, netns: gone, set: press(func(n *node) { n.netns(gone, 0, "") }), want: Suspect},
		{name: "pressure: its namespace is in use, by nobody known", age: pressure, netns: gone, set: press(func(n *node) { n.netns(gone, 1, cniMount, "10.1.0.77") }), want: InUse},
		{name: "its namespace is in use by nobody known, at the grace", age: grace, netns: gone, set: press(func(n *node) { n.netns(gone, 1, cniMount, "10.1.0.77") }), want: InUse},
		{name: "the inode is another's by now, who has reserved what it holds", age: grace, netns: gone, set: press(func(n *node) {
			n.netns(gone, 1, cniMount, "10.1.0.77")
			n.reserve("10.1.0.77", idB)
		}), want: Leaked, rel: true, rule: "stamp-age"},
		{name: "the inode is another's by now, who is known", age: grace, netns: gone, set: press(func(n *node) {
			n.netns(gone, 1, cniMount, "10.1.0.77")
			n.reserve("10.1.0.77", idB)
			n.proc(idB, "cgroup", gone)
		}), want: Leaked, rel: true, rule: "stamp-age"},
		{name: "pressure: it is the host's", age: pressure, netns: 1, set: press(nil), want: Suspect},
		{name: "pressure: of another boot", age: pressure, netns: gone, set: press(func(n *node) { n.at(p).Stamp.Boot = "boot-1" }), want: Suspect},
		{name: "pressure without any runtime", age: pressure, netns: gone, set: press(func(n *node) { n.policy.CRINone = true; n.silent["cri"] = "none" }), want: Suspect},
		{name: "no runtime, at the grace", age: grace, netns: gone, set: press(func(n *node) { n.policy.CRINone = true; n.silent["cri"] = "none" }), want: Leaked, rel: true, rule: "stamp-age"},
		{name: "pressure, and its process lives", age: pressure, netns: gone, set: press(func(n *node) { n.proc(idA, "cni", 1) }), want: InUse},
		{name: "pressure, and a runtime lists it", age: pressure, netns: gone, set: press(func(n *node) { n.box(idA, "a", true) }), want: InUse},
		{name: "pressure, and a namespace holds the address", age: pressure, netns: gone, set: press(func(n *node) { n.netns(50, 1, "", "10.1.0.9") }), want: InUse},

		{name: "kernel silent", age: grace, set: silence("kernel"), want: Unknown},
		{name: "process silent", age: grace, set: silence("process"), want: Unknown},
		{name: "cri silent", age: grace, set: silence("cri"), want: Unknown},
		{name: "boot silent", age: grace, set: silence("boot"), want: Unknown},
		{name: "no vantage", age: grace, set: func(n *node) { n.vantage.Proven = false }, want: Unknown},
		{name: "no vantage, past boot", age: grace, set: func(n *node) {
			n.at(p).Stamp.Boot, n.past, n.vantage.Proven = "boot-1", []string{"boot-1"}, false
		}, want: Unknown},
		{name: "no vantage, pressure", age: grace, netns: gone, set: press(func(n *node) { n.vantage.Proven = false }), want: Unknown},
		{name: "holds unread", age: grace, set: func(n *node) { n.policy.Unheld = "EIO" }, want: Unknown},
		{name: "policy without cri", age: grace, set: func(n *node) { n.policy.Required = []string{"kernel", "process"} }, want: Unknown},
		{name: "store not listed whole", age: grace, set: func(n *node) { n.stores[0].Problem = "EIO" }, want: Unknown},
		{name: "unreadable", age: grace, set: func(n *node) { n.at(p).Problem = "EIO" }, want: Unknown},

		{name: "held", age: grace, set: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, want: Held},
		{name: "held elsewhere", age: grace, set: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.10")}} }, want: Leaked, rel: true, rule: "stamp-age"},

		{name: "NotReady waits for the orphan grace, which age does not shorten", age: 10 * orphanGrace, set: func(n *node) { n.box(idA, "a", false) }, want: Suspect},
		{name: "NotReady under pressure", age: 10 * orphanGrace, netns: gone, set: press(func(n *node) { n.box(idA, "a", false) }), want: Suspect},
		{name: "NotReady, and its Pod has a newer one", age: grace, set: func(n *node) { n.box(idA, "a", false); n.box(idB, "a", true) }, want: Leaked, rel: true, rule: "stamp-age"},
		{name: "an orphaned namespace holds it", age: 10 * orphanGrace, set: func(n *node) { n.netns(50, 0, cniMount, "10.1.0.9") }, want: Orphaned},
		{name: "an orphaned namespace, under pressure", age: 10 * orphanGrace, netns: gone, set: press(func(n *node) { n.netns(50, 0, cniMount, "10.1.0.9") }), want: Orphaned},
		{name: "alive for another", age: grace, set: func(n *node) { n.box(idB, "b", true).Netns = cniMount; n.netns(50, 1, cniMount, "10.1.0.9") }, want: Conflict},

		{name: "the spare", age: grace, set: func(n *node) { n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: idA}} }, want: InUse, rule: "valid-attachment"},
		{name: "the spare, past boot", age: grace, set: func(n *node) {
			n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-1"}
			n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: idA}}
		}, want: InUse, rule: "valid-attachment"},
		{name: "valid on this interface", age: grace, set: func(n *node) {
			n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: idA, IfName: "eth0"}}
		}, want: InUse, rule: "valid-attachment"},
		{name: "valid on another interface", age: grace, set: func(n *node) {
			n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: idA, IfName: "net1"}}
		}, want: Leaked, rel: true, rule: "stamp-age"},
		{name: "valid in another network", age: grace, set: func(n *node) {
			n.policy.Valid = []claim.Attachment{{Network: "other", ContainerID: idA, IfName: "eth0"}}
		}, want: Leaked, rel: true, rule: "stamp-age"},
		{name: "another container is valid", age: grace, set: func(n *node) {
			n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: idAA}, {Network: "pods", ContainerID: idShort}, {Network: "pods"}}
		}, want: Leaked, rel: true, rule: "stamp-age"},
		{name: "an empty list of what is valid condemns nobody", age: grace - 1, set: func(n *node) { n.policy.Valid = []claim.Attachment{} }, want: Suspect},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, path := leak(t)
			n.stamp(path, "boot-2", r.age, r.netns)
			if r.set != nil {
				r.set(n)
			}
			o := n.sweep()
			o.want(path, r.want, r.rel)
			if got := o.at(path).Rule; r.rule != "" && got != r.rule {
				t.Errorf("decided by %s, want %s", got, r.rule)
			}
		})
	}
}

// No stamp hurries what has no owner or a foreign one, in which boot ever: nobody but us writes
// stamps, and ours stand on a container's.
func TestStampOfNobody(t *testing.T) {
	for _, content := range []string{"", "reserved-vip"} {
		for _, boot := range []string{"boot-1", "boot-2"} {
			n := newNode(t)
			n.bystander()
			p := n.file(netDir, "10.1.0.9", content)
			n.stamp(p, boot, 10*orphanGrace, 0)
			n.past, n.policy.Foreign, n.policy.PressureGrace = []string{"boot-1"}, true, pressure
			n.sweep().kept(p)
			n.wait(orphanGrace - 1)
			n.sweep().kept(p)
			n.wait(1) // its own rule lets it go all the same
			if o := n.sweep(); !o.at(p).Releasable {
				t.Errorf("%q is kept for ever: %s", content, o.at(p).Why)
			}
		}
	}
}

// When a stamped reservation is due is the soonest of the rules that could release it.
func TestStampWait(t *testing.T) {
	for _, r := range []struct {
		age, press time.Duration
		netns      uint64
		want       time.Duration
	}{
		{age: 0, want: grace},
		{age: time.Minute, want: grace - time.Minute},
		{age: time.Second, press: pressure, netns: 77, want: pressure - time.Second},
		{age: time.Second, press: pressure, netns: 1, want: grace - time.Second},
		{age: time.Second, press: 2 * grace, netns: 77, want: grace - time.Second},
		{age: -time.Hour, press: pressure, netns: 77, want: grace}, // as unstamped
	} {
		n, p := leak(t)
		n.stamp(p, "boot-2", r.age, r.netns)
		n.policy.PressureGrace = r.press
		o := n.sweep()
		if got := o.at(p).Wait; got != r.want {
			t.Errorf("age %s, pressure grace %s, namespace %d: due in %s, want %s", r.age, r.press, r.netns, got, r.want)
		}
		n.wait(r.want - 1)
		n.sweep().kept(p)
		n.wait(1)
		n.sweep().want(p, Leaked, true)
	}
}

// The cache entry of a stamped attachment is as old as its reservation, so neither holds the
// other up; that of any other attachment is not.
func TestStampCoversTheCacheEntry(t *testing.T) {
	for _, r := range []struct {
		name string
		set  func(n *node, p, c string)
		rel  bool
	}{
		{"its own", func(*node, string, string) {}, true},
		{"past boot", func(n *node, p, _ string) { n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-1"} }, true},
		{"without a stamp", func(n *node, p, _ string) { n.at(p).Stamp = nil }, false},
		{"of another interface", func(n *node, _, c string) { n.at(c).Owner.IfName = "net1" }, false},
		{"of another network", func(n *node, _, c string) { n.at(c).Network = "other" }, false},
		{"of another data directory", func(n *node, _, c string) {
			n.at(c).Cache.DataDir = "/srv/ipam"
			n.stores = append(n.stores, claim.Store{Dir: "/srv/ipam/pods"})
		}, false},
		{"the attachment's other reservation is young", func(n *node, _, _ string) {
			n.stamp(n.reserve("fd00::9", idA), "boot-2", time.Second, 0)
		}, false},
		{"the attachment's other reservation is of this boot", func(n *node, p, _ string) {
			n.at(p).Stamp.Boot, n.past = "boot-1", []string{"boot-1"}
			n.at(p).Stamp.Mono += 1000 * time.Hour // that boot lasted longer
			n.stamp(n.reserve("fd00::9", idA), "boot-2", time.Second, 0)
		}, false},
		{"the container's other interface is young", func(n *node, _, _ string) {
			n.stamp(n.file(netDir, "10.1.0.10", idA+"\r\nnet1"), "boot-2", time.Second, 0)
		}, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, _ := leak(t)
			n.files = nil
			c := n.cache(idA, "/run/netns/cni-gone", "10.1.0.9")
			p := n.reserve("10.1.0.9", idA)
			n.stamp(p, "boot-2", grace, 0)
			r.set(n, p, c)
			p, c = netDir+"/10.1.0.9", "/var/lib/cni/results/pods-"+idA+"-eth0"
			o := n.sweep()
			if got := o.at(c).Releasable; got != r.rel {
				t.Errorf("the cache entry: releasable %v by %s (%s), want %v", got, o.at(c).Rule, o.at(c).Why, r.rel)
			}
			// One attachment goes as a whole, which package plan sees to; the address of another
			// interface goes alone.
			if got := o.at(p).Releasable; got != r.rel && !strings.Contains(r.name, "interface is young") {
				t.Errorf("the reservation: releasable %v by %s (%s), want %v", got, o.at(p).Rule, o.at(p).Why, r.rel)
			}
		})
	}
}

// stampAll gives a random node stamps of all kinds, pressure, and valid attachments.
func stampAll(n *node, seed int64) {
	r := rand.New(rand.NewSource(seed ^ 0x57a3))
	for i := range n.files {
		if r.Intn(4) == 0 {
			continue
		}
		ages := []time.Duration{-time.Hour, 0, pressure - 1, pressure, grace - 1, grace, 50 * time.Hour}
		n.files[i].Stamp = &claim.Stamp{
			Boot: pick(r, []string{"boot-2", "boot-2", "boot-2", "boot-1", "boot-0"}), Mono: n.now.Mono - pick(r, ages),
			Netns: pick(r, []uint64{0, 1, 50, 51, 999}),
		}
	}
	if r.Intn(2) == 0 {
		n.past = append(n.past, "boot-1")
	}
	if r.Intn(2) == 0 {
		n.policy.PressureGrace = pressure
	}
	if r.Intn(4) == 0 {
		n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: pick(r, someIDs), IfName: pick(r, []string{"", "eth0"})}}
	}
}

// P1 and P2 for stamps: with stamps of every kind on a random node, in its very first sweep,
// nothing goes that some witness calls alive, of which one is silent, or that is held or valid;
// and what goes without a stamp goes with it, if it was not the stamp's.
func TestStampNeverOutweighsAWitness(t *testing.T) {
	byStamp := 0
	for seed := range int64(seeds) {
		n := randomNode(t, seed)
		stampAll(n, seed)
		c := n.build(true, true)
		j := Judge(c)
		f := factsOf(c)
		bare := copied(c)
		for i := range bare.Snapshots {
			bare.Snapshots = append([]claim.Snapshot(nil), bare.Snapshots...)
			bare.Snapshots[i].Resources = append([]claim.Resource(nil), bare.Snapshots[i].Resources...)
			for k := range bare.Snapshots[i].Resources {
				bare.Snapshots[i].Resources[k].Stamp = nil
			}
		}
		unstamped := map[string]Finding{}
		for _, u := range Judge(bare).Findings {
			unstamped[string(u.Resource.Kind)+u.Resource.Path] = u
		}
		// A namespace in use that a stamp names may keep, never condemn.
		mayKeep := slices.ContainsFunc(n.files, func(r claim.Resource) bool {
			return r.Stamp != nil && r.Stamp.Boot == "boot-2" && (r.Stamp.Netns == 50 || r.Stamp.Netns == 51)
		})
		for _, x := range j.Findings {
			r := x.Resource
			u, ok := unstamped[string(r.Kind)+r.Path]
			if !ok && (x.Releasable || !mayKeep) { // an unused namespace that nothing pins any more
				t.Errorf("seed %d: %s is found only with stamps", seed, r.Path)
			}
			if !ok {
				continue
			}
			// A stamp makes dead or nothing: whoever was kept for any reason but the want of a
			// second sighting still is.
			if x.Releasable && !u.Releasable && (u.Verdict != Suspect || !u.Gone) {
				t.Errorf("seed %d: %s is releasable by %s; without stamps it is %s by %s (%s)", seed, r.Path, x.Rule, u.Verdict, u.Rule, u.Why)
			} else if u.Releasable && !x.Releasable && !mayKeep {
				t.Errorf("seed %d: %s is not releasable by %s (%s); without stamps it is", seed, r.Path, x.Rule, x.Why)
			}
			if !x.Releasable {
				continue
			}
			byStamp++
			for _, id := range r.Owner.Aliases() {
				if f.alive[id] {
					t.Errorf("seed %d: %s is releasable by %s, though %s is alive", seed, r.Path, x.Rule, id)
				}
				for _, v := range c.Policy.Valid {
					if v.ContainerID == id && v.Network == r.Network && (v.IfName == "" || v.IfName == r.Owner.IfName) {
						t.Errorf("seed %d: %s is releasable by %s, though it is valid", seed, r.Path, x.Rule)
					}
				}
			}
			if h := f.holder(c, r, r.Addr); r.Addr.IsValid() && h != 0 {
				t.Errorf("seed %d: %s is releasable by %s, though namespace %d is in use and holds it", seed, r.Path, x.Rule, h)
			}
			for _, h := range c.Policy.Holds {
				if h.Addr == r.Addr {
					t.Errorf("seed %d: %s is releasable by %s, though it is held", seed, r.Path, x.Rule)
				}
			}
			for _, y := range x.Says {
				if y.Word == Silent || y.Word == Alive || y.Word == Other {
					t.Errorf("seed %d: %s is releasable by %s, though %s says %s", seed, r.Path, x.Rule, y.Witness, y.Word)
				}
			}
		}
		for i := range c.Testimonies {
			d := copied(c)
			d.Testimonies[i] = claim.Testimony{Witness: d.Testimonies[i].Witness, State: claim.StateSilent, Detail: "x", Asked: d.Testimonies[i].Asked}
			for p := range releasable(Judge(d)) {
				t.Errorf("seed %d: %s is releasable while %s is silent", seed, p, d.Testimonies[i].Witness)
			}
		}
		if t.Failed() {
			b, _ := json.Marshal(c)
			t.Fatalf("seed %d, the case is %s", seed, b)
		}
	}
	if byStamp < seeds/10 {
		t.Errorf("only %d releasable in %d cases: the property proves little", byStamp, seeds)
	}
}

// I10: what the judge reads of stamps survives a saved document.
func TestStampsAreSaved(t *testing.T) {
	n, p := leak(t)
	n.stamp(p, "boot-2", pressure, 4026530000)
	n.policy.PressureGrace = pressure
	n.policy.Valid = []claim.Attachment{{Network: "pods", ContainerID: idB, IfName: "eth0"}}
	q := n.reserve("10.1.0.10", idB)
	n.stamp(q, "boot-1", 0, 0)
	n.past = []string{"boot-1"}
	o := n.sweep()
	o.want(p, Leaked, true)
	o.want(q, InUse, false)
	back := &outcome{t, clone(t, o.c), Judge(clone(t, o.c)), Needs{}}
	back.want(p, Leaked, true)
	back.want(q, InUse, false)
}
