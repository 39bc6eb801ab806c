package cniexec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

var (
	// ErrMissing: the plugin, or a tool that a step needs, is not there.
	ErrMissing = errors.New("not found")
	// ErrTimeout: it did not end in time, and its process group was killed. What it
	// had done stays; every step can be run again.
	ErrTimeout = errors.New("did not end in time and was killed")
	// ErrStill: it reported success, but what it should have removed is still there.
	ErrStill = errors.New("reported success, but it is still there")
	// ErrNotHost: this process is not in PID 1's network and mount namespaces, so a
	// plugin would work on the wrong node.
	ErrNotHost = errors.New("not in PID 1's network and mount namespaces")
)

// Error is a step that failed. Err is or wraps a *PluginError, one of the errors
// above, the context's, or the system's.
type Error struct {
	Step       Step
	Plugin     string
	Attachment claim.Attachment
	Err        error
}

func (e *Error) Error() string {
	return fmt.Sprintf("cniexec: %s of %s for network %s, container %s, interface %s: %s", e.Step, quote(e.Plugin),
		quote(e.Attachment.Network), quote(e.Attachment.ContainerID), quote(e.Attachment.IfName), clean(e.Err.Error()))
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// PluginError is a plugin's own word that it failed. Its texts are cleaned: printable
// ASCII, at most some hundred bytes.
type PluginError struct {
	// Exit is the exit status, or -1 when a signal ended it.
	Exit int
	// Code is the CNI error code, 0 when it printed no CNI error.
	Code    uint
	Msg     string
	Details string
}

func (e *PluginError) Error() string {
	s := fmt.Sprintf("exit status %d", e.Exit)
	if e.Code != 0 {
		s += fmt.Sprintf(", CNI error %d", e.Code)
	}
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	if e.Details != "" {
		s += "; " + e.Details
	}
	return s
}

// quote shows hostile text.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strconv.QuoteToASCII(s)
}

// clean bounds a text and escapes what is not printable ASCII in it.
func clean(s string) string {
	if s = strings.TrimSpace(s); len(s) > 400 {
		s = s[:400] + "..."
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return s
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}
