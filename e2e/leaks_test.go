package e2e

import (
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

// living is how many sandboxes answer pings throughout each test.
const living = 20

func TestWipedRoot(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) { reclaims(t, wipedRoot(t, v, 5, living)) })
	}
}

func TestFailingChainedPlugin(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	s := failingChain(t, living)
	reclaims(t, s)
}

func TestRenamedNetwork(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	reclaims(t, renamedNetwork(t, 5, living))
}

func TestPodmanSharesTheNetwork(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	testenv.Need(t, testenv.Podman)
	reclaims(t, sharedWithPodman(t, cri.V2, 5))
}

func reclaims(t *testing.T, s scene) {
	t.Helper()
	s.node.Gone(t, addrs(s.dead)...)
	s.check(t, "before", s.dead, s.live)
}
