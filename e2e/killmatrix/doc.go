// Package killmatrix kills the real holdfast at every failpoint, on a real node, runs it
// again, and looks whether the node is as it should be (I1, I3, I4). What it covers is
// told in docs/proof.md, "Kill matrix".
//
// Scope: a test only, with internal/failpoint's points. Not in scope: power loss, which
// takes away what was not fsynced as well (internal/sim).
package killmatrix
