package allocator

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	upstream "github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/google/go-cmp/cmp"
)

// The judge is the loader of the plugins module itself.

// asUpstream runs it; panicked tells that a null was among the requested addresses.
func asUpstream(conf []byte, envArgs string) (c *IPAMConfig, version string, panicked bool, err error) {
	defer func() { panicked = recover() != nil }()
	u, version, err := upstream.LoadIPAMConfig(conf, envArgs)
	if err != nil {
		return nil, version, false, err
	}
	c = &IPAMConfig{Name: u.Name, Type: u.Type, Routes: u.Routes, DataDir: u.DataDir, ResolvConf: u.ResolvConf, IPArgs: u.IPArgs}
	if u.Range != nil {
		c.Range = new(Range(*u.Range))
	}
	for _, set := range u.Ranges {
		var s RangeSet
		for _, r := range set {
			s = append(s, Range(r))
		}
		c.Ranges = append(c.Ranges, s)
	}
	return c, version, false, nil
}

// judge compares, and returns what was loaded, nil if it was refused.
func judge(t *testing.T, conf []byte, envArgs string) *IPAMConfig {
	t.Helper()
	if n, ok := plain(conf); ok {
		var want Net
		err := json.Unmarshal(conf, &want)
		if d := cmp.Diff(want, n); err != nil || d != "" {
			t.Errorf("%s, read as a plain one: %v\n%s", conf, err, d)
		}
	}
	want, wantVersion, panicked, wantErr := asUpstream(conf, envArgs)
	got, version, err := LoadIPAMConfig(conf, envArgs)
	if panicked {
		if !errors.As(err, new(*NullError)) {
			t.Errorf("%q, %s: %v, where host-local panics", envArgs, conf, err)
		}
		return nil
	}
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || version != wantVersion {
		t.Errorf("%q, %s:\n     %q, %v\nwant %q, %v", envArgs, conf, version, err, wantVersion, wantErr)
	}
	if err != nil || wantErr != nil {
		return nil
	}
	loaded := *got
	loaded.Own = Own{}
	if d := cmp.Diff(want, &loaded); d != "" {
		t.Errorf("%q, %s:\n%s", envArgs, conf, d)
	}
	return got
}

// judgeRanges compares what the ranges contain.
func judgeRanges(t *testing.T, c *IPAMConfig, probes []net.IP) {
	t.Helper()
	for i := range c.Ranges {
		var set upstream.RangeSet
		for _, r := range c.Ranges[i] {
			set = append(set, upstream.Range(r))
			probes = append(probes, r.RangeStart, r.RangeEnd, r.Subnet.IP, r.Gateway, next(r.RangeEnd), r.RangeStart.To16())
		}
		if got, want := c.Ranges[i].String(), set.String(); got != want {
			t.Errorf("set is %s, want %s", got, want)
		}
		for _, addr := range append(probes, nil) {
			want, wantErr := set.RangeFor(addr)
			got, err := c.Ranges[i].RangeFor(addr)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || got != nil && want != nil && got.String() != want.String() || c.Ranges[i].Contains(addr) != set.Contains(addr) {
				t.Errorf("%v in %s: %v, %v, want %v, %v", addr, &c.Ranges[i], got, err, want, wantErr)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	addr := func() string {
		return pick("10.1.0.1", "10.1.0.7", "10.1.0.254", "10.1.0.255", "10.1.1.3", "10.1.2.9", "::ffff:10.1.0.9", "fd00::", "fd00::1", "fd00::ff", "fd00:0:0:1::2", "", "x", "10.1.0.5/24")
	}
	subnet := func() string {
		return pick("10.1.0.0/24", "10.1.0.0/24", "10.1.1.0/25", "10.1.2.0/30", "10.1.2.0/31", "10.1.0.3/24", "0.0.0.0/0", "fd00::/64", "fd00::/120", "fd00:0:0:1::/64", "fd00::/127", "::ffff:10.1.0.0/120", "::/0", "10.1.0.0", "")
	}
	value := func(s string) string {
		return pick(`"`+s+`"`, `"`+s+`"`, `"`+s+`"`, `"`+s+`"`, `"`+s+`"`, `"`+s+`"`, `"`+s+`"`, `"`+s+`"`, "null", "7", `["`+s+`"]`)
	}
	list := func(n int, f func() string) string {
		var all []string
		for range rng.IntN(n + 1) {
			all = append(all, f())
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	keys := func(may ...func() string) string {
		var all []string
		for _, f := range may {
			if rng.IntN(4) == 0 {
				all = append(all, f())
			}
		}
		return strings.Join(all, ", ")
	}
	inRange := func() string {
		s := `"subnet": ` + value(subnet())
		if more := keys(
			func() string { return `"rangeStart": ` + value(addr()) },
			func() string { return `"rangeEnd": ` + value(addr()) },
			func() string { return pick(`"gateway": `, `"GATEWAY": `) + value(addr()) },
		); more != "" {
			s += ", " + more
		}
		return s
	}
	ranges := func() string {
		return list(3, func() string { return list(3, func() string { return "{" + inRange() + "}" }) })
	}
	accepted, simple, refused := 0, 0, map[string]bool{}
	for range 30000 {
		ipam := pick(`"type": "host-local"`, `"type": "holdfast-ipam", "runDir": 7, "heal": {"x": []}`)
		if rng.IntN(4) != 0 {
			ipam += ", " + inRange()
		}
		if more := keys(
			func() string { return `"ranges": ` + ranges() },
			func() string { return `"dataDir": ` + value("/d") },
			func() string { return `"resolvConf": ` + value("/r") },
			func() string {
				return `"routes": ` + list(2, func() string { return `{"dst": ` + value(subnet()) + `, "gw": ` + value(addr()) + `}` })
			},
		); more != "" {
			ipam += ", " + more
		}
		conf := `{"cniVersion": ` + value(pick("1.0.0", "0.2.0", "x")) + `, "name": ` + value("n") + `, "ipam": {` + ipam + `}`
		if more := keys(
			func() string {
				return `"args": {"cni": {"ips": ` + list(2, func() string { return value(addr()) }) + `}}`
			},
			func() string {
				return `"runtimeConfig": {"ips": ` + list(2, func() string { return value(addr()) }) + `, "ipRanges": ` + ranges() + `}`
			},
		); more != "" {
			conf += ", " + more
		}
		env := pick("", "", "", "IP="+addr(), "X=1", "IgnoreUnknown=1;X=1;IP="+addr(), "IP")
		if c := judge(t, []byte(conf+"}"), env); c != nil {
			accepted++
			if _, ok := plain([]byte(conf + "}")); ok {
				simple++
			}
			judgeRanges(t, c, []net.IP{net.ParseIP(addr()), net.ParseIP(addr())})
		} else if _, _, err := LoadIPAMConfig([]byte(conf+"}"), env); err != nil {
			refused[err.Error()] = true
		}
		if t.Failed() {
			return
		}
	}
	// It tries both sides.
	if accepted < 500 || simple < 300 || len(refused) < 100 {
		t.Errorf("%d were accepted, %d of them plain, and %d reasons to refuse were met", accepted, simple, len(refused))
	}
}

func FuzzLoad(f *testing.F) {
	for _, conf := range []string{
		`{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local","subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","routes":[{"dst":"0.0.0.0/0"}]}}`,
		`{"cniVersion":"0.2.0","name":"n","ipam":{"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.1.0/24","gateway":"10.1.1.7"}],[{"subnet":"fd00::/64"}]]},"args":{"cni":{"ips":["10.1.0.4/24",""]}}}`,
		`{"cniVersion":"1.1.0","name":"n","ipam":{"runDir":7},"runtimeConfig":{"ips":[null],"ipRanges":[[{"subnet":"fd00::/120","rangeEnd":"fd00::7"}]]}}`,
		`{"name":"n","IPAM":{"Subnet":"10.1.0.0/24","subnet":"10.2.0.0/31"},"ipam":{"gateway":"::ffff:10.1.0.3","rangeEnd":"fd00::"}}`,
	} {
		f.Add([]byte(conf), "IP=10.1.0.7")
	}
	f.Fuzz(func(t *testing.T, conf []byte, envArgs string) {
		if c := judge(t, conf, envArgs); c != nil {
			judgeRanges(t, c, nil)
		}
	})
}
