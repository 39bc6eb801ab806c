// Package ipam holds the contract of host-local 1.10.0 that a drop-in must keep: whole
// processes are run with the CNI environment and a configuration, and what counts is
// what they print, how they end and what then lies in their data directory.
//
// Scope: tests only. TestContract is a table of small scenes. TestDifferential runs
// random calls on two directories, one a program, and compares after each.
// TestInterleaved lets several processes work on one directory and kills some of them.
// Every program of programs() goes through all of it; what is meant to differ is listed
// in differences().
//
// Non-scope: attaching real containers (package e2e), time (package bench), healing.
//
// The tests need neither root nor a network namespace: an IPAM plugin only reads
// CNI_NETNS. The addresses are those of RFC 2544 and RFC 3849, which no node has, since
// a plugin may look at what the kernel holds.
package ipam
