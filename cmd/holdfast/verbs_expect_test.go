package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

// document is what the last hf printed with -o json, whatever its kind.
type document struct {
	api.TypeMeta
	Vantage   api.Vantage         `json:"vantage"`
	Witnesses []api.Witness       `json:"witnesses"`
	Networks  []api.Network       `json:"networks"`
	Resources []api.ExplainedItem `json:"resources"`
	Released  []api.Release       `json:"released"`
	Kept      []api.Kept          `json:"kept"`
	Adopted   []api.Adopted       `json:"adopted"`
	Errors    []api.SweepError    `json:"errors"`
	Settled   []api.Settled       `json:"settled"`
	Summary   map[string]int      `json:"summary"`
	Sections  []api.Section       `json:"sections"`
	Undone    []api.Undone        `json:"undone"`
}

func lastDocument(ts *testscript.TestScript) *document {
	var d document
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &d); err != nil {
		ts.Fatalf("stdout is no JSON document: %v", err)
	}
	return &d
}

// resource finds the one resource that a script names: ADDR, NET/ADDR, cache:OWNER,
// netns:PATH.
func (w *world) resource(ts *testscript.TestScript, name string) api.Resource {
	var all []api.Resource
	d := lastDocument(ts)
	for _, r := range d.Resources {
		all = append(all, r.Resource)
	}
	for _, r := range d.Released {
		all = append(all, r.Resource)
	}
	for _, r := range d.Adopted {
		if r.Outcome != "withheld" && r.Outcome != "taken" && r.Outcome != "failed" { // else it is kept, too
			all = append(all, r.Resource)
		}
	}
	for _, r := range d.Kept {
		all = append(all, r.Resource)
	}
	all = slices.DeleteFunc(all, func(r api.Resource) bool { return !w.names(name, &r) })
	if len(all) != 1 {
		ts.Fatalf("%d resources are called %s", len(all), name)
	}
	return all[0]
}

func (w *world) names(name string, r *api.Resource) bool {
	if owner, ok := strings.CutPrefix(name, "cache:"); ok {
		return r.Kind == "cache" && r.ContainerID == w.id(owner)
	}
	if path, ok := strings.CutPrefix(name, "netns:"); ok {
		return r.Kind == "netns" && r.Path == path
	}
	if network, addr, ok := strings.Cut(name, "/"); ok {
		return r.Kind == "reservation" && r.Address == addr && r.Network == network
	}
	return r.Kind == "reservation" && r.Address == name
}

// expectVerdict NAME VERDICT [RULE]
func (w *world) expectVerdict(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "expect-verdict NAME VERDICT [RULE]")
	r := w.resource(ts, args[0])
	if r.Verdict != args[1] || len(args) == 3 && r.Rule != args[2] {
		ts.Fatalf("%s is %s by rule %s (%s), want %s", args[0], r.Verdict, r.Rule, r.Why, strings.Join(args[1:], " by rule "))
	}
}

// expectSaid NAME WITNESS WORD
func (w *world) expectSaid(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 3, "expect-said NAME WITNESS WORD")
	for _, s := range w.resource(ts, args[0]).Says {
		if s.Witness == args[1] {
			if s.Word != args[2] {
				ts.Fatalf("%s says %s of %s (%s), want %s", s.Witness, s.Word, args[0], s.Detail, args[2])
			}
			return
		}
	}
	ts.Fatalf("%s says nothing of %s", args[1], args[0])
}

// expectWitness NAME STATE [REGEXP]: the witness is in that state, and required.
func (w *world) expectWitness(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "expect-witness NAME STATE [REGEXP]")
	for _, x := range lastDocument(ts).Witnesses {
		if x.Name == args[0] {
			if x.State != args[1] || len(args) == 3 && !matches(ts, args[2], x.Detail) {
				ts.Fatalf("witness %s is %s: %s", x.Name, x.State, x.Detail)
			}
			return
		}
	}
	ts.Fatalf("no witness %s", args[0])
}

func matches(ts *testscript.TestScript, re, text string) bool {
	r, err := regexp.Compile(re)
	ts.Check(err)
	return r.MatchString(text)
}

// expectReleased [ADDR ...]: these addresses went and no other.
func (w *world) expectReleased(ts *testscript.TestScript, args []string) {
	got := []string{}
	for _, r := range lastDocument(ts).Released {
		if r.Kind == "reservation" {
			got = append(got, r.Address)
		}
	}
	want := slices.Clone(args)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		ts.Fatalf("released %v, want %v", got, want)
	}
}

// expectWithheld NAME REGEXP
func (w *world) expectWithheld(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "expect-withheld NAME REGEXP")
	for _, k := range lastDocument(ts).Kept {
		if w.names(args[0], &k.Resource) {
			if k.Withheld == "" || !matches(ts, args[1], k.Withheld) {
				ts.Fatalf("%s is %s, withheld %q", args[0], k.Verdict, k.Withheld)
			}
			return
		}
	}
	ts.Fatalf("%s was not kept", args[0])
}

// expectOutcome ADDR OUTCOME [REGEXP]: a release that was tried and did not end well.
func (w *world) expectOutcome(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "expect-outcome ADDR OUTCOME [REGEXP]")
	for _, e := range lastDocument(ts).Errors {
		if e.Address == args[0] {
			if e.Outcome != args[1] || len(args) == 3 && !matches(ts, args[2], e.Error) {
				ts.Fatalf("%s: %s: %s", e.Address, e.Outcome, e.Error)
			}
			return
		}
	}
	ts.Fatalf("no error about %s", args[0])
}

// expectAdopted [ADDR=OUTCOME ...]: these and no other.
func (w *world) expectAdopted(ts *testscript.TestScript, args []string) {
	got := []string{}
	for _, a := range lastDocument(ts).Adopted {
		got = append(got, a.Address+"="+a.Outcome)
		if (a.ReleaseID != "") != (a.Outcome == "adopted" || a.Outcome == "taken" || a.Outcome == "failed") {
			ts.Fatalf("%s, %s, has the ID %q", a.Address, a.Outcome, a.ReleaseID)
		}
	}
	slices.Sort(got)
	slices.Sort(args)
	if !slices.Equal(got, args) {
		ts.Fatalf("adopted %q, want %q", got, args)
	}
}

// expectSettled ADDR OUTCOME: what an earlier run left.
func (w *world) expectSettled(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "expect-settled ADDR OUTCOME")
	for _, s := range lastDocument(ts).Settled {
		if filepath.Base(s.Path) == args[0] {
			if s.Outcome != args[1] {
				ts.Fatalf("%s was settled as %s", args[0], s.Outcome)
			}
			return
		}
	}
	ts.Fatalf("%s was not settled", args[0])
}

// expectCount WHAT N: a verdict of the summary, or resources, released, kept, withheld,
// errors, settled.
func (w *world) expectCount(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "expect-count WHAT N")
	d := lastDocument(ts)
	got := d.Summary[args[0]]
	switch args[0] {
	case "resources":
		got = len(d.Resources)
	case "released":
		got = len(d.Released)
	case "kept":
		got = len(d.Kept)
	case "errors":
		got = len(d.Errors)
	case "settled":
		got = len(d.Settled)
	case "undone":
		got = len(d.Undone)
	case "withheld":
		for _, k := range d.Kept {
			if k.Withheld != "" {
				got++
			}
		}
	}
	if strconv.Itoa(got) != args[1] {
		ts.Fatalf("%d %s, want %s", got, args[0], args[1])
	}
}

// expectNetwork NET key=value ...
func (w *world) expectNetwork(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 12, "expect-network NET key=value ...")
	for _, n := range lastDocument(ts).Networks {
		if n.Name != args[0] {
			continue
		}
		raw, err := json.Marshal(n)
		ts.Check(err)
		var fields map[string]any
		ts.Check(json.Unmarshal(raw, &fields))
		for _, a := range args[1:] {
			k, v, _ := strings.Cut(a, "=")
			if got := fmt.Sprint(fields[k]); got != v {
				ts.Fatalf("network %s has %s=%s, want %s", n.Name, k, got, v)
			}
		}
		return
	}
	ts.Fatalf("no network %s", args[0])
}

// expectCheck SECTION NAME ok|bad [REGEXP], of doctor; NAME is a regexp.
func (w *world) expectCheck(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 4, "expect-check SECTION NAME ok|bad [REGEXP]")
	for _, s := range lastDocument(ts).Sections {
		for _, c := range s.Checks {
			if s.Name != args[0] || !matches(ts, args[1], c.Name) {
				continue
			}
			if c.OK != (args[2] == "ok") || len(args) == 4 && !matches(ts, args[3], c.Detail) {
				ts.Fatalf("%s: %s: ok=%t: %s", s.Name, c.Name, c.OK, c.Detail)
			}
			if !c.OK && c.Fix == "" {
				ts.Fatalf("%s: %s does not say what to do about it", s.Name, c.Name)
			}
			return
		}
	}
	ts.Fatalf("no check %s in %s", args[1], args[0])
}

// expectUndone ADDR OUTCOME
func (w *world) expectUndone(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "expect-undone ADDR OUTCOME")
	for _, u := range lastDocument(ts).Undone {
		if u.Address == args[0] {
			if u.Outcome != args[1] {
				ts.Fatalf("undo of %s: %s: %s", u.Address, u.Outcome, u.Error)
			}
			return
		}
	}
	ts.Fatalf("%s was not undone", args[0])
}

// releaseID ADDR VAR keeps the ID of a release or an adoption for later.
func (w *world) releaseID(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "release-id ADDR VAR")
	for _, r := range lastDocument(ts).Released {
		if r.Address == args[0] {
			ts.Setenv(args[1], r.ReleaseID)
			return
		}
	}
	for _, a := range lastDocument(ts).Adopted {
		if a.Address == args[0] && a.ReleaseID != "" {
			ts.Setenv(args[1], a.ReleaseID)
			return
		}
	}
	ts.Fatalf("%s was not released", args[0])
}

// ownerID OWNER VAR [N] keeps an owner's container ID, or its first N digits.
func (w *world) ownerID(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "owner-id OWNER VAR [N]")
	id := w.id(args[0])
	if len(args) == 3 {
		n, err := strconv.Atoi(args[2])
		ts.Check(err)
		id = id[:n]
	}
	ts.Setenv(args[1], id)
}
