package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
)

// MaxStops is how many networks may be stopped one by one.
const MaxStops = 4096

// LoadStops returns the networks whose releases are stopped; never written: none. With an error
// nobody knows which are, and the list returned stops every network. A damaged file is kept aside (*CorruptError), and one that stops
// every network until a person resumes takes its place, in one step: without that a crash would
// leave none.
func (d *Dir) LoadStops(now claim.Instant) ([]line.Stop, error) {
	list, err := d.readStops()
	all := line.All(now, "which networks are stopped cannot be read")
	var corrupt *CorruptError
	switch {
	case err == nil:
		return list, nil
	case errors.As(err, &corrupt) && !d.opts.ReadOnly:
		err = d.locked(func() error {
			// Again, now that nobody can replace it between reading and replacing.
			if list, err = d.readStops(); errors.As(err, &corrupt) {
				all.Why = "the list of the stopped networks was damaged (" + corrupt.Reason + ")"
				return errors.Join(d.stopAll(all, corrupt), corrupt)
			}
			return err
		})
		if err == nil {
			return list, nil
		}
	}
	return []line.Stop{all}, err
}

// stopAll works under the lock.
func (d *Dir) stopAll(all line.Stop, why *CorruptError) error {
	to := stopsFile + asideMark + d.opts.Now().UTC().Format("20060102-150405")
	if err := d.fs.Linkat(d.root, stopsFile, d.root, to, 0); err != nil && err != unix.EEXIST {
		return &Error{Op: "keep", Object: d.file(stopsFile), Err: err}
	}
	if err := d.replaceJSON(stopsFile, all); err != nil {
		return err
	}
	why.Kept = d.file(to)
	return d.pruneAside(stopsFile)
}

func (d *Dir) readStops() ([]line.Stop, error) {
	var out []line.Stop
	_, err := d.read(stopsFile, func(b []byte) error {
		var s line.Stop
		if err := json.Unmarshal(b, &s); err != nil || checkStop(s) != nil || len(out) == MaxStops {
			return damaged("it cannot be read")
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func checkStop(s line.Stop) error {
	switch {
	case s.Store != "" && !filepath.IsAbs(s.Store) || len(s.Store) > 4096 || !utf8.ValidString(s.Store):
		return fmt.Errorf("%w: a stop of the directory %q", ErrInvalid, s.Store)
	case s.Why == "" || len(s.Why) > 4096:
		return fmt.Errorf("%w: a stop needs a reason of at most 4096 bytes", ErrInvalid)
	case len(s.ReleaseIDs) > line.MaxIDs || slices.ContainsFunc(s.ReleaseIDs, func(id string) bool { return id == "" || len(id) > 128 }):
		return fmt.Errorf("%w: a stop with too many or odd release IDs", ErrInvalid)
	}
	return nil
}

// EditStops changes the list, durably and in one write, and returns the new one. It writes only
// if there is a difference. What cannot be read is not edited, but by LoadStops: a damaged
// file is first replaced there. edit must not change what it is given.
func (d *Dir) EditStops(edit func([]line.Stop) []line.Stop) (now []line.Stop, err error) {
	err = d.locked(func() error {
		was, err := d.readStops()
		if err != nil {
			return err
		}
		now = edit(was)
		if slices.EqualFunc(was, now, sameStop) {
			return nil
		}
		if len(now) > MaxStops {
			return &Error{Op: "write", Object: d.file(stopsFile), Err: fmt.Errorf("%w: more than %d stops", ErrInvalid, MaxStops)}
		}
		lines := make([]any, len(now))
		for i, s := range now {
			if err := checkStop(s); err != nil {
				return &Error{Op: "write", Object: d.file(stopsFile), Err: err}
			}
			lines[i] = s
		}
		return d.replaceJSON(stopsFile, lines...)
	})
	if err != nil {
		return nil, err
	}
	return now, nil
}

func sameStop(a, b line.Stop) bool {
	return a.Store == b.Store && a.Since.Boot == b.Since.Boot && a.Since.Mono == b.Since.Mono && a.Why == b.Why && slices.Equal(a.ReleaseIDs, b.ReleaseIDs)
}
