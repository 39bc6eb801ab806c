package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// file is a reservation as upstream, or an undo, left it.
type file struct {
	path, addr string
	c          *container // nil: nobody's that we know
	content    []byte
	seq        int  // of the world when it came or was last written
	foreign    bool // by a person: never to be touched
	held       bool // put back by undo, in this boot
	boot       int  // of its release
	run        *run // that released it
	mark       mark // as it was listed last
	ours       bool // by our allocator: never less than whole
	acked      bool // and its ADD was acknowledged: never lost
}

// ledger is what the stores hold by all that upstream did. What differs from it was done
// by the Subject, since nothing else touches a store.
type ledger struct {
	files  map[string]*file
	dirs   []string
	moved  []*file         // released and not put back, oldest first
	copied []*file         // removed by upstream, with a copy in the quarantine
	holds  map[string]bool // addresses that a person holds
	// undone are what an undo put back, by undoKey, with the boot: it holds them in that.
	undone map[string]int
}

// add notes what upstream wrote; content nil is an empty file.
func (l *ledger) add(w *World, path string, c *container, content []byte) *file {
	w.seq++
	f := &file{path: path, addr: filepath.Base(path), c: c, content: content, seq: w.seq}
	l.files[path] = f
	return f
}

func (l *ledger) drop(path string) { delete(l.files, path) }

// deleted notes that upstream removed a reservation. Across devices a process of ours may have
// died between its copy and its unlink: then nobody can tell who of the two removed it, and
// an undo may put it back.
func (w *World) deleted(path string) {
	f := w.ledger.files[path]
	w.ledger.drop(path)
	if f == nil || !w.cfg.Cross {
		return
	}
	for _, n := range w.names(quarantineDir) {
		b, err := w.disk.ReadFile(quarantineDir + "/" + n)
		if err == nil && bytes.Equal(b, f.content) {
			w.ledger.copied = append(w.ledger.copied, f)
			return
		}
	}
}

// run is one command of the Subject: one process.
type run struct {
	proc   *memfs.Process
	lived  map[*container]bool // that ran when it began
	cmd    Command
	files  int
	asks   int
	listed int // seq of the world when the stores were listed
	// unheard are the required witnesses that have not testified wholly since then.
	unheard int
	// before are those that testified before that; blind: the kernel witness did without vantage.
	before  int
	blind   bool
	pend    []pending
	dirty   bool // the world interfered, so that nothing is to be expected
	outer   *run // in the middle of which this one is run
	healthy bool // every witness speaks when it begins
	removed []*file

	// For the gates: what it was told last, by witness, and when it had decided.
	told     [4]told
	kube     *told         // what the API server said last
	listedAt time.Duration // when the stores were listed
	judged   bool
	unasked  int // required witnesses that were not asked since
	unjudged int // that had not testified since the listing by then
	early    map[string]string
	doubles  map[string]string // store -> an address of it that two namespaces held by then
	proven   map[string]bool   // by the boots, when it was judged
	alive    []*seen           // of which it was told that they are alive
	faulty   bool              // something was wrong with the disk, so that it may not remember
	moves    int
	lockAt   time.Duration // when it last took the lock of a store, if something was set to happen
	locks    int
	// reserved are the files of each store, capped those that went and count.
	reserved map[string]int
	capped   []*file
}

// witnesses are the bits of those that must testify.
func (w *World) witnesses() int {
	if w.cfg.cri() {
		return 1 | 2 | 4 | 8
	}
	return 1 | 2 | 8
}

func witnessBit(name string) int {
	switch name {
	case claim.WitnessKernel:
		return 1
	case claim.WitnessProcess:
		return 2
	case claim.WitnessCRI:
		return 4
	}
	return 8
}

// observe compares the stores with the ledger. It runs before every change of the world,
// so that each release is held against the truth of its moment.
func (w *World) observe(r *run) {
	found := 0
	for _, dir := range w.ledger.dirs {
		names, err := w.disk.List(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			if c := name[0]; c != 'f' && (c < '0' || c > '9') || name[0] == 'f' && !strings.Contains(name, ":") {
				continue // lock, last_reserved_ip.0
			}
			p := dir + "/" + name
			if w.ledger.files[p] != nil {
				found++
				continue
			}
			w.appeared(r, p)
			if w.ledger.files[p] != nil {
				found++
			}
		}
	}
	if found == len(w.ledger.files) {
		return
	}
	var gone []*file
	for p, f := range w.ledger.files {
		if _, err := w.disk.Lstat(p); err != nil {
			gone = append(gone, f)
		}
	}
	slices.SortFunc(gone, func(a, b *file) int { return strings.Compare(a.path, b.path) })
	for _, f := range gone {
		w.removed(r, f)
	}
}

// appeared: a file that upstream did not write is one that was put back.
func (w *World) appeared(r *run, path string) {
	content, err := w.disk.ReadFile(path)
	if err != nil {
		return
	}
	l := &w.ledger
	if w.adopted(r, path, content) {
		return
	}
	i := -1
	for k, f := range l.moved {
		if f.path == path && bytes.Equal(f.content, content) {
			i = k
		}
	}
	if k := slices.IndexFunc(l.copied, func(f *file) bool { return f.path == path && bytes.Equal(f.content, content) }); i < 0 && k >= 0 {
		i = len(l.moved)
		l.moved = append(l.moved, l.copied[k])
		l.copied = slices.Delete(l.copied, k, k+1)
	}
	if i < 0 {
		w.violate("I3", "%s came out of nowhere during %s", path, r.cmd.Verb)
		return
	}
	f := *l.moved[i]
	l.moved = slices.Delete(l.moved, i, i+1)
	w.seq++
	f.seq, f.held = w.seq, true
	l.files[path] = &f
	l.undone[undoKey(&f)] = w.bootN
	w.stats.Undone++
}

// undoKey names what an undo's hold is of: its owner's reservation, or an address.
func undoKey(f *file) string {
	if o := claim.ParseOwner(f.content); o.Shape == claim.ShapeContainer {
		return f.path + " " + o.ID + " " + o.IfName
	}
	return f.path
}

// undoHolds reports whether some undo of this boot holds f.
func (w *World) undoHolds(f *file) bool {
	return w.ledger.undone[undoKey(f)] == w.bootN || w.ledger.undone[f.path] == w.bootN
}

// removed: the Subject took a file out of a store.
func (w *World) removed(r *run, f *file) {
	w.ledger.drop(f.path)
	w.stats.Released++
	f.boot, f.run = w.bootN, r
	w.ledger.moved = append(w.ledger.moved, f)
	r.removed = append(r.removed, f)
	duties := w.subject.Duties()
	if f.c != nil && f.c.living() && !w.nobodyKnows(f) {
		w.violate("I1", "%s was released while container %d (%s) lives: adding %v, up %v", f.path, f.c.n, f.c.id[:12], f.c.adding, f.c.up)
	}
	// A wipe after the listing takes the other's reservation from under the judgement.
	if o := w.ward(f); o != nil && w.wiped <= r.listed {
		w.violate("I1", "%s was released, the only guard of the address of the living container %d", f.path, o.n)
	}
	if f.seq > r.listed {
		w.violate("I7", "%s was released, though it came after the listing that it was judged by", f.path)
	}
	if duties.Silence && r.unheard != 0 {
		w.unheard(r, f)
	}
	if duties.Silence && w.cfg.Kube == 1 && r.cmd.Verb != Heal {
		w.checkKube(r, f)
	}
	if duties.Gates {
		w.checkGates(r, f)
	}
	if !duties.Journals {
		return
	}
	if _, held := w.locks[filepath.Dir(f.path)]; held {
		w.violate("I7", "%s was released while another held the lock of its store", f.path)
	}
	switch {
	case f.foreign:
		w.violate("I5", "%s was released, which a person wrote", f.path)
	case f.held:
		w.violate("I3", "%s was released again after an undo in the same boot", f.path)
	case w.ledger.holds[f.addr]:
		w.violate("I3", "%s was released, though a person holds it", f.path)
	}
	if n := w.kernelHolder(f.addr); n != nil && n.c == f.c {
		w.violate("I8", "%s was released while the namespace of its own container %d still holds it", f.path, f.c.n)
	}
	if o := r.outer; o != nil && o.asks > 0 {
		w.violate("I9", "%s was released by a second process while the first was in its sweep", f.path)
	}
}

// ward returns a living container that has f's address and, now that f is gone, no reservation
// for it in any store, and of which some witness can say so: f was the only thing that kept the
// address from being given out again.
//
// Whose a reservation is, is what it says, not by which life of an ID it was written: one of an
// earlier container under the same ID is the same to the last byte, and is kept for as long as
// the ID lives, as this one's own would be. One of its own that was cut to nothing is nobody's.
func (w *World) ward(f *file) *container {
	for _, o := range w.traces {
		if o == f.c || !o.up || !o.hasAddr(f.addr) || w.reserves(o.id, f.addr) {
			continue
		}
		if w.shown(o) {
			return o
		}
	}
	return nil
}

// unheard: something was released though some witness had not testified wholly after the
// listing. Which invariant that breaks is a question of why.
func (w *World) unheard(r *run, f *file) {
	switch {
	case r.blind && r.unheard == witnessBit(claim.WitnessKernel):
		w.violate("I13", "%s was released without vantage", f.path)
	case r.unheard&^r.before == 0:
		w.violate("I6", "%s was released on the word of witnesses %04b, asked before the listing", f.path, r.unheard)
	default:
		w.violate("I5", "%s was released on a pass where witnesses %04b had not testified wholly since the listing", f.path, r.unheard)
	}
}

// replay is I10: the saved document judged again gives the same verdicts.
func replay(saved []byte) error {
	var doc api.Audit
	if err := json.Unmarshal(saved, &doc); err != nil {
		return fmt.Errorf("the saved audit cannot be read: %w", err)
	}
	again, err := json.Marshal(report.Audit(doc.Evidence, verdict.Judge(doc.Evidence), report.Meta{}))
	if err != nil {
		return err
	}
	if saved = took(saved, doc.Took); !bytes.Equal(saved, took(again, "0s")) {
		return fmt.Errorf("the saved audit gives another document\n%s\n%s", saved, again)
	}
	return nil
}

// took leaves out how long the look took, which no evidence holds.
func took(doc []byte, d string) []byte {
	return bytes.Replace(doc, []byte(`"took":"`+d+`"`), nil, 1)
}

// shown reports whether some witness shows what addresses a running container has: of what is
// not in the kernel only its runtime can tell, if there ever was an answer.
func (w *World) shown(c *container) bool {
	return c.kind == plain || c.kind == noproc || c.listed && c.ready && w.rts[c.rt].mode == rtOK
}

// nobodyKnows: f was cut to nothing, so that nothing names its container, whose address no
// witness shows.
func (w *World) nobodyKnows(f *file) bool {
	return f.c.up && claim.ParseOwner(f.content).Shape == claim.ShapeNone && !w.shown(f.c)
}

// finish checks a command that has ended, or was killed.
func (w *World) finish(r *run, rep Report, alive bool) {
	w.observe(r)
	w.forgetTwins()
	duties := w.subject.Duties()
	if alive && rep.Remembered && !r.faulty && !w.faults {
		r.remembered()
	}
	if r.cmd.Verb == Undo || w.presses(r) {
		w.undone(r, rep)
	}
	if alive && rep.Saved != nil {
		if err := replay(rep.Saved); err != nil {
			w.violate("I10", "%v", err)
		}
	}
	if w.fail != nil || !duties.Journals {
		return
	}
	if len(r.removed) > 0 {
		w.checkJournalled(r)
	}
	if !alive || r.dirty || w.faults || rep.Refused != nil {
		return
	}
	w.checkWhole(r)
	if r.cmd.Verb == Undo {
		w.checkUndo(rep)
	}
}

// undone notes what an undo holds for the rest of the boot. One that was killed or failed
// may have held what it did not put back.
func (w *World) undone(r *run, rep Report) {
	for _, p := range rep.Undone {
		if f := w.ledger.files[p]; f != nil {
			w.ledger.undone[undoKey(f)] = w.bootN
		}
		// It stood there again already, word for word: the copy goes then.
		if f := w.ledger.files[p]; f != nil {
			w.ledger.moved = slices.DeleteFunc(w.ledger.moved, func(m *file) bool { return m.path == p && bytes.Equal(m.content, f.content) })
		}
	}
	if !r.proc.Alive() || rep.Refused != nil || r.dirty {
		for _, m := range w.ledger.moved {
			w.ledger.undone[undoKey(m)] = w.bootN
		}
	}
}

// checkWhole is I8: what went, went with all of its attachment.
func (w *World) checkWhole(r *run) {
	for _, f := range r.removed {
		if f.c == nil || len(f.content) == 0 {
			continue
		}
		dir, others := filepath.Dir(f.path), false
		for _, g := range w.ledger.files {
			if g.c != nil && g.c.id == f.c.id {
				others = true
				if filepath.Dir(g.path) == dir && g.c == f.c && bytes.Equal(g.content, f.content) {
					w.violate("I8", "%s was released and %s of the same attachment was not", f.path, g.path)
				}
			}
		}
		for i := range w.nets {
			p := cachePath(filepath.Base(dir), f.c.id, ifName(i))
			if _, err := w.disk.Lstat(p); err == nil && !others && f.c.nets == 1<<i && r.cmd.Verb != Heal { // which leaves it to the next gc
				w.violate("I8", "%s was released, and its cache file stays: %s", f.path, p)
			}
		}
	}
}

// checkUndo is the second half of I3: an undo works while the slot is free.
func (w *World) checkUndo(rep Report) {
	free := 0
	for _, n := range w.nets {
		if n.stuck || n.lock != nil {
			return // nor can it be had
		}
	}
	for _, f := range w.ledger.moved {
		if f.boot != w.bootN {
			continue
		}
		if w.taken(f) {
			return // --last may have meant this one
		}
		free++
	}
	if free > 0 && len(rep.Undone) == 0 {
		w.violate("I3", "undo put nothing back, though %d releases of this boot have a free slot", free)
	}
	for _, p := range rep.Undone {
		if w.ledger.files[p] == nil {
			w.violate("I3", "undo says that %s is back, and it is not", p)
		}
	}
}

// taken reports whether f could not be put back: its address is reserved again, or its
// directory is gone.
func (w *World) taken(f *file) bool {
	if w.ledger.files[f.path] != nil {
		return true
	}
	_, err := w.disk.Lstat(filepath.Dir(f.path))
	return err != nil
}

// mend makes the reservations that the power tore in the middle empty, or NULs, which is
// what file systems leave of some tens of bytes that were written at once: they lie in one
// block. The disk in memory can tear anywhere.
func (w *World) mend() {
	whole := map[string]bool{"": true}
	for _, f := range w.ledger.files {
		whole[string(f.content)] = true
	}
	for _, f := range w.ledger.moved {
		whole[string(f.content)] = true
	}
	for _, dir := range append(slices.Clone(w.ledger.dirs), quarantineDir) {
		for _, name := range w.names(dir) {
			p := dir + "/" + name
			b, err := w.disk.ReadFile(p)
			if _, aerr := netip.ParseAddr(name); err != nil || aerr != nil && dir != quarantineDir || whole[string(b)] {
				continue
			}
			clear(b)
			if len(b)%2 == 0 {
				b = nil
			}
			_ = w.disk.WriteFile(p, b)
		}
	}
	w.disk.Sync()
}

// rebase takes the disk as the power left it for what upstream left there: what was not
// fsynced may be gone, or back.
func (w *World) rebase() {
	w.ledger.files = map[string]*file{}
	for _, dir := range w.ledger.dirs {
		for _, name := range w.names(dir) {
			if _, err := netip.ParseAddr(name); err != nil {
				continue
			}
			p := filepath.Join(dir, name)
			content, err := w.disk.ReadFile(p)
			if err != nil {
				continue
			}
			f := w.ledger.add(w, p, w.ownerOf(content), content)
			// What is torn in the middle is nobody's ID: kept and reported, as what a person wrote.
			f.foreign = claim.ParseOwner(content).Shape == claim.ShapeForeign
			// A release that did not reach the disk was none.
			w.ledger.moved = slices.DeleteFunc(w.ledger.moved, func(m *file) bool { return m.path == p && bytes.Equal(m.content, content) })
		}
	}
}

func (w *World) ownerOf(content []byte) *container {
	id, _, _ := strings.Cut(string(content), "\r\n")
	for _, c := range slices.Backward(w.all) {
		if c.id == id {
			return c
		}
	}
	return nil
}
