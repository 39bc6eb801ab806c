package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Config says what to read and when it is.
type Config struct {
	// Proc is the node's proc file system, "/proc" if empty.
	Proc string
	// Clock gives the instant of asking. Without one a testimony has no boot and
	// counts for nothing.
	Clock func() claim.Instant
	// Timeout bounds one Ask, 10 s if not positive.
	Timeout time.Duration
	// CNIBinDirs are the directories of CNI plugins, as seen from the node's root.
	CNIBinDirs []string
}

// Witness is the kernel's and the processes' witness. It is safe for use by several
// goroutines; they take their snapshots one after the other.
type Witness struct {
	cfg  Config
	turn chan struct{} // holds one token, taken by the snapshot at work

	hangs hangs
}

// New returns a witness. It touches nothing yet.
func New(cfg Config) *Witness {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Clock == nil {
		cfg.Clock = func() claim.Instant { return claim.Instant{} }
	}
	return &Witness{cfg: cfg, turn: make(chan struct{}, 1)}
}

// Name returns "proc": the source of two witnesses.
func (*Witness) Name() string { return "proc" }

// answer is one snapshot's outcome.
type answer struct {
	netns     []claim.Netns
	processes *claim.ProcessFacts
	vantage   claim.Vantage
	err       error
}

// Ask takes one snapshot and returns two testimonies, the kernel's and the processes'.
// Both are complete or both are silent (I5); a silent one carries no facts. It
// returns at the latest at the time-out or the end of ctx, even if the kernel hangs:
// then the snapshot goes on in the background, and until it has ended every further
// Ask is silent too.
func (w *Witness) Ask(ctx context.Context) []claim.Testimony {
	kernel := claim.Testimony{Witness: claim.WitnessKernel, State: claim.StateSilent, Asked: w.cfg.Clock()}
	process := claim.Testimony{Witness: claim.WitnessProcess, State: claim.StateSilent, Asked: kernel.Asked}
	start := time.Now()
	a := w.snapshot(ctx)
	kernel.Took = time.Since(start)
	process.Took = kernel.Took
	if a.err != nil {
		kernel.Detail = a.err.Error()
		process.Detail = kernel.Detail
		return []claim.Testimony{kernel, process}
	}
	kernel.State, process.State = claim.StateComplete, claim.StateComplete
	kernel.Kernel = &claim.KernelFacts{Netns: a.netns, Vantage: a.vantage}
	process.Process = a.processes
	used, addrs := 0, 0
	for _, n := range a.netns {
		addrs += len(n.Addrs)
		if n.Used() {
			used++
		}
	}
	kernel.Detail = fmt.Sprintf("%d network namespaces, %d in use, %d addresses", len(a.netns), used, addrs)
	process.Detail = fmt.Sprintf("%d container IDs in live processes, %d shims", distinctIDs(a.processes.Hits), len(a.processes.Shims))
	return []claim.Testimony{kernel, process}
}

// Vantage takes a snapshot and says from where it was seen, also when it could not be
// taken whole. For people; a verdict takes the vantage of the testimony it judges.
func (w *Witness) Vantage(ctx context.Context) claim.Vantage { return w.snapshot(ctx).vantage }

func (w *Witness) snapshot(ctx context.Context) answer {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		cancel()
		return late(fmt.Errorf("an earlier snapshot of %q has not ended: %w", w.cfg.Proc, ctx.Err()))
	}
	done := make(chan answer, 1)
	var at progress
	go func() {
		// A read of /proc can hang with the process that it is about: what stands for its
		// memory may be a file of a file system that never answers.
		defer func() { <-w.turn }()
		done <- w.take(ctx, &at)
	}()
	defer cancel()
	select {
	case a := <-done:
		return a
	case <-ctx.Done():
	}
	// It is about to notice; its own words say more. But it may hang.
	select {
	case a := <-done:
		return a
	case <-time.After(100 * time.Millisecond):
		return late(fmt.Errorf("reading %q hangs%s: %w", w.cfg.Proc, at.where(), ctx.Err()))
	}
}

func late(err error) answer {
	return answer{err: err, vantage: claim.Vantage{Checks: []claim.Check{{
		Name: "enumeration", Detail: err.Error(), Fix: "look at the processes that are named, and for others in state D",
	}}}}
}

// progress says which process each worker is at, 0 for none.
type progress [workers]atomic.Int64

func (p *progress) where() string {
	out := ""
	for i := range p {
		if pid := p[i].Load(); pid > 0 {
			out += fmt.Sprintf(", at process %d", pid)
		}
	}
	return out
}

func (w *Witness) take(ctx context.Context, at *progress) answer {
	s, err := newSnapshot(w.cfg)
	defer s.close()
	s.at, s.hangs = at, &w.hangs
	if err == nil {
		err = s.take(ctx)
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		err = fmt.Errorf("%w: a descriptor of every network and mount namespace is held for a moment; raise the limit (ulimit -n)", err)
	}
	a := answer{err: err, vantage: s.vantage(err)}
	if err == nil {
		a.netns, a.processes = s.netns(), s.processes()
	}
	return a
}

func distinctIDs(hits []claim.ProcessHit) int {
	n := 0
	for i, h := range hits { // sorted by ID
		if i == 0 || h.ID != hits[i-1].ID {
			n++
		}
	}
	return n
}

func compareHits(a, b claim.ProcessHit) int {
	return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Netns, b.Netns), strings.Compare(a.Via, b.Via))
}
