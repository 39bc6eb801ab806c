package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Kinds of what the CLI and the agent say to each other.
const (
	KindRunRequest    = "RunRequest"
	KindStatusRequest = "StatusRequest"
	KindStatus        = "AgentStatus"
	KindError         = "Error"
	// MaxFrame bounds one piece of a command's output, in bytes.
	MaxFrame = 64 << 10
)

// Head opens every document.
type Head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// RunRequest asks the agent, which is the reaper of its node, to do a command in the place of
// the CLI: its arguments without the program's name. The answer is frames, the last with
// an exit code. Hanging up interrupts it.
type RunRequest struct {
	Head
	Args []string `json:"args"`
	// Version is the CLI's, for the log.
	Version string `json:"version,omitempty"`
}

// Frame is a piece of a command's output, or its end.
type Frame struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Exit   *int   `json:"exit,omitempty"`
}

// Status is the answer to a StatusRequest, which has no fields.
type Status struct {
	Head
	Node    string `json:"node"`
	Version string `json:"version"`
	Commit  string `json:"commit"`
	PID     int    `json:"pid"`
	// StateDir is the agent's.
	StateDir string `json:"stateDir"`
	// Ready, else NotReady says why not.
	Ready    bool   `json:"ready"`
	NotReady string `json:"notReady,omitempty"`
}

// Error is the answer to what is not understood, or not allowed.
type Error struct {
	Head
	Error string `json:"error"`
	// Knows are the kinds of requests that are understood here: another version may ask
	// for something else.
	Knows []string `json:"knows,omitempty"`
}

// NewError makes one.
func NewError(text string, knows ...string) Error {
	return Error{Head: Head{APIVersion, KindError}, Error: clean(text), Knows: knows}
}

// ReadLine reads one document as it is, and what it says it is. The error is io.EOF when
// nothing was said.
func ReadLine(r *bufio.Reader, limit int64) ([]byte, Head, error) {
	var h Head
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if int64(len(line)) > limit {
			return nil, h, fmt.Errorf("a document of more than %d bytes", limit)
		}
		if err == nil || err != bufio.ErrBufferFull {
			if len(bytes.TrimSpace(line)) == 0 {
				if err == nil {
					err = io.EOF
				}
				return nil, h, err
			}
			if err != nil && err != io.EOF {
				return nil, h, err
			}
			break
		}
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, h, fmt.Errorf("no whole document: %w", err)
	}
	return line, h, nil
}
