package sim

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// begin starts the ADD of a new attempt in a slot whose attempt before is over. reuse
// gives it the ID of that one, as podman, nerdctl and Nomad do.
func (w *World) begin(slot int, k kind, nets int, reuse, visible bool) *container {
	if k == noproc && !w.rts[1].there {
		k = plain
	}
	rt := w.runtimeOf(slot, k)
	c := &container{
		n: len(w.all) + 1, slot: slot, rt: rt, kind: k, nets: nets, since: w.mono, boot: w.bootN, adding: true, visible: visible,
		uid: fmt.Sprintf("uid-%d-%d", slot, w.attempts[slot]/2), created: w.wall.UnixNano(),
	}
	w.attempts[slot]++
	c.id = containerID(c.n)
	if old := w.slots[slot]; reuse && old != nil {
		c.id = old.id
		if old.ns != nil {
			w.dropNS(old)
		}
		old.listed = false
	}
	w.nextPID++
	c.pid = w.nextPID
	w.nextNS++
	c.ns = &netns{id: w.nextNS, c: c, mount: w.mountName(rt, w.nextNS)}
	c.nsID = w.nextNS
	w.namespaces = append(w.namespaces, c.ns)
	w.slots[slot] = c
	w.all = append(w.all, c)
	w.traces = append(w.traces, c)
	c.ours = w.cfg.IPAM == 1 || w.cfg.IPAM == 2 && c.n%2 == 0
	c.todo = w.planAdd(c)
	w.pods.created(w, c)
	return c
}

// containerID looks random enough that no ID is another's prefix by chance.
func containerID(n int) string {
	x := uint64(n) * 0x9e3779b97f4a7c15
	return fmt.Sprintf("%016x%016x%016x%016x", x, x^0x5555aaaa5555aaaa, x*3, uint64(n))
}

// runtimeOf picks the runtime that serves a slot: those without a process are CRI-O's.
func (w *World) runtimeOf(slot int, k kind) int {
	if k == noproc && w.rts[1].there {
		return 1
	}
	var there []int
	for i, r := range w.rts {
		if r.there {
			there = append(there, i)
		}
	}
	return there[slot%len(there)]
}

func (w *World) mountName(rt int, id uint64) string {
	uuid := fmt.Sprintf("%08x-1111-4222-8333-444455556666", id&0xffffffff)
	switch w.rts[rt].name {
	case "containerd":
		return "/run/netns/cni-" + uuid
	case "cri-o":
		return "/run/netns/" + uuid
	}
	return "/run/netns/netns-" + uuid
}

// start makes a sandbox of an attempt whose ADD has ended.
func (w *World) start(c *container) {
	c.adding, c.visible, c.up = false, false, true
	c.proc = c.kind != noproc
	if w.rts[c.rt].endpoint != "" {
		c.listed, c.ready = true, true
	}
}

// abort ends an ADD in flight: its plugin died or gave up, and what it had written stays.
func (w *World) abort(c *container) {
	if !c.adding {
		return
	}
	c.adding, c.visible, c.todo = false, false, nil
	c.endPlugin()
	w.unlockOf(c)
}

// crash ends the sandbox's process. Its namespace stays while it is pinned.
func (w *World) crash(c *container) {
	c.up, c.proc, c.ready = false, false, false
}

// forget drops the runtime's record. A sandbox without a process is nothing without it.
func (w *World) forget(c *container) {
	c.listed, c.ready = false, false
	if c.kind == noproc && !c.adding {
		c.up = false
	}
}

func (w *World) dropNS(c *container) {
	if c.ns == nil {
		return
	}
	w.namespaces = slices.DeleteFunc(w.namespaces, func(n *netns) bool { return n == c.ns })
	c.ns = nil
}

// stop ends all of a container but what its network left.
func (w *World) stop(c *container) {
	w.abort(c)
	w.crash(c)
	w.forget(c)
	w.dropNS(c)
}

// reboot: nothing of this boot goes on. Runtimes may keep their records.
func (w *World) reboot(keepRecords bool) {
	for _, c := range w.traces {
		w.abort(c)
		c.up, c.proc, c.ready, c.ns = false, false, false, nil
		if !keepRecords {
			c.listed = false
		}
	}
	w.namespaces = nil
	w.bootN++
	w.mono = 30e9
}

// holder returns a living container that has an address by the truth.
func (w *World) holder(addr string, but *container) *container {
	for _, c := range w.traces {
		if c != but && c.living() && c.hasAddr(addr) {
			return c
		}
	}
	return nil
}

func (c *container) hasAddr(addr string) bool {
	return slices.ContainsFunc(c.addrs, func(a netip.Addr) bool { return a.String() == addr })
}

// kernelHolder returns a namespace that has the address.
func (w *World) kernelHolder(addr string) *netns {
	for _, n := range w.namespaces {
		if slices.ContainsFunc(n.addrs, func(a claim.IfAddr) bool { return a.Addr.String() == addr }) {
			return n
		}
	}
	return nil
}

// prune forgets the attempts of which nothing shows any more.
func (w *World) prune() {
	w.traces = slices.DeleteFunc(w.traces, func(c *container) bool {
		return !c.living() && !c.proc && !c.listed && c.ns == nil
	})
}

// contested reports whether more than one namespace has the address.
func (w *World) contested(addr string) bool {
	n := 0
	for _, ns := range w.namespaces {
		if slices.ContainsFunc(ns.addrs, func(a claim.IfAddr) bool { return a.Addr.String() == addr }) {
			n++
		}
	}
	return n > 1
}
