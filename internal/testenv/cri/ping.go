package cri

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ping fails the test unless every address answers an ICMP echo that is sent from the
// runtime's node namespace. Each address is asked up to three times, a second each.
// IPv4 only.
func (r *Runtime) Ping(t testing.TB, addrs ...netip.Addr) {
	t.Helper()
	if silent := r.silent(t, addrs, 3); len(silent) > 0 {
		t.Errorf("%d of %d do not answer pings: %v", len(silent), len(addrs), silent)
	}
}

// Gone waits until none of the addresses answers, for ten seconds at most. A network
// namespace ends a while after its last user.
func (r *Runtime) Gone(t testing.TB, addrs ...netip.Addr) {
	t.Helper()
	deadline := time.Now().Add(time.Minute) // where many end at once, or somebody looks at it
	for {
		silent := r.silent(t, addrs, 1)
		if len(silent) == len(addrs) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d of %d still answer pings; silent: %v", len(addrs)-len(silent), len(addrs), silent)
			return
		}
	}
}

// KeepPinging pings the addresses over and over until stop is called, which fails the
// test if any of them ever left three echoes in a row unanswered.
func (r *Runtime) KeepPinging(t testing.TB, addrs ...netip.Addr) (stop func()) {
	done, result := make(chan struct{}), make(chan error)
	go func() {
		rounds := 0
		for {
			silent, err := r.pingFromNode(addrs, 3)
			if rounds++; err == nil && len(silent) > 0 {
				err = fmt.Errorf("round %d: %d of %d did not answer pings: %v", rounds, len(silent), len(addrs), silent)
			}
			select {
			case <-done:
				result <- err
				return
			case <-time.After(100 * time.Millisecond):
			}
			if err != nil {
				<-done
				result <- err
				return
			}
		}
	}()
	return func() {
		t.Helper()
		close(done)
		if err := <-result; err != nil {
			t.Errorf("while pinging: %v", err)
		}
	}
}

func (r *Runtime) silent(t testing.TB, addrs []netip.Addr, tries int) []netip.Addr {
	t.Helper()
	silent, err := r.pingFromNode(addrs, tries)
	if err != nil {
		t.Fatalf("ping: %v", err)
	}
	return silent
}

func (r *Runtime) pingFromNode(addrs []netip.Addr, tries int) (silent []netip.Addr, err error) {
	err = r.host.do(func() (err error) {
		silent, err = ping(addrs, tries, time.Second)
		return err
	})
	return silent, err
}

// ping sends echoes to all and returns those that did not answer. One raw socket
// serves all of them; the answer's source address says whose it is.
func ping(addrs []netip.Addr, tries int, wait time.Duration) (silent []netip.Addr, err error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, os.NewSyscallError("socket(ICMP)", err)
	}
	defer unix.Close(s)
	id := uint16(unix.Gettid()) // another thread's answers arrive here as well
	waiting := slices.Clone(addrs)
	for seq := range tries {
		for _, a := range waiting {
			err := unix.Sendto(s, echoRequest(id, uint16(seq)), 0, &unix.SockaddrInet4{Addr: a.As4()})
			// An address that has no neighbour any more makes later sends fail: silent, no error.
			if err != nil && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
				return nil, fmt.Errorf("send to %s: %w", a, err)
			}
		}
		deadline := time.Now().Add(wait)
		for len(waiting) > 0 {
			from, ok, err := echoReply(s, id, deadline)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			waiting = slices.DeleteFunc(waiting, func(a netip.Addr) bool { return a == from })
		}
	}
	return waiting, nil
}

func echoRequest(id, seq uint16) []byte {
	b := []byte{8, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum+sum>>16))
	return b
}

// echoReply waits for one answer to id; ok is false when the deadline passed.
func echoReply(s int, id uint16, deadline time.Time) (from netip.Addr, ok bool, err error) {
	buf := make([]byte, 1500)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return netip.Addr{}, false, nil
		}
		tv := unix.NsecToTimeval(left.Nanoseconds() + 1000) // 0 would mean no deadline
		if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return netip.Addr{}, false, os.NewSyscallError("setsockopt", err)
		}
		n, sa, err := unix.Recvfrom(s, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return netip.Addr{}, false, os.NewSyscallError("recvfrom", err)
		}
		if isReply(buf[:n], id) {
			if in, isInet := sa.(*unix.SockaddrInet4); isInet {
				return netip.AddrFrom4(in.Addr), true, nil
			}
		}
	}
}

// isReply looks past the IP header, which a raw socket delivers too.
func isReply(packet []byte, id uint16) bool {
	if len(packet) < 20 {
		return false
	}
	header := int(packet[0]&0x0f) * 4
	return header >= 20 && len(packet) >= header+8 && packet[header] == 0 &&
		binary.BigEndian.Uint16(packet[header+4:]) == id
}

// Addrs collects the first address of each sandbox.
func Addrs(sandboxes ...Sandbox) []netip.Addr {
	var out []netip.Addr
	for _, s := range sandboxes {
		out = append(out, s.IP)
	}
	return out
}
