package health_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/health"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
)

func newHealth() *health.Health {
	return health.New(health.Options{Interval: time.Minute, Missed: 3, Longest: time.Minute, Started: passes.At(0)})
}

// The loop lives while passes end, failed ones too; by CLOCK_MONOTONIC alone.
func TestLive(t *testing.T) {
	h := newHealth()
	live := func(at time.Duration, want bool) {
		t.Helper()
		now := passes.At(at)
		now.Wall = now.Wall.Add(-24 * time.Hour) // the clock was set back
		if ok, why := h.Live(now); ok != want || ok != (why == "") {
			t.Errorf("at %s: %t %q", at, ok, why)
		}
	}
	live(0, true)
	live(4*time.Minute, true)
	live(4*time.Minute+time.Second, false)
	h.Observe(t.Context(), &agent.Pass{Started: passes.At(5 * time.Minute), Took: 30 * time.Second, Err: errors.New("no")})
	live(6*time.Minute, true)
	live(9*time.Minute+30*time.Second, true)
	live(9*time.Minute+31*time.Second, false)
	h.Observe(t.Context(), passes.Of(passes.At(20*time.Minute), nil))
	live(20*time.Minute, true)
}

func TestReady(t *testing.T) {
	h := newHealth()
	s := passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.10")
	ready := func(step string, want ...string) {
		t.Helper()
		ok, why := h.Ready()
		if diff := cmp.Diff(want, why); diff != "" || ok != (len(want) == 0) {
			t.Errorf("%s: %t\n%s", step, ok, diff)
		}
	}
	observe := func(change func(*agent.Pass)) {
		p := passes.Of(passes.At(0), []claim.Store{s})
		change(p)
		h.Observe(t.Context(), p)
	}
	ready("before the first pass", "no sweep has been made yet")
	h.Observe(t.Context(), &agent.Pass{Err: errors.New("holds: EIO")})
	ready("a failed pass", "no sweep has been made yet: holds: EIO")
	observe(func(p *agent.Pass) {
		passes.Silence(p, claim.WitnessCRI, "no listener")
		p.Audit.Case.Policy.Required = append(p.Audit.Case.Policy.Required, "kube")
		p.Audit.Judgement.Reasons = map[string]string{"kube": "was not asked"}
		p.Busy = map[string]string{s.Dir: "process 17 is its reaper"}
	})
	ready("two witnesses and the lock are missing", "witness cri has not answered yet: no listener", "witness kube has not answered yet: was not asked", s.Dir+": process 17 is its reaper")
	observe(func(p *agent.Pass) { passes.Silence(p, claim.WitnessKernel, "a moment") })
	ready("each answered once, though not at once")
	observe(func(p *agent.Pass) { passes.Silence(p, claim.WitnessCRI, "restarts") })
	ready("one is silent again")
	observe(func(p *agent.Pass) { p.Busy = map[string]string{s.Dir: "process 18 is its reaper"} })
	ready("the lock is another's", s.Dir+": process 18 is its reaper")
	observe(func(*agent.Pass) {})
	h.Fault("configuration", "agent.yaml: interval: 5 "+passes.Evil)
	if ok, why := h.Ready(); ok || len(why) != 1 || !strings.HasPrefix(why[0], "configuration: agent.yaml: interval: 5 a\\x1b") {
		t.Errorf("%t %q", ok, why)
	}
	h.Fault("configuration", "")
	ready("well again")
	// A witness that nobody requires may stay silent.
	h = newHealth()
	observe(func(p *agent.Pass) {
		p.Audit.Case.Policy.CRINone = true
		passes.Silence(p, claim.WitnessCRI, "none")
	})
	ready("no runtime")
	h = newHealth()
	observe(func(p *agent.Pass) {
		p.Busy = map[string]string{}
		for i := range 20 {
			p.Busy[string(rune('a'+i))] = "busy"
		}
	})
	if _, why := h.Ready(); len(why) != 9 || why[8] != "and 12 directories more" {
		t.Errorf("%q", why)
	}
}

// A required witness that no sweep has needed yet is missed all the same, until it has answered.
func TestUnanswered(t *testing.T) {
	h := health.New(health.Options{Interval: time.Minute, Missed: 3})
	p := passes.Of(passes.At(time.Minute), nil)
	p.Unanswered = "kube: refused\x1b[2J"
	h.Observe(context.Background(), p)
	if ok, why := h.Ready(); ok || !strings.Contains(strings.Join(why, "\n"), "kube: refused") || strings.Contains(strings.Join(why, ""), "\x1b") {
		t.Errorf("%v, %q", ok, why)
	}
	p.Unanswered = ""
	h.Observe(context.Background(), p)
	if ok, why := h.Ready(); !ok {
		t.Errorf("not ready: %q", why)
	}
}
