package sim

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/cnicache"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// The adapters fit drivers and models to the engine, as cmd/holdfast/adapters.go does.

type reservations struct {
	inv *hostlocal.Inventory
	n   *Node
	// fresh: the next listing is the one that is judged; a second one of the same look
	// only confirms what is missing.
	fresh bool
}

func (r *reservations) Name() string { return r.inv.Name() }
func (r *reservations) List(ctx context.Context, dataDirs []string) claim.Snapshot {
	if r.fresh {
		r.n.listing()
		r.fresh = false
	}
	return r.inv.ListAlso(ctx, dataDirs)
}

// netnsMounts is the links inventory.
type netnsMounts struct{ n *Node }

func (l netnsMounts) Name() string { return "links" }
func (l netnsMounts) List(context.Context) claim.Snapshot {
	snap := claim.Snapshot{Source: "links", Stores: []claim.Store{{Dir: netnsDir, DataDir: "/run", Writable: true}}}
	for _, n := range l.n.w.namespaces {
		snap.Resources = append(snap.Resources, claim.Resource{
			Kind: claim.KindNetns, Store: netnsDir, Path: n.mount, NetnsID: n.id, Inc: claim.Incarnation{Dev: 4, Ino: n.id},
		})
	}
	slices.SortFunc(snap.Resources, func(a, b claim.Resource) int { return strings.Compare(a.Path, b.Path) })
	snap.Listed = l.n.Now()
	return snap
}

type kernelWitness struct{ n *Node }

func (k kernelWitness) Name() string                                { return "proc" }
func (k kernelWitness) Ask(context.Context, bool) []claim.Testimony { return k.n.Kernel() }

type kubeWitness struct{ n *Node }

func (k kubeWitness) Name() string { return claim.WitnessKube }
func (k kubeWitness) Ask(context.Context, bool) []claim.Testimony {
	return []claim.Testimony{k.n.Kube()}
}

type criWitness struct{ p *process }

func (c criWitness) Name() string { return claim.WitnessCRI }
func (c criWitness) Ask(_ context.Context, detail bool) []claim.Testimony {
	if !c.p.n.w.cfg.cri() {
		return []claim.Testimony{{Witness: claim.WitnessCRI, State: claim.StateNone, Asked: c.p.n.Now()}}
	}
	if c.p.unknown != nil {
		return []claim.Testimony{{Witness: claim.WitnessCRI, State: claim.StateSilent, Asked: c.p.n.Now(), Detail: c.p.unknown.Error()}}
	}
	t := c.p.n.Runtimes(c.p.known, detail)
	if t.CRI != nil {
		for _, rt := range t.CRI.Runtimes {
			// What answered in the life of this process is required from then on.
			if rt.State == claim.StateComplete && !slices.Contains(c.p.known, rt.Endpoint) {
				c.p.known = append(slices.Clip(c.p.known), rt.Endpoint)
			}
		}
	}
	return []claim.Testimony{t}
}

type bootWitness struct{ p *process }

func (b bootWitness) Name() string { return claim.WitnessBoot }
func (b bootWitness) Ask(context.Context, bool) []claim.Testimony {
	t := claim.Testimony{Witness: claim.WitnessBoot, State: claim.StateSilent, Asked: b.p.n.Now()}
	id, err := b.p.n.Boot()
	if err != nil {
		t.Detail = err.Error()
		return []claim.Testimony{t}
	}
	facts, err := b.p.state.ObserveBoot(id)
	if err != nil {
		t.Detail = err.Error()
	}
	if facts.Current == "" {
		facts = claim.BootFacts{Current: id}
	}
	t.State, t.Boot = claim.StateComplete, &facts
	return []claim.Testimony{t}
}

type memory struct{ dir *state.Dir }

func (m memory) Save(list verdict.Memory) error { return m.dir.SaveSightings(list) }
func (m memory) Load() (verdict.Memory, error) {
	list, err := m.dir.LoadSightings()
	var corrupt *state.CorruptError
	if errors.As(err, &corrupt) && corrupt.Kept != "" {
		return nil, nil // every grace begins anew
	}
	return list, err
}

type vault struct {
	q *hostlocal.Quarantine
	n *Node
}

func (v vault) Release(ctx context.Context, dir string, moves []sweep.Move, fresh func() bool) ([]sweep.Moved, error) {
	list := make([]hostlocal.Move, len(moves))
	for i, m := range moves {
		list[i] = hostlocal.Move(m)
	}
	outs, err := v.q.Release(ctx, dir, list, hostlocal.ReleaseOptions{
		Fresh: fresh, Mono: func() time.Duration { return v.n.Now().Mono },
	})
	moved := make([]sweep.Moved, len(outs))
	for i, o := range outs {
		moved[i] = sweep.Moved{ReleaseID: o.ReleaseID, Err: o.Err}
		switch o.State {
		case hostlocal.Moved:
			moved[i].Outcome = journal.OutcomeReleased
		case hostlocal.Changed:
			moved[i].Outcome = journal.OutcomeChanged
		case hostlocal.Gone:
			moved[i].Outcome = journal.OutcomeGone
		default:
			moved[i].Outcome = journal.OutcomeFailed
		}
		if errors.Is(o.Err, hostlocal.ErrStale) {
			moved[i].Err = sweep.ErrStale
		}
	}
	if errors.Is(err, hostlocal.ErrStale) {
		err = nil // said of each
	}
	return moved, err
}

func (v vault) Place(m sweep.Move) (origin, quarantined bool, err error) {
	return v.q.Place(hostlocal.Move(m))
}

func (v vault) Restore(ctx context.Context, m sweep.Move) (taken bool, err error) {
	err = v.q.Restore(ctx, m.ReleaseID, m.Path)
	if errors.Is(err, hostlocal.ErrTaken) {
		return true, nil
	}
	return false, err
}

func (v vault) Discard(id string) error { return v.q.Discard(id) }

type maker struct{ a *hostlocal.Adopter }

func (m maker) Adopt(ctx context.Context, dir string, list []sweep.Adoption, fresh func() bool) ([]sweep.Made, error) {
	in := make([]hostlocal.Adoption, len(list))
	for i, a := range list {
		in[i] = hostlocal.Adoption(a)
	}
	outs, err := m.a.Adopt(ctx, dir, in, fresh)
	made := make([]sweep.Made, len(outs))
	for i, o := range outs {
		made[i] = sweep.Made{ReleaseID: o.ReleaseID, Outcome: string(o.State), Inc: o.Inc, Err: o.Err}
	}
	if errors.Is(err, hostlocal.ErrStale) {
		err = sweep.ErrStale
	}
	return made, err
}

func (m maker) Look(a sweep.Adoption) (claim.Incarnation, bool, error) {
	return m.a.Look(hostlocal.Adoption(a))
}

type holds struct {
	dir *state.Dir
	n   *Node
}

func (h holds) List() ([]verdict.Hold, error) {
	list, err := h.dir.Holds()
	if err != nil {
		return nil, err
	}
	boot := h.n.Now().Boot
	out := make([]verdict.Hold, 0, len(list))
	for _, e := range list {
		if e.Counts(boot) {
			out = append(out, e.Verdict())
		}
	}
	return out, nil
}

func (h holds) Hold(v verdict.Hold, releaseID string) (bool, error) {
	added, err := h.dir.AddHolds(state.Hold{Store: v.Store, Addr: v.Addr, Owner: v.Owner, Why: v.Why, By: state.ByUndo, At: h.n.Now(), ReleaseID: releaseID})
	return len(added) > 0, err
}

func (h holds) Unhold(v verdict.Hold) error {
	_, err := h.dir.RemoveHolds(func(e state.Hold) bool {
		return e.By == state.ByUndo && e.Store == v.Store && e.Addr == v.Addr && e.Owner == v.Owner
	})
	return err
}

// sides removes cache files for real and namespaces in the model; there are no veths,
// and no plugin is run.
type sides struct {
	n     *Node
	cache *cnicache.Inventory
}

func (s sides) Run(ctx context.Context, step plan.Step) journal.StepResult {
	res := journal.StepResult{Step: string(step.Kind), Object: step.Object, State: journal.StepSkipped}
	var err error
	switch step.Kind {
	case plan.StepNetns:
		err = s.n.RemoveNetns(step.Object, step.NetnsID)
	case plan.StepCache:
		_, err = s.cache.Remove(ctx, step.Resource.Path, step.Resource.Inc)
	default:
		return res
	}
	switch {
	case err == nil:
		res.State = journal.StepDone
	case !errors.Is(err, fs.ErrNotExist):
		res.State, res.Detail = journal.StepFailed, err.Error()
	}
	return res
}

func (s sides) Content(step plan.Step) ([]byte, error) {
	return s.cache.Read(context.Background(), step.Resource.Path, step.Resource.Inc)
}

func (s sides) Restore(path string, content []byte) error {
	err := s.cache.Restore(context.Background(), path, content)
	if errors.Is(err, fs.ErrExist) {
		if have, e := s.n.w.disk.ReadFile(path); e == nil && bytes.Equal(have, content) {
			return nil // it never went
		}
	}
	return err
}
