package kube

import (
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

// scene is one story on one node. It begins and ends with a clean node and the agent at work.
type scene struct {
	name string
	play func(*testing.T, *node)
}

// TestScenes has one cluster for all stories. Each node has its own, one after the other; the
// nodes are at it at the same time.
func TestScenes(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	s := newSite(t, "v1", "v2")
	stories := map[cri.Version][]scene{
		cri.Debian: {
			{"RemovedByAffinity", removedByAffinity},
			{"RootWiped", rootWiped},
			{"NetworkRenamed", networkRenamed},
		},
		cri.V2: {
			{"RemovedByAffinity", removedByAffinity},
			{"SlowStatus", slowStatus},
			{"RootWiped", rootWiped},
		},
	}
	nodes := map[cri.Version]*node{}
	for _, v := range versions() {
		nodes[v] = s.addNode(t, room.NodeOptions{Containerd: v})
	}
	nodes[cri.Debian].networks = append(nodes[cri.Debian].networks, renamed(nodes[cri.Debian]))
	t.Run("nodes", func(t *testing.T) {
		for _, v := range versions() {
			t.Run(string(v), func(t *testing.T) {
				t.Parallel()
				n := nodes[v]
				n.deploy(t, "v1")
				for _, sc := range stories[v] {
					if !t.Run(sc.name, func(t *testing.T) { sc.play(t, n) }) {
						break
					}
				}
				n.watch.check(t)
			})
		}
	})
}
