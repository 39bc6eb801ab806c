package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// A's reservation lies in a namespace that was B's, who has none for it. While B may live
// that is a conflict; when both are dead, and only then, they are orphans of one namespace.
func TestDeadTenantOfAnother(t *testing.T) {
	const a, b = netDir + "/10.1.0.9", netDir + "/10.1.0.10"
	for _, r := range []struct {
		name string
		set  func(*node)
		wait time.Duration
		want Verdict
		gone bool
	}{
		{"over", func(*node) {}, orphanGrace, Orphaned, true},
		{"within", func(*node) {}, orphanGrace - 1, Orphaned, false},
		{"a process of B", func(n *node) { n.proc(idB, "shim", 1) }, 2 * orphanGrace, Conflict, false},
		{"a plugin of B", func(n *node) { n.proc(idB, "cni", 1) }, 2 * orphanGrace, Conflict, false},
		{"B Ready", func(n *node) { n.box(idB, "b", true) }, 2 * orphanGrace, Conflict, false},
		{"B NotReady", func(n *node) { n.box(idB, "b", false) }, 2 * orphanGrace, Conflict, false},
		{"B valid", func(n *node) { n.policy.Valid = []claim.Attachment{{ContainerID: idB, Network: "other"}} }, 2 * orphanGrace, Conflict, false},
		{"a second tenant that lives", func(n *node) {
			n.cache(idAA, cniMount)
			n.proc(idAA, "shim", 1)
		}, 2 * orphanGrace, Conflict, false},
		{"B lives in another namespace", func(n *node) {
			n.cache(idB, cniMount2, "10.1.0.77")
			n.netns(51, 1, cniMount2)
		}, 2 * orphanGrace, Conflict, false},
		{"a process in it", func(n *node) { n.nets[1].Procs = 1 }, 2 * orphanGrace, Conflict, false},
		{"a descriptor on it", func(n *node) { n.nets[1].FDHolders = 1 }, 2 * orphanGrace, Conflict, false},
		{"another namespace holds it too", func(n *node) { n.netns(51, 0, cniMount2, "10.1.0.9") }, 2 * orphanGrace, Conflict, false},
		{"kernel silent", func(n *node) { n.silent["kernel"] = "x" }, 2 * orphanGrace, Unknown, false},
		{"process silent", func(n *node) { n.silent["process"] = "x" }, 2 * orphanGrace, Conflict, false},
		{"cri silent", func(n *node) { n.silent["cri"] = "x" }, 2 * orphanGrace, Conflict, false},
		{"boot silent", func(n *node) { n.silent["boot"] = "x" }, 2 * orphanGrace, Conflict, false},
		{"detail never comes", func(n *node) { n.deaf = true }, 2 * orphanGrace, Unknown, false},
		{"no vantage", func(n *node) { n.vantage.Proven = false }, 2 * orphanGrace, Unknown, false},
		{"no runtime vouches", func(n *node) { n.runtimes[0].Name = "cri-o" }, 2 * orphanGrace, Orphaned, false},
		{"asked for", func(n *node) { n.runtimes[0].Name, n.policy.Orphans = "cri-o", true }, orphanGrace, Orphaned, true},
		{"A's held", func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, 2 * orphanGrace, Held, false},
		{"B's held", func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.10")}} }, 2 * orphanGrace, Held, false},
		{"a person's file in it", func(n *node) {
			n.nets[1].Addrs = append(n.nets[1].Addrs, claim.IfAddr{If: "eth0", Addr: ip("10.1.0.11")})
			n.reserve("10.1.0.11", "reserved-vip")
		}, 2 * orphanGrace, Orphaned, false},
		{"a store that is not whole", func(n *node) { n.stores[1].Problem = "EIO" }, 2 * orphanGrace, Orphaned, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			n.reserve("10.1.0.9", idA)
			n.reserve("10.1.0.10", idB)
			n.netns(50, 0, cniMount, "10.1.0.9", "10.1.0.10")
			n.cache(idB, cniMount, "10.1.0.10")
			r.set(n)
			o := n.sweeps(r.wait)
			o.want(a, r.want, r.gone)
			if f := o.at(a); r.gone && (len(f.Netns) != 1 || f.Netns[0].ID != 50) {
				t.Errorf("the namespace does not go with it: %v", f.Netns)
			}
			// They go together or not at all.
			if o.at(b).Releasable != r.gone {
				t.Errorf("B's is releasable: %v", !r.gone)
			}
		})
	}
}

// What was seen as a conflict does not count for the orphan: the grace begins with the
// last death.
func TestDeadTenantBeginsItsGrace(t *testing.T) {
	const a = netDir + "/10.1.0.9"
	n := newNode(t)
	n.bystander()
	n.reserve("10.1.0.9", idA)
	n.netns(50, 0, cniMount, "10.1.0.9")
	n.cache(idB, cniMount, "10.1.0.9")
	n.box(idB, "b", false)
	n.sweeps(2*orphanGrace).want(a, Conflict, false)
	n.boxes = n.boxes[:len(n.boxes)-1]
	n.sweep().want(a, Orphaned, false)
	n.wait(orphanGrace - 1)
	n.sweep().want(a, Orphaned, false)
	n.wait(1)
	n.sweep().want(a, Orphaned, true)
}

// P7: what goes while an unused namespace holds its address takes that namespace along, and
// nobody whom any witness knows was ever in it; or that one has a reservation of its own.
func TestP7HeldByTheDeadAlone(t *testing.T) {
	met := 0
	each(t, func(t *testing.T, _ int64, c *Case, j *Judgement) {
		f := factsOf(c)
		holders := map[netip.Addr][]uint64{}
		known := map[string]bool{}
		for _, w := range c.Testimonies {
			if w.Kernel != nil {
				for _, n := range w.Kernel.Netns {
					for _, a := range n.Addrs {
						if !n.Host && !slices.Contains(holders[a.Addr], n.ID) {
							holders[a.Addr] = append(holders[a.Addr], n.ID)
						}
					}
				}
			}
			if w.Process != nil {
				for _, h := range w.Process.Hits {
					known[h.ID] = true
				}
			}
			if w.CRI != nil {
				for _, b := range w.CRI.Sandboxes {
					known[b.ID] = true
				}
			}
		}
		for _, x := range j.Findings {
			r := x.Resource
			if !x.Releasable || r.Kind != claim.KindReservation || r.Owner.Shape != claim.ShapeContainer {
				continue
			}
			for _, n := range holders[r.Addr] {
				if owns(c, f.tenant[n], r.Addr, r.Store) {
					continue
				}
				met++
				if len(holders[r.Addr]) > 1 || !slices.ContainsFunc(x.Netns, func(p Pin) bool { return p.ID == n }) {
					t.Errorf("%s goes by %s without namespace %d", r.Path, x.Rule, n)
				}
				for _, id := range f.tenant[n] {
					if known[id] {
						t.Errorf("%s goes by %s with namespace %d of %s", r.Path, x.Rule, n, id)
					}
				}
			}
		}
	})
	if met == 0 {
		t.Error("no such namespace was met: the property proves nothing")
	}
}
