package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// An address is lost when it has been absent for longer than a DEL takes, or went before; each
// counts in one pass, whatever passes there are.
func TestLost(t *testing.T) {
	a, b := passes.Store(passes.DataDir, "a", "10.1.0.1", "10.1.0.30"), passes.Store(passes.DataDir, "b", "10.2.0.1", "10.2.0.30")
	type look struct {
		at       time.Duration
		stores   []claim.Store
		released bool
	}
	one, both, other := []claim.Store{a}, []claim.Store{a, b}, []claim.Store{b}
	for _, c := range []struct {
		name  string
		looks []look
		want  []int
	}{
		{"a DEL under way", []look{{-time.Minute, one, false}, {5 * time.Second, one, false}, {20 * time.Second, one, false}}, []int{0, 0, 0}},
		{"it stays", []look{{-time.Minute, one, false}, {0, one, false}, {time.Minute, one, false}, {2 * time.Minute, one, false}, {3 * time.Minute, one, true}}, []int{0, 0, 1, 0, 0}},
		{"seen late", []look{{-time.Minute, one, false}, {time.Minute, one, false}, {2 * time.Minute, one, false}}, []int{0, 1, 0}},
		{"released at once", []look{{-time.Minute, one, false}, {0, one, true}}, []int{0, 1}},
		{"released at the first look of all", []look{{0, one, true}}, []int{1}},
		{"many looks", []look{{0, one, false}, {10 * time.Second, one, false}, {29 * time.Second, one, false}, {30 * time.Second, one, false}, {31 * time.Second, one, false}}, []int{0, 0, 0, 1, 0}},
		{"known before this agent", []look{{time.Hour, one, false}, {2 * time.Hour, one, true}}, []int{0, 0}},
		{"a look at another network between", []look{{0, both, false}, {40 * time.Second, other, false}, {time.Minute, both, false}, {2 * time.Minute, both, false}}, []int{0, 0, 1, 0}},
	} {
		node := agent.New(agent.Config{})
		for i, l := range c.looks {
			list := []verdict.Finding{passes.Finding(b, "10.2.0.1", verdict.InUse)}
			if l.stores[0].Dir == a.Dir && l.at >= 0 {
				list = append(list, passes.Finding(a, "10.1.0.1", verdict.Leaked))
			}
			p := passes.Of(passes.At(l.at), l.stores, list...)
			if l.released {
				passes.Release(p, 1, cause.Cause{})
			}
			node.Tell(t.Context(), p)
			if len(p.Lost) != c.want[i] {
				t.Errorf("%s: look %d: lost %d, want %d", c.name, i, len(p.Lost), c.want[i])
			}
		}
	}
	// Another boot's absence says nothing of now.
	node := agent.New(agent.Config{})
	f := passes.Finding(a, "10.1.0.1", verdict.Leaked)
	f.Sight.Absent.Boot = "another"
	node.Tell(t.Context(), passes.Of(passes.At(0), one))
	p := passes.Of(passes.At(time.Minute), one, f)
	if node.Tell(t.Context(), p); len(p.Lost) > 0 {
		t.Error("lost across a boot")
	}
	node.Tell(t.Context(), &agent.Pass{}) // no look
}

// Five in ten minutes are fast; a reboot's are not.
func TestFast(t *testing.T) {
	s := passes.Store(passes.DataDir, "a", "10.1.0.1", "10.1.0.30")
	for _, c := range []struct {
		name       string
		every      time.Duration
		bootProven bool
		want       []bool
	}{
		{"one a minute", time.Minute, false, []bool{false, false, false, false, false, true, true, true}},
		{"one in three minutes", 3 * time.Minute, false, make([]bool, 8)},
		{"a reboot", time.Minute, true, make([]bool, 8)},
	} {
		node := agent.New(agent.Config{})
		var list []verdict.Finding
		var got []bool
		for i := range 8 {
			now := time.Duration(i) * c.every
			p := passes.Of(passes.At(now), []claim.Store{s}, slices.Clone(list)...)
			node.Tell(t.Context(), p)
			got = append(got, slices.Equal(p.Fast, []string{s.Dir}))
			f := passes.Finding(s, fmt.Sprintf("10.1.0.%d", i+1), verdict.Suspect)
			f.Sight.Absent, f.BootProven = passes.At(now+time.Second), c.bootProven
			list = append(list, f)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		// It is over when nothing is lost for ten minutes.
		p := passes.Of(passes.At(8*c.every+agent.LossTime+time.Minute), []claim.Store{s}, list...)
		if node.Tell(t.Context(), p); len(p.Fast) > 0 {
			t.Errorf("%s: still fast", c.name)
		}
	}
}
