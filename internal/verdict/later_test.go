package verdict_test

import (
	"net/netip"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// A person said to leave an address alone: the idle namespace that holds it stays too,
// alone or as the pin of another's orphaned address.
func TestLaterIdleNetnsWithHeldAddress(t *testing.T) {
	for _, hold := range []Policy{
		{Holds: []Hold{{Addr: ip("10.1.0.10")}}},
		{Exclude: []netip.Prefix{netip.MustParsePrefix("10.1.0.10/32")}},
	} {
		n := newNode(t)
		n.bystander()
		n.policy.Holds, n.policy.Exclude = hold.Holds, hold.Exclude
		n.netns(50, 0, cniMount, "10.1.0.10")
		n.sweeps(2 * orphanGrace).kept(cniMount)
		p := n.reserve("10.1.0.9", idA)
		n.nets[1].Addrs = append(n.nets[1].Addrs, claim.IfAddr{If: "eth0", Addr: ip("10.1.0.9")})
		n.sweeps(2 * orphanGrace).kept(p)
	}
}

// The namespace also holds the address of a person's file, which is kept without
// --foreign: so is the namespace.
func TestLaterIdleNetnsWithForeignAddress(t *testing.T) {
	n := newNode(t)
	n.bystander()
	n.netns(50, 0, cniMount, "10.1.0.9", "10.1.0.10")
	n.file(netDir, "10.1.0.10", "reserved-vip")
	p := n.reserve("10.1.0.9", idA)
	o := n.sweeps(2 * orphanGrace)
	o.kept(p)
	o.kept(cniMount)
}

// Somebody pinned the namespace under a name of their own as well: no runtime can vouch
// for that use.
func TestLaterIdleNetnsPinnedByAPerson(t *testing.T) {
	n := newNode(t)
	n.bystander()
	n.netns(50, 0, cniMount, "10.1.0.9").Mounts = []string{cniMount, "/run/netns/mine"}
	p := n.reserve("10.1.0.9", idA)
	o := n.sweeps(2 * orphanGrace)
	o.kept(p)
	o.kept(cniMount)
}

// By its cached result the attachment has a second address, in a namespace that nobody uses.
// While that stays, for nobody vouches for it, the address stays too, and DEL finds it: the
// address goes last (I8). That of another attachment does not wait.
func TestLaterAddressWaitsForTheNetnsOfItsResult(t *testing.T) {
	for _, mount := range []string{cniMount, podmanMount} {
		n := newNode(t)
		n.bystander()
		n.netns(50, 0, mount, "10.1.0.10")
		p := n.reserve("10.1.0.9", idA)
		c := n.cache(idA, "", "10.1.0.9", "10.1.0.10")
		n.sweep()
		n.wait(2 * orphanGrace)
		o := n.sweep()
		if mount == cniMount {
			if !o.at(p).Releasable || !o.at(c).Releasable {
				t.Error("kept though a runtime vouches for the namespace")
			}
			continue
		}
		o.kept(p)
		o.kept(c)
		n.caches[0].Owner.IfName = "net1"
		if !n.sweep().at(p).Releasable {
			t.Error("kept for another attachment")
		}
	}
}

// The namespace of the cached result is also of a younger reservation, which waits: so does the
// cache entry, and so must the address, which goes last (I8). Then all of it goes at once.
func TestLaterAddressWaitsForANetnsThatWaits(t *testing.T) {
	for _, younger := range []bool{true, false} {
		n := newNode(t)
		n.bystander()
		n.netns(50, 0, cniMount, "10.1.0.10")
		p := n.reserve("10.1.0.9", idA)
		c := n.cache(idA, "", "10.1.0.10")
		n.sweep()
		n.wait(2 * orphanGrace)
		if younger {
			n.reserve("10.1.0.10", idB)
			o := n.sweep()
			o.kept(c)
			o.kept(p)
			n.wait(2 * orphanGrace)
		}
		if o := n.sweep(); !o.at(p).Releasable || !o.at(c).Releasable {
			t.Errorf("younger %v: kept for ever", younger)
		}
	}
}

// The run of idle sightings was of another namespace: the new one starts anew.
func TestLaterOrphanInAnotherNetns(t *testing.T) {
	for _, reserved := range []bool{true, false} {
		n := newNode(t)
		n.bystander()
		n.netns(50, 0, cniMount, "10.1.0.9")
		p := cniMount
		if reserved {
			p = n.reserve("10.1.0.9", idA)
		}
		n.sweep()
		n.wait(2 * orphanGrace)
		n.nets[1].ID, n.mounts[0].NetnsID = 51, 51
		n.sweep().kept(p)
	}
}

// A namespace that was gone for a while, or in use, starts anew.
func TestLaterNetnsGoneForAWhile(t *testing.T) {
	for _, used := range []bool{true, false} {
		n := newNode(t)
		n.bystander()
		n.netns(50, 0, cniMount, "10.1.0.9")
		n.sweep()
		n.wait(orphanGrace)
		nets, mounts := n.nets, n.mounts
		if used {
			n.nets[1].Procs = 1
		} else {
			n.nets, n.mounts = n.nets[:1], nil
		}
		n.sweep()
		n.wait(orphanGrace / 2)
		n.nets, n.mounts = nets, mounts
		n.nets[1].Procs = 0
		n.sweep().kept(cniMount)
	}
}

// The same for a cache entry that was gone (and may have been written again).
func TestLaterCacheGoneForAWhile(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.cache(idA, "", "10.1.0.9")
	n.sweep()
	n.wait(grace)
	caches := n.caches
	n.caches = nil
	n.sweep()
	n.caches = caches
	n.sweep().kept(p)
}
