package state

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"unicode/utf8"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Who said hold.
const (
	ByPerson = "person"
	ByUndo   = "undo"
)

// MaxHolds is how many holds there may be.
const MaxHolds = 1 << 17

// Hold is one address, or one owner's reservation of it, that stays whatever the witnesses
// say.
type Hold struct {
	Store     string        `json:"store,omitempty"` // directory; empty: every store
	Addr      netip.Addr    `json:"addr"`            // unmapped, without zone
	Owner     claim.Owner   `json:"owner,omitzero"`  // zero: whoever has the address; else a container
	Why       string        `json:"why,omitempty"`   // at most 4096 bytes; hostile text
	By        string        `json:"by"`              // ByPerson or ByUndo
	At        claim.Instant `json:"at"`
	ReleaseID string        `json:"releaseID,omitempty"` // with ByUndo
}

// Verdict is the hold as the judge takes it.
func (h Hold) Verdict() verdict.Hold {
	return verdict.Hold{Store: h.Store, Addr: h.Addr, Owner: h.Owner, Why: h.Why}
}

func (h Hold) same(o Hold) bool {
	return h.key() == o.key() && h.At.Boot == o.At.Boot
}

// holdKey tells holds apart. An undo's of another boot is another hold.
type holdKey struct {
	store    string
	addr     netip.Addr
	owner    claim.Owner
	by, boot string
}

func (h Hold) key() holdKey {
	k := holdKey{store: h.Store, addr: h.Addr, owner: h.Owner, by: h.By}
	if h.By == ByUndo {
		k.boot = h.At.Boot
	}
	return k
}

// Counts reports whether h still holds anything under the given boot ID; under an unknown
// one every hold does. What an undo put
// back is held against the sweeps of its own boot: in the next one its sandbox is gone for
// certain, and a person's word alone lasts.
func (h Hold) Counts(boot string) bool {
	return h.By != ByUndo || h.At.Boot == "" || boot == "" || h.At.Boot == boot
}

func (h Hold) check() error {
	switch {
	case !h.Addr.IsValid() || h.Addr != h.Addr.Unmap().WithZone(""):
		return fmt.Errorf("%w: a hold of the address %q", ErrInvalid, h.Addr)
	case h.By != ByPerson && h.By != ByUndo:
		return fmt.Errorf("%w: a hold by %q", ErrInvalid, h.By)
	case h.Owner != claim.Owner{} && (h.Owner.Shape != claim.ShapeContainer || !claim.IsContainerID(h.Owner.ID) || h.Owner.IfName != "" && !claim.IsIfName(h.Owner.IfName)):
		return fmt.Errorf("%w: a hold of an owner that is no container", ErrInvalid)
	case len(h.Why) > 4096 || len(h.Store) > 4096 || len(h.ReleaseID) > 128:
		return fmt.Errorf("%w: a hold's text is too long", ErrInvalid)
	case !utf8.ValidString(h.Store):
		return fmt.Errorf("%w: a store whose path is not UTF-8", ErrInvalid)
	}
	return nil
}

// Holds returns every hold, the oldest first. With an error nobody knows what a
// person wanted kept, and nothing may be released; the file stays where it is, for a
// person to look at and to remove.
func (d *Dir) Holds() ([]Hold, error) {
	var out []Hold
	_, err := d.read(holdsFile, func(line []byte) error {
		var h Hold
		if err := json.Unmarshal(line, &h); err != nil || h.check() != nil || len(out) == MaxHolds {
			return damaged("it cannot be read")
		}
		out = append(out, h)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// AddHolds adds holds, durably and in one write, and returns which of them are new:
// a hold of the same store, address and owner by the same party stays as it was. With a new
// one by an undo those of other boots go, which count no more. The address is unmapped and
// loses its zone first.
func (d *Dir) AddHolds(holds ...Hold) (added []Hold, err error) {
	holds = slices.Clone(holds)
	for i := range holds {
		holds[i].Addr = holds[i].Addr.Unmap().WithZone("")
		if err := holds[i].check(); err != nil {
			return nil, &Error{Op: "write", Object: d.file(holdsFile), Err: err}
		}
	}
	err = d.editHolds(func(list []Hold) []Hold {
		there := make(map[holdKey]bool, len(list)+len(holds))
		for _, h := range list {
			there[h.key()] = true
		}
		boot := ""
		for _, h := range holds {
			if there[h.key()] {
				continue
			}
			there[h.key()] = true
			list, added = append(list, h), append(added, h)
			if h.By == ByUndo {
				boot = h.At.Boot
			}
		}
		if boot == "" {
			return list
		}
		return slices.DeleteFunc(list, func(h Hold) bool { return !h.Counts(boot) })
	})
	if err != nil {
		return nil, err
	}
	return added, nil
}

// RemoveHolds removes every hold for which gone is true and returns them.
func (d *Dir) RemoveHolds(gone func(Hold) bool) (removed []Hold, err error) {
	err = d.editHolds(func(list []Hold) []Hold {
		return slices.DeleteFunc(list, func(h Hold) bool {
			if !gone(h) {
				return false
			}
			removed = append(removed, h)
			return true
		})
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

func (d *Dir) editHolds(edit func([]Hold) []Hold) error {
	return d.locked(func() error {
		was, err := d.Holds()
		if err != nil {
			return err
		}
		now := edit(slices.Clone(was))
		if slices.EqualFunc(was, now, Hold.same) {
			return nil
		}
		if len(now) > MaxHolds {
			return &Error{Op: "write", Object: d.file(holdsFile), Err: fmt.Errorf("%w: more than %d holds", ErrInvalid, MaxHolds)}
		}
		lines := make([]any, len(now))
		for i, h := range now {
			lines[i] = h
		}
		return d.replaceJSON(holdsFile, lines...)
	})
}
