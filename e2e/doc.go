// Package e2e holds the tests that run the holdfast program against real container
// runtimes: leaks are made as they are made in the field, and then exactly the dead
// must go while the living keep answering pings.
//
// Scope: tests only. The runtimes come from internal/testenv/cri.
package e2e
