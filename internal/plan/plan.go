// Package plan turns verdicts into ordered groups of release steps.
//
// Scope: which findings go together, in which order, what blocks what, and the cap.
// Ring 0: pure. Non-scope: whether something may go (package verdict), doing it
// (package sweep and the drivers).
package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// StepKind names one piece of a release.
type StepKind string

// The pieces, in the order in which they go (I8, plugins #666): what can hold the
// address alive goes before the address, and the address goes last.
const (
	StepVeth        StepKind = "veth"        // a host-side veth of the dead attachment
	StepNetns       StepKind = "netns"       // the namespace of an Orphaned address
	StepDel         StepKind = "cni-del"     // DEL of side resources: portmap, firewall, ...
	StepCache       StepKind = "cache"       // the libcni cache file
	StepReservation StepKind = "reservation" // the address
)

// Step is one piece. Its precondition is the incarnation in Resource: the driver
// refuses when it has changed (I7).
type Step struct {
	Kind     StepKind        `json:"kind"`
	Object   string          `json:"object"` // a path or an interface name
	Resource *claim.Resource `json:"resource,omitempty"`
	HostIf   claim.HostIf    `json:"hostIf,omitzero"`
	NetnsID  uint64          `json:"netnsID,omitempty"`
	// Own, of a cni-del, are the reservations of this dead group whose address nobody
	// else has: what deletes by address may delete these addresses and no other.
	Own []*claim.Resource `json:"own,omitempty"`
	// Blocks: while this piece stands it can hold the address alive, so its failure
	// keeps the address. A piece that cannot is reported and does not.
	Blocks bool `json:"blocks,omitempty"`
	// Irreversible: undo cannot bring it back. The inverse of the others is: cache,
	// the file is written again; reservation, it is moved back.
	Irreversible bool `json:"irreversible,omitempty"`
}

// Group is what goes together: everything releasable of one container.
type Group struct {
	Findings []*verdict.Finding
	Steps    []Step
	// Execs is true when a step runs a plugin, which takes long.
	Execs bool
}

// Withheld is a releasable finding that does not go now, with the reason.
type Withheld struct {
	Finding *verdict.Finding
	Why     string
	// Cap: the cap withholds it; --force-over-cap lets it go.
	Cap bool
}

// Options bound a plan.
type Options struct {
	// MaxReleases per store and sweep; 0 means 10 % of its reservations, at least 16.
	MaxReleases  int
	ForceOverCap bool
	// Used counts by store what this command has released already; may be nil.
	Used map[string]int
	// NoDel leaves CNI DEL out.
	NoDel bool
	// Skip gives a reason why nothing of a finding's store goes now (another reaper
	// is at work, read-only, not selected), or "".
	Skip func(r *claim.Resource) string
}

// Plan is the result of Make.
type Plan struct {
	Groups   []Group
	Withheld []Withheld
	// Over says per store how many releases the cap withholds.
	Over map[string]int
}

// MinCap is the smallest cap: a small network may lose this many at once.
const MinCap = 16

// Make orders what is releasable in j, oldest death first. It is deterministic.
func Make(j *verdict.Judgement, opt Options) *Plan {
	p := &Plan{Over: map[string]int{}}
	total := map[string]int{}
	late := map[claim.Attachment]string{} // attachments with a member that must stay
	kept := map[string]string{}           // containers with a reservation that stays
	for i := range j.Findings {
		f := &j.Findings[i]
		if f.Resource.Kind != claim.KindReservation || f.Verdict == verdict.Missing {
			continue
		}
		total[f.Resource.Store]++
		if !f.Releasable && f.Resource.Owner.Shape == claim.ShapeContainer {
			late[unit(f.Resource)] = fmt.Sprintf("%s of the same attachment is %s", f.Resource.Addr, f.Verdict)
			kept[key(f.Resource)] = fmt.Sprintf("%s of the same container is %s", f.Resource.Addr, f.Verdict)
		}
	}
	groups := map[string][]*verdict.Finding{}
	var order []string
	withhold := func(f *verdict.Finding, why string) {
		p.Withheld = append(p.Withheld, Withheld{Finding: f, Why: why})
		if f.Resource.Kind == claim.KindReservation {
			kept[key(f.Resource)] = why
		}
	}
	for i := range j.Findings {
		f := &j.Findings[i]
		if !f.Releasable {
			continue
		}
		if why := late[unit(f.Resource)]; why != "" && f.Resource.Kind == claim.KindReservation {
			withhold(f, "an attachment goes as a whole: "+why)
			continue
		}
		if opt.Skip != nil {
			if why := opt.Skip(f.Resource); why != "" {
				withhold(f, why)
				continue
			}
		}
		k := key(f.Resource)
		if _, ok := groups[k]; !ok {
			order = append(order, k)
		}
		groups[k] = append(groups[k], f)
	}
	slices.SortStableFunc(order, func(a, b string) int { return older(groups[a], groups[b]) })

	// Veth, DEL and cache go with the address or not at all (I8).
	order = slices.DeleteFunc(order, func(k string) bool {
		why := kept[k]
		if why == "" {
			return false
		}
		groups[k] = slices.DeleteFunc(groups[k], func(f *verdict.Finding) bool {
			if f.Resource.Kind == claim.KindReservation {
				return false
			}
			p.Withheld = append(p.Withheld, Withheld{Finding: f, Why: why})
			return true
		})
		return len(groups[k]) == 0
	})
	bridges := sharedIfs(j)
	used := maps.Clone(opt.Used)
	if used == nil {
		used = map[string]int{}
	}
	for _, k := range order {
		fs := groups[k]
		if store := overCap(fs, used, total, opt); store != "" {
			for _, f := range fs {
				why := fmt.Sprintf("over the cap of %d releases a sweep for this network", capOf(total[store], opt.MaxReleases))
				p.Withheld = append(p.Withheld, Withheld{Finding: f, Why: why, Cap: true})
				if f.Resource.Kind == claim.KindReservation {
					p.Over[f.Resource.Store]++
				}
			}
			continue
		}
		p.Groups = append(p.Groups, makeGroup(fs, opt, bridges))
	}
	return p
}

// overCap counts fs against the caps and returns the store whose cap they burst, or
// "". What a past boot proves dead does not count.
func overCap(fs []*verdict.Finding, used, total map[string]int, opt Options) string {
	need := map[string]int{}
	for _, f := range fs {
		if f.Resource.Kind == claim.KindReservation && !f.BootProven {
			need[f.Resource.Store]++
		}
	}
	if !opt.ForceOverCap {
		for _, f := range fs {
			st := f.Resource.Store
			// A container with more addresses than the cap goes alone, or it never would.
			if n := need[st]; n > 0 && used[st] > 0 && used[st]+n > capOf(total[st], opt.MaxReleases) {
				return st
			}
		}
	}
	for st, n := range need {
		used[st] += n
	}
	return ""
}

func capOf(reservations, maxReleases int) int {
	if maxReleases > 0 {
		return maxReleases
	}
	return max(MinCap, (reservations+9)/10)
}

// unit is the attachment within its store: what is kept or released as a whole.
func unit(r *claim.Resource) claim.Attachment {
	a := r.Attachment()
	a.Network = r.Store
	return a
}

// key groups by container; a file that names none stands alone.
func key(r *claim.Resource) string {
	if r.Owner.Shape == claim.ShapeContainer {
		return "id\x00" + r.Owner.ID
	}
	return "path\x00" + r.Path
}

func older(a, b []*verdict.Finding) int {
	fa, fb := a[0], b[0]
	rank := func(f *verdict.Finding) int {
		if f.BootProven {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(fa), rank(fb)), cmp.Compare(fa.Absent().Mono, fb.Absent().Mono),
		cmp.Compare(fa.Resource.Store, fb.Resource.Store), fa.Resource.Addr.Compare(fb.Resource.Addr),
		cmp.Compare(fa.Resource.Path, fb.Resource.Path))
}

// sharedIfs are host interfaces that results of several containers name: bridges.
func sharedIfs(j *verdict.Judgement) map[string]bool {
	owner := map[string]string{}
	shared := map[string]bool{}
	for i := range j.Findings {
		r := j.Findings[i].Resource
		if r.Cache == nil {
			continue
		}
		for _, h := range r.Cache.HostIfs {
			if o, ok := owner[h.Name]; ok && o != r.Owner.ID {
				shared[h.Name] = true
			}
			owner[h.Name] = r.Owner.ID
		}
	}
	return shared
}

func makeGroup(fs []*verdict.Finding, opt Options, shared map[string]bool) Group {
	g := Group{Findings: fs}
	var veths, dels, caches, netns, addrs []Step
	seenNetns := map[uint64]bool{}
	var own []*claim.Resource
	for _, f := range fs {
		if f.Resource.Kind == claim.KindReservation && !f.Shared {
			own = append(own, f.Resource)
		}
	}
	for _, f := range fs {
		r := f.Resource
		for _, pin := range f.Netns {
			if !seenNetns[pin.ID] {
				seenNetns[pin.ID] = true
				netns = append(netns, Step{Kind: StepNetns, Object: pin.Path, NetnsID: pin.ID, Blocks: true, Irreversible: true})
			}
		}
		switch r.Kind {
		case claim.KindReservation:
			addrs = append(addrs, Step{Kind: StepReservation, Object: r.Path, Resource: r})
		case claim.KindCache:
			if r.Cache != nil {
				for _, h := range r.Cache.HostIfs {
					if shared[h.Name] {
						continue
					}
					veths = append(veths, Step{Kind: StepVeth, Object: h.Name, HostIf: h, Resource: r, Blocks: true, Irreversible: true})
				}
				if !opt.NoDel && r.Problem == "" {
					dels = append(dels, Step{Kind: StepDel, Object: r.Path, Resource: r, Own: own, Irreversible: true})
					g.Execs = true
				}
			}
			caches = append(caches, Step{Kind: StepCache, Object: r.Path, Resource: r})
		}
	}
	g.Steps = slices.Concat(veths, netns, dels, caches, addrs)
	return g
}
