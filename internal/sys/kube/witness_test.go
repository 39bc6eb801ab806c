package kube

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	getN1    = "GET /api/v1/nodes/n1?resourceVersion=0"
	getFresh = "GET /api/v1/nodes/n1"
	// Without a resourceVersion, so from quorum.
	revision = "GET /api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dholdfast"
	// Without a limit, so in one piece.
	list  = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=100&resourceVersionMatch=NotOlderThan"
	whole = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1"
	count = "GET /api/v1/pods?limit=1"
)

func TestAsk(t *testing.T) {
	a, c := newAPI(t), newClock()
	mirror := aPod("proxy", "192.0.2.1")
	mirror.Annotations = map[string]string{"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.hash": "abc", "kubernetes.io/config.source": "file"}
	mirror.Spec.HostNetwork = true
	going := aPod("web-2", "")
	now := metav1.Now()
	going.DeletionTimestamp, going.Status.PodIP = &now, "::ffff:10.1.0.11"
	going.Status.PodIPs = []corev1.PodIP{{IP: "::ffff:10.1.0.11"}, {IP: "fd00::9"}}
	going.Status.Phase = corev1.PodFailed
	a.pods.Items = append(a.pods.Items, *mirror, *going)
	slices.Reverse(a.pods.Items)
	w := a.witness(c)
	got := w.Ask(t.Context())
	complete(t, got, 4)
	pod := func(name string) claim.Pod { return claim.Pod{Namespace: "default", Name: name, UID: "uid-" + name} }
	ip := netip.MustParseAddr
	want := &claim.KubeFacts{Node: "n1", Pods: []claim.KubePod{
		{Pod: pod("proxy"), ConfigHash: "abc", Phase: "Running", HostNetwork: true, Addrs: []netip.Addr{ip("192.0.2.1")}},
		{Pod: pod("web-0"), Phase: "Running", Addrs: []netip.Addr{ip("10.1.0.9")}},
		{Pod: pod("web-1"), Phase: "Running", Addrs: []netip.Addr{ip("10.1.0.10")}},
		{Pod: pod("web-2"), Phase: "Failed", Deleting: true, Addrs: []netip.Addr{ip("10.1.0.11"), ip("fd00::9")}},
	}}
	if d := cmp.Diff(want, got.Kube, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if got.Witness != claim.WitnessKube || got.Asked.Mono != time.Hour+1 || got.Took != 1 || got.Detail != "node n1: 4 Pods" {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]string{getN1, revision, list}, a.asked()); d != "" {
		t.Error(d)
	}
	accept := "application/vnd.kubernetes.protobuf,application/json"
	if d := cmp.Diff([]string{accept, accept, accept}, a.accepts); d != "" {
		t.Error(d)
	}

	// The Node object is known for ten minutes, within the boot.
	for _, r := range []struct {
		wait time.Duration
		want []string
	}{{identityFor - time.Second, []string{revision, list}}, {time.Second, []string{getN1, revision, list}}, {time.Second, []string{revision, list}}} {
		c.wait(r.wait)
		complete(t, w.Ask(t.Context()), 4)
		if d := cmp.Diff(r.want, a.asked()); d != "" {
			t.Error(d)
		}
	}
	c.now.Boot = bootB
	silent(t, w.Ask(t.Context()), "not of this machine and boot")
	if d := cmp.Diff([]string{getN1}, a.asked()); d != "" {
		t.Error(d)
	}
	a.node.Status.NodeInfo.BootID = bootB
	complete(t, w.Ask(t.Context()), 4)
}

// An empty list says nothing of whose it is, so the Node object is read after it, fresh.
func TestEmptyList(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	complete(t, w.Ask(t.Context()), 2)
	a.pods.Items = nil
	a.asked()
	complete(t, w.Ask(t.Context()), 0)
	if d := cmp.Diff([]string{revision, list, getFresh}, a.asked()); d != "" {
		t.Error(d)
	}
	a.node = nil // deleted, and with it its Pods
	silent(t, w.Ask(t.Context()), "was the node renamed or deleted?")
	// Nor is it known any more when the list is not empty.
	a.pods.Items = []corev1.Pod{*aPod("web-0", "")}
	a.asked()
	silent(t, w.Ask(t.Context()), "was the node renamed or deleted?")
	if d := cmp.Diff([]string{getN1}, a.asked()); d != "" {
		t.Error(d)
	}
}

// Every lie is silence with its reason, at once or in time, and the truth after it counts.
func TestLies(t *testing.T) {
	podsLie := func(h func(a *api) http.HandlerFunc) func(*api) { return func(a *api) { a.lie["pods"] = h(a) } }
	nodesLie := func(h func(a *api) http.HandlerFunc) func(*api) { return func(a *api) { a.lie["nodes"] = h(a) } }
	podsSay := func(change func(l *corev1.PodList)) func(*api) {
		return podsLie(func(a *api) http.HandlerFunc {
			l := a.pods.DeepCopy()
			change(l)
			return a.says(protobuf, string(a.encode(l)))
		})
	}
	refuse := func(code int32, reason metav1.StatusReason) func(a *api) http.HandlerFunc {
		return func(a *api) http.HandlerFunc { return a.refuses(code, reason) }
	}
	revisionLie := func(h func(a *api) http.HandlerFunc) func(*api) { return func(a *api) { a.lie["namespaces"] = h(a) } }
	revisionSays := func(version string) func(*api) {
		return revisionLie(func(a *api) http.HandlerFunc {
			return a.says(protobuf, string(a.encode(&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}})))
		})
	}
	left := int64(7)
	for _, r := range []struct {
		name string
		lie  func(*api)
		why  string
	}{
		{"500", podsLie(refuse(500, metav1.StatusReasonInternalError)), "list pods: \"so it is"},
		{"503", podsLie(refuse(503, metav1.StatusReasonServiceUnavailable)), "list pods: "},
		{"504, etcd timed out", podsLie(refuse(504, metav1.StatusReasonTimeout)), "list pods: "},
		{"429", podsLie(func(a *api) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "1")
				a.status(w, 429, metav1.StatusReasonTooManyRequests)
			}
		}), "list pods: "},
		{"401", podsLie(refuse(401, metav1.StatusReasonUnauthorized)), "list pods: the API server does not accept our token"},
		{"RBAC revoked for Pods", podsLie(refuse(403, metav1.StatusReasonForbidden)), "list pods: forbidden (403): our account lacks the RBAC rule"},
		{"RBAC revoked for Nodes", nodesLie(refuse(403, metav1.StatusReasonForbidden)), "get nodes n1: forbidden (403)"},
		{"401 for Nodes", nodesLie(refuse(401, metav1.StatusReasonUnauthorized)), "get nodes n1: the API server does not accept"},
		{"410, expired", podsLie(refuse(410, metav1.StatusReasonExpired)), "list pods: "},
		{"404 for Pods", podsLie(refuse(404, metav1.StatusReasonNotFound)), "list pods: there is none (404)"},
		{"wrong node: the Node does not exist", func(a *api) { a.node = nil }, "get nodes n1: there is none (404): was the node renamed or deleted?"},
		{"wrong node: another machine's", func(a *api) { a.node.Status.NodeInfo.BootID = bootB }, "was the node renamed"},
		{"the Node has no boot ID yet", func(a *api) { a.node.Status.NodeInfo.BootID = "" }, "not of this machine and boot"},
		{"another Node is answered", nodesLie(func(a *api) http.HandlerFunc {
			n := a.node.DeepCopy()
			n.Name = "n2"
			return a.says(protobuf, string(a.encode(n)))
		}), "answered with the Node n2"},
		{"the Node hangs", nodesLie(func(a *api) http.HandlerFunc { return a.hangs(nil) }), "no whole answer in time"},
		{"hangs", podsLie(func(a *api) http.HandlerFunc { return a.hangs(nil) }), "list pods: no whole answer in time"},
		{"hangs half way", podsLie(func(a *api) http.HandlerFunc { return a.hangs(a.encode(a.pods)[:100]) }), "no whole answer in time"},
		{"hangs after the whole", podsLie(func(a *api) http.HandlerFunc { return a.hangs(a.encode(a.pods)) }), "no whole answer in time"},
		{"cut off", podsLie(func(a *api) http.HandlerFunc {
			b := a.encode(a.pods)
			return a.cuts(b[:len(b)/2], len(b))
		}), "list pods: "},
		{"cut off, as if it were whole", podsLie(func(a *api) http.HandlerFunc {
			b := a.encode(a.pods)
			return a.cuts(b[:len(b)/2], len(b)/2)
		}), "cannot be decoded"},
		{"the connection ends at once", podsLie(func(a *api) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		}), "list pods: "},
		{"nothing", podsLie(func(a *api) http.HandlerFunc { return a.says(protobuf, "") }), "list pods: "},
		{"no Kubernetes", podsLie(func(a *api) http.HandlerFunc { return a.says("text/html", "<html>log in</html>") }), "list pods: "},
		{"bytes", podsLie(func(a *api) http.HandlerFunc { return a.says(protobuf, "\x00\x01\x02") }), "cannot be decoded"},
		{"an object without a kind", podsLie(func(a *api) http.HandlerFunc { return a.says("application/json", "{}") }), "cannot be decoded"},
		{"another kind", podsLie(func(a *api) http.HandlerFunc { return a.says(protobuf, string(a.encode(a.node))) }), "the answer is a v1.Node"},
		{"a status of success", podsLie(func(a *api) http.HandlerFunc {
			return a.says("application/json", `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		}), "the answer is a v1.Status"},
		{"a list without resourceVersion", podsSay(func(l *corev1.PodList) { l.ResourceVersion = "" }), "it is no list"},
		{"a page", podsSay(func(l *corev1.PodList) { l.Continue = "x" }), "a part of the list"},
		{"a page that says how much is left", podsSay(func(l *corev1.PodList) { l.RemainingItemCount = &left }), "a part of the list"},
		{"a Pod of another node", podsSay(func(l *corev1.PodList) { l.Items[1].Spec.NodeName = "n2" }), "default/web-1 of node n2"},
		{"a Pod of no node", podsSay(func(l *corev1.PodList) { l.Items[1].Spec.NodeName = "" }), "of node \"\""},
		{"a Pod without UID", podsSay(func(l *corev1.PodList) { l.Items[0].UID = "" }), "name or UID"},
		{"a Pod without name", podsSay(func(l *corev1.PodList) { l.Items[0].Name = "" }), "name or UID"},
		{"a Pod twice", podsSay(func(l *corev1.PodList) { l.Items[1] = l.Items[0] }), "twice"},
		{"an address that is none", podsSay(func(l *corev1.PodList) { l.Items[0].Status.PodIPs[0].IP = "10.1.0" }), "which is none"},
		{"older than the revision", podsSay(func(l *corev1.PodList) { l.ResourceVersion = "99" }), "resourceVersion 99, older than the 100"},
		{"504 that is not of a revision, for it", revisionLie(refuse(504, metav1.StatusReasonTimeout)), "list pods: "},
		{"429 for the revision", revisionLie(refuse(429, metav1.StatusReasonTooManyRequests)), "list pods: "},
		{"403 for the revision", revisionLie(refuse(403, metav1.StatusReasonForbidden)), "list pods: forbidden"},
		{"the revision hangs", revisionLie(func(a *api) http.HandlerFunc { return a.hangs(nil) }), "list pods: no whole answer in time"},
		{"the revision is none", revisionSays(""), "it is no list"},
		{"the revision is any", revisionSays("0"), "it is no list"},
		{"the revision is a Node", revisionLie(func(a *api) http.HandlerFunc { return a.says(protobuf, string(a.encode(a.node))) }), "the answer is a v1.Node"},
		{"control characters", podsSay(func(l *corev1.PodList) { l.Items[0].Name = "\x1b[31m" }), "name or UID"},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			a, c := newAPI(t), newClock()
			w := New(Config{Client: a.client(), Node: "n1", Clock: c.Now, Timeout: 5 * time.Second})
			if strings.Contains(r.why, "in time") {
				w.c.Timeout = 300 * time.Millisecond
			}
			node := a.node
			r.lie(a)
			start := time.Now()
			silent(t, w.Ask(t.Context()), r.why)
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("took %s", d)
			}
			a.lie, a.node = map[string]http.HandlerFunc{}, node
			a.node.Status.NodeInfo.BootID = bootA
			w.c.Timeout = 5 * time.Second
			c.wait(firstRest + 2*time.Second)
			complete(t, w.Ask(t.Context()), 2)
		})
	}
}

// The Pods are not older than what quorum said first. An API server whose memory hears of no write
// cannot tell; then quorum is asked for the list: for some time at once in a small cluster, and in a
// large one by few nodes.
func TestRevision(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	random := 0.5
	w.c.Rand = func() float64 { return random }
	complete(t, w.Ask(t.Context()), 2)
	asked := func(want ...string) {
		t.Helper()
		if d := cmp.Diff(want, a.asked()); d != "" {
			t.Error(d)
		}
	}
	expect := func(pods int, want ...string) {
		t.Helper()
		complete(t, w.Ask(t.Context()), pods)
		asked(want...)
	}
	later := strings.Replace(list, "=100", "=120", 1)
	a.asked()
	a.revision = "120"
	remaining := int64(wholePods - 1)
	a.remaining = &remaining
	expect(2, revision, later, count, whole)
	a.pods.Items = a.pods.Items[:1]
	for range 3 {
		c.wait(time.Minute)
		expect(1, whole)
	}
	a.pods.ResourceVersion = "121" // it heard of a write
	c.wait(wholeFor - 4*time.Minute)
	expect(1, whole)
	c.wait(2 * time.Minute)
	expect(1, getN1, revision, later)

	a.revision = "130"
	later = strings.Replace(list, "=100", "=130", 1)
	remaining = 2*wholePods - 1
	for range 2 {
		silent(t, w.Ask(t.Context()), "all 2000 Pods of the cluster are read now and then only")
		asked(revision, later, count)
		random = 0.49
		expect(1, revision, later, count, whole)
		random = 0.5
	}
	a.remaining = nil
	silent(t, w.Ask(t.Context()), "does not say of how many")
	asked(revision, later, count)
	a.pods.ResourceVersion = "131"
	expect(1, revision, later)
}

// An API server that has too much to do is left alone, longer each time and at least as long as it
// asks, and meanwhile there is no answer. Another error makes nobody wait.
func TestBrake(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	random := 0.5
	w.c.Rand = func() float64 { return random }
	busy := func(after string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Retry-After", after)
			http.Error(rw, "Too many requests, please try again later.", http.StatusTooManyRequests)
		}
	}
	a.lie["namespaces"] = a.refuses(500, metav1.StatusReasonInternalError)
	silent(t, w.Ask(t.Context()), "so it is")
	a.lie["namespaces"] = busy("1")
	refused := func(rest time.Duration) {
		t.Helper()
		a.asked()
		silent(t, w.Ask(t.Context()), "list pods: ")
		if len(a.asked()) == 0 {
			t.Fatal("not asked")
		}
		c.wait(rest - time.Second)
		silent(t, w.Ask(t.Context()), "not asked again for ")
		if got := a.asked(); len(got) > 0 {
			t.Fatalf("asked %q", got)
		}
		c.wait(time.Second)
	}
	refused(6 * time.Second)
	refused(11 * time.Second)
	random = 0
	refused(11 * time.Second)
	random = 1
	refused(61 * time.Second)
	a.lie["namespaces"] = busy("100")
	random = 0.5
	refused(180 * time.Second)
	refused(260 * time.Second)
	a.lie["namespaces"] = busy("86400")
	refused(2 * longestRest)
	refused(2 * longestRest)
	a.lie["namespaces"] = nil
	complete(t, w.Ask(t.Context()), 2)
	a.lie["namespaces"] = busy("1")
	refused(6 * time.Second) // from the beginning
	w.c.Timeout = 200 * time.Millisecond
	a.lie["namespaces"] = a.hangs(nil)
	silent(t, w.Ask(t.Context()), "no whole answer in time")
	<-w.slot // what hung has ended
	w.slot <- struct{}{}
	c.wait(9 * time.Second)
	silent(t, w.Ask(t.Context()), "not asked again for 1s, since it has too much to do: list pods: no whole answer in time")
	c.now.Boot = bootB // another clock
	a.lie["namespaces"] = nil
	silent(t, w.Ask(t.Context()), "not of this machine and boot")
}

// Who asks with little time does not make the next one wait.
func TestBrakeOfTheHurried(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	complete(t, w.Ask(t.Context()), 2)
	w.c.Timeout = time.Minute
	a.lie["namespaces"] = a.hangs(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent(t, w.Ask(ctx), "no whole answer in time")
	<-w.slot // what hung has ended
	w.slot <- struct{}{}
	a.lie["namespaces"] = nil
	complete(t, w.Ask(t.Context()), 2)
}

// An old list is silence, once: an etcd that was restored from a copy counts from then on.
func TestOldList(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	complete(t, w.Ask(t.Context()), 2)
	complete(t, w.Ask(t.Context()), 2) // the same is not older
	a.pods.ResourceVersion = "99"
	silent(t, w.Ask(t.Context()), "resourceVersion 99, older than the 100")
	complete(t, w.Ask(t.Context()), 2)
	a.pods.ResourceVersion = "1000" // as a number
	complete(t, w.Ask(t.Context()), 2)
	a.pods.ResourceVersion = "not a number"
	complete(t, w.Ask(t.Context()), 2)
}

func TestNobodyListens(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	a.srv.Close()
	silent(t, w.Ask(t.Context()), "connection refused")
}

func TestWithoutBootOrName(t *testing.T) {
	a, c := newAPI(t), newClock()
	w := a.witness(c)
	c.now.Boot = ""
	a.node.Status.NodeInfo.BootID = ""
	silent(t, w.Ask(t.Context()), "boot ID could not be read")
	c.now.Boot = bootA
	for _, name := range []string{"", "n1,spec.nodeName!=n2", "n1=x", "../pods", "n 1", "n\x1b", strings.Repeat("n", 254)} {
		w.c.Node = name
		silent(t, w.Ask(t.Context()), "cannot be the name of a node")
	}
	if list := a.asked(); len(list) > 0 {
		t.Errorf("asked %q", list)
	}
}

// stuck is a transport that heeds no context, as a credential plugin may.
type stuck struct {
	next http.RoundTripper
	free chan struct{}
}

func (s stuck) RoundTrip(r *http.Request) (*http.Response, error) {
	<-s.free
	return s.next.RoundTrip(r)
}

func TestStuckBelow(t *testing.T) {
	a, c := newAPI(t), newClock()
	free := make(chan struct{})
	cfg := &rest.Config{Host: a.srv.URL}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return stuck{next, free} })
	client, err := NewClient(cfg, "x")
	if err != nil {
		t.Fatal(err)
	}
	w := New(Config{Client: client, Node: "n1", Clock: c.Now, Timeout: 100 * time.Millisecond})
	for range 3 { // the second waits for the first in vain, and leaves nothing behind
		start := time.Now()
		silent(t, w.Ask(t.Context()), "no whole answer in time")
		if d := time.Since(start); d > 3*time.Second {
			t.Fatalf("took %s", d)
		}
	}
	close(free)
	w.c.Timeout = 5 * time.Second
	<-w.slot // the first has ended
	w.slot <- struct{}{}
	c.wait(firstRest)
	complete(t, w.Ask(t.Context()), 2)
}

func TestTooLong(t *testing.T) {
	a, c := newAPI(t), newClock()
	a.lie["pods"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", protobuf)
		chunk := make([]byte, 1<<20)
		for range maxBody/len(chunk) + 1 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	silent(t, a.witness(c).Ask(t.Context()), "longer than 64 MiB")
}

// The token of the file is what is sent. client-go reads the file anew every minute, and the
// kubelet rotates a token long before it ends.
func TestTokenFile(t *testing.T) {
	a, c := newAPI(t), newClock()
	check := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer two":
			a.status(w, 401, metav1.StatusReasonUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/api/v1/nodes"):
			a.write(w, a.node)
		default:
			a.write(w, a.pods)
		}
	}
	a.lie["nodes"], a.lie["pods"], a.lie["namespaces"] = check, check, check
	file := filepath.Join(t.TempDir(), "token")
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		client, err := NewClient(&rest.Config{Host: a.srv.URL, BearerTokenFile: file}, "x")
		if err != nil {
			t.Fatal(err)
		}
		got := New(Config{Client: client, Node: "n1", Clock: c.Now}).Ask(t.Context())
		if token == "one" {
			silent(t, got, "401")
		} else {
			complete(t, got, 2)
		}
	}
}

func TestLoad(t *testing.T) {
	a, c := newAPI(t), newClock()
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters:\n- name: x\n  cluster: {server: \"" + a.srv.URL + "\"}\ncontexts:\n- name: x\n  context: {cluster: x, user: x}\nusers:\n- name: x\n  user: {token: secret}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(cfg, "x")
	if err != nil {
		t.Fatal(err)
	}
	complete(t, New(Config{Client: client, Node: "n1", Clock: c.Now}).Ask(t.Context()), 2)
	if cfg.QPS != 0 || cfg.GroupVersion != nil {
		t.Errorf("the configuration was changed: %v", cfg)
	}
	for name, text := range map[string]string{"broken": "clusters: [", "empty": "", "none": ""} {
		file := filepath.Join(dir, name)
		if name != "none" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if cfg, err := Load(file); err == nil {
			t.Errorf("%s: %v", name, cfg)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if cfg, err := Load(""); err != rest.ErrNotInCluster {
		t.Errorf("%v, %v", cfg, err)
	}
}

// What one list of a full node weighs, by which docs compute the load on an API server.
func TestBytesOfAFullNode(t *testing.T) {
	a, c := newAPI(t), newClock()
	a.pods.Items = nil
	for i := range 110 {
		a.pods.Items = append(a.pods.Items, *fullPod(i))
	}
	b := a.encode(a.pods)
	t.Logf("110 Pods: %d bytes in protobuf, %d each", len(b), len(b)/110)
	if len(b) < 200_000 || len(b) > 1_000_000 {
		t.Errorf("%d bytes: docs/benchmarks.md computes with some 0.9 MB", len(b))
	}
	complete(t, a.witness(c).Ask(t.Context()), 110)
}
