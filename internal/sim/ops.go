package sim

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// opDef is one operation: what it does with its arguments, each below its max. run
// returns false when it must wait for a lock: within a command it is tried again before
// the next file call.
type opDef struct {
	name   string
	max    []int // exclusive
	weight int
	// within: it can happen in the middle of a command.
	within bool
	// can says whether it would do anything; nil: always. The generator asks, a script
	// does not.
	can func(w *World, a [3]int) bool
	run func(w *World, a [3]int) bool
}

// ops is the whole table. Slots are those of containers, networks 0 and 1.
//
//	add S KIND N     a whole ADD in slot S and its sandbox, on the networks of the mask N+1
//	begin S KIND K   an ADD begins and does K steps; with K of 16 and more its plugin shows
//	reuse S KIND K   the same under the ID of the slot's attempt before (podman, Nomad)
//	finish S         the ADD goes on to its end, and the sandbox starts
//	abort S          its plugin dies
//	stop S           all of it is stopped, with a DEL
//	leak S           all of it is gone, and no DEL ever comes
//	del B            the DEL of the B-th last attempt, late or again
//	crash S          the sandbox's process dies; its namespace stays
//	notready S       its runtime says NotReady
//	forget S         its runtime forgets it
//	rmnetns S        its namespace is removed, if nobody is in it
//	rt R MODE        runtime R: 0 answers, 1 hangs, 2 no listener, 3 no socket, 4 empty list
//	lose R           runtime R restarts with lost memory
//	witness W MODE   0 kernel, 1 process, 2 boot; modes as in testimony.go
//	api MODE         0 fresh, 1 failing, 2 empty, 3 stale
//	podsync          the kubelet writes the Pods' status
//	podstale         the watch cache stops at what there is
//	poddel S         the Pod is force-deleted in the API
//	wait T           time passes, see waits
//	suspend T        the same without CLOCK_MONOTONIC
//	clock T          the wall clock steps back by it
//	reboot R         a clean reboot; R 1: runtimes keep their records
//	power R SEED     power fails; what was not fsynced may be lost
//	sync             the kernel writes everything back
//	disk MODE        0 well, 1 full, 2 data read-only, 3 state read-only, 4 state broken
//	lock N, unlock N a stranger holds the network's lock
//	plant N I WHAT   an odd file at the I-th address: 0 empty, 1 a person's, 2 a number,
//	                 3 a prefix of a living ID, 4 an unknown ID, 5 blanks after the ID
//	again B S K      the DEL of the B-th last attempt, last_reserved_ip is wound back, and
//	                 slot S begins an ADD of K steps, which so gets the very same address
//	spoil S WHAT     the reservation of slot S is written over, see plant; 0 cuts it to nothing
//	keep S           a person holds the address of slot S
//	rename N         the network gets another name
//	wipe N           its directory is emptied
//	unlearn          the history of boots is removed
//	kill             our process dies (in a command only)
//	audit, gc F, undo, hold N I, unhold N I
//	die S N K        an ADD in slot S on network N, by our allocator, is killed at its K-th file call
//	heal N           an emergency sweep of the network, as ADDs of ours begin one
//	cnigc N R        CNI's GC for the network, with what runtime R has
//	quiesce          everything heals, time passes, and then I2 and I4 must hold
func ops() []opDef {
	return []opDef{
		{"add", []int{nSlots, int(nKinds), 3}, 14, true, canBegin, func(w *World, a [3]int) bool {
			w.finishAdd(w.beginIn(a[0], kind(a[1]), a[2]+1, false, false))
			return true
		}},
		{"begin", []int{nSlots, int(nKinds), 32}, 8, true, canBegin, func(w *World, a [3]int) bool {
			w.steps(w.beginIn(a[0], kind(a[1]), 1, false, a[2] >= 16), a[2]%16)
			return true
		}},
		{"reuse", []int{nSlots, int(nKinds), 32}, 3, true, func(w *World, a [3]int) bool { return canBegin(w, a) && w.slots[a[0]] != nil }, func(w *World, a [3]int) bool {
			w.steps(w.beginIn(a[0], kind(a[1]), 1, true, a[2] >= 16), a[2]%16)
			return true
		}},
		{"finish", []int{nSlots}, 8, true, isAdding, func(w *World, a [3]int) bool { w.finishAdd(w.slots[a[0]]); return true }},
		{"abort", []int{nSlots}, 3, true, isAdding, onSlot(func(w *World, c *container) { w.abort(c) })},
		{"stop", []int{nSlots}, 5, true, exists, func(w *World, a [3]int) bool {
			if c := w.slots[a[0]]; c != nil {
				w.stop(c)
				return w.del(c)
			}
			return true
		}},
		{"leak", []int{nSlots}, 8, true, isLiving, onSlot((*World).stop)},
		{"del", []int{8}, 4, true, func(w *World, _ [3]int) bool { return len(w.all) > 0 }, func(w *World, a [3]int) bool {
			if i := len(w.all) - 1 - a[0]; i >= 0 {
				// The runtime knows the name of the container, and gives it to the plugin
				// whoever has that name now: only one that is over is deleted late.
				if c := w.all[i]; !c.living() && !w.alive(c.id) {
					return w.del(c)
				}
			}
			return true
		}},
		{"crash", []int{nSlots}, 4, true, isUp, onSlot(func(w *World, c *container) {
			if c.up {
				w.crash(c)
			}
		})},
		{"notready", []int{nSlots}, 2, true, isUp, onSlot(func(w *World, c *container) {
			c.ready = false
			if c.kind == noproc && !c.adding {
				c.up = false
			}
		})},
		{"forget", []int{nSlots}, 3, true, exists, onSlot((*World).forget)},
		{"rmnetns", []int{nSlots}, 4, true, exists, onSlot(func(w *World, c *container) {
			if !c.living() {
				w.dropNS(c)
			}
		})},
		{"rt", []int{2, int(nRTModes)}, 4, true, func(w *World, a [3]int) bool { return w.rts[a[0]].there }, func(w *World, a [3]int) bool {
			w.rts[a[0]].mode = rtMode(a[1])
			return true
		}},
		{"lose", []int{2}, 1, true, func(w *World, a [3]int) bool { return w.rts[a[0]].there }, func(w *World, a [3]int) bool {
			for _, c := range w.traces {
				if c.rt == a[0] && !c.adding {
					w.forget(c)
				}
			}
			return true
		}},
		{"witness", []int{3, nModes}, 3, true, nil, func(w *World, a [3]int) bool {
			switch a[0] {
			case 0:
				w.mode.kernel = a[1]
			case 1:
				w.mode.process = a[1] % (silent + 1)
			default:
				w.mode.boot = a[1] % (otherBoot + 1)
			}
			return true
		}},
		{"speak", nil, 6, true, func(w *World, _ [3]int) bool { return w.mode != modes{} || w.rts[0].mode+w.rts[1].mode > 0 }, func(w *World, _ [3]int) bool {
			w.mode = modes{}
			w.rts[0].mode, w.rts[1].mode = 0, 0
			return true
		}},
		{"api", []int{nAPIModes}, 2, true, nil, func(w *World, a [3]int) bool { w.mode.api = a[0]; return true }},
		{"podsync", nil, 3, true, nil, func(w *World, _ [3]int) bool { w.pods.sync(w); return true }},
		{"podstale", nil, 1, true, nil, func(w *World, _ [3]int) bool { w.pods.stale = w.pods.now; return true }},
		{"poddel", []int{nSlots}, 1, true, exists, onSlot(func(w *World, c *container) { w.pods.deleted(c.uid) })},
		{"wait", []int{len(waits)}, 14, true, nil, func(w *World, a [3]int) bool { w.pass(waits[a[0]], true); return true }},
		{"suspend", []int{len(waits)}, 1, true, nil, func(w *World, a [3]int) bool { w.pass(waits[a[0]], false); return true }},
		{"clock", []int{len(waits)}, 1, true, nil, func(w *World, a [3]int) bool { w.wall = w.wall.Add(-waits[a[0]]); return true }},
		{"reboot", []int{2}, 1, false, nil, func(w *World, a [3]int) bool {
			w.disk.Sync()
			w.crashDisk(nil)
			w.reboot(a[0] == 1)
			return true
		}},
		{"power", []int{2, 1 << 10}, 2, true, nil, func(w *World, a [3]int) bool {
			w.crashDisk(rand.New(rand.NewPCG(uint64(a[1]), 7)))
			w.reboot(a[0] == 1)
			return true
		}},
		{"sync", nil, 2, true, nil, func(w *World, _ [3]int) bool { w.disk.Sync(); return true }},
		{"disk", []int{5}, 2, true, nil, func(w *World, a [3]int) bool { w.setDisk(a[0]); return true }},
		{"lock", []int{2}, 1, true, func(w *World, a [3]int) bool { return !w.nets[a[0]].stuck }, func(w *World, a [3]int) bool {
			n := w.nets[a[0]]
			if n.lock != nil || n.stuck {
				return true
			}
			n.stuck = w.take(n)
			return n.stuck
		}},
		{"unlock", []int{2}, 3, true, func(w *World, a [3]int) bool { return w.nets[a[0]].stuck }, func(w *World, a [3]int) bool {
			if n := w.nets[a[0]]; n.stuck {
				n.stuck = false
				w.unlock(n.dir())
			}
			return true
		}},
		{"plant", []int{2, 24, 6}, 2, true, nil, func(w *World, a [3]int) bool { w.plant(w.nets[a[0]], a[1], a[2]); return true }},
		{"again", []int{8, nSlots, 16}, 3, true, func(w *World, a [3]int) bool {
			return len(w.all) > 0 && canBegin(w, [3]int{a[1]})
		}, (*World).again},
		{"spoil", []int{nSlots, 6}, 2, true, isUp, onSlotArg((*World).spoil)},
		{"keep", []int{nSlots}, 1, true, exists, onSlot(func(w *World, c *container) {
			if len(c.addrs) > 0 {
				w.command(Command{Verb: Hold, Addr: c.addrs[0].String()})
			}
		})},
		{"rename", []int{2}, 1, false, nil, func(w *World, a [3]int) bool { w.rename(a[0]); return true }},
		{"wipe", []int{2}, 1, true, nil, func(w *World, a [3]int) bool { w.wipe(w.nets[a[0]]); return true }},
		{"unlearn", nil, 1, true, func(w *World, _ [3]int) bool { return len(w.knownBoots) > 0 }, func(w *World, _ [3]int) bool {
			if err := w.up.Unlinkat(unix.AT_FDCWD, stateDir+"/boots", 0); err == nil || err == unix.ENOENT {
				w.disk.Sync() // else the power may bring it back
				// What a command is about to write may be there again in a moment.
				now := w.run != nil && w.knownBoots[w.bootN]
				clear(w.knownBoots)
				if now {
					w.knownBoots[w.bootN] = true
				}
			}
			return true
		}},
		{"kill", nil, 3, true, func(*World, [3]int) bool { return false }, func(w *World, _ [3]int) bool {
			if w.run != nil {
				w.stats.Kills++
				w.run.proc.Kill()
			}
			return true
		}},
		{"audit", nil, 6, false, nil, func(w *World, _ [3]int) bool { w.command(Command{Verb: Audit}); return true }},
		{"gc", []int{2}, 12, true, nil, func(w *World, a [3]int) bool { w.command(Command{Verb: GC, Force: a[0] == 1}); return true }},
		{"undo", nil, 2, true, nil, func(w *World, _ [3]int) bool { w.command(Command{Verb: Undo}); return true }},
		{"hold", []int{2, 24}, 1, true, nil, func(w *World, a [3]int) bool {
			w.command(Command{Verb: Hold, Addr: w.nets[a[0]].addr(0, a[1]).String()})
			return true
		}},
		{"unhold", []int{2, 24}, 1, true, nil, func(w *World, a [3]int) bool {
			w.command(Command{Verb: Unhold, Addr: w.nets[a[0]].addr(0, a[1]).String()})
			return true
		}},
		{"die", []int{nSlots, 2, 80}, 3, true, canBegin, (*World).die},
		{"heal", []int{2}, 2, true, nil, func(w *World, a [3]int) bool {
			w.command(Command{Verb: Heal, Network: w.nets[a[0]].name})
			return true
		}},
		{"cnigc", []int{2, 3}, 2, true, nil, func(w *World, a [3]int) bool { w.cniGC(w.nets[a[0]], a[1]); return true }},
		{"quiesce", nil, 0, false, nil, func(w *World, _ [3]int) bool { w.quiesce(); return true }},
	}
}

// waits are the times that can pass: shorter and longer than what anything waits for.
var waits = [...]time.Duration{
	time.Second, 10 * time.Second, time.Minute, addMax - time.Second, grace + time.Second, 20 * time.Minute, orphanGrace + time.Second, 36 * time.Hour,
}

func canBegin(w *World, a [3]int) bool { c := w.slots[a[0]]; return c == nil || !c.living() }
func exists(w *World, a [3]int) bool   { return w.slots[a[0]] != nil }
func isAdding(w *World, a [3]int) bool { c := w.slots[a[0]]; return c != nil && c.adding }
func isUp(w *World, a [3]int) bool     { c := w.slots[a[0]]; return c != nil && c.up }
func isLiving(w *World, a [3]int) bool { c := w.slots[a[0]]; return c != nil && c.living() }

func onSlot(do func(*World, *container)) func(*World, [3]int) bool {
	return func(w *World, a [3]int) bool {
		if c := w.slots[a[0]]; c != nil {
			do(w, c)
			w.seq++
		}
		return true
	}
}

func onSlotArg(do func(*World, *container, int)) func(*World, [3]int) bool {
	return func(w *World, a [3]int) bool {
		if c := w.slots[a[0]]; c != nil {
			do(w, c, a[1])
			w.seq++
		}
		return true
	}
}

// beginIn begins an ADD in a slot, whose attempt before is over.
func (w *World) beginIn(slot int, k kind, nets int, reuse, visible bool) *container {
	if c := w.slots[slot]; c != nil && c.living() {
		return nil
	}
	return w.begin(slot, k, nets, reuse, visible)
}

func (w *World) steps(c *container, n int) {
	for ; c != nil && n > 0 && w.step(c); n-- {
	}
}

// finishAdd does the rest of an ADD and starts the sandbox.
func (w *World) finishAdd(c *container) {
	if c == nil {
		return
	}
	w.steps(c, 1<<10)
	if c.adding && len(c.todo) == 0 {
		w.start(c)
		w.seq++
	}
}

func (w *World) alive(id string) bool {
	for _, c := range w.traces {
		if c.id == id && c.living() {
			return true
		}
	}
	return false
}

// crashDisk ends every process. With rng nil everything had been written back.
func (w *World) crashDisk(rng *rand.Rand) {
	if w.run != nil {
		w.observe(w.run)
		w.run.dirty = true
	}
	w.stats.Crashes++
	if rng == nil {
		rng = rand.New(rand.NewPCG(0, 0))
	}
	w.setDisk(0)
	w.disk.Crash(rng)
	w.checkDurable()
	w.up = w.disk.Process()
	w.mend()
	clear(w.locks)
	for _, n := range w.nets {
		n.lock, n.stuck = nil, false
	}
	w.rebase()
	w.checkLost()
	w.forgetTorn()
}

// setDisk makes the disk well again, or breaks a part of it.
func (w *World) setDisk(mode int) {
	w.faults = mode != 0
	if w.run != nil {
		w.run.faulty = true
	}
	for _, dir := range []string{"/", stateDir} {
		// Where there is none yet there is nothing to make well.
		_ = w.disk.SetReadOnly(dir, false)
		_ = w.disk.SetFree(dir, -1)
		_ = w.disk.Deny(dir, nil)
	}
	switch mode {
	case 1:
		_ = w.disk.SetFree("/", 0)
		_ = w.disk.SetFree(stateDir, 0)
	case 2:
		_ = w.disk.SetReadOnly("/", true)
	case 3:
		_ = w.disk.Deny(stateDir, unix.EROFS)
	case 4:
		_ = w.disk.Deny(stateDir, unix.EIO)
	}
}

// plant puts an odd file where an address is free.
func (w *World) plant(n *network, i, what int) {
	p := n.dir() + "/" + n.addr(0, i%n.n).String()
	if w.ledger.files[p] != nil {
		return
	}
	if _, err := w.disk.Lstat(n.dir()); err != nil {
		return
	}
	w.overwrite(p, nil, w.oddContent(i, what))
}

// overwrite writes a file that is c's from then on. A full disk leaves a part of it.
func (w *World) overwrite(p string, c *container, content []byte) {
	if w.put(p, content) == nil {
		w.ledger.add(w, p, c, content).foreign = claim.ParseOwner(content).Shape == claim.ShapeForeign
	} else if left, err := w.disk.ReadFile(p); err == nil && (w.ledger.files[p] == nil || !bytes.Equal(left, w.ledger.files[p].content)) {
		w.ledger.add(w, p, c, left).foreign = claim.ParseOwner(left).Shape == claim.ShapeForeign
	}
}

// oddContent is what plant and spoil write.
func (w *World) oddContent(i, what int) (content []byte) {
	switch what {
	case 1:
		content = []byte("reserved-vip")
	case 2:
		content = []byte("4711")
	case 3:
		content = []byte(containerID(i)[:20] + "\r\neth0")
		for _, c := range w.slots {
			if c != nil && c.living() {
				content = []byte(c.id[:20] + "\r\neth0")
			}
		}
	case 4:
		content = []byte(containerID(5000+i) + "\r\neth0")
	case 5:
		content = []byte(containerID(6000+i) + " \r\neth0 \r\n")
	}
	return content
}

// again gives the address of an attempt that is over to another, as a store does that was
// restored from a copy (cases F11 and F12).
func (w *World) again(a [3]int) bool {
	i := len(w.all) - 1 - a[0]
	if i < 0 || w.slots[a[1]] != nil && w.slots[a[1]].living() {
		return true
	}
	old := w.all[i]
	if old.living() || w.alive(old.id) || old.nets&1 == 0 || len(old.addrs) == 0 {
		return true
	}
	if !w.del(old) {
		return false
	}
	n := w.nets[0]
	if _, k := n.index(old.addrs[0]); k >= 0 {
		_ = w.put(n.dir()+"/last_reserved_ip.0", []byte(n.addr(0, (k+n.n-1)%n.n).String()))
	}
	w.steps(w.beginIn(a[1], plain, 1, false, false), a[2])
	return true
}

// spoil writes over the reservation of a container's first address, as a disk that was
// full or a copy that was restored does (cases F5 and F12). What is cut to nothing is
// still its own. Not that of an ADD in flight: of one whose address no link shows nobody could
// say that the empty file is its own.
func (w *World) spoil(c *container, what int) {
	if len(c.addrs) == 0 || c.adding {
		return
	}
	for _, p := range sortedKeys(w.ledger.files) {
		f := w.ledger.files[p]
		if f.c != c || f.addr != c.addrs[0].String() {
			continue
		}
		owner := c
		if what > 0 {
			owner = nil
		}
		w.overwrite(p, owner, w.oddContent(c.n, what))
		w.wiped = w.seq // whoever judged by a listing of before still counted on it
		return
	}
}

// rename gives a network another name: its old directory is nobody's any more.
func (w *World) rename(i int) {
	n := w.nets[i]
	if n.lock != nil {
		w.abort(n.lock)
	}
	if n.stuck {
		n.stuck = false
		w.unlock(n.dir())
	}
	w.rob(i)
	if n.gen++; n.gen > 3 {
		return
	}
	n.name = [...]string{"podnet", "net1"}[i] + [...]string{"", "-b", "-c", "-d"}[n.gen]
	w.named(i)
}

// wipe empties a directory, as a person or another mount does (case F12).
func (w *World) wipe(n *network) {
	if n.lock != nil || n.stuck {
		return
	}
	for _, name := range w.names(n.dir()) {
		if w.up.Unlinkat(unix.AT_FDCWD, n.dir()+"/"+name, 0) == nil {
			w.deleted(n.dir() + "/" + name)
		}
	}
	w.rob(slices.Index(w.nets[:], n))
	w.seq++
	w.wiped = w.seq
}
