package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// locksPart releases reservations of one directory while upstream's host-local adds
// and deletes others in it, and shows how long each of our holds of the lock took
// (I12). It calls the driver as the engine does: the command line does not show holds.
func locksPart(ctx context.Context, s settings, out io.Writer) (err error) {
	n, err := newNode()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	bin, err := binaries(ctx, "host-local")
	if err != nil {
		return err
	}
	// All in one network: attachments deals them out to four.
	list := n.attachments(s.limits.releases * networks)
	var mine []*attachment
	for i := 0; i < len(list); i += networks {
		mine = append(mine, list[i])
	}
	if err := n.reserve(mine); err != nil {
		return err
	}
	unix.Sync()
	moves, err := n.moves(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.limits.contentionSeconds)*time.Second)
	defer cancel()
	c := &contention{plugin: filepath.Join(bin, "host-local"), node: n}
	stop := c.start(ctx, s.limits.contenders)
	defer stop()

	q := &hostlocal.Quarantine{Dir: n.path("state", "quarantine")}
	if err := os.MkdirAll(n.path("state"), 0o700); err != nil {
		return err
	}
	var holds []time.Duration
	opt := hostlocal.ReleaseOptions{Held: func(d time.Duration) { holds = append(holds, d) }}
	dir := filepath.Join(n.dataDir(), n.network(0))
	start := time.Now()
	moved, retries := 0, 0
	for len(moves) > 0 {
		outs, err := q.Release(ctx, dir, moves, opt)
		var rest []hostlocal.Move
		for i, o := range outs {
			switch o.State {
			case hostlocal.Moved:
				moved++
			case hostlocal.Failed:
				rest = append(rest, moves[i])
			case hostlocal.Changed, hostlocal.Gone:
				return fmt.Errorf("%s is %s", moves[i].Path, o.State)
			}
		}
		moves = rest
		var locked *hostlocal.ErrLocked
		switch {
		case errors.As(err, &locked):
			retries++ // what a later sweep would do
		case err != nil:
			return err
		}
	}
	took := time.Since(start)
	stop()
	if err := c.err(); err != nil {
		return err
	}
	if moved != s.limits.releases {
		return fmt.Errorf("%d of %d were moved", moved, s.limits.releases)
	}
	c.report(out, s, took, retries, holds)
	return nil
}

func (c *contention) report(out io.Writer, s settings, took time.Duration, retries int, holds []time.Duration) {
	slices.Sort(holds)
	at := func(p float64) time.Duration { return holds[min(int(p*float64(len(holds))), len(holds)-1)] }
	within := 0
	var total time.Duration
	for _, h := range holds {
		total += h
		if h <= 10*time.Millisecond {
			within++
		}
	}
	fmt.Fprintf(out, "\n%d releases in one directory beside %d processes of host-local 1.10.0 in a loop\n", s.limits.releases, s.limits.contenders)
	fmt.Fprintf(out, "  took %s, of which %s with the lock held; %d ADD and %d DEL of host-local meanwhile, slowest %s ms; %d waits for the lock timed out\n",
		took.Round(time.Millisecond), total.Round(time.Millisecond), c.adds.Load(), c.dels.Load(), ms(time.Duration(c.slowest.Load())), retries)
	fmt.Fprintf(out, "  %d holds, %.1f releases each: p50 %s ms, p90 %s, p99 %s, max %s; within 10 ms: %.2f %% (target: all, up to 10,000 entries)\n",
		len(holds), float64(s.limits.releases)/float64(len(holds)), ms(at(0.5)), ms(at(0.9)), ms(at(0.99)), ms(holds[len(holds)-1]),
		100*float64(within)/float64(len(holds)))
	histogram(out, holds)
}

func histogram(out io.Writer, holds []time.Duration) {
	edges := []time.Duration{1, 2, 3, 4, 5, 6, 8, 10, 20, 50, 100}
	counts := make([]int, len(edges)+1)
	for _, h := range holds {
		i := 0
		for i < len(edges) && h > edges[i]*time.Millisecond {
			i++
		}
		counts[i]++
	}
	for i, c := range counts {
		label := "more     "
		if i < len(edges) {
			label = fmt.Sprintf("<= %3d ms", edges[i])
		}
		fmt.Fprintf(out, "  %s %6d %s\n", label, c, strings.Repeat("#", (60*c+len(holds)-1)/len(holds)))
	}
}

// moves lists the directory with our own driver, so that every move is what a sweep
// would do.
func (n *node) moves(ctx context.Context) ([]hostlocal.Move, error) {
	now := func() claim.Instant { return claim.Instant{Boot: "bench", Wall: time.Now()} }
	snap := hostlocal.New(hostlocal.Config{DataDirs: []string{n.dataDir()}, Clock: now}).List(ctx)
	var moves []hostlocal.Move
	for i, r := range snap.Resources {
		if r.Problem != "" {
			return nil, fmt.Errorf("%s: %s", r.Path, r.Problem)
		}
		moves = append(moves, hostlocal.Move{ReleaseID: fmt.Sprintf("bench-%06d", i), Path: r.Path, Inc: r.Inc})
	}
	return moves, nil
}

// contention is host-local running against our directory.
type contention struct {
	plugin string
	node   *node

	adds, dels atomic.Int64
	slowest    atomic.Int64 // ns
	mu         sync.Mutex
	errs       []error
}

// start runs count loops of ADD and DEL until the returned function is called, which
// may be called twice. A plugin that is running then ends by itself.
func (c *contention) start(ctx context.Context, count int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range count {
		id := c.node.id()
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := errors.Join(c.call("ADD", id), c.call("DEL", id)); err != nil {
					c.mu.Lock()
					c.errs = append(c.errs, err)
					c.mu.Unlock()
					return
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (c *contention) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}

func (c *contention) call(command, id string) error {
	n := c.node
	cmd := exec.Command(c.plugin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + n.path("none"), "CNI_IFNAME=eth0",
		"CNI_PATH=" + filepath.Dir(c.plugin),
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(
		`{"cniVersion":"1.0.0","name":%q,"type":"host-local","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":%q}]]}}`,
		n.network(0), n.dataDir(), n.subnet(0)))
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	start := time.Now()
	if err := c.runHere(cmd); err != nil {
		return fmt.Errorf("host-local %s: %w: %s", command, err, stdout.Bytes())
	}
	took := int64(time.Since(start))
	for old := c.slowest.Load(); took > old && !c.slowest.CompareAndSwap(old, took); old = c.slowest.Load() {
	}
	if command == "ADD" {
		c.adds.Add(1)
	} else {
		c.dels.Add(1)
	}
	return nil
}

// runHere starts a plugin from the thread that lives as long as we do, since the
// plugin dies with the thread that started it.
func (c *contention) runHere(cmd *exec.Cmd) error {
	started := make(chan error)
	c.node.starter <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	return cmd.Wait()
}
