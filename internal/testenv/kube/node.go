package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

// NodeOptions choose what a node has.
type NodeOptions struct {
	// Name is node-0, node-1 and so on when empty.
	Name string
	// Containerd is cri.Debian (1.6.20) when empty.
	Containerd cri.Version
	// Network changes the node's Pod network before the kubelet starts, such as its
	// Subnet, its Chain, or its IPAM plugin. Programs that it names are for the test to
	// install (Runtime.InstallProgram), in Plugins.
	Network func(*cri.Network)
	// Plugins installs CNI plugins before the network is set.
	Plugins func(*cri.Runtime)
	// Labels are of the Node object, from its registration on.
	Labels map[string]string
	// Kubelet are fields of its KubeletConfiguration, beside or instead of ours.
	Kubelet map[string]any
}

// Node is a kubelet with its containerd.
type Node struct {
	Name string
	IP   netip.Addr // in the network of the nodes
	// Runtime is the containerd, with the CNI directories, the reservations, pings.
	Runtime *cri.Runtime
	// Kubelet can be killed, stopped and started.
	Kubelet *Program
	// API is what the kubelet and the Pods of this node take for the API server.
	API *Interposer
	// KubeletRoot is the kubelet's root directory, StaticPods where it looks for
	// manifests of static Pods, PodLogs where the containers' output goes.
	KubeletRoot, StaticPods, PodLogs string
	// KubeletConfig is the kubelet's configuration file.
	KubeletConfig string

	cluster *Cluster
	dir     string
}

// AddNode joins a node and waits until it is ready.
func (c *Cluster) AddNode(t testing.TB, o NodeOptions) *Node {
	t.Helper()
	if o.Containerd == "" {
		o.Containerd = cri.Debian
	}
	r := cri.StartNode(t, o.Containerd)
	number := c.nodes
	c.nodes++
	if o.Name == "" {
		o.Name = fmt.Sprintf("node-%d", number)
	}
	dir := filepath.Join(r.Dir(), "kubelet")
	n := &Node{
		Name: o.Name, IP: nodeAddr(number), Runtime: r, cluster: c, dir: dir,
		KubeletRoot: filepath.Join(dir, "root"), StaticPods: filepath.Join(dir, "manifests"), PodLogs: filepath.Join(dir, "pods"),
		KubeletConfig: filepath.Join(dir, "config.yaml"),
	}
	if o.Plugins != nil {
		o.Plugins(r)
	}
	network := r.Network()
	// Without a route of their own, Pods do not find the API server.
	network.IPAM = map[string]any{"routes": []map[string]any{{"dst": "0.0.0.0/0"}}}
	if o.Network != nil {
		o.Network(&network)
	}
	r.SetNetwork(t, network)
	if err := c.connect(n, number); err != nil {
		t.Fatal(err)
	}
	if err := c.route(n, network.Subnet); err != nil {
		t.Fatal(err)
	}
	if err := n.prepare(o); err != nil {
		t.Fatalf("prepare the kubelet of %s: %v", n.Name, err)
	}
	n.API = c.interpose(t, relisten(net.JoinHostPort(serviceIP, "443"), r.OnNode))
	t.Cleanup(func() { n.close(t) })
	n.Kubelet.Start(t)
	n.WaitReady(t)
	return n
}

// WaitReady waits until the API says that the node is ready, and that it takes Pods which
// tolerate nothing. The API is the last to learn that a kubelet is gone (40 s); whether it
// is back, Kubelet.Start has waited for.
func (n *Node) WaitReady(t testing.TB) {
	t.Helper()
	until(t, podsWithin, n.Name+" is ready", func() error {
		node, err := n.cluster.Admin.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n.cluster.Controllers != nil && len(node.Spec.Taints) > 0 {
			return fmt.Errorf("taints %v", node.Spec.Taints)
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s: %s", c.Reason, c.Message)
			} else if c.Type == corev1.NodeReady {
				return nil
			}
		}
		return errors.New("no condition Ready")
	})
}

// prepare writes the kubelet's files and describes the program.
func (n *Node) prepare(o NodeOptions) error {
	for _, d := range []string{n.dir, n.KubeletRoot, n.StaticPods, n.PodLogs} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := shareMount(n.KubeletRoot); err != nil {
		return err
	}
	if err := makeCgroups(n.Runtime.Cgroup()); err != nil {
		return err
	}
	stage, err := newStage(filepath.Join(n.dir, "private"), n.KubeletRoot)
	if err != nil {
		return err
	}
	ca := filepath.Join(n.dir, "ca.crt")
	if err := os.WriteFile(ca, n.cluster.ca.pem, 0o644); err != nil {
		return err
	}
	kubeconfig := filepath.Join(n.dir, "kubeconfig")
	if err := n.cluster.kubeconfig(kubeconfig, "https://"+serviceIP+":443", "system:node:"+n.Name, "system:nodes"); err != nil {
		return err
	}
	config := kubeletConfig(n, ca)
	maps.Copy(config, o.Kubelet)
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.KubeletConfig, text, 0o644); err != nil {
		return err
	}
	var labels []string
	for k, v := range o.Labels {
		labels = append(labels, k+"="+v)
	}
	n.Kubelet = &Program{
		Name: "kubelet of " + n.Name, Log: filepath.Join(n.dir, "kubelet.log"),
		args: []string{filepath.Join(n.cluster.bin, "kubelet"), "--config=" + n.KubeletConfig, "--kubeconfig=" + kubeconfig,
			"--hostname-override=" + n.Name, "--node-ip=" + n.IP.String(), "--root-dir=" + n.KubeletRoot,
			"--cert-dir=" + filepath.Join(n.dir, "pki"), "--node-labels=" + strings.Join(labels, ",")},
		within: func(f func() error) error {
			return n.Runtime.OnNode(func() error {
				if err := stage.enter(); err != nil {
					return err
				}
				return f()
			})
		},
		ready: n.kubeletReady,
	}
	return nil
}

// kubeletConfig is what a kubelet needs here. It may not be the init system's only child
// of this kind, has no swap to fear and no iptables of its own; nothing is evicted from
// a full disk; the cgroups are those of the test (v1 or v2).
func kubeletConfig(n *Node, ca string) map[string]any {
	type object = map[string]any
	none := object{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%", "pid.available": "0%"}
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": n.Runtime.Endpoint,
		"cgroupRoot":               n.Runtime.Cgroup(), "cgroupDriver": "cgroupfs", "failCgroupV1": false, "enforceNodeAllocatable": []string{},
		"failSwapOn": false, "oomScoreAdj": 0, "makeIPTablesUtilChains": false, "resolvConf": "",
		"evictionHard": none, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"enableControllerAttachDetach": false, "registerNode": true, "maxPods": 250,
		"staticPodPath": n.StaticPods, "podLogsDir": n.PodLogs, "volumePluginDir": filepath.Join(n.dir, "volumeplugins"),
		"address": n.IP.String(), "port": 10250, "healthzPort": 10248, "healthzBindAddress": "127.0.0.1",
		"authentication": object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}, "x509": object{"clientCAFile": ca}},
		"authorization":  object{"mode": "Webhook"},
		// Tests wait for what the kubelet says.
		"kubeAPIQPS": 200, "kubeAPIBurst": 400, "fileCheckFrequency": "1s",
	}
}

func (n *Node) kubeletReady(ctx context.Context) error {
	client := http.Client{Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("healthz: %s", resp.Status)
	}
	return nil
}

// dial connects from the node.
func (n *Node) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = n.Runtime.OnNode(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Dial connects from the node's network namespace, such as to an agent on the node's
// loopback. Usable concurrently.
func (n *Node) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.dial(ctx, network, addr)
}

// Reboot is what a power failure does to a node: kubelet, containerd, shims, containers
// and network namespaces end at once. With wipe, containerd's root goes as well, as on a
// node that is imaged anew, while the CNI directories stay. Then containerd and the
// kubelet start again and the kubelet makes new sandboxes for its Pods.
//
// The boot ID stays what it is.
func (n *Node) Reboot(t testing.TB, wipe bool) {
	t.Helper()
	n.Kubelet.Kill(t)
	n.Runtime.PowerOff(t)
	if err := unmountBelow(n.KubeletRoot); err != nil {
		t.Fatal(err)
	}
	if wipe {
		n.Runtime.WipeRoot(t)
	}
	n.Runtime.Restart(t)
	n.Kubelet.Start(t)
}

// Lose is a node whose runtime lost Pods: the kubelet is killed, the Pods' sandboxes and all
// that ran in them end, and the runtime, started again, knows nothing of them, so that no DEL
// is ever called for them. The kubelet stays down. The Pods are of quality of service
// BestEffort, as PausePod's are, and may be gone from the API.
func (n *Node) Lose(t testing.TB, pods ...*corev1.Pod) {
	t.Helper()
	n.Kubelet.Kill(t)
	reserved := n.Runtime.Reservations(t, n.Runtime.Network().Name)
	var ids, cgroups []string
	for _, p := range pods {
		id := reserved[PodIP(t, p)]
		if id == "" {
			t.Fatalf("nothing is reserved for Pod %s, which has %s", p.Name, p.Status.PodIP)
		}
		ids = append(ids, id)
		cgroups = append(cgroups, filepath.Join(n.Runtime.Cgroup(), "kubepods/besteffort", "pod"+string(p.UID)))
	}
	n.Runtime.Forget(t, ids, cgroups)
}

// close ends the kubelet; the rest is the runtime's to take away.
func (n *Node) close(t testing.TB) {
	if t.Failed() {
		t.Log(n.Kubelet.LogTail())
	}
	if err := n.Kubelet.signal(killed); err != nil {
		t.Errorf("taking %s away: %v", n.Name, err)
	}
}

func tokenRequest(valid int64) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &valid}}
}

// makeCgroups makes a cgroup in every hierarchy: the kubelet wants its root to be there.
func makeCgroups(cgroup string) error {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err == nil {
		return mkdir(filepath.Join(top, cgroup))
	}
	hierarchies, err := os.ReadDir(top)
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		if h.IsDir() { // links are names of the same hierarchies
			if err := mkdir(filepath.Join(top, h.Name(), cgroup)); err != nil {
				return err
			}
		}
	}
	return nil
}

func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
