package verdict_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// A person's reservation lies on an address that also sits in an idle namespace: the
// orphan rule must not overrule "Foreign is kept unless --foreign".
func TestKeepsForeignInIdleNetns(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.file(netDir, "10.1.0.9", "reserved-vip")
	n.netns(50, 0, cniMount, "10.1.0.9")
	n.sweeps(2 * orphanGrace).kept(p)
}

// The reservation was wiped (F12) and the netns path is /proc/PID/ns/net (F13), so only
// the address speaks for this live container of Nomad on Docker. Its cache entry, and
// with it portmap rules and the veth, must stay.
func TestKeepsCacheWithAddressInUse(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.cache("0a1b2c3d-1111-2222-3333-444455556666", "/proc/4711/ns/net", "10.1.0.9")
	n.netns(50, 2, "", "10.1.0.9")
	n.sweeps(2 * grace).kept(p)
}

// The same container with its reservation there but in conflict (held twice).
func TestKeepsCacheOfConflict(t *testing.T) {
	n := newNode(t)
	n.bystander()
	r := n.reserve("10.1.0.9", idA)
	p := n.cache(idA, "/proc/4711/ns/net", "10.1.0.9")
	n.netns(50, 2, "", "10.1.0.9")
	n.netns(51, 2, "", "10.1.0.9")
	o := n.sweeps(2 * grace)
	o.want(r, Conflict, false)
	o.kept(p)
}

// One live address keeps all of an owner's. That a second namespace holds it too must
// not make the owner's other network releasable (adding a fact released something).
func TestHeldTwiceKeepsOtherNetworks(t *testing.T) {
	for _, twice := range []bool{false, true} {
		n := newNode(t)
		n.bystander()
		n.reserve("10.1.0.9", idA)
		p := n.file(otherDir, "10.2.0.9", idA+"\r\nnet1")
		n.netns(50, 2, "", "10.1.0.9")
		if twice {
			n.netns(51, 2, "", "10.1.0.9")
		}
		n.sweeps(2 * grace).kept(p)
	}
}

// F20 with F12: kernel blind (gVisor). The runtime's status gives the address of B's dead
// file to the Ready sandbox A, which has no file: Conflict, or at least kept.
func TestKeepsAddressOfAnotherSandbox(t *testing.T) {
	for _, detail := range []bool{true, false} {
		n := newNode(t)
		p := n.reserve("10.1.0.9", idB)
		b := n.box(idA, "pod-a", true)
		b.Netns, b.Addrs = cniMount, append(b.Addrs, ip("10.1.0.9"))
		n.proc(idA, "shim", 1)
		n.netns(50, 1, cniMount) // without the address
		if detail {
			n.tweak = func(c *Case) {
				for i := range c.Testimonies {
					if f := c.Testimonies[i].CRI; f != nil {
						f.Detailed, f.Sandboxes = true, n.boxes
					}
				}
			}
		}
		n.sweeps(2 * grace).kept(p)
	}
}

// The same, with the libcni cache of the live A instead of the status.
func TestKeepsAddressOfAnotherCache(t *testing.T) {
	n := newNode(t)
	p := n.reserve("10.1.0.9", idB)
	n.box(idA, "pod-a", true)
	n.proc(idA, "shim", 1)
	n.cache(idA, cniMount, "10.1.0.9")
	n.netns(50, 1, cniMount)
	n.sweeps(2 * grace).kept(p)
}

// A NotReady sandbox may count as gone only if kernel is absent too; without its status
// nobody knows its namespace. Here it is in use (vfio, CRI-O without infra container).
func TestNotReadyNeedsItsNetns(t *testing.T) {
	for _, newer := range []bool{false, true} {
		n := newNode(t)
		p := n.reserve("10.1.0.9", idA)
		b := n.box(idA, "pod-a", false)
		b.Netns = cniMount
		n.netns(50, 1, cniMount)
		if newer {
			n.box(idB, "pod-a", true)
		}
		n.sweeps(2 * orphanGrace).kept(p)
	}
}

// A required witness that was never asked, and that this judge does not know, is silent.
func TestKeepsRequiredButUnknownWitness(t *testing.T) {
	n := newNode(t)
	n.bystander()
	n.policy.Required = append(n.policy.Required, "kube")
	n.sweeps(2 * grace)
	p := n.reserve("10.1.0.9", idA)
	n.sweeps(2 * grace).kept(p)
}

// Answers that cannot be: whoever says so is silent, not "nothing there".
func TestKeepsImpossibleAnswers(t *testing.T) {
	edit := func(f func(*claim.Testimony)) func(*Case) {
		return func(c *Case) {
			for i := range c.Testimonies {
				f(&c.Testimonies[i])
			}
		}
	}
	for name, tweak := range map[string]func(*Case){
		"kernel without any namespace": edit(func(x *claim.Testimony) {
			if x.Kernel != nil {
				x.Kernel.Netns = nil
			}
		}),
		"kernel without the host's namespace": edit(func(x *claim.Testimony) {
			if x.Kernel != nil {
				x.Kernel.Netns[0].Host = false
			}
		}),
		"cri complete without any runtime": edit(func(x *claim.Testimony) {
			if x.CRI != nil {
				x.CRI.Runtimes, x.CRI.Sandboxes = nil, nil
			}
		}),
		"cri complete with a known runtime silent": edit(func(x *claim.Testimony) {
			if x.CRI != nil {
				x.CRI.Runtimes = append(x.CRI.Runtimes, claim.Runtime{Endpoint: crioSock, Name: "cri-o", State: claim.StateSilent, Known: true})
			}
		}),
		"cri complete with no runtime complete": edit(func(x *claim.Testimony) {
			if x.CRI != nil {
				x.CRI.Runtimes[0].State = claim.StateNone
				x.CRI.Sandboxes = nil
			}
		}),
		"a witness twice, first silent": func(c *Case) {
			c.Testimonies = append([]claim.Testimony{{Witness: claim.WitnessKernel, State: claim.StateSilent, Asked: c.Testimonies[0].Asked}}, c.Testimonies...)
		},
		"a witness asked after now": edit(func(x *claim.Testimony) { x.Asked.Mono += time.Hour }),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			p := n.reserve("10.1.0.9", idA)
			n.tweak = tweak
			n.sweeps(2 * grace).kept(p)
		})
	}
}

// F6: the runtime's socket is seen at another path than its shims name (a bind mount,
// a symbolic link): zero sandboxes beside k8s.io shims is still a contradiction.
func TestKeepsEmptyRuntimeAtAnotherPath(t *testing.T) {
	n := newNode(t)
	p := n.reserve("10.1.0.9", idA)
	n.proc(idB, "shim", 1)
	n.runtimes[0].Endpoint = "unix:///host/run/containerd/containerd.sock"
	n.sweeps(2 * grace).kept(p)
}

// An unread boot ID is no boot: it neither proves death nor becomes part of history.
func TestKeepsEmptyPastBoot(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.reserve("10.1.0.9", idA)
	boot := n.now.Boot
	n.now.Boot = ""
	n.sweep()
	n.now.Boot = boot
	n.past = []string{""}
	n.sweep().kept(p)
}

// F8: with a grace of zero the same instant is one sighting, whatever the wall clock says.
func TestWallDecidesNothing(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.reserve("10.1.0.9", idA)
	n.policy.Grace = 0
	n.sweep()
	n.now.Wall = n.now.Wall.Add(time.Hour)
	n.sweep().kept(p)
}

// The idle namespace holds the address of a Ready sandbox whose path the runtime does
// not tell (CRI-O Pod in a crash loop): its address is evidence enough.
func TestKeepsIdleNetnsOfReadySandbox(t *testing.T) {
	for _, own := range []string{"status", "reservation", "cache"} {
		t.Run(own, func(t *testing.T) {
			n := newNode(t)
			b := n.box(idA, "pod-a", true)
			n.netns(50, 0, cniMount, "10.1.0.9")
			switch own {
			case "status":
				b.Addrs = append(b.Addrs, ip("10.1.0.9"))
			case "reservation":
				n.reserve("10.1.0.9", idA)
			case "cache":
				n.cache(idA, "", "10.1.0.9")
			}
			n.sweeps(2 * orphanGrace).kept(cniMount)
		})
	}
}

// Two attachments have lived in one namespace; the second is alive by its shim. Neither
// the first one's address nor the namespace goes.
func TestKeepsIdleNetnsOfTwoTenants(t *testing.T) {
	n := newNode(t)
	n.bystander()
	p := n.reserve("10.1.0.9", idA)
	n.cache(idA, cniMount, "10.1.0.9")
	n.cache(idB, cniMount, "10.1.0.10")
	n.proc(idB, "shim", 1)
	n.netns(50, 0, cniMount, "10.1.0.9", "10.1.0.10")
	o := n.sweeps(2 * orphanGrace)
	o.kept(p)
	o.kept(cniMount)
}

// A hold, a conflict, an unreadable or unlistable reservation keeps the cache entry (and
// so DEL and the veth) of its attachment too (I8).
func TestHoldKeepsTheCache(t *testing.T) {
	for name, f := range map[string]func(*node){
		"hold":       func(n *node) { n.policy.Holds = []Hold{{Addr: ip("10.1.0.9")}} },
		"store":      func(n *node) { n.stores[0].Problem = "permission denied" },
		"unreadable": func(n *node) { n.files[0].Problem = "permission denied" },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.bystander()
			n.reserve("10.1.0.9", idA)
			p := n.cache(idA, cniMount, "10.1.0.9")
			f(n)
			n.sweeps(2 * grace).kept(p)
		})
	}
}

// A kernel address in IPv4-in-IPv6 form or with a zone is the same address.
func TestMappedAddress(t *testing.T) {
	for _, a := range []string{"::ffff:10.1.0.9", "fd00::9%eth0"} {
		n := newNode(t)
		n.bystander()
		p := n.reserve(ip(a).WithZone("").Unmap().String(), idA)
		n.netns(50, 1, "", a)
		n.sweeps(2 * grace).kept(p)
	}
}

// For Missing the second listing counts only if it was whole and made after the asking.
func TestMissingNeedsALaterListing(t *testing.T) {
	for name, edit := range map[string]func(*claim.Snapshot){
		"early":   func(s *claim.Snapshot) { s.Listed.Mono -= time.Minute },
		"problem": func(s *claim.Snapshot) { s.Stores[0].Problem = "EIO" },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.box(idA, "a", true)
			n.cache(idA, cniMount, "10.1.0.9")
			n.netns(50, 1, cniMount, "10.1.0.9")
			n.tweak = func(c *Case) {
				if c.Relisted != nil {
					edit(c.Relisted)
				}
			}
			if f := n.sweep().at(netDir + "/10.1.0.9"); f.Verdict == Missing {
				t.Errorf("reported Missing")
			}
		})
	}
}

// The same address reserved in another network says nothing of this one.
func TestMissingPerNetwork(t *testing.T) {
	n := newNode(t)
	n.box(idA, "a", true)
	n.cache(idA, cniMount, "10.1.0.9")
	n.netns(50, 1, cniMount, "10.1.0.9")
	n.file(otherDir, "10.1.0.9", idB+"\r\neth0")
	n.sweep().want(netDir+"/10.1.0.9", Missing, false)
}

// F21: the container was started again under its old ID; its new reservation is Suspect,
// its old cache entry must not go (DEL and the veth would hit the new run).
func TestF21CacheOfRestartedContainer(t *testing.T) {
	n := newNode(t)
	n.bystander()
	n.reserve("10.1.0.9", idA)
	p := n.cache(idA, podmanMount, "10.1.0.9")
	n.sweep()
	n.wait(2 * grace)
	n.files = nil
	n.reserve("10.1.0.10", idA) // the new run's ADD, between two plugins
	n.sweep().kept(p)
}

// The idle namespace was A's; A lives on in another one, and so keeps what is its own.
func TestKeepsIdleNetnsOfLivingOwner(t *testing.T) {
	n := newNode(t)
	n.bystander()
	n.cache(idA, cniMount, "10.1.0.9")
	n.netns(50, 0, cniMount)
	n.netns(51, 1, cniMount2)
	n.proc("app", "cgroup", 51)
	n.hits = append(n.hits, claim.ProcessHit{})
	n.caches = append(n.caches, n.caches[0])
	n.caches[1].Path, n.caches[1].Owner.IfName = n.caches[1].Path+"1", "net1"
	n.caches[1].Cache = &claim.CacheEntry{Netns: cniMount2, DataDir: dataDir}
	n.sweeps(2 * orphanGrace).kept(cniMount)
}

// P1 and P2 to the letter, on namespaces, addresses of cache entries and facts of the
// kernel too. Every kind of violation is listed once.
func TestStrictProperties(t *testing.T) {
	seen := map[string]bool{}
	report := func(format string, args ...any) {
		if k := strings.Join(strings.Fields(format), " "); !seen[k] {
			seen[k] = true
			t.Errorf(format, args...)
		}
	}
	for seed := range int64(seeds) {
		c := later(randomNode(t, seed), seed)
		j := Judge(c)
		f := factsOf(c)
		ready := map[netip.Addr]string{}
		foreign := map[string]bool{}
		for _, x := range c.Testimonies {
			if x.CRI != nil {
				for _, b := range x.CRI.Sandboxes {
					for _, a := range b.Addrs {
						if b.Ready {
							ready[a] = b.ID
						}
					}
				}
			}
		}
		for _, x := range j.Findings {
			r := x.Resource
			if r.Kind == claim.KindReservation && r.Owner.Shape == claim.ShapeForeign {
				foreign[r.Path] = true
			}
			if !x.Releasable {
				continue
			}
			for _, id := range r.Owner.Aliases() {
				if f.alive[id] {
					report("seed %d: "+string(r.Kind)+" releasable by "+x.Rule+" though its owner %s is alive", seed, id)
				}
			}
			if r.Cache != nil {
				for _, a := range r.Cache.Addrs {
					if n := f.holder(c, r, a); n != 0 {
						report("seed %d: cache releasable by "+x.Rule+" though its address %s is held by %d", seed, a, n)
					}
				}
			}
			if id := ready[r.Addr]; id != "" && !owns(c, []string{id}, r.Addr, r.Store) {
				report("seed %d: reservation releasable by "+x.Rule+" though Ready sandbox %s has its address and no reservation", seed, id)
			}
			if foreign[r.Path] && !c.Policy.Foreign {
				report("seed %d: foreign reservation %s releasable by "+x.Rule+" without the flag", seed, r.Path)
			}
			for _, pin := range x.Netns {
				for _, id := range f.tenant[pin.ID] {
					if f.alive[id] {
						report("seed %d: "+string(r.Kind)+" releasable by "+x.Rule+" with a namespace of the living %s", seed, id)
					}
				}
				for _, n := range c.Testimonies[0].Kernel.Netns {
					for _, a := range n.Addrs {
						if n.ID == pin.ID && ready[a.Addr] != "" {
							report("seed %d: "+string(r.Kind)+" releasable by "+x.Rule+" with a namespace that holds Ready sandbox %s's address", seed, ready[a.Addr])
						}
					}
				}
			}
		}
		// A second namespace in use comes to hold an address of a living owner.
		for _, a := range someAddrs {
			d := copied(c)
			k := d.Testimonies[0].Kernel
			k.Netns = append(k.Netns, claim.Netns{ID: 99, Procs: 1, Addrs: []claim.IfAddr{{If: "eth0", Addr: ip(a)}}})
			before := releasable(j)
			owners := map[string]bool{}
			for _, s := range c.Snapshots {
				for _, r := range s.Resources {
					for _, id := range r.Owner.Aliases() {
						owners[id] = owners[id] || r.Addr == ip(a)
					}
				}
			}
			for _, x := range Judge(d).Findings {
				for _, id := range x.Resource.Owner.Aliases() {
					if x.Releasable && !before[x.Resource.Path] && owners[id] {
						report("seed %d: "+string(x.Resource.Kind)+" becomes releasable by "+x.Rule+" when %s is held once more", seed, a)
					}
				}
			}
		}
	}
}

// Nothing is releasable before every sandbox's status was asked: who the kernel cannot see
// may have the address by its runtime's word (case F20).
func TestNothingGoesBeforeTheDetails(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		n := newNode(t)
		n.bystander()
		p := n.reserve("10.1.0.9", idA)
		n.deaf = deaf
		o := n.sweeps(2 * grace)
		o.want(p, Leaked, !deaf)
	}
}
