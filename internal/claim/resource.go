package claim

import (
	"net/netip"
	"time"
)

// Kind names what lies on the node for an attachment.
type Kind string

// The kinds that exist on a node of any CNI.
const (
	KindReservation Kind = "reservation" // an address in an IPAM store
	KindCache       Kind = "cache"       // a libcni result cache file
	KindNetns       Kind = "netns"       // a mount that keeps a network namespace
	KindVeth        Kind = "veth"        // a host-side veth
)

// Attachment is CNI's term: (network name, container ID, interface name).
type Attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName,omitempty"`
}

// Incarnation proves that a file is still the one that was judged (I7). ext4 hands
// an inode number out again at once, so the inode alone proves nothing; ctime (ns)
// cannot be set by a user, and Sum covers the content. Comparable with ==.
type Incarnation struct {
	Dev   uint64 `json:"dev,omitempty"`
	Ino   uint64 `json:"ino,omitempty"`
	Ctime int64  `json:"ctime,omitempty"` // ns since the epoch, compared for equality only
	Size  int64  `json:"size,omitempty"`  // bytes
	Sum   string `json:"sum,omitempty"`   // first 16 bytes of SHA-256 of the content, hex
}

// Resource is one thing found on the node for an attachment.
type Resource struct {
	Kind Kind `json:"kind"`
	// Store is the directory that holds it: <dataDir>/<network> for a reservation,
	// the cache directory for a cache entry, the directory of the mount for a netns.
	Store   string `json:"store,omitempty"`
	Network string `json:"network,omitempty"`
	// Addr is the address of a reservation, unmapped and without zone.
	Addr  netip.Addr  `json:"addr,omitzero"`
	Owner Owner       `json:"owner,omitzero"`
	Path  string      `json:"path,omitempty"`
	Inc   Incarnation `json:"inc,omitzero"`
	// Problem says why it could not be read; then Owner means nothing and the
	// verdict is Unknown.
	Problem string `json:"problem,omitempty"`
	// Stamp is what our own IPAM wrote beside a reservation, nil if there is none.
	Stamp *Stamp `json:"stamp,omitempty"`
	// Cache is set for KindCache.
	Cache *CacheEntry `json:"cache,omitempty"`
	// NetnsID is the nsfs inode of a KindNetns resource.
	NetnsID uint64 `json:"netnsID,omitempty"`
}

// Attachment returns what the resource was left for.
func (r Resource) Attachment() Attachment {
	return Attachment{Network: r.Network, ContainerID: r.Owner.ID, IfName: r.Owner.IfName}
}

// CacheEntry is what the libcni cache knows of one attachment.
type CacheEntry struct {
	// Netns is the path the runtime passed as CNI_NETNS. /proc/PID/ns/net is
	// never trusted later: PIDs are used again (case F13).
	Netns string `json:"netns,omitempty"`
	// Addrs are the addresses of the cached result.
	Addrs []netip.Addr `json:"addrs,omitempty"`
	// HostIfs are the result's interfaces without a sandbox: host-side ends.
	HostIfs []HostIf `json:"hostIfs,omitempty"`
	// Plugins are the plugin types of the cached configuration, in its order.
	Plugins []string `json:"plugins,omitempty"`
	// IPAM is the IPAM type, such as "host-local"; DataDir its data directory with
	// the default filled in, when host-local.
	IPAM    string `json:"ipam,omitempty"`
	DataDir string `json:"dataDir,omitempty"`
	// Pod comes from the cached CNI_ARGS (K8S_POD_*), where present.
	Pod Pod `json:"pod,omitzero"`
}

// HostIf is a host-side interface of a CNI result.
type HostIf struct {
	Name string `json:"name"`
	MAC  string `json:"mac,omitempty"`
}

// Pod names a Kubernetes Pod. It is a label for people; a Pod name never owns an
// address (case F4).
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Store is one directory of reservations.
type Store struct {
	Dir     string `json:"dir"`     // <dataDir>/<network>
	DataDir string `json:"dataDir"` // its parent
	Network string `json:"network"`
	// Configs are the CNI configuration files that name it; none for a directory
	// whose network was renamed or removed (case L15).
	Configs []string `json:"configs,omitempty"`
	// Ranges are the configured ranges, first to last address inclusive, with the
	// gateway and what host-local never hands out left to Capacity.
	Ranges []Range `json:"ranges,omitempty"`
	// Capacity is how many addresses the ranges can hand out; 0 when unknown.
	// Saturates at 1<<62.
	Capacity uint64 `json:"capacity,omitempty"`
	// Writable is false when a release here cannot work (read-only file system).
	Writable bool `json:"writable"`
	// Problem: the directory could not be listed whole; nothing here is released.
	Problem string `json:"problem,omitempty"`
}

// Range is an inclusive range of addresses, with its gateway where configured.
type Range struct {
	First   netip.Addr `json:"first"`
	Last    netip.Addr `json:"last"`
	Gateway netip.Addr `json:"gateway,omitzero"`
}

// Contains reports whether a lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Snapshot is one inventory's listing.
type Snapshot struct {
	// Source is the inventory's name: "hostlocal", "cnicache", "links".
	Source string `json:"source"`
	// Listed is when the listing ended. A witness asked before that does not count
	// (I6).
	Listed    Instant    `json:"listed"`
	Stores    []Store    `json:"stores,omitempty"`
	Resources []Resource `json:"resources,omitempty"`
	// Notes are findings that belong to no resource: an unreadable configuration
	// file, an entry that is no regular file.
	Notes []Note `json:"notes,omitempty"`
}

// Note is a finding about a path.
type Note struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Stamp is what our own IPAM writes beside a reservation when it makes it. It proves how
// old the reservation is, in which boot and for which namespace it was made.
type Stamp struct {
	// Boot is the boot ID, Mono CLOCK_MONOTONIC, as in an Instant.
	Boot string        `json:"boot"`
	Mono time.Duration `json:"mono"`
	// Netns is the nsfs inode of the attachment's network namespace; 0 when it was not
	// known. The kernel uses inode numbers again, so one that is there proves nothing;
	// one that is gone proves that the namespace is.
	Netns uint64 `json:"netns,omitempty"`
}
