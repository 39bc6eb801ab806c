package sim

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// maxPend bounds how often a pending operation waits for a lock.
const maxPend = 1 << 14

// command runs one command of the Subject as a process of its own. Within another
// command it is the operator's beside the agent.
func (w *World) command(c Command) {
	if w.fail != nil {
		return
	}
	w.stats.Commands++
	w.prune()
	r := &run{proc: w.disk.Process(), cmd: c, outer: w.run, unheard: w.witnesses()}
	if r.outer == nil {
		r.pend, w.pend = w.pend, nil
	} else {
		w.observe(r.outer)
		r.outer.dirty, r.dirty = true, true
	}
	w.run = r
	for _, p := range r.pend {
		if p.op.At == atFile { // else no call is of interest
			r.proc.SetHook(func(memfs.Call) error {
				r.files++
				w.fire(r, atFile, r.files)
				return nil
			})
			break
		}
	}
	rep := w.subject.Do(&Node{w, r}, c)
	alive := r.proc.Alive()
	r.proc.SetHook(nil)
	r.proc.Kill() // what is open is closed, also in good order
	if w.fail == nil {
		w.finish(r, rep, alive)
	}
	switch {
	case c.Verb == Hold && alive && rep.Refused == nil:
		w.ledger.holds[c.Addr] = true
	case c.Verb == Unhold && c.Addr == "":
		clear(w.ledger.holds)
	case c.Verb == Unhold:
		delete(w.ledger.holds, c.Addr) // killed in the middle it may have done its work
	}
	w.last = lastRun{r, rep}
	w.run = r.outer
	for _, p := range r.pend {
		// What the command was too short for happens now.
		if !p.done && p.op.Name != "kill" && w.fail == nil {
			w.apply(p.op)
		}
	}
}

// lastRun is what expectations speak of.
type lastRun struct {
	run *run
	rep Report
}

// question is before each question to a witness. False: the process was killed by then.
func (w *World) question(r *run) bool {
	w.observe(r)
	r.asks++
	if len(r.pend) > 0 {
		w.fire(r, atAsk, r.asks)
	}
	return r.proc.Alive()
}

// fire does what is set for this point of a command.
func (w *World) fire(r *run, at site, k int) {
	if w.run != r || w.fail != nil || !r.proc.Alive() {
		return
	}
	for i := range r.pend {
		p := &r.pend[i]
		if p.done || p.op.At != at || p.op.K != k {
			continue
		}
		w.observe(r)
		p.done = true
		r.dirty = true
		if !w.applyWithin(p.op) && k < maxPend {
			p.done = false // it waits for a lock
			p.op.K = k + 1
			continue
		}
		w.stats.Races++
		if !r.proc.Alive() {
			return
		}
	}
}

// apply does one operation; what it waits for it does not get.
func (w *World) apply(o Op) {
	if d := w.def(o.Name); d != nil {
		d.run(w, w.clamp(d, o.Args))
	}
}

func (w *World) applyWithin(o Op) bool {
	d := w.def(o.Name)
	return d == nil || !d.within || d.run(w, w.clamp(d, o.Args))
}

func (w *World) clamp(d *opDef, a [3]int) [3]int {
	for i, m := range d.max {
		a[i] %= m
	}
	return a
}

func (w *World) def(name string) *opDef {
	for i := range w.table {
		if w.table[i].name == name {
			return &w.table[i]
		}
	}
	return nil
}

// Do does one line of a script, and checks what must hold after it.
func (w *World) Do(o Op) {
	if w.fail != nil {
		return
	}
	w.stats.Steps++
	switch {
	case o.Name == "expect":
		w.expect(o.Text)
	case o.At != atOnce:
		w.pend = append(w.pend, pending{op: o})
	default:
		w.apply(o)
	}
	if w.fail != nil && w.fail.Step == 0 {
		w.fail.Step = w.stats.Steps
	}
}

// quiesce heals everything and lets time pass with sweeps. Then every leak is gone (I2)
// and nothing is half way (I4).
func (w *World) quiesce() {
	if w.run != nil {
		return
	}
	w.pend = nil
	w.mode, w.clockOff = modes{}, false
	w.setDisk(0)
	for _, r := range w.rts {
		r.mode = rtOK
	}
	for _, n := range w.nets {
		if n.stuck {
			n.stuck = false
			w.unlock(n.dir())
		}
	}
	for _, c := range w.traces {
		if c.adding {
			w.finishAdd(c)
			w.abort(c)
		}
	}
	for _, c := range w.traces {
		lost := c.up && w.rts[c.rt].endpoint != "" && !c.listed
		switch {
		case lost: // a runtime that lost its memory never manages it again
			w.stop(c)
		case !c.up && c.listed:
			w.dropNS(c) // the kubelet stops what is not ready
		}
	}
	w.seq++
	w.command(Command{Verb: Unhold})
	// What was seen once goes after its grace; what waits for another's namespace goes after
	// that has gone, which takes the longer one, and then its own.
	for _, d := range []time.Duration{0, grace + time.Second, orphanGrace + time.Second, orphanGrace + time.Second, grace + time.Second, orphanGrace + time.Second, orphanGrace + time.Second} {
		w.pass(d, true)
		w.command(Command{Verb: GC})
		if w.fail != nil || w.reclaimed() {
			break
		}
	}
	if w.fail == nil && w.subject.Duties().Reclaims {
		w.checkReclaimed()
	}
	if w.fail == nil && w.subject.Duties().Journals {
		w.checkSettled()
		w.checkLost()
	}
}

func (w *World) reclaimed() bool {
	for _, f := range w.ledger.files {
		if w.mayStay(f) == "" {
			return false
		}
	}
	return true
}

// checkReclaimed is I2.
func (w *World) checkReclaimed() {
	for _, p := range sortedKeys(w.ledger.files) {
		f := w.ledger.files[p]
		if why := w.mayStay(f); why == "" {
			w.violate("I2", "%s is still there (content %q); its container is dead and every witness speaks", p, f.content)
		}
	}
}

// mayStay says why a file may still be there, or "".
func (w *World) mayStay(f *file) string {
	switch {
	case f.c != nil && f.c.living():
		return "it lives"
	case f.foreign:
		return "a person wrote it"
	case f.held || w.undoHolds(f):
		return "an undo holds it in this boot"
	case w.contested(f.addr):
		return "two namespaces hold it"
	case w.ward(f) != nil:
		return "another has its address and no reservation"
	case claim.ParseOwner(f.content).Shape == claim.ShapeNone && w.holder(f.addr, nil) != nil:
		return "it names no owner, and its address lives"
	case f.c != nil && w.alive(f.c.id):
		return "its ID lives"
	}
	if n := w.kernelHolder(f.addr); n != nil {
		for _, a := range n.addrs {
			if !n.c.living() && w.holder(a.Addr.String(), n.c) != nil {
				return "the namespace that holds it may be that of a living one whom the kernel does not show"
			}
		}
		switch {
		case !n.c.living() && w.rts[n.c.rt].name == "podman":
			return "no runtime vouches for the namespace that holds it"
		}
	}
	if n := w.kernelHolder(f.addr); n != nil {
		for _, g := range w.ledger.files {
			if g.foreign && g.addr == f.addr {
				return "what a person wrote keeps the namespace that holds it"
			}
		}
	}
	if id := w.cachedBy(f); id != "" {
		return "by its cached result it is that of the living " + id
	}
	if f.c == nil {
		return ""
	}
	if w.pinned(f.c.id) {
		for _, p := range sortedKeys(w.ledger.files) {
			g := w.ledger.files[p]
			if g.foreign || w.undoHolds(g) || g.c != nil && g.c.living() && g.addr == f.addr {
				return "its namespace may be needed by another file that stays"
			}
		}
	}
	if why := w.disputed(f.c.id); why != "" {
		return why
	}
	// An attachment, and what a conflict of its container keeps, goes as a whole.
	for _, c := range w.traces {
		if c.id == f.c.id && c.ns != nil && w.rts[c.rt].name == "podman" {
			return "no runtime vouches for its namespace"
		}
	}
	for _, p := range sortedKeys(w.ledger.files) {
		g := w.ledger.files[p]
		if g == f || g.c == nil || g.c.id != f.c.id {
			continue
		}
		if g.held || w.undoHolds(g) || w.ward(g) != nil || w.contested(g.addr) || w.cachedBy(g) != "" {
			return "its sibling stays"
		}
	}
	return ""
}

// disputed says why an address of the ID, in whatever network, may be somebody else's who
// lives: that keeps all of the ID's.
func (w *World) disputed(id string) string {
	for _, c := range w.all {
		if c.id != id {
			continue
		}
		for _, a := range c.addrs {
			addr := a.String()
			if o := w.holder(addr, c); o != nil && o.id != id && !w.reserves(o.id, addr) {
				return "an address of its container is that of a living one without a reservation"
			}
			if w.contested(addr) {
				return "two namespaces hold an address of its container"
			}
			if w.kernelHolder(addr) == nil {
				continue
			}
			for _, o := range w.traces {
				if !o.living() && o.listed && slices.Contains(o.addrs, a) {
					return "a NotReady sandbox and an unused namespace excuse each other"
				}
			}
		}
	}
	return ""
}

// reserves reports whether a file of the ID has the address.
func (w *World) reserves(id, addr string) bool {
	for _, g := range w.ledger.files {
		if g.c != nil && g.c.id == id && g.addr == addr {
			return true
		}
	}
	return false
}

// pinned reports whether a namespace of the ID is left.
func (w *World) pinned(id string) bool {
	return slices.ContainsFunc(w.traces, func(c *container) bool { return c.id == id && c.ns != nil })
}

// cachedBy returns a living ID that has f's address by some cached result, such as one of
// the container that had that ID before.
func (w *World) cachedBy(f *file) string {
	dir := cacheDir + "/results"
	for _, name := range w.names(dir) {
		b, err := w.disk.ReadFile(dir + "/" + name)
		if err != nil || !strings.Contains(string(b), `"`+f.addr+`/`) {
			continue
		}
		for _, c := range w.traces {
			// A file without an owner is also asked for by the namespaces of those.
			counts := c.living() || c.ns != nil && claim.ParseOwner(f.content).Shape == claim.ShapeNone
			if counts && strings.Contains(name, c.id) && (f.c == nil || c.id != f.c.id) {
				return c.id
			}
		}
	}
	return ""
}

// expect checks one expectation of a script against the last command and the stores:
//
//	released NET/ADDR     the last command took it out of its store
//	kept NET/ADDR         it lies in its store
//	gone NET/ADDR         it does not
//	verdict NET/ADDR V    the last command said so
//	refused, done         the last command did nothing, or did its work
func (w *World) expect(text string) {
	f := strings.Fields(text)
	if len(f) == 0 {
		w.violate("expect", "nothing is expected")
		return
	}
	p := ""
	if len(f) > 1 {
		p = path.Join(dataDir, f[1])
	}
	bad := false
	switch f[0] {
	case "released":
		bad = true
		if r := w.last.run; r != nil {
			for _, x := range r.removed {
				bad = bad && x.path != p
			}
		}
	case "kept":
		bad = w.ledger.files[p] == nil
	case "gone":
		bad = w.ledger.files[p] != nil
	case "verdict":
		bad = len(f) != 3 || w.last.rep.Verdicts[p].String() != f[2]
	case "refused":
		bad = w.last.rep.Refused == nil
	case "done":
		bad = w.last.rep.Refused != nil
	default:
		bad = true
	}
	if bad {
		said := ""
		if v, ok := w.last.rep.Verdicts[p]; ok {
			said = fmt.Sprintf(" (its verdict: %v)", v)
		}
		if err := w.last.rep.Refused; err != nil {
			said += fmt.Sprintf(" (refused: %v)", err)
		}
		w.violate("expect", "%s%s", text, said)
	}
}

// removeNetns removes a pinned namespace, for a process that is alive.
func (w *World) removeNetns(r *run, mount string, id uint64) error {
	if !r.proc.Alive() {
		return errKilled
	}
	for _, n := range w.namespaces {
		if n.mount != mount || n.id != id {
			continue
		}
		if n.c.proc || n.c.adding && n.c.visible {
			return unix.EBUSY
		}
		if n.c.living() {
			w.violate("I1", "the namespace of the living container %d was removed", n.c.n)
		}
		w.dropNS(n.c)
		return nil
	}
	return unix.ENOENT
}

// parseConfig reads a script's config line.
func parseConfig(text string) (Config, error) {
	var c Config
	for _, f := range strings.Fields(text) {
		key, val, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(val)
		if err != nil {
			return c, fmt.Errorf("config %q: want KEY=NUMBER", f)
		}
		switch key {
		case "dual":
			c.Dual = n != 0
		case "small":
			c.Small = n != 0
		case "follow":
			c.Follow = n != 0
		case "cross":
			c.Cross = n != 0
		case "runtimes":
			c.Runtime = n & 7
		default:
			return c, fmt.Errorf("config %q: there is no such key", f)
		}
	}
	return c, nil
}

func (c Config) text() string {
	bit := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return fmt.Sprintf("dual=%d small=%d follow=%d cross=%d runtimes=%d", bit(c.Dual), bit(c.Small), bit(c.Follow), bit(c.Cross), c.Runtime)
}

// randomConfig is a seed's node.
func randomConfig(r *rand.Rand) Config {
	return Config{Dual: r.IntN(4) == 0, Small: r.IntN(4) == 0, Follow: r.IntN(2) == 0, Cross: r.IntN(4) == 0, Runtime: []int{1, 1, 1, 2, 3, 4, 5, 7}[r.IntN(8)]}
}
