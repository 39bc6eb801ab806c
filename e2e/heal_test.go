package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
)

// The allocator heals a full network by itself, under real runtimes: nobody runs holdfast here.

// healGrace and healPressure stand for the 5 minutes and 30 s of a node.
const (
	healGrace    = 2 * time.Second
	healPressure = time.Second
	slots        = 13 // a /28 without network, gateway and broadcast
)

// healing gives a runtime a /28 of bridge and holdfast-ipam, with a healer beside the plugin.
// global are the flags by which holdfast finds the same state.
func healing(t *testing.T, node *cri.Runtime) (n cri.Network, global []string) {
	t.Helper()
	node.InstallProgram(t, os.Getenv(ipamEnv))
	node.InstallProgram(t, os.Getenv(binEnv))
	dir := t.TempDir()
	n = node.Network()
	nodecheck.Watch(t, func() nodecheck.Node {
		return nodecheck.Node{
			DataDirs: []string{node.DataDir()}, Networks: []string{n.Name}, CacheDir: node.CacheDir(),
			StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
		}
	})
	n.Subnet = netip.PrefixFrom(n.Subnet.Addr(), 28)
	n.Name += "-heal" // so that the runtime is seen to have loaded it
	n.IPAM = map[string]any{
		"type": "holdfast-ipam", "stateDir": filepath.Join(dir, "state"), "runDir": filepath.Join(dir, "run"),
		"heal": map[string]any{"timeout": "30s", "args": []string{
			"--run-dir", filepath.Join(dir, "run"), "--cri-endpoint", node.Endpoint, "--cni-conf-dir", node.ConfDir(),
			"--cni-cache-dir", node.CacheDir(), "--cni-bin-dir", node.BinDir(),
			"--grace", healGrace.String(), "--pressure-grace", healPressure.String(),
		}},
	}
	node.SetNetwork(t, n)
	return n, []string{"--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run")}
}

// starts asks for a sandbox as the kubelet does, again after a failure, and returns it.
func starts(t *testing.T, node *cri.Runtime, name string) cri.Sandbox {
	t.Helper()
	var failed []string
	for attempt := range uint32(3) {
		s, err := node.TryRunSandbox(t.Context(), cri.Pod{Name: name, UID: fmt.Sprintf("5b1b7a0e-6d4f-4d8e-9a53-0c1c8c6f%04d", len(name)), Attempt: attempt})
		if err == nil {
			if len(failed) > 0 {
				t.Logf("%s started after %q", name, failed)
			}
			return s
		}
		failed = append(failed, err.Error())
		time.Sleep(time.Second)
	}
	t.Fatalf("%s does not start: %q", name, failed)
	return cri.Sandbox{}
}

// plugin runs holdfast-ipam as a runtime does that knows CNI 1.1.
func plugin(t *testing.T, node *cri.Runtime, n cri.Network, command string, top map[string]any) (stdout, stderr string, ok bool) {
	t.Helper()
	ipam := map[string]any{"dataDir": node.DataDir(), "ranges": [][]any{{map[string]any{"subnet": n.Subnet.String()}}}}
	for k, v := range n.IPAM {
		ipam[k] = v
	}
	conf := map[string]any{"cniVersion": "1.1.0", "name": n.Name, "type": "bridge", "ipam": ipam}
	for k, v := range top {
		conf[k] = v
	}
	b, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	var out, msg bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(node.BinDir(), "holdfast-ipam"))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_PATH=" + node.BinDir()}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(b), &out, &msg
	err = cmd.Run()
	return out.String(), msg.String(), err == nil
}

// The runtime's root was lost with processes gone (case L14), and the range is full: the next
// Pod starts, nobody who lives loses his address, and GC and STATUS are of one mind with it.
func TestFullNetworkHeals(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) {
			node := cri.Start(t, v)
			n, global := healing(t, node)
			s := wipe(t, node, 5, 4, 2)
			fill := node.RunSandboxes(t, "fill", slots-5-4-2)
			s.live = append(s.live, of(n.Name, fill...)...)
			s.check(t, "full", s.dead, s.live)
			time.Sleep(healGrace)

			stop := node.KeepPinging(t, addrs(s.live)...)
			next := starts(t, node, "next")
			if !slices.Contains(addrs(s.dead), next.IP) {
				t.Errorf("the next Pod got %s, none of the dead had it", next.IP)
			}
			s.live = append(s.live, of(n.Name, next)...)
			s.check(t, "healed", s.live)
			stop()

			if out, msg, ok := plugin(t, node, n, "STATUS", nil); !ok {
				t.Errorf("STATUS: %s %s", out, msg)
			}
			// Only some are listed, as by one of two runtimes on a network: nobody goes.
			valid := map[string]any{"cni.dev/valid-attachments": []any{map[string]any{"containerID": next.ID, "ifname": "eth0"}}}
			if out, msg, ok := plugin(t, node, n, "GC", valid); !ok || !strings.Contains(msg, "healing released 0 (InUse") {
				t.Errorf("GC: %s %s", out, msg)
			}
			// The cache files of the dead were left for the next gc.
			doc := cli{s, global}.gc(t, 0)
			if r := doc.released(t); len(r) > 0 || len(doc.Released) != 5 {
				t.Errorf("gc after healing released the reservations %v and %d pieces in all, want 5 cache files", r, len(doc.Released))
			}
			s.check(t, "after gc", s.live)
		})
	}
}

// The node was booted again, and all that the boot before left is reserved still. holdfast never
// ran in that boot; its IPAM noted it. The first Pod starts at once, whatever the grace; what is
// of a boot that nobody noted stays.
func TestRebootHeals(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	const noted, unknown = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-8999-aaaaaaaaaaaa"
	dir := t.TempDir()
	net := filepath.Join(dir, "networks", "pods")
	history, err := state.Open(filepath.Join(dir, "state"), state.Options{})
	if err == nil {
		_, err = history.ObserveBoot(noted)
	}
	if err := errors.Join(err, history.Close(), os.MkdirAll(net, 0o755)); err != nil {
		t.Fatal(err)
	}
	stamped := func(name, boot, content string) {
		path := filepath.Join(net, name)
		sum := sha256.Sum256([]byte(content))
		id, err := hex.DecodeString(strings.ReplaceAll(boot, "-", ""))
		stamp := binary.LittleEndian.AppendUint64(append([]byte("2"), id...), uint64(100*time.Hour))
		stamp = append(binary.LittleEndian.AppendUint64(stamp, 4026532281), sum[:16]...)
		if err := errors.Join(err, os.WriteFile(path, []byte(content), 0o600), unix.Setxattr(path, "user.holdfast.stamp", stamp, 0)); err != nil {
			t.Fatal(err)
		}
	}
	stamped("last_reserved_ip.0", noted, "198.18.78.14")
	for i := range slots {
		boot := noted
		if i >= slots-2 {
			boot = unknown
		}
		stamped(fmt.Sprintf("198.18.78.%d", i+2), boot, fmt.Sprintf("%064x\r\neth0", i+1))
	}
	bin := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Symlink(os.Getenv(binEnv), filepath.Join(bin, "holdfast"))); err != nil {
		t.Fatal(err)
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "ipam": map[string]any{
		"type": "holdfast-ipam", "subnet": "198.18.78.0/28", "dataDir": filepath.Join(dir, "networks"),
		"stateDir": filepath.Join(dir, "state"), "runDir": filepath.Join(dir, "run"),
		"heal": map[string]any{"timeout": "30s", "binary": filepath.Join(bin, "holdfast"), "args": []string{
			"--run-dir", filepath.Join(dir, "run"), "--cri-endpoint", "none", "--cni-conf-dir", dir, "--cni-cache-dir", dir,
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Getenv(ipamEnv))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=first", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/none", "CNI_PATH=" + bin}
	cmd.Stdin = bytes.NewReader(conf)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ADD: %v\n%s", err, out)
	}
	left, err := filepath.Glob(filepath.Join(net, "198.*"))
	if err != nil || len(left) != 3 {
		t.Errorf("left are %q, %v; want the new one and the two of a boot that nobody noted", left, err)
	}
	for i := range 2 {
		if _, err := os.Stat(filepath.Join(net, fmt.Sprintf("198.18.78.%d", slots-i+1))); err != nil {
			t.Error(err)
		}
	}
}

// A failing chained plugin drains the range under containerd 2.4.2 (case L10, containerd
// #12130). As long as it fails its Pod fails, and with its own error: the range never runs out.
func TestDrainHeals(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	node := cri.Start(t, cri.V2)
	good, _ := healing(t, node)
	s := scene{node: node, networks: []string{good.Name}, live: of(good.Name, node.RunSandboxes(t, "live", 6)...)}
	stop := node.KeepPinging(t, addrs(s.live)...)
	broken := good
	broken.Chain = []string{"broken"}
	node.InstallPlugin(t, "broken", cri.FailingPlugin)
	node.SetNetwork(t, broken)
	pod := cri.Pod{Name: "crash", UID: "5b1b7a0e-6d4f-4d8e-9a53-0c1c8c6f5a01"}
	most := 0
	for ; pod.Attempt < 2*slots; pod.Attempt++ {
		_, err := node.TryRunSandbox(t.Context(), pod)
		if err == nil || !strings.Contains(err.Error(), "this plugin always fails") {
			// What was leaked in the last second is too young to go.
			if err == nil || !strings.Contains(err.Error(), "is due in") {
				t.Fatalf("attempt %d: %v", pod.Attempt, err)
			}
			time.Sleep(healPressure)
		}
		most = max(most, len(node.Reservations(t, good.Name)))
	}
	if most != slots {
		t.Fatalf("at most %d were reserved: the range never was full, so nothing was shown", most)
	}
	node.SetNetwork(t, good)
	time.Sleep(healGrace)
	s.live = append(s.live, of(good.Name, starts(t, node, "crash"))...)
	stop()
	s.node.Ping(t, addrs(s.live)...)
	for _, r := range s.live {
		if got := node.Reservations(t, good.Name)[r.addr]; got != r.id {
			t.Errorf("%s is reserved for %q now", r, got)
		}
	}
}

// The network's name changes and its range does not (case L15): the new directory is empty, and
// still nobody gets the address of a Pod that runs under the old name.
func TestRenamedNetworkHandsOutNobodysAddress(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	node := cri.Start(t, cri.Debian)
	before, _ := healing(t, node)
	old := node.RunSandboxes(t, "old", 5)
	after := before
	after.Name += "-new"
	node.SetNetwork(t, after)
	stop := node.KeepPinging(t, cri.Addrs(old[1:]...)...)
	young := node.RunSandboxes(t, "young", slots-5)
	for _, y := range young {
		if slices.Contains(cri.Addrs(old...), y.IP) {
			t.Errorf("%s has the address of a living Pod, %s", y.Pod.Name, y.IP)
		}
	}
	_, err := node.TryRunSandbox(t.Context(), cri.Pod{Name: "more"})
	if err == nil || !strings.Contains(err.Error(), "5 held by the kernel of this node without a reservation") {
		t.Errorf("one more: %v", err)
	}
	node.RemoveSandbox(t, old[0].ID)
	if s := starts(t, node, "next"); s.IP != old[0].IP {
		t.Errorf("the next Pod has %s; free was %s alone", s.IP, old[0].IP)
	}
	stop()
	node.Ping(t, cri.Addrs(append(young, old[1:]...)...)...)
}
