package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

const (
	bootID    = "0a1b2c3d-1111-2222-3333-444455556666"
	namespace = "holdfast-system"
	account   = "holdfast-agent"
	// writers is how many objects are made at a time.
	writers = 32
)

// room is a cluster of objects without kubelets.
type room struct {
	*kube.Cluster
	direct kubernetes.Interface // the administrator's, to the API server itself
	token  string
	nodes  []string
	// idle is the CPU of API server and etcd, in cores, when nobody asked last.
	idle [2]float64
}

func newRoom(t *testing.T, etcd string, nodes, pods int) *room {
	r := &room{Cluster: kube.Start(t, kube.Options{WithoutControllers: true, Etcd: etcd})}
	cfg := r.config(new(atomic.Int64))
	cfg.TLSClientConfig, cfg.QPS, cfg.WarningHandler = r.Config.TLSClientConfig, -1, rest.NoWarnings{}
	cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hc.CloseIdleConnections)
	if r.direct, err = kubernetes.NewForConfigAndClient(cfg, hc); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{namespace, "default"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := r.direct.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && name == namespace {
			t.Fatal(err)
		}
	}
	if _, err := r.Kubectl(t, "apply", "-n", namespace, "-f", filepath.Join("..", "..", "deploy", "kustomize", "base", "rbac.yaml")); err != nil {
		t.Fatal(err)
	}
	if r.token, err = r.Token(t.Context(), namespace, account); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		r.nodes = append(r.nodes, fmt.Sprintf("node-%04d", i))
	}
	began := time.Now()
	if err := r.fill(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d Nodes with %d Pods each, made in %s", nodes, pods, time.Since(began).Round(time.Second))
	return r
}

// config is for one client with connections of its own, whose bytes are counted as they
// come, compressed or not and with TLS.
func (r *room) config(received *atomic.Int64) *rest.Config {
	return &rest.Config{
		Host:            "https://10.96.0.1:443", // a name of its certificate; Dial finds it
		TLSClientConfig: rest.TLSClientConfig{CAData: r.Config.CAData, CAFile: r.Config.CAFile},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := r.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return counted{c, received}, nil
		},
	}
}

type counted struct {
	net.Conn
	received *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

// fill makes the Nodes and their Pods.
func (r *room) fill(ctx context.Context, pods int) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs error
	next := make(chan int)
	for range writers {
		wg.Go(func() {
			for i := range next {
				if err := r.fillNode(ctx, i, pods); err != nil {
					mu.Lock()
					errs = errors.Join(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range r.nodes {
		next <- i
	}
	close(next)
	wg.Wait()
	return errs
}

func (r *room) fillNode(ctx context.Context, i, pods int) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.nodes[i]}}
	n, err := r.direct.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.Status.NodeInfo.BootID = bootID
	if _, err := r.direct.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return err
	}
	for k := range pods {
		p, err := r.direct.CoreV1().Pods("default").Create(ctx, aPod(r.nodes[i], k), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if err := r.running(ctx, p, fmt.Sprintf("10.%d.%d.%d", 100+i/256, i%256, k+2)); err != nil {
			return err
		}
	}
	return nil
}

// running writes the status that a kubelet would.
func (r *room) running(ctx context.Context, p *corev1.Pod, addr string) error {
	now := metav1.Now()
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: addr, PodIPs: []corev1.PodIP{{IP: addr}}, HostIP: "192.0.2.1",
		HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}}, StartTime: &now, QOSClass: corev1.PodQOSBurstable,
	}
	for _, k := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: k, Status: "True", LastTransitionTime: now})
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, Image: c.Image, ImageID: c.Image, ContainerID: "containerd://" + strings.Repeat("0123456789abcdef", 4),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	_, err := r.direct.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// aPod weighs what one of a Deployment with a sidecar does.
func aPod(node string, k int) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("checkout-service-7c9d8b6f4-%s-%03d", node, k), GenerateName: "checkout-service-7c9d8b6f4-",
			Labels: map[string]string{
				"app.kubernetes.io/name": "checkout-service", "app.kubernetes.io/instance": "production", "app.kubernetes.io/version": "1.42.7",
				"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "checkout-service-3.1.0", "pod-template-hash": "7c9d8b6f4",
			},
			Annotations: map[string]string{
				"checksum/config": strings.Repeat("0123456789abcdef", 4), "prometheus.io/scrape": "true", "prometheus.io/port": "9090",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "checkout-service-7c9d8b6f4", UID: bootID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
	for _, n := range []string{"app", "proxy"} {
		c := corev1.Container{
			Name: n, Image: "registry.example.com/team/checkout-service@sha256:" + strings.Repeat("0123456789abcdef", 4),
			Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("256Mi")}},
		}
		for k := range 12 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("CHECKOUT_SETTING_%d", k), Value: "https://backend.production.svc.cluster.local:8443/v1"})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// spent is what a program has used so far.
type spent struct {
	cpu time.Duration
	rss int64 // bytes now
}

func spentBy(t testing.TB, p *kube.Program) spent {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var n [3]int64
	for i, k := range []int{11, 12, 21} { // utime, stime, rss
		if n[i], err = strconv.ParseInt(f[k], 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return spent{time.Duration(n[0]+n[1]) * 10 * time.Millisecond, n[2] * int64(os.Getpagesize())}
}

// counters are those of the API server's metrics that tell where Pods were read, and how
// priority and fairness took the agents.
func (r *room) counters(t testing.TB) map[string]float64 {
	t.Helper()
	text, err := r.direct.CoreV1().RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{
		"apiserver_storage_list_total":                            `resource="pods"`,
		"apiserver_storage_list_fetched_objects_total":            `resource="pods"`,
		"apiserver_cache_list_total":                              `resource="pods"`,
		"apiserver_watch_cache_consistent_read_total":             `resource="pods"`,
		"apiserver_flowcontrol_dispatched_requests_total":         `flow_schema="service-accounts"`,
		"apiserver_flowcontrol_rejected_requests_total":           `flow_schema="service-accounts"`,
		"apiserver_flowcontrol_request_wait_duration_seconds_sum": `flow_schema="service-accounts"`,
		"apiserver_flowcontrol_work_estimated_seats_sum":          `flow_schema="service-accounts"`,
	}
	out := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, rest, ok := strings.Cut(lines.Text(), "{")
		label := of[name]
		if !ok || label == "" || !strings.Contains(rest, label) {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name+"{"+labels+"}"] += v
		}
	}
	return out
}
