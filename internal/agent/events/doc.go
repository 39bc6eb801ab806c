// Package events tells the API what people should see without looking for it: Kubernetes
// Events on the Node, and on the Pod whose sandboxes keep leaking.
//
// Scope: which events, how often, in which words; never a storm, never in the way of a
// sweep. Non-scope: speaking to the API (a Sink, which cmd wires), alerts (metrics).
//
// The bounds: one write in 10 minutes for each object and reason, with counts of what
// came meanwhile; 10 writes at once and then one in 6 seconds for all together; 256 pairs of object and
// reason, beyond which what comes is dropped and counted. A sweep only adds to a table
// in memory; Run writes.
package events
