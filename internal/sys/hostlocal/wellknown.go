package hostlocal

// DefaultDataDir is where host-local keeps its networks unless `dataDir` says
// otherwise (backend/disk, defaultDataDir).
const DefaultDataDir = "/var/lib/cni/networks"

// DefaultConfDir is where every runtime looks for CNI configuration by default.
const DefaultConfDir = "/etc/cni/net.d"

// place is one row of the table of places that distributions use.
type place struct {
	confDir string
	dataDir string
	// inside is the data directory as a plugin sees it that runs in a container
	// into which dataDir is mounted. A network that a configuration puts at inside,
	// where it does not exist, is looked for in dataDir.
	inside string
	reason string
}

// wellKnown returns the places to look at on a node of unknown make. A place that
// does not exist costs one system call.
func wellKnown() []place {
	return []place{
		{confDir: DefaultConfDir, dataDir: DefaultDataDir,
			reason: "defaults of CNI and host-local: kubeadm, flannel, kube-router, k0s, CRI-O, podman, nerdctl (nerdctl-*.conflist, also in a sub-directory per namespace)"},
		{confDir: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
			reason: "k3s: its containerd reads flannel's configuration here; host-local keeps its default data directory"},
		{confDir: "/var/lib/rancher/rke2/agent/etc/cni/net.d",
			reason: "RKE2 with the agent's own flannel; Canal uses /etc/cni/net.d"},
		{dataDir: "/run/cni-ipam-state",
			reason: "kindnet (kind): the dataDir of its template, on tmpfs"},
		{dataDir: "/var/run/antrea/cni/networks", inside: DefaultDataDir,
			reason: "Antrea: the agent runs host-local in its own container, where /var/lib/cni is the host's /var/run/antrea/cni"},
		{confDir: "/var/snap/microk8s/current/args/cni-network", dataDir: "/var/snap/microk8s/current/var/lib/cni/networks",
			reason: "MicroK8s: everything below the snap's data directory"},
		{confDir: "/opt/cni/config",
			reason: "Nomad: cni_config_dir's default, for networks other than its bridge"},
		{dataDir: "/run/cni",
			reason: "Nomad's bridge network from 1.9.4 (dataDir /var/run/cni), and Talos' advice for Multus"},
		{confDir: "/etc/cni/multus/net.d",
			reason: "Multus: configurations of secondary networks on disk"},
		{confDir: "/etc/kubernetes/cni/net.d",
			reason: "OpenShift: /etc is not writable to the network operator's default place"},
		{confDir: "/etc/cni/net.mk",
			reason: "minikube with a CNI of its own"},
	}
}
