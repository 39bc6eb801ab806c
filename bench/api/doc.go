// Package api measures what the agents of a cluster ask of its API server: a real etcd and
// kube-apiserver, Nodes and Pods as objects alone, and for each node the witness and the
// watch of an agent (internal/sys/kube), each with a client and connections of its own and
// the permissions of deploy/kustomize.
//
// Scope: bytes, latency, the CPU of API server and etcd, refusals, where the reads are
// answered; with few agents it is also a test that all of them get their answer. Non-scope:
// the agents themselves, which bench measures, and controllers and kubelets, which would be
// measured along.
//
//	make bench BENCH=api
package api
