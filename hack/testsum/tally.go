package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// The levels, by what a test needs.
const (
	levelUnit   = "L0"   // nothing
	levelKernel = "L1"   // root, network namespaces, mounts
	levelReal   = "L3"   // real container runtimes
	levelFuzz   = "fuzz" // fuzz targets, when fuzzed and not only replayed
)

// levels in the order in which they are printed, with their names for people.
func levels() []struct{ name, text string } {
	return []struct{ name, text string }{
		{levelUnit, "unit"},
		{levelKernel, "real kernel"},
		{levelReal, "real runtimes"},
		{levelFuzz, "fuzz targets"},
	}
}

// maxOutput bounds what is kept of one test's output, in bytes. More than that is
// cut in the middle: the beginning says what was done, the end what went wrong.
const maxOutput = 1 << 20

// test is one test of one package while its run goes on.
type test struct {
	result string // "pass", "fail", "skip", or "" while it has not ended
	output []string
	size   int
	level  string // from a marker line, "" without one
	inner  bool   // it has subtests
	ran    bool   // false for "A/b" when only "A/b/c" ran: a name may hold slashes
}

// pkg is one package of one run.
type pkg struct {
	path    string
	tests   map[string]*test
	order   []string
	output  []string // outside of any test
	result  string
	seconds float64
	build   string // import path of the build that failed
}

// count is a number of tests by result.
type count struct{ passed, failed, skipped int }

func (c *count) add(o count) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
}

func (c count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// skip is one skipped test and the reason it gave.
type skip struct{ name, reason string }

// tally sums up every run. Not safe for concurrent use.
type tally struct {
	module string // prefix that is left out of printed package paths
	byLvl  map[string]*count
	skips  []skip
	failed []string // names, for the list at the end
}

func newTally(module string) *tally {
	return &tally{module: module, byLvl: map[string]*count{}}
}

func (t *tally) total() count {
	var c count
	for _, l := range t.byLvl {
		c.add(*l)
	}
	return c
}

func (t *tally) level(name string) *count {
	if t.byLvl[name] == nil {
		t.byLvl[name] = &count{}
	}
	return t.byLvl[name]
}

// fail counts a failure that belongs to no test: a check, a build, go test itself.
func (t *tally) fail(level, name string) {
	t.level(level).failed++
	t.failed = append(t.failed, name)
}

func (t *tally) short(path string) string {
	if path == t.module {
		return "."
	}
	return strings.TrimPrefix(path, t.module+"/")
}

// run collects the events of one go test.
type run struct {
	tally  *tally
	level  string // level of every test of this run, "" to decide by test
	pkgs   map[string]*pkg
	builds map[string][]string // output of builds, by import path
}

func (t *tally) newRun(level string) *run {
	return &run{tally: t, level: level, pkgs: map[string]*pkg{}, builds: map[string][]string{}}
}

// line takes one line of go test's standard output. It returns what to print: ""
// for most lines, the line of a package when it ended, the line itself when it is
// no event.
func (r *run) line(line []byte) string {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		return string(line) + "\n"
	}
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return ""
	case "build-fail":
		return ""
	}
	p := r.pkgs[e.Package]
	if p == nil {
		p = &pkg{path: e.Package, tests: map[string]*test{}}
		r.pkgs[e.Package] = p
	}
	if e.Test != "" {
		p.event(e)
		return ""
	}
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
	case "pass", "fail", "skip":
		p.result, p.seconds, p.build = e.Action, e.Elapsed, e.FailedBuild
		return r.end(p)
	}
	return ""
}

// finish ends packages that never said how they ended, and counts a failure of go
// test itself when it failed and nothing else explains it.
func (r *run) finish(ok bool) string {
	var out strings.Builder
	failed := false
	for _, path := range sortedKeys(r.pkgs) {
		p := r.pkgs[path]
		if p.result == "" {
			p.result = "fail"
			out.WriteString(r.end(p))
		}
		failed = failed || p.result == "fail"
	}
	if !ok && !failed {
		for _, path := range sortedKeys(r.builds) {
			out.WriteString(strings.Join(r.builds[path], ""))
		}
		r.tally.fail(cmp.Or(r.level, levelUnit), "go test")
	}
	return out.String()
}

func (p *pkg) get(name string) *test {
	t := p.tests[name]
	if t == nil {
		t = &test{}
		p.tests[name] = t
		p.order = append(p.order, name)
	}
	return t
}

var marker = regexp.MustCompile(`holdfast-level: (L[0-9])\b`)

func (p *pkg) event(e event) {
	t := p.get(e.Test)
	for parent := e.Test; ; {
		i := strings.LastIndexByte(parent, '/')
		if i < 0 {
			break
		}
		parent = parent[:i]
		p.get(parent).inner = true
	}
	t.ran = true
	switch e.Action {
	case "output":
		if m := marker.FindStringSubmatch(e.Output); m != nil {
			t.level = max(t.level, m[1])
		}
		t.output = append(t.output, e.Output)
		t.size += len(e.Output)
		if t.size > maxOutput {
			t.cut()
		}
	case "pass", "fail", "skip":
		t.result = e.Action
		if e.Action == "pass" {
			t.output, t.size = nil, 0
		}
	}
}

// cut drops the middle half of the lines.
func (t *test) cut() {
	n := len(t.output)
	t.output = slices.Concat(t.output[:n/4], []string{"... (output left out)\n"}, t.output[n-n/4:])
	t.size = 0
	for _, l := range t.output {
		t.size += len(l)
	}
}

// end counts a package that ended and returns what to print for it.
func (r *run) end(p *pkg) string {
	if p.result == "skip" && len(p.tests) == 0 {
		return "" // no test files
	}
	name := r.tally.short(p.path)
	var sum count
	var out strings.Builder
	for _, tn := range p.order {
		t := p.tests[tn]
		if !t.ran {
			continue
		}
		result := cmp.Or(t.result, "fail") // it died with its process
		if result == "fail" || t.result == "" {
			out.WriteString(strings.Join(t.output, ""))
		}
		// A test with subtests counts through them, unless it failed or skipped by
		// itself.
		if t.inner && (result == "pass" || p.below(tn, result)) {
			continue
		}
		lvl := r.tally.level(r.levelOf(p, tn))
		switch result {
		case "pass":
			lvl.passed++
			sum.passed++
		case "skip":
			lvl.skipped++
			sum.skipped++
			r.tally.skips = append(r.tally.skips, skip{name + "." + tn, reason(t.output)})
		default:
			lvl.failed++
			sum.failed++
			r.tally.failed = append(r.tally.failed, name+"."+tn)
		}
	}
	if p.result == "fail" && sum.failed == 0 {
		// A build error, a TestMain that exits, a data race outside of a test.
		sum.failed++
		r.tally.fail(r.levelOf(p, ""), name)
	}
	if p.result == "fail" {
		out.WriteString(strings.Join(r.builds[p.build], ""))
		out.WriteString(strings.Join(p.output, ""))
	}
	word := "ok  "
	if sum.failed > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(&out, "%s %-40s %7.2fs  %s\n", word, name, p.seconds, sum)
	return out.String()
}

// below reports whether a subtest of name ended with result.
func (p *pkg) below(name, result string) bool {
	for other, t := range p.tests {
		if t.ran && strings.HasPrefix(other, name+"/") && cmp.Or(t.result, "fail") == result {
			return true
		}
	}
	return false
}

var (
	realPkg   = regexp.MustCompile(`/(e2e|testenv/(cri|podman|containerd))(/|$)`)
	kernelPkg = regexp.MustCompile(`/testenv/(netns|mount)(/|$)`)
)

// levelOf sorts a test: the level of the whole run, else the highest marker line
// "holdfast-level: LN" that it, a test around it or a test in it printed, else by
// the package's place.
func (r *run) levelOf(p *pkg, name string) string {
	if r.level != "" {
		return r.level
	}
	level := levelUnit
	switch {
	case realPkg.MatchString(p.path):
		level = levelReal
	case kernelPkg.MatchString(p.path):
		level = levelKernel
	}
	for at := name; at != ""; {
		if t := p.tests[at]; t != nil {
			level = max(level, t.level)
		}
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			break
		}
		at = at[:i]
	}
	return level
}

var place = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason finds what a skipped test said.
func reason(output []string) string {
	var said []string
	for _, l := range output {
		text := strings.TrimSpace(l)
		if text == "" || strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") || marker.MatchString(text) {
			continue
		}
		said = append(said, place.ReplaceAllString(text, ""))
	}
	return cmp.Or(strings.Join(said, " "), "no reason given")
}

// notInShort ends the reason that internal/testenv gives in a run with -short. Such
// skips were asked for, and a hundred of their names would bury the one that was not.
const notInShort = "not in a short run"

// summary is the end of the output.
func (t *tally) summary() string {
	var b strings.Builder
	if len(t.skips) > 0 {
		b.WriteString("\nskipped:\n")
		short := 0
		for _, s := range t.skips {
			if strings.HasSuffix(s.reason, notInShort) {
				short++
				continue
			}
			fmt.Fprintf(&b, "  %s: %s\n", s.name, s.reason)
		}
		if short > 0 {
			fmt.Fprintf(&b, "  %d tests: %s; make test runs them\n", short, notInShort)
		}
	}
	if len(t.failed) > 0 {
		b.WriteString("\nfailed:\n")
		for _, f := range t.failed {
			fmt.Fprintf(&b, "  %s\n", f)
		}
	}
	b.WriteString("\n")
	for _, l := range levels() {
		if c := t.byLvl[l.name]; c != nil || l.name != levelFuzz {
			fmt.Fprintf(&b, "%-4s %-14s %s\n", l.name, l.text, *t.level(l.name))
		}
	}
	fmt.Fprintln(&b, t.total())
	return b.String()
}

// exit is the exit code: a run in which nothing passed has shown nothing.
func (t *tally) exit() int {
	if c := t.total(); c.failed > 0 || c.passed == 0 {
		return 1
	}
	return 0
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
