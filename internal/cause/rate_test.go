package cause

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// passes are fed to a Rate.
type passes struct {
	r    Rate
	now  claim.Instant
	list map[string]*verdict.Finding
	of   func(*verdict.Finding) Cause
}

func newPasses() *passes {
	return &passes{now: claim.Instant{Boot: "b", Mono: time.Hour}, list: map[string]*verdict.Finding{}, of: func(*verdict.Finding) Cause { return Cause{} }}
}

// lose makes an address absent from now on.
func (p *passes) lose(n int) *verdict.Finding {
	path := fmt.Sprintf("%s/10.0.%d.%d", store, n/256, n%256)
	f := &verdict.Finding{
		Verdict: verdict.Suspect, Sight: &verdict.Sighting{Absent: p.now},
		Resource: &claim.Resource{Kind: claim.KindReservation, Store: store, Path: path},
	}
	p.list[path] = f
	return f
}

func (p *passes) pass(wait time.Duration) {
	j := &verdict.Judgement{}
	for _, f := range p.list {
		j.Findings = append(j.Findings, *f)
	}
	p.r.Feed(&verdict.Case{Now: p.now}, j, p.of)
	p.now.Mono += wait
}

func (p *passes) lost() int {
	n := 0
	for _, l := range p.r.Losses() {
		n += l.N
	}
	return n
}

// An address counts once, when its loss has lasted or it may go, and for the window.
func TestRate(t *testing.T) {
	for _, r := range []struct {
		name string
		run  func(p *passes)
		want int
	}{
		{"lost for one pass", func(p *passes) { p.pass(time.Minute); p.lose(1); p.pass(time.Minute) }, 0},
		{"lost for two", func(p *passes) { p.lose(1); p.pass(time.Minute); p.pass(time.Minute) }, 1},
		{"lost for five", func(p *passes) {
			p.lose(1)
			for range 5 {
				p.pass(30 * time.Second)
			}
		}, 1},
		{"may go at once", func(p *passes) { p.lose(1).Releasable = true; p.pass(time.Minute) }, 1},
		{"may go at once, and does not", func(p *passes) {
			p.lose(1).Releasable = true
			p.pass(time.Minute)
			p.pass(time.Minute)
			p.pass(time.Minute)
		}, 1},
		{"lost, alive, lost again", func(p *passes) {
			p.lose(1)
			p.pass(time.Minute)
			p.pass(time.Minute)
			p.list = map[string]*verdict.Finding{}
			p.pass(time.Minute)
			p.lose(1)
			p.pass(time.Minute)
			p.pass(time.Minute)
		}, 2},
		{"the window is over", func(p *passes) { p.lose(1); p.pass(time.Minute); p.pass(Window); p.pass(time.Second) }, 0},
		{"what an earlier boot left", func(p *passes) {
			f := p.lose(1)
			f.BootProven, f.Releasable, f.Verdict = true, true, verdict.Leaked
			p.pass(time.Minute)
			p.pass(time.Minute)
		}, 0},
		{"in use", func(p *passes) { p.lose(1).Verdict = verdict.InUse; p.pass(time.Minute); p.pass(time.Minute) }, 0},
		{"held", func(p *passes) { p.lose(1).Verdict = verdict.Held; p.pass(time.Minute); p.pass(time.Minute) }, 0},
		{"a cache file", func(p *passes) { p.lose(1).Resource.Kind = claim.KindCache; p.pass(time.Minute); p.pass(time.Minute) }, 0},
		{"another boot", func(p *passes) {
			p.lose(1)
			p.pass(time.Minute)
			p.now.Boot = "c"
			p.pass(time.Minute)
		}, 0},
		{"absent in no boot", func(p *passes) { p.lose(1).Sight = nil; p.pass(time.Minute); p.pass(time.Minute) }, 0},
		{"a flood", func(p *passes) {
			for n := range maxLosses + 500 {
				p.lose(n)
			}
			p.pass(time.Minute)
			p.pass(time.Minute)
		}, maxLosses},
	} {
		t.Run(r.name, func(t *testing.T) {
			p := newPasses()
			r.run(p)
			if got := p.lost(); got != r.want {
				t.Errorf("%d lost, want %d", got, r.want)
			}
		})
	}
}

// Case L10: who loses them is named, where most are his of which it is known.
func TestRateNames(t *testing.T) {
	crash, fine := claim.Pod{Namespace: "shop", Name: "crash", UID: "u1"}, claim.Pod{Namespace: "shop", Name: "fine", UID: "u2"}
	for _, r := range []struct {
		crash, fine, nobody int
		want                claim.Pod
		plugin              string
	}{
		{5, 2, 0, crash, "portmap"}, {3, 3, 0, claim.Pod{}, ""}, {2, 1, 20, crash, "portmap"}, {0, 0, 4, claim.Pod{}, ""},
	} {
		p := newPasses()
		n := 0
		for who, many := range map[claim.Pod]int{crash: r.crash, fine: r.fine, {}: r.nobody} {
			for range many {
				n++
				p.lose(n).Pod = who
			}
		}
		p.of = func(f *verdict.Finding) Cause {
			return map[claim.Pod]Cause{crash: {Kind: AddFailed, Plugin: "portmap", Pod: crash}, fine: {Kind: DelFailed, Plugin: "bridge", Pod: fine}}[f.Pod]
		}
		p.pass(time.Minute)
		p.pass(time.Minute)
		got := p.r.Losses()
		if len(got) != 1 || got[0].N != n || got[0].Pod != r.want || got[0].Plugin != r.plugin || got[0].Known != r.crash+r.fine || got[0].PerMinute != float64(n)/5 || got[0].Store != store {
			t.Errorf("%+v: %+v", r, got)
		}
	}
}
