package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/agent/events"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/kube"
	"github.com/holdfast-cni/holdfast/internal/sys/proc"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// The adapters below fit the drivers to the engine's interfaces. They translate and
// decide nothing.

// reservations lists addresses.
type reservations struct {
	inv *hostlocal.Inventory
	// names, unless nil, is told which directories were listed.
	names *holdBook
	// hosts, unless nil, reports whether a directory is the one that the node has there.
	hosts func(dir string) (bool, error)
}

func (r reservations) Name() string { return r.inv.Name() }
func (r reservations) List(ctx context.Context, dataDirs []string) claim.Snapshot {
	snap := r.inv.ListAlso(ctx, dataDirs)
	for i := range snap.Stores {
		st := &snap.Stores[i]
		if st.Problem != "" || r.hosts == nil {
			continue
		}
		same, err := r.hosts(cmp.Or(st.Dir, st.DataDir))
		switch {
		case err != nil:
			st.Problem = "whether this is what the node has at this path cannot be told: " + err.Error()
		case !same:
			st.Problem = notTheNodes
		}
	}
	if r.names != nil {
		r.names.listed(snap.Stores)
	}
	if len(snap.Resources) >= large {
		debug.SetGCPercent(largeGC)
	}
	return snap
}

// notTheNodes is a store's problem that would pass for an empty store.
const notTheNodes = "this is not what the node has at this path: in a container, mount the node's directory here, or start the container anew if the node made its directory anew"

type procWitness struct{ w *proc.Witness }

func (p procWitness) Name() string { return p.w.Name() }
func (p procWitness) Ask(ctx context.Context, _ bool) []claim.Testimony {
	return p.w.Ask(ctx)
}

type criWitness struct {
	w *cri.Witness
	// unknown: the list of runtimes that ever answered could not be read, so one that
	// must be asked may be missing.
	unknown error
	now     func() claim.Instant
}

func (c criWitness) Name() string { return c.w.Name() }
func (c criWitness) Ask(ctx context.Context, detail bool) []claim.Testimony {
	if c.unknown != nil {
		return []claim.Testimony{{Witness: claim.WitnessCRI, State: claim.StateSilent, Asked: c.now(), Detail: c.unknown.Error()}}
	}
	return []claim.Testimony{c.w.Ask(ctx, detail)}
}

type kubeWitness struct{ w *kube.Witness }

func (k kubeWitness) Name() string { return k.w.Name() }

// Ask takes half of the time that there is, if that is bounded as in a heal: an API server that
// hangs is silent, and must not keep the others' word from being acted on where it need not speak.
func (k kubeWitness) Ask(ctx context.Context, _ bool) []claim.Testimony {
	if until, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(until)/2)
		defer cancel()
		ctx = half
	}
	return []claim.Testimony{k.w.Ask(ctx)}
}

type bootWitness struct{ n *node }

func (b bootWitness) Name() string { return claim.WitnessBoot }
func (b bootWitness) Ask(context.Context, bool) []claim.Testimony {
	t := claim.Testimony{Witness: claim.WitnessBoot, State: claim.StateSilent, Asked: b.n.clock.Now()}
	id, err := b.n.clock.ID()
	if err != nil {
		t.Detail = err.Error()
		return []claim.Testimony{t}
	}
	facts := claim.BootFacts{Current: id.Value}
	if b.n.state != nil {
		// With an error the facts name no past boot, which is safe.
		facts, err = b.n.state.ObserveBoot(id.Value)
		if err != nil {
			t.Detail = err.Error()
			b.n.trouble.add("no boot counts as over: " + t.Detail)
		}
		if facts.Current == "" {
			facts = claim.BootFacts{Current: id.Value}
		}
	}
	t.State, t.Boot = claim.StateComplete, &facts
	return []claim.Testimony{t}
}

// eventSink writes the agent's Events.
type eventSink struct {
	client *kube.Client
	host   string
}

func (s eventSink) event(e events.Event) kube.Event {
	return kube.Event{
		Namespace: e.Namespace, Name: e.Name, Object: kube.Object(e.Object), Warning: e.Warning, Reason: e.Reason, Message: e.Message,
		Count: e.Count, First: e.First, Last: e.Last, Host: s.host,
	}
}

func (s eventSink) Create(ctx context.Context, e events.Event) error {
	return s.client.CreateEvent(ctx, s.event(e))
}

func (s eventSink) Patch(ctx context.Context, e events.Event) error {
	err := s.client.PatchEvent(ctx, s.event(e))
	if errors.Is(err, fs.ErrNotExist) {
		return events.ErrNotFound
	}
	return err
}

type memory struct{ n *node }

func (m memory) Load() (verdict.Memory, error) {
	if m.n.state == nil {
		return nil, m.n.unwritable
	}
	list, err := m.n.state.LoadSightings()
	var corrupt *state.CorruptError
	if errors.As(err, &corrupt) && corrupt.Kept != "" {
		// Moved aside: every grace begins anew, which is safe.
		m.n.trouble.add("what was seen before is lost, so every grace begins anew: " + err.Error())
		return nil, nil
	}
	return list, err
}

func (m memory) Save(list verdict.Memory) error {
	if m.n.unwritable != nil {
		return m.n.unwritable
	}
	if m.n.state == nil {
		return fs.ErrNotExist
	}
	return m.n.state.SaveSightings(list)
}

// noJournal stands for a journal that does not exist yet.
type noJournal struct{}

func (noJournal) Append(...journal.Record) error                    { return fs.ErrNotExist }
func (noJournal) Load() ([]journal.Record, []journal.Damage, error) { return nil, nil, nil }

func logOf(j *journal.Journal) sweep.Log {
	if j == nil {
		return noJournal{}
	}
	return j
}

type vault struct {
	q *hostlocal.Quarantine
	// held, unless nil, gets how long the allocator's lock was held, each time.
	held func(time.Duration)
}

func (v vault) Release(ctx context.Context, dir string, moves []sweep.Move, fresh func() bool) ([]sweep.Moved, error) {
	list := make([]hostlocal.Move, len(moves))
	for i, m := range moves {
		list[i] = hostlocal.Move(m)
	}
	outs, err := v.q.Release(ctx, dir, list, hostlocal.ReleaseOptions{Fresh: fresh, Held: v.held})
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

// maker makes reservations again.
type maker struct{ a *hostlocal.Adopter }

func (m maker) Adopt(ctx context.Context, dir string, list []sweep.Adoption, fresh func() bool) ([]sweep.Made, error) {
	in := make([]hostlocal.Adoption, len(list))
	for i, a := range list {
		in[i] = hostlocal.Adoption(a)
	}
	outs, err := m.a.Adopt(ctx, dir, in, fresh)
	made := make([]sweep.Made, len(outs))
	for i, o := range outs {
		made[i] = sweep.Made{ReleaseID: o.ReleaseID, Outcome: journal.AdoptFailed, Inc: o.Inc, Err: o.Err}
		switch o.State {
		case hostlocal.Adopted:
			made[i].Outcome = journal.AdoptAdopted
		case hostlocal.Taken:
			made[i].Outcome = journal.AdoptTaken
		}
	}
	if errors.Is(err, hostlocal.ErrStale) {
		err = sweep.ErrStale
	}
	return made, err
}

func (m maker) Look(a sweep.Adoption) (claim.Incarnation, bool, error) {
	return m.a.Look(hostlocal.Adoption(a))
}

// holdBook writes holds to the state directory.
type holdBook struct {
	state *state.Dir
	// unread says why there is no state directory, if that is not for want of one.
	unread error
	now    func() claim.Instant
	// dirs are the stores that were listed last. A hold of a directory is one under each of
	// its names: a link or a bind mount leads to the same files.
	dirs []namedDir
}

type namedDir struct {
	name string
	info fs.FileInfo
}

// listed is told the stores of a listing.
func (h *holdBook) listed(stores []claim.Store) {
	h.dirs = h.dirs[:0]
	for i := range stores {
		if info, err := os.Stat(stores[i].Dir); err == nil && stores[i].Network != "" {
			h.dirs = append(h.dirs, namedDir{stores[i].Dir, info})
		}
	}
}

// otherNames returns the names under which a held directory was listed, but for its own. A
// directory that is not there is none of them; of one that cannot be looked at, nobody knows.
func (h *holdBook) otherNames(store string) (names []string, err error) {
	info, err := os.Stat(store)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, d := range h.dirs {
		if d.name != store && os.SameFile(d.info, info) {
			names = append(names, d.name)
		}
	}
	return names, nil
}

// List reads them anew each time: a person may say hold while gc waits.
func (h *holdBook) List() ([]verdict.Hold, error) {
	if h.state == nil {
		return nil, h.unread
	}
	list, err := h.state.Holds()
	if err != nil {
		return nil, err
	}
	boot := h.now().Boot
	out := make([]verdict.Hold, 0, len(list))
	others := map[string][]string{} // by store, each asked once
	for _, e := range list {
		if !e.Counts(boot) {
			continue
		}
		v := e.Verdict()
		out = append(out, v)
		if v.Store == "" {
			continue
		}
		names, asked := others[v.Store]
		if !asked {
			if names, err = h.otherNames(v.Store); err != nil {
				return nil, err
			}
			others[v.Store] = names
		}
		for _, name := range names {
			v.Store = name
			out = append(out, v)
		}
	}
	return out, nil
}

func (h *holdBook) Hold(v verdict.Hold, releaseID string) (bool, error) {
	if h.state == nil {
		return false, fs.ErrNotExist
	}
	added, err := h.state.AddHolds(state.Hold{Store: v.Store, Addr: v.Addr, Owner: v.Owner, Why: v.Why, By: state.ByUndo, At: h.now(), ReleaseID: releaseID})
	return len(added) > 0, err
}

func (h *holdBook) Unhold(v verdict.Hold) error {
	if h.state == nil {
		return fs.ErrNotExist
	}
	_, err := h.state.RemoveHolds(func(e state.Hold) bool {
		return e.By == state.ByUndo && e.Store == v.Store && e.Addr == v.Addr && e.Owner == v.Owner
	})
	return err
}
