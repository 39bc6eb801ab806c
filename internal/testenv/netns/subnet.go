package netns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Subnet returns a random /24 within 10.128.0.0/9 that no other caller on this
// machine has until the end of the test: a lock file in os.TempDir() guards it. The
// lock goes with the process, so a killed run blocks nothing.
func Subnet(t testing.TB) netip.Prefix {
	t.Helper()
	for range 1000 {
		n := rand.IntN(1 << 15) // 10.128.0.0/9 holds 2^15 of /24
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + byte(n>>8), byte(n), 0}), 24)
		path := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-subnet-%s.lock", p.Addr()))
		f, err := claimFile(path)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			t.Fatalf("subnet: %v", err)
		}
		t.Cleanup(func() {
			os.Remove(path) // while locked, so nobody has just taken it
			f.Close()
		})
		return p
	}
	t.Fatal("subnet: 1000 random /24 were all taken")
	return netip.Prefix{}
}

// claimFile opens and locks a file that is still at path once it is locked: the last
// owner removes the file, and a lock on a removed file excludes nobody.
func claimFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	var held, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &held); err != nil {
		f.Close()
		return nil, err
	}
	if err := unix.Stat(path, &named); err != nil || held.Ino != named.Ino || held.Dev != named.Dev {
		f.Close()
		return nil, unix.EWOULDBLOCK
	}
	return f, nil
}

// Host returns the i-th address of p, counted from its base: Host(p, 1) of
// 10.200.3.0/24 is 10.200.3.1. p is an IPv4 /24 as Subnet returns it, i in 0..255.
func Host(p netip.Prefix, i int) netip.Addr {
	b := p.Masked().Addr().As4()
	b[3] = byte(i)
	return netip.AddrFrom4(b)
}
