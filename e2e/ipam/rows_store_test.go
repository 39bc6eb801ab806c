package ipam

import (
	"fmt"
	"os"
	"strings"
)

// duplicate is the error of an attachment that holds an address of the set.
func duplicate(set int, address, id string) opt {
	return fails(fmt.Sprintf("failed to allocate for range %d: %s has been allocated to %s, duplicate allocation is not allowed", set, address, id))
}

// removed takes a file away behind the plugin's back.
func removed(name string) step {
	return func(s *site) {
		s.t.Helper()
		if err := os.Remove(s.path(name)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func symlink(target, name string) step {
	return func(s *site) {
		s.t.Helper()
		if err := os.Symlink(s.expand(target), s.path(name)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// ownerRows: whose address a file is.
func ownerRows() []row {
	return []row{
		{name: "owner: ADD twice", config: config{ipam: slash24}, steps: []step{
			add("a"), add("a", duplicate(0, "198.18.0.2", "a")), reserved("198.18.0.2 a/eth0"), contains("last_reserved_ip.0", "198.18.0.2"),
			add("b", gives("198.18.0.3/24")), add("a", duplicate(0, "198.18.0.2", "a")),
		}},
		{name: "owner: another interface is another attachment", config: config{ipam: slash24}, steps: []step{
			add("a/eth0", gives("198.18.0.2/24")), add("a/eth1", gives("198.18.0.3/24")), add("a/eth1", duplicate(0, "198.18.0.3", "a")),
			del("a/eth0"), reserved("198.18.0.3 a/eth1"),
		}},
		{name: "owner: an ID that begins like another", config: config{ipam: slash24}, steps: []step{
			add("abc"), add("ab", gives("198.18.0.3/24")), add("abcd", gives("198.18.0.4/24")), del("ab"),
			reserved("198.18.0.2 abc/eth0", "198.18.0.4 abcd/eth0"),
		}},
		{name: "owner: case counts", config: config{ipam: slash24}, steps: []step{
			add("a"), add("A", gives("198.18.0.3/24")), del("A"), reserved("198.18.0.2 a/eth0"),
		}},
		{name: "owner: holds an address outside of the ranges", config: config{ipam: slash24}, steps: []step{
			file("198.18.9.9", "a\r\neth0"), add("a", gives("198.18.0.2/24")), reserved("198.18.0.2 a/eth0", "198.18.9.9 a/eth0"),
			del("a"), reserved(),
		}},
		{name: "owner: another's addresses in the second set", config: config{ipam: twoSets}, steps: []step{
			file("198.18.1.2", "b\r\neth0"), file("198.18.1.3", "a\r\neth1"), add("a", gives("198.18.0.2/24", "198.18.1.4/24")),
		}},
		{name: "owner: a file of the ID alone is any interface's", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.9", "a"), add("a/eth0", duplicate(0, "198.18.0.9", "a")), add("a/eth1", duplicate(0, "198.18.0.9", "a")),
			check("a/eth1"), del("a/eth1"), reserved(),
		}},
		{name: "owner: the exact file goes before the file of the ID alone", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.8", "a"), file("198.18.0.9", "a\r\neth0"), del("a"), reserved("198.18.0.8 a"), del("a"), reserved(),
		}},
		{name: "owner: with two sets both go, as each is released", config: config{ipam: twoSets}, steps: []step{
			file("198.18.0.8", "a"), file("198.18.0.9", "a\r\neth0"), del("a"), reserved(),
		}},
		{name: "owner: blanks around do not count", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.5", "a\r\neth0\n"), file("198.18.0.6", " \tb\r\neth0 \r\n\r\n"), file("198.18.0.7", "c\n"),
			add("a", duplicate(0, "198.18.0.5", "a")), add("b", duplicate(0, "198.18.0.6", "b")), add("c", duplicate(0, "198.18.0.7", "c")),
			check("a"), check("b"), check("c"), del("a"), del("b"), del("c"), reserved(),
		}},
		{name: "owner: blanks within do", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.5", "a\neth0"), file("198.18.0.6", "a \r\neth0"), file("198.18.0.7", "a\r\n eth0"), file("198.18.0.8", "a\r\neth0\r\nmore"),
			add("a", gives("198.18.0.2/24")), del("a"),
			reserved("198.18.0.5 a\neth0", "198.18.0.6 a /eth0", "198.18.0.7 a/ eth0", "198.18.0.8 a/eth0/more"),
		}},
		{name: "owner: an empty file is taken and nobody's", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.2", ""), file("198.18.0.3", "\r\n"), add("a", gives("198.18.0.4/24")), del("a"), del("b"),
			contains("198.18.0.2", ""), contains("198.18.0.3", "\r\n"),
		}},
		{name: "owner: a person's file is taken", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.2", "reserved for the router\n"), add("a", gives("198.18.0.3/24")), contains("198.18.0.2", "reserved for the router\n"),
		}},
	}
}

// releaseRows: DEL.
func releaseRows() []row {
	const nest = "sub/198.18.0.7"
	return []row{
		{name: "DEL: again, and of what never was", config: config{ipam: slash24}, steps: []step{
			add("a"), del("a", silent()), del("a", silent()), del("b", silent()), reserved(),
		}},
		{name: "DEL: before any ADD", config: config{ipam: slash24}, steps: []step{del("a", silent()), reserved()}},
		{name: "DEL: without a network namespace", config: config{ipam: dual}, steps: []step{add("a"), del("a", netns(""), silent()), reserved()}},
		{name: "DEL: of every set", config: config{ipam: dual}, steps: []step{
			add("a"), add("b"), del("a"), reserved("198.18.0.3 b/eth0", "2001:db8::3 b/eth0"),
		}},
		{name: "DEL: of all that the attachment holds, whatever the configuration is now", config: config{ipam: slash24}, steps: []step{
			add("a", ipam(dual)), file("203.0.113.9", "a\r\neth0"), del("a", ipam(`"subnet": "198.18.5.0/24"`)), reserved(),
		}},
		{name: "DEL: of an address that was asked for and is not asked for now", config: config{ipam: slash24}, steps: []step{
			add("a", cniArgs("IP=198.18.0.50")), del("a", cniArgs("IP=198.18.0.60")), reserved(),
		}},
		{name: "DEL: resolvConf is gone", config: config{ipam: slash24 + `, "resolvConf": "${DATA}/resolv.conf"`}, steps: []step{
			file("${DATA}/resolv.conf", ""), add("a"), removed("${DATA}/resolv.conf"), del("a", silent()), reserved(),
		}},
		{name: "DEL: other files stay", config: config{ipam: slash24}, steps: []step{
			file("notes.txt", "abc"), file("198.18.0.9.bak", "b\r\neth0"), mkdir("198.18.0.10"), file(nest, "b\r\neth0"),
			add("a"), del("a"), contains("notes.txt", "abc"), contains("198.18.0.9.bak", "b\r\neth0"), contains(nest, "b\r\neth0"),
			contains("last_reserved_ip.0", "198.18.0.2"), contains("lock", ""),
		}},
		{name: "DEL: files that are no addresses, host-local", only: onlyUpstream, differs: diffOnlyNames, config: config{ipam: slash24}, steps: []step{
			file(nest, "a\r\neth0"), file("198.18.0.9.bak", "a\r\neth0"), check("a"), del("a"), lacks(nest), lacks("198.18.0.9.bak"),
			add("b", gives("198.18.0.2/24")), del("198.18.0.2"), lacks("last_reserved_ip.0"), reserved("198.18.0.2 b/eth0"),
		}},
		{name: "DEL: files that are no addresses, ours", only: onlyOurs, differs: diffOnlyNames, config: config{ipam: slash24}, steps: []step{
			file(nest, "a\r\neth0"), file("198.18.0.9.bak", "a\r\neth0"), check("a", failsLike(999, "")), del("a"),
			contains(nest, "a\r\neth0"), contains("198.18.0.9.bak", "a\r\neth0"), add("a", gives("198.18.0.2/24")),
			del("198.18.0.2"), contains("last_reserved_ip.0", "198.18.0.2"), reserved("198.18.0.2 a/eth0"),
		}},
	}
}

// checkRows: CHECK.
func checkRows() []row {
	missing := func(id string) opt {
		return fails("host-local: Failed to find address added by container " + id)
	}
	other := change(func(s *site, r *request) {
		r.config.top = strings.ReplaceAll(r.config.top, "198.18.0.2/24", "198.18.0.99/24")
	})
	return []row{
		{name: "CHECK: of what is there", config: config{ipam: dual}, steps: []step{add("a"), check("a", silent())}},
		{name: "CHECK: without prevResult", config: config{ipam: slash24}, steps: []step{add("a"), do("CHECK", "a", silent())}},
		{name: "CHECK: of what is not there", config: config{ipam: slash24}, steps: []step{
			check("a", missing("a")), add("a"), check("a"), check("a/eth1", missing("a")), check("b", missing("b")), del("a"), check("a", missing("a")),
		}},
		{name: "CHECK: another address than before, host-local", only: onlyUpstream, differs: diffCheck, config: config{ipam: dual}, steps: []step{
			add("a"), check("a", other),
		}},
		{name: "CHECK: another address than before, ours", only: onlyOurs, differs: diffCheck, config: config{ipam: dual}, steps: []step{
			add("a"), check("a"), check("a", other, failsLike(999, "")),
			removed("2001:db8::2"), check("a", failsLike(999, "")),
		}},
	}
}

// gcRows: what GC keeps is the same for all; what it takes is not.
func gcRows() []row {
	return []row{
		{name: "GC: what is listed stays", config: config{ipam: dual}, steps: []step{
			add("a"), add("a/eth1"), gc([]string{"a", "a/eth1", "never-seen"}, silent()),
			reserved("198.18.0.2 a/eth0", "2001:db8::2 a/eth0", "198.18.0.3 a/eth1", "2001:db8::3 a/eth1"),
			contains("last_reserved_ip.0", "198.18.0.3"), contains("lock", ""),
		}},
		{name: "GC: a file of the ID alone stays for any interface of it", config: config{ipam: slash24}, steps: []step{
			file("198.18.0.9", "a\n"), gc([]string{"a/eth5"}), contains("198.18.0.9", "a\n"),
		}},
		{name: "GC: an address outside of the ranges stays if listed", config: config{ipam: slash24}, steps: []step{
			file("203.0.113.9", "a\r\neth0"), gc([]string{"a"}), reserved("203.0.113.9 a/eth0"),
		}},
		{name: "GC: of nothing", config: config{ipam: slash24}, steps: []step{gc(nil, silent()), reserved()}},
		{name: "GC: sub-directories stay", config: config{ipam: slash24}, steps: []step{
			file("sub/198.18.0.9", "b\r\neth0"), gc([]string{"a"}), contains("sub/198.18.0.9", "b\r\neth0"),
		}},
		{name: "GC: what is not listed, host-local", only: onlyUpstream, differs: diffGC, config: config{ipam: slash24}, steps: []step{
			add("a"), add("a/eth1"), add("b"), file("198.18.0.9", "old"), file("198.18.0.10", ""), gc([]string{"a"}), reserved("198.18.0.2 a/eth0"),
			add("c", gives("198.18.0.5/24")), gc(nil), reserved(),
		}},
		{name: "GC: what is not listed, ours", only: onlyOurs, differs: diffGC, config: config{ipam: slash24}, steps: []step{
			// Nothing was seen absent twice: nothing goes.
			add("a"), add("a/eth1"), add("b"), file("198.18.0.10", ""), gc([]string{"a"}),
			reserved("198.18.0.2 a/eth0", "198.18.0.3 a/eth1", "198.18.0.4 b/eth0", "198.18.0.10 "),
		}},
		{name: "GC: no list, host-local", only: onlyUpstream, differs: diffGCAbsent, config: config{ipam: slash24}, steps: []step{
			add("a"), do("GC", ""), reserved(),
		}},
		{name: "GC: no list, ours", only: onlyOurs, differs: diffGCAbsent, config: config{ipam: slash24}, steps: []step{
			add("a"), do("GC", "", looks(func(s *site, r reply) {
				if _, err := r.failure(); err != nil {
					s.t.Error(err)
				}
			})), reserved("198.18.0.2 a/eth0"),
		}},
		{name: "GC: other files, host-local", only: onlyUpstream, differs: diffGCForeign, config: config{ipam: slash24}, steps: []step{
			file("notes.txt", "abc"), gc(nil), lacks("notes.txt"),
		}},
		{name: "GC: other files, ours", only: onlyOurs, differs: diffGCForeign, config: config{ipam: slash24}, steps: []step{
			file("notes.txt", "abc"), gc(nil), contains("notes.txt", "abc"),
		}},
	}
}

// statusRows: STATUS, which host-local takes and does not answer.
func statusRows() []row {
	const tiny = `"subnet": "198.18.0.0/30"`
	return []row{
		{name: "STATUS: all is well", config: config{ipam: slash24}, steps: []step{
			do("STATUS", "", silent()), add("a"), do("STATUS", "", silent()), reserved("198.18.0.2 a/eth0"),
		}},
		{name: "STATUS: exhausted, host-local", only: onlyUpstream, differs: diffStatus, config: config{ipam: tiny}, steps: []step{
			add("a"), do("STATUS", "", silent()), do("STATUS", "", stdin(`{"cniVersion": "1.1.0", "name": "net"}`), silent()),
		}},
		{name: "STATUS: exhausted, ours", only: onlyOurs, differs: diffStatus, config: config{ipam: tiny}, steps: []step{
			add("a"), do("STATUS", "", failsLike(50, "")), del("a"), do("STATUS", "", silent()),
		}},
		{name: "STATUS: no store, ours", only: onlyOurs, differs: diffStatus, config: config{ipam: tiny}, steps: []step{
			file("${DATA}", "a file"), do("STATUS", "", failsLike(50, "")),
		}},
	}
}

// storeRows: the directory and what is in it.
func storeRows() []row {
	return []row{
		{name: "store: content and modes", config: config{ipam: slash24}, steps: []step{
			add("a"), contains("198.18.0.2", "a\r\neth0"), contains("last_reserved_ip.0", "198.18.0.2"), contains("lock", ""),
			mode("198.18.0.2", 0o600), mode("last_reserved_ip.0", 0o600), mode("lock", 0o750), mode("", 0o755), mode("${DATA}", 0o755),
			func(s *site) {
				if all := snapshot(s.t, s.config.dataDir); len(all) != 4 { // net/ and three files in it
					s.t.Errorf("%d entries below the data directory, want 4: %q", len(all), all)
				}
			},
		}},
		{name: "store: a directory that is there keeps its mode", config: config{ipam: slash24}, steps: []step{
			mkdir(""), func(s *site) {
				if err := os.Chmod(s.dir(), 0o700); err != nil {
					s.t.Fatal(err)
				}
			}, add("a"), mode("", 0o700),
		}},
		{name: "store: a path with more than it needs", config: config{ipam: slash24}, steps: []step{
			mkdir(""), add("a", dataDirectory(""), ipam(slash24+`, "dataDir": "${DATA}//net/../"`)), reserved("198.18.0.2 a/eth0"),
		}},
		{name: "store: a relative path is the caller's", config: config{ipam: slash24}, steps: []step{
			mkdir("${DATA}/here"), add("a", dataDirectory("../there"), workingDirectory("${DATA}/here")), contains("${DATA}/there/net/198.18.0.2", "a\r\neth0"),
		}},
		{name: "store: behind a symlink", config: config{ipam: slash24}, steps: []step{
			mkdir("${DATA}-real/net"), symlink("${DATA}-real", "${DATA}"),
			add("a"), contains("${DATA}-real/net/198.18.0.2", "a\r\neth0"), del("a"), lacks("${DATA}-real/net/198.18.0.2"),
		}},
		{name: "store: an address that is a directory is taken", config: config{ipam: slash24}, steps: []step{
			mkdir("198.18.0.2"), add("a", gives("198.18.0.3/24")), del("a"), mode("198.18.0.2", 0o755),
		}},
		{name: "store: an address that is a symlink is taken", config: config{ipam: slash24}, steps: []step{
			mkdir(""), symlink("${DATA}/nowhere", "198.18.0.2"), add("a", gives("198.18.0.3/24")),
			add("b", cniArgs("IP=198.18.0.2"), failsLike(999, "failed to allocate for range 0: requested IP address 198.18.0.2 is not available")),
		}},
		{name: "store: the data directory is a file", config: config{ipam: slash24}, steps: []step{
			file("${DATA}", "a file"), add("a", failsLike(999, "")),
			del("a", failsLike(999, "")), check("a", failsLike(999, "")),
		}},
		{name: "store: the lock is a directory", config: config{ipam: slash24}, steps: []step{
			mkdir("lock"), add("a", failsLike(999, "")), del("a", failsLike(999, "")), reserved(),
		}},
	}
}

// resultRows: what ADD passes on of the configuration.
func resultRows() []row {
	with := func(members string) opt {
		return prints(`{"cniVersion": "1.1.0", "ips": [{"address": "198.18.0.2/24", "gateway": "198.18.0.1"}]` + members + `}`)
	}
	resolv := config{ipam: slash24 + `, "resolvConf": "${DATA}/resolv.conf"`}
	return []row{
		{name: "result: no more than the addresses", config: config{ipam: slash24, top: `"dns": {"nameservers": ["192.0.2.9"]}`}, steps: []step{add("a", with(``))}},
		{name: "result: routes with all they can have", config: config{ipam: slash24 + `, "routes": [{"dst": "0.0.0.0/0", "gw": "198.18.0.9", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 5, "scope": 200}, {"dst": "192.0.2.9/24"}]`}, steps: []step{
			add("a", with(`, "routes": [{"dst": "0.0.0.0/0", "gw": "198.18.0.9", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 5, "scope": 200}, {"dst": "192.0.2.9/24"}]`)),
		}},
		{name: "result: resolv.conf", config: resolv, steps: []step{
			file("${DATA}/resolv.conf", "# note\n; note\n\n  nameserver 192.0.2.3  \nnameserver\t2001:db8::53 192.0.2.4\nnameserver\ndomain one.example\ndomain two.example more\n"+
				"search a.example b.example\nsearch c.example\noptions ndots:5 rotate\noptions timeout:1 # no note\nsortlist 192.0.2.0\nNAMESERVER 192.0.2.5"),
			add("a", with(`, "dns": {"nameservers": ["192.0.2.3", "2001:db8::53"], "domain": "two.example",
				"search": ["a.example", "b.example", "c.example"], "options": ["ndots:5", "rotate", "timeout:1", "#", "no", "note"]}`)),
		}},
		{name: "result: an empty resolv.conf", config: resolv, steps: []step{file("${DATA}/resolv.conf", "\n"), add("a", with(``))}},
		{name: "result: no resolv.conf", config: resolv, steps: []step{
			add("a", fails("open ${DATA}/resolv.conf: no such file or directory")), reserved(), check("a", failsLike(999, "")),
		}},
		{name: "result: a line of resolv.conf that does not end", config: resolv, steps: []step{
			file("${DATA}/resolv.conf", "search "+strings.Repeat("x", 70000)), add("a", fails("bufio.Scanner: token too long")), reserved(),
		}},
	}
}
