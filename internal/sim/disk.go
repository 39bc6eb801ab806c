package sim

import (
	"bytes"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/journal"
)

const quarantineDir = stateDir + "/quarantine"

// entries reads the journal as it stands on the disk.
func (w *World) entries() ([]journal.Entry, error) {
	p := w.disk.Process()
	defer p.Kill()
	j, err := journal.Open(stateDir, journal.Options{ReadOnly: true, FS: p})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	recs, _, err := j.Load()
	return journal.Replay(recs), err
}

// checkJournalled is I3: whatever left a store has its intent in the journal and lies in
// the quarantine, whole.
func (w *World) checkJournalled(r *run) {
	log, err := w.disk.ReadFile(stateDir + "/journal")
	if err != nil {
		w.violate("I3", "files were released and the journal cannot be read: %v", err)
		return
	}
	for _, f := range r.removed {
		id := intentOf(log, f.path)
		if id == "" {
			w.violate("I3", "%s was released without an intent in the journal", f.path)
			return
		}
		if !slices.Contains(w.ledger.moved, f) {
			continue // put back meanwhile
		}
		got, err := w.disk.ReadFile(quarantineDir + "/" + id)
		if err != nil || !bytes.Equal(got, f.content) {
			w.violate("I3", "%s was released as %s and the quarantine does not hold it: %v", f.path, id, err)
		}
	}
}

// intentOf returns the release ID of the last intent for a path. It reads the text as it
// stands: a journal is parsed in some tenths of a millisecond, which is too long here.
func intentOf(log []byte, path string) string {
	at := bytes.LastIndex(log, []byte(`"path":"`+path+`"`))
	if at < 0 {
		return ""
	}
	line := log[bytes.LastIndexByte(log[:at], '\n')+1 : at]
	_, rest, ok := bytes.Cut(line, []byte(`"releaseID":"`))
	if id, _, end := bytes.Cut(rest, []byte{'"'}); ok && end && bytes.Contains(line, []byte(`"type":"intent"`)) {
		return string(id)
	}
	return ""
}

// checkLost: what was released and is in no store lies in the quarantine, also after a
// power loss: its outcome is durable only when the move is. Its content need not be whole
// then, since upstream never fsynced it; nobody can want it back in another boot.
func (w *World) checkLost() {
	if !w.subject.Duties().Journals {
		return
	}
	have := 0
	for _, n := range w.names(quarantineDir) {
		if !strings.HasPrefix(n, ".") {
			have++
		}
	}
	want := 0
	for _, m := range w.ledger.moved {
		// An undo that was killed may have dropped the copy of what stands there again.
		if f := w.ledger.files[m.path]; f == nil || !bytes.Equal(f.content, m.content) {
			want++
		}
	}
	if have < want {
		w.violate("I3", "%d files were released and are in no store, and the quarantine has %d", want, have)
	}
}

// forgetTwins drops what stands in its store again, word for word and by whomever, and whose copy
// is gone: an undo that was killed is settled so.
func (w *World) forgetTwins() {
	w.ledger.moved = slices.DeleteFunc(w.ledger.moved, func(m *file) bool {
		f := w.ledger.files[m.path]
		return f != nil && bytes.Equal(f.content, m.content) && !slices.ContainsFunc(w.names(quarantineDir), func(n string) bool {
			b, err := w.disk.ReadFile(quarantineDir + "/" + n)
			return err == nil && bytes.Equal(b, m.content)
		})
	})
}

// forgetTorn drops what the power left in pieces in the quarantine: there is nothing to
// lose any more.
func (w *World) forgetTorn() {
	have := map[string]int{}
	for _, n := range w.names(quarantineDir) {
		if b, err := w.disk.ReadFile(quarantineDir + "/" + n); err == nil {
			have[string(b)]++
		}
	}
	w.ledger.moved = slices.DeleteFunc(w.ledger.moved, func(m *file) bool {
		have[string(m.content)]--
		return have[string(m.content)] < 0
	})
}

// checkSettled is I4: nothing is half way, and journal and quarantine agree.
func (w *World) checkSettled() {
	list, err := w.entries()
	if err != nil {
		w.violate("I4", "the journal cannot be read: %v", err)
		return
	}
	want := map[string]bool{}
	for i := range list {
		e := &list[i]
		switch {
		case e.State.Unsettled():
			w.violate("I4", "release %s of %v is still %s", e.ID, e.Release, e.State)
		case e.State == journal.StateReleased && e.Release != nil && e.Release.Addr.IsValid():
			want[e.ID] = true
		}
	}
	names := w.names(quarantineDir)
	for _, n := range names {
		if !want[n] {
			w.violate("I4", "the quarantine holds %s, which the journal does not call released", n)
		}
		delete(want, n)
	}
	for _, e := range list {
		if want[e.ID] {
			w.violate("I4", "the journal calls %s released (%s), and the quarantine does not hold it", e.ID, e.Release.Path)
		}
	}
}
