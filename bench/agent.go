package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweeps is how many are measured, agentInterval what lies between two of them.
	sweeps        = 20
	agentInterval = time.Second
	// idleTime is how long the agent is watched at its default interval.
	idleTime = 3 * time.Minute
)

// agentPart measures the agent that stays: what a sweep costs when the node is as it was, the
// memory, and what it costs to do nothing.
func agentPart(ctx context.Context, s settings, out io.Writer) error {
	for _, size := range []struct {
		reservations, live int
		memory             string
	}{{s.limits.live, s.limits.live, "at most 64"}, {s.limits.reservations, s.limits.live, "none"}, {s.limits.manyReservs, s.limits.manyNet, "at most 150"}} {
		if err := agentNode(ctx, s, out, size.reservations, size.live, size.memory); err != nil {
			return err
		}
	}
	return nil
}

func agentNode(ctx context.Context, s settings, out io.Writer, reservations, live int, memory string) (err error) {
	n, err := newNode()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.build(ctx, reservations, live); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nagent: %d reservations, %d live\n", reservations, live)
	floor := &summary{name: "floor"}
	for range s.rounds {
		u, err := n.clock(ctx, s.floor, n.dataDir(), n.socket())
		if err != nil {
			return err
		}
		floor.add(u)
	}
	floor.print(out)
	a, err := n.startAgent(s.holdfast, agentInterval)
	if err != nil {
		return err
	}
	wall, cpu, err := a.sweeps(ctx, sweeps)
	peak := a.peak()
	if err = errors.Join(err, a.stop()); err != nil {
		return err
	}
	fmt.Fprintf(out, "  a sweep that finds all as it was: runs %2d  wall median %s ms (min %s, max %s)  CPU mean %s ms\n",
		len(wall), ms(median(wall)), ms(slices.Min(wall)), ms(slices.Max(wall)), ms(cpu))
	fmt.Fprintf(out, "  sweep / floor: wall %.2f, CPU %.2f (target at 10,000: wall at most 2); RSS peak %.1f MB (target: %s)\n",
		ratio(median(wall), median(floor.wall)), ratio(cpu, median(floor.cpu)), float64(peak)/1e6, memory)
	if reservations != live {
		return nil
	}
	if a, err = n.startAgent(s.holdfast, time.Minute); err != nil {
		return err
	}
	begin, err := a.cpu()
	if err == nil {
		err = pauseFor(ctx, idleTime)
	}
	end, cpuErr := a.cpu()
	if err = errors.Join(err, cpuErr, a.stop()); err != nil {
		return err
	}
	fmt.Fprintf(out, "  idle, a sweep a minute, %s: %.2f %% of a core (target: under 0.5)\n", idleTime, 100*float64(end-begin)/float64(idleTime))
	return nil
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// benchAgent is an agent of the node under measurement.
type benchAgent struct {
	cmd  *exec.Cmd
	errs bytes.Buffer
	http string
}

func (n *node) startAgent(holdfast string, interval time.Duration) (*benchAgent, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a := &benchAgent{http: l.Addr().String()}
	l.Close()
	conf := fmt.Sprintf(`apiVersion: holdfast.dev/v1alpha1
kind: AgentConfiguration
interval: %s
paths: {stateDir: %q, runDir: %q, dataDirs: [%q], cniConfDirs: [%q], cniCacheDirs: [%q], cniBinDirs: [%q]}
cri: {endpoints: [%q]}
http: {address: %q}
`, interval, n.path("state"), n.path("run"), n.dataDir(), n.path("net.d"), n.path("cni"), n.path("bin"), "unix://"+n.socket(), a.http)
	if err := os.WriteFile(n.path("agent.yaml"), []byte(conf), 0o600); err != nil {
		return nil, err
	}
	a.cmd = exec.Command(holdfast, "agent", "--config", n.path("agent.yaml"))
	a.cmd.Stderr = &a.errs
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started := make(chan error)
	n.starter <- func() { started <- a.cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, count, err := a.durations(); err == nil && count > 0 {
			return a, nil
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("the agent has made no sweep: %s", a.errs.Bytes()), a.stop())
		}
	}
}

func (a *benchAgent) stop() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	if err := a.cmd.Wait(); err != nil {
		return fmt.Errorf("the agent: %w: %s", err, a.errs.Bytes())
	}
	return nil
}

// sweeps waits for so many sweeps and returns how long each took, and what one cost.
func (a *benchAgent) sweeps(ctx context.Context, count int) (wall []time.Duration, cpu time.Duration, err error) {
	// The first ones read everything, and files that are young.
	if err := pauseFor(ctx, 3*agentInterval); err != nil {
		return nil, 0, err
	}
	sum, n, err := a.durations()
	if err != nil {
		return nil, 0, err
	}
	begin, err := a.cpu()
	if err != nil {
		return nil, 0, err
	}
	for deadline := time.Now().Add(5 * time.Minute); len(wall) < count; {
		if err := pauseFor(ctx, 20*time.Millisecond); err != nil {
			return nil, 0, err
		}
		s, m, err := a.durations()
		if err != nil {
			return nil, 0, err
		}
		if m == n+1 { // one whose time is known alone
			wall = append(wall, s-sum)
		}
		sum, n = s, m
		if time.Now().After(deadline) {
			return nil, 0, errors.New("the agent does not sweep")
		}
	}
	end, err := a.cpu()
	return wall, (end - begin) / time.Duration(count), err
}

// durations are the sum and the number of sweeps, from /metrics.
func (a *benchAgent) durations() (sum time.Duration, count int, err error) {
	resp, err := http.Get("http://" + a.http + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case strings.HasPrefix(name, "holdfast_sweep_duration_seconds_sum"):
			sum += time.Duration(v * 1e9)
		case strings.HasPrefix(name, "holdfast_sweep_duration_seconds_count"):
			count += int(v)
		}
	}
	return sum, count, lines.Err()
}

// cpu is the processor time so far, of 10 ms ticks.
func (a *benchAgent) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 13 {
		return 0, errors.New("/proc/PID/stat is short")
	}
	user, err1 := strconv.Atoi(f[11])
	sys, err2 := strconv.Atoi(f[12])
	return time.Duration(user+sys) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// peak is the largest resident size so far, in bytes.
func (a *benchAgent) peak() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}
