package netns

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

func TestNewHoldAndCleanup(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var path string
	var pid int
	t.Run("life", func(t *testing.T) {
		a, b := New(t), New(t)
		path = a.Path
		if a.ID == b.ID || a.ID == 0 {
			t.Fatalf("IDs %d and %d", a.ID, b.ID)
		}
		var st unix.Stat_t
		if err := unix.Stat(a.Path, &st); err != nil || st.Ino != a.ID {
			t.Fatalf("mount shows inode %d (%v), want %d", st.Ino, err, a.ID)
		}
		a.Veth("eth0", b, "veth0")
		p := Subnet(t)
		a.AddAddr("eth0", Host(p, 2).String()+"/24")
		a.AddAddr("eth0", "fd00::2/64")
		pid, _ = a.Hold()
		got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if want := fmt.Sprintf("net:[%d]", a.ID); err != nil || got != want {
			t.Fatalf("process is in %s (%v), want %s", got, err, want)
		}
		_, stop := b.Hold()
		stop()
	})
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", path, err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d is left: %v", pid, err)
	}
	if after, _ := os.Readlink("/proc/self/ns/net"); after != before {
		t.Errorf("our main thread was left in %s", after)
	}
}

func TestSubnetIsOurs(t *testing.T) {
	p := Subnet(t)
	if _, err := claimFile(fmt.Sprintf("%s/holdfast-subnet-%s.lock", os.TempDir(), p.Addr())); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("a second caller was not kept off %s: %v", p, err)
	}
	if a := p.Addr().As4(); a[0] != 10 || a[1] < 128 || p.Bits() != 24 {
		t.Fatalf("%s lies outside 10.128.0.0/9", p)
	}
}
