package digest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

func TestVerdictsFit(t *testing.T) {
	if n := len(verdict.All()); n != digest.Verdicts {
		t.Errorf("%d verdicts, room for %d", n, digest.Verdicts)
	}
}

// What was released is gone from the counts, what was adopted is in them.
func TestAfterThePass(t *testing.T) {
	s := passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.10")
	made := func() *agent.Pass {
		return passes.Of(passes.At(10*time.Minute), []claim.Store{s}, passes.Finding(s, "10.1.0.1", verdict.Leaked), passes.Finding(s, "10.1.0.2", verdict.Leaked),
			passes.Finding(s, "10.1.0.3", verdict.Missing), passes.Finding(s, "10.9.9.9", verdict.InUse))
	}
	type counts struct {
		Leaked, Missing, Live, Reserved int
		Free                            uint64
		Oldest                          time.Duration
	}
	of := func(p *agent.Pass) counts {
		n := digest.Of(p).Networks[0]
		return counts{n.Count(verdict.Leaked), n.Count(verdict.Missing), n.Count(verdict.InUse), n.Reserved, n.Free, n.OldestLeak}
	}
	if diff := cmp.Diff(counts{2, 1, 1, 3, 8, 10 * time.Minute}, of(made())); diff != "" {
		t.Errorf("nothing done:\n%s", diff)
	}
	p := made()
	passes.Release(p, 0, cause.Cause{})
	passes.Release(p, 1, cause.Cause{})
	if diff := cmp.Diff(counts{0, 1, 1, 1, 10, 0}, of(p)); diff != "" {
		t.Errorf("both released:\n%s", diff)
	}
	p = made()
	p.Adopted = adopted(p, 2, "adopted")
	if diff := cmp.Diff(counts{2, 0, 2, 4, 7, 10 * time.Minute}, of(p)); diff != "" {
		t.Errorf("adopted:\n%s", diff)
	}
	p.Adopted = adopted(p, 2, "taken")
	if diff := cmp.Diff(counts{2, 1, 1, 3, 8, 10 * time.Minute}, of(p)); diff != "" {
		t.Errorf("not adopted:\n%s", diff)
	}
}

func TestLostAndStopped(t *testing.T) {
	a, b := passes.Store(passes.DataDir, "a", "10.1.0.1", "10.1.0.10"), passes.Store(passes.DataDir, "b", "10.2.0.1", "10.2.0.10")
	p := passes.Of(passes.At(0), []claim.Store{a, b}, passes.Finding(a, "10.1.0.1", verdict.Leaked), passes.Finding(b, "10.2.0.1", verdict.InUse))
	p.Lost = []*verdict.Finding{&p.Audit.Judgement.Findings[0]}
	d := digest.Of(p)
	if d.Networks[0].Lost != 1 || d.Networks[1].Lost != 0 {
		t.Errorf("%+v", d.Networks)
	}
	for _, c := range []struct {
		store string
		want  int
	}{{a.Dir, 1}, {"", 2}, {"/elsewhere", 0}} {
		if got := d.Stopped([]line.Stop{{Store: c.store}}); len(got) != c.want || got[d.Networks[0].Name] != (c.want > 0) {
			t.Errorf("a stop of %q: %v", c.store, got)
		}
	}
	if n := d.NameOf(""); n.Network != digest.Every {
		t.Errorf("%+v", n)
	}
}

// The age of a leak that an earlier boot left is that of this boot.
func TestOldestLeakOfAnotherBoot(t *testing.T) {
	s := passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.10")
	f := passes.Finding(s, "10.1.0.1", verdict.Leaked)
	f.Sight.Absent = claim.Instant{}
	now := passes.At(time.Minute)
	if got := digest.Of(passes.Of(now, []claim.Store{s}, f)).Networks[0].OldestLeak; got != now.Mono {
		t.Errorf("%s, want %s", got, now.Mono)
	}
	f.Verdict = verdict.Suspect
	if got := digest.Of(passes.Of(now, []claim.Store{s}, f)).Networks[0].OldestLeak; got != 0 {
		t.Errorf("%s of a suspect", got)
	}
}

// The counts are those of the published document.
func TestLikeTheReport(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var stores []claim.Store
		var list []verdict.Finding
		for n := range 1 + rng.IntN(4) {
			s := passes.Store(passes.DataDir, fmt.Sprintf("net%d", n), "10.1.0.5", fmt.Sprintf("10.1.0.%d", 6+rng.IntN(20)))
			if rng.IntN(4) == 0 {
				g := claim.Range{First: netip.MustParseAddr("fd00::fffe"), Last: netip.MustParseAddr("fd00::1:3")}
				s.Ranges, s.Capacity = append(s.Ranges, g), s.Capacity+6
			}
			if rng.IntN(5) == 0 {
				s.Ranges, s.Capacity, s.Configs = nil, 0, nil
			}
			stores = append(stores, s)
			for range rng.IntN(40) {
				addr := fmt.Sprintf("10.1.0.%d", rng.IntN(30))
				if rng.IntN(3) == 0 {
					addr = fmt.Sprintf("fd00::%x", 0xfffa+rng.IntN(12))
					if strings.HasPrefix(addr, "fd00::1000") {
						addr = "fd00::1:" + addr[len("fd00::1000"):]
					}
				}
				f := passes.Finding(s, addr, verdict.All()[rng.IntN(digest.Verdicts)])
				f.Resource.Path += fmt.Sprint("-", rng.IntN(3)) // one address in several files
				list = append(list, f)
			}
		}
		p := passes.Of(passes.At(time.Minute), stores, list...)
		d := digest.Of(p)
		want := report.Networks(&p.Audit.Case, p.Audit.Judgement, nil)
		if len(want) != len(d.Networks) || d.Found != len(want) {
			t.Fatalf("%d networks (%d), want %d", len(d.Networks), d.Found, len(want))
		}
		for i, w := range want {
			n := d.Networks[i]
			if n.Network != w.Name || n.Capacity != w.Capacity || n.Free != w.Free || n.Reserved != w.Reserved {
				t.Fatalf("%+v, want %+v", n, w)
			}
			for _, v := range verdict.All() {
				if n.Count(v) != w.Verdicts[v.String()] {
					t.Fatalf("%s: %d %s, want %d", n.Network, n.Count(v), v, w.Verdicts[v.String()])
				}
			}
		}
	}
}

// However many directories there are, so many networks are told apart, and nothing is lost
// from the sum.
func TestManyNetworks(t *testing.T) {
	var stores []claim.Store
	var list []verdict.Finding
	for i := range 1000 {
		s := passes.Store(passes.DataDir, fmt.Sprintf("net%04d", i), "10.1.0.1", "10.1.0.10")
		if i < 900 {
			s.Capacity, s.Configs = 0, nil // a directory that anybody may have made
		}
		stores = append(stores, s)
		list = append(list, passes.Finding(s, "10.1.0.1", verdict.InUse))
	}
	d := digest.Of(passes.Of(passes.At(0), stores, list...))
	if len(d.Networks) != digest.MaxNetworks+1 || d.Found != 1000 {
		t.Fatalf("%d networks of %d", len(d.Networks), d.Found)
	}
	sum := 0
	for i := range d.Networks {
		sum += d.Networks[i].Reserved
	}
	if sum != 1000 {
		t.Errorf("%d reservations, want 1000", sum)
	}
	if n := d.NameOf(stores[999].Dir); n.Network != "net0999" {
		t.Errorf("a configured network is counted as %q", n.Network)
	}
	if n := d.NameOf(stores[899].Dir); n.Network != digest.Other {
		t.Errorf("the last of the others is counted as %q", n.Network)
	}
}

func TestWitnesses(t *testing.T) {
	s := passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.10")
	p := passes.Of(passes.At(0), []claim.Store{s})
	for _, w := range digest.Of(p).Witnesses {
		if !w.Up || !w.Required || w.Why != "" {
			t.Errorf("%+v", w)
		}
	}
	passes.Silence(p, claim.WitnessCRI, "no answer "+passes.Evil)
	p.Audit.Judgement.Reasons = map[string]string{claim.WitnessKernel: "asked before the listing", "kube": "was not asked"}
	p.Audit.Case.Policy.Required = append(p.Audit.Case.Policy.Required, "kube")
	p.Audit.Case.Testimonies = append(p.Audit.Case.Testimonies, claim.Testimony{Witness: "ovsdb", State: claim.StateNone})
	got := map[string]string{}
	for _, w := range digest.Of(p).Witnesses {
		if w.Up != (w.Why == "") {
			t.Errorf("%+v", w)
		}
		got[w.Name] = w.Why
	}
	want := map[string]string{"boot": "", "process": "", "cri": digest.Text("no answer " + passes.Evil), "kernel": "asked before the listing", "kube": "was not asked"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	delete(p.Audit.Judgement.Reasons, "kube")
	for _, w := range digest.Of(p).Witnesses {
		if w.Name == "kube" {
			t.Errorf("whom nobody needed is here: %+v", w)
		}
	}
	p.Audit.Case.Policy.CRINone = true
	for _, w := range digest.Of(p).Witnesses {
		if w.Name == claim.WitnessCRI && w.Required {
			t.Error("cri is required of a node without a runtime")
		}
	}
}

func TestUnwritable(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*agent.Pass)
		want bool
	}{
		{"well", func(*agent.Pass) {}, false},
		{"another failure", func(p *agent.Pass) { p.Err = errors.New("the witnesses took too long") }, false},
		{"the agent says so", func(p *agent.Pass) { p.Unwritable = errors.New("read-only") }, true},
		{"an append failed", func(p *agent.Pass) {
			p.Err = fmt.Errorf("reap: %w", &journal.Error{Op: "append", Err: errors.New("ENOSPC")})
		}, true},
		{"a newer journal", func(p *agent.Pass) { p.Err = fmt.Errorf("reap: %w", journal.ErrNewer) }, true},
		{"no sightings", func(p *agent.Pass) { p.Audit.Unremembered = errors.New("EROFS") }, true},
	} {
		p := passes.Of(passes.At(0), nil)
		c.set(p)
		if got := digest.Of(p).Unwritable; (got != "") != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestNoLook(t *testing.T) {
	d := digest.Of(&agent.Pass{Err: errors.New("no")})
	if d.Seen || len(d.Networks) > 0 || len(d.Witnesses) > 0 {
		t.Errorf("%+v", d)
	}
	if n := d.NameOf("/x"); n.Network != digest.Other {
		t.Errorf("%+v", n)
	}
}

func TestText(t *testing.T) {
	for _, s := range []string{passes.Evil, strings.Repeat("ü", 500), strings.Repeat("\xff", 500), "plain"} {
		got := digest.Text(s)
		if got != report.Clean(got) || len(got) > 256 {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
	if got := digest.Text("plain"); got != "plain" {
		t.Errorf("%q", got)
	}
}

func adopted(p *agent.Pass, i int, outcome string) []sweep.Adopted {
	return []sweep.Adopted{{ID: "x", Finding: &p.Audit.Judgement.Findings[i], Outcome: outcome}}
}
