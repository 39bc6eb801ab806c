// Package line says when the releases of a network must stop, and when they may go on.
//
// Scope: what contradicts a release that was made, and how long the line stays stopped.
// Ring 0: pure. Non-scope: undoing, keeping what is stopped, telling anybody.
package line

import "github.com/holdfast-cni/holdfast/internal/claim"

// Stop is one network whose releases are stopped.
type Stop struct {
	// Store is the directory of reservations, <dataDir>/<network>.
	Store string `json:"store"`
	// Since is when it was stopped, or stopped again.
	Since claim.Instant `json:"since"`
	// Why is one line for people, safe to print.
	Why string `json:"why"`
	// ReleaseIDs are the releases that were contradicted; none for a duplicate of others' making.
	ReleaseIDs []string `json:"releaseIDs,omitempty"`
}
