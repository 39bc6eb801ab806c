package kube

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// scene is one story on one node. It begins and ends with a clean node and the agent at work,
// but for the last of a node.
type scene struct {
	name string
	play func(*testing.T, *node)
}

// TestMain lets all nodes play at the same time, however few processors there are: stories wait
// more than they work.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestScenes has one cluster for all stories. Each node has its own, one after the other; the
// nodes are at it at the same time.
func TestScenes(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	netns.TakeAwayAbandoned(t)
	s := newSite(t, "v1", "v2")
	old := s.addNode(t, room.NodeOptions{Name: "containerd1", Containerd: cri.Debian})
	old.networks = append(old.networks, renamed(old))
	young := s.addNode(t, room.NodeOptions{Name: "containerd2", Containerd: cri.V2})
	acts := map[*node][]scene{
		s.drained(t, "drained", "host-local"):         {{"Drained", drain}},
		s.drained(t, "drained-ipam", "holdfast-ipam"): {{"Drained", drain}},
		old: {{"RemovedByAffinity", removedByAffinity}, {"RootWiped", rootWiped}, {"NetworkRenamed", networkRenamed}},
		young: {
			{"RemovedByAffinity", removedByAffinity}, {"SlowStatus", slowStatus}, {"RootWiped", rootWiped}, {"DirectoryWiped", directoryWiped},
			{"ContainerdStopped", containerdStopped},
		},
		s.addNode(t, room.NodeOptions{Name: "outages", Containerd: cri.V2}): {
			{"APISilent", apiSilent}, {"APIStale", apiStale}, {"APINotRequired", apiNotRequired},
		},
	}
	t.Run("on", func(t *testing.T) { play(t, acts) })
	// By themselves: all nodes are of one kernel, and while somewhere on it an ADD is in flight,
	// the pressure grace, by which a drained range gets addresses, does not hold.
	t.Run("churned", func(t *testing.T) {
		last := []scene{{"Churn", churn}, {"Uninstalled", uninstalled}}
		play(t, map[*node][]scene{old: last, young: last})
	})
}

// play plays on all nodes at the same time.
func play(t *testing.T, acts map[*node][]scene) {
	for n, scenes := range acts {
		t.Run(n.Name, func(t *testing.T) {
			t.Parallel()
			if n.version == "" {
				n.deploy(t, "v1")
			}
			for _, sc := range scenes {
				if !t.Run(sc.name, func(t *testing.T) { sc.play(t, n) }) {
					break
				}
			}
			n.watch.check(t)
		})
	}
}
