// Package failpoint names the places at which a crash or an error must not do harm, and
// brings either about there, for tests.
//
// Scope: the list of points (names.go), the grammar, and the file that holds what is to
// happen. With the build tag "failpoint" At reads that file; without it At is an empty
// function that the compiler takes away, and nothing of this package is in the program.
// Not in scope: deciding where points belong, and any switch of the released program.
//
// The environment variable HOLDFAST_FAILPOINTS names the file, so that processes that
// live for a moment count across their lives. One line per point; empty lines and those
// that begin with "#" say nothing:
//
//	journal.append.synced 1*off->1*kill
//	state.renamed         2*delay(50ms)->error(disk gone)
//
// A term is [N*]action: N times (1 to 1,000,000), or every time from then on without N.
// The terms are used up in their order, and the file is rewritten at every passage, under
// flock(2); when none is left the line says "off". After containerd's
// internal/failpoint and FreeBSD's fail(9), with these actions:
//
//	off            nothing
//	error(text)    At returns an *Injected with the text
//	panic(text)    panics
//	delay(50ms)    waits, at most an hour
//	kill           SIGKILL to the own process; At does not return
//
// A text holds neither ")" nor a control character. A file that is not of that form, or
// that names an unknown point, is a panic: a failpoint that silently does nothing would
// prove nothing.
package failpoint
