package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(Main(ctx, os.Args[1:], os.Stdout))
}

// config is the command line.
type config struct {
	checks    []check
	runs      [][]string
	fuzz      time.Duration // for each target; 0 for none
	fuzzTotal time.Duration
	fuzzIn    string
}

type check struct{ name, command string }

func parseArgs(args []string, errs io.Writer) (config, error) {
	var c config
	fl := flag.NewFlagSet("testsum", flag.ContinueOnError)
	fl.SetOutput(errs)
	fl.Func("check", "run `NAME=COMMAND` with sh first; its failure is a failure", func(s string) error {
		name, command, ok := strings.Cut(s, "=")
		if !ok || name == "" || command == "" {
			return errors.New("want NAME=COMMAND")
		}
		c.checks = append(c.checks, check{name, command})
		return nil
	})
	fl.DurationVar(&c.fuzz, "fuzz", 0, "fuzz every target for this long")
	fl.DurationVar(&c.fuzzTotal, "fuzz-total", 45*time.Second, "bound for all targets together, building and starting them left out")
	fl.StringVar(&c.fuzzIn, "fuzz-in", "./...", "packages to look for fuzz targets in, separated by blanks")

	first := slices.Index(args, "--")
	if first < 0 {
		first = len(args)
	}
	if err := fl.Parse(args[:first]); err != nil {
		return c, err
	}
	if fl.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q: arguments for go test come after --", fl.Arg(0))
	}
	for rest := args[first:]; len(rest) > 0; {
		rest = rest[1:] // "--"
		n := slices.Index(rest, "--")
		if n < 0 {
			n = len(rest)
		}
		if n == 0 {
			return c, errors.New("a -- without arguments for go test")
		}
		c.runs = append(c.runs, rest[:n])
		rest = rest[n:]
	}
	return c, nil
}

// Main is the program; it returns the exit code.
func Main(ctx context.Context, args []string, out io.Writer) int {
	c, err := parseArgs(args, out)
	if err != nil {
		fmt.Fprintf(out, "testsum: %v\n", err)
		return 2
	}
	out = &lockedWriter{w: out} // go test's standard error and its events meet here
	t := newTally(modulePath(ctx))
	for _, k := range c.checks {
		start := time.Now()
		cmd := command(ctx, "sh", "-c", k.command)
		cmd.Stdout, cmd.Stderr = out, out
		err := cmd.Run()
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", k.name, err)
			t.fail(levelUnit, "check "+k.name)
		}
		word := "ok  "
		if err != nil {
			word = "FAIL"
		}
		fmt.Fprintf(out, "%s %-40s %7.2fs\n", word, "check "+k.name, time.Since(start).Seconds())
	}
	for _, r := range c.runs {
		goTest(ctx, t.newRun(""), r, out)
	}
	if c.fuzz > 0 {
		fuzzAll(ctx, t, c, out)
	}
	if ctx.Err() != nil {
		t.fail(levelUnit, "interrupted")
	}
	fmt.Fprint(out, t.summary())
	return t.exit()
}

// fuzzAll runs one target for each processor at a time: each has one worker, and linking
// and starting one does not keep the others waiting.
func fuzzAll(ctx context.Context, t *tally, c config, out io.Writer) {
	targets, err := fuzzTargets(ctx, strings.Fields(c.fuzzIn))
	if err != nil {
		fmt.Fprintln(out, err)
		t.fail(levelFuzz, "fuzz targets")
		return
	}
	lanes := runtime.GOMAXPROCS(0)
	left := c.fuzzTotal * time.Duration(lanes)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards t
		free = make(chan struct{}, lanes)
	)
	for i, g := range targets {
		d := share(c.fuzz, left, len(targets)-i)
		left -= d
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-free }()
			own, text := fuzzOne(ctx, t.module, g, d)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "%s     fuzzed %s for %s\n", text, g.name, d)
			t.level(levelFuzz).add(own.total())
			t.failed = append(t.failed, own.failed...)
			t.skips = append(t.skips, own.skips...)
		})
	}
	wg.Wait()
}

// fuzzOne runs one target. The outcome goes into a tally of its own, so that a run that
// only hit its own deadline can be run again. An input that is only interesting is hardly
// minimised, which by default may take longer than the whole run.
func fuzzOne(ctx context.Context, module string, g target, d time.Duration) (*tally, string) {
	args := []string{"-run", "^$", "-fuzz", "^" + g.name + "$", "-fuzztime", d.String(), "-fuzzminimizetime", "100x", "-parallel", "1", g.pkg}
	for attempt := 0; ; attempt++ {
		own := newTally(module)
		var text bytes.Buffer
		goTest(ctx, own.newRun(levelFuzz), args, &lockedWriter{w: &text})
		if own.total().failed == 0 || attempt > 0 || !onlyDeadline(text.String()) {
			return own, text.String()
		}
	}
}

// goTest runs go test -json with args and feeds r.
func goTest(ctx context.Context, r *run, args []string, out io.Writer) {
	cmd := command(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = out
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(out, "go test: %v\n", err)
		r.finish(false)
		return
	}
	in := bufio.NewReaderSize(stdout, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimRight(line, "\n"); len(line) > 0 {
			io.WriteString(out, r.line(line))
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	if err != nil && ctx.Err() != nil {
		fmt.Fprintf(out, "go test: stopped: %v\n", err)
	}
	io.WriteString(out, r.finish(err == nil))
}

// command starts a program in a process group of its own, so that an interrupt
// reaches the test binaries that go test started and not only go test.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// lockedWriter makes a writer safe for concurrent use.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// modulePath is the main module's path, "" when go does not say.
func modulePath(ctx context.Context) string {
	text, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
