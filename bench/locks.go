package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	q := &hostlocal.Quarantine{Dir: n.path("state", "quarantine")}
	if err := os.MkdirAll(n.path("state"), 0o700); err != nil {
		return err
	}
	var holds []time.Duration
	opt := hostlocal.ReleaseOptions{Held: func(d time.Duration) { holds = append(holds, d) }}
	c, err := n.contend(filepath.Join(bin, "host-local"), s.limits.contenders)
	if err != nil {
		return err
	}
	time.Sleep(time.Second) // until all of them run
	start := time.Now()
	moved, retries, err := n.release(ctx, q, moves, opt)
	took := time.Since(start)
	if err = errors.Join(err, c.stop()); err != nil {
		return err
	}
	if moved != s.limits.releases {
		return fmt.Errorf("%d of %d were moved", moved, s.limits.releases)
	}
	c.print(out, s, took, retries, holds)
	return nil
}

// release moves until all are moved, a lock that came too late notwithstanding.
func (n *node) release(ctx context.Context, q *hostlocal.Quarantine, moves []hostlocal.Move, opt hostlocal.ReleaseOptions) (moved, retries int, err error) {
	dir := filepath.Join(n.dataDir(), n.network(0))
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
				return moved, retries, fmt.Errorf("%s is %s", moves[i].Path, o.State)
			}
		}
		moves = rest
		var locked *hostlocal.ErrLocked
		switch {
		case errors.As(err, &locked):
			retries++ // what a later sweep would do
		case err != nil:
			return moved, retries, err
		}
	}
	return moved, retries, nil
}

func (c *contention) print(out io.Writer, s settings, took time.Duration, retries int, holds []time.Duration) {
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
		took.Round(time.Millisecond), total.Round(time.Millisecond), c.Adds, c.Dels, ms(c.Slowest), retries)
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

// contention is host-local running against our directory, from a process of its own: its
// starting of processes must not stand between us and a processor while we hold the lock.
type contention struct {
	cmd    *exec.Cmd
	report *os.File

	Adds, Dels int64
	Slowest    time.Duration
	Err        string // of the first that failed
}

// start runs count loops of ADD and DEL until stop is called.
func (n *node) contend(plugin string, count int) (*contention, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	c := &contention{report: r}
	c.cmd = exec.Command(n.self, roleContend, plugin, n.network(0), n.dataDir(), n.subnet(0), strconv.Itoa(count))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	c.cmd.ExtraFiles = []*os.File{w}
	c.cmd.Stderr = os.Stderr
	started := make(chan error)
	n.starter <- func() { started <- c.cmd.Start() }
	if err := <-started; err != nil {
		r.Close()
		return nil, err
	}
	return c, nil
}

// stop ends the loops, each after its call, and takes what they report.
func (c *contention) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // Wait says whether it had ended before
	err := json.NewDecoder(c.report).Decode(c)
	err = errors.Join(c.cmd.Wait(), err, c.report.Close())
	if c.Err != "" {
		err = errors.Join(err, errors.New(c.Err))
	}
	return err
}

// contendMain is the process of contention.
func contendMain(args []string) error {
	plugin, network, dataDir, subnet := args[0], args[1], args[2], args[3]
	count, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	unix.CloseOnExec(reportFD)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"host-local","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":%q}]]}}`,
		network, dataDir, subnet)
	call := func(command, id string) (time.Duration, error) {
		cmd := exec.Command(plugin)
		cmd.Env = []string{
			"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + filepath.Join(dataDir, "none"), "CNI_IFNAME=eth0",
			"CNI_PATH=" + filepath.Dir(plugin),
		}
		cmd.Stdin = strings.NewReader(config)
		start := time.Now()
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("host-local %s: %w: %s", command, err, out)
		}
		return time.Since(start), err
	}
	var mu sync.Mutex
	var sum contention
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			id := fmt.Sprintf("%064x", i+1)
			for ctx.Err() == nil {
				add, err := call("ADD", id)
				del, err2 := call("DEL", id)
				mu.Lock()
				sum.Adds, sum.Dels, sum.Slowest = sum.Adds+1, sum.Dels+1, max(sum.Slowest, add, del)
				if err = errors.Join(err, err2); err != nil && sum.Err == "" {
					sum.Err = err.Error()
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.NewFile(reportFD, "report")).Encode(&sum)
}
