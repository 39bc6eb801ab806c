package journal

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzRecord: a record that may be written reads back as it was, and what a journal
// says of it is fit for use: IDs that are names, words of the format alone.
func FuzzRecord(f *testing.F) {
	for _, r := range []Record{intent(1), outcome(1, OutcomeReleased), undo(UndoIntent, 1, ""), undo(UndoOutcome, 1, UndoTaken), adopt(1), adopted(1, AdoptAdopted)} {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"type":"intent","releaseID":"../../etc/passwd","release":{"path":"/x"}}`))
	f.Add([]byte(`{"type":"outcome","releaseID":"20261130-062137-1a2b3c-00001","outcome":"\u001b[2J"}`))
	f.Add([]byte(`{"type":"intent","releaseID":"20261130-062137-1a2b3c-00001","release":{"path":"/a\udc80","addr":"fe80::1%\u001b","cache":{"path":"/c","content":"AA=="}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if json.Unmarshal(b, &r) != nil {
			return
		}
		line, err := appendLine(nil, r)
		if err != nil {
			if r.Check() == nil {
				t.Fatalf("a record that may be written cannot be: %v", err)
			}
			return
		}
		back, err := parseRecord(bytes.TrimSuffix(line, []byte{'\n'}))
		if (err == nil) != (r.Check() == nil) {
			t.Fatalf("written with %v, read with %v", r.Check(), err)
		}
		if err != nil {
			return
		}
		if !ValidID(back.ReleaseID) || bytes.IndexByte(line, '\n') != len(line)-1 {
			t.Fatalf("%q", line)
		}
		again, err := appendLine(nil, back)
		if err != nil || !bytes.Equal(line, again) {
			t.Fatalf("%q came back as %q, %v", line, again, err)
		}
	})
}

// FuzzDamage: of a journal with one changed byte, every line that is still whole counts,
// no other does, and what is lost is said.
func FuzzDamage(f *testing.F) {
	f.Add(uint(70), byte(1))
	f.Add(uint(0), byte(0xff))
	f.Add(uint(1<<20), byte(' '))
	good := headerLine()
	var records []Record
	of := map[string]Record{} // by its line
	for i := range 4 {
		records = append(records, intent(i), outcome(i, OutcomeReleased))
	}
	for _, r := range records {
		line, err := appendLine(nil, r)
		if err != nil {
			f.Fatal(err)
		}
		of[strings.TrimSuffix(string(line), "\n")] = r
		good = append(good, line...)
	}
	f.Fuzz(func(t *testing.T, at uint, flip byte) {
		if flip == 0 {
			return
		}
		bad := bytes.Clone(good)
		bad[at%uint(len(good))] ^= flip
		var want, got []Record
		for line := range strings.Lines(string(bad)) {
			if r, ok := of[strings.TrimSuffix(line, "\n")]; ok {
				want = append(want, r)
			}
		}
		s, err := scan(bytes.NewReader(bad), parseRecord, func(r Record, _ []byte) error { got = append(got, r); return nil })
		if err != nil {
			t.Fatal(err)
		}
		sameRecords(t, want, got)
		if len(want) < len(records) && len(s.damages) == 0 {
			t.Fatalf("byte %d changed, %d records are lost, and nobody says so", at%uint(len(good)), len(records)-len(want))
		}
	})
}

// FuzzID compares with a plain reading of the shape: what passes is one file name.
func FuzzID(f *testing.F) {
	for _, s := range []string{"20261130-062137-1a2b3c", "20261130-062137-1a2b3c-00007", "20261130-062137-1a2b3c-999999", "20261130-062137-1A2B3C", "..", "20261130-062137-1a2b3c\n", "20261130/062137-1a2b3c", "２０261130-062137-1a2b3c"} {
		f.Add(s, int64(1_790_000_000), []byte{1, 2, 3}, 7)
	}
	f.Fuzz(func(t *testing.T, s string, sec int64, random []byte, n int) {
		parts := strings.Split(s, "-")
		of := func(text, set string, min, max int) bool {
			return len(text) >= min && len(text) <= max && strings.Trim(text, set) == ""
		}
		const digits = "0123456789"
		want := (len(parts) == 3 || len(parts) == 4 && of(parts[3], digits, 5, 6)) &&
			of(parts[0], digits, 8, 8) && of(parts[1], digits, 6, 6) && of(parts[2], digits+"abcdef", 6, 6)
		if ValidID(s) != want {
			t.Fatalf("ValidID(%q) = %t", s, !want)
		}
		if want && (!filepath.IsLocal(s) || filepath.Base(s) != s) {
			t.Fatalf("%q is more than a name", s)
		}
		id, err := NewID(time.Unix(sec%(1<<40), 0), bytes.NewReader(random))
		if err != nil {
			return
		}
		if !ValidID(id) || ValidID(BatchID(id, n)) != (n >= 0 && n <= MaxBatch) {
			t.Fatalf("NewID = %q, BatchID of %d = %q", id, n, BatchID(id, n))
		}
	})
}
