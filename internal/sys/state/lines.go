package state

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/holdfast-cni/holdfast/internal/crc32c"
)

// Every file is lines of text:
//
//	holdfast-<name> <version> <CRC-32C of the two words before, with their blank>
//	... lines ...
//	end <number of lines between> <CRC-32C of every byte before this line>
//
// The first line has a checksum of its own, so that a flipped bit is not taken for a
// newer version.
const (
	version  = 1
	maxLine  = 64 << 10 // bytes with the newline
	maxLines = 1 << 21
	maxFile  = 256 << 20 // bytes
)

func headerLine(name string, v int) []byte {
	b := fmt.Appendf(nil, "holdfast-%s %d", name, v)
	return fmt.Appendf(b, " %08x\n", crc32c.Checksum(b))
}

// damaged is the reason why something is no file of ours. Dir turns it into a
// CorruptError.
type damaged string

func (d damaged) Error() string { return string(d) }

// readLines checks a whole file and hands every line between the first and the last
// to fn, without its newline, valid during the call. Whatever fn has taken in is worth
// nothing unless readLines returns nil: the checksum comes last. The error is a
// damaged, ErrNewer, fn's, or r's. size is how much r has: most files are small.
func readLines(r io.Reader, size int64, name string, fn func(line []byte) error) error {
	br := bufio.NewReaderSize(r, int(min(maxLine, size+1)))
	next := func() ([]byte, error) {
		line, err := br.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, damaged("a line is too long")
		case errors.Is(err, io.EOF):
			return nil, damaged("it is cut off")
		}
		return line, err
	}
	line, err := next()
	if err != nil {
		return err
	}
	if err := checkHeader(line, name); err != nil {
		return err
	}
	var sum crc32c.Digest
	sum.Add(line)
	for n := 0; ; n++ {
		if line, err = next(); err != nil {
			return err
		}
		if bytes.HasPrefix(line, []byte("end ")) {
			if string(line) != string(endLine(n, sum.Sum())) {
				return damaged("the checksum does not match")
			}
			if _, err := br.ReadByte(); !errors.Is(err, io.EOF) {
				if err == nil {
					err = damaged("something follows its end")
				}
				return err
			}
			return nil
		}
		if n == maxLines {
			return damaged("too many lines")
		}
		sum.Add(line)
		if err := fn(line[:len(line)-1]); err != nil {
			return err
		}
	}
}

func endLine(n int, sum uint32) []byte { return fmt.Appendf(nil, "end %d %08x\n", n, sum) }

func checkHeader(line []byte, name string) error {
	words := bytes.Split(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
	if len(words) != 3 || string(words[0]) != "holdfast-"+name {
		return damaged("its first line is not that of a holdfast-" + name + " file")
	}
	v, err := strconv.Atoi(string(words[1]))
	if err != nil || v < 1 || string(line) != string(headerLine(name, v)) {
		return damaged("its first line is damaged")
	}
	if v > version {
		return ErrNewer
	}
	return nil
}

// lineWriter writes such a file. Errors stick and show in finish.
type lineWriter struct {
	w   *bufio.Writer
	n   int
	sum crc32c.Digest
	err error
}

func newLineWriter(w io.Writer, name string) *lineWriter {
	lw := &lineWriter{w: bufio.NewWriterSize(w, 16<<10)}
	lw.put(headerLine(name, version))
	return lw
}

// line writes one line. It must hold no newline and must not begin with "end ".
func (lw *lineWriter) line(b []byte) {
	if lw.err == nil && (len(b)+1 > maxLine || lw.n == maxLines) {
		lw.err = fmt.Errorf("%w: too large for its file", ErrInvalid)
	}
	lw.put(b)
	lw.put([]byte{'\n'})
	lw.n++
}

func (lw *lineWriter) put(b []byte) {
	if lw.err != nil {
		return
	}
	lw.sum.Add(b)
	_, lw.err = lw.w.Write(b)
}

func (lw *lineWriter) finish() error {
	lw.put(endLine(lw.n, lw.sum.Sum()))
	if lw.err == nil {
		lw.err = lw.w.Flush()
	}
	return lw.err
}
