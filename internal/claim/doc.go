// Package claim holds the nouns of Holdfast: what lies on a node for an
// attachment (Resource), the list of it (Snapshot), what a witness said
// (Testimony), and the clock reading at which it was said (Instant).
//
// Scope: plain values, their identity and their text form. Ring 0: no I/O, no
// clock, no context, no log, no goroutine. Everything here marshals to JSON, so
// that a saved audit document can be judged again, byte for byte (I10).
//
// Non-scope: judging (package verdict), talking to the system (internal/sys).
package claim
