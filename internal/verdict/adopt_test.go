package verdict_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// adoptable is a living attachment whose reservation is gone, with every witness sure of it.
func adoptable(t testing.TB) *node {
	n := newNode(t)
	n.policy.Adopt = true
	n.bystander()
	n.box(idA, "a", true).Netns = cniMount
	n.proc(idA, "cgroup", 50)
	n.netns(50, 1, cniMount, "10.1.0.9")
	n.cache(idA, cniMount, "10.1.0.9")
	return n
}

// Case F12: what is certain gets its reservation back, and whatever takes certainty away
// leaves it reported.
func TestAdoptable(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	ns := func(n *node) *claim.Netns { return &n.nets[len(n.nets)-1] }
	cache := func(n *node) *claim.Resource { return &n.caches[0] }
	for _, r := range []struct {
		name string
		set  func(*node)
		why  string // "": adoptable
	}{
		{"all is certain", func(*node) {}, ""},
		{"its directory is gone too", func(n *node) { n.stores = []claim.Store{{Dir: dataDir, DataDir: dataDir, Writable: true}} }, ""},
		{"reserved by our own plugin", func(n *node) { cache(n).Cache.IPAM = "holdfast-ipam" }, ""},
		{"known by its runtime's word alone", func(n *node) { n.hits, cache(n).Cache.Netns = n.hits[:1], "" }, ""},
		{"a dead one's cached result has the address too", func(n *node) { n.cache(idB, cniMount2, "10.1.0.9") }, ""},
		{"the API server is silent", func(n *node) { n.policy.Required = append(n.policy.Required, claim.WitnessKube) }, ""},
		{"no CRI runtime, and a process", func(n *node) { n.policy.CRINone = true; n.silent["cri"] = "none" }, ""},

		{"no CRI runtime, and no process", func(n *node) { n.policy.CRINone = true; n.silent["cri"] = "none"; n.hits = n.hits[:1] }, "no process carries its ID"},
		{"no CRI runtime, and a plugin alone", func(n *node) {
			n.policy.CRINone = true
			n.silent["cri"] = "none"
			n.hits[1].Via = "cni"
		}, "a plugin is at work"},
		{"its directory is not looked at", func(n *node) { n.stores = n.stores[1:] }, "was not looked at"},
		{"its directory is read-only", func(n *node) { n.stores[0].Writable = false }, "read-only"},
		{"its cached result has another address", func(n *node) { cache(n).Cache.Addrs[0] = ip("10.1.0.10"); n.reserve("10.1.0.10", idA) }, "no cached result"},
		{"its cached result cannot be read", func(n *node) { cache(n).Problem = "EIO" }, "no cached result"},
		{"nothing is cached", func(n *node) { n.caches = nil }, "no cached result"},
		{"its cached configuration keeps it elsewhere", func(n *node) { cache(n).Cache.DataDir = "/srv/ipam" }, "no cached result"},
		{"its runtime says NotReady", func(n *node) { n.boxes[1].Ready = false }, "no runtime lists it, Ready"},
		{"its runtime does not list it", func(n *node) { n.boxes = n.boxes[:1] }, "no runtime lists it, Ready"},
		{"its runtime is silent", func(n *node) { n.silent["cri"] = "EOF" }, "cri is silent"},
		{"processes are silent", func(n *node) { n.silent["process"] = "EACCES" }, "process is silent"},
		{"no vantage", func(n *node) { n.vantage.Proven = false }, "no vantage"},
		{"cri is not asked by policy", func(n *node) { n.policy.Required = n.policy.Required[:2] }, "leaves out the witness cri"},
		{"a plugin is at work for it", func(n *node) { n.proc(idA, "cni", 1) }, "a plugin is at work"},
		{"two namespaces hold the address", func(n *node) { n.netns(51, 1, cniMount2, "10.1.0.9") }, "2 network namespaces hold"},
		{"no namespace holds the address", func(n *node) { ns(n).Addrs = nil }, "0 network namespaces hold"},
		{"the host holds the address", func(n *node) {
			ns(n).Addrs = nil
			n.nets[0].Addrs = append(n.nets[0].Addrs, claim.IfAddr{If: "eth0", Addr: ip("10.1.0.9")})
		}, "the host itself"},
		{"nobody is in its namespace", func(n *node) { ns(n).Procs, n.hits = 0, n.hits[:1] }, "no process uses"},
		{"the address is on another interface", func(n *node) { ns(n).Addrs[0].If = "net1" }, "not on its interface"},
		{"the interface has no name", func(n *node) { ns(n).Addrs[0].If = "#7" }, "not on its interface"},
		{"the namespace is another's", func(n *node) {
			n.boxes[1].Netns, cache(n).Cache.Netns = "", ""
			n.hits[1] = claim.ProcessHit{ID: idA, PID: 4001, Netns: 1, Via: "shim"}
			n.box(idB, "b", true).Netns = cniMount
		}, "nothing says that it is of"},
		{"another living one is in its namespace", func(n *node) { n.box(idB, "b", true).Netns = cniMount }, "may be of b0b1b2b3b0b1b too"},
		{"another's cached result names its namespace", func(n *node) { n.cache(idB, cniMount, "10.1.0.77") }, "may be of b0b1b2b3b0b1b too"},
		{"it may live in another namespace", func(n *node) { n.netns(51, 1, cniMount2); n.boxes[1].Netns = cniMount2 }, "may be its network namespace too"},
		{"its runtime says that another has the address", func(n *node) { n.box(idB, "b", true).Addrs = append(n.boxes[1].Addrs, ip("10.1.0.9")) }, "is said to have the address too"},
		{"a person holds the address", func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9"), Why: "mine"}} }, "it is held: mine"},
		{"an undo holds it", func(n *node) {
			n.policy.Holds = []Hold{{Store: netDir, Addr: ip("10.1.0.9"), Owner: claim.Owner{Shape: claim.ShapeContainer, ID: idA, IfName: "eth0"}}}
		}, "it is held"},
		{"an undo holds another's", func(n *node) {
			n.policy.Holds = []Hold{{Store: netDir, Addr: ip("10.1.0.9"), Owner: claim.Owner{Shape: claim.ShapeContainer, ID: idB, IfName: "eth0"}}}
		}, ""},
		{"the address is excluded", func(n *node) { n.policy.Exclude = append(n.policy.Exclude, netip.MustParsePrefix("10.1.0.0/24")) }, "excluded"},
		{"the holds cannot be read", func(n *node) { n.policy.Unheld = "EIO" }, "the holds cannot be read"},
		{"the runtime was not asked for details", func(n *node) {
			n.tweak = func(c *Case) {
				for i := range c.Testimonies {
					if c.Testimonies[i].CRI != nil {
						c.Testimonies[i].CRI.Detailed = false
					}
				}
			}
		}, "not asked for the addresses"},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := adoptable(t)
			r.set(n)
			o := n.sweep()
			f := o.at(p)
			if f.Verdict != Missing && r.why == "" {
				t.Fatalf("%s by %s", f.Verdict, f.Rule)
			}
			if f.Adoptable != (r.why == "") || !strings.Contains(f.Unadoptable, r.why) && f.Verdict == Missing {
				t.Errorf("adoptable %v: %s; want %q", f.Adoptable, f.Unadoptable, r.why)
			}
			if f.Verdict != Missing {
				// Not even Missing by this listing: it must not be adoptable when asked again either.
				f.Resource = adoptable(t).sweep().at(p).Resource
			}
			if got := Readopt(o.c, []*Finding{&f})[0]; (got == "") != (r.why == "") || !strings.Contains(got, r.why) {
				t.Errorf("asked again: %q; want %q", got, r.why)
			}
		})
	}
}

// Nobody asked: it is reported as it always was.
func TestNotAsked(t *testing.T) {
	n := adoptable(t)
	n.policy.Adopt = false
	o := n.sweep()
	f := o.at(netDir + "/10.1.0.9")
	if f.Verdict != Missing || f.Adoptable || f.Unadoptable != "" || strings.Contains(f.Why, "given") {
		t.Errorf("%s, adoptable %v: %s", f.Verdict, f.Adoptable, f.Why)
	}
	if o.needs.Detail {
		t.Error("the runtime is asked for details all the same")
	}
}

// A cached configuration is anybody's text: it names no directory but a network's own.
func TestAdoptsNoStrangeDirectory(t *testing.T) {
	for _, network := range []string{"..", ".", "a/b", ""} {
		n := adoptable(t)
		r := *n.sweep().at(netDir + "/10.1.0.9").Resource
		r.Network = network
		r.Store = dataDir + "/" + network
		n.caches[0].Network = network
		if why := Readopt(n.build(true, true), []*Finding{{Resource: &r}})[0]; why == "" {
			t.Errorf("%q would be written to", r.Store)
		}
	}
}
