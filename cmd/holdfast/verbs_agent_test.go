package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// agentConfig: agent-conf [key=value ...] writes the agent's configuration: the script's places, a
// sweep every second, a grace of 300 ms, and what is said. A key may have dots.
func (w *world) agentConf(ts *testscript.TestScript, args []string) {
	set := map[string]string{"interval": "1s", "grace": "300ms", "orphanGrace": "600ms", "http.address": "none", "log.format": "text"}
	top := map[string][]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			ts.Fatalf("usage: agent-conf [key=value ...]")
		}
		set[k] = v
	}
	for k, v := range set {
		head, rest, nested := strings.Cut(k, ".")
		if !nested {
			top[head] = []string{v}
			continue
		}
		top[head] = append(top[head], "  "+rest+": "+v)
	}
	text := "apiVersion: holdfast.dev/v1alpha1\nkind: AgentConfiguration\n"
	text += fmt.Sprintf("paths: {dataDirs: [%[1]s/data], cniConfDirs: [%[1]s/conf], cniCacheDirs: [%[1]s/cache], cniBinDirs: [%[1]s/bin]}\ncri: {endpoints: [%[2]q]}\n", w.dir, w.endpoint)
	for k, lines := range top {
		if strings.HasPrefix(lines[0], "  ") {
			text += k + ":\n" + strings.Join(lines, "\n") + "\n"
		} else {
			text += k + ": " + lines[0] + "\n"
		}
	}
	path := filepath.Join(w.dir, "agent.yaml")
	ts.Check(os.WriteFile(path+".new", []byte(text), 0o644))
	ts.Check(os.Rename(path+".new", path))
}

// ask: ask [CODE] VERB [args ...] runs a command with no more places than an agent may be told.
func (w *world) ask(ts *testscript.TestScript, args []string) {
	w.asking = true
	defer func() { w.asking = false }()
	w.holdfast(ts, args)
}

// awaitSaid: await-said NAME TEXT waits until a job has printed a text.
func (w *world) awaitSaid(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "await-said NAME TEXT")
	j := w.running[args[0]]
	if j == nil {
		ts.Fatalf("no job %q", args[0])
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(j.err.String(), args[1]) {
			return
		}
	}
	ts.Fatalf("%s has not said %q:\n%s", args[0], args[1], j.err.String())
}

// hangUp: hf-signal NAME hup|term sends a signal.
func (w *world) signal(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "hf-signal NAME hup|term")
	j := w.running[args[0]]
	sig := map[string]syscall.Signal{"hup": syscall.SIGHUP, "term": syscall.SIGTERM}[args[1]]
	if j == nil || sig == 0 {
		ts.Fatalf("usage: hf-signal NAME hup|term")
	}
	ts.Check(j.cmd.Process.Signal(sig))
}

// awaitGone: await-gone NET NAME waits until a reservation is gone; await-file waits for one.
func (w *world) awaitGone(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "await-gone NET NAME")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(w.store(args[0]), args[1])); os.IsNotExist(err) {
			return
		}
	}
	ts.Fatalf("%s/%s is still there", args[0], args[1])
}

// awaitJournal: await-journal ADDR STATE waits until the newest entry of an address is so.
func (w *world) awaitJournal(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "await-journal ADDR STATE")
	got := "none"
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, e := range w.journal() {
			if e.Release != nil && e.Release.Addr.String() == args[0] {
				got = string(e.State)
			}
		}
		if got == args[1] {
			return
		}
	}
	ts.Fatalf("the journal calls %s %s, want %s", args[0], got, args[1])
}

// sendAgent: send-agent FILE sends a request to the agent's socket; the answer is the next stdout.
func (w *world) sendAgent(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "send-agent FILE")
	path := filepath.Join(w.dir, "run", "agent.sock")
	var conn net.Conn
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if conn, err = net.Dial("unix", path); err == nil {
			break
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v", err)
		}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, err := conn.Write([]byte(ts.ReadFile(args[0])))
	ts.Check(err)
	answer, err := io.ReadAll(conn)
	ts.Check(err)
	out, none := filepath.Join(w.dir, "answer.stdout"), filepath.Join(w.dir, "answer.stderr")
	ts.Check(os.WriteFile(out, answer, 0o644))
	ts.Check(os.WriteFile(none, nil, 0o644))
	ts.Check(ts.Exec("within", "replay", out, none))
}

// smallState: small-state SIZE puts the state directory onto a file system of that many bytes.
func (w *world) smallState(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "small-state SIZE")
	dir := filepath.Join(w.dir, "state")
	ts.Check(os.MkdirAll(dir, 0o700))
	ts.Check(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+args[0]))
	w.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			w.t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// fillState fills what is left of it, or with "off" makes room again.
func (w *world) fillState(ts *testscript.TestScript, args []string) {
	arity(ts, args, 0, 1, "fill-state [off]")
	path := filepath.Join(w.dir, "state", "filler")
	if len(args) == 1 {
		ts.Check(os.Remove(path))
		return
	}
	f, err := os.Create(path)
	ts.Check(err)
	defer f.Close()
	for _, size := range []int{4096, 1} {
		for err = nil; err == nil; _, err = f.Write(make([]byte, size)) {
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		ts.Fatalf("%v", err)
	}
}
