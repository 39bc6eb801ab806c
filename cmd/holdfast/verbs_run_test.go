package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/journal"
)

// job is a holdfast in the background.
type job struct {
	cmd      *exec.Cmd
	out, err buffer
	done     chan error
}

// buffer is a bytes.Buffer that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) Bytes() []byte { return []byte(b.String()) }

func (j *job) kill() {
	_ = j.cmd.Process.Kill()
	<-j.done
}

// holdfast: hf [CODE] [@max=D] [@... of within] VERB [args ...] runs the command with the
// script's places and expects an exit code, 0 unless given. It must end within D (three minutes,
// for what it shows is that nothing waits for ever; for costs there is @cost),
// and print nothing that a terminal would obey.
func (w *world) holdfast(ts *testscript.TestScript, args []string) {
	want, limit := 0, 3*time.Minute
	if len(args) > 0 {
		if n, err := strconv.Atoi(args[0]); err == nil {
			want, args = n, args[1:]
		}
	}
	var how []string
	for len(args) > 0 && strings.HasPrefix(args[0], "@") {
		if d, ok := strings.CutPrefix(args[0], "@max="); ok {
			var err error
			limit, err = time.ParseDuration(d)
			ts.Check(err)
		} else {
			how = append(how, args[0])
		}
		args = args[1:]
	}
	if len(args) == 0 {
		ts.Fatalf("usage: hf [CODE] [@max=D] [@... of within] VERB [args ...]")
	}
	command := append([]string{"holdfast"}, w.line(args)...)
	if len(how) > 0 {
		command = slices.Concat([]string{"within"}, how, []string{"--"}, command)
	}
	start := time.Now()
	err := ts.Exec(command[0], command[1:]...)
	took := time.Since(start)
	w.printedClean(ts)
	if got := exitCode(ts, err); got != want {
		ts.Fatalf("holdfast %s: exit code %d, want %d", strings.Join(args, " "), got, want)
	}
	if took > limit {
		ts.Fatalf("holdfast %s took %s, allowed are %s", strings.Join(args, " "), took, limit)
	}
}

// until: hf-until NAME VERDICT VERB [args ...] repeats a command, which prints JSON and
// exits 0, until it gives the resource that verdict, for a minute at most. It is for
// namespaces that stay: the snapshot of another holdfast is a use of each for a moment.
func (w *world) until(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 20, "hf-until NAME VERDICT VERB [args ...]")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		w.holdfast(ts, args[2:])
		if w.resource(ts, args[0]).Verdict == args[1] || time.Now().After(deadline) {
			w.expectVerdict(ts, args[:2])
			return
		}
	}
}

// line puts the places behind the verb.
func (w *world) line(args []string) []string {
	return slices.Concat(args[:1], w.flags(args[0]), args[1:])
}

func exitCode(ts *testscript.TestScript, err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	ts.Fatalf("%v", err)
	return -1
}

// printedClean: whatever lies in a store, a terminal is never made to do anything.
func (w *world) printedClean(ts *testscript.TestScript) {
	for _, stream := range []string{"stdout", "stderr"} {
		text := ts.ReadFile(stream)
		if !utf8.ValidString(text) {
			ts.Fatalf("%s is no valid UTF-8: %q", stream, text)
		}
		for i, r := range text {
			if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
				ts.Fatalf("%s has %U at byte %d, raw: %q", stream, r, i, text[max(0, i-40):min(len(text), i+40)])
			}
		}
	}
}

// start: hf-start NAME VERB [args ...] runs the command in the background.
func (w *world) start(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 20, "hf-start NAME VERB [args ...]")
	path, err := exec.LookPath("holdfast")
	ts.Check(err)
	j := &job{cmd: exec.Command(path, w.line(args[1:])...), done: make(chan error, 1)}
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.err
	// A killed plugin's child may keep the pipes.
	j.cmd.WaitDelay = time.Second
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The signal comes when the thread ends that started it, not when the process does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := j.cmd.Start()
		started <- err
		if err == nil {
			j.done <- j.cmd.Wait()
		}
	}()
	ts.Check(<-started)
	w.running[args[0]] = j
	ts.Setenv("PID_"+args[0], strconv.Itoa(j.cmd.Process.Pid))
}

func (w *world) job(ts *testscript.TestScript, name string) *job {
	j := w.running[name]
	if j == nil {
		ts.Fatalf("no job %q", name)
	}
	delete(w.running, name)
	return j
}

// wait: hf-wait NAME [CODE] waits for its end. Its output is the next stdout and stderr.
func (w *world) wait(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 2, "hf-wait NAME [CODE]")
	want := "0"
	if len(args) == 2 {
		want = args[1]
	}
	j := w.job(ts, args[0])
	var err error
	select {
	case err = <-j.done:
	case <-time.After(time.Minute):
		j.kill()
		ts.Fatalf("%s does not end", args[0])
	}
	outFile, errFile := filepath.Join(w.dir, args[0]+".stdout"), filepath.Join(w.dir, args[0]+".stderr")
	ts.Check(os.WriteFile(outFile, j.out.Bytes(), 0o644))
	ts.Check(os.WriteFile(errFile, j.err.Bytes(), 0o644))
	ts.Check(ts.Exec("within", "replay", outFile, errFile))
	w.printedClean(ts)
	if got := strconv.Itoa(exitCode(ts, err)); got != want {
		ts.Fatalf("%s: exit code %s, want %s", args[0], got, want)
	}
}

// kill: hf-kill NAME ends it with SIGKILL.
func (w *world) kill(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "hf-kill NAME")
	w.job(ts, args[0]).kill()
}

// awaitIntent ADDR waits until the journal has an open intent for the address.
func (w *world) awaitIntent(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "await-intent ADDR")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, e := range w.journal() {
			if e.Release != nil && e.Release.Addr.String() == args[0] && e.State == journal.StateOpen {
				return
			}
		}
	}
	ts.Fatalf("no intent for %s", args[0])
}

// awaitFile FILE waits until a file in $WORK is there.
func (w *world) awaitFile(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "await-file FILE")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(w.dir, args[0])); err == nil {
			return
		}
	}
	ts.Fatalf("no file %s", args[0])
}

// journal reads the journal as it is now; nil when there is none.
func (w *world) journal() []journal.Entry {
	j, err := journal.Open(filepath.Join(w.dir, "state"), journal.Options{ReadOnly: true})
	if err != nil {
		return nil
	}
	defer j.Close()
	recs, _, err := j.Load()
	if err != nil {
		return nil
	}
	return journal.Replay(recs)
}

// expectJournal ADDR STATE looks at the newest entry of an address.
func (w *world) expectJournal(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "expect-journal ADDR STATE|none")
	got := "none"
	for _, e := range w.journal() {
		if e.Release != nil && e.Release.Addr.String() == args[0] {
			got = string(e.State)
		}
	}
	if got != args[1] {
		ts.Fatalf("the journal calls %s %s, want %s", args[0], got, args[1])
	}
}

// expectFile NET NAME [OWNER]
func (w *world) expectFile(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "expect-file NET NAME [OWNER]")
	path := filepath.Join(w.store(args[0]), args[1])
	if len(args) == 2 {
		_, err := os.Lstat(path)
		ts.Check(err)
		return
	}
	b, err := os.ReadFile(path)
	ts.Check(err)
	if id, _, _ := strings.Cut(string(b), "\r\n"); id != w.id(args[2]) {
		ts.Fatalf("%s is %q, want the ID of %s", path, b, args[2])
	}
}

// expectNoFile NET NAME ...
func (w *world) expectNoFile(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 10, "expect-no-file NET NAME ...")
	for _, name := range args[1:] {
		if _, err := os.Lstat(filepath.Join(w.store(args[0]), name)); !errors.Is(err, fs.ErrNotExist) {
			ts.Fatalf("%s/%s: is there (%v)", args[0], name, err)
		}
	}
}

// expectCost FILE [max-mb=N] [max-cpu=D]: what @cost=FILE measured is not above. Processor
// time, since a machine with other work makes everything take longer by the clock.
func (w *world) expectCost(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "expect-cost FILE [max-mb=N] [max-cpu=D]")
	var bytes int64
	var took time.Duration
	_, err := fmt.Sscan(ts.ReadFile(args[0]), &bytes, (*int64)(&took))
	ts.Check(err)
	for _, a := range args[1:] {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "max-mb":
			most, err := strconv.ParseInt(value, 10, 64)
			ts.Check(err)
			if bytes > most<<20 {
				ts.Fatalf("%d MB resident, allowed are %d", bytes>>20, most)
			}
		case "max-cpu":
			most, err := time.ParseDuration(value)
			ts.Check(err)
			if took > most {
				ts.Fatalf("%s of processor time, allowed are %s", took, most)
			}
		default:
			ts.Fatalf("unknown word %q", a)
		}
	}
}

// tree describes every file below a directory: what kind, times, content. It opens
// regular files alone.
func tree(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if d.IsDir() {
			fmt.Fprintf(&b, "%q %o %d\n", path, st.Mode, st.Ino)
			return nil
		}
		sum := ""
		if d.Type().IsRegular() && st.Size < 1<<20 {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(content))
		}
		fmt.Fprintf(&b, "%q %o %d %d %d %d %s\n", path, st.Mode, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), sum)
		return nil
	})
	return b.String(), err
}

// noteTree NAME DIR remembers a directory below $WORK.
func (w *world) noteTree(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "note-tree NAME DIR")
	text, err := tree(filepath.Join(w.dir, args[1]))
	ts.Check(err)
	w.trees[args[0]] = text
}

// expectTree NAME DIR: nothing in it has changed.
func (w *world) expectTree(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "expect-tree NAME DIR")
	text, err := tree(filepath.Join(w.dir, args[1]))
	ts.Check(err)
	if text != w.trees[args[0]] {
		ts.Fatalf("%s has changed; it was\n%s\nand is\n%s", args[1], w.trees[args[0]], text)
	}
}

// moveWall FILE SHIFT moves every wall clock time of a saved document.
func (w *world) moveWall(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "move-wall FILE SHIFT")
	d, err := time.ParseDuration(args[1])
	ts.Check(err)
	var doc any
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	dec.UseNumber() // inodes and nanoseconds have more digits than a float
	ts.Check(dec.Decode(&doc))
	moved := 0
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = walk(v[k])
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case string:
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
				moved++
				return t.Add(d).Format(time.RFC3339Nano)
			}
		}
		return v
	}
	b, err := json.Marshal(walk(doc))
	ts.Check(err)
	if moved == 0 {
		ts.Fatalf("%s holds no time", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o644))
}
