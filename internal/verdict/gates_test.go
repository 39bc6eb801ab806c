package verdict_test

import "testing"

// A namespace is not removed while a directory could not be listed whole: nobody knows
// whose reservation of its addresses lies there.
func TestNamespaceStaysWhileADirectoryIsUnread(t *testing.T) {
	for _, unread := range []bool{true, false} {
		n := newNode(t)
		n.bystander()
		n.netns(50, 0, cniMount, "10.1.0.9")
		p := n.reserve("10.1.0.9", idA)
		if unread {
			n.stores[1].Problem = "EIO"
		}
		o := n.sweeps(2 * orphanGrace)
		if unread {
			o.kept(p)
			o.kept(cniMount)
		} else if !o.at(p).Releasable {
			t.Errorf("%+v", o.at(p))
		}
	}
}

// Holds that cannot be read are not "no holds".
func TestUnreadHoldsKeep(t *testing.T) {
	for _, unread := range []string{"EIO", ""} {
		n := newNode(t)
		n.bystander()
		n.policy.Unheld = unread
		p := n.reserve("10.1.0.9", idA)
		o := n.sweeps(2 * grace)
		if f := o.at(p); f.Releasable != (unread == "") {
			t.Errorf("unread %q: %+v", unread, f)
		}
	}
}
