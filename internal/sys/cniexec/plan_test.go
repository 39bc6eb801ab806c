package cniexec

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	hexA = "aaaa567890123456789012345678901234567890123456789012345678901234"
	uidA = "3f0a2b1c-0000-4000-8000-a1b2c3d4e5f6"
)

const chain = `{"cniVersion":"1.0.0","name":"cbr0","plugins":[
 {"type":"bridge","bridge":"cni0","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true},"IPAM":{"type":"host-local"},"snat":true},
 {"type":"firewall"},
 {"type":"tuning"},
 {"type":"bandwidth","capabilities":{"bandwidth":true},"ingressRate":12345678901234567}]}`

const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/x"}],
 "ips":[{"address":"10.1.0.7/24","interface":0},{"address":"fd00::7/64","interface":0}]}`

func podArgs(id string) [][2]string {
	return [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart-0"}, {"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", uidA}}
}

type edit func(map[string]any)

func set(key string, val any) edit { return func(m map[string]any) { m[key] = val } }

// entry builds a cache entry of network cbr0, container hexA, interface eth0.
func entry(t testing.TB, config string, edits ...edit) []byte {
	t.Helper()
	m := map[string]any{
		"kind": "cniCacheV1", "containerId": hexA, "ifName": "eth0", "networkName": "cbr0",
		"config": []byte(config), "cniArgs": podArgs(hexA), "result": json.RawMessage(result),
		"capabilityArgs": map[string]any{"portMappings": []any{map[string]any{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp"}}, "dns": "x"},
	}
	for _, f := range edits {
		f(m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func steps(calls []Call) []string {
	var out []string
	for _, c := range calls {
		out = append(out, string(c.Step)+" "+c.Plugin)
	}
	return out
}

func TestPlan(t *testing.T) {
	calls, skipped, err := Plan(entry(t, chain), false)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"DEL bandwidth", "DEL tuning", "DEL firewall", "DEL portmap", "masquerade bridge"}, steps(calls)); d != "" {
		t.Errorf("steps, -want +got:\n%s", d)
	}
	if d := cmp.Diff([]Skipped{{"bridge", "does nothing without a network namespace"}}, skipped); d != "" {
		t.Errorf("skipped, -want +got:\n%s", d)
	}
	for _, c := range calls {
		if want := (claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}); c.Attachment != want {
			t.Errorf("%s: attachment %+v", c.Plugin, c.Attachment)
		}
		// Only firewall deletes by address, and it names every one.
		var want []netip.Addr
		if c.Plugin == "firewall" {
			want = []netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00::7")}
		}
		if d := cmp.Diff(want, c.ByAddress, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s: ByAddress -want +got:\n%s", c.Plugin, d)
		}
	}

	portmap := calls[3]
	var got map[string]any
	if err := json.Unmarshal(portmap.Stdin, &got); err != nil {
		t.Fatal(err)
	}
	if ips := got["prevResult"].(map[string]any)["ips"].([]any); len(ips) != 2 {
		t.Errorf("prevResult.ips = %v", ips)
	}
	delete(got, "prevResult")
	want := map[string]any{
		"type": "portmap", "name": "cbr0", "cniVersion": "1.0.0", "snat": true,
		"capabilities":  map[string]any{"portMappings": true},
		"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"HostPort": 8080.0, "ContainerPort": 80.0, "Protocol": "tcp"}}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("portmap's configuration, -want +got:\n%s", d)
	}
	if want := "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=" + hexA + ";K8S_POD_UID=" + uidA; portmap.args != want {
		t.Errorf("CNI_ARGS = %q", portmap.args)
	}
	if d := cmp.Diff([]string{"10.1.0.7/24", "fd00::7/64"}, []string{calls[4].nets[0].String(), calls[4].nets[1].String()}); d != "" {
		t.Errorf("masquerade's addresses: %s", d)
	}
}

func TestPlanTable(t *testing.T) {
	list := func(plugins string) string { return `{"cniVersion":"1.0.0","name":"cbr0","plugins":[` + plugins + `]}` }
	for _, tc := range []struct {
		what  string
		entry []byte
		want  []string
		why   string // part of one reason to skip
	}{
		{"single configuration", entry(t, `{"cniVersion":"0.4.0","name":"cbr0","type":"ptp","ipMasq":true,"ipam":{"type":"host-local"}}`), []string{"masquerade ptp"}, ""},
		{"no ipMasq", entry(t, list(`{"type":"bridge","ipam":{"type":"host-local"}}`)), nil, "without a network namespace"},
		{"ipMasq without IPAM makes no rule", entry(t, list(`{"type":"bridge","ipMasq":true}`)), nil, "without a network namespace"},
		{"macspoofchk", entry(t, list(`{"type":"bridge","macspoofchk":true,"ipam":{"type":"host-local"}}`)), nil, "macspoofchk"},
		{"masquerade without addresses", entry(t, list(`{"type":"bridge","ipMasq":true,"ipam":{"type":"x"}}`), set("result", nil)), nil, "no address"},
		{"firewall without addresses", entry(t, list(`{"type":"firewall"}`), set("result", json.RawMessage(`{"cniVersion":"1.0.0"}`))), nil, "no"},
		{"firewall of a version that gives DEL no result", entry(t, `{"cniVersion":"0.3.1","name":"cbr0","plugins":[{"type":"firewall"}]}`), nil, "by address"},
		{"no port mappings asked for", entry(t, chainOf("portmap"), set("capabilityArgs", nil)), nil, "no port mappings"},
		{"port mappings null", entry(t, chainOf("portmap"), set("capabilityArgs", map[string]any{"portMappings": nil})), nil, "no port mappings"},
		{"portMappings not declared", entry(t, list(`{"type":"portmap"}`)), nil, "no port mappings"},
		{"flannel", entry(t, list(`{"type":"flannel"},{"type":"bandwidth"}`)), []string{"DEL bandwidth"}, "delegates"},
		{"delegate in a plugin of the list", entry(t, list(`{"type":"tuning","Delegate":{"ipam":{"type":"host-local"}}}`)), nil, "delegates"},
		{"host-local as a plugin", entry(t, list(`{"type":"host-local"}`)), nil, "IPAM"},
		{"macvlan", entry(t, list(`{"type":"macvlan"},{"type":"tuning"}`)), []string{"DEL tuning"}, "by name"},
		{"unknown", entry(t, list(`{"type":"cilium-cni"}`)), nil, "not known"},
		{"a path as a type", entry(t, list(`{"type":"../portmap"}`)), nil, "not known"},
		{"another case is another plugin", entry(t, list(`{"type":"Portmap"}`)), nil, "not known"},

		{"podman 4: only a name", entry(t, chain, set("cniArgs", [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web"}})), nil, "no Pod"},
		{"podman 3: the name twice, no UID", entry(t, chain, set("cniArgs", [][2]string{{"K8S_POD_NAMESPACE", "web"}, {"K8S_POD_NAME", "web"}, {"K8S_POD_INFRA_CONTAINER_ID", hexA}, {"K8S_POD_UID", ""}})), nil, "podman 3"},
		{"another sandbox in the arguments", entry(t, chain, set("cniArgs", podArgs(strings.Repeat("b", 64)))), nil, "another sandbox"},
		{"no arguments", entry(t, chain, set("cniArgs", nil)), nil, "no Pod"},
		{"Nomad", entry(t, chain, set("containerId", uidA), set("cniArgs", podArgs(uidA))), nil, "Nomad"},
		{"nerdctl", entry(t, chain, set("containerId", "default-"+hexA), set("cniArgs", podArgs("default-"+hexA))), nil, "nerdctl"},
		{"cnitool", entry(t, chain, set("containerId", "cnitool-77383ca0a0715733ca6f")), nil, "no Pod|another sandbox"},
		{"a person's ID", entry(t, chain, set("containerId", "reserved-vip"), set("cniArgs", podArgs("reserved-vip"))), nil, "unknown shape"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			calls, skipped, err := Plan(tc.entry, false)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, steps(calls), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("steps, -want +got:\n%s", d)
			}
			found := tc.why == ""
			for _, s := range skipped {
				for _, part := range strings.Split(tc.why, "|") {
					found = found || strings.Contains(s.Why, part)
				}
			}
			if !found {
				t.Errorf("skipped = %+v, want a reason with %q", skipped, tc.why)
			}
		})
	}
}

func chainOf(typ string) string {
	return `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"` + typ + `","capabilities":{"portMappings":true}}]}`
}

func TestPlanHeedsTheCaller(t *testing.T) {
	if calls, skipped, err := Plan(entry(t, chain), true); err != nil || len(calls) != 0 || len(skipped) != 5 {
		t.Errorf("Plan = %v, %v, %v", steps(calls), skipped, err)
	}
}

func TestPlanErrors(t *testing.T) {
	for what, content := range map[string][]byte{
		"empty":                   nil,
		"cut off":                 entry(t, chain)[:300],
		"bare result":             []byte(result),
		"no configuration":        entry(t, ""),
		"broken configuration":    entry(t, "{"),
		"configuration is a list": entry(t, "[]"),
		"no plugins":              entry(t, `{"cniVersion":"1.0.0","name":"cbr0","plugins":[]}`),
		"another network":         entry(t, strings.Replace(chain, `"cbr0"`, `"cbr1"`, 1)),
		"path in the ID":          entry(t, chain, set("containerId", "../x")),
		"path in the network":     entry(t, strings.Replace(chain, "cbr0", "../x", 1), set("networkName", "../x")),
		"interface":               entry(t, chain, set("ifName", "a/b")),
		"NUL in an argument":      entry(t, chain, set("cniArgs", append(podArgs(hexA), [2]string{"A", "\x00"}))),
		"huge arguments":          entry(t, chain, set("cniArgs", append(podArgs(hexA), [2]string{"A", strings.Repeat("x", 70<<10)}))),
		"broken result":           entry(t, chain, set("result", json.RawMessage(`{"cniVersion":"9.9.9"}`))),
		"null in the result":      entry(t, chain, set("result", json.RawMessage(`{"cniVersion":"1.0.0","ips":[null]}`))),
	} {
		calls, _, err := Plan(content, false)
		if !errors.Is(err, ErrEntry) || len(calls) != 0 {
			t.Errorf("%s: Plan = %v, %v; want ErrEntry", what, steps(calls), err)
		}
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%s: error %q is not printable", what, err)
		}
	}
}

func TestReusableOwner(t *testing.T) {
	if got, why := ReusableOwner(entry(t, chain)); got || why != "" {
		t.Errorf("a Pod sandbox: %v, %q", got, why)
	}
	if got, why := ReusableOwner([]byte("{")); !got || why == "" {
		t.Errorf("unreadable: %v, %q", got, why)
	}
	// cri-dockerd writes no UID.
	args := [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart-0"}, {"K8S_POD_INFRA_CONTAINER_ID", hexA}}
	if got, why := ReusableOwner(entry(t, chain, set("cniArgs", args))); got {
		t.Errorf("cri-dockerd: %q", why)
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(entry(f, chain))
	f.Add(entry(f, `{"cniVersion":"0.2.0","name":"cbr0","type":"portmap","runtimeConfig":{"portMappings":[]}}`, set("result", json.RawMessage(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}`))))
	f.Add(entry(f, `{"cniVersion":"1.1.0","name":"cbr0","plugins":[{"type":"tuning","ipAM":{"type":"host-local"},"PREVRESULT":{}}]}`, set("result", json.RawMessage(`{"cniVersion":"0.4.0","ips":[null],"routes":[null]}`))))
	f.Fuzz(func(t *testing.T, content []byte) {
		calls, skipped, err := Plan(content, false)
		if err != nil {
			if !errors.Is(err, ErrEntry) || len(calls)+len(skipped) > 0 {
				t.Fatalf("Plan = %v, %v, %v", calls, skipped, err)
			}
			return
		}
		if reusable, _ := ReusableOwner(content); reusable && len(calls) > 0 {
			t.Fatalf("calls for an ID that may be used again: %v", steps(calls))
		}
		for _, c := range calls {
			checkCall(t, c)
		}
	})
}

// FuzzPlanConfig varies the configuration in an entry that is sound otherwise.
func FuzzPlanConfig(f *testing.F) {
	f.Add([]byte(chain), []byte(result))
	f.Add([]byte(`{"name":"cbr0","cniVersion":"1.0.0","type":"tuning","ip\u0061m":{},"\u017fnat":1}`), []byte(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.1/24","interface":9}]}`))
	f.Add([]byte(`{"name":"cbr0","cniVersion":"0.4.0","plugins":[{"type":"firewall"}]}`), []byte(`{"cniVersion":"1.1.0","ips":[{"address":"::ffff:10.0.0.1/120"}],"routes":[{"dst":"0.0.0.0/0"}]}`))
	f.Fuzz(func(t *testing.T, config, res []byte) {
		if !json.Valid(res) {
			res = nil
		}
		edits := []edit{}
		if res != nil {
			edits = append(edits, set("result", json.RawMessage(res)))
		}
		calls, _, err := Plan(entry(t, string(config), edits...), false)
		if err != nil && !errors.Is(err, ErrEntry) {
			t.Fatal(err)
		}
		for _, c := range calls {
			checkCall(t, c)
		}
	})
}

// checkCall holds what every call must, whatever the entry: no IPAM, no delegate, a
// plugin of the list, nothing that an environment cannot hold.
func checkCall(t *testing.T, c Call) {
	t.Helper()
	switch c.Step {
	case StepMasquerade:
		if c.Plugin != "bridge" && c.Plugin != "ptp" || len(c.nets) == 0 {
			t.Fatalf("masquerade of %q", c.Plugin)
		}
		return
	case StepDEL:
	default:
		t.Fatalf("step %q", c.Step)
	}
	switch c.Plugin {
	case "portmap", "bandwidth", "tuning":
		if len(c.ByAddress) != 0 {
			t.Fatalf("%s deletes by address", c.Plugin)
		}
	case "firewall":
		if len(c.ByAddress) == 0 {
			t.Fatal("firewall without ByAddress")
		}
	default:
		t.Fatalf("plugin %q", c.Plugin)
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		t.Fatal(err)
	}
	if hasFold(conf, "ipam") || hasFold(conf, "delegate") {
		t.Fatalf("configuration %s", c.Stdin)
	}
	// As a plugin would read it.
	var read struct {
		Name string `json:"name"`
		IPAM any    `json:"ipam"`
	}
	if err := json.Unmarshal(c.Stdin, &read); err != nil || read.IPAM != nil || read.Name != c.Attachment.Network {
		t.Fatalf("configuration %s: %v", c.Stdin, err)
	}
	if strings.ContainsRune(c.args+c.Attachment.ContainerID+c.Attachment.IfName, 0) {
		t.Fatal("NUL in the environment")
	}
}
