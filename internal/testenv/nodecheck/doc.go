// Package nodecheck cross-walks what a node has in files and in the kernel: whether
// stores, libcni cache, journal, quarantine, sightings, holds and living Pods agree with
// each other.
//
// Scope: a node at rest: no plugin and no holdfast at work on the directories. Of the
// stores and the cache it reads the formats itself, not through the drivers, whose
// mistakes it would share; of the journal and the state files it takes the reader of
// the one package that owns the format, and looks at what the entries claim.
//
// Non-scope: whether a release was right (internal/sim knows the truth; here only a
// living Pod is known), and what a test leaves outside of these directories
// (testenv/leak, which testenv.Need begins).
package nodecheck
