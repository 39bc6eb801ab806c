package metrics_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
)

const (
	monitoring = "../../../deploy/monitoring"
	runbooks   = "../../../docs/runbooks"
	page       = "../../../docs/monitoring.md"
)

// family is one metric as the registry has it.
type family struct {
	kind, help string
	labels     []string
	values     map[string][]string // by label
}

// families are all metrics of the registry, those of Go and of the process too.
func families(t *testing.T) map[string]*family {
	t.Helper()
	m := newMetrics()
	m.Observe(context.Background(), passes.Full())
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(m.Registry(), promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	out := map[string]*family{}
	var f *family
	label := regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)
	for line := range strings.Lines(rec.Body.String()) {
		line = strings.TrimSpace(line)
		switch fields := strings.SplitN(line, " ", 4); {
		case strings.HasPrefix(line, "# HELP "):
			f = &family{help: fields[3], values: map[string][]string{}}
			out[fields[2]] = f
		case strings.HasPrefix(line, "# TYPE "):
			f.kind = fields[3]
		default:
			for _, l := range label.FindAllStringSubmatch(line, -1) {
				if l[1] != "le" && l[1] != "quantile" && !slices.Contains(f.labels, l[1]) {
					f.labels = append(f.labels, l[1])
				}
				if !slices.Contains(f.values[l[1]], l[2]) {
					f.values[l[1]] = append(f.values[l[1]], l[2])
				}
			}
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d metrics", len(out))
	}
	return out
}

// target are the labels that scraping adds.
func target() []string { return []string{"job", "instance", "alertstate", "alertname"} }

// lookup finds a metric by the name in an expression.
func lookup(all map[string]*family, name string) (*family, bool) {
	if f := all[name]; f != nil {
		return f, f.kind != "histogram" // a histogram has series by suffix only
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if f := all[strings.TrimSuffix(name, suffix)]; f != nil && strings.HasSuffix(name, suffix) && f.kind == "histogram" {
			return f, true
		}
	}
	return nil, false
}

// checkExpr says what is wrong with a PromQL expression: a metric that is not there, a label
// that it does not have, a value that the label never has, what is left open. It is no parser.
func checkExpr(all map[string]*family, expr string) (wrong []string) {
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	words := strings.Fields("sum count max min avg topk bottomk by without on ignoring group_left group_right and or unless time rate increase " +
		"histogram_quantile min_over_time max_over_time absent bool offset")
	labels := map[string]bool{"le": true}
	for _, l := range target() {
		labels[l] = true
	}
	var open []rune
	var last *family // whose selector may follow
	list := ""       // the word whose list of labels may follow, or is open
	name, inList := "", false
	var grouped []string
	for s := expr; s != ""; {
		r := rune(s[0])
		switch {
		case unicode.IsLetter(r) || r == '_' || r == ':':
			n := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != ':' })
			if n < 0 {
				n = len(s)
			}
			name, s = s[:n], s[n:]
			switch {
			case len(open) > 0 && open[len(open)-1] == '{':
				m := regexp.MustCompile(`^\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*,?`).FindStringSubmatch(s)
				if m == nil {
					report("no matcher after the label %s", name)
					return wrong
				}
				s = s[len(m[0]):]
				if last == nil {
					continue
				}
				if !slices.Contains(last.labels, name) && !slices.Contains(target(), name) && name != "le" {
					report("the label %s, which the metric does not have", name)
				}
				if _, err := regexp.Compile(m[2]); err != nil {
					report("%v", err)
				}
				for v := range strings.SplitSeq(m[2], "|") {
					if known := last.values[name]; len(known) > 0 && !strings.ContainsAny(v, "$.*+") && !slices.Contains(known, v) {
						report("%s=%q, which it never is", name, v)
					}
				}
			case inList:
				grouped = append(grouped, name)
			case slices.Contains(words, name):
				list = ""
				if slices.Contains([]string{"by", "without", "on", "ignoring", "group_left", "group_right"}, name) {
					list = name
				}
				last = nil
			default:
				f, ok := lookup(all, name)
				if name == "up" || name == "ALERTS" {
					f, ok = nil, true
				}
				if !ok {
					report("the metric %s is not there", name)
				}
				last = f
				if f != nil {
					for _, l := range f.labels {
						labels[l] = true
					}
				}
			}
			continue
		case strings.ContainsRune("({[", r):
			open = append(open, r)
			inList = r == '(' && list != ""
			list = ""
		case strings.ContainsRune(")}]", r):
			want := map[rune]rune{')': '(', '}': '{', ']': '['}[r]
			if len(open) == 0 || open[len(open)-1] != want {
				report("%c without %c", r, want)
				return wrong
			}
			open = open[:len(open)-1]
			inList = false
		case unicode.IsDigit(r):
			// A number, or a duration with its unit.
			s = strings.TrimLeft(s, "0123456789.smhd")
			continue
		case r == '$':
			s = strings.TrimLeft(s[1:], "abcdefghijklmnopqrstuvwxyz_")
			continue
		case !strings.ContainsRune(" \t\n,+-*/%<>=!", r):
			report("%q is not understood", r)
			return wrong
		}
		s = s[1:]
	}
	if len(open) > 0 {
		report("%c is left open", open[len(open)-1])
	}
	for _, l := range grouped {
		if !labels[l] {
			report("grouped by %s, which no metric in it has", l)
		}
	}
	return wrong
}

// The check of expressions can fail.
func TestCheckExpr(t *testing.T) {
	all := families(t)
	for _, c := range []struct {
		expr  string
		wrong bool
	}{
		{`sum by (verdict) (holdfast_ipam_addresses{verdict=~"leaked|orphaned", job=~"$job"}) > 0`, false},
		{`histogram_quantile(0.9, sum by (le) (rate(holdfast_lock_hold_seconds_bucket[$__rate_interval])))`, false},
		{`time() - holdfast_sweep_last_success_timestamp_seconds > 600`, false},
		{`sum(holdfast_ipam_adresses)`, true},
		{`holdfast_ipam_addresses{verdict="leakd"}`, true},
		{`holdfast_ipam_addresses{verdict=~"leaked|dead"}`, true},
		{`holdfast_ipam_addresses{cause="no-del"}`, true},
		{`sum by (cause) (holdfast_ipam_addresses)`, true},
		{`rate(holdfast_lock_hold_seconds[5m])`, true},
		{`rate(holdfast_releases_total_bucket[5m])`, true},
		{`sum(holdfast_ipam_addresses`, true},
		{`sum(holdfast_ipam_addresses]`, true},
		{`holdfast_ipam_addresses{verdict=~"("}`, true},
		{`holdfast_ipam_addresses{verdict}`, true},
	} {
		if wrong := checkExpr(all, c.expr); (len(wrong) > 0) != c.wrong {
			t.Errorf("%s: %q", c.expr, wrong)
		}
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Every alert reads metrics that exist and has a page; every page has its alert.
func TestAlerts(t *testing.T) {
	all := families(t)
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	read(t, filepath.Join(monitoring, "rules.yaml"), &rules)
	var alerts []string
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if slices.Contains(alerts, r.Alert) {
				t.Errorf("%s twice", r.Alert)
			}
			alerts = append(alerts, r.Alert)
			for _, w := range checkExpr(all, r.Expr) {
				t.Errorf("%s: %s", r.Alert, w)
			}
			if s := r.Labels["severity"]; s != "warning" && s != "critical" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			for _, a := range []string{"summary", "description"} {
				if r.Annotations[a] == "" {
					t.Errorf("%s has no %s", r.Alert, a)
				}
			}
			if url := r.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/runbooks/"+r.Alert+".md") {
				t.Errorf("%s: runbook %q", r.Alert, url)
			}
		}
	}
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, p := range pages {
		name := strings.TrimSuffix(filepath.Base(p), ".md")
		have = append(have, name)
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, head := range []string{"# " + name + "\n", "## What it means\n", "## How to see it\n", "## What to do\n", "## What not to do\n"} {
			if !strings.Contains(string(b), head) {
				t.Errorf("%s lacks %q", p, head)
			}
		}
		for _, m := range regexp.MustCompile(`holdfast_[a-z_]+`).FindAllString(string(b), -1) {
			if _, ok := lookup(all, m); !ok {
				t.Errorf("%s names %s, which is not there", p, m)
			}
		}
		for _, m := range regexp.MustCompile(`\]\((Holdfast\w+)\.md\)`).FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(runbooks, m[1]+".md")); err != nil {
				t.Errorf("%s leads to %v", p, err)
			}
		}
	}
	slices.Sort(alerts)
	if diff := cmp.Diff(alerts, have); diff != "" {
		t.Errorf("alerts and their pages:\n%s", diff)
	}
}

// The alerts do what rules_test.yaml says, by Prometheus itself where it is installed.
func TestAlertsByPromtool(t *testing.T) {
	testenv.Need(t, testenv.Promtool)
	out, err := exec.Command("promtool", "test", "rules", filepath.Join(monitoring, "rules_test.yaml")).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Datasource               struct{ Type, UID string }
}

// The dashboard is one that Grafana draws: each panel has its own ID and place, asks the
// chosen data source, and reads metrics that exist.
func TestDashboard(t *testing.T) {
	all := families(t)
	b, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title    string
		SchemaVersion int
		Panels        []panel
		Templating    struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || len(d.Panels) < 20 {
		t.Errorf("%q %q, schema %d, %d panels", d.UID, d.Title, d.SchemaVersion, len(d.Panels))
	}
	variables := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`label_values\((.*), (\w+)\)`).FindStringSubmatch(v.Definition); m != nil {
			for _, w := range checkExpr(all, m[1]) {
				t.Errorf("variable %s: %s", v.Name, w)
			}
		} else if v.Type == "query" {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
		}
		variables = append(variables, v.Name)
	}
	used := map[string]bool{}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: ID %d again", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if o := cells[[2]int{x, y}]; o != "" || x >= 24 {
					t.Fatalf("%s lies on %q or outside", p.Title, o)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%+v lacks something", p)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] {
				t.Errorf("%s: query %s again", p.Title, q.RefID)
			}
			refs[q.RefID] = true
			for _, w := range checkExpr(all, q.Expr) {
				t.Errorf("%s: %s: %s", p.Title, q.Expr, w)
			}
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(variables, v[1]) {
					t.Errorf("%s: no variable %s", p.Title, v[1])
				}
				used[v[1]] = true
			}
		}
	}
	for _, v := range variables {
		if v != "datasource" && !used[v] {
			t.Errorf("nothing uses the variable %s", v)
		}
	}
}

// docs/monitoring.md lists every metric, as the registry describes it.
func TestPageListsEveryMetric(t *testing.T) {
	all := families(t)
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if f := all[name]; strings.HasPrefix(name, "holdfast_") {
			slices.Sort(f.labels)
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, f.kind, strings.Join(f.labels, ", "), f.help)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), "-update -->\n")
	_, after, ok2 := strings.Cut(rest, "<!-- end -->")
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	want := before + "-update -->\n" + b.String() + "<!-- end -->" + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("-want +got (-update writes it):\n%s", diff)
	}
}
