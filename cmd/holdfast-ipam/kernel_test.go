package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// What is taken over was dead when the kernel was looked at: a stamp of after the look is
// another ADD's, for a namespace that the look cannot have seen.
func TestProvesDead(t *testing.T) {
	const bootID = "22222222-2222-4333-8444-555555555555"
	addr := netip.MustParseAddr("198.18.77.2")
	const own, gone, there = 11, 12, 13
	view := func() *kernelView {
		return &kernelView{
			addrs: map[netip.Addr]bool{}, netns: map[uint64]bool{own: true, there: true},
			asked: claim.Instant{Boot: bootID, Mono: time.Hour},
		}
	}
	for _, x := range []struct {
		name  string
		stamp *claim.Stamp
		view  func(v *kernelView)
		want  bool
	}{
		{name: "its namespace is gone", stamp: &claim.Stamp{Boot: bootID, Mono: time.Minute, Netns: gone}, want: true},
		{name: "an earlier boot", stamp: &claim.Stamp{Boot: earlierBoot, Mono: 9 * time.Hour, Netns: there}, want: true},
		{name: "stamped after the look", stamp: &claim.Stamp{Boot: bootID, Mono: time.Hour + 1, Netns: gone}},
		{name: "its namespace is there", stamp: &claim.Stamp{Boot: bootID, Mono: time.Minute, Netns: there}},
		{name: "its namespace is the one of this ADD", stamp: &claim.Stamp{Boot: bootID, Mono: time.Minute, Netns: own}},
		{name: "its namespace is not known", stamp: &claim.Stamp{Boot: bootID, Mono: time.Minute}},
		{name: "no stamp"},
		{name: "held", stamp: &claim.Stamp{Boot: earlierBoot, Netns: gone}, view: func(v *kernelView) { v.addrs[addr] = true }},
		{name: "not seen", stamp: &claim.Stamp{Boot: earlierBoot, Netns: gone}, view: func(v *kernelView) { v.why = "no vantage" }},
	} {
		v := view()
		if x.view != nil {
			x.view(v)
		}
		if got := v.provesDead(hostlocal.Held{Addr: addr, Stamp: x.stamp}, bootID, own); got != x.want {
			t.Errorf("%s: dead is %v, want %v", x.name, got, x.want)
		}
	}
}

// A look that is older than the wait for the lock should be is made again, but not for ever.
func TestOldLookIsMadeAgain(t *testing.T) {
	clock := boot.NewClock("/proc")
	now := clock.Now()
	if now.Boot == "" {
		t.Fatal("the boot ID cannot be read")
	}
	ago := func(d time.Duration) *kernelView {
		return &kernelView{asked: claim.Instant{Boot: now.Boot, Mono: now.Mono - d}}
	}
	for _, x := range []struct {
		name  string
		view  *kernelView
		looks int
		want  bool
	}{
		{"none", nil, 0, true},
		{"just now", ago(0), 1, false},
		{"long ago", ago(viewGood + time.Second), 1, true},
		{"of another boot", &kernelView{asked: claim.Instant{Boot: earlierBoot}}, 1, true},
		{"each takes too long", ago(viewGood + time.Second), maxLooks, false},
	} {
		a := &adder{r: &request{clock: clock}, view: x.view, looks: x.looks}
		if got := a.mustLook(); got != x.want {
			t.Errorf("%s: looks again is %v, want %v", x.name, got, x.want)
		}
	}
}
