// Package testenv says whether this machine can run a test, and makes a test that
// cannot run either a skip or, where it was required, a failure.
//
// Scope: the gate (Need), a test without root (AsNobody), and a thread to spoil
// (OnDoomedThread). Non-scope: making anything; the rooms below do that
// (testenv/netns and its neighbours).
package testenv
