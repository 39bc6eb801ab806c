package ipam

import "fmt"

// full is the end of a search without success; ours goes on with numbers.
func full(set int, ranges string) opt {
	return failsLike(999, fmt.Sprintf("failed to allocate for range %d: no IP addresses available in range set: %s", set, ranges))
}

// rangeRows: which addresses a configuration has.
func rangeRows() []row {
	return []row{
		{name: "range: default gateway and first address", config: config{ipam: slash24}, steps: []step{
			add("a", gives("198.18.0.2/24 via 198.18.0.1")), add("b", gives("198.18.0.3/24 via 198.18.0.1")),
		}},
		{name: "range: start and end", config: config{ipam: `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.10", "rangeEnd": "198.18.0.11"`}, steps: []step{
			add("a", gives("198.18.0.10/24 via 198.18.0.1")), add("b", gives("198.18.0.11/24 via 198.18.0.1")),
			add("c", full(0, "198.18.0.10-198.18.0.11")),
		}},
		{name: "range: of one address", config: config{ipam: `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.10", "rangeEnd": "198.18.0.10"`}, steps: []step{
			add("a", gives("198.18.0.10/24")), add("b", full(0, "198.18.0.10-198.18.0.10")),
			del("a"), add("b", gives("198.18.0.10/24")),
		}},
		{name: "range: of nothing but the gateway", config: config{ipam: `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.1", "rangeEnd": "198.18.0.1"`}, steps: []step{
			add("a", full(0, "198.18.0.1-198.18.0.1")), reserved(),
			file("last_reserved_ip.0", "198.18.0.1"), add("a", full(0, "198.18.0.1-198.18.0.1")),
		}},
		{name: "range: a prefix of 30 has one", config: config{ipam: `"subnet": "198.18.0.4/30"`}, steps: []step{
			add("a", gives("198.18.0.6/30 via 198.18.0.5")), add("b", full(0, "198.18.0.5-198.18.0.6")),
		}},
		{name: "range: a prefix of 29 has five", config: config{ipam: slash29}, steps: []step{
			add("a", gives("198.18.0.2/29")), add("b", gives("198.18.0.3/29")), add("c", gives("198.18.0.4/29")),
			add("d", gives("198.18.0.5/29")), add("e", gives("198.18.0.6/29")), add("f", full(0, "198.18.0.1-198.18.0.6")),
		}},
		{name: "range: a prefix of 126 has two", config: config{ipam: `"subnet": "2001:db8::/126"`}, steps: []step{
			add("a", gives("2001:db8::2/126 via 2001:db8::1")), add("b", gives("2001:db8::3/126")), add("c", full(0, "2001:db8::1-2001:db8::3")),
		}},
		{name: "range: a gateway amid it is skipped", config: config{ipam: `"subnet": "198.18.0.0/29", "gateway": "198.18.0.3"`}, steps: []step{
			add("a", gives("198.18.0.1/29 via 198.18.0.3")), add("b", gives("198.18.0.2/29 via 198.18.0.3")), add("c", gives("198.18.0.4/29 via 198.18.0.3")),
		}},
		{name: "range: a gateway at its end is skipped", config: config{ipam: `"subnet": "198.18.0.0/29", "gateway": "198.18.0.6", "rangeStart": "198.18.0.5"`}, steps: []step{
			add("a", gives("198.18.0.5/29 via 198.18.0.6")), add("b", full(0, "198.18.0.5-198.18.0.6")),
		}},
		{name: "range: a gateway in the subnet, outside of the range", config: config{ipam: `"subnet": "198.18.0.0/24", "gateway": "198.18.0.254", "rangeStart": "198.18.0.1", "rangeEnd": "198.18.0.2"`}, steps: []step{
			add("a", gives("198.18.0.1/24 via 198.18.0.254")),
		}},
		{name: "range: another set's gateway is not skipped", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.5"}], [{"subnet": "198.18.1.0/24", "gateway": "198.18.1.5", "rangeStart": "198.18.1.5"}]]`}, steps: []step{
			add("a", gives("198.18.0.5/24 via 198.18.0.1", "198.18.1.6/24 via 198.18.1.5")),
		}},
		{name: "range: network and broadcast address when asked for", config: config{ipam: `"subnet": "198.18.0.0/30", "rangeStart": "198.18.0.0", "rangeEnd": "198.18.0.3"`}, steps: []step{
			add("a", gives("198.18.0.0/30")), add("b", gives("198.18.0.2/30")), add("c", gives("198.18.0.3/30")),
		}},
		{name: "range: the top of the family", config: config{ipam: `"subnet": "255.255.255.252/30", "rangeEnd": "255.255.255.255"`}, steps: []step{
			add("a", gives("255.255.255.254/30")), add("b", gives("255.255.255.255/30")), add("c", full(0, "255.255.255.253-255.255.255.255")),
		}},
		{name: "range: across a byte", config: config{ipam: `"subnet": "198.18.0.0/22", "rangeStart": "198.18.0.255", "rangeEnd": "198.18.1.1"`}, steps: []step{
			add("a", gives("198.18.0.255/22")), add("b", gives("198.18.1.0/22")), add("c", gives("198.18.1.1/22")),
		}},
		{name: "range: several in a set", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/30"}, {"subnet": "198.18.1.0/30"}, {"subnet": "198.18.2.0/24", "rangeStart": "198.18.2.200", "rangeEnd": "198.18.2.200", "gateway": "198.18.2.9"}]]`}, steps: []step{
			add("a", gives("198.18.0.2/30 via 198.18.0.1")), add("b", gives("198.18.1.2/30 via 198.18.1.1")),
			add("c", gives("198.18.2.200/24 via 198.18.2.9")),
			add("d", full(0, "198.18.0.1-198.18.0.2,198.18.1.1-198.18.1.2,198.18.2.200-198.18.2.200")),
			del("b"), add("d", gives("198.18.1.2/30 via 198.18.1.1")),
		}},
		{name: "range: one subnet in two parts", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.20", "rangeEnd": "198.18.0.20"}, {"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.10", "rangeEnd": "198.18.0.10"}]]`}, steps: []step{
			add("a", gives("198.18.0.20/24")), add("b", gives("198.18.0.10/24")),
		}},
		{name: "range: several sets, one address of each", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "198.18.1.0/24"}], [{"subnet": "2001:db8::/64"}]]`}, steps: []step{
			add("a", gives("198.18.0.2/24 via 198.18.0.1", "198.18.1.2/24 via 198.18.1.1", "2001:db8::2/64 via 2001:db8::1")),
			contains("last_reserved_ip.0", "198.18.0.2"), contains("last_reserved_ip.1", "198.18.1.2"), contains("last_reserved_ip.2", "2001:db8::2"),
		}},
		{name: "range: old style comes before new style", config: config{ipam: `"subnet": "198.18.0.0/24", "ranges": [[{"subnet": "198.18.1.0/24"}]]`}, steps: []step{
			add("a", gives("198.18.0.2/24", "198.18.1.2/24")),
		}},
		{name: "range: runtimeConfig.ipRanges comes before all", config: config{ipam: `"subnet": "198.18.0.0/24", "ranges": [[{"subnet": "198.18.1.0/24"}]]`, top: `"runtimeConfig": {"ipRanges": [[{"subnet": "198.18.2.0/24", "rangeStart": "198.18.2.7"}]]}`}, steps: []step{
			add("a", gives("198.18.2.7/24 via 198.18.2.1", "198.18.0.2/24", "198.18.1.2/24")),
			contains("last_reserved_ip.0", "198.18.2.7"),
		}},
		{name: "range: runtimeConfig.ipRanges alone", config: config{top: `"runtimeConfig": {"ipRanges": [[{"subnet": "198.18.2.0/24"}], [{"subnet": "2001:db8:2::/64"}]]}`}, steps: []step{
			add("a", gives("198.18.2.2/24", "2001:db8:2::2/64")),
		}},
		{name: "range: runtimeConfig.ipRanges is checked too", config: config{ipam: slash24, top: `"runtimeConfig": {"ipRanges": [[{"subnet": "198.18.0.0/25"}]]}`}, steps: []step{
			add("a", fails("range set 0 overlaps with 1")),
		}},
		{name: "range: spellings of IPv6", config: config{ipam: `"subnet": "2001:0DB8:0:0::/64", "rangeStart": "2001:DB8::00aB", "gateway": "2001:db8:0:0:0:0:0:1"`}, steps: []step{
			add("a", gives("2001:db8::ab/64 via 2001:db8::1")), contains("2001:db8::ab", "a\r\neth0"), contains("last_reserved_ip.0", "2001:db8::ab"),
			add("b", gives("2001:db8::ac/64")),
		}},
		{name: "range: the end of a large subnet of IPv6", config: config{ipam: `"subnet": "2001:db8::/32", "rangeStart": "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe"`}, steps: []step{
			add("a", gives("2001:db8:ffff:ffff:ffff:ffff:ffff:fffe/32")), add("b", gives("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/32")),
			add("c", full(0, "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")),
		}},
		{name: "range: mapped IPv4 for start, end and gateway", config: config{ipam: `"subnet": "198.18.0.0/24", "rangeStart": "::ffff:198.18.0.10", "rangeEnd": "::ffff:198.18.0.11", "gateway": "::ffff:198.18.0.9"`}, steps: []step{
			add("a", gives("198.18.0.10/24 via 198.18.0.9")), contains("198.18.0.10", "a\r\neth0"),
		}},
	}
}

// orderRows: round robin, from last_reserved_ip.N on.
func orderRows() []row {
	last := func(content, want string) []step {
		return []step{file("last_reserved_ip.0", content), add("a", gives(want)), del("a")}
	}
	var garbage []step
	for _, content := range []string{"", "nonsense", "198.18.0.4\n", " 198.18.0.4", "198.18.0.4/29", "198.18.0.4\r\n198.18.0.5", "198.18.9.9", "2001:db8::4", "198.18.0.7", "\x00\xff"} {
		garbage = append(garbage, last(content, "198.18.0.2/29")...)
	}
	return []row{
		{name: "order: a released address is not the next", config: config{ipam: slash29}, steps: []step{
			add("a", gives("198.18.0.2/29")), del("a"), add("a", gives("198.18.0.3/29")), del("a"), add("a", gives("198.18.0.4/29")),
		}},
		{name: "order: wraps and skips what is taken", config: config{ipam: slash29}, steps: []step{
			add("a", gives("198.18.0.2/29")), file("last_reserved_ip.0", "198.18.0.5"),
			add("b", gives("198.18.0.6/29")), add("c", gives("198.18.0.3/29")), add("d", gives("198.18.0.4/29")),
		}},
		{name: "order: the last one itself comes last", config: config{ipam: slash29}, steps: []step{
			add("a"), add("b"), add("c"), add("d"), add("e", gives("198.18.0.6/29")), del("e"),
			add("f", gives("198.18.0.6/29")), add("g", full(0, "198.18.0.1-198.18.0.6")),
		}},
		{name: "order: from the gateway on", config: config{ipam: slash29}, steps: last("198.18.0.1", "198.18.0.2/29")},
		{name: "order: a last address that says nothing", config: config{ipam: slash29}, steps: garbage},
		{name: "order: a last address in another spelling", config: config{ipam: `"subnet": "2001:db8::/64"`}, steps: last("2001:DB8:0:0::00ff", "2001:db8::100/64")},
		{name: "order: a mapped last address", config: config{ipam: slash29}, steps: last("::ffff:198.18.0.4", "198.18.0.5/29")},
		{name: "order: is kept for each set", config: config{ipam: dual}, steps: []step{
			file("last_reserved_ip.0", "198.18.0.100"), file("last_reserved_ip.1", "2001:db8::100"),
			add("a", gives("198.18.0.101/24", "2001:db8::101/64")),
			contains("last_reserved_ip.0", "198.18.0.101"), contains("last_reserved_ip.1", "2001:db8::101"),
		}},
		{name: "order: another index starts anew", config: config{ipam: twoSets}, steps: []step{
			file("last_reserved_ip.0", "198.18.1.100"), file("last_reserved_ip.1", "198.18.0.100"),
			add("a", gives("198.18.0.2/24", "198.18.1.2/24")),
		}},
		{name: "order: goes on through the ranges of a set", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/29"}, {"subnet": "198.18.1.0/29"}]]`}, steps: []step{
			file("last_reserved_ip.0", "198.18.0.5"), add("a", gives("198.18.0.6/29")), add("b", gives("198.18.1.2/29 via 198.18.1.1")),
			file("last_reserved_ip.0", "198.18.1.6"), add("c", gives("198.18.0.2/29")),
		}},
		{name: "order: a failed search leaves it", config: config{ipam: `"subnet": "198.18.0.0/30"`}, steps: []step{
			add("a"), add("b", full(0, "198.18.0.1-198.18.0.2")), contains("last_reserved_ip.0", "198.18.0.2"),
		}},
		{name: "order: a requested address counts", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IP=198.18.0.50"), gives("198.18.0.50/24")), contains("last_reserved_ip.0", "198.18.0.50"),
			add("b", gives("198.18.0.51/24")),
		}},
		{name: "order: a release leaves it", config: config{ipam: slash24}, steps: []step{
			add("a"), add("b"), del("b"), del("a"), contains("last_reserved_ip.0", "198.18.0.3"),
		}},
		{name: "order: the last address can be neither read nor written", config: config{ipam: slash29}, steps: []step{
			// A directory: nobody, not even root, reads or writes it as a file.
			mkdir("last_reserved_ip.0"), add("a", failsLike(999, "")),
		}},
	}
}
