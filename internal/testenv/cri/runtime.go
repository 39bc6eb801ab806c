package cri

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
)

// Runtime is one containerd with all that belongs to it. Its methods are for one
// goroutine at a time, but for RunSandbox, TryRunSandbox, StopSandbox and
// RemoveSandbox, which may run concurrently with each other.
type Runtime struct {
	Version  Version
	Endpoint string // "unix:///..."

	p          paths
	net        Network
	host       *hostNetns
	owner      *os.File // locked as long as the test lives
	init       *standIn // made by the first RunOnNode
	hooked     bool
	images     []imported
	cgroup     string // parent of the sandboxes' cgroups, such as "/hf-1f2e..."
	containerd string
	shimDir    string
	pause      string

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
	conn   *grpc.ClientConn
	cri    runtimeapi.RuntimeServiceClient
}

// Start starts containerd with a network of its own and waits until it serves CRI. It
// builds what the cache lacks (minutes, when it is empty). Everything is taken away
// when the test ends; what cannot be is an error of the test.
func Start(t testing.TB, v Version) *Runtime {
	t.Helper()
	return startRuntime(t, v, false)
}

// StartNode is Start for a kubelet: a Pod with hostPID sees as /proc/1 what RunOnNode
// shows, a process in the runtime's network namespace, and otherwise the machine's /proc.
func StartNode(t testing.TB, v Version) *Runtime {
	t.Helper()
	return startRuntime(t, v, true)
}

func startRuntime(t testing.TB, v Version, hooked bool) *Runtime {
	t.Helper()
	testenv.Need(t, testenv.CRI)
	if err := takeAwayAbandoned(); err != nil {
		t.Logf("taking away what a killed test left: %v", err)
	}
	r := &Runtime{Version: v, hooked: hooked}
	if err := r.prepare(t.Context()); err != nil {
		t.Fatalf("prepare containerd %s: %v", v, err)
	}
	leak.Own(t, r.p.dir, strings.TrimPrefix(r.cgroup, "/"))
	// Before anything that can fail half way: t.Fatal runs it as well.
	t.Cleanup(func() { r.close(t) })
	n, err := newNetwork()
	if err != nil {
		t.Fatal(err)
	}
	r.SetNetwork(t, n)
	if hooked {
		if err := r.shareRunDir(); err != nil {
			t.Fatal(err)
		}
		if err := r.installHook(t.Context()); err != nil {
			t.Fatalf("the hook of Pods with hostPID: %v", err)
		}
	}
	r.start(t)
	return r
}

// prepare makes everything that start needs. On an error nothing is left but, at
// worst, the temporary directory.
func (r *Runtime) prepare(ctx context.Context) error {
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
	if err := shareNetnsDir(); err != nil {
		return err
	}
	names := []string{"cniplugins", "pause"}
	if r.Version == V2 {
		names = append(names, "containerd")
	}
	built, err := prebuilt.Builder{Root: root, Cache: cache, Progress: os.Stderr}.Ensure(ctx, names...)
	if err != nil {
		return err
	}
	if r.containerd, r.shimDir, err = programs(r.Version, built[len(built)-1]); err != nil {
		return err
	}
	r.pause = filepath.Join(built[1], "pause")
	dir, err := shortTempDir()
	if err != nil {
		return err
	}
	r.p = pathsIn(dir)
	r.Endpoint = "unix://" + r.p.socket
	r.cgroup = "/hf-" + strings.ToLower(rand.Text()[:12])
	if err := r.p.populate(r.Version, r.hooked, built[0], r.pause); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if r.host, err = newHostNetns(); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if r.owner, err = r.p.own(r.cgroup); err != nil {
		return errors.Join(err, r.host.close(), os.RemoveAll(dir))
	}
	return nil
}

// shortTempDir returns a directory whose sockets fit into a socket address: 107 bytes,
// of which containerd 2's longest name takes 14. t.TempDir is too long for that.
func shortTempDir() (string, error) {
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		dir, err := os.MkdirTemp(parent, "hf-")
		if err != nil {
			return "", err
		}
		if len(dir) <= 62 {
			return dir, nil
		}
		if err := os.Remove(dir); err != nil {
			return "", err
		}
	}
	return "", errors.New("no temporary directory is short enough for a socket")
}

func (p paths) populate(v Version, hooked bool, plugins, pause string) error {
	for _, d := range []string{p.confDir, p.binDir, p.realDir, p.dataDir, filepath.Join(p.dir, "logs"), filepath.Dir(p.socket)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(plugins)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue // a build of another run in progress
		}
		to := p.binDir
		if e.Name() == "loopback" {
			to = p.realDir
		}
		if err := linkOrCopy(filepath.Join(plugins, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	if err := p.writeLoopbackRecorder(); err != nil {
		return err
	}
	if err := WriteImage(p.image, PauseImage, pause); err != nil {
		return err
	}
	return os.WriteFile(p.config, []byte(p.containerdConfig(v, hooked)), 0o644)
}

// linkOrCopy makes a hard link or, across file systems, a copy. A symbolic link would
// not do: /proc/PID/exe then names the cache instead of the CNI bin directory.
func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// start starts containerd and waits for CRI, the network and the pause image.
func (r *Runtime) start(t testing.TB) {
	t.Helper()
	logFile, err := os.OpenFile(r.p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close() // the child has its own
	cmd := exec.Command(r.containerd, "--config", r.p.config)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// The shim and runc are looked up in PATH; not every user's has sbin.
	cmd.Env = append(os.Environ(), "PATH="+r.shimDir+":/usr/sbin:/usr/bin:/sbin:/bin:"+os.Getenv("PATH"))
	if err := r.host.start(cmd); err != nil {
		t.Fatalf("start containerd: %v", err)
	}
	exited := make(chan struct{})
	r.cmd, r.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()

	r.conn, err = grpc.NewClient(r.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.cri = runtimeapi.NewRuntimeServiceClient(r.conn)
	r.poll(t, "containerd serves CRI", func() (bool, error) { return r.ready(t.Context()) })
	r.importMissing(t, imported{r.p.image, PauseImage})
	for _, i := range r.images {
		r.importMissing(t, i)
	}
}

func (r *Runtime) ready(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := r.cri.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return false, err
	}
	ready := 0
	for _, c := range s.GetStatus().GetConditions() {
		// containerd 2 has conditions of its own, such as one about deprecations.
		if c.GetType() != runtimeapi.RuntimeReady && c.GetType() != runtimeapi.NetworkReady {
			continue
		}
		if !c.GetStatus() {
			return false, fmt.Errorf("%s: %s", c.GetType(), c.GetMessage())
		}
		ready++
	}
	return ready == 2, nil
}

// loadedNetwork returns the signature of the network that the runtime uses now.
func (r *Runtime) loadedNetwork(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := r.cri.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return "", err
	}
	var info struct {
		Networks []struct {
			Config struct {
				Name    string
				Plugins []struct {
					Network struct {
						Type string `json:"type"`
					}
				}
			}
			IFName string
		}
	}
	if err := json.Unmarshal([]byte(s.GetInfo()["cniconfig"]), &info); err != nil {
		return "", fmt.Errorf("cniconfig of the runtime's status: %w", err)
	}
	for _, n := range info.Networks {
		if n.IFName != "eth0" {
			continue
		}
		var types []string
		for _, p := range n.Config.Plugins {
			types = append(types, p.Network.Type)
		}
		return n.Config.Name + ":" + strings.Join(types, ","), nil
	}
	return "", errors.New("the runtime has no network for eth0")
}

// Network returns the network that new sandboxes get.
func (r *Runtime) Network() Network { return r.net }

// ConfDir returns the CNI configuration directory.
func (r *Runtime) ConfDir() string { return r.p.confDir }

// BinDir returns the plugin directory.
func (r *Runtime) BinDir() string { return r.p.binDir }

// DataDir returns host-local's dataDir, the parent of the networks' directories.
func (r *Runtime) DataDir() string { return r.p.dataDir }

// CacheDir returns the libcni cache directory, the parent of results. It is the
// machine's own.
func (r *Runtime) CacheDir() string { return libcniCache }

// Output runs a program in the network namespace that stands for the node's, and
// returns its standard output; an error carries what it said on standard error.
func (r *Runtime) Output(cmd *exec.Cmd) (string, error) {
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := r.host.run(cmd); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, msg.String())
	}
	return out.String(), nil
}

// Kill ends containerd with SIGKILL. Shims and sandboxes live on.
func (r *Runtime) Kill(t testing.TB) {
	t.Helper()
	if !r.alive() {
		return
	}
	if err := r.cmd.Process.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("kill containerd: %v", err)
	}
	<-r.exited
	if err := r.conn.Close(); err != nil {
		t.Errorf("close the CRI connection: %v", err)
	}
	r.conn, r.cri = nil, nil
}

// Restart kills containerd, if it runs, and starts it again over what is there.
func (r *Runtime) Restart(t testing.TB) {
	t.Helper()
	r.Kill(t)
	r.start(t)
}

// WipeRoot removes containerd's root and state, as re-imaging a node or a corrupt
// store does. containerd must be dead. Sandboxes whose processes live keep running,
// but no runtime will know them again. What lies outside stays: reservations, the
// libcni cache, netns.
func (r *Runtime) WipeRoot(t testing.TB) {
	t.Helper()
	if r.alive() {
		t.Fatal("WipeRoot under a running containerd")
	}
	for _, d := range []string{r.p.root, r.p.state} {
		if err := unmountBelow(d); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(d); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *Runtime) alive() bool {
	if r.cmd == nil {
		return false
	}
	select {
	case <-r.exited:
		return false
	default:
		return true
	}
}

// poll waits until f says true; f's error is only shown when the time is over.
func (r *Runtime) poll(t testing.TB, what string, f func() (bool, error)) {
	t.Helper()
	deadline := time.Now().Add(pollFor)
	for {
		ok, err := f()
		if ok && err == nil {
			return
		}
		if !r.alive() {
			t.Fatalf("waiting until %s: containerd ended\n%s", what, r.logTail())
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s (%v)\n%s", pollFor, what, err, r.logTail())
		}
		time.Sleep(pollEvery)
	}
}

// logTail is the end of containerd's log, for messages.
func (r *Runtime) logTail() string {
	b, err := os.ReadFile(r.p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-25):], []byte("\n")))
}
