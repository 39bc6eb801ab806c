// Package state is the sole owner of the small files in the state directory: the
// judge's sightings, the boots that were seen, the runtimes that ever answered, the holds, and
// the networks whose releases are stopped. docs/format/sightings.md describes their common format.
//
// What a lost or damaged file means differs, and is chosen so that it never leads to
// a release (I5):
//
//	sightings  start anew: nothing is proven yet. The damaged file is kept aside.
//	boots      no past boots are known: nothing is proven by a boot. Kept aside.
//	runtimes   an error: a runtime that must be asked may be missing from the list,
//	           so the witness has to be silent. Left where it is.
//	holds      an error: a person said hold, and nobody knows of what any more, so
//	           nothing may be released. Left where it is, for a person to look at.
//	stops      every network is stopped, until a person resumes. The damaged file is kept aside.
//
// Scope: these files, their directory and its short lock. Non-scope: the journal
// (internal/journal), the quarantine (internal/sys/hostlocal), the reaper lock, and
// what any of it means for a verdict (internal/verdict).
package state
