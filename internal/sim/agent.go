package sim

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// What an agent adds to gc (Config.Agent): every range runs low, so that the pressure rule holds,
// the releases of before are held against each look, and what lives without a reservation has its own back. Each command is a process of its own,
// as if the agent were started again before every sweep; its rate is left out.

// press makes a policy that of a sweep under pressure.
func (p *process) press(pol *verdict.Policy) {
	pol.PressureGrace, pol.Adopt = pressureGrace, true
	for _, n := range p.n.w.nets {
		pol.Pressed = append(pol.Pressed, n.dirs...)
	}
}

// loadStops is cmd's: what cannot be read stops every network.
func (p *process) loadStops(au *sweep.Audit) {
	list, _ := p.state.LoadStops(au.Case.Now)
	p.stops = line.Next(list, au.Case.Now, nil).Stops
}

func (p *process) stopped(r *claim.Resource) bool {
	dir := r.Store
	if r.Kind == claim.KindCache && r.Cache != nil {
		dir = filepath.Join(r.Cache.DataDir, r.Network)
	}
	return slices.ContainsFunc(p.stops, func(s line.Stop) bool { return r.Kind == claim.KindNetns || s.Covers(dir) })
}

// watchLine is cmd's node.watchLine.
func (p *process) watchLine(ctx context.Context, au *sweep.Audit) (undone []string, err error) {
	recs, _, err := p.engine.Journal.Load()
	if err != nil {
		return nil, err
	}
	var list []line.Release
	for _, e := range journal.Replay(recs) {
		if r := e.Release; r != nil && e.State == journal.StateReleased && e.Undoable(au.Case.Now.Boot) && r.Kind == claim.KindReservation {
			list = append(list, line.Release{ID: e.ID, Store: r.Store, Addr: r.Addr, Owner: r.Owner, At: e.Last})
		}
	}
	list = line.Recent(list, au.Case.Now)
	found, relist := line.Watch(list, &au.Case, au.Judgement)
	if relist {
		p.engine.Relist(ctx, au)
		found, _ = line.Watch(list, &au.Case, au.Judgement)
	}
	p.stops, err = p.state.EditStops(func(s []line.Stop) []line.Stop { return line.Next(s, au.Case.Now, found).Stops })
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, c := range found {
		ids = append(ids, c.ReleaseIDs...)
		if err := p.lockStore(c.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	list2, err := p.engine.Undo(ctx, ids)
	for _, u := range list2 {
		if u.Outcome == journal.UndoRestored {
			undone = append(undone, u.Release.Path)
		}
	}
	return undone, err
}

// presses: this command is a sweep of an agent.
func (w *World) presses(r *run) bool { return w.cfg.Agent && r.cmd.Verb == GC }

// toldDoubles are the stores of which a process was told that two namespaces in use hold a reserved
// address, unless each is of a container that has reserved it: networks with the same range.
func (w *World) toldDoubles(r *run) map[string]string {
	out := map[string]string{}
	k := r.told[0].Kernel
	if k == nil || !w.cfg.Agent {
		return out
	}
	held := map[string][]uint64{}
	for i := range k.Netns {
		n := &k.Netns[i]
		for _, a := range n.Addrs {
			if n.Host || n.Used() {
				held[a.Addr.String()] = append(held[a.Addr.String()], n.ID)
			}
		}
	}
	for _, f := range w.ledger.files {
		if len(held[f.addr]) > 1 && f.seq <= r.listed && !w.allReserved(held[f.addr], f.addr) {
			out[filepath.Dir(f.path)] = f.addr
		}
	}
	return out
}

// allReserved: each of the namespaces is of a container that has reserved the address.
func (w *World) allReserved(list []uint64, addr string) bool {
	for _, id := range list {
		i := slices.IndexFunc(w.namespaces, func(n *netns) bool { return n.id == id })
		if i < 0 {
			return false
		}
		reserved := false
		for _, f := range w.ledger.files {
			reserved = reserved || f.addr == addr && f.owner() == w.namespaces[i].c.id
		}
		if !reserved {
			return false
		}
	}
	return true
}

// mayBeStopped: some network has been stopped, and may be for another hour.
func (w *World) mayBeStopped() bool {
	if !w.cfg.Agent {
		return false
	}
	_, err := w.disk.Lstat(stateDir + "/stops")
	return err == nil
}

// lineStops says that what contradicts a release of a store lasts, so that it is stopped for as
// long: a duplicate of one of its addresses, or somebody alive under the ID or at the address of
// what was released, without a reservation.
func (w *World) lineStops(dir string) bool {
	if !w.cfg.Agent {
		return false
	}
	for _, f := range w.ledger.files {
		if filepath.Dir(f.path) == dir && w.contested(f.addr) {
			return true
		}
	}
	reserved := func(is func(*file) bool) bool {
		for _, f := range w.ledger.files {
			if is(f) {
				return true
			}
		}
		return false
	}
	for _, m := range w.ledger.moved {
		if filepath.Dir(m.path) != dir || m.boot != w.bootN {
			continue
		}
		if w.alive(m.owner()) && !reserved(func(f *file) bool { return f.owner() == m.owner() }) {
			return true
		}
		if n := w.kernelHolder(m.addr); n != nil && n.c.living() && !reserved(func(f *file) bool { return f.addr == m.addr }) {
			return true
		}
	}
	return false
}
