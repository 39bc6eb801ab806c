package verdict_test

import "testing"

func TestPendingF21CacheOfRestartedContainer(t *testing.T) {
	n := newNode(t)
	n.bystander()
	n.reserve("10.1.0.9", idA)
	p := n.cache(idA, podmanMount, "10.1.0.9")
	n.sweep()
	n.wait(2 * grace)
	n.files = nil
	n.reserve("10.1.0.10", idA) // the new run's ADD, between two plugins
	n.sweep().kept(p)
}
