package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

var noon = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

func atNoon() claim.Instant { return claim.Instant{Boot: "b", Wall: noon} }

// served is a handler with a busy node behind it.
func served(t *testing.T, change func(*Config)) (http.Handler, *source) {
	t.Helper()
	src := &source{journal: oldReleases(noon)}
	src.show(busyNode(noon))
	c := Config{
		Node: "node-1", Version: "v1.2.3", Source: src, Map: &Map{}, Health: state{live: true, ready: true}, Clock: atNoon,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "holdfast_up 1\n") }),
	}
	c.Map.Observe(context.Background(), busyNode(noon).pass())
	if change != nil {
		change(&c)
	}
	return New(c), src
}

func ask(h http.Handler, method, target string, header map[string]string) *http.Response {
	r := httptest.NewRequestWithContext(context.Background(), method, target, nil)
	r.Host = "127.0.0.1:9617"
	for k, v := range header {
		if k == "Host" {
			r.Host = v
		} else {
			r.Header.Set(k, v)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPaths(t *testing.T) {
	for _, r := range []struct {
		name, target string
		change       func(*Config)
		code         int
		kind, says   string
	}{
		{"page", "/", nil, 200, "text/html; charset=utf-8", "<!doctype html>"},
		{"nothing else", "/index.html", nil, 404, "text/plain; charset=utf-8", ""},
		{"below the page", "/x", nil, 404, "text/plain; charset=utf-8", ""},
		{"alive", "/healthz", nil, 200, "text/plain; charset=utf-8", "ok\n"},
		{"not alive", "/healthz", func(c *Config) { c.Health = state{reasons: []string{"no sweep for 9m"}} }, 503, "text/plain; charset=utf-8", "not ok\nno sweep for 9m\n"},
		{"ready, with a remark", "/readyz", func(c *Config) { c.Health = state{ready: true, reasons: []string{"journal 90 % full"}} }, 200, "text/plain; charset=utf-8", "ok\njournal 90 % full\n"},
		{"not ready, said by a terminal's enemy", "/readyz", func(c *Config) { c.Health = state{reasons: []string{"a\x1b[2Jb"}} }, 503, "text/plain; charset=utf-8", "not ok\na\\x1b[2Jb\n"},
		{"metrics", "/metrics", nil, 200, "", "holdfast_up 1"},
		{"no metrics", "/metrics", func(c *Config) { c.Metrics = nil }, 404, "", ""},
		{"no pprof", "/debug/pprof/", nil, 404, "", ""},
		{"pprof", "/debug/pprof/", func(c *Config) { c.Pprof = true }, 200, "", "goroutine"},
		{"pprof without the command line", "/debug/pprof/cmdline", func(c *Config) { c.Pprof = true }, 404, "", ""},
		{"map", "/api/v1alpha1/map", nil, 200, "application/json", `"kind":"Map"`},
		{"no map yet", "/api/v1alpha1/map", func(c *Config) { c.Map = &Map{} }, 503, "application/json", "no sweep was made yet"},
		{"status", "/api/v1alpha1/status", nil, 200, "application/json", `"version":"v1.2.3"`},
		{"status before a sweep", "/api/v1alpha1/status", func(c *Config) { c.Map = &Map{} }, 200, "application/json", `"reasons":[]`},
		{"audit", "/api/v1alpha1/audit", nil, 200, "application/json", `"kind":"Audit"`},
		{"explain an address", "/api/v1alpha1/explain?address=10.22.0.131", nil, 200, "application/json", `"verdict":"Leaked"`},
		{"in another spelling", "/api/v1alpha1/explain?address=::ffff:10.22.0.131", nil, 200, "application/json", `"verdict":"Leaked"`},
		{"explain a Pod", "/api/v1alpha1/explain?pod=shop/cart-3", nil, 200, "application/json", `"address":"10.22.0.5"`},
		{"explain a container", "/api/v1alpha1/explain?container=" + fmt.Sprintf("%064x", 0xabc0000003), nil, 200, "application/json", `"address":"10.22.0.5"`},
		{"a prefix of many", "/api/v1alpha1/explain?container=0000", nil, 400, "application/json", "not unique"},
		{"a free address", "/api/v1alpha1/explain?address=10.22.0.250", nil, 404, "application/json", "not reserved here, and it was never released"},
		{"a released address", "/api/v1alpha1/explain?address=10.22.0.240", nil, 404, "application/json", "it was released as 20261130-062137-1a2b3c-00002"},
		{"its history", "/api/v1alpha1/explain?address=10.22.0.130", nil, 200, "application/json", `"releases":[{"releaseID":"20261130-062137-1a2b3c-00001"`},
		{"without the journal", "/api/v1alpha1/explain?address=10.22.0.130", func(c *Config) {
			s := &source{err: errors.New("EIO")}
			s.show(busyNode(noon))
			c.Source = s
		}, 200, "application/json", `"verdict":"Leaked"`},
		{"explain nothing", "/api/v1alpha1/explain", nil, 400, "application/json", "want address="},
		{"explain two things", "/api/v1alpha1/explain?address=10.22.0.5&pod=a/b", nil, 400, "application/json", "want one of"},
		{"explain twice", "/api/v1alpha1/explain?address=10.22.0.5&address=10.22.0.6", nil, 400, "application/json", "want one of"},
		{"no address", "/api/v1alpha1/explain?address=10.22.0", nil, 400, "application/json", "no address"},
		{"no Pod", "/api/v1alpha1/explain?pod=web", nil, 400, "application/json", "want NAMESPACE/NAME"},
		{"an address as container", "/api/v1alpha1/explain?container=10.22.0.5", nil, 400, "application/json", "no container ID"},
		{"a long query", "/api/v1alpha1/explain?container=" + strings.Repeat("a", maxQuery+1), nil, 400, "application/json", "longer than"},
		{"markup in a query", "/api/v1alpha1/explain?pod=%3Cscript%3E/x", nil, 404, "application/json", `\u003cscript\u003e/x`},
		{"the node cannot be seen", "/api/v1alpha1/audit", func(c *Config) {
			c.Source = &source{look: func(context.Context) (*sweep.Audit, error) { return nil, errors.New("EIO") }}
		}, 503, "application/json", "could not be looked at: EIO"},
		{"journal", "/api/v1alpha1/journal", nil, 200, "application/json", "-00001"},
		{"journal, the newest", "/api/v1alpha1/journal?limit=1", nil, 200, "application/json", `"entries":[{"releaseID":"20261130-062137-1a2b3c-00002"`},
		{"journal of an address", "/api/v1alpha1/journal?address=10.22.0.130", nil, 200, "application/json", `"entries":[{"releaseID":"20261130-062137-1a2b3c-00001"`},
		{"journal of nobody", "/api/v1alpha1/journal?address=10.9.9.9", nil, 200, "application/json", `"entries":[]`},
		{"journal without bounds", "/api/v1alpha1/journal?limit=0", nil, 400, "application/json", "want 1 to"},
		{"journal of no address", "/api/v1alpha1/journal?address=x", nil, 400, "application/json", "no address"},
		{"no journal", "/api/v1alpha1/journal", func(c *Config) { c.Source = &source{err: errors.New("EIO")} }, 500, "application/json", "cannot be read: EIO"},
	} {
		t.Run(r.name, func(t *testing.T) {
			h, _ := served(t, r.change)
			res := ask(h, "GET", r.target, nil)
			text := body(t, res)
			if res.StatusCode != r.code {
				t.Errorf("code %d, want %d: %.300s", res.StatusCode, r.code, text)
			}
			if k := res.Header.Get("Content-Type"); r.kind != "" && k != r.kind {
				t.Errorf("type %q, want %q", k, r.kind)
			}
			if !strings.Contains(text, r.says) {
				t.Errorf("%q is missing: %.600s", r.says, text)
			}
			if r.code == 503 && r.kind == "application/json" && res.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		})
	}
}

// TestAudit: the streamed document is the whole one, but for the evidence.
func TestAudit(t *testing.T) {
	h, _ := served(t, nil)
	var doc api.Audit
	d := json.NewDecoder(ask(h, "GET", "/api/v1alpha1/audit", nil).Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, n := range doc.Summary {
		total += n
	}
	want := len(busyNode(noon).au.Judgement.Findings)
	if len(doc.Resources) != want || total != want || doc.Resources[0].Verdict != "Conflict" || doc.Evidence != nil || len(doc.Networks) != 4 {
		t.Errorf("%d resources of %d, %d counted, first %q, %d networks", len(doc.Resources), want, total, doc.Resources[0].Verdict, len(doc.Networks))
	}
}

func TestGuard(t *testing.T) {
	ipv6 := "[::1]:9617"
	for _, r := range []struct {
		name, method, target string
		header               map[string]string
		names                []string
		code                 int
	}{
		{"address", "GET", "/healthz", nil, nil, 200},
		{"address without a port", "GET", "/healthz", map[string]string{"Host": "127.0.0.1"}, nil, 200},
		{"IPv6", "GET", "/healthz", map[string]string{"Host": ipv6}, nil, 200},
		{"IPv6 without a port", "GET", "/healthz", map[string]string{"Host": "[::1]"}, nil, 200},
		{"localhost", "GET", "/healthz", map[string]string{"Host": "localhost:9617"}, nil, 200},
		{"in capitals, with a dot", "GET", "/healthz", map[string]string{"Host": "LocalHost.:9617"}, nil, 200},
		{"another site's name", "GET", "/healthz", map[string]string{"Host": "evil.example:9617"}, nil, 421},
		{"a name that begins alike", "GET", "/healthz", map[string]string{"Host": "localhost.evil.example"}, nil, 421},
		{"a name that is nearly an address", "GET", "/healthz", map[string]string{"Host": "127.0.0.1.evil.example"}, nil, 421},
		{"no name", "GET", "/healthz", map[string]string{"Host": ""}, nil, 421},
		{"a configured name", "GET", "/healthz", map[string]string{"Host": "node-1.example:9617"}, []string{"Node-1.example."}, 200},
		{"not that one", "GET", "/healthz", map[string]string{"Host": "node-2.example:9617"}, []string{"node-1.example"}, 421},
		{"HEAD", "HEAD", "/healthz", nil, nil, 200},
		{"HEAD of an audit", "HEAD", "/api/v1alpha1/audit", nil, nil, 200},
		{"POST", "POST", "/", nil, nil, 405},
		{"PUT", "PUT", "/api/v1alpha1/map", nil, nil, 405},
		{"DELETE", "DELETE", "/api/v1alpha1/journal", nil, nil, 405},
		{"OPTIONS, as CORS asks", "OPTIONS", "/api/v1alpha1/map", map[string]string{"Origin": "https://evil.example"}, nil, 405},
		{"CONNECT", "CONNECT", "/", nil, nil, 405},
		{"TRACE", "TRACE", "/", nil, nil, 405},
		{"another site's page asks", "GET", "/api/v1alpha1/audit", map[string]string{"Sec-Fetch-Site": "cross-site"}, nil, 403},
		{"a link of another site", "GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site"}, nil, 200},
		{"its own page asks", "GET", "/api/v1alpha1/map", map[string]string{"Sec-Fetch-Site": "same-origin"}, nil, 200},
		{"a way out", "GET", "/../../etc/passwd", nil, nil, 307},
	} {
		t.Run(r.name, func(t *testing.T) {
			h, src := served(t, func(c *Config) { c.Names = r.names })
			res := ask(h, r.method, r.target, r.header)
			text := body(t, res)
			if res.StatusCode != r.code {
				t.Errorf("code %d, want %d: %.200s", res.StatusCode, r.code, text)
			}
			if r.code >= 400 && src.count() > 0 {
				t.Error("a refused request caused a look at the node")
			}
			// net/http drops what is written for HEAD; so much need not be made.
			if r.method == "HEAD" && strings.Contains(text, `"resources"`) {
				t.Error("the resources were written for HEAD")
			}
			for k, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
				"Access-Control-Allow-Origin": "", "Set-Cookie": "", "Cache-Control": "no-store",
			} {
				if got := res.Header.Get(k); got != want {
					t.Errorf("%s: %q, want %q", k, got, want)
				}
			}
			if p := res.Header.Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'") || !strings.Contains(p, "frame-ancestors 'none'") || strings.Contains(p, "unsafe") {
				t.Errorf("policy %q", p)
			}
		})
	}
}

// TestNothingSecret: the environment of the agent is nobody's business.
func TestNothingSecret(t *testing.T) {
	const secret = "s3cr3t-t0k3n"
	t.Setenv("HOLDFAST_TEST_TOKEN", secret)
	h, _ := served(t, func(c *Config) { c.Pprof = true })
	for _, path := range []string{"/", "/healthz", "/readyz", "/metrics", "/api/v1alpha1/map", "/api/v1alpha1/status", "/api/v1alpha1/audit", "/api/v1alpha1/journal", "/debug/pprof/", "/debug/pprof/cmdline"} {
		if text := body(t, ask(h, "GET", path, nil)); strings.Contains(text, secret) {
			t.Errorf("%s shows it", path)
		}
	}
}

func TestMapIsCheap(t *testing.T) {
	m := &Map{}
	h, _ := served(t, func(c *Config) { c.Map = m })
	m.Observe(context.Background(), busyNode(noon).pass())
	first := ask(h, "GET", "/api/v1alpha1/map", nil)
	tag := first.Header.Get("ETag")
	again := ask(h, "GET", "/api/v1alpha1/map", map[string]string{"If-None-Match": `"other", W/` + tag})
	if again.StatusCode != http.StatusNotModified || body(t, again) != "" {
		t.Errorf("code %d for the same map", again.StatusCode)
	}
	m.Observe(context.Background(), busyNode(noon).pass())
	next := ask(h, "GET", "/api/v1alpha1/map", map[string]string{"If-None-Match": tag})
	if next.StatusCode != 200 || next.Header.Get("ETag") == tag {
		t.Errorf("code %d, tag %s after %s", next.StatusCode, next.Header.Get("ETag"), tag)
	}
	// The agent began again, and counts from one.
	other := &Map{}
	p := busyNode(noon).pass()
	p.Started.Mono += time.Hour
	other.Observe(context.Background(), p)
	m2 := &Map{}
	m2.Observe(context.Background(), busyNode(noon).pass())
	if a, b := other.latest().tag, m2.latest().tag; a == b {
		t.Errorf("two agents' first maps have one tag %s", a)
	}
}

// drawnMap is what the page would get.
func drawnMap(t *testing.T, m *Map) *api.Map {
	t.Helper()
	var doc api.Map
	if err := json.Unmarshal(m.latest().body, &doc); err != nil {
		t.Fatal(err)
	}
	return &doc
}

// TestObserve: what a sweep did is in the map, and a failed one takes nothing away.
func TestObserve(t *testing.T) {
	m := &Map{}
	s := busyNode(noon)
	p := s.pass()
	p.Stops = []line.Stop{{Store: dataDir + "/podnet", Since: s.au.Case.Now, Why: "10.22.0.9 is alive again", ReleaseIDs: []string{"r1"}}}
	p.Busy = map[string]string{dataDir + "/six": "another reaper"}
	var leaked, missing *verdict.Finding
	for i := range s.au.Judgement.Findings {
		switch f := &s.au.Judgement.Findings[i]; {
		case f.Resource.Addr == addr("10.22.0.131"):
			leaked = f
		case f.Verdict == verdict.Missing:
			missing = f
		}
	}
	m.Observe(context.Background(), p)
	before := drawnMap(t, m)
	p.Results = []*sweep.Result{{Released: []sweep.Released{{Finding: leaked}}}}
	p.Adopted = []sweep.Adopted{{ID: "a1", Finding: missing, Outcome: "adopted"}}
	m.Observe(context.Background(), p)
	after := drawnMap(t, m)
	net := func(d *api.Map, name string) api.MapNetwork {
		for _, n := range d.Networks {
			if n.Name == name {
				return n
			}
		}
		t.Fatalf("no network %s", name)
		return api.MapNetwork{}
	}
	if d := cmp.Diff([]string{"10.22.0.79", "10.22.0.130-10.22.0.134"}, net(before, "podnet").Addresses["Leaked"]); d != "" {
		t.Errorf("leaked before (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"10.22.0.79", "10.22.0.130", "10.22.0.132-10.22.0.134"}, net(after, "podnet").Addresses["Leaked"]); d != "" {
		t.Errorf("leaked after (-want +got):\n%s", d)
	}
	b, a := net(before, "podnet"), net(after, "podnet")
	// One went, and one that was not reserved is now.
	if a.Reserved != b.Reserved || a.Free != b.Free || a.Verdicts["Leaked"] != b.Verdicts["Leaked"]-1 || a.Verdicts["Missing"] != 0 || after.Released != 1 {
		t.Errorf("before %+v\nafter %+v", b.Verdicts, a.Verdicts)
	}
	if b.Outside != 1 || net(before, "oldnet").Outside != 0 || net(before, "six").Busy == "" || len(before.Stops) != 1 || before.Stops[0].Network != "podnet" {
		t.Errorf("%d outside, stops %+v", b.Outside, before.Stops)
	}
	if before.Worst[0].Verdict != "Conflict" || before.More != 0 || before.Worst[2].Blame != "portmap" {
		t.Errorf("worst first: %+v", before.Worst[:3])
	}

	// A sweep that could not look.
	m.Observe(context.Background(), &agent.Pass{Node: "node-1", Started: claim.Instant{Wall: noon.Add(time.Minute)}, Err: errors.New("EIO\x1b[2J")})
	failed := drawnMap(t, m)
	if failed.Failed != `EIO\x1b[2J` || !failed.FailedAt.Equal(noon.Add(time.Minute)) || failed.Sequence != 3 {
		t.Errorf("%q at %v, number %d", failed.Failed, failed.FailedAt, failed.Sequence)
	}
	failed.Failed, failed.FailedAt, failed.Sequence = "", nil, after.Sequence
	if d := cmp.Diff(after, failed); d != "" {
		t.Errorf("what was seen before is gone (-want +got):\n%s", d)
	}
	m.Observe(context.Background(), p)
	if d := drawnMap(t, m); d.Failed != "" {
		t.Errorf("still failed: %q", d.Failed)
	}

	// The very first one fails.
	m = &Map{}
	m.Observe(context.Background(), &agent.Pass{Node: "node-1", Started: claim.Instant{Wall: noon}, Err: errors.New("EIO")})
	if d := drawnMap(t, m); d.Failed != "EIO" || d.Vantage.Proven || len(d.Networks) != 0 {
		t.Errorf("%+v", d)
	}
}

// TestLooks: at most one look at a time and one a second, whoever asks, and nothing kept.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		l := looks{most: 10 * time.Second, fresh: func(context.Context) (*sweep.Audit, error) {
			mu.Lock()
			n++
			mu.Unlock()
			time.Sleep(300 * time.Millisecond)
			return &sweep.Audit{}, nil
		}}
		var all sync.WaitGroup
		got := make([]*sweep.Audit, 50)
		for i := range got {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				got[i], _ = l.get(t.Context())
			})
		}
		// Who goes away ends nothing.
		gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.get(gone); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		all.Wait()
		for i, a := range got {
			if a == nil || a != got[0] {
				t.Fatalf("asker %d got another look", i)
			}
		}
		if n != 1 {
			t.Errorf("%d looks for 50 askers in half a second", n)
		}
		time.Sleep(between + 400*time.Millisecond)
		l.mu.Lock()
		kept := l.now
		l.mu.Unlock()
		if kept != nil {
			t.Error("the look is kept")
		}
		if a, _ := l.get(t.Context()); a == got[0] || n != 2 {
			t.Errorf("%d looks, the same again: %v", n, a == got[0])
		}
		time.Sleep(2 * between)
	})
}

func TestSlowLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, src := served(t, func(c *Config) { c.LookTime = 2 * time.Second })
		src.look = func(ctx context.Context) (*sweep.Audit, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start := time.Now()
		res := ask(h, "GET", "/api/v1alpha1/explain?address=10.22.0.5", nil)
		if took := time.Since(start); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || took != 2*time.Second {
			t.Errorf("code %d after %s", res.StatusCode, took)
		}
		time.Sleep(2 * between)
	})
}

// TestFewAudits: whole documents are written to few at once, and the others know.
func TestFewAudits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, src := served(t, nil)
		src.look = func(context.Context) (*sweep.Audit, error) {
			time.Sleep(time.Second)
			return busyNode(noon).au, nil
		}
		codes := map[int]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				res := ask(h, "GET", "/api/v1alpha1/audit", nil)
				mu.Lock()
				codes[res.StatusCode]++
				mu.Unlock()
			})
		}
		all.Wait()
		if d := cmp.Diff(map[int]int{200: maxAudits, 503: 5 - maxAudits}, codes); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		time.Sleep(2 * between)
		if res := ask(h, "GET", "/api/v1alpha1/audit", nil); res.StatusCode != 200 {
			t.Errorf("code %d when nobody else asks", res.StatusCode)
		}
		time.Sleep(2 * between)
	})
}
