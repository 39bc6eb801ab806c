package cnicache

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	hexA = "aaaa567890123456789012345678901234567890123456789012345678901234"
	hexB = "bbbb567890123456789012345678901234567890123456789012345678901234"
	uidA = "3f0a2b1c-0000-4000-8000-a1b2c3d4e5f6"
)

const bridgeList = `{"cniVersion":"1.0.0","name":"cbr0","plugins":[
 {"type":"bridge","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`

const result100 = `{"cniVersion":"1.0.0","interfaces":[
  {"name":"cbr0","mac":"02:00:00:00:00:01"},{"name":"veth1","mac":"02:00:00:00:00:02"},
  {"name":"eth0","mac":"02:00:00:00:00:03","sandbox":"/run/netns/cni-1"}],
 "ips":[{"address":"10.1.0.7/24","gateway":"10.1.0.1","interface":2},{"address":"fd00::7/64","interface":2}]}`

// v1 builds what libcni writes.
func v1(t testing.TB, a claim.Attachment, config, result string, edit ...func(map[string]any)) []byte {
	t.Helper()
	m := map[string]any{
		"kind": "cniCacheV1", "containerId": a.ContainerID, "ifName": a.IfName, "networkName": a.Network,
		"config": []byte(config), "netns": "/run/netns/cni-1",
		"cniArgs": [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart-0"}, {"K8S_POD_UID", uidA}},
	}
	if result != "" {
		m["result"] = json.RawMessage(result)
	}
	for _, f := range edit {
		f(m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func set(key string, val any) func(map[string]any) { return func(m map[string]any) { m[key] = val } }

func nameOf(a claim.Attachment) string { return a.Network + "-" + a.ContainerID + "-" + a.IfName }

func TestParse(t *testing.T) {
	att := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
	own := claim.Owner{Shape: claim.ShapeContainer, ID: hexA, IfName: "eth0"}
	addrs := []netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00::7")}
	pod := claim.Pod{Namespace: "shop", Name: "cart-0", UID: uidA}
	whole := claim.CacheEntry{
		Netns: "/run/netns/cni-1", Addrs: addrs, Pod: pod,
		HostIfs: []claim.HostIf{{Name: "cbr0", MAC: "02:00:00:00:00:01"}, {Name: "veth1", MAC: "02:00:00:00:00:02"}},
		Plugins: []string{"bridge", "portmap"}, IPAM: "host-local", DataDir: "/var/lib/cni/networks",
	}
	with := func(f func(*claim.CacheEntry)) *claim.CacheEntry { c := whole; f(&c); return &c }
	bare040 := `{"cniVersion":"0.4.0","interfaces":[{"name":"veth9"},{"name":"eth0","sandbox":"/x"}],"ips":[{"version":"4","interface":1,"address":"10.1.0.9/24"}]}`
	old := `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.8/24"},"ip6":{"ip":"fd00::8/64"}}`

	for _, tc := range []struct {
		what    string
		name    string
		content []byte
		want    claim.Resource // Cache nil with a Problem
		problem string         // part of it
	}{
		{"whole", nameOf(att), v1(t, att, bridgeList, result100), claim.Resource{Network: "cbr0", Owner: own, Cache: &whole}, ""},
		{"the content of libcni 0.8 with a single configuration", nameOf(att),
			v1(t, att, `{"cniVersion":"0.4.0","name":"cbr0","type":"ptp","ipam":{"type":"host-local","dataDir":"/srv/ipam"}}`, result100),
			claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) {
				c.Plugins, c.DataDir = []string{"ptp"}, "/srv/ipam"
			})}, ""},
		{"flannel's IPAM is implied", nameOf(att), v1(t, att, `{"name":"cbr0","plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}},{"type":"portmap"}]}`, result100),
			claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) { c.Plugins = []string{"flannel", "portmap"} })}, ""},
		{"ours keeps host-local's files", nameOf(att), v1(t, att, `{"cniVersion":"0.4.0","name":"cbr0","type":"ptp","ipam":{"type":"holdfast-ipam","dataDir":"/srv/ipam"}}`, result100),
			claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) {
				c.Plugins, c.IPAM, c.DataDir = []string{"ptp"}, "holdfast-ipam", "/srv/ipam"
			})}, ""},
		{"an IPAM that is not host-local has no data directory", nameOf(att), v1(t, att, `{"name":"cbr0","plugins":[{"type":"macvlan","ipam":{"type":"dhcp","dataDir":"/x"}}]}`, result100),
			claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) {
				c.Plugins, c.IPAM, c.DataDir = []string{"macvlan"}, "dhcp", ""
			})}, ""},
		{"no result", nameOf(att), v1(t, att, bridgeList, ""), claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) { c.Addrs, c.HostIfs = nil, nil })}, ""},
		{"podman: a name alone is no Pod", nameOf(att), v1(t, att, bridgeList, result100, set("cniArgs", [][2]string{{"K8S_POD_NAME", "web"}})),
			claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) { c.Pod = claim.Pod{} })}, ""},
		{"a result of version 0.4.0", nameOf(att), v1(t, att, bridgeList, bare040), claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) {
			c.Addrs, c.HostIfs = []netip.Addr{netip.MustParseAddr("10.1.0.9")}, []claim.HostIf{{Name: "veth9"}}
		})}, ""},
		{"an address on a host-side interface is not the attachment's", nameOf(att),
			v1(t, att, bridgeList, `{"cniVersion":"1.0.0","interfaces":[{"name":"cbr0"}],"ips":[{"address":"10.1.0.1/24","interface":0}]}`),
			claim.Resource{Network: "cbr0", Owner: own, Cache: with(func(c *claim.CacheEntry) { c.Addrs, c.HostIfs = nil, []claim.HostIf{{Name: "cbr0"}} })}, ""},
		{"bare result of libcni 0.7", nameOf(att), []byte(bare040), claim.Resource{Network: "cbr0", Owner: own, Cache: &claim.CacheEntry{
			Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9")}, HostIfs: []claim.HostIf{{Name: "veth9"}}}}, ""},
		{"bare result of version 0.2.0", nameOf(att), []byte(old), claim.Resource{Network: "cbr0", Owner: own, Cache: &claim.CacheEntry{
			Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.8"), netip.MustParseAddr("fd00::8")}}}, ""},
		{"bare result, the name tells nobody", "net-web-1-eth0", []byte(old), claim.Resource{}, "more than one way"},

		{"empty file", nameOf(att), nil, claim.Resource{Network: "cbr0", Owner: own}, "empty"},
		{"empty file whose name tells nobody", "x", nil, claim.Resource{}, "empty"},
		{"NULs", nameOf(att), make([]byte, 100), claim.Resource{Network: "cbr0", Owner: own}, "no JSON"},
		{"cut off", nameOf(att), v1(t, att, bridgeList, result100)[:200], claim.Resource{Network: "cbr0", Owner: own}, "no JSON"},
		{"two documents", nameOf(att), append(v1(t, att, bridgeList, result100), v1(t, att, bridgeList, result100)...), claim.Resource{Network: "cbr0", Owner: own}, "no JSON"},
		{"other kind", nameOf(att), v1(t, att, bridgeList, result100, set("kind", "cniCacheV2")), claim.Resource{Network: "cbr0", Owner: own}, "unknown kind"},
		{"empty object", nameOf(att), []byte(`{}`), claim.Resource{Network: "cbr0", Owner: own}, "neither"},
		{"an array", nameOf(att), []byte(`[1]`), claim.Resource{Network: "cbr0", Owner: own}, "no JSON"},
		{"a copy under another name", "cbr0-" + hexB + "-eth0", v1(t, att, bridgeList, result100),
			claim.Resource{Network: "cbr0", Owner: claim.Owner{Shape: claim.ShapeContainer, ID: hexB, IfName: "eth0"}}, "another attachment"},
		{"path in the ID", "cbr0-x-eth0", v1(t, att, bridgeList, result100, set("containerId", "../../etc/passwd")), claim.Resource{}, "containerID"},
		{"path in the network", "cbr0-x-eth0", v1(t, att, bridgeList, result100, set("networkName", "../x")), claim.Resource{}, "network name"},
		{"control characters in the interface", "cbr0-x-eth0", v1(t, att, bridgeList, result100, set("ifName", "e\x1b[1m\n")), claim.Resource{}, "interface name"},
		{"no ID", nameOf(att), v1(t, att, bridgeList, result100, set("containerId", "")), claim.Resource{Network: "cbr0", Owner: own}, "containerID"},
		{"result of a future version", nameOf(att), v1(t, att, bridgeList, `{"cniVersion":"9.0.0"}`), claim.Resource{Network: "cbr0", Owner: own}, "unsupported"},
		{"a null among the IPs", nameOf(att), v1(t, att, bridgeList, `{"cniVersion":"1.0.0","ips":[null]}`), claim.Resource{Network: "cbr0", Owner: own}, "without an address"},
		{"an IP without address", nameOf(att), v1(t, att, bridgeList, `{"cniVersion":"0.4.0","ips":[{"version":"4"}]}`), claim.Resource{Network: "cbr0", Owner: own}, "without an address"},
		{"configuration is no base64", nameOf(att), v1(t, att, "", result100, set("config", "%%%")), claim.Resource{Network: "cbr0", Owner: own}, "configuration"},
		{"configuration is no JSON", nameOf(att), v1(t, att, "{", result100), claim.Resource{Network: "cbr0", Owner: own}, "configuration"},
		{"three texts in an argument", nameOf(att), v1(t, att, bridgeList, result100, set("cniArgs", "x")), claim.Resource{Network: "cbr0", Owner: own}, "no JSON"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			got := parse(tc.name, tc.content, confMemo{})
			if (got.Problem != "") != (tc.problem != "") || !strings.Contains(got.Problem, tc.problem) {
				t.Errorf("Problem = %q, want one with %q", got.Problem, tc.problem)
			}
			if strings.ContainsFunc(got.Problem, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("Problem %q is not printable", got.Problem)
			}
			got.Problem = ""
			if d := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestSplitName(t *testing.T) {
	att := func(n, id, i string) claim.Attachment {
		return claim.Attachment{Network: n, ContainerID: id, IfName: i}
	}
	for _, tc := range []struct {
		name string
		want claim.Attachment
		ok   bool
	}{
		{"cbr0-" + hexA + "-eth0", att("cbr0", hexA, "eth0"), true},
		{"my-own-net-" + hexA + "-net-1", att("my-own-net", hexA, "net-1"), true},
		{"nomad-" + uidA + "-eth0", att("nomad", uidA, "eth0"), true},
		{"net-cnitool-77383ca0a0715733ca6f-eth0", att("net", "cnitool-77383ca0a0715733ca6f", "eth0"), true},
		{"net-0123456789ab-eth0", att("net", "0123456789ab", "eth0"), true},
		// A nerdctl namespace cannot be told from a part of the network's name.
		{"bridge-default-" + hexA + "-eth0", att("bridge-default", hexA, "eth0"), true},
		// Sixteen characters are no interface name, so only the last can be the ID.
		{"net-" + hexA + "-" + hexB + "-eth0", att("net-"+hexA, hexB, "eth0"), true},
		{"net-0123456789ab-0123456789ac-x", claim.Attachment{}, false}, // or interface "0123456789ac-x"
		{"net-123456789012-eth0", claim.Attachment{}, false},           // a number
		{"net-" + hexA, claim.Attachment{}, false},
		{"-" + hexA + "-eth0", claim.Attachment{}, false},
		{"net-" + hexA + "-", claim.Attachment{}, false},
		{"net-" + hexA + "-abcdefghijklmnop", claim.Attachment{}, false}, // 16 characters
		{"net-" + hexA[:63] + "g-eth0", claim.Attachment{}, false},
		{strings.Repeat("-", 200), claim.Attachment{}, false},
		{"", claim.Attachment{}, false},
	} {
		got, ok := splitName(tc.name)
		if ok != tc.ok || got != tc.want && tc.ok {
			t.Errorf("splitName(%q) = %+v, %v; want %+v, %v", tc.name, got, ok, tc.want, tc.ok)
		}
	}
}

func FuzzCache(f *testing.F) {
	att := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
	f.Add(nameOf(att), v1(f, att, bridgeList, result100))
	f.Add(nameOf(att), []byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.8/24"}}`))
	f.Add("x", []byte(`{"cniVersion":"0.4.0","ips":[null,{"address":null}],"interfaces":[null]}`))
	f.Add("a-b-c", []byte(`{"kind":"cniCacheV1","containerId":"b","networkName":"a","ifName":"c","config":"e30=","result":{"cniVersion":"1.1.0","interfaces":[null]}}`))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		memo := confMemo{}
		r := parse(name, content, memo)
		if again := parse(name, content, memo); !cmp.Equal(r, again, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			t.Fatal("two readings of the same bytes differ (I10)")
		}
		if (r.Problem == "") != (r.Cache != nil) {
			t.Fatalf("an entry is understood or it has a problem: %+v", r)
		}
		if strings.ContainsFunc(r.Problem, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("problem %q is not printable", r.Problem)
		}
		if r.Owner.Shape == claim.ShapeContainer && strings.ContainsAny(r.Owner.ID+r.Owner.IfName+r.Network, "/\x00\n ") {
			t.Fatalf("an owner that is unfit for a path: %+v", r.Owner)
		}
		if r.Problem == "" && r.Network+"-"+r.Owner.ID+"-"+r.Owner.IfName != name {
			t.Fatalf("owner %+v of network %q under the name %q", r.Owner, r.Network, name)
		}
		if r.Cache != nil {
			for _, a := range r.Cache.Addrs {
				if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
					t.Fatalf("address %v", a)
				}
			}
		}
	})
}
