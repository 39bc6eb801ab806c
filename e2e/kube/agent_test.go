package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/wire"
)

const (
	interval = 2 * time.Second
	grace    = 5 * time.Second
	// reclaimed is how long a leak may stay once all witnesses speak: the grace and two
	// sweeps (I2), and room for a busy machine.
	reclaimed = grace + 2*interval + 20*time.Second
	// away is how the agent is kept off a node.
	away = "holdfast.test/away"
)

type object = map[string]any

func (n *node) namespace() string { return "holdfast-" + n.Name }

// deploy applies deploy/kustomize/base for this node, with patches for what is this room's:
// each node has its own places, though all are on one machine.
func (n *node) deploy(t *testing.T, version string) {
	t.Helper()
	n.version = version
	manifest := n.render(t)
	if out, err := n.s.Kubectl(t, "apply", "-f", manifest); err != nil {
		t.Fatalf("deploy the agent: %v\n%s", err, out)
	}
	n.awaitAgent(t)
}

// render writes the manifests into one file.
func (n *node) render(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(n.s.dir, "deploy-"+n.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Rel(dir, filepath.Join(n.s.root, "deploy/kustomize/base"))
	if err != nil {
		t.Fatal(err)
	}
	hostPath := func(name, path string) object {
		return object{"name": name, "hostPath": object{"path": path, "type": "DirectoryOrCreate"}}
	}
	r := n.Runtime
	daemonSet := object{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"name": "holdfast-agent"},
		"spec": object{"template": object{"spec": object{
			"affinity": object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": []object{{
				"matchExpressions": []object{
					{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{n.Name}},
					{"key": away, "operator": "DoesNotExist"},
				},
			}}}}},
			"terminationGracePeriodSeconds": 5,
			"containers": []object{{
				"name":           "agent",
				"readinessProbe": object{"periodSeconds": 1},
				"volumeMounts": []object{
					{"mountPath": "/etc/cni/net.d", "$patch": "delete"},
					{"mountPath": r.ConfDir(), "name": "readonly-0", "readOnly": true},
					{"mountPath": r.DataDir(), "name": "data"},
				},
			}},
			"volumes": []object{
				hostPath("state", n.stateDir), hostPath("run-holdfast", n.runDir), hostPath("run", r.RunDir()),
				hostPath("readonly-0", r.ConfDir()), hostPath("data", r.DataDir()),
			},
		}}},
	}
	config := object{
		"apiVersion": "holdfast.dev/v1alpha1", "kind": "AgentConfiguration",
		"interval": interval.String(), "grace": grace.String(), "orphanGrace": "20s", "maxReleases": 500,
		"networks": n.networks, "http": object{"address": "127.0.0.1:9617"},
		"paths": object{
			"cniConfDirs": []string{r.ConfDir()}, "dataDirs": []string{r.DataDir()}, "cniBinDirs": []string{r.BinDir()},
			"kubeletConfig": filepath.Join("/proc/1/root", n.KubeletConfig),
		},
	}
	maps.Copy(config, n.config)
	maps.DeleteFunc(config, func(_ string, v any) bool { return v == nil })
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	configMap := object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "holdfast-agent"}, "data": object{"agent.yaml": string(text)},
	}
	patch := func(o object) object {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return object{"patch": string(text)}
	}
	name, tag, _ := strings.Cut(image(n.version), ":")
	top, err := yaml.Marshal(object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{base}, "namespace": n.namespace(), "nameSuffix": "-" + n.Name,
		"images":  []object{{"name": "ghcr.io/holdfast-cni/holdfast", "newName": name, "newTag": tag}},
		"patches": []object{patch(daemonSet), patch(configMap)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), top, 0o644); err != nil {
		t.Fatal(err)
	}
	rendered, err := n.s.Kubectl(t, "kustomize", dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "rendered.yaml")
	if err := os.WriteFile(file, []byte(rendered), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// agentPods are the Pods of the agent in the API.
func (n *node) agentPods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := n.s.Admin.CoreV1().Pods(n.namespace()).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// status asks the agent on its socket, as the CLI does.
func (n *node) status(ctx context.Context) (st wire.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.runDir, "agent.sock"))
	if err != nil {
		return st, err
	}
	defer conn.Close()
	if d, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(d); err != nil {
			return st, err
		}
	}
	if err := wire.Write(conn, wire.Head{APIVersion: wire.APIVersion, Kind: wire.KindStatusRequest}); err != nil {
		return st, err
	}
	line, head, err := wire.ReadLine(bufio.NewReader(conn), wire.MaxLine)
	if err != nil {
		return st, err
	}
	if head.Kind != wire.KindStatus {
		return st, fmt.Errorf("the agent answers %s", line)
	}
	return st, json.Unmarshal(line, &st)
}

// awaitAgent waits until the agent of the wanted version does its work, by its own word and by
// the kubelet's, and there is one.
func (n *node) awaitAgent(t *testing.T) wire.Status {
	t.Helper()
	var st wire.Status
	deadline := time.Now().Add(soon)
	for {
		err := func() (err error) {
			if st, err = n.status(t.Context()); err != nil {
				return err
			}
			if !st.Ready || st.Version != n.version {
				return fmt.Errorf("version %s, not ready: %s", st.Version, st.NotReady)
			}
			pods := n.agentPods(t)
			if len(pods) != 1 {
				return fmt.Errorf("%d Pods of the agent", len(pods))
			}
			for _, c := range pods[0].Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return errors.New("the kubelet has not seen it ready")
		}()
		if err == nil {
			return st
		}
		if time.Now().After(deadline) {
			n.tell(t)
			t.Fatalf("the agent of %s is not at work: %v", n.Name, err)
		}
		time.Sleep(pollEvery)
	}
}

// keepAway keeps the agent off the node by its node affinity, and lets it come back.
func (n *node) keepAway(t *testing.T, off bool) {
	t.Helper()
	label := away + "-"
	if off {
		label = away + "=yes"
	}
	if _, err := n.s.Kubectl(t, "label", "node", n.Name, label); err != nil {
		t.Fatal(err)
	}
	if !off {
		n.awaitAgent(t)
		return
	}
	until(t, soon, "the agent is off "+n.Name, func() error {
		if pods := n.agentPods(t); len(pods) > 0 {
			return fmt.Errorf("%d Pods", len(pods))
		}
		if st, err := n.status(t.Context()); err == nil {
			return fmt.Errorf("process %d answers", st.PID)
		}
		return nil
	})
}

// restart lets the agent's Pod be replaced and waits for the new one.
func (n *node) restart(t *testing.T) {
	t.Helper()
	pods := n.agentPods(t)
	if len(pods) != 1 {
		t.Fatalf("%d Pods of the agent", len(pods))
	}
	n.s.DeletePod(t, pods[0].Namespace, pods[0].Name, false)
	n.s.WaitGone(t, pods[0].Namespace, pods[0].Name)
	n.awaitAgent(t)
}

// entries are what the agent's journal adds up to.
func (n *node) entries(t *testing.T) []journal.Entry {
	t.Helper()
	j, err := journal.Open(n.stateDir, journal.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	recs, damage, err := j.Load()
	if err != nil || slices.ContainsFunc(damage, func(d journal.Damage) bool { return !d.Torn }) {
		t.Fatalf("journal of %s: %v, %v", n.Name, err, damage)
	}
	return journal.Replay(recs)
}

// released reports the release of an address of a container, by the journal.
func (n *node) released(t *testing.T, addr netip.Addr, id string) (journal.Entry, bool) {
	t.Helper()
	for _, e := range n.entries(t) {
		if e.Release != nil && e.Release.Addr == addr && e.Release.Owner.ID == id && e.State == journal.StateReleased {
			return e, true
		}
	}
	return journal.Entry{}, false
}

// wasReleased fails the test unless the journal has a release of each reservation, and says by
// which rule.
func (n *node) wasReleased(t *testing.T, want map[netip.Addr]string) {
	t.Helper()
	for a, id := range want {
		var e journal.Entry
		// The outcome is written when the file is gone.
		until(t, soon, fmt.Sprintf("the journal has a release of %s of %s", a, id), func() (err error) {
			var ok bool
			if e, ok = n.released(t, a, id); !ok {
				err = errors.New("there is none")
			}
			return err
		})
		if len(e.Release.Says) == 0 || e.Release.Why == "" {
			t.Errorf("the release of %s carries no evidence: %+v", a, e.Release)
		}
		t.Logf("%s of %.12s: %s (%s)", a, id, e.Release.Verdict, e.Release.Why)
	}
}

// neverReleased fails the test if the journal has an intent about an address of a container.
func (n *node) neverReleased(t *testing.T, want map[netip.Addr]string) {
	t.Helper()
	for _, e := range n.entries(t) {
		if r := e.Release; r != nil && e.State != journal.StateAdopted {
			if id, ok := want[r.Addr]; ok && id == r.Owner.ID {
				t.Errorf("%s of %.12s was to be released: %s %s", r.Addr, id, e.State, r.Why)
			}
		}
	}
}

// logs are what the agents of this node have written to standard error, by the kubelet's files,
// which go with their Pods.
func (n *node) logs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.PodLogs, n.namespace()+"_*", "agent", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if p := strings.SplitN(line, " ", 4); len(p) == 4 {
				out = append(out, strings.TrimSpace(p[3]))
			}
		}
	}
	return out
}

// tell shows what a person would look at first.
func (n *node) tell(t *testing.T) {
	t.Helper()
	for _, p := range n.agentPods(t) {
		t.Logf("agent's Pod %s: %s %+v", p.Name, p.Status.Phase, p.Status.ContainerStatuses)
	}
	lines := n.logs(t)
	t.Logf("the end of the agent's log on %s:\n%s", n.Name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}

// why shows what the agent says of what it keeps, each thing once.
func (n *node) why(t *testing.T) {
	t.Helper()
	code, text, err := n.get(t.Context(), "/api/v1alpha1/audit")
	var doc struct {
		Resources []struct{ Address, Verdict, Why string }
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &doc)
	}
	if code != http.StatusOK || err != nil {
		t.Logf("audit: %d, %v", code, err)
	}
	count := map[string]int{}
	for _, f := range doc.Resources {
		count[f.Verdict+": "+f.Why]++
	}
	for text, c := range count {
		t.Logf("%d x %s", c, text)
	}
	_, text, _ = n.get(t.Context(), "/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "holdfast_sweeps_total") && !strings.HasSuffix(line, " 0\n") || strings.HasPrefix(line, "holdfast_ipam_capacity") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// get asks the agent's HTTP port from the node.
func (n *node) get(ctx context.Context, path string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9617"+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var b strings.Builder
	_, err = bufio.NewReader(resp.Body).WriteTo(&b)
	return resp.StatusCode, b.String(), err
}
