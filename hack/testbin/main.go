// Command testbin builds the foreign programs that tests and the demo run against,
// once per machine, and prints the directories that hold them.
//
//	go run ./hack/testbin containerd cniplugins pause kubernetes
//	go run ./hack/testbin bridge host-local
//
// A name is a group or one program of a group. One line is printed for each distinct
// group, in the order in which the groups were first named. Building happens only
// for what the cache lacks; run it under nice(1) on a machine that others use.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testbin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	if len(names) == 0 || strings.HasPrefix(names[0], "-") {
		return fmt.Errorf("usage: testbin NAME...; known names: %s", strings.Join(prebuilt.Names(), " "))
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return err
	}
	cache, err := prebuilt.DefaultCache(os.Getenv)
	if err != nil {
		return err
	}
	dirs, err := prebuilt.Builder{Root: root, Cache: cache, Progress: os.Stderr}.Ensure(ctx, names...)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		fmt.Println(d)
	}
	return nil
}
