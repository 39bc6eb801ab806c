package state

import (
	"errors"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// MaxSightings is how many sightings a file may hold.
const MaxSightings = 1 << 20

// LoadSightings returns what was remembered, in the order of path and incarnation.
// Never written: none. A damaged file is moved aside (unless read-only) and reported
// as a *CorruptError; the caller reports it and goes on with none, which is safe, as
// every grace then begins anew.
func (d *Dir) LoadSightings() (verdict.Memory, error) {
	list, err := d.readSightings()
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || d.opts.ReadOnly {
		return list, err
	}
	err = d.locked(func() error {
		// Again, now that nobody can replace it between reading and moving.
		if list, err = d.readSightings(); errors.As(err, &corrupt) {
			if err := d.aside(sightingsFile, corrupt); err != nil {
				return errors.Join(corrupt, err)
			}
			return corrupt
		}
		return err
	})
	return list, err
}

func (d *Dir) readSightings() (verdict.Memory, error) {
	var dec sightingDecoder
	if _, err := d.read(sightingsFile, dec.line); err != nil {
		return nil, err
	}
	if err := dec.end(); err != nil {
		return nil, &CorruptError{File: d.file(sightingsFile), Reason: err.Error()}
	}
	return verdict.NewMemory(dec.list), nil
}

// SaveSightings replaces what is remembered, durably. The order of list does not
// matter; it is not changed. Two sightings of one key, or more than MaxSightings, are
// ErrInvalid. It refuses to replace a newer version's file (ErrNewer).
func (d *Dir) SaveSightings(list verdict.Memory) error {
	if !slices.IsSortedFunc(list, compareSightings) {
		list = slices.Clone(list)
		slices.SortFunc(list, compareSightings)
	}
	return d.locked(func() error {
		// Only the first line decides: who saves has loaded, and a damaged file was
		// moved aside then.
		_, err := d.read(sightingsFile, func([]byte) error { return errEnough })
		var corrupt *CorruptError
		switch {
		case errors.As(err, &corrupt):
			if err := d.aside(sightingsFile, corrupt); err != nil {
				return err
			}
		case err != nil && !errors.Is(err, errEnough):
			return err
		}
		return d.replace(sightingsFile, func(lw *lineWriter) error { return encodeSightings(lw, list) })
	})
}

var errEnough = errors.New("enough was read")
