package state

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// The lines of the sightings file, in text so that a person can read it, with tables
// so that 10,000 of them are read in milliseconds:
//
//	count N            how many sightings follow
//	boot "ID"          the next entry of the table of boots, from 0
//	dir "PATH"         the next entry of the table of directories
//	set "W" "W" ...    the next entry of the table of witness sets
//	s BOOT MONO WALL ABSENT DEV INO CTIME SIZE "SUM" DIR "NAME"
//
// ABSENT is "-" or "BOOT MONO WALL SET". MONO is ns, WALL ns since the epoch or "-",
// DIR "-" when the path has no slash. An entry of a table stands before its first use.

func compareSightings(a, b *verdict.Sighting) int {
	if c := strings.Compare(a.Path, b.Path); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Inc.Ino, b.Inc.Ino),
		cmp.Compare(a.Inc.Ctime, b.Inc.Ctime), cmp.Compare(a.Inc.Dev, b.Inc.Dev),
		cmp.Compare(a.Inc.Size, b.Inc.Size), strings.Compare(a.Inc.Sum, b.Inc.Sum))
}

type sightingEncoder struct {
	lw    *lineWriter
	buf   []byte
	boots table
	dirs  table
	sets  table
	last  []string // the last set, and its number
	lastN int
}

// table numbers strings in the order of their first use.
type table struct {
	index    map[string]int
	last     string
	lastN    int
	nonEmpty bool
}

func (t *table) add(s string) (n int, isNew bool) {
	if t.nonEmpty && s == t.last {
		return t.lastN, false
	}
	n, ok := t.index[s]
	if !ok {
		if t.index == nil {
			t.index = make(map[string]int)
		}
		n = len(t.index)
		t.index[s] = n
	}
	t.last, t.lastN, t.nonEmpty = s, n, true
	return n, !ok
}

// encodeSightings writes sightings that are sorted by compareSightings.
func encodeSightings(lw *lineWriter, list verdict.Memory) error {
	if len(list) > MaxSightings {
		return fmt.Errorf("%w: %d sightings, more than %d", ErrInvalid, len(list), MaxSightings)
	}
	e := sightingEncoder{lw: lw}
	lw.line(fmt.Appendf(nil, "count %d", len(list)))
	for i := range list {
		if i > 0 && list[i].Key == list[i-1].Key {
			return fmt.Errorf("%w: two sightings of one key", ErrInvalid)
		}
		e.sighting(list[i])
	}
	return lw.err
}

func (e *sightingEncoder) sighting(s *verdict.Sighting) {
	// Table entries first, since they are lines of their own.
	first := e.ref(&e.boots, "boot", s.First.Boot)
	var absent, set int
	if s.Absent.Boot != "" {
		absent = e.ref(&e.boots, "boot", s.Absent.Boot)
		set = e.set(s.Witnesses)
	}
	dir, name := -1, s.Path
	if i := strings.LastIndexByte(s.Path, '/'); i >= 0 {
		dir, name = e.ref(&e.dirs, "dir", s.Path[:i]), s.Path[i+1:]
	}
	b := append(e.buf[:0], 's')
	b = appendInstant(b, first, s.First)
	if s.Absent.Boot == "" {
		b = append(b, " -"...)
	} else {
		b = appendInstant(b, absent, s.Absent)
		b = appendInt(b, int64(set))
	}
	b = appendUint(b, s.Inc.Dev)
	b = appendUint(b, s.Inc.Ino)
	b = appendInt(b, s.Inc.Ctime)
	b = appendInt(b, s.Inc.Size)
	b = appendQuoted(b, s.Inc.Sum)
	if dir < 0 {
		b = append(b, " -"...)
	} else {
		b = appendInt(b, int64(dir))
	}
	b = appendQuoted(b, name)
	e.buf = b
	e.lw.line(b)
}

func (e *sightingEncoder) ref(t *table, word, s string) int {
	n, isNew := t.add(s)
	if isNew {
		e.lw.line(appendQuoted(append(e.buf[:0], word...), s))
	}
	return n
}

func (e *sightingEncoder) set(words []string) int {
	if len(words) > 0 && slices.Equal(words, e.last) {
		return e.lastN
	}
	b := e.buf[:0]
	for _, w := range words {
		b = appendQuoted(b, w)
	}
	n, isNew := e.sets.add(string(b))
	if isNew {
		e.lw.line(append([]byte("set"), b...))
	}
	e.last, e.lastN = words, n
	return n
}

// appendQuoted appends a blank and s quoted in ASCII. Nearly every s is plain.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, ' ')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return strconv.AppendQuoteToASCII(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendInt(b []byte, v int64) []byte   { return strconv.AppendInt(append(b, ' '), v, 10) }
func appendUint(b []byte, v uint64) []byte { return strconv.AppendUint(append(b, ' '), v, 10) }

func appendInstant(b []byte, boot int, i claim.Instant) []byte {
	b = appendInt(b, int64(boot))
	b = appendInt(b, int64(i.Mono))
	// The wall clock is for people; one that 64 bits of ns cannot hold is left out.
	n := i.Wall.UnixNano()
	if i.Wall.IsZero() || !time.Unix(0, n).Equal(i.Wall) {
		return append(b, " -"...)
	}
	return appendInt(b, n)
}

// sightingDecoder takes the lines in. Its list means something only after the whole
// file proved sound.
type sightingDecoder struct {
	list   []verdict.Sighting
	want   int
	begun  bool
	boots  []string
	dirs   []string
	sets   [][]string
	fields fields
}

func (d *sightingDecoder) end() error {
	if len(d.list) != d.want {
		return damaged(fmt.Sprintf("it holds %d sightings and announces %d", len(d.list), d.want))
	}
	return nil
}

func (d *sightingDecoder) line(line []byte) error {
	f := &d.fields
	f.rest, f.bad = line, false
	word := string(f.word())
	if !d.begun {
		n := f.int()
		if word != "count" || !f.done() || n < 0 || n > MaxSightings {
			return damaged("it does not begin with a count")
		}
		d.begun, d.want = true, int(n)
		// Memory for what is announced is taken only as lines arrive to fill it, but in
		// one piece where the number is an ordinary one.
		d.list = make([]verdict.Sighting, 0, min(d.want, 1<<17))
		return nil
	}
	switch word {
	case "s":
		s := d.sighting(f)
		if !f.done() {
			return damaged("a sighting cannot be read")
		}
		if len(d.list) == d.want {
			return damaged("it holds more sightings than it announces")
		}
		if n := len(d.list); n > 0 && compareSightings(&d.list[n-1], &s) >= 0 {
			return damaged("its sightings are out of order")
		}
		d.list = append(d.list, s)
		return nil
	case "boot":
		d.boots = append(d.boots, f.quoted())
	case "dir":
		d.dirs = append(d.dirs, f.quoted())
	case "set":
		var set []string
		for !f.bad && len(f.rest) > 0 {
			set = append(set, f.quoted())
		}
		d.sets = append(d.sets, set)
	default:
		f.bad = true
	}
	if !f.done() {
		return damaged("an unknown line")
	}
	return nil
}

func (d *sightingDecoder) sighting(f *fields) (s verdict.Sighting) {
	s.First = d.instant(f)
	if !f.dash() {
		s.Absent = d.instant(f)
		if n, ok := f.index(len(d.sets)); ok {
			// Shared between sightings; clipped, so that appending to one copies.
			s.Witnesses = slices.Clip(d.sets[n])
		}
		if s.Absent.Boot == "" {
			f.bad = true
		}
	}
	s.Inc.Dev, s.Inc.Ino = f.uint(), f.uint()
	s.Inc.Ctime, s.Inc.Size = f.int(), f.int()
	s.Inc.Sum = f.quoted()
	if f.dash() {
		s.Path = f.quoted()
		f.bad = f.bad || strings.Contains(s.Path, "/")
		return s
	}
	n, ok := f.index(len(d.dirs))
	name := f.quotedBytes()
	if !ok || bytes.IndexByte(name, '/') >= 0 {
		f.bad = true
		return s
	}
	var b strings.Builder
	b.Grow(len(d.dirs[n]) + 1 + len(name))
	b.WriteString(d.dirs[n])
	b.WriteByte('/')
	b.Write(name)
	s.Path = b.String()
	return s
}

func (d *sightingDecoder) instant(f *fields) (i claim.Instant) {
	if n, ok := f.index(len(d.boots)); ok {
		i.Boot = d.boots[n]
	}
	i.Mono = time.Duration(f.int())
	if !f.dash() {
		i.Wall = time.Unix(0, f.int()).UTC()
	}
	return i
}

// fields reads the fields of a line, apart by one blank each. Anything wrong makes bad
// true, and the values then mean nothing.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) done() bool { return !f.bad && len(f.rest) == 0 }

func (f *fields) word() []byte {
	w, rest, found := bytes.Cut(f.rest, []byte{' '})
	if len(w) == 0 || found && len(rest) == 0 {
		f.bad = true
	}
	f.rest = rest
	return w
}

// dash takes a "-" if that is the next field.
func (f *fields) dash() bool {
	if len(f.rest) >= 2 && f.rest[0] == '-' && f.rest[1] == ' ' {
		f.word()
		return true
	}
	return false
}

func (f *fields) int() int64 {
	w := f.word()
	neg := len(w) > 1 && w[0] == '-'
	if neg {
		w = w[1:]
	}
	u := f.digits(w)
	switch {
	case neg && u <= 1<<63:
		return -int64(u)
	case u > math.MaxInt64:
		f.bad = true
	}
	return int64(u)
}

func (f *fields) uint() uint64 { return f.digits(f.word()) }

func (f *fields) digits(w []byte) (u uint64) {
	if len(w) == 0 || len(w) > 20 {
		f.bad = true
	}
	for _, c := range w {
		if c < '0' || c > '9' || u > math.MaxUint64/10 || u == math.MaxUint64/10 && c > '5' {
			f.bad = true
			return 0
		}
		u = u*10 + uint64(c-'0')
	}
	return u
}

// index reads a number below n.
func (f *fields) index(n int) (int, bool) {
	u := f.uint()
	if f.bad || u >= uint64(n) {
		f.bad = true
		return 0, false
	}
	return int(u), true
}

func (f *fields) quoted() string { return string(f.quotedBytes()) }

// quotedBytes reads a quoted string, which ends the line or is followed by a blank.
// The result is valid as long as the line.
func (f *fields) quotedBytes() []byte {
	if len(f.rest) < 2 || f.rest[0] != '"' {
		f.bad = true
		return nil
	}
	// The common case is plain ASCII without escapes.
	i, plain := 1, true
	for ; i < len(f.rest) && f.rest[i] != '"'; i++ {
		if f.rest[i] == '\\' {
			plain = false
			i++
		} else if f.rest[i] < ' ' || f.rest[i] >= utf8.RuneSelf {
			f.bad = true
			return nil
		}
	}
	if i >= len(f.rest) {
		f.bad = true
		return nil
	}
	q, rest := f.rest[:i+1], f.rest[i+1:]
	if len(rest) > 0 {
		if rest[0] != ' ' || len(rest) == 1 {
			f.bad = true
			return nil
		}
		rest = rest[1:]
	}
	f.rest = rest
	if plain {
		return q[1:i]
	}
	s, err := strconv.Unquote(string(q))
	if err != nil {
		f.bad = true
	}
	return []byte(s)
}
