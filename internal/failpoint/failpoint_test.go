package failpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const p, other = JournalAppendSynced, StateRenamed

func TestTake(t *testing.T) {
	injected := func(text string) action { return action{kind: kindError, text: text} }
	for _, tc := range []struct {
		name, text string
		want       action
		rest       string // "" means unchanged
	}{
		{"nothing", "", action{}, ""},
		{"another point", string(other) + " error(x)", action{}, ""},
		{"every time", "journal.append.synced error(x)", injected("x"), ""},
		{"once", "journal.append.synced 1*error(x)", injected("x"), "journal.append.synced off"},
		{"spent", "journal.append.synced off", action{kind: kindOff}, ""},
		{"twice", "journal.append.synced 2*error(x)", injected("x"), "journal.append.synced 1*error(x)"},
		{"the second", "journal.append.synced 1*off->1*error(x)", action{kind: kindOff}, "journal.append.synced 1*error(x)"},
		{"then for ever", "journal.append.synced 1*off->kill", action{kind: kindOff}, "journal.append.synced kill"},
		{"kill", "journal.append.synced kill", action{kind: kindKill}, ""},
		{"panic", "journal.append.synced panic(at all)", action{kind: kindPanic, text: "at all"}, ""},
		{"delay", "journal.append.synced 3*delay(1500ms)", action{kind: kindDelay, delay: 1500 * time.Millisecond}, "journal.append.synced 2*delay(1.5s)"},
		{"a text with an arrow", "journal.append.synced 1*error(a->b * c(d)->1*kill", injected("a->b * c(d"), "journal.append.synced 1*kill"},
		{
			"the others and what people wrote stay",
			"# why\n\n" + string(other) + "   2*kill\n  journal.append.synced   2*off \n# end\n", action{kind: kindOff},
			"# why\n\n" + string(other) + "   2*kill\njournal.append.synced 1*off\n# end\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.rest == "" {
				tc.rest = tc.text
			}
			got, rest, err := take(tc.text, p)
			if err != nil || got != tc.want || rest != tc.rest {
				t.Errorf("take = %+v, %q, %v\nwant %+v, %q", got, rest, err, tc.want, tc.rest)
			}
		})
	}
}

// What is not of the form is told with its line and with what is allowed, also where
// another point is asked for.
func TestBadGrammar(t *testing.T) {
	const name = string(p)
	for _, tc := range []struct{ name, text, why string }{
		{"an unknown point", "\nno.such.point kill", `line 2: there is no point "no.such.point"`},
		{"a name alone", name, `line 1: "" begins with no action`},
		{"a tab", name + "\tkill", "line 1: there is no point"},
		{"twice", name + " off\n" + name + " off", "line 2: \"" + name + "\" is named twice"},
		{"an unknown action", name + " sleep(1s)", `"sleep(1s)" begins with no action`},
		{"zero times", name + " 0*kill", "N from 1 to 1000000"},
		{"too many times", name + " 1000001*kill", "N from 1 to 1000000"},
		{"a number beyond int", name + " 99999999999999999999*kill", "N from 1 to 1000000"},
		{"no star", name + " 1kill", "N from 1 to 1000000"},
		{"negative", name + " -1*kill", "begins with no action"},
		{"an argument too many", name + " kill(9)", `"(9)" stands where`},
		{"no argument", name + " error", "needs an argument"},
		{"an empty one", name + " error()", "needs an argument"},
		{"not closed", name + " error(x", "needs an argument"},
		{"a control character", name + " error(a\x1bb)", "needs an argument"},
		{"no duration", name + " delay(50)", `"50": no duration`},
		{"a negative one", name + " delay(-1s)", "no duration"},
		{"too long", name + " delay(2h)", "no duration from 0 to 1h"},
		{"an arrow at the end", name + " off->", `"" begins with no action`},
		{"a blank inside", name + " off -> kill", `" -> kill" stands where`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, at := range []Point{p, other} {
				_, _, err := take(tc.text, at)
				var syntax *SyntaxError
				if !errors.As(err, &syntax) || !strings.Contains(err.Error(), tc.why) || !strings.Contains(err.Error(), "error(TEXT)") {
					t.Errorf("take(%q, %s): %v\nwant %s, and what is allowed", tc.text, at, err, tc.why)
				}
			}
		})
	}
}

func FuzzTake(f *testing.F) {
	for _, s := range []string{
		"journal.append.synced 1*off->1*error(x)", "state.renamed 2*delay(50ms)->kill\n# c\n", "journal.append.synced panic(a->b)", "x", "journal.append.synced 1*",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		act, rest, err := take(text, p)
		if err != nil {
			if (act != action{}) || rest != "" {
				t.Fatalf("an error, and %+v, %q", act, rest)
			}
			return
		}
		// What is written can be read again, does not grow, and a count goes down.
		if len(rest) > len(text)+len("off")+20 { // a duration may be spelled longer
			t.Fatalf("%q became %q", text, rest)
		}
		if _, _, err := take(rest, p); err != nil {
			t.Fatalf("%q became %q: %v", text, rest, err)
		}
		if _, after, err := take(rest, other); err != nil || act.kind == "" && after != rest && !strings.Contains(text, string(other)) {
			t.Fatalf("asking for another point made %q of %q (%v)", after, rest, err)
		}
	})
}

// However many ask, each term is used as often as it says.
func TestPassCounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fp")
	if err := os.WriteFile(file, []byte("journal.append.synced 20*off->30*error(x)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := map[kind]int{}
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			act, err := pass(file, p)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[act.kind]++
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[kind]int{kindOff: 30, kindError: 30}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "journal.append.synced off\n" {
		t.Errorf("left: %q, %v", text, err)
	}
}

func TestFileCannotBeUsed(t *testing.T) {
	if _, err := pass(filepath.Join(t.TempDir(), "none"), p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	file := filepath.Join(t.TempDir(), "fp")
	if err := os.WriteFile(file, []byte("\n\njournal.append.synced 1*x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pass(file, p); err == nil || !strings.Contains(err.Error(), file+": line 3: ") {
		t.Errorf("bad grammar: %v, want file and line", err)
	}
	if err := os.WriteFile(file, make([]byte, maxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pass(file, p); err == nil {
		t.Error("a file beyond all bounds was read")
	}
}

func TestDo(t *testing.T) {
	if err := (action{}).do(p); err != nil {
		t.Errorf("nothing: %v", err)
	}
	var injected *Injected
	if err := (action{kind: kindError, text: "x"}).do(p); !errors.As(err, &injected) || *injected != (Injected{p, "x"}) {
		t.Errorf("error: %v", err)
	}
	start := time.Now()
	if err := (action{kind: kindDelay, delay: 30 * time.Millisecond}).do(p); err != nil || time.Since(start) < 30*time.Millisecond {
		t.Errorf("delay: %v after %v", err, time.Since(start))
	}
	func() {
		defer func() {
			if got := recover(); got != "failpoint journal.append.synced: x" {
				t.Errorf("panic: %v", got)
			}
		}()
		_ = action{kind: kindPanic, text: "x"}.do(p)
	}()
}

// child is set in the process that TestBuilds starts of a program built with the tag.
const child = `package main

import (
	"fmt"

	"github.com/holdfast-cni/holdfast/internal/failpoint"
)

func main() { fmt.Println(failpoint.At(failpoint.JournalAppendSynced)) }
`

// With the tag the point lives, in processes that share one file; without it the program
// holds no trace of it and the variable does nothing.
func TestBuilds(t *testing.T) {
	// The program lies in this module for the time of the build alone: an overlay.
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	src, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(src, child)
	write(overlay, `{"Replace": {"`+filepath.Join(root, "internal/failpoint/child/main.go")+`": "`+src+`"}}`)
	build := func(tags, pkg string) string {
		t.Helper()
		bin := filepath.Join(dir, "bin-"+tags+filepath.Base(pkg))
		cmd := exec.Command("go", "build", "-buildvcs=false", "-overlay", overlay, "-tags", tags, "-o", bin, pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return bin
	}
	file := filepath.Join(dir, "fp")
	run := func(bin string) (string, error) {
		cmd := exec.Command(bin)
		cmd.Env = append(os.Environ(), Env+"="+file)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}

	live := build("failpoint", "./internal/failpoint/child")
	write(file, "journal.append.synced 1*off->1*error(gone)->kill\n")
	for _, want := range []string{"<nil>\n", "failpoint journal.append.synced: gone\n"} {
		if out, err := run(live); err != nil || out != want {
			t.Errorf("%q, %v, want %q", out, err, want)
		}
	}
	_, err = run(live)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("kill: %v", err)
	}
	write(file, "journal.append.sunk kill\n")
	if out, err := run(live); err == nil || !strings.Contains(out, file+": line 1: there is no point") {
		t.Errorf("bad grammar is not loud: %v\n%s", err, out)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if out, err := run(live); err == nil {
		t.Errorf("a file that is not there is not loud: %s", out)
	}

	off := build("off", "./internal/failpoint/child")
	write(file, "journal.append.synced kill\n")
	if out, err := run(off); err != nil || out != "<nil>\n" {
		t.Errorf("without the tag: %q, %v", out, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "journal.append.synced kill\n" {
		t.Errorf("without the tag the file became %q, %v", text, err)
	}

	for _, tc := range []struct {
		tags  string
		trace bool
	}{{"failpoint", true}, {"off", false}} {
		text, err := os.ReadFile(build(tc.tags, "./cmd/holdfast"))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{Env, string(JournalAppendSynced), string(ReleaseRenameAfter), string(UndoHeld), "failpoint.pass", "failpoint.take"} {
			if got := bytes.Contains(text, []byte(s)); got != tc.trace {
				t.Errorf("holdfast built with -tags %s: holds %q: %v", tc.tags, s, got)
			}
		}
	}
}
