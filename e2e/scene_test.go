package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
)

// scene is a node on which something went wrong: what is dead and still reserved, and
// what lives.
type scene struct {
	node *cri.Runtime
	// networks are the host-local directories that the scene is about.
	networks []string
	// dead are the leaked reservations.
	dead []reservation
	// live are the reservations of what must not be touched.
	live []reservation
}

type reservation struct {
	network string
	addr    netip.Addr
	id      string
}

func (r reservation) String() string {
	return fmt.Sprintf("%s/%s (%.12s)", r.network, r.addr, r.id)
}

func of(network string, sandboxes ...cri.Sandbox) []reservation {
	var out []reservation
	for _, s := range sandboxes {
		out = append(out, reservation{network: network, addr: s.IP, id: s.ID})
	}
	return out
}

// pods are the living, for the node check. Whether they answer, check asks them; where
// their namespaces are, each runtime keeps to itself.
func (s scene) pods() []nodecheck.Pod {
	var out []nodecheck.Pod
	for _, r := range s.live {
		out = append(out, nodecheck.Pod{Name: r.String(), ContainerID: r.id, Addrs: []netip.Addr{r.addr}})
	}
	return out
}

func addrs(rs []reservation) []netip.Addr {
	var out []netip.Addr
	for _, r := range rs {
		out = append(out, r.addr)
	}
	return out
}

// check fails the test unless the stores hold exactly the given reservations, and
// every living one answers.
func (s scene) check(t *testing.T, when string, want ...[]reservation) {
	t.Helper()
	got := map[string]bool{}
	for _, n := range s.networks {
		for addr, id := range s.node.Reservations(t, n) {
			got[reservation{network: n, addr: addr, id: id}.String()] = true
		}
	}
	for _, r := range slices.Concat(want...) {
		if !got[r.String()] {
			t.Errorf("%s: no reservation %s", when, r)
		}
		delete(got, r.String())
	}
	for _, r := range slices.Sorted(maps.Keys(got)) {
		t.Errorf("%s: unexpected reservation %s", when, r)
	}
	s.node.Ping(t, addrs(s.live)...)
	if t.Failed() {
		t.FailNow()
	}
}

// wipedRoot: the runtime dies by SIGKILL, some of its sandboxes' processes too, and its
// root is lost before it starts again (case L14). The old are living sandboxes from
// before the loss: no runtime knows them, only kernel and process do.
func wipedRoot(t *testing.T, v cri.Version, dead, old, young int) scene {
	return wipe(t, cri.Start(t, v), dead, old, young)
}

func wipe(t *testing.T, node *cri.Runtime, dead, old, young int) scene {
	network := node.Network().Name
	gone := node.RunSandboxes(t, "gone", dead)
	before := node.RunSandboxes(t, "old", old)
	node.Kill(t)
	for _, s := range gone {
		node.KillSandbox(t, s)
		node.DropNetns(t, s)
	}
	node.WipeRoot(t)
	node.Restart(t)
	if listed := node.Listed(t); len(listed) != 0 {
		t.Fatalf("a wiped runtime lists %v", listed)
	}
	after := node.RunSandboxes(t, "young", young)
	s := scene{
		node: node, networks: []string{network},
		dead: of(network, gone...), live: of(network, append(before, after...)...),
	}
	// Until the kernel gets to the end of their namespaces, the dead are in use.
	node.Gone(t, addrs(s.dead)...)
	return s
}

// orphanedNetns: the processes of some sandboxes died and the runtime lost its root, but
// the network namespaces of the dead are still mounted and hold their addresses.
func orphanedNetns(t *testing.T, v cri.Version, dead, live int) scene {
	node := cri.Start(t, v)
	network := node.Network().Name
	gone := node.RunSandboxes(t, "gone", dead)
	node.Kill(t)
	for _, s := range gone {
		node.KillSandbox(t, s)
	}
	node.WipeRoot(t)
	node.Restart(t)
	young := node.RunSandboxes(t, "young", live)
	return scene{node: node, networks: []string{network}, dead: of(network, gone...), live: of(network, young...)}
}

// failingChain: a chained plugin fails ADD and DEL alike, and containerd 2.4.2 forgets
// the address with each attempt (case L10, containerd #12130). Attempts are made until
// the range, a /27, has no address left.
func failingChain(t *testing.T, live int) scene {
	node := cri.Start(t, cri.V2)
	good := node.Network()
	good.Subnet = netip.PrefixFrom(good.Subnet.Addr(), 27)
	node.SetNetwork(t, good)
	living := node.RunSandboxes(t, "live", live)

	broken := good
	broken.Chain = []string{"broken"}
	node.InstallPlugin(t, "broken", cri.FailingPlugin)
	node.SetNetwork(t, broken)
	s := scene{node: node, networks: []string{good.Name}, live: of(good.Name, living...)}
	const capacity = 29 // a /27 without network, gateway and broadcast
	pod := cri.Pod{Name: "crash", UID: "5b1b7a0e-6d4f-4d8e-9a53-0c1c8c6f5a01"}
	for range capacity - live {
		if _, err := node.TryRunSandbox(t.Context(), pod); err == nil {
			t.Fatal("a sandbox with a failing plugin was made")
		}
		pod.Attempt++
	}
	node.SetNetwork(t, good)
	for addr, id := range node.Reservations(t, good.Name) {
		if !slices.Contains(addrs(s.live), addr) {
			s.dead = append(s.dead, reservation{network: good.Name, addr: addr, id: id})
		}
	}
	if len(s.dead) != capacity-live {
		t.Fatalf("%d attempts leaked %d addresses", capacity-live, len(s.dead))
	}
	if _, err := node.TryRunSandbox(t.Context(), pod); err == nil {
		t.Fatal("the range still had an address")
	}
	return s
}

// renamedNetwork: the network's name changes in the conflist while Pods run, and 1.6.20
// sends each later DEL to the new directory (case L15).
func renamedNetwork(t *testing.T, dead, live int) scene {
	node := cri.Start(t, cri.Debian)
	before := node.Network()
	base := before.Subnet.Addr().As4()
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{base[0], base[1], base[2], last}) }
	before.First, before.Last = at(2), at(99)
	node.SetNetwork(t, before)
	gone := node.RunSandboxes(t, "gone", dead)
	old := node.RunSandboxes(t, "old", live/2)

	// Another range: with the same one the new directory would hand out the addresses
	// of the living, which is another case.
	after := before
	after.Name += "-new"
	after.First, after.Last = at(100), at(200)
	node.SetNetwork(t, after)
	for _, s := range gone {
		node.RemoveSandbox(t, s.ID)
	}
	young := node.RunSandboxes(t, "young", live-live/2)
	return scene{
		node: node, networks: []string{before.Name, after.Name},
		dead: of(before.Name, gone...),
		live: append(of(before.Name, old...), of(after.Name, young...)...),
	}
}

// sharedWithPodman: podman's containers are on containerd's network, and the CRI knows
// nothing of them (case F15). One died by SIGKILL, conmon with it.
func sharedWithPodman(t *testing.T, v cri.Version, live int) scene {
	node := cri.Start(t, v)
	podman := cri.StartPodman(t, node)
	network := node.Network().Name
	sandboxes := node.RunSandboxes(t, "live", live)
	s := scene{node: node, networks: []string{network}, live: of(network, sandboxes...)}
	for i := range 3 {
		c := podman.Run(t, fmt.Sprintf("podman-%d", i))
		r := reservation{network: network, addr: c.IP, id: c.ID}
		if i == 1 {
			podman.Kill(t, c)
			podman.DropNetns(t, c)
			s.dead = append(s.dead, r)
		} else {
			s.live = append(s.live, r)
		}
	}
	return s
}

// lostHostPort: two sandboxes with a host port; one died with the runtime's root, and
// nobody took its DNAT rules away.
func lostHostPort(t *testing.T, v cri.Version) scene {
	node := cri.Start(t, v)
	network := node.Network()
	network.Chain = []string{"portmap"}
	node.SetNetwork(t, network)
	gone := node.RunSandbox(t, cri.Pod{Name: "gone", HostPort: 18080})
	live := node.RunSandbox(t, cri.Pod{Name: "live", HostPort: 18081})
	node.Kill(t)
	node.KillSandbox(t, gone)
	node.DropNetns(t, gone)
	node.WipeRoot(t)
	node.Restart(t)
	// A runtime that lists nothing beside a living shim would not be believed.
	young := node.RunSandbox(t, cri.Pod{Name: "young"})
	return scene{
		node: node, networks: []string{network.Name},
		dead: of(network.Name, gone), live: of(network.Name, live, young),
	}
}

// natRules are the NAT rules of the node.
func natRules(t *testing.T, s scene) string {
	t.Helper()
	out, err := s.node.Output(exec.Command("iptables-save", "-t", "nat"))
	if err != nil {
		t.Fatal(err)
	}
	return out
}
