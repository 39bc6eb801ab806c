// Command pause is what a Pod sandbox of our tests runs: it waits, collects the
// children that others left to it as PID 1 of a PID namespace, and ends on SIGTERM
// or SIGINT. No image registry is needed for it: the tests import it as an OCI image
// that they make themselves.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			os.Exit(0)
		}
		reap()
	}
}

// reap collects every child that has ended. Signals coalesce, so one SIGCHLD may
// stand for many children.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
