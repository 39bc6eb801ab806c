package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const sweepID = "20261130-062137-1a2b3c"

func at(boot string, sec int) claim.Instant {
	return claim.Instant{Boot: boot, Mono: time.Duration(sec) * time.Second,
		Wall: time.Date(2026, 11, 30, 6, 21, 0, 0, time.UTC).Add(time.Duration(sec) * time.Second)}
}

func intent(n int) Record {
	return Record{Type: Intent, At: at("b1", n), Sweep: sweepID, ReleaseID: BatchID(sweepID, n), Release: &Release{
		Kind: claim.KindReservation, Store: "/var/lib/cni/networks/net", Path: fmt.Sprintf("/var/lib/cni/networks/net/10.0.0.%d", n),
		Network: "net", Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}),
		Owner: claim.Owner{Shape: claim.ShapeContainer, ID: strings.Repeat("ab", 32), IfName: "eth0"},
		Inc:   claim.Incarnation{Dev: 1, Ino: 2, Ctime: 3, Size: 70, Sum: "00ff"},
		Pod:   claim.Pod{Namespace: "default", Name: "web-0"}, Verdict: "Leaked", Rule: "two-sightings", Why: "nobody knows it",
		Says:  []Say{{Witness: "cri", Word: "absent", Detail: "250 sandboxes"}},
		Cache: &CacheFile{Path: "/var/lib/cni/results/net-ab-eth0", Content: []byte("{broken\x00\xff")},
	}}
}

func outcome(n int, word string) Record {
	return Record{Type: Outcome, At: at("b1", n+1), Sweep: sweepID, ReleaseID: BatchID(sweepID, n), Outcome: word,
		Steps: []StepResult{{Step: "quarantine", Object: "10.0.0.1", State: StepDone}, {Step: "del", State: StepSkipped, Irreversible: true}}}
}

func undo(t Type, n int, word string) Record {
	return Record{Type: t, At: at("b1", n+2), ReleaseID: BatchID(sweepID, n), Outcome: word}
}

func mustOpen(t testing.TB, dir string) *Journal {
	t.Helper()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func mustAppend(t testing.TB, j *Journal, recs ...Record) {
	t.Helper()
	if err := j.Append(recs...); err != nil {
		t.Fatal(err)
	}
}

func mustLoad(t testing.TB, j *Journal) ([]Record, []Damage) {
	t.Helper()
	recs, damages, err := j.Load()
	if err != nil {
		t.Fatal(err)
	}
	return recs, damages
}

var cmpRecords = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func sameRecords(t testing.TB, want, got []Record) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpRecords); d != "" {
		t.Fatalf("records (-want +got):\n%s", d)
	}
}

func TestAppendThenLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "state")
	j := mustOpen(t, dir)
	want := []Record{intent(1), intent(2), outcome(1, OutcomeReleased), undo(UndoIntent, 1, ""), undo(UndoOutcome, 1, UndoTaken)}
	mustAppend(t, j, want[:2]...)
	mustAppend(t, j)
	mustAppend(t, j, want[2:]...)
	got, damages := mustLoad(t, j)
	sameRecords(t, want, got)
	if len(damages) > 0 || j.Repaired() != nil {
		t.Fatalf("damage in a sound journal: %v %v", damages, j.Repaired())
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(intent(3)); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("append to a closed journal: %v", err)
	}

	for _, ro := range []bool{true, false} {
		j, err := Open(dir, Options{ReadOnly: ro})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := mustLoad(t, j)
		sameRecords(t, want, got)
		if err := j.Append(intent(3)); ro != errors.Is(err, ErrReadOnly) {
			t.Fatalf("read-only %v: append: %v", ro, err)
		}
		j.Close()
	}
	for path, mode := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, FileName): 0o600} {
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", path, fi.Mode(), err)
		}
	}
}

func TestReadOnlyCreatesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	j, err := Open(dir, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if recs, damages := mustLoad(t, j); len(recs)+len(damages) > 0 {
		t.Fatal(recs, damages)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("it made something: %v", err)
	}
}

// A crash can cut the last write anywhere, between or within its records. Wherever it
// did, the next open for appending keeps every whole record, says what it cut, and
// what is appended then is read back (I4).
func TestTornAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1), outcome(1, OutcomeReleased))
	acknowledged := int(j.Size())
	mustAppend(t, j, intent(2), outcome(2, OutcomeChanged))
	j.Close()
	all, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	want := []Record{intent(1), outcome(1, OutcomeReleased), intent(2), outcome(2, OutcomeChanged)}
	ends := []int{} // offsets at which each line is whole, newline aside
	for i, c := range all {
		if c == '\n' {
			ends = append(ends, i)
		}
	}
	d := memDir(t)
	for n := 0; n <= len(all); n++ {
		for _, zeros := range []int{0, 5000} { // XFS may leave a tail of NULs
			path := filepath.Join(d, FileName)
			os.Remove(path)
			if err := os.WriteFile(path, append(all[:n:n], make([]byte, zeros)...), 0o600); err != nil {
				t.Fatal(err)
			}
			whole := -1 // the header does not count
			for _, e := range ends {
				if n > e || zeros == 0 && n == e {
					whole++
				}
			}
			if zeros > 0 && n > 0 && n <= ends[0] {
				continue // half a header and NULs: TestHeader
			}
			ro, err := Open(d, Options{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			if recs, _ := mustLoad(t, ro); len(recs) != max(whole, 0) {
				t.Fatalf("cut at %d: a reader saw %d records, want %d", n, len(recs), whole)
			}
			ro.Close()
			j := mustOpen(t, d)
			if torn := n != len(all) && all[n] != '\n' && n > 0 && all[n-1] != '\n' || zeros > 0; torn != (j.Repaired() != nil) {
				t.Fatalf("cut at %d+%d: torn %v, but repaired %v", n, zeros, torn, j.Repaired())
			}
			if n >= acknowledged && whole < 2 {
				t.Fatalf("cut at %d: an acknowledged record is lost", n)
			}
			mustAppend(t, j, intent(9))
			recs, damages := mustLoad(t, j)
			sameRecords(t, append(append([]Record{}, want[:max(whole, 0)]...), intent(9)), recs)
			if len(damages) > 0 {
				t.Fatalf("cut at %d: %v", n, damages)
			}
			j.Close()
			j = mustOpen(t, d)
			if j.Repaired() != nil {
				t.Fatalf("cut at %d: the second open still repairs %v", n, j.Repaired())
			}
			j.Close()
		}
	}
}

// Whatever bit flips, the records that it did not touch are read, the damage is told,
// and no record reads differently from what was written.
func TestBitFlips(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	want := []Record{intent(1), outcome(1, OutcomeReleased), intent(2)}
	mustAppend(t, j, want...)
	j.Close()
	path := filepath.Join(dir, FileName)
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	starts := []int{0}
	for i, c := range all {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	for i := range all {
		bad := bytes.Clone(all)
		bad[i] ^= 1 << (i % 8)
		var recs []Record
		s, err := scan(bytes.NewReader(bad), parseRecord, func(r Record, _ []byte) error { recs = append(recs, r); return nil })
		if err != nil {
			t.Fatal(err)
		}
		var hit []int // lines the flip touches: its own, and the next if a newline is gone
		for l := range 4 {
			if starts[l] <= i && i < starts[l+1] || i+1 == starts[l] {
				hit = append(hit, l)
			}
		}
		kept := []Record{}
		for l := 1; l < 4; l++ {
			touched := false
			for _, h := range hit {
				touched = touched || h == l
			}
			if !touched {
				kept = append(kept, want[l-1])
			}
		}
		sameRecords(t, kept, recs)
		if len(s.damages) != 1 {
			t.Fatalf("flip at %d: damages %v", i, s.damages)
		}
		if d := s.damages[0]; int64(i) < d.Offset || int64(i) >= d.Offset+d.Length {
			t.Fatalf("flip at %d is not in %v", i, d)
		}
	}
}

func TestDamageInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	mustAppend(t, j, intent(1))
	j.Close()
	path := filepath.Join(dir, FileName)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fi, _ := f.Stat()
	junk := strings.Repeat("x", 3*MaxLine) + "\nshort\n"
	if _, err := f.WriteString(junk); err != nil {
		t.Fatal(err)
	}
	f.Close()
	j = mustOpen(t, dir)
	mustAppend(t, j, intent(2))
	recs, damages := mustLoad(t, j)
	sameRecords(t, []Record{intent(1), intent(2)}, recs)
	want := []Damage{{Offset: fi.Size(), Length: int64(len(junk)), Reason: "a line longer than any record"}}
	if d := cmp.Diff(want, damages); d != "" {
		t.Fatal(d)
	}
}

func TestHeader(t *testing.T) {
	line := func(v any) string {
		b, err := appendLine(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	rec := line(intent(1))
	for _, tc := range []struct {
		name, content string
		append        error
		records       int
	}{
		{"ours", line(header{V: 1, Format: formatName}) + rec, nil, 1},
		{"newer", line(map[string]any{"v": 2, "format": formatName, "more": true}) + rec, ErrNewer, 1},
		{"newer, torn", line(header{V: 7, Format: formatName}) + rec + rec[:20], ErrNewer, 1},
		{"of something else", line(header{V: 1, Format: "holdfast holds"}) + rec, ErrHeader, 1},
		{"missing", rec, ErrHeader, 1},
		{"damaged", "0" + line(header{V: 1, Format: formatName}) + rec, ErrHeader, 1},
		{"garbage", "hello", ErrHeader, 0},
		{"one endless line", strings.Repeat("\x00", MaxLine+1), ErrHeader, 0},
		{"half a header and more", string(headerLine()[:10]) + "\x00\x00", ErrHeader, 0},
		{"empty", "", nil, 0},
		{"NULs", strings.Repeat("\x00", 4096), nil, 0},
		{"half a header", string(headerLine()[:20]), nil, 0},
		{"a header without its newline", strings.TrimSpace(string(headerLine())), nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, FileName)
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			j := mustOpen(t, dir)
			if err := j.Append(intent(5)); !errors.Is(err, tc.append) {
				t.Fatalf("append: %v, want %v", err, tc.append)
			}
			_, err := j.Compact(Policy{MaxAge: 1, MinGain: 1}, at("b2", 1<<30))
			if !errors.Is(err, tc.append) {
				t.Fatalf("compact: %v, want %v", err, tc.append)
			}
			recs, damages := mustLoad(t, j)
			want := tc.records
			if tc.append == nil {
				want++
			}
			if len(recs) != want {
				t.Fatalf("%d records, want %d", len(recs), want)
			}
			if errors.Is(tc.append, ErrHeader) && len(damages) == 0 {
				t.Fatal("a bad header is not told")
			}
			if now, _ := os.ReadFile(path); tc.append != nil && string(now) != tc.content {
				t.Fatal("a file that is read-only for us was written to")
			}
		})
	}
}

func TestAppendRefuses(t *testing.T) {
	bad := func(f func(*Record)) Record { r := intent(1); f(&r); return r }
	for name, r := range map[string]Record{
		"no ID":                            bad(func(r *Record) { r.ReleaseID = "" }),
		"a path for an ID":                 bad(func(r *Record) { r.ReleaseID = "../../etc/passwd" }),
		"no release":                       bad(func(r *Record) { r.Release = nil }),
		"unknown type":                     bad(func(r *Record) { r.Type = "maybe"; r.Release = nil }),
		"intent + outcome":                 bad(func(r *Record) { r.Outcome = OutcomeReleased }),
		"release in outcome":               bad(func(r *Record) { r.Type = Outcome; r.Outcome = OutcomeReleased }),
		"unknown outcome":                  outcome(1, "vanished"),
		"an undo's word":                   outcome(1, UndoRestored),
		"a release's word":                 undo(UndoOutcome, 1, OutcomeReleased),
		"an adoption without":              bad(func(r *Record) { r.Type = AdoptIntent; r.Release = nil }),
		"a release's word for an adoption": adopted(1, OutcomeReleased),
		"made by an outcome":               bad(func(r *Record) { *r = outcome(1, OutcomeReleased); r.Inc.Size = 1 }),
		"path of an adoption":              bad(func(r *Record) { r.Type = AdoptIntent; r.Release.Path = "/a/\xff" }),
		"path not UTF-8":                   bad(func(r *Record) { r.Release.Path = "/a/\xff" }),
		"cache not UTF-8":                  bad(func(r *Record) { r.Release.Cache.Path = "/a/\xff" }),
		"too large":                        bad(func(r *Record) { r.Release.Cache.Content = make([]byte, MaxLine) }),
		"year 10000":                       bad(func(r *Record) { r.At.Wall = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }),
	} {
		t.Run(name, func(t *testing.T) {
			j := mustOpen(t, t.TempDir())
			// The good record of the same batch is not written either.
			if err := j.Append(intent(2), r); !errors.Is(err, ErrInvalid) {
				t.Fatalf("append: %v", err)
			}
			if recs, damages := mustLoad(t, j); len(recs)+len(damages) > 0 {
				t.Fatal(recs, damages)
			}
			mustAppend(t, j, intent(3))
		})
	}
}

func TestAppendNoticesAnotherHand(t *testing.T) {
	for name, meddle := range map[string]func(t *testing.T, path string) error{
		"appended": func(t *testing.T, path string) error {
			other := mustOpen(t, filepath.Dir(path))
			return other.Append(intent(8))
		},
		"replaced": func(t *testing.T, path string) error {
			if err := os.WriteFile(path+".x", headerLine(), 0o600); err != nil {
				return err
			}
			return os.Rename(path+".x", path)
		},
		"removed":   func(t *testing.T, path string) error { return os.Remove(path) },
		"truncated": func(t *testing.T, path string) error { return os.Truncate(path, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := mustOpen(t, dir)
			mustAppend(t, j, intent(1))
			if err := j.Writable(); err != nil {
				t.Fatal(err)
			}
			if err := meddle(t, filepath.Join(dir, FileName)); err != nil {
				t.Fatal(err)
			}
			if err := j.Append(intent(2)); !errors.Is(err, ErrChanged) {
				t.Fatalf("append: %v", err)
			}
			if err := j.Writable(); !errors.Is(err, ErrChanged) {
				t.Fatalf("writable: %v", err)
			}
		})
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"symlink":   func(p string) error { return os.Symlink("/dev/null", p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"huge": func(p string) error {
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(p, MaxSize+1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := plant(filepath.Join(dir, FileName)); err != nil {
				t.Fatal(err)
			}
			for _, ro := range []bool{true, false} {
				if j, err := Open(dir, Options{ReadOnly: ro}); err == nil {
					j.Close()
					t.Errorf("read-only %v: opened", ro)
				} else if e := (*Error)(nil); !errors.As(err, &e) || e.Object != filepath.Join(dir, FileName) {
					t.Errorf("no file named: %v", err)
				}
			}
		})
	}
}

func TestIDs(t *testing.T) {
	when := time.Date(2026, 11, 30, 7, 21, 37, 5, time.FixedZone("", 3600))
	id, err := NewID(when, bytes.NewReader([]byte{0x1a, 0x2b, 0x3c}))
	if err != nil || id != sweepID {
		t.Fatalf("%q %v", id, err)
	}
	if _, err := NewID(when, bytes.NewReader(nil)); err == nil {
		t.Fatal("no randomness, no error")
	}
	for _, y := range []int{-1, 10000} {
		if id, err := NewID(time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC), rand.NewChaCha8([32]byte{})); err == nil {
			t.Errorf("year %d gave %q", y, id)
		}
	}
	for _, good := range []string{id, BatchID(id, 0), BatchID(id, 99_999), BatchID(id, MaxBatch)} {
		if !ValidID(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{"", ".", "..", "../x", id + "/", id + "\n", id + "-1", " " + id, strings.ToUpper(id), BatchID(id, -1),
		BatchID(id, MaxBatch+1), "20261130-062137-1a2b3c/00001", id + "\x00"} {
		if ValidID(bad) {
			t.Errorf("%q is accepted", bad)
		}
	}
	if a, b := BatchID(id, 9), BatchID(id, 10); a >= b {
		t.Errorf("%q does not sort before %q", a, b)
	}
}

func FuzzJournal(f *testing.F) {
	var good []byte
	good = append(good, headerLine()...)
	for _, r := range []Record{intent(1), outcome(1, OutcomeReleased), undo(UndoIntent, 1, "")} {
		good, _ = appendLine(good, r)
	}
	f.Add(good)
	f.Add(good[:len(good)-7])
	f.Add(append(bytes.Clone(good), "00000000 {}\n"...))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0}, 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Every byte is a header, a record or damage; nothing is lost silently.
		var covered int64
		var before []Record
		s, err := scan(bytes.NewReader(data), parseRecord, func(r Record, line []byte) error {
			covered += int64(len(line))
			before = append(before, r)
			return r.Check()
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range s.damages {
			covered += d.Length
		}
		if s.version > 0 {
			first, _, _ := bytes.Cut(data, []byte{'\n'})
			covered += int64(min(len(first)+1, len(data)))
		}
		if covered != int64(len(data)) {
			t.Fatalf("%d of %d bytes accounted for", covered, len(data))
		}
		for _, e := range Replay(before) {
			if e.State == "" || !ValidID(e.ID) {
				t.Fatalf("%+v", e)
			}
		}
	})
}

// Opening for append converges and loses no record, whatever the file holds.
func FuzzOpen(f *testing.F) {
	var good []byte
	good = append(good, headerLine()...)
	good, _ = appendLine(good, outcome(1, OutcomeReleased))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(good[:len(good)-7])
	f.Add(good[:len(headerLine())-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := memDir(t)
		if err := os.WriteFile(filepath.Join(dir, FileName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		var before []Record
		if _, err := scan(bytes.NewReader(data), parseRecord, func(r Record, _ []byte) error { before = append(before, r); return nil }); err != nil {
			t.Fatal(err)
		}
		j := mustOpen(t, dir)
		after, _ := mustLoad(t, j)
		sameRecords(t, before, after)
		if err := j.Append(intent(7)); err == nil {
			after, _ = mustLoad(t, j)
			sameRecords(t, append(before, intent(7)), after)
		} else if !errors.Is(err, ErrNewer) && !errors.Is(err, ErrHeader) {
			t.Fatal(err)
		}
	})
}

// memDir is a temporary directory in memory where there is one: thousands of fsyncs
// on a disk prove nothing more.
func memDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-journal-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
