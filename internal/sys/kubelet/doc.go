// Package kubelet finds out how long this node's kubelet waits for its runtime, by which the
// grace is set.
//
// Scope: the command line of living kubelets (also k3s, which has one inside), and the
// configuration files that it names, read through the process's own root. Non-scope: asking
// the kubelet or the API server, which takes permissions that are worth more than the answer.
package kubelet
