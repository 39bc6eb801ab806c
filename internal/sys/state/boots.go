package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// MaxPast is how many past boots are remembered; the oldest are forgotten. What a
// forgotten boot left behind is judged like anything else, with the grace.
const MaxPast = 64

// ErrBootReturned: a boot that was seen replaced was then seen again. Boot IDs are
// random, so this state directory is shared by two views of a boot (a nested
// container beside its host, case F23) or went back in time (a restored snapshot). A
// "past" boot may then be running. No boot counts as past any more until a person
// removes the file.
var ErrBootReturned = errors.New("a boot that was over is back: this state directory is used from two places, or was restored; " +
	"no boot counts as past until the file is removed")

func isBootID(s string) bool { return claim.IsUUID(s) }

// bootHistory is the one line of the boots file.
type bootHistory struct {
	Current  string   `json:"current"`
	Past     []string `json:"past,omitempty"` // oldest first
	Returned string   `json:"returned,omitempty"`
}

// observe is the whole rule. Pure. Only what was recorded as current and is now
// replaced is past.
func (h bootHistory) observe(current string) bootHistory {
	switch {
	case h.Current == current:
		return h
	case h.Current == "":
		h.Current = current
		return h
	case slices.Contains(h.Past, current):
		h.Returned = current
	}
	past := append(slices.Clone(h.Past), h.Current)
	h.Past = past[max(0, len(past)-MaxPast):]
	h.Current = current
	return h
}

func (h bootHistory) facts() claim.BootFacts {
	f := claim.BootFacts{Current: h.Current}
	if h.Returned == "" {
		f.Past = slices.Clone(h.Past)
	}
	return f
}

// ObserveBoot records current as the boot that is on and returns it with the boots
// that are over. Read-only, it only returns them.
//
// With an error the facts still hold, and name no past boot: a damaged file was moved
// aside and begun anew (*CorruptError), a boot came back (ErrBootReturned), the file
// could not be read or written. current must be a boot ID in the kernel's spelling,
// else ErrInvalid and no facts.
func (d *Dir) ObserveBoot(current string) (claim.BootFacts, error) {
	if !isBootID(current) {
		return claim.BootFacts{}, &Error{Op: "write", Object: d.file(bootsFile), Err: fmt.Errorf("%w: no boot ID", ErrInvalid)}
	}
	none := claim.BootFacts{Current: current}
	var next bootHistory
	var err error
	if d.opts.ReadOnly {
		if next, err = d.readBoots(); err == nil {
			next = next.observe(current)
		}
	} else {
		err = d.locked(func() (err error) {
			next, err = d.recordBoot(current)
			return err
		})
	}
	if err != nil {
		return none, err
	}
	if next.Returned != "" {
		return none, &Error{Op: "read", Object: d.file(bootsFile), Err: ErrBootReturned}
	}
	return next.facts(), nil
}

// recordBoot works under the lock.
func (d *Dir) recordBoot(current string) (bootHistory, error) {
	was, err := d.readBoots()
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		if err := d.aside(bootsFile, corrupt); err != nil {
			return was, errors.Join(corrupt, err)
		}
	} else if err != nil {
		return was, err
	}
	next := was.observe(current)
	if corrupt != nil || next.Current != was.Current {
		if err := d.replaceJSON(bootsFile, next); err != nil {
			return was, err
		}
	}
	if corrupt != nil {
		return was, corrupt
	}
	return next, nil
}

func (d *Dir) readBoots() (bootHistory, error) {
	var h bootHistory
	lines := 0
	_, err := d.read(bootsFile, func(line []byte) error {
		if lines++; lines > 1 {
			return damaged("it has more than one line")
		}
		if err := json.Unmarshal(line, &h); err != nil {
			return damaged("it cannot be read")
		}
		ids := append(slices.Clone(h.Past), h.Current)
		if len(ids) > MaxPast+1 || slices.ContainsFunc(ids, func(s string) bool { return !isBootID(s) }) {
			return damaged("it holds something that is no boot ID, or too many")
		}
		return nil
	})
	if err != nil {
		return bootHistory{}, err
	}
	return h, nil
}

// replaceJSON writes a file of one JSON value a line.
func (d *Dir) replaceJSON(name string, values ...any) error {
	return d.replace(name, func(lw *lineWriter) error {
		for _, v := range values {
			b, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			lw.line(b)
		}
		return lw.err
	})
}
