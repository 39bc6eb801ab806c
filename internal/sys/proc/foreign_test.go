package proc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// asAnotherUser runs a script in a user namespace and a mount namespace of its own, as
// every user can. The script says which network namespace it is about; the process ends
// with the test.
func asAnotherUser(t *testing.T, script string) (pid int, ino uint64) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script+"\nexec cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	if _, err := fmt.Fscanf(out, "net:[%d]\n", &ino); err != nil {
		t.Fatalf("script: %v", err)
	}
	return cmd.Process.Pid, ino
}

// coverUp mounts a new network namespace at a directory's f, runs a command in it, and
// puts another mount above that.
const coverUp = `
	mount -t tmpfs none %[1]s
	touch %[1]s/f
	exec 3<&0
	unshare -n sh -ec 'mount --bind /proc/self/ns/net %[1]s/f
		%[2]s
		readlink /proc/self/ns/net >%[1]s/id'
	read -r id <%[1]s/id
	mount -t tmpfs none %[1]s
	echo "$id"`

func TestAnotherUserCannotSilenceUs(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	dir := t.TempDir()
	t.Run("nobody uses it: left out", func(t *testing.T) {
		pid, ino := asAnotherUser(t, fmt.Sprintf(coverUp, dir, ""))
		askUntil(t, func(k *claim.KernelFacts) string {
			if n, ok := find(k, ino); ok {
				return fmt.Sprintf("a namespace that cannot be entered is reported: %+v", n)
			}
			for _, c := range k.Vantage.Checks {
				if c.Name == "other-users-mounts" && strings.Contains(c.Detail, fmt.Sprintf("%d, mounted at %q, as process %d sees it", ino, dir+"/f", pid)) && k.Vantage.Proven {
					return ""
				}
			}
			return fmt.Sprintf("vantage %+v", k.Vantage)
		})
	})
	t.Run("a process is in it: reported", func(t *testing.T) {
		_, ino := asAnotherUser(t, fmt.Sprintf(coverUp, dir, "cat <&3 >/dev/null &"))
		askUntil(t, is(ino, "a process", func(n claim.Netns) bool { return n.Procs == 1 }))
	})
}

// The same in a mount namespace of the node's own user namespace is silence that names
// the process. The real thing would silence everybody else's snapshot on this machine.
func TestOnlyOtherUsersMountsAreLeftOut(t *testing.T) {
	const ino = 4026539999
	own, other := mountKey{ns: 11, root: "/"}, mountKey{ns: 12, root: "/"}
	for _, tc := range []struct {
		name    string
		keys    []mountKey
		x       sighting
		stuck   bool
		leftOut bool
	}{
		{"another user's mount", []mountKey{other}, sighting{}, false, true},
		{"another user's mount, behind a file system that hangs", []mountKey{other}, sighting{}, true, true},
		{"a mount of the node", []mountKey{own}, sighting{}, false, false},
		{"a mount of the node, behind a file system that hangs", []mountKey{own}, sighting{}, true, false},
		{"both", []mountKey{other, own}, sighting{}, false, false},
		{"a process is in it", []mountKey{other}, sighting{procs: 1}, false, false},
		{"a process holds it", []mountKey{other}, sighting{fdHolders: 1}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &snapshot{
				unseen: map[uint64]int{}, others: map[uint64]string{}, stuck: map[stuckPath]bool{}, foreignNS: map[uint64]bool{11: false, 12: true},
				tables: map[mountKey]*mountTable{}, keys: tc.keys, keyPIDs: map[mountKey][]int{own: {71}, other: {72}},
			}
			tc.x.mounts = []string{"/run/x"}
			for _, k := range tc.keys {
				s.tables[k] = &mountTable{nets: []nsMount{{ino, "/run/x"}}}
				if tc.stuck {
					s.stuck[stuckPath{k.ns, "/run/x", s.foreignNS[k.ns]}] = true
				}
			}
			var found bool
			var err error
			for range hopeless {
				s.last = map[uint64]*sighting{ino: &tc.x}
				found, err = s.missing()
			}
			if tc.leftOut {
				if found || err != nil || len(s.leftOut()) != 1 {
					t.Errorf("got %t, %v, left out %q", found, err, s.leftOut())
				}
				return
			}
			if err == nil || len(s.leftOut()) != 0 {
				t.Fatalf("got %t, %v, left out %q; want silence", found, err, s.leftOut())
			}
			pid := fmt.Sprintf("process %d", s.keyPIDs[tc.keys[0]][0])
			if !strings.Contains(err.Error(), pid) || !strings.Contains(err.Error(), "/run/x") || strings.Contains(err.Error(), "does not answer") != tc.stuck {
				t.Errorf("got %v, want %s and the path", err, pid)
			}
		})
	}
}

func TestWhoseMountNamespace(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	testenv.Need(t, testenv.Netns)
	user, err := initUserNS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := asAnotherUser(t, "readlink /proc/self/ns/net")
	mine, _ := otherMounts(t, "")
	for _, tc := range []struct {
		name string
		pid  int
		want bool
	}{{"another user's", pid, true}, {"one of the node", mine, false}} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", tc.pid))
		if err != nil {
			t.Fatal(err)
		}
		got, err := belowUserNS(int(f.Fd()), user)
		f.Close()
		if got != tc.want || err != nil {
			t.Errorf("%s: %t, %v", tc.name, got, err)
		}
	}
}

// deafMount mounts a FUSE file system at dir, with one file f, that answers until deaf
// is called and then never again. It ends with the test.
func deafMount(t *testing.T, dir string) (deaf func()) {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Logf("a kernel without FUSE (%v): nothing to test", err)
		return nil
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev.Fd())
	if err := unix.Mount("holdfast-test", dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, opts); err != nil {
		dev.Close()
		t.Logf("no FUSE here (%v): nothing to test", err)
		return nil
	}
	var mu sync.Mutex // held while a request is answered
	isDeaf := false
	var ends atomic.Bool
	stopped := make(chan struct{})
	t.Cleanup(func() {
		ends.Store(true)
		<-stopped
		dev.Close() // ends every wait for an answer
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Error(err)
		}
	})
	b := make([]byte, 256<<10)
	answer := func() {
		mu.Lock()
		defer mu.Unlock()
		if isDeaf {
			return
		}
		n, err := unix.Read(int(dev.Fd()), b)
		if err != nil || n < 40 {
			return
		}
		if answer := fuseAnswer(b[:n]); answer != nil {
			if _, err := unix.Write(int(dev.Fd()), answer); err != nil {
				t.Errorf("answer %x to %x: %v", answer, b[:n], err)
			}
		}
	}
	go func() {
		defer close(stopped)
		for !ends.Load() {
			p := []unix.PollFd{{Fd: int32(dev.Fd()), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 20); n < 1 {
				continue
			}
			answer()
			time.Sleep(time.Millisecond)
		}
	}()
	return func() {
		mu.Lock()
		isDeaf = true
		mu.Unlock()
	}
}

// fuseAnswer answers the few requests that a walk to f makes (include/uapi/linux/fuse.h).
func fuseAnswer(req []byte) []byte {
	const (
		lookup, getattr, forget, initialise = 1, 3, 2, 26
		enoent                              = 2
	)
	le := binary.NativeEndian
	var body []byte
	code := int32(0)
	attr := func(node uint64, mode uint32) []byte {
		a := make([]byte, 88)
		le.PutUint64(a, node)
		le.PutUint32(a[60:], mode)
		le.PutUint32(a[64:], 1) // nlink
		return a
	}
	node := le.Uint64(req[16:])
	switch le.Uint32(req[4:]) {
	case initialise:
		body = make([]byte, 64)
		le.PutUint32(body, 7)
		le.PutUint32(body[4:], 31)
		le.PutUint32(body[20:], 4096) // max_write
	case getattr:
		body = make([]byte, 16)
		mode := uint32(unix.S_IFDIR | 0o755)
		if node != 1 {
			mode = unix.S_IFREG | 0o644
		}
		body = append(body, attr(node, mode)...)
	case lookup:
		if !bytes.Equal(req[40:], []byte("f\x00")) {
			code = -enoent
			break
		}
		body = make([]byte, 40) // valid for no time: each walk asks again
		le.PutUint64(body, 2)
		body = append(body, attr(2, unix.S_IFREG|0o644)...)
	case forget:
		return nil
	default:
		code = -int32(unix.ENOSYS)
	}
	b := make([]byte, 16, 16+len(body))
	le.PutUint32(b, uint32(16+len(body)))
	le.PutUint32(b[4:], uint32(code))
	le.PutUint64(b[8:], le.Uint64(req[8:]))
	return append(b, body...)
}

func TestPathThatHangs(t *testing.T) {
	testenv.Need(t, testenv.Root)
	testenv.Need(t, testenv.Mount)
	dir := t.TempDir()
	deaf := deafMount(t, dir)
	if deaf == nil {
		return
	}
	s, err := newSnapshot(Config{Proc: "/proc"})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	open := func(at stuckPath) error {
		root, err := openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.openMount(root, at, 1)
		return err
	}
	path := filepath.Join(dir, "f")
	if err := open(stuckPath{1, path, true}); err != errMoved {
		t.Fatalf("while it answers: %v, want another file", err)
	}
	deaf()
	start := time.Now()
	for range 3 {
		if err := open(stuckPath{1, path, true}); err != errHangs {
			t.Errorf("got %v", err)
		}
	}
	if d := time.Since(start); d > 20*patience {
		t.Errorf("it took %v, so it was tried again", d)
	}
	for i := range uint64(3 * maxStuck) {
		if err := open(stuckPath{2 + i, path, true}); err != errHangs {
			t.Errorf("got %v", err)
		}
	}
	if n := s.hangs.foreignPaths.Load(); n != maxStuck {
		t.Errorf("%d threads hang, want %d", n, maxStuck)
	}
	// Those of the node itself have a budget of their own.
	if err := open(stuckPath{1, "/proc/self/status", false}); err != errMoved {
		t.Errorf("got %v", err)
	}
	// A file of it that is met where a namespace was expected hangs nobody.
	at, err := openat(unix.AT_FDCWD, dir, unix.O_PATH)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	verified := make(chan error, 1)
	go func() { verified <- verify(at, s.nsDev, 1) }()
	select {
	case err := <-verified:
		if err != errMoved {
			t.Errorf("verify: %v", err)
		}
	case <-ctx.Done():
		t.Error("verify hangs")
	}
}

// A process in the shape of its /proc directory, whose memory never answers.
func TestMemoryThatHangs(t *testing.T) {
	for _, tc := range []struct {
		uid     string
		leftOut bool
	}{{"1000\t1000\t1000\t1000", true}, {"1000\t0\t0\t0", false}, {"0\t0\t0\t0", false}, {"1000", false}} {
		dir := t.TempDir()
		write := func(name, text string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("cgroup", "0::/x\n")
		write("status", "Name:\tUid: 1\nUmask:\t0022\nUid:\t"+tc.uid+"\nGid:\t0\n")
		fifo := filepath.Join(dir, "cmdline")
		if err := errors.Join(os.Symlink("/bin/x", filepath.Join(dir, "exe")), unix.Mkfifo(fifo, 0o600)); err != nil {
			t.Fatal(err)
		}
		never, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		at, err := openat(unix.AT_FDCWD, dir, unix.O_PATH)
		if err != nil {
			t.Fatal(err)
		}
		s := &snapshot{hangs: new(hangs)}
		w := newWalker(s)
		err = w.identity(at, 7, 1)
		if tc.leftOut && (err != nil || !slices.Equal(w.deaf, []int{7})) || !tc.leftOut && (err != errHangs || w.deaf != nil) {
			t.Errorf("UIDs %q: %v, left out %v", tc.uid, err, w.deaf)
		}
		// Many of them do not keep us waiting.
		s.hangs.memory.Add(maxStuck)
		start := time.Now()
		if tc.leftOut {
			if err := w.identity(at, 8, 1); err != nil || time.Since(start) >= patience {
				t.Errorf("one more: %v after %v", err, time.Since(start))
			}
		}
		s.hangs.memory.Add(-maxStuck)
		never.Close() // ends what still reads
		for deadline := time.Now().Add(20 * time.Second); s.hangs.memory.Load() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("what hung has ended, and is still counted")
			}
		}
		unix.Close(at)
	}
}

func TestWhereAHangingSnapshotIs(t *testing.T) {
	var p progress
	if got := p.where(); got != "" {
		t.Errorf("got %q", got)
	}
	p[workers-1].Store(77)
	if got := p.where(); got != ", at process 77" {
		t.Errorf("got %q", got)
	}
}
