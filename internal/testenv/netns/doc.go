// Package netns makes private network namespaces for tests: pinned by a bind mount
// under a temporary directory, wired with veths, with processes living in them.
//
// Scope: what tests of the kernel's view need, on the real kernel. Everything made
// here is taken away by t.Cleanup, by exact path and PID. Two runs on one machine do
// not meet: names are random, and Subnet hands a /24 to one run only.
//
// Non-scope: CNI plugins and runtimes.
//
// Every function here needs root: call testenv.Need(t, testenv.Netns) first.
// A test binary that is killed leaves its mounts and namespaces behind; processes
// started by Hold end by themselves, since they wait for the end of a pipe of ours.
package netns
