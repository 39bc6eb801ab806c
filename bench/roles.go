package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"context"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/holdfast-cni/holdfast/internal/sys/cri/critest"
)

// What this program is started as by itself.
const (
	rolePod       = "as-pod"
	roleCRI       = "as-cri"
	roleSandboxes = "as-sandbox-list"
	roleClock     = "as-clock"
	roleContend   = "as-contender"
)

// reportFD is where a role tells its parent something.
const reportFD = 3

// podMain prepares what a runtime prepares for a sandbox and becomes a program that
// sleeps in one thread, as a sandbox's pause does: an interface with an address in the
// network namespace, and a root of its own with some mounts, so that its mountinfo is
// no longer than a sandbox's. It was started in namespaces of its own. On success
// nothing is reported: the descriptor closes with the exec.
func podMain(args []string) error {
	unix.CloseOnExec(reportFD)
	err := pod(args[0], args[1])
	_, _ = os.NewFile(reportFD, "report").WriteString(err.Error())
	return err
}

func pod(address, root string) error {
	// A bridge without ports is the cheapest interface that every kernel has.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	eth0 := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(eth0); err != nil {
		return fmt.Errorf("add eth0: %w", err)
	}
	ip, subnet, err := net.ParseCIDR(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: subnet.Mask}}); err != nil {
		return fmt.Errorf("add %s: %w", address, err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, l := range []netlink.Link{lo, eth0} {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
		}
	}
	if err := ownRoot(root); err != nil {
		return err
	}
	return os.NewSyscallError("exec", unix.Exec("/usr/bin/sleep", []string{"/pause", "infinity"}, nil))
}

// ownRoot replaces the root of our mount namespace by an empty one with the mounts of
// a sandbox, and the node's /usr for the program.
func ownRoot(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount private", err)
	}
	if err := unix.Mount("rootfs", root, "tmpfs", 0, "size=64k"); err != nil {
		return os.NewSyscallError("mount root", err)
	}
	for _, m := range []struct{ dir, fs string }{
		{"old", ""}, {"proc", "proc"}, {"dev", "tmpfs"}, {"dev/pts", "devpts"}, {"dev/shm", "tmpfs"}, {"sys", "sysfs"},
		{"etc", ""}, {"etc/hosts", "tmpfs"}, {"etc/resolv.conf", "tmpfs"}, {"proc/acpi", "tmpfs"}, {"sys/firmware", "tmpfs"},
	} {
		dir := filepath.Join(root, m.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if m.fs == "" {
			continue
		}
		err := unix.Mount(m.fs, dir, m.fs, unix.MS_NOSUID|unix.MS_NODEV, "")
		if err != nil && !errors.Is(err, unix.ENOENT) { // no /proc/acpi here
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	usr := filepath.Join(root, "usr")
	if err := os.Mkdir(usr, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/usr", usr, "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount /usr", err)
	}
	for _, lib := range []string{"lib", "lib64"} { // where the loader is asked for
		if err := os.Symlink("usr/"+lib, filepath.Join(root, lib)); err != nil {
			return err
		}
	}
	if err := unix.PivotRoot(root, filepath.Join(root, "old")); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return os.NewSyscallError("umount", unix.Unmount("/old", unix.MNT_DETACH))
}

// criMain serves the sandboxes of a JSON file on a socket until it is killed.
func criMain(args []string) error {
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var sandboxes []critest.Sandbox
	if err := json.Unmarshal(text, &sandboxes); err != nil {
		return err
	}
	s, err := critest.Listen(args[0], sandboxes...)
	if err != nil {
		return err
	}
	defer s.Stop()
	os.NewFile(reportFD, "report").Close()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
	return nil
}

// sandboxesMain prints the sandboxes' IDs, as `crictl pods -q` does.
func sandboxesMain(args []string, out io.Writer) error {
	conn, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, s := range list.GetItems() {
		fmt.Fprintln(&b, s.GetId())
	}
	_, err = out.Write(b.Bytes())
	return err
}

// usage is what one run of a program took.
type usage struct {
	Wall, CPU time.Duration
	RSS       int64 // bytes, the largest
	Exit      int
}

// clockMain runs a program and reports its usage as JSON. It is a process between the
// benchmark and the program because of ru_maxrss: the kernel counts what the parent
// had at the time of the fork, and this one is small.
func clockMain(args []string) error {
	unix.CloseOnExec(reportFD)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	err := cmd.Run()
	u := usage{Wall: time.Since(start)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	st := cmd.ProcessState
	u.Exit = st.ExitCode()
	u.CPU = st.UserTime() + st.SystemTime()
	if r, ok := st.SysUsage().(*syscall.Rusage); ok {
		u.RSS = r.Maxrss << 10
	}
	return json.NewEncoder(os.NewFile(reportFD, "report")).Encode(u)
}
