package kube

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/hack/image/archive"
	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

var (
	longFlag = flag.Bool("long", false, "the long run: faults and churn last for minutes (make e2e-long)")
	seedFlag = flag.Uint64("seed", 0, "seed of the churn; 0 draws one")
)

const (
	// pollEvery is how often a condition is looked at.
	pollEvery = 50 * time.Millisecond
	// soon is far beyond what a busy machine takes for what takes a second or two.
	soon = 90 * time.Second
)

// site is a cluster with the agent on its nodes.
type site struct {
	*room.Cluster
	root string // the clone
	dir  string
	// images are archives by version.
	images map[string]string
	ipam   string // the built holdfast-ipam
}

// image is the name of the agent's image of a version.
func image(version string) string { return "holdfast.test/holdfast:" + version }

// newSite starts a cluster without nodes, and meanwhile builds the programs once and an image
// of each version.
func newSite(t *testing.T, versions ...string) *site {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{dir: t.TempDir(), images: map[string]string{}}
	if s.root, err = prebuilt.FindRoot(wd); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(versions)+1)
	for i, v := range versions {
		path := filepath.Join(s.dir, v+".tar")
		s.images[v] = path
		wg.Go(func() { errs[i] = s.writeImage(t.Context(), path, v) })
	}
	s.ipam = filepath.Join(s.dir, "holdfast-ipam")
	wg.Go(func() {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", s.ipam, "./cmd/holdfast-ipam")
		cmd.Dir, cmd.Env = s.root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			errs[len(versions)] = fmt.Errorf("build holdfast-ipam: %w\n%s", err, out)
		}
	})
	defer wg.Wait()
	s.Cluster = room.Start(t, room.Options{})
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) writeImage(ctx context.Context, path, version string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return archive.Write(ctx, f, archive.Spec{
		Root: s.root, Name: image(version), Version: version, Commit: "test", Arches: []string{runtime.GOARCH}, Created: time.Unix(0, 0),
	})
}

// node is a node of a site, with the places where its agent keeps things.
type node struct {
	*room.Node
	s *site
	// networks are the host-local directories of this node. The libcni cache is the machine's,
	// so the agent is told to touch nothing else.
	networks []string
	// StateDir and the agent's run directory as seen from the machine.
	stateDir, runDir string
	// config are fields of the agent's configuration beside or instead of the test's; nil takes
	// one out.
	config map[string]any
	// version of the agent that is deployed.
	version string
	watch   *watcher
}

// addNode joins a node and begins to watch it.
func (s *site) addNode(t *testing.T, o room.NodeOptions) *node {
	t.Helper()
	if o.Kubelet == nil {
		o.Kubelet = map[string]any{}
	}
	// An agent that was killed comes back at once, and so does a Pod that keeps crashing.
	o.Kubelet["featureGates"] = map[string]any{"KubeletCrashLoopBackOffMax": true}
	o.Kubelet["crashLoopBackOff"] = map[string]any{"maxContainerRestartPeriod": "1s"}
	n := &node{Node: s.AddNode(t, o), s: s, config: object{}}
	for _, path := range s.images {
		n.Runtime.ImportImage(t, path, image(strings.TrimSuffix(filepath.Base(path), ".tar")))
	}
	n.networks = []string{n.Runtime.Network().Name}
	n.stateDir, n.runDir = filepath.Join(n.Runtime.Dir(), "holdfast"), filepath.Join(n.Runtime.RunDir(), "holdfast")
	n.watch = watch(t, n)
	return n
}

// until waits until f returns nil, and fails the test with its last error when the time is over.
func until(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(pollEvery)
	}
}

// stays fails the test as soon as f returns an error within the time.
func stays(t *testing.T, during time.Duration, what string, f func() error) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(pollEvery) {
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// run makes Pods and waits until they run.
func (n *node) run(t *testing.T, names ...string) []*corev1.Pod {
	t.Helper()
	for _, name := range names {
		n.s.CreatePod(t, room.PausePod(name, n.Name))
	}
	var out []*corev1.Pod
	for _, name := range names {
		out = append(out, n.s.WaitRunning(t, "default", name))
	}
	return out
}

// reservations are those of all networks of the node.
func (n *node) reservations(t *testing.T) map[netip.Addr]string {
	t.Helper()
	out := map[netip.Addr]string{}
	for _, network := range n.networks {
		for a, id := range n.Runtime.Reservations(t, network) {
			if other, ok := out[a]; ok {
				t.Fatalf("%s is reserved in two networks, for %s and %s", a, other, id)
			}
			out[a] = id
		}
	}
	return out
}

// pods are the Pods of the node in the API that have an address of its networks, or will.
func (n *node) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := n.s.Admin.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.HostNetwork })
}

// clean is nil when exactly the Pods of the API have reservations: each runs, its address is
// reserved for a sandbox of its own that the runtime calls ready, the kernel has it in the Pod's
// namespace, and nothing else is reserved.
func (n *node) clean(t *testing.T) error {
	t.Helper()
	rest := n.reservations(t)
	listed := n.Runtime.Listed(t)
	for _, p := range n.pods(t) {
		addr, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			return fmt.Errorf("Pod %s is %s with address %q", p.Name, p.Status.Phase, p.Status.PodIP)
		}
		id, ok := rest[addr]
		switch {
		case !ok:
			return fmt.Errorf("Pod %s has %s, and nothing is reserved", p.Name, addr)
		case !listed[id]:
			return fmt.Errorf("%s of Pod %s is reserved for %s, which is not a ready sandbox", addr, p.Name, id)
		case !n.watch.has(string(p.UID), addr):
			return fmt.Errorf("no process of Pod %s sees %s in its namespace", p.Name, addr)
		}
		delete(rest, addr)
	}
	if len(rest) > 0 {
		return fmt.Errorf("reserved for nobody: %v", rest)
	}
	return nil
}

// settle waits until the node is clean, and asks every living Pod.
func (n *node) settle(t *testing.T, within time.Duration, what string) {
	t.Helper()
	began := time.Now()
	deadline := began.Add(within)
	for {
		err := n.clean(t)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			n.tell(t)
			t.Fatalf("%s: %s is not clean within %s: %v", what, n.Name, within, err)
		}
		time.Sleep(2 * pollEvery)
	}
	t.Logf("%s: %s is clean after %s", what, n.Name, time.Since(began).Round(10*time.Millisecond))
	n.ping(t)
}

func (n *node) ping(t *testing.T) {
	t.Helper()
	var addrs []netip.Addr
	for _, p := range n.pods(t) {
		addrs = append(addrs, room.PodIP(t, &p))
	}
	n.Runtime.Ping(t, addrs...)
}

// held is nil while each of the Pods' addresses is reserved for the sandbox that it had.
func (n *node) held(t *testing.T, want map[netip.Addr]string) error {
	t.Helper()
	have := n.reservations(t)
	for a, id := range want {
		if have[a] != id {
			return fmt.Errorf("%s is reserved for %q, no longer for %s", a, have[a], id)
		}
	}
	return nil
}

// of are the reservations of Pods.
func (n *node) of(t *testing.T, pods ...*corev1.Pod) map[netip.Addr]string {
	t.Helper()
	have, out := n.reservations(t), map[netip.Addr]string{}
	for _, p := range pods {
		a := room.PodIP(t, p)
		if have[a] == "" {
			t.Fatalf("nothing is reserved for %s of Pod %s", a, p.Name)
		}
		out[a] = have[a]
	}
	return out
}

// remove deletes Pods in good order and waits until they are gone.
func (n *node) remove(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		n.s.DeletePod(t, p.Namespace, p.Name, false)
	}
	for _, p := range pods {
		n.s.WaitGone(t, p.Namespace, p.Name)
	}
}

func getOptions() metav1.GetOptions { return metav1.GetOptions{} }
