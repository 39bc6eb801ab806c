package kube

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	bootA = "0a1b2c3d-1111-2222-3333-444455556666"
	bootB = "99999999-1111-2222-3333-444455556666"
)

// api is an API server for a few objects, with every way to lie.
type api struct {
	t    testing.TB
	srv  *httptest.Server
	mu   sync.Mutex
	asks []string // "GET /path?query", in order
	// accepts are the Accept headers.
	accepts []string
	node    *corev1.Node // nil: 404
	pods    *corev1.PodList
	// revision is what a list of one name is of; "": what pods is of.
	revision string
	// remaining is how many Pods the cluster has beside one.
	remaining *int64
	// lie, by the first path element behind the version, answers instead.
	lie map[string]http.HandlerFunc
	end chan struct{} // closed when the test ends, for what hangs
}

func newAPI(t testing.TB) *api {
	a := &api{t: t, lie: map[string]http.HandlerFunc{}, end: make(chan struct{})}
	a.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: bootA}}}
	a.pods = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "100"}, Items: []corev1.Pod{*aPod("web-0", "10.1.0.9"), *aPod("web-1", "10.1.0.10")}}
	a.srv = httptest.NewServer(a)
	t.Cleanup(func() { close(a.end); a.srv.CloseClientConnections(); a.srv.Close() })
	return a
}

func aPod(name, addr string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if addr != "" {
		p.Status.PodIP, p.Status.PodIPs = addr, []corev1.PodIP{{IP: addr}}
	}
	return p
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	a.mu.Lock()
	a.asks = append(a.asks, r.Method+" "+r.URL.String())
	a.accepts = append(a.accepts, r.Header.Get("Accept"))
	node, pods, lie := a.node, a.pods, a.lie[what]
	remaining := a.remaining
	revision := cmp.Or(a.revision, pods.ResourceVersion)
	a.mu.Unlock()
	switch {
	case lie != nil:
		lie(w, r)
	case what == "nodes" && node != nil && r.URL.Path == "/api/v1/nodes/n1":
		a.write(w, node)
	case r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("limit") != "":
		one := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: pods.ResourceVersion, Continue: "x", RemainingItemCount: remaining}, Items: pods.Items[:1]}
		a.write(w, one)
	case r.URL.Path == "/api/v1/pods" && older(pods.ResourceVersion, r.URL.Query().Get("resourceVersion")):
		a.tooLarge(w, r) // at once here, after 3 s there
	case r.URL.Path == "/api/v1/pods":
		a.write(w, pods)
	case r.URL.Path == "/api/v1/namespaces/default/pods":
		a.write(w, &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: revision}})
	default:
		a.status(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func (a *api) encode(o runtime.Object) []byte {
	codecs := newCodecs()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), protobuf)
	if !ok {
		a.t.Fatal("no protobuf")
	}
	var b bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(o, &b); err != nil {
		a.t.Error(err)
	}
	return b.Bytes()
}

func (a *api) write(w http.ResponseWriter, o runtime.Object) {
	w.Header().Set("Content-Type", protobuf)
	_, _ = w.Write(a.encode(o))
}

// status answers as an API server refuses.
func (a *api) status(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"so it is \u001b[31m","reason":%q,"code":%d}`, reason, code)
}

// tooLarge says that the API server's memory is not that new yet, as it does.
func (a *api) tooLarge(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusGatewayTimeout)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 120, current: 100","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}`)
}

func (a *api) refuses(code int32, reason metav1.StatusReason) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { a.status(w, code, reason) }
}

func (a *api) says(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(body))
	}
}

// hangs writes body, then nothing until the test ends.
func (a *api) hangs(body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if body != nil {
			w.Header().Set("Content-Type", protobuf)
			_, _ = w.Write(body)
			w.(http.Flusher).Flush()
		}
		select {
		case <-a.end:
		case <-r.Context().Done():
		}
	}
}

// cuts writes a part of an answer, and ends the connection.
func (a *api) cuts(part []byte, announce int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			a.t.Error(err)
			return
		}
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", protobuf, announce, part)
		rw.Flush()
		conn.Close()
	}
}

func (a *api) asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := slices.Clone(a.asks)
	a.asks = nil
	return list
}

func (a *api) client() *Client {
	a.t.Helper()
	c, err := NewClient(&rest.Config{Host: a.srv.URL}, "holdfast/test")
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// clock is a machine's.
type clock struct {
	mu  sync.Mutex
	now claim.Instant
}

func newClock() *clock { return &clock{now: claim.Instant{Boot: bootA, Mono: time.Hour}} }

func (c *clock) Now() claim.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Mono++
	return c.now
}

func (c *clock) wait(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Mono += d
}

func (a *api) witness(c *clock) *Witness {
	return New(Config{Client: a.client(), Node: "n1", Clock: c.Now, Timeout: 5 * time.Second})
}

func complete(t testing.TB, got claim.Testimony, pods int) {
	t.Helper()
	if got.State != claim.StateComplete || got.Kube == nil || len(got.Kube.Pods) != pods {
		t.Fatalf("%+v %+v; want %d Pods", got, got.Kube, pods)
	}
}

func silent(t testing.TB, got claim.Testimony, why string) {
	t.Helper()
	if got.State != claim.StateSilent || got.Kube != nil || !strings.Contains(got.Detail, why) || !tame(got.Detail) {
		t.Fatalf("%+v %+v; want silence: %s", got, got.Kube, why)
	}
}

func tame(s string) bool {
	return len(s) <= 700 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
}
