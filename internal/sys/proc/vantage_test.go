package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// child runs this test binary as a child that asks, and returns what it says.
func child(t *testing.T, attr *syscall.SysProcAttr, wrap ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(wrap, exe)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"=ask")
	cmd.SysProcAttr = attr
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	return string(out)
}

func TestVantageOfAContainer(t *testing.T) {
	testenv.Need(t, testenv.PIDNS)
	testenv.Need(t, testenv.Mount)
	whole := child(t, nil)
	if !strings.Contains(whole, "kernel complete proven=true initial=true") {
		t.Errorf("on the node itself:\n%s", whole)
	}
	own := child(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
		"sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && "$0"; true`)
	if !strings.Contains(own, "kernel complete") || !strings.Contains(own, "initial=false") {
		t.Errorf("with a PID namespace and /proc of its own:\n%s", own)
	}
}

// copyOfUs returns a copy of this test binary that every user can run. It is another
// executable, so it is not taken for another snapshot of ours.
func copyOfUs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf-proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "proc.test")
	if err := os.WriteFile(bin, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestOtherSnapshotsAreNoUse(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	for _, tc := range []struct {
		name, does string
		same, ours bool
	}{
		{"the same executable", "hold", true, true},
		{"another", "hold", false, false},
		{"another that takes a snapshot", "hold-marked", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := netns.New(t)
			exe := copyOfUs(t) // another inode, as another build has
			if tc.same {
				var err error
				if exe, err = os.Executable(); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), childEnv+"="+tc.does)
			cmd.ExtraFiles = []*os.File{dup(t, a.FD())}
			in, err := cmd.StdinPipe()
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
			cmd.ExtraFiles[0].Close()
			a.Close()
			askUntil(t, is(a.ID, "a holder unless it is ours", func(n claim.Netns) bool { return (n.FDHolders > 0) != tc.ours }))
		})
	}
}

const looks = 400

// watch looks as often as the others and tells how often the namespace was in use.
func watch(id string) {
	used, seen := 0, 0
	for range looks {
		for _, x := range New(Config{Proc: "/proc", Timeout: time.Minute}).Ask(context.Background()) {
			if x.Kernel == nil {
				continue
			}
			for _, n := range x.Kernel.Netns {
				if fmt.Sprint(n.ID) != id {
					continue
				}
				seen++
				if n.Procs > 0 || n.FDHolders > 0 {
					used++
				}
			}
		}
	}
	fmt.Printf("seen %d, used %d\n", seen, used)
}

// Two other builds look all the time, in a PID namespace without anybody else. A thread
// that stays behind is only seen in some runs; a descriptor in each.
func TestOtherBuildsLeaveNoTrace(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.PIDNS)
	testenv.Need(t, testenv.Mount)
	a := netns.New(t)
	a.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc || exit
export `+childEnv+`
`+childEnv+`=look
"$1" & "$2" &
`+childEnv+`=watch
"$0"
wait`, exe, copyOfUs(t), copyOfUs(t))
	cmd.Env = append(os.Environ(), fmt.Sprintf("HOLDFAST_PROC_TEST_NETNS=%d", a.ID))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := fmt.Sprintf("seen %d, used 0", looks); !strings.Contains(string(out), want) {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestWithoutPowersItIsSilent(t *testing.T) {
	testenv.Need(t, testenv.Root)
	bin := copyOfUs(t)
	for name, run := range map[string]func(*exec.Cmd) error{
		"nobody": func(cmd *exec.Cmd) error {
			testenv.Need(t, testenv.Nobody)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			return cmd.Run()
		},
		"without CAP_SYS_PTRACE": runWithoutPtrace,
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := exec.Command(bin)
			cmd.Env = append(os.Environ(), childEnv+"=ask")
			cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &out
			if err := run(cmd); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			for _, want := range []string{"kernel silent", "process silent", "CAP_SYS_PTRACE"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, &out)
				}
			}
		})
	}
}

// A limit that is reached anywhere in a snapshot makes it silent, and says what to do.
func TestFewDescriptorsAreSilence(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	for range 40 {
		netns.New(t).Close()
	}
	limits := []int{256}
	for n := 8; n < 48; n += 3 {
		limits = append(limits, n)
	}
	silent := 0
	for _, n := range limits {
		out := child(t, nil, "sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0"`, n))
		switch {
		case strings.Contains(out, "kernel silent") && strings.Contains(out, "process silent") && strings.Contains(out, "ulimit -n"):
			silent++
		case n < 256 || !strings.Contains(out, "kernel complete"):
			// 256 are enough, unless the machine is full of namespaces.
			t.Errorf("with %d descriptors:\n%s", n, out)
		}
	}
	if silent == 0 {
		t.Error("no limit was reached, so this proves nothing")
	}
}

// runWithoutPtrace starts the command from a thread that can no longer give the
// capability to what it executes, not even to root.
func runWithoutPtrace(cmd *exec.Cmd) error {
	return testenv.OnDoomedThread(func() error {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl(PR_CAPBSET_DROP)", err)
		}
		return cmd.Run()
	})
}

func TestShimAndPluginAreHits(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	dir := t.TempDir()
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cat)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bridge", "dnsmasq"} {
		if err := os.MkdirAll(filepath.Join(dir, name+".d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".d", name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	id := func(c string) string { return strings.Repeat(c, 60) + fmt.Sprintf("%04x", os.Getpid()&0xffff) }
	a := netns.New(t)
	start := func(path string, env ...string) int {
		cmd := exec.Command(path)
		cmd.Env = env
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		return a.Start(cmd)
	}
	plugin := start(filepath.Join(dir, "bridge.d/bridge"), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+id("a"))
	start(filepath.Join(dir, "bridge.d/bridge"), "CNI_COMMAND=CHECK", "CNI_CONTAINERID="+id("b"))
	start(filepath.Join(dir, "dnsmasq.d/dnsmasq"), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+id("c"))
	shim := exec.Command("sh", "-c", "read x", "-namespace", "k8s.io", "-id", id("d"), "-address", "/run/c.sock")
	shim.Args[0] = "/usr/bin/containerd-shim-runc-v2"
	if _, err := shim.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	shimPID := a.Start(shim)

	_, p := ask(t, Config{CNIBinDirs: []string{filepath.Join(dir, "bridge.d")}})
	var got []claim.ProcessHit
	for _, h := range p.Hits {
		if h.Netns == a.ID && h.Via != "cgroup" {
			got = append(got, h)
		}
	}
	want := []claim.ProcessHit{
		{ID: id("a"), PID: plugin, Netns: a.ID, Via: "cni"},
		{ID: id("d"), PID: shimPID, Netns: a.ID, Via: "shim"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !slices.Contains(p.Shims, claim.Shim{PID: shimPID, ID: id("d"), Namespace: "k8s.io", Address: "/run/c.sock"}) {
		t.Errorf("shims %+v", p.Shims)
	}
}

func TestCgroupIsAHitWhileAProcessLives(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Cgroup)
	id := strings.Repeat("e", 56) + fmt.Sprintf("%08x", os.Getpid())
	dir := filepath.Join(testenv.CgroupBase(), "cri-containerd-"+id+".scope")
	leak.Own(t, id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	a := netns.New(t)
	pid, stop := a.Hold()
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(fmt.Sprint(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	_, p := ask(t, Config{})
	if !slices.Contains(p.Hits, claim.ProcessHit{ID: id, PID: pid, Netns: a.ID, Via: "cgroup"}) {
		t.Errorf("no hit for %s among %d", id, len(p.Hits))
	}
	stop()
	_, p = ask(t, Config{})
	for _, h := range p.Hits {
		if h.ID == id {
			t.Errorf("the cgroup is empty, and still: %+v", h)
		}
	}
}

// TestInitSees runs as a child in mount namespaces of its own, where a path is covered,
// uncovered, or was never there.
func TestInitSees(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	dir := t.TempDir()
	for _, d := range []string{"both", "covered"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The node's plugins are behind a link, and not to be had where it is covered.
	bin, real := filepath.Join(dir, "covered/bin"), filepath.Join(dir, "covered/real")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink("real", bin)); err != nil {
		t.Fatal(err)
	}
	sees := func(name string) bool {
		t.Helper()
		same, err := InitSees("/proc", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return same
	}
	for _, name := range []string{"both", "covered", "neither"} {
		if !sees(name) {
			t.Errorf("%s: not PID 1's, in its own mount namespace", name)
		}
	}
	done := make(chan struct{})
	var elsewhere func()
	elsewhere = func() {
		runtime.LockOSThread() // and the thread ends with it
		if unix.Gettid() == unix.Getpid() {
			go elsewhere() // the main thread does not end
			<-done
			runtime.UnlockOSThread()
			return
		}
		defer close(done)
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("none", filepath.Join(dir, "covered"), "tmpfs", 0, ""), os.Mkdir(filepath.Join(dir, "covered/ours"), 0o755))
		if err != nil {
			t.Error(err)
			return
		}
		if got := binDirs("/proc", []string{bin}); !slices.Equal(got, []string{bin, real}) {
			t.Errorf("where the node's plugins are: %q", got)
		}
		for name, want := range map[string]bool{"both": true, "covered": false, "covered/ours": false, "neither": true} {
			if same, err := InitSees("/proc", filepath.Join(dir, name)); err != nil || same != want {
				t.Errorf("%s: PID 1 sees the same: %t, %v; want %t", name, same, err, want)
			}
		}
	}
	go elsewhere()
	<-done
}
