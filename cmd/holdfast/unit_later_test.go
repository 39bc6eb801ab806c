package main

import (
	"net/netip"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// -o yaml must be as tame as -o json: the YAML encoder takes bidi marks for printable.
func TestLaterYAMLIsTame(t *testing.T) {
	tame(t, emitted(t, "yaml", map[string]any{"a": "b\u202ec\u2066d\u200be\ufefff"}))
}

// A rune beyond the basic plane that must be escaped becomes a pair of surrogates in JSON,
// which the YAML reader refuses: one hostile file ends -o yaml, that of a gc which has
// released already too.
func TestLaterYAMLOfHostileContent(t *testing.T) {
	tame(t, emitted(t, "yaml", map[string]any{"a": "\U000e0041"}))
}

// "/" names no Pod, and must not mean every resource without one.
func TestLaterMatchNoPod(t *testing.T) {
	if got, err := report.Match(judged(), "/"); err != nil || len(got) != 0 {
		t.Errorf("%d found, %v", len(got), err)
	}
}

// What was releasable and no longer is when the witnesses were asked again (a runtime that
// fell silent) is something that should go and was withheld: said so, and exit 4.
func TestLaterReprievedIsWithheld(t *testing.T) {
	f := &verdict.Finding{
		Resource: &claim.Resource{Kind: claim.KindReservation, Store: "/d/pods", Network: "pods", Path: "/d/pods/10.1.0.2", Addr: netip.MustParseAddr("10.1.0.2")},
		Verdict:  verdict.Leaked, Releasable: true,
	}
	au := &sweep.Audit{Judgement: &verdict.Judgement{Findings: []verdict.Finding{*f}}}
	r := &sweepRun{
		a: &app{opts: &options{}}, n: &node{o: &options{}}, audit: au, plan: &plan.Plan{},
		results: []*sweep.Result{{Sweep: "20261130-062137-1a2b3c", Reprieved: []sweep.Reprieve{{Finding: f}}}},
	}
	doc := r.document()
	if len(doc.Kept) != 1 || doc.Kept[0].Withheld == "" {
		t.Errorf("kept: %+v", doc.Kept)
	}
	if r.withheld(doc) == "" {
		t.Error("gc exits 0")
	}
}
