package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

// antrea #4326, step by step: the agent is removed from the node by its node affinity, a Pod is
// deleted by force, the kubelet is killed and comes back, and the DEL never comes. When the
// agent is back the address is reclaimed, and those of the living stay.
func removedByAffinity(t *testing.T, n *node) {
	pods := n.run(t, "a-"+n.Name, "b-"+n.Name, "gone-"+n.Name)
	live, dead := n.of(t, pods[:2]...), n.of(t, pods[2])
	n.keepAway(t, true)

	// Alone, a kubelet that comes back cleans up after itself: the runtime has to forget.
	n.Lose(t, pods[2])
	n.s.DeletePod(t, "default", pods[2].Name, true)
	n.s.WaitGone(t, "default", pods[2].Name)
	n.Kubelet.Start(t)
	// The kubelet is at work again when a new Pod runs.
	more := n.run(t, "c-"+n.Name)
	live[room.PodIP(t, more[0])] = n.of(t, more[0])[room.PodIP(t, more[0])]
	stays(t, grace, "nobody but the agent reclaims it", func() error { return errors.Join(n.held(t, dead), n.held(t, live)) })

	n.keepAway(t, false)
	n.settle(t, reclaimed, "the agent is back")
	if err := n.held(t, live); err != nil {
		t.Error(err)
	}
	n.wasReleased(t, dead)
	n.neverReleased(t, live)
	n.remove(t, append(pods[:2], more...)...)
	n.settle(t, soon, "all deleted")
}

// antrea #8239: the agent is restarted while a Pod runs whose podIPs are not written yet, and
// stays so for longer than the grace. Its reservation is never touched.
func slowStatus(t *testing.T, n *node) {
	name := "slow-" + n.Name
	live := n.of(t, n.run(t, "a-"+n.Name)...)
	before := n.reservations(t)
	// One that hangs would hold up the statuses of all Pods, and the deletion of the agent's.
	n.API.Fault(room.Failing(http.StatusServiceUnavailable, func(r *http.Request) bool {
		return room.FromKubelet(r) && r.Method != http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods/"+name+"/status")
	}))
	defer n.API.Fault(nil)
	slow := n.s.CreatePod(t, room.PausePod(name, n.Name))
	mine := map[netip.Addr]string{}
	until(t, soon, "the slow Pod has its address", func() error {
		listed := n.Runtime.Listed(t)
		for a, id := range n.reservations(t) {
			if _, ok := before[a]; !ok && listed[id] && n.watch.has(string(slow.UID), a) {
				mine[a] = id
				return nil
			}
		}
		return errors.New("not yet")
	})
	held := func() error { return errors.Join(n.held(t, mine), n.held(t, live)) }
	written := func() (int, error) {
		got, err := n.s.Admin.CoreV1().Pods("default").Get(t.Context(), name, getOptions())
		if err != nil {
			return 0, err
		}
		return len(got.Status.PodIPs), nil
	}
	watched := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				watched <- nil
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := held(); err != nil {
				watched <- err
				return
			}
		}
	}()
	n.restart(t)
	stays(t, grace+3*interval, "the address is not in the API", func() error {
		count, err := written()
		if count > 0 {
			err = fmt.Errorf("%d podIPs", count)
		}
		return err
	})
	n.restart(t)
	n.API.Fault(nil)
	got := n.s.WaitRunning(t, "default", name)
	close(stop)
	if err := <-watched; err != nil {
		t.Error(err)
	}
	if mine[room.PodIP(t, got)] == "" {
		t.Errorf("the Pod has %s, and had %v", got.Status.PodIP, mine)
	}
	n.ping(t)
	n.neverReleased(t, mine)
	n.neverReleased(t, live)
	n.settle(t, soon, "the status is written")
	for _, p := range n.pods(t) {
		n.remove(t, &p)
	}
	n.settle(t, soon, "all deleted")
}

// A node is imaged anew, or its runtime's store is corrupt (case L14): the same Pods, of the same
// UIDs, get new sandboxes. All of the old addresses go, and the new ones stay.
func rootWiped(t *testing.T, n *node) {
	names := []string{"a-" + n.Name, "b-" + n.Name, "c-" + n.Name, "d-" + n.Name}
	pods := n.run(t, names...)
	old := n.of(t, pods...)
	n.Reboot(t, true)
	for _, p := range pods {
		until(t, soon, "Pod "+p.Name+" has a new sandbox", func() error {
			got, err := n.s.Admin.CoreV1().Pods("default").Get(t.Context(), p.Name, getOptions())
			if err != nil {
				return err
			}
			if got.UID != p.UID {
				t.Fatalf("Pod %s is another", p.Name)
			}
			if got.Status.PodIP == p.Status.PodIP {
				return errors.New("the old address")
			}
			return nil
		})
	}
	n.awaitAgent(t)
	n.settle(t, reclaimed+soon, "imaged anew")
	n.wasReleased(t, old)
	now := n.reservations(t)
	for a := range old {
		if id, ok := now[a]; ok {
			t.Errorf("%s is reserved still, for %s", a, id)
		}
	}
	n.remove(t, pods...)
	n.settle(t, soon, "all deleted")
}

func renamed(n *node) string { return n.Runtime.Network().Name + "-new" }

// The network's name is changed in the conflist while Pods run, and containerd 1.6.20 sends each
// later DEL to the new directory (case L15): what they leave in the old one is found and released.
func networkRenamed(t *testing.T, n *node) {
	before := n.Runtime.Network()
	base := before.Subnet.Masked().Addr().As4()
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{base[0], base[1], base[2], last}) }
	pods := n.run(t, "gone-"+n.Name, "gone2-"+n.Name, "old-"+n.Name)
	dead, live := n.of(t, pods[:2]...), n.of(t, pods[2])
	// Another range: with the same one host-local would hand out the addresses of the living
	// from the new directory, which is another case.
	after := before
	after.Name, after.First, after.Last = renamed(n), at(100), at(200)
	n.Runtime.SetNetwork(t, after)
	n.keepAway(t, true)
	n.remove(t, pods[:2]...)
	young := n.run(t, "young-"+n.Name)
	live[room.PodIP(t, young[0])] = n.of(t, young[0])[room.PodIP(t, young[0])]
	stays(t, grace, "the old directory keeps its leftovers", func() error { return errors.Join(n.held(t, dead), n.held(t, live)) })

	n.keepAway(t, false)
	n.settle(t, reclaimed, "the agent is back")
	if err := n.held(t, live); err != nil {
		t.Error(err)
	}
	n.wasReleased(t, dead)
	n.neverReleased(t, live)
	n.remove(t, pods[2], young[0])
	n.settle(t, reclaimed, "all deleted")
}
