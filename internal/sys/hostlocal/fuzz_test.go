package hostlocal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// FuzzConfigLoaders compares with those whose directories these are: what libcni loads
// and host-local accepts is a network of ours too, with the same directory and ranges,
// or there is a finding that says why not. A network is never passed over in silence.
func FuzzConfigLoaders(f *testing.F) {
	for _, s := range []string{
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24","gateway":"10.0.0.9"}],[{"subnet":"fd00::/64"}]]}},{"type":"portmap"}]}`,
		`{"cniVersion":"0.4.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/24","rangeStart":"10.0.0.7","dataDir":"/run//x/"}}`,
		`{"cniVersion":"0.2.0","name":"a.b-c","type":"ptp","IPAM":{"type":"host-local","Subnet":"10.0.0.0/30"}}`,
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","ipam":{"type":"holdfast-ipam","dataDir":"x","ranges":[[{"subnet":"10.0.0.0/8"}]]}}]}`,
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","name":"other","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"10.0.2.0/24","rangeEnd":"10.0.2.9"}]]}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var list *libcni.NetworkConfigList
		if l, err := libcni.NetworkConfFromBytes(data); err == nil {
			list = l
			//lint:ignore SA1019 nodes still have such files, and libcni still loads them
		} else if c, err := libcni.ConfFromBytes(data); err == nil {
			//lint:ignore SA1019 as above
			if list, err = libcni.ConfListFromConf(c); err != nil {
				return
			}
		} else {
			return
		}
		if repeats(data) || utils.ValidateNetworkName(list.Name) != nil || len(list.Plugins) > 8 {
			return
		}
		ours, findings := parseConfig(data, "")
		for _, p := range list.Plugins {
			full, err := libcni.InjectConf(p, map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
			if err != nil {
				continue
			}
			want, _, err := allocator.LoadIPAMConfig(full.Bytes, "")
			if err != nil || !isHostLocal(want.Type) || p.Network.Type == "flannel" {
				continue
			}
			dir := want.DataDir
			if dir == "" {
				dir = DefaultDataDir
			}
			var ranges []claim.Range
			for _, set := range want.Ranges {
				for _, r := range set {
					ranges = append(ranges, rangeOf(r))
				}
			}
			found := slices.ContainsFunc(ours, func(n network) bool {
				return n.name == list.Name && n.dataDir == filepath.Clean(dir) && slices.Equal(n.ranges, ranges)
			})
			if !found && len(findings) == 0 && !fromRuntime(full.Bytes) {
				t.Errorf("host-local keeps %s in %q with %v; ours are %+v", list.Name, dir, ranges, ours)
			}
		}
	})
}

// repeats reports whether an object in data has a key twice, but for case. Which of the
// two counts differs from reader to reader, also between libcni and host-local.
func repeats(data []byte) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	type level struct {
		keys map[string]bool // nil in a list
		key  bool            // the next token is a key
	}
	stack := []level{{}}
	for {
		tok, err := d.Token()
		if err != nil {
			return false
		}
		top := &stack[len(stack)-1]
		if s, ok := tok.(string); ok && top.keys != nil && top.key {
			s = strings.ToLower(strings.ToUpper(s))
			if top.keys[s] {
				return true
			}
			top.keys[s], top.key = true, false
			continue
		}
		switch tok {
		case json.Delim('{'):
			top.key = true
			stack = append(stack, level{keys: map[string]bool{}, key: true})
		case json.Delim('['):
			top.key = true
			stack = append(stack, level{})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:len(stack)-1]
		default:
			top.key = true
		}
	}
}

// fromRuntime: ranges that a runtime adds to a call stand in no file; in one, they are
// somebody's joke.
func fromRuntime(config []byte) bool {
	return bytes.Contains(bytes.ToLower(config), []byte("ipranges"))
}

func rangeOf(r allocator.Range) claim.Range {
	addr := func(ip net.IP) netip.Addr {
		a, _ := netip.AddrFromSlice(ip)
		return a.Unmap()
	}
	return claim.Range{First: addr(r.RangeStart), Last: addr(r.RangeEnd), Gateway: addr(r.Gateway)}
}

// FuzzRange compares with host-local's own reading of a range.
func FuzzRange(f *testing.F) {
	f.Add("10.1.0.0/24", "", "", "")
	f.Add("10.1.0.0/16", "10.1.2.0", "10.1.2.255", "10.1.0.254")
	f.Add("fd00::/64", "fd00::5", "", "fd00::ffff")
	f.Add("10.1.0.0/31", "", "", "")
	f.Add("10.1.0.1/24", "", "", "")
	f.Add("::ffff:10.1.0.0/120", "::ffff:10.1.0.5", "10.1.0.7", "")
	f.Add("0.0.0.0/0", "255.255.255.255", "", "")
	f.Add("fe80::/64", "fe80::1%eth0", "", "")
	f.Fuzz(func(t *testing.T, subnet, start, end, gateway string) {
		got, err := rangeText{subnet, start, end, gateway}.resolve()
		if err == nil {
			if !got.First.IsValid() || !got.Last.IsValid() || got.First.Compare(got.Last) > 0 || !got.Contains(got.First) || !got.Contains(got.Last) {
				t.Fatalf("range %+v", got)
			}
			if c := Capacity([]claim.Range{got}); c > maxCapacity || Capacity([]claim.Range{got, got}) != c {
				t.Fatalf("capacity %d of %+v, another one of it twice", c, got)
			}
		} else if !isPlain(err.Error()) {
			t.Fatalf("%q is not fit for a terminal", err)
		}
		var r allocator.Range
		_, ipnet, perr := net.ParseCIDR(subnet)
		if perr != nil {
			if err == nil {
				t.Fatalf("%q is no subnet for host-local", subnet)
			}
			return
		}
		ip, _, _ := net.ParseCIDR(subnet)
		r.Subnet = types.IPNet{IP: ip, Mask: ipnet.Mask}
		for _, x := range []struct {
			text string
			into *net.IP
		}{{start, &r.RangeStart}, {end, &r.RangeEnd}, {gateway, &r.Gateway}} {
			if x.text == "" {
				continue
			}
			if *x.into = net.ParseIP(x.text); *x.into == nil {
				if err == nil {
					t.Fatalf("%q is no address for host-local", x.text)
				}
				return
			}
		}
		switch rerr := r.Canonicalize(); {
		case rerr == nil && err == nil:
			if want := rangeOf(r); got != want {
				t.Fatalf("resolve(%q, %q, %q, %q) = %+v, host-local has %+v", subnet, start, end, gateway, got, want)
			}
		case (rerr == nil) != (err == nil):
			t.Fatalf("resolve(%q, %q, %q, %q): %v, host-local: %v", subnet, start, end, gateway, err, rerr)
		}
	})
}

// FuzzSubnetEnv compares flannel's file with a plain reading of it, key by key.
func FuzzSubnetEnv(f *testing.F) {
	f.Add([]byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"))
	f.Add([]byte("FLANNEL_IPV6_SUBNET=fd00::1/64, fd01::1/80\r\nFLANNEL_SUBNET="))
	f.Add(bytes.Repeat([]byte("FLANNEL_SUBNET=10.0.0.1/24\n"), maxRanges+9))
	f.Add([]byte("FLANNEL_SUBNET=10.0.0.1/32\nFLANNEL_SUBNET=10.0.0.1/24,x,10.1.0.1/24"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		got := parseSubnetEnv(data)
		if len(got) > maxRanges {
			t.Fatalf("%d ranges", len(got))
		}
		for _, r := range got {
			// Every range is that of a subnet which stands in the file, by its gateway.
			if !r.First.IsValid() || r.First != r.Gateway || r.First.Compare(r.Last) > 0 || r.First.Zone() != "" {
				t.Fatalf("range %+v of %q", r, data)
			}
		}
		// A file says the same with each line for itself, and with lines of others between.
		var parts []claim.Range
		for line := range bytes.Lines(data) {
			parts = append(parts, parseSubnetEnv(append([]byte("FLANNEL_MTU=1\n"), line...))...)
		}
		if !slices.Equal(got, parts[:min(len(parts), maxRanges)]) {
			t.Fatalf("%v, line by line %v", got, parts)
		}
	})
}

// FuzzLocks: a PID is named only where a line of a flock with that inode names it, and a
// line as the kernel writes it is read, whatever stands around it.
func FuzzLocks(f *testing.F) {
	f.Add("1: FLOCK  ADVISORY  WRITE 4242 fe:00:1835016 0 EOF\n", uint32(0xfe), uint32(0), uint64(1835016), int32(4242))
	f.Add("2: -> FLOCK  ADVISORY  WRITE 7 fe:00:1835016 0 EOF\n3: POSIX  ADVISORY  READ 8 fe:00:1835016 0 EOF\n", uint32(0xfe), uint32(1), uint64(1835016), int32(9))
	f.Add("4: FLOCK ADVISORY WRITE -1 00:1a:5 0 EOF\n5: FLOCK ADVISORY WRITE 99999999999999999999 0:1a:5 0 EOF", uint32(0), uint32(0x1a), uint64(5), int32(1))
	f.Fuzz(func(t *testing.T, text string, major, minor uint32, ino uint64, pid int32) {
		exact, maybe := parseLocks(text, major, minor, ino)
		for _, p := range append(slices.Clone(exact), maybe...) {
			if p <= 0 || !strings.Contains(text, fmt.Sprint(p)) {
				t.Fatalf("PID %d of %q", p, text)
			}
		}
		if pid <= 0 {
			return
		}
		// fs/locks.c: lock_get_status.
		line := fmt.Sprintf("%d: %-6s %-10s%-6s%d %02x:%02x:%d 0 EOF\n", 1, "FLOCK", "ADVISORY  ", "WRITE ", pid, major, minor, ino)
		more, others := parseLocks(text+"\n"+line, major, minor, ino)
		if !slices.Equal(more, append(slices.Clone(exact), int(pid))) || !slices.Equal(others, maybe) {
			t.Fatalf("with %q: %v, %v", line, more, others)
		}
		if waits, _ := parseLocks(strings.Replace(line, "FLOCK", "-> FLOCK", 1), major, minor, ino); len(waits) > 0 {
			t.Fatalf("PID %v waits and is said to hold", waits)
		}
		for _, kind := range []string{"POSIX ", "OFDLCK", "LEASE "} {
			if e, m := parseLocks(strings.Replace(line, "FLOCK ", kind, 1), major, minor, ino); len(e)+len(m) > 0 {
				t.Fatalf("a lock of the kind %s is taken for a flock: %v, %v", kind, e, m)
			}
		}
		if e, m := parseLocks(line, major^1, minor, ino); len(e) > 0 || !slices.Equal(m, []int{int(pid)}) {
			t.Fatalf("on another device: %v, %v", e, m)
		}
	})
}

// FuzzReleaseID: what passes for a release ID is the name of one file in the quarantine
// and nothing else.
func FuzzReleaseID(f *testing.F) {
	for _, s := range []string{"20261130-062137-1a2b3c-00001", ".", "..", "../x", "a/b", "", "-rf", "a\n", "a\x00", strings.Repeat("a", 128), strings.Repeat("a", 129)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !isReleaseID(s) {
			return
		}
		if !filepath.IsLocal(s) || filepath.Base(s) != s || filepath.Clean(s) != s || s[0] == '.' || s[0] == '-' || len(s) > 255 || !isPlain(s) {
			t.Errorf("%q is more than a name", s)
		}
	})
}
