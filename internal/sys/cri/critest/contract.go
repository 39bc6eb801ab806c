package critest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
)

// Clock reads the clocks of this machine, for tests.
func Clock() claim.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return claim.Instant{}
	}
	return claim.Instant{Boot: "critest", Mono: time.Duration(ts.Nano()), Wall: time.Now()}
}

// RunContract checks everything that the witness takes for granted of a runtime: on
// the scripted Server and on real ones alike. endpoint is unix:///path or /path. The
// runtime must be able to run a sandbox (its sandbox image present, a CNI network
// configured); the sandboxes made here are removed again and others are left alone.
func RunContract(t *testing.T, endpoint string) {
	t.Helper()
	path, err := cri.ParsePath(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	w, err := cri.New(cri.Config{Endpoints: []string{endpoint}, Clock: Clock, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	c := &contract{t: t, w: w, client: connect(t, path)}

	before := c.ask(false)
	r := before.Runtimes[0]
	if r.Name == "" || r.Version == "" || r.Endpoint != cri.Scheme+path || !r.Named || r.Known {
		t.Errorf("runtime %+v", r)
	}
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(r.PeerPID))); err != nil {
		t.Errorf("no process with the listener's PID: %v", err)
	}
	if again := c.ask(false).Runtimes[0]; !again.Known || again.PeerPID != r.PeerPID {
		t.Errorf("asked again, the runtime is %+v; it was %+v", again, r)
	}

	one, two := c.run(0), c.run(1)
	c.ready(one, true)
	c.ready(two, true)
	if got, want := len(c.ask(false).Sandboxes), len(before.Sandboxes)+2; got != want {
		t.Errorf("%d sandboxes listed, want %d", got, want)
	}

	if _, err := c.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: one.id}); err != nil {
		t.Fatal(err)
	}
	c.ready(one, false)
	c.ready(two, true)

	c.remove(one.id)
	if _, ok := c.find(one.id, true); ok {
		t.Errorf("removed sandbox %s is still listed", one.id)
	}
	c.ready(two, true)
	// The witness tells "vanished" from "failed" by this code alone.
	_, err = c.client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: one.id, Verbose: true})
	if status.Code(err) != codes.NotFound {
		t.Errorf("status of a removed sandbox: %v, want NotFound", err)
	}
	c.remove(two.id)
	// Removing is idempotent, so cleaning up twice is no error. (Stopping is not:
	// containerd 1.6 answers NotFound.)
	if _, err := c.client.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: two.id}); err != nil {
		t.Errorf("RemovePodSandbox again: %v", err)
	}
}

type contract struct {
	t      *testing.T
	w      *cri.Witness
	client runtimeapi.RuntimeServiceClient
}

type made struct {
	id  string
	pod claim.Pod
	att uint32
	at  int64
}

func connect(t *testing.T, path string) runtimeapi.RuntimeServiceClient {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///contract", grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return runtimeapi.NewRuntimeServiceClient(cc)
}

func (c *contract) ask(detail bool) *claim.CRIFacts {
	c.t.Helper()
	got := c.w.Ask(c.t.Context(), detail)
	if got.Witness != claim.WitnessCRI || got.State != claim.StateComplete || len(got.CRI.Runtimes) != 1 || got.CRI.Detailed != detail {
		c.t.Fatalf("testimony %+v", got)
	}
	return got.CRI
}

func (c *contract) run(attempt uint32) made {
	c.t.Helper()
	var raw [4]byte
	if _, err := rand.Read(raw[:]); err != nil {
		c.t.Fatal(err)
	}
	tag := hex.EncodeToString(raw[:])
	m := made{pod: claim.Pod{Namespace: "critest", Name: "contract-" + tag, UID: "uid-" + tag}, att: attempt, at: time.Now().UnixNano()}
	r, err := c.client.RunPodSandbox(c.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Namespace: m.pod.Namespace, Name: m.pod.Name, Uid: m.pod.UID, Attempt: attempt},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD},
		}},
	}})
	if err != nil {
		c.t.Fatalf("RunPodSandbox: %v", err)
	}
	m.id = r.GetPodSandboxId()
	c.t.Cleanup(func() {
		// The test's own context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, _ = c.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: m.id})
		_, _ = c.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: m.id})
	})
	return m
}

func (c *contract) remove(id string) {
	c.t.Helper()
	if _, err := c.client.StopPodSandbox(c.t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		c.t.Fatalf("StopPodSandbox: %v", err)
	}
	if _, err := c.client.RemovePodSandbox(c.t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		c.t.Fatalf("RemovePodSandbox: %v", err)
	}
}

func (c *contract) find(id string, detail bool) (claim.Sandbox, bool) {
	c.t.Helper()
	for _, s := range c.ask(detail).Sandboxes {
		if s.ID == id {
			return s, true
		}
	}
	return claim.Sandbox{}, false
}

// ready checks that the sandbox is listed whole and in that state, without details
// and with them.
func (c *contract) ready(m made, want bool) {
	c.t.Helper()
	for _, detail := range []bool{false, true} {
		s, ok := c.find(m.id, detail)
		switch {
		case !ok:
			c.t.Errorf("sandbox %s is not listed", m.id)
			return
		case s.Ready != want || s.Pod != m.pod || s.Attempt != m.att:
			c.t.Errorf("sandbox %+v, want ready=%t of %+v attempt %d", s, want, m.pod, m.att)
		case s.Created < m.at-int64(time.Minute):
			c.t.Errorf("created at %d, was run at %d", s.Created, m.at)
		case !detail && (s.Netns != "" || len(s.Addrs) > 0):
			c.t.Errorf("details without being asked for: %+v", s)
		case detail && want && (s.Netns == "" || len(s.Addrs) == 0):
			c.t.Errorf("no netns or no address: %+v", s)
		case detail && !want && len(s.Addrs) > 0:
			c.t.Errorf("a stopped sandbox has addresses: %+v", s)
		}
	}
}
