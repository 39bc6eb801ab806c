package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

func main() {
	var err error
	switch role := strings.Join(os.Args[1:min(len(os.Args), 2)], ""); role {
	case "pause":
		err = pause()
	case "node":
		err = node(os.Args[2:])
	default:
		err = stage(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// pause is the process of a Pod: it ends when its standard input does, and so with the
// node, however the node ends.
func pause() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// stage builds, runs the node in a network namespace of its own, and cleans up.
func stage(args []string) (err error) {
	fl := flag.NewFlagSet("demo", flag.ContinueOnError)
	holdfast := fl.String("holdfast", "", "use this binary of holdfast instead of building it")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces and mounts (try `sudo make demo`)")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if root, err = prebuilt.FindRoot(root); err != nil {
		return err
	}
	cache, err := prebuilt.DefaultCache(os.Getenv)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "holdfast-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp(dir)) }()

	fmt.Println("building (the first time this takes a minute or two) ...")
	dirs, err := prebuilt.Builder{Root: root, Cache: cache, Progress: os.Stderr}.Ensure(ctx, "bridge", "host-local")
	if err != nil {
		return err
	}
	if *holdfast == "" {
		*holdfast = filepath.Join(dir, "holdfast")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", *holdfast, "./cmd/holdfast")
		build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if err := build.Run(); err != nil {
			return fmt.Errorf("build holdfast: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "node", dir, dirs[0], *holdfast)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.Run()
}

// cleanUp takes the mounts and files under dir away. The processes are gone: they end
// with the node.
func cleanUp(dir string) error {
	var errs []error
	mounts, err := os.ReadDir(filepath.Join(dir, "netns"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, m := range mounts {
		errs = append(errs, unpin(filepath.Join(dir, "netns", m.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err // RemoveAll must not meet a mount
	}
	return os.RemoveAll(dir)
}

// unpin removes the mount that keeps a network namespace, and its file.
func unpin(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return os.Remove(path)
}
