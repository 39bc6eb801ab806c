package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

func frozen() claim.Instant { return claim.Instant{Boot: "b", Mono: time.Second} }

// initAt is a configuration whose PID 1 is in the namespaces at the given paths.
func initAt(mnt, net string, dirs ...string) Config {
	path := func(kind string) string { return map[string]string{"mnt": mnt, "net": net}[kind] }
	return Config{
		NetnsDirs: dirs, Clock: frozen,
		InInit: func(kind string) (bool, error) {
			var host, own unix.Stat_t
			err := errors.Join(unix.Stat(path(kind), &host), unix.Stat("/proc/thread-self/ns/"+kind, &own))
			return err == nil && host.Dev == own.Dev && host.Ino == own.Ino, err
		},
		OpenInit: func(kind string) (*os.File, error) { return os.Open(path(kind)) },
	}
}

const ownMnt, ownNet = "/proc/thread-self/ns/mnt", "/proc/thread-self/ns/net"

// here is a configuration whose PID 1 is where the calling thread is.
func here(dirs ...string) Config { return initAt(ownMnt, ownNet, dirs...) }

// TestListWithoutNamespaces needs no privilege: nothing in there is a namespace.
func TestListWithoutNamespaces(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600),
		os.Symlink("/proc/thread-self/ns/net", filepath.Join(dir, "link")),
		os.Mkdir(filepath.Join(dir, "sub"), 0o700),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	snap := New(here(dir, dir+"/none")).List(context.Background())
	if snap.Source != "links" || snap.Listed != frozen() || len(snap.Resources) != 0 || len(snap.Stores) != 2 || snap.Stores[0].Problem != "" {
		t.Errorf("snapshot = %+v", snap)
	}
	got := map[string]string{}
	for _, n := range snap.Notes {
		got[filepath.Base(n.Path)] = n.Text
	}
	want := map[string]string{"plain": errPlain.Error(), "link": errLink.Error(), "sub": errOther.Error(), "fifo": errOther.Error()}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("notes -want +got:\n%s", d)
	}
}

func TestAViewThatCannotBeHadIsNoEmptyList(t *testing.T) {
	dir := t.TempDir()
	refused := here(dir)
	refused.InInit = func(string) (bool, error) { return false, os.ErrPermission }
	refused.OpenInit = func(string) (*os.File, error) { return nil, os.ErrPermission }
	for what, cfg := range map[string]Config{"PID 1 is not there": initAt(dir+"/x", dir+"/x", dir), "PID 1 is refused": refused} {
		v := New(cfg)
		if snap := v.List(context.Background()); len(snap.Stores) != 1 || snap.Stores[0].Problem == "" {
			t.Errorf("%s: List = %+v, want a store with a problem", what, snap)
		}
		if _, err := v.Veths(context.Background()); !errors.Is(err, ErrNoView) {
			t.Errorf("%s: Veths: %v", what, err)
		}
		if err := v.RemoveNetns(context.Background(), filepath.Join(dir, "x"), 1); !errors.Is(err, ErrNoView) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: RemoveNetns = %v", what, err)
		}
		if err := v.RemoveVeth(context.Background(), Veth{Name: "x", Index: 5}); !errors.Is(err, ErrNoView) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: RemoveVeth = %v", what, err)
		}
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	snap := New(here(plain)).List(context.Background())
	if len(snap.Stores) != 1 || len(snap.Notes) != 1 {
		t.Errorf("a directory that is none: %+v", snap)
	}
}

func TestNetns(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	ctx := context.Background()
	base := t.TempDir()
	dir := filepath.Join(base, "netns")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(dir, filepath.Join(base, "alias"))); err != nil {
		t.Fatal(err)
	}
	host := netns.New(t)
	a := netns.NewAt(t, filepath.Join(dir, "cni-a"))
	b := netns.NewAt(t, filepath.Join(dir, "cni-b"))
	aPath, bPath := a.Path, b.Path
	v := New(initAt(ownMnt, host.Path, dir, filepath.Join(base, "alias")))

	// Docker's "default", and a namespace of another type.
	mount(t, host.Path, filepath.Join(dir, "default"))
	mount(t, "/proc/thread-self/ns/uts", filepath.Join(dir, "uts"))

	snap := v.List(ctx)
	got := map[string]uint64{}
	for _, r := range snap.Resources {
		if r.Kind != claim.KindNetns || r.Store != dir || r.Inc.Ino != r.NetnsID || r.Inc.Dev == 0 || r.Problem != "" {
			t.Errorf("resource %+v", r)
		}
		got[r.Path] = r.NetnsID
	}
	want := map[string]uint64{aPath: a.ID, bPath: b.ID, filepath.Join(dir, "default"): host.ID}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(snap.Notes) != 1 || snap.Notes[0].Text != errOtherNS.Error() {
		t.Errorf("notes: %+v", snap.Notes)
	}

	for _, tc := range []struct {
		what, path string
		id         uint64
		want       error
	}{
		{"another namespace is there", aPath, b.ID, ErrChanged},
		{"another type of namespace", filepath.Join(dir, "uts"), a.ID, ErrChanged},
		{"the host's", filepath.Join(dir, "default"), host.ID, ErrHost},
		{"nothing there", filepath.Join(dir, "none"), 1, fs.ErrNotExist},
		{"nothing there, but elsewhere", filepath.Join(dir, "none"), a.ID, ErrMounted},
		{"outside", filepath.Join(base, "cni-a"), a.ID, ErrOutside},
		{"upwards", dir + "/..", a.ID, ErrOutside},
		{"the directory", dir + "/", a.ID, ErrOutside},
		{"no path", "", a.ID, ErrOutside},
	} {
		var e *Error
		if err := v.RemoveNetns(ctx, tc.path, tc.id); !errors.Is(err, tc.want) || !errors.As(err, &e) {
			t.Errorf("%s: %v, want %v", tc.what, err, tc.want)
		}
	}
	if n := len(v.List(ctx).Resources); n != 3 {
		t.Fatalf("%d namespaces left, want 3: a refused removal removed", n)
	}

	mount(t, aPath, aPath) // a second mount on the same path
	if err := v.RemoveNetns(ctx, aPath, a.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(aPath); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveNetns: %v", err)
	}
	if err := v.RemoveNetns(ctx, aPath, a.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second RemoveNetns: %v", err)
	}
	if snap := v.List(ctx); len(snap.Resources) != 2 {
		t.Errorf("left: %+v", snap.Resources)
	}

	// A plain file that remains is nothing that was judged.
	if err := os.WriteFile(aPath, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveNetns(ctx, aPath, a.ID); !errors.Is(err, ErrChanged) {
		t.Errorf("plain file: %v, want ErrChanged", err)
	}
}

// TestNetnsInAnotherMountNamespace puts PID 1 into a mount namespace of its own, in
// which alone the mounts are visible.
func TestNetnsInAnotherMountNamespace(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	ctx := context.Background()
	dir := t.TempDir()
	path := filepath.Join(dir, "cni-hidden")
	outer, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}

	// The thread on which Need tried to mount may still be ending.
	strayed := strays(t, outer)
	for i := 0; strayed > 0 && i < 50; i++ {
		time.Sleep(20 * time.Millisecond)
		strayed = strays(t, outer)
	}
	var tid int
	var id uint64
	ready, stop, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if err := onDoomedThread(func() error {
			err := func() error {
				if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
					return err
				}
				if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
					return err
				}
				if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
					return err
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					return err
				}
				tid = unix.Gettid()
				var st unix.Stat_t
				if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
					return err
				}
				id = st.Ino
				return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
			}()
			ready <- err
			<-stop
			return nil
		}); err != nil {
			t.Error(err)
		}
	}()
	defer func() { close(stop); <-ended }()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}

	task := fmt.Sprintf("/proc/self/task/%d/ns/", tid)
	v := New(initAt(task+"mnt", ownNet, dir))
	snap := v.List(ctx)
	if len(snap.Resources) != 1 || snap.Resources[0].Path != path || snap.Resources[0].NetnsID != id {
		t.Fatalf("List = %+v", snap)
	}
	if snap := New(here(dir)).List(ctx); len(snap.Resources)+len(snap.Notes) != 0 {
		t.Errorf("the mount is visible here, so the test proves nothing: %+v", snap)
	}
	if err := v.RemoveNetns(ctx, path, id); err != nil {
		t.Fatal(err)
	}
	if snap := v.List(ctx); len(snap.Resources)+len(snap.Notes) != 0 {
		t.Errorf("after RemoveNetns: %+v", snap)
	}
	// No thread of ours stays in the other namespace but the test's own.
	for range 50 {
		if n := strays(t, outer); n <= strayed+1 {
			return
		}
		runtime.Gosched()
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("%d threads in a foreign mount namespace, want %d and the test's own", strays(t, outer), strayed)
}

func strays(t *testing.T, home string) int {
	tasks, err := filepath.Glob("/proc/self/task/*/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range tasks {
		if l, err := os.Readlink(p); err == nil && l != home {
			n++
		}
	}
	return n
}

func mount(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}

func TestVeths(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	ctx := context.Background()
	host, pod := netns.New(t), netns.New(t)
	host.Veth("vethpod", pod, "eth0")
	host.Veth("vethlive", pod, "eth1")
	h := host.Handle()
	for _, l := range []netlink.Link{
		&netlink.Bridge{LinkAttrs: attrs("cbr0")},
		&netlink.Veth{LinkAttrs: attrs("lonely"), PeerName: "lonely-p"},
	} {
		if err := h.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
	}
	vethpod, err := h.LinkByName("vethpod")
	if err != nil {
		t.Fatal(err)
	}
	cbr0, err := h.LinkByName("cbr0")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetMaster(vethpod, cbr0); err != nil {
		t.Fatal(err)
	}

	v := New(initAt(ownMnt, host.Path, t.TempDir()))
	list := func() map[string]Veth {
		t.Helper()
		got, err := v.Veths(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]Veth{}
		for _, x := range got {
			if x.Index <= 0 || len(x.MAC) != 17 || x.PeerIndex <= 0 {
				t.Errorf("veth %+v", x)
			}
			m[x.Name] = x
		}
		return m
	}
	all := list()
	if len(all) != 4 {
		t.Fatalf("Veths = %+v", all)
	}
	if x := all["vethpod"]; x.PeerHere || x.Master != "cbr0" || x.Index != vethpod.Attrs().Index {
		t.Errorf("vethpod = %+v", x)
	}
	if x := all["lonely"]; !x.PeerHere || x.Master != "" || x.PeerIndex != all["lonely-p"].Index {
		t.Errorf("lonely = %+v", x)
	}

	refused := []Veth{{}, {Name: "cbr0", Index: cbr0.Attrs().Index, MAC: cbr0.Attrs().HardwareAddr.String()}}
	for _, f := range []func(*Veth){
		func(x *Veth) { x.Name = "other" },
		func(x *Veth) { x.MAC = "02:00:00:00:00:01" },
		func(x *Veth) { x.Index = all["vethlive"].Index },
	} {
		x := all["vethpod"]
		f(&x)
		refused = append(refused, x)
	}
	for _, x := range refused {
		if err := v.RemoveVeth(ctx, x); !errors.Is(err, ErrChanged) {
			t.Errorf("RemoveVeth(%+v) = %v, want ErrChanged", x, err)
		}
	}
	if got := list(); len(got) != 4 {
		t.Fatalf("a refused removal removed: %+v", got)
	}

	if err := v.RemoveVeth(ctx, all["vethpod"]); err != nil {
		t.Fatal(err)
	}
	if _, err := pod.Handle().LinkByName("eth0"); err == nil {
		t.Error("the other end is still there")
	}
	if err := v.RemoveVeth(ctx, all["vethpod"]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second RemoveVeth: %v, want fs.ErrNotExist", err)
	}
	if got := list(); len(got) != 3 || got["vethlive"].Name == "" {
		t.Errorf("left: %+v", got)
	}

	// Its name given to a new veth: the old judgement does not hold for that.
	old := all["vethlive"]
	if err := v.RemoveVeth(ctx, old); err != nil {
		t.Fatal(err)
	}
	host.Veth("vethlive", pod, "eth1")
	if err := v.RemoveVeth(ctx, old); !errors.Is(err, fs.ErrNotExist) || list()["vethlive"].Name == "" {
		t.Errorf("RemoveVeth of a name given again: %v", err)
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{"remove netns", "/run/netns/\x1b[2J", fmt.Errorf("x\n%w", ErrChanged)}
	if s := e.Error(); strings.ContainsAny(s, "\x1b\n") || !errors.Is(e, ErrChanged) {
		t.Errorf("Error() = %q", s)
	}
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}
