// Package sweep is the engine of one pass: list, ask, judge, confirm, release,
// journal. It defines the small interfaces that it consumes; the drivers of
// internal/sys implement them through adapters in cmd.
//
// Scope: the order of things and their waits. Which resource may go is decided by
// package verdict, in which order by package plan; how a file is moved or a plugin
// run is a driver's. The whole path on which something can be released is
// (*Engine).Reap in reap.go: it fits on a screen.
//
// Non-scope: command lines, output, schedules.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Inventory lists one kind of resources. It never fails as a whole: what it could not
// read is in the snapshot as a problem of a store or of a resource. Nothing there is
// an empty snapshot. Listed is stamped when the listing has ended.
type Inventory interface {
	Name() string
	List(ctx context.Context) claim.Snapshot
}

// Lister lists the addresses. It is the inventory that is listed last, since the others
// may know of data directories that nothing else names any more.
type Lister interface {
	Name() string
	List(ctx context.Context, dataDirs []string) claim.Snapshot
}

// Witness gives its testimonies; one source may speak for several witnesses. It never
// fails: silence is in the testimony. Asked is stamped before anything is read. detail
// asks a runtime for the status of every sandbox; others ignore it. It returns within
// its own time-out even if ctx has none.
type Witness interface {
	Name() string
	Ask(ctx context.Context, detail bool) []claim.Testimony
}

// Memory keeps the sightings. Load of a store that was never written gives none and no
// error. Save replaces all of them durably.
type Memory interface {
	Load() (verdict.Memory, error)
	Save(verdict.Memory) error
}

// Log is the release journal. Append is durable when it returns nil, and a failed
// Append means that nothing may be released on its strength.
type Log interface {
	Append(recs ...journal.Record) error
	Load() ([]journal.Record, []journal.Damage, error)
}

// Move names one reservation that goes into the quarantine.
type Move struct {
	ReleaseID string
	Path      string
	Inc       claim.Incarnation
}

// Moved is what became of a Move: one of the journal's outcomes "released", "changed",
// "gone", "failed". Err says why it failed.
type Moved struct {
	ReleaseID string
	Outcome   string
	Err       error
}

// ErrStale: what the witnesses said was too old when the lock was had at last.
var ErrStale = errors.New("the confirmation was too old when the lock was had")

// Vault moves reservations between a store and the quarantine, under the allocator's
// own lock.
type Vault interface {
	// Release moves what is unchanged. fresh is asked once the lock is had, each time;
	// when it says no, the lock is given back and what is left has ErrStale. There is one
	// Moved for every Move. An error means that this store is of no use now: its lock is
	// held by another, the quarantine cannot be written.
	Release(ctx context.Context, dir string, moves []Move, fresh func() bool) ([]Moved, error)
	// Place says where a reservation is after a crash: the judged incarnation at its
	// origin, a whole copy in the quarantine, both, or neither.
	Place(m Move) (origin, quarantined bool, err error)
	// Restore puts a quarantined reservation back if its address is free. taken is
	// true when it is not.
	Restore(ctx context.Context, m Move) (taken bool, err error)
	// Discard removes a quarantined file for good; nothing there is no error.
	Discard(releaseID string) error
}

// Sides releases everything but the reservation.
type Sides interface {
	// Run does one step and says what became of it. A piece that is not there is
	// "skipped" without a detail.
	Run(ctx context.Context, s plan.Step) journal.StepResult
	// Content reads a cache file that is still the judged incarnation.
	Content(s plan.Step) ([]byte, error)
	// Restore writes a cache file again, unless one is there.
	Restore(path string, content []byte) error
}

// Holds are the addresses that stay.
type Holds interface {
	// List returns all of them. An error means that nobody knows what a person wanted
	// kept, so nothing may go.
	List() ([]verdict.Hold, error)
	// Hold adds h; added is false when it was there.
	Hold(h verdict.Hold, releaseID string) (added bool, err error)
	// Unhold removes it; nothing there is no error.
	Unhold(h verdict.Hold) error
}

// Engine is one node's collector. Its methods must not run concurrently; the reaper
// lock that its user holds sees to that across processes (I9).
type Engine struct {
	Inventories  []Inventory
	Reservations Lister
	// Follow: Reservations also looks where only the other inventories say that there are
	// addresses, so it waits for them. Otherwise all are listed at once.
	Follow bool
	// Serial lists, asks and loads one after the other, in the order of Inventories and
	// Witnesses, and starts no goroutine: for a simulation that must be repeatable.
	Serial    bool
	Witnesses []Witness
	// Late are asked after the others, and only if the judge needs them. What they say stands
	// for lateFor in the confirmations of the same sweep.
	Late    []Witness
	Memory  Memory
	Journal Log
	Vault   Vault
	Maker   Maker
	Sides   Sides
	Holds   Holds
	Clock   func() claim.Instant
	Rand    io.Reader
}

// Audit is the result of one look.
type Audit struct {
	Case      verdict.Case
	Judgement *verdict.Judgement
	Took      time.Duration
	// Unremembered says why the sightings could not be loaded or saved; then nothing
	// that needs two sightings is ever released.
	Unremembered error
	// Unheld says why the holds could not be read; then nothing is released.
	Unheld error
	// answers are the testimonies, by witness of the engine.
	answers [][]claim.Testimony
	// late is what Late said, and lateAt when they were asked; no boot: they were not.
	late   []claim.Testimony
	lateAt claim.Instant
	// revived: a confirmation heard alive of what was absent, which is not saved yet.
	revived bool
}

// Look lists, asks and judges. It writes nothing.
func (e *Engine) Look(ctx context.Context, policy verdict.Policy) (*Audit, error) {
	start := e.Clock()
	a := &Audit{Case: verdict.Case{Policy: policy}}
	// What is remembered is read meanwhile: it says nothing of what there is now.
	var memErr error
	load := e.beside()
	load.do(func() { a.Case.Memory, memErr = e.Memory.Load() })
	a.Case.Snapshots = e.list(ctx)
	load.wg.Wait()
	// After the listing, which tells the names of the directories that are held.
	if a.Case.Policy.Holds, a.Unheld = e.Holds.List(); a.Unheld != nil {
		a.Case.Policy.Unheld = a.Unheld.Error()
	}
	a.answers = ask(ctx, e.Witnesses, e.beside(), false, func(int) bool { return true })
	a.Case.Testimonies = slices.Concat(a.answers...)
	a.Case.Now = e.Clock()
	a.Judgement = verdict.Judge(&a.Case)
	// Three rounds: that details are lacking may turn out only when the late ones have
	// spoken, and that an address is missing only when the details are known.
	for range 3 {
		if !e.fetch(ctx, a) {
			break
		}
		a.Judgement = nil // a full node's is large, and needed no more
		a.Judgement = verdict.Judge(&a.Case)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.Unremembered = memErr
	if d, ok := e.Clock().Since(start); ok {
		a.Took = d
	}
	return a, nil
}

// Remember saves the sightings of a look, so that a later one counts as the second. owns
// says for which stores this process may: those of others stay as they were. What is
// remembered already is not written again.
func (e *Engine) Remember(a *Audit, owns func(store string) bool) {
	if a.Unremembered != nil {
		return
	}
	mine := map[string]bool{} // asked once for each directory, not for each of its files
	others := func(k verdict.Key) bool {
		dir := k.Path[:strings.LastIndexByte(k.Path, '/')+1]
		own, asked := mine[dir]
		if !asked {
			own = owns(filepath.Dir(k.Path))
			mine[dir] = own
		}
		return !own
	}
	keep := make(verdict.Memory, 0, len(a.Judgement.Memory))
	for _, s := range a.Judgement.Memory {
		if !others(s.Key) {
			keep = append(keep, s)
		}
	}
	for _, s := range a.Case.Memory {
		if others(s.Key) {
			keep = append(keep, s)
		}
	}
	a.Judgement.Memory = keep.With()
	// Nothing new was seen, which is usual: the same would be written again, and the disk
	// waited for. Not so where something may go: that this can be written is asked for
	// before a release.
	if slices.Equal(keep, a.Case.Memory) && !slices.ContainsFunc(a.Judgement.Findings, func(f verdict.Finding) bool { return f.Releasable }) {
		return
	}
	a.Unremembered = e.Memory.Save(a.Judgement.Memory)
}

// fetch gets what the judge lacked, and reports whether anything is new.
func (e *Engine) fetch(ctx context.Context, a *Audit) bool {
	need := a.Judgement.Needs
	again := false
	if need.Detail && !detailed(&a.Case) {
		// Only who speaks for runtimes has more to say. What the others said stands: all
		// were asked after the listing (I6), and nothing tells who of them reads when.
		parts := ask(ctx, e.Witnesses, e.beside(), true, func(i int) bool { return slices.ContainsFunc(a.answers[i], ofRuntimes) })
		for i, p := range parts {
			if p != nil {
				a.answers[i] = p
			}
		}
		again = true
	}
	if need.Kube && len(e.Late) > 0 && a.lateAt.Boot == "" {
		e.askLate(ctx, a)
		again = true
	}
	if again {
		a.Case.Testimonies = append(slices.Concat(a.answers...), a.late...)
		a.Case.Now = e.Clock()
	}
	// Once more, if details were asked for since: a listing of before them says nothing.
	if need.Relist {
		e.Relist(ctx, a)
		again = true
	}
	return again
}

// Relist lists the reservations once more, after the witnesses were asked: what lies there then
// may have come meanwhile.
func (e *Engine) Relist(ctx context.Context, a *Audit) {
	var dirs []string
	if e.Follow {
		dirs = dataDirs(a.Case.Snapshots)
	}
	s := e.Reservations.List(ctx, dirs)
	a.Case.Relisted = &s
}

func ofRuntimes(t claim.Testimony) bool { return t.CRI != nil }

func detailed(c *verdict.Case) bool {
	for _, t := range c.Testimonies {
		if t.CRI != nil && t.CRI.Detailed {
			return true
		}
	}
	return false
}

// list asks every inventory; all have ended before any witness is asked (I6).
func (e *Engine) list(ctx context.Context) []claim.Snapshot {
	n := len(e.Inventories)
	out := make([]claim.Snapshot, n+1)
	others := e.beside()
	for i, inv := range e.Inventories {
		others.do(func() { out[i] = inv.List(ctx) })
	}
	var dirs []string
	if e.Follow {
		others.wg.Wait()
		dirs = dataDirs(out[:n])
	}
	out[n] = e.Reservations.List(ctx, dirs)
	others.wg.Wait()
	return out
}

// dataDirs are the data directories that cached configurations name: a network whose
// configuration was removed is found through them.
func dataDirs(snaps []claim.Snapshot) []string {
	var out []string
	for i := range snaps {
		for j := range snaps[i].Resources {
			if c := snaps[i].Resources[j].Cache; c != nil && c.DataDir != "" && !slices.Contains(out, c.DataDir) {
				out = append(out, c.DataDir)
			}
		}
	}
	slices.Sort(out)
	return out
}

// beside does things beside the caller, or at once if the engine is serial.
type beside struct {
	serial bool
	wg     sync.WaitGroup
}

func (e *Engine) beside() *beside { return &beside{serial: e.Serial} }

func (b *beside) do(f func()) {
	if b.serial {
		f()
		return
	}
	b.wg.Go(f)
}

// lateFor is how long the word of a late witness stands. It only keeps, or lets a sandbox go
// that stays NotReady, and is dear: one question for each sweep is what an API server of
// thousands of nodes can bear.
const lateFor = 30 * time.Second

// askLate asks the late witnesses, whatever they said before.
func (e *Engine) askLate(ctx context.Context, a *Audit) {
	a.lateAt = e.Clock()
	a.late = slices.Concat(ask(ctx, e.Late, e.beside(), false, func(int) bool { return true })...)
}

// renewLate asks the late witnesses again whose word is too old to stand.
func (e *Engine) renewLate(ctx context.Context, a *Audit) {
	if a.lateAt.Boot == "" {
		return // nothing needed them
	}
	if d, ok := e.Clock().Since(a.lateAt); !ok || d > lateFor {
		e.askLate(ctx, a)
	}
}

// ask asks those witnesses for which who is true, all at once.
func ask(ctx context.Context, witnesses []Witness, all *beside, detail bool, who func(i int) bool) [][]claim.Testimony {
	parts := make([][]claim.Testimony, len(witnesses))
	for i, w := range witnesses {
		if who(i) {
			all.do(func() { parts[i] = w.Ask(ctx, detail) })
		}
	}
	all.wg.Wait()
	return parts
}

// again asks the witnesses again, reads the holds again, and judges the same listing by
// the same code (gate 3). What is alive now is alive for the memory too: its next absence
// begins a new run.
func (e *Engine) again(ctx context.Context, a *Audit) (*verdict.Judgement, []verdict.Hold, error) {
	c := a.Case
	var err error
	if c.Policy.Holds, err = e.Holds.List(); err != nil {
		return nil, nil, fmt.Errorf("the holds cannot be read: %w", err)
	}
	c.Memory = a.Judgement.Memory
	c.Testimonies = append(slices.Concat(ask(ctx, e.Witnesses, e.beside(), detailed(&a.Case), func(int) bool { return true })...), a.late...)
	c.Now = e.Clock()
	j := verdict.Judge(&c)
	var revived []*verdict.Sighting
	for _, s := range j.Memory {
		if s.Absent.Boot != "" {
			continue
		}
		if old := a.Judgement.Memory.Get(s.Key); old != nil && old.Absent.Boot != "" {
			revived = append(revived, s)
		}
	}
	if len(revived) > 0 {
		a.Judgement.Memory = slices.Clone(a.Judgement.Memory).With(revived...)
		a.revived = true
	}
	return j, c.Policy.Holds, nil
}

func keyOf(r *claim.Resource) verdict.Key { return verdict.Key{Path: r.Path, Inc: r.Inc} }

func (e *Engine) newSweep() (string, error) {
	id, err := journal.NewID(e.Clock().Wall, e.Rand)
	if err != nil {
		return "", fmt.Errorf("sweep ID: %w", err)
	}
	return id, nil
}
