package journal

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// Policy says what Compact keeps. The zero value of a field means its default.
type Policy struct {
	// MaxAge: older releases that nothing needs any more are dropped. By the wall
	// clock, which decides nothing but how long history is kept. Default 90 days.
	MaxAge time.Duration
	// MaxBytes: the oldest releases that nothing needs any more are dropped until the
	// file is no larger. Default 64 MiB.
	MaxBytes int64
	// MaxKept: releases that could still be undone are dropped, oldest first, when
	// the file would be larger than this on their account alone. Without it a node
	// that leaks one address per retry for weeks (case L10) would fill the journal,
	// and then nothing could be released any more. Default 192 MiB, at least MaxBytes.
	MaxKept int64
	// MinGain: nothing is done for less than so many bytes, so that not every sweep
	// rewrites the file for one old record. It does not hold once the file passes
	// MaxBytes. Default 1 MiB.
	MinGain int64
	// Discard, if not nil, removes what the quarantine holds of a release that is
	// dropped; nothing there is no error. It is called for each when the new file is
	// written, and before it replaces the old one: a crash in between leaves records of
	// what can be undone no more, which the next compaction drops, and never a
	// quarantined file that no record names. An error ends the compaction.
	Discard func(releaseID string) error
}

func (p Policy) withDefaults() Policy {
	set := func(v *int64, def int64) {
		if *v <= 0 {
			*v = def
		}
	}
	if p.MaxAge <= 0 {
		p.MaxAge = 90 * 24 * time.Hour
	}
	set(&p.MaxBytes, 64<<20)
	set(&p.MaxKept, 192<<20)
	set(&p.MinGain, 1<<20)
	p.MaxKept = max(p.MaxKept, p.MaxBytes)
	return p
}

// extent is what a compaction must know of a release.
type extent struct {
	id    string
	state State
	boot  string    // of the intent
	last  time.Time // wall clock of the last record
	bytes int64
}

// undoable: it could still be put back under this boot. When the present boot is not
// known, every released one might be.
func (e extent) undoable(boot string) bool {
	return (e.state == StateReleased || e.state == StateAdopted) && (boot == "" || e.boot == "" || e.boot == boot)
}

// plan says which releases to drop, in the order given, which is the file's. Pure.
func plan(list []extent, p Policy, now claim.Instant) []string {
	size := int64(len(headerLine()))
	for _, e := range list {
		size += e.bytes
	}
	drop := make(map[string]bool)
	take := func(limit func(extent) bool, may func(extent) bool) {
		for _, e := range list {
			if !drop[e.id] && !e.state.Unsettled() && may(e) && limit(e) {
				drop[e.id] = true
				size -= e.bytes
			}
		}
	}
	free := func(e extent) bool { return !e.undoable(now.Boot) }
	old := func(e extent) bool {
		return !now.Wall.IsZero() && !e.last.IsZero() && now.Wall.Sub(e.last) > p.MaxAge
	}
	full := size
	take(old, free)
	gain := full - size
	if full <= p.MaxBytes && gain < p.MinGain {
		return nil
	}
	take(func(extent) bool { return size > p.MaxBytes }, free)
	take(func(extent) bool { return size > p.MaxKept }, func(extent) bool { return true })
	var out []string
	for _, e := range list {
		if drop[e.id] {
			out = append(out, e.id)
		}
	}
	return out
}

// Compact rewrites the journal without releases that nothing needs any more and
// returns their IDs. It keeps every unsettled release, and every one that can still be undone
// in the present boot (up to MaxKept). Nothing to drop: nothing is written.
//
// Damaged stretches are not copied, but the old file is then kept beside the new one
// as journal.damaged-<time>, the latest 4 of them.
//
// The new file replaces the old one by rename, after an fsync. A crash leaves one or
// the other, whole. An error before the rename
// leaves the journal as it was; one after it (the sync of the directory) leaves the
// new one, and Append syncs the directory first.
func (j *Journal) Compact(p Policy, now claim.Instant) ([]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	dropped, err := j.compact(p.withDefaults(), now)
	if err != nil {
		return nil, &Error{Op: "compact", Object: j.path, Err: err}
	}
	return dropped, nil
}

func (j *Journal) compact(p Policy, now claim.Instant) ([]string, error) {
	if err := j.writable(); err != nil {
		return nil, err
	}
	if j.good < p.MinGain && j.good <= p.MaxBytes {
		return nil, nil // all of it would be too little; it need not be read
	}
	list, damages, err := j.extents()
	if err != nil {
		return nil, err
	}
	ids := plan(list, p, now)
	if len(ids) == 0 {
		return nil, nil
	}
	if len(damages) > 0 {
		if err := j.keepAside(now.Wall); err != nil {
			return nil, fmt.Errorf("keep the damaged file: %w", err)
		}
	}
	drop := make(map[string]bool, len(ids))
	for _, id := range ids {
		drop[id] = true
	}
	// Lines are copied as they stand: a field that this version does not know stays.
	if err := j.replace(func(w io.Writer) error {
		if _, err := w.Write(headerLine()); err != nil {
			return err
		}
		_, err := j.read(parseRecord, func(r Record, line []byte) error {
			if drop[r.ReleaseID] {
				return nil
			}
			_, err := w.Write(line)
			return err
		})
		return err
	}, func() error {
		if p.Discard == nil {
			return nil
		}
		for _, id := range ids {
			if err := p.Discard(id); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := j.durableName(); err != nil {
		return nil, err
	}
	return ids, nil
}

func (j *Journal) extents() ([]extent, []Damage, error) {
	var list []extent
	index := make(map[string]int)
	damages, err := j.read(parseRecord, func(r Record, line []byte) error {
		i, ok := index[r.ReleaseID]
		if !ok {
			i = len(list)
			index[r.ReleaseID] = i
			list = append(list, extent{id: r.ReleaseID, boot: r.At.Boot})
		}
		e := &list[i]
		e.state, _ = next(e.state, r)
		e.last = r.At.Wall
		e.bytes += int64(len(line))
		return nil
	})
	return list, damages, err
}

// replace writes a new file, calls before, and makes it the journal. On return without an error
// j.f is the new file and its name is not known to be durable yet.
func (j *Journal) replace(fill func(io.Writer) error, before func() error) (err error) {
	temp := filepath.Join(j.dir, tempName)
	// What an earlier crash left; ours alone, since writers are serialised.
	if err := j.fs.Unlinkat(unix.AT_FDCWD, temp, 0); err != nil && err != unix.ENOENT {
		return os.NewSyscallError("unlink", err)
	}
	f, err := fsys.Open(j.fs, unix.AT_FDCWD, temp, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = j.fs.Unlinkat(unix.AT_FDCWD, temp, 0)
		}
	}()
	w := bufio.NewWriterSize(f, 256<<10)
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := failpoint.At(failpoint.JournalTempWritten); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := failpoint.At(failpoint.JournalTempSynced); err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := before(); err != nil {
		return err
	}
	if err := j.fs.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, j.path, 0); err != nil {
		return os.NewSyscallError("rename", err)
	}
	if j.f != nil {
		j.f.Close()
	}
	j.f, j.good, j.syncDir = f, st.Size, true
	return nil
}

// keepAside gives the present file a second name. The caller's rename then takes
// the first one away.
func (j *Journal) keepAside(at time.Time) error {
	name := filepath.Join(j.dir, asideName+at.UTC().Format("20060102-150405"))
	if err := j.fs.Linkat(unix.AT_FDCWD, j.path, unix.AT_FDCWD, name, 0); err != nil && err != unix.EEXIST {
		return os.NewSyscallError("link", err)
	}
	dir, err := fsys.Open(j.fs, unix.AT_FDCWD, j.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer dir.Close()
	var old []string
	err = fsys.ReadDir(j.fs, dir.FD(), func(name []byte, _ byte) bool {
		if strings.HasPrefix(string(name), asideName) {
			old = append(old, string(name))
		}
		return true
	})
	if err != nil {
		return os.NewSyscallError("getdents", err)
	}
	slices.Sort(old) // by name, which is by time
	for ; len(old) > 4; old = old[1:] {
		if err := j.fs.Unlinkat(dir.FD(), old[0], 0); err != nil {
			return os.NewSyscallError("unlink", err)
		}
	}
	return nil
}
