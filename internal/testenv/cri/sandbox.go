package cri

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is what a kubelet would ask a sandbox for. The zero values of UID and Namespace
// are filled in.
type Pod struct {
	Namespace string // "default" when empty
	Name      string
	UID       string // drawn when empty
	Attempt   uint32
	// HostPort is mapped to port 80 of the sandbox; the network needs "portmap" in
	// its chain. 0 for none.
	HostPort int32
}

// Sandbox is a Pod sandbox that was made.
type Sandbox struct {
	ID    string
	Pod   Pod
	IP    netip.Addr
	Netns string // path, such as /var/run/netns/cni-...
}

// sandboxTimeout is far beyond what a busy machine takes (half a second when quiet).
const sandboxTimeout = 2 * time.Minute

// RunSandbox makes a sandbox, or fails the test.
func (r *Runtime) RunSandbox(t testing.TB, pod Pod) Sandbox {
	t.Helper()
	s, err := r.TryRunSandbox(t.Context(), pod)
	if err != nil {
		t.Fatalf("RunPodSandbox %s: %v\n%s", pod.Name, err, r.logTail())
	}
	return s
}

// RunSandboxes makes n sandboxes, a few at a time, named prefix-0 and so on.
func (r *Runtime) RunSandboxes(t testing.TB, prefix string, n int) []Sandbox {
	t.Helper()
	out := make([]Sandbox, n)
	errs := make([]error, n)
	slots := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i], errs[i] = r.TryRunSandbox(t.Context(), Pod{Name: fmt.Sprintf("%s-%d", prefix, i)})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("RunPodSandbox %s-%d: %v\n%s", prefix, i, err, r.logTail())
		}
	}
	return out
}

// TryRunSandbox asks for a sandbox and returns the runtime's error as it is. A kubelet
// that fails asks again with the next Attempt.
func (r *Runtime) TryRunSandbox(ctx context.Context, pod Pod) (Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
	defer cancel()
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.UID == "" {
		pod.UID = newUID()
	}
	resp, err := r.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: r.podConfig(pod)})
	if err != nil {
		return Sandbox{}, err
	}
	s := Sandbox{ID: resp.GetPodSandboxId(), Pod: pod}
	status, err := r.cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.ID})
	if err != nil {
		return s, err
	}
	if s.IP, err = netip.ParseAddr(status.GetStatus().GetNetwork().GetIp()); err != nil {
		return s, fmt.Errorf("address of sandbox %s: %w", s.ID, err)
	}
	recs, err := r.p.recorded()
	if err != nil {
		return s, err
	}
	for _, rec := range recs {
		if rec.id == s.ID {
			s.Netns = rec.netns
		}
	}
	if s.Netns == "" {
		return s, fmt.Errorf("no netns was recorded for sandbox %s", s.ID)
	}
	return s, nil
}

func (r *Runtime) podConfig(pod Pod) *runtimeapi.PodSandboxConfig {
	c := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: pod.UID, Attempt: pod.Attempt,
		},
		Hostname:     pod.Name,
		LogDirectory: filepath.Join(r.p.dir, "logs"),
		DnsConfig:    &runtimeapi.DNSConfig{},
		Labels: map[string]string{ // as a kubelet sets them
			"io.kubernetes.pod.name":      pod.Name,
			"io.kubernetes.pod.namespace": pod.Namespace,
			"io.kubernetes.pod.uid":       pod.UID,
		},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: r.cgroup,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{
					Network: runtimeapi.NamespaceMode_POD,
					Pid:     runtimeapi.NamespaceMode_CONTAINER,
					Ipc:     runtimeapi.NamespaceMode_POD,
				},
			},
		},
	}
	if pod.HostPort != 0 {
		c.PortMappings = []*runtimeapi.PortMapping{{HostPort: pod.HostPort, ContainerPort: 80}}
	}
	return c
}

func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	h := hex.EncodeToString(b[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// StopSandbox asks the runtime to stop a sandbox (its CNI DEL runs here).
func (r *Runtime) StopSandbox(t testing.TB, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
	defer cancel()
	if _, err := r.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatalf("StopPodSandbox %s: %v", id, err)
	}
}

// RemoveSandbox stops and removes a sandbox.
func (r *Runtime) RemoveSandbox(t testing.TB, id string) {
	t.Helper()
	r.StopSandbox(t, id)
	ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
	defer cancel()
	if _, err := r.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatalf("RemovePodSandbox %s: %v", id, err)
	}
}

// Listed returns whether the runtime says Ready, by the ID of each sandbox it lists.
func (r *Runtime) Listed(t testing.TB) map[string]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
	defer cancel()
	resp, err := r.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatalf("ListPodSandbox: %v", err)
	}
	out := map[string]bool{}
	for _, s := range resp.GetItems() {
		out[s.GetId()] = s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return out
}

// KillSandbox ends the sandbox's shim and processes with SIGKILL, the shim first so
// that nobody tells the runtime. The netns mount stays: see DropNetns.
func (r *Runtime) KillSandbox(t testing.TB, s Sandbox) {
	t.Helper()
	if err := r.p.killShims(s.ID); err != nil {
		t.Fatal(err)
	}
	if err := killCgroup(filepath.Join(r.cgroup, s.ID)); err != nil {
		t.Fatal(err)
	}
}

// DropNetns removes the sandbox's netns mount, as a reboot does. With no process in
// it the namespace ends, and the host-side veth with it, shortly after.
func (r *Runtime) DropNetns(t testing.TB, s Sandbox) {
	t.Helper()
	if err := dropNetns(s.Netns); err != nil {
		t.Fatal(err)
	}
}
