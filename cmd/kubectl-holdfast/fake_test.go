package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// cluster is an API server with agents behind it: it lists Pods in pages, and forwards
// ports by SPDY, as one before Kubernetes 1.30 does. A real one, with websockets, is
// e2e/deploy's.
type cluster struct {
	url string

	mu   sync.Mutex
	pods []corev1.Pod
	// agents answer, by Pod.
	agents map[string]http.Handler
	// refuse makes a Pod's node refuse to forward, with these words.
	refuse map[string]string
	forbid bool
	// busy and most count forwarded connections.
	busy, most int
	asked      []string
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{agents: map[string]http.Handler{}, refuse: map[string]string{}}
	srv := httptest.NewTLSServer(c)
	t.Cleanup(srv.Close)
	c.url = srv.URL
	return c
}

// node adds a node with an agent that answers documents by path.
func (c *cluster) node(name string, docs map[string]any) {
	c.add(name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Host, "127.0.0.1:") {
			http.Error(w, "whose page is this?", http.StatusMisdirectedRequest)
			return
		}
		path := strings.TrimPrefix(r.URL.RequestURI(), "/api/v1alpha1/")
		c.mu.Lock()
		c.asked = append(c.asked, name+" "+path)
		c.mu.Unlock()
		doc, ok := docs[path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			doc = map[string]string{"error": "nothing matches"}
		}
		_ = json.NewEncoder(w).Encode(doc)
	}))
}

func (c *cluster) add(name string, h http.Handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod := "holdfast-agent-" + name
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(9700)}}}
	c.pods = append(c.pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "holdfast-system"},
		Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "agent", ReadinessProbe: probe}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	})
	c.agents[pod] = h
}

func (c *cluster) pod(name string) *corev1.Pod {
	for i := range c.pods {
		if c.pods[i].Spec.NodeName == name {
			return &c.pods[i]
		}
	}
	return nil
}

const collection = "/api/v1/namespaces/holdfast-system/pods"

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Authorization") != "Bearer mine":
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case r.URL.Path == collection && c.forbid:
		c.json(w, http.StatusForbidden, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden,
			Message: `pods is forbidden: User "me" cannot list resource "pods"`,
		})
	case r.URL.Path == collection:
		c.list(w, r)
	case strings.HasSuffix(r.URL.Path, "/portforward"):
		c.forward(w, r, strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, collection+"/"), "/portforward"))
	default:
		http.NotFound(w, r)
	}
}

func (c *cluster) json(w http.ResponseWriter, code int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(doc)
}

// list gives two Pods in each page.
func (c *cluster) list(w http.ResponseWriter, r *http.Request) {
	if got := r.URL.Query().Get("labelSelector"); got != selector {
		http.Error(w, "selector "+got, http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	from := 0
	if s := r.URL.Query().Get("continue"); s != "" {
		_, _ = fmt.Sscan(s, &from)
	}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: c.pods[from:min(from+2, len(c.pods))]}
	if from+2 < len(c.pods) {
		list.Continue = fmt.Sprint(from + 2)
	}
	c.json(w, http.StatusOK, list)
}

func (c *cluster) forward(w http.ResponseWriter, r *http.Request, pod string) {
	if !strings.EqualFold(r.Header.Get(httpstream.HeaderUpgrade), "SPDY/3.1") {
		http.Error(w, "no websockets here", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	c.mu.Lock()
	c.busy++
	c.most = max(c.most, c.busy)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy--
	}()
	complaints, data := <-streams, <-streams
	port := data.Headers().Get(corev1.PortHeader)
	if words := c.refuse[pod]; words != "" || port != "9700" {
		_, _ = io.WriteString(complaints, words+" on port "+port)
		_ = complaints.Close()
		_ = data.Close()
		<-conn.CloseChan()
		return
	}
	ln := newPipeListener(data)
	srv := &http.Server{Handler: c.agents[pod]}
	go func() { _ = srv.Serve(ln) }()
	<-conn.CloseChan()
	_ = srv.Close()
}

// pipeListener gives one connection out.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipeListener(s httpstream.Stream) *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	l.conns <- streamConn{s}
	return l
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return pipe{} }

type streamConn struct{ httpstream.Stream }

func (streamConn) LocalAddr() net.Addr              { return pipe{} }
func (streamConn) RemoteAddr() net.Addr             { return pipe{} }
func (streamConn) SetDeadline(time.Time) error      { return nil }
func (streamConn) SetReadDeadline(time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(time.Time) error { return nil }

// run runs the command with a kubeconfig for the cluster.
func (c *cluster) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "other", "clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"users": [{"name": "me", "user": {"token": "mine"}}, {"name": "nobody", "user": {"token": "no"}}],
		"contexts": [{"name": "here", "context": {"cluster": "c", "user": "me", "namespace": "elsewhere"}}, {"name": "other", "context": {"cluster": "c", "user": "nobody"}}]}`, c.url)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, msg bytes.Buffer
	code = run(t.Context(), append(args, "--kubeconfig", path, "--context", "here"), &out, &msg)
	return code, out.String(), msg.String()
}
