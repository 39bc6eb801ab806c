package web

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	maxConns  = 64
	maxHeader = 16 << 10
	// writeTime leaves room for a CPU profile of 30 s, which is pprof's default.
	writeTime = 60 * time.Second
	// stopTime is short: browsers hold connections on which they never ask, and a half
	// answer is asked for again.
	stopTime = 300 * time.Millisecond
)

// Server serves a Handler to few and slow askers without harm to the agent.
type Server struct {
	Handler http.Handler
	// ErrorLog gets what net/http has to say, such as a panic of a handler; nil is the
	// standard logger.
	ErrorLog *log.Logger
}

// Serve answers on ln until ctx ends, then finishes what it is answering, for a moment. It closes ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler: s.Handler, ErrorLog: s.ErrorLog, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: writeTime, IdleTimeout: 30 * time.Second,
	}
	stopped := make(chan struct{})
	end := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if srv.Shutdown(late) != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(&few{Listener: ln, slots: make(chan struct{}, maxConns)})
	if !end() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// few is a listener with a limit on the connections that are open at once; more wait to be
// accepted.
type few struct {
	net.Listener
	slots chan struct{}
}

func (l *few) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &one{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

type one struct {
	net.Conn
	free func()
}

func (c *one) Close() error {
	defer c.free()
	return c.Conn.Close()
}
