package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// kernel is never changed.
var kernel = files{FS: fsys.OS{}}

func openStore(t *testing.T, dir string) storeDir {
	t.Helper()
	fd, err := kernel.openDir(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return storeDir{kernel, fd, dir}
}

// free reports whether the lock can be had by another open file description.
func lockFree(t *testing.T, store string) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(store, lockName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestLockHeldElsewhere(t *testing.T) {
	store := makeStore(t, t.TempDir())
	dir := openStore(t, store)
	pid, stop := lockElsewhere(t, filepath.Join(store, lockName))
	var l locker

	start := time.Now()
	_, err := l.lockDir(t.Context(), dir, 100*time.Millisecond, "/proc")
	var locked *ErrLocked
	if !errors.As(err, &locked) {
		t.Fatalf("err = %v", err)
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("waited %v", took)
	}
	if !slices.Equal(locked.Holders, []int{pid}) || locked.Path != filepath.Join(store, lockName) || locked.Wait != 100*time.Millisecond {
		t.Errorf("%+v, want holder %d", locked, pid)
	}

	// Giving up again takes the waiter over instead of leaving a second one.
	for range 5 {
		if _, err := l.lockDir(t.Context(), dir, time.Millisecond, "/proc"); !errors.As(err, &locked) {
			t.Fatalf("err = %v", err)
		}
	}
	if n := lockFDs(t, store); n != 1 {
		t.Errorf("%d descriptors of the lock are open, want 1", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.lockDir(ctx, dir, time.Minute, "/proc"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}

	// Left alone, it releases the lock at once when it gets it, and closes its file.
	stop()
	eventually(t, "the waiter kept the lock", func() bool { return lockFree(t, store) && lockFDs(t, store) == 0 })
	h, err := l.lockDir(t.Context(), dir, time.Second, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	if lockFree(t, store) {
		t.Error("not locked")
	}
	if got := LockHolders("/proc", filepath.Join(store, lockName)); !slices.Equal(got, []int{os.Getpid()}) {
		t.Errorf("holders = %v", got)
	}
	h.release()
	if !lockFree(t, store) {
		t.Error("still locked")
	}
}

// A waiter that was given up is taken over and gets the lock in its place.
func TestLockAdopted(t *testing.T) {
	store := makeStore(t, t.TempDir())
	dir := openStore(t, store)
	_, stop := lockElsewhere(t, filepath.Join(store, lockName))
	var l locker
	var locked *ErrLocked
	if _, err := l.lockDir(t.Context(), dir, 10*time.Millisecond, "/proc"); !errors.As(err, &locked) {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, stop)
	h, err := l.lockDir(t.Context(), dir, 10*time.Second, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	if lockFree(t, store) {
		t.Error("not locked")
	}
	h.release()
	if !lockFree(t, store) || lockFDs(t, store) != 0 {
		t.Error("not released")
	}
}

// Two of our own goroutines exclude each other, and the second has a bounded wait.
func TestLockWithinProcess(t *testing.T) {
	dir := openStore(t, makeStore(t, t.TempDir()))
	var l locker
	h, err := l.lockDir(t.Context(), dir, time.Second, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	var locked *ErrLocked
	if _, err := l.lockDir(t.Context(), dir, 20*time.Millisecond, "/proc"); !errors.As(err, &locked) {
		t.Errorf("err = %v", err)
	}
	h.release()
	if h, err = l.lockDir(t.Context(), dir, time.Second, "/proc"); err != nil {
		t.Fatal(err)
	}
	h.release()
}

// lockFDs counts our descriptors of the store's lock.
func lockFDs(t *testing.T, store string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == filepath.Join(store, lockName) {
			n++
		}
	}
	return n
}

func TestLockFile(t *testing.T) {
	tests := []struct {
		name string
		make func(path string) error
		ok   bool
		mode os.FileMode // less the umask
	}{
		// With the mode of go-filemutex, which host-local takes its lock with.
		{"missing", func(string) error { return nil }, true, 0o750},
		{"a file", func(p string) error { return os.WriteFile(p, nil, 0o600) }, true, 0o600},
		{"a directory", func(p string) error { return os.Mkdir(p, 0o700) }, false, 0},
		{"a link", func(p string) error { return os.Symlink("/dev/null", p) }, false, 0},
		{"a dangling link", func(p string) error { return os.Symlink("nowhere", p) }, false, 0},
		{"a FIFO", func(p string) error { return unix.Mkfifo(p, 0o600) }, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := makeStore(t, t.TempDir())
			path := filepath.Join(store, lockName)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := tt.make(path); err != nil {
				t.Fatal(err)
			}
			var l locker
			h, err := l.lockDir(t.Context(), openStore(t, store), time.Second, "/proc")
			if (err == nil) != tt.ok {
				t.Fatalf("err = %v", err)
			}
			if err != nil {
				return
			}
			h.release()
			var probe unix.Stat_t
			reference := filepath.Join(t.TempDir(), "f")
			fd, err := unix.Open(reference, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, uint32(tt.mode))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := unix.Fstat(fd, &probe); err != nil {
				t.Fatal(err)
			}
			if fi, err := os.Lstat(path); err != nil || uint32(fi.Mode().Perm()) != probe.Mode&0o777 {
				t.Errorf("%v, %v; want the mode %o", fi, err, probe.Mode&0o777)
			}
		})
	}
}

// When somebody removes the lock while we wait, host-local locks a new file: the lock
// on the old one would exclude nobody.
func TestLockReplacedWhileWaiting(t *testing.T) {
	store := makeStore(t, t.TempDir())
	path := filepath.Join(store, lockName)
	dir := openStore(t, store)
	_, stop := lockElsewhere(t, path)
	time.AfterFunc(50*time.Millisecond, func() {
		_ = os.Remove(path)
		_ = os.WriteFile(path, nil, 0o600)
		stop()
	})
	var l locker
	h, err := l.lockDir(t.Context(), dir, 10*time.Second, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	if lockFree(t, store) {
		t.Error("holds the lock of a file that is gone")
	}
	h.release()
}

func TestParseLocks(t *testing.T) {
	text := "1: FLOCK  ADVISORY  WRITE 4242 fe:00:77 0 EOF\n" +
		"1: -> FLOCK  ADVISORY  WRITE 4243 fe:00:77 0 EOF\n" +
		"2: POSIX  ADVISORY  WRITE 4244 fe:00:77 0 EOF\n" +
		"3: FLOCK  ADVISORY  WRITE 4245 00:2a:77 0 EOF\n" +
		"4: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF\n" +
		"5: FLOCK  ADVISORY  WRITE 4246 fe:00:78 0 EOF\n" +
		"6: FLOCK\n\n7: FLOCK A W x fe:00:77 0 EOF\n8: FLOCK A W 1 fe:0077 0 EOF\n"
	exact, maybe := parseLocks(text, 0xfe, 0, 77)
	if fmt.Sprint(exact, maybe) != "[4242] [4245]" {
		t.Errorf("%v %v", exact, maybe)
	}
}

func TestReaper(t *testing.T) {
	root := t.TempDir()
	run, store := filepath.Join(root, "run"), makeStore(t, root)
	if err := os.Symlink(store, root+"/alias"); err != nil {
		t.Fatal(err)
	}
	first, err := AcquireReaper(nil, run, store)
	if err != nil {
		t.Fatal(err)
	}
	// By another path it is the same directory.
	var busy *ErrBusy
	if _, err := AcquireReaper(nil, run, root+"/alias"); !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Errorf("err = %v", err)
	}
	other, err := AcquireReaper(nil, run, filepath.Dir(store))
	if err != nil {
		t.Errorf("another directory: %v", err)
	} else if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := AcquireReaper(nil, run, root+"/alias")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()

	if _, err := AcquireReaper(nil, run, root+"/missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

// A reaper in another process is named; when it dies its lock goes with it.
func TestReaperElsewhere(t *testing.T) {
	root := t.TempDir()
	store := makeStore(t, root)
	var st unix.Stat_t
	if err := unix.Stat(store, &st); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("%s/reaper-%d-%d.lock", root, st.Dev, st.Ino)
	pid, stop := lockElsewhere(t, path)
	put(t, path, fmt.Sprintln(pid))
	var busy *ErrBusy
	if _, err := AcquireReaper(nil, root, store); !errors.As(err, &busy) || busy.PID != pid {
		t.Errorf("err = %v, want PID %d", err, pid)
	}
	stop()
	r, err := AcquireReaper(nil, root, store)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}
