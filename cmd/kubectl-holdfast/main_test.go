package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

func status(ready bool, summary map[string]int) api.Status {
	s := api.Status{Version: "v1.2.3", Live: api.Condition{OK: true}, Ready: api.Condition{OK: ready}}
	if !ready {
		s.Ready.Reasons = []string{"another agent holds the lock"}
	}
	s.Seen = &api.Seen{Summary: summary, Networks: []api.MapNetwork{{Name: "podnet", Capacity: 253, Reserved: 9}}}
	return s
}

func audit(summary map[string]int, found ...api.Resource) api.Audit {
	return api.Audit{
		At: time.Now(), Vantage: api.Vantage{Proven: true}, Summary: summary, Resources: found,
		Networks: []api.Network{{Name: "podnet", Dir: "/var/lib/cni/networks/podnet", Capacity: 253, Reserved: len(found), Writable: true}},
	}
}

func reservation(addr, verdict string) api.Resource {
	return api.Resource{Kind: "reservation", Network: "podnet", Address: addr, ContainerID: strings.Repeat("a", 64), Verdict: verdict, Why: "because"}
}

func TestStatusWorstFirst(t *testing.T) {
	c := newCluster(t)
	c.node("well", map[string]any{"status": status(true, map[string]int{"InUse": 9})})
	c.node("leaking", map[string]any{"status": status(true, map[string]int{"InUse": 5, "Leaked": 4})})
	c.node("conflict", map[string]any{"status": status(true, map[string]int{"Conflict": 1})})
	c.node("waits", map[string]any{"status": status(false, map[string]int{"InUse": 9})})
	c.node("starting", nil)
	c.pod("starting").Status.Phase = corev1.PodPending
	c.node("cut\x1b[31m", nil)
	c.refuse["holdfast-agent-cut\x1b[31m"] = "connection refused"
	code, out, stderr := c.run(t, "status")
	if code != exitError {
		t.Errorf("exit %d: %s", code, stderr)
	}
	var order []string
	for line := range strings.Lines(out) {
		order = append(order, strings.Fields(line)[0])
	}
	if diff := cmp.Diff([]string{"NODE", `cut\x1b[31m`, "starting", "waits", "conflict", "leaking", "well"}, order); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, out)
	}
	for _, want := range []string{"another agent holds the lock", "253"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	for _, want := range []string{"connection refused on port 9700", "starting: its agent is Pending", "2 of 6 nodes did not answer"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is missing:\n%s", want, stderr)
		}
	}
	if strings.Contains(out+stderr, "\x1b") {
		t.Error("a control character")
	}
}

func TestAudit(t *testing.T) {
	c := newCluster(t)
	c.node("a", map[string]any{"audit": audit(map[string]int{"InUse": 1}, reservation("10.1.0.2", "InUse"))})
	c.node("b", map[string]any{"audit": audit(map[string]int{"InUse": 1, "Leaked": 1}, reservation("10.1.1.2", "Leaked"), reservation("10.1.1.3", "InUse"))})
	for _, tc := range []struct {
		args  []string
		code  int
		shows []string
		hides []string
		says  string
	}{
		{[]string{"audit", "a"}, exitOK, []string{"10.1.0.2"}, []string{"10.1.1."}, ""},
		{[]string{"audit", "--all-nodes"}, exitOK, []string{"10.1.1.2", "and 2 in use", "1 Leaked, 2 InUse"}, []string{"10.1.0.2", "10.1.1.3"}, ""},
		{[]string{"audit", "-A", "-o", "wide"}, exitOK, []string{"10.1.1.2", "10.1.0.2", "10.1.1.3"}, nil, ""},
		{[]string{"audit", "-A", "--exit-code"}, exitFinding, []string{"10.1.1.2"}, nil, ""},
		{[]string{"audit", "a", "--exit-code"}, exitOK, []string{"10.1.0.2"}, nil, ""},
		{[]string{"audit", "a", "nowhere", "-o", "wide"}, exitError, []string{"10.1.0.2"}, nil, "nowhere: no agent runs on it"},
		{[]string{"audit"}, exitUsage, nil, nil, "--all-nodes"},
		{[]string{"audit", "a", "-A"}, exitUsage, nil, nil, "--all-nodes"},
		{[]string{"audit", "a", "-o", "xml"}, exitUsage, nil, nil, "--output"},
		{[]string{"audit", "a", "--parallel", "0"}, exitUsage, nil, nil, "--parallel"},
		{[]string{"audit", "a", "--frob"}, exitUsage, nil, nil, "--frob"},
		{[]string{"frob"}, exitUsage, nil, nil, "frob"},
		{[]string{"audit", "a", "-n", "default"}, exitError, nil, nil, "the server could not find"},
	} {
		code, out, stderr := c.run(t, tc.args...)
		if code != tc.code || !strings.Contains(stderr, tc.says) {
			t.Errorf("%v: exit %d, want %d and %q: %s", tc.args, code, tc.code, tc.says, stderr)
		}
		for _, s := range tc.shows {
			if !strings.Contains(out, s) {
				t.Errorf("%v: %q is missing:\n%s", tc.args, s, out)
			}
		}
		for _, s := range tc.hides {
			if strings.Contains(out, s) {
				t.Errorf("%v: %q is shown:\n%s", tc.args, s, out)
			}
		}
	}
}

func TestDocumentHasEveryNode(t *testing.T) {
	c := newCluster(t)
	c.node("a", map[string]any{"audit": audit(map[string]int{"InUse": 1}, reservation("10.1.0.2", "InUse"))})
	c.add("hangs", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	c.add("babbles", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	c.add("halves", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"kind": "Audit", "resources": [`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	began := time.Now()
	code, out, stderr := c.run(t, "audit", "-A", "-o", "json", "--timeout", "1s")
	if code != exitError || time.Since(began) > 15*time.Second {
		t.Errorf("exit %d after %s: %s", code, time.Since(began), stderr)
	}
	var doc api.Fleet
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := map[string]bool{}
	for _, n := range doc.Nodes {
		got[n.Node] = n.Audit != nil
		if (n.Audit == nil) == (n.Error == "") {
			t.Errorf("%+v", n)
		}
	}
	if diff := cmp.Diff(map[string]bool{"a": true, "hangs": false, "babbles": false, "halves": false}, got); diff != "" || doc.Unanswered != 3 || doc.Kind != api.KindFleet {
		t.Errorf("%+v (-want +got):\n%s", doc, diff)
	}
	if !strings.Contains(stderr, "hangs: no answer within 1s") {
		t.Errorf("%s", stderr)
	}
}

func TestExplainAsksWhoHasIt(t *testing.T) {
	c := newCluster(t)
	node := func(name, first, last string, has ...string) {
		m := api.Map{Node: name, Seen: api.Seen{Networks: []api.MapNetwork{{
			Name: "podnet", Ranges: []api.MapRange{{First: first, Last: last}}, Addresses: map[string][]string{"Leaked": has},
		}}}}
		docs := map[string]any{"map": m}
		for _, addr := range []string{"10.1.0.5", "10.1.1.7"} {
			if addr == "10.1.0.5" && name == "a" || addr == "10.1.1.7" && name == "b" {
				docs["explain?address="+addr] = api.Explanation{Node: name, At: time.Now(), Vantage: api.Vantage{Proven: true},
					Resources: []api.ExplainedItem{{Resource: reservation(addr, "Leaked")}}}
			}
		}
		c.node(name, docs)
	}
	node("a", "10.1.0.2", "10.1.0.254", "10.1.0.4-10.1.0.6")
	node("b", "10.1.1.2", "10.1.1.254")
	node("c", "10.1.2.2", "10.1.2.254", "10.1.2.2")
	asked := func() []string {
		var out []string
		for _, a := range c.asked {
			if strings.Contains(a, "explain") {
				out = append(out, a)
			}
		}
		c.asked = nil
		slices.Sort(out)
		return out
	}
	for _, tc := range []struct {
		addr, says string
		code       int
		asks       []string
	}{
		{"10.1.0.5", "On node a:", exitOK, []string{"a explain?address=10.1.0.5"}},
		{"::ffff:10.1.0.5", "On node a:", exitOK, []string{"a explain?address=10.1.0.5"}},
		{"10.1.1.7", "On node b:", exitOK, []string{"b explain?address=10.1.1.7"}}, // reserved since the latest sweep
		{"10.1.1.8", "it is in a range of b", exitError, []string{"b explain?address=10.1.1.8"}},
		{"10.9.9.9", "no node has it", exitError, nil},
		{"web", "want an address", exitUsage, nil},
	} {
		code, out, stderr := c.run(t, "explain", tc.addr)
		if code != tc.code || !strings.Contains(out+stderr, tc.says) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s%s", tc.addr, code, tc.code, tc.says, out, stderr)
		}
		if diff := cmp.Diff(tc.asks, asked()); diff != "" {
			t.Errorf("%s: asked (-want +got):\n%s", tc.addr, diff)
		}
	}
	// Whoever does not answer might have it.
	c.refuse["holdfast-agent-c"] = "no route"
	if code, out, stderr := c.run(t, "explain", "10.1.0.5"); code != exitError || !strings.Contains(out, "On node a:") || !strings.Contains(stderr, "c: ") {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
}

func TestForbidden(t *testing.T) {
	c := newCluster(t)
	c.node("a", nil)
	c.forbid = true
	if code, _, stderr := c.run(t, "status"); code != exitError || !strings.Contains(stderr, "pods is forbidden") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestSomeAtOnce: never more than --parallel, and of two Pods of one node the one that
// stays.
func TestSomeAtOnce(t *testing.T) {
	c := newCluster(t)
	for i := range 24 {
		c.add(fmt.Sprintf("n%02d", i), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(30 * time.Millisecond)
			_ = json.NewEncoder(w).Encode(status(true, nil))
		}))
	}
	old := *c.pod("n00")
	old.Name, old.DeletionTimestamp = "old", &metav1.Time{Time: time.Now()}
	c.pods = append([]corev1.Pod{old}, c.pods...)
	code, out, stderr := c.run(t, "status", "--parallel", "3")
	if code != exitOK || strings.Count(out, "\n") != 25 {
		t.Errorf("exit %d: %s\n%s", code, stderr, out)
	}
	if c.most > 4 { // one that ends while the next begins
		t.Errorf("%d at once", c.most)
	}
}
