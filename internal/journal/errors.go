package journal

import (
	"errors"
	"fmt"
)

// What a journal refuses with. In each case nothing was appended, so nothing may be
// released.
var (
	// ErrNewer: the file's version is above ours. It can be read, not written.
	ErrNewer = errors.New("written by a newer version of holdfast, so read-only here")
	// ErrHeader: the first line is damaged, so nobody knows the version. It can be
	// read, not written; a person moves the file aside.
	ErrHeader = errors.New("its first line is damaged, so read-only; move the file aside to begin a new one")
	// ErrReadOnly: it was opened read-only.
	ErrReadOnly = errors.New("opened read-only")
	// ErrInvalid: the record is not one that the format can hold.
	ErrInvalid = errors.New("invalid record")
	// ErrBroken: an earlier write failed and its remains could not be removed.
	ErrBroken = errors.New("an earlier write failed and could not be taken back")
	// ErrChanged: somebody else wrote to, replaced or removed the file meanwhile.
	ErrChanged = errors.New("changed by another process while open")
	// ErrFull: the file would pass MaxSize; Compact it.
	ErrFull = errors.New("too large")
)

// Error is a failed operation on the journal's file.
type Error struct {
	Op     string // "open", "append", "read", "compact", ...
	Object string // the path
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Damage is a stretch of the file that holds no record.
type Damage struct {
	Offset int64 `json:"offset"` // bytes from the start of the file
	Length int64 `json:"length"` // bytes
	// Torn: it is the end of the file, as a crash during a write leaves it. The
	// write was never acknowledged, so nothing was lost.
	Torn   bool   `json:"torn,omitempty"`
	Reason string `json:"reason"`
}

func (d Damage) String() string {
	if d.Torn {
		return fmt.Sprintf("torn end of %d bytes at offset %d: %s", d.Length, d.Offset, d.Reason)
	}
	return fmt.Sprintf("%d damaged bytes at offset %d: %s", d.Length, d.Offset, d.Reason)
}
