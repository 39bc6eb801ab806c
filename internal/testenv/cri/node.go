package cri

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// standIn is a process in the node's network namespace that shows itself as PID 1 to
// what runs in its mount namespace.
type standIn struct {
	cmd    *exec.Cmd
	mounts *os.File // its mount namespace
}

// RunOnNode runs a program as on a node whose own network namespace is the runtime's:
// it is there itself, and /proc/1 shows it a process that is there too. Everything else
// of /proc is the machine's. Without that, a program that takes PID 1's namespace for
// the node's would look for bridges, veths and iptables rules where there are none.
//
// The program and that process share a mount namespace of their own, in which nothing
// but /proc/1 differs; what is mounted in /run/netns shows on both sides.
func (r *Runtime) RunOnNode(t testing.TB, cmd *exec.Cmd) error {
	t.Helper()
	if r.init == nil {
		s, err := r.startStandIn()
		if err != nil {
			t.Fatalf("a process to stand for PID 1: %v", err)
		}
		r.init = s
	}
	err := r.host.do(func() error {
		// A thread that shares its root directory with others cannot change its mount
		// namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare(CLONE_FS)", err)
		}
		if err := unix.Setns(int(r.init.mounts.Fd()), unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns(mount)", err)
		}
		return cmd.Start()
	})
	if err != nil {
		return err
	}
	return cmd.Wait()
}

func (r *Runtime) startStandIn() (*standIn, error) {
	// The argument is for whoever takes away what a killed test left.
	s := &standIn{cmd: exec.Command(r.pause, r.p.dir)}
	err := r.host.do(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare(CLONE_NEWNS)", err)
		}
		// Only /proc leaves its peers, so that no other mount namespace ever sees what
		// is put over /proc/1.
		if err := unix.Mount("", "/proc", "", unix.MS_PRIVATE, ""); err != nil {
			return os.NewSyscallError("mount(MS_PRIVATE)", err)
		}
		if err := s.cmd.Start(); err != nil {
			return err
		}
		proc := fmt.Sprintf("/proc/%d", s.cmd.Process.Pid)
		if err := unix.Mount(proc, "/proc/1", "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind to /proc/1", Path: proc, Err: err}
		}
		var err error
		s.mounts, err = os.Open(proc + "/ns/mnt")
		return err
	})
	if err != nil {
		if s.cmd.Process != nil {
			err = errors.Join(err, s.end())
		}
		return nil, err
	}
	return s, nil
}

func (s *standIn) end() error {
	if s == nil {
		return nil
	}
	var errs []error
	if s.mounts != nil {
		errs = append(errs, s.mounts.Close())
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, err)
	}
	_ = s.cmd.Wait() // says that it was killed
	return errors.Join(errs...)
}
