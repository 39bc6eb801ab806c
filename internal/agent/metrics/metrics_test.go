package metrics_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/agent/events"
	"github.com/holdfast-cni/holdfast/internal/agent/metrics"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

func newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{
		Version: "v1.2.3", Commit: "abc", Start: time.Unix(1_700_000_000, 0),
		Events: func() events.Stats { return events.Stats{Sent: 4, Aggregated: 9, Dropped: 2, Failed: 1} },
	})
}

// exposition is what Prometheus gets, without what is not ours.
func exposition(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(m.Registry(), promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("%d: %s", rec.Code, rec.Body)
	}
	var out strings.Builder
	for line := range strings.Lines(rec.Body.String()) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "holdfast_") {
			out.WriteString(line)
		}
	}
	return regexp.MustCompile(`go_version="[^"]*"`).ReplaceAllString(out.String(), `go_version="go"`)
}

// value finds one series.
func value(t *testing.T, m *metrics.Metrics, series string) string {
	t.Helper()
	for line := range strings.Lines(exposition(t, m)) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func TestExposition(t *testing.T) {
	m := newMetrics()
	m.Observe(context.Background(), &agent.Pass{Trigger: "unheard-of", Took: time.Second, Err: errors.New("no")})
	m.Observe(context.Background(), passes.Full())
	got := exposition(t, m)
	golden := filepath.Join("testdata", "exposition.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got (-update writes it):\n%s", diff)
	}
}

// The names and helps follow the conventions, also before the first pass.
func TestLint(t *testing.T) {
	m := newMetrics()
	for _, p := range []*agent.Pass{nil, passes.Full()} {
		if p != nil {
			m.Observe(context.Background(), p)
		}
		problems, err := testutil.GatherAndLint(m.Registry())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// A network that is gone takes its series with it; one that comes back begins anew.
func TestGoneNetworks(t *testing.T) {
	m := newMetrics()
	a, b := passes.Store(passes.DataDir, "a", "10.1.0.1", "10.1.0.10"), passes.Store(passes.DataDir, "b", "10.2.0.1", "10.2.0.10")
	both := func(now time.Duration) *agent.Pass {
		p := passes.Of(passes.At(now), []claim.Store{a, b}, passes.Finding(a, "10.1.0.1", verdict.Leaked), passes.Finding(b, "10.2.0.1", verdict.Leaked))
		passes.Release(p, 0, cause.Cause{Kind: cause.NoDel})
		passes.Release(p, 1, cause.Cause{Kind: cause.NoDel})
		return p
	}
	const series = `holdfast_releases_total{cause="no-del",data_dir="/var/lib/cni/networks",network="b"}`
	m.Observe(t.Context(), both(time.Minute))
	m.Observe(t.Context(), both(2*time.Minute))
	if v := value(t, m, series); v != "2" {
		t.Fatalf("released %s, want 2", v)
	}
	m.Observe(t.Context(), passes.Of(passes.At(3*time.Minute), []claim.Store{a}))
	if text := exposition(t, m); strings.Contains(text, `network="b"`) || !strings.Contains(text, `network="a"`) {
		t.Error("the series of a network that is gone are there, or those of another are not")
	}
	// A pass that did not look knows of no network, and takes none away.
	m.Observe(t.Context(), &agent.Pass{Trigger: agent.AtInterval, Err: errors.New("no")})
	if text := exposition(t, m); !strings.Contains(text, `network="a"`) {
		t.Error("a pass without a look took the networks away")
	}
	m.Observe(t.Context(), both(4*time.Minute))
	if v := value(t, m, series); v != "1" {
		t.Errorf("released %s since it is back, want 1", v)
	}
}

func TestSweepResults(t *testing.T) {
	m := newMetrics()
	s := passes.Store(passes.DataDir, "a", "10.1.0.1", "10.1.0.10")
	at := func(d time.Duration, change func(*agent.Pass)) {
		p := passes.Of(passes.At(d), []claim.Store{s})
		change(p)
		m.Observe(t.Context(), p)
	}
	success := func() string { return value(t, m, "holdfast_sweep_last_success_timestamp_seconds") }
	if success() != "0" {
		t.Errorf("succeeded at %s before the first sweep", success())
	}
	at(0, func(*agent.Pass) {})
	first := success()
	at(time.Minute, func(p *agent.Pass) { passes.Silence(p, claim.WitnessCRI, "deaf") })
	second := success()
	at(2*time.Minute, func(p *agent.Pass) { p.Audit.Judgement.Vantage = "a container" })
	third := success()
	at(3*time.Minute, func(p *agent.Pass) { p.Err = errors.New("cut short") })
	if first == "0" || first == second || second == third || success() != third {
		t.Errorf("last success: %s, %s, %s, then %s", first, second, third, success())
	}
	for result, want := range map[string]string{"complete": "1", "blind": "2", "failed": "1"} {
		if v := value(t, m, `holdfast_sweeps_total{result="`+result+`",trigger="interval"}`); v != want {
			t.Errorf("%s: %s, want %s", result, v, want)
		}
	}
	if v := value(t, m, `holdfast_witness_up{witness="cri"}`); v != "1" {
		t.Errorf("cri is up again: %s", v)
	}
}

func TestWitnessDown(t *testing.T) {
	m := newMetrics()
	p := passes.Of(passes.At(0), nil)
	passes.Silence(p, claim.WitnessCRI, "deaf")
	p.Audit.Case.Testimonies[2].CRI.Runtimes = []claim.Runtime{
		{Endpoint: "unix:///run/a.sock", Name: "containerd", State: claim.StateSilent}, {Endpoint: "unix:///run/b.sock", State: claim.StateNone},
		{Endpoint: "unix:///run/c.sock", Name: "cri-o", State: claim.StateComplete},
	}
	m.Observe(t.Context(), p)
	for series, want := range map[string]string{
		`holdfast_witness_up{witness="cri"}`: "0", `holdfast_witness_up{witness="kernel"}`: "1", `holdfast_witness_required{witness="cri"}`: "1",
		`holdfast_runtime_up{endpoint="unix:///run/a.sock",runtime="containerd"}`: "0",
		`holdfast_runtime_up{endpoint="unix:///run/b.sock",runtime=""}`:           "",
		`holdfast_runtime_up{endpoint="unix:///run/c.sock",runtime="cri-o"}`:      "1",
		`holdfast_vantage_proven`: "1",
	} {
		if v := value(t, m, series); v != want {
			t.Errorf("%s: %q, want %q", series, v, want)
		}
	}
}

// full is a node with so many networks and reservations.
func full(now time.Duration, networks, reservations int) *agent.Pass {
	var stores []claim.Store
	var list []verdict.Finding
	for i := range networks {
		s := passes.Store(passes.DataDir, fmt.Sprintf("net%04d", i), "10.0.0.1", "10.0.255.254")
		stores = append(stores, s)
		for j := range reservations / networks {
			list = append(list, passes.Finding(s, fmt.Sprintf("10.0.%d.%d", j/256, j%256), verdict.InUse))
		}
	}
	return passes.Of(passes.At(now), stores, list...)
}

// The number of series has a bound, whatever directories somebody makes.
func TestSeriesAreBounded(t *testing.T) {
	m := newMetrics()
	m.Observe(t.Context(), full(0, 1000, 1000))
	n := strings.Count(exposition(t, m), "\n")
	most := (digest.MaxNetworks+1)*45 + 500
	if n > most {
		t.Errorf("%d lines, more than %d", n, most)
	}
	if !strings.Contains(exposition(t, m), `network="(other)"`) {
		t.Error("the others are not there")
	}
}

// A full node costs the sweep little.
func TestCostOfAPass(t *testing.T) {
	for _, c := range []struct {
		networks, reservations int
		most                   time.Duration
		allocs                 float64
	}{
		{1, 65_536, 60 * time.Millisecond, 200},
		{1000, 65_536, 120 * time.Millisecond, 30_000},
	} {
		m := newMetrics()
		p := full(0, c.networks, c.reservations)
		best := time.Hour
		allocs := testing.AllocsPerRun(5, func() {
			start := time.Now()
			m.Observe(context.Background(), p)
			best = min(best, time.Since(start))
		})
		t.Logf("%d networks, %d reservations: %s, %.0f allocations", c.networks, c.reservations, best, allocs)
		if best > c.most || allocs > c.allocs {
			t.Errorf("%d networks: %s, at most %s; %.0f allocations, at most %.0f", c.networks, best, c.most, allocs, c.allocs)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	m := newMetrics()
	p := full(0, 1, 65_536)
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(context.Background(), p)
	}
}

// A release that was taken back counts in the network whose stop names it, or in the only one
// that was stopped.
func TestUndone(t *testing.T) {
	a, b := passes.Store(passes.DataDir, "a", "10.1.0.1", "10.1.0.10"), passes.Store(passes.DataDir, "b", "10.2.0.1", "10.2.0.10")
	stop := func(s claim.Store, ids ...string) line.Stop { return line.Stop{Store: s.Dir, ReleaseIDs: ids} }
	for _, c := range []struct {
		stopped []line.Stop
		network string
	}{
		{[]line.Stop{stop(a, "x"), stop(b, "id")}, "b"},
		{[]line.Stop{stop(a, "x")}, "a"},
		{[]line.Stop{stop(a, "x"), stop(b)}, "(other)"},
	} {
		m := newMetrics()
		p := passes.Of(passes.At(0), []claim.Store{a, b})
		p.Stopped, p.Stops, p.Undone = c.stopped, c.stopped, map[string]string{"id": "taken"}
		m.Observe(t.Context(), p)
		dir := passes.DataDir
		if c.network == "(other)" {
			dir = ""
		}
		if v := value(t, m, fmt.Sprintf(`holdfast_undone_total{data_dir=%q,network=%q,outcome="taken"}`, dir, c.network)); v != "1" {
			t.Errorf("%s: %q", c.network, v)
		}
		if v := value(t, m, fmt.Sprintf(`holdfast_ipam_line_stopped{data_dir=%q,network="a"}`, passes.DataDir)); v != "1" {
			t.Errorf("the line of a: %q", v)
		}
	}
	m := newMetrics()
	p := passes.Of(passes.At(0), []claim.Store{a, b})
	p.Stops = []line.Stop{line.All(passes.At(0), "EIO")}
	m.Observe(t.Context(), p)
	for _, n := range []string{"a", "b"} {
		if v := value(t, m, fmt.Sprintf(`holdfast_ipam_line_stopped{data_dir=%q,network=%q}`, passes.DataDir, n)); v != "1" {
			t.Errorf("everything is stopped, the line of %s: %q", n, v)
		}
	}
}
