package netns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
)

// NS is one private network namespace, pinned by the bind mount at Path.
type NS struct {
	// Path is the mount that pins it; "" once Unpin was called.
	Path string
	// ID is its nsfs inode.
	ID uint64

	t  testing.TB
	fd int // -1 once closed
}

// New makes a namespace with its loopback up, pinned at a path of its own in a
// temporary directory.
func New(t testing.TB) *NS {
	t.Helper()
	return NewAt(t, filepath.Join(t.TempDir(), fmt.Sprintf("hf-%d", os.Getpid())))
}

// NewAt is New with the mount at path, which must not exist and whose directory
// must. It is for tests that need a certain name, such as "cni-<uuid>".
func NewAt(t testing.TB, path string) *NS {
	t.Helper()
	leak.Own(t, path)
	n := &NS{Path: path, t: t, fd: -1}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(n.close)
	err = testenv.OnDoomedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if n.fd, err = unix.Open(self, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("open", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(n.fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		n.ID = st.Ino
		return os.NewSyscallError("mount", unix.Mount(self, path, "", unix.MS_BIND, ""))
	})
	if err != nil {
		t.Fatalf("new netns at %s: %v", path, err)
	}
	n.up("lo")
	return n
}

func (n *NS) close() {
	n.Unpin()
	n.Close()
}

// Unpin takes the bind mount away. The namespace lives on while a process is in it,
// or until Close.
func (n *NS) Unpin() {
	n.t.Helper()
	if n.Path == "" {
		return
	}
	if err := unix.Unmount(n.Path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		n.t.Errorf("unmount %s: %v", n.Path, err)
	}
	if err := os.Remove(n.Path); err != nil && !os.IsNotExist(err) {
		n.t.Errorf("remove %s: %v", n.Path, err)
	}
	n.Path = ""
}

// Close closes our own descriptor of the namespace. Do, Handle and the rest cannot
// be called any more; without a mount or a process it is gone.
func (n *NS) Close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
		n.fd = -1
	}
}

// FD is our open descriptor of the namespace, owned by n.
func (n *NS) FD() int { return n.fd }

// Do runs f on a thread that is in the namespace and ends with f. f must not start
// goroutines that are to be in it, and must not call t.FailNow.
func (n *NS) Do(f func() error) error {
	return testenv.OnDoomedThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// Start starts a command in the namespace. It is killed and reaped at the end of the
// test.
func (n *NS) Start(cmd *exec.Cmd) (pid int) {
	n.t.Helper()
	if err := n.Do(cmd.Start); err != nil {
		n.t.Fatalf("start %s in netns: %v", cmd.Path, err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// Hold starts a process that lives in the namespace and does nothing. stop ends and
// reaps it; the end of the test does as well, and so does the death of this process.
func (n *NS) Hold() (pid int, stop func()) {
	n.t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	pid = n.Start(cmd)
	return pid, func() {
		stdin.Close()
		_ = cmd.Wait()
	}
}

// Handle returns a netlink handle in the namespace, closed at the end of the test.
func (n *NS) Handle() *netlink.Handle {
	n.t.Helper()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(n.fd), unix.NETLINK_ROUTE)
	if err != nil {
		n.t.Fatalf("netlink handle: %v", err)
	}
	n.t.Cleanup(h.Close)
	return h
}

// Veth joins two namespaces with a veth pair, name in n and peerName in peer, both
// up. Names have at most 15 bytes.
func (n *NS) Veth(name string, peer *NS, peerName string) {
	n.t.Helper()
	la := netlink.NewLinkAttrs()
	la.Name = name
	err := n.Handle().LinkAdd(&netlink.Veth{
		LinkAttrs: la, PeerName: peerName, PeerNamespace: netlink.NsFd(peer.fd),
	})
	if err != nil {
		n.t.Fatalf("veth %s-%s: %v", name, peerName, err)
	}
	n.up(name)
	peer.up(peerName)
}

// AddAddr puts an address such as "10.200.1.2/24" or "fd00::2/64" on an interface.
// IPv6 addresses are usable at once (no duplicate detection).
func (n *NS) AddAddr(ifName, cidr string) {
	n.t.Helper()
	h := n.Handle()
	link, err := h.LinkByName(ifName)
	if err != nil {
		n.t.Fatalf("link %s: %v", ifName, err)
	}
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		n.t.Fatal(err)
	}
	if a.IP.To4() == nil {
		a.Flags |= unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(link, a); err != nil {
		n.t.Fatalf("add %s to %s: %v", cidr, ifName, err)
	}
}

func (n *NS) up(ifName string) {
	n.t.Helper()
	h := n.Handle()
	link, err := h.LinkByName(ifName)
	if err != nil {
		n.t.Fatalf("link %s: %v", ifName, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		n.t.Fatalf("set %s up: %v", ifName, err)
	}
}
