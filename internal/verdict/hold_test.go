package verdict_test

import (
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// An undo's hold is of one owner's reservation; one without an owner is of the address.
func TestHoldOfAnOwner(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	owner := func(id, ifName string) claim.Owner {
		return claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: ifName}
	}
	for _, r := range []struct {
		name string
		hold Hold
		want Verdict
	}{
		{"its own", Hold{Store: netDir, Owner: owner(idA, "eth0")}, Held},
		{"its own, in every store", Hold{Owner: owner(idA, "eth0")}, Held},
		{"whoever's", Hold{Store: netDir}, Held},
		{"another's who had the address", Hold{Store: netDir, Owner: owner(idB, "eth0")}, Leaked},
		{"another interface's", Hold{Store: netDir, Owner: owner(idA, "net1")}, Leaked},
		{"a prefix of its ID", Hold{Store: netDir, Owner: owner(idShort, "eth0")}, Leaked},
		{"its own in another store", Hold{Store: otherDir, Owner: owner(idA, "eth0")}, Leaked},
	} {
		n := newNode(t)
		n.bystander()
		n.reserve("10.1.0.9", idA)
		r.hold.Addr = ip("10.1.0.9")
		n.policy.Holds = []Hold{r.hold}
		t.Log(r.name)
		n.sweeps(grace).want(p, r.want, r.want == Leaked)
	}
}

// A namespace that holds an address of such a hold stays while that reservation lies there,
// or while nobody knows, and not for another's that is long gone.
func TestHoldOfAnOwnerAndANamespace(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	of := func(id string) Hold {
		return Hold{Store: otherDir, Addr: ip("10.1.0.11"), Owner: claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: "eth0"}}
	}
	for _, r := range []struct {
		name string
		set  func(*node)
		gone bool
	}{
		{"its reservation is gone", func(n *node) { n.policy.Holds = []Hold{of(idB)} }, true},
		{"it lies there", func(n *node) {
			n.policy.Holds = []Hold{of(idB)}
			n.file(otherDir, "10.1.0.11", idB+"\r\neth0")
		}, false},
		{"its store was not listed whole", func(n *node) { n.policy.Holds = []Hold{of(idB)}; n.stores[1].Problem = "EIO" }, false},
		{"its store was not looked at", func(n *node) { n.policy.Holds = []Hold{of(idB)}; n.stores = n.stores[:1] }, false},
		{"the address is held", func(n *node) { n.policy.Holds = []Hold{{Store: otherDir, Addr: ip("10.1.0.11")}} }, false},
	} {
		n := newNode(t)
		n.bystander()
		n.reserve("10.1.0.9", idA)
		n.netns(50, 0, cniMount, "10.1.0.9", "10.1.0.11")
		r.set(n)
		if f := n.sweeps(orphanGrace).at(p); f.Releasable != r.gone {
			t.Errorf("%s: %s, releasable %v, %s", r.name, f.Verdict, f.Releasable, f.Why)
		}
	}
}
