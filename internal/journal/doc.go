// Package journal is the append-only log of releases: what was about to be
// released and why (intent), what came of it (outcome), and the same for its
// undoing. A release without a durable intent must not happen (I3); an intent
// without an outcome is what a crash leaves behind, and is settled at the next
// start (I4).
//
// Scope: the file <state-dir>/journal, its format (docs/format/journal.md), the
// reading of a damaged one, what the records add up to (Replay), retention
// (Compact), and the IDs of releases.
//
// Non-scope: deciding what to release, moving reservations, settling. The package
// takes no lock: whoever opens a journal for appending holds the reaper lock (I9),
// which serialises writers. Readers need no lock.
package journal
