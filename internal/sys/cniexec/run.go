package cniexec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/failpoint"
)

// DefaultTimeout bounds one step. A plugin waits for the xtables lock, which a
// kube-proxy with many services may hold for seconds.
const DefaultTimeout = 20 * time.Second

// DefaultPath is the PATH of plugins and of iptables and nft, when Config names none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	maxOutput = 64 << 10               // bytes kept of each output of a plugin
	maxList   = 64 << 20               // bytes kept of a listing
	waitDelay = 2 * time.Second        // after a kill, for those who left the group
	busyPause = 100 * time.Millisecond // between tries of a binary that is being written
	busyTries = 10
)

// Config says how steps are run.
type Config struct {
	// BinDirs are the CNI bin directories, searched in order. Required for StepDEL.
	BinDirs []string
	// Path is the search path for iptables and nft, here and in plugins. Empty means
	// DefaultPath.
	Path string
	// Timeout bounds each step. 0 means DefaultTimeout.
	Timeout time.Duration
	// InInit reports whether the calling thread is in PID 1's namespace of a kind, "net"
	// or "mnt". Required.
	InInit func(kind string) (bool, error)
	// OpenInit opens PID 1's namespace of a kind. Where our own mounts are others, as in a
	// container, steps are run with PID 1's: its plugins, its iptables, its xtables lock. Nil:
	// they are not run there.
	OpenInit func(kind string) (*os.File, error)
}

// Runner runs steps. Safe for concurrent use; the plugins lock for themselves.
type Runner struct {
	cfg Config
}

// New returns a Runner.
func New(cfg Config) *Runner {
	if cfg.Path == "" {
		cfg.Path = DefaultPath
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &Runner{cfg: cfg}
}

// Run does one step, and looks afterwards whether what it should remove is gone,
// where that can be seen: nat chains of portmap and masquerade, CNI-FORWARD rules of
// firewall, the device of bandwidth. What cannot be seen (no iptables here, portmap's
// nftables backend, firewalld) is taken on the plugin's word. Every step may be run
// again. Errors are *Error.
//
// It runs in the network namespace of the calling thread, which must be PID 1's
// (ErrNotHost), and with PID 1's files, or the xtables lock would be another.
func (r *Runner) Run(ctx context.Context, call Call) error {
	if err := r.onHost(func() error { return r.run(ctx, call) }); err != nil {
		return &Error{Step: call.Step, Plugin: call.Plugin, Attachment: call.Attachment, Err: err}
	}
	return nil
}

func (r *Runner) run(ctx context.Context, call Call) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Timeout, ErrTimeout)
	defer cancel()
	switch call.Step {
	case StepMasquerade:
		return r.masquerade(ctx, call)
	case StepDEL:
		if !inList(call.Plugin) {
			return fmt.Errorf("plugin %s is never run", quote(call.Plugin))
		}
		if err := r.del(ctx, call); err != nil {
			return err
		}
		return r.verify(call)
	}
	return fmt.Errorf("no such step %s", quote(string(call.Step)))
}

// onHost runs f in PID 1's network namespace and with its mounts.
func (r *Runner) onHost(f func() error) error {
	same, err := r.cfg.InInit("net")
	if err == nil && !same {
		return ErrNotHost
	}
	if err == nil {
		same, err = r.cfg.InInit("mnt")
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %v", ErrNotHost, err)
	case same:
		return f()
	case r.cfg.OpenInit == nil:
		return ErrNotHost
	}
	ns, err := r.cfg.OpenInit("mnt")
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotHost, err)
	}
	defer ns.Close()
	// What is started is forked by the thread that starts it, so it is where that is.
	return onDoomedThread(func() error {
		// The caller's thread may have been elsewhere than this one.
		if same, err := r.cfg.InInit("net"); err != nil || !same {
			return ErrNotHost
		}
		// Threads share root and working directory, and a thread that does cannot change
		// its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("%w: unshare(CLONE_FS): %v", ErrNotHost, err)
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("%w: setns: %v", ErrNotHost, err)
		}
		return f()
	})
}

// onDoomedThread runs f on a thread that ends with it. The main thread does not end, so f
// never runs there.
func onDoomedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine keeps the main thread, another runs elsewhere.
			done <- onDoomedThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked
	}()
	return <-done
}

func (r *Runner) del(ctx context.Context, call Call) error {
	path, err := invoke.FindInPath(call.Plugin, r.cfg.BinDirs)
	if err != nil {
		return fmt.Errorf("plugin %s %w in %s", quote(call.Plugin), ErrMissing, quote(strings.Join(r.cfg.BinDirs, ":")))
	}
	if err := failpoint.At(failpoint.DelBefore); err != nil {
		return err
	}
	stdout, stderr, err := r.exec(ctx, command{
		path: path, stdin: call.Stdin,
		env: []string{
			"PATH=" + r.cfg.Path,
			"CNI_COMMAND=DEL",
			"CNI_CONTAINERID=" + call.Attachment.ContainerID,
			"CNI_NETNS=",
			"CNI_IFNAME=" + call.Attachment.IfName,
			"CNI_ARGS=" + call.args,
			"CNI_PATH=" + strings.Join(r.cfg.BinDirs, string(os.PathListSeparator)),
		},
	})
	if err := failpoint.At(failpoint.DelAfter); err != nil {
		return err
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return pluginError(exit.ExitCode(), stdout, stderr)
	}
	return err
}

// pluginError reads what a failed plugin printed: a CNI error on stdout, or anything.
func pluginError(exit int, stdout, stderr []byte) *PluginError {
	e := &PluginError{Exit: exit}
	var said types.Error
	if err := json.Unmarshal(stdout, &said); err == nil && (said.Code != 0 || said.Msg != "") {
		e.Code, e.Msg, e.Details = said.Code, clean(said.Msg), clean(said.Details)
		return e
	}
	if e.Msg = clean(string(stderr)); e.Msg == "" {
		e.Msg = clean(string(stdout))
	}
	return e
}

// command is one process.
type command struct {
	path  string
	args  []string
	env   []string
	stdin []byte
	max   int // bytes kept of each output; 0 means maxOutput
}

// exec runs a process in a group of its own, until it ends or ctx does; then the
// whole group is killed. It returns the first c.max bytes of each output. An exit
// status is an *exec.ExitError; an end by ctx is ctx's cause.
func (r *Runner) exec(ctx context.Context, c command) (stdout, stderr []byte, err error) {
	for try := 1; ; try++ {
		stdout, stderr, err = r.execOnce(ctx, c)
		// The binary is being replaced, or a fork of ours still has it open.
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return stdout, stderr, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(busyPause):
		}
	}
}

func (r *Runner) execOnce(ctx context.Context, c command) ([]byte, []byte, error) {
	if c.max == 0 {
		c.max = maxOutput
	}
	stdout, stderr := head{max: c.max}, head{max: c.max}
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Env, cmd.Dir = c.env, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.stdin), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	err := cmd.Run()
	if ctx.Err() != nil {
		return stdout.b, stderr.b, context.Cause(ctx)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		// It ended well, but a child of it keeps our pipe: no part of the answer.
		err = nil
	}
	return stdout.b, stderr.b, err
}

// head keeps the first max bytes written to it and takes the rest as well, so
// that a talkative process neither fills our memory nor blocks.
type head struct {
	max int
	b   []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.b = append(h.b, p[:min(len(p), h.max-len(h.b))]...)
	return len(p), nil
}
