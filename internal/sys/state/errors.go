package state

import (
	"errors"
	"fmt"
)

var (
	// ErrNewer: a file's version is above ours. It is neither read nor replaced.
	ErrNewer = errors.New("written by a newer version of holdfast, so it is left alone")
	// ErrReadOnly: the directory was opened read-only.
	ErrReadOnly = errors.New("opened read-only")
	// ErrBusy: another process held the lock for longer than Options.LockWait.
	ErrBusy = errors.New("locked by another process")
	// ErrInvalid: a value that the format cannot hold.
	ErrInvalid = errors.New("invalid value")
)

// Error is a failed operation on the state directory or a file in it. A full or a
// read-only file system shows in Err (ENOSPC, EROFS).
type Error struct {
	Op     string // "open", "lock", "read", "write"
	Object string // a path
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Object, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// CorruptError says that a file does not hold what was written to it.
type CorruptError struct {
	File   string // its path
	Reason string
	// Kept is the path to which it was moved; empty when it was left where it is.
	Kept string
}

func (e *CorruptError) Error() string {
	if e.Kept != "" {
		return fmt.Sprintf("%q is damaged (%s); kept as %q, begun anew", e.File, e.Reason, e.Kept)
	}
	return fmt.Sprintf("%q is damaged: %s", e.File, e.Reason)
}
