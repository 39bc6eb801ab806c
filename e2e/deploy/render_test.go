package deploy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	"github.com/holdfast-cni/holdfast/internal/agent/config"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

const namespace = "holdfast-system"

// root is the clone.
func root(t testing.TB) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := prebuilt.FindRoot(wd)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tool returns a program of a group of hack/testbin, and builds it if the cache lacks it.
func tool(t testing.TB, name string) string {
	t.Helper()
	cache, err := prebuilt.DefaultCache(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := prebuilt.Builder{Root: root(t), Cache: cache, Progress: os.Stderr}.Ensure(context.WithoutCancel(t.Context()), name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dirs[0], name)
}

func chart(t testing.TB) string { return filepath.Join(root(t), "deploy/helm/holdfast") }

// helm runs helm with nothing of the user's.
func helm(t testing.TB, args ...string) (string, error) {
	t.Helper()
	home := t.TempDir()
	var out, msg bytes.Buffer
	cmd := exec.Command(tool(t, "helm"), args...)
	cmd.Env = []string{"HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, "PATH=/usr/bin:/bin"}
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		return out.String(), errors.New(msg.String() + err.Error())
	}
	return out.String(), nil
}

func template(t testing.TB, args ...string) string {
	t.Helper()
	out, err := helm(t, append([]string{"template", "holdfast", chart(t), "--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func kustomize(t testing.TB, dir string) string {
	t.Helper()
	out, err := exec.Command(tool(t, "kubectl"), "kustomize", filepath.Join(root(t), dir)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// objects parses manifests strictly: an unknown field, or one that is there twice, is an
// error, as with the API server. The keys are kinds and names.
func objects(t testing.TB, manifests string) map[string]runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	r := yamlutil.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	out := map[string]runtime.Object{}
	for {
		doc, err := r.Read()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		obj, gvk, err := codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		var meta struct {
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal(doc, &meta); err != nil {
			t.Fatal(err)
		}
		key := gvk.Kind + " " + meta.Metadata.Name
		if out[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		out[key] = obj
		scoped := gvk.Kind != "Namespace" && gvk.Kind != "ClusterRole" && gvk.Kind != "ClusterRoleBinding"
		if scoped != (meta.Metadata.Namespace == namespace) {
			t.Errorf("%s is in namespace %q", key, meta.Metadata.Namespace)
		}
	}
}

func daemonSet(t testing.TB, manifests string) *appsv1.DaemonSet {
	t.Helper()
	ds, ok := objects(t, manifests)["DaemonSet holdfast-agent"].(*appsv1.DaemonSet)
	if !ok {
		t.Fatalf("no DaemonSet in:\n%s", manifests)
	}
	return ds
}

// TestChartAndBaseAreTheSame: what differs is only what belongs to the tool.
func TestChartAndBaseAreTheSame(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	base, chart := objects(t, kustomize(t, "deploy/kustomize/base")), objects(t, template(t))
	delete(base, "Namespace "+namespace) // helm install --create-namespace
	for _, of := range []map[string]runtime.Object{base, chart} {
		// One has comments.
		cm := of["ConfigMap holdfast-agent"].(*corev1.ConfigMap)
		c, err := config.Parse("agent.yaml", []byte(cm.Data["agent.yaml"]))
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		cm.Data["agent.yaml"] = string(text)
	}
	for key, obj := range chart {
		m, ok := obj.(interface {
			GetLabels() map[string]string
			SetLabels(map[string]string)
		})
		if !ok {
			t.Fatalf("%s has no labels", key)
		}
		labels := m.GetLabels()
		delete(labels, "helm.sh/chart")
		delete(labels, "app.kubernetes.io/managed-by")
		m.SetLabels(labels)
	}
	if diff := cmp.Diff(base, chart); diff != "" {
		t.Errorf("-kustomize +helm:\n%s", diff)
	}
	if len(chart) != 6 {
		t.Errorf("%d objects: %v", len(chart), slices.Sorted(maps.Keys(chart)))
	}
}

func TestChartIsClean(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	out, err := helm(t, "lint", "--strict", chart(t))
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	values, err := os.ReadFile(filepath.Join(chart(t), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(values), "\t") {
		t.Error("a tab in values.yaml")
	}
}

// TestValuesAreChecked: each refusal has a neighbour that is taken.
func TestValuesAreChecked(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	for _, c := range []struct {
		set  string
		ok   bool
		says string
	}{
		{"image.tag=v1.2.3", true, ""},
		{"image.tags=v1.2.3", false, "tags"},
		{"image.tag=v 1", false, "tag"},
		{"image.digest=sha256:" + strings.Repeat("a", 64), true, ""},
		{"image.digest=sha256:abc", false, "digest"},
		{"httpPort=9100", true, ""},
		{"httpPort=0", false, "httpPort"},
		{"port=1", false, "port"},
		{"mounts.writable={/srv/cni}", true, ""},
		{"mounts.writable={srv/cni}", false, "writable"},
		{"mounts.writable={/srv/../etc}", false, "writable"},
		{"mounts.writable=[]", false, "writable"},
		{"mounts.readOnly=[]", true, ""},
		{"config.interval=2m", true, ""},
		{"config.kind=Other", false, "config"},
		// Where the probes do not find the port the kubelet would end the agent again and again.
		{"config.http.address=0.0.0.0:9617", true, ""},
		{"config.http.address=127.0.0.1:9100", false, "config.http.address"},
		{"config.http.address=none", false, "config.http.address"},
		{"security.seccomp=Unconfined", true, ""},
		{"security.seccomp=unconfined", false, "seccomp"},
		{"security.privileged=true", false, "privileged"},
		{"resources.limits.cpu=1", true, ""},
		{"resources.limit.cpu=1", false, "limit"},
		{"maxUnavailable=20%", true, ""},
		{"maxUnavailable=0%", false, "maxUnavailable"},
	} {
		flag := "--set"
		if strings.Contains(c.set, "=[") {
			flag = "--set-json"
		}
		out, err := helm(t, "template", "holdfast", chart(t), "--namespace", namespace, flag, c.set)
		switch {
		case c.ok && err != nil:
			t.Errorf("%s: %v", c.set, err)
		case c.ok:
			cm := objects(t, out)["ConfigMap holdfast-agent"].(*corev1.ConfigMap)
			if _, err := config.Parse("agent.yaml", []byte(cm.Data["agent.yaml"])); err != nil {
				t.Errorf("%s: the agent does not take its configuration: %v", c.set, err)
			}
		case err == nil:
			t.Errorf("%s: taken", c.set)
		case !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: want a word of %q, got %v", c.set, c.says, err)
		}
	}
}

// TestDistributions: each file of values mounts what its page of docs/guide names, at
// the node's own paths.
func TestDistributions(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	files, err := filepath.Glob(filepath.Join(chart(t), "values-*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{ // beside those of every node
		"antrea":    {"/etc/cni/net.d ro", "/var/lib/cni", "/var/run/antrea/cni"},
		"k3s":       {"/etc/cni/net.d ro", "/var/lib/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d ro"},
		"kind":      {"/etc/cni/net.d ro", "/run/cni-ipam-state", "/var/lib/cni"},
		"microk8s":  {"/etc/cni/net.d ro", "/var/lib/cni", "/var/snap/microk8s ro"},
		"openshift": {"/etc/cni/net.d ro", "/etc/kubernetes/cni/net.d ro", "/var/lib/cni"},
		"rke2":      {"/etc/cni/net.d ro", "/var/lib/cni", "/var/lib/rancher/rke2/agent/etc/cni/net.d ro"},
	}
	always := []string{"/run ro HostToContainer", "/run/holdfast", "/var/lib/holdfast"}
	got := map[string][]string{}
	for _, f := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "values-"), ".yaml")
		got[name] = mounts(t, daemonSet(t, template(t, "--values", f)))
		want[name] = slices.Sorted(slices.Values(append(want[name], always...)))
		page, err := os.ReadFile(filepath.Join(root(t), "docs/guide", name+".md"))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(page), filepath.Base(f)) {
			t.Errorf("docs/guide/%s.md does not name %s", name, filepath.Base(f))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts of host paths (-want +got):\n%s", diff)
	}
	want2 := slices.Sorted(slices.Values(append([]string{"/etc/cni/net.d ro", "/var/lib/cni"}, always...)))
	if diff := cmp.Diff(want2, mounts(t, daemonSet(t, template(t)))); diff != "" {
		t.Errorf("by default (-want +got):\n%s", diff)
	}
}

// mounts lists the host paths, each of which is at its own path in the container.
func mounts(t *testing.T, ds *appsv1.DaemonSet) []string {
	t.Helper()
	spec := ds.Spec.Template.Spec
	var out []string
	for _, m := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Fatalf("no volume %s", m.Name)
		}
		hp := spec.Volumes[i].HostPath
		if hp == nil {
			continue
		}
		if hp.Path != m.MountPath {
			t.Errorf("%s is at %s", hp.Path, m.MountPath)
		}
		s := m.MountPath
		if m.ReadOnly {
			s += " ro"
		}
		if m.MountPropagation != nil {
			s += " " + string(*m.MountPropagation)
		}
		out = append(out, s)
	}
	if len(spec.Volumes) != len(spec.Containers[0].VolumeMounts) {
		t.Errorf("%d volumes, %d mounts", len(spec.Volumes), len(spec.Containers[0].VolumeMounts))
	}
	slices.Sort(out)
	return out
}
