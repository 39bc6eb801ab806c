package sim

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// What may still be there when everything has healed and every grace is over. Each reason
// is one that the product has on purpose; docs/proof.md lists them. What is not among them
// is a leak (I2).

func (w *World) reclaimed() bool { return len(w.leaks()) == 0 }

// checkReclaimed is I2.
func (w *World) checkReclaimed() {
	for _, f := range w.leaks() {
		w.violate("I2", "%s is still there (content %q); its container is dead and every witness speaks", f.path, f.content)
	}
}

// leaks are the files that should be gone.
func (w *World) leaks() []*file {
	var rest, stay []*file
	whole := map[string]bool{} // IDs of which all stays
	for _, p := range sortedKeys(w.ledger.files) {
		f := w.ledger.files[p]
		why, all := w.staysItself(f)
		if why == "" {
			rest = append(rest, f)
			continue
		}
		stay = append(stay, f)
		if id := f.owner(); all && id != "" {
			whole[id] = true
		}
	}
	for n := -1; n != len(rest); {
		n = len(rest)
		rest = slices.DeleteFunc(rest, func(f *file) bool {
			along := whole[f.owner()] || slices.ContainsFunc(stay, func(g *file) bool { return w.goTogether(f, g) })
			if along {
				stay = append(stay, f)
			}
			return along
		})
	}
	return rest
}

// owner is the ID that a file belongs to, "" for none; with nobody's that we know, the one
// that it names.
func (f *file) owner() string {
	if f.c != nil {
		return f.c.id
	}
	if o := claim.ParseOwner(f.content); o.Shape == claim.ShapeContainer {
		return o.ID
	}
	return ""
}

// staysItself says why a file may stay, whatever becomes of the others; all: and with it all
// of its container's, in every network.
func (w *World) staysItself(f *file) (why string, all bool) {
	switch {
	case f.c != nil && f.c.living() || f.c != nil && w.alive(f.c.id):
		return "its ID lives", true
	case f.foreign:
		return "a person wrote it", false
	case f.held || w.undoHolds(f):
		return "an undo holds it in this boot", false
	case w.lineStops(filepath.Dir(f.path)):
		return "the releases of its network are contradicted", false
	case w.contested(f.addr):
		return "two namespaces hold its address", true
	case w.ward(f) != nil:
		return "another has its address and no reservation", true
	case w.cfg.Kube > 0 && slices.ContainsFunc(w.traces, func(o *container) bool {
		return o != f.c && o.living() && o.hasAddr(f.addr) && !w.reserves(o.id, f.addr)
	}):
		return "the API server says that a living one has its address, whatever its runtime says", true
	case claim.ParseOwner(f.content).Shape == claim.ShapeNone && w.holder(f.addr, nil) != nil:
		return "it names no owner, and its address lives", false
	}
	noOwner := claim.ParseOwner(f.content).Shape == claim.ShapeNone
	// A file without an owner is also asked for by the namespaces of those.
	if id := w.cachedBy(f, func(c *container) bool {
		return c.living() || w.excused(c) || c.listed && w.undoKeeps(c.id) || w.looksNewest(c.id) || c.ns != nil && noOwner
	}); id != "" {
		return "by its cached result it is that of " + id + ", which counts as alive", true
	}
	if id := f.owner(); id != "" && w.livesByResult(id) {
		return "by a cached result of its container a living one may be that", true
	}
	if w.looksNewest(f.owner()) {
		return "by the wall clock, which stepped back, it is the newest sandbox of a Pod that is there", true
	}
	if f.c != nil {
		if why := w.disputed(f.c.id); why != "" {
			return why, true
		}
	}
	for _, n := range w.namespacesOf(f) {
		if why := w.nsStays(n); why != "" {
			return why, false
		}
	}
	return "", false
}

// goTogether: both are of one attachment, or a namespace that must go with f has g's address,
// or by the cached results an address of g's container, whose entries stay with g.
func (w *World) goTogether(f, g *file) bool {
	if filepath.Dir(f.path) == filepath.Dir(g.path) && bytes.Equal(f.content, g.content) && claim.ParseOwner(f.content).Shape == claim.ShapeContainer {
		return true
	}
	// By the cached result also where the link does not show it.
	return slices.ContainsFunc(w.namespacesOf(f), func(n *netns) bool {
		return n.has(g.addr) || n.c.hasAddr(g.addr) || w.cached(n.c.id, g.addr) || g.owner() != "" && w.cachedIn(n, g.owner())
	})
}

// namespacesOf are those of the dead that must go with f: what has its address, its own, and
// what has an address of its attachment's cached result and is not known to be of another
// who reserved that.
func (w *World) namespacesOf(f *file) []*netns {
	var result string
	if o := claim.ParseOwner(f.content); o.Shape == claim.ShapeContainer {
		b, _ := w.disk.ReadFile(cachePath(filepath.Base(filepath.Dir(f.path)), o.ID, o.IfName))
		result = string(b)
	}
	var out []*netns
	for _, n := range w.namespaces {
		cached := slices.ContainsFunc(n.addrs, func(a claim.IfAddr) bool {
			return strings.Contains(result, `"`+a.Addr.String()+`/`) && !w.excludes(n, a.Addr.String())
		})
		if !n.c.living() && (n.has(f.addr) || cached || f.c != nil && n.c.id == f.c.id) {
			out = append(out, n)
		}
	}
	return out
}

// excludes: a runtime or a cached result says whose namespace it is, and that one reserved
// the address: then it is nobody else's.
func (w *World) excludes(n *netns, addr string) bool {
	known := n.c.listed || slices.ContainsFunc(w.names(cacheDir+"/results"), func(name string) bool { return strings.Contains(name, n.c.id) })
	return known && w.reserves(n.c.id, addr)
}

// cachedIn: by some cached result of the ID, an address that n has is that one's.
func (w *World) cachedIn(n *netns, id string) bool {
	return slices.ContainsFunc(n.addrs, func(a claim.IfAddr) bool {
		return w.cached(id, a.Addr.String()) && !w.excludes(n, a.Addr.String())
	})
}

// nsStays says why a namespace of the dead may stay.
func (w *World) nsStays(n *netns) string {
	if w.rts[n.c.rt].name == "podman" {
		return "no runtime vouches for its namespace"
	}
	if w.mayBeLivings(n) {
		return "its namespace may be that of a living one whom the kernel does not show"
	}
	for _, c := range w.all {
		if w.cachedIn(n, c.id) && w.livesByResult(c.id) {
			return "its namespace may be that of one whose other address lives by a cached result"
		}
	}
	return ""
}

// livesByResult: the namespace of a living one has an address of some cached result of the ID, and
// is not known to be of another who reserved it.
func (w *World) livesByResult(id string) bool {
	return slices.ContainsFunc(w.namespaces, func(n *netns) bool { return n.c.living() && w.cachedIn(n, id) })
}

// mayBeLivings: a living container other than n's own has an address that n has.
func (w *World) mayBeLivings(n *netns) bool {
	return slices.ContainsFunc(n.addrs, func(a claim.IfAddr) bool { return w.holder(a.Addr.String(), n.c) != nil })
}

func (n *netns) has(addr string) bool {
	return slices.ContainsFunc(n.addrs, func(a claim.IfAddr) bool { return a.Addr.String() == addr })
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
			n := w.kernelHolder(addr)
			if n == nil {
				continue
			}
			if !n.c.living() && w.mayBeLivings(n) && (w.reserves(id, addr) || w.cached(id, addr)) {
				return "a namespace with an address of its container may be that of a living one whom the kernel does not show"
			}
			for _, o := range w.traces {
				if w.excused(o) && w.saidOf(o, n, addr) {
					return "a NotReady sandbox and an unused namespace excuse each other"
				}
			}
		}
	}
	return ""
}

// reserves reports whether a file of the ID has the address, and says so.
func (w *World) reserves(id, addr string) bool {
	for _, g := range w.ledger.files {
		if g.c != nil && g.c.id == id && g.addr == addr && claim.ParseOwner(g.content).Shape == claim.ShapeContainer {
			return true
		}
	}
	return false
}

// excused: a NotReady sandbox that counts as alive while some namespace has an address of it.
func (w *World) excused(c *container) bool {
	return !c.living() && c.listed && slices.ContainsFunc(w.namespaces, func(n *netns) bool {
		return slices.ContainsFunc(n.addrs, func(a claim.IfAddr) bool { return w.saidOf(c, n, a.Addr.String()) })
	})
}

// saidOf: an address that n has is c's, or is reserved for its ID, be it by an earlier life of
// that, and n is not known to be of another who reserved it.
func (w *World) saidOf(c *container, n *netns, addr string) bool {
	return c.hasAddr(addr) || w.reserves(c.id, addr) && (n.c.id == c.id || !w.excludes(n, addr))
}

// undoKeeps: an undo holds some reservation of the ID, and with it its cached results.
func (w *World) undoKeeps(id string) bool {
	return slices.ContainsFunc(sortedKeys(w.ledger.files), func(p string) bool {
		f := w.ledger.files[p]
		return f.owner() == id && (f.held || w.undoHolds(f))
	})
}

// looksNewest: the ID's sandbox is listed, NotReady, and its runtime says that it was made later
// than the living one of its Pod, which the API server has.
func (w *World) looksNewest(id string) bool {
	if w.cfg.Kube == 0 {
		return false
	}
	return slices.ContainsFunc(w.traces, func(c *container) bool {
		return c.id == id && c.listed && !c.living() && slices.ContainsFunc(w.traces, func(o *container) bool {
			return o.living() && o.uid == c.uid && o.created < c.created
		})
	})
}

// cachedAt returns the names of the cached results that have the address.
func (w *World) cachedAt(addr string) []string {
	dir := cacheDir + "/results"
	return slices.DeleteFunc(w.names(dir), func(name string) bool {
		b, err := w.disk.ReadFile(dir + "/" + name)
		return err != nil || !strings.Contains(string(b), `"`+addr+`/`)
	})
}

// cached: some cached result of the ID has the address.
func (w *World) cached(id, addr string) bool {
	return slices.ContainsFunc(w.cachedAt(addr), func(name string) bool { return strings.Contains(name, id) })
}

// cachedBy returns an ID that counts, other than f's, and has f's address by some cached
// result, such as one of the container that had that ID before.
func (w *World) cachedBy(f *file, counts func(c *container) bool) string {
	for _, name := range w.cachedAt(f.addr) {
		for _, c := range w.traces {
			if counts(c) && strings.Contains(name, c.id) && (f.c == nil || c.id != f.c.id) {
				return c.id
			}
		}
	}
	return ""
}
