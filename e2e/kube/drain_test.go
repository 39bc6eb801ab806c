package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	// drainBound is how long a Pod may wait for an address on a node whose range a failing
	// plugin drains, with the agent as it is shipped (docs/agent.md): the pressure grace (30 s)
	// and two sweeps under pressure (10 s each) until an address is free; then the kubelet's
	// next attempt takes it.
	drainBound = time.Minute
	capacity   = 29 // a /27 without network, gateway and broadcast
)

// breaking fails ADD and DEL of the Pods whose names begin with bad-, and passes all others on.
const breaking = `#!/bin/sh
case "$CNI_COMMAND $CNI_ARGS" in
VERSION*) ;;
*K8S_POD_NAME=bad-*)
	cat >/dev/null
	echo '{"cniVersion":"1.0.0","code":999,"msg":"this plugin always fails"}'
	exit 1 ;;
esac
exec "${0%/*}/tuning"
`

// drained is a node of containerd 2.4.2 with a /27 and a plugin that fails for some. ipam is
// the allocator.
func (s *site) drained(t *testing.T, name, ipam string) *node {
	t.Helper()
	o := room.NodeOptions{Containerd: cri.V2, Name: name}
	o.Plugins = func(r *cri.Runtime) {
		r.InstallPlugin(t, "breaking", breaking)
		if ipam == "holdfast-ipam" {
			r.InstallProgram(t, s.ipam)
		}
	}
	o.Network = func(n *cri.Network) { n.Subnet = netip.PrefixFrom(n.Subnet.Addr(), 27) }
	n := s.addNode(t, o)
	network := n.Runtime.Network()
	network.Chain = []string{"breaking"}
	if ipam == "holdfast-ipam" {
		network.IPAM["type"], network.IPAM["stateDir"], network.IPAM["runDir"] = ipam, n.stateDir, n.runDir
	}
	n.Runtime.SetNetwork(t, network)
	// As shipped, where it matters here.
	n.config["interval"], n.config["grace"], n.config["orphanGrace"], n.config["maxReleases"] = nil, nil, nil, nil
	return n
}

// A chained plugin fails ADD and DEL of some Pods, and containerd 2.4.2 loses an address with
// each attempt (case L10). The range is full before the agent comes; from then on other Pods
// get addresses within drainBound, with one bad Pod and with five.
func drain(t *testing.T, n *node) {
	n.keepAway(t, true)
	n.longAcquainted(t)
	live := n.of(t, n.run(t, "a-"+n.Name, "b-"+n.Name)...)
	n.s.CreatePod(t, room.PausePod(bad(n, 0), n.Name))
	until(t, soon, "the bad Pod loses addresses", func() error {
		if lost := len(n.reservations(t)) - len(live); lost < 2 {
			return fmt.Errorf("%d", lost)
		}
		return nil
	})
	// The rest of what it would lose in the next minutes.
	base := n.subnet().Masked().Addr()
	a := base.Next()
	for range capacity {
		a = a.Next()
		if _, ok := n.reservations(t)[a]; !ok {
			n.plant(t, a)
		}
	}
	if got := len(n.reservations(t)); got != capacity {
		t.Fatalf("%d addresses are reserved, want %d", got, capacity)
	}
	first := n.s.CreatePod(t, room.PausePod("first-"+n.Name, n.Name))
	until(t, soon, "a good Pod finds no address", func() error {
		return n.failedFor(t, first, "full", "no IP addresses available", "nothing is free", "no address")
	})

	n.keepAway(t, false)
	began := time.Now()
	n.runsWithin(t, first.Name, drainBound)
	t.Logf("%s: with one bad Pod and a full range, the waiting Pod ran %s after the agent was there", n.Name, time.Since(began).Round(time.Second))
	for i := 1; i < 5; i++ {
		n.s.CreatePod(t, room.PausePod(bad(n, i), n.Name))
	}
	slowest := time.Duration(0)
	for i, end := 0, time.Now().Add(within(45*time.Second, 5*time.Minute)); time.Now().Before(end); i++ {
		p := n.s.CreatePod(t, room.PausePod(fmt.Sprintf("good-%d-%s", i, n.Name), n.Name))
		began := time.Now()
		n.runsWithin(t, p.Name, drainBound)
		slowest = max(slowest, time.Since(began))
		time.Sleep(3 * time.Second)
	}
	t.Logf("%s: with five bad Pods, a good one waited at most %s", n.Name, slowest.Round(time.Second))
	if err := n.held(t, live); err != nil {
		t.Error(err)
	}
	n.neverReleased(t, live)
	n.ping2(t)
	n.named(t)
}

// longAcquainted makes the agent's sightings of idle namespaces older than its grace, as if it had
// been here before the story began. What idles on this machine, such as what a killed test left,
// might else be of an ADD in flight, and no range would drain sooner than by the grace.
func (n *node) longAcquainted(t *testing.T) {
	t.Helper()
	d, err := state.Open(n.stateDir, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	memory, err := d.LoadSightings()
	if err != nil {
		t.Fatal(err)
	}
	var list []verdict.Sighting
	for _, s := range memory {
		older := *s
		if !strings.HasPrefix(s.Path, n.Runtime.DataDir()) {
			older.First.Mono = max(older.First.Mono-10*time.Minute, 1)
		}
		list = append(list, older)
	}
	if err := d.SaveSightings(verdict.NewMemory(list)); err != nil {
		t.Fatal(err)
	}
}

func bad(n *node, i int) string { return fmt.Sprintf("bad-%d-%s", i, n.Name) }

// ping2 asks the Pods that run.
func (n *node) ping2(t *testing.T) {
	t.Helper()
	var addrs []netip.Addr
	for _, p := range n.pods(t) {
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			addrs = append(addrs, room.PodIP(t, &p))
		}
	}
	n.Runtime.Ping(t, addrs...)
}

// runsWithin waits until a Pod runs, and fails the test if that takes longer.
func (n *node) runsWithin(t *testing.T, name string, bound time.Duration) {
	t.Helper()
	deadline := time.Now().Add(bound)
	for {
		got, err := n.s.Admin.CoreV1().Pods("default").Get(t.Context(), name, getOptions())
		if err == nil && got.Status.Phase == corev1.PodRunning && got.Status.PodIP != "" {
			return
		}
		if time.Now().After(deadline) {
			n.tell(t)
			n.why(t)
			t.Fatalf("Pod %s does not run within %s: %v; reserved are %d", name, bound, err, len(n.reservations(t)))
		}
		time.Sleep(pollEvery)
	}
}

// failedFor is nil when the kubelet has told that a sandbox of the Pod failed with one of the texts.
func (n *node) failedFor(t *testing.T, p *corev1.Pod, texts ...string) error {
	t.Helper()
	list, err := n.s.Admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name})
	if err != nil {
		return err
	}
	var said []string
	for _, e := range list.Items {
		if e.Reason != "FailedCreatePodSandBox" {
			continue
		}
		for _, text := range texts {
			if strings.Contains(e.Message, text) {
				return nil
			}
		}
		said = append(said, e.Message)
	}
	return fmt.Errorf("not told: %q", said)
}

// named fails the test unless log, metrics and an Event on the bad Pod say what loses the addresses.
func (n *node) named(t *testing.T) {
	t.Helper()
	until(t, soon, "an Event names the bad Pod and the plugin", func() error {
		list, err := n.s.Admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod"})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range list.Items {
			if e.Source.Component != "holdfast" || !strings.HasSuffix(e.InvolvedObject.Name, n.Name) {
				continue
			}
			said = append(said, e.InvolvedObject.Name+": "+e.Message)
			if strings.HasPrefix(e.InvolvedObject.Name, "bad-") && strings.Contains(e.Message, `"breaking"`) {
				t.Logf("Event %s on %s: %s", e.Reason, e.InvolvedObject.Name, e.Message)
				return nil
			}
		}
		return fmt.Errorf("Events of holdfast: %q", said)
	})
	released := false
	for _, line := range n.logs(t) {
		released = released || strings.Contains(line, `"plugin":"breaking"`) && strings.Contains(line, "bad-")
	}
	if !released {
		t.Error("no line of the log names the Pod and the plugin")
	}
	code, text, err := n.get(t.Context(), "/metrics")
	if err != nil || code != 200 {
		t.Fatalf("metrics: %d, %v", code, err)
	}
	count := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "holdfast_releases_total") && strings.Contains(line, `cause="add-failed"`) && strings.Contains(line, n.networks[0]) {
			count = strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
		}
	}
	if count == "" || count == "0" {
		t.Errorf("metrics count %q releases of failed ADDs", count)
	}
}
