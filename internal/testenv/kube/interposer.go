package kube

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Interposer stands between clients and the API server: it ends their TLS, tells the
// API server who they are (a client certificate through the front-proxy headers, a
// token as it is), and can misbehave. Its methods may be called at any time from
// several goroutines.
//
// Not for upgraded connections (exec, attach, port-forward).
type Interposer struct {
	// URL is where it listens, in the namespace for which it was made.
	URL string

	listen func() (net.Listener, error)
	tls    *tls.Config
	// asUser speaks as the front proxy, asIs as nobody.
	asUser, asIs http.Handler

	mu     sync.Mutex
	fault  Fault
	server *http.Server // nil while down
	done   chan struct{}
}

// Fault misbehaves in the place of the API server, or before or after it: next answers
// as it would. A fault that wants the connection cut panics with http.ErrAbortHandler.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Match tells the requests that a fault is about.
type Match func(*http.Request) bool

// Everything matches every request.
func Everything(*http.Request) bool { return true }

// FromKubelet matches the requests of a node's kubelet, or of whoever else has a
// certificate of system:nodes.
func FromKubelet(r *http.Request) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 &&
		slices.Contains(r.TLS.PeerCertificates[0].Subject.Organization, "system:nodes")
}

// NotFromKubelet matches what comes from Pods and programs on a node.
func NotFromKubelet(r *http.Request) bool { return !FromKubelet(r) }

// Reads matches GET requests of a resource, such as "pods": lists, watches, single
// objects, in whatever namespace.
func Reads(resource string) Match {
	return func(r *http.Request) bool { return r.Method == http.MethodGet && names(r, resource) }
}

// Writes matches requests that change a resource or its subresource.
func Writes(resource string) Match {
	return func(r *http.Request) bool { return r.Method != http.MethodGet && names(r, resource) }
}

func names(r *http.Request, resource string) bool {
	return slices.Contains(strings.Split(r.URL.Path, "/"), resource)
}

// All matches what all of the given match.
func All(ms ...Match) Match {
	return func(r *http.Request) bool {
		return !slices.ContainsFunc(ms, func(m Match) bool { return !m(r) })
	}
}

func isWatch(r *http.Request) bool {
	w := r.URL.Query().Get("watch")
	return w == "true" || w == "1"
}

// Delayed lets matching requests wait before they go on.
func Delayed(by time.Duration, m Match) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if m(r) {
			select {
			case <-time.After(by):
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
		next.ServeHTTP(w, r)
	}
}

// Failing answers matching requests with a status code and no object of Kubernetes.
func Failing(code int, m Match) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if m(r) {
			http.Error(w, http.StatusText(code), code)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// Cutting cuts the stream or connection of matching requests before any answer.
func Cutting(m Match) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if m(r) {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	}
}

// Truncating cuts matching answers after so many bytes of their body (as they are sent:
// compressed, where the client accepts that).
func Truncating(after int64, m Match) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !m(r) {
			next.ServeHTTP(w, r)
			return
		}
		rec := record(r, next)
		rec.send(w, min(after, int64(len(rec.body))))
		panic(http.ErrAbortHandler)
	}
}

// Hanging never answers matching requests; they end when the client gives up.
func Hanging(m Match) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if m(r) {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	}
}

// Stale answers matching GET requests as they were answered when they first came after
// this call, for ever: an API server whose cache stands still. Matching watches hang.
func Stale(m Match) Fault {
	var mu sync.Mutex
	answers := map[string]recording{}
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case !m(r) || r.Method != http.MethodGet:
			next.ServeHTTP(w, r)
			return
		case isWatch(r):
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		key := strings.Join([]string{r.URL.String(), r.Header.Get("Accept"), r.Header.Get("Accept-Encoding")}, "\n")
		mu.Lock()
		defer mu.Unlock()
		rec, ok := answers[key]
		if !ok {
			rec = record(r, next)
			if rec.code == http.StatusOK {
				answers[key] = rec
			}
		}
		rec.send(w, int64(len(rec.body)))
	}
}

type recording struct {
	code   int
	header http.Header
	body   []byte
}

func record(r *http.Request, next http.Handler) recording {
	w := &recorder{header: http.Header{}, code: http.StatusOK}
	next.ServeHTTP(w, r)
	return recording{code: w.code, header: w.header, body: w.body.Bytes()}
}

func (rec recording) send(w http.ResponseWriter, bytes int64) {
	maps.Copy(w.Header(), rec.header)
	w.WriteHeader(rec.code)
	_, _ = w.Write(rec.body[:bytes]) // the client may be gone
}

// recorder is a ResponseWriter that keeps what it is given.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header         { return w.header }
func (w *recorder) WriteHeader(code int)        { w.code = code }
func (w *recorder) Write(b []byte) (int, error) { return w.body.Write(b) }

// Fault makes every request from now on go through f; nil ends that.
func (i *Interposer) Fault(f Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fault = f
}

// Down closes the listener and all connections: whoever dials is refused.
func (i *Interposer) Down(t testing.TB) {
	t.Helper()
	if err := i.close(); err != nil {
		t.Errorf("interposer: %v", err)
	}
}

// Up listens again at the same address.
func (i *Interposer) Up(t testing.TB) {
	t.Helper()
	if err := i.open(); err != nil {
		t.Fatalf("interposer: %v", err)
	}
}

// Cut closes all connections once. New ones are taken.
func (i *Interposer) Cut(t testing.TB) {
	t.Helper()
	i.Down(t)
	i.Up(t)
}

func (i *Interposer) open() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.server != nil {
		return nil
	}
	l, err := i.listen()
	if err != nil {
		return err
	}
	i.URL = "https://" + l.Addr().String()
	s := &http.Server{Handler: i, TLSConfig: i.tls.Clone(), ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	i.server, i.done = s, done
	go func() {
		defer close(done)
		_ = s.ServeTLS(l, "", "") // says that it was closed
	}()
	return nil
}

func (i *Interposer) close() error {
	i.mu.Lock()
	s, done := i.server, i.done
	i.server = nil
	i.mu.Unlock()
	if s == nil {
		return nil
	}
	err := s.Close()
	<-done
	return err
}

// Header names that the API server believes from whoever holds the front proxy's
// certificate.
const (
	userHeader  = "X-Remote-User"
	groupHeader = "X-Remote-Group"
)

// ServeHTTP is for the server.
func (i *Interposer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	fault := i.fault
	i.mu.Unlock()
	next := i.asIs
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		next = i.asUser
	}
	if fault == nil {
		next.ServeHTTP(w, r)
		return
	}
	fault(w, r, next)
}

// forward sends requests to the API server. A failure to reach it cuts the client off, as
// the API server's own end would, instead of answering for it.
func forward(target *url.URL, via http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport: via,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Header.Del(userHeader)
			p.Out.Header.Del(groupHeader)
			if p.In.TLS == nil || len(p.In.TLS.PeerCertificates) == 0 {
				return
			}
			subject := p.In.TLS.PeerCertificates[0].Subject
			p.Out.Header.Del("Authorization")
			p.Out.Header.Set(userHeader, subject.CommonName)
			for _, g := range subject.Organization {
				p.Out.Header.Add(groupHeader, g)
			}
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
}
