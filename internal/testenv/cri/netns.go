package cri

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// hostNetns is a network namespace without a name. It lives as long as a process is
// in it or the descriptor is open.
type hostNetns struct{ fd *os.File }

// newHostNetns makes a namespace whose loopback is up.
func newHostNetns() (*hostNetns, error) {
	var fd *os.File
	err := testenv.OnDoomedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare(CLONE_NEWNET)", err)
		}
		if err := loopbackUp(); err != nil {
			return err
		}
		var err error
		fd, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		return err
	})
	if err != nil {
		return nil, err
	}
	return &hostNetns{fd: fd}, nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("ioctl(SIOCSIFFLAGS)", unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req))
}

// do runs f on a thread in the namespace. Goroutines that f starts are elsewhere.
func (n *hostNetns) do(f func() error) error { return inNetns(n.fd, f) }

// start starts a program in the namespace: a child is born into the namespace of the
// thread that forks it.
func (n *hostNetns) start(cmd *exec.Cmd) error { return n.do(cmd.Start) }

// run starts a program in the namespace and waits for it.
func (n *hostNetns) run(cmd *exec.Cmd) error {
	if err := n.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

func (n *hostNetns) close() error { return n.fd.Close() }

func inNetns(fd *os.File, f func() error) error {
	return testenv.OnDoomedThread(func() error {
		if err := unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// netnsDir is where containerd and podman mount network namespaces.
const netnsDir = "/run/netns"

// shareNetnsDir makes netnsDir a shared mount of itself, as "ip netns add" and podman
// do when they first run, and leaves it so, as they do. Whoever did that after
// containerd had mounted a namespace would hide containerd's mount beneath: then it
// cannot be unmounted by its path any more, and the namespace never ends.
func shareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	// Two runs at once would bind twice. The lock is the directory's: beneath the bind
	// and above it, it is the same inode.
	d, err := os.Open(netnsDir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return &os.PathError{Op: "flock", Path: netnsDir, Err: err}
	}
	err = unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if err == unix.EINVAL { // no mount yet
		if err = unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return &os.PathError{Op: "mount", Path: netnsDir, Err: err}
	}
	return nil
}

// dropNetns unmounts a namespace and removes its file.
func dropNetns(path string) error {
	for range 4 { // mounted again on top of itself by whoever shared the directory
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == unix.EINVAL || err == unix.ENOENT { // no mount, nothing there
			break
		}
		if err != nil {
			return &os.PathError{Op: "umount", Path: path, Err: err}
		}
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
