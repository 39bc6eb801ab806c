package v1alpha1

// KindAgentConfiguration is the kind of the agent's configuration file.
const KindAgentConfiguration = "AgentConfiguration"

// AgentConfiguration is the configuration file of `holdfast agent`. Every field is optional.
// Durations are Go's: "90s", "5m", "1h30m".
type AgentConfiguration struct {
	TypeMeta
	// NodeName is the node's name in Kubernetes; empty: the environment's NODE_NAME, else
	// the host name.
	NodeName string `json:"nodeName,omitempty"`
	// Interval is the time between two sweeps (1s to 1h, default 1m); each is up to a tenth
	// longer or shorter, so that nodes do not ask together.
	Interval string `json:"interval,omitempty"`
	// Grace is the least time between the two sightings (1ms to 24h). Empty: 5m, or what
	// the kubelet's runtimeRequestTimeout asks for if that is longer. A shorter one is not safe: an
	// ADD in flight may take longer.
	Grace string `json:"grace,omitempty"`
	// OrphanGrace is the longer one, for what is less certain (1ms to 168h, default 1h).
	OrphanGrace string `json:"orphanGrace,omitempty"`
	// WitnessTimeout is how long each witness may take (100ms to 5m, default 10s).
	WitnessTimeout string `json:"witnessTimeout,omitempty"`
	// DryRun: look, judge and tell, and release nothing.
	DryRun bool `json:"dryRun,omitempty"`
	// Adopt gives live attachments whose reservation is missing theirs back (default true).
	Adopt *bool `json:"adopt,omitempty"`
	// Orphans releases orphaned addresses also where no runtime vouches for their namespaces'
	// names, Foreign reservations whose owner is no container ID.
	Orphans bool `json:"orphans,omitempty"`
	Foreign bool `json:"foreign,omitempty"`
	// SideResources: run CNI DEL for port mappings and firewall rules of the dead (default true).
	SideResources *bool `json:"sideResources,omitempty"`
	// MaxReleases is the most releases of one network in 30 s; 0: 10 % of its
	// reservations, at least 16.
	MaxReleases int `json:"maxReleases,omitempty"`
	// Exclude are addresses or prefixes to leave alone.
	Exclude []string `json:"exclude,omitempty"`
	// Networks, unless empty, are the only ones to release from.
	Networks []string      `json:"networks,omitempty"`
	Paths    AgentPaths    `json:"paths,omitzero"`
	CRI      AgentCRI      `json:"cri,omitzero"`
	Kube     AgentKube     `json:"kube,omitzero"`
	Pressure AgentPressure `json:"pressure,omitzero"`
	HTTP     AgentHTTP     `json:"http,omitzero"`
	Log      AgentLog      `json:"log,omitzero"`
}

// AgentPaths are where things lie on the node, as the agent sees it. Empty lists are the
// places that distributions use.
type AgentPaths struct {
	StateDir      string   `json:"stateDir,omitempty"` // default /var/lib/holdfast
	RunDir        string   `json:"runDir,omitempty"`   // default /run/holdfast; agent.sock and locks
	Proc          string   `json:"proc,omitempty"`     // default /proc
	CNIConfDirs   []string `json:"cniConfDirs,omitempty"`
	DataDirs      []string `json:"dataDirs,omitempty"`
	CNICacheDirs  []string `json:"cniCacheDirs,omitempty"`
	CNIBinDirs    []string `json:"cniBinDirs,omitempty"`
	KubeletConfig string   `json:"kubeletConfig,omitempty"` // default /var/lib/kubelet/config.yaml
}

// AgentCRI says which container runtimes there are.
type AgentCRI struct {
	// Endpoints are sockets; empty: every one found. "none" alone says that this node has no
	// CRI runtime.
	Endpoints []string `json:"endpoints,omitempty"`
}

// AgentKube says what of Kubernetes is asked and told.
type AgentKube struct {
	// Enabled asks the API for the Pods of this node (default: where the agent runs as a Pod
	// or a kubeconfig is named).
	Enabled *bool `json:"enabled,omitempty"`
	// Required: while the API is silent nothing is released (default true). false is for
	// nodes that must go on without it.
	Required *bool `json:"required,omitempty"`
	// Kubeconfig is a file; empty: the service account of the Pod.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Events writes Kubernetes Events (default true).
	Events *bool `json:"events,omitempty"`
}

// AgentPressure says when a range runs low.
type AgentPressure struct {
	// Threshold is the part of a range that is reserved from which on it is under pressure
	// (0.1 to 1, default 0.85).
	Threshold *float64 `json:"threshold,omitempty"`
	// Grace is the shorter grace that holds under pressure with stronger evidence (1s to 1h,
	// default 30s); "0s" switches it off.
	Grace string `json:"grace,omitempty"`
	// Interval is the least time between two sweeps under pressure (100ms to 1h, default 10s).
	Interval string `json:"interval,omitempty"`
}

// AgentHTTP is the page, the metrics and the probes.
type AgentHTTP struct {
	// Address is host:port (default 127.0.0.1:9617); "none" serves nothing. Whoever can
	// reach it can read what `holdfast audit` shows.
	Address string `json:"address,omitempty"`
	// Hosts are further names under which it may be asked for; addresses and localhost
	// always are.
	Hosts []string `json:"hosts,omitempty"`
	// Pprof serves /debug/pprof/.
	Pprof bool `json:"pprof,omitempty"`
}

// AgentLog is what is written to standard error.
type AgentLog struct {
	Level  string `json:"level,omitempty"`  // debug, info (default), warn, error
	Format string `json:"format,omitempty"` // json (default) or text
}
