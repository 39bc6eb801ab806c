package kube

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const watchN1 = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&resourceVersion=100&timeoutSeconds=450&watch=true"

// streams sends watch events, as an API server frames them in protobuf, and then holds the
// connection, or ends it.
func (a *api) streams(hold bool, events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		codecs := newCodecs()
		info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), protobuf)
		w.Header().Set("Content-Type", protobuf+";stream=watch")
		w.WriteHeader(200)
		frames := info.StreamSerializer.NewFrameWriter(w)
		for _, e := range events {
			meta := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"}}
			meta.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
			raw, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, metav1.SchemeGroupVersion), meta)
			if err == nil {
				err = codecs.EncoderForVersion(info.StreamSerializer.Serializer, corev1.SchemeGroupVersion).Encode(
					&metav1.WatchEvent{Type: e, Object: runtime.RawExtension{Raw: raw}}, frames)
			}
			if err != nil {
				a.t.Error(err)
			}
			w.(http.Flusher).Flush()
		}
		if !hold {
			return
		}
		select {
		case <-a.end:
		case <-r.Context().Done():
		}
	}
}

// watching runs a Watcher until the test's end and counts its wakes and its troubles.
func watching(t *testing.T, a *api) (wakes *atomic.Int64, troubles chan error) {
	wakes, troubles = &atomic.Int64{}, make(chan error, 100)
	w := &Watcher{
		Client: a.client(), Node: "n1", Wake: func() { wakes.Add(1) }, Rand: func() float64 { return 0.5 },
		Shortest: 10 * time.Millisecond, Longest: 40 * time.Millisecond, Trouble: func(err error) { troubles <- err },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("the watch goes on after its context has ended")
		}
	})
	return wakes, troubles
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal(what)
}

// Only what goes wakes; what comes or changes does not.
func TestWatchWakes(t *testing.T) {
	a := newAPI(t)
	a.lie["pods"] = a.streams(true, "ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED", "MODIFIED")
	wakes, troubles := watching(t, a)
	eventually(t, "two wakes", func() bool { return wakes.Load() == 2 })
	time.Sleep(50 * time.Millisecond)
	if n := wakes.Load(); n != 2 || len(troubles) > 0 {
		t.Errorf("%d wakes, %d troubles", n, len(troubles))
	}
	if d := cmp.Diff([]string{revision, watchN1}, a.asked()); d != "" {
		t.Error(d)
	}
	if got := a.accepts[1]; !strings.HasPrefix(got, protobuf+";as=PartialObjectMetadata") {
		t.Errorf("accepts %q", got)
	}
}

// What the watch begins from is from quorum, or there is no watch.
func TestWatchWithoutRevision(t *testing.T) {
	a := newAPI(t)
	a.lie["namespaces"] = a.refuses(503, metav1.StatusReasonServiceUnavailable)
	_, troubles := watching(t, a)
	if err := <-troubles; !strings.HasPrefix(err.Error(), "list pods: ") {
		t.Error(err)
	}
	if got := a.asked(); slices.Contains(got, watchN1) {
		t.Errorf("asked %q", got)
	}
}

// A connection that ends when it was to is made again at once, so that hardly a deletion is missed;
// one that ends before may have ended with all others.
func TestWatchEndsInTime(t *testing.T) {
	for _, r := range []struct {
		after time.Duration
		want  int64
	}{{1100 * time.Millisecond, 2}, {0, 1}} {
		t.Run(r.after.String(), func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			var n atomic.Int64
			end := a.streams(false)
			a.lie["pods"] = func(rw http.ResponseWriter, req *http.Request) {
				if got := req.URL.Query().Get("timeoutSeconds"); got != "1" {
					t.Errorf("asked for %s s", got)
				}
				if n.Add(1) > 1 {
					a.hangs(nil)(rw, req)
					return
				}
				rw.Header().Set("Content-Type", protobuf+";stream=watch")
				rw.(http.Flusher).Flush()
				time.Sleep(r.after)
				end(rw, req)
			}
			w := &Watcher{Client: a.client(), Node: "n1", Wake: func() {}, Rand: func() float64 { return 0.5 }, Shortest: time.Hour, Hold: time.Second}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { w.Run(ctx); close(done) }()
			time.Sleep(2 * time.Second)
			cancel()
			<-done
			if got := n.Load(); got != r.want {
				t.Errorf("%d connections", got)
			}
		})
	}
}

// A connection that ends is made again, after a wait, whatever ended it.
func TestWatchConnectsAgain(t *testing.T) {
	for name, h := range map[string]func(a *api) http.HandlerFunc{
		"it ended":     func(a *api) http.HandlerFunc { return a.streams(false) },
		"RBAC revoked": func(a *api) http.HandlerFunc { return a.refuses(403, metav1.StatusReasonForbidden) },
		"down":         func(a *api) http.HandlerFunc { return a.refuses(503, metav1.StatusReasonServiceUnavailable) },
		"an error":     func(a *api) http.HandlerFunc { return a.streams(false, "ERROR") },
		"garbage":      func(a *api) http.HandlerFunc { return a.says(protobuf+";stream=watch", "\xff\xff\xff\xffgarbage") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			var n atomic.Int64
			bad, good := h(a), a.streams(true, "DELETED")
			a.lie["pods"] = func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) <= 3 {
					bad(w, r)
					return
				}
				good(w, r)
			}
			start := time.Now()
			wakes, troubles := watching(t, a)
			eventually(t, "a wake after three bad connections", func() bool { return wakes.Load() == 1 })
			if d := time.Since(start); d < 60*time.Millisecond { // 10, 20 and 40 ms
				t.Errorf("three times in %s", d)
			}
			if name != "RBAC revoked" {
				return
			}
			err := <-troubles
			var e *Error
			if !errors.As(err, &e) || e.Op != "watch" || !apierrors.IsForbidden(err) {
				t.Errorf("%v", err)
			}
		})
	}
}
