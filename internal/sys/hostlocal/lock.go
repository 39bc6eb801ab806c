package hostlocal

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// ErrLocked says that a store's lock could not be had in time (case L7).
type ErrLocked struct {
	Path string // the lock file
	// Holders are the PIDs that hold it as far as /proc shows them; empty when it
	// does not, such as for a holder in a PID namespace that we cannot see.
	Holders []int
	Wait    time.Duration // how long we waited
}

// Error names the holders.
func (e *ErrLocked) Error() string {
	who := "an unknown process"
	if len(e.Holders) > 0 {
		who = fmt.Sprintf("PID %v", e.Holders)
	}
	return fmt.Sprintf("%q is held by %s; waited %v", e.Path, who, e.Wait.Round(time.Millisecond))
}

// locker takes host-local's lock. host-local opens <dir>/lock O_RDWR|O_CREAT and
// takes a blocking flock on it (go-filemutex); so do we, since the kernel serves
// blocked waiters in turn and a poller beside eight of them starves.
//
// A blocking flock cannot be interrupted (the Go runtime installs its signal handlers
// with SA_RESTART). When the wait is over the goroutine is left waiting, and it keeps
// its place: the next acquire for that directory takes it over; if none comes, it
// releases the lock the moment it gets it. So at most one goroutine, with one thread
// and one descriptor, is left behind per directory and locker.
//
// The zero value works. Safe for concurrent use.
type locker struct {
	mu   sync.Mutex
	dirs map[fsys.Key]*dirLock
}

// dirLock is our own state for one directory.
type dirLock struct {
	// turn is held while one of our goroutines waits for or holds the lock: flock
	// does not exclude those of one process that share nothing.
	turn chan struct{}
	// left is the waiter that an earlier acquire gave up on. Guarded by turn.
	left *waiter
}

// waiter is one blocking flock.
type waiter struct {
	fs   files
	fd   int
	done chan error // 1 deep

	mu        sync.Mutex
	granted   time.Time // set before done is sent
	abandoned bool
	finished  bool // fd is closed
}

// wait runs in its own goroutine until the kernel answers.
func (w *waiter) wait() {
	defer w.fs.hurry()()
	err := w.fs.Flock(w.fd, unix.LOCK_EX)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned {
		w.fs.Close(w.fd) // releases it at once
		w.finished = true
		return
	}
	w.granted = time.Now()
	w.done <- err
}

// abandon leaves the waiter alone; if the lock came this very moment it is released.
func (w *waiter) abandon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abandoned = true
	select {
	case <-w.done:
		w.fs.Close(w.fd)
		w.finished = true
	default:
	}
}

// adopt takes an abandoned waiter over; false when it is through already.
func (w *waiter) adopt() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return false
	}
	w.abandoned = false
	return true
}

// held is a lock that we have.
type held struct {
	fs   files
	fd   int
	turn chan struct{}
	// late is how long we had it before lockDir returned.
	late time.Duration
}

// release gives the lock back.
func (h *held) release() {
	h.fs.Close(h.fd)
	<-h.turn
}

func (l *locker) dir(key fsys.Key) *dirLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dirs == nil {
		l.dirs = make(map[fsys.Key]*dirLock)
	}
	d := l.dirs[key]
	if d == nil {
		d = &dirLock{turn: make(chan struct{}, 1)}
		l.dirs[key] = d
	}
	return d
}

// hurry gives the calling thread the processor before others until calm is called: who
// holds the lock of an allocator and waits for a processor keeps every ADD waiting. It
// does nothing where that is not permitted.
func (f files) hurry() (calm func()) {
	if f.serial {
		return func() {}
	}
	runtime.LockOSThread()
	was, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, 0, -20) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		// The system call gives 20 less the nice value. To yield again is always permitted.
		if unix.Setpriority(unix.PRIO_PROCESS, 0, 20-was) == nil {
			runtime.UnlockOSThread()
		}
	}
}

// storeDir is an open directory of reservations.
type storeDir struct {
	fs   files
	fd   int
	path string
}

// lockDir takes the store's lock, waiting at most wait. proc is where procfs is
// mounted, for the holders in an *ErrLocked.
//
// A missing lock file is made as host-local makes it. A lock that is a directory, a
// symlink or a FIFO is an error. When the file is replaced while we wait, the lock on
// the old one means nothing to host-local, and the new one is waited for.
func (l *locker) lockDir(ctx context.Context, dir storeDir, wait time.Duration, proc string) (*held, error) {
	lockPath := filepath.Join(dir.path, lockName)
	fail := func(err error) (*held, error) { return nil, &Error{"lock", lockPath, err} }
	key, err := dir.fs.fdKey(dir.fd)
	if err != nil {
		return fail(err)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	d := l.dir(key)
	select {
	case d.turn <- struct{}{}:
	default:
		select {
		case d.turn <- struct{}{}:
		case <-timer.C:
			return nil, &ErrLocked{lockPath, lockHolders(dir.fs, proc, lockPath), wait}
		case <-ctx.Done():
			return fail(ctx.Err())
		}
	}
	fd, since, err := d.acquire(ctx, dir, timer.C)
	if err != nil {
		<-d.turn
		if err == errTimeout {
			return nil, &ErrLocked{lockPath, lockHolders(dir.fs, proc, lockPath), wait}
		}
		return fail(err)
	}
	return &held{dir.fs, fd, d.turn, time.Since(since)}, nil
}

// acquire is called with the turn held and returns the locked descriptor, and since
// when it is locked.
func (d *dirLock) acquire(ctx context.Context, dir storeDir, timeout <-chan time.Time) (int, time.Time, error) {
	var never time.Time
	fs := dir.fs
	for {
		select {
		case <-timeout: // the file may be replaced over and over
			return -1, never, errTimeout
		default:
		}
		w := d.left
		d.left = nil
		if w == nil || !w.adopt() {
			fd, err := fs.openLock(dir.fd)
			if err != nil {
				return -1, never, err
			}
			err = fs.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
			if err == nil {
				if fs.sameLock(dir.fd, fd) {
					return fd, time.Now(), nil
				}
				fs.Close(fd)
				continue
			}
			if err != unix.EWOULDBLOCK || fs.serial {
				fs.Close(fd)
				if err == unix.EWOULDBLOCK {
					err = errTimeout
				}
				return -1, never, err
			}
			w = &waiter{fs: fs, fd: fd, done: make(chan error, 1)}
			go w.wait()
		}
		var why error
		select {
		case err := <-w.done:
			if err == nil && fs.sameLock(dir.fd, w.fd) {
				return w.fd, w.granted, nil
			}
			w.fs.Close(w.fd)
			if err != nil {
				return -1, never, err
			}
			continue
		case <-timeout:
			why = errTimeout
		case <-ctx.Done():
			why = ctx.Err()
		}
		w.abandon()
		d.left = w
		return -1, never, why
	}
}

type timeoutError struct{}

func (timeoutError) Error() string { return "time-out" }

// errTimeout is compared by value.
var errTimeout error = timeoutError{}

func (f files) openLock(dirfd int) (int, error) {
	fd, err := f.Openat(dirfd, lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o750) // as go-filemutex does
	switch err {
	case nil:
	case unix.ELOOP:
		return -1, &notRegularError{unix.S_IFLNK}
	case unix.EISDIR:
		return -1, &notRegularError{unix.S_IFDIR}
	case unix.ENXIO:
		return -1, &notRegularError{unix.S_IFSOCK}
	default:
		return -1, err
	}
	st, err := f.Fstat(fd)
	if err != nil {
		f.Close(fd)
		return -1, err
	}
	if !st.Regular() {
		f.Close(fd)
		return -1, &notRegularError{st.Mode}
	}
	return fd, nil
}

// sameLock reports whether the locked descriptor is still what the name means.
func (f files) sameLock(dirfd, fd int) bool {
	st, ok, err := f.lstatAt(dirfd, lockName)
	if err != nil || !ok {
		return false
	}
	key, err := f.fdKey(fd)
	return err == nil && key == st.Key()
}
