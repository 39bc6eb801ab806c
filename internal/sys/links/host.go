package links

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// inHostMounts runs f with PID 1's view of the file system. Where our own mount
// namespace is another, f runs on a thread that enters PID 1's and ends with f; f
// must then do all its work itself: no goroutine of it would see what it sees.
//
// That takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE; without them it is an
// error.
func (v *Inventory) inHostMounts(f func() error) error {
	host := filepath.Join(v.proc, "1/ns/mnt")
	same, err := sameNamespace(host, "/proc/thread-self/ns/mnt")
	if err != nil {
		return noView("mount", err)
	}
	if same {
		return f()
	}
	fd, err := unix.Open(host, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return noView("mount", os.NewSyscallError("open", err))
	}
	defer unix.Close(fd)
	return onDoomedThread(func() error {
		// Threads share root and working directory, and a thread that does cannot
		// change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return noView("mount", os.NewSyscallError("unshare(CLONE_FS)", err))
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
			return noView("mount", os.NewSyscallError("setns", err))
		}
		return f()
	})
}

// ErrNoView says that PID 1's view cannot be had.
var ErrNoView = errors.New("no view of PID 1's namespaces")

// noView is ErrNoView with its reason, which must not pass for an answer: a missing
// procfs is no missing link (I5). So the reason is text only.
func noView(kind string, reason error) error {
	return fmt.Errorf("%w: %s namespace: %v", ErrNoView, kind, reason)
}

// sameNamespace compares two namespace files, following links.
func sameNamespace(a, b string) (bool, error) {
	var x, y unix.Stat_t
	if err := unix.Stat(a, &x); err != nil {
		return false, os.NewSyscallError("stat", err)
	}
	if err := unix.Stat(b, &y); err != nil {
		return false, os.NewSyscallError("stat", err)
	}
	return x.Dev == y.Dev && x.Ino == y.Ino, nil
}

// onDoomedThread runs f on a thread that ends with it, so that nothing else of the
// process ever runs in what f entered. The main thread cannot end, and /proc/PID/ns
// of the whole process shows where it is, so f never runs there.
func onDoomedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine keeps the main thread, another runs elsewhere.
			done <- onDoomedThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked
	}()
	return <-done
}
