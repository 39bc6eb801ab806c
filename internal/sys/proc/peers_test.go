package proc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// behindSocket makes a namespace with a veth whose other end, name, is in host, and that
// nothing but a socket keeps. It ends with close. For a moment a thread is in it, and
// whoever else looks at this machine then may hold it open a little longer.
func behindSocket(t *testing.T, host int, name string) (ino uint64, close func()) {
	t.Helper()
	sock := -1
	err := testenv.OnDoomedThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		id, err := identity("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		ino = id.ino
		if sock, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		la := netlink.NewLinkAttrs()
		la.Name = "eth0"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: name, PeerNamespace: netlink.NsFd(host)})
	})
	close = func() {
		if sock >= 0 {
			unix.Close(sock)
			sock = -1
		}
	}
	t.Cleanup(close)
	if err != nil {
		t.Fatal(err)
	}
	return ino, close
}

// enumerated is a snapshot after one enumeration that takes a namespace for the host's:
// links of the real one would silence everybody else's snapshot on this machine.
func enumerated(t *testing.T, host uint64) *snapshot {
	t.Helper()
	s, err := newSnapshot(Config{Proc: "/proc", Timeout: time.Minute})
	t.Cleanup(s.close)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.enumerate(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.host = host
	return s
}

// withoutShown is enumerated once nobody shows a namespace.
func withoutShown(t *testing.T, host, ino uint64) *snapshot {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := enumerated(t, host)
		if s.spaces[ino] == nil {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("namespace %d stays in sight: %+v", ino, s.last[ino])
		}
	}
}

func TestNamespaceThatOnlyASocketKeeps(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	ctx := context.Background()
	host, pod := netns.New(t), netns.New(t)
	host.Veth("vethpod", pod, "eth0")
	ino, end := behindSocket(t, host.FD(), "vethsock")
	s := withoutShown(t, host.ID, ino)
	if initial, _ := s.pidNamespace(); initial != initialPIDNS {
		t.Log("not in the initial PID namespace, where the host's links are not looked at: nothing to test")
		return
	}

	ending, err := s.stranger(ctx)
	if !ending || err != nil {
		t.Fatalf("got %t, %v; want a namespace that may be ending", ending, err)
	}
	s.linger = 0
	_, err = s.stranger(ctx)
	if !errors.Is(err, errStranger) || !strings.Contains(err.Error(), `"vethsock"`) {
		t.Fatalf("got %v, want an error that names the link", err)
	}
	// What is made after a snapshot began does not silence it.
	s.linger = time.Minute
	end()
	waitSettled(t, s)
	ino, _ = behindSocket(t, host.FD(), "vethlater")
	if ending, err := s.stranger(ctx); ending || err != nil {
		t.Errorf("a link that was not there at the beginning: %t, %v", ending, err)
	}
	// But the next one is.
	if ending, err := withoutShown(t, host.ID, ino).stranger(ctx); !ending || err != nil {
		t.Errorf("a new snapshot: %t, %v", ending, err)
	}
}

// Somebody who was in a namespace when we first looked, and then is not, must not hide
// that a socket keeps it: our own descriptor shows nothing.
func TestNamespaceThatSomebodyPassedThrough(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	ctx := context.Background()
	host, pod := netns.New(t), netns.New(t)
	host.Veth("vethsock", pod, "eth0")
	sock := -1
	if err := pod.Do(func() (err error) {
		sock, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(sock) })
	_, leave := pod.Hold()
	pod.Unpin()
	pod.Close()
	s := enumerated(t, host.ID)
	if initial, _ := s.pidNamespace(); initial != initialPIDNS {
		t.Log("not in the initial PID namespace, where the host's links are not looked at: nothing to test")
		return
	}
	if s.spaces[pod.ID] == nil {
		t.Fatal("a namespace with a process in it is not held")
	}
	leave()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := s.enumerate(ctx); err != nil {
			t.Fatal(err)
		}
		s.host = host.ID
		reported := slices.ContainsFunc(s.netns(), func(n claim.Netns) bool { return n.ID == pod.ID })
		ending, err := s.stranger(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ending {
			return
		}
		if !reported {
			t.Fatal("a namespace that a socket keeps is neither reported nor a stranger")
		}
		if time.Now().After(deadline) {
			t.Fatalf("namespace %d stays in sight: %+v", pod.ID, s.last[pod.ID])
		}
	}
}

// waitSettled waits until no link leads to a namespace that nobody showed.
func waitSettled(t *testing.T, s *snapshot) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		ending, err := s.stranger(context.Background())
		if err == nil && !ending {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("it does not settle: %t, %v", ending, err)
		}
	}
}

// The whole way, with a link in the node's own namespace: it is there for a moment only,
// in which other snapshots wait.
func TestSnapshotWithAStrangerIsSilent(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	host, err := OpenInit("/proc", "net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	take := func(ino uint64) (shown bool, err error) {
		s, err := newSnapshot(Config{Proc: "/proc", Timeout: time.Minute})
		defer s.close()
		if err != nil {
			t.Fatal(err)
		}
		s.linger = 0
		err = s.take(context.Background())
		return slices.ContainsFunc(s.netns(), func(n claim.Netns) bool { return n.ID == ino }), err
	}
	s, err := newSnapshot(Config{Proc: "/proc"})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	if initial, _ := s.pidNamespace(); initial != initialPIDNS {
		t.Log("not in the initial PID namespace, where the host's links are not looked at: nothing to test")
		return
	}
	ino, end := behindSocket(t, int(host.Fd()), fmt.Sprintf("hf%x", os.Getpid()))
	shown, err := take(ino)
	for deadline := time.Now().Add(30 * time.Second); shown && err == nil && time.Now().Before(deadline); {
		shown, err = take(ino) // somebody else's look showed it, and it was reported
	}
	end()
	if !errors.Is(err, errStranger) || !strings.Contains(err.Error(), "link-netnsid") {
		t.Errorf("got %v", err)
	}
	k, _ := ask(t, Config{}) // it waits for the end of that namespace
	if !k.Vantage.Proven {
		t.Errorf("vantage %+v", k.Vantage)
	}
}

// Namespaces that end, and whose links the kernel has not come to yet, silence nobody.
func TestEndingNamespacesAreNoStrangers(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	host := netns.New(t)
	for i := range 30 {
		_, end := behindSocket(t, host.FD(), fmt.Sprintf("veth%d", i))
		end()
	}
	s := enumerated(t, host.ID)
	start := time.Now()
	waitSettled(t, s)
	t.Logf("settled after %v", time.Since(start))
}

// A whole snapshot of a node whose links are all accounted for needs no further
// enumeration.
func TestTunnelsAcrossNamespacesAreNoStrangers(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	host, pod := netns.New(t), netns.New(t)
	pod.Unpin() // held by a process alone
	pod.Hold()
	pod.Veth("eth0", host, "vethpod")
	parent, err := pod.Handle().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	la := netlink.NewLinkAttrs()
	la.Name, la.ParentIndex, la.Namespace = "mv0", parent.Attrs().Index, netlink.NsFd(host.FD())
	if err := pod.Handle().LinkAdd(&netlink.Macvlan{LinkAttrs: la, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		t.Logf("a kernel without macvlan (%v): nothing to test", err)
		return
	}
	s := enumerated(t, host.ID)
	unknown, all := askPeers(t, s)
	if len(unknown) != 0 || len(all) != 2 {
		t.Errorf("got %+v of %d links, want none of 2", unknown, len(all))
	}
}

func askPeers(t testing.TB, s *snapshot) (unknown []peer, all []uint32) {
	t.Helper()
	err := onDoomedThread(func() (err error) {
		unknown, all, err = s.unknownPeers(context.Background(), s.spaces[s.host].fd)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return unknown, all
}

func newLink(seq uint32, attrs ...[]byte) []byte {
	b := header(unix.RTM_NEWLINK, 0, seq, unix.SizeofIfInfomsg)
	b = append(b, make([]byte, unix.SizeofIfInfomsg)...)
	b[unix.SizeofNlMsghdr+4] = 7 // index
	for _, a := range attrs {
		b = append(b, a...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func TestLinkPeers(t *testing.T) {
	name := append([]byte{12, 0, unix.IFLA_IFNAME, 0}, "veth\x1b12\x00"...)
	nsid := func(n int32) []byte { return attribute(nil, unix.IFLA_LINK_NETNSID, uint32(n)) }
	for _, tc := range []struct {
		name string
		msg  []byte
		want []peer
		bad  bool
	}{
		{"both ends here", newLink(1, name), nil, false},
		{"the other end elsewhere", newLink(1, name, nsid(3)), []peer{{7, "veth\x1b12", 3}}, false},
		{"the other end is ending", newLink(1, name, nsid(-1)), []peer{{7, "veth\x1b12", -1}}, false},
		{"an answer to another request", newLink(2, name, nsid(3)), nil, false},
		{"a number that is none", newLink(1, []byte{6, 0, unix.IFLA_LINK_NETNSID, 0, 1, 1, 0, 0}), nil, true},
		{"an attribute that is cut off", newLink(1, []byte{9, 0, unix.IFLA_LINK_NETNSID, 0, 1, 1, 0, 0}), nil, true},
		{"cut off", newLink(1)[:20], nil, true},
	} {
		var got []peer
		_, _, err := linkPeers(tc.msg, 1, func(p peer) { got = append(got, p) })
		if (err != nil) != tc.bad || !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %+v, %v", tc.name, got, err)
		}
	}
}

// FuzzLinkPeers: no datagram panics.
func FuzzLinkPeers(f *testing.F) {
	f.Add(newLink(1, attribute(nil, unix.IFLA_LINK_NETNSID, 3)))
	f.Add(newLink(1, []byte{5, 0, unix.IFLA_IFNAME, 0, 0, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = linkPeers(b, 1, func(p peer) {
			if len(p.name) > 256 {
				t.Errorf("a name of %d bytes", len(p.name))
			}
		})
	})
}

// BenchmarkUnknownPeers measures the look at the host's links with 250 Pods.
func BenchmarkUnknownPeers(b *testing.B) {
	testenv.Need(b, testenv.Netns)
	host := netns.New(b)
	for i := range 250 {
		n := netns.New(b)
		host.Veth(fmt.Sprintf("veth%d", i), n, "eth0")
	}
	s, err := newSnapshot(Config{Proc: "/proc"})
	b.Cleanup(s.close)
	if err == nil {
		err = s.enumerate(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
	s.host = host.ID
	for b.Loop() {
		if unknown, all := askPeers(b, s); len(unknown) != 0 || len(all) != 250 {
			b.Fatalf("%d of %d", len(unknown), len(all))
		}
	}
}
