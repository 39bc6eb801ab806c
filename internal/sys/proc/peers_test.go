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

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// behindSocket makes a namespace with a veth whose other end, name, is in host, and that
// nothing but a socket keeps. It ends with close.
func behindSocket(t *testing.T, host int, name string) (close func()) {
	t.Helper()
	sock := -1
	err := testenv.OnDoomedThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
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
	return close
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

func TestNamespaceThatOnlyASocketKeeps(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	ctx := context.Background()
	host, pod := netns.New(t), netns.New(t)
	host.Veth("vethpod", pod, "eth0")
	end := behindSocket(t, host.FD(), "vethsock")
	s := enumerated(t, host.ID)
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
	behindSocket(t, host.FD(), "vethlater")
	if ending, err := s.stranger(ctx); ending || err != nil {
		t.Errorf("a link that was not there at the beginning: %t, %v", ending, err)
	}
	// But the next one is.
	if ending, err := enumerated(t, host.ID).stranger(ctx); !ending || err != nil {
		t.Errorf("a new snapshot: %t, %v", ending, err)
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
	s, err := newSnapshot(Config{Proc: "/proc", Timeout: time.Minute})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	if initial, _ := s.pidNamespace(); initial != initialPIDNS {
		t.Log("not in the initial PID namespace, where the host's links are not looked at: nothing to test")
		return
	}
	s.linger = 0
	name := fmt.Sprintf("hf%x", os.Getpid())
	end := behindSocket(t, int(host.Fd()), name)
	err = s.take(context.Background())
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
		behindSocket(t, host.FD(), fmt.Sprintf("veth%d", i))()
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
