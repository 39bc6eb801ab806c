package sim

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

// This is holdfast-ipam: the store is the product's, and what is done with it is what
// cmd/holdfast-ipam does (add.go, verbs.go), without its command line.

// trustAfter is cmd/holdfast-ipam's.
const trustAfter = 5 * time.Minute

// allocFault is what an allocator other than ours does wrong.
type allocFault uint

const (
	neverLooks allocFault = 1 << iota // no candidate is compared with the kernel
	neverSyncs                        // an ADD is acknowledged without any fsync of the directory
	inPlace                           // a name stands before its content does, which nobody fsyncs
	isKind                            // who asks for an address gets one, though all are taken
	keepsHalf                         // what a failed ADD reserved stays
	delLies                           // DEL removes nothing and reports success
)

// allocates is a Subject that brings an allocator of its own. For tests of the oracle.
type allocates interface{ allocFaults() allocFault }

func (w *World) bad(f allocFault) bool {
	s, ok := w.subject.(allocates)
	return ok && s.allocFaults()&f != 0
}

// plugin is the process of one ADD in one network.
type plugin struct {
	proc   *memfs.Process
	store  *hostlocal.Store
	drafts []*hostlocal.Draft
	view   *kernelView
	made   []netip.Addr // reserved by it
	taken  []hostlocal.Held
	from   map[int]int
	anew   bool // the directory was read whatever the index said
	// drafted is when its last drafts were stamped.
	drafted time.Duration
}

var (
	errLook      = errors.New("the kernel must be asked")
	errAnew      = errors.New("the directory must be read")
	errFull      = errors.New("no address is free")
	errDuplicate = errors.New("duplicate allocation is not allowed")
	errElse      = errors.New("not all that is reserved could be taken back")
)

// openStore opens a store as a process of its own does.
func (w *World) openStore(p *memfs.Process, dir string) (*hostlocal.Store, error) {
	return hostlocal.OpenStore(hostlocal.StoreConfig{
		FS: p, Serial: true, Dir: dir, RunDir: runDir, Proc: "/nonexistent",
		Boot: w.boot(), Mono: func() time.Duration { return w.mono },
		Wall: func() int64 { return w.wall.UnixNano() }, Rand: w.aging.Uint64,
	})
}

// noteBoot is what the first look of a boot does beside: it tells holdfast's history.
func (w *World) noteBoot(p *memfs.Process, s *hostlocal.Store) {
	if !s.NewBoot {
		return
	}
	d, err := state.Open(stateDir, state.Options{FS: p, Now: func() time.Time { return w.wall }, LockWait: time.Millisecond})
	if err != nil {
		return // it costs the dead of a reboot their grace
	}
	if _, err := d.ObserveBoot(w.boot()); err == nil {
		w.knownBoots[w.bootN] = true
	}
	_ = d.Close()
}

// endPlugin: the process of an ADD in flight is no more.
func (c *container) endPlugin() {
	if c.plug != nil {
		c.plug.proc.Kill()
		c.plug = nil
	}
}

// stepOurs does one step of an ADD. wait: it waits for a lock.
func (w *World) stepOurs(c *container, n *network, s addStep) (ok, wait bool) {
	p := c.plug
	if s.do == stepDraft {
		p = &plugin{proc: w.disk.Process(), from: map[int]int{}}
		c.plug = p
		p.proc.KillAt(c.dieAt)
		var err error
		if p.store, err = w.openStore(p.proc, n.dir()); err == nil {
			err = p.draft(w, c, s.net)
		}
		w.checkOurs(c, n.dir(), s.net)
		return err == nil, false
	}
	if p == nil {
		return false, false
	}
	dir := w.dirOf(p, n)
	if s.do == stepTurn {
		err := w.turn(c, n, p, s.net)
		var locked *hostlocal.ErrLocked
		if errors.As(err, &locked) {
			return false, true
		}
		if errors.Is(err, errFull) {
			if err = w.turnAfterHealing(c, n, p, s.net); errors.As(err, &locked) {
				// It would wait, and try again; here it gives up.
				err = errFull
			}
		}
		return err == nil, false
	}
	var err error
	if !w.bad(neverSyncs) {
		err = p.store.Sync()
	}
	if err == nil && p.proc.Alive() {
		w.acknowledge(c, dir, s.net)
	}
	w.noteBoot(p.proc, p.store)
	c.endPlugin()
	return err == nil, false
}

// dirOf is the directory that a plugin works in: the network may have another name by now.
func (w *World) dirOf(p *plugin, n *network) string {
	for _, dir := range slices.Backward(n.dirs) {
		if st, err := w.disk.Lstat(dir); err == nil && p.store != nil && p.store.Is(st.Key()) {
			return dir
		}
	}
	return n.dir()
}

// draft writes what gets its names later.
func (p *plugin) draft(w *World, c *container, net int) error {
	p.discard()
	p.drafted = w.mono
	for range w.families() {
		d, err := p.store.Draft(c.id, ifName(net), c.ns.id)
		if err != nil {
			return err
		}
		p.drafts = append(p.drafts, d)
	}
	return nil
}

func (p *plugin) discard() {
	for _, d := range p.drafts {
		p.store.Discard(d)
	}
	p.drafts = nil
}

// turn is the plugin's allocate, without the sync at its end.
func (w *World) turn(c *container, n *network, p *plugin, net int) error {
	dir := w.dirOf(p, n)
	err := w.try(c, n, p, net)
	for range 3 {
		switch {
		case errors.Is(err, errLook):
			err = p.store.SyncName()
			p.view = w.lookAtKernel()
		case errors.Is(err, errAnew):
			err = nil
			p.store.Anew()
			p.anew = true
		default:
			continue
		}
		if err == nil {
			err = p.draft(w, c, net)
		}
		if err == nil {
			err = w.try(c, n, p, net)
		}
	}
	if w.checkOurs(c, dir, net); w.fail != nil {
		return err
	}
	alive := p.proc.Alive()
	if err != nil {
		// All or nothing, and what was there before is not touched.
		if alive && !errors.Is(err, errElse) && len(p.made) > 0 && !w.faults {
			for _, a := range p.made {
				if f := w.ledger.files[dir+"/"+a.String()]; f != nil && f.c == c {
					w.violate("alloc", "the ADD of container %d failed (%v) and %s stays", c.n, err, f.path)
				}
			}
		}
		return err
	}
	p.discard()
	if dir != n.dir() { // of one range in two directories each knows its own
		c.robbed = true
	}
	for _, h := range p.taken {
		path := dir + "/" + h.Addr.String()
		w.stats.Taken++
		if f := w.ledger.files[path]; f == nil || f.c != nil && f.c.living() && f.c != c {
			w.violate("I11", "%s was taken over by container %d and is a living one's, or nobody's", path, c.n)
			continue
		}
		f := w.ledger.add(w, path, c, w.ledger.files[path].content)
		f.ours = true
		w.stamped(f)
		w.handOut(c, p, h.Addr)
	}
	for _, a := range p.made {
		if w.bad(inPlace) {
			_ = w.put(dir+"/"+a.String(), hostlocal.Content(c.id, ifName(net)))
		}
		if f := w.ledger.files[dir+"/"+a.String()]; f == nil || f.c != c {
			w.violate("I11", "container %d was given %s, and the reservation is not its own", c.n, a)
			continue
		}
		w.handOut(c, p, a)
	}
	return nil
}

// handOut is I11: an address goes to c.
func (w *World) handOut(c *container, p *plugin, a netip.Addr) {
	addr := a.String()
	if o := w.holder(addr, c); o != nil && o.shows(a) && !w.blind() && !o.late() && !c.robbed && !w.shared[addr] {
		w.violate("I11", "%s was given to container %d while the living container %d has it", addr, c.n, o.n)
	}
	w.taint(addr, c)
	c.addrs = append(c.addrs, a)
	w.stats.Ours++
}

// shows: the kernel shows the address with it. What it never shows (gVisor, VFIO) only its
// reservation keeps.
func (c *container) shows(a netip.Addr) bool {
	return c.ns != nil && slices.ContainsFunc(c.ns.addrs, func(x claim.IfAddr) bool { return x.Addr == a })
}

// taint notes that an address is given to c while a living one has it, which host-local
// does and a blind kernel cannot keep ours from: what becomes of it is of no interest here.
func (w *World) taint(addr string, c *container) {
	if w.holder(addr, c) != nil {
		w.shared[addr] = true
	}
}

// rob notes which ADDs in flight lose their reservations, in the wiped or renamed network:
// nothing shows their addresses until they are on a link. Ours waits for that, but not where
// host-local writes a new last_reserved_ip.
func (w *World) rob(net int) {
	for _, c := range w.traces {
		if c.adding && c.nets&(1<<net) != 0 {
			c.robbed, c.robbedAt = w.cfg.IPAM != 1, w.mono
		}
	}
}

// late: its addresses came to a link long after its reservations were lost.
func (c *container) late() bool {
	return c.robbed || c.robbedAt > 0 && c.linkedAt-c.robbedAt >= trustAfter
}

// acknowledge: what c has in dir is durable from now on.
func (w *World) acknowledge(c *container, dir string, net int) {
	want := hostlocal.Content(c.id, ifName(net))
	for _, f := range w.ledger.files {
		if f.c == c && filepath.Dir(f.path) == dir && bytes.Equal(f.content, want) {
			f.ours, f.acked = true, true
		}
	}
}

// try is one turn at the store.
func (w *World) try(c *container, n *network, p *plugin, net int) (err error) {
	tx, err := p.store.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.End()
	p.made, p.taken = nil, nil
	if err = w.reserveAll(c, n, p, tx, net); err == nil || !p.proc.Alive() {
		return err
	}
	for _, a := range p.made {
		if w.bad(keepsHalf) {
			continue
		}
		if tx.Unreserve(a) != nil {
			return errElse // not to be tried again: that would meet what is left
		}
	}
	return err
}

func (w *World) reserveAll(c *container, n *network, p *plugin, tx *hostlocal.Tx, net int) error {
	own, legacy, err := tx.Owned(c.id, ifName(net))
	if err != nil {
		return err
	}
	own = append(own, legacy...)
	if p.view == nil && slices.ContainsFunc(own, func(h hostlocal.Held) bool { return h.Stamp != nil }) {
		return errLook
	}
	for fam := range w.families() {
		if err := w.reserveOne(c, n, p, tx, fam, own); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) reserveOne(c *container, n *network, p *plugin, tx *hostlocal.Tx, fam int, own []hostlocal.Held) error {
	for _, h := range own {
		if f, i := n.index(h.Addr); i < 0 || f != fam {
			continue
		}
		if !p.view.provesDead(h, w.boot(), c.ns.id) {
			return errDuplicate
		}
		if err := tx.Renew(h, c.ns.id); err != nil {
			return err
		}
		p.taken = append(p.taken, h)
		return nil
	}
	if fam >= len(p.drafts) {
		return errElse // finished by what happened in the middle of its own healing
	}
	start := 0
	if last, ok := tx.Last(fam); ok {
		if f, i := n.index(last); i >= 0 && f == fam {
			start = i + 1
		}
	}
	if from, tried := p.from[fam]; tried {
		start = from
	}
	p.from[fam] = start
	if tx.Distrust != 0 && p.view == nil {
		return errLook
	}
	for k := range n.n {
		a := n.addr(fam, (start+k)%n.n)
		if tx.Taken(a) || tx.Distrust != 0 && p.view.addrs[a] && !w.bad(neverLooks) {
			continue
		}
		ok, err := tx.Reserve(p.drafts[fam], a)
		if ok {
			p.made = append(p.made, a)
			if err == nil {
				err = tx.SetLast(fam, a)
			}
		}
		if err != nil {
			return err
		}
		if ok {
			w.mayTrust(n, p, tx)
			return nil
		}
	}
	if !p.anew {
		return errAnew
	}
	if w.bad(isKind) {
		p.made = append(p.made, n.addr(fam, 0))
		return nil
	}
	return errFull
}

func (w *World) mayTrust(n *network, p *plugin, tx *hostlocal.Tx) {
	if tx.Distrust == 0 || p.view == nil || p.view.blind || tx.Lost() && w.mono-tx.Distrust < trustAfter {
		return
	}
	for a := range p.view.addrs {
		if _, i := n.index(a); i >= 0 && !tx.Taken(a) {
			return
		}
	}
	tx.Trust()
}

// kernelView is what a plugin sees of the kernel.
type kernelView struct {
	addrs map[netip.Addr]bool
	netns map[uint64]bool
	blind bool
}

// blind: a plugin that looks at the kernel does not see the node whole. It is a child of the
// runtime, whose view it has.
func (w *World) blind() bool {
	return w.mode.half() || w.mode.kernel == silent || w.mode.kernel == noVantage || w.mode.kernel == slow
}

func (w *World) lookAtKernel() *kernelView {
	v := &kernelView{addrs: map[netip.Addr]bool{}, netns: map[uint64]bool{}, blind: w.blind()}
	if v.blind {
		return v
	}
	for _, ns := range w.kernelFacts().Netns {
		v.netns[ns.ID] = true
		for _, a := range ns.Addrs {
			v.addrs[a.Addr] = true
		}
	}
	return v
}

func (v *kernelView) provesDead(h hostlocal.Held, boot string, own uint64) bool {
	if v == nil || v.blind || h.Stamp == nil || v.addrs[h.Addr] {
		return false
	}
	return h.Stamp.Boot != boot || h.Stamp.Netns != 0 && h.Stamp.Netns != own && !v.netns[h.Stamp.Netns]
}

// checkOurs compares a directory with the ledger after our allocator did something for c:
// a new name is whole and c's own, an old one is as it was, and nothing went but c's.
func (w *World) checkOurs(c *container, dir string, net int) {
	want := hostlocal.Content(c.id, ifName(net))
	for _, name := range w.names(dir) {
		if _, err := netip.ParseAddr(name); err != nil {
			continue
		}
		p := dir + "/" + name
		b, err := w.disk.ReadFile(p)
		if err != nil {
			continue
		}
		f := w.ledger.files[p]
		switch {
		case f == nil && bytes.Equal(b, want):
			f := w.ledger.add(w, p, c, b)
			f.ours = true
			w.stamped(f)
		case f == nil:
			w.violate("alloc", "%s came to hold %q by the ADD of container %d", p, b, c.n)
		case !bytes.Equal(b, f.content):
			w.violate("alloc", "%s was %q and is %q after the ADD of container %d", p, f.content, b, c.n)
		}
	}
	for _, p := range sortedKeys(w.ledger.files) {
		if filepath.Dir(p) != dir {
			continue
		}
		if _, err := w.disk.Lstat(p); err != nil {
			if f := w.ledger.files[p]; !bytes.Equal(bytes.TrimSpace(f.content), want) && string(bytes.TrimSpace(f.content)) != c.id {
				w.violate("alloc", "%s (%q) went by what was done for container %d", p, f.content, c.n)
			}
			w.deleted(p)
		}
	}
}

// delOurs is the plugin's DEL in one network; false when the lock is not to be had.
func (w *World) delOurs(c *container, n *network, net int) bool {
	dir := n.dir()
	if _, err := w.disk.Lstat(dir); err != nil {
		return true
	}
	proc := w.disk.Process()
	defer proc.Kill()
	s, err := w.openStore(proc, dir)
	if err != nil {
		return true
	}
	tx, err := s.Begin(context.Background())
	var locked *hostlocal.ErrLocked
	if errors.As(err, &locked) {
		return false
	}
	if err != nil {
		return true
	}
	own, legacy, err := tx.Owned(c.id, ifName(net))
	if len(own) == 0 || w.cfg.Dual {
		own = append(own, legacy...)
	}
	for _, h := range own {
		if w.bad(delLies) {
			continue
		}
		err = errors.Join(err, tx.Remove(h))
	}
	tx.End()
	w.checkOurs(c, dir, net)
	if left := w.reserved(n, c, net); err == nil && len(left) > 0 {
		w.violate("alloc", "the DEL of container %d succeeded and %s stays", c.n, left[0])
	}
	w.noteBoot(proc, s)
	return true
}

// checkDurable runs after the power failed: an acknowledged ADD of ours is there, and
// whatever is there of ours is whole.
func (w *World) checkDurable() {
	for _, p := range sortedKeys(w.ledger.files) {
		f := w.ledger.files[p]
		if !f.ours {
			continue
		}
		b, err := w.disk.ReadFile(p)
		switch {
		case err == unix.ENOENT && f.acked:
			w.violate("alloc", "%s was acknowledged to container %d and is gone with the power", p, f.c.n)
		case err == nil && !bytes.Equal(b, f.content) && (f.acked || w.cfg.IPAM == 1 && !w.wholeOf(b)):
			w.violate("alloc", "%s was %q and holds %q after the power failed", p, f.content, b)
		}
	}
}

// wholeOf: b is what some ADD wrote, such as one whose file was removed before, and the
// power undid that.
func (w *World) wholeOf(b []byte) bool {
	return slices.ContainsFunc(w.all, func(c *container) bool {
		return bytes.Equal(b, hostlocal.Content(c.id, ifName(0))) || bytes.Equal(b, hostlocal.Content(c.id, ifName(1)))
	})
}

// die is an ADD whose plugin is killed at its k-th file call. The power can fail then.
func (w *World) die(a [3]int) bool {
	if w.cfg.IPAM == 0 {
		return true
	}
	if c := w.beginIn(a[0], plain, 1<<a[1], false, false); c != nil {
		c.ours, c.dieAt = true, int64(1+a[2])
		c.todo = w.planAdd(c)
		w.steps(c, 1<<10)
		w.abort(c)
	}
	return true
}
