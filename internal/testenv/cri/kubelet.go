package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Dir is the runtime's directory. What else belongs to the node may lie in there: it is
// unmounted and removed with the rest.
func (r *Runtime) Dir() string { return r.p.dir }

// Cgroup is the cgroup below which all Pods are, such as "/hf-1f2e...". Whatever runs
// there is killed at the end.
func (r *Runtime) Cgroup() string { return r.cgroup }

// RunDir stands for the node's /run: containerd/containerd.sock is there, and it goes empty
// with PowerOff. A Runtime of StartNode has it as a shared mount, as systemd has /run, so
// that it can be mounted with propagation.
func (r *Runtime) RunDir() string { return r.p.run }

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
// containers, network namespaces, mounts, and what lies in /run (containerd's state, RunDir).
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
		os.RemoveAll(r.p.state), os.RemoveAll(filepath.Join(r.p.dir, "runc")), emptyDir(r.p.run), os.MkdirAll(filepath.Dir(r.p.socket), 0o755))
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("power off: %v", err)
	}
}

// Freeze stops containerd in its tracks with SIGSTOP: its socket accepts, and nothing answers.
// Sandboxes live on. Thaw lets it go on.
func (r *Runtime) Freeze(t testing.TB) { t.Helper(); r.signal(t, unix.SIGSTOP) }

// Thaw undoes Freeze.
func (r *Runtime) Thaw(t testing.TB) { t.Helper(); r.signal(t, unix.SIGCONT) }

func (r *Runtime) signal(t testing.TB, sig unix.Signal) {
	t.Helper()
	if !r.alive() {
		t.Fatalf("%s to containerd, which does not run", sig)
	}
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%s to containerd: %v", sig, err)
	}
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// shareRunDir makes RunDir a shared mount of itself.
func (r *Runtime) shareRunDir() error {
	if err := unix.Mount(r.p.run, r.p.run, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: r.p.run, Err: err}
	}
	if err := unix.Mount("", r.p.run, "", unix.MS_SHARED, ""); err != nil {
		return &os.PathError{Op: "make shared", Path: r.p.run, Err: err}
	}
	return nil
}

// Forget lets the runtime lose sandboxes of a kubelet's Pods, which must be dead: their
// processes end by SIGKILL, their network namespaces go, and the runtime knows neither them
// nor their containers when it is started again. No DEL is ever called for them. cgroups
// are those of the Pods, each with all below it.
func (r *Runtime) Forget(t testing.TB, ids, cgroups []string) {
	t.Helper()
	if !r.alive() {
		t.Fatal("Forget needs a running containerd")
	}
	recs, err := r.p.recorded()
	errs := []error{err}
	var containers []string
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
		list, err := r.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
		cancel()
		errs = append(errs, err)
		for _, c := range list.GetContainers() {
			containers = append(containers, c.GetId())
		}
		containers = append(containers, id)
		errs = append(errs, r.p.killShims(id))
	}
	for _, c := range cgroups {
		errs = append(errs, killCgroup(c))
	}
	for _, rec := range recs {
		if slices.Contains(ids, rec.id) {
			errs = append(errs, dropNetns(rec.netns))
		}
	}
	ctr := func(args ...string) {
		out, err := exec.CommandContext(t.Context(), "ctr", append([]string{"-a", r.p.socket, "-n", "k8s.io"}, args...)...).CombinedOutput()
		if err != nil {
			errs = append(errs, fmt.Errorf("ctr %v: %w: %s", args, err, out))
		}
	}
	ctr(append([]string{"containers", "rm"}, containers...)...)
	if r.Version == V2 {
		for _, id := range ids {
			errs = append(errs, r.forgetStored(t.Context(), id))
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("forget sandboxes: %v", err)
	}
	r.Restart(t)
	for id := range r.Listed(t) {
		if slices.Contains(ids, id) {
			t.Fatalf("the runtime knows sandbox %s still", id)
		}
	}
}

// forgetStored deletes a sandbox from the store that containerd 2 has beside its containers.
// No client of it is among our dependencies; the request is one string, in protobuf.
func (r *Runtime) forgetStored(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io"), sandboxTimeout)
	defer cancel()
	request, response := append([]byte{0x0a, byte(len(id))}, id...), []byte(nil)
	err := r.conn.Invoke(ctx, "/containerd.services.sandbox.v1.Store/Delete", &request, &response, grpc.ForceCodec(raw{}))
	if err != nil {
		return fmt.Errorf("delete sandbox %s from the store: %w", id, err)
	}
	return nil
}

// raw is a codec of messages that are encoded already.
type raw struct{}

func (raw) Name() string                       { return "proto" }
func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
