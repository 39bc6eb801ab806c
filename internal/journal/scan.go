package journal

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// scanned is what a scan says about the file as a whole.
type scanned struct {
	version int // 0: the header is missing or damaged
	damages []Damage
}

// parser reads one line, without its newline: parseRecord, or one that leaves out of a
// record what its caller does not ask for. All of them refuse the same lines.
type parser func(line []byte) (Record, error)

// scan reads a whole journal and hands over every good record with the line it came
// from, newline included; both are valid during the call only. It goes on behind
// damage, which it gathers, adjacent stretches as one. It fails only when r or fn
// fails. It holds at most MaxLine bytes of r at a time.
//
// A last line without its newline counts if it is whole otherwise: a crash came
// between two bytes of one write. Counting an intent that was not acknowledged is
// harmless, for settling it finds nothing moved.
func scan(r io.Reader, parse parser, fn func(rec Record, line []byte) error) (scanned, error) {
	var s scanned
	lr := lineReader{r: bufio.NewReaderSize(r, 16<<10)}
	for first := true; ; first = false {
		off := lr.off
		line, length, err := lr.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return s, nil
			}
			return s, err
		}
		text, ended := bytes.CutSuffix(line, []byte{'\n'})
		if first {
			h, err := parseHeader(text)
			if err == nil {
				s.version = h.V
				continue
			}
			// Perhaps the header alone is lost and this is a record: fall through.
		}
		if line == nil {
			s.damaged(Damage{Offset: off, Length: length, Torn: !lr.ended, Reason: "a line longer than any record"})
			continue
		}
		rec, err := parse(text)
		if err != nil {
			s.damaged(Damage{Offset: off, Length: length, Torn: !ended, Reason: err.Error()})
			continue
		}
		if err := fn(rec, line); err != nil {
			return s, err
		}
	}
}

func (s *scanned) damaged(d Damage) {
	if n := len(s.damages); n > 0 && !d.Torn {
		if last := &s.damages[n-1]; last.Offset+last.Length == d.Offset {
			last.Length += d.Length
			return
		}
	}
	s.damages = append(s.damages, d)
}

// lineReader reads lines of bounded length.
type lineReader struct {
	r     *bufio.Reader
	off   int64 // behind what next returned
	ended bool  // the last line had its newline
	buf   []byte
}

// next returns the next line with its newline, if it has one, and its length. The
// line is nil when it is longer than MaxLine; it is then skipped whole. io.EOF: no
// more.
func (l *lineReader) next() (line []byte, length int64, err error) {
	l.buf = l.buf[:0]
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		length += int64(len(part))
		if length > MaxLine {
			long = true
		} else {
			l.buf = append(l.buf, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		l.ended = err == nil
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, length, err
		}
		if length == 0 {
			return nil, 0, io.EOF
		}
		l.off += length
		if long {
			return nil, length, nil
		}
		return l.buf, length, nil
	}
}
