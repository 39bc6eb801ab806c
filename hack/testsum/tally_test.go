package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// feed runs the lines through one run and returns what was printed.
func feed(t *tally, level string, ok bool, lines ...string) string {
	r := t.newRun(level)
	var out strings.Builder
	for _, l := range lines {
		out.WriteString(r.line([]byte(l)))
	}
	out.WriteString(r.finish(ok))
	return out.String()
}

func ev(action, test, output string) string {
	b := `{"Action":"` + action + `","Package":"m/a"`
	if test != "" {
		b += `,"Test":"` + test + `"`
	}
	if output != "" {
		b += `,"Output":"` + output + `\n"`
	}
	return b + "}"
}

func TestCounts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ok    bool
		lines []string
		want  count
		fails []string
	}{
		{"one passes", true, []string{ev("run", "TestA", ""), ev("pass", "TestA", ""), ev("pass", "", "")}, count{passed: 1}, nil},
		{"one fails", false, []string{ev("run", "TestA", ""), ev("fail", "TestA", ""), ev("fail", "", "")}, count{failed: 1}, []string{"a.TestA"}},
		{"subtests count, their parent does not", true, []string{
			ev("run", "TestA", ""), ev("run", "TestA/x", ""), ev("run", "TestA/y", ""),
			ev("pass", "TestA/x", ""), ev("pass", "TestA/y", ""), ev("pass", "TestA", ""), ev("pass", "", "")}, count{passed: 2}, nil},
		{"a name with a slash is no test around it", true, []string{
			ev("run", "TestA", ""), ev("run", "TestA/x/y", ""), ev("run", "TestA/x/z", ""),
			ev("pass", "TestA/x/y", ""), ev("pass", "TestA/x/z", ""), ev("pass", "TestA", ""), ev("pass", "", "")}, count{passed: 2}, nil},
		{"and none that can fail", false, []string{
			ev("run", "TestA", ""), ev("run", "TestA/x/y", ""), ev("fail", "TestA/x/y", ""), ev("fail", "TestA", ""), ev("fail", "", "")}, count{failed: 1}, []string{"a.TestA/x/y"}},
		{"a failing subtest is one failure", false, []string{
			ev("run", "TestA", ""), ev("run", "TestA/x", ""), ev("run", "TestA/y", ""),
			ev("fail", "TestA/x", ""), ev("pass", "TestA/y", ""), ev("fail", "TestA", ""), ev("fail", "", "")}, count{1, 1, 0}, []string{"a.TestA/x"}},
		{"a parent that fails by itself counts", false, []string{
			ev("run", "TestA", ""), ev("run", "TestA/x", ""), ev("pass", "TestA/x", ""), ev("fail", "TestA", ""), ev("fail", "", "")}, count{1, 1, 0}, []string{"a.TestA"}},
		{"a test that died with its process fails", false, []string{
			ev("run", "TestA", ""), ev("pass", "TestA", ""), ev("run", "TestB", ""), ev("output", "TestB", "panic: x"), ev("fail", "", "")}, count{1, 1, 0}, []string{"a.TestB"}},
		{"a package that never ended fails", false, []string{ev("run", "TestA", "")}, count{failed: 1}, []string{"a.TestA"}},
		{"a build that fails is one failure", false, []string{
			`{"ImportPath":"m/a [m/a.test]","Action":"build-output","Output":"a.go:1: broken\n"}`,
			`{"ImportPath":"m/a [m/a.test]","Action":"build-fail"}`,
			`{"Action":"fail","Package":"m/a","FailedBuild":"m/a [m/a.test]"}`}, count{failed: 1}, []string{"a"}},
		{"a package without tests is nothing", true, []string{ev("output", "", "?   m/a [no test files]"), ev("skip", "", "")}, count{}, nil},
		{"go test that fails for no test's sake fails", false, nil, count{failed: 1}, []string{"go test"}},
		{"no event at all is nothing", true, nil, count{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tl := newTally("m")
			out := feed(tl, "", tc.ok, tc.lines...)
			if got := tl.total(); got != tc.want {
				t.Errorf("got %s, want %s\n%s", got, tc.want, out)
			}
			if d := cmp.Diff(tc.fails, tl.failed); d != "" {
				t.Errorf("failed (-want +got):\n%s", d)
			}
			wantExit := 0
			if tc.want.failed > 0 || tc.want.passed == 0 {
				wantExit = 1
			}
			if got := tl.exit(); got != wantExit {
				t.Errorf("exit %d, want %d", got, wantExit)
			}
			last := tl.summary()
			if !strings.HasSuffix(last, "\n"+tc.want.String()+"\n") {
				t.Errorf("last line is not the count:\n%s", last)
			}
		})
	}
}

func TestFailureIsPrintedWholeAndSuccessIsNot(t *testing.T) {
	tl := newTally("m")
	out := feed(tl, "", false,
		ev("run", "TestA", ""), ev("output", "TestA", "quiet"), ev("pass", "TestA", ""),
		ev("run", "TestB", ""), ev("output", "TestB", "first"), ev("output", "TestB", "second"), ev("fail", "TestB", ""),
		ev("output", "", "FAIL m/a"), ev("fail", "", ""))
	if strings.Contains(out, "quiet") || !strings.Contains(out, "first\nsecond\n") {
		t.Errorf("got:\n%s", out)
	}
}

// Skips that -short asked for are counted; every other one is named.
func TestSummaryNamesSkips(t *testing.T) {
	tl := newTally("m")
	tl.skips = []skip{{"a.TestA", "needs netns: not in a short run"}, {"a.TestB", "needs netns: not root"}, {"a.TestC", "needs root: not in a short run"}}
	want := "\nskipped:\n  a.TestB: needs netns: not root\n  2 tests: not in a short run; make test runs them\n\n"
	if got := tl.summary(); !strings.HasPrefix(got, want) {
		t.Errorf("got:\n%s\nwant at first:\n%s", got, want)
	}
}

func TestBuildOutputIsPrinted(t *testing.T) {
	tl := newTally("m")
	out := feed(tl, "", false,
		`{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1: broken\n"}`,
		`{"Action":"fail","Package":"m/a","FailedBuild":"m/a"}`)
	if !strings.Contains(out, "a.go:1: broken") {
		t.Errorf("got:\n%s", out)
	}
}

func TestSkipsSayWhy(t *testing.T) {
	tl := newTally("m")
	feed(tl, "", true,
		ev("run", "TestA", ""), ev("output", "TestA", "=== RUN   TestA"),
		ev("output", "TestA", "    need.go:47: holdfast-level: L1"),
		ev("output", "TestA", "    need.go:51: needs netns: not root (UID 1000)"),
		ev("output", "TestA", "--- SKIP: TestA (0.00s)"), ev("skip", "TestA", ""),
		ev("run", "TestB", ""), ev("skip", "TestB", ""), ev("pass", "", ""))
	want := []skip{{"a.TestA", "needs netns: not root (UID 1000)"}, {"a.TestB", "no reason given"}}
	if d := cmp.Diff(want, tl.skips, cmp.AllowUnexported(skip{})); d != "" {
		t.Errorf("skips (-want +got):\n%s", d)
	}
	if got := tl.total(); got != (count{skipped: 2}) || tl.exit() == 0 {
		t.Errorf("got %s, exit %d: nothing but skips is no success", got, tl.exit())
	}
}

func TestLevels(t *testing.T) {
	mark := "    need.go:1: holdfast-level: L1"
	for _, tc := range []struct {
		name, run, pkg, test string
		marked               []string
		want                 string
	}{
		{"plain", "", "m/internal/claim", "TestA", nil, levelUnit},
		{"marked", "", "m/internal/sys/proc", "TestA", []string{"TestA"}, levelKernel},
		{"marked around", "", "m/internal/sys/proc", "TestA/x", []string{"TestA"}, levelKernel},
		{"marked beside", "", "m/internal/sys/proc", "TestA/x", []string{"TestA/y", "TestAB"}, levelUnit},
		{"by place", "", "m/internal/testenv/netns", "TestA", nil, levelKernel},
		{"by place, real", "", "m/e2e", "TestA", nil, levelReal},
		{"the higher of place and mark", "", "m/e2e/podman", "TestA", []string{"TestA"}, levelReal},
		{"a name that only begins alike", "", "m/e2e2", "TestA", nil, levelUnit},
		{"fuzz", levelFuzz, "m/internal/claim", "FuzzA", nil, levelFuzz},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newTally("m").newRun(tc.run)
			p := &pkg{path: tc.pkg, tests: map[string]*test{}}
			p.event(event{Action: "run", Test: tc.test})
			for _, m := range tc.marked {
				p.event(event{Action: "output", Test: m, Output: mark})
			}
			if got := r.levelOf(p, tc.test); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestOutputIsBounded(t *testing.T) {
	p := &pkg{path: "m/a", tests: map[string]*test{}}
	line := strings.Repeat("x", 1000) + "\n"
	for range 5000 {
		p.event(event{Action: "output", Test: "TestA", Output: line})
	}
	p.event(event{Action: "output", Test: "TestA", Output: "the end\n"})
	got := p.tests["TestA"]
	if text := strings.Join(got.output, ""); len(text) > maxOutput+len(line) || !strings.HasSuffix(text, "the end\n") {
		t.Errorf("kept %d bytes", len(text))
	}
}

func TestFuzzNames(t *testing.T) {
	got, err := fuzzNames([]byte(`package x
import "testing"
func FuzzParse(f *testing.F) {}
func FuzzyHelper() {}
func FuzzWrong(t *testing.T) {}
func (r recv) FuzzMethod(f *testing.F) {}
func TestFuzz(t *testing.T) {}
`))
	if d := cmp.Diff([]string{"FuzzParse"}, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		left    time.Duration
		targets int
		want    time.Duration
	}{
		{45 * time.Second, 5, 3 * time.Second},
		{45 * time.Second, 30, 1500 * time.Millisecond},
		{0, 3, time.Second},
		{-time.Second, 3, time.Second},
	} {
		if got := share(3*time.Second, tc.left, tc.targets); got != tc.want {
			t.Errorf("share(3s, %s, %d) = %s, want %s", tc.left, tc.targets, got, tc.want)
		}
	}
}

func TestOnlyDeadline(t *testing.T) {
	const found = "Failing input written to testdata/fuzz/FuzzA/1\ncontext deadline exceeded\n"
	if !onlyDeadline("    context deadline exceeded\n") || onlyDeadline(found) || onlyDeadline("panic") {
		t.Error("a finding and a deadline are confused")
	}
}

func TestParseArgs(t *testing.T) {
	for _, tc := range []struct {
		args string
		want [][]string
		bad  bool
	}{
		{"", nil, false},
		{"-fuzz 1s", nil, false},
		{"-- ./... -- -p 1 ./e2e", [][]string{{"./..."}, {"-p", "1", "./e2e"}}, false},
		{"./...", nil, true},
		{"--", nil, true},
		{"-- -- ./...", nil, true},
		{"-check nonsense", nil, true},
	} {
		got, err := parseArgs(strings.Fields(tc.args), &bytes.Buffer{})
		if (err != nil) != tc.bad {
			t.Errorf("%q: error %v", tc.args, err)
		}
		if d := cmp.Diff(tc.want, got.runs); err == nil && d != "" {
			t.Errorf("%q (-want +got):\n%s", tc.args, d)
		}
	}
}

// TestRealGoTest runs the program over a module of its own, so that a change of
// test2json's events is seen here and not as a wrong count.
func TestRealGoTest(t *testing.T) {
	write := func(files map[string]string) string {
		dir := t.TempDir()
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	good := write(map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"a/a_test.go": `package a
import "testing"
func TestTwo(t *testing.T) { t.Run("x", func(*testing.T) {}); t.Run("y", func(t *testing.T) { t.Skip("too dark") }) }
func TestMark(t *testing.T) { t.Log("holdfast-level: L1") }
func FuzzF(f *testing.F) { f.Fuzz(func(*testing.T, []byte) {}) }
`,
		"none/none.go": "package none\n",
	})
	bad := write(map[string]string{
		"go.mod":        "module m\n\ngo 1.26\n",
		"a/a_test.go":   "package a\nimport \"testing\"\nfunc TestFails(t *testing.T) { t.Error(\"seen\") }\n",
		"b/b_test.go":   "package b\nimport \"testing\"\nfunc TestPanics(t *testing.T) { panic(\"boom\") }\n",
		"c/c_test.go":   "package c\nvar x int = \"\"\n",
		"ok/ok_test.go": "package ok\nimport \"testing\"\nfunc TestOK(t *testing.T) {}\n",
	})
	for _, tc := range []struct {
		name, dir string
		args      []string
		exit      int
		contains  []string
		last      string
	}{
		{"good", good, []string{"-check", "lint=true", "-fuzz", "1s", "--", "-count=1", "./..."}, 0,
			[]string{"check lint", "a.TestTwo/y: too dark", "L1   real kernel    1 passed", "fuzz fuzz targets   1 passed"}, "4 passed, 0 failed, 1 skipped"},
		{"good in two runs", good, []string{"--", "-run", "Mark", "./...", "--", "-run", "Two", "./..."}, 0, nil, "2 passed, 0 failed, 1 skipped"},
		{"a check fails", good, []string{"-check", "lint=echo dirty; false", "--", "./..."}, 1, []string{"dirty", "  check lint\n"}, "3 passed, 1 failed, 1 skipped"},
		{"nothing to run", good, []string{"--", "./none"}, 1, nil, "0 passed, 0 failed, 0 skipped"},
		{"no such package", good, []string{"--", "./nowhere"}, 1, nil, "0 passed, 1 failed, 0 skipped"},
		{"bad", bad, []string{"--", "./..."}, 1,
			[]string{"a_test.go:3: seen", "panic: boom", "c_test.go:2", "  a.TestFails\n", "  b.TestPanics\n", "  c\n"}, "1 passed, 3 failed, 0 skipped"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Chdir(tc.dir)
			var out bytes.Buffer
			if got := Main(context.Background(), tc.args, &out); got != tc.exit {
				t.Errorf("exit %d, want %d", got, tc.exit)
			}
			for _, c := range tc.contains {
				if !strings.Contains(out.String(), c) {
					t.Errorf("output lacks %q", c)
				}
			}
			if !strings.HasSuffix(out.String(), "\n"+tc.last+"\n") {
				t.Errorf("want last line %q", tc.last)
			}
			if t.Failed() {
				t.Logf("output:\n%s", out.String())
			}
		})
	}
}
