// Package web is the agent's HTTP port: a page that draws the node's addresses, the same
// as JSON, health, metrics.
//
// Scope: reading. Who may ask: whoever can connect, so it listens on loopback unless told
// otherwise, and shows nothing that `holdfast audit` and `journal` do not. Non-scope:
// changing anything (that is the socket's), counting (package metrics).
package web
