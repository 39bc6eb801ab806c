package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// leak is the node of most tables: a dead attachment at 10.1.0.9, and a living Pod.
func leak(t testing.TB) (*node, string) {
	n := newNode(t)
	n.bystander()
	return n, n.reserve("10.1.0.9", idA)
}

// Every row departs from the same leak by one thing. The pairs stand together: what
// releases, and right beside it what must not.
func TestVerdictTable(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	silence := func(w string) func(*node) { return func(n *node) { n.silent[w] = "timed out" } }
	rows := []struct {
		name  string
		set   func(*node) // before the first sweep
		wait  time.Duration
		later func(*node) // before the second sweep
		want  Verdict
		gone  bool
	}{
		{name: "absent twice across the grace", wait: grace, want: Leaked, gone: true},
		{name: "absent twice within the grace", wait: grace - 1, want: Suspect},
		{name: "absent twice, one nanosecond apart", wait: 1, want: Suspect},
		{name: "grace over only by the wall clock", wait: time.Second, later: func(n *node) { n.now.Wall = n.now.Wall.Add(1000 * time.Hour) }, want: Suspect},
		{name: "wall clock goes back", wait: grace, later: func(n *node) { n.now.Wall = n.now.Wall.Add(-1000 * time.Hour) }, want: Leaked, gone: true},

		{name: "kernel silent", wait: grace, later: silence("kernel"), want: Unknown},
		{name: "process silent", wait: grace, later: silence("process"), want: Unknown},
		{name: "cri silent", wait: grace, later: silence("cri"), want: Unknown},
		{name: "boot silent", wait: grace, later: silence("boot"), want: Unknown},
		{name: "boot ID unread", wait: grace, later: func(n *node) { n.now.Boot = "" }, want: Unknown},
		{name: "cri silent, none by policy", set: func(n *node) { n.policy.CRINone = true; n.silent["cri"] = "no socket" }, wait: grace, want: Leaked, gone: true},
		{name: "none by policy, yet listed", set: func(n *node) { n.policy.CRINone = true; n.box(idA, "a", true) }, wait: grace, want: InUse},
		{name: "silent first, absent since", set: silence("kernel"), wait: grace, later: func(n *node) { clear(n.silent) }, want: Suspect},

		{name: "policy without kernel", set: func(n *node) { n.policy.Required = []string{"process", "cri"} }, wait: grace, want: Unknown},
		{name: "policy without process", set: func(n *node) { n.policy.Required = []string{"kernel", "cri"} }, wait: grace, want: Unknown},
		{name: "policy without cri", set: func(n *node) { n.policy.Required = []string{"kernel", "process"} }, wait: grace, want: Unknown},
		{name: "policy without any", set: func(n *node) { n.policy.Required = nil }, wait: grace, want: Unknown},

		{name: "vantage not proven", wait: grace, later: func(n *node) { n.vantage.Proven = false }, want: Unknown},
		{name: "vantage not proven at the first", set: func(n *node) { n.vantage.Proven = false }, wait: grace, later: func(n *node) { n.vantage.Proven = true }, want: Suspect},
		{name: "other PID namespace, runtimes visible", set: func(n *node) {
			n.vantage.InitialPIDNS, n.vantage.PIDNS, n.runtimes[0].PeerPIDNS = false, 77, 77
		}, wait: grace, want: Leaked, gone: true},
		{name: "other PID namespace than the runtime's", set: func(n *node) {
			n.vantage.InitialPIDNS, n.vantage.PIDNS, n.runtimes[0].PeerPIDNS = false, 77, 78
		}, wait: grace, want: Unknown},
		{name: "other PID namespace, the runtime's unread", set: func(n *node) {
			n.vantage.InitialPIDNS, n.vantage.PIDNS = false, 77
		}, wait: grace, want: Unknown},
		{name: "other PID namespace, a runtime out of sight", set: func(n *node) {
			n.vantage.InitialPIDNS = false
			n.runtimes = append(n.runtimes, claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateComplete})
		}, wait: grace, want: Unknown},
		{name: "other PID namespace, no runtime", set: func(n *node) {
			n.vantage.InitialPIDNS, n.policy.CRINone = false, true
			n.silent["cri"] = "no socket"
		}, wait: grace, want: Unknown},

		{name: "process carries the ID (shim)", wait: grace, later: func(n *node) { n.proc(idA, "shim", 1) }, want: InUse},
		{name: "process carries the ID (cni)", wait: grace, later: func(n *node) { n.proc(idA, "cni", 1) }, want: InUse},
		{name: "process carries a longer ID", wait: grace, later: func(n *node) { n.proc(idA+"0", "shim", 1) }, want: Leaked, gone: true},
		{name: "Ready sandbox", wait: grace, later: func(n *node) { n.box(idA, "a", true) }, want: InUse},
		{name: "Ready sandbox, kernel and process silent", wait: grace, later: func(n *node) {
			n.box(idA, "a", true)
			n.silent["kernel"], n.silent["process"] = "EACCES", "EACCES"
		}, want: InUse},
		{name: "held by a namespace with a process", wait: grace, later: func(n *node) { n.netns(50, 1, "", "10.1.0.9") }, want: InUse},
		{name: "held by a namespace with a descriptor", wait: grace, later: func(n *node) { n.netns(50, 0, "", "10.1.0.9").FDHolders = 1 }, want: InUse},
		{name: "held by the host", wait: grace, later: func(n *node) {
			n.nets[0].Addrs = append(n.nets[0].Addrs, claim.IfAddr{If: "eth1", Addr: ip("10.1.0.9")})
		}, want: InUse},
		{name: "a neighbour's address is held", wait: grace, later: func(n *node) { n.netns(50, 1, "", "10.1.0.90") }, want: Leaked, gone: true},
		{name: "own namespace in use, without the address", wait: grace, later: func(n *node) { n.cache(idA, cniMount); n.netns(50, 1, cniMount) }, want: InUse},
		{name: "own namespace spelled by /var/run", wait: grace, later: func(n *node) { n.cache(idA, "/var"+cniMount); n.netns(50, 1, cniMount) }, want: InUse},

		{name: "unreadable", wait: grace, later: func(n *node) { n.files[0].Problem = "EIO" }, want: Unknown},
		{name: "store not listed whole", wait: grace, later: func(n *node) { n.stores[0].Problem = "EIO" }, want: Unknown},
		{name: "another store not listed whole", wait: grace, later: func(n *node) { n.stores[1].Problem = "EIO" }, want: Leaked, gone: true},

		{name: "held by a person", wait: grace, later: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, want: Held},
		{name: "held in this store", wait: grace, later: func(n *node) { n.policy.Holds = []Hold{{Store: netDir, Addr: ip("10.1.0.9")}} }, want: Held},
		{name: "held in another store", wait: grace, later: func(n *node) { n.policy.Holds = []Hold{{Store: otherDir, Addr: ip("10.1.0.9")}} }, want: Leaked, gone: true},
		{name: "another address held", wait: grace, later: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.90")}} }, want: Leaked, gone: true},
		{name: "excluded", wait: grace, later: func(n *node) { n.policy.Exclude = []netip.Prefix{netip.MustParsePrefix("10.1.0.8/31")} }, want: Held},
		{name: "just outside the excluded", wait: grace, later: func(n *node) { n.policy.Exclude = []netip.Prefix{netip.MustParsePrefix("10.1.0.10/31")} }, want: Leaked, gone: true},
		{name: "held, but alive", wait: grace, later: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}}; n.proc(idA, "shim", 1) }, want: InUse},
		{name: "held, with a silent witness", wait: grace, later: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}}; n.silent["cri"] = "hangs" }, want: Held},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			n, _ := leak(t)
			if r.set != nil {
				r.set(n)
			}
			n.sweep().kept(p)
			n.wait(r.wait)
			if r.later != nil {
				r.later(n)
			}
			n.sweep().want(p, r.want, r.gone)
		})
	}
}

// What is Suspect says how long it still takes, and what is kept says that waiting does
// not help.
func TestWait(t *testing.T) {
	n, p := leak(t)
	if f := n.sweep().at(p); f.Wait != grace {
		t.Errorf("at first Wait is %v, want %v", f.Wait, grace)
	}
	n.wait(grace - time.Minute)
	if f := n.sweep().at(p); f.Wait != time.Minute {
		t.Errorf("a minute before, Wait is %v", f.Wait)
	}
	n.wait(time.Minute)
	if f := n.sweep().at(p); f.Wait != 0 || !f.Releasable {
		t.Errorf("afterwards Wait is %v, releasable %v", f.Wait, f.Releasable)
	}
	n.proc(idA, "shim", 1)
	if f := n.sweep().at(p); f.Wait >= 0 {
		t.Errorf("alive, yet Wait is %v", f.Wait)
	}
}

// Silence names the witness, on every finding and in the sum.
func TestSilenceIsNamed(t *testing.T) {
	for _, w := range []string{"kernel", "process", "cri", "boot"} {
		n, p := leak(t)
		n.silent[w] = "connection refused"
		o := n.sweep()
		if !slices.Contains(o.j.Silent, w+": connection refused") {
			t.Errorf("%s: Silent is %q", w, o.j.Silent)
		}
		if f := o.at(p); f.Why != w+" is silent: connection refused" {
			t.Errorf("%s: Why is %q", w, f.Why)
		}
	}
}

func TestNotReady(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	newer := func(n *node) { n.box(idA, "pod", false); n.box(idB, "pod", true); n.proc(idB, "shim", 1) }
	alone := func(n *node) { n.box(idA, "pod", false) }
	for _, r := range []struct {
		name string
		set  func(*node)
		wait time.Duration
		want Verdict
		gone bool
	}{
		{"newer Ready, grace over", newer, grace, Leaked, true},
		{"newer Ready, within the grace", newer, grace - 1, Suspect, false},
		{"older Ready", func(n *node) { n.box(idB, "pod", true); n.box(idA, "pod", false) }, grace, Suspect, false},
		{"newer Ready of another Pod", func(n *node) { n.box(idA, "pod", false); n.box(idB, "pod2", true) }, grace, Suspect, false},
		{"newer NotReady", func(n *node) { n.box(idA, "pod", false); n.box(idB, "pod", false) }, grace, Suspect, false},
		{"newer Ready, both without Pod UID", func(n *node) { n.box(idA, "", false); n.box(idB, "", true) }, grace, Suspect, false},
		{"newer Ready in another runtime", func(n *node) {
			n.box(idA, "pod", false)
			n.box(idB, "pod", true).Endpoint = crioSock
			n.runtimes = append(n.runtimes, claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateComplete})
		}, grace, Suspect, false},
		{"alone, orphan grace over", alone, orphanGrace, Leaked, true},
		{"alone, within the orphan grace", alone, orphanGrace - 1, Suspect, false},
		{"newer Ready, process alive", func(n *node) { newer(n); n.proc(idA, "shim", 1) }, 2 * orphanGrace, InUse, false},
		{"alone, process alive", func(n *node) { alone(n); n.proc(idA, "shim", 1) }, 2 * orphanGrace, InUse, false},
		{"newer Ready, own namespace there", func(n *node) { newer(n); n.cache(idA, cniMount); n.netns(50, 0, cniMount) }, 2 * orphanGrace, InUse, false},
		{"newer Ready, address held", func(n *node) { newer(n); n.netns(50, 1, "", "10.1.0.9") }, 2 * orphanGrace, InUse, false},
		{"newer Ready, kernel silent", func(n *node) { newer(n); n.silent["kernel"] = "EACCES" }, 2 * orphanGrace, InUse, false},
		{"newer Ready, process silent", func(n *node) { newer(n); n.silent["process"] = "EACCES" }, 2 * orphanGrace, InUse, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			n.reserve("10.1.0.9", idA)
			r.set(n)
			n.sweeps(r.wait).want(p, r.want, r.gone)
		})
	}
}

// Absence of an ID that is listed NotReady is other evidence than that of an ID that is
// not listed: the one never counts for the other.
func TestNotReadyThenGone(t *testing.T) {
	n, p := leak(t)
	n.box(idA, "pod", false)
	n.sweep()
	n.wait(orphanGrace - time.Minute)
	n.boxes = n.boxes[:1]
	n.sweep().want(p, Suspect, false)
	n.wait(grace)
	n.sweep().want(p, Leaked, true)
}

func TestOrphaned(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	idle := func(mount string) func(*node) { return func(n *node) { n.netns(50, 0, mount, "10.1.0.9") } }
	for _, r := range []struct {
		name string
		set  func(*node)
		wait time.Duration
		want Verdict
		gone bool
	}{
		{"containerd's name, over", idle(cniMount), orphanGrace, Orphaned, true},
		{"containerd's name, within", idle(cniMount), orphanGrace - 1, Orphaned, false},
		{"containerd's name, after the short grace only", idle(cniMount), grace, Orphaned, false},
		{"a foreign name", idle(podmanMount), 2 * orphanGrace, Orphaned, false},
		{"a foreign name, asked for", func(n *node) { idle(podmanMount)(n); n.policy.Orphans = true }, orphanGrace, Orphaned, true},
		{"a foreign name, asked for, within", func(n *node) { idle(podmanMount)(n); n.policy.Orphans = true }, orphanGrace - 1, Orphaned, false},
		{"a name that only looks like containerd's", idle(cniMount + "0"), 2 * orphanGrace, Orphaned, false},
		{"containerd's name, but only CRI-O answers", func(n *node) { idle(cniMount)(n); n.runtimes[0].Name = "cri-o" }, 2 * orphanGrace, Orphaned, false},
		{"no mount at all", idle(""), 2 * orphanGrace, Orphaned, false},
		{"no runtime by policy", func(n *node) {
			idle(cniMount)(n)
			n.policy.CRINone, n.silent["cri"] = true, "no socket"
		}, 2 * orphanGrace, Orphaned, false},
		{"cri silent", func(n *node) { idle(cniMount)(n); n.silent["cri"] = "hangs" }, 2 * orphanGrace, Unknown, false},
		{"held open by a descriptor", func(n *node) { n.netns(50, 0, cniMount, "10.1.0.9").FDHolders = 1 }, 2 * orphanGrace, InUse, false},
		{"a process is in it", func(n *node) { n.netns(50, 1, cniMount, "10.1.0.9") }, 2 * orphanGrace, InUse, false},
		{"a Ready sandbox has its path", func(n *node) { idle(cniMount)(n); n.box(idB, "b", true).Netns = "/var" + cniMount }, 2 * orphanGrace, InUse, false},
		{"a NotReady sandbox has its path", func(n *node) { idle(cniMount)(n); n.box(idB, "b", false).Netns = cniMount }, 2 * orphanGrace, InUse, false},
		{"its own Ready sandbox", func(n *node) { idle(cniMount)(n); n.box(idA, "a", true) }, 2 * orphanGrace, InUse, false},
		{"detail never comes", func(n *node) { idle(cniMount)(n); n.deaf = true }, 2 * orphanGrace, Unknown, false},
		{"vantage not proven", func(n *node) { idle(cniMount)(n); n.vantage.Proven = false }, 2 * orphanGrace, Unknown, false},
		{"excluded", func(n *node) { idle(cniMount)(n); n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, 2 * orphanGrace, Held, false},
		{"a shorter orphan grace than the grace", func(n *node) { idle(cniMount)(n); n.policy.OrphanGrace = 1 }, grace - 1, Orphaned, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			n.reserve("10.1.0.9", idA)
			r.set(n)
			o := n.sweeps(r.wait)
			switch v := o.at(p).Verdict; {
			// A sandbox's path may be told as alive or as a conflict: kept in any case.
			case r.want == InUse && v == Conflict:
				o.kept(p)
			default:
				o.want(p, r.want, r.gone)
			}
			if f := o.at(p); r.gone && (len(f.Netns) != 1 || f.Netns[0].ID != 50 || f.Netns[0].Path == "") {
				t.Errorf("its namespace does not go with it: %v", f.Netns)
			}
		})
	}
}

// A person's namespace is none of our business; a runtime's that nobody explains is.
func TestIdleNetnsAlone(t *testing.T) {
	for _, r := range []struct {
		mount string
		wait  time.Duration
		found bool
		gone  bool
	}{
		{cniMount, orphanGrace, true, true},
		{cniMount, orphanGrace - 1, true, false},
		{"/run/netns/mine", 2 * orphanGrace, false, false},
		{podmanMount, 2 * orphanGrace, false, false},
	} {
		n := newNode(t)
		n.bystander()
		n.netns(50, 0, r.mount, "10.1.0.9")
		f := n.sweeps(r.wait).at(r.mount)
		if found := f.Rule != "no-finding"; found != r.found || f.Releasable != r.gone {
			t.Errorf("%s after %v: found %v, releasable %v by %s", r.mount, r.wait, found, f.Releasable, f.Rule)
		}
	}
}

func TestConflict(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	for _, r := range []struct {
		name   string
		set    func(*node)
		want   Verdict
		gone   bool
		holder string
	}{
		{"another holder without a reservation", func(n *node) {
			n.netns(50, 1, cniMount, "10.1.0.9")
			n.cache(idB, cniMount, "10.1.0.9")
			n.proc(idB, "cgroup", 50)
		}, Conflict, false, idB},
		{"another holder with its own in another store", func(n *node) {
			n.netns(50, 1, cniMount, "10.1.0.9")
			n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
			n.proc(idB, "cgroup", 50)
		}, Leaked, true, ""},
		{"another holder with a reservation of another address", func(n *node) {
			n.netns(50, 1, cniMount, "10.1.0.9")
			n.reserve("10.1.0.10", idB)
			n.proc(idB, "cgroup", 50)
		}, Conflict, false, idB},
		{"another holder whose own cannot be read", func(n *node) {
			n.netns(50, 1, cniMount, "10.1.0.9")
			n.at(n.file(otherDir, "10.1.0.9", idB+"\r\neth0")).Problem = "EIO"
			n.cache(idB, cniMount, "10.1.0.9")
			n.proc(idB, "cgroup", 50)
		}, Conflict, false, idB},
		{"an application container is no attachment", func(n *node) {
			n.netns(50, 1, "", "10.1.0.9")
			n.proc(idB, "cgroup", 50)
		}, InUse, false, ""},
		{"two namespaces", func(n *node) {
			n.netns(50, 1, "", "10.1.0.9")
			n.netns(51, 1, "", "10.1.0.9")
		}, Conflict, false, ""},
		{"two idle namespaces", func(n *node) {
			n.netns(50, 0, cniMount, "10.1.0.9")
			n.netns(51, 0, cniMount2, "10.1.0.9")
		}, Conflict, false, ""},
		{"one namespace, two interfaces", func(n *node) {
			ns := n.netns(50, 1, "", "10.1.0.9")
			ns.Addrs = append(ns.Addrs, claim.IfAddr{If: "eth1", Addr: ip("10.1.0.9")})
		}, InUse, false, ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			n.reserve("10.1.0.9", idA)
			r.set(n)
			o := n.sweeps(2 * orphanGrace)
			o.want(p, r.want, r.gone)
			if h := o.at(p).Holder; h != r.holder {
				t.Errorf("the holder is %q, want %q", h, r.holder)
			}
		})
	}
}

// Files that name no container are judged by their address alone, over the longer grace.
func TestMalformedAndForeign(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	for _, content := range []string{"", " \r\n", "\x00\x00\x00", "reserved-vip", "4711"} {
		for _, r := range []struct {
			name    string
			set     func(*node)
			wait    time.Duration
			foreign bool // with --foreign
			alive   bool
			gone    bool
		}{
			{name: "over", wait: orphanGrace, foreign: true, gone: true},
			{name: "within", wait: orphanGrace - 1, foreign: true},
			{name: "over the short grace only", wait: grace, foreign: true},
			{name: "without the flag", wait: 2 * orphanGrace},
			{name: "address held", set: func(n *node) { n.netns(50, 1, "", "10.1.0.9") }, wait: 2 * orphanGrace, foreign: true, alive: true},
			{name: "a sandbox has the address", set: func(n *node) { b := n.box(idB, "b", true); b.Addrs = append(b.Addrs, ip("10.1.0.9")) }, wait: 2 * orphanGrace, foreign: true, alive: true},
			{name: "the cache gives it to a live container", set: func(n *node) { n.cache(idB, "", "10.1.0.9"); n.box(idB, "b", true) }, wait: 2 * orphanGrace, foreign: true, alive: true},
			{name: "the cache gives it to a dead container", set: func(n *node) { n.cache(idB, "", "10.1.0.9") }, wait: orphanGrace, foreign: true, gone: true},
			{name: "no detail", set: func(n *node) { n.deaf = true }, wait: 2 * orphanGrace, foreign: true},
			{name: "cri silent", set: func(n *node) { n.silent["cri"] = "hangs" }, wait: 2 * orphanGrace, foreign: true},
			{name: "vantage", set: func(n *node) { n.vantage.Proven = false }, wait: 2 * orphanGrace, foreign: true},
		} {
			t.Run(r.name, func(t *testing.T) {
				n := newNode(t)
				n.bystander()
				n.file(netDir, "10.1.0.9", content)
				n.policy.Foreign = r.foreign
				if r.set != nil {
					r.set(n)
				}
				o := n.sweeps(r.wait)
				none := claim.ParseOwner([]byte(content)).Shape == claim.ShapeNone
				gone := r.gone || none && r.name == "without the flag" // the flag is for Foreign
				f := o.at(p)
				if f.Releasable != gone {
					t.Errorf("%q is %s, releasable %v, by %s", content, f.Verdict, f.Releasable, f.Rule)
				}
				want := Foreign
				if none {
					want = Malformed
				}
				if r.alive {
					want = InUse
				}
				if f.Verdict != want && r.name != "vantage" {
					t.Errorf("%q is %s by %s, want %s", content, f.Verdict, f.Rule, want)
				}
			})
		}
	}
}

// The status of every sandbox is dear: it is asked for only where it can change a verdict.
func TestNeedsDetail(t *testing.T) {
	n, _ := leak(t)
	n.netns(50, 1, cniMount2, "10.1.0.77")
	n.cache(idB, cniMount2, "10.1.0.77")
	n.reserve("10.1.0.77", idB)
	n.proc(idB, "cgroup", 50)
	if o := n.sweep(); o.needs.Relist {
		t.Error("a relisting is asked for, though nothing is missing")
	}
	n.file(netDir, "10.1.0.10", "")
	if o := n.sweep(); !o.needs.Detail {
		t.Error("an empty file needs the sandboxes' addresses")
	}
}

func TestMissing(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	live := func(n *node) {
		n.box(idA, "a", true)
		n.proc(idA, "cgroup", 50)
		n.netns(50, 1, cniMount, "10.1.0.9")
	}
	for _, r := range []struct {
		name string
		set  func(*node)
		want bool
	}{
		{"the cache tells of it", func(n *node) { n.box(idA, "a", true); n.cache(idA, "", "10.1.0.9") }, true},
		{"the cache, kept alive by a process", func(n *node) { n.bystander(); n.proc(idA, "shim", 1); n.cache(idA, "", "10.1.0.9") }, true},
		{"the cache of a dead one", func(n *node) { n.bystander(); n.cache(idA, "", "10.1.0.9") }, false},
		{"the kernel tells of it", live, true},
		{"reserved", func(n *node) { live(n); n.reserve("10.1.0.9", idA) }, false},
		{"the second listing has it", func(n *node) {
			live(n)
			n.relisted = []claim.Resource{{Kind: claim.KindReservation, Store: netDir, Addr: ip("10.1.0.9"), Path: p}}
		}, false},
		{"no second listing", func(n *node) { live(n); n.deaf = true }, false},
		{"its store was not listed whole", func(n *node) { live(n); n.cache(idA, cniMount, "10.1.0.9"); n.stores[0].Problem = "EIO" }, false},
		{"out of every range, by the kernel", func(n *node) { n.bystander(); n.netns(50, 1, "", "10.9.0.9") }, false},
		{"the gateway", func(n *node) { n.bystander(); n.netns(50, 1, "", "10.1.0.1") }, false},
		{"kernel silent", func(n *node) { live(n); n.cache(idA, cniMount, "10.1.0.9"); n.silent["kernel"] = "EACCES" }, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			r.set(n)
			o := n.sweep()
			f := o.at(p)
			if (f.Verdict == Missing) != r.want || f.Releasable {
				t.Errorf("%s by %s, releasable %v; want Missing %v", f.Verdict, f.Rule, f.Releasable, r.want)
			}
			if r.want && !o.needs.Relist {
				t.Error("said at the first listing already")
			}
		})
	}
}

// One living resource keeps all of its owner's; a person's word keeps the attachment's
// other address, but never makes a living one look held.
func TestSiblings(t *testing.T) {
	n, p4 := leak(t)
	p6 := n.reserve("fd00::9", idA)
	net1 := n.file(otherDir, "10.2.0.9", idA+"\r\nnet1")
	cache := n.cache(idA, "", "10.1.0.9", "fd00::9")
	other := n.reserve("10.1.0.10", idB)
	all := []string{p4, p6, net1, cache}

	o := n.sweeps(grace)
	for _, p := range all {
		o.want(p, Leaked, true)
	}
	n.netns(50, 1, "", "fd00::9")
	o = n.sweep()
	for _, p := range all {
		o.want(p, InUse, false)
	}
	o.want(other, Leaked, true)

	n.nets = n.nets[:1]
	n.sweep()
	n.wait(grace)
	n.policy.Holds = []Hold{{Addr: ip("fd00::9")}}
	o = n.sweep()
	o.want(p6, Held, false)
	o.kept(p4)
	o.want(net1, Leaked, true) // another attachment
	o.want(other, Leaked, true)
	n.policy.Holds = nil
	n.at(p6).Problem = "EIO"
	o = n.sweep()
	o.want(p6, Unknown, false)
	o.kept(p4)
	o.want(net1, Leaked, true)
}

func TestVerdictText(t *testing.T) {
	for _, v := range All() {
		b, err := v.MarshalText()
		var back Verdict
		if err != nil || back.UnmarshalText(b) != nil || back != v {
			t.Errorf("%q reads back as %q, %v", v, back, err)
		}
	}
	for _, s := range []string{"", "Unknown", "leaked", "Releasable", "Leaked "} {
		v := Leaked
		if err := v.UnmarshalText([]byte(s)); err != nil || v != Unknown {
			t.Errorf("%q reads as %q, %v; want Unknown", s, v, err)
		}
	}
}
