package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

const (
	pollEvery = 50 * time.Millisecond
	// readyWithin is far beyond what a busy machine takes (some seconds).
	readyWithin = 90 * time.Second
	// stopWithin is how long a program may take to end after SIGTERM.
	stopWithin = 30 * time.Second
)

// Program is one process of the room: it can be killed, stopped and started again over
// what it left. Its methods are for one goroutine at a time.
type Program struct {
	Name string
	Log  string // a file; each start appends

	args []string
	// within runs a function on a thread in the namespaces where the program belongs.
	within func(func() error) error
	// ready reports an error as long as the program does not serve.
	ready func(context.Context) error

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
}

// Start starts the program and waits until it serves. One that runs is left alone.
func (p *Program) Start(t testing.TB) {
	t.Helper()
	if p.Alive() {
		return
	}
	if err := p.launch(); err != nil {
		t.Fatalf("start %s: %v", p.Name, err)
	}
	p.await(t)
}

// launch starts the program and does not wait for it.
func (p *Program) launch() error {
	logFile, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close() // the child has its own
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// A test binary that is killed takes the program along. The signal comes when the
	// thread ends that forked, so that thread waits.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(exited)
		ran := false
		err := p.within(func() error {
			ran = true
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait() // how it ended is in its log
			}
			return nil
		})
		if !ran {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		<-exited
		return err
	}
	p.cmd, p.exited = cmd, exited
	return nil
}

// await waits until the program serves.
func (p *Program) await(t testing.TB) {
	t.Helper()
	until(t, readyWithin, p.Name+" serves", func() error {
		if !p.Alive() {
			t.Fatalf("%s ended\n%s", p.Name, p.LogTail())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return p.ready(ctx)
	})
}

// Kill ends the program with SIGKILL and waits for its end.
func (p *Program) Kill(t testing.TB) { t.Helper(); p.end(t, syscall.SIGKILL) }

// Stop ends the program with SIGTERM and waits for its end.
func (p *Program) Stop(t testing.TB) { t.Helper(); p.end(t, syscall.SIGTERM) }

func (p *Program) end(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := p.signal(sig); err != nil {
		t.Errorf("%s of %s: %v", sig, p.Name, err)
	}
}

func (p *Program) signal(sig syscall.Signal) error {
	if !p.Alive() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopWithin):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return fmt.Errorf("not within %s; killed\n%s", stopWithin, p.LogTail())
}

// Freeze stops the program in its tracks with SIGSTOP: its sockets accept, and nothing
// answers. Thaw lets it go on.
func (p *Program) Freeze(t testing.TB) { t.Helper(); p.send(t, syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (p *Program) Thaw(t testing.TB) { t.Helper(); p.send(t, syscall.SIGCONT) }

func (p *Program) send(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if !p.Alive() {
		t.Fatalf("%s to %s, which does not run", sig, p.Name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%s to %s: %v", sig, p.Name, err)
	}
}

// Alive reports whether the program runs.
func (p *Program) Alive() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// PID returns the process ID, 0 if the program does not run.
func (p *Program) PID() int {
	if !p.Alive() {
		return 0
	}
	return p.cmd.Process.Pid
}

// LogTail is the end of the program's log, for messages.
func (p *Program) LogTail() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	lines = lines[max(0, len(lines)-15):]
	for i, l := range lines {
		lines[i] = l[:min(len(l), 400)]
	}
	return "the end of the log of " + p.Name + ":\n" + string(bytes.Join(lines, []byte("\n")))
}

// until waits until f returns nil, and fails the test with its last error when the time
// is over.
func until(t testing.TB, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(pollEvery)
	}
}
