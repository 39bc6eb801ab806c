package archive

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

func spec(t *testing.T, arches ...string) Spec {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Root: root, Name: "holdfast.test/holdfast:v1", Version: "v1", Commit: "abc", Arches: arches, Created: time.Unix(1700000000, 0)}
}

// fakes are directories of programs as compile leaves them.
func fakes(t *testing.T, arches ...string) map[string]string {
	bins := map[string]string{}
	for _, arch := range arches {
		bins[arch] = t.TempDir()
		for _, p := range programs() {
			if err := os.WriteFile(filepath.Join(bins[arch], p), []byte(p+" for "+arch), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bins
}

// unpack writes an archive's files below a directory.
func unpack(t *testing.T, archive []byte) string {
	dir := t.TempDir()
	tr := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s: of user %d:%d at %s", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		path := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImageOfTwoArchitectures(t *testing.T) {
	s := spec(t, "amd64", "arm64")
	bins := fakes(t, s.Arches...)
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := s.assemble(w, t.TempDir(), bins); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same programs differ")
	}
	top, err := layout.ImageIndexFromPath(unpack(t, first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	m, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Annotations["io.containerd.image.name"] != s.Name {
		t.Fatalf("want one image with its name, got %+v", m.Manifests)
	}
	inner, err := top.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = inner.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range m.Manifests {
		got = append(got, d.Platform.String())
		img, err := inner.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		arch := d.Platform.Architecture
		cf, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		want := v1.Config{User: "0:0", WorkingDir: "/", Entrypoint: []string{"/holdfast"}, Cmd: []string{"agent"}, Labels: s.labels()}
		if diff := cmp.Diff(want, cf.Config); diff != "" || cf.Architecture != arch || cf.OS != "linux" {
			t.Errorf("%s: %s/%s (-want +got):\n%s", arch, cf.OS, cf.Architecture, diff)
		}
		if diff := cmp.Diff(map[string]string{"holdfast": "holdfast for " + arch, "holdfast-ipam": "holdfast-ipam for " + arch}, files(t, img)); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", arch, diff)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, got); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
	s.Version = "v2"
	var other bytes.Buffer
	if err := s.assemble(&other, t.TempDir(), bins); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first.Bytes(), other.Bytes()) {
		t.Error("the version is not in the archive")
	}
}

// files are all that is in an image, with their content.
func files(t *testing.T, img v1.Image) map[string]string {
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		tr := tar.NewReader(r)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			if h.Mode != 0o755 || h.Typeflag != tar.TypeReg {
				t.Errorf("%s: mode %o, type %c", h.Name, h.Mode, h.Typeflag)
			}
			out[h.Name] = string(text)
		}
	}
	return out
}

func TestRefusesHalfASpec(t *testing.T) {
	for name, s := range map[string]Spec{"no name": {Arches: []string{"amd64"}}, "no architecture": {Name: "x:1"}} {
		if err := Write(t.Context(), io.Discard, s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestImageRuns builds the real programs, takes the image into a real containerd, and runs
// it there as a container without any mount.
func TestImageRuns(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	s := spec(t, runtime.GOARCH)
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(t.Context(), f, s); err != nil {
		t.Fatal(err)
	}
	both := filepath.Join(t.TempDir(), "both.tar")
	s2 := spec(t, "amd64", "arm64")
	s2.Name = "holdfast.test/both:v1"
	var b bytes.Buffer
	if err := s2.assemble(&b, t.TempDir(), fakes(t, s2.Arches...)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(both, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		r := cri.Start(t, v)
		ctr := func(args ...string) string {
			out, err := exec.CommandContext(t.Context(), "ctr", append([]string{"-a", strings.TrimPrefix(r.Endpoint, "unix://"), "-n", "k8s.io"}, args...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: ctr %v: %v\n%s", v, args, err, out)
			}
			return string(out)
		}
		ctr("images", "import", "--snapshotter", "native", path)
		ctr("images", "import", "--snapshotter", "native", both)
		if list := ctr("images", "list", "-q"); !strings.Contains(list, s.Name) || !strings.Contains(list, s2.Name) {
			t.Errorf("%s: the images are not there:\n%s", v, list)
		}
		out := ctr("run", "--rm", "--snapshotter", "native", "--read-only", "--cgroup", "", s.Name, "holdfast-image-"+rand.Text(), "/holdfast", "version", "-o", "json")
		var doc api.Version
		if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Version != "v1" || doc.Commit != "abc" {
			t.Errorf("%s: %v: the container says %q", v, err, out)
		}
	}
}
