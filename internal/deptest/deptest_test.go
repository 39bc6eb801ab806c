package deptest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestModule holds this very module to the rules.
func TestModule(t *testing.T) {
	found, err := Check(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

// TestModuleIsSeen makes sure that TestModule looks at something: an empty walk finds
// nothing either.
func TestModuleIsSeen(t *testing.T) {
	files, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range files {
		seen[f.name] = true
	}
	for _, want := range []string{"internal/claim/owner.go", "internal/deptest/rules.go", "internal/deptest/deptest_test.go"} {
		if !seen[want] {
			t.Errorf("%s was not read", want)
		}
	}
}

// module makes a module of the files, each with a package clause and imports where
// the text has none of its own.
func module(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{"go.mod": {Data: []byte("// a comment\nmodule m.example/m\n\ngo 1.26\n")}}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

// The table has pairs: what breaks a rule, and what is near it and does not.
func TestRules(t *testing.T) {
	const m = "m.example/m/"
	imp := func(pkg string, paths ...string) string {
		text := "package " + pkg + "\n"
		for _, p := range paths {
			text += "import _ \"" + p + "\"\n"
		}
		return text
	}
	for _, tc := range []struct {
		name, file, text string
		want             []string // "rule at file:line"
	}{
		// direction
		{"pure imports pure", "internal/verdict/a.go", imp("verdict", m+"internal/claim"), nil},
		{"pure imports a driver", "internal/verdict/a.go", imp("verdict", m+"internal/sys/proc"), []string{"direction at internal/verdict/a.go:2"}},
		{"pure imports the engine", "internal/plan/a.go", imp("plan", m+"internal/journal"), []string{"direction at internal/plan/a.go:2"}},
		{"a pure test imports a driver", "internal/verdict/a_test.go", imp("verdict", m+"internal/sys/proc"), nil},
		{"engine imports pure", "internal/sweep/a.go", imp("sweep", m+"internal/plan"), nil},
		{"engine imports a driver", "internal/sweep/a.go", imp("sweep", m+"internal/sys/cri"), []string{"direction at internal/sweep/a.go:2"}},
		{"sweep imports the journal", "internal/sweep/a.go", imp("sweep", m+"internal/journal"), nil},
		{"the journal imports sweep", "internal/journal/a.go", imp("journal", m+"internal/sweep"), []string{"direction at internal/journal/a.go:2"}},
		{"attach imports sweep", "internal/attach/a.go", imp("attach", m+"internal/sweep"), []string{"direction at internal/attach/a.go:2"}},
		{"driver imports pure", "internal/sys/cri/a.go", imp("cri", m+"internal/claim", "os", "net"), nil},
		{"driver imports itself below", "internal/sys/cri/a.go", imp("cri", m+"internal/sys/cri/parse"), nil},
		{"driver imports a driver", "internal/sys/cri/a.go", imp("cri", m+"internal/sys/proc"), []string{"direction at internal/sys/cri/a.go:2"}},
		{"driver imports a driver whose name begins alike", "internal/sys/cri/a.go", imp("cri", m+"internal/sys/cri2"), []string{"direction at internal/sys/cri/a.go:2"}},
		{"driver imports the engine", "internal/sys/boot/a.go", imp("boot", m+"internal/sweep"), []string{"direction at internal/sys/boot/a.go:2"}},
		{"driver imports cmd", "internal/sys/boot/a.go", imp("boot", m+"cmd/holdfast"), []string{"direction at internal/sys/boot/a.go:2"}},
		{"a tool imports cmd", "hack/x/a.go", imp("main", m+"cmd/holdfast/sub"), []string{"direction at hack/x/a.go:2"}},
		{"cmd imports everything", "cmd/holdfast/a.go", imp("main", m+"internal/sys/cri", m+"internal/sweep", m+"api"), nil},
		{"the product imports a tool", "cmd/holdfast/a.go", imp("main", m+"hack/testsum"), []string{"direction at cmd/holdfast/a.go:2"}},
		{"a benchmark imports a test room", "bench/a.go", imp("main", m+"internal/sys/cri/critest", m+"internal/sweep"), nil},
		{"a test room imports a tool", "internal/testenv/cri/a.go", imp("cri", m+"hack/testbin/prebuilt"), nil},
		{"api imports claim", "api/v1/a.go", imp("v1", m+"internal/claim"), nil},
		{"api imports verdict", "api/v1/a.go", imp("v1", m+"internal/verdict"), nil},
		{"api imports plan", "api/v1/a.go", imp("v1", m+"internal/plan"), []string{"direction at api/v1/a.go:2"}},

		// test rooms
		{"product imports testenv", "internal/sys/cri/a.go", imp("cri", m+"internal/testenv"), []string{"testroom at internal/sys/cri/a.go:2"}},
		{"a test imports testenv", "internal/sys/cri/a_test.go", imp("cri", m+"internal/testenv"), nil},
		{"a driver imports its own test room", "internal/sys/cri/a.go", imp("cri", m+"internal/sys/cri/critest"), []string{"testroom at internal/sys/cri/a.go:2"}},
		{"its test imports it", "internal/sys/cri/a_test.go", imp("cri", m+"internal/sys/cri/critest"), nil},
		{"a room imports a room", "internal/testenv/cri/a.go", imp("cri", m+"internal/testenv"), nil},
		{"cmd imports failpoint", "cmd/holdfast/a.go", imp("main", m+"internal/failpoint"), nil},
		{"cmd imports sim", "cmd/holdfast/a.go", imp("main", m+"internal/sim"), []string{"testroom at cmd/holdfast/a.go:2"}},
		{"the engine imports the base", "internal/sweep/a.go", imp("sweep", m+"internal/failpoint"), nil},
		{"a driver imports the base", "internal/sys/cri/a.go", imp("cri", m+"internal/failpoint"), nil},
		{"pure imports the base", "internal/plan/a.go", imp("plan", m+"internal/failpoint"), []string{"direction at internal/plan/a.go:2"}},
		{"the base imports the system", "internal/failpoint/a.go", imp("failpoint", "os", "golang.org/x/sys/unix"), nil},
		{"the base imports pure", "internal/failpoint/a.go", imp("failpoint", m+"internal/claim"), []string{"direction at internal/failpoint/a.go:2"}},

		// pure imports
		{"pure imports text and netip", "internal/claim/a.go", imp("claim", "strings", "net/netip", "time", "encoding/json"), nil},
		{"pure imports os", "internal/claim/a.go", imp("claim", "os"), []string{"pure imports at internal/claim/a.go:2"}},
		{"pure imports os/exec", "internal/claim/a.go", imp("claim", "os/exec"), []string{"pure imports at internal/claim/a.go:2"}},
		{"pure imports net", "internal/addr/a.go", imp("addr", "net"), []string{"pure imports at internal/addr/a.go:2"}},
		{"pure imports net/http", "internal/addr/a.go", imp("addr", "net/http"), []string{"pure imports at internal/addr/a.go:2"}},
		{"pure imports context", "internal/report/a.go", imp("report", "context"), []string{"pure imports at internal/report/a.go:2"}},
		{"pure imports slog", "internal/report/a.go", imp("report", "log/slog"), []string{"pure imports at internal/report/a.go:2"}},
		{"pure imports syscall", "internal/report/a.go", imp("report", "syscall"), []string{"pure imports at internal/report/a.go:2"}},
		{"pure imports rand", "internal/plan/a.go", imp("plan", "math/rand/v2"), []string{"pure imports at internal/plan/a.go:2"}},
		{"pure imports a foreign module", "internal/plan/a.go", imp("plan", "golang.org/x/sys/unix"), []string{"pure imports at internal/plan/a.go:2"}},
		{"a pure test imports os", "internal/plan/a_test.go", imp("plan", "os", "github.com/google/go-cmp/cmp"), nil},
		{"api imports os", "api/a.go", imp("api", "os"), []string{"pure imports at api/a.go:2"}},

		// kernel tests are watched
		{"a test mounts behind the gate", "internal/sys/cri/a_test.go", "package cri\nimport (\n\"golang.org/x/sys/unix\"\n\"m.example/m/internal/testenv\"\n)\nfunc TestA(t *T) { testenv.Need(t, testenv.Mount); unix.Mount() }\n", nil},
		{"a test mounts", "internal/sys/cri/a_test.go", "package cri\nimport \"golang.org/x/sys/unix\"\nfunc TestA(t *T) { unix.Mount() }\n", []string{"kernel tests are watched at internal/sys/cri/a_test.go:3"}},
		{"a test mounts by another function", "internal/sys/cri/a_test.go", "package cri\nimport \"golang.org/x/sys/unix\"\nfunc mount() { unix.Mount() }\nfunc TestA(t *T) { mount() }\nfunc TestB(t *T) {}\n", []string{"kernel tests are watched at internal/sys/cri/a_test.go:4"}},
		{"a test makes a namespace", "internal/sys/cri/a_test.go", "package cri\nimport \"m.example/m/internal/testenv/netns\"\nfunc BenchmarkA(b *B) { netns.New(b) }\n", []string{"kernel tests are watched at internal/sys/cri/a_test.go:3"}},
		{"the function calls the gate", "internal/sys/cri/a_test.go", "package cri\nimport (\n\"m.example/m/internal/testenv\"\n\"m.example/m/internal/testenv/netns\"\n)\nfunc pod(t *T) { testenv.Need(t, testenv.Netns); netns.New(t) }\nfunc TestA(t *T) { pod(t) }\n", nil},
		{"a child in a namespace of its own", "internal/sys/cri/a_test.go", "package cri\nimport \"syscall\"\nfunc TestA(t *T) { _ = &syscall.SysProcAttr{Cloneflags: 1} }\n", []string{"kernel tests are watched at internal/sys/cri/a_test.go:3"}},

		// pure calls
		{"pure uses a type of time", "internal/claim/a.go", "package claim\nimport \"time\"\nvar d = time.Second\nfunc f(t time.Time) time.Duration { return t.Sub(time.Unix(0, 0)) }\n", nil},
		{"pure reads the clock", "internal/claim/a.go", "package claim\nimport \"time\"\nfunc f() time.Time { return time.Now() }\n", []string{"pure calls at internal/claim/a.go:3"}},
		{"pure reads the clock by another name", "internal/claim/a.go", "package claim\nimport clock \"time\"\nfunc f(t clock.Time) clock.Duration { return clock.Since(t) }\n", []string{"pure calls at internal/claim/a.go:3"}},
		{"pure hands the clock on", "internal/claim/a.go", "package claim\nimport \"time\"\nfunc g(func() time.Time)\nfunc f() { g(time.Now) }\n", []string{"pure calls at internal/claim/a.go:4"}},
		{"pure waits", "internal/claim/a.go", "package claim\nimport \"time\"\nfunc f() { time.Sleep(1); <-time.After(1) }\n", []string{"pure calls at internal/claim/a.go:3", "pure calls at internal/claim/a.go:3"}},
		{"a local variable called time", "internal/claim/a.go", "package claim\ntype c struct{}\nfunc (c) Now() {}\nfunc f() { time := c{}; time.Now() }\n", nil},
		{"pure starts a goroutine", "internal/claim/a.go", "package claim\nfunc f() { go f() }\n", []string{"pure calls at internal/claim/a.go:2"}},
		{"the engine does all that", "internal/sweep/a.go", "package sweep\nimport \"time\"\nfunc f() { go f(); time.Sleep(1) }\n", nil},
		{"pure prints", "internal/report/a.go", "package report\nimport \"fmt\"\nfunc f() { fmt.Println() }\n", []string{"pure calls at internal/report/a.go:3"}},
		{"pure formats", "internal/report/a.go", "package report\nimport (\"fmt\"; \"io\")\nfunc f(w io.Writer) { fmt.Fprintln(w) }\n", nil},

		// no logging
		{"driver logs", "internal/sys/cri/a.go", imp("cri", "log/slog"), []string{"no logging at internal/sys/cri/a.go:2"}},
		{"cmd logs", "cmd/holdfast/a.go", imp("main", "log/slog"), nil},

		// api
		{"api declares a type", "api/a.go", "package api\ntype T struct{ A int }\nconst K = \"x\"\n", nil},
		{"api declares a method", "api/a.go", "package api\ntype T struct{}\nfunc (T) M() {}\n", []string{"api has no behaviour at api/a.go:3"}},

		// init
		{"init", "cmd/x/a.go", "package main\nfunc init() {}\n", []string{"no init at cmd/x/a.go:2"}},
		{"init in a test", "cmd/x/a_test.go", "package main\nfunc init() {}\n", []string{"no init at cmd/x/a_test.go:2"}},
		{"a method called init", "cmd/x/a.go", "package main\ntype t struct{}\nfunc (t) init() {}\n", nil},

		// length
		{"700 lines", "cmd/x/a.go", "package main\n" + strings.Repeat("\n", 699), nil},
		{"701 lines", "cmd/x/a.go", "package main\n" + strings.Repeat("\n", 700), []string{"file length at cmd/x/a.go"}},

		// skip
		{"t.Skip", "cmd/x/a_test.go", "package main\nimport \"testing\"\nfunc TestX(t *testing.T) { t.Skip(\"x\") }\n", []string{"skip only in testenv at cmd/x/a_test.go:3"}},
		{"b.Skipf in a closure", "cmd/x/a_test.go", "package main\nimport \"testing\"\nfunc BenchmarkX(b *testing.B) { func() { b.Skipf(\"x\") }() }\n", []string{"skip only in testenv at cmd/x/a_test.go:3"}},
		{"t.Skip in testenv", "internal/testenv/a.go", "package testenv\nimport \"testing\"\nfunc Need(t testing.TB) { t.SkipNow() }\n", nil},
		{"another Skip", "cmd/x/a.go", "package main\nfunc f(r interface{ Skip(int) }) { r.Skip(1) }\n", nil},

		// names
		{"util", "internal/sys/util/a.go", "package util\n", []string{"package name at internal/sys/util/a.go:1"}},
		{"helpers by name only", "internal/sys/cri/x/a.go", "package helpers\n", []string{"package name at internal/sys/cri/x/a.go:1"}},
		{"types in a test package", "internal/sys/x/a_test.go", "package types_test\n", []string{"package name at internal/sys/x/a_test.go:1"}},
		{"a name that contains one", "internal/sys/utilisation/a.go", "package utilisation\n", nil},

		// placed
		{"a package without a place", "internal/stuff/a.go", "package stuff\n", []string{"placed at internal/stuff"}},
		{"a package beside one with a place", "internal/claims/a.go", "package claims\n", []string{"placed at internal/claims"}},
		{"testdata has no place and needs none", "internal/claim/testdata/a.go", "not even Go", nil},

		// function variables
		{"a literal", "cmd/x/a.go", "package main\nvar f = func() {}\n", []string{"no function variable at cmd/x/a.go:2"}},
		{"a function type", "cmd/x/a.go", "package main\nvar f func()\n", []string{"no function variable at cmd/x/a.go:2"}},
		{"a named function type", "cmd/x/a.go", "package main\ntype F func()\nvar f F\n", []string{"no function variable at cmd/x/a.go:3"}},
		{"a function of the package", "cmd/x/a.go", "package main\nfunc g() {}\nvar f = g\n", []string{"no function variable at cmd/x/a.go:3"}},
		{"a function of the library", "cmd/x/a.go", "package main\nimport \"time\"\nvar now = time.Now\n", []string{"no function variable at cmd/x/a.go:3"}},
		{"in a group, in a driver", "internal/sys/cri/a.go", "package cri\nvar (\n\ta = 1\n\tf = func() {}\n)\n", []string{"no function variable at internal/sys/cri/a.go:4"}},
		{"a system call", "cmd/x/a.go", "package main\nimport \"golang.org/x/sys/unix\"\nvar flock = unix.Flock\n", []string{"no function variable at cmd/x/a.go:3"}},
		{"a constant of the system", "cmd/x/a.go", "package main\nimport \"golang.org/x/sys/unix\"\nvar e = unix.EPERM\n", nil},
		{"a value", "cmd/x/a.go", "package main\nimport (\"os\"; \"errors\")\nvar e = errors.New(\"x\")\nvar n = os.ErrNotExist\nvar w = os.Stdout\n", nil},
		{"a result of a call", "cmd/x/a.go", "package main\nfunc g() int { return 1 }\nvar n = g()\n", nil},
		{"a local one", "cmd/x/a.go", "package main\nfunc g() { var f = func() {}; f() }\n", nil},
		{"an assertion of an interface", "cmd/x/a.go", "package main\nvar _ = func() {}\n", nil},

		// mutable globals
		{"assigned", "cmd/x/a.go", "package main\nvar n int\nfunc f() { n = 1 }\n", []string{"no mutable global at cmd/x/a.go:3"}},
		{"counted", "cmd/x/a.go", "package main\nvar n int\nfunc f() { n++ }\n", []string{"no mutable global at cmd/x/a.go:3"}},
		{"an element", "cmd/x/a.go", "package main\nvar m = map[int]int{}\nfunc f() { m[1] = 2 }\n", []string{"no mutable global at cmd/x/a.go:3"}},
		{"a local variable of that name", "cmd/x/a.go", "package main\nvar n int\nfunc f() { n := 1; n = 2; _ = n }\n", nil},
		{"a parameter of that name", "cmd/x/a.go", "package main\nvar n int\nfunc f(n int) { n = 2 }\n", nil},
		{"only read", "cmd/x/a.go", "package main\nvar n int\nfunc f() int { m := n; return m }\n", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, err := Check(module(map[string]string{tc.file: tc.text}))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range found {
				got = append(got, f.Rule+" at "+f.Pos)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s\n%v", d, found)
			}
		})
	}
}

// TestAcrossFiles: the rules about package-level variables see the whole package.
func TestAcrossFiles(t *testing.T) {
	found, err := Check(module(map[string]string{
		"cmd/x/a.go":      "package main\nvar n int\nvar f = g\n",
		"cmd/x/b.go":      "package main\nfunc g() { n = 1 }\n",
		"cmd/x/b_test.go": "package main\nfunc h() { n = 2 }\n",
		"cmd/x/c_test.go": "package main_test\nvar n int\nfunc h() { n = 3 }\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, f.Rule+" at "+f.Pos)
	}
	want := []string{"no function variable at cmd/x/a.go:3", "no mutable global at cmd/x/b.go:2", "no mutable global at cmd/x/b_test.go:2"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestLeftOut(t *testing.T) {
	found, err := Check(module(map[string]string{
		"hack/nested/go.mod":   "module nested\n",
		"hack/nested/x.go":     "package util\nfunc init() {}\n",
		"vendor/x/x.go":        "package util\n",
		".git/x.go":            "package util\n",
		"internal/claim/_x.go": "package util\n",
	}))
	if err != nil || len(found) > 0 {
		t.Errorf("found %v, error %v", found, err)
	}
}

func TestCannotRead(t *testing.T) {
	if _, err := Check(fstest.MapFS{}); err == nil {
		t.Error("a module without go.mod is no module without breaches")
	}
	if _, err := Check(module(map[string]string{"cmd/x/a.go": "package"})); err == nil {
		t.Error("a file that does not parse is no file without breaches")
	}
}
