package sim

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// pressureGrace is cmd/holdfast's.
const pressureGrace = 30 * time.Second

// press makes a policy that of an emergency sweep.
func (c *Command) press(p *verdict.Policy) {
	if c.Valid == nil { // nothing says that a network is full when its runtime collects
		p.PressureGrace = pressureGrace
	}
	if c.Spare != "" {
		p.Valid = append(p.Valid, claim.Attachment{Network: c.Network, ContainerID: c.Spare})
	}
	p.Valid = append(p.Valid, c.Valid...)
}

// healing makes a plan's options those of cmd/holdfast's heal.
func (c *Command) healing(o *plan.Options) {
	skip := o.Skip
	o.NoDel = true
	o.Skip = func(res *claim.Resource) string {
		switch {
		case res.Kind != claim.KindReservation:
			return "left for the next gc"
		case res.Network != c.Network:
			return "not among the networks asked for"
		}
		return skip(res)
	}
}

// heal asks for an emergency sweep of a network, for the container that is being added.
func (w *World) heal(n *network, spare string) (rep Report, whole bool) {
	was := w.last
	w.command(Command{Verb: Heal, Network: n.name, Spare: spare})
	// Another's sweep, which came right behind a killed one, is no answer to this.
	if r := w.last.run; r == nil || r == was.run || r.cmd.Verb != Heal || r.cmd.Network != n.name || r.cmd.Spare != spare {
		return Report{}, false
	}
	r := w.last.run
	return w.last.rep, w.last.rep.Refused == nil && !r.dirty && r.outer == nil && r.healthy
}

// cniGC is CNI's GC verb: the runtime says what it has, or is adding, and knows nothing of
// what other runtimes have (cni #1086).
func (w *World) cniGC(n *network, rt int) bool {
	c := Command{Verb: Heal, Network: n.name, Valid: []claim.Attachment{}}
	for _, x := range w.traces {
		if i := slices.Index(w.nets[:], n); x.rt == rt && x.living() && x.nets&(1<<i) != 0 {
			c.Valid = append(c.Valid, claim.Attachment{Network: n.name, ContainerID: x.id, IfName: ifName(i)})
		}
	}
	w.command(c)
	return true
}

// turnAfterHealing is what an ADD does that found nothing free.
func (w *World) turnAfterHealing(c *container, n *network, p *plugin, net int) error {
	dir := w.dirOf(p, n)
	p.discard()
	promised := w.promised(c, n, dir)
	rep, whole := w.heal(n, c.id)
	if w.fail != nil || !c.adding || !p.proc.Alive() {
		return errFull
	}
	p.view = nil
	err := p.draft(w, c, net)
	if err == nil {
		err = w.turn(c, n, p, net)
	}
	switch {
	case err == nil:
		w.stats.Healed++
	case errors.Is(err, errFull) && whole && !w.faults && w.subject.Duties().Reclaims:
		// Of what is promised something must go (the cap may keep the rest), or the network
		// would be full of the dead.
		stays := func(f *file) bool { return w.ledger.files[f.path] == f }
		if len(promised) > 0 && !slices.ContainsFunc(promised, func(f *file) bool { return !stays(f) }) {
			for _, f := range promised[:1] {
				w.violate("full", "%s is full, and after healing %s is still there (%q, its verdict: %v), whose container %d is dead", n.name, f.path, f.content, rep.Verdicts[f.path], f.c.n)
			}
		}
	}
	return err
}

// promised are the reservations that healing must release: stamped, old enough, of a
// container of which nothing is left that any witness could be in doubt about.
func (w *World) promised(c *container, n *network, dir string) []*file {
	if dir != n.dir() || w.mayBeStopped() {
		return nil
	}
	proc := w.disk.Process()
	defer proc.Kill()
	inv := hostlocal.New(hostlocal.Config{DataDirs: []string{dataDir}, Clock: w.now, FS: proc, Serial: true})
	stamps := map[string]*claim.Stamp{}
	for _, r := range inv.List(context.Background()).Resources {
		stamps[r.Path] = r.Stamp
	}
	var out []*file
	for _, f := range w.leaks() {
		st := stamps[f.path]
		if st == nil || f.c == nil || filepath.Dir(f.path) != dir || f.c.id == c.id || w.heldSomewhere(f.c.id) || !w.traceless(f.c.id) {
			continue
		}
		// By its cached result it is that of a sandbox that is listed, if NotReady, and has no
		// other reservation of it: until that one's longer grace is over it is in conflict.
		if w.cachedBy(f, func(c *container) bool { return c.listed && !w.reserves(c.id, f.addr) }) != "" {
			continue
		}
		age := w.mono - st.Mono
		switch {
		case st.Boot != w.boot():
			// Of a boot that holdfast's history may not know.
		case age >= grace, age >= pressureGrace && w.cfg.cri():
			out = append(out, f)
		}
	}
	return out
}

// heldSomewhere: a person holds an address of the ID.
func (w *World) heldSomewhere(id string) bool {
	for _, f := range w.ledger.files {
		if f.c != nil && f.c.id == id && w.ledger.holds[f.addr] {
			return true
		}
	}
	return false
}

// listsBelieved: no runtime lists nothing while its shims run.
func (w *World) listsBelieved() bool {
	for i, r := range w.rts {
		runs := func(c *container) bool { return c.rt == i && c.proc }
		listed := func(c *container) bool { return c.rt == i && c.listed }
		if r.endpoint != "" && slices.ContainsFunc(w.traces, runs) && !slices.ContainsFunc(w.traces, listed) {
			return false
		}
	}
	return true
}

// traceless: no runtime, process or namespace has anything of the ID, which was in one
// network: the cached result of another one may have its own grace.
func (w *World) traceless(id string) bool {
	for _, c := range w.all {
		if c.id != id {
			continue
		}
		if c.living() || c.proc || c.listed || c.ns != nil || c.nets > 2 {
			return false
		}
		for _, a := range c.addrs {
			if w.kernelHolder(a.String()) != nil {
				return false
			}
		}
	}
	return true
}
