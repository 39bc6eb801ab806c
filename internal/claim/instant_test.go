package claim_test

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	. "github.com/holdfast-cni/holdfast/internal/claim"
)

func TestInstantSince(t *testing.T) {
	at := func(boot string, mono, wall time.Duration) Instant {
		return Instant{Boot: boot, Mono: mono, Wall: time.Unix(0, 0).Add(wall)}
	}
	for _, r := range []struct {
		name         string
		now, earlier Instant
		want         time.Duration
		ok           bool
	}{
		{"same boot", at("b", 7, 0), at("b", 4, 0), 3, true},
		{"the same instant", at("b", 7, 0), at("b", 7, 0), 0, true},
		{"from the future", at("b", 7, 0), at("b", 8, 0), 0, false},
		{"another boot", at("b", 7, 0), at("a", 4, 0), 0, false},
		{"unread boot ID, both", at("", 7, 0), at("", 4, 0), 0, false},
		{"unread boot ID now", at("", 7, 0), at("b", 4, 0), 0, false},
		{"unread boot ID then", at("b", 7, 0), at("", 4, 0), 0, false},
		{"never", at("b", 7, 0), Instant{}, 0, false},
		{"wall clock went back an hour", at("b", 7, -time.Hour), at("b", 4, 0), 3, true},
		{"wall clock went on an hour", at("b", 7, time.Hour), at("b", 4, 0), 3, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			if d, ok := r.now.Since(r.earlier); d != r.want || ok != r.ok {
				t.Errorf("Since is %v, %v; want %v, %v", d, ok, r.want, r.ok)
			}
		})
	}
}

// A saved instant is the same one: nanoseconds of the monotonic clock are not rounded.
func TestInstantJSON(t *testing.T) {
	in := Instant{Boot: "b", Mono: 1<<62 + 1, Wall: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)}
	b, err := json.Marshal(in)
	var out Instant
	if err != nil || json.Unmarshal(b, &out) != nil || out != in {
		t.Errorf("%+v reads back as %+v, %v", in, out, err)
	}
}

func TestRangeContains(t *testing.T) {
	r := Range{First: netip.MustParseAddr("10.1.0.10"), Last: netip.MustParseAddr("10.1.0.20")}
	for a, want := range map[string]bool{
		"10.1.0.10": true, "10.1.0.20": true, "10.1.0.9": false, "10.1.0.21": false, "::ffff:10.1.0.15": false, "fd00::1": false,
	} {
		if r.Contains(netip.MustParseAddr(a)) != want {
			t.Errorf("%s: want %v", a, want)
		}
	}
	if r.Contains(netip.Addr{}) || (Range{}).Contains(netip.MustParseAddr("10.1.0.1")) {
		t.Error("no address, or no range, contains something")
	}
}

func TestKernelSpeaksFor(t *testing.T) {
	for a, want := range map[string]bool{
		"10.1.0.9": true, "fd00::9": true, "192.0.2.1": true, "100.64.0.1": true,
		"127.0.0.9": false, "::1": false, "169.254.1.1": false, "fe80::1": false, "224.0.0.1": false, "ff02::1": false, "0.0.0.0": false, "::": false,
	} {
		if KernelSpeaksFor(netip.MustParseAddr(a)) != want {
			t.Errorf("%s: want %v", a, want)
		}
	}
	if KernelSpeaksFor(netip.Addr{}) {
		t.Error("speaks for no address")
	}
}

func TestNetnsUsed(t *testing.T) {
	for _, r := range []struct {
		n    Netns
		want bool
	}{{Netns{}, false}, {Netns{Procs: 1}, true}, {Netns{FDHolders: 1}, true}, {Netns{Mounts: []string{"/run/netns/x"}}, false}} {
		if r.n.Used() != r.want {
			t.Errorf("%+v: want %v", r.n, r.want)
		}
	}
}
