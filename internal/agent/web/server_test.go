package web

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// serve serves h on a port of its own until the test ends.
func serve(t *testing.T, h http.Handler) (addr string, stop func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}).Serve(ctx, ln) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(5 * time.Second):
			return fmt.Errorf("it does not stop")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String(), stop
}

func dial(t *testing.T, addr, say string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, say); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestServer(t *testing.T) {
	begun := make(chan struct{}, 1)
	addr, stop := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			begun <- struct{}{}
			time.Sleep(100 * time.Millisecond)
		case "/forever":
			begun <- struct{}{}
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "done")
	}))
	// A header that is too large.
	c := dial(t, addr, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 2*maxHeader)+"\r\n\r\n")
	if line, _ := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, "431") {
		t.Errorf("a large header: %q", line)
	}
	// Connections that say nothing keep nobody from stopping; an answer in flight is
	// finished, one that would never end is not waited for.
	dial(t, addr, "")
	dial(t, addr, "GET /half")
	slow := dial(t, addr, "GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	<-begun
	dial(t, addr, "GET /forever HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-begun
	start := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("stopped after %s", took)
	}
	if b, _ := io.ReadAll(slow); !strings.HasSuffix(string(b), "done") {
		t.Errorf("the answer in flight: %q", b)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

// TestFewConnections: more connections than maxConns wait, and get their turn.
func TestFewConnections(t *testing.T) {
	addr, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }))
	var held []net.Conn
	for range maxConns {
		held = append(held, dial(t, addr, ""))
	}
	late := dial(t, addr, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if err := late.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(late); err == nil || len(b) > 0 {
		t.Errorf("answered over the limit: %q", b)
	}
	held[0].Close()
	if err := late.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(late); !strings.HasSuffix(string(b), "done") {
		t.Errorf("no answer when there was room: %q", b)
	}
}

// striped is the worst /16 for a map: no address is like its neighbour.
func striped() *scene {
	s := newScene(noon)
	s.network("podnet", "10.64.0.1", "10.64.255.254", 65533)
	for i, a := range span("10.64.0.2", 65533) {
		s.put("podnet", []verdict.Verdict{verdict.InUse, verdict.Suspect}[i%2], a)
	}
	return s
}

// TestMapSize bounds what is kept between sweeps, and sent, of 65,536 reservations.
func TestMapSize(t *testing.T) {
	for _, r := range []struct {
		name string
		of   *scene
		most int
	}{
		{"ordinary", fullNode(noon), 64 << 10},
		{"worst", striped(), 1100 << 10},
	} {
		m := &Map{}
		m.Observe(context.Background(), r.of.pass())
		n := len(m.latest().body)
		t.Logf("%s: %d bytes", r.name, n)
		if n > r.most {
			t.Errorf("%s: %d bytes, more than %d", r.name, n, r.most)
		}
		if d := m.latest().decode(); d.Summary["InUse"] < 32_000 || len(d.Worst) > 200 || r.name == "worst" && d.More == 0 {
			t.Errorf("%s: %v, %d described, %d more", r.name, d.Summary, len(d.Worst), d.More)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	for _, r := range []struct {
		name string
		of   *scene
	}{{"busy", busyNode(noon)}, {"full", fullNode(noon)}, {"striped", striped()}} {
		b.Run(r.name, func(b *testing.B) {
			m, p := &Map{}, r.of.pass()
			b.ReportAllocs()
			for b.Loop() {
				m.Observe(context.Background(), p)
			}
			b.ReportMetric(float64(len(m.latest().body)), "bytes/map")
		})
	}
}
