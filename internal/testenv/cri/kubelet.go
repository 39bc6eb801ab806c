package cri

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Dir is the runtime's directory. What else belongs to the node may lie in there: it is
// unmounted and removed with the rest.
func (r *Runtime) Dir() string { return r.p.dir }

// Cgroup is the cgroup below which all Pods are, such as "/hf-1f2e...". Whatever runs
// there is killed at the end.
func (r *Runtime) Cgroup() string { return r.cgroup }

// OnNode runs f on a thread in the network namespace that stands for the node's, and that
// ends with f: f may change it further. What f starts is in there; its goroutines are
// not. Usable concurrently.
func (r *Runtime) OnNode(f func() error) error { return r.host.do(f) }

// imported is an image archive with the name of its image.
type imported struct{ archive, name string }

// ImportImage loads an OCI archive, and waits until the runtime knows the image by the
// given name, which the archive gives it. Where a start finds it missing, as after
// WipeRoot, it is loaded again.
func (r *Runtime) ImportImage(t testing.TB, archive, name string) {
	t.Helper()
	i := imported{archive, name}
	r.images = append(r.images, i)
	r.importMissing(t, i)
}

// importMissing loads an image with Debian's ctr, whose client also speaks to containerd
// 2. CRI learns of it by an event, so it is waited for.
func (r *Runtime) importMissing(t testing.TB, i imported) {
	t.Helper()
	images := runtimeapi.NewImageServiceClient(r.conn)
	has := func() (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s, err := images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: i.name}})
		return s.GetImage() != nil, err
	}
	if ok, err := has(); err == nil && ok {
		return // the root was kept
	}
	out, err := exec.CommandContext(t.Context(), "ctr", "-a", r.p.socket, "-n", "k8s.io",
		"images", "import", "--snapshotter", "native", i.archive).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr images import: %v\n%s", err, out)
	}
	r.poll(t, "CRI knows the image "+i.name, has)
}

// PowerOff ends everything at once, as a power failure does: containerd, shims,
// containers, network namespaces, mounts, and what lies in /run (containerd's state).
// What lies on the disk stays: containerd's root, the CNI directories, the libcni cache.
func (r *Runtime) PowerOff(t testing.TB) {
	t.Helper()
	r.Kill(t)
	recs, err := r.p.recorded()
	errs := []error{err, r.p.killShims(""), killCgroup(r.cgroup)}
	for _, rec := range recs {
		errs = append(errs, dropNetns(rec.netns))
	}
	errs = append(errs, unmountBelow(r.p.root), unmountBelow(r.p.state),
		os.RemoveAll(r.p.state), os.RemoveAll(filepath.Join(r.p.dir, "runc")))
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("power off: %v", err)
	}
}
