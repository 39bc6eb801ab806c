package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process as /proc showed it.
type process struct {
	pid  int
	args []string
	// cgroups are its paths in every hierarchy.
	cgroups []string
}

// readProcess returns false for a process that is gone or a zombie without arguments.
func readProcess(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(cmdline) == 0 {
		return process{}, false
	}
	cgroups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return process{}, false
	}
	p := process{pid: pid, args: strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")}
	for line := range strings.Lines(string(cgroups)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			p.cgroups = append(p.cgroups, parts[2])
		}
	}
	return p, true
}

func (p process) flag(name string) string {
	if i := slices.Index(p.args, name); i >= 0 && i+1 < len(p.args) {
		return p.args[i+1]
	}
	return ""
}

// below reports whether the process lies in the cgroup or below it.
func (p process) below(cgroup string) bool {
	return slices.ContainsFunc(p.cgroups, func(c string) bool {
		return c == cgroup || strings.HasPrefix(c, cgroup+"/")
	})
}

// killAll ends every process that match accepts with SIGKILL, and waits until each is
// gone. A process is signalled through a descriptor that was opened before it was
// looked at again, so a PID that is used anew meanwhile is never hit.
func killAll(match func(process) bool) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if p, ok := readProcess(pid); ok && match(p) {
			errs = append(errs, killOne(pid, match))
		}
	}
	return errors.Join(errs...)
}

func killOne(pid int, match func(process) bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if p, ok := readProcess(pid); !ok || !match(p) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	// Readable means ended, waited for or not.
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d outlives SIGKILL", pid)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll(pidfd)", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// isShim reports whether a process is a shim of the runtime in this directory.
func (p paths) isShim(q process) bool {
	return strings.HasPrefix(filepath.Base(q.args[0]), "containerd-shim") && strings.TrimSuffix(q.flag("-address"), ".ttrpc") == p.socket
}

// killShims ends the shims of the runtime in this directory: those of one sandbox, or all with id "".
func (p paths) killShims(id string) error {
	return killAll(func(q process) bool { return p.isShim(q) && (id == "" || q.flag("-id") == id) })
}

// killCgroup ends all that lies in a cgroup or below it.
func killCgroup(path string) error {
	return killAll(func(p process) bool { return p.below(path) })
}
