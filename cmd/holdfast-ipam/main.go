// Command holdfast-ipam is a CNI IPAM plugin: a drop-in for host-local that works on the
// same directory, with the same configuration, file format and lock, in both directions.
//
// Scope: ADD, DEL, CHECK, GC, STATUS and VERSION of CNI 0.1.0 to 1.1.0. What it adds to
// host-local: a reservation is whole, durable and stamped before it has its name; ADD is all
// or nothing; errors of releasing are told; nothing is read that need not be; a network
// that is full of what is dead is healed (by the agent, or by the holdfast binary beside this
// one) before ADD fails. docs/ipam.md lists every difference.
//
// Non-scope: judging. This program links neither the judge nor a runtime's client.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// Set by the linker.
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
)

func main() {
	growStack(0)
	// A runtime that does not read any more must not end us before what was reserved is
	// taken back.
	signal.Ignore(syscall.SIGPIPE)
	err := protocol(verbs{add: cmdAdd, del: cmdDel, check: cmdCheck, gc: cmdGC, status: cmdStatus},
		"CNI holdfast-ipam plugin "+version+" ("+commit+")")
	if err != nil {
		_ = err.Print()
		os.Exit(1)
	}
}

// growStack makes the stack as large as a call needs while it is shallow. It would be doubled
// four times otherwise, deep within encoding/json, where each time all frames are looked up
// and moved: 3 % of a DEL.
//
//go:noinline
func growStack(i int) byte {
	var room [24 << 10]byte
	return room[i]
}
