package killmatrix

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
)

// sound holds at every moment, also right after a crash: the living have everything, and
// of the dead nothing is lost.
func (n *node) sound(stateDir string) error {
	var errs []error
	for _, p := range n.live {
		stands := same(p.path, p.content)
		if n.robbed && errors.Is(stands, fs.ErrNotExist) {
			stands = nil
		}
		errs = append(errs, stands, same(p.cache, p.entry), n.answers(p))
	}
	entries, err := readJournal(stateDir)
	errs = append(errs, err)
	for _, p := range n.dead {
		stands := same(p.path, p.content)
		var kept error
		if stands != nil {
			kept = n.quarantined(stateDir, entries, p)
		}
		if kept != nil {
			errs = append(errs, stands, kept)
		}
		if p.entry == nil {
			continue
		}
		if err := same(p.cache, p.entry); err != nil && !cached(entries, p) {
			errs = append(errs, err, errors.New("and the journal does not hold its content"))
		}
	}
	return errors.Join(errs...)
}

// quarantined returns nil when a release that the journal knows holds the reservation.
func (n *node) quarantined(stateDir string, entries []journal.Entry, p *pod) error {
	for _, e := range entries {
		if e.Release != nil && e.Release.Path == p.path && same(filepath.Join(stateDir, "quarantine", e.ID), p.content) == nil {
			return nil
		}
	}
	return errors.New("and no release in the quarantine holds " + p.path)
}

func cached(entries []journal.Entry, p *pod) bool {
	for _, e := range entries {
		if e.Release != nil && e.Release.Cache != nil && e.Release.Cache.Path == p.cache && bytes.Equal(e.Release.Cache.Content, p.entry) {
			return true
		}
	}
	return false
}

// settled holds after a command that came to its end: nothing is half done, and journal,
// quarantine, store and holds agree.
func (n *node) settled(stateDir string) error {
	var errs []error
	entries, err := readJournal(stateDir)
	errs = append(errs, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	errs = append(errs, err)
	released := map[string]bool{} // and whether it can be undone
	for _, e := range entries {
		if e.State.Unsettled() {
			errs = append(errs, errors.New(e.ID+" is unsettled: "+string(e.State)))
		}
		for _, p := range e.Problems {
			errs = append(errs, errors.New(e.ID+": "+p))
		}
		if e.State == journal.StateReleased && e.Release != nil && e.Release.Addr.IsValid() {
			released[e.ID] = e.Undoable(strings.TrimSpace(string(boot)))
		}
	}
	files, err := os.ReadDir(filepath.Join(stateDir, "quarantine"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, f := range files {
		if _, ok := released[f.Name()]; !ok {
			errs = append(errs, errors.New("the quarantine holds "+f.Name()+", which the journal does not call released"))
		}
		delete(released, f.Name())
	}
	for id, undoable := range released {
		// Retention discards first, and then drops the records.
		if undoable {
			errs = append(errs, errors.New("the quarantine does not hold "+id+", which the journal calls released"))
		}
	}
	d, err := state.Open(stateDir, state.Options{ReadOnly: true})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer d.Close()
	_, err = d.LoadSightings()
	errs = append(errs, err)
	_, err = d.KnownRuntimes()
	errs = append(errs, err)
	_, err = d.Holds()
	errs = append(errs, err, n.tidy())
	for _, f := range n.cross(stateDir).Check() {
		if n.bare != "" && (f.Kind == nodecheck.CacheOnly || f.Kind == nodecheck.Unreserved) {
			continue // as somebody asked for
		}
		if f.Kind != nodecheck.NotThere { // told apart by boot above
			errs = append(errs, errors.New(f.String()))
		}
	}
	return errors.Join(errs...)
}

func (n *node) cross(stateDir string) nodecheck.Node {
	c := nodecheck.Node{
		DataDirs: []string{n.dataDir()}, CacheDir: n.cacheDir(), StateDir: stateDir, RunDir: filepath.Join(n.dir, "run"),
	}
	for _, p := range n.live {
		c.Pods = append(c.Pods, nodecheck.Pod{Name: p.name, ContainerID: p.id, Netns: p.ns.Path, Addrs: []netip.Addr{p.addr}})
	}
	return c
}

// tidy: no temporary file of ours is where others look.
func (n *node) tidy() error {
	var errs []error
	for _, dir := range []string{n.store(), filepath.Join(n.cacheDir(), "results")} {
		files, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, f := range files {
			if strings.Contains(f.Name(), "holdfast") || strings.HasPrefix(f.Name(), ".") {
				errs = append(errs, errors.New(filepath.Join(dir, f.Name())+" was left behind"))
			}
		}
	}
	return errors.Join(errs...)
}

// gone holds when everything of the dead went.
func (n *node) gone() error {
	var errs []error
	absent := func(path string) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, errors.New(path+" is there"))
		}
	}
	for _, p := range n.dead {
		absent(p.path)
		absent(p.cache)
	}
	// Between the unmount and the unlink a plain file stays, which holds nothing; every
	// later run tells of it.
	if n.isPinned() {
		errs = append(errs, errors.New(n.pinned+" is mounted"))
	}
	absent(filepath.Join("/sys/class/net", n.veth))
	return errors.Join(errs...)
}

// living holds when the living have their reservations.
func (n *node) living() error {
	var errs []error
	for _, p := range n.live {
		errs = append(errs, same(p.path, p.content))
	}
	return errors.Join(errs...)
}

// unadopted holds when one adoption was taken back, and is held.
func (n *node) unadopted(stateDir string) error {
	var errs []error
	if _, err := os.Lstat(n.bare); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, errors.New(n.bare+" is there"))
	}
	d, err := state.Open(stateDir, state.Options{ReadOnly: true})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer d.Close()
	holds, err := d.Holds()
	errs = append(errs, err)
	if len(holds) != 1 || filepath.Join(holds[0].Store, holds[0].Addr.String()) != n.bare {
		errs = append(errs, fmt.Errorf("the holds are %+v", holds))
	}
	return errors.Join(errs...)
}

// leaked holds when the dead have their reservations and cache entries.
func (n *node) leaked() error {
	var errs []error
	for _, p := range n.dead {
		errs = append(errs, same(p.path, p.content))
		if p.entry != nil {
			errs = append(errs, same(p.cache, p.entry))
		}
	}
	return errors.Join(errs...)
}

// held holds when a hold keeps each of the dead, and nothing else.
func (n *node) held(stateDir string) error {
	d, err := state.Open(stateDir, state.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer d.Close()
	holds, err := d.Holds()
	if err != nil {
		return err
	}
	var errs []error
	want := map[string]bool{}
	for _, p := range n.dead {
		want[p.addr.String()] = true
	}
	for _, h := range holds {
		if !want[h.Addr.String()] {
			errs = append(errs, errors.New("an unexpected hold of "+h.Addr.String()))
		}
		delete(want, h.Addr.String())
	}
	for a := range want {
		errs = append(errs, errors.New("no hold of "+a))
	}
	return errors.Join(errs...)
}

func same(path string, want []byte) error {
	got, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New(path + " has another content")
	}
	return err
}

func readJournal(stateDir string) ([]journal.Entry, error) {
	j, err := journal.Open(stateDir, journal.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	recs, _, err := j.Load()
	return journal.Replay(recs), err
}
