package plan_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

func ten(string) int { return 10 }

// A bucket is refilled by the monotonic clock of one boot, and by nothing else.
func TestRateRefill(t *testing.T) {
	at := func(boot string, mono time.Duration) claim.Instant {
		return claim.Instant{Boot: boot, Mono: time.Hour + mono, Wall: time.Unix(int64(mono), 0)}
	}
	for _, r := range []struct {
		name string
		seen []claim.Instant
		want int
	}{
		{"at once", []claim.Instant{at("b", 0)}, 10},
		{"a nanosecond before the first", []claim.Instant{at("b", 3*time.Second-1)}, 10},
		{"the first", []claim.Instant{at("b", 3*time.Second)}, 9},
		{"a half", []claim.Instant{at("b", 15*time.Second)}, 5},
		{"a half, looked at often", []claim.Instant{at("b", time.Second), at("b", 7*time.Second), at("b", 15*time.Second)}, 5},
		{"nearly all", []claim.Instant{at("b", RateWindow-1)}, 1},
		{"all", []claim.Instant{at("b", RateWindow)}, 0},
		{"a long time", []claim.Instant{at("b", 1<<62)}, 0},
		{"the clock goes back, and on again", []claim.Instant{at("b", -time.Minute), at("b", 0)}, 10},
		{"another boot", []claim.Instant{at("c", time.Hour)}, 10},
		{"another boot, and on in it", []claim.Instant{at("c", -time.Minute), at("c", time.Hour)}, 10},
		{"another boot and back", []claim.Instant{at("c", time.Hour), at("b", -time.Second)}, 10},
		{"another boot and on", []claim.Instant{at("c", time.Hour), at("b", 15*time.Second)}, 5},
		{"no boot", []claim.Instant{at("", time.Hour)}, 10},
		{"no boot for a while", []claim.Instant{at("", 0), at("b", 15*time.Second)}, 5},
	} {
		rate := Rate{}.Spend(at("b", 0), ten, map[string]int{pods: 10, other: 0})
		for _, now := range r.seen {
			rate = rate.Spend(now, ten, nil)
		}
		want := map[string]int{pods: r.want}
		if r.want == 0 {
			want = map[string]int{}
		}
		if diff := cmp.Diff(want, rate.Used(r.seen[len(r.seen)-1], ten)); diff != "" {
			t.Errorf("%s: %s", r.name, diff)
		}
	}
}

// Each store has its own bucket, as large as its cap, and a boot's proof does not count.
func TestCapsByStore(t *testing.T) {
	j := &verdict.Judgement{}
	for i := range 300 {
		j.Findings = append(j.Findings, reservation(pods, fmt.Sprintf("10.1.%d.%d", i/200, 2+i%200), id(i)))
	}
	j.Findings = append(j.Findings, reservation(other, "10.9.0.1", id(900)), cache(id(1)),
		reservation(other, "10.9.0.2", id(901), func(f *verdict.Finding) { f.Verdict = verdict.Missing }))
	for _, r := range []struct{ max, pods, other, none int }{{0, 30, MinCap, MinCap}, {5, 5, 5, 5}} {
		c := Caps(j, r.max)
		if c(pods) != r.pods || c(other) != r.other || c("/nowhere") != r.none {
			t.Errorf("maxReleases %d: %d, %d, %d", r.max, c(pods), c(other), c("/nowhere"))
		}
	}
}

// P: whatever sweeps there are, whatever leaks and whatever the clocks do, no RateWindow
// sees more releases of a store than the doc comment of Rate says; and by it as many go, if they are
// there.
func TestRateBound(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		limit := 1 + r.Intn(20)
		now := claim.Instant{Boot: "b", Mono: time.Hour}
		var rate Rate
		type release struct {
			at time.Duration // that really passed
			n  int
		}
		var log []release
		var passed time.Duration
		largest, next, total := 0, 0, 0
		for i := range 80 {
			d := time.Duration(r.Int63n(int64(RateWindow) / int64(1+r.Intn(20))))
			passed += d
			now.Mono += d
			asked := now
			odd := r.Intn(12)
			if i == 0 {
				odd = -1 // a clock that goes on by itself later is not one that goes back
			}
			switch odd {
			case 0:
				asked.Boot = ""
			case 1:
				asked.Boot = "other"
			case 2:
				asked.Mono -= time.Duration(r.Int63n(int64(time.Hour)))
			}
			var j verdict.Judgement
			for range r.Intn(30) {
				next++
				n := 1
				if r.Intn(10) == 0 {
					n = 1 + r.Intn(2*limit)
				}
				for k := range n {
					f := reservation(pods, fmt.Sprintf("fd00::%x:%x", next, k), id(next))
					if r.Intn(20) == 0 && n == 1 {
						f.BootProven = true
					}
					j.Findings = append(j.Findings, f)
				}
			}
			p := Make(&j, Options{MaxReleases: limit, Used: rate.Used(asked, Caps(&j, limit))})
			n := 0
			for _, g := range p.Groups {
				of := 0
				for _, f := range g.Findings {
					if !f.BootProven {
						of++
					}
				}
				n += of
				if n > 0 {
					largest = max(largest, of)
				}
			}
			total += n
			rate = rate.Spend(asked, Caps(&j, limit), map[string]int{pods: n})
			log = append(log, release{passed, n})
			in := 0
			for _, e := range log {
				if e.at > passed-RateWindow {
					in += e.n
				}
			}
			if in > limit+max(limit, largest) {
				t.Fatalf("seed %d: %d releases within %s, with a cap of %d and a container with %d addresses", seed, in, RateWindow, limit, largest)
			}
		}
		if total < limit {
			t.Errorf("seed %d: %d releases in all, with a cap of %d", seed, total, limit)
		}
	}
}
