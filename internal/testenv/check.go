package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

func checkMount() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare(CLONE_NEWNS)", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount(MS_PRIVATE)", err)
	}
	return os.NewSyscallError("mount(tmpfs)", unix.Mount("none", "/mnt", "tmpfs", 0, ""))
}

// checkOverlay has upper and lower layer on the tmpfs that checkMount mounts; all of
// it goes with the thread's mount namespace.
func checkOverlay() error {
	if err := checkMount(); err != nil {
		return err
	}
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir("/mnt/"+d, 0o755); err != nil {
			return err
		}
	}
	return os.NewSyscallError("mount(overlay)",
		unix.Mount("overlay", "/mnt/merged", "overlay", 0, "lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work"))
}

func checkPIDNS() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// checkIFB makes a device in a network namespace that goes with the thread.
func checkIFB() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("unshare(CLONE_NEWNET)", err)
	}
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "probe"}}); err != nil {
		return fmt.Errorf("a device of type ifb: %w", err)
	}
	return nil
}

// CgroupBase is where tests make cgroups: the root of cgroup v2, or v1's pids
// controller. It may not exist; Need(t, Cgroup) says whether it serves.
func CgroupBase() string {
	const v2, v1 = "/sys/fs/cgroup", "/sys/fs/cgroup/pids"
	if _, err := os.Stat(v2 + "/cgroup.procs"); err != nil {
		return v1
	}
	return v2
}

func checkCgroup() (err error) {
	dir, err := os.MkdirTemp(CgroupBase(), "holdfast-probe-")
	if err != nil {
		return err
	}
	// rmdir: the files in a cgroup are the kernel's.
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	procs := filepath.Join(dir, "cgroup.procs")
	if _, err := os.Stat(procs); err != nil {
		return err
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = os.WriteFile(procs, fmt.Append(nil, cmd.Process.Pid), 0)
	return errors.Join(err, in.Close(), cmd.Wait())
}

// checkImmutable asks the file system of temporary directories: ext4 and xfs take the
// flag, tmpfs only from Linux 6.6 on.
func checkImmutable() (err error) {
	const immutable = 0x10 // FS_IMMUTABLE_FL
	dir, err := os.MkdirTemp("", "holdfast-probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return os.NewSyscallError("ioctl(FS_IOC_GETFLAGS)", err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutable); err != nil {
		return os.NewSyscallError("ioctl(FS_IOC_SETFLAGS)", err)
	}
	return os.NewSyscallError("ioctl(FS_IOC_SETFLAGS)", unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

func checkNobody() error {
	cmd := exec.Command("true")
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", io.Discard, io.Discard
	cmd.SysProcAttr = asNobody()
	return cmd.Run()
}

// checkKube does not build: that takes a quarter of an hour, which no test has.
func checkKube() error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return err
	}
	cache, err := prebuilt.DefaultCache(os.Getenv)
	if err != nil {
		return err
	}
	missing, err := prebuilt.Builder{Root: root, Cache: cache}.Missing("kubernetes")
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("not built: %s (make deps)", strings.Join(missing, " "))
	}
	return err
}
