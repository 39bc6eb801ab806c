package proc

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// childEnv makes the test binary do one thing in a child: in a namespace of its own,
// or without our capabilities.
const childEnv = "HOLDFAST_PROC_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(m.Run())
	case "ask":
		for _, t := range New(Config{Timeout: 20 * time.Second}).Ask(context.Background()) {
			v := claim.Vantage{}
			if t.Kernel != nil {
				v = t.Kernel.Vantage
			}
			fmt.Printf("%s %s proven=%t initial=%t %s\n", t.Witness, t.State, v.Proven, v.InitialPIDNS, t.Detail)
		}
	case "look":
		for range looks {
			New(Config{Proc: "/proc", Timeout: time.Minute}).Ask(context.Background())
		}
	case "watch":
		watch(os.Getenv("HOLDFAST_PROC_TEST_NETNS"))
	case "hold-marked":
		if _, err := newSnapshot(Config{Proc: "/proc"}); err != nil {
			panic(err)
		}
		fallthrough
	case "hold":
		var b [1]byte
		os.Stdin.Read(b[:])
	case "thread-elsewhere":
		// A thread that is not the main one goes to a namespace of its own and stays.
		go func() {
			runtime.LockOSThread()
			for unix.Gettid() == unix.Getpid() {
				go func() { runtime.LockOSThread(); elsewhere() }()
				time.Sleep(time.Hour)
			}
			elsewhere()
		}()
		var b [1]byte
		os.Stdin.Read(b[:])
	case "main-thread-ends":
		// The main thread ends, and another lives on until its standard input closes.
		go func() {
			var b [1]byte
			unix.Read(0, b[:])
			unix.Exit(0)
		}()
		// Whichever of many locked goroutines got the main thread ends it.
		for range 64 {
			go func() {
				runtime.LockOSThread()
				if unix.Gettid() == unix.Getpid() {
					unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
				}
				time.Sleep(time.Hour)
			}()
		}
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		}
		time.Sleep(time.Hour)
	}
}

func elsewhere() {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	fmt.Println(link, err)
	time.Sleep(time.Hour)
}

func ask(t *testing.T, cfg Config) (*claim.KernelFacts, *claim.ProcessFacts) {
	t.Helper()
	cfg.Timeout = 60 * time.Second // the machine may be busy
	got := New(cfg).Ask(context.Background())
	for _, x := range got {
		if x.State != claim.StateComplete {
			t.Fatalf("%s is %s: %s", x.Witness, x.State, x.Detail)
		}
	}
	if got[0].Witness != claim.WitnessKernel || got[1].Witness != claim.WitnessProcess {
		t.Fatalf("witnesses %s, %s", got[0].Witness, got[1].Witness)
	}
	return got[0].Kernel, got[1].Process
}

// askUntil asks until check has nothing to say. One answer would do on a machine of
// our own; beside a second run of these tests, that run's snapshot holds and enters
// our namespaces for moments.
func askUntil(t *testing.T, check func(k *claim.KernelFacts) string) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		k, _ := ask(t, Config{})
		last := check(k)
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Error(last)
			return
		}
	}
}

func isGone(id uint64) func(k *claim.KernelFacts) string {
	return func(k *claim.KernelFacts) string {
		if n, ok := find(k, id); ok {
			return fmt.Sprintf("a namespace that is gone is reported: %+v", n)
		}
		return ""
	}
}

func is(id uint64, want string, good func(n claim.Netns) bool) func(k *claim.KernelFacts) string {
	return func(k *claim.KernelFacts) string {
		n, ok := find(k, id)
		if !ok || !good(n) {
			return fmt.Sprintf("got %t %+v, want %s", ok, n, want)
		}
		return ""
	}
}

func find(k *claim.KernelFacts, id uint64) (claim.Netns, bool) {
	i := slices.IndexFunc(k.Netns, func(n claim.Netns) bool { return n.ID == id })
	if i < 0 {
		return claim.Netns{}, false
	}
	return k.Netns[i], true
}

func mustFind(t *testing.T, k *claim.KernelFacts, id uint64) claim.Netns {
	t.Helper()
	n, ok := find(k, id)
	if !ok {
		t.Fatalf("namespace %d is not among %d", id, len(k.Netns))
	}
	return n
}

func TestProcessInNetns(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a, b := netns.New(t), netns.New(t)
	a.Veth("eth0", b, "veth0")
	sub := netns.Subnet(t)
	want4, want6 := netns.Host(sub, 2), netip.MustParseAddr("fd00:4326::2")
	a.AddAddr("eth0", want4.String()+"/24")
	a.AddAddr("eth0", want6.String()+"/64")
	pid, _ := a.Hold()

	k, _ := ask(t, Config{})
	n := mustFind(t, k, a.ID)
	askUntil(t, is(a.ID, fmt.Sprintf("process %d", pid), func(n claim.Netns) bool {
		return n.Procs == 1 && slices.Equal(n.PIDs, []int{pid}) && n.Used() && !n.Host
	}))
	if !slices.Contains(n.Mounts, a.Path) {
		t.Errorf("mounts %q lack %q", n.Mounts, a.Path)
	}
	want := []claim.IfAddr{{If: "eth0", Addr: want4}, {If: "eth0", Addr: want6}}
	if !slices.Equal(n.Addrs, want) {
		t.Errorf("addresses %v, want %v (without loopback and link-local)", n.Addrs, want)
	}
	hosts := 0
	for _, n := range k.Netns {
		if n.Host {
			hosts++
		}
	}
	if hosts != 1 {
		t.Errorf("%d namespaces are the host's", hosts)
	}
	if !k.Vantage.Proven || !k.Vantage.InitialPIDNS {
		t.Errorf("vantage %+v", k.Vantage)
	}
}

func TestPeerAddressIsOurs(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a, b := netns.New(t), netns.New(t)
	a.Veth("eth0", b, "veth0")
	sub := netns.Subnet(t)
	own, peer := netns.Host(sub, 2), netns.Host(sub, 1)
	h := a.Handle()
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	host := func(a netip.Addr) *net.IPNet { return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)} }
	if err := h.AddrAdd(eth0, &netlink.Addr{IPNet: host(own), Peer: host(peer)}); err != nil {
		t.Fatal(err)
	}
	k, _ := ask(t, Config{})
	n := mustFind(t, k, a.ID)
	if want := []claim.IfAddr{{If: "eth0", Addr: own}}; !slices.Equal(n.Addrs, want) {
		t.Errorf("addresses %v, want %v", n.Addrs, want)
	}
}

func TestMountedOnlyThenGone(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a := netns.New(t)
	a.Close() // our own descriptors do not count, but be sure
	askUntil(t, is(a.ID, "the mount alone", func(n claim.Netns) bool {
		return !n.Used() && slices.Equal(n.Mounts, []string{a.Path})
	}))
	a.Unpin()
	askUntil(t, isGone(a.ID))
}

func TestHeldByDescriptorOnly(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a := netns.New(t)
	sub := netns.Subnet(t)
	a.AddAddr("lo", netns.Host(sub, 7).String()+"/32")
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{dup(t, a.FD())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.Unpin()
	a.Close()
	cmd.ExtraFiles[0].Close()
	askUntil(t, is(a.ID, "one holder of a descriptor", func(n claim.Netns) bool {
		return n.Procs == 0 && n.FDHolders == 1 && len(n.Mounts) == 0 && len(n.Addrs) == 1 && n.Addrs[0].If == "lo"
	}))
	stdin.Close()
	cmd.Wait()
	askUntil(t, isGone(a.ID))
}

func dup(t *testing.T, fd int) *os.File {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(n), "netns")
}

// otherMounts starts a process in a mount namespace of its own that runs a shell
// script first. It ends with the test.
func otherMounts(t *testing.T, script string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", "mount --make-rprivate /\n"+script+"\necho ready\nexec cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
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
	stop = sync.OnceFunc(func() {
		in.Close()
		cmd.Wait()
	})
	t.Cleanup(stop)
	var line [6]byte
	if n, err := out.Read(line[:]); err != nil || !strings.HasPrefix(string(line[:n]), "ready") {
		t.Fatalf("script: %q, %v", line[:n], err)
	}
	return cmd.Process.Pid, stop
}

func TestMountedInAnotherMountNamespace(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a := netns.New(t)
	path := a.Path
	_, stop := otherMounts(t, "")
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	a.Close()
	askUntil(t, is(a.ID, "the mount of the other mount namespace", func(n claim.Netns) bool {
		return !n.Used() && slices.Equal(n.Mounts, []string{path})
	}))
	stop()
	askUntil(t, isGone(a.ID))
}

func TestCoveredMount(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a := netns.New(t)
	a.Close()
	path := a.Path
	// One mount namespace shows it free; in ours it is covered by a FIFO, which would
	// hang whoever opened it.
	otherMounts(t, "")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fifo, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	k, _ := ask(t, Config{})
	mustFind(t, k, a.ID)
}

// The real thing would silence everybody else's snapshot on this machine, so the
// count is fed by hand.
func TestUnenterableIsSilentInTheEnd(t *testing.T) {
	s, err := newSnapshot(Config{Proc: "/proc"})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	covered := map[uint64]*sighting{4026539999: {mounts: []string{"/run/netns/cni-\x1b"}}}
	for i := range hopeless - 1 {
		s.last = covered
		if found, err := s.missing(); !found || err != nil {
			t.Fatalf("enumeration %d: %t, %v", i, found, err)
		}
	}
	s.last = nil // it was only vanishing: the count starts anew
	if found, err := s.missing(); found || err != nil {
		t.Fatalf("nothing is missing: %t, %v", found, err)
	}
	for range hopeless - 1 {
		s.last = covered
		if _, err := s.missing(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.missing()
	if err == nil || !strings.Contains(err.Error(), "4026539999") || strings.Contains(err.Error(), "\x1b") {
		t.Fatalf("got %v, want an error that names the namespace and quotes the path", err)
	}
}

// A mount that appears after a table was first read must be seen by the second look.
func TestTableIsReadAgainWhenChanged(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	s, err := newSnapshot(Config{Proc: "/proc"})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.enumerate(context.Background()); err != nil {
		t.Fatal(err)
	}
	a := netns.New(t)
	a.Close()
	if err := s.enumerate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s.last[a.ID] == nil || s.spaces[a.ID] == nil {
		t.Fatal("a new mount was not seen: the table was taken for unchanged")
	}
	a.Unpin()
	if err := s.enumerate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s.last[a.ID] != nil {
		t.Fatal("a mount that is gone is still seen")
	}
}

// A number that is used again between two enumerations is another process, whose IDs are
// still to be read.
func TestNumberUsedAgain(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	id := strings.Repeat("c", 60) + fmt.Sprintf("%04x", os.Getpid()&0xffff)
	cmd := exec.Command("sh", "-c", "read x", "-c", id)
	cmd.Args[0] = "conmon"
	cmd.Args = slices.Insert(cmd.Args, 3, "sh")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	a := netns.New(t)
	pid := a.Start(cmd)
	s, err := newSnapshot(Config{Proc: "/proc"})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	read := func() bool {
		clear(s.shims)
		if err := s.enumerate(context.Background()); err != nil {
			t.Fatal(err)
		}
		_, ok := s.shims[pid]
		return ok
	}
	if !read() {
		t.Fatal("not seen at all")
	}
	if read() {
		t.Error("the same process was read twice")
	}
	// As if its number had been another's when it was read.
	for p := range s.known {
		if p.pid == pid {
			delete(s.known, p)
			s.known[process{pid, p.dir + 1}] = true
		}
	}
	if !read() {
		t.Error("a number that was used again was taken for the process that had it before")
	}
}

func TestMainThreadEnded(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a := netns.New(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=main-thread-ends")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	pid := a.Start(cmd)
	deadline := time.Now().Add(20 * time.Second)
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if dead(text) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("its main thread has not ended: %q", text)
		}
		time.Sleep(5 * time.Millisecond)
	}
	a.Unpin()
	a.Close()
	k, _ := ask(t, Config{})
	if n := mustFind(t, k, a.ID); n.Procs == 0 {
		t.Errorf("got %+v, want a process whose main thread has ended", n)
	}
}

func TestThreadInAnotherNamespace(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	cmd := exec.Command(copyOfUs(t))
	cmd.Env = append(os.Environ(), childEnv+"=thread-elsewhere")
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
	var id uint64
	if _, err := fmt.Fscanf(out, "net:[%d] <nil>\n", &id); err != nil {
		t.Fatal(err)
	}
	askUntil(t, is(id, "the process of that thread", func(n claim.Netns) bool {
		return n.Procs == 1 && slices.Equal(n.PIDs, []int{cmd.Process.Pid})
	}))
}

func TestVanishingProcessesAreNoError(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a := netns.New(t)
	a.Hold()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, args := range [][]string{{"unshare", "-n", "true"}, {"unshare", "-m", "true"}, {"sh", "-c", "true & true"}} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					exec.Command(args[0], args[1:]...).Run()
				}
			}
		})
	}
	for range 25 {
		k, _ := ask(t, Config{})
		if n := mustFind(t, k, a.ID); n.Procs < 1 {
			t.Errorf("got %+v", n)
		}
	}
	close(stop)
	wg.Wait()
}

func TestNoProcIsSilent(t *testing.T) {
	got := New(Config{Proc: t.TempDir()}).Ask(context.Background())
	if got[0].State != claim.StateSilent || got[1].State != claim.StateSilent || got[0].Detail == "" {
		t.Fatalf("got %+v", got)
	}
	if v := New(Config{Proc: t.TempDir()}).Vantage(context.Background()); v.Proven || len(v.Checks) == 0 {
		t.Fatalf("vantage %+v", v)
	}
}

func TestTimeoutIsSilent(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, x := range New(Config{}).Ask(ctx) {
		if x.State != claim.StateSilent || x.Detail == "" {
			t.Errorf("%s is %s %q", x.Witness, x.State, x.Detail)
		}
	}
}

func TestNoDescriptorIsLeft(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	a := netns.New(t)
	a.Hold()
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	before := count()
	for range 3 {
		ask(t, Config{})
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// BenchmarkAsk measures a node of 250 namespaces with one process each.
func BenchmarkAsk(b *testing.B) {
	testenv.Need(b, testenv.Netns)
	for range 250 {
		n := netns.New(b)
		n.AddAddr("lo", "10.128.0.9/32") // each namespace has its own
		n.Hold()
		n.Close()
	}
	w := New(Config{Timeout: time.Minute, CNIBinDirs: []string{"/opt/cni/bin"}})
	b.ReportAllocs()
	for b.Loop() {
		for _, x := range w.Ask(context.Background()) {
			if x.State != claim.StateComplete {
				b.Fatal(x.Detail)
			}
		}
	}
}
