package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	upstream "github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/holdfast-cni/holdfast/cmd/holdfast-ipam/allocator"
)

// TestWalk: the order is that of host-local's own iterator.
func TestWalk(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 3000 {
		v6 := rng.IntN(3) == 0
		var ranges string
		n := 1 + rng.IntN(3)
		for k := range n {
			if k > 0 {
				ranges += ","
			}
			subnet, at := fmt.Sprintf("198.18.%d.0/%d", k, 28+rng.IntN(3)), func(j int) string { return fmt.Sprintf("198.18.%d.%d", k, j) }
			if v6 {
				subnet, at = fmt.Sprintf("2001:db8:0:%d::/%d", k, 124+rng.IntN(3)), func(j int) string { return fmt.Sprintf("2001:db8:0:%d::%x", k, j) }
			}
			ranges += fmt.Sprintf(`{"subnet": %q`, subnet)
			if rng.IntN(2) == 0 {
				ranges += fmt.Sprintf(`, "rangeStart": %q, "rangeEnd": %q`, at(1), at(2))
			}
			if rng.IntN(2) == 0 {
				ranges += fmt.Sprintf(`, "gateway": %q`, at(1+rng.IntN(2)))
			}
			ranges += "}"
		}
		conf, _, err := allocator.LoadIPAMConfig(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n", "ipam": {"ranges": [[%s]]}}`, ranges), "")
		if err != nil {
			t.Fatalf("%s: %v", ranges, err)
		}
		set := &conf.Ranges[0]
		last := netip.MustParseAddr(fmt.Sprintf("198.18.%d.%d", rng.IntN(n), rng.IntN(18)))
		if v6 {
			last = netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%d::%x", rng.IntN(n), rng.IntN(18)))
		}
		if rng.IntN(4) == 0 {
			last = netip.Addr{}
		}
		var theirs upstream.RangeSet
		for _, r := range *set {
			theirs = append(theirs, upstream.Range(r))
		}
		iter, err := upstream.NewIPAllocator(&theirs, lastOnly{last}, 0).GetIter()
		if err != nil {
			t.Fatal(err)
		}
		w := newWalk(set, last)
		for step := 0; ; step++ {
			if step > 200 {
				t.Fatalf("%d: %s behind %s does not end", i, ranges, last)
			}
			want, gw := iter.Next()
			got, s := w.next()
			if (want == nil) != (s == nil) {
				t.Fatalf("%d: %s behind %s, step %d: %v, want %v", i, ranges, last, step, got, want)
			}
			if want == nil {
				break
			}
			ip := s.ip(got)
			if ip.String() != want.String() || !s.gw.Equal(gw) {
				t.Fatalf("%d: %s behind %s, step %d: %v by %v, want %v by %v", i, ranges, last, step, &ip, s.gw, want, gw)
			}
		}
	}
}

// lastOnly is host-local's store as far as its iterator asks it.
type lastOnly struct{ addr netip.Addr }

func (l lastOnly) LastReservedIP(string) (net.IP, error) {
	if !l.addr.IsValid() {
		return nil, nil
	}
	return l.addr.AsSlice(), nil
}

func (lastOnly) Lock() error                   { return errors.ErrUnsupported }
func (lastOnly) Unlock() error                 { return errors.ErrUnsupported }
func (lastOnly) Close() error                  { return nil }
func (lastOnly) ReleaseByID(_, _ string) error { return errors.ErrUnsupported }
func (lastOnly) GetByID(_, _ string) []net.IP  { return nil }
func (lastOnly) Reserve(_, _ string, _ net.IP, _ string) (bool, error) {
	return false, errors.ErrUnsupported
}
