package hostlocal

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func rng(first, last, gw string) claim.Range {
	r := claim.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	if gw != "" {
		r.Gateway = netip.MustParseAddr(gw)
	}
	return r
}

func TestParseConfig(t *testing.T) {
	type want struct {
		dir string // dataDir/name
		cap uint64
	}
	tests := []struct {
		name     string
		in       string
		fallback string
		want     []want
		findings []string // substrings, one per finding
	}{
		{name: "conflist", in: `{"name":"net1","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}},{"type":"portmap"}]}`,
			want: []want{{"/var/lib/cni/networks/net1", 253}}},
		{name: "single conf, flat subnet, own dataDir", in: `{"name":"n","type":"bridge","ipam":{"type":"host-local","dataDir":"/run/x/","subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19"}}`,
			want: []want{{"/run/x/n", 10}}},
		{name: "our own ipam", in: `{"name":"n","ipam":{"type":"holdfast-ipam","subnet":"10.1.0.0/30"}}`, want: []want{{"/var/lib/cni/networks/n", 1}}},
		{name: "other ipam", in: `{"name":"n","ipam":{"type":"whereabouts","range":"10.1.0.0/30"}}`},
		{name: "dual stack", in: `{"name":"n","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/120"}]]}}`,
			want: []want{{"/var/lib/cni/networks/n", 253 + 254}}},
		{name: "huge", in: `{"name":"n","ipam":{"type":"host-local","ranges":[[{"subnet":"fd00::/16"}]]}}`, want: []want{{"/var/lib/cni/networks/n", 1 << 62}}},
		{name: "rangeSets", in: `{"name":"n","ipam":{"type":"host-local","rangeSets":[[{"subnet":"10.1.0.0/29"}]]}}`, want: []want{{"/var/lib/cni/networks/n", 5}}},
		{name: "antrea", in: `{"cniVersion":"0.3.0","name":"antrea","plugins":[{"type":"antrea","ipam":{"type":"host-local"}},{"type":"portmap"}]}`,
			want: []want{{"/var/lib/cni/networks/antrea", 0}}},
		{name: "multus", in: `{"name":"multus-cni","type":"multus","delegates":[{"name":"a","plugins":[{"ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}]},{"name":"b","ipam":{"type":"host-local"}}]}`,
			want: []want{{"/var/lib/cni/networks/a", 5}, {"/var/lib/cni/networks/b", 0}}},
		{name: "delegate takes the outer name", in: `{"name":"out","type":"x","delegate":{"type":"bridge","ipam":{"type":"host-local"}}}`,
			want: []want{{"/var/lib/cni/networks/out", 0}}},
		{name: "list name wins over the plugin's", in: `{"name":"list","plugins":[{"name":"other","ipam":{"type":"host-local"}}]}`,
			want: []want{{"/var/lib/cni/networks/list", 0}}},
		{name: "flannel", in: `{"name":"cbr0","plugins":[{"type":"flannel","delegate":{"hairpinMode":true}}]}`,
			want: []want{{"/var/lib/cni/networks/cbr0", 0}}},
		{name: "flannel with dataDir", in: `{"name":"cbr0","plugins":[{"type":"flannel","ipam":{"dataDir":"/run/f"}}]}`, want: []want{{"/run/f/cbr0", 0}}},
		{name: "flannel with another ipam", in: `{"name":"cbr0","plugins":[{"type":"flannel","ipam":{"type":"dhcp"}}]}`},
		{name: "calico's word", in: `{"name":"k8s-pod-network","plugins":[{"type":"calico","ipam":{"type":"host-local","ranges":[[{"subnet":"usePodCidr"}],[{"subnet":"usePodCidrIPv6"}]]}}]}`,
			want: []want{{"/var/lib/cni/networks/k8s-pod-network", 0}}},
		{name: "plugin folder", fallback: "net9", in: `{"type":"bridge","ipam":{"type":"host-local"}}`, want: []want{{"/var/lib/cni/networks/net9", 0}}},
		{name: "case of keys does not matter", in: `{"NAME":"n","IPAM":{"Type":"host-local","DataDir":"/d"}}`, want: []want{{"/d/n", 0}}},

		{name: "climbing name", in: `{"name":"../../etc","ipam":{"type":"host-local"}}`, findings: []string{`name: "../../etc"`}},
		{name: "dot dot", in: `{"name":"..","ipam":{"type":"host-local"}}`, findings: []string{`allowed are letters`}},
		{name: "no name", in: `{"ipam":{"type":"host-local"}}`, findings: []string{`name: ""`}},
		{name: "terminal escape in name", in: `{"name":"a\u001b[2J","ipam":{"type":"host-local"}}`, findings: []string{`\x1b[2J`}},
		{name: "bad name unused", in: `{"name":"../x","ipam":{"type":"dhcp"}}`},
		{name: "relative dataDir", in: `{"name":"n","ipam":{"type":"host-local","dataDir":"var/x"}}`, findings: []string{"ipam.dataDir: \"var/x\" cannot be used; allowed is an absolute path"}},
		{name: "NUL in dataDir", in: `{"name":"n","ipam":{"type":"host-local","dataDir":"/a\u0000b"}}`, findings: []string{"ipam.dataDir"}},
		{name: "one bad range keeps the other", in: `{"name":"n","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/33"}],[{"subnet":"10.2.0.0/29"}]]}}`,
			want: []want{{"/var/lib/cni/networks/n", 5}}, findings: []string{"ipam.ranges[0][0].subnet"}},
		{name: "start outside", in: `{"name":"n","ipam":{"type":"host-local","subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}}`,
			want: []want{{"/var/lib/cni/networks/n", 0}}, findings: []string{"ipam.rangeStart: 10.2.0.1 lies outside; allowed is an address of 10.1.0.0/24"}},
		{name: "wrong type of one key", in: `{"name":"n","ipam":{"type":"host-local","ranges":"10.1.0.0/24"}}`,
			want: []want{{"/var/lib/cni/networks/n", 0}}, findings: []string{"ipam.ranges: is a JSON string; allowed is a list"}},
		{name: "not JSON", in: `name = x`, findings: []string{"file: broken JSON"}},
		{name: "empty", in: ``, findings: []string{"file: broken JSON"}},
		{name: "a list", in: `[]`, findings: []string{"file: is a JSON array"}},
		{name: "too deep", in: strings.Repeat(`{"name":"n","delegate":`, 12) + `{}` + strings.Repeat(`}`, 12), findings: []string{"nested too deep"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nets, findings := parseConfig([]byte(tt.in), tt.fallback)
			var got []want
			for _, n := range nets {
				got = append(got, want{n.dataDir + "/" + n.name, Capacity(n.ranges)})
			}
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})); d != "" {
				t.Errorf("networks (-want +got):\n%s", d)
			}
			if len(findings) != len(tt.findings) {
				t.Fatalf("findings = %q, want %d", findings, len(tt.findings))
			}
			for i, f := range findings {
				if !strings.Contains(f, tt.findings[i]) {
					t.Errorf("finding %q does not contain %q", f, tt.findings[i])
				}
				if !isPlain(f) {
					t.Errorf("finding %q is not fit for a terminal", f)
				}
			}
		})
	}
}

// The ranges must be what the plugin makes of them: its own code is the reference.
func TestResolveAgreesWithHostLocal(t *testing.T) {
	subnets := []string{"10.1.0.0/24", "10.1.0.0/30", "10.1.0.0/31", "10.1.0.0/32", "10.1.0.1/24", "10.0.0.0/8", "0.0.0.0/0",
		"fd00::/64", "fd00::/126", "fd00::/127", "fd00::1/64", "fd00:0::/120", "::/0", "nonsense", "::ffff:10.1.0.0/120"}
	others := []string{"", "10.1.0.0", "10.1.0.1", "10.1.0.9", "10.1.0.255", "10.2.0.1", "fd00::", "fd00::9", "fd00::ff", "fd01::", "::ffff:10.1.0.7", "x"}
	n := 0
	for _, subnet := range subnets {
		for _, start := range others {
			for _, end := range others {
				for _, gw := range []string{"", "10.1.0.9", "10.1.0.254", "fd00::2", "::ffff:10.1.0.2"} {
					n++
					doc := map[string]string{"subnet": subnet}
					for k, v := range map[string]string{"rangeStart": start, "rangeEnd": end, "gateway": gw} {
						if v != "" {
							doc[k] = v
						}
					}
					raw, _ := json.Marshal(doc)
					var ref allocator.Range
					err := json.Unmarshal(raw, &ref)
					if err == nil {
						err = ref.Canonicalize()
					}
					got, gotErr := rangeText{subnet, start, end, gw}.resolve()
					if (err == nil) != (gotErr == nil) {
						t.Errorf("%s: host-local says %v, we say %v", raw, err, gotErr)
						continue
					}
					if err != nil {
						continue
					}
					want := fmt.Sprintf("%s-%s gw %s", ref.RangeStart, ref.RangeEnd, ref.Gateway)
					if have := fmt.Sprintf("%s-%s gw %s", got.First, got.Last, got.Gateway); have != want {
						t.Errorf("%s: host-local %s, we %s", raw, want, have)
					}
				}
			}
		}
	}
	if n < 1000 {
		t.Fatalf("only %d cases", n)
	}
}

func TestCapacity(t *testing.T) {
	tests := []struct {
		name string
		in   []claim.Range
		want uint64
	}{
		{"none", nil, 0},
		{"gateway inside", []claim.Range{rng("10.0.0.1", "10.0.0.10", "10.0.0.1")}, 9},
		{"gateway outside", []claim.Range{rng("10.0.0.2", "10.0.0.10", "10.0.0.1")}, 9},
		{"no gateway", []claim.Range{rng("10.0.0.1", "10.0.0.10", "")}, 10},
		{"same twice with another end", []claim.Range{rng("10.0.0.1", "10.0.0.10", "10.0.0.1"), rng("10.0.0.1", "10.0.0.20", "10.0.0.1")}, 19},
		{"one inside the other", []claim.Range{rng("10.0.0.1", "10.0.0.20", ""), rng("10.0.0.5", "10.0.0.6", "")}, 20},
		{"overlap with other gateways: both can be handed out by the other", []claim.Range{rng("10.0.0.1", "10.0.0.10", "10.0.0.1"), rng("10.0.0.1", "10.0.0.10", "10.0.0.2")}, 10},
		{"both families", []claim.Range{rng("10.0.0.1", "10.0.0.2", ""), rng("fd00::1", "fd00::3", "")}, 5},
		{"2^62 exactly", []claim.Range{rng("fd00::", "fd00::3fff:ffff:ffff:ffff", "")}, 1 << 62},
		{"one less", []claim.Range{rng("fd00::1", "fd00::3fff:ffff:ffff:ffff", "")}, 1<<62 - 1},
		{"everything", []claim.Range{rng("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "")}, 1 << 62},
		{"sum saturates", []claim.Range{rng("fd00::", "fd00::3fff:ffff:ffff:ffff", ""), rng("fe00::", "fe00::3fff:ffff:ffff:ffff", "")}, 1 << 62},
		{"whole IPv4", []claim.Range{rng("0.0.0.0", "255.255.255.255", "")}, math.MaxUint32 + 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Capacity(tt.in); got != tt.want {
				t.Errorf("Capacity = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestParseSubnetEnv(t *testing.T) {
	got := parseSubnetEnv([]byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_IPV6_SUBNET=fd00:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_SUBNET\n"))
	want := []claim.Range{rng("10.244.3.1", "10.244.3.254", "10.244.3.1"), rng("fd00:3::1", "fd00:3::ffff:ffff:ffff:ffff", "fd00:3::1")}
	if d := cmp.Diff(want, got, compareAddr); d != "" {
		t.Error(d)
	}
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"name":"n","plugins":[{"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24","gateway":"10.0.0.9"}]]}}]}`,
		`{"name":"n","type":"flannel","delegate":{"ipam":{"dataDir":"/x"}}}`,
		`{"delegates":[{"name":"..","ipam":{"type":"host-local"}}]}`, `[`, `{"name":1,"ipam":[]}`,
		`{"name":"n","ipam":{"type":"host-local","subnet":"::/0"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		nets, findings := parseConfig(data, "")
		for _, n := range nets {
			if n.name == "" || strings.ContainsAny(n.name, "/\x00") || n.name == "." || n.name == ".." {
				t.Errorf("network name %q would be a path", n.name)
			}
			if !strings.HasPrefix(n.dataDir, "/") || !isPlain(n.dataDir) {
				t.Errorf("dataDir %q", n.dataDir)
			}
			if c := Capacity(n.ranges); c > maxCapacity || (len(n.ranges) == 0) != (c == 0) && len(n.ranges) == 0 {
				t.Errorf("capacity %d of %v", c, n.ranges)
			}
		}
		for _, s := range findings {
			if !isPlain(s) {
				t.Errorf("finding %q is not fit for a terminal", s)
			}
		}
		parseSubnetEnv(data)
	})
}

func TestIsName(t *testing.T) {
	for _, s := range []string{
		"", "a", "0", "_", ".", "-", "a.b_c-d", "Z9", ".a", "-a", "_a", "a/b", "a b", "a\n", "a\x00", "\u00e4", "a\u00e4", "..", "a@", "a[", "a`", "a{", "a:", "a,",
	} {
		if got, want := IsName(s), utils.ValidateNetworkName(s) == nil; got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
		if got, want := IsName(s), utils.ValidateContainerID(s) == nil; got != want {
			t.Errorf("%q as an ID: %v, want %v", s, got, want)
		}
	}
}
