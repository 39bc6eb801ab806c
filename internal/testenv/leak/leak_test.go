package leak_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
)

// leaver leaves one thing, and returns what takes it away.
type leaver struct {
	*testing.T
	trial *leak.Trial
	// other runs f on a thread that serves nobody else, and is there from the beginning.
	other func(f func())
}

func (t leaver) ok(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sleep starts a child that ends by itself after a minute.
func (t leaver) sleep() (pid int) {
	t.Helper()
	path, err := exec.LookPath("sleep")
	t.ok(err)
	pid, err = syscall.ForkExec(path, []string{"sleep", "60"}, &syscall.ProcAttr{Env: os.Environ()})
	t.ok(err)
	return pid
}

// kill ends one process, and never a group or everybody, as 0 and -1 would.
func (t leaver) kill(pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("not a PID of ours: %d", pid)
	}
	t.ok(unix.Kill(pid, unix.SIGKILL))
}

// TestEachKindIsFound plants one thing of each kind, sees it found by name and nothing
// else with it, and nothing once it is gone.
func TestEachKindIsFound(t *testing.T) {
	for _, tc := range []struct {
		name, need string
		want       leak.Kind
		leave      func(t leaver) (undo func())
	}{
		{"a file left open", "", leak.FD, func(t leaver) func() {
			f, err := os.Open("/dev/null")
			t.ok(err)
			return func() { f.Close() }
		}},
		{"a socket", "", leak.FD, func(t leaver) func() {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			t.ok(err)
			return func() { unix.Close(fd) }
		}},
		{"a lock held", "", leak.Flock, func(t leaver) func() {
			f, err := os.Open(t.TempDir())
			t.ok(err)
			t.ok(unix.Flock(int(f.Fd()), unix.LOCK_EX))
			return func() { f.Close() }
		}},
		{"a goroutine", "", leak.Goroutine, func(leaver) func() {
			stop := make(chan struct{})
			go func() { <-stop }()
			return func() { close(stop) }
		}},
		{"a child that runs", "", leak.Process, func(t leaver) func() {
			// Not by os/exec: its descriptor of the child would be one more.
			pid := t.sleep()
			return func() {
				t.kill(pid)
				if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
					t.Error(err)
				}
			}
		}},
		{"a child that nobody waits for", "", leak.Process, func(t leaver) func() {
			pid := t.sleep()
			t.kill(pid)
			return func() {
				if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
					t.Error(err)
				}
			}
		}},
		{"a daemon of another parent", "", leak.Process, func(t leaver) func() {
			out, err := exec.Command("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!").Output()
			t.ok(err)
			var pid int
			_, err = fmt.Sscan(string(out), &pid)
			t.ok(err)
			return func() { t.kill(pid) }
		}},
		{"a file at an owned path", "", leak.File, func(t leaver) func() {
			path := filepath.Join(t.TempDir(), "f")
			t.trial.Own(path)
			t.ok(os.WriteFile(path, nil, 0o600))
			return func() { os.Remove(path) }
		}},
		{"a mount", testenv.Mount, leak.Mount, func(t leaver) func() {
			dir := t.TempDir()
			t.trial.Own(filepath.Dir(dir) + "/")
			t.ok(unix.Mount("none", dir, "tmpfs", 0, ""))
			return func() { unix.Unmount(dir, unix.MNT_DETACH) }
		}},
		{"a pinned network namespace", testenv.Netns, leak.Netns, func(t leaver) func() {
			path := filepath.Join(t.TempDir(), "ns")
			t.trial.Own(filepath.Dir(path) + "/")
			t.ok(os.WriteFile(path, nil, 0o600))
			t.ok(testenv.OnDoomedThread(func() error {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return err
				}
				return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
			}))
			return func() { unix.Unmount(path, unix.MNT_DETACH) }
		}},
		{"a thread in another network namespace", testenv.Netns, leak.Thread, func(t leaver) func() {
			var err error
			t.other(func() { err = unix.Unshare(unix.CLONE_NEWNET) })
			t.ok(err)
			return func() {
				t.other(func() {
					home, oerr := os.Open("/proc/self/ns/net")
					if err = oerr; err == nil {
						err = unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
						home.Close()
					}
				})
				t.ok(err)
			}
		}},
		{"a veth", testenv.Netns, leak.Link, func(t leaver) func() {
			id := strings.ToLower(rand.Text()[:8])
			t.trial.Own("hf" + id)
			v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "hf" + id + "a"}, PeerName: "hf" + id + "b"}
			t.ok(netlink.LinkAdd(v))
			return func() { t.ok(netlink.LinkDel(v)) }
		}},
		{"a cgroup", testenv.Cgroup, leak.Cgroup, func(t leaver) func() {
			name := "hf-" + strings.ToLower(rand.Text())
			t.trial.Own(name)
			dir := filepath.Join(testenv.CgroupBase(), name)
			t.ok(os.Mkdir(dir, 0o755))
			return func() { t.ok(os.Remove(dir)) }
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.need != "" {
				testenv.Need(t, tc.need)
			}
			jobs, done := make(chan func()), make(chan struct{})
			go func() {
				_ = testenv.OnDoomedThread(func() error { // which gives no error of its own
					for f := range jobs {
						f()
						done <- struct{}{}
					}
					return nil
				})
			}()
			defer close(jobs)
			var trial leak.Trial
			lv := leaver{t, &trial, func(f func()) { jobs <- f; <-done }}
			lv.other(func() {}) // the thread is there from now on
			trial.Begin(t)
			if left := trial.Left(); len(left) > 0 {
				t.Errorf("before: %v", left)
			}
			undo := tc.leave(lv)
			left := trial.Left()
			// What planted it ends in its own time, such as a thread.
			alone := func(f leak.Finding) bool { return f.Kind == tc.want }
			for end := time.Now().Add(5 * time.Second); slices.ContainsFunc(left, func(f leak.Finding) bool { return !alone(f) }) && time.Now().Before(end); left = trial.Left() {
				time.Sleep(10 * time.Millisecond)
			}
			undo()
			if len(left) == 0 {
				t.Errorf("found nothing, want a %s", tc.want)
			}
			for _, f := range left {
				if !alone(f) {
					t.Errorf("found %s, want a %s alone", f, tc.want)
				}
			}
			if left := trial.End(t); len(left) > 0 {
				t.Errorf("after: %v", left)
			}
		})
	}
}

// What others do on the machine meanwhile does not count, such as a mount elsewhere.
func TestOthersDoNotCount(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	dir := t.TempDir()
	var trial leak.Trial
	trial.Begin(t)
	trial.Own(dir+"-other/", "hf-nobody-is-called-so")
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	left := trial.Left()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if left = append(left, trial.End(t)...); len(left) > 0 {
		t.Errorf("found %v", left)
	}
}

// TestWatchFailsTheTest runs this binary over a test that leaves something.
func TestWatchFailsTheTest(t *testing.T) {
	const env = "HOLDFAST_LEAVE"
	if os.Getenv(env) != "" {
		testenv.Need(t, testenv.Long)
		if _, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWatchFailsTheTest$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "left behind: open file") {
		t.Errorf("%v\n%s", err, out)
	}
}

func BenchmarkWatch(b *testing.B) {
	for b.Loop() {
		var trial leak.Trial
		trial.Left()
	}
}
