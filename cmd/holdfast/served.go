package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/control"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/wire"
)

// handlers are what the agent answers on its socket.
func (s *service) handlers() map[string]control.Handler {
	return map[string]control.Handler{
		wire.KindHealRequest:   s.heal,
		wire.KindRunRequest:    s.runCommand,
		wire.KindStatusRequest: s.status,
	}
}

func (s *service) status(_ context.Context, _ []byte, conn io.Writer) {
	why := s.ready()
	_ = wire.Write(conn, wire.Status{
		Head: wire.Head{APIVersion: wire.APIVersion, Kind: wire.KindStatus}, Node: s.conf.NodeName, Version: version, Commit: commit, PID: os.Getpid(),
		StateDir: s.conf.Paths.StateDir, Ready: why == "", NotReady: why,
	})
}

// heal is one emergency sweep of one network for holdfast-ipam, bounded in time. What waits for
// another sweep to end counts.
func (s *service) heal(ctx context.Context, line []byte, conn io.Writer) {
	p := wire.HealResponse{APIVersion: wire.APIVersion, Kind: wire.KindHealResponse}
	q, err := wire.ReadRequest(strings.NewReader(string(line)))
	if err == nil {
		err = checkHeal("request", q)
	}
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, healLimit)
		defer cancel()
		exErr := s.agent.Exclusive(limited, func() { err = s.healNow(limited, q, &p) })
		if exErr != nil {
			err = fmt.Errorf("the agent is at work on another sweep: %w", exErr)
		}
	}
	if err != nil {
		p.Error = report.Clean(err.Error())
	}
	_ = wire.Write(conn, p)
}

func (s *service) healNow(ctx context.Context, q wire.HealRequest, p *wire.HealResponse) error {
	if err := s.node.open(); err != nil {
		return err
	}
	n, restore := s.node.n.forHeal(q, s.conf.PressureGrace)
	defer restore()
	r := &sweepRun{a: &app{opts: n.o, sink: s.node.app.sink}, n: n, dryRun: s.conf.DryRun}
	pass := &agent.Pass{Trigger: agent.OnHeal, Node: s.conf.NodeName, Started: n.clock.Now()}
	s.node.settle(ctx, r)
	err := r.heal(ctx, q, p)
	if pass.Err = err; err != nil {
		s.node.settled = false // an intent may be without its outcome
	}
	s.node.fill(pass, r)
	if d, ok := n.clock.Now().Since(pass.Started); ok {
		pass.Took = d
	}
	s.agent.Tell(ctx, pass)
	return err
}

// servedVerbs are the commands that the agent does in the CLI's place: they need the reaper's
// locks, which it holds. servedFlags are what may be said with them; everything else is the
// agent's configuration.
var (
	servedVerbs = []string{"gc", "undo"}
	servedFlags = []string{
		"output", "run-dir", "state-dir", "proc", "network", "max-releases", "force-over-cap", "no-del", "adopt", "orphans", "foreign", "wait", "dry-run", "last", "all-since", "help",
	}
)

// runCommand does one command and sends what it prints.
func (s *service) runCommand(ctx context.Context, line []byte, conn io.Writer) {
	var q wire.RunRequest
	if err := json.Unmarshal(line, &q); err != nil {
		_ = wire.Write(conn, wire.NewError(err.Error()))
		return
	}
	s.log.Info("a command by the socket", "args", report.Clean(strings.Join(q.Args, " ")), "version", report.Clean(q.Version))
	f := newFrames(conn)
	code := s.command(ctx, q.Args, f)
	f.end(wire.Frame{Exit: &code})
}

// frames sends pieces. Up to maxFrames of them wait for who does not read, as a pager does not:
// meanwhile the node is another's turn. What cannot be sent is dropped with all that follows, since
// what was begun is ended.
type frames struct {
	queue chan wire.Frame
	sent  chan struct{}
}

// maxFrames of wire.MaxFrame bytes are 4 MiB: what gc says of some thousand addresses.
const maxFrames = 64

func newFrames(w io.Writer) *frames {
	f := &frames{queue: make(chan wire.Frame, maxFrames), sent: make(chan struct{})}
	go func() {
		defer close(f.sent)
		var err error
		for fr := range f.queue {
			if err == nil {
				err = wire.Write(w, fr)
			}
		}
	}()
	return f
}

func (f *frames) send(fr wire.Frame) { f.queue <- fr }

// end sends the last one, and waits until all are sent or dropped.
func (f *frames) end(last wire.Frame) {
	f.send(last)
	close(f.queue)
	<-f.sent
}

// pipe is a file whose text goes out as frames, and the function that ends it.
func (f *frames) pipe(frame func([]byte) wire.Frame) (*os.File, func(), error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, wire.MaxFrame)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				f.send(frame(slices.Clone(buf[:n])))
			}
			if err != nil {
				return
			}
		}
	}()
	return w, func() { w.Close(); <-done; r.Close() }, nil
}

func (s *service) command(ctx context.Context, args []string, f *frames) int {
	stdout, endOut, err := f.pipe(func(b []byte) wire.Frame { return wire.Frame{Stdout: b} })
	if err != nil {
		return exitFailed
	}
	defer endOut()
	stderr, endErr, err := f.pipe(func(b []byte) wire.Frame { return wire.Frame{Stderr: b} })
	if err != nil {
		return exitFailed
	}
	defer endErr()
	a := &app{stdout: stdout, stderr: stderr, opts: &options{}, args: args, served: s}
	root := newRoot(a)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return s.mayRun(cmd) }
	code := exitFailed
	if err := s.agent.Exclusive(ctx, func() { code = execute(ctx, a, root, args) }); err != nil {
		a.say("interrupted before its turn came: the agent is at work on another sweep")
	}
	return code
}

// mayRun refuses what is not for the agent to do, or is its configuration's.
func (s *service) mayRun(cmd *cobra.Command) error {
	if !slices.Contains(servedVerbs, cmd.Name()) {
		return usagef("the agent does %s for the CLI, not %s", strings.Join(servedVerbs, " and "), cmd.Name())
	}
	var err error
	cmd.Flags().Visit(func(fl *pflag.Flag) {
		own := map[string]string{"state-dir": s.conf.Paths.StateDir, "run-dir": s.conf.Paths.RunDir, "proc": s.conf.Paths.Proc}
		switch {
		case !slices.Contains(servedFlags, fl.Name):
			err = errors.Join(err, usagef("--%s: an agent (PID %d) is this node's reaper, and its configuration says that", fl.Name, os.Getpid()))
		case own[fl.Name] != "" && filepath.Clean(fl.Value.String()) != filepath.Clean(own[fl.Name]):
			err = errors.Join(err, usagef("--%s %s: the agent (PID %d) has %s", fl.Name, fl.Value, os.Getpid(), own[fl.Name]))
		}
	})
	return err
}

// open is openNode, or in the agent's process the agent's node.
func (a *app) open(want access) (n *node, closeNode func(), err error) {
	if a.served != nil {
		return a.served.node.borrow(a.opts, want)
	}
	if n, err = openNode(a.opts, want); err != nil {
		return nil, nil, err
	}
	return n, n.Close, nil
}

// tell lets the agent's observers know what a command has done, if this is the agent.
func (a *app) tell(ctx context.Context, r *sweepRun) {
	if a.served == nil {
		return
	}
	p := &agent.Pass{Trigger: agent.OnRequest, Node: a.served.conf.NodeName, Started: r.n.clock.Now(), Err: r.err}
	a.served.node.fill(p, r)
	a.served.agent.Tell(ctx, p)
}

// askStatus asks the agent of this node how it is, for a second at most.
func askStatus(ctx context.Context, runDir string) (st wire.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(runDir, "agent.sock"))
	if err != nil {
		return st, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := wire.Write(conn, wire.Head{APIVersion: wire.APIVersion, Kind: wire.KindStatusRequest}); err != nil {
		return st, err
	}
	line, head, err := wire.ReadLine(bufio.NewReader(conn), wire.MaxLine)
	if err == nil && head.Kind != wire.KindStatus {
		err = fmt.Errorf("it answers with %q", head.Kind)
	}
	if err == nil {
		err = json.Unmarshal(line, &st)
	}
	if err != nil {
		return wire.Status{}, err
	}
	return st, nil
}

// beginTime is how long an agent may take from its locks to its socket.
const beginTime = 3 * time.Second

// reaperBusy reports whether another process is the reaper of our state directory.
func (a *app) reaperBusy() bool {
	r, err := hostlocal.AcquireReaper(nil, a.opts.runDir, a.opts.stateDir)
	if err == nil {
		r.Close()
	}
	var busy *hostlocal.ErrBusy
	return errors.As(err, &busy)
}

// viaAgent has the agent of this node do the command, if there is one; done is false when
// nobody answers and the command is ours to do.
func (a *app) viaAgent(ctx context.Context) (done bool, err error) {
	if a.served != nil {
		return false, nil
	}
	path := filepath.Join(a.opts.runDir, "agent.sock")
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	// An agent that has just begun has the locks before it has the socket.
	for until := time.Now().Add(beginTime); err != nil && a.reaperBusy() && time.Now().Before(until) && ctx.Err() == nil; {
		pause(ctx, 100*time.Millisecond)
		conn, err = d.DialContext(ctx, "unix", path)
	}
	if err != nil {
		// Nobody there. If there is an agent all the same, its locks say so.
		return false, nil
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	q := wire.RunRequest{Head: wire.Head{APIVersion: wire.APIVersion, Kind: wire.KindRunRequest}, Args: a.args, Version: version}
	if err := wire.Write(conn, q); err != nil {
		return true, fmt.Errorf("agent at %s: %w", path, err)
	}
	in := bufio.NewReader(conn)
	for {
		line, head, err := wire.ReadLine(in, wire.MaxLine)
		if err != nil {
			if ctx.Err() != nil {
				return true, errors.New("interrupted; what the agent has begun it brings to its end")
			}
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				err = errors.New("it went away before the command had ended; `holdfast journal` says what was done")
			}
			return true, fmt.Errorf("agent at %s: %w", path, err)
		}
		if head.Kind == wire.KindError {
			var e wire.Error
			_ = json.Unmarshal(line, &e)
			return true, withheldError{fmt.Errorf("agent at %s: %s", path, e.Error)}
		}
		var f wire.Frame
		if err := json.Unmarshal(line, &f); err != nil {
			return true, fmt.Errorf("agent at %s: %w", path, err)
		}
		_, _ = a.stderr.Write(f.Stderr)
		if _, err := a.stdout.Write(f.Stdout); err != nil {
			return true, fmt.Errorf("output: %w", err)
		}
		if f.Exit != nil {
			if *f.Exit == exitOK {
				return true, nil
			}
			return true, exitError(*f.Exit)
		}
	}
}

// reopen is open after a wait, unless that failed.
func reopen(a *app, want access, waited error) (*node, func(), error) {
	if waited != nil {
		return nil, nil, waited
	}
	return a.open(want)
}
