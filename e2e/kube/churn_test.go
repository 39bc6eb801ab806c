package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
)

// churner makes and deletes Pods of a node until it is stopped.
type churner struct {
	n     *node
	rnd   *rand.Rand
	most  int // Pods at once
	made  int
	names []string
	err   error
}

func (c *churner) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.step(ctx); err != nil && ctx.Err() == nil {
			c.err = errors.Join(c.err, err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(c.rnd.IntN(200)) * time.Millisecond):
		}
	}
}

func (c *churner) step(ctx context.Context) error {
	pods := c.n.s.Admin.CoreV1().Pods("default")
	if len(c.names) < c.most && c.rnd.IntN(3) > 0 || len(c.names) == 0 {
		p := room.PausePod(fmt.Sprintf("churn-%d-%s", c.made, c.n.Name), c.n.Name)
		if c.rnd.IntN(8) == 0 {
			p.Spec.Containers[0].Command = []string{"/no-such-program"} // in a crash loop
		}
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
		c.names = append(c.names, p.Name)
		c.made++
		return nil
	}
	i := c.rnd.IntN(len(c.names))
	name := c.names[i]
	c.names = slices.Delete(c.names, i, i+1)
	var o metav1.DeleteOptions
	if c.rnd.IntN(3) == 0 {
		o = *metav1.NewDeleteOptions(0)
	}
	if err := pods.Delete(ctx, name, o); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// churn makes and deletes Pods while agent, kubelet and containerd are killed at random, and
// the agent is upgraded. At the end nothing is leaked and every living Pod answers; the watcher
// has looked for duplicates all the time.
func churn(t *testing.T, n *node) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, uint64(len(n.Runtime.Version))))
	c := &churner{n: n, rnd: rand.New(rand.NewPCG(seed, 1)), most: within2(20, 110)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	stop := func() { cancel(); wg.Wait() }
	defer stop()
	wg.Go(func() { c.run(ctx) })
	kills := map[string]int{}
	var next []int
	upgraded := false
	began := time.Now()
	during := within(2*time.Minute, 10*time.Minute)
	for time.Since(began) < during || len(kills) < 3 && time.Since(began) < 2*during {
		time.Sleep(time.Duration(1+rnd.IntN(4)) * time.Second)
		if !upgraded && time.Since(began) > during/3 {
			upgraded = true
			n.version = "v2"
			if out, err := n.s.Kubectl(t, "apply", "-f", n.render(t)); err != nil {
				t.Fatalf("upgrade: %v\n%s", err, out)
			}
			continue
		}
		// Each in its turn, in an order that is drawn anew for each round.
		if len(next) == 0 {
			next = rnd.Perm(4)
		}
		what := next[0]
		next = next[1:]
		switch what {
		case 0:
			n.Kubelet.Kill(t)
			time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			n.Kubelet.Start(t)
			kills["kubelet"]++
		case 1:
			n.Runtime.Kill(t)
			time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			n.Runtime.Restart(t)
			kills["containerd"]++
		default:
			for range 100 {
				if n.killAgent(t) {
					kills["agent"]++
					break
				}
				time.Sleep(100 * time.Millisecond) // it is about to start
			}
		}
	}
	stop()
	if c.err != nil {
		t.Error(c.err)
	}
	for _, p := range n.pods(t) {
		if len(p.Spec.Containers[0].Command) > 0 && p.DeletionTimestamp == nil {
			n.s.DeletePod(t, p.Namespace, p.Name, false)
		}
	}
	t.Logf("%d Pods made, killed %v", c.made, kills)
	if len(kills) < 3 {
		t.Errorf("killed %v: nothing was shown", kills)
	}
	n.awaitAgent(t)
	n.settle(t, 2*soon, "after the churn")
}

func within2(short, long int) int {
	if *longFlag {
		return long
	}
	return short
}

// killAgent kills the agent's process, if there is one.
func (n *node) killAgent(t *testing.T) bool {
	t.Helper()
	st, err := n.status(t.Context())
	if err != nil || st.PID <= 1 {
		return false
	}
	// By a descriptor, and only what is below the node's cgroup: the PID may be another's by now.
	fd, err := unix.PidfdOpen(st.PID, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", st.PID))
	if err != nil || !strings.Contains(string(b), n.Runtime.Cgroup()+"/") {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// uninstalled takes the agent off a node whose Pods go on. Nothing of it is left but its state:
// no process, no socket, and of the run directory what the next boot empties anyway.
func uninstalled(t *testing.T, n *node) {
	live := n.run(t, "stays-"+n.Name)
	held := n.of(t, live...)
	if out, err := n.s.Kubectl(t, "delete", "-f", n.render(t), "--wait=false"); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	until(t, soon, "the namespace is gone", func() error {
		_, err := n.s.Admin.CoreV1().Namespaces().Get(t.Context(), n.namespace(), getOptions())
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	if err := n.held(t, held); err != nil {
		t.Error(err)
	}
	n.Runtime.Ping(t, room.PodIP(t, live[0]))
	t.Logf("left in the run directory: %q, in the state directory: %q", left(t, n.runDir), left(t, n.stateDir))
	if slices.Contains(left(t, n.runDir), "agent.sock") {
		t.Error("the socket is left")
	}
	for _, list := range []string{"clusterrole/holdfast-agent-" + n.Name, "clusterrolebinding/holdfast-agent-" + n.Name} {
		if out, err := n.s.Kubectl(t, "get", list); err == nil {
			t.Errorf("left in the API: %s", out)
		}
	}
	nodecheck.Node{
		DataDirs: []string{n.Runtime.DataDir()}, Networks: n.networks, CacheDir: n.Runtime.CacheDir(),
		StateDir: n.stateDir, RunDir: n.runDir, Pods: n.checked(t, live),
	}.Verify(t)
	for _, p := range n.pods(t) {
		n.remove(t, &p)
	}
	until(t, soon, "the kubelet and the plugins go on without", func() error {
		if r := n.reservations(t); len(r) > 0 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
}

func left(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// checked are living Pods for nodecheck.
func (n *node) checked(t *testing.T, pods []*corev1.Pod) []nodecheck.Pod {
	t.Helper()
	var out []nodecheck.Pod
	for _, p := range pods {
		a := room.PodIP(t, p)
		out = append(out, nodecheck.Pod{Name: p.Name, ContainerID: n.of(t, p)[a], Addrs: []netip.Addr{a}})
	}
	return out
}
