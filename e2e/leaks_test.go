package e2e

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

// living is how many sandboxes answer pings throughout each test.
const living = 20

func TestWipedRoot(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) { reclaims(t, wipedRoot(t, v, 5, living/2, living-living/2)) })
	}
}

func TestFailingChainedPlugin(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	s := failingChain(t, living)
	reclaims(t, s)
	// The point of it all: the Pod that hung starts.
	s.node.RunSandbox(t, cri.Pod{Name: "crash", Attempt: 100})
}

func TestRenamedNetwork(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	reclaims(t, renamedNetwork(t, 5, living))
}

func TestPodmanSharesTheNetwork(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	testenv.Need(t, testenv.Podman)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) { reclaims(t, sharedWithPodman(t, v, living)) })
	}
}

// reclaims checks that gc takes exactly the dead, that the living answer throughout,
// and that a second sweep finds nothing to do.
func reclaims(t *testing.T, s scene) {
	t.Helper()
	s.node.Gone(t, addrs(s.dead)...)
	s.check(t, "before", s.dead, s.live)

	c := newCLI(t, s)
	stop := s.node.KeepPinging(t, addrs(s.live)...)
	doc := c.gc(t, 0)
	stop()
	if diff := cmp.Diff(names(s.dead), doc.released(t)); diff != "" {
		t.Errorf("released (-the dead +what gc says):\n%s", diff)
	}
	if diff := cmp.Diff(names(s.live), doc.kept("InUse")); diff != "" {
		t.Errorf("kept as InUse (-the living +what gc says):\n%s", diff)
	}
	if len(doc.Errors) > 0 {
		t.Errorf("errors: %v", doc.Errors)
	}
	s.check(t, "after", s.live)
	if again := c.gc(t, 0); len(again.Released) > 0 {
		t.Errorf("a second sweep released %v", again.released(t))
	}
	s.check(t, "after a second sweep", s.live)
}

// A runtime that was named and is dead keeps everything, the dead included (I5).
func TestDeadRuntimeKeepsEverything(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	s := wipedRoot(t, cri.V2, 2, 2, 2)
	s.node.Kill(t)
	doc := newCLI(t, s).gc(t, 4)
	if len(doc.Released) > 0 {
		t.Errorf("released without the runtime's word: %v", doc.released(t))
	}
	s.check(t, "after", s.dead, s.live)
}

// A runtime that lists nothing while its own shims run has lost its store: it is not
// believed, and so nothing goes (case F6).
func TestEmptyListBesideShimsKeepsEverything(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) {
			s := wipedRoot(t, v, 2, 2, 0)
			doc := newCLI(t, s).gc(t, 4)
			if len(doc.Released) > 0 {
				t.Errorf("released on an empty list: %v", doc.released(t))
			}
			s.check(t, "after", s.dead, s.live)
		})
	}
}

// A sandbox whose processes died while its netns stayed mounted is Orphaned: kept by
// default, released with its netns when the orphan grace is over.
func TestOrphanedNetns(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	s := orphanedNetns(t, cri.V2, 2, 4)
	s.check(t, "before", s.dead, s.live)
	c := newCLI(t, s)
	if doc := c.gc(t, 0); len(doc.Released) > 0 {
		t.Errorf("released within the orphan grace: %v", doc.released(t))
	}
	s.check(t, "within the orphan grace", s.dead, s.live)
	doc := c.gc(t, 0, "--orphan-grace", "2s")
	if diff := cmp.Diff(names(s.dead), doc.released(t)); diff != "" {
		t.Errorf("released (-the orphans +what gc says):\n%s", diff)
	}
	s.node.Gone(t, addrs(s.dead)...)
	s.check(t, "after", s.live)
}

// undo gives a released address back while nobody has it.
func TestUndo(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	s := wipedRoot(t, cri.V2, 1, 1, 1)
	c := newCLI(t, s)
	doc := c.gc(t, 0)
	if diff := cmp.Diff(names(s.dead), doc.released(t)); diff != "" {
		t.Fatalf("released (-the dead +what gc says):\n%s", diff)
	}
	for _, r := range doc.Released {
		if r.Kind != "reservation" {
			continue
		}
		if o := c.holdfast(t, "undo", r.ReleaseID); o.code != 0 {
			t.Fatalf("undo ended with %d\nstdout: %s\nstderr: %s", o.code, o.stdout, o.stderr)
		}
	}
	s.check(t, "after undo", s.dead, s.live)
	if again := c.gc(t, 0); len(again.Released) > 0 {
		t.Errorf("what a person took back was released again: %v", again.released(t))
	}
	s.check(t, "after another sweep", s.dead, s.live)
}

// The DNAT rules of a dead sandbox's host port go before its address does; those of a
// living one stay (case L21).
func TestHostPortRules(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	testenv.Need(t, testenv.IPTables)
	s := lostHostPort(t, cri.V2)
	dead, live := s.dead[0], s.live[0]
	if rules := natRules(t, s); !strings.Contains(rules, dead.id) || !strings.Contains(rules, live.id) {
		t.Fatalf("not the rules of both sandboxes:\n%s", rules)
	}
	reclaims(t, s)
	rules := natRules(t, s)
	if strings.Contains(rules, dead.id) || strings.Contains(rules, dead.addr.String()+":80") {
		t.Errorf("rules of the dead sandbox are left:\n%s", rules)
	}
	if !strings.Contains(rules, live.id) || !strings.Contains(rules, live.addr.String()+":80") {
		t.Errorf("rules of the living sandbox are gone:\n%s", rules)
	}
}
