package journal

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// randomHistory makes releases in every state, over two boots and a year.
func randomHistory(r *rand.Rand) []Record {
	var recs []Record
	words := []string{"", OutcomeReleased, OutcomeReleased, OutcomeReleased, OutcomeChanged, OutcomeGone, OutcomeFailed, OutcomeRolledBack}
	undos := []string{"", UndoRestored, UndoTaken, UndoFailed, UndoDiscarded}
	for n := range 1 + r.IntN(40) {
		when := at([]string{"b1", "b2"}[r.IntN(2)], 0)
		when.Wall = when.Wall.Add(-time.Duration(r.IntN(365*24)) * time.Hour)
		add := func(rec Record) { rec.At = when; recs = append(recs, rec) }
		if r.IntN(8) == 0 {
			add(adopt(n))
			if word := []string{"", AdoptAdopted, AdoptTaken, AdoptFailed}[r.IntN(4)]; word != "" {
				add(adopted(n, word))
			}
			continue
		}
		add(intent(n))
		word := words[r.IntN(len(words))]
		if word == "" {
			continue
		}
		add(outcome(n, word))
		if word == OutcomeReleased && r.IntN(3) == 0 {
			add(undo(UndoIntent, n, ""))
			if u := undos[r.IntN(len(undos))]; u != "" {
				add(undo(UndoOutcome, n, u))
			}
		}
	}
	return recs
}

// Property: after a compaction every unsettled release and every one that can still
// be undone is there as it was, as is every young one while there is room; the others
// are gone and named.
func TestCompactKeepsWhatItMust(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		recs := randomHistory(r)
		dir := memDir(t)
		j := mustOpen(t, dir)
		mustAppend(t, j, recs...)
		now := at([]string{"b1", "b2", "b3", ""}[r.IntN(4)], 60)
		p := Policy{MinGain: 1}
		if r.IntN(2) == 0 {
			p.MaxBytes = 1 + int64(r.IntN(int(j.Size())))
		}
		before := Replay(recs)
		dropped, err := j.Compact(p, now)
		if err != nil {
			t.Fatal(err)
		}
		got, damages := mustLoad(t, j)
		if len(damages) > 0 {
			t.Fatal(damages)
		}
		var want []Record
		for _, rec := range recs {
			if !slices.Contains(dropped, rec.ReleaseID) {
				want = append(want, rec)
			}
		}
		sameRecords(t, want, got)
		for _, e := range before {
			gone := slices.Contains(dropped, e.ID)
			must := e.State.Unsettled() || e.Undoable(now.Boot) || now.Boot == "" && (e.State == StateReleased || e.State == StateAdopted)
			old := now.Wall.Sub(e.Last.Wall) > 90*24*time.Hour
			switch {
			case must && gone:
				t.Fatalf("%s in state %s, boot %q, is gone (now %q)", e.ID, e.State, e.Intent.Boot, now.Boot)
			case !must && old && !gone:
				t.Fatalf("%s in state %s is old and still here", e.ID, e.State)
			case !must && !old && gone && p.MaxBytes == 0:
				t.Fatalf("%s in state %s is young and gone", e.ID, e.State)
			}
			if p.MaxBytes > 0 && j.Size() > p.MaxBytes && !must && !gone {
				t.Fatalf("%s is kept though the file has %d bytes, more than %d", e.ID, j.Size(), p.MaxBytes)
			}
		}
		// What is appended next goes to the new file, and the next open sees all.
		mustAppend(t, j, intent(250))
		j.Close()
		got, _ = mustLoad(t, mustOpen(t, dir))
		sameRecords(t, append(want, intent(250)), got)
	}
}

func TestCompactDoesNothingForLittle(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1), outcome(1, OutcomeGone))
	before, _ := os.Stat(filepath.Join(dir, FileName))
	later := at("b2", 365*86400)
	if dropped, err := j.Compact(Policy{}, later); err != nil || dropped != nil {
		t.Fatal(dropped, err)
	}
	if after, _ := os.Stat(filepath.Join(dir, FileName)); !os.SameFile(before, after) {
		t.Fatal("rewritten for nothing")
	}
	if dropped, err := j.Compact(Policy{MinGain: 1}, later); err != nil || len(dropped) != 1 {
		t.Fatal(dropped, err)
	}
}

// What is dropped is discarded when the new file is written and before it counts: with an
// error, or a crash, the old one still names it.
func TestCompactDiscards(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1), outcome(1, OutcomeReleased), intent(2))
	later := at("b2", 365*86400)
	no := errors.New("no")
	if dropped, err := j.Compact(Policy{MinGain: 1, Discard: func(string) error { return no }}, later); !errors.Is(err, no) || dropped != nil {
		t.Fatal(dropped, err)
	}
	recs, _ := mustLoad(t, j)
	sameRecords(t, []Record{intent(1), outcome(1, OutcomeReleased), intent(2)}, recs)
	var ids []string
	discard := func(id string) error {
		ids = append(ids, id)
		now, err := os.ReadFile(filepath.Join(dir, FileName))
		if err != nil || !strings.Contains(string(now), id) {
			t.Errorf("the journal names %s no more when it is discarded (%v)", id, err)
		}
		return nil
	}
	dropped, err := j.Compact(Policy{MinGain: 1, Discard: discard}, later)
	if want := []string{BatchID(sweepID, 1)}; err != nil || !slices.Equal(dropped, want) || !slices.Equal(ids, want) {
		t.Fatal(dropped, ids, err)
	}
	recs, _ = mustLoad(t, j)
	sameRecords(t, []Record{intent(2)}, recs)
}

// Case L10: a node that leaks for weeks within one boot must not fill its journal.
func TestCompactMaxKept(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	mustAppend(t, j, intent(0)) // unsettled: stays whatever happens
	for n := 1; n < 100; n++ {
		mustAppend(t, j, intent(n), outcome(n, OutcomeReleased))
	}
	size := j.Size()
	if dropped, err := j.Compact(Policy{MaxBytes: 1, MaxKept: size}, at("b1", 200)); err != nil || dropped != nil {
		t.Fatal(dropped, err)
	}
	dropped, err := j.Compact(Policy{MaxBytes: 1, MaxKept: size / 2}, at("b1", 200))
	if err != nil || len(dropped) < 49 || len(dropped) > 51 || dropped[0] != BatchID(sweepID, 1) {
		t.Fatal(dropped, err)
	}
	if es, _, err := j.Unsettled(); err != nil || len(es) != 1 || es[0].ID != BatchID(sweepID, 0) || es[0].Release == nil {
		t.Fatal(es, err)
	}
}

func TestCompactKeepsDamageAside(t *testing.T) {
	dir := t.TempDir()
	for i := range 6 {
		j := mustOpen(t, dir)
		mustAppend(t, j, intent(1), outcome(1, OutcomeGone))
		j.Close()
		path := filepath.Join(dir, FileName)
		all, _ := os.ReadFile(path)
		bad := append(all, "00000000 {\"damaged\":true}\n"...)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		j = mustOpen(t, dir)
		now := at("b2", 100*86400+i)
		if dropped, err := j.Compact(Policy{MinGain: 1}, now); err != nil || len(dropped) != 1 {
			t.Fatal(dropped, err)
		}
		if _, damages := mustLoad(t, j); len(damages) > 0 {
			t.Fatal(damages)
		}
		j.Close()
		aside, err := os.ReadFile(filepath.Join(dir, asideName+now.Wall.Format("20060102-150405")))
		if err != nil || !bytes.Equal(aside, bad) {
			t.Fatalf("the damaged file is not kept: %v", err)
		}
	}
	list, _ := filepath.Glob(filepath.Join(dir, asideName+"*"))
	if len(list) != 4 {
		t.Fatalf("%d damaged files kept, want 4: %q", len(list), list)
	}
}

// A crash in the middle of a compaction leaves the old journal and a temporary file.
func TestCompactAfterCrash(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1), outcome(1, OutcomeGone), intent(2))
	if err := os.WriteFile(filepath.Join(dir, tempName), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = mustOpen(t, dir)
	recs, damages := mustLoad(t, j)
	if len(recs) != 3 || len(damages) != 0 {
		t.Fatal(recs, damages)
	}
	if dropped, err := j.Compact(Policy{MinGain: 1}, at("b2", 100*86400)); err != nil || len(dropped) != 1 {
		t.Fatal(dropped, err)
	}
	if _, err := os.Stat(filepath.Join(dir, tempName)); err == nil {
		t.Fatal("the temporary file is still there")
	}
}

func TestUnsettled(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	if es, _, err := j.Unsettled(); err != nil || len(es) != 0 {
		t.Fatal(es, err)
	}
	mustAppend(t, j, intent(1), intent(2), intent(3), outcome(1, OutcomeReleased), outcome(2, OutcomeReleased), undo(UndoIntent, 2, ""))
	es, _, err := j.Unsettled()
	if err != nil || len(es) != 2 {
		t.Fatal(es, err)
	}
	if es[0].ID != BatchID(sweepID, 2) || es[0].State != StateUndoOpen || es[0].Release == nil ||
		es[1].ID != BatchID(sweepID, 3) || es[1].State != StateOpen {
		t.Fatalf("%+v", es)
	}
}

// smallFS mounts a tmpfs of a few pages and takes it away again.
func smallFS(t *testing.T, options string) string {
	t.Helper()
	testenv.Need(t, testenv.Mount)
	dir := t.TempDir()
	if err := unix.Mount("holdfast-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// A full file system: an append is refused whole, says why, and once there is room
// again the same journal goes on without a trace of it.
func TestFullFileSystem(t *testing.T) {
	dir := smallFS(t, "size=64k")
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1))
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the tmpfs is not full: %v", err)
	}
	var many []Record
	for n := range 100 {
		many = append(many, intent(n+2))
	}
	err := j.Append(many...)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left on device") {
		t.Fatalf("append: %v", err)
	}
	if _, err := j.Compact(Policy{MinGain: 1, MaxAge: 1}, claim.Instant{Boot: "b2", Wall: at("", 1<<20).Wall}); err != nil {
		t.Fatalf("nothing to drop, but %v", err)
	}
	recs, damages := mustLoad(t, j)
	sameRecords(t, []Record{intent(1)}, recs)
	if len(damages) > 0 {
		t.Fatal(damages)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, j, outcome(1, OutcomeReleased))
	recs, _ = mustLoad(t, j)
	sameRecords(t, []Record{intent(1), outcome(1, OutcomeReleased)}, recs)

	// A compaction that finds no room leaves the journal as it was, and no remains.
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	mustAppendUntilFull(t, j)
	before, _ := mustLoad(t, j)
	if _, err := j.Compact(Policy{MinGain: 1, MaxAge: 1}, claim.Instant{Boot: "b2", Wall: at("", 1<<20).Wall}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("compact: %v", err)
	}
	after, _ := mustLoad(t, j)
	sameRecords(t, before, after)
	if _, err := os.Stat(filepath.Join(dir, tempName)); err == nil {
		t.Fatal("the temporary file is still there")
	}
}

func mustAppendUntilFull(t *testing.T, j *Journal) {
	t.Helper()
	for n := 100; ; n++ {
		err := j.Append(intent(n))
		if errors.Is(err, syscall.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewOnFullFileSystem(t *testing.T) {
	dir := smallFS(t, "size=16k,nr_inodes=2")
	if err := os.WriteFile(filepath.Join(dir, "fill"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if j, err := Open(dir, Options{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(j, err)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := smallFS(t, "size=64k")
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1))
	j.Close()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, Options{})
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "read-only file system") {
		t.Fatalf("open: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "below"), Options{}); !errors.Is(err, syscall.EROFS) {
		t.Fatalf("open below: %v", err)
	}
	ro, err := Open(dir, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	recs, _ := mustLoad(t, ro)
	sameRecords(t, []Record{intent(1)}, recs)
}
