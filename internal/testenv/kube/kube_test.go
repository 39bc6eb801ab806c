package kube

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

func TestControlPlane(t *testing.T) {
	began := time.Now()
	c := Start(t, Options{WithoutControllers: true})
	t.Logf("up in %s", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for _, p := range []*Program{c.APIServer, c.Etcd} {
		pid := p.PID()
		p.Kill(t)
		if p.Alive() || p.PID() != 0 {
			t.Errorf("%s was killed and lives", p.Name)
		}
		p.Start(t)
		if p.PID() == pid {
			t.Errorf("%s is the same process", p.Name)
		}
	}
	until(t, readyWithin, "the API server has its etcd back", func() error { return c.apiReady(t.Context()) })
	t.Logf("up again in %s", time.Since(began).Round(time.Millisecond))
	out, err := c.Kubectl(t, "version", "-o", "yaml")
	if err != nil || strings.Count(out, "gitVersion: v1.37.2") != 2 {
		t.Errorf("client and server are not both 1.37.2: %v\n%s", err, out)
	}
	began = time.Now()
	c.APIServer.Stop(t)
	t.Logf("stopped in %s", time.Since(began).Round(time.Millisecond))
}

// through is a client that goes through an interposer, with a short time-out.
func through(t *testing.T, c *Cluster, i *Interposer) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(c.Config)
	config.Host, config.Timeout = i.URL, time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestInterposer(t *testing.T) {
	c := Start(t, Options{WithoutControllers: true})
	i := c.Interpose(t)
	client := through(t, c, i)
	list := func() (int, error) {
		l, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		return len(l.Items), nil
	}
	must := func(want int) {
		t.Helper()
		if got, err := list(); err != nil || got != want {
			t.Errorf("%d Pods, %v; want %d", got, err, want)
		}
	}
	pods := Reads("pods")
	must(0)
	c.CreatePod(t, PausePod("a", "nowhere"))
	i.Fault(Stale(pods))
	must(1)
	c.CreatePod(t, PausePod("b", "nowhere"))
	must(1)
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("what does not match: %v", err)
	}
	i.Fault(nil)
	must(2)

	for name, fault := range map[string]Fault{
		"failing": Failing(http.StatusForbidden, pods), "cutting": Cutting(pods), "hanging": Hanging(pods),
		"delayed": Delayed(time.Minute, pods), "truncating": Truncating(40, pods),
	} {
		i.Fault(fault)
		if n, err := list(); err == nil {
			t.Errorf("%s: got a list of %d", name, n)
		}
	}
	i.Fault(Delayed(100*time.Millisecond, pods))
	must(2)
	i.Fault(nil)
	i.Down(t)
	if _, err := list(); err == nil {
		t.Error("down, and it answers")
	}
	i.Up(t)
	must(2)
	i.Cut(t)
	must(2)
	c.APIServer.Freeze(t)
	if _, err := list(); err == nil {
		t.Error("a frozen API server answers")
	}
	c.APIServer.Thaw(t)
	must(2)
}

// TestNodes has one cluster for all that a node must do, once for each containerd.
func TestNodes(t *testing.T) {
	began := time.Now()
	c := Start(t, Options{})
	t.Logf("control plane in %s", time.Since(began).Round(time.Millisecond))
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		began := time.Now()
		n := c.AddNode(t, NodeOptions{Containerd: v, Labels: map[string]string{"holdfast.test/containerd": string(v)}})
		t.Logf("%s with containerd %s in %s", n.Name, v, time.Since(began).Round(time.Millisecond))
		t.Run(string(v), func(t *testing.T) { testNode(t, c, n) })
		if t.Failed() {
			return
		}
	}
}

func testNode(t *testing.T, c *Cluster, n *Node) {
	network := n.Runtime.Network().Name
	step := func(what string, began time.Time) { t.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond)) }

	began := time.Now()
	pod := c.RunPod(t, PausePod("a-"+n.Name, n.Name))
	step("a Pod runs", began)
	addr := PodIP(t, pod)
	id := n.Runtime.Reservations(t, network)[addr]
	if ready := n.Runtime.Listed(t)[id]; id == "" || !ready {
		t.Fatalf("%s: reserved for %q, which is ready: %t", addr, id, ready)
	}
	n.Runtime.Ping(t, addr)
	proc := processOf(t, pod)
	actsAsItsAccount(t, c, proc, "system:serviceaccount:default:default")

	began = time.Now()
	host := PausePod("host-"+n.Name, n.Name)
	host.Spec.HostNetwork, host.Spec.HostPID = true, true
	host = c.RunPod(t, host)
	step("a Pod of the host runs", began)
	if got := PodIP(t, host); got != n.IP {
		t.Errorf("the Pod of the host has %s, its node %s", got, n.IP)
	}
	hostProc := processOf(t, host)
	actsAsItsAccount(t, c, hostProc, "system:serviceaccount:default:default")
	node, one := link(t, hostProc, "ns/net"), link(t, hostProc, "root/proc/1/ns/net")
	if machine := link(t, "/proc/self", "ns/net"); node != one || node == machine {
		t.Errorf("the Pod of the host is in %s, its PID 1 in %s, the machine's in %s", node, one, machine)
	}
	if link(t, proc, "ns/net") == node {
		t.Error("a Pod is in the namespace of its node")
	}

	began = time.Now()
	ds := daemonSet("ds-"+n.Name, n)
	if _, err := c.Admin.AppsV1().DaemonSets("default").Create(t.Context(), ds, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, podsWithin, "the DaemonSet is ready", func() error {
		got, err := c.Admin.AppsV1().DaemonSets("default").Get(t.Context(), ds.Name, metav1.GetOptions{})
		if err == nil && (got.Status.DesiredNumberScheduled != 1 || got.Status.NumberReady != 1) {
			err = errors.New("not yet")
		}
		return err
	})
	step("a DaemonSet is ready", began)
	if _, err := c.Kubectl(t, "get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/configz"); err != nil {
		t.Errorf("the API server does not reach the kubelet: %v", err)
	}

	began = time.Now()
	c.DeletePod(t, "default", host.Name, false)
	c.WaitGone(t, "default", host.Name)
	gone := c.RunPod(t, PausePod("gone-"+n.Name, n.Name))
	c.DeletePod(t, "default", gone.Name, false)
	c.WaitGone(t, "default", gone.Name)
	released(t, n, gone)
	step("two Pods deleted", began)

	// A status that is slow to come: the sandbox has its address, and the API knows of none.
	began = time.Now()
	n.API.Fault(Delayed(3*time.Second, All(FromKubelet, Writes("pods"))))
	slow := c.CreatePod(t, PausePod("slow-"+n.Name, n.Name))
	reserved := len(n.Runtime.Reservations(t, network))
	until(t, podsWithin, "the slow Pod has its address", func() error {
		if len(n.Runtime.Reservations(t, network)) == reserved {
			return errors.New("not yet")
		}
		return nil
	})
	if got, err := c.Admin.CoreV1().Pods("default").Get(t.Context(), slow.Name, metav1.GetOptions{}); err != nil || len(got.Status.PodIPs) > 0 {
		t.Errorf("the API knows %v already, %v", got.Status.PodIPs, err)
	}
	n.API.Fault(nil)
	c.WaitRunning(t, "default", slow.Name)
	c.DeletePod(t, "default", slow.Name, false)
	c.WaitGone(t, "default", slow.Name)
	step("a Pod with a slow status came and went", began)

	// A kubelet that was away when its Pod was deleted ends the sandbox when it is back.
	forced := c.RunPod(t, PausePod("forced-"+n.Name, n.Name))
	n.Kubelet.Kill(t)
	c.DeletePod(t, "default", forced.Name, true)
	c.WaitGone(t, "default", forced.Name)
	n.Runtime.Ping(t, PodIP(t, forced))
	began = time.Now()
	n.Kubelet.Start(t)
	step("the kubelet is back", began)
	released(t, n, forced)
	step("and has cleaned up", began)
	n.Runtime.Ping(t, addr)

	// A node that is imaged anew loses what it had reserved, and its Pods come back.
	before := n.Runtime.Reservations(t, network)
	if len(before) != 2 {
		t.Fatalf("reserved for the Pod and the DaemonSet: %v", before)
	}
	began = time.Now()
	n.Reboot(t, true)
	until(t, podsWithin, "the Pod has a new sandbox", func() error {
		got, err := c.Admin.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got.Status.PodIP == addr.String() {
			return errors.New("the old address")
		}
		return running(got)
	})
	step("rebooted", began)
	after := n.Runtime.Reservations(t, network)
	for addr, id := range before {
		if after[addr] != id {
			t.Errorf("a wiped containerd knew that %s was dead", addr)
		}
	}
	until(t, podsWithin, "both Pods have addresses", func() error {
		if n := len(n.Runtime.Reservations(t, network)); n != 4 {
			return errors.New("not both")
		}
		return nil
	})
}

// released waits until nothing is reserved for a Pod's address any more.
func released(t *testing.T, n *Node, pod *corev1.Pod) {
	t.Helper()
	until(t, podsWithin, "the address of Pod "+pod.Name+" is free", func() error {
		if id, ok := n.Runtime.Reservations(t, n.Runtime.Network().Name)[PodIP(t, pod)]; ok {
			return errors.New("reserved for " + id)
		}
		return nil
	})
}

func daemonSet(name string, n *Node) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	spec := PausePod(name, "").Spec
	spec.NodeSelector = map[string]string{"holdfast.test/containerd": string(n.Runtime.Version)}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// processOf returns the directory in /proc of the process of the Pod's container.
func processOf(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	id := pod.Status.ContainerStatuses[0].ContainerID
	id = id[strings.LastIndexByte(id, '/')+1:]
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		cgroups, err := os.ReadFile(filepath.Join(d, "cgroup"))
		if err == nil && strings.Contains(string(cgroups), string(pod.UID)) && strings.Contains(string(cgroups), id) {
			return d
		}
	}
	t.Fatalf("no process of container %s", id)
	return ""
}

func link(t *testing.T, proc, name string) string {
	t.Helper()
	target, err := os.Readlink(filepath.Join(proc, name))
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// actsAsItsAccount asks the API server who we are, in the way that a client in the Pod
// would: with its environment, its files, its network.
func actsAsItsAccount(t *testing.T, c *Cluster, proc, user string) {
	t.Helper()
	env, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		t.Fatal(err)
	}
	vars := strings.Split(string(env), "\x00")
	for _, v := range []string{"KUBERNETES_SERVICE_HOST=" + serviceIP, "KUBERNETES_SERVICE_PORT=443"} {
		if !slices.Contains(vars, v) {
			t.Errorf("the environment lacks %s: %q", v, vars)
		}
	}
	dir := filepath.Join(proc, "root/var/run/secrets/kubernetes.io/serviceaccount")
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + serviceIP + ":443", BearerToken: string(token), TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		Dial: dialFrom(proc),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := whoAmI(t, client)
	if got != user {
		t.Errorf("the API server takes the Pod for %q, want %q", got, user)
	}
	if _, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("an account without a role may list Pods")
	}
}
