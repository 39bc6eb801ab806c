package verdict_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// The states from the field that must never release, as far as the judge can see them.
// F9, F10, F14's order and F19's vantage probe are the drivers' and the plan's.
func TestFieldNeverRelease(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	for _, f := range []struct {
		name string
		set  func(*node)
		want Verdict
	}{
		{"F1 live sandbox whose Pod has no podIPs", func(n *node) { n.box(idA, "", true); n.netns(50, 1, cniMount, "10.1.0.9") }, InUse},
		{"F4 the living one of two sandboxes of one Pod name", func(n *node) {
			n.box(idB, "web-0", false)
			n.box(idA, "web-0", true)
			n.reserve("10.1.0.10", idB)
		}, InUse},
		{"F7 Terminating for days, containers run", func(n *node) { n.box(idA, "a", false); n.proc(idA, "cgroup", 50); n.netns(50, 1, "", "10.1.0.9") }, InUse},
		{"F6 zero sandboxes while shims run", func(n *node) {
			n.proc(idB, "shim", 1)
		}, Unknown},
		{"F15 podman's container, unknown to the CRI", func(n *node) { n.bystander(); n.proc(idA, "conmon", 1); n.netns(50, 1, podmanMount, "10.1.0.9") }, InUse},
		{"F15 the second runtime lists it", func(n *node) {
			n.bystander()
			n.runtimes = append(n.runtimes, claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateComplete, PeerPID: 800})
			n.box(idA, "a", true).Endpoint = crioSock
		}, InUse},
		{"F16 a static Pod without a mirror", func(n *node) { n.box(idA, "static", true) }, InUse},
		{"F18 cri answers with an error", func(n *node) { n.silent["cri"] = "rpc error: code = Unknown" }, Unknown},
		{"F18 cri hangs", func(n *node) { n.silent["cri"] = "context deadline exceeded" }, Unknown},
		{"F19 inside another agent's container", func(n *node) {
			n.bystander()
			n.vantage = claim.Vantage{Checks: []claim.Check{{Name: "pid-namespace", Detail: "not the node's"}}}
		}, Unknown},
		{"F20 gVisor: the address is gone from the link", func(n *node) { n.box(idA, "a", true); n.netns(50, 1, cniMount) }, InUse},
		{"F20 vfio: never in the kernel", func(n *node) { n.box(idA, "a", true) }, InUse},
		{"F20 CRI-O without infra container: no process", func(n *node) {
			n.runtimes[0].Name = "cri-o"
			n.box(idA, "a", true)
			n.netns(50, 0, "/run/netns/0a1b2c3d-1111-2222-3333-444455556666", "10.1.0.9")
		}, InUse},
		{"F20 kernel and process alone", func(n *node) { n.bystander(); n.policy.Required = []string{"kernel", "process"} }, Unknown},
		{"F14 a live namespace still holds it", func(n *node) { n.bystander(); n.netns(50, 1, cniMount, "10.1.0.9") }, InUse},
	} {
		t.Run(f.name, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.1.0.9", idA)
			f.set(n)
			for range 3 {
				n.sweep().want(p, f.want, false)
				n.wait(2 * orphanGrace)
			}
		})
	}
}

// F2 and I6: a witness that was asked before the listing ended is not heard, whichever it
// is, and one that was asked at the same instant is.
func TestF2AskedBeforeListed(t *testing.T) {
	for i, w := range []string{"kernel", "process", "cri", "boot"} {
		for _, early := range []time.Duration{0, 1, time.Hour} {
			for snap := range 3 {
				n, p := leak(t)
				n.sweep()
				n.wait(grace)
				n.tweak = func(c *Case) {
					c.Testimonies[i].Asked = c.Snapshots[snap].Listed
					c.Testimonies[i].Asked.Mono -= early
				}
				o := n.sweep()
				if early == 0 {
					o.want(p, Leaked, true)
				} else {
					o.want(p, Unknown, false)
				}
			}
		}
		for _, boot := range []string{"", "boot-1"} {
			n, p := leak(t)
			n.sweep()
			n.wait(grace)
			n.tweak = func(c *Case) { c.Testimonies[i].Asked.Boot = boot }
			n.sweep().want(p, Unknown, false)
			if t.Failed() {
				t.Fatalf("%s asked in boot %q", w, boot)
			}
		}
	}
}

// F2: the Pod is born between the listings of witnesses and that of allocations; the next
// sweep sees it alive. F3: nothing but the reservation exists yet, for all of the grace.
func TestF2F3Birth(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.reserve("10.1.0.9", idA)
	for range 5 {
		n.sweep().want(p, Suspect, false)
		n.wait(grace/5 - 1)
	}
	n.box(idA, "a", true)
	n.netns(50, 1, cniMount, "10.1.0.9")
	n.sweep().want(p, InUse, false)
	// Its death starts the grace anew.
	n.boxes, n.nets = n.boxes[:1], n.nets[:1]
	n.sweep().want(p, Suspect, false)
	n.wait(grace - 1)
	n.sweep().want(p, Suspect, false)
	n.wait(1)
	n.sweep().want(p, Leaked, true)
}

// F4: the dead one of two sandboxes of one Pod name goes, the living stays.
func TestF4SamePodName(t *testing.T) {
	n := newNode(t)
	dead, live := n.reserve("10.1.0.9", idA), n.reserve("10.1.0.10", idB)
	n.box(idA, "uid-1", false)
	n.box(idB, "uid-1", true)
	n.proc(idB, "shim", 1)
	o := n.sweeps(grace)
	o.want(dead, Leaked, true)
	o.want(live, InUse, false)
}

// F5: an owner field that arrives empty is no owner that is dead.
func TestF5EmptyOwner(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.file(netDir, "10.1.0.9", "")
	n.netns(50, 1, "", "10.1.0.9")
	n.sweeps(2*orphanGrace).want(p, InUse, false)
}

// F6: the contradiction is the runtime's own; moby's shims on one socket say nothing of
// another's list, and one sandbox is an answer.
func TestF6Contradiction(t *testing.T) {
	n, p := leak(t)
	n.boxes, n.hits, n.shims = nil, nil, nil
	n.shims = []claim.Shim{{PID: 9, ID: idB, Namespace: "k8s.io", Address: "unix:///var/run/containerd/containerd.sock.ttrpc"}}
	n.sweeps(2*grace).want(p, Unknown, false)
	n.shims[0].Namespace = "moby"
	n.sweeps(2*grace).want(p, Leaked, true)
	n.shims[0].Namespace = "k8s.io"
	n.bystander()
	n.sweeps(2*grace).want(p, Leaked, true)
}

// F8, F22: clocks. Wall time, time zone and a suspend (which CLOCK_MONOTONIC does not
// count) change no verdict.
func TestF8F22Clocks(t *testing.T) {
	for _, step := range []time.Duration{0, time.Hour, -time.Hour, 24 * 365 * time.Hour} {
		n, p := leak(t)
		n.sweep()
		n.wait(grace - time.Second)
		n.now.Wall = n.now.Wall.Add(step).In(time.FixedZone("far", 13*3600))
		n.sweep().want(p, Suspect, false)
		n.wait(time.Second)
		n.now.Wall = n.now.Wall.Add(-2 * step)
		n.sweep().want(p, Leaked, true)
	}
}

// F11: the slot was used again: what was seen of the old incarnation does not count, by
// whichever part of it the two differ.
func TestF11OtherIncarnation(t *testing.T) {
	for name, edit := range map[string]func(*claim.Incarnation){
		"ctime": func(i *claim.Incarnation) { i.Ctime++ },
		"ino":   func(i *claim.Incarnation) { i.Ino++ },
		"dev":   func(i *claim.Incarnation) { i.Dev++ },
		"size":  func(i *claim.Incarnation) { i.Size++ },
		"sum":   func(i *claim.Incarnation) { i.Sum += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			n, p := leak(t)
			n.sweeps(grace).want(p, Leaked, true)
			edit(&n.at(p).Inc)
			n.sweep().want(p, Suspect, false)
			n.wait(grace)
			n.sweep().want(p, Leaked, true)
		})
	}
}

// F12: the directory was wiped under living Pods.
func TestF12Wiped(t *testing.T) {
	n := newNode(t)
	for i := range 20 {
		id := fmt.Sprintf("%064x", 0xabc000+i)
		addr := fmt.Sprintf("10.1.0.%d", 10+i)
		n.box(id, id, true)
		n.cache(id, cniMount+id, addr)
		n.netns(uint64(50+i), 1, cniMount+id, addr)
	}
	o := n.sweep()
	got := 0
	for _, f := range o.j.Findings {
		if f.Verdict == Missing {
			got++
		}
		if f.Releasable {
			t.Errorf("releases %s", f.Resource.Path)
		}
	}
	if got != 20 {
		t.Errorf("%d Missing, want 20", got)
	}
}

// F13: the record names /proc/PID/ns/net of a PID that is another's by now: it neither
// keeps the dead nor makes it a tenant there.
func TestF13UsedAgainPID(t *testing.T) {
	n, p := leak(t)
	n.cache(idA, "/proc/4711/ns/net", "10.1.0.9")
	n.netns(50, 1, "", "10.1.0.77")
	n.nets[1].Mounts = []string{"/proc/4711/ns/net"}
	o := n.sweeps(grace)
	o.want(p, Leaked, true)
	if len(o.at(p).Netns) != 0 {
		t.Errorf("the namespace of a stranger goes with it")
	}
}

// F17: IDs are compared whole.
func TestF17WholeIDs(t *testing.T) {
	for _, other := range []string{idShort, idAA, idA + "0", idA[:63], strings.ToUpper(idA)} {
		n, p := leak(t)
		n.proc(other, "shim", 1)
		n.box(other, "x", true)
		n.cache(other, cniMount)
		n.netns(50, 1, cniMount)
		n.sweeps(grace).want(p, Leaked, true)
	}
	// Both ways round: the short one is dead beside a living long one.
	n := newNode(t)
	n.box(idA, "a", true)
	n.proc(idA, "shim", 1)
	p := n.reserve("10.1.0.9", idShort)
	n.sweeps(grace).want(p, Leaked, true)
	// nerdctl's ID is the container's with the namespace before it.
	q := n.reserve("10.1.0.10", "default-"+idA)
	n.sweeps(2*grace).want(q, InUse, false)
}

// F21: the container starts again under its old ID; its new file is a new incarnation.
func TestF21StartedAgain(t *testing.T) {
	n := newNode(t)
	n.bystander()
	id := "0a1b2c3d-1111-2222-3333-444455556666"
	p := n.reserve("10.1.0.9", id)
	n.sweeps(grace).want(p, Leaked, true)
	n.remove(p)
	q := n.reserve("10.1.0.9", id)
	n.sweep().want(q, Suspect, false)
	n.wait(grace - 1)
	n.netns(50, 1, podmanMount, "10.1.0.9")
	n.sweep().want(q, InUse, false)
}

// F23: only a boot that our own history saw replaced proves death; never the present one,
// not even where the history has it twice because a nested container showed another.
func TestF23BootHistory(t *testing.T) {
	for _, r := range []struct {
		name string
		past []string
		want Verdict
		gone bool
	}{
		{"seen replaced", []string{"boot-2"}, Leaked, true},
		{"never seen", nil, Suspect, false},
		{"another is past", []string{"boot-1", "boot"}, Suspect, false},
	} {
		n, p := leak(t)
		n.sweep()
		n.now.Boot, n.past = "boot-3", r.past
		n.sweep().want(p, r.want, r.gone)
		if t.Failed() {
			t.Fatal(r.name)
		}
	}
	n, p := leak(t)
	n.past = []string{"boot-2", "boot-9"}
	n.sweep().want(p, Suspect, false) // boot-2 is the present one
	n.wait(time.Minute)
	n.sweep().want(p, Suspect, false)
	// A boot testimony of another boot than the clocks'.
	n.tweak = func(c *Case) { c.Testimonies[3].Boot.Current = "boot-9" }
	n.wait(grace)
	n.sweep().want(p, Unknown, false)
}

// What must always be reclaimed.
func TestFieldReclaims(t *testing.T) {
	const p = netDir + "/10.1.0.9"
	for _, l := range []struct {
		name string
		set  func(*node)
		wait time.Duration
	}{
		{"L1 force-deleted while the agent was down", func(n *node) { n.reserve("10.1.0.9", idA) }, grace},
		{"L3 empty file", func(n *node) { n.file(netDir, "10.1.0.9", "") }, orphanGrace},
		{"L8 old file of one line", func(n *node) { n.file(netDir, "10.1.0.9", idA) }, grace},
		{"L8 UUID with trailing blanks", func(n *node) { n.file(netDir, "10.1.0.9", "0a1b2c3d-1111-2222-3333-444455556666 \n") }, grace},
		{"L9 RunPodSandbox timed out, no DEL", func(n *node) { n.reserve("10.1.0.9", idA); n.cache(idA, cniMount, "10.1.0.9") }, grace},
		{"L11 killed before the result was saved", func(n *node) { n.reserve("10.1.0.9", idA); n.netns(50, 0, cniMount, "10.1.0.9") }, orphanGrace},
		{"L12 NotReady for days", func(n *node) { n.reserve("10.1.0.9", idA); n.box(idA, "a", false) }, orphanGrace},
		{"L13 Multus's second network", func(n *node) { n.file(netDir, "10.1.0.9", idA+"\r\nnet1") }, grace},
		{"L14 runtime root wiped", func(n *node) { n.reserve("10.1.0.9", idA) }, grace},
		{"L16 outside every range", func(n *node) { n.reserve("10.1.0.9", idA); n.stores[0].Ranges = nil }, grace},
		{"L17 dead alloc of Nomad", func(n *node) { n.reserve("10.1.0.9", "0a1b2c3d-1111-2222-3333-444455556666") }, grace},
		{"L17 dead container of nerdctl", func(n *node) { n.reserve("10.1.0.9", "default-"+idA) }, grace},
	} {
		t.Run(l.name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			l.set(n)
			n.sweep().kept(p)
			n.wait(l.wait - 1)
			n.sweep().kept(p)
			n.wait(1)
			if f := n.sweep().at(p); !f.Releasable {
				t.Errorf("kept as %s by %s: %s", f.Verdict, f.Rule, f.Why)
			}
		})
	}
}

// L4: the n reservations of the last boot go at once, the n new ones stay.
func TestL4Reboot(t *testing.T) {
	n := newNode(t)
	n.bystander()
	var old, young []string
	for i := range 9 {
		old = append(old, n.reserve(fmt.Sprintf("10.1.0.%d", 10+i), fmt.Sprintf("%064x", 0xa00+i)))
		n.box(fmt.Sprintf("%064x", 0xa00+i), "pod", true)
	}
	for _, p := range old {
		n.sweep().want(p, InUse, false)
	}
	n.reboot("boot-3")
	n.boxes = n.boxes[:0]
	for i := range 9 {
		id := fmt.Sprintf("%064x", 0xb00+i)
		young = append(young, n.reserve(fmt.Sprintf("10.1.0.%d", 30+i), id))
		n.box(id, "pod", true)
		n.proc(id, "shim", 1)
	}
	born := n.reserve("10.1.0.99", idB)
	o := n.sweep()
	for _, p := range old {
		o.want(p, Leaked, true)
		if f := o.at(p); !f.BootProven {
			t.Errorf("%s is not proven by the boot", p)
		}
	}
	for _, p := range young {
		o.want(p, InUse, false)
	}
	o.want(born, Suspect, false)
}

// A boot that is past proves death, and everything that says alive, or is silent, wins.
func TestBootProofYields(t *testing.T) {
	for name, r := range map[string]struct {
		set  func(*node)
		want Verdict
		gone bool
	}{
		"nothing against it": {func(*node) {}, Leaked, true},
		"listed Ready":       {func(n *node) { n.box(idA, "a", true) }, InUse, false},
		"a process":          {func(n *node) { n.proc(idA, "shim", 1) }, InUse, false},
		"address held":       {func(n *node) { n.netns(50, 1, "", "10.1.0.9") }, InUse, false},
		"a living sibling":   {func(n *node) { n.reserve("fd00::9", idA); n.netns(50, 1, "", "fd00::9") }, InUse, false},
		"kernel silent":      {func(n *node) { n.silent["kernel"] = "x" }, Unknown, false},
		"cri silent":         {func(n *node) { n.silent["cri"] = "x" }, Unknown, false},
		"boot silent":        {func(n *node) { n.silent["boot"] = "x" }, Unknown, false},
		"no vantage":         {func(n *node) { n.vantage.Proven = false }, Unknown, false},
		"excluded":           {func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, Held, false},
		"new incarnation":    {func(n *node) { n.files[0].Inc.Ctime++ }, Suspect, false},
		"policy without cri": {func(n *node) { n.policy.Required = []string{"kernel", "process"} }, Unknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			n, p := leak(t)
			n.sweep()
			n.reboot("boot-3")
			n.boxes = nil
			n.bystander()
			r.set(n)
			n.sweep().want(p, r.want, r.gone)
		})
	}
	// An empty file of an earlier boot, too.
	n := newNode(t)
	n.bystander()
	p := n.file(netDir, "10.1.0.9", "")
	n.sweep()
	n.reboot("boot-3")
	n.sweep().want(p, Malformed, true)
}

// L5: a DEL after a reboot has no namespace; neither has the cache entry of a dead one.
// L6: a broken cache entry is judged by the ID in its name, the others as ever.
func TestL5L6Cache(t *testing.T) {
	n, p := leak(t)
	gone := n.cache(idA, "", "10.1.0.9")
	broken := n.cache(idB, "")
	n.at(broken).Cache, n.at(broken).Problem = nil, "unexpected end of JSON input"
	nameless := n.cache("x", "")
	n.at(nameless).Cache, n.at(nameless).Problem, n.at(nameless).Owner = nil, "no container ID in the name", claim.Owner{}
	foreign := n.cache("0a1b2c3d-1111-2222-3333-444455556666", "")
	n.at(foreign).Cache.DataDir = "" // another IPAM
	o := n.sweeps(grace)
	o.want(p, Leaked, true)
	o.want(gone, Leaked, true)
	o.want(broken, Leaked, true)
	o.want(nameless, Unknown, false)
	if f := o.at(foreign); f.Rule != "no-finding" {
		t.Errorf("the cache of another IPAM is %s", f.Verdict)
	}
	n.box(idB, "b", true)
	n.sweep().want(broken, InUse, false)
}

// L7: what could not be listed is Unknown, its network alone, and its sightings stay.
func TestL7LockedStore(t *testing.T) {
	n, p := leak(t)
	q := n.file(otherDir, "10.2.0.9", idB+"\r\neth0")
	n.sweep()
	n.wait(grace)
	n.stores[0].Problem = "the lock is held by process 4711"
	n.files = n.files[1:] // nothing of it was read
	n.sweep().want(q, Leaked, true)
	n.stores[0].Problem = ""
	n.files = append(n.files, claim.Resource{})
	copy(n.files[1:], n.files)
	n.files[0] = claim.Resource{
		Kind: claim.KindReservation, Store: netDir, Network: "pods", Addr: ip("10.1.0.9"), Path: p,
		Owner: claim.ParseOwner([]byte(idA + "\r\neth0")), Inc: n.memory[1].Inc,
	}
	n.sweep().want(p, Leaked, true)
}

// L15: the network was renamed; DEL went to the new directory. The living Pod that was
// given the same address there has its own reservation and keeps nothing alive here.
func TestL15Renamed(t *testing.T) {
	n := newNode(t)
	old := n.file(dataDir+"/old", "10.1.0.9", idA+"\r\neth0")
	mine := n.reserve("10.1.0.9", idB)
	n.box(idB, "b", true)
	n.proc(idB, "cgroup", 50)
	n.netns(50, 1, cniMount, "10.1.0.9")
	o := n.sweeps(grace)
	o.want(old, Leaked, true)
	o.want(mine, InUse, false)
	// Without the new one it is a conflict: releasing would free the address of a living Pod.
	n.remove(mine)
	n.cache(idB, cniMount, "10.1.0.9")
	n.sweep().want(old, Conflict, false)
}

// IPv6 in another spelling is the same address: parsed values are compared, never text.
func TestSpellingOfIPv6(t *testing.T) {
	for _, s := range []string{"fd00::9", "fd00:0:0:0:0:0:0:9", "FD00::0009", "fd00:0::9"} {
		n := newNode(t)
		n.bystander()
		p := n.file(netDir, s, idA)
		n.netns(50, 1, "", "fd00:0000::9")
		n.sweeps(2*grace).want(p, InUse, false)
		n.policy.Holds = []Hold{{Addr: ip("fd00::0:9")}}
		n.nets = n.nets[:1]
		n.sweeps(2*grace).want(p, Held, false)
	}
}

// The kernel witness cannot speak of addresses that are on many interfaces at once.
func TestUnspeakableAddresses(t *testing.T) {
	for _, a := range []string{"127.0.0.9", "::1", "169.254.1.1", "fe80::1", "224.0.0.1", "0.0.0.0", "::"} {
		n := newNode(t)
		n.bystander()
		p := n.reserve(a, idA)
		n.sweeps(2*orphanGrace).want(p, Unknown, false)
	}
}
