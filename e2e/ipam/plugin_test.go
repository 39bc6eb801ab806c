package ipam

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

// oursPackage is built and put through everything.
const oursPackage = "github.com/holdfast-cni/holdfast/cmd/holdfast-ipam"

// The variables that name the programs; TestMain sets what is not set. With oursEnv
// any program can be tried as ours, for instance host-local with a line changed.
const (
	upstreamEnv = "HOLDFAST_HOST_LOCAL"
	oursEnv     = "HOLDFAST_IPAM_BIN"
)

const (
	upstreamType = "host-local"
	oursType     = "holdfast-ipam"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "hfipam-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// A child of a test that becomes nobody has to be able to start what lies here.
	if err := errors.Join(os.Chmod(dir, 0o755), provide(ctx, dir)); err != nil {
		fmt.Fprintln(os.Stderr, "programs under test:", err)
		return 1
	}
	return m.Run()
}

// provide sets the variables that are not set.
func provide(ctx context.Context, dir string) error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	if os.Getenv(upstreamEnv) == "" {
		root, err := prebuilt.FindRoot(wd)
		if err != nil {
			return err
		}
		cache, err := prebuilt.DefaultCache(os.Getenv)
		if err != nil {
			return err
		}
		dirs, err := prebuilt.Builder{Root: root, Cache: cache, Progress: os.Stderr}.Ensure(ctx, upstreamType)
		if err != nil {
			return err
		}
		if err := os.Setenv(upstreamEnv, filepath.Join(dirs[0], upstreamType)); err != nil {
			return err
		}
	}
	if os.Getenv(oursEnv) != "" {
		return nil
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return err
	}
	bin := filepath.Join(dir, oursType)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-o", bin, oursPackage)
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Setenv(oursEnv, bin)
}

// Plugin is an IPAM program.
type Plugin struct {
	Path string // absolute
	Type string // the word that names it in a configuration
}

func (p Plugin) upstream() bool { return p.Type == upstreamType }

func upstream() Plugin { return Plugin{Path: os.Getenv(upstreamEnv), Type: upstreamType} }

func ours() Plugin { return Plugin{Path: os.Getenv(oursEnv), Type: oursType} }

// programs returns every program that has to keep the contract.
func programs() []Plugin { return []Plugin{upstream(), ours()} }

// call is one run of a plugin.
type call struct {
	env   []string // KEY=VALUE, all that it gets
	stdin string
	dir   string // working directory; empty: the test's

	// killAfter ends the process by SIGKILL this long after its start, if it is not
	// zero and the process still runs.
	killAfter time.Duration
	// killOnCreate ends it as soon as a file appears in this directory, whoever makes
	// it, if it is not empty. That is where a reservation made in steps is half done.
	killOnCreate string
}

// reply is what came of a call.
type reply struct {
	exit           int  // -1 when killed
	killed         bool // by killAfter or killOnCreate
	stdout, stderr string
}

// callTimeout bounds a call. It is generous: the machine may be busy, and a plugin that
// hangs is found by it all the same.
const callTimeout = time.Minute

// run starts the program and waits for its end. The error says that it could not be
// started or hung, never that it exited with a code.
func (p Plugin) run(ctx context.Context, c call) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Path)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Dir = c.env, c.dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &stdout, &stderr
	err := cmd.Start()
	if err != nil {
		return reply{}, err
	}
	var timer *time.Timer
	if c.killAfter > 0 {
		timer = time.AfterFunc(c.killAfter, func() { _ = cmd.Process.Kill() })
	}
	var watch *os.File
	if c.killOnCreate != "" {
		// Set after the start, which takes longer.
		if watch, err = onCreate(c.killOnCreate, func() { _ = cmd.Process.Kill() }); err != nil {
			return reply{}, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
	}
	err = cmd.Wait()
	if watch != nil {
		_ = watch.Close() // ends the reader
	}
	if timer != nil {
		timer.Stop()
	}
	if ctx.Err() != nil {
		return reply{}, fmt.Errorf("%s: %w; stdout %q, stderr %q", filepath.Base(p.Path), ctx.Err(), stdout.String(), stderr.String())
	}
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) && !errors.Is(err, syscall.EPIPE) {
		return reply{}, err
	}
	r := reply{exit: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	r.killed = ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
	return r, nil
}

// onCreate calls do once, when a file appears in the directory, unless what it returns
// is closed first.
func onCreate(dir string, do func()) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return nil, errors.Join(os.NewSyscallError("inotify_add_watch", err), f.Close())
	}
	go func() {
		var event [4096]byte
		if _, err := f.Read(event[:]); err == nil {
			do()
		}
	}()
	return f, nil
}

// request is a call in the words of CNI.
type request struct {
	command string
	id      string
	ifname  string
	netns   string
	args    string // CNI_ARGS
	without string // a variable that is not set
	config  config
	stdin   string // instead of config
	dir     string // working directory
}

// env is CNI's environment and nothing else but the PATH.
func (r request) env() []string {
	out := []string{"PATH=" + os.Getenv("PATH")}
	for _, kv := range [][2]string{
		{"CNI_COMMAND", r.command}, {"CNI_CONTAINERID", r.id}, {"CNI_IFNAME", r.ifname},
		{"CNI_NETNS", r.netns}, {"CNI_ARGS", r.args}, {"CNI_PATH", "/opt/cni/bin"},
	} {
		if kv[1] != "" && kv[0] != r.without {
			out = append(out, kv[0]+"="+kv[1])
		}
	}
	return out
}

func (r request) call(p Plugin) call {
	c := call{env: r.env(), stdin: r.stdin, dir: r.dir}
	if c.stdin == "" {
		c.stdin = r.config.json(p.Type)
	}
	return c
}

// config is a network configuration. ipam and top are members of a JSON object without
// its braces.
type config struct {
	version string // "-" leaves cniVersion out
	name    string
	dataDir string // empty leaves it out
	ipam    string
	top     string
}

func (c config) json(typ string) string {
	var b strings.Builder
	b.WriteString("{")
	if c.version != "-" {
		fmt.Fprintf(&b, `"cniVersion": %q, `, c.version)
	}
	fmt.Fprintf(&b, `"name": %q, "type": "bridge", `, c.name)
	if c.top != "" {
		b.WriteString(c.top + ", ")
	}
	fmt.Fprintf(&b, `"ipam": {"type": %q`, typ)
	if c.dataDir != "" {
		fmt.Fprintf(&b, `, "dataDir": %q`, c.dataDir)
	}
	if typ == oursType && filepath.IsAbs(c.dataDir) {
		// Nothing is left on the machine.
		dir := filepath.Dir(c.dataDir)
		fmt.Fprintf(&b, `, "stateDir": %q, "runDir": %q`, filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	}
	if c.ipam != "" {
		b.WriteString(", " + c.ipam)
	}
	b.WriteString("}}")
	return b.String()
}
