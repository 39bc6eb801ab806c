package state

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// sightings makes n of them in 4 directories, sorted, as a node has them.
func sightings(n int) verdict.Memory {
	out := make([]verdict.Sighting, n)
	for i := range out {
		s := &out[i]
		s.Path = fmt.Sprintf("/var/lib/cni/networks/net%d/10.%d.%d.%d", i%4, i%4, i/256%256, i%256)
		s.Inc = claim.Incarnation{Dev: 65024, Ino: uint64(1_000_000 + i), Ctime: 1_790_000_000_000_000_000 + int64(i), Size: 70,
			Sum: fmt.Sprintf("%032x", i*7919)}
		s.First = claim.Instant{Boot: boot(i % 2), Mono: time.Duration(i) * time.Second, Wall: wall.Add(time.Duration(i))}
		if i%3 == 0 {
			s.Absent = claim.Instant{Boot: boot(1), Mono: time.Duration(i+1) * time.Second, Wall: wall}
			s.Witnesses = []string{"cri", "kernel", "process"}
		}
	}
	return verdict.NewMemory(out)
}

func encode(t testing.TB, list verdict.Memory) []byte {
	t.Helper()
	var b bytes.Buffer
	lw := newLineWriter(&b, sightingsFile)
	if err := encodeSightings(lw, list); err != nil {
		t.Fatal(err)
	}
	if err := lw.finish(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decode(data []byte) (verdict.Memory, error) {
	var dec sightingDecoder
	if err := readLines(bytes.NewReader(data), int64(len(data)), sightingsFile, dec.line); err != nil {
		return nil, err
	}
	return verdict.NewMemory(dec.list), dec.end()
}

func TestSightingsRoundTrip(t *testing.T) {
	odd := sightings(1)[0]
	odd.Path = "/odd/\x00\xff\"\\ \n\x1b[31m ü"
	odd.Inc = claim.Incarnation{Dev: math.MaxUint64, Ino: math.MaxUint64, Ctime: math.MinInt64, Size: math.MaxInt64, Sum: "no hex \xff\""}
	odd.First = claim.Instant{Mono: math.MinInt64}
	odd.Witnesses = []string{"", "a b", "\""}
	bare := verdict.Sighting{Key: verdict.Key{Path: "no-slash"}, First: claim.Instant{Boot: "x", Wall: time.Unix(0, math.MinInt64).UTC()}}
	root := verdict.Sighting{Key: verdict.Key{Path: "/root"}}
	none := verdict.Sighting{Absent: claim.Instant{Boot: "x", Mono: 3}, Witnesses: nil}
	d := newDir(t)
	for name, list := range map[string]verdict.Memory{
		"none": nil, "one": sightings(1), "many": sightings(5000), "odd": {odd, &bare, &root, &none},
	} {
		given := slices.Clone(list)
		slices.Reverse(given)
		if err := d.SaveSightings(given); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := d.LoadSightings()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := slices.Clone(list)
		slices.SortFunc(want, compareSightings)
		if diff := cmp.Diff(want, got, cmpAddr); diff != "" {
			t.Fatalf("%s: %s", name, diff)
		}
	}
	if err := d.SaveSightings(sightings(2)); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveSightings(verdict.Memory{odd, odd}); !errors.Is(err, ErrInvalid) {
		t.Fatalf("two of one key: %v", err)
	}
	if got, err := d.LoadSightings(); err != nil || len(got) != 2 {
		t.Fatalf("after a refused write: %v %v", got, err)
	}
}

// A wall clock that the format cannot hold is left out; it never decides.
func TestSightingsWallBeyond(t *testing.T) {
	s := sightings(1)
	s[0].First.Wall = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)
	got, err := decode(encode(t, s))
	if err != nil || !got[0].First.Wall.IsZero() || got[0].First.Mono != s[0].First.Mono {
		t.Fatal(got, err)
	}
}

// The checksum may be right and the content still not be ours.
func TestSightingsRefused(t *testing.T) {
	good := []string{`count 1`, `boot "b"`, `dir "/d"`, `set "cri"`, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "x"`}
	file := func(lines []string) []byte {
		var b bytes.Buffer
		lw := newLineWriter(&b, sightingsFile)
		for _, l := range lines {
			lw.line([]byte(l))
		}
		if err := lw.finish(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if got, err := decode(file(good)); err != nil || len(got) != 1 || got[0].Path != "/d/x" || got[0].Absent.Mono != 6 {
		t.Fatal(got, err)
	}
	replaced := func(i int, s string) []string { l := slices.Clone(good); l[i] = s; return l }
	for name, lines := range map[string][]string{
		"no count":         good[1:],
		"count too small":  replaced(0, "count 0"),
		"count too large":  replaced(0, "count 2"),
		"count immense":    replaced(0, "count 99999999999"),
		"count negative":   replaced(0, "count -1"),
		"unknown line":     append(slices.Clone(good), "what"),
		"empty line":       append(slices.Clone(good), ""),
		"no such boot":     replaced(4, `s 1 5 7 0 6 8 0 1 2 3 4 "00" 0 "x"`),
		"negative boot":    replaced(4, `s -1 5 7 0 6 8 0 1 2 3 4 "00" 0 "x"`),
		"no such set":      replaced(4, `s 0 5 7 0 6 8 1 1 2 3 4 "00" 0 "x"`),
		"no such dir":      replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 1 "x"`),
		"slash in a name":  replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "../x"`),
		"slash, no dir":    replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" - "a/x"`),
		"field missing":    replaced(4, `s 0 5 7 0 6 8 0 1 2 3 "00" 0 "x"`),
		"field too many":   replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "x" 1`),
		"two blanks":       replaced(4, `s 0  5 7 0 6 8 0 1 2 3 4 "00" 0 "x"`),
		"blank at the end": replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "x" `),
		"number too large": replaced(4, `s 0 5 7 0 6 8 0 18446744073709551616 2 3 4 "00" 0 "x"`),
		"int too large":    replaced(4, `s 0 9223372036854775808 7 0 6 8 0 1 2 3 4 "00" 0 "x"`),
		"int too small":    replaced(4, `s 0 -9223372036854775809 7 0 6 8 0 1 2 3 4 "00" 0 "x"`),
		"not a number":     replaced(4, `s 0 5 7 0 6 8 0 0x1 2 3 4 "00" 0 "x"`),
		"plus sign":        replaced(4, `s 0 +5 7 0 6 8 0 1 2 3 4 "00" 0 "x"`),
		"open quote":       replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "x`),
		"bad escape":       replaced(4, `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "\q"`),
		"raw byte":         replaced(4, "s 0 5 7 0 6 8 0 1 2 3 4 \"00\" 0 \"\xff\""),
		"twice":            append(replaced(0, "count 2"), good[4]),
		"out of order":     append(replaced(0, "count 2"), `s 0 5 7 0 6 8 0 1 2 3 4 "00" 0 "a"`),
		"absent, no boot":  {`count 1`, `boot ""`, `dir "/d"`, `set "cri"`, good[4]},
	} {
		var why damaged
		if got, err := decode(file(lines)); !errors.As(err, &why) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	if _, err := decode(append(headerLine(sightingsFile, 1), strings.Repeat("x", maxLine+1)...)); err == nil {
		t.Error("an endless line was read")
	}
}

// 65,536 sightings take less than 25 MB of heap.
func TestSightingsHeap(t *testing.T) {
	d := newDir(t)
	if err := d.SaveSightings(sightings(65536)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	list, err := d.LoadSightings()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if err != nil || len(list) != 65536 {
		t.Fatal(len(list), err)
	}
	live, total := int64(after.HeapAlloc)-int64(before.HeapAlloc), after.TotalAlloc-before.TotalAlloc
	t.Logf("live %.1f MB, allocated %.1f MB", float64(live)/1e6, float64(total)/1e6)
	if live > 25e6 || total > 25e6 {
		t.Errorf("live %d, allocated %d bytes", live, total)
	}
	runtime.KeepAlive(list)
}

func BenchmarkSightings(b *testing.B) {
	list := sightings(10_000)
	d := openDir(b, filepath.Join(b.TempDir(), "state"), false)
	b.Run("save", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := d.SaveSightings(list); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("load", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.LoadSightings(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func FuzzSightings(f *testing.F) {
	f.Add(encode(f, sightings(3)))
	f.Add(encode(f, nil))
	f.Add([]byte(`count 1
boot "b"
set "cri"
s 0 5 - 0 6 8 0 1 2 3 4 "00" - "x"
`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := decode(data)
		if err != nil {
			// Nearly no input has the right checksums: read the lines alone, too.
			var b bytes.Buffer
			lw := newLineWriter(&b, sightingsFile)
			for line := range bytes.Lines(data) {
				if line = bytes.TrimRight(line, "\n"); !bytes.HasPrefix(line, []byte("end ")) {
					lw.line(line)
				}
			}
			if lw.finish() != nil {
				return
			}
			if list, err = decode(b.Bytes()); err != nil {
				return
			}
		}
		again, err := decode(encode(t, list))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(list, again, cmpAddr); diff != "" {
			t.Fatal(diff)
		}
	})
}
