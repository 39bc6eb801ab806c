package cri

// Place is a path where some distribution puts a CRI socket.
type Place struct {
	Endpoint string // unix:///path
	Reason   string // who puts it there, for doctor
}

// DefaultPlaces returns the sockets that are looked for without being named, in a
// fixed order. Paths under /run only: on every distribution that runs a kubelet
// /var/run is a symlink to /run; where it is not, the /var/run spellings at the end
// find the socket, and where it is, they are the same inode and are asked once.
func DefaultPlaces() []Place {
	return []Place{
		{"unix:///run/containerd/containerd.sock", "containerd's own default: kubeadm, kind, GKE, EKS, AKS, Talos, Bottlerocket"},
		{"unix:///run/k3s/containerd/containerd.sock", "containerd inside k3s and RKE2"},
		{"unix:///run/crio/crio.sock", "CRI-O: OpenShift, MicroShift, OKD"},
		{"unix:///run/cri-dockerd.sock", "cri-dockerd: Docker Engine under a kubelet since Kubernetes 1.24, minikube"},
		{"unix:///run/k0s/containerd.sock", "containerd inside k0s"},
		{"unix:///var/snap/microk8s/common/run/containerd.sock", "containerd inside the MicroK8s snap"},
		{"unix:///run/isulad.sock", "iSulad on openEuler"},
		{"unix:///run/dockershim.sock", "kubelet's dockershim before Kubernetes 1.24; on older EKS and Bottlerocket images a symlink to containerd"},
		{"unix:///run/docker/containerd/containerd.sock", "the containerd that dockerd starts itself; it serves no CRI unless someone enabled it"},
		{"unix:///var/run/containerd/containerd.sock", "kubeadm's spelling, where /var/run is no symlink to /run"},
		{"unix:///var/run/crio/crio.sock", "kubeadm's spelling, where /var/run is no symlink to /run"},
		{"unix:///var/run/cri-dockerd.sock", "kubeadm's spelling, where /var/run is no symlink to /run"},
	}
}

// DefaultEndpoints returns the endpoints of DefaultPlaces, for Config.WellKnown.
func DefaultEndpoints() []string {
	places := DefaultPlaces()
	out := make([]string, len(places))
	for i, p := range places {
		out[i] = p.Endpoint
	}
	return out
}
