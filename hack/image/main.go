// Command image writes the container image as an archive that `ctr images import`,
// `podman load` and every tool that reads an OCI layout take.
//
//	go run ./hack/image -o dist/holdfast-image.tar
//	go run ./hack/image -arch amd64 -name holdfast.test/holdfast:dev -o /tmp/image.tar
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-cni/holdfast/hack/image/archive"
	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	out := fs.String("o", "dist/holdfast-image.tar", "the archive to write")
	name := fs.String("name", "", "the image's name with its tag (default ghcr.io/holdfast-cni/holdfast and the version)")
	version := fs.String("version", "v0.0.0-dev", "the version of the programs")
	commit := fs.String("commit", "unknown", "the commit of the programs")
	arches := fs.String("arch", "amd64,arm64", "architectures, by Go's names, separated by commas")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if *name == "" {
		*name = "ghcr.io/holdfast-cni/holdfast:" + strings.ReplaceAll(*version, "+", "-")
	}
	created := time.Unix(0, 0)
	if e := os.Getenv("SOURCE_DATE_EPOCH"); e != "" {
		s, err := strconv.ParseInt(e, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		created = time.Unix(s, 0)
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return err
	}
	spec := archive.Spec{
		Root: root, Name: *name, Version: *version, Commit: *commit, Arches: strings.Split(*arches, ","),
		Created: created, Progress: stderr,
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	// A reader never sees half an archive.
	f, err := os.CreateTemp(filepath.Dir(*out), ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := archive.Write(ctx, f, spec); err != nil {
		f.Close()
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), *out); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s %s\n", *name, *out)
	return nil
}
