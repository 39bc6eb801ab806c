// Command mutate takes the gates of a release out of the product, one at a time, and
// demands that somebody notices.
//
// A mutation is an exact piece of the source and what stands there instead. All of them
// are built at once into one simulator (go build -overlay), each in a copy of the
// functions that it changes, chosen by a variable that only that build has: there is no
// switch in the product. Each mutant then runs on fixed seeds and must break an invariant.
// The tests that a mutation names must fail too, and alone for what the
// simulator cannot reach. A piece that does not stand in its file exactly once is an error: whoever
// changes a gate brings its mutation up to date.
//
// The table that it prints belongs into docs/proof.md, section "Gates".
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	var o options
	run := flag.String("run", "", "only mutations whose text matches")
	flag.IntVar(&o.seeds, "seeds", seeds, "how many seeds")
	flag.IntVar(&o.jobs, "j", runtime.GOMAXPROCS(0), "how many at a time")
	flag.BoolVar(&o.explore, "explore", false, "also ask the simulator of what only tests can notice")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := mutate(ctx, o, only(mutations(), *run), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

// seeds is how many each mutant runs on; several times what the slowest took when it was
// written, since every change of the simulator shuffles them.
const seeds = 450

type options struct {
	seeds, jobs int
	explore     bool
}

func only(list []mutation, pattern string) []mutation {
	re := regexp.MustCompile(pattern)
	return slices.DeleteFunc(list, func(m mutation) bool { return !re.MatchString(m.Gate + " " + m.What) })
}

// found is what noticed a mutant.
type found struct {
	by    string // an invariant or a gate
	seeds int    // until then, 0: the simulator did not notice
	tests string // names of those that failed
	text  string
	err   error
}

// mutate builds and runs all of list and prints the table. An error: something was not
// noticed, or nothing could be found out.
func mutate(ctx context.Context, o options, list []mutation, out io.Writer) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "holdfast-mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(root, dir, list)
	if err != nil {
		return err
	}
	b := builder{root: root, dir: dir, overlay: overlay}
	start := time.Now()
	// The simulator, and the test binary of each package whose tests are named; of those
	// tests each passes without a mutant.
	packages := map[string][]string{}
	for _, m := range list {
		for pkg, tests := range m.Tests {
			packages[pkg] = append(packages[pkg], tests)
		}
	}
	jobs := []func() error{func() error { return b.build(ctx, "build", "./hack/mutate/seeds", "seeds") }}
	for pkg, tests := range packages {
		jobs = append(jobs, func() error {
			if err := b.build(ctx, "test", "./internal/"+pkg, binary(pkg)); err != nil {
				return err
			}
			for _, t := range slices.Compact(slices.Sorted(slices.Values(tests))) {
				if failed, err := b.test(ctx, 0, pkg, t); err != nil || len(failed) > 0 {
					return fmt.Errorf("without a mutant %s of %s fails: %v, %v", t, pkg, failed, err)
				}
			}
			return nil
		})
	}
	if err := all(o.jobs, jobs); err != nil {
		return err
	}
	built := time.Since(start)

	results := make([]found, len(list)+1)
	jobs = nil
	for i := range results {
		jobs = append(jobs, func() error {
			if i == 0 {
				results[0] = b.simulate(ctx, 0, o.seeds)
				return nil
			}
			m := &list[i-1]
			if !m.Blind || o.explore {
				results[i] = b.simulate(ctx, i, o.seeds)
			}
			if f := b.tests(ctx, i, m); !o.explore {
				results[i].tests = f.tests
				results[i].err = errors.Join(results[i].err, f.err)
			}
			if o.explore {
				fmt.Fprintf(os.Stderr, "%s: %s: %s %d\n", list[i-1].Gate, list[i-1].What, cmp.Or(results[i].by, "nothing"), results[i].seeds)
			}
			return nil
		})
	}
	if err := all(o.jobs, jobs); err != nil {
		return err
	}
	var errs []error
	if r := results[0]; r.by != "" || r.err != nil {
		errs = append(errs, fmt.Errorf("without a mutant: %s in seed %d: %s, %v", r.by, r.seeds-1, r.text, r.err))
	}
	fmt.Fprintln(out, "| gate | mutation | simulator | seeds | tests |\n|---|---|---|---|---|")
	for i, m := range list {
		r := results[i+1]
		seeds := ""
		if r.seeds > 0 {
			seeds = strconv.Itoa(r.seeds)
		}
		by := r.by
		switch {
		case r.err != nil:
			errs = append(errs, fmt.Errorf("%s: %s: %w", m.Gate, m.What, r.err))
			by = "ERROR"
		case r.by == "" && (!m.Blind || o.explore):
			errs = append(errs, fmt.Errorf("%s: %s: the simulator does not notice", m.Gate, m.What))
			by = "NOTHING"
		case r.tests == "" && (len(m.Tests) > 0 || m.Blind) && !o.explore:
			errs = append(errs, fmt.Errorf("%s: %s: no test notices", m.Gate, m.What))
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", m.Gate, m.What, by, seeds, r.tests)
	}
	fmt.Fprintf(out, "\n%d mutations, %d noticed, at most %d seeds each; built in %s, all in %s\n", len(list), len(list)-len(errs), o.seeds, built.Round(time.Second), time.Since(start).Round(time.Second))
	return errors.Join(errs...)
}

// all runs jobs, n at a time.
func all(n int, jobs []func() error) error {
	errs := make([]error, len(jobs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(n, 1) {
		wg.Go(func() {
			for i := range next {
				errs[i] = jobs[i]()
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

type builder struct{ root, dir, overlay string }

func binary(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") + ".test" }

func (b builder) build(ctx context.Context, what, pkg, name string) error {
	args := []string{what, "-overlay", b.overlay, "-ldflags=-s -w", "-o", filepath.Join(b.dir, name)}
	if what == "test" {
		args = append(args, "-c", "-vet=off")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = b.root
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s %s: %w\n%s", what, pkg, err, msg)
	}
	return nil
}

// limit bounds one mutant's run: one that hangs is not found out, but broken.
const limit = 3 * time.Minute

func (b builder) command(ctx context.Context, mutant int, name string, args ...string) (*exec.Cmd, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, name), args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_MUTANT="+strconv.Itoa(mutant), "GOMAXPROCS=1")
	return cmd, cancel
}

func (b builder) simulate(ctx context.Context, mutant, seeds int) found {
	cmd, cancel := b.command(ctx, mutant, "seeds", "-n", strconv.Itoa(seeds))
	defer cancel()
	text, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %.400s", err, exit.Stderr)
		}
		return found{err: err}
	}
	var f found
	if n, _ := fmt.Sscanf(string(text), "found %s %d", &f.by, &f.seeds); n == 2 {
		f.seeds++
		f.text = strings.TrimSpace(string(text))
	}
	return f
}

func (b builder) tests(ctx context.Context, mutant int, m *mutation) found {
	var f found
	for _, pkg := range slices.Sorted(maps.Keys(m.Tests)) {
		failed, err := b.test(ctx, mutant, pkg, m.Tests[pkg])
		if err != nil {
			return found{err: err}
		}
		for _, t := range failed {
			f.tests += fmt.Sprintf("%s.%s ", pkg, t)
		}
	}
	f.tests = strings.TrimSpace(f.tests)
	return f
}

var (
	failLine = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)
	ranLine  = regexp.MustCompile(`(?m)^--- (PASS|FAIL): `)
)

// test runs the tests of a package that match and returns those that failed.
func (b builder) test(ctx context.Context, mutant int, pkg, match string) ([]string, error) {
	cmd, cancel := b.command(ctx, mutant, binary(pkg), "-test.v", "-test.run", "^("+match+")$")
	defer cancel()
	cmd.Dir = filepath.Join(b.root, "internal", filepath.FromSlash(pkg))
	text, err := cmd.CombinedOutput()
	var failed []string
	for _, m := range failLine.FindAllStringSubmatch(string(text), -1) {
		failed = append(failed, m[1])
	}
	switch {
	case len(failed) > 0:
		return failed, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %.600s", err, text)
	case !ranLine.Match(text):
		return nil, fmt.Errorf("%s has no test %s", pkg, match)
	}
	return nil, nil
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
