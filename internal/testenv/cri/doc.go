// Package cri runs real container runtimes for tests: containerd 1.6 of Debian or
// 2.4.2 of our cache behind CRI, and podman beside it, with real CNI plugins.
//
// Scope: starting and killing them as field failures do (SIGKILL, wiped root, lost
// network namespaces, failing plugins, renamed networks), making Pod sandboxes
// without a kubelet, asking whether they answer pings, and taking all of it away
// again. Each Runtime has a temporary directory, a network, a subnet, a bridge, a
// cgroup and a network namespace of its own that stands for the node's: two test runs
// on one machine do not meet, and no bridge or iptables rule touches the machine's
// own. Needs root and Linux.
//
// What cannot be private, since containerd has no setting for it, and is cleaned by
// exact name: netns mounts in /run/netns, the libcni cache in /var/lib/cni/results,
// the shims' sockets in /run/containerd/s. The PID namespace is the machine's, so
// that a witness that reads /proc sees everything.
//
// Non-scope: asserting anything about holdfast; images other than pause; IPv6.
//
// A test binary that is killed (go test -timeout, SIGKILL) cleans nothing; the next
// Start on the machine finds what it left by an abandoned lock, and takes that away.
package cri
