package critest

import (
	"errors"
	"net"
	"sync"
)

// errCut is what the server's own side sees when the script cuts a connection.
var errCut = errors.New("cut off by the script")

// listener hands out connections that the script can cut.
type listener struct {
	*net.UnixListener
	server *Server

	mu    sync.Mutex
	conns []*conn
	armed bool
	left  int // bytes that may still be written once armed
}

// Accept waits for the next connection. In mode Mute it keeps the connection to
// itself: the caller is connected and never hears a byte.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.UnixListener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, l: l}
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
		if l.server.count("accept") != Mute {
			return c, nil
		}
	}
}

// cutAfter lets that many more bytes out, over all connections, and then closes the
// connection that would exceed them.
func (l *listener) cutAfter(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed, l.left = true, bytes
}

// dropAll closes the listener and every connection.
func (l *listener) dropAll() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Conn.Close()
	}
	l.conns = nil
}

type conn struct {
	net.Conn
	l *listener
}

// Write writes all, or in the middle of a cut a part, and closes.
func (c *conn) Write(p []byte) (int, error) {
	c.l.mu.Lock()
	allowed := len(p)
	if c.l.armed {
		allowed = min(allowed, c.l.left)
		c.l.left -= allowed
		if allowed < len(p) {
			c.l.armed = false
		}
	}
	c.l.mu.Unlock()
	n, err := c.Conn.Write(p[:allowed])
	if err == nil && allowed < len(p) {
		_ = c.Conn.Close()
		err = errCut
	}
	return n, err
}
