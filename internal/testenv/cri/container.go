package cri

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Run says what container to run in a Pod of its own, as a kubelet would ask for it.
type Run struct {
	Image string
	// Args replace the image's command.
	Args   []string
	Mounts []*runtimeapi.Mount
	// Security is the container's; its namespace options are the Pod's too.
	Security *runtimeapi.LinuxContainerSecurityContext
}

// Running is a container that was started.
type Running struct {
	r       *Runtime
	id, log string
}

// StartContainer starts a container. It is taken away with its Pod when the test ends.
func (r *Runtime) StartContainer(t testing.TB, name string, c Run) *Running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
	defer cancel()
	pod := r.podConfig(Pod{Name: name, Namespace: "default", UID: newUID()})
	ns := c.Security.GetNamespaceOptions()
	pod.Linux.SecurityContext.NamespaceOptions = ns
	if ns.GetNetwork() == runtimeapi.NamespaceMode_NODE {
		pod.Hostname = ""
	}
	pod.LogDirectory = filepath.Join(r.p.dir, "logs", pod.Metadata.Uid)
	sandbox, err := r.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatalf("RunPodSandbox %s: %v\n%s", name, err, r.logTail())
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), sandboxTimeout)
		defer cancel()
		if _, err := r.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			t.Errorf("StopPodSandbox: %v", err)
		}
		if _, err := r.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			t.Errorf("RemovePodSandbox: %v", err)
		}
	})
	made, err := r.cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: c.Image},
			Args: c.Args, Mounts: c.Mounts, LogPath: "log",
			Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{}, SecurityContext: c.Security},
		},
	})
	if err != nil {
		t.Fatalf("CreateContainer %s: %v\n%s", name, err, r.logTail())
	}
	if _, err := r.cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		t.Fatalf("StartContainer %s: %v\n%s", name, err, r.logTail())
	}
	return &Running{r, made.ContainerId, filepath.Join(pod.LogDirectory, "log")}
}

// Wait waits until the container ends, and returns its exit code and what it wrote to its
// standard output. What it wrote to standard error is in the test's log.
func (c *Running) Wait(t testing.TB) (code int32, stdout string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
	defer cancel()
	for {
		s, err := c.r.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.id})
		if err != nil {
			t.Fatalf("ContainerStatus: %v", err)
		}
		if s.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return s.GetStatus().GetExitCode(), readCRILog(t, c.log)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the container did not end: %v", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Exec runs a program in the container, as `kubectl exec` does.
func (c *Running) Exec(t testing.TB, args ...string) (code int32, stdout, stderr string) {
	t.Helper()
	resp, err := c.r.cri.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.id, Cmd: args, Timeout: 60})
	if err != nil {
		t.Fatalf("exec %v: %v", args, err)
	}
	return resp.ExitCode, string(resp.Stdout), string(resp.Stderr)
}

// readCRILog reads lines of "<time> stdout F <text>", and logs those of stderr.
func readCRILog(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out strings.Builder
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		p := strings.SplitN(sc.Text(), " ", 4)
		switch {
		case len(p) < 4:
			t.Fatalf("%s: no line of a container log: %q", path, sc.Text())
		case p[1] != "stdout":
			t.Logf("%s: %s", filepath.Base(path), p[3])
		case p[2] == "P": // cut off at 16 KiB; the rest follows
			out.WriteString(p[3])
		default:
			out.WriteString(p[3] + "\n")
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
