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
	r := &run{proc: w.disk.Process(), cmd: c, outer: w.run, unheard: w.witnesses(), lived: map[*container]bool{}}
	for _, c := range w.traces {
		r.lived[c] = c.up
	}
	if r.outer == nil {
		r.pend, w.pend = w.pend, nil
	} else {
		w.observe(r.outer)
		r.outer.dirty, r.dirty = true, true
	}
	r.healthy = w.mode == modes{api: w.mode.api} && w.rts[0].mode+w.rts[1].mode == 0 && len(r.pend) == 0 && w.listsBelieved()
	w.run = r
	for _, p := range r.pend {
		if p.op.At != atAsk { // else no call is of interest
			r.proc.SetHook(func(c memfs.Call) error {
				r.files++
				w.fire(r, atFile, r.files)
				if c.Op == "Flock" && storeLock(c.Path()) {
					r.locks++
					w.fire(r, atLock, r.locks)
					r.lockAt = w.mono
				}
				if c.Op == "Renameat2" && strings.HasPrefix(c.Path(), quarantineDir+"/") {
					r.moves++
					w.fire(r, atMove, r.moves)
				}
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
	w.mode = modes{}
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
	for _, c := range slices.Clone(w.traces) { // an ADD may lead to a command, which forgets traces
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
	w.pods.settle(w)
	w.seq++
	w.command(Command{Verb: Unhold})
	// What was seen once goes after its grace; what waits for another's namespace goes after
	// that has gone, which takes the longer one, and then its own.
	for _, d := range []time.Duration{0, grace + time.Second, orphanGrace + time.Second, orphanGrace + time.Second, grace + time.Second, orphanGrace + time.Second, orphanGrace + time.Second} {
		w.pass(d, true)
		for range 16 { // a few of each store at a time, by the cap
			w.command(Command{Verb: GC})
			if w.cfg.Cap == 0 || w.last.run == nil || len(w.last.run.removed) == 0 {
				break
			}
		}
		if w.fail != nil || w.reclaimed() {
			break
		}
	}
	if w.fail == nil && w.subject.Duties().Reclaims {
		w.checkReclaimed()
		w.checkAdopted()
	}
	if w.fail == nil && w.subject.Duties().Journals {
		w.checkSettled()
		w.checkLost()
	}
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
		w.checkNetns(r, n)
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
		case "ipam":
			c.IPAM = n % 3
		case "kube":
			c.Kube = n % 3
		case "cross":
			c.Cross = n != 0
		case "agent":
			c.Agent = n != 0
		case "cap":
			c.Cap = n
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
	text := fmt.Sprintf("dual=%d small=%d follow=%d cross=%d runtimes=%d cap=%d ipam=%d", bit(c.Dual), bit(c.Small), bit(c.Follow), bit(c.Cross), c.Runtime, c.Cap, c.IPAM)
	if c.Agent {
		text += " agent=1"
	}
	if c.Kube > 0 {
		text += fmt.Sprintf(" kube=%d", c.Kube)
	}
	return text
}

// randomConfig is a seed's node.
func randomConfig(r *rand.Rand) Config {
	c := Config{Dual: r.IntN(4) == 0, Small: r.IntN(4) == 0, Follow: r.IntN(2) == 0, Cross: r.IntN(4) == 0, Runtime: []int{1, 1, 1, 2, 3, 4, 5, 7}[r.IntN(8)], Cap: []int{0, 3}[r.IntN(2)]}
	if r.IntN(2) == 0 {
		c.IPAM = 1 + r.IntN(2)
		c.Small = c.Small || r.IntN(2) == 0 // so that networks are full
	}
	return c
}
