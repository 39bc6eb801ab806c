package sim

import (
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
)

// Adoption (I14) as the oracle sees it: a reservation that the Subject made is held against
// the truth of its moment, and when all has healed nobody who can be seen lives without one.

// adopted reports whether a file that came from nowhere is an adoption, by the journal, and
// checks it.
func (w *World) adopted(r *run, path string, content []byte) bool {
	if !w.presses(r) {
		return false
	}
	list, err := w.entries()
	if err != nil {
		return false
	}
	i := slices.IndexFunc(list, func(e journal.Entry) bool {
		return e.Adopts && e.Release != nil && e.Release.Path == path && !w.adoptions[e.ID] && e.Intent.Boot == w.boot() &&
			(e.State == journal.StateAdoptOpen || e.State == journal.StateAdopted)
	})
	if i < 0 {
		return false
	}
	if w.adoptions == nil {
		w.adoptions = map[string]bool{}
	}
	w.adoptions[list[i].ID] = true
	w.stats.Adopted++
	c, addr := w.ownerOf(content), filepath.Base(path)
	o := claim.ParseOwner(content)
	switch {
	case c == nil || o.Shape != claim.ShapeContainer || !c.hasAddr(addr) || !slices.Contains([]string{ifName(0), ifName(1)}, o.IfName):
		w.violate("I14", "%s was made for nobody who has that address: %q", path, content)
		return true
	case !c.up && !r.lived[c]:
		w.violate("I14", "%s was made for container %d, which was dead before the sweep began", path, c.n)
	case w.ledger.holds[addr]:
		w.violate("I14", "%s was made, though a person holds the address", path)
	}
	if _, held := w.locks[filepath.Dir(path)]; held {
		w.violate("I14", "%s was made while another held the lock of its store", path)
	}
	for _, other := range w.traces {
		// Whose address is on no link only its runtime's word shows; what changed meanwhile may
		// not have been seen.
		if other != c && other.up && other.hasAddr(addr) && w.shown(other) && !r.dirty && !r.faulty {
			w.violate("I14", "%s was made for container %d, and container %d has the address too", path, c.n, other.n)
		}
	}
	w.ledger.add(w, path, c, content)
	return true
}

// checkAdopted is the second half of I14: with every witness speaking, whoever is plain to
// see, and is known from the cache, has a reservation.
func (w *World) checkAdopted() {
	if !w.cfg.Agent || !w.subject.Duties().Reclaims {
		return
	}
	for _, c := range w.traces {
		if c.kind != plain || !c.up || !c.ready || c.ns == nil || w.rts[c.rt].endpoint == "" {
			continue
		}
		for net, n := range w.nets {
			if c.nets&(1<<net) == 0 {
				continue
			}
			if b, err := w.disk.ReadFile(cachePath(n.name, c.id, ifName(net))); err != nil || !json.Valid(b) {
				continue // of a network that is called otherwise by now, not kept, or torn
			}
			for _, a := range c.ns.addrs {
				if a.If == ifName(net) && w.lacks(c, n, a.Addr.String()) {
					w.violate("I14", "container %d lives with %s, every witness shows it, and nothing reserves that in %s", c.n, a.Addr, n.name)
				}
			}
		}
	}
}

// lacks: the address is c's alone by all that shows, nobody holds it, and it has no
// reservation in the network's directory, nor one of c's anywhere.
func (w *World) lacks(c *container, n *network, addr string) bool {
	if w.contested(addr) || w.shared[addr] || w.ledger.holds[addr] || w.ledger.files[n.dir()+"/"+addr] != nil {
		return false
	}
	for _, f := range w.ledger.files {
		if f.addr == addr && f.owner() == c.id {
			return false
		}
	}
	for _, o := range w.traces {
		// Another that is said to have it, or may be in its namespace.
		if o != c && (o.hasAddr(addr) || o.id == c.id) {
			return false
		}
	}
	for k, boot := range w.ledger.undone {
		if boot == w.bootN && len(k) >= len(n.dir()+"/"+addr) && k[:len(n.dir()+"/"+addr)] == n.dir()+"/"+addr {
			return false
		}
	}
	return true
}
