package report

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Meta is what a document says beside the judgement.
type Meta struct {
	Node         string
	Took         time.Duration
	Networks     []string // only these, when not empty
	MaxReleases  int
	ForceOverCap bool
}

// Audit builds the document of a judged case. The evidence is shared, not copied.
func Audit(c *verdict.Case, j *verdict.Judgement, m Meta) *api.Audit {
	d := Head(c, j, m)
	sorted := Sorted(j, m.Networks)
	d.Resources = make([]api.Resource, 0, len(sorted))
	for _, f := range sorted {
		d.Resources = append(d.Resources, Resource(f, c.Now))
		d.Summary[f.Verdict.String()]++
	}
	return d
}

// Head is Audit without resources, counted or not.
func Head(c *verdict.Case, j *verdict.Judgement, m Meta) *api.Audit {
	return &api.Audit{
		TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindAudit},
		Node:     m.Node, BootID: c.Now.Boot, At: c.Now.Wall, Took: m.Took.Round(time.Microsecond).String(),
		Policy: Policy(c.Policy, m), Vantage: Vantage(c, j), Witnesses: Witnesses(c, j),
		Networks: Networks(c, j, m.Networks), Notes: Notes(c), Resources: []api.Resource{}, Summary: map[string]int{},
		Evidence: c,
	}
}

// Selected reports whether a resource belongs to the networks asked for; everything
// does when none is named.
func Selected(r *claim.Resource, networks []string) bool {
	return len(networks) == 0 || slices.Contains(networks, r.Network)
}

// Sorted returns the findings worst first, then by store and address.
func Sorted(j *verdict.Judgement, networks []string) []*verdict.Finding {
	out := make([]*verdict.Finding, 0, len(j.Findings))
	for i := range j.Findings {
		if Selected(j.Findings[i].Resource, networks) {
			out = append(out, &j.Findings[i])
		}
	}
	slices.SortStableFunc(out, func(a, b *verdict.Finding) int {
		// Step by step, not with cmp.Or, which would compare everything for each pair.
		if a.Verdict != b.Verdict {
			if c := cmp.Compare(a.Verdict.Rank(), b.Verdict.Rank()); c != 0 {
				return c
			}
		}
		if a.Resource.Kind != b.Resource.Kind {
			if c := cmp.Compare(kindRank(a.Resource.Kind), kindRank(b.Resource.Kind)); c != 0 {
				return c
			}
		}
		if c := cmp.Compare(a.Resource.Store, b.Resource.Store); c != 0 {
			return c
		}
		if c := a.Resource.Addr.Compare(b.Resource.Addr); c != 0 {
			return c
		}
		return cmp.Compare(a.Resource.Path, b.Resource.Path)
	})
	return out
}

func kindRank(k claim.Kind) int {
	return slices.Index([]claim.Kind{claim.KindReservation, claim.KindNetns, claim.KindCache}, k)
}

// Policy publishes what the operator chose.
func Policy(p verdict.Policy, m Meta) api.Policy {
	out := api.Policy{
		Witnesses: p.Required, CRINone: p.CRINone, Grace: p.Grace.String(), OrphanGrace: p.OrphanGrace.String(),
		Orphans: p.Orphans, Foreign: p.Foreign, Adopt: p.Adopt, Networks: m.Networks, MaxReleases: m.MaxReleases, ForceOverCap: m.ForceOverCap,
	}
	if out.Witnesses == nil {
		out.Witnesses = []string{}
	}
	if p.PressureGrace > 0 {
		out.PressureGrace = p.PressureGrace.String()
	}
	for _, e := range p.Exclude {
		out.Exclude = append(out.Exclude, e.String())
	}
	return out
}

// Vantage publishes whether the whole node was seen.
func Vantage(c *verdict.Case, j *verdict.Judgement) api.Vantage {
	v := api.Vantage{Proven: j.Vantage == "", Detail: j.Vantage}
	for _, t := range c.Testimonies {
		if t.Kernel != nil {
			for _, k := range t.Kernel.Vantage.Checks {
				v.Checks = append(v.Checks, api.Check(k))
			}
		}
	}
	return v
}

// Witnesses publishes who was asked and how each answered. A testimony that the judge
// did not count is silent here too, with the judge's reason.
func Witnesses(c *verdict.Case, j *verdict.Judgement) []api.Witness {
	out := []api.Witness{}
	for _, t := range c.Testimonies {
		w := api.Witness{
			Name: t.Witness, State: string(t.State), Detail: t.Detail, Took: t.Took.Round(time.Microsecond).String(),
			Required: slices.Contains(c.Policy.Required, t.Witness) || t.Witness == claim.WitnessBoot,
		}
		if w.State == "" {
			w.State = string(claim.StateSilent)
		}
		if t.Witness == claim.WitnessCRI && c.Policy.CRINone {
			w.Required = false
		}
		if why, silent := j.Reasons[t.Witness]; silent && t.State == claim.StateComplete {
			w.State, w.Detail = string(claim.StateSilent), why
		}
		out = append(out, w)
	}
	slices.SortStableFunc(out, func(a, b api.Witness) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Networks publishes the stores with their counts, worst (least free) last in none:
// in the order of name and directory.
func Networks(c *verdict.Case, j *verdict.Judgement, only []string) []api.Network {
	index := map[string]int{}
	out := []api.Network{}
	for i := range c.Snapshots {
		for _, s := range c.Snapshots[i].Stores {
			// Stores without reservations of their own (the libcni cache) have no network.
			if s.Network == "" || len(only) > 0 && !slices.Contains(only, s.Network) {
				continue
			}
			index[s.Dir] = len(out)
			out = append(out, api.Network{
				Name: s.Network, DataDir: s.DataDir, Dir: s.Dir, Configs: s.Configs, Capacity: s.Capacity,
				Writable: s.Writable, Problem: s.Problem, Verdicts: map[string]int{},
			})
		}
	}
	for i := range j.Findings {
		f := &j.Findings[i]
		k, ok := index[f.Resource.Store]
		if !ok || f.Resource.Kind != claim.KindReservation {
			continue
		}
		n := &out[k]
		n.Verdicts[f.Verdict.String()]++
		if f.Verdict != verdict.Missing {
			n.Reserved++
		}
		switch f.Verdict {
		case verdict.InUse:
			n.InUse++
		case verdict.Leaked:
			n.Leaked++
		case verdict.Suspect:
			n.Suspect++
		}
	}
	used := inRanges(c, j, out)
	for k := range out {
		// Reservations outside of every range (case L16) take nothing from it.
		if n := &out[k]; n.Capacity > 0 {
			n.Free = n.Capacity - min(n.Capacity, uint64(used[n.Dir]))
		}
	}
	slices.SortStableFunc(out, func(a, b api.Network) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir))
	})
	return out
}

// inRanges counts the addresses of each directory that lie in its ranges; of networks it
// uses how many there are at most.
func inRanges(c *verdict.Case, j *verdict.Judgement, networks []api.Network) map[string]int {
	ranges := map[string][]claim.Range{}
	for i := range c.Snapshots {
		for _, s := range c.Snapshots[i].Stores {
			if s.Network != "" {
				ranges[s.Dir] = s.Ranges
			}
		}
	}
	addrs := map[string][]netip.Addr{}
	for _, n := range networks {
		addrs[n.Dir] = make([]netip.Addr, 0, n.Reserved)
	}
	for i := range j.Findings {
		f := &j.Findings[i]
		if r := f.Resource; r.Kind == claim.KindReservation && f.Verdict != verdict.Missing &&
			slices.ContainsFunc(ranges[r.Store], func(g claim.Range) bool { return g.Contains(r.Addr) }) {
			addrs[r.Store] = append(addrs[r.Store], r.Addr)
		}
	}
	out := map[string]int{}
	for dir, list := range addrs {
		// One address may have two files, in two spellings.
		slices.SortFunc(list, netip.Addr.Compare)
		out[dir] = len(slices.Compact(list))
	}
	return out
}

// Notes publishes what belongs to no resource: a directory that could not be listed among
// it.
func Notes(c *verdict.Case) []api.Note {
	var out []api.Note
	for i := range c.Snapshots {
		for _, s := range c.Snapshots[i].Stores {
			noted := func(n claim.Note) bool { return n.Path == s.Dir }
			if s.Problem != "" && !slices.ContainsFunc(c.Snapshots[i].Notes, noted) {
				out = append(out, api.Note{Path: s.Dir, Text: s.Problem})
			}
		}
		for _, n := range c.Snapshots[i].Notes {
			out = append(out, api.Note{Path: n.Path, Text: n.Text})
		}
	}
	return out
}

// Resource publishes one finding.
func Resource(f *verdict.Finding, now claim.Instant) api.Resource {
	out := Brief(f, now)
	out.Says = make([]api.Say, 0, len(f.Says))
	for _, s := range f.Says {
		out.Says = append(out.Says, api.Say{Witness: s.Witness, Word: string(s.Word), Detail: s.About(f.Resource)})
	}
	if st := f.Resource.Stamp; st != nil {
		out.Stamp = &api.Stamp{BootID: st.Boot, NetnsID: st.Netns}
		if age, ok := now.Since(claim.Instant{Boot: st.Boot, Mono: st.Mono}); ok {
			out.Stamp.Age = age.Round(time.Second).String()
		}
	}
	return out
}

// Brief is Resource without what the witnesses and the stamp said. Times are shared with f.
func Brief(f *verdict.Finding, now claim.Instant) api.Resource {
	r := f.Resource
	out := api.Resource{
		Kind: string(r.Kind), Store: r.Store, Network: r.Network, ContainerID: r.Owner.ID, IfName: r.Owner.IfName, Path: r.Path,
		Pod: Pod(f.Pod), Verdict: f.Verdict.String(), Rule: f.Rule, Why: f.Why,
		Releasable: f.Releasable, Adoptable: f.Adoptable, Holder: f.Holder,
	}
	if s := f.Sight; s != nil {
		out.FirstSeen, out.AbsentSince = wall(&s.First), wall(&s.Absent)
	}
	if r.Addr.IsValid() {
		out.Address = r.Addr.String()
	}
	if f.Releasable || f.Wait > 0 {
		at := now.Wall.Add(max(f.Wait, 0))
		out.ReleasableAt = &at
	}
	return out
}

// Pod publishes a Pod's name; nil when there is none.
func Pod(p claim.Pod) *api.Pod {
	if p.Name == "" && p.Namespace == "" {
		return nil
	}
	return &api.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

func wall(i *claim.Instant) *time.Time {
	if i.Boot == "" {
		return nil
	}
	return &i.Wall
}

// Planned says what a group's release would do, in order, and how each piece comes
// back.
func Planned(g plan.Group) []api.PlannedStep {
	var out []api.PlannedStep
	for _, s := range g.Steps {
		inverse := "cannot be brought back"
		switch s.Kind {
		case plan.StepReservation:
			inverse = "moved back by undo, in the same boot, while the address is free"
		case plan.StepCache:
			inverse = "written again by undo"
		}
		out = append(out, api.PlannedStep{Step: string(s.Kind), Object: s.Object, Inverse: inverse})
	}
	return out
}
