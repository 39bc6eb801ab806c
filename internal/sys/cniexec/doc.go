// Package cniexec is the room of CNI DEL for side resources: the host-port chains,
// masquerade rules, firewall rules and ifb devices that a dead attachment left.
//
// Scope: planning, from one entry of libcni's cache, which plugins are run and
// which are not (Plan, pure), and doing one step of that plan (Runner.Run).
//
// Non-scope: addresses. A plugin that is run here never sees an `ipam` section and
// never a network namespace: host-local's DEL deletes every file with its ID and
// interface, without our gates. The address goes through the gates by itself, last
// (I8). Nor is it judged here whether the attachment is dead.
//
// # Which plugins are run, and why that is safe
//
// Read in the source of the plugins at v1.10.0; what is said holds back to v1.1.1
// except where a version is named. All of them: DEL with an empty CNI_NETNS and no
// `ipam`, as libcni gives it after a reboot.
//
//   - portmap: deletes nat chain CNI-DN-<hash of network name and container ID> (and
//     the old CNI-SN-) in iptables and ip6tables with its jumps; since v1.6 with the
//     nftables backend the rules whose comment is the container ID. Does nothing
//     without portMappings in runtimeConfig, so the cached capabilityArgs decide.
//     It also flushes UDP conntrack entries by host port: where a new Pod has that
//     port its UDP flows are tracked anew with its own rules, as on any DEL.
//     Leaves: CNI-HOSTPORT-DNAT, -SETMARK and -MASQ, which all Pods share.
//   - bandwidth: deletes the device "bwp" + <hash of network name and container ID>.
//     Leaves: nothing; the qdisc went with the veth.
//   - tuning: looks for <dataDir>/<containerID>_<ifname>.json, in the namespace only:
//     does nothing without one. Leaves: that file, under /run.
//   - firewall: deletes by ADDRESS: "-s ADDR -j ACCEPT" and its counterpart in
//     CNI-FORWARD, or ADDR from a firewalld zone. Safe only while the address cannot
//     be another's: its reservation is still held by this dead attachment, and no
//     live namespace holds the address. Call.ByAddress names the addresses; the
//     caller guarantees that for each of them. It swallows its errors.
//     Leaves: CNI-FORWARD, CNI-ADMIN and isolation chains, which all Pods share.
//
// # Masquerade
//
// DEL of bridge and ptp returns early without a namespace, and so leaves the chain
// CNI-<hash of network name and container ID> and its jump in POSTROUTING (or, since
// v1.6, rules in inet cni_plugins_masquerade). They are torn down here, by the same
// keys (StepMasquerade). The plugins' own library does it too, but waits for the
// xtables lock for ever.
//
// # What is never run
//
// Everything else. Among it: host-local, dhcp, static (addresses); flannel and
// multus (delegate to plugins with IPAM, from files of their own); macvlan, ipvlan,
// host-device, vlan, tap, dummy, sriov, ovs (do nothing without a namespace, or act
// on a device by name); sbr, vrf (need the namespace); cilium-cni, calico, antrea and
// other agents' (ask a daemon that does its own bookkeeping, some by Pod name). A
// plugin with a `delegate`, whatever its type. And nothing at all for a container ID
// that a runtime may use again: see ReusableOwner.
//
// Hash collisions are as unlikely as for the plugins themselves: 92 bits of SHA-512
// for chains. The hash is of name and ID joined without a separator, which is
// unambiguous among IDs of equal length.
//
// Not covered: portmap, bandwidth and masquerade leave the interface out of their
// key, and portmap's nftables backend the network too. An attachment is therefore
// cleaned only when every attachment of its container ID is dead, which a dead
// sandbox implies.
package cniexec
