package proc

import (
	"fmt"

	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// leftover makes what podman's first run leaves of a namespace that was mounted before,
// in a mount namespace of its own: dir stands for /run, dir/netns is bound on itself, and
// of the two mounts on one path the upper one is gone. extra covers it further. In the
// end everything is shared, as systemd has it, so that whatever is taken away from a copy
// that was not made private would be taken away here.
func leftover(t *testing.T, ns *netns.NS, extra string) (pid int, path string) {
	t.Helper()
	dir := t.TempDir()
	pid, _ = otherMounts(t, fmt.Sprintf(`
		mount -t tmpfs none %[1]s
		mkdir %[1]s/netns
		touch %[1]s/netns/cni-a
		mount --bind %[2]s %[1]s/netns/cni-a
		umount %[2]s
		mount --rbind %[1]s/netns %[1]s/netns
		mount --make-rshared %[1]s/netns
		umount %[1]s/netns/cni-a
		cd %[1]s
		%[3]s
		cd /
		mount --make-rshared /`, dir, ns.Path, extra))
	ns.Unpin()
	ns.Close()
	return pid, filepath.Join(dir, "netns/cni-a")
}

// mountsBelow returns the mounts that a process sees at and below dir. Others there may
// vanish meanwhile: another test's file that is removed takes the copies of its mount along.
func mountsBelow(t *testing.T, pid int, dir string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " "+dir) {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestCoveredEverywhere(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	for _, tc := range []struct{ name, extra string }{
		{"below a bind of its directory", ""},
		{"below that, and a file on it", "touch f; mount --bind f netns/cni-a"},
		{"below two binds and a tmpfs on all", "mount --rbind netns netns; mount -t tmpfs none ."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := netns.New(t)
			addr := netns.Host(netns.Subnet(t), 7)
			a.AddAddr("lo", addr.String()+"/32")
			pid, path := leftover(t, a, tc.extra)
			dir := filepath.Dir(filepath.Dir(path))
			before := mountsBelow(t, pid, dir)
			if strings.Count(before, path+" ") < 1 || strings.Count(before, "shared:") != strings.Count(before, "\n") {
				t.Fatalf("not the mounts that this test is about:\n%s", before)
			}
			askUntil(t, is(a.ID, "the covered mount alone, with its address", func(n claim.Netns) bool {
				return !n.Used() && slices.Equal(n.Mounts, []string{path}) &&
					slices.Equal(n.Addrs, []claim.IfAddr{{If: "lo", Addr: addr}})
			}))
			if after := mountsBelow(t, pid, dir); after != before {
				t.Errorf("the mounts there were changed; before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// What lies above one namespace may have another in it: taking it away for the one loses
// the other, which then needs a copy of its own.
func TestCoveredInWhatCovers(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a, b := netns.New(t), netns.New(t)
	_, path := leftover(t, a, fmt.Sprintf(`
		touch f netns/cni-b
		mount --bind %[1]s netns/cni-b
		umount %[1]s
		mount --bind f netns/cni-b`, b.Path))
	b.Unpin()
	b.Close()
	for id, path := range map[uint64]string{a.ID: path, b.ID: filepath.Join(filepath.Dir(path), "cni-b")} {
		askUntil(t, is(id, "the covered mount alone", func(n claim.Netns) bool {
			return !n.Used() && slices.Equal(n.Mounts, []string{path})
		}))
	}
}

func TestVantageSaysWhatWasUncovered(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	a := netns.New(t)
	_, path := leftover(t, a, "")
	// Another run's snapshot may hold it for a moment, and so give us a way in.
	askUntil(t, func(k *claim.KernelFacts) string {
		i := slices.IndexFunc(k.Vantage.Checks, func(c claim.Check) bool { return c.Name == "covered-mounts" })
		if _, ok := find(k, a.ID); !ok || !k.Vantage.Proven || i < 0 || !strings.Contains(k.Vantage.Checks[i].Detail, path) {
			return fmt.Sprintf("vantage %+v", k.Vantage)
		}
		return ""
	})
}

// PID 1's mount namespace is entered also where PID 1 is guarded, which has no number
// then. Nothing is to be found there, so nothing is taken away in the copy either.
func TestUncoverInInit(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	s, err := newSnapshot(Config{Proc: "/proc"})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.uncoverIn(mountKey{root: "of PID 1"}, []int{1}, []uint64{1})
	if found != 0 || err == nil || !strings.Contains(err.Error(), "no mount of it can be opened") {
		t.Errorf("got %d, %v", found, err)
	}
}

func TestCoverOf(t *testing.T) {
	const root = "1 0 0:1 / / rw shared:1 - ext4 /dev/vda rw\n2 1 0:2 / /run rw - tmpfs none rw\n"
	const lower = "3 2 0:4 net:[99] /run/netns/cni-a rw - nsfs nsfs rw\n"
	for _, tc := range []struct{ name, table, want string }{
		{"free", root + lower, ""},
		{"free, with a neighbour", root + lower + "4 2 0:4 net:[98] /run/netns/cni-ab rw - nsfs nsfs rw\n", ""},
		{"the directory bound on itself", root + lower + "4 2 0:2 /netns /run/netns rw shared:2 - tmpfs none rw\n", "/run/netns"},
		{"and its own copy", root + lower + "4 2 0:2 /netns /run/netns rw - tmpfs none rw\n5 4 0:4 net:[99] /run/netns/cni-a rw - nsfs nsfs rw\n", "/run/netns"},
		{"a file on it", root + lower + "4 3 0:2 /f /run/netns/cni-a rw - tmpfs none rw\n", "/run/netns/cni-a"},
		{"a file on it, below a tmpfs on /run", root + lower + "4 3 0:2 /f /run/netns/cni-a rw - tmpfs none rw\n5 2 0:9 / /run rw - tmpfs none rw\n", "/run"},
		{"a mount below /run that lies beside", root + lower + "4 2 0:9 / /run/net rw - tmpfs none rw\n", ""},
		{"a mount on what /run covers", root + lower + "4 1 0:9 / /run/netns rw - tmpfs none rw\n", ""},
		{"its parent is out of sight", lower, ""},
		{"parents in a circle", "2 3 0:2 / /run rw - tmpfs none rw\n" + lower, ""},
	} {
		tree, err := mountTree([]byte(tc.table))
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		m := tree[slices.IndexFunc(tree, func(m mountLine) bool { return m.ino == 99 })]
		got, ok := coverOf(tree, m)
		if ok != (tc.want != "") || got.path != tc.want {
			t.Errorf("%s: got %+v %t, want %q", tc.name, got, ok, tc.want)
		}
	}
}

func TestMountTree(t *testing.T) {
	got, err := mountTree([]byte("7 1 0:4 net:[5] /a\\040b rw,nosuid master:3 shared:12 unbindable - nsfs nsfs rw\n8 1 0:5 /x /y rw master:12 - tmpfs - rw\n"))
	want := []mountLine{{id: "7", parent: "1", path: "/a b", shared: true, ino: 5}, {id: "8", parent: "1", path: "/y"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"\n", "1 2 3\n", "7 1 0:4 / /a rw shared:1 nsfs nsfs rw\n", "7 1 0:4 / /a rw -\n", "7 1 0:4 / /a\\04 rw - x y z\n"} {
		if got, err := mountTree([]byte(bad)); err == nil {
			t.Errorf("%q reads as %+v", bad, got)
		}
	}
}

// FuzzMountTree: no table panics or keeps us for ever, and what is found above a mount is
// no part of the way to it.
func FuzzMountTree(f *testing.F) {
	f.Add([]byte("1 0 0:1 / / rw - ext4 x rw\n2 1 0:4 net:[9] /n rw - nsfs nsfs rw\n3 2 0:1 /f /n rw shared:4 - ext4 x rw\n"))
	f.Add([]byte("2 2 0:4 net:[9] /n rw - nsfs nsfs rw\n2 3 0:4 net:[9] / rw - nsfs nsfs rw\n3 2 0:1 / / rw - a b c\n"))
	f.Fuzz(func(t *testing.T, table []byte) {
		tree, err := mountTree(table)
		if err != nil {
			return
		}
		for _, m := range tree {
			if c, ok := coverOf(tree, m); ok && (c.id == m.id || !within(m.path, c.path) && len(tree) < 3) {
				t.Errorf("%+v is said to cover %+v", c, m)
			}
		}
	})
}
