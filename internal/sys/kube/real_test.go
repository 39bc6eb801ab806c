package kube

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeenv "github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

// A real kube-apiserver, with the least that the witness may be allowed, says the same as the
// one of the other tests.
func TestRealAPIServer(t *testing.T) {
	c := kubeenv.Start(t, kubeenv.Options{WithoutControllers: true})
	core := c.Admin.CoreV1()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	c.WriteKubeconfig(t, file, c.Config.Host, "holdfast-agent")
	cfg, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(cfg, "holdfast/test")
	if err != nil {
		t.Fatal(err)
	}
	w := New(Config{Client: client, Node: "n1", Clock: newClock().Now})
	silent(t, w.Ask(t.Context()), "get nodes n1: forbidden (403)")

	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "holdfast"}, Rules: []rbacv1.PolicyRule{
		rule("nodes", "get"), rule("pods", "list", "watch"), rule("events", "list", "create", "patch"),
	}}
	role, err = c.Admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	must(role, err)
	must(c.Admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "holdfast"}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "holdfast"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: "holdfast-agent"}},
	}, metav1.CreateOptions{}))
	// An authoriser hears of a rule within moments.
	eventually(t, "the Node is looked for", func() bool {
		return w.Ask(t.Context()).Detail == "get nodes n1: there is none (404): was the node renamed or deleted? name it with --node-name"
	})
	node, err := core.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	must(node, err)
	silent(t, w.Ask(t.Context()), "not of this machine and boot")
	node.Status.NodeInfo.BootID = bootA
	must(core.Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
	eventually(t, "an empty list is believed", func() bool { return w.Ask(t.Context()).State == "complete" })
	complete(t, w.Ask(t.Context()), 0)

	wakes, troubles := make(chan struct{}, 10), make(chan error, 10)
	watcher := &Watcher{Client: client, Node: "n1", Wake: func() { wakes <- struct{}{} }, Rand: func() float64 { return 0 }, Trouble: func(err error) { troubles <- err }}
	ended := make(chan struct{})
	go func() { watcher.Run(t.Context()); close(ended) }()
	t.Cleanup(func() { <-ended })
	woken := func(what string) {
		t.Helper()
		select {
		case <-wakes:
		case err := <-troubles:
			t.Fatal(err)
		case <-time.After(20 * time.Second):
			t.Fatalf("%s wakes nobody", what)
		}
	}

	c.CreatePod(t, kubeenv.PausePod("far", "n2"))
	gone := c.CreatePod(t, kubeenv.PausePod("gone", "n1"))
	ends := c.CreatePod(t, kubeenv.PausePod("ends", "n1"))
	ends.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.9", PodIPs: []corev1.PodIP{{IP: "10.1.0.9"}, {IP: "fd00::9"}}}
	ends, err = core.Pods("default").UpdateStatus(t.Context(), ends, metav1.UpdateOptions{})
	must(ends, err)
	got := w.Ask(t.Context())
	complete(t, got, 2)
	if p := got.Kube.Pods[0]; p.Name != "ends" || p.UID != string(ends.UID) || p.Phase != "Running" || len(p.Addrs) != 2 || p.Addrs[1].String() != "fd00::9" {
		t.Errorf("%+v", p)
	}
	if p := got.Kube.Pods[1]; p.Name != "gone" || p.UID != string(gone.UID) || p.Phase != "Pending" || p.Deleting {
		t.Errorf("%+v", p)
	}
	if n := len(wakes); n > 0 {
		t.Errorf("%d wakes before anything has gone", n)
	}
	c.DeletePod(t, "default", "gone", true)
	woken("a Pod that is deleted")
	complete(t, w.Ask(t.Context()), 1)
	ends.Status.Phase = corev1.PodSucceeded
	must(core.Pods("default").UpdateStatus(t.Context(), ends, metav1.UpdateOptions{}))
	woken("a Pod that ends")
	if got := w.Ask(t.Context()); len(got.Kube.Pods) != 1 || !got.Kube.Pods[0].Ended() {
		t.Errorf("%+v", got.Kube)
	}

	failed := anEvent("n1", "FailedCreatePodSandBox", time.Now())
	must(core.Events("default").Create(t.Context(), &failed, metav1.CreateOptions{}))
	eventually(t, "the kubelet's Event", func() bool {
		list, err := client.FailedSandboxes(t.Context(), "n1")
		return err == nil && len(list) == 1 && list[0].ID == boxID && list[0].Plugin == "bandwidth"
	})
	e := Event{Namespace: "default", Name: "n1.a", Object: Object{Kind: "Node", Name: "n1", UID: "n1"}, Reason: "Leaked", Message: "one", Count: 1, First: time.Now(), Last: time.Now(), Host: "n1"}
	if err := client.PatchEvent(t.Context(), e); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := client.CreateEvent(t.Context(), e); err != nil {
		t.Error(err)
	}
	e.Count, e.Message = 2, "two"
	if err := client.PatchEvent(t.Context(), e); err != nil {
		t.Error(err)
	}
	if got, err := core.Events("default").Get(t.Context(), "n1.a", metav1.GetOptions{}); err != nil || got.Count != 2 || got.Message != "two" || got.InvolvedObject.Kind != "Node" {
		t.Errorf("%+v, %v", got, err)
	}

	role.Rules = role.Rules[:1]
	must(c.Admin.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}))
	eventually(t, "RBAC is revoked", func() bool { return w.Ask(t.Context()).State == "silent" })
	silent(t, w.Ask(t.Context()), "list pods: forbidden (403)")
	c.APIServer.Kill(t)
	got = w.Ask(t.Context())
	if got.State != "silent" || got.Kube != nil {
		t.Errorf("%+v", got)
	}
}
