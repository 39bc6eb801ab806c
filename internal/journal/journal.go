package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// Names in the state directory.
const (
	FileName  = "journal"
	tempName  = "journal.tmp"
	asideName = "journal.damaged-" // + time of the compaction
)

// MaxSize is the size in bytes beyond which a journal takes no more records, and
// is not read either. Compact keeps it far below.
const MaxSize = 256 << 20

// Options for Open.
type Options struct {
	// ReadOnly opens it for Read, Load and Unsettled alone: nothing is created or
	// repaired, and a journal that does not exist reads as an empty one. No lock is
	// needed; a writer at work is seen up to its last whole line.
	ReadOnly bool
	// FS is where dir lies; the kernel's when nil.
	FS fsys.FS
}

// Journal is an open journal. Its methods may be called concurrently.
type Journal struct {
	fs        fsys.FS
	dir, path string
	readOnly  bool

	mu       sync.Mutex
	f        *fsys.File // nil: read-only, and there is no file
	good     int64      // bytes up to the end of the last acknowledged record
	refuse   error      // why Append refuses from now on
	syncDir  bool       // the file's name is not known to be durable yet
	repaired *Damage
}

// Open opens <dir>/journal and, unless read-only, creates the directory (0700) and
// the file (0600) where missing and cuts off a torn end, which Repaired then tells.
//
// Whoever opens it for appending must hold the reaper lock until Close (I9): another
// writer's unfinished line would be taken for a torn end. Appends notice a writer
// that broke this rule (ErrChanged) but cannot prevent it.
//
// A journal of a newer version, or with a damaged header, opens without an error;
// Append and Compact then refuse with ErrNewer or ErrHeader.
func Open(dir string, opts Options) (*Journal, error) {
	j := &Journal{fs: fsys.Or(opts.FS), dir: dir, path: filepath.Join(dir, FileName), readOnly: opts.ReadOnly}
	var err error
	if opts.ReadOnly {
		err = j.openForReading()
	} else {
		err = j.openForAppending()
	}
	if err != nil {
		if j.f != nil {
			j.f.Close()
		}
		return nil, &Error{Op: "open", Object: j.path, Err: err}
	}
	return j, nil
}

// openFile refuses everything but a regular file and does not hang on a FIFO.
func (j *Journal) openFile(flags int) (*fsys.File, error) {
	f, err := fsys.Open(j.fs, unix.AT_FDCWD, j.path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Regular() {
		err = fmt.Errorf("not a regular file (mode %o)", st.Mode)
	}
	if err == nil && st.Size > MaxSize {
		err = fmt.Errorf("%w: %d bytes, more than %d", ErrFull, st.Size, int64(MaxSize))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (j *Journal) openForReading() error {
	f, err := j.openFile(unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	j.f = f
	// What appending would refuse is worth knowing to whoever only reads.
	lr := lineReader{r: bufio.NewReader(f)}
	line, _, err := lr.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	text, ended := bytes.CutSuffix(line, []byte{'\n'})
	switch h, err := parseHeader(text); {
	case err == nil && h.V > version:
		j.refuse = ErrNewer
	case err != nil && len(line) > 0 && (ended || !blankHeader(line)):
		j.refuse = ErrHeader
	}
	return nil
}

func (j *Journal) openForAppending() error {
	if err := fsys.MkdirAll(j.fs, j.dir, 0o700); err != nil {
		return os.NewSyscallError("mkdir", err)
	}
	f, err := j.openFile(unix.O_RDWR | unix.O_APPEND)
	if errors.Is(err, fs.ErrNotExist) {
		// Through a temporary file, so that no crash leaves half a header.
		if err := j.replace(func(w io.Writer) error {
			_, err := w.Write(headerLine())
			return err
		}, func() error { return nil }); err != nil {
			return err
		}
		return j.durableName()
	}
	if err != nil {
		return err
	}
	j.f = f
	// The last process may have died between its rename and the sync of the directory.
	j.syncDir = true
	return j.repair()
}

func (j *Journal) durableName() error {
	if !j.syncDir {
		return nil
	}
	if err := failpoint.At(failpoint.JournalRenamed); err != nil {
		return err
	}
	if err := fsys.SyncDir(j.fs, j.dir); err != nil {
		return os.NewSyscallError("fsync", err)
	}
	j.syncDir = false
	return failpoint.At(failpoint.JournalNameSynced)
}

// repair looks at the first line and at what stands behind the last newline.
func (j *Journal) repair() error {
	st, err := j.f.Stat()
	if err != nil {
		return err
	}
	size := st.Size
	lr := lineReader{r: bufio.NewReader(io.NewSectionReader(j.f, 0, size))}
	line, _, err := lr.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	text, ended := bytes.CutSuffix(line, []byte{'\n'})
	h, err := parseHeader(text)
	switch {
	case err == nil && h.V > version:
		j.refuse = ErrNewer
		return nil // its way of ending is not ours to judge
	case err == nil && !ended:
		return j.finish(size)
	case size == 0, err != nil && line != nil && !ended && blankHeader(line):
		// Empty, or what a power loss makes of a file that held the header alone.
		return j.restart(size)
	case err != nil:
		j.refuse = ErrHeader
		return nil
	}
	end, err := lastNewline(j.f, size)
	if err != nil {
		return err
	}
	j.good = end
	if end == size {
		return nil
	}
	if size-end < MaxLine {
		tail := make([]byte, size-end)
		if _, err := j.f.ReadAt(tail, end); err != nil {
			return err
		}
		if _, err := parseRecord(tail); err == nil {
			return j.finish(size)
		}
	}
	j.repaired = &Damage{Offset: end, Length: size - end, Torn: true, Reason: "cut off"}
	return j.cut()
}

// blankHeader reports whether line is a beginning of our header, or nothing but NUL.
func blankHeader(line []byte) bool {
	return bytes.HasPrefix(headerLine(), line) || len(bytes.Trim(line, "\x00")) == 0
}

// restart writes the header into a file that holds no record.
func (j *Journal) restart(size int64) error {
	if size > 0 {
		j.repaired = &Damage{Length: size, Torn: true, Reason: "cut off"}
	}
	if err := j.cut(); err != nil {
		return err
	}
	return j.write(headerLine())
}

// finish ends a whole last line whose newline was not written any more.
func (j *Journal) finish(size int64) error {
	j.good = size
	return j.write([]byte{'\n'})
}

// lastNewline returns the offset behind the last newline of the first size bytes.
func lastNewline(r io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, min(size, 64<<10))
	for end := size; end > 0; {
		start := max(0, end-int64(len(buf)))
		part := buf[:end-start]
		if _, err := r.ReadAt(part, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		end = start
	}
	return 0, nil
}

// cut truncates the file to what is good and makes that durable.
func (j *Journal) cut() error {
	if err := j.f.Truncate(j.good); err != nil {
		return err
	}
	if err := failpoint.At(failpoint.JournalCutTruncated); err != nil {
		return err
	}
	return j.f.Sync()
}

// write appends b with one write(2) and one fsync. After an error the file ends
// where it did before, or the journal refuses from now on.
func (j *Journal) write(b []byte) error {
	err := j.durableName()
	if err == nil {
		err = failpoint.At(failpoint.JournalAppendBefore)
	}
	if err != nil {
		return err
	}
	// O_APPEND. fsys.File goes on after a short write, which only an error or a signal
	// can bring about on a regular file; that is still one record batch.
	_, err = j.f.Write(b)
	if err == nil {
		err = failpoint.At(failpoint.JournalAppendWritten)
	}
	if err == nil {
		// After a failed fsync Linux drops the dirty pages' error state, so a second
		// fsync proves nothing about b: it is taken back instead of tried again.
		err = j.f.Sync()
	}
	if err == nil {
		err = failpoint.At(failpoint.JournalAppendSynced)
	}
	if err == nil {
		j.good += int64(len(b))
		return nil
	}
	if cutErr := j.cut(); cutErr != nil {
		j.refuse = ErrBroken
		return errors.Join(err, fmt.Errorf("%w: %w", ErrBroken, cutErr))
	}
	return err
}

// Append writes records and returns when they are durable: all of them, or none and
// an error. (After a crash inside it, some of the first may be there; they count.)
// One write and one fsync, however many. A full or read-only file system is an error
// that says so; the caller then releases nothing (I3).
func (j *Journal) Append(recs ...Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.append(recs); err != nil {
		return &Error{Op: "append", Object: j.path, Err: err}
	}
	return nil
}

func (j *Journal) append(recs []Record) error {
	if err := j.writable(); err != nil {
		return err
	}
	if len(recs) == 0 {
		return nil
	}
	var buf []byte
	for _, r := range recs {
		if err := r.check(); err != nil {
			return err
		}
		var err error
		if buf, err = appendLine(buf, r); err != nil {
			return err
		}
		if j.good+int64(len(buf)) > MaxSize {
			return fmt.Errorf("%w: it would pass %d bytes", ErrFull, int64(MaxSize))
		}
	}
	return j.write(buf)
}

// writable says why nothing may be written now.
func (j *Journal) writable() error {
	switch {
	case j.refuse != nil:
		return j.refuse
	case j.readOnly:
		return ErrReadOnly
	case j.f == nil:
		return fs.ErrClosed
	}
	mine, err := j.f.Stat()
	if err != nil {
		return err
	}
	named, err := fsys.LstatPath(j.fs, j.path)
	if err != nil {
		if err == unix.ENOENT {
			return fmt.Errorf("%w: %w", ErrChanged, err)
		}
		return os.NewSyscallError("lstat", err)
	}
	if mine.Key() != named.Key() || mine.Size != j.good {
		return ErrChanged
	}
	return nil
}

// Writable says why Append would refuse now, or nil. A caller that is about to ask
// many witnesses can so find out early that it would be for nothing.
func (j *Journal) Writable() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.writable(); err != nil {
		return &Error{Op: "append", Object: j.path, Err: err}
	}
	return nil
}

// Repaired tells what Open cut off, or nil.
func (j *Journal) Repaired() *Damage { return j.repaired }

// Size is the size in bytes of what is acknowledged; of a read-only journal, of the
// file.
func (j *Journal) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return 0
	}
	if st, err := j.f.Stat(); err == nil && (j.readOnly || j.refuse != nil) {
		return st.Size
	}
	return j.good
}

// Read hands every record to fn, oldest first, and returns what was damaged. It
// stops with fn's error. It holds one record at a time, and sees the file as it was
// when Read began. fn must not call the journal.
func (j *Journal) Read(fn func(Record) error) ([]Damage, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.read(parseRecord, func(r Record, _ []byte) error { return fn(r) })
}

func (j *Journal) read(parse parser, fn func(Record, []byte) error) ([]Damage, error) {
	if j.f == nil {
		if j.readOnly {
			return nil, nil
		}
		return nil, &Error{Op: "read", Object: j.path, Err: fs.ErrClosed}
	}
	st, err := j.f.Stat()
	if err != nil {
		return nil, &Error{Op: "read", Object: j.path, Err: err}
	}
	size := min(st.Size, MaxSize)
	var own error
	s, err := scan(io.NewSectionReader(j.f, 0, size), parse, func(r Record, line []byte) error {
		own = fn(r, line)
		return own
	})
	switch {
	case own != nil:
		return s.damages, own
	case err != nil:
		return s.damages, &Error{Op: "read", Object: j.path, Err: err}
	case s.version == 0 && size > 0 && (len(s.damages) == 0 || s.damages[0].Offset > 0):
		s.damages = append([]Damage{{Reason: "the header is missing"}}, s.damages...)
	}
	return s.damages, nil
}

// Load returns every record, oldest first, and what was damaged.
func (j *Journal) Load() ([]Record, []Damage, error) {
	var recs []Record
	damages, err := j.Read(func(r Record) error {
		recs = append(recs, r)
		return nil
	})
	return recs, damages, err
}

// Unsettled returns the releases and undos that a crash left half way, and what was
// damaged. It holds nothing of the others, and parses them no further than it must; where
// something is open it reads the file twice.
func (j *Journal) Unsettled() ([]Entry, []Damage, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fields := recordFields()
	states, open := make(map[string]State), 0
	damages, err := j.read(func(line []byte) (Record, error) { return skimRecord(fields, line) }, func(r Record, _ []byte) error {
		was := states[r.ReleaseID]
		now, _ := next(was, r)
		states[r.ReleaseID] = now
		if was.Unsettled() {
			open--
		}
		if now.Unsettled() {
			open++
		}
		return nil
	})
	if err != nil || open == 0 {
		return nil, damages, err
	}
	var recs []Record
	damages, err = j.read(func(line []byte) (Record, error) {
		r, err := skimRecord(fields, line)
		if err == nil && states[r.ReleaseID].Unsettled() {
			return parseRecord(line)
		}
		return r, err
	}, func(r Record, _ []byte) error {
		if states[r.ReleaseID].Unsettled() {
			recs = append(recs, r)
		}
		return nil
	})
	return Replay(recs), damages, err
}

// Close closes the file. It is safe to call it twice.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return nil
	}
	f := j.f
	j.f = nil
	return f.Close()
}
