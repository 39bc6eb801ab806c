package sim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/cnicache"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Holdfast is the product: the engine with its judge, journal, stores and state files, put
// together as cmd/holdfast does (node.go, gc.go, undo.go). Only the witnesses and the
// namespaces are the World's.
type Holdfast struct {
	rand io.Reader
	// replay counts down to the next look whose document is saved, to be judged again (I10).
	replay int
}

// NewHoldfast is a subject for one World.
func NewHoldfast() *Holdfast {
	return &Holdfast{rand: rand.NewChaCha8([32]byte{1}), replay: replayEvery}
}

// replayEvery is how many looks go by between two saved documents.
const replayEvery = 61

// Duties are all.
func (h *Holdfast) Duties() Duties {
	return Duties{Reclaims: true, Silence: true, Journals: true, Gates: true}
}

// Do runs one command.
func (h *Holdfast) Do(n *Node, c Command) Report {
	p, err := h.open(n, c.Verb)
	defer p.close()
	if err != nil {
		return Report{Refused: err}
	}
	switch c.Verb {
	case Audit:
		return p.audit()
	case GC:
		return p.gc(c.Force)
	case Undo:
		return p.undo()
	case Heal:
		p.heals = &c
		return p.gc(c.Force)
	case Hold:
		return p.hold(c.Addr)
	}
	return p.unhold(c.Addr)
}

// process is one command's engine with its drivers: cmd's node.
type process struct {
	h       *Holdfast
	n       *Node
	engine  *sweep.Engine
	state   *state.Dir
	journal *journal.Journal
	vault   *hostlocal.Quarantine
	locked  map[string]bool
	reapers []*hostlocal.Reaper
	known   []string
	saved   []byte // the document of the look, if it was saved
	// heals is the request of a heal.
	heals *Command
	stops []line.Stop
	// unknown: which runtimes must be asked cannot be read.
	unknown error
}

func (h *Holdfast) open(n *Node, verb Verb) (*process, error) {
	p := &process{h: h, n: n, locked: map[string]bool{}}
	var err error
	if p.state, err = state.Open(stateDir, state.Options{FS: n.FS(), Now: n.wall, LockWait: time.Millisecond}); err != nil {
		return p, err
	}
	if verb == Hold || verb == Unhold {
		return p, nil
	}
	if err := p.reaper(stateDir); err != nil {
		return p, err
	}
	releases := verb != Audit
	if p.journal, err = journal.Open(stateDir, journal.Options{ReadOnly: !releases, FS: n.FS()}); err != nil {
		return p, err
	}
	if releases {
		if err := p.journal.Writable(); err != nil {
			return p, err
		}
	}
	p.known, p.unknown = p.state.KnownRuntimes()
	p.vault = &hostlocal.Quarantine{Dir: quarantineDir, FS: n.FS(), Serial: true}
	inv := hostlocal.New(hostlocal.Config{ConfDirs: []string{confDir}, DataDirs: []string{dataDir}, Clock: n.Now, FS: n.FS(), Serial: true})
	cache := cnicache.New(cnicache.Config{Dirs: []string{cacheDir}, Clock: n.Now, FS: n.FS(), Serial: true})
	p.engine = &sweep.Engine{
		Inventories:  []sweep.Inventory{cache, netnsMounts{n}},
		Reservations: &reservations{inv: inv, n: n},
		Follow:       n.w.cfg.Follow,
		Serial:       true,
		Witnesses:    []sweep.Witness{kernelWitness{n}, criWitness{p}, bootWitness{p}},
		Memory:       memory{p.state}, Journal: p.journal, Vault: vault{p.vault, n}, Maker: maker{&hostlocal.Adopter{FS: n.FS(), Serial: true}}, Holds: holds{p.state, n},
		Sides: sides{n, cache}, Clock: n.Now, Rand: h.rand,
	}
	if n.w.cfg.Kube > 0 && verb != Heal {
		p.engine.Late = []sweep.Witness{kubeWitness{n}}
	}
	return p, nil
}

func (p *process) close() {
	if p.journal != nil {
		p.journal.Close()
	}
	if p.state != nil {
		p.state.Close()
	}
	for _, r := range slices.Backward(p.reapers) {
		r.Close()
	}
}

// policy is the default one; without a CRI runtime a person says so.
func (p *process) policy() verdict.Policy {
	pol := verdict.Policy{
		Required: []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI}, CRINone: !p.n.w.cfg.cri(), Grace: grace, OrphanGrace: orphanGrace,
	}
	if p.n.w.cfg.Kube == 1 && p.heals == nil {
		pol.Required = append(pol.Required, claim.WitnessKube)
	}
	if p.heals != nil {
		p.heals.press(&pol)
	} else if p.n.w.cfg.Agent {
		p.press(&pol)
	}
	return pol
}

func (p *process) reaper(dir string) error {
	r, err := hostlocal.AcquireReaper(p.n.FS(), runDir, dir)
	if err == nil {
		p.reapers = append(p.reapers, r)
	}
	return err
}

func (p *process) lockDir(dir string) error {
	if p.locked[dir] {
		return nil
	}
	err := p.reaper(dir)
	if err == nil {
		p.locked[dir] = true
	}
	return err
}

func (p *process) lockStore(dir string) error {
	if err := p.lockDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return p.lockDir(dir)
}

// look is one audit. What could not be locked is returned with the reason, by store.
func (p *process) look() (*sweep.Audit, map[string]string, error) {
	p.engine.Reservations.(*reservations).fresh = true
	au, err := p.engine.Look(context.Background(), p.policy())
	if err != nil {
		return nil, nil, err
	}
	p.rememberRuntimes(au)
	if p.h.replay--; p.h.replay <= 0 {
		p.h.replay = replayEvery
		if p.saved, err = json.Marshal(report.Audit(&au.Case, au.Judgement, report.Meta{})); err != nil {
			return nil, nil, err
		}
	}
	busy := map[string]string{}
	for _, s := range au.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Network == "" || p.locked[st.Dir] {
				continue
			}
			if err := p.lockStore(st.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				busy[st.Dir] = err.Error()
			}
		}
	}
	return au, busy, nil
}

func (p *process) rememberRuntimes(au *sweep.Audit) {
	var seen []string
	for _, t := range au.Case.Testimonies {
		if t.CRI == nil {
			continue
		}
		for _, rt := range t.CRI.Runtimes {
			if rt.State == claim.StateComplete && !rt.Known {
				seen = append(seen, rt.Endpoint)
			}
		}
	}
	if len(seen) > 0 {
		if err := p.state.RememberRuntimes(seen...); err != nil && au.Unremembered == nil {
			au.Unremembered = err
		}
	}
}

func (p *process) audit() Report {
	au, busy, err := p.look()
	if err != nil {
		return Report{Refused: err}
	}
	p.engine.Remember(au, func(store string) bool { return busy[store] == "" })
	return Report{Verdicts: verdicts(au), Saved: p.saved, Remembered: au.Unremembered == nil && len(busy) == 0}
}

func verdicts(au *sweep.Audit) map[string]verdict.Verdict {
	out := make(map[string]verdict.Verdict, len(au.Judgement.Findings))
	for i := range au.Judgement.Findings {
		f := &au.Judgement.Findings[i]
		out[f.Resource.Path] = f.Verdict
	}
	return out
}

func (p *process) gc(force bool) Report {
	ctx := context.Background()
	unsettled := p.settle(ctx)
	au, busy, err := p.look()
	if err != nil {
		return Report{Refused: err}
	}
	rep := Report{Verdicts: verdicts(au), Saved: p.saved}
	if rep.Refused = au.Unheld; rep.Refused != nil {
		return rep
	}
	if rep.Refused = p.vault.Check(storeDirs(au)...); rep.Refused != nil {
		return rep
	}
	p.engine.Remember(au, func(store string) bool { return busy[store] == "" })
	if rep.Refused = au.Unremembered; rep.Refused != nil {
		return rep
	}
	rep.Refused = unsettled // so not all of it was done
	p.loadStops(au)
	if p.n.w.cfg.Agent && p.heals == nil {
		var err error
		if rep.Undone, err = p.watchLine(ctx, au); err != nil {
			rep.Refused = errors.Join(rep.Refused, err)
			return rep
		}
	}
	if adopted, err := p.engine.Adopt(ctx, au, p.notOurs(busy)); err != nil {
		rep.Refused = errors.Join(rep.Refused, err)
		return rep
	} else if slices.ContainsFunc(adopted, func(a sweep.Adopted) bool { return a.Outcome != journal.AdoptAdopted }) {
		rep.Refused = errors.Join(rep.Refused, errNotAll)
	}
	opt := plan.Options{MaxReleases: p.n.w.cfg.Cap, ForceOverCap: force, Skip: p.skip(au, busy)}
	if p.heals != nil {
		p.heals.healing(&opt)
	}
	pl := plan.Make(au.Judgement, opt)
	rep.Remembered = len(busy) == 0
	if len(pl.Groups) > 0 {
		p.n.Judged()
		res, err := p.engine.Reap(ctx, au, pl)
		rep.Remembered = rep.Remembered && err == nil
		rep.Refused = errors.Join(rep.Refused, err)
		if len(res.Failed)+len(res.Reprieved) > 0 {
			rep.Refused = errors.Join(rep.Refused, errNotAll)
		}
	}
	if p.heals != nil {
		return rep
	}
	_, err = p.journal.Compact(journal.Policy{Discard: p.vault.Discard}, p.n.Now())
	rep.Refused = errors.Join(rep.Refused, err)
	return rep
}

var errNotAll = errors.New("not all of it went")

func storeDirs(au *sweep.Audit) []string {
	var out []string
	for _, s := range au.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Network != "" || st.Dir == st.DataDir {
				out = append(out, st.Dir, st.DataDir)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// settle brings what a crash left half way to an end, as far as its stores can be locked.
func (p *process) settle(ctx context.Context) error {
	left, _, err := p.journal.Unsettled()
	if err != nil {
		return err
	}
	own := map[string]bool{}
	for _, e := range left {
		if e.Release != nil {
			err := p.lockStore(e.Release.Store)
			own[e.Release.Store] = err == nil || errors.Is(err, fs.ErrNotExist)
		}
	}
	if len(own) == 0 {
		return nil
	}
	_, err = p.engine.Settle(ctx, func(store string) bool { return own[store] })
	return err
}

func (p *process) skip(au *sweep.Audit, busy map[string]string) func(*claim.Resource) string {
	return func(res *claim.Resource) string {
		if p.stopped(res) {
			return "its network is stopped"
		}
		for _, s := range au.Case.Snapshots {
			for _, st := range s.Stores {
				if st.Dir != res.Store || st.Network == "" {
					continue
				}
				switch {
				case busy[st.Dir] != "":
					return busy[st.Dir]
				case !p.locked[st.Dir]:
					return "its directory was not there when the locks were taken"
				case !st.Writable:
					return "its directory is read-only"
				}
			}
		}
		return ""
	}
}

// notOurs is cmd's: whose directory cannot be locked waits.
func (p *process) notOurs(busy map[string]string) func(*claim.Resource) string {
	return func(res *claim.Resource) string {
		if err := p.lockStore(res.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err.Error()
		}
		if !p.locked[filepath.Dir(res.Store)] {
			return "its data directory is not there"
		}
		return busy[res.Store]
	}
}

// undo is "undo --last".
func (p *process) undo() Report {
	ctx := context.Background()
	if err := p.settle(ctx); err != nil {
		return Report{Refused: err}
	}
	recs, _, err := p.engine.Journal.Load()
	if err != nil {
		return Report{Refused: err}
	}
	entries := journal.Replay(recs)
	ids := newest(entries, p.n.Now().Boot)
	if len(ids) == 0 {
		return Report{Refused: errors.New("nothing to undo")}
	}
	for _, e := range entries {
		if e.Release == nil || !slices.Contains(ids, e.ID) {
			continue
		}
		if err := p.lockStore(e.Release.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Report{Refused: err}
		}
	}
	undone, err := p.engine.Undo(ctx, ids)
	rep := Report{Refused: err}
	for _, u := range undone {
		if u.Outcome == journal.UndoRestored {
			rep.Undone = append(rep.Undone, u.Release.Path)
		}
	}
	return rep
}

// newest is cmd's chooseUndo of --last: the newest release of an address, with what went
// with it of one attachment.
func newest(entries []journal.Entry, boot string) []string {
	var ids []string
	var first journal.Entry
	for _, e := range slices.Backward(entries) {
		if e.Release == nil || e.Adopts || !e.Undoable(boot) || !e.Release.Addr.IsValid() {
			continue
		}
		if l := first.Release; len(ids) > 0 && (e.Sweep != first.Sweep || e.Release.Owner != l.Owner || e.Release.Owner.ID == "" || e.Release.Network != l.Network) {
			continue
		}
		if len(ids) == 0 {
			first = e
		}
		ids = append(ids, e.ID)
	}
	return ids
}

func (p *process) hold(addr string) Report {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return Report{Refused: err}
	}
	_, err = p.state.AddHolds(state.Hold{Addr: a, Why: "a person said hold", By: state.ByPerson, At: p.n.Now()})
	return Report{Refused: err}
}

// unhold ends a person's hold of addr, or with "" all of them.
func (p *process) unhold(addr string) Report {
	_, err := p.state.RemoveHolds(func(e state.Hold) bool {
		return e.By == state.ByPerson && (addr == "" || e.Addr.String() == addr)
	})
	return Report{Refused: err}
}
