// Package sim is a node in one process, driven by a seed, over the real engine: the
// judge, the planner, the journal, the stores and the state files are the product's;
// the disk is fsys/memfs; kernel, processes, runtimes, API server and clocks are models
// that know the truth.
//
// # How it works
//
// A World is the truth. A script is a list of operations with small integer arguments
// ("add 3 0 1", "wait 4", "gc"): what upstream host-local, runtimes, kubelet, people and
// power do, and the commands of the Subject under test. An operation may be set to
// happen in the middle of the next command, before its k-th file call or the k-th
// question to the witnesses ("@file:12 del 3 0", "@ask:2 kill"), or right before it takes the
// k-th lock of a store or moves the k-th file ("@lock:1", "@move:1"). The witnesses tell of
// the truth what they would see of it, with all their ways to fail. The oracle compares
// the stores with what upstream left there, at every point where the world can change,
// and so holds each release against the truth of that moment, and against the gates by
// what the process was told (gates.go).
//
// The same script gives the same run: no real time, no goroutine, no map order. A seed
// is a script that the generator writes while it runs. A run that fails is shrunk to a
// short script, which goes into testdata and is run for ever.
//
// # Scope
//
// Whether what the engine does is right, by the invariants of docs/design.md. The
// Subject can be another collector: a known-bad policy must be found out.
//
// # Non-scope
//
// What the drivers of kernel, processes and runtimes read of a real node (they have
// their own tests against real ones); plugins (CNI DEL) and veths; concurrency within
// one process. Allocators other than host-local and ours.
package sim
