package verdict_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// What happens between the first sighting and the one at the end of the grace.
func TestSightings(t *testing.T) {
	second := claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateComplete, PeerPID: 800}
	for _, r := range []struct {
		name    string
		between func(*node)
		after   func(*node)
		want    Verdict
		gone    bool
	}{
		{"nothing", nil, nil, Leaked, true},
		{"a silent witness", func(n *node) { n.silent["cri"] = "x" }, func(n *node) { clear(n.silent) }, Leaked, true},
		{"a silent kernel", func(n *node) { n.silent["kernel"] = "x" }, func(n *node) { clear(n.silent) }, Leaked, true},
		{"no vantage", func(n *node) { n.vantage.Proven = false }, func(n *node) { n.vantage.Proven = true }, Leaked, true},
		{"unreadable", func(n *node) { n.files[0].Problem = "EIO" }, func(n *node) { n.files[0].Problem = "" }, Leaked, true},
		{"store unreadable", func(n *node) { n.stores[0].Problem = "EIO" }, func(n *node) { n.stores[0].Problem = "" }, Leaked, true},
		{"held for a while", func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} }, func(n *node) { n.policy.Holds = nil }, Leaked, true},
		{"alive by a process", func(n *node) { n.proc(idA, "shim", 1) }, func(n *node) { n.hits = n.hits[:1] }, Suspect, false},
		{"alive by the runtime", func(n *node) { n.box(idA, "a", true) }, func(n *node) { n.boxes = n.boxes[:1] }, Suspect, false},
		{"alive by the kernel", func(n *node) { n.netns(50, 1, "", "10.1.0.9") }, func(n *node) { n.nets = n.nets[:1] }, Suspect, false},
		{"alive by a sibling", func(n *node) { n.reserve("fd00::9", idA); n.netns(50, 1, "", "fd00::9") }, func(n *node) { n.nets = n.nets[:1]; n.files = n.files[:1] }, Suspect, false},
		{"alive while another is silent", func(n *node) { n.proc(idA, "shim", 1); n.silent["cri"] = "x" }, func(n *node) { n.hits = n.hits[:1]; clear(n.silent) }, Suspect, false},
		{"a conflict", func(n *node) { n.netns(50, 1, "", "10.1.0.9"); n.netns(51, 1, "", "10.1.0.9") }, func(n *node) { n.nets = n.nets[:1] }, Suspect, false},
		{"an orphan", func(n *node) { n.netns(50, 0, cniMount, "10.1.0.9") }, func(n *node) { n.nets, n.mounts = n.nets[:1], nil }, Suspect, false},
		{"one more runtime at the end", nil, func(n *node) { n.runtimes = append(n.runtimes, second) }, Suspect, false},
		{"another runtime at the end", nil, func(n *node) {
			n.runtimes[0].Endpoint = crioSock
			n.boxes[0].Endpoint = crioSock
		}, Suspect, false},
		{"none by policy at the end", nil, func(n *node) { n.policy.CRINone = true; n.silent["cri"] = "x" }, Suspect, false},
		{"gone from the listing for a while", func(n *node) { n.files[0].Store, n.files[0].Path = otherDir, otherDir+"/10.1.0.9" },
			func(n *node) { n.files[0].Store, n.files[0].Path = netDir, netDir+"/10.1.0.9" }, Suspect, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, p := leak(t)
			n.sweep().want(p, Suspect, false)
			n.wait(grace / 2)
			if r.between != nil {
				r.between(n)
			}
			n.sweep()
			n.wait(grace / 2)
			if r.after != nil {
				r.after(n)
			}
			n.sweep().want(p, r.want, r.gone)
		})
	}
}

// What a state directory may hold, forged, damaged or of another time: none of it makes
// one sighting two.
func TestMemoryOfAnAdversary(t *testing.T) {
	for _, r := range []struct {
		name string
		edit func(*node, *Sighting)
		gone bool
	}{
		{"as it was", func(*node, *Sighting) {}, true},
		{"absent in the future", func(n *node, s *Sighting) { s.Absent.Mono = n.now.Mono + 3*grace }, false},
		{"absent in another boot", func(_ *node, s *Sighting) { s.Absent.Boot = "boot-1" }, false},
		{"absent in no boot", func(_ *node, s *Sighting) { s.Absent.Boot = "" }, false},
		{"no run", func(_ *node, s *Sighting) { s.Absent = claim.Instant{} }, false},
		{"no witnesses", func(_ *node, s *Sighting) { s.Witnesses = nil }, false},
		{"a weaker witness set", func(_ *node, s *Sighting) { s.Witnesses = []string{"kernel", "process"} }, false},
		{"another runtime", func(_ *node, s *Sighting) { s.Witnesses = []string{"cri:" + crioSock, "kernel", "process"} }, false},
		{"no runtime", func(_ *node, s *Sighting) { s.Witnesses = []string{"cri:none", "kernel", "process"} }, false},
		{"a stronger witness set", func(_ *node, s *Sighting) { s.Witnesses = append(s.Witnesses, "cri:"+crioSock) }, true},
		{"another path", func(_ *node, s *Sighting) { s.Path += "0" }, false},
		{"another incarnation", func(_ *node, s *Sighting) { s.Inc.Ctime-- }, false},
		{"first in the future", func(n *node, s *Sighting) { s.First.Mono = n.now.Mono + 3*grace }, true},
		{"first in an unknown boot", func(_ *node, s *Sighting) { s.First.Boot = "boot-0" }, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			n, p := leak(t)
			n.sweep()
			s := *n.memory[0]
			r.edit(n, &s)
			n.memory = Memory{&s}
			n.wait(grace)
			f := n.sweep().at(p)
			if f.Releasable != r.gone || f.BootProven {
				t.Errorf("releasable %v by %s (%s), proven by boot %v", f.Releasable, f.Rule, f.Why, f.BootProven)
			}
			if _, ok := n.now.Since(f.First()); !ok && f.First().Boot == n.now.Boot {
				t.Errorf("first seen in the future: %v", f.First())
			}
		})
	}
}

// The memory holds what lies there and no more, except where listing failed or another
// pass looks after a store.
func TestMemoryForgets(t *testing.T) {
	n, p := leak(t)
	q := n.reserve("10.1.0.10", idB)
	n.sweep()
	paths := func() (list []string) {
		for _, s := range n.memory {
			list = append(list, s.Path)
		}
		return list
	}
	if d := cmp.Diff([]string{q, p}, paths()); d != "" {
		t.Fatal(d)
	}
	n.remove(q)
	n.sweep()
	if d := cmp.Diff([]string{p}, paths()); d != "" {
		t.Errorf("after removal: %s", d)
	}
	all := n.stores
	n.stores, n.files = n.stores[1:], nil // --network other
	n.sweep()
	if d := cmp.Diff([]string{p}, paths()); d != "" {
		t.Errorf("while not looked at: %s", d)
	}
	n.now.Boot, n.past = "boot-3", []string{"boot-2"}
	n.sweep()
	if len(n.memory) != 0 {
		t.Errorf("kept across a boot without being looked at: %v", paths())
	}
	n.stores = all
}

// Sightings of a sweep that could not convict start no run.
func TestWeakSightingsDoNotStart(t *testing.T) {
	for name, weak := range map[string]func(*node){
		"no vantage":  func(n *node) { n.vantage.Proven = false },
		"policy":      func(n *node) { n.policy.Required = []string{"kernel", "process"} },
		"cri silent":  func(n *node) { n.silent["cri"] = "x" },
		"boot silent": func(n *node) { n.silent["boot"] = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			n, p := leak(t)
			policy := n.policy
			weak(n)
			n.sweeps(time.Hour)
			if f := n.sweep().at(p); f.Absent().Boot != "" {
				t.Errorf("a run began at %v", f.Absent())
			}
			n.vantage.Proven, n.policy = true, policy
			clear(n.silent)
			n.wait(time.Hour)
			n.sweep().want(p, Suspect, false)
		})
	}
}

func TestMemorySortedIsTotal(t *testing.T) {
	var list []Sighting
	for _, i := range []claim.Incarnation{{Ino: 2}, {Ino: 1, Sum: "b"}, {Ino: 1, Sum: "a"}, {Ino: 1, Dev: 3}, {Ino: 1, Ctime: 9}, {Ino: 1, Size: 4}} {
		list = append(list, Sighting{Key: Key{Path: "/p", Inc: i}}, Sighting{Key: Key{Path: "/a", Inc: i}})
	}
	want := NewMemory(slices.Clone(list))
	for range 20 {
		slices.Reverse(list)
		if d := cmp.Diff(want, NewMemory(slices.Clone(list))); d != "" {
			t.Fatal(d)
		}
	}
	if len(want) != len(list) {
		t.Errorf("%d of %d keys remain", len(want), len(list))
	}
}

// A saved document may hold its memory in any order, a key twice, or nothing in a place:
// of two the later counts.
func TestMemoryOfAnyOrder(t *testing.T) {
	n, p := leak(t)
	n.sweep()
	n.wait(grace)
	c := n.build(true, false)
	want := Judge(c)
	if !slices.ContainsFunc(want.Findings, func(f Finding) bool { return f.Resource.Path == p && f.Releasable }) {
		t.Fatal("not releasable at its second sighting")
	}
	good, young := c.Memory[0], *c.Memory[0]
	young.Absent.Mono = c.Now.Mono
	after := Sighting{Key: Key{Path: good.Path + "0"}}
	for name, m := range map[string]Memory{
		"reversed, the good one last":  {&after, nil, &young, good},
		"reversed, the good one first": {&after, good, nil, &young},
	} {
		c.Memory = m
		f := Judge(c).Findings[0]
		if wanted := m[len(m)-1] == good; f.Resource.Path != p || f.Releasable != wanted {
			t.Errorf("%s: %s releasable %v", name, f.Resource.Path, f.Releasable)
		}
		if c.Memory[0] != &after {
			t.Errorf("%s: the case was changed", name)
		}
	}
}
