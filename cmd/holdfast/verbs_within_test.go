package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// within runs a command as something smaller than root of the node:
//
//	within [@pidns] [@no-cap=sys_ptrace,...] [@mounts] [@ro=DIR] [@full=DIR] [@boot=ID] [@cost=FILE] -- COMMAND ...
//
// @pidns: in a PID namespace of its own, with its own /proc. @mounts: with a mount
// namespace to which no later mount of the node comes. @ro: DIR is read-only. @full: DIR,
// with what is in it, is on a file system without a free block. @boot: the node was booted
// again and has this boot ID. @cost: writes the peak of resident
// memory in bytes and the processor time in nanoseconds. Everything that is mounted is mounted in a namespace of its own and
// ends with the command.
//
// "within replay FILE FILE" prints the first to stdout and the second to stderr.
func within(args []string) int {
	// A child's Pdeathsig comes when the thread ends that started it.
	runtime.LockOSThread()
	if len(args) == 3 && args[0] == "replay" {
		return replayOutput(args[1], args[2])
	}
	code, err := enter(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "within:", err)
		return 125
	}
	return code
}

func replayOutput(stdout, stderr string) int {
	for path, to := range map[string]io.Writer{stdout: os.Stdout, stderr: os.Stderr} {
		b, err := os.ReadFile(path)
		if err == nil {
			_, err = to.Write(b)
		}
		if err != nil {
			return 125
		}
	}
	return 0
}

// enter starts itself again in new namespaces; there, "@inside" comes first.
func enter(args []string) (int, error) {
	if len(args) > 0 && args[0] == "@inside" {
		return 0, inside(args[1:])
	}
	flags := uintptr(syscall.CLONE_NEWNS)
	cost := ""
	for _, a := range args {
		if a == "--" {
			break
		}
		if a == "@pidns" {
			flags |= syscall.CLONE_NEWPID
		}
		if f, ok := strings.CutPrefix(a, "@cost="); ok {
			cost, flags = f, 0
		}
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, append([]string{"@inside"}, args...)...)
	cmd.Args[0] = "within"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && cost != "" {
		took := cmd.ProcessState.SystemTime() + cmd.ProcessState.UserTime()
		if err := os.WriteFile(cost, fmt.Appendf(nil, "%d %d", usage.Maxrss<<10, took), 0o644); err != nil {
			return 0, err
		}
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// inside prepares what was asked for and becomes the command.
func inside(args []string) error {
	// Capabilities are a thread's until exec.
	runtime.LockOSThread()
	private := false
	for len(args) > 0 && args[0] != "--" {
		word, value, _ := strings.Cut(args[0], "=")
		if word != "@cost" && word != "@no-cap" && !private {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return os.NewSyscallError("mount(MS_PRIVATE)", err)
			}
			private = true
		}
		var err error
		switch word {
		case "@mounts", "@cost":
		case "@pidns":
			err = unix.Mount("proc", "/proc", "proc", 0, "")
		case "@ro":
			err = readOnlyBind(value)
		case "@full":
			err = fullTmpfs(value)
		case "@boot":
			err = bootedAgain(value)
		case "@no-cap":
			err = dropCapabilities(value)
		default:
			err = errors.New("unknown word")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		args = args[1:]
	}
	if len(args) < 2 {
		return errors.New("no command")
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	return unix.Exec(path, args[1:], os.Environ())
}

func readOnlyBind(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// fullTmpfs covers dir with a small tmpfs that holds the same files and no free block.
func fullTmpfs(dir string) error {
	files := map[string][]byte{}
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, rel)
			return nil
		}
		files[rel], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		return err
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// bootedAgain shows another boot ID, also through /proc/1, which is a process with our
// view of the files. Its end is that of the command.
func bootedAgain(id string) error {
	f, err := os.CreateTemp("", "boot-id")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.WriteString(id + "\n"); err != nil {
		return err
	}
	if err := unix.Mount(f.Name(), "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	init := exec.Command("sleep", "60")
	init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := init.Start(); err != nil {
		return err
	}
	return unix.Mount(fmt.Sprintf("/proc/%d", init.Process.Pid), "/proc/1", "", unix.MS_BIND, "")
}

// dropCapabilities takes capabilities out of the bounding set, so that exec does not give
// them to root.
func dropCapabilities(names string) error {
	known := map[string]uintptr{
		"sys_ptrace": unix.CAP_SYS_PTRACE, "dac_override": unix.CAP_DAC_OVERRIDE, "dac_read_search": unix.CAP_DAC_READ_SEARCH, "sys_admin": unix.CAP_SYS_ADMIN,
	}
	for name := range strings.SplitSeq(names, ",") {
		c, ok := known[name]
		if !ok {
			return fmt.Errorf("unknown capability %q", name)
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return err
		}
	}
	return nil
}
