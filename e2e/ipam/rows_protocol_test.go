package ipam

import (
	"fmt"
	"strings"
)

// What most rows use.
const (
	slash24 = `"subnet": "198.18.0.0/24"`
	slash29 = `"subnet": "198.18.0.0/29"`
	dual    = `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "2001:db8::/64"}]]`
	twoSets = `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "198.18.1.0/24"}]]`
)

// versions are all that host-local speaks.
func versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// versionRows: the result has the version's form, and so has what follows.
func versionRows() []row {
	const network = dual + `, "resolvConf": "${DATA}/resolv.conf",
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "198.18.0.9"}, {"dst": "::/0", "gw": "2001:db8::9"}]`
	var out []row
	for _, v := range append(versions(), "-") {
		shown, family4, family6 := v, "", ""
		switch {
		case v == "-":
			shown = "0.1.0"
		case strings.HasPrefix(v, "0."):
			family4, family6 = `"version": "4", `, `"version": "6", `
		}
		want := fmt.Sprintf(`{"cniVersion": %q,
			"ips": [{%s"address": "198.18.0.2/24", "gateway": "198.18.0.1"}, {%s"address": "2001:db8::2/64", "gateway": "2001:db8::1"}],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "198.18.0.9"}, {"dst": "::/0", "gw": "2001:db8::9"}],
			"dns": {"nameservers": ["192.0.2.3"]}}`, shown, family4, family6)
		if shown < "0.3" {
			want = fmt.Sprintf(`{"cniVersion": %q,
				"ip4": {"ip": "198.18.0.2/24", "gateway": "198.18.0.1", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "198.18.0.9"}]},
				"ip6": {"ip": "2001:db8::2/64", "gateway": "2001:db8::1", "routes": [{"dst": "::/0", "gw": "2001:db8::9"}]},
				"dns": {"nameservers": ["192.0.2.3"]}}`, shown)
		}
		checked := check("a")
		if shown < "0.4" {
			checked = check("a", failsWith(1, "config version does not allow CHECK", ""))
		}
		collected, status := gc([]string{"a"}), do("STATUS", "")
		if shown < "1.1" {
			collected = gc(nil, failsWith(1, "config version does not allow GC", ""))
			status = do("STATUS", "", failsWith(1, "config version does not allow STATUS", ""))
		}
		out = append(out, row{
			name: "version " + v, config: config{version: v, ipam: network},
			steps: []step{
				file("${DATA}/resolv.conf", "nameserver 192.0.2.3\n"),
				add("a", prints(want), warns("Error retrieving last reserved ip", false)),
				reserved("198.18.0.2 a/eth0", "2001:db8::2 a/eth0"),
				checked, collected, status,
				reserved("198.18.0.2 a/eth0", "2001:db8::2 a/eth0"),
				del("a", silent()), reserved(),
			},
		})
	}
	for _, v := range []string{"0.1.0", "0.2.0", "-"} {
		shown := strings.TrimPrefix(v, "-")
		out = append(out, row{
			name: "two addresses of a family in version " + v, config: config{version: v, ipam: twoSets},
			steps: []step{
				add("a", fails("CNI version "+shown+" does not support more than 1 address per family")),
				add("a", ipam(`"ranges": [[{"subnet": "2001:db8::/64"}], [{"subnet": "2001:db8:1::/64"}]]`), fails("CNI version "+shown+" does not support more than 1 address per family")),
				reserved(),
			},
		})
	}
	return append(out,
		row{
			name: "two addresses of a family in version 0.3.0", config: config{version: "0.3.0", ipam: twoSets},
			steps: []step{add("a", gives("198.18.0.2/24 via 198.18.0.1", "198.18.1.2/24 via 198.18.1.1"))},
		},
		row{
			name: "an unknown version", config: config{version: "1.2.0", ipam: slash24},
			steps: []step{
				add("a", failsWith(1, "incompatible CNI versions", `config is "1.2.0", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`)),
				reserved(),
			},
		},
		row{
			name: "VERSION", steps: []step{
				do("VERSION", "", stdin(" "), prints(`{"cniVersion": "1.1.0", "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}`)),
				// Older runtimes send a configuration.
				do("VERSION", "", prints(`{"cniVersion": "1.1.0", "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}`)),
			},
		},
		row{
			name: "no command: says what it is", steps: []step{
				do("", "", silent(), warns("CNI plugin ${TYPE}", false), warns("CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0", true)),
			},
		},
	)
}

// environmentRows: the variables, and what of stdin is read before the network is known.
func environmentRows() []row {
	missing := func(names string) opt {
		return failsWith(4, "required env variables ["+names+"] missing", "")
	}
	return []row{
		{name: "missing variables of ADD", config: config{ipam: slash24}, steps: []step{
			add("a", without("CNI_CONTAINERID"), missing("CNI_CONTAINERID")),
			add("a", without("CNI_NETNS"), missing("CNI_NETNS")),
			add("a", without("CNI_IFNAME"), missing("CNI_IFNAME")),
			add("a", without("CNI_PATH"), missing("CNI_PATH")),
			add("", netns(""), missing("CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME")),
			reserved(),
		}},
		{name: "missing variables of DEL", config: config{ipam: slash24}, steps: []step{
			add("a"),
			del("a", without("CNI_CONTAINERID"), missing("CNI_CONTAINERID")),
			del("a", without("CNI_IFNAME"), missing("CNI_IFNAME")),
			del("a", without("CNI_PATH"), missing("CNI_PATH")),
			reserved("198.18.0.2 a/eth0"),
			del("a", without("CNI_NETNS"), silent()), reserved(),
		}},
		{name: "missing variables of CHECK", config: config{ipam: slash24}, steps: []step{
			add("a"),
			check("a", without("CNI_CONTAINERID"), missing("CNI_CONTAINERID")),
			check("a", without("CNI_NETNS"), missing("CNI_NETNS")),
			check("a", without("CNI_IFNAME"), missing("CNI_IFNAME")),
		}},
		{name: "missing variables of GC and STATUS", config: config{ipam: slash24}, steps: []step{
			gc(nil, without("CNI_PATH"), missing("CNI_PATH")),
			do("STATUS", "", without("CNI_PATH"), missing("CNI_PATH")),
		}},
		{name: "an unknown command", config: config{ipam: slash24}, steps: []step{
			do("UPDATE", "a", failsWith(4, "unknown CNI_COMMAND: UPDATE", "")),
			do("add", "a", failsWith(4, "unknown CNI_COMMAND: add", "")),
		}},
		{name: "container IDs", config: config{ipam: slash24}, steps: []step{
			add("", container("a b", "eth0"), failsWith(4, "invalid characters in containerID", "a b")),
			add("", container("../a", "eth0"), failsWith(4, "invalid characters in containerID", "../a")),
			add("", container("-a", "eth0"), failsWith(4, "invalid characters in containerID", "-a")),
			add("", container("A.b_c-9", "eth0")),
			reserved("198.18.0.2 A.b_c-9/eth0"),
		}},
		{name: "interface names", config: config{ipam: slash24}, steps: []step{
			add("", container("a", "sixteen-letters-"), failsWith(4, "interface name is too long", "interface name should be less than 16 characters")),
			add("", container("a", ".."), failsWith(4, "interface name is . or ..", "")),
			add("", container("a", "a/b"), failsWith(4, "interface name contains / or : or whitespace characters", "")),
			add("", container("a", "a:b"), failsWith(4, "interface name contains / or : or whitespace characters", "")),
			add("", container("a", "a b"), failsWith(4, "interface name contains / or : or whitespace characters", "")),
			add("", container("a", "fifteen-letters")), add("", container("a", "é0")),
			reserved("198.18.0.2 a/fifteen-letters", "198.18.0.3 a/é0"),
		}},
		{name: "a network namespace that is the plugin's own", config: config{ipam: slash24}, steps: []step{
			// The library looks after the fact. What becomes of the reservation is not promised.
			add("a", netns("/proc/self/ns/net"), looks(func(s *site, r reply) {
				const want = "plugin's netns and netns from CNI_NETNS should not be the same"
				if r.exit != 1 || !strings.Contains(r.stdout, want) {
					s.t.Errorf("exit %d, want 1 and %q", r.exit, want)
				}
			})),
			del("a", netns("")), reserved(),
		}},
		{name: "broken JSON", config: config{ipam: slash24}, steps: []step{
			add("a", stdin(`{"cniVersion": "1.1.0", "name": "net", `), failsLike(6, "error unmarshall network config: ")),
			add("a", stdin(`[]`), failsLike(6, "error unmarshall network config: ")),
			del("a", stdin(`{`), failsLike(6, "error unmarshall network config: ")),
			add("a", stdin(" "), failsLike(6, "error unmarshall network config: ")),
		}},
		{name: "network names", config: config{ipam: slash24}, steps: []step{
			add("a", stdin(`{"cniVersion": "1.1.0", "ipam": {"subnet": "198.18.0.0/24"}}`), failsWith(7, "missing network name", "")),
			add("a", networkName("../net"), failsWith(7, "invalid characters found in network name", "../net")),
			add("a", networkName("a/b"), failsWith(7, "invalid characters found in network name", "a/b")),
			add("a", networkName("a b"), failsWith(7, "invalid characters found in network name", "a b")),
			add("a", networkName(".."), failsWith(7, "invalid characters found in network name", "..")),
			add("a", networkName("A.b_c-9")),
			contains("${DATA}/A.b_c-9/198.18.0.2", "a\r\neth0"),
		}},
		{name: "a network of one name does not see another", config: config{ipam: slash24}, steps: []step{
			add("a", gives("198.18.0.2/24")), add("a", networkName("net2"), gives("198.18.0.2/24")),
			del("a"), reserved(),
			contains("${DATA}/net2/198.18.0.2", "a\r\neth0"),
		}},
	}
}

// configErrorRows: what a configuration can have wrong, with the text. DEL reads the
// same configuration and says the same.
func configErrorRows() []row {
	const notIP = "IP <nil> not v4 nor v6"
	var out []row
	for _, c := range []struct{ name, ipam, want string }{
		{"no range", `"dns": {}`, "no IP ranges specified"},
		{"an empty list of sets", `"ranges": []`, "no IP ranges specified"},
		{"a start without a subnet", `"rangeStart": "198.18.0.5"`, "no IP ranges specified"},
		{"an empty set", `"ranges": [[]]`, "invalid range set 0: empty range set"},
		{"an empty second set", `"ranges": [[{"subnet": "198.18.0.0/24"}], []]`, "invalid range set 1: empty range set"},
		{"a range without a subnet", `"ranges": [[{"rangeStart": "198.18.0.5"}]]`, "invalid range set 0: " + notIP},
		{"a prefix of 31", `"subnet": "198.18.0.0/31"`, "invalid range set 0: Network 198.18.0.0/31 too small to allocate from"},
		{"a prefix of 32", `"subnet": "198.18.0.0/32"`, "invalid range set 0: Network 198.18.0.0/32 too small to allocate from"},
		{"a prefix of 127", `"subnet": "2001:db8::/127"`, "invalid range set 0: Network 2001:db8::/127 too small to allocate from"},
		{"a prefix of 128", `"subnet": "2001:db8::1/128"`, "invalid range set 0: Network 2001:db8::1/128 too small to allocate from"},
		{"host bits", `"subnet": "198.18.0.9/24"`, "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 198.18.0.0"},
		{"host bits of IPv6", `"subnet": "2001:db8::9/64"`, "invalid range set 0: Network has host bits set. For a subnet mask of length 64 the network address is 2001:db8::"},
		{"a mapped subnet", `"subnet": "::ffff:198.18.0.0/120"`, "invalid range set 0: IPNet IP and Mask version mismatch"},
		{"a gateway outside", `"subnet": "198.18.0.0/24", "gateway": "198.18.1.1"`, "invalid range set 0: gateway 198.18.1.1 not in network 198.18.0.0/24"},
		{"a gateway of the other family", `"subnet": "198.18.0.0/24", "gateway": "2001:db8::1"`, "invalid range set 0: gateway 2001:db8::1 not in network 198.18.0.0/24"},
		{"a start outside", `"subnet": "198.18.0.0/24", "rangeStart": "198.18.1.5"`, "invalid range set 0: RangeStart 198.18.1.5 not in network 198.18.0.0/24"},
		{"a start of the other family", `"subnet": "198.18.0.0/24", "rangeStart": "2001:db8::1"`, "invalid range set 0: RangeStart 2001:db8::1 not in network 198.18.0.0/24"},
		{"an end outside", `"subnet": "198.18.0.0/24", "rangeEnd": "198.18.1.5"`, "invalid range set 0: RangeEnd 198.18.1.5 not in network 198.18.0.0/24"},
		{"an end before the start", `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.9", "rangeEnd": "198.18.0.8"`, "invalid range set 0: RangeStart 198.18.0.9 not in network 198.18.0.0/24"},
		{"a start after the default end", `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.255"`, "invalid range set 0: RangeStart 198.18.0.255 is after RangeEnd 198.18.0.254 in network 198.18.0.0/24"},
		{"a start at the top of the family", `"subnet": "255.255.255.252/30", "rangeStart": "255.255.255.255"`, "invalid range set 0: RangeStart 255.255.255.255 is after RangeEnd 255.255.255.254 in network 255.255.255.252/30"},
		{"mixed families in a set", `"ranges": [[{"subnet": "198.18.0.0/24"}, {"subnet": "2001:db8::/64"}]]`, "invalid range set 0: mixed address families"},
		{"an overlap in a set", `"ranges": [[{"subnet": "198.18.0.0/16"}, {"subnet": "198.18.3.0/24"}]]`, "invalid range set 0: subnets 198.18.0.1-198.18.255.254 and 198.18.3.1-198.18.3.254 overlap"},
		{"an overlap between sets", `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "198.18.1.0/24"}], [{"subnet": "198.18.1.0/25"}]]`, "range set 1 overlaps with 2"},
		{"an overlap of old and new style", `"subnet": "198.18.0.0/24", "ranges": [[{"subnet": "198.18.0.0/25"}]]`, "range set 0 overlaps with 1"},
		{"the error of a later set", `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "198.18.1.0/31"}]]`, "invalid range set 1: Network 198.18.1.0/31 too small to allocate from"},
		{"a subnet that is none", `"subnet": "198.18.0.0"`, "invalid CIDR address: 198.18.0.0"},
		{"a gateway that is none", `"subnet": "198.18.0.0/24", "gateway": "router"`, "invalid IP address: router"},
		{"a start that is none", `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.5/24"`, "invalid IP address: 198.18.0.5/24"},
		{"a route that is none", slash24 + `, "routes": [{"dst": "default"}]`, "invalid CIDR address: default"},
	} {
		out = append(out, row{
			name: "configuration: " + c.name, config: config{ipam: c.ipam},
			steps: []step{add("a", fails(c.want)), del("a", fails(c.want)), reserved()},
		})
	}
	return append(out,
		row{name: "configuration: ranges that touch are fine", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/24", "rangeEnd": "198.18.0.127"}, {"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.128"}]]`}, steps: []step{
			add("a", gives("198.18.0.2/24")),
		}},
		row{name: "configuration: no ipam", steps: []step{
			add("a", stdin(`{"cniVersion": "1.1.0", "name": "net"}`), fails("IPAM config missing 'ipam' key")),
			add("a", stdin(`{"cniVersion": "1.1.0", "name": "net", "ipam": null}`), fails("IPAM config missing 'ipam' key")),
			add("a", stdin(`{"cniVersion": "1.1.0", "name": "net", "ipam": {}}`), fails("no IP ranges specified")),
			del("a", stdin(`{"cniVersion": "1.1.0", "name": "net"}`), fails("IPAM config missing 'ipam' key")),
			check("a", stdin(`{"cniVersion": "1.1.0", "name": "net"}`), fails("IPAM config missing 'ipam' key")),
			gc(nil, stdin(`{"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": []}`), fails("IPAM config missing 'ipam' key")),
		}},
		row{name: "configuration: wrong JSON types", config: config{ipam: slash24}, steps: []step{
			add("a", stdin(`{"cniVersion": "1.1.0", "name": "net", "ipam": 5}`), failsLike(999, "json: cannot unmarshal ")),
			add("a", ipam(`"ranges": {"subnet": "198.18.0.0/24"}`), failsLike(999, "json: cannot unmarshal ")),
			add("a", ipam(`"ranges": [{"subnet": "198.18.0.0/24"}]`), failsLike(999, "json: cannot unmarshal ")),
			add("a", ipam(`"subnet": 5`), failsLike(999, "json: cannot unmarshal ")),
			add("a", dataDirectory(""), ipam(slash24+`, "dataDir": 5`), failsLike(999, "json: cannot unmarshal ")),
			reserved(),
		}},
		row{name: "configuration: what is not known is ignored", config: config{ipam: slash24 + `, "colour": "blue"`, top: `"isGateway": true, "master": "eth0"`}, steps: []step{
			add("a", gives("198.18.0.2/24")),
		}},
		row{name: "configuration: the type is not looked at", config: config{}, steps: []step{
			add("a", stdin(`{"cniVersion": "1.1.0", "name": "net", "ipam": {"type": "other", "dataDir": "${DATA}", "subnet": "198.18.0.0/24"}}`)),
			reserved("198.18.0.2 a/eth0"),
		}},
	)
}
