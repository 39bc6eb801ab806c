// Package kube is the witness of the API server: which Pods it has for this node.
//
// Scope: one client over core/v1 (client.go); the testimony (witness.go, brake.go); a watch that
// wakes and never testifies (watch.go); Events: those of failed sandboxes, and a sink
// (events.go); turning answers into facts (parse.go, pure).
//
// Non-scope: judging; caches and informers, whose content has an age that nobody can tell;
// any object but Nodes, Pods and Events.
//
// # The rule of silence
//
// A testimony is complete when the Node object named here exists and carries the boot ID of
// this machine, and the API server has answered a list of that node's Pods in one piece, not
// older than a revision that it has read from quorum since it was asked, or itself from
// quorum (resourceVersion ""). Anything else is silent, with the reason: an error, a
// time-out, an answer that is cut off, cannot be decoded, is paginated, holds a Pod of
// another node, or is older than the revision or than the answer before. An empty list is
// believed only if the Node object was read after it. Silent as well, and nothing is asked,
// is who was told or seen that the API server has too much to do (brake.go).
//
// # What is not covered
//
// Nodes that share a kernel, as kind's do, share a boot ID: a wrong node name among them is
// found out by the judge alone, which compares the list with the runtime's sandboxes. A
// machine keeps its boot ID until it reboots, so a Node object that was deleted and made
// again is taken for the same.
package kube
