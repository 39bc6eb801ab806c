package nodecheck

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

func (c *checker) stateDir() {
	if _, err := os.Stat(c.StateDir); errors.Is(err, fs.ErrNotExist) {
		return
	}
	for _, d := range c.DataDirs {
		in, err := within(c.StateDir, d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.add(Unreadable, c.StateDir, "%v", err)
		}
		if in {
			c.add(Inside, c.StateDir, "lies in %s, where host-local would read it", d)
		}
	}
	for _, e := range c.list(c.StateDir) {
		path := filepath.Join(c.StateDir, e.Name())
		if isTemporary(e.Name()) {
			c.add(Leftover, path, "of an interrupted write")
		}
		if strings.HasSuffix(e.Name(), ".lock") {
			c.unlocked(path)
		}
	}
	c.quarantine(c.journal())
	c.stateFiles()
}

// journal returns the entries by release.
func (c *checker) journal() map[string]journal.Entry {
	path := filepath.Join(c.StateDir, journal.FileName)
	j, err := journal.Open(c.StateDir, journal.Options{ReadOnly: true})
	if err != nil {
		c.add(Unreadable, path, "%v", err)
		return nil
	}
	defer j.Close()
	recs, damage, err := j.Load()
	if err != nil {
		c.add(Unreadable, path, "%v", err)
	}
	for _, d := range damage {
		c.add(JournalBad, path, "%s", d)
	}
	out := map[string]journal.Entry{}
	for _, e := range journal.Replay(recs) {
		out[e.ID] = e
		for _, p := range e.Problems {
			c.add(JournalBad, path, "release %s: %s", e.ID, p)
		}
		if e.State.Unsettled() {
			c.add(Unsettled, e.ID, "is %s", e.State)
		}
	}
	return out
}

// isReservation reports whether the release of an entry goes through the quarantine.
func isReservation(e journal.Entry) bool {
	return e.Release != nil && e.Release.Kind == claim.KindReservation
}

func (c *checker) quarantine(entries map[string]journal.Entry) {
	dir := filepath.Join(c.StateDir, "quarantine")
	there := map[string]bool{}
	for _, f := range c.list(dir) {
		name, path := f.Name(), filepath.Join(dir, f.Name())
		if isTemporary(name) {
			c.add(Leftover, path, "of an interrupted copy")
			continue
		}
		if !c.regular(path, f) {
			continue
		}
		there[name] = true
		e, ok := entries[name]
		switch {
		case !ok:
			c.add(Unknown, path, "no release of that ID")
		case e.State.Unsettled():
			// Either is right until it is settled.
		case e.State != journal.StateReleased:
			c.add(Unknown, path, "the journal calls it %s", e.State)
		}
	}
	for id, e := range entries {
		if !isReservation(e) {
			continue
		}
		path := filepath.Join(dir, id)
		switch e.State {
		case journal.StateReleased:
			if !there[id] {
				c.add(NotThere, path, "was %s", e.Release.Path)
				continue
			}
			if b, ok := c.read(path); ok && sum(b) != e.Release.Inc.Sum {
				c.add(NotTheSame, path, "holds %q, which was not judged", b)
			}
			if sameFile(path, e.Release.Path) {
				c.add(HalfMoved, e.Release.Path, "is %s as well", path)
			}
		case journal.StateUndone:
			if _, err := os.Lstat(e.Release.Path); err != nil && !c.goneAgain(entries, e) {
				c.add(NotRestored, e.Release.Path, "%v", err)
			}
		}
	}
}

// goneAgain reports whether the path of an undone release was released later.
func (c *checker) goneAgain(entries map[string]journal.Entry, undone journal.Entry) bool {
	for _, e := range entries {
		if e.ID == undone.ID || !isReservation(e) || e.Release.Path != undone.Release.Path {
			continue
		}
		// IDs of one second are in no order.
		if _, later := e.Intent.Since(undone.Intent); later || e.Intent.Boot != undone.Intent.Boot && e.ID > undone.ID {
			return true
		}
	}
	return false
}

// sum is how the journal writes a content's checksum: the first half of its SHA-256.
func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}

func sameFile(a, b string) bool {
	x, err := os.Lstat(a)
	if err != nil {
		return false
	}
	y, err := os.Lstat(b)
	return err == nil && os.SameFile(x, y)
}

func (c *checker) stateFiles() {
	bad := func(name string, err error) {
		if err != nil {
			c.add(StateBad, filepath.Join(c.StateDir, name), "%v", err)
		}
	}
	d, err := state.Open(c.StateDir, state.Options{ReadOnly: true})
	if err != nil {
		bad("", err)
		return
	}
	defer d.Close()
	_, err = d.Holds()
	bad("holds", err)
	_, err = d.KnownRuntimes()
	bad("runtimes", err)
	var past []string
	if c.now.Boot != "" {
		facts, err := d.ObserveBoot(c.now.Boot)
		bad("boots", err)
		past = facts.Past
	}
	seen, err := d.LoadSightings()
	bad("sightings", err)
	for _, s := range seen {
		for _, at := range []claim.Instant{s.First, s.Absent} {
			switch {
			case at.Boot == "" || c.now.Boot == "":
			case at.Boot != c.now.Boot && !slices.Contains(past, at.Boot):
				c.add(WrongBoot, s.Path, "%s, which this node never had", at.Boot)
			case at.Boot == c.now.Boot && at.Mono > c.now.Mono:
				// Of an earlier boot that calls itself this one, most likely.
				c.add(Future, s.Path, "seen at %v, now is %v", at.Mono, c.now.Mono)
			}
		}
		if s.Absent.Boot == s.First.Boot && s.Absent.Boot != "" && s.Absent.Mono < s.First.Mono {
			c.add(WrongBoot, s.Path, "absent at %v, before it was first seen at %v", s.Absent.Mono, s.First.Mono)
		}
		// Coarse clocks of file systems may run behind, never ahead.
		if s.Inc.Ctime > c.now.Wall.UnixNano() {
			c.add(Future, s.Path, "the file changed at %d ns, now is %d", s.Inc.Ctime, c.now.Wall.UnixNano())
		}
		c.sightedPath(s.Path)
	}
}

// sightedPath: below a data directory only a network's reservation is ever sighted.
// Elsewhere there are cache files and mounts of any name.
func (c *checker) sightedPath(path string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		c.add(WrongPath, path, "not an absolute, clean path")
		return
	}
	for _, d := range c.DataDirs {
		rest, ok := strings.CutPrefix(path, d+"/")
		if !ok {
			continue
		}
		_, name, _ := strings.Cut(rest, "/")
		if _, err := netip.ParseAddr(name); err != nil {
			c.add(WrongPath, path, "no reservation can be called that")
		}
	}
}
