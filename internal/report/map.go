package report

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// maxWorst is how many findings a map describes.
const maxWorst = 200

// After is what became of the findings after the look, and what else is known of them.
type After struct {
	// Gone are the paths of what was released, Back those of what was Missing and has its
	// reservation back.
	Gone, Back map[string]bool
	Stops      []line.Stop
	// Busy says by store why nothing can be released there.
	Busy   map[string]string
	Causes map[string]cause.Cause
}

// Map draws a judged case: a verdict for each address that is reserved or Missing, and
// the worst findings in short. It keeps nothing of c and j.
func Map(c *verdict.Case, j *verdict.Judgement, m Meta, after After) *api.Map {
	d := &api.Map{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindMap}, Node: m.Node}
	d.At, d.Took = c.Now.Wall, m.Took.Round(time.Microsecond).String()
	d.Vantage, d.Witnesses, d.Notes = Vantage(c, j), Witnesses(c, j), Notes(c)
	d.Released, d.Summary = len(after.Gone), map[string]int{}
	now := func(f *verdict.Finding) verdict.Verdict {
		if f.Verdict == verdict.Missing && after.Back[f.Resource.Path] {
			return verdict.InUse
		}
		return f.Verdict
	}
	shown := func(f *verdict.Finding) bool { return Selected(f.Resource, m.Networks) && !after.Gone[f.Resource.Path] }

	d.Networks = []api.MapNetwork{}
	d.Stops = []api.Stop{}
	found := map[string][]spot{} // by store
	many := map[string]int{}
	for i := range j.Findings {
		if r := j.Findings[i].Resource; r.Kind == claim.KindReservation {
			many[r.Store]++
		}
	}
	for dir, n := range many {
		found[dir] = make([]spot, 0, n)
	}
	all := verdict.All()
	var bad []*verdict.Finding
	for i := range j.Findings {
		f := &j.Findings[i]
		if !shown(f) {
			continue
		}
		v := now(f)
		rank := uint8(v.Rank()) // once, and not for each comparison
		d.Summary[v.String()]++
		if v != verdict.InUse && v != verdict.Held {
			bad = append(bad, f)
		}
		if f.Resource.Kind == claim.KindReservation {
			found[f.Resource.Store] = append(found[f.Resource.Store], spot{f.Resource.Addr, rank})
		}
	}
	names := map[string]string{}
	for i := range c.Snapshots {
		for k := range c.Snapshots[i].Stores {
			s := &c.Snapshots[i].Stores[k]
			if s.Network == "" || len(m.Networks) > 0 && !slices.Contains(m.Networks, s.Network) {
				continue
			}
			names[s.Dir] = s.Network
			n := mapNetwork(s, found[s.Dir], all)
			n.Busy = after.Busy[s.Dir]
			d.Networks = append(d.Networks, n)
		}
	}
	slices.SortStableFunc(d.Networks, func(a, b api.MapNetwork) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir))
	})
	for _, s := range after.Stops {
		d.Stops = append(d.Stops, api.Stop{Network: names[s.Store], Dir: s.Store, Since: s.Since.Wall, Why: s.Why, ReleaseIDs: s.ReleaseIDs})
	}
	d.Worst, d.More = worst(bad, c.Now, after.Causes)
	return d
}

// spot is an address with its verdict's rank.
type spot struct {
	addr netip.Addr
	is   uint8
}

// mapNetwork counts and draws one store.
func mapNetwork(s *claim.Store, spots []spot, all []verdict.Verdict) api.MapNetwork {
	n := api.MapNetwork{
		Name: s.Network, Dir: s.Dir, Configs: s.Configs, Capacity: s.Capacity, Writable: s.Writable, Problem: s.Problem,
		Ranges: []api.MapRange{}, Verdicts: map[string]int{}, Addresses: map[string][]string{},
	}
	for _, r := range s.Ranges {
		out := api.MapRange{First: r.First.String(), Last: r.Last.String()}
		if r.Gateway.IsValid() {
			out.Gateway = r.Gateway.String()
		}
		n.Ranges = append(n.Ranges, out)
	}
	for _, p := range spots {
		n.Verdicts[all[p.is].String()]++
		if all[p.is] != verdict.Missing {
			n.Reserved++
		}
	}
	// One address may have two files, in two spellings: the worse verdict is drawn.
	slices.SortFunc(spots, func(a, b spot) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return cmp.Compare(a.is, b.is)
	})
	spots = slices.CompactFunc(spots, func(a, b spot) bool { return a.addr == b.addr })
	within := uint64(0)
	for i := 0; i < len(spots); {
		first := spots[i]
		if !first.addr.IsValid() {
			i++ // a file whose name is no address
			continue
		}
		last := i
		for last+1 < len(spots) && spots[last+1].is == first.is && spots[last+1].addr == spots[last].addr.Next() {
			last++
		}
		text := first.addr.String()
		if last > i {
			text += "-" + spots[last].addr.String()
		}
		name := all[first.is].String()
		n.Addresses[name] = append(n.Addresses[name], text)
		for ; i <= last; i++ {
			switch in := slices.ContainsFunc(s.Ranges, func(r claim.Range) bool { return r.Contains(spots[i].addr) }); {
			case all[spots[i].is] == verdict.Missing:
			case in:
				within++
			case len(s.Ranges) > 0:
				n.Outside++
			}
		}
	}
	n.Free = n.Capacity - min(n.Capacity, within)
	return n
}

// worst describes the worst of what was found.
func worst(bad []*verdict.Finding, now claim.Instant, causes map[string]cause.Cause) ([]api.Trouble, int) {
	bad = FoldFindings(bad)
	slices.SortStableFunc(bad, func(a, b *verdict.Finding) int {
		if a.Verdict != b.Verdict {
			return cmp.Compare(a.Verdict.Rank(), b.Verdict.Rank())
		}
		return cmp.Or(cmp.Compare(kindRank(a.Resource.Kind), kindRank(b.Resource.Kind)),
			cmp.Compare(a.Resource.Store, b.Resource.Store), a.Resource.Addr.Compare(b.Resource.Addr), cmp.Compare(a.Resource.Path, b.Resource.Path))
	})
	out := []api.Trouble{}
	for _, f := range bad[:min(maxWorst, len(bad))] {
		r := Brief(f, now)
		t := api.Trouble{
			Kind: r.Kind, Network: r.Network, Address: r.Address, Path: r.Path, ContainerID: r.ContainerID, Pod: r.Pod,
			Verdict: r.Verdict, Why: r.Why, ReleasableAt: r.ReleasableAt,
		}
		if r.AbsentSince != nil {
			since := *r.AbsentSince // of the memory, which would be kept whole
			t.AbsentSince = &since
		}
		if k, ok := causes[r.Path]; ok && k.Kind != cause.Unknown {
			t.Cause, t.Blame, t.Told = string(k.Kind), k.Plugin, k.Why
			if t.Pod == nil {
				t.Pod = Pod(k.Pod)
			}
		}
		out = append(out, t)
	}
	return out, len(bad) - len(out)
}
