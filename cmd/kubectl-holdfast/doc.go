// Command kubectl-holdfast is a plugin of kubectl: it asks the agents of a cluster, through
// the API server and with the permissions of whoever runs it.
//
// Scope: reading. Non-scope: releasing anything, which is the agents' own business, and
// `holdfast gc` on the node.
package main
