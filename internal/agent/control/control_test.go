package control

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/wire"
)

const request = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"StatusRequest"}` + "\n"

func serve(t *testing.T, handlers map[string]Handler) (path string, refused chan string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "run", "agent.sock")
	refused = make(chan string, 10)
	s := &Server{Path: path, Handlers: handlers, Refused: func(why string) { refused <- why }}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Serve(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the socket stays: %v", err)
		}
	})
	return path, refused
}

func ask(t *testing.T, path, text string) string {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return line
}

func TestAnswers(t *testing.T) {
	path, refused := serve(t, map[string]Handler{wire.KindStatusRequest: func(_ context.Context, line []byte, w io.Writer) {
		_, _ = w.Write(line)
	}})
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if got := ask(t, path, request); got != request {
		t.Errorf("%q", got)
	}
	for name, c := range map[string]struct{ text, want string }{
		"another kind":    {`{"apiVersion":"holdfast.dev/v1alpha1","kind":"Later"}` + "\n", `"knows":["StatusRequest"]`},
		"another version": {`{"apiVersion":"holdfast.dev/v9","kind":"StatusRequest"}` + "\n", "not understood"},
		"no JSON":         {"GET / HTTP/1.1\r\n", "no whole document"},
	} {
		if got := ask(t, path, c.text); !strings.Contains(got, c.want) || !strings.Contains(got, `"kind":"Error"`) {
			t.Errorf("%s: %q does not say %q", name, got, c.want)
		}
		if why := <-refused; why == "" {
			t.Errorf("%s: refused without a word", name)
		}
	}
	// Nothing said is no mistake.
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	select {
	case why := <-refused:
		t.Errorf("refused a silent one: %s", why)
	case <-time.After(50 * time.Millisecond):
	}
}

// Who hangs up ends the handler's context.
func TestHangUp(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	path, _ := serve(t, map[string]Handler{wire.KindStatusRequest: func(ctx context.Context, _ []byte, _ io.Writer) {
		close(begun)
		<-ctx.Done()
		close(ended)
	}})
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	<-begun
	select {
	case <-ended:
		t.Fatal("ended while the other side waits")
	case <-time.After(50 * time.Millisecond):
	}
	conn.Close()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("goes on though nobody waits")
	}
}

func TestPlace(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir, path string)
		want    string // of the error; "" for none
	}{
		"nothing there": {func(*testing.T, string, string) {}, ""},
		"a file in the way": {func(t *testing.T, _, path string) {
			if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "no socket; it is left alone"},
		"a link in the way": {func(t *testing.T, dir, path string) {
			if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
				t.Fatal(err)
			}
		}, "no socket; it is left alone"},
		"a dead agent's": {func(t *testing.T, _, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		}, ""},
		"a living agent's": {func(t *testing.T, _, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "another agent answers"},
		"a directory that others can write": {func(t *testing.T, dir, _ string) {
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}, "writable by nobody else"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "agent.sock")
			c.prepare(t, dir, path)
			before, _ := os.Lstat(path)
			s := &Server{Path: path}
			err := s.Listen()
			if err == nil {
				s.listener.Close()
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if err != nil && before != nil {
				if after, _ := os.Lstat(path); after == nil || !os.SameFile(before, after) {
					t.Error("what was in the way was touched")
				}
			}
		})
	}
}
