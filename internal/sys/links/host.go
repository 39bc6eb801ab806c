package links

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inHostMounts runs f with PID 1's view of the file system. Where our own mount
// namespace is another, f runs on a thread that enters PID 1's and ends with f; f
// must do all its work itself: no goroutine of it would see what it sees.
//
// That takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE; without them it is an
// error.
func (v *Inventory) inHostMounts(f func(view) error) error {
	same, err := v.inInit("mnt")
	if err != nil {
		return noView("mount", err)
	}
	if same {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		own, err := thisThread()
		if err != nil {
			return noView("mount", err)
		}
		defer own.self.Close()
		return f(own)
	}
	file, err := v.openInit("mnt")
	if err != nil {
		return noView("mount", err)
	}
	defer file.Close()
	fd := int(file.Fd())
	return onDoomedThread(func() error {
		own, err := thisThread()
		if err != nil {
			return noView("mount", err)
		}
		defer own.self.Close()
		// Threads share root and working directory, and a thread that does cannot
		// change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return noView("mount", os.NewSyscallError("unshare(CLONE_FS)", err))
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
			return noView("mount", os.NewSyscallError("setns", err))
		}
		return f(own)
	})
}

// ErrNoView says that PID 1's view cannot be had.
var ErrNoView = errors.New("no view of PID 1's namespaces")

// noView is ErrNoView with its reason, which must not pass for an answer: a missing
// procfs is no missing link (I5). So the reason is text only.
func noView(kind string, reason error) error {
	return fmt.Errorf("%w: %s namespace: %v", ErrNoView, kind, reason)
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
