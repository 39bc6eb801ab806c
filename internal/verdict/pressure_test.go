package verdict_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// pressedLeak is a leak in a store under pressure, on a node whose one living Pod has a
// namespace that its runtime names.
func pressedLeak(t testing.TB) (*node, string) {
	n, p := leak(t)
	n.boxes[0].Netns = cniMount
	n.netns(40, 1, cniMount, "10.1.0.40")
	n.reserve("10.1.0.40", idC)
	n.policy.PressureGrace, n.policy.Pressed = pressure, []string{netDir}
	return n, p
}

// Every row departs by one thing from a reservation without a stamp that was seen absent twice,
// the pressure grace apart. The pairs stand together.
func TestPressureTable(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	const userMount = "/run/netns/vpn"
	for _, r := range []struct {
		name  string
		apart time.Duration // 0: the pressure grace
		set   func(*node)
		then  func(*node) // before the second look
		want  Verdict
		rel   bool
	}{
		{name: "the pressure grace apart", want: Leaked, rel: true},
		{name: "a nanosecond less", apart: pressure - 1, want: Suspect},
		{name: "no store is under pressure", set: func(n *node) { n.policy.Pressed = nil }, want: Suspect},
		{name: "another store is", set: func(n *node) { n.policy.Pressed = []string{otherDir} }, want: Suspect},
		{name: "that one too", set: func(n *node) { n.policy.Pressed = []string{otherDir, netDir} }, want: Leaked, rel: true},
		{name: "without a pressure grace", set: func(n *node) { n.policy.PressureGrace = 0 }, want: Suspect},
		{name: "the wall clock alone went on", apart: time.Second, then: func(n *node) { n.now.Wall = n.now.Wall.Add(time.Hour) }, want: Suspect},
		{name: "alive in between", then: func(n *node) {
			n.wait(-pressure)
			n.proc(idA, "cni", 1)
			n.sweep()
			n.hits = n.hits[:len(n.hits)-1]
			n.wait(pressure - 1)
		}, want: Suspect},

		// The namespace of an ADD in flight.
		{name: "an idle namespace of nobody", set: func(n *node) { n.netns(50, 0, cniMount2) }, want: Suspect},
		{name: "it came since the first look", then: func(n *node) { n.netns(50, 0, cniMount2) }, want: Suspect},
		{name: "it went since the first look", set: func(n *node) { n.netns(50, 0, cniMount2) }, then: func(n *node) { n.nets = n.nets[:len(n.nets)-1]; n.mounts = n.mounts[:len(n.mounts)-1] }, want: Leaked, rel: true},
		{name: "it is podman's", set: func(n *node) { n.netns(50, 0, podmanMount) }, want: Suspect},
		{name: "it is a person's", set: func(n *node) { n.netns(50, 0, userMount) }, want: Suspect},
		{name: "nothing names it", set: func(n *node) { n.netns(50, 0, "") }, want: Suspect},
		{name: "its runtime holds it open", set: func(n *node) { n.netns(50, 0, cniMount2).FDHolders = 1 }, want: Suspect},
		{name: "podman holds it open", set: func(n *node) { n.netns(50, 0, podmanMount).FDHolders = 1 }, want: Suspect},
		{name: "a helper of a plugin is in it", set: func(n *node) { n.netns(50, 1, cniMount2) }, want: Suspect},
		{name: "a service of the host is in one of its own", set: func(n *node) { n.netns(50, 1, "") }, want: Leaked, rel: true},
		{name: "a listed sandbox has it", set: func(n *node) { n.netns(50, 0, cniMount2); n.box(idB, "b", true).Netns = cniMount2 }, want: Leaked, rel: true},
		{name: "a NotReady sandbox has it", set: func(n *node) { n.netns(50, 0, cniMount2); n.box(idB, "b", false).Netns = cniMount2 }, want: Leaked, rel: true},
		{name: "a listed sandbox whose runtime does not say", set: func(n *node) { n.netns(50, 0, cniMount2); n.box(idB, "b", true) }, want: Suspect},
		{name: "that one's cached result does", set: func(n *node) {
			n.netns(50, 0, cniMount2)
			n.box(idB, "b", true)
			n.cache(idB, cniMount2, "10.1.0.50")
			n.reserve("10.1.0.50", idB)
		}, want: Leaked, rel: true},
		{name: "a cached result of somebody dead does", set: func(n *node) {
			n.netns(50, 0, cniMount2)
			n.cache(idB, cniMount2, "10.1.0.50")
		}, want: Suspect},
		{name: "a process with an ID is in it", set: func(n *node) { n.netns(50, 1, cniMount2); n.box(idB, "b", true); n.proc(idB, "cgroup", 50) }, want: Leaked, rel: true},
		{name: "it has been there for the grace", set: func(n *node) {
			f := n.files
			n.files = f[1:] // the leak comes later
			n.netns(50, 0, cniMount2)
			n.sweep()
			n.files = f
			n.wait(grace - pressure)
		}, want: Leaked, rel: true},
		{name: "it has been there for a nanosecond less", set: func(n *node) {
			f := n.files
			n.files = f[1:] // the leak comes later
			n.netns(50, 0, cniMount2)
			n.sweep()
			n.files = f
			n.wait(grace - pressure - 1)
		}, want: Suspect},

		// Who must have spoken.
		{name: "no runtime at all, nor any namespace", set: func(n *node) {
			n.policy.CRINone, n.silent["cri"] = true, "none"
			n.nets, n.mounts = n.nets[:1], nil
		}, want: Suspect},
		{name: "cri silent", then: func(n *node) { n.silent["cri"] = "timed out" }, want: Unknown},
		{name: "kernel silent", then: func(n *node) { n.silent["kernel"] = "EINTR" }, want: Unknown},
		{name: "the runtime is not asked for namespaces, of which there are none", set: func(n *node) {
			n.deaf = true
			n.nets, n.mounts = n.nets[:1], nil
		}, want: Suspect},
		{name: "another runtime answers now", then: func(n *node) {
			n.runtimes = append(n.runtimes, claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateComplete, PeerPID: 701})
		}, want: Suspect},
		{name: "no vantage", set: func(n *node) { n.vantage.Proven = false }, want: Unknown},

		// Absence of another kind.
		{name: "NotReady", set: func(n *node) { n.box(idA, "a", false) }, want: Suspect},
		{name: "NotReady, and its Pod has a newer one", set: func(n *node) { n.box(idA, "a", false); n.box(idB, "a", true) }, want: Leaked, rel: true},
		{name: "NotReady, and the API server does not have its Pod", set: func(n *node) { n.kube(true); n.box(idA, "u", false).FromAPI = true }, want: Suspect},
		{name: "an unused namespace holds it", set: func(n *node) {
			n.netns(50, 0, cniMount2, "10.1.0.9")
			n.sweep()
			n.wait(grace)
		}, want: Orphaned},
		{name: "alive for another", set: func(n *node) { n.nets[1].Addrs[0].Addr = ip("10.1.0.9") }, want: Conflict},
		{name: "held", set: func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, want: Held},
		{name: "it names no owner", set: func(n *node) { n.at(p).Owner = claim.Owner{} }, want: Malformed},
		{name: "of Nomad", set: func(n *node) { n.at(p).Owner.ID = "0a1b2c3d-1111-2222-3333-444455556666" }, want: Suspect},
		{name: "of nerdctl", set: func(n *node) { n.at(p).Owner.ID = "default-" + idA }, want: Suspect},
		{name: "a short ID", set: func(n *node) { n.at(p).Owner.ID = idShort }, want: Suspect},
		{name: "a stamp younger than that", then: func(n *node) { n.stamp(p, "boot-2", time.Second, 40) }, want: Leaked, rel: true},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, path := pressedLeak(t)
			if r.set != nil {
				r.set(n)
			}
			n.sweep()
			if r.apart == 0 {
				r.apart = pressure
			}
			n.wait(r.apart)
			if r.then != nil {
				r.then(n)
			}
			o := n.sweep()
			o.want(path, r.want, r.rel)
			if f := o.at(path); r.rel && f.Rule != "absent-under-pressure" {
				t.Errorf("decided by %s (%s)", f.Rule, f.Why)
			}
		})
	}
}

// When a pressed reservation is due, and what stands against it, is said; and the grace is due
// as ever.
func TestPressureWait(t *testing.T) {
	n, p := pressedLeak(t)
	if f := n.sweep().at(p); f.Wait != pressure {
		t.Errorf("due in %s (%s)", f.Wait, f.Why)
	}
	n.wait(pressure / 2)
	if f := n.sweep().at(p); f.Wait != pressure/2 {
		t.Errorf("due in %s (%s)", f.Wait, f.Why)
	}
	n.netns(50, 0, podmanMount)
	if f := n.sweep().at(p); f.Wait != grace-pressure/2 || !strings.Contains(f.Why, podmanMount) {
		t.Errorf("due in %s (%s)", f.Wait, f.Why)
	}
	n.wait(grace)
	if f := n.sweep().at(p); f.Rule != "absent-twice" || !f.Releasable || f.Wait != 0 {
		t.Errorf("%+v", f)
	}
}

// The cache entry of a pressed reservation does not keep it, and is as old.
func TestPressureTakesTheCacheAlong(t *testing.T) {
	n, p := pressedLeak(t)
	c := n.cache(idA, "/run/netns/cni-gone", "10.1.0.9")
	o := n.sweeps(pressure)
	o.want(p, Leaked, true)
	o.want(c, Leaked, true)
	n, p = pressedLeak(t)
	c = n.cache(idA, "/run/netns/cni-gone", "10.1.0.9")
	n.at(c).Cache.DataDir = "/srv/ipam"
	n.stores = append(n.stores, claim.Store{Dir: "/srv/ipam/pods"})
	o = n.sweeps(pressure)
	o.kept(c) // of a network that has room
	o.kept(p) // the address goes last
}

// Pressure of some stores leaves the stamped of the others alone.
func TestPressureOfStampsByStore(t *testing.T) {
	for _, r := range []struct {
		stores []string
		rel    bool
	}{{nil, true}, {[]string{netDir}, true}, {[]string{otherDir}, false}} {
		n, p := leak(t)
		n.stamp(p, "boot-2", pressure, 4026530000)
		n.policy.PressureGrace, n.policy.Pressed = pressure, r.stores
		if f := n.sweep().at(p); f.Releasable != r.rel {
			t.Errorf("pressure of %q: releasable %v by %s (%s)", r.stores, f.Releasable, f.Rule, f.Why)
		}
	}
}

// P for the pressure rule: on random nodes it makes releasable only what waited for nothing but
// its grace, for at least the pressure grace, and never while there is any idle namespace that is
// nobody's.
func TestPressureNeverOutweighsAWitness(t *testing.T) {
	found := 0
	for seed := range int64(seeds) {
		n := randomNode(t, seed)
		n.policy.PressureGrace, n.policy.Pressed = pressure, []string{netDir, otherDir}
		n.sweep()
		n.wait([]time.Duration{pressure - 1, pressure, pressure, grace - 1}[seed%4])
		c := n.build(true, true)
		d := copied(c)
		d.Policy.PressureGrace, d.Policy.Pressed = 0, nil
		bare := map[string]Finding{}
		for _, f := range Judge(d).Findings {
			bare[string(f.Resource.Kind)+f.Resource.Path] = f
		}
		for _, f := range Judge(c).Findings {
			b := bare[string(f.Resource.Kind)+f.Resource.Path]
			if b.Releasable && !f.Releasable {
				t.Errorf("seed %d: %s is not releasable under pressure: %s", seed, f.Resource.Path, f.Why)
			}
			if f.Rule != "absent-under-pressure" {
				continue
			}
			found++
			since, ok := c.Now.Since(f.Absent())
			if b.Verdict != Suspect || !b.Gone || !ok || since < pressure {
				t.Errorf("seed %d: %s goes %s after it was seen absent; without pressure it is %s by %s (%s)", seed, f.Resource.Path, since, b.Verdict, b.Rule, b.Why)
			}
			for _, ns := range c.Testimonies[0].Kernel.Netns {
				theirs := func(m string) bool {
					return slices.ContainsFunc(n.boxes, func(b claim.Sandbox) bool { return b.Netns == m }) ||
						slices.ContainsFunc(n.caches, func(r claim.Resource) bool { return r.Cache.Netns == m })
				}
				if !ns.Host && ns.Procs == 0 && !slices.ContainsFunc(ns.Mounts, theirs) && !slices.ContainsFunc(n.hits, func(h claim.ProcessHit) bool { return h.Netns == ns.ID }) {
					t.Errorf("seed %d: %s goes while namespace %d is nobody's", seed, f.Resource.Path, ns.ID)
				}
			}
		}
	}
	if found < seeds/50 {
		t.Errorf("only %d by pressure in %d cases: the property proves little", found, seeds)
	}
}
