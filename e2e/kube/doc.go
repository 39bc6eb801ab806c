// Package kube holds the scenes in real Kubernetes: the agent runs as a DaemonSet from its
// image, as deploy/ has it; leaks are made as they are made in the field; and what is right is
// looked up on the node, in files, in the kernel, and at the Pods.
//
// From the first Pod to the last a watcher looks at each node from outside: one address in
// two namespaces that are in use, or a release of an address that was in use, fails the run.
//
// Scope: tests only. Clusters come from internal/testenv/kube.
package kube
