package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// node is a process in a mount namespace of its own that stands for a node's PID 1, with
// dir/netns as its directory of namespaces.
type node struct {
	pid int
	dir string
	*Inventory
}

// newNode runs a script there, in an empty tmpfs at dir.
func newNode(t *testing.T, script string) node {
	t.Helper()
	n := node{dir: t.TempDir()}
	cmd := exec.Command("sh", "-ec", fmt.Sprintf(`
		mount --make-rprivate /
		mount -t tmpfs none %[1]s
		cd %[1]s
		mkdir netns
		%[2]s
		cd /
		mount --make-rshared /
		echo ready
		exec cat`, n.dir, script))
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
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	var line [6]byte
	if k, err := out.Read(line[:]); err != nil || !strings.HasPrefix(string(line[:k]), "ready") {
		t.Fatalf("script: %q, %v", line[:k], err)
	}
	n.pid = cmd.Process.Pid
	n.Inventory = New(initAt(fmt.Sprintf("/proc/%d/ns/mnt", n.pid), ownNet, filepath.Join(n.dir, "netns")))
	return n
}

// mounts returns the mounts there at and below dir.
func (n node) mounts(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.pid))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(slices.Collect(strings.Lines(string(text))), func(l string) bool { return !strings.Contains(l, " "+n.dir) })
}

// exists reports whether the entry is to be seen there.
func (n node) exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := os.Lstat(fmt.Sprintf("/proc/%d/root%s/netns/%s", n.pid, n.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// bindOnItself is what podman's first run does.
const bindOnItself = "mount --rbind netns netns; mount --make-rshared netns\n"

func mountHere(ns *netns.NS) string {
	return fmt.Sprintf("touch netns/cni-a; mount --bind %[1]s netns/cni-a; umount %[1]s\n", ns.Path)
}

func TestTheRuntimeCannotRemoveWhatIsCovered(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a := netns.New(t)
	// What this room is built for: of two mounts on a path the lower one stays, and the
	// file cannot go. Where the parent mount is shared, both go.
	n := newNode(t, mountHere(a)+bindOnItself+"umount netns/cni-a; rm netns/cni-a 2>/dev/null && exit 1; true")
	if m := n.mounts(t); len(m) != 3 || !n.exists(t, "cni-a") {
		t.Errorf("mounts %q", m)
	}
	a.Unpin()
	b := netns.New(t)
	n = newNode(t, "mount --make-rshared .\n"+mountHere(b)+bindOnItself+"umount netns/cni-a; rm netns/cni-a")
	if m := n.mounts(t); len(m) != 2 || n.exists(t, "cni-a") {
		t.Errorf("shared: mounts %q", m)
	}
}

func TestRemoveCovered(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	ctx := context.Background()
	for _, tc := range []struct {
		name, script string
		listed       bool  // List shows it as resource
		noted        bool  // or in a note
		err          error // of RemoveNetns; nil: all of it goes
	}{
		{"the upper one is gone", bindOnItself + "umount netns/cni-a", false, true, nil},
		{"both are there", bindOnItself, true, false, nil},
		{"bound twice, the uppermost is gone", bindOnItself + bindOnItself + "umount netns/cni-a", false, true, nil},
		{"twice on one path below", "mount --bind netns/cni-a netns/cni-a\n" + bindOnItself + "umount netns/cni-a; umount netns/cni-a", false, true, nil},
		{"not bound: a plain mount", "", true, false, nil},
		{"below another file system, with a file of that name", "mount -t tmpfs none netns; touch netns/cni-a", false, true, ErrMounted},
		{"below another file system", "mount -t tmpfs none netns", false, true, ErrMounted},
		{"another directory bound on it", "mkdir other; touch other/cni-a; mount --bind other netns", false, true, ErrMounted},
		{"a file bound on it", "touch f; mount --bind f netns/cni-a", false, true, ErrChanged},
		{"and somewhere else", "touch f; mount --bind netns/cni-a f\n" + bindOnItself + "umount netns/cni-a", false, true, ErrMounted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := netns.New(t)
			n := newNode(t, mountHere(a)+tc.script)
			path := filepath.Join(n.dir, "netns/cni-a")
			before := n.mounts(t)
			snap := n.List(ctx)
			if (len(snap.Resources) == 1) != tc.listed || (len(snap.Notes) == 1) != tc.noted || snap.Stores[0].Problem != "" {
				t.Fatalf("List = %+v", snap)
			}
			if tc.noted && (snap.Notes[0].Path != path || !strings.Contains(snap.Notes[0].Text, fmt.Sprint(a.ID)) || !strings.Contains(snap.Notes[0].Text, "umount")) {
				t.Errorf("note %+v", snap.Notes[0])
			}
			if err := n.RemoveNetns(ctx, path, a.ID+1); !errors.Is(err, ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("another namespace: %v", err)
			}
			if got := n.mounts(t); !slices.Equal(got, before) {
				t.Errorf("List, or a refused removal, changed the mounts from %q to %q", before, got)
			}
			file := n.exists(t, "cni-a")

			err := n.RemoveNetns(ctx, path, a.ID)
			if !errors.Is(err, tc.err) {
				t.Errorf("RemoveNetns: %v, want %v", err, tc.err)
			}
			after := n.mounts(t)
			left := slices.ContainsFunc(after, func(l string) bool { return strings.Contains(l, fmt.Sprintf("net:[%d]", a.ID)) })
			if left != (tc.err != nil) {
				t.Errorf("mounts after RemoveNetns: %q", after)
			}
			if tc.err == nil && n.exists(t, "cni-a") {
				t.Error("the file is left")
			}
			if tc.err != nil && tc.name != "and somewhere else" && (!slices.Equal(after, before) || n.exists(t, "cni-a") != file) {
				t.Errorf("it failed and still changed something: %q, was %q", after, before)
			}
			if tc.err != nil {
				return
			}
			// Nothing but the namespace's mounts went.
			kept := slices.DeleteFunc(before, func(l string) bool { return strings.Contains(l, "net:[") })
			if !slices.Equal(kept, after) {
				t.Errorf("mounts %q, want %q", after, kept)
			}
			if err := n.RemoveNetns(ctx, path, a.ID); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("second RemoveNetns: %v", err)
			}
			if snap := n.List(ctx); len(snap.Resources)+len(snap.Notes) != 0 {
				t.Errorf("List after: %+v", snap)
			}
		})
	}
}

// A namespace of the same path that is not the one that was judged stays (I7), also
// below a cover.
func TestCoveredIsAnother(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a, b := netns.New(t), netns.New(t)
	n := newNode(t, mountHere(a)+fmt.Sprintf("mount --bind %s netns/cni-a\n", b.Path)+bindOnItself+"umount netns/cni-a; umount netns/cni-a 2>/dev/null || true")
	before := n.mounts(t)
	for _, id := range []uint64{a.ID, b.ID} {
		if err := n.RemoveNetns(context.Background(), filepath.Join(n.dir, "netns/cni-a"), id); !errors.Is(err, ErrChanged) {
			t.Errorf("RemoveNetns: %v, want ErrChanged", err)
		}
	}
	if got := n.mounts(t); !slices.Equal(got, before) {
		t.Errorf("mounts %q, were %q", got, before)
	}
}

// The same from a thread that is in the node's mount namespace already.
func TestRemoveCoveredFromWithin(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a := netns.New(t)
	n := newNode(t, mountHere(a)+bindOnItself+"umount netns/cni-a")
	dir := filepath.Join(n.dir, "netns")
	within := New(here(dir))
	err := onDoomedThread(func() error {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", n.pid))
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err != nil {
			return err
		}
		return within.RemoveNetns(context.Background(), filepath.Join(dir, "cni-a"), a.ID)
	})
	if m := n.mounts(t); err != nil || len(m) != 2 || n.exists(t, "cni-a") {
		t.Errorf("RemoveNetns: %v; mounts %q", err, m)
	}
}

func TestPrivateCopyIsPrivate(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	n := newNode(t, "")
	before := n.mounts(t)
	ran := false
	err := n.inHostMounts(func(host view) error {
		return host.inPrivateCopy(func(copied view) error {
			ran = true
			return unix.Unmount(n.dir, unix.MNT_DETACH)
		})
	})
	if err != nil || !ran {
		t.Fatal(err)
	}
	if got := n.mounts(t); len(got) != 1 || !slices.Equal(got, before) {
		t.Errorf("mounts %q, were %q", got, before)
	}
}

func TestParseMounts(t *testing.T) {
	got, err := parseMounts([]byte("7 1 0:4 net:[5] /a\\040b rw,nosuid master:3 shared:12 - nsfs nsfs rw\n8 1 0:5 /x\\134 /y rw master:12 - tmpfs - rw\n9 1 0:4 uts:[5] /u rw - nsfs nsfs rw\n"))
	want := []entry{
		{id: "7", parent: "1", dev: "0:4", root: "net:[5]", path: "/a b", netns: 5, shared: true},
		{id: "8", parent: "1", dev: "0:5", root: `/x\`, path: "/y"},
		{id: "9", parent: "1", dev: "0:4", root: "uts:[5]", path: "/u"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{
		"\n", "1 2 3\n", "7 1 0:4 / /a rw shared:1 nsfs nsfs rw\n", "7 1 0:4 / /a rw -\n", "7 1 0:4 / /a\\04 rw - x y z\n",
		"7 1 0:4 / /a\\999 rw - x y z\n", "7 1 0:4 net:[x] /a rw - nsfs nsfs rw\n", "7 1 0:4 net:[] /a rw - nsfs nsfs rw\n",
	} {
		if got, err := parseMounts([]byte(bad)); err == nil {
			t.Errorf("%q reads as %+v", bad, got)
		}
	}
}

func TestInFS(t *testing.T) {
	for _, tc := range []struct {
		root, at, path, want string
	}{
		{"/", "/", "/run/netns/x", "0:1 /run/netns/x"},
		{"/", "/run", "/run/netns/x", "0:1 /netns/x"},
		{"/netns", "/run/netns", "/run/netns/x", "0:1 /netns/x"},
		{"/f", "/run/netns/x", "/run/netns/x", "0:1 /f"},
		{"/", "/run/net", "/run/netns/x", ""},
		{"/", "/var", "/run/netns/x", ""},
	} {
		got, ok := entry{dev: "0:1", root: tc.root, path: tc.at}.inFS(tc.path)
		if got != tc.want || ok != (tc.want != "") {
			t.Errorf("%s at %s: %q %t, want %q", tc.root, tc.at, got, ok, tc.want)
		}
	}
}

// FuzzParseMounts: no table panics, and no namespace's line passes as one of nothing.
func FuzzParseMounts(f *testing.F) {
	f.Add([]byte("1 0 0:1 / / rw - ext4 x rw\n2 1 0:4 net:[9] /n rw shared:4 - nsfs nsfs rw\n"))
	f.Add([]byte("3 2 0:1 /f\\040 /n\\134 rw - ext4 x rw"))
	f.Fuzz(func(t *testing.T, table []byte) {
		all, err := parseMounts(table)
		if err != nil {
			return
		}
		for _, m := range all {
			if m.id == "" || m.parent == "" || m.path == "" && m.root == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}
