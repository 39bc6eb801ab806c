package cri

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// asNobody runs f as a user who may not pass the directory's or socket's mode: on a
// thread of its own that takes another file system UID, where this is root.
func asNobody(f func()) {
	if os.Geteuid() != 0 {
		f()
		return
	}
	_ = testenv.OnDoomedThread(func() error {
		_, _ = unix.SetfsuidRetUid(65534)
		f()
		return nil
	})
}

func TestPermissionDenied(t *testing.T) {
	d, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(d)
	closedDir := filepath.Join(d, "closed")
	for _, p := range []string{d, closedDir} {
		_ = os.Mkdir(p, 0o755)
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket, hidden := filepath.Join(d, "a.sock"), filepath.Join(closedDir, "a.sock")
	for _, p := range []string{socket, hidden} {
		l, err := net.Listen("unix", p)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	try := func(path string) error {
		var err error
		asNobody(func() {
			if _, err = locate(path); err != nil {
				return
			}
			var c *net.UnixConn
			if c, err = dial(context.Background(), path); err == nil {
				c.Close()
			}
		})
		return err
	}
	for _, p := range []string{socket, hidden} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := try(p); err != nil {
			t.Errorf("an open socket: %v", err)
		}
	}
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closedDir, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closedDir, 0o755)
	for _, p := range []string{socket, hidden} {
		err := try(p)
		if !errors.Is(err, unix.EACCES) {
			t.Errorf("a closed one: %v, want EACCES", err)
		}
		// Never a proof that nothing is there, since nothing was seen.
		if text, proves := explain(err, time.Second); text != "permission denied" || proves != provesNothing {
			t.Errorf("%q proves %d", text, proves)
		}
	}
}

// A listener whose queue is full refuses with EAGAIN, which looks like neither a
// refusal nor a hang and must not prove anything.
func TestFullBacklog(t *testing.T) {
	d, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(d)
	path := filepath.Join(d, "a.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	for range 4 {
		c, err := dial(ctx, path)
		if err == nil {
			defer c.Close()
			continue
		}
		if _, proves := explain(err, time.Second); proves != provesNothing {
			t.Errorf("%v proves %d", err, proves)
		}
		return
	}
	t.Error("the queue never filled")
}

func TestDialLongName(t *testing.T) {
	// The last element alone is longer than connect(2) takes.
	d, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(d)
	short, long := filepath.Join(d, "s"), filepath.Join(d, strings.Repeat("n", 200))
	l, err := net.Listen("unix", short)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Rename(short, long); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{len(long), maxSunPath, maxSunPath + 1} {
		name := long
		if n != len(long) {
			name = filepath.Join(d, strings.Repeat("e", n-len(d)-1))
			if err := os.Link(long, name); err != nil {
				t.Fatal(err)
			}
		}
		c, err := dial(t.Context(), name)
		if err != nil {
			t.Errorf("%d bytes: %v", len(name), err)
			continue
		}
		if pid := peerPID(c); pid != os.Getpid() {
			t.Errorf("%d bytes: peer %d", len(name), pid)
		}
		c.Close()
	}
}

// One item that never comes back, such as a stat(2) on a dead mount, neither holds
// the others up nor the answer beyond its bound.
func TestEachIsBounded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	stuck := make(chan struct{})
	defer close(stuck)
	start := time.Now()
	got := each(ctx, []int{1, 2, 3}, func(i int) string {
		if i == 2 {
			<-stuck
		}
		return "came"
	}, func(int) string { return "late" })
	if got[0] != "came" || got[1] != "late" || got[2] != "came" {
		t.Errorf("%q", got)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

// A path whose file system hangs silences the testimony by its own name, and the
// runtimes beside it still answer.
func TestHangingPath(t *testing.T) {
	clock := func() claim.Instant { return claim.Instant{} }
	w, err := New(Config{Known: []string{"/hangs/x.sock"}, WellKnown: []string{"/nowhere/y.sock"}, Clock: clock, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	<-w.endpoints[0].look // a stat(2) that is still under way
	for range 2 {
		start := time.Now()
		got := w.Ask(t.Context(), false)
		if got.State != claim.StateSilent || len(got.CRI.Runtimes) != 1 || !strings.Contains(got.Detail, "/hangs/x.sock: no whole answer") {
			t.Errorf("%s: %s", got.State, got.Detail)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	}
}
