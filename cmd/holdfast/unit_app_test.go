package main

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// evil drives a terminal, turns text around and hides it: C0, DEL, C1, bidi, zero width, a
// tag character beyond the basic plane, and bytes that are no UTF-8.
const evil = "a\x1b[2Jb\x00\t\r\nc\x7f\u009b31m\u202ed\u2066e\u200bf\ufeff\U000e0041g\u2028h<&>\"\\\xff"

// tame checks that nothing in text can drive a terminal.
func tame(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("no UTF-8: %q", text)
	}
	for _, r := range text {
		if r != '\n' && (!unicode.IsPrint(r) || unicode.Is(unicode.Cf, r)) {
			t.Errorf("%U stands raw in %q", r, text)
		}
	}
}

func TestMarshal(t *testing.T) {
	doc := map[string]any{evil: []string{evil, "Grüße 日本 🙂"}, "n": 1}
	b, err := marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	tame(t, string(b))
	for _, want := range []string{`\u001b[2J`, `\u007f`, `\u009b`, `\u202e`, `\u2066`, `\u200b`, `\ufeff`, `\udb40\udc41`, `\u2028`, `<&>`, "Grüße 日本 🙂"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s is not in %s", want, b)
		}
	}
	var back map[string]any
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	whole := strings.ToValidUTF8(evil, "\ufffd")
	if d := cmp.Diff(map[string]any{whole: []any{whole, "Grüße 日本 🙂"}, "n": 1.0}, back); d != "" {
		t.Errorf("round trip: %s", d)
	}
	if _, err := marshal(map[string]any{"f": func() {}}); err == nil {
		t.Error("a function has no JSON")
	}
}

func FuzzMarshal(f *testing.F) {
	f.Add(evil)
	f.Add("\U0010ffff\ue000")
	f.Fuzz(func(t *testing.T, s string) {
		b, err := marshal([]string{s})
		if err != nil {
			t.Fatal(err)
		}
		tame(t, string(b))
		var back []string
		// encoding/json writes one U+FFFD for each bad byte, as a range over the text does.
		if err := json.Unmarshal(b, &back); err != nil || back[0] != string([]rune(s)) {
			t.Errorf("%q came back as %q, %v", s, back, err)
		}
	})
}

// emitted writes doc as the command does and returns what came out.
func emitted(t *testing.T, format string, doc any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a := newApp(os.Stdin, f, f)
	a.opts.output = format
	if err := a.emit(doc, nil); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// YAML says the same as JSON.
func TestYAMLIsTheJSON(t *testing.T) {
	doc := map[string]any{"a": []string{"x", "10.1.0.2", "on", "1"}, "b": map[string]int{"n": 3}}
	b, err := yaml.YAMLToJSON([]byte(emitted(t, "yaml", doc)))
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := errors.Join(json.Unmarshal(b, &got), json.Unmarshal([]byte(emitted(t, "json", doc)), &want)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		in   string
		want time.Time
	}{
		{"2026-11-30T05:00:00Z", now.Add(-time.Hour)},
		{"2026-11-30T07:00:00+02:00", now.Add(-time.Hour)},
		{"15m", now.Add(-15 * time.Minute)},
		{"0s", now},
		{"1h30m", now.Add(-90 * time.Minute)},
	} {
		got, err := parseTime(tt.in, now)
		if err != nil || !got.Equal(tt.want) {
			t.Errorf("parseTime(%q) = %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{"", "yesterday", "-15m", "15", "2026-11-30", "2026-13-30T05:00:00Z", "15m ", evil} {
		var usage usageError
		if got, err := parseTime(in, now); !errors.As(err, &usage) {
			t.Errorf("parseTime(%q) = %v, %v; want a usage error", in, got, err)
		}
	}
}

// judged makes a judgement of one finding for each of the resources' owners.
func judged() *verdict.Judgement {
	j := &verdict.Judgement{}
	add := func(addr, id string, pod claim.Pod) {
		r := &claim.Resource{Kind: claim.KindReservation, Owner: claim.Owner{Shape: claim.ShapeContainer, ID: id}}
		if addr != "" {
			r.Addr = netip.MustParseAddr(addr)
		}
		j.Findings = append(j.Findings, verdict.Finding{Resource: r, Pod: pod})
	}
	web := claim.Pod{Namespace: "default", Name: "web-0"}
	add("10.1.0.2", "abcdef000001", web)
	add("fd00::2", "abcdef000001", web)
	add("10.1.0.3", "abcdef000002", claim.Pod{Namespace: "default", Name: "web"})
	add("10.1.0.4", "abcdef0000020", claim.Pod{Namespace: "other", Name: "web-0"})
	add("10.1.0.5", "", claim.Pod{})
	add("", "reserved-vip", claim.Pod{})
	return j
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		name, query string
		want        []string
		ambiguous   bool
	}{
		{name: "address", query: "10.1.0.2", want: []string{"10.1.0.2"}},
		{name: "mapped address", query: "::ffff:10.1.0.2", want: []string{"10.1.0.2"}},
		{name: "IPv6 in full", query: "FD00:0:0:0:0:0:0:2", want: []string{"fd00::2"}},
		{name: "IPv6 with zone", query: "fd00::2%eth0", want: []string{"fd00::2"}},
		{name: "no such address", query: "10.1.0.99"},
		{name: "address is no prefix", query: "10.1.0.0"},
		{name: "whole ID", query: "abcdef000001", want: []string{"10.1.0.2", "fd00::2"}},
		{name: "unique prefix", query: "abcdef0000020", want: []string{"10.1.0.4"}},
		{name: "exact wins over prefix", query: "abcdef000002", want: []string{"10.1.0.3"}},
		{name: "ambiguous", query: "abc", ambiguous: true},
		{name: "part in the middle", query: "def0000"},
		{name: "longer than the ID", query: "abcdef0000010"},
		{name: "pod", query: "default/web-0", want: []string{"10.1.0.2", "fd00::2"}},
		{name: "pod of another namespace", query: "other/web-0", want: []string{"10.1.0.4"}},
		{name: "pod name is whole", query: "default/web", want: []string{"10.1.0.3"}},
		{name: "no such pod", query: "default/web-1"},
		{name: "foreign owner", query: "reserved", want: []string{"invalid IP"}},
		{name: "hostile", query: evil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := report.Match(judged(), tt.query)
			if errors.Is(err, report.ErrAmbiguous) != tt.ambiguous || err != nil && !tt.ambiguous {
				t.Fatalf("err = %v", err)
			}
			var addrs []string
			for _, f := range got {
				addrs = append(addrs, f.Resource.Addr.String())
			}
			if d := cmp.Diff(tt.want, addrs); d != "" {
				t.Error(d)
			}
		})
	}
}

// A command line that cannot be meant exits 2, before anything is opened.
func TestUsageErrors(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	quiet(t)
	for _, args := range [][]string{
		{"frobnicate"}, {evil}, {"--frobnicate"}, {"audit", "--frobnicate"}, {"gc", "now"}, {"audit", "10.1.0.2"}, {"version", "x"},
		{"audit", "-o", "xml"}, {"version", "-o", ""}, {"hold", "-o", "xml"}, {"undo", "--last", "-o", "xml"}, {"journal", "-o", "xml"},
		{"gc", "--grace", "soon"}, {"gc", "--grace", "5"}, {"gc", "--grace", "-1s"}, {"audit", "--orphan-grace", "-1h"},
		{"audit", "--timeout", "0s"}, {"audit", "--timeout", "-1s"}, {"gc", "--max-releases", "-1"}, {"gc", "--max-releases", "many"},
		{"audit", "--witness", "oracle"}, {"audit", "--witness", evil},
		{"audit", "--cri-endpoint", "none", "--cri-endpoint", "unix:///run/x.sock"}, {"audit", "--cri-endpoint", "tcp://1.2.3.4:5"},
		{"audit", "--cri-endpoint", "unix://relative.sock"}, {"audit", "--cri-endpoint", ""},
		{"audit", "--state-dir", "relative"}, {"audit", "--run-dir", "relative"}, {"audit", "--proc", "proc"}, {"audit", "--state-dir", ""},
		{"audit", "--data-dir", "networks"}, {"audit", "--cni-conf-dir", "./net.d"}, {"audit", "--cni-cache-dir", "cache"}, {"audit", "--cni-bin-dir", "bin"},
		{"audit", "--exclude", "all"}, {"audit", "--exclude", "10.0.0.0/33"}, {"gc", "--exclude", evil},
		{"explain"}, {"explain", ""}, {"explain", "a", "b"},
		{"undo"}, {"undo", "--last", "20261130-062137-1a2b3c"}, {"undo", "--last", "--all-since", "5m"}, {"undo", "../../etc/passwd"},
		{"undo", "--all-since", "yesterday"}, {"undo", "--all-since", "-5m"}, {"journal", "../x"}, {"journal", "--since", "x"}, {"journal", "--limit", "-1"},
		{"hold", "10.1.0.2/24"}, {"hold", "printer"}, {"hold", "10.1.0.2", "--store", "pods"}, {"unhold"}, {"unhold", "printer"},
	} {
		if !strings.HasPrefix(strings.Join(args, " "), "audit --state-dir") {
			args = append(args, "--state-dir", state)
		}
		if len(args) > 0 && (args[0] == "audit" || args[0] == "gc") && !slices.Contains(args, "--cri-endpoint") {
			args = append(args, "--cri-endpoint", "none")
		}
		// Whatever gets through must not look at this machine's own stores.
		if args[0] == "audit" && !slices.Contains(args, "--data-dir") {
			args = append(args, "--data-dir", filepath.Join(t.TempDir(), "none"))
		}
		if code := run(args); code != exitUsage {
			t.Errorf("%q exits %d, want %d", args, code, exitUsage)
		}
	}
}

// quiet sends what a whole run of the command prints to a file, and checks that it is tame.
func quiet(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "printed")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	out, errs := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = f, f
	t.Cleanup(func() {
		os.Stdout, os.Stderr = out, errs
		f.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tame(t, string(b))
	})
}

// What is well-formed and finds nothing exits 0 or 1, and never 2.
func TestNoUsageError(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	quiet(t)
	for _, tt := range []struct {
		args []string
		want int
	}{
		{[]string{"version"}, exitOK}, {[]string{"version", "-o", "json"}, exitOK}, {[]string{"--help"}, exitOK}, {[]string{"gc", "--help"}, exitOK},
		{[]string{"journal"}, exitOK}, {[]string{"journal", "20261130-062137-1a2b3c"}, exitFailed}, {[]string{"hold"}, exitOK},
		{[]string{"hold", "::ffff:10.1.0.2", "--why", evil}, exitOK}, {[]string{"hold", "-o", "json"}, exitOK}, {[]string{"hold"}, exitOK},
		{[]string{"unhold", "10.1.0.2"}, exitOK}, {[]string{"unhold", "10.1.0.2"}, exitFailed},
		{[]string{"explain", "--from", "/nonexistent", "10.1.0.2"}, exitFailed},
	} {
		if code := run(append(tt.args, "--state-dir", state)); code != tt.want {
			t.Errorf("%q exits %d, want %d", tt.args, code, tt.want)
		}
	}
}

// --last and --all-since choose what can be undone, newest first.
func TestChooseUndo(t *testing.T) {
	at := func(m int) claim.Instant {
		return claim.Instant{Boot: "b", Wall: time.Date(2026, 1, 1, 0, m, 0, 0, time.UTC)}
	}
	addr := &journal.Release{Kind: claim.KindReservation, Addr: netip.MustParseAddr("10.1.0.2")}
	entries := []journal.Entry{
		{ID: "old-boot", State: journal.StateReleased, Intent: claim.Instant{Boot: "a"}, Release: addr},
		{ID: "first", State: journal.StateReleased, Intent: at(1), Release: addr},
		{ID: "undone", State: journal.StateUndone, Intent: at(2), Release: addr},
		{ID: "second", State: journal.StateReleased, Intent: at(3), Release: addr},
		{ID: "cache", State: journal.StateReleased, Intent: at(3), Release: &journal.Release{Kind: claim.KindCache}},
		{ID: "damaged", State: journal.StateReleased, Intent: at(4)},
		{ID: "failed", State: journal.StateFailed, Intent: at(4), Release: addr},
	}
	if got := chooseUndo(entries, "b", time.Time{}, true); !cmp.Equal(got, []string{"second"}) {
		t.Errorf("--last: %q", got)
	}
	if got := chooseUndo(entries, "b", at(3).Wall, false); !cmp.Equal(got, []string{"cache", "second"}) {
		t.Errorf("--all-since: %q", got)
	}
	if got := chooseUndo(entries, "b", time.Time{}, false); !cmp.Equal(got, []string{"cache", "second", "first"}) {
		t.Errorf("--all-since ever: %q", got)
	}
	for _, boot := range []string{"", "c"} {
		if got := chooseUndo(entries, boot, time.Time{}, true); len(got) != 0 {
			t.Errorf("boot %q: %q", boot, got)
		}
	}
}
