package cniexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/vishvananda/netlink"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// node is a host network namespace with real plugins, and a cache of real ADDs.
type node struct {
	t        *testing.T
	host     *netns.NS
	bin      string
	cacheDir string
	conf     *libcni.NetworkConfigList
	runner   *Runner
}

func newNode(t *testing.T, bin, config string) *node {
	t.Helper()
	n := &node{t: t, host: netns.New(t), bin: bin, cacheDir: t.TempDir()}
	conf, err := libcni.NetworkConfFromBytes([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	n.conf = conf
	n.runner = New(Config{BinDirs: []string{bin}, InInit: initAt(ownMnt, n.host.Path)})
	return n
}

// add runs a real ADD as containerd would, and returns the cache entry it left.
func (n *node) add(id string, capabilities map[string]any) []byte {
	n.t.Helper()
	pod := netns.New(n.t)
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: pod.Path, IfName: "eth0", Args: podArgs(id), CapabilityArgs: capabilities}
	err := n.host.Do(func() error {
		_, err := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, n.cacheDir, nil).AddNetworkList(context.Background(), n.conf, rt)
		return err
	})
	if err != nil {
		n.t.Fatalf("ADD: %v", err)
	}
	content, err := os.ReadFile(filepath.Join(n.cacheDir, "results", n.conf.Name+"-"+id+"-eth0"))
	if err != nil {
		n.t.Fatal(err)
	}
	return content
}

// clean runs the whole plan of an entry.
func (n *node) clean(content []byte) error {
	n.t.Helper()
	calls, skipped, err := Plan(content, false)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Logf("plan: %v, skipped: %v", steps(calls), skipped)
	var errs []error
	for _, c := range calls {
		errs = append(errs, n.host.Do(func() error { return n.runner.Run(context.Background(), c) }))
	}
	return errors.Join(errs...)
}

// rules lists the packet filter of the host namespace.
func (n *node) rules() string {
	n.t.Helper()
	var all []string
	for _, tool := range [][]string{{"iptables", "-t", "nat", "-S"}, {"iptables", "-S"}, {"ip6tables", "-t", "nat", "-S"}, {"nft", "-s", "list", "ruleset"}} {
		var out []byte
		err := n.host.Do(func() error {
			var err error
			out, err = exec.Command(tool[0], tool[1:]...).Output()
			return err
		})
		if err != nil {
			n.t.Fatalf("%v: %v", tool, err)
		}
		all = append(all, string(out))
	}
	return strings.Join(all, "\n")
}

// idOf gives container IDs that are this test's alone.
func idOf(digit string) string { return strings.Repeat(digit, 64) }

func TestRealPlugins(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.IPTables)
	bin := binDirs(t, "main/bridge", "meta/portmap", "meta/firewall", "meta/tuning", "ipam/host-local")
	subnet := "10.234.56"
	dataDir := t.TempDir()
	n := newNode(t, bin, fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,
  "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"%s.0/24"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"},{"type":"tuning"}]}`, dataDir, subnet))
	ports := func(p int) map[string]any {
		return map[string]any{"portMappings": []any{map[string]any{"hostPort": p, "containerPort": 80, "protocol": "tcp"}}}
	}
	dead, live := idOf("d"), idOf("e")
	deadEntry := n.add(dead, ports(18080))
	n.add(live, ports(18081))

	deadMarks := []string{
		utils.FormatChainName("cbr0", dead), utils.MustFormatChainNameWithPrefix("cbr0", dead, "DN-"),
		"-s " + subnet + ".2/32 -j ACCEPT", "18080",
	}
	liveMarks := []string{
		utils.FormatChainName("cbr0", live), utils.MustFormatChainNameWithPrefix("cbr0", live, "DN-"),
		"-s " + subnet + ".3/32 -j ACCEPT", "18081",
	}
	before := n.rules()
	for _, m := range append(append([]string{}, deadMarks...), liveMarks...) {
		if !strings.Contains(before, m) {
			t.Fatalf("after two ADDs there is no %s in\n%s", m, before)
		}
	}

	if err := n.clean(deadEntry); err != nil {
		t.Fatal(err)
	}
	after := n.rules()
	for _, m := range deadMarks {
		if strings.Contains(after, m) {
			t.Errorf("%s of the dead attachment is still there", m)
		}
	}
	for _, m := range liveMarks {
		if strings.Count(after, m) != strings.Count(before, m) {
			t.Errorf("%s of the live attachment changed (I1)", m)
		}
	}
	for _, addr := range []string{".2", ".3"} {
		if _, err := os.Stat(filepath.Join(dataDir, "cbr0", subnet+addr)); err != nil {
			t.Errorf("a plugin released an address: %v", err)
		}
	}
	if err := n.clean(deadEntry); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if again := n.rules(); again != after {
		t.Errorf("a second time changed the rules:\n%s\nwas:\n%s", again, after)
	}
}

func TestRealBandwidth(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.IFB)
	n := newNode(t, binDirs(t, "main/bridge", "meta/bandwidth"),
		`{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"bridge","bridge":"cni0"},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`)
	h := n.host.Handle()
	limits := map[string]any{"bandwidth": map[string]any{"ingressRate": 1 << 20, "ingressBurst": 1 << 20, "egressRate": 1 << 20, "egressBurst": 1 << 20}}
	deadEntry := n.add(idOf("d"), limits)
	n.add(idOf("e"), limits)
	dead := ifbName(Call{Attachment: claim.Attachment{Network: "cbr0", ContainerID: idOf("d")}})
	live := ifbName(Call{Attachment: claim.Attachment{Network: "cbr0", ContainerID: idOf("e")}})
	for _, dev := range []string{dead, live} {
		if _, err := h.LinkByName(dev); err != nil {
			t.Fatalf("after two ADDs: %s: %v", dev, err)
		}
	}
	for range 2 {
		if err := n.clean(deadEntry); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.LinkByName(dead); err == nil {
		t.Error("the dead attachment's device is still there")
	}
	if _, err := h.LinkByName(live); err != nil {
		t.Errorf("the live attachment's device (I1): %v", err)
	}
}

// TestRealLie: a portmap that reports success and does nothing is found out.
func TestRealLie(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.IPTables)
	host := netns.New(t)
	calls, _, err := Plan(entry(t, chain), false)
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"portmap", "firewall", "bandwidth", "tuning"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r := New(Config{BinDirs: []string{bin}, InInit: initAt(ownMnt, host.Path)})
	run := func(c Call) error {
		return host.Do(func() error { return r.Run(context.Background(), c) })
	}
	for _, c := range calls {
		if err := run(c); err != nil {
			t.Errorf("nothing there, %s: %v", c.Plugin, err)
		}
	}
	leave := [][]string{
		{"iptables", "-t", "nat", "-N", utils.MustFormatChainNameWithPrefix("cbr0", hexA, "DN-")},
		{"iptables", "-N", "CNI-FORWARD"},
		{"iptables", "-A", "CNI-FORWARD", "-s", "10.1.0.7/32", "-j", "ACCEPT"},
	}
	for _, args := range leave {
		if err := host.Do(func() error { return exec.Command(args[0], args[1:]...).Run() }); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	lies := map[string]bool{"portmap": true, "firewall": true}
	if err := host.Handle().LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: ifbName(calls[0])}}); err == nil {
		lies["bandwidth"] = true
	} else {
		t.Logf("no ifb in this kernel, so bandwidth is not tried: %v", err)
	}
	for _, c := range calls {
		if c.Step != StepDEL {
			continue
		}
		if err := run(c); errors.Is(err, ErrStill) != lies[c.Plugin] {
			t.Errorf("%s: %v, want ErrStill: %v", c.Plugin, err, lies[c.Plugin])
		}
	}
}

// TestRealMasquerade holds our tear-down against the plugins' own set-up, on both
// backends and both families.
func TestRealMasquerade(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.IPTables)
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "nftables" {
				testenv.Need(t, testenv.NFT)
			}
			host := netns.New(t)
			n := &node{t: t, host: host}
			dead := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
			live := claim.Attachment{Network: "cbr0", ContainerID: idOf("b"), IfName: "eth0"}
			// The live one has the dead one's address by now: only the key tells them apart.
			for _, a := range []claim.Attachment{live, dead} {
				err := host.Do(func() error {
					return ip.SetupIPMasqForNetworks(&backend, []*net.IPNet{cidr(t, "10.1.0.7/24"), cidr(t, "fd00::7/64")}, a.Network, a.IfName, a.ContainerID)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			before := n.rules()
			calls, _, err := Plan(entry(t, `{"cniVersion":"1.0.0","name":"cbr0","type":"ptp","ipMasq":true,"ipMasqBackend":"`+backend+`","ipam":{"type":"host-local"}}`), false)
			if err != nil || len(calls) != 1 {
				t.Fatal(steps(calls), err)
			}
			r := New(Config{InInit: initAt(ownMnt, host.Path)})
			for range 2 {
				if err := host.Do(func() error { return r.Run(context.Background(), calls[0]) }); err != nil {
					t.Fatal(err)
				}
			}
			after := n.rules()
			if !strings.Contains(before, hexA) || strings.Contains(after, hexA) || strings.Contains(after, utils.FormatChainName("cbr0", hexA)) {
				t.Errorf("rules of the dead attachment; before:\n%s\nafter:\n%s", before, after)
			}
			if strings.Count(after, live.ContainerID) != strings.Count(before, live.ContainerID) || strings.Count(after, live.ContainerID) == 0 {
				t.Errorf("rules of the live attachment changed (I1); before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

func cidr(t *testing.T, s string) *net.IPNet {
	t.Helper()
	a, n, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	n.IP = a
	return n
}
