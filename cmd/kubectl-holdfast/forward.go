package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// forwarder reaches ports of Pods through the API server.
type forwarder struct {
	config    *rest.Config
	pods      *url.URL // of the collection
	namespace string
}

// dial connects to a port of a Pod's loopback, without a port on this machine that others
// could use. The connection ends with ctx.
func (f *forwarder) dial(ctx context.Context, pod string, port int32) (net.Conn, error) {
	type dialled struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		var d dialled
		d.conn, d.err = f.open(pod)
		done <- d
	}()
	var d dialled
	select {
	case d = <-done:
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
	if d.err != nil {
		return nil, d.err
	}
	c, err := stream(d.conn, port)
	if err != nil {
		_ = d.conn.Close()
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	return c, nil
}

// open asks for websockets first, as kubectl does, and for SPDY where a proxy on the way or
// an old server refuses them.
func (f *forwarder) open(pod string) (httpstream.Connection, error) {
	u := f.pods.JoinPath(pod, "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	ws, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, f.config)
	if err != nil {
		return nil, err
	}
	// Whatever stands in the way, also a Role without "get": the second try costs little, and
	// its error tells as much.
	conn, _, err := portforward.NewFallbackDialerForStreaming(ws, old, func(error) bool { return true }).Dial(portforward.PortForwardProtocolV1Name)
	return conn, err
}

// stream makes one forwarded connection of a session: a stream for errors, one for data.
func stream(conn httpstream.Connection, port int32) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	complaints, err := conn.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("forward port %d: %w", port, err)
	}
	// Nothing is said in this direction.
	_ = complaints.Close()
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("forward port %d: %w", port, err)
	}
	c := &forwarded{session: conn, data: data, said: make(chan struct{})}
	go func() {
		defer close(c.said)
		text, err := io.ReadAll(io.LimitReader(complaints, 4<<10))
		switch {
		case len(text) > 0:
			c.complaint = errors.New(strings.TrimSpace(string(text)))
		case err != nil:
			return
		}
		if c.complaint != nil {
			_ = c.Close()
		}
	}()
	return c, nil
}

// forwarded is a connection to a Pod's port. Deadlines are the caller's, by its context.
type forwarded struct {
	session httpstream.Connection
	data    httpstream.Stream
	closing sync.Once
	said    chan struct{}
	// complaint is set before said is closed.
	complaint error
}

func (c *forwarded) Read(b []byte) (int, error) {
	n, err := c.data.Read(b)
	if err != nil && n == 0 {
		// What the node had to say explains an early end.
		select {
		case <-c.said:
			if c.complaint != nil {
				err = c.complaint
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	return n, err
}

func (c *forwarded) Write(b []byte) (int, error) { return c.data.Write(b) }

func (c *forwarded) Close() error {
	var err error
	c.closing.Do(func() {
		_ = c.data.Reset()
		err = c.session.Close()
	})
	return err
}

func (c *forwarded) LocalAddr() net.Addr              { return pipe{} }
func (c *forwarded) RemoteAddr() net.Addr             { return pipe{} }
func (c *forwarded) SetDeadline(time.Time) error      { return nil }
func (c *forwarded) SetReadDeadline(time.Time) error  { return nil }
func (c *forwarded) SetWriteDeadline(time.Time) error { return nil }

type pipe struct{}

func (pipe) Network() string { return "portforward" }
func (pipe) String() string  { return "portforward" }
