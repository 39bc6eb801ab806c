package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Spec says what to build.
type Spec struct {
	Root            string   // the clone
	Name            string   // with a tag; runtimes import the image under it
	Version, Commit string   // as `holdfast version` prints them
	Arches          []string // Go's names; the image is an index when there are several
	// Created is the image's date. It is part of the bytes.
	Created time.Time
	// Progress gets a line for each build, and the compiler's messages. Nil discards them.
	Progress io.Writer
}

// programs are in the image's root.
func programs() []string { return []string{"holdfast", "holdfast-ipam"} }

// Write builds the programs and writes the archive, an OCI image layout in a tar file.
// The same sources, Go and Spec give the same bytes. On an error w has got a part.
func Write(ctx context.Context, w io.Writer, s Spec) error {
	if len(s.Arches) == 0 || s.Name == "" {
		return fmt.Errorf("an image needs a name and an architecture, got %q and %q", s.Name, s.Arches)
	}
	if s.Progress == nil {
		s.Progress = io.Discard
	}
	scratch, err := os.MkdirTemp("", "holdfast-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	bins := map[string]string{}
	for _, arch := range s.Arches {
		bins[arch] = filepath.Join(scratch, arch)
		if err := s.compile(ctx, arch, bins[arch]); err != nil {
			return err
		}
	}
	return s.assemble(w, scratch, bins)
}

// assemble makes the archive of programs that are built already: bins are their
// directories by architecture.
func (s Spec) assemble(w io.Writer, scratch string, bins map[string]string) error {
	var adds []mutate.IndexAddendum
	for _, arch := range s.Arches {
		img, err := s.image(arch, bins[arch])
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		adds = append(adds, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	top := adds[0]
	if len(adds) > 1 {
		// An image of several architectures is one image, so it is an index of its own
		// below the layout's.
		inner := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), adds...)
		top = mutate.IndexAddendum{Add: inner}
	}
	top.Descriptor.Annotations = map[string]string{
		"io.containerd.image.name":          s.Name, // read by containerd
		"org.opencontainers.image.ref.name": s.Name, // read by podman and others
	}
	dir := filepath.Join(scratch, "layout")
	if _, err := layout.Write(dir, mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), top)); err != nil {
		return err
	}
	return tarOf(w, dir)
}

// compile builds with the flags of `make build`.
func (s Spec) compile(ctx context.Context, arch, out string) error {
	began := time.Now()
	var packages []string
	for _, p := range programs() {
		packages = append(packages, "./cmd/"+p)
	}
	args := append([]string{
		"build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -X main.version=" + s.Version + " -X main.commit=" + s.Commit, "-o", out + "/",
	}, packages...)
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK=off")
	cmd.Stdout, cmd.Stderr = s.Progress, s.Progress
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build for %s: %w", arch, err)
	}
	fmt.Fprintf(s.Progress, "image: built linux/%s in %s\n", arch, time.Since(began).Round(time.Second))
	return nil
}

// image puts the programs of bin into an image from scratch: no shell, no libraries,
// nothing to run but them.
func (s Spec) image(arch, bin string) (v1.Image, error) {
	var content bytes.Buffer
	tw := tar.NewWriter(&content)
	for _, p := range programs() {
		text, err := os.ReadFile(filepath.Join(bin, p))
		if err != nil {
			return nil, err
		}
		if err := add(tw, p, 0o755, text); err != nil {
			return nil, err
		}
	}
	// No link from /var/run to /run: where the node's /run is mounted read only, nothing
	// could be mounted at /var/run/secrets, and the kubelet puts the token there.
	if err := tw.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: s.Created.UTC()}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), mutate.Addendum{
		Layer: layer, History: v1.History{Created: created, CreatedBy: "hack/image", Comment: strings.Join(programs(), ", ")},
	})
	if err != nil {
		return nil, err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Created = "linux", arch, created
	cf.Config = v1.Config{
		User: "0:0", WorkingDir: "/", Entrypoint: []string{"/holdfast"}, Cmd: []string{"agent"},
		Labels: s.labels(),
	}
	return mutate.ConfigFile(img, cf)
}

func (s Spec) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         "holdfast",
		"org.opencontainers.image.description":   "Finds Pod addresses that nobody uses any more on a node whose CNI allocates with host-local, and releases them",
		"org.opencontainers.image.version":       s.Version,
		"org.opencontainers.image.revision":      s.Commit,
		"org.opencontainers.image.created":       s.Created.UTC().Format(time.RFC3339),
		"org.opencontainers.image.source":        "https://github.com/holdfast-cni/holdfast",
		"org.opencontainers.image.documentation": "https://github.com/holdfast-cni/holdfast/blob/main/docs/packaging.md",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.vendor":        "The Holdfast authors",
	}
}

// tarOf writes the files below dir, sorted, with nothing of this machine or moment.
func tarOf(w io.Writer, dir string) error {
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	tw := tar.NewWriter(w)
	for _, path := range names {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := add(tw, name, 0o644, text); err != nil {
			return err
		}
	}
	return tw.Close()
}

func add(tw *tar.Writer, name string, mode int64, text []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := tw.Write(text)
	return err
}
