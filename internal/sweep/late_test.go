package sweep_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// apiServer is a late witness.
type apiServer struct {
	n     *node
	asked int
	pods  []claim.KubePod
	down  bool
	takes time.Duration
}

func (w *apiServer) Name() string { return claim.WitnessKube }
func (w *apiServer) Ask(context.Context, bool) []claim.Testimony {
	w.asked++
	t := claim.Testimony{Witness: claim.WitnessKube, State: claim.StateSilent, Detail: "down", Asked: w.n.clock()}
	w.n.wait(w.takes)
	if !w.down {
		t.State, t.Detail, t.Kube = claim.StateComplete, "", &claim.KubeFacts{Node: "n1", Pods: w.pods}
	}
	return []claim.Testimony{t}
}

func lateNode(t *testing.T) (*node, *Engine, *apiServer) {
	n := newNode(t)
	n.policy.Required = append(n.policy.Required, claim.WitnessKube)
	n.live[id(9)] = true
	n.reserve("pods", "10.1.0.9", id(9), "eth0")
	w := &apiServer{n: n}
	e := n.engine()
	e.Late = []Witness{w}
	return n, e, w
}

// A late witness is asked when something is dead, once, after the listing (I6), whatever
// else has to be asked or listed again.
func TestLateWitness(t *testing.T) {
	for _, tt := range []struct {
		name    string
		plant   func(n *node)
		asked   int
		verdict verdict.Verdict
	}{
		{"a clean node", func(n *node) {}, 0, ""},
		{"dead", func(n *node) { n.reserve("pods", "10.1.0.2", id(1), "eth0") }, 1, verdict.Suspect},
		{"dead, with details", func(n *node) { n.reserve("pods", "10.1.0.2", "", "") }, 1, verdict.Malformed},
		{"dead, with details, and one missing", func(n *node) {
			n.reserve("pods", "10.1.0.3", "", "")
			n.unready = []claim.Sandbox{{ID: id(1), Endpoint: endpoint, Netns: n.netns(50, 1)}}
			n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
		}, 1, verdict.Missing},
		{"one missing at once, and details are lacking when it has spoken", func(n *node) {
			n.live[id(1)] = true
			n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
			n.reserve("pods", "10.1.0.3", id(2), "eth0")
			n.unready = []claim.Sandbox{{ID: id(2), Endpoint: endpoint}}
		}, 1, verdict.Missing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, e, w := lateNode(t)
			tt.plant(n)
			a := n.look(e)
			checkI6(t, a)
			if w.asked != tt.asked || len(a.Judgement.Silent) > 0 {
				t.Errorf("asked %d times, silent %q", w.asked, a.Judgement.Silent)
			}
			found := tt.verdict == ""
			for _, f := range a.Judgement.Findings {
				found = found || f.Verdict == tt.verdict
			}
			if !found {
				t.Errorf("no %s in %+v", tt.verdict, a.Judgement.Findings)
			}
		})
	}
}

// What it said stands for the confirmations of its sweep, but no longer than lateFor.
func TestLateWitnessAtTheConfirmation(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // from the look to the release
		then  func(w *apiServer)
		asked int // in the sweep that releases
		goes  bool
	}{
		{"at once", 0, func(*apiServer) {}, 1, true},
		{"within 30 s, whatever it would say", 29 * time.Second, func(w *apiServer) { w.down = true }, 1, true},
		{"later", 31 * time.Second, func(*apiServer) {}, 2, true},
		{"later, slowly", 31 * time.Second, func(w *apiServer) { w.takes = 8 * time.Second }, 2, true},
		{"later, and it is silent", 31 * time.Second, func(w *apiServer) { w.down = true }, 2, false},
		{"later, and a Pod has the address", 31 * time.Second, func(w *apiServer) {
			w.pods = []claim.KubePod{{Phase: "Running", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}}
		}, 2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, e, w := lateNode(t)
			path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
			a, p := n.due(e)
			w.asked = 1 // in this sweep's look
			n.wait(tt.after)
			tt.then(w)
			r, err := e.Reap(t.Context(), a, p)
			if err != nil || w.asked != tt.asked || exists(path) == tt.goes || len(r.Reprieved) == 0 != tt.goes {
				t.Errorf("asked %d times, there %v, %+v, %v", w.asked, exists(path), r, err)
			}
		})
	}
}
