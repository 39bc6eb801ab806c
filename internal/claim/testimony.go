package claim

import (
	"net/netip"
	"time"
)

// The witnesses' names.
const (
	WitnessKernel  = "kernel"
	WitnessProcess = "process"
	WitnessCRI     = "cri"
	WitnessBoot    = "boot"
	WitnessKube    = "kube"
)

// State says whether a testimony counts. The zero value is StateSilent: a witness
// that was never asked has said nothing.
type State string

// A testimony is whole or it is silent. There is no partial one (I5).
const (
	StateSilent   State = "silent"
	StateComplete State = "complete"
	// StateNone: there is no such witness on this node and nobody requires it, such
	// as a socket whose owner does not implement CRI. Reported, not required.
	StateNone State = "none"
)

// Testimony is one witness's whole answer. Only the facts of its own witness are set.
type Testimony struct {
	Witness string `json:"witness"`
	State   State  `json:"state"`
	// Detail says why it is silent, or sums up what it saw. Safe to print.
	Detail string `json:"detail,omitempty"`
	// Asked is when the witness was first asked; a Snapshot listed later is not
	// covered by it (I6).
	Asked Instant       `json:"asked"`
	Took  time.Duration `json:"took"`

	Kernel  *KernelFacts  `json:"kernel,omitempty"`
	Process *ProcessFacts `json:"process,omitempty"`
	CRI     *CRIFacts     `json:"cri,omitempty"`
	Boot    *BootFacts    `json:"boot,omitempty"`
	Kube    *KubeFacts    `json:"kube,omitempty"`
}

// KernelFacts are the network namespaces of the node.
type KernelFacts struct {
	Netns   []Netns `json:"netns"`
	Vantage Vantage `json:"vantage"`
}

// Netns is one network namespace.
type Netns struct {
	// ID is the nsfs inode, unique among the living namespaces of one boot.
	ID uint64 `json:"id"`
	// Host is true for PID 1's namespace.
	Host bool `json:"host,omitempty"`
	// Mounts are the nsfs mounts that pin it: paths as seen in their mount namespace.
	Mounts []string `json:"mounts,omitempty"`
	// Procs counts the processes in it; PIDs is a sample of at most 8.
	Procs int   `json:"procs,omitempty"`
	PIDs  []int `json:"pids,omitempty"`
	// FDHolders counts processes outside that hold an open descriptor of it, our own
	// process left out.
	FDHolders int `json:"fdHolders,omitempty"`
	// Addrs are its addresses without loopback (127/8, ::1) and link-local ones.
	Addrs []IfAddr `json:"addrs,omitempty"`
}

// Used reports whether any process is in the namespace or holds it open.
func (n Netns) Used() bool { return n.Procs > 0 || n.FDHolders > 0 }

// IfAddr is an address on an interface. If is the interface's name, or "#index".
type IfAddr struct {
	If   string     `json:"if"`
	Addr netip.Addr `json:"addr"`
}

// KernelSpeaksFor reports whether the kernel witness can speak of an address: it
// leaves loopback and link-local addresses out.
func KernelSpeaksFor(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsUnspecified() && !a.IsMulticast()
}

// ProcessFacts are container IDs found whole in live processes.
type ProcessFacts struct {
	Hits []ProcessHit `json:"hits"`
	// Shims are the live containerd shims and conmons, whatever runtime they serve.
	Shims []Shim `json:"shims,omitempty"`
}

// ProcessHit is one ID in one process.
type ProcessHit struct {
	ID    string `json:"id"`
	PID   int    `json:"pid"`
	Netns uint64 `json:"netns,omitempty"` // nsfs inode of that process's namespace
	Via   string `json:"via"`             // "cgroup", "shim", "conmon" or "cni"
}

// Shim is a process that holds a container for a runtime.
type Shim struct {
	PID int    `json:"pid"`
	ID  string `json:"id"`
	// Namespace is the containerd namespace ("k8s.io", "moby", ...), or "cri-o" for a
	// conmon that CRI-O started, or empty.
	Namespace string `json:"namespace,omitempty"`
	Address   string `json:"address,omitempty"` // the runtime's socket, where the command line gives it
}

// CRIFacts are the Pod sandboxes of every runtime that answered.
type CRIFacts struct {
	Runtimes  []Runtime `json:"runtimes"`
	Sandboxes []Sandbox `json:"sandboxes"`
	// Detailed is true when Sandboxes carry Addrs and Netns: status was asked for
	// every one of them.
	Detailed bool `json:"detailed,omitempty"`
}

// Runtime is one CRI endpoint.
type Runtime struct {
	Endpoint string `json:"endpoint"`
	Name     string `json:"name,omitempty"`
	Version  string `json:"version,omitempty"`
	State    State  `json:"state"`
	Detail   string `json:"detail,omitempty"`
	// Named: the operator named it. Known: it has answered here before. Either makes
	// it required.
	Named bool `json:"named,omitempty"`
	Known bool `json:"known,omitempty"`
	// PeerPID is the listener's PID in our PID namespace (SO_PEERCRED), 0 when it
	// lives in one that we cannot see.
	PeerPID int `json:"peerPID,omitempty"`
	// PeerPIDNS is the inode of that process's PID namespace, 0 when it could not be read.
	PeerPIDNS uint64 `json:"peerPIDNS,omitempty"`
}

// Sandbox is one Pod sandbox.
type Sandbox struct {
	ID       string `json:"id"`
	Endpoint string `json:"endpoint"`
	Ready    bool   `json:"ready"`
	Pod      Pod    `json:"pod"`
	// FromAPI: its Pod came from the API server, by the kubelet's annotation. False for a
	// static Pod (case F16), for a sandbox that no kubelet made, and when nobody said.
	FromAPI bool   `json:"fromAPI,omitempty"`
	Attempt uint32 `json:"attempt,omitempty"`
	// Created is the runtime's word for when it was made, ns since the epoch. It
	// only orders sandboxes of one Pod.
	Created int64        `json:"created,omitempty"`
	Netns   string       `json:"netns,omitempty"` // path, when Detailed
	Addrs   []netip.Addr `json:"addrs,omitempty"` // when Detailed
}

// KubeFacts are the Pods that the API server has for this node.
type KubeFacts struct {
	// Node is the Node object that is this machine.
	Node string    `json:"node"`
	Pods []KubePod `json:"pods"`
}

// KubePod is one Pod as the API server has it. What its status says lags behind the node.
type KubePod struct {
	Pod
	// ConfigHash of a mirror Pod is the UID under which the runtime knows its static Pod.
	ConfigHash string `json:"configHash,omitempty"`
	Phase      string `json:"phase,omitempty"`
	// Deleting: it has a deletion timestamp, and its containers may run all the same.
	Deleting    bool         `json:"deleting,omitempty"`
	HostNetwork bool         `json:"hostNetwork,omitempty"`
	Addrs       []netip.Addr `json:"addrs,omitempty"` // status.podIPs, unmapped and without zone
}

// Ended reports whether the Pod is over for the API: Succeeded or Failed.
func (p KubePod) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// BootFacts are the boots that this state directory has seen.
type BootFacts struct {
	Current string `json:"current"`
	// Past are boot IDs that were once recorded as current and then seen replaced.
	// Only these prove death (case F23).
	Past []string `json:"past,omitempty"`
}

// Vantage is the proof that the kernel and process witnesses see the whole node (I13).
type Vantage struct {
	Proven bool `json:"proven"`
	// InitialPIDNS: the /proc that was read belongs to the initial PID namespace.
	// Otherwise the runtimes' own processes must be visible in it.
	InitialPIDNS bool `json:"initialPIDNS"`
	// PIDNS is the inode of the PID namespace that the /proc shows, 0 when not known.
	PIDNS  uint64  `json:"pidNS,omitempty"`
	Checks []Check `json:"checks,omitempty"`
}

// Check is one thing doctor shows.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	Fix    string `json:"fix,omitempty"` // what to do about it
}
