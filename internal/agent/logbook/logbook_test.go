package logbook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/logbook"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

// book is a logbook that writes JSON without the time of writing.
func book(level slog.Level) (*logbook.Logbook, *bytes.Buffer) {
	var buf bytes.Buffer
	h := slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return logbook.New(slog.New(h)), &buf
}

// messages are the levels and messages of a log.
func messages(t *testing.T, buf *bytes.Buffer) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(buf.String()) {
		var l struct{ Level, Msg, Witness string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		out = append(out, strings.TrimSpace(l.Level+" "+l.Msg+" "+l.Witness))
	}
	buf.Reset()
	return out
}

// A pass in which everything happened, on a node with hostile names.
func TestFullPass(t *testing.T) {
	l, buf := book(slog.LevelDebug)
	l.Observe(t.Context(), passes.Full())
	golden := filepath.Join("testdata", "full.jsonl")
	if *update {
		if err := os.WriteFile(golden, buf.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(buf.String(), "\n")); diff != "" {
		t.Errorf("-want +got (-update writes it):\n%s", diff)
	}
	if !utf8.Valid(buf.Bytes()) {
		t.Error("the log is no UTF-8")
	}
	for line := range strings.Lines(buf.String()) {
		var v any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Errorf("%v: %q", err, line)
		}
		harmless(t, v)
	}
}

// harmless checks that every text of a line can be shown on a terminal as it is.
func harmless(t *testing.T, v any) {
	t.Helper()
	switch v := v.(type) {
	case string:
		for _, r := range v {
			if !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) {
				t.Errorf("%U in %q", r, v)
			}
		}
	case []any:
		for _, e := range v {
			harmless(t, e)
		}
	case map[string]any:
		for k, e := range v {
			harmless(t, k)
			harmless(t, e)
		}
	}
}

// Minute after minute nothing is written where nothing happens, except for who debugs.
func TestQuiet(t *testing.T) {
	l, buf := book(slog.LevelInfo)
	debug, all := book(slog.LevelDebug)
	for i := range 5 {
		p := passes.Of(passes.At(time.Duration(i)*time.Minute), nil)
		l.Observe(t.Context(), p)
		debug.Observe(t.Context(), p)
	}
	first := []string{"INFO a witness speaks boot", "INFO a witness speaks cri", "INFO a witness speaks kernel", "INFO a witness speaks process", "INFO swept"}
	if diff := cmp.Diff(first, messages(t, buf)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(append(first, "DEBUG swept", "DEBUG swept", "DEBUG swept", "DEBUG swept"), messages(t, all)); diff != "" {
		t.Error(diff)
	}
}

// What changes is told once, with the reason.
func TestChanges(t *testing.T) {
	s := passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.10")
	l, buf := book(slog.LevelInfo)
	observe := func(change func(*agent.Pass)) []string {
		p := passes.Of(passes.At(0), []claim.Store{s}, passes.Finding(s, "10.1.0.1", verdict.Leaked), passes.Finding(s, "10.1.0.2", verdict.Missing))
		change(p)
		l.Observe(t.Context(), p)
		return messages(t, buf)
	}
	nothing := func(*agent.Pass) {}
	deaf := func(p *agent.Pass) { passes.Silence(p, claim.WitnessCRI, "no listener") }
	// The API server is asked when it is needed.
	kube := func(s claim.State) func(p *agent.Pass) {
		return func(p *agent.Pass) {
			p.Audit.Case.Testimonies = append(p.Audit.Case.Testimonies, claim.Testimony{Witness: claim.WitnessKube, State: s})
		}
	}
	blind := func(p *agent.Pass) { p.Audit.Judgement.Vantage = "hidepid" }
	full := func(p *agent.Pass) { p.Unwritable = errors.New("ENOSPC") }
	busy := func(p *agent.Pass) { p.Busy = map[string]string{s.Dir: "process 17"} }
	stop := func(p *agent.Pass) { p.Stops = []line.Stop{{Store: s.Dir, Why: "held twice"}} }
	again := func(p *agent.Pass) { stop(p); p.Stopped = p.Stops }
	withheld := func(why string) func(p *agent.Pass) {
		return func(p *agent.Pass) {
			f := sweep.Failure{Finding: &p.Audit.Judgement.Findings[0], Outcome: "withheld", Err: errors.New(why)}
			p.Results = []*sweep.Result{{Failed: []sweep.Failure{f, f}}}
		}
	}
	adopted := func(a sweep.Adopted) func(p *agent.Pass) {
		return func(p *agent.Pass) {
			a.Finding = &p.Audit.Judgement.Findings[1]
			p.Adopted = []sweep.Adopted{a}
		}
	}
	page, err := os.ReadFile("../../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	observe(nothing)
	for i, c := range []struct {
		change func(*agent.Pass)
		want   []string
	}{
		{nothing, nil},
		{kube(claim.StateComplete), []string{"INFO a witness speaks kube"}}, {nothing, nil}, {kube(claim.StateComplete), nil},
		{kube(claim.StateSilent), []string{"WARN a witness is silent kube"}}, {nothing, nil}, {kube(claim.StateSilent), nil}, {kube(claim.StateComplete), []string{"INFO a witness speaks again kube"}},
		{deaf, []string{"WARN a witness is silent cri"}}, {deaf, nil}, {nothing, []string{"INFO a witness speaks again cri"}}, {nothing, nil},
		{blind, []string{"WARN the node is not seen whole, so nothing is released"}}, {blind, nil}, {nothing, []string{"INFO the node is seen whole again"}},
		{full, []string{"WARN the journal cannot be written, so nothing is released"}}, {full, nil}, {nothing, []string{"INFO the journal can be written again"}},
		{busy, []string{"WARN another reaper is at work"}}, {busy, nil}, {nothing, []string{"INFO this is the reaper now"}},
		{again, []string{"ERROR releases are stopped", "INFO swept"}}, {stop, nil}, {again, []string{"ERROR releases are stopped", "INFO swept"}},
		{nothing, []string{"INFO releases go on"}}, {stop, []string{"ERROR releases are stopped"}}, {nothing, []string{"INFO releases go on"}},
		{withheld("full"), []string{"WARN withheld"}}, {withheld("full"), nil}, {withheld("busy"), []string{"WARN withheld"}}, {nothing, nil}, {withheld("busy"), []string{"WARN withheld"}},
		{adopted(sweep.Adopted{ID: "1", Outcome: "adopted"}), []string{"INFO adopted", "INFO swept"}},
		{adopted(sweep.Adopted{ID: "1", Outcome: "taken"}), []string{"WARN not adopted"}},
		{adopted(sweep.Adopted{Outcome: "withheld", Err: errors.New("stopped")}), []string{"WARN withheld"}},
		{adopted(sweep.Adopted{Outcome: "withheld", Err: errors.New("stopped")}), nil},
		{func(p *agent.Pass) { p.Audit, p.Err = nil, errors.New("cut short") }, []string{"ERROR the sweep failed"}},
		{func(p *agent.Pass) { passes.Release(p, 0, cause.Cause{Kind: cause.NoDel}) }, []string{"INFO released", "INFO swept"}},
	} {
		if diff := cmp.Diff(c.want, observe(c.change)); diff != "" {
			t.Errorf("step %d:\n%s", i, diff)
		}
		for _, m := range c.want {
			_, msg, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(m, " "+claim.WitnessCRI), " "+claim.WitnessKube), " ")
			if !strings.Contains(string(page), "`"+msg+"`") {
				t.Errorf("docs/monitoring.md does not list %q", msg)
			}
		}
	}
}
