package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
	"github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

// write puts manifests into a file.
func write(t *testing.T, manifests string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func kubectl(t *testing.T, c *kube.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t, args...)
	if err != nil {
		t.Fatalf("kubectl %v: %v", args, err)
	}
	return out
}

// TestAPIServerTakesThem: both renderings pass a real API server's validation, dry and for
// real, over each other and by the strict reading of fields; and what they grant is what docs/packaging.md says.
func TestAPIServerTakesThem(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	c := kube.Start(t, kube.Options{WithoutControllers: true})
	kubectl(t, c, "create", "namespace", namespace)
	for _, manifests := range []string{kustomize(t, "deploy/kustomize/base"), template(t)} {
		path := write(t, manifests)
		for _, dry := range []string{"--dry-run=server", "--dry-run=none"} {
			out := kubectl(t, c, "apply", "--server-side", "--force-conflicts", "--validate=strict", dry, "-f", path)
			if n := strings.Count(out, "serverside-applied"); n < 6 {
				t.Errorf("%d objects: %s", n, out)
			}
		}
	}
	t.Run("rights", func(t *testing.T) { rights(t, c) })
	t.Run("Pods", func(t *testing.T) {
		// The Pod itself is validated, and let in by its namespace alone.
		spec := base(t).Spec.Template
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent", Labels: spec.Labels}, Spec: spec.Spec}
		pod.Spec.ServiceAccountName = ""
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		if _, err := c.Admin.CoreV1().Pods(namespace).Create(t.Context(), pod, dry); err != nil {
			t.Errorf("in its namespace: %v", err)
		}
		kubectl(t, c, "create", "namespace", "strict")
		kubectl(t, c, "label", "namespace", "strict", "pod-security.kubernetes.io/enforce=baseline")
		if _, err := c.Admin.CoreV1().Pods("strict").Create(t.Context(), pod, dry); err == nil || !strings.Contains(err.Error(), "PodSecurity") {
			t.Errorf("in a baseline namespace: %v", err)
		}
	})
	kubectl(t, c, "delete", "--wait=false", "-k", filepath.Join(root(t), "deploy/kustomize/base"))
	if out := kubectl(t, c, "get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=holdfast", "-o", "name"); out != "" {
		t.Errorf("left behind: %s", out)
	}
}

// rights asks a real authorizer for every verb on many things.
func rights(t *testing.T, c *kube.Cluster) {
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "holdfast-viewer"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}},
	}
	if _, err := c.Admin.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	resources := []string{ // group/resource/subresource
		"/pods", "/pods/exec", "/pods/attach", "/pods/portforward", "/pods/log", "/pods/eviction", "/pods/status", "/nodes", "/nodes/proxy", "/nodes/status",
		"/events", "events.k8s.io/events", "/secrets", "/configmaps", "/serviceaccounts", "/serviceaccounts/token", "/namespaces", "/services", "/endpoints",
		"apps/daemonsets", "apps/deployments", "coordination.k8s.io/leases", "rbac.authorization.k8s.io/clusterroles",
		"rbac.authorization.k8s.io/rolebindings", "admissionregistration.k8s.io/validatingwebhookconfigurations",
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "escalate", "bind"}
	allowed := func(user string, groups []string, ns string) []string {
		var out []string
		for _, r := range resources {
			for _, v := range verbs {
				group, rest, _ := strings.Cut(r, "/")
				resource, sub, _ := strings.Cut(rest, "/")
				sar, err := c.Admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: ns, Verb: v, Group: group, Resource: resource, Subresource: sub,
					}},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if sar.Status.Allowed {
					out = append(out, v+" "+r)
				}
			}
		}
		slices.Sort(out)
		return out
	}
	agent := "system:serviceaccount:" + namespace + ":holdfast-agent"
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	for _, tc := range []struct {
		who, user, ns string
		groups        []string
		want          []string
	}{
		{"the agent", agent, "", groups, []string{"create /events", "get /nodes", "list /events", "list /pods", "patch /events", "watch /pods"}},
		{"a viewer in its namespace", "viewer", namespace, nil, []string{"create /pods/portforward", "get /pods/portforward", "list /pods"}},
		{"a viewer elsewhere", "viewer", "default", nil, nil},
		{"somebody", "somebody", namespace, nil, nil},
	} {
		if diff := cmp.Diff(tc.want, allowed(tc.user, tc.groups, tc.ns)); diff != "" {
			t.Errorf("%s may (-want +got):\n%s", tc.who, diff)
		}
	}
}

// TestDaemonSetRuns: the kubelet runs the agent from the image, by the chart; it becomes
// ready, releases a leak by itself, and answers kubectl holdfast for a user who has nothing
// but holdfast-viewer.
func TestDaemonSetRuns(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	c := kube.Start(t, kube.Options{})
	n := c.AddNode(t, kube.NodeOptions{Containerd: cri.V2})
	g := prepare(t, n.Runtime)
	pod := c.RunPod(t, kube.PausePod("lives", n.Name))

	kubectl(t, c, "create", "namespace", namespace)
	objs := objects(t, template(t,
		"--set", "image.repository="+strings.Split(imageName, ":")[0], "--set", "image.tag="+strings.Split(imageName, ":")[1], "--set", "image.pullPolicy=Never",
		"--set", "config.interval=1s", "--set", "config.grace=3s", "--set", "config.paths.kubeletConfig="+n.KubeletConfig, "--set", "mounts.writable={/var/lib/cni,"+g.r.DataDir()+"}"))
	ds := objs["DaemonSet holdfast-agent"].(*appsv1.DaemonSet)
	behind := g.behind()
	for i := range ds.Spec.Template.Spec.Volumes {
		if hp := ds.Spec.Template.Spec.Volumes[i].HostPath; hp != nil && behind[hp.Path] != "" {
			hp.Path = behind[hp.Path]
		}
	}
	for key, obj := range objs {
		// Strictly typed, and as kubectl would send them.
		text, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, c, "apply", "--server-side", "--validate=strict", "-f", write(t, string(text)))
		t.Log(key)
	}
	path := g.leak(t)
	began := time.Now()
	eventually(t, 90*time.Second, "the agent is ready", func() error {
		got, err := c.Admin.AppsV1().DaemonSets(namespace).Get(t.Context(), ds.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := got.Status; s.DesiredNumberScheduled != 1 || s.NumberReady != 1 {
			state, err := c.Kubectl(t, "-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses}")
			return fmt.Errorf("%d desired, %d ready: %s %v", s.DesiredNumberScheduled, s.NumberReady, state, err)
		}
		return nil
	})
	t.Logf("ready in %s", time.Since(began))
	eventually(t, 60*time.Second, "the leak is released", func() error {
		if exists(t, path) {
			return errors.New("it is there")
		}
		return nil
	})
	g.r.Ping(t, kube.PodIP(t, pod))

	// kubectl holdfast, as kubectl finds it.
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "kubectl-holdfast"), "./cmd/kubectl-holdfast")
	build.Dir, build.Env = root(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	kubectl(t, c, "-n", namespace, "create", "rolebinding", "viewers", "--role=holdfast-viewer", "--user=viewer")
	holdfast := func(args ...string) (int, string, string) {
		var out, msg bytes.Buffer
		cmd := exec.CommandContext(t.Context(), tool(t, "kubectl"), append([]string{"holdfast", "--kubeconfig", c.Kubeconfig}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		cmd.Stdout, cmd.Stderr = &out, &msg
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String(), msg.String()
	}
	code, out, stderr := holdfast("status", "--as", "viewer", "-o", "json")
	var doc api.Fleet
	if err := json.Unmarshal([]byte(out), &doc); code != 0 || err != nil || len(doc.Nodes) != 1 || doc.Nodes[0].Status == nil || !doc.Nodes[0].Status.Ready.OK {
		t.Errorf("status: exit %d, %v: %s%s", code, err, out, stderr)
	}
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"audit", n.Name, "--as", "viewer"}, 0, pod.Status.PodIP},
		{[]string{"explain", pod.Status.PodIP, "--as", "viewer"}, 0, "On node " + n.Name},
		{[]string{"status", "--as", "somebody"}, 1, "forbidden"},
		{[]string{"explain", "192.0.2.1", "--as", "viewer"}, 1, "no node has it"},
	} {
		code, out, stderr := holdfast(tc.args...)
		if code != tc.code || !strings.Contains(out+stderr, tc.says) {
			t.Errorf("%v: exit %d, want %d and %q:\n%s%s", tc.args, code, tc.code, tc.says, out, stderr)
		}
	}
	kubectl(t, c, "-n", namespace, "delete", "daemonset", "holdfast-agent", "--cascade=foreground", "--timeout=60s")
	eventually(t, 60*time.Second, "the agent is gone", func() error {
		list, err := c.Admin.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
	if !exists(t, filepath.Join(g.dir, "state/journal")) {
		t.Error("the journal is gone with the agent")
	}
}

func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, within, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
