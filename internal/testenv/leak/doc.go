// Package leak tells what a test left behind in its own process and on the machine:
// open files, locks, goroutines, threads in other namespaces, processes, mounts,
// network namespaces, links, cgroups, files.
//
// Scope: what a test that touches a real kernel may leave, found by comparing before
// and after. testenv.Need begins it, so that no such test can forget it. Other tests
// run on the same machine at the same time, so only what is certainly ours counts: all
// of this process, every process that inherited its mark, and on the machine what lies
// below the test's temporary directory or carries a name handed to Own.
//
// Non-scope: what is inside of a network namespace of a test's own (it ends with it),
// iptables rules and sysctls of the machine's own (no test changes those), and whether
// the files of a node agree with each other (testenv/nodecheck).
package leak
