// Package kube runs real Kubernetes for tests: etcd, kube-apiserver with RBAC,
// kube-controller-manager and kube-scheduler as a Cluster, and kubelets with the
// containerd of testenv/cri as its Nodes. Images come from files, never from a registry.
//
//	c := kube.Start(t, kube.Options{})
//	n := c.AddNode(t, kube.NodeOptions{Containerd: cri.V2})
//	pod := c.RunPod(t, kube.PausePod("a", n.Name))
//	n.Kubelet.Kill(t)
//
// The control plane has a network namespace of its own, and so has each node; a bridge
// in the first joins them, so nothing shows on the machine and two test runs do not
// meet. Pods find the API server under the service's address (10.96.0.1:443, as
// KUBERNETES_SERVICE_HOST says): without a kube-proxy, the node's Interposer listens
// there. It can delay, cut, refuse, or answer old lists, to the kubelet, to the agent,
// or to both.
//
// A kubelet runs in a mount namespace of its own, in which the sysctls and directories
// that it would change lie beneath copies.
//
// Where a Pod has hostPID, its /proc/1 is a process in the node's network namespace
// (cri.Runtime.RunOnNode), as PID 1 of a real node would be.
//
// Scope: starting, killing and stopping each program, cutting and staling the API,
// making and deleting Pods, rebooting nodes. Non-scope: kube-proxy, DNS, storage, and
// asserting anything about holdfast.
//
// A test binary that is killed takes the programs along (parent death signal); Pods,
// mounts and directories are taken away by the next start.
package kube
