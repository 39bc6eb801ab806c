package verdict_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// Every row departs from a dead attachment at 10.1.0.9, seen twice across the grace on a
// node whose API server has the living Pod alone.
func TestKube(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	silent := func(n *node) { n.silent["kube"] = "the API server did not answer" }
	kubeOf := func(c *Case) *claim.Testimony { return &c.Testimonies[len(c.Testimonies)-1] }
	for _, r := range []struct {
		name     string
		optional bool
		set      func(*node)
		want     Verdict
	}{
		{name: "no Pod has the address", want: Leaked},
		{name: "a Pod has the address", set: func(n *node) { n.pod("u", "Running", "10.1.0.9") }, want: InUse},
		{name: "a Pod that need not be heard has the address", optional: true, set: func(n *node) { n.pod("u", "Running", "10.1.0.9") }, want: InUse},
		{name: "a Pod has its neighbour", set: func(n *node) { n.pod("u", "Running", "10.1.0.90") }, want: Leaked},
		{name: "a Pod has it, mapped", set: func(n *node) { n.pod("u", "Running", "::ffff:10.1.0.9") }, want: InUse},
		{name: "a Pod has it second", set: func(n *node) { n.pod("u", "Running", "fd00::9", "10.1.0.9") }, want: InUse},
		{name: "a Pending Pod has it", set: func(n *node) { n.pod("u", "Pending", "10.1.0.9") }, want: InUse},
		{name: "a Pod of no known phase has it", set: func(n *node) { n.pod("u", "", "10.1.0.9") }, want: InUse},
		{name: "a Terminating Pod has it", set: func(n *node) { n.pod("u", "Running", "10.1.0.9").Deleting = true }, want: InUse},
		{name: "terminal: a Pod that succeeded has it", set: func(n *node) { n.pod("u", "Succeeded", "10.1.0.9") }, want: Leaked},
		{name: "terminal: a Pod that failed has it", set: func(n *node) { n.pod("u", "Failed", "10.1.0.9") }, want: Leaked},
		{name: "terminal, and its process runs", set: func(n *node) { n.pod("u", "Failed", "10.1.0.9"); n.proc(idA, "cgroup", 50) }, want: InUse},
		{name: "a Pod on the host's network has it", set: func(n *node) { n.pod("u", "Running", "10.1.0.9").HostNetwork = true }, want: Leaked},
		{name: "a Pod has it, and the kernel is silent, so that nobody asks", set: func(n *node) { n.pod("u", "Running", "10.1.0.9"); n.silent["kernel"] = "EACCES" }, want: Unknown},
		{name: "a mirror Pod has it", set: func(n *node) { n.pod("m", "Running", "10.1.0.9").ConfigHash = "static" }, want: InUse},

		// Rows of a Pod that is there say nothing of a container's ID: after a reboot the same
		// Pod has a new sandbox.
		{name: "Pod UID: the Pod of the dead sandbox is there", set: func(n *node) {
			n.cache(idA, "")
			n.at("/var/lib/cni/results/pods-" + idA + "-eth0").Cache.Pod = claim.Pod{Namespace: "default", Name: "web-0", UID: "u"}
			n.pod("u", "Running", "10.1.0.10")
			n.box(idB, "u", true)
			n.proc(idB, "shim", 1)
		}, want: Leaked},
		{name: "F1: a live sandbox whose Pod has no podIPs", set: func(n *node) { n.pod("u", "Running"); n.box(idA, "u", true) }, want: InUse},
		{name: "F3: a Pending Pod without status, its plugin runs", set: func(n *node) { n.pod("u", "Pending"); n.proc(idA, "cni", 1) }, want: InUse},
		{name: "F7: Terminating, its containers run", set: func(n *node) { n.pod("u", "Running").Deleting = true; n.proc(idA, "cgroup", 50) }, want: InUse},
		{name: "F7: force-deleted, its containers run", set: func(n *node) { n.box(idA, "u", false); n.proc(idA, "cgroup", 50) }, want: InUse},
		{name: "F16: a static Pod runs, its mirror is missing", set: func(n *node) { n.box(idA, "static", true).FromAPI = false }, want: InUse},

		// A renamed network: the Pod's sandbox has the address in its new directory (case L15).
		{name: "L15: its Pod has reserved it elsewhere", set: func(n *node) {
			n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
			n.box(idB, "u", true)
			n.pod("u", "Running", "10.1.0.9")
		}, want: Leaked},
		{name: "L15: a static Pod has reserved it elsewhere", set: func(n *node) {
			n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
			n.box(idB, "static", true).FromAPI = false
			n.pod("m", "Running", "10.1.0.9").ConfigHash = "static"
		}, want: Leaked},
		{name: "another Pod has reserved it elsewhere", set: func(n *node) {
			n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
			n.box(idB, "u2", true)
			n.pod("u2", "Running")
			n.pod("u", "Running", "10.1.0.9")
		}, want: InUse},
		{name: "its Pod had reserved it elsewhere, and is not Ready", set: func(n *node) {
			n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
			n.box(idB, "u", false)
			n.pod("u", "Running", "10.1.0.9")
		}, want: InUse},
		{name: "L15: its Pod has reserved it elsewhere, is not Ready, and runs", set: func(n *node) {
			n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
			n.box(idB, "u", false)
			n.proc(idB, "shim", 1)
			n.pod("u", "Running", "10.1.0.9")
		}, want: Leaked},
		{name: "its Pod has reserved another address elsewhere", set: func(n *node) {
			n.file(otherDir, "10.1.0.8", idB+"\r\neth0")
			n.box(idB, "u", true)
			n.pod("u", "Running", "10.1.0.9")
		}, want: InUse},

		{name: "API server down, required", set: silent, want: Unknown},
		{name: "API server down, not required", optional: true, set: silent, want: Leaked},
		{name: "the engine cannot ask, required", set: func(n *node) { n.apiServer = false }, want: Unknown},
		{name: "the engine cannot ask, not required", optional: true, set: func(n *node) { n.apiServer = false }, want: Leaked},
		{name: "an old list: asked before the listing", set: func(n *node) {
			n.tweak = func(c *Case) {
				if n.asked {
					kubeOf(c).Asked = n.before(4 * time.Second)
				}
			}
		}, want: Unknown},
		{name: "a Pod of an old list", optional: true, set: func(n *node) {
			n.pod("u", "Running", "10.1.0.9")
			n.tweak = func(c *Case) {
				if n.asked {
					kubeOf(c).Asked = n.before(4 * time.Second)
				}
			}
		}, want: Leaked},
		{name: "complete without facts", set: func(n *node) {
			n.tweak = func(c *Case) {
				if n.asked {
					kubeOf(c).Kube = nil
				}
			}
		}, want: Unknown},

		// Case F6, and the list of another node.
		{name: "F6: an empty list, Ready sandboxes", set: func(n *node) { n.pods = nil }, want: Unknown},
		{name: "F6: an empty list, Ready sandboxes, not required", optional: true, set: func(n *node) { n.pods = nil }, want: Leaked},
		{name: "F6: another node's list", set: func(n *node) { n.pods[0].UID = "far away" }, want: Unknown},
		{name: "F6: an empty list, static Pods alone are Ready", set: func(n *node) { n.pods, n.boxes[0].FromAPI = nil, false }, want: Leaked},
		{name: "F6: an empty list, nothing is Ready", set: func(n *node) { n.pods, n.boxes[0].Ready = nil, false }, want: Leaked},
		{name: "one of two Ready sandboxes is known", set: func(n *node) { n.box(idB, "u", true) }, want: Leaked},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, _ := leak(t)
			n.kube(!r.optional)
			if r.set != nil {
				r.set(n)
			}
			n.sweeps(grace).want(p, r.want, r.want == Leaked)
		})
	}
}

// A NotReady sandbox and what the API server says of its Pod, with pairs.
func TestKubeNotReady(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	alone := func(n *node) { n.box(idA, "u", false) }
	with := func(more func(*node)) func(*node) { return func(n *node) { alone(n); more(n) } }
	for _, r := range []struct {
		name string
		set  func(*node)
		wait time.Duration
		want Verdict
		rel  bool
	}{
		{"L12: its Pod is gone", alone, grace, Leaked, true},
		{"its Pod is gone, within the grace", alone, grace - 1, Suspect, false},
		{"its Pod is there", with(func(n *node) { n.pod("u", "Running") }), 2 * orphanGrace, InUse, false},
		{"its Pod is there, Pending", with(func(n *node) { n.pod("u", "Pending") }), 2 * orphanGrace, InUse, false},
		{"Terminating", with(func(n *node) { n.pod("u", "Running").Deleting = true }), 2 * orphanGrace, InUse, false},
		{"terminal", with(func(n *node) { n.pod("u", "Succeeded") }), grace, Suspect, false},
		{"terminal, across the orphan grace", with(func(n *node) { n.pod("u", "Failed") }), orphanGrace, Leaked, true},
		{"F4: another Pod of that name is there", with(func(n *node) { n.pod("u2", "Running") }), grace, Leaked, true},
		{"F16: a static Pod has no mirror", with(func(n *node) { n.boxes[1].FromAPI = false }), grace, Suspect, false},
		{"F16: and across the orphan grace", with(func(n *node) { n.boxes[1].FromAPI = false }), orphanGrace, Leaked, true},
		{"mirror: its static Pod is there", with(func(n *node) { n.boxes[1].FromAPI = false; n.pod("m", "Running").ConfigHash = "u" }), 2 * orphanGrace, InUse, false},
		{"mirror: of another static Pod", with(func(n *node) { n.boxes[1].FromAPI = false; n.pod("m", "Running").ConfigHash = "u2" }), grace, Suspect, false},
		{"without a Pod UID", func(n *node) { n.box(idA, "", false) }, grace, Suspect, false},
		{"its Pod is gone, a process carries its ID", with(func(n *node) { n.proc(idA, "cgroup", 50) }), 2 * orphanGrace, InUse, false},
		{"its Pod is gone, its namespace is there", with(func(n *node) { n.boxes[1].Netns = cniMount; n.netns(50, 0, cniMount) }), grace, InUse, false},
		{"its Pod is there, with a newer Ready sandbox", with(func(n *node) { n.pod("u", "Running"); n.box(idB, "u", true) }), grace, Leaked, true},
		{"its Pod is there, with a newer NotReady one", with(func(n *node) { n.pod("u", "Pending"); n.box(idB, "u", false) }), grace, Suspect, false},
		{"and across the orphan grace", with(func(n *node) { n.pod("u", "Pending"); n.box(idB, "u", false) }), orphanGrace, Leaked, true},
		{"its Pod is there, with a newer one in another runtime", with(func(n *node) {
			n.pod("u", "Running")
			n.runtimes = append(n.runtimes, claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateComplete})
			n.box(idB, "u", true).Endpoint = crioSock
		}), orphanGrace, Leaked, true},
		{"its Pod is there, with an older sandbox", func(n *node) { n.box(idB, "u", false); alone(n); n.pod("u", "Pending") }, 2 * orphanGrace, InUse, false},
		{"API server down", with(func(n *node) { n.silent["kube"] = "down" }), 2 * orphanGrace, Unknown, false},
		{"API server down, not required", with(func(n *node) { n.silent["kube"] = "down"; n.policy.Required = n.policy.Required[:3] }), grace, Suspect, false},
		{"F6: an empty list, Ready sandboxes", with(func(n *node) { n.pods = nil }), 2 * orphanGrace, Unknown, false},
		{"stamped: gone must be heard twice", with(func(n *node) {
			n.files[0].Stamp = &claim.Stamp{Boot: n.now.Boot, Mono: n.now.Mono - 10*orphanGrace}
		}), grace - 1, Suspect, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, _ := leak(t)
			n.kube(true)
			r.set(n)
			n.sweep().kept(p)
			n.wait(r.wait)
			n.sweep().want(p, r.want, r.rel)
		})
	}
}

// That a Pod is gone is evidence of its own: a run that was begun by less does not count.
func TestKubeGoneBeginsAnew(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	for name, first := range map[string]func(*node){
		"the API server was silent":  func(n *node) { n.silent["kube"] = "down" },
		"its Pod had ended":          func(n *node) { n.pod("u", "Failed") },
		"its Pod was there":          func(n *node) { n.pod("u", "Running") },
		"its sandbox was not listed": func(n *node) { n.boxes = n.boxes[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := leak(t)
			n.kube(false)
			n.box(idA, "u", false)
			pods, boxes := n.pods, n.boxes
			first(n)
			n.sweep().kept(p)
			n.wait(grace)
			n.pods, n.boxes = pods, boxes
			clear(n.silent)
			n.sweep().want(p, Suspect, false)
			n.wait(grace)
			n.sweep().want(p, Leaked, true)
		})
	}
}

// A run of sightings counts only with those who testified then. Who need not speak ends no
// run by its silence.
func TestKubeInTheWitnessSet(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	for _, r := range []struct {
		name                string
		then, now, silently bool // required then and now; silent then
		want                Verdict
	}{
		{"required all the time", true, true, false, Leaked},
		{"required since", false, true, false, Suspect},
		{"not required any more", true, false, false, Leaked},
		{"never required, silent first", false, false, true, Leaked},
		{"required, silent first", true, true, true, Suspect},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, _ := leak(t)
			n.kube(r.then)
			if r.silently {
				n.silent["kube"] = "down"
			}
			n.sweep().kept(p)
			n.wait(grace)
			clear(n.silent)
			n.policy.Required = n.policy.Required[:3]
			if r.now {
				n.policy.Required = append(n.policy.Required, claim.WitnessKube)
			}
			n.sweep().want(p, r.want, r.want == Leaked)
		})
	}
}

// The API server is asked when something is dead, and else is not missed either.
func TestKubeIsAskedOnlyWhenNeeded(t *testing.T) {
	for _, r := range []struct {
		name string
		set  func(*node)
		want bool
	}{
		{"dead", func(n *node) {}, true},
		{"alive", func(n *node) { n.proc(idA, "shim", 1) }, false},
		{"nothing at all", func(n *node) { n.files = nil }, false},
		{"NotReady", func(n *node) { n.box(idA, "u", false) }, true},
		{"an unused namespace", func(n *node) { n.netns(50, 0, cniMount, "10.1.0.9") }, true},
		{"an unused namespace alone", func(n *node) { n.files = nil; n.netns(50, 0, cniMount) }, true},
		{"a cache entry alone", func(n *node) { n.files = nil; n.cache(idA, "") }, true},
		{"dead, and cri is silent", func(n *node) { n.silent["cri"] = "down" }, false},
		{"unreadable", func(n *node) { n.files[0].Problem = "EIO" }, false},
		{"in conflict", func(n *node) { n.netns(50, 1, cniMount, "10.1.0.9"); n.netns(51, 1, cniMount2, "10.1.0.9") }, false},
	} {
		for _, required := range []bool{true, false} {
			t.Run(r.name, func(t *testing.T) {
				n, _ := leak(t)
				n.kube(required)
				r.set(n)
				o := n.sweep()
				if n.asked != r.want {
					t.Errorf("required %v: asked %v", required, n.asked)
				}
				if slices.ContainsFunc(o.j.Silent, func(s string) bool { return strings.HasPrefix(s, "kube") }) || o.j.Reasons["kube"] != "" {
					t.Errorf("required %v: silent %q, reasons %q", required, o.j.Silent, o.j.Reasons)
				}
				for _, f := range o.j.Findings {
					for _, y := range f.Says {
						if y.Witness == claim.WitnessKube && !r.want {
							t.Errorf("required %v: %s hears %+v", required, f.Resource.Path, y)
						}
					}
				}
			})
		}
	}
	n, p := leak(t)
	n.kube(true)
	n.silent["kube"] = "Forbidden"
	o := n.sweep()
	if !slices.Contains(o.j.Silent, "kube: Forbidden") || o.at(p).Why != "kube is silent: Forbidden" {
		t.Errorf("silent %q, why %q", o.j.Silent, o.at(p).Why)
	}
}
