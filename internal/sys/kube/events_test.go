package kube

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

var boxID = strings.Repeat("0123456789abcdef", 4)

// What kubelets have written, by runtime and version.
func TestBlame(t *testing.T) {
	for _, r := range []struct{ name, message, id, plugin, op string }{
		{"containerd 1.6, add", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "` + boxID + `": plugin type="bandwidth" failed (add): no such device`, boxID, "bandwidth", "add"},
		{"containerd 2, add with a name", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "` + boxID + `": plugin type="multus" name="multus-cni-network" failed (add): [default/web-0/uid:net1]: error`, boxID, "multus", "add"},
		{"containerd, delete, quoted twice", `error killing pod: failed to "KillPodSandbox" for "0a1b2c3d-1111-2222-3333-444455556666" with KillPodSandboxError: "rpc error: code = Unknown desc = failed to destroy network for sandbox \"` + boxID + `\": plugin type=\"portmap\" failed (delete): iptables is locked"`, boxID, "portmap", "del"},
		{"quoted three times", `x \\\"` + boxID + `\\\": plugin type=\\\"calico\\\" failed (delete): y`, boxID, "calico", "del"},
		{"CRI-O, add", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox k8s_web-0_default_0a1b2c3d-1111-2222-3333-444455556666_0(` + boxID + `): error adding pod default_web-0 to CNI network "podnet": plugin type="bridge" name="podnet" failed (add): failed to allocate`, boxID, "bridge", "add"},
		{"the roll-back fails too", `failed to setup network for sandbox "` + boxID + `": plugin type="bandwidth" failed (add): x; plugin type="bridge" failed (delete): y`, boxID, "bandwidth", "add"},
		{"no plugin", `failed to setup network for sandbox "` + boxID + `": no networks found in /etc/cni/net.d`, boxID, "", ""},
		{"no ID", `plugin type="flannel" failed (add): loadFlannelSubnetEnv failed`, "", "flannel", "add"},
		{"another verb", `"` + boxID + `": plugin type="bridge" failed (check): z`, boxID, "", ""},
		{"another verb, then add", `plugin type="a" failed (check): plugin type="b" failed (add): z`, "", "b", "add"},
		{"far from its failure", `plugin type="a" ` + strings.Repeat("x", 400) + ` failed (add): z`, "", "", ""},
		{"an odd type", "plugin type=\"a\x1b[31m\" failed (add): z", "", "", ""},
		{"63 digits", boxID[1:] + " failed", "", "", ""},
		{"65 digits", boxID + "0 failed", "", "", ""},
		{"within a word", "x" + boxID, "", "", ""},
		{"in capitals", strings.ToUpper(boxID), "", "", ""},
		{"image", "failed to pull image", "", "", ""},
		{"empty", "", "", "", ""},
	} {
		id, plugin, op := blame(r.message)
		if id != r.id || plugin != r.plugin || op != r.op {
			t.Errorf("%s: %q %q %q; want %q %q %q", r.name, id, plugin, op, r.id, r.plugin, r.op)
		}
	}
}

func anEvent(host, reason string, last time.Time) corev1.Event {
	return corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "web-0.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0", UID: "u"},
		Reason:         reason, Message: `sandbox "` + boxID + `": plugin type="bandwidth" failed (add): x`,
		Source: corev1.EventSource{Component: "kubelet", Host: host}, Count: 3,
		FirstTimestamp: metav1.NewTime(last.Add(-time.Minute)), LastTimestamp: metav1.NewTime(last),
	}
}

func TestFailedSandboxes(t *testing.T) {
	a := newAPI(t)
	at := time.Unix(1_770_000_000, 0)
	node := anEvent("n1", "FailedCreatePodSandBox", at)
	node.InvolvedObject.Kind = "Node"
	odd := anEvent("n1", "FailedCreatePodSandBox", at)
	odd.InvolvedObject.Name = "\x1b[31m"
	series := anEvent("", "FailedCreatePodSandBox", time.Time{})
	series.ReportingInstance, series.Count, series.FirstTimestamp, series.LastTimestamp = "n1", 0, metav1.Time{}, metav1.Time{}
	series.EventTime = metav1.NewMicroTime(at.Add(-2 * time.Hour))
	series.Series = &corev1.EventSeries{Count: 9, LastObservedTime: metav1.NewMicroTime(at.Add(-time.Hour))}
	lists := map[string][]corev1.Event{
		"FailedCreatePodSandBox": {anEvent("n1", "FailedCreatePodSandBox", at.Add(-time.Second)), anEvent("n2", "FailedCreatePodSandBox", at), node, odd, series, anEvent("n1", "Scheduled", at)},
		"FailedKillPod":          {anEvent("n1", "FailedKillPod", at)},
	}
	a.lie["events"] = func(w http.ResponseWriter, r *http.Request) {
		_, reason, _ := strings.Cut(r.URL.Query().Get("fieldSelector"), "reason=")
		a.write(w, &corev1.EventList{Items: lists[reason]})
	}
	got, err := a.client().FailedSandboxes(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	one := FailedSandbox{
		Pod: claim.Pod{Namespace: "default", Name: "web-0", UID: "u"}, ID: boxID, Plugin: "bandwidth", Op: "add", Count: 3,
		First: at.Add(-time.Minute), Last: at, Message: `sandbox "` + boxID + `": plugin type="bandwidth" failed (add): x`,
	}
	two, three := one, one
	two.First, two.Last = at.Add(-61*time.Second), at.Add(-time.Second)
	three.Count, three.First, three.Last = 9, at.Add(-time.Hour), at.Add(-time.Hour)
	if d := cmp.Diff([]FailedSandbox{one, two, three}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{
		"GET /api/v1/events?fieldSelector=involvedObject.kind%3DPod%2Creason%3DFailedCreatePodSandBox&resourceVersion=0",
		"GET /api/v1/events?fieldSelector=involvedObject.kind%3DPod%2Creason%3DFailedKillPod&resourceVersion=0",
	}, a.asked()); d != "" {
		t.Error(d)
	}
	a.lie["events"] = a.refuses(403, metav1.StatusReasonForbidden)
	if got, err := a.client().FailedSandboxes(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), "list events: forbidden (403)") || got != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestWriteEvents(t *testing.T) {
	a := newAPI(t)
	var sent []string
	var got *corev1.Event
	a.lie["namespaces"] = func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && r.Method == "POST" {
			got, err = decodeAs[*corev1.Event](newCodecs().UniversalDeserializer(), body)
			body = nil
		}
		if err != nil {
			t.Error(err)
		}
		sent = append(sent, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+string(body))
		a.write(w, &corev1.Event{})
	}
	at := time.Unix(1_770_000_000, 0)
	e := Event{
		Namespace: "default", Name: "n1.abc", Object: Object{Kind: "Node", Name: "n1", UID: "n1"}, Warning: true,
		Reason: "AddressLeaked", Message: "12 addresses", Count: 7, First: at, Last: at.Add(time.Minute), Host: "n1",
	}
	c := a.client()
	if err := c.CreateEvent(t.Context(), e); err != nil {
		t.Error(err)
	}
	if err := c.PatchEvent(t.Context(), e); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{
		"POST /api/v1/namespaces/default/events application/vnd.kubernetes.protobuf ",
		`PATCH /api/v1/namespaces/default/events/n1.abc application/strategic-merge-patch+json {"count":7,"lastTimestamp":"2026-02-02T02:41:00Z","message":"12 addresses"}`,
	}, sent); d != "" {
		t.Error(d)
	}
	want := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "n1.abc"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n1"}, Type: "Warning",
		Reason: "AddressLeaked", Message: "12 addresses", Count: 7, FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at.Add(time.Minute)),
		Source: corev1.EventSource{Component: "holdfast", Host: "n1"}, ReportingController: "holdfast.dev/agent", ReportingInstance: "n1",
	}
	got.TypeMeta = metav1.TypeMeta{}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	a.lie["namespaces"] = a.refuses(404, metav1.StatusReasonNotFound)
	if err := c.PatchEvent(t.Context(), e); !errors.Is(err, fs.ErrNotExist) || err.Error() != "patch events default/n1.abc: there is none (404)" {
		t.Error(err)
	}
	a.lie["namespaces"] = a.refuses(403, metav1.StatusReasonForbidden)
	if err := c.CreateEvent(t.Context(), e); errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "create events default/n1.abc: forbidden (403)") {
		t.Error(err)
	}
	a.lie["namespaces"] = a.hangs(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.CreateEvent(ctx, e); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	asked := len(a.asked())
	for _, e := range []Event{{Name: "x"}, {Namespace: "x"}} {
		if c.CreateEvent(t.Context(), e) == nil || c.PatchEvent(t.Context(), e) == nil || len(a.asked()) != 0 {
			t.Errorf("%+v was sent after %d", e, asked)
		}
	}
}
