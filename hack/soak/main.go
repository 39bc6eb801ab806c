// Command soak runs the simulator of internal/sim with fresh seeds on all cores for a
// time, and ends with one line fit for docs/proof.md. A violation is shrunk, printed as a
// script for internal/sim/testdata, and ends it with exit code 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sim"
)

func main() {
	var o options
	flag.DurationVar(&o.limit, "for", 10*time.Minute, "how long to run")
	flag.IntVar(&o.workers, "j", runtime.GOMAXPROCS(0), "how many runs at a time")
	flag.Uint64Var(&o.seed, "seed", 0, "the first seed; 0 takes one from the clock")
	flag.Uint64Var(&o.seeds, "seeds", 0, "how many seeds at most, whatever the time; 0: no end")
	flag.IntVar(&o.steps, "steps", 120, "operations a seed")
	flag.BoolVar(&o.quiet, "quiet", false, "only the last line")
	flag.Parse()
	debug.SetGCPercent(800) // a node is small, and gone after some milliseconds
	if o.seed == 0 {
		// Away from the seeds of the tests and of other soaks.
		o.seed = uint64(time.Now().Unix()) << 20
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if !soak(ctx, o, os.Stdout) {
		stop()
		os.Exit(1)
	}
}

type options struct {
	limit   time.Duration
	workers int
	seed    uint64
	seeds   uint64
	steps   int
	quiet   bool
}

// total is what all workers have done.
type total struct {
	mu       sync.Mutex
	stats    sim.Stats
	pairs    map[[2]string]int
	seeds    uint64
	failed   *sim.Result
	failSeed uint64
}

func (t *total) add(seed uint64, res sim.Result) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seeds++
	t.stats.Add(res.Stats)
	for p, n := range res.Stats.Pairs {
		t.pairs[p] += n
	}
	if res.Fail != nil && t.failed == nil {
		t.failed, t.failSeed = &res, seed
	}
	return t.failed == nil
}

// soak reports whether no invariant was violated.
func soak(ctx context.Context, o options, out io.Writer) bool {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	start := time.Now()
	t := &total{pairs: map[[2]string]int{}}
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range o.workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1)
				if o.seeds > 0 && n > o.seeds {
					return
				}
				if seed := o.seed + n - 1; !t.add(seed, generate(seed, o.steps)) {
					cancel()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	show(done, o, t, start, out)
	took := time.Since(start)
	if t.failed == nil {
		fmt.Fprintf(out, "soak: %s, %d seeds from %d, 0 violations, %s, %.0f steps/s on %d workers, %s, commit %s\n",
			counts(&t.stats), t.seeds, o.seed, pairs(t), float64(t.stats.Steps)/took.Seconds(), o.workers, took.Round(time.Second), commit())
		return true
	}
	fmt.Fprintf(out, "soak: seed %d: %v\nshrinking a script of %d lines...\n", t.failSeed, t.failed.Fail, len(t.failed.Script))
	script, fail := sim.Shrink(t.failed.Script, func() sim.Subject { return sim.NewHoldfast() }, 4000)
	fmt.Fprintf(out, "# seed %d, commit %s: %v\n%s", t.failSeed, commit(), fail, script)
	return false
}

// generate names the seed of a panic of the product.
func generate(seed uint64, steps int) sim.Result {
	defer func() {
		if p := recover(); p != nil {
			panic(fmt.Sprintf("seed %d, %d steps: %v", seed, steps, p))
		}
	}()
	return sim.Generate(seed, steps, sim.NewHoldfast())
}

func counts(s *sim.Stats) string {
	return fmt.Sprintf("%d steps, %d commands, %d released, %d undone, %d kills, %d power losses, %d races",
		s.Steps, s.Commands, s.Released, s.Undone, s.Kills, s.Crashes, s.Races)
}

func pairs(t *total) string {
	return fmt.Sprintf("%d of %d action pairs", len(t.pairs), sim.PairsOf())
}

// show says how it goes until done: one line that is rewritten on a terminal, else a line
// every 10 s.
func show(done <-chan struct{}, o options, t *total, start time.Time, out io.Writer) {
	f, ok := out.(*os.File)
	tty := false
	if ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		tty = err == nil
	}
	every := 10 * time.Second
	if tty {
		every = 200 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			if tty && !o.quiet {
				fmt.Fprint(out, "\r\x1b[K")
			}
			return
		case <-tick.C:
		}
		if o.quiet {
			continue
		}
		t.mu.Lock()
		took := time.Since(start)
		line := fmt.Sprintf("%s of %s: %.0f steps/s, %d steps, %d seeds, violations 0, %s", took.Round(time.Second), o.limit,
			float64(t.stats.Steps)/took.Seconds(), t.stats.Steps, t.seeds, pairs(t))
		t.mu.Unlock()
		if tty {
			fmt.Fprint(out, "\r\x1b[K"+line)
		} else {
			fmt.Fprintln(out, line)
		}
	}
}

func commit() string {
	b, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
