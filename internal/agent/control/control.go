// Package control is the agent's socket: who may speak to it, and how it answers.
//
// Scope: the socket's place and rights, the peer's credentials, one request for each connection,
// bounds. Non-scope: what the requests mean (cmd wires their handlers), the documents
// (package wire).
package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/wire"
)

const (
	// maxConns bounds the connections at a time; who comes when there are as many waits.
	maxConns = 32
	// readTime bounds how long a request may take to arrive, writeTime each piece of an answer.
	readTime  = 10 * time.Second
	writeTime = 30 * time.Second
)

// Handler answers one request. What it writes to conn is the answer; ctx ends when the other
// side hangs up.
type Handler func(ctx context.Context, request []byte, conn io.Writer)

// Server answers on a socket.
type Server struct {
	// Path is the socket's.
	Path string
	// Handlers are by the kind of request.
	Handlers map[string]Handler
	// Refused is told of each connection that was turned away; may be nil.
	Refused func(why string)

	listener *net.UnixListener
}

// Listen takes the socket's place. It fails where something else lies there, where the directory
// could be another's, and where another agent answers. What a dead agent left is replaced.
func (s *Server) Listen() error {
	dir := filepath.Dir(s.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s: owned by user %d with mode %#o; it must be ours (user %d) and writable by nobody else, or the socket could be replaced", dir, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	switch err := unix.Lstat(s.Path, &st); {
	case err == unix.ENOENT:
	case err != nil:
		return &fs.PathError{Op: "lstat", Path: s.Path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s is in the way: it is no socket; it is left alone", s.Path)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s is in the way: it is user %d's socket; it is left alone", s.Path, st.Uid)
	default:
		if c, err := net.DialTimeout("unix", s.Path, time.Second); err == nil {
			c.Close()
			return fmt.Errorf("%s: another agent answers there", s.Path)
		} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is in the way: %w", s.Path, err)
		}
		if err := os.Remove(s.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.Path, Net: "unix"})
	if err != nil {
		return err
	}
	// Until here anybody could connect, so the peer's credentials are what counts.
	if err := os.Chmod(s.Path, 0o600); err != nil {
		l.Close()
		return err
	}
	s.listener = l
	return nil
}

// Serve answers until ctx ends, then removes the socket and waits for the answers under way.
func (s *Server) Serve(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { s.listener.Close() }) // which removes the socket
	defer stop()
	places := make(chan struct{}, maxConns)
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			// Of descriptors, say, there may be more in a moment.
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			s.answer(ctx, conn)
		})
	}
}

func (s *Server) answer(ctx context.Context, conn *net.UnixConn) {
	w := &writer{conn}
	refuse := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if s.Refused != nil {
			s.Refused(text)
		}
		_ = wire.Write(w, wire.NewError(text, slices.Sorted(maps.Keys(s.Handlers))...))
	}
	uid, err := peer(conn)
	if err != nil || uid != 0 && uid != os.Geteuid() {
		refuse("only root may ask here; you are user %d", uid)
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(readTime))
	in := bufio.NewReader(conn)
	line, head, err := wire.ReadLine(in, wire.MaxLine)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			refuse("no request: %v", err)
		}
		return
	}
	h := s.Handlers[head.Kind]
	if head.APIVersion != wire.APIVersion || h == nil {
		refuse("%q %q is not understood by this version of the agent", head.APIVersion, head.Kind)
		return
	}
	// Nothing more is said by the other side: what ends a read is that it hung up.
	_ = conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	h(ctx, line, w)
	conn.Close()
	<-gone
}

// writer bounds each write: who does not read must not hold a handler.
type writer struct{ conn *net.UnixConn }

func (w *writer) Write(b []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(writeTime))
	return w.conn.Write(b)
}

// peer is the user on the other side of a connection (SO_PEERCRED, unix(7)).
func peer(conn *net.UnixConn) (uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); ctlErr != nil {
		return -1, ctlErr
	}
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}
