// Package verdict turns what was found and what was said into verdicts.
//
// Judge is a pure function: the agent, the CLI, a simulator and `explain --from
// FILE` run this one code path, and the same bytes in give the same verdicts out
// (I10). Ring 0: no I/O, no clock, no log, no goroutine, no output in map order.
//
// How to read it when you want to know what can ever be released: assess (words.go)
// gives each resource a class from the witnesses' words, gather (group.go) lets the
// living keep their dead-looking siblings, and conclude (judge.go) is the one place
// that sets Finding.Releasable. It fits on a screen.
//
// Non-scope: asking witnesses again right before a release (package sweep), the order
// of a release and the cap (package plan).
package verdict
