package ipam

// requestRows: addresses that somebody asks for, in three ways.
func requestRows() []row {
	ips := func(list string) opt { return top(`"args": {"cni": {"ips": ` + list + `}}`) }
	runtimeIPs := func(list string) opt { return top(`"runtimeConfig": {"ips": ` + list + `}`) }
	return []row{
		{name: "request: args.cni.ips", config: config{ipam: slash24}, steps: []step{
			add("a", ips(`["198.18.0.88"]`), gives("198.18.0.88/24 via 198.18.0.1")), reserved("198.18.0.88 a/eth0"),
		}},
		{name: "request: runtimeConfig.ips", config: config{ipam: slash24}, steps: []step{
			add("a", runtimeIPs(`["198.18.0.88"]`), gives("198.18.0.88/24 via 198.18.0.1")),
		}},
		{name: "request: CNI_ARGS", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IP=198.18.0.88"), gives("198.18.0.88/24 via 198.18.0.1")),
		}},
		{name: "request: the prefix is the subnet's", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IP=198.18.0.88/16"), gives("198.18.0.88/24")),
			add("b", ips(`["198.18.0.89/8"]`), gives("198.18.0.89/24")),
			add("c", runtimeIPs(`["198.18.0.90/32"]`), gives("198.18.0.90/24")),
		}},
		{name: "request: CNI_ARGS as the kubelet sends them", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=a;K8S_POD_UID=u"), gives("198.18.0.2/24")),
			add("b", cniArgs("K8S_POD_NAMESPACE=n;IP=198.18.0.88;K8S_POD_NAME=p;IgnoreUnknown=true"), gives("198.18.0.88/24")),
			add("c", cniArgs("K8S_POD_NAME=p;IgnoreUnknown=True;IP=198.18.0.89"), gives("198.18.0.89/24")),
			del("c", cniArgs("K8S_POD_NAME=p;IgnoreUnknown=True;IP=198.18.0.89")),
			reserved("198.18.0.2 a/eth0", "198.18.0.88 b/eth0"),
		}},
		{name: "request: CNI_ARGS that are wrong", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("K8S_POD_NAME=p"), fails(`ARGS: unknown args ["K8S_POD_NAME=p"]`)),
			add("a", cniArgs("B=1;A=2;IgnoreUnknown=0"), fails(`ARGS: unknown args ["B=1" "A=2"]`)),
			add("a", cniArgs("ip=198.18.0.88"), fails(`ARGS: unknown args ["ip=198.18.0.88"]`)),
			add("a", cniArgs("IP"), fails(`ARGS: invalid pair "IP"`)),
			add("a", cniArgs("IP=198.18.0.88;"), fails(`ARGS: invalid pair ""`)),
			add("a", cniArgs("IP=a=b"), fails(`ARGS: invalid pair "IP=a=b"`)),
			add("a", cniArgs("IP=nonsense"), fails(`ARGS: error parsing value of pair "IP=nonsense": invalid IP address nonsense`)),
			add("a", cniArgs("IgnoreUnknown=perhaps"), fails(`ARGS: error parsing value of pair "IgnoreUnknown=perhaps": boolean unmarshal error: invalid input perhaps`)),
			del("a", cniArgs("K8S_POD_NAME=p"), fails(`ARGS: unknown args ["K8S_POD_NAME=p"]`)),
			reserved(),
		}},
		{name: "request: none after all", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IP="), gives("198.18.0.2/24")), add("b", ips(`[]`), gives("198.18.0.3/24")),
			add("c", ips(`null`), gives("198.18.0.4/24")), add("d", top(`"args": null`), gives("198.18.0.5/24")),
			add("e", top(`"args": {"cni": null}`), gives("198.18.0.6/24")), add("f", top(`"args": {"other": {"ips": 5}}`), gives("198.18.0.7/24")),
		}},
		{name: "request: of one that is empty or nonsense", config: config{ipam: slash24}, steps: []step{
			add("a", ips(`[""]`), fails("cannot understand ip: IP <nil> not v4 nor v6")),
			add("a", ips(`["nonsense"]`), fails("invalid IP address nonsense")),
			add("a", runtimeIPs(`["198.18.0.88/99"]`), fails("invalid IP address 198.18.0.88/99")),
			reserved(),
		}},
		{name: "request: null, host-local", only: onlyUpstream, differs: diffNull, config: config{ipam: slash24}, steps: []step{
			add("a", ips(`[null]`), looks(func(s *site, r reply) {
				if r.exit != 2 || r.stdout != "" {
					s.t.Errorf("exit %d, want the 2 of a panic", r.exit)
				}
			})),
		}},
		{name: "request: null, ours", only: onlyOurs, differs: diffNull, config: config{ipam: slash24}, steps: []step{
			add("a", ips(`[null]`), failsLike(7, "")), add("a", runtimeIPs(`[null]`), failsLike(7, "")), reserved(),
		}},
		{name: "request: spellings", config: config{ipam: dual}, steps: []step{
			add("a", ips(`["2001:0DB8:0::00aB", "::ffff:198.18.0.77"]`), gives("198.18.0.77/24", "2001:db8::ab/64")),
			reserved("198.18.0.77 a/eth0", "2001:db8::ab a/eth0"),
		}},
		{name: "request: from three sources at once", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "198.18.1.0/24"}], [{"subnet": "198.18.2.0/24"}]]`}, steps: []step{
			add("a", cniArgs("IP=198.18.1.9"), top(`"args": {"cni": {"ips": ["198.18.2.9"]}}, "runtimeConfig": {"ips": ["198.18.0.9"]}`), gives("198.18.0.9/24", "198.18.1.9/24", "198.18.2.9/24")),
		}},
		{name: "request: the same one from three sources", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IP=198.18.0.9"), top(`"args": {"cni": {"ips": ["198.18.0.9", "::ffff:198.18.0.9"]}}, "runtimeConfig": {"ips": ["198.18.0.9/24"]}`), gives("198.18.0.9/24")),
		}},
		{name: "request: in one of several sets", config: config{ipam: twoSets}, steps: []step{
			add("a", ips(`["198.18.1.88"]`), gives("198.18.0.2/24", "198.18.1.88/24")),
		}},
		{name: "request: in a later range of a set", config: config{ipam: `"ranges": [[{"subnet": "198.18.0.0/24"}, {"subnet": "198.18.1.0/25"}]]`}, steps: []step{
			add("a", ips(`["198.18.1.88"]`), gives("198.18.1.88/25 via 198.18.1.1")),
		}},
		{name: "request: taken", config: config{ipam: slash24}, steps: []step{
			add("a", ips(`["198.18.0.5"]`)),
			add("b", ips(`["198.18.0.5"]`), fails("failed to allocate for range 0: requested IP address 198.18.0.5 is not available in range set 198.18.0.1-198.18.0.254")),
			add("a", ips(`["198.18.0.5"]`), fails("failed to allocate for range 0: requested IP address 198.18.0.5 is not available in range set 198.18.0.1-198.18.0.254")),
			reserved("198.18.0.5 a/eth0"), contains("last_reserved_ip.0", "198.18.0.5"),
		}},
		{name: "request: the gateway", config: config{ipam: slash24}, steps: []step{
			add("a", ips(`["198.18.0.1"]`), fails("failed to allocate for range 0: requested ip 198.18.0.1 is subnet's gateway")), reserved(), lacks("last_reserved_ip.0"),
		}},
		{name: "request: outside", config: config{ipam: slash24}, steps: []step{
			add("a", ips(`["198.18.9.9"]`), fails("failed to allocate all requested IPs: 198.18.9.9")),
			add("a", ips(`["2001:db8::9"]`), fails("failed to allocate all requested IPs: 2001:db8::9")),
			reserved(),
		}},
		{name: "request: in the subnet, outside of the range", config: config{ipam: `"subnet": "198.18.0.0/24", "rangeStart": "198.18.0.10", "rangeEnd": "198.18.0.19"`}, steps: []step{
			add("a", ips(`["198.18.0.9"]`), fails("failed to allocate all requested IPs: 198.18.0.9")),
			add("a", ips(`["198.18.0.20"]`), fails("failed to allocate all requested IPs: 198.18.0.20")),
			add("a", ips(`["198.18.0.0"]`), fails("failed to allocate all requested IPs: 198.18.0.0")),
			add("a", ips(`["198.18.0.19"]`), gives("198.18.0.19/24")),
		}},
		{name: "request: two for one set", config: config{ipam: slash24}, steps: []step{
			// Which of them is taken is random, and it is given back.
			add("a", ips(`["198.18.0.8", "198.18.0.9"]`), failsLike(999, "failed to allocate all requested IPs: 198.18.0.")), reserved(),
		}},
		{name: "request: a second address for one that has one", config: config{ipam: slash24}, steps: []step{
			// Only a search looks whether the attachment holds something already.
			add("a", gives("198.18.0.2/24")), add("a", ips(`["198.18.0.9"]`), gives("198.18.0.9/24")),
			reserved("198.18.0.2 a/eth0", "198.18.0.9 a/eth0"), del("a"), reserved(),
		}},
	}
}

// allOrNothingRows: an ADD over several sets.
func allOrNothingRows() []row {
	const smallSecond = `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "198.18.1.0/30"}]]`
	return []row{
		{name: "rollback: the second set is full", config: config{ipam: smallSecond}, steps: []step{
			add("a"), add("b", full(1, "198.18.1.1-198.18.1.2")),
			reserved("198.18.0.2 a/eth0", "198.18.1.2 a/eth0"),
			// Given back, but not to be handed out next.
			contains("last_reserved_ip.0", "198.18.0.3"), contains("last_reserved_ip.1", "198.18.1.2"),
			del("a"), add("b", gives("198.18.0.4/24", "198.18.1.2/30")),
		}},
		{name: "rollback: a request in the second set is taken", config: config{ipam: twoSets}, steps: []step{
			add("a", cniArgs("IP=198.18.1.9")),
			add("b", cniArgs("IP=198.18.1.9"), fails("failed to allocate for range 1: requested IP address 198.18.1.9 is not available in range set 198.18.1.1-198.18.1.254")),
			reserved("198.18.0.2 a/eth0", "198.18.1.9 a/eth0"),
		}},
		{name: "rollback: a request that fits nowhere", config: config{ipam: twoSets}, steps: []step{
			add("b"), add("a", top(`"args": {"cni": {"ips": ["198.18.0.9", "198.18.9.9"]}}`), fails("failed to allocate all requested IPs: 198.18.9.9")),
			reserved("198.18.0.2 b/eth0", "198.18.1.2 b/eth0"), contains("last_reserved_ip.0", "198.18.0.9"),
		}},
		{name: "rollback: another interface's address stays", config: config{ipam: smallSecond}, steps: []step{
			add("a/eth0"), add("a/eth1", full(1, "198.18.1.1-198.18.1.2")), reserved("198.18.0.2 a/eth0", "198.18.1.2 a/eth0"),
		}},
		{name: "rollback: a repeated ADD, host-local", only: onlyUpstream, differs: diffRollback, config: config{ipam: twoSets}, steps: []step{
			add("a"), add("a", cniArgs("IP=198.18.0.9"), duplicate(1, "198.18.1.2", "a")), reserved(),
		}},
		{name: "rollback: a repeated ADD, ours", only: onlyOurs, differs: diffRollback, config: config{ipam: twoSets}, steps: []step{
			add("a"), add("a", cniArgs("IP=198.18.0.9"), duplicate(1, "198.18.1.2", "a")),
			reserved("198.18.0.2 a/eth0", "198.18.1.2 a/eth0"),
			add("a", cniArgs("IP=198.18.9.9"), duplicate(0, "198.18.0.2", "a")),
			reserved("198.18.0.2 a/eth0", "198.18.1.2 a/eth0"),
		}},
		{name: "rollback: the last address cannot be written, host-local", only: onlyUpstream, differs: diffLastFails, config: config{ipam: slash24}, steps: []step{
			mkdir("last_reserved_ip.0"), add("a", failsLike(999, "failed to allocate for range 0: open ${NET}/last_reserved_ip.0: is a directory")),
			reserved("198.18.0.2 a/eth0"),
		}},
		{name: "rollback: the last address cannot be written, ours", only: onlyOurs, differs: diffLastFails, config: config{ipam: twoSets}, steps: []step{
			mkdir("last_reserved_ip.1"), add("a", failsLike(999, "failed to allocate for range 1: ")), reserved(),
			removed("last_reserved_ip.0"), mkdir("last_reserved_ip.0"), add("a", failsLike(999, "failed to allocate for range 0: ")), reserved(),
		}},
	}
}
