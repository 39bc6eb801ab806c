package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
)

func newUndo(a *app) *cobra.Command {
	var last bool
	var since string
	cmd := &cobra.Command{
		Use:   "undo RELEASE-ID | SWEEP-ID ... | --last | --all-since TIME",
		Short: "Put released reservations back, and hold them",
		Long: `undo moves a released reservation from the quarantine back to where it was, while its
address is free and the node has not been rebooted, and marks it held so that the next
sweep leaves it ("holdfast unhold" ends that). It says what it cannot bring back.

What gc --adopt made is taken back by its ID, or that of its sweep: the reservation goes, if
it is still the very file, and is not made again while the address is held. --last and
--all-since mean releases alone.`,
		Example: `  holdfast undo --last
  holdfast undo 20261130-062137-1a2b3c-00001
  holdfast undo 20261130-062137-1a2b3c          all of one gc
  holdfast undo --all-since 15m
  holdfast undo --all-since 2026-11-30T06:00:00Z`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			ways := 0
			for _, w := range []bool{len(args) > 0, last, since != ""} {
				if w {
					ways++
				}
			}
			if ways != 1 {
				return usagef("undo wants release IDs, --last, or --all-since TIME, one of them")
			}
			for _, id := range args {
				if !journal.ValidID(id) {
					return usagef("undo %q: not a release ID; \"holdfast journal\" lists them", id)
				}
			}
			var from time.Time
			if since != "" {
				var err error
				if from, err = parseTime(since, time.Now()); err != nil {
					return err
				}
			}
			if done, err := a.viaAgent(cmd.Context()); done {
				return err
			}
			return a.undo(cmd.Context(), undoQuery{ids: args, last: last, since: since != "", from: from})
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "undo the newest release of an address")
	cmd.Flags().StringVar(&since, "all-since", "", "undo every release since `time`: RFC 3339, or how long ago, such as 15m")
	return cmd
}

// undoQuery is what to undo: releases by ID, the last one, or all since a time.
type undoQuery struct {
	ids         []string
	last, since bool
	from        time.Time
}

func (a *app) undo(ctx context.Context, q undoQuery) error {
	// A mistyped --state-dir must not be made, and then be found empty.
	if _, err := os.Stat(a.opts.stateDir); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	n, closeNode, err := a.open(releases)
	if err != nil {
		return err
	}
	defer closeNode()
	settled, err := n.settle(ctx)
	if err != nil {
		a.say("%v", err)
	}
	recs, _, err := n.engine.Journal.Load()
	if err != nil {
		return err
	}
	entries := journal.Replay(recs)
	// What a crash interrupted is done by now: it is told of, and not asked for again.
	done, doneIDs := finished(entries, settled, q.ids)
	ids := expandSweeps(entries, q.ids, n.clock.Now().Boot)
	ids = slices.DeleteFunc(ids, func(id string) bool { return doneIDs[id] })
	if q.last && len(done) > 0 {
		ids = nil
	} else if q.last || q.since {
		ids = chooseUndo(entries, n.clock.Now().Boot, q.from, q.last)
		if len(ids)+len(done) == 0 {
			return fmt.Errorf("nothing to undo: %s holds no release of this boot that fits", n.quarantine.Dir)
		}
	}
	// The stores must not be swept by another while files go back into them.
	for _, e := range entries {
		if e.Release == nil || !slices.Contains(ids, e.ID) || !e.Release.Addr.IsValid() {
			continue
		}
		if err := n.lockStore(e.Release.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return withheldError{err}
		}
	}
	undone, err := n.undo(ctx, ids)
	undone = append(done, undone...)
	if err != nil && len(undone) == 0 {
		return err
	}
	doc, whole := undoDocument(undone)
	if e := a.emit(doc, func(w io.Writer) { undoText(w, doc) }); e != nil {
		return e
	}
	if err != nil {
		a.say("%v", err)
	}
	if err != nil || !whole {
		return exitError(exitFailed)
	}
	return nil
}

// settle brings what a crash left half way to an end, as far as its stores can be locked.
func (n *node) settle(ctx context.Context) ([]sweep.Settled, error) {
	left, _, err := n.journal.Unsettled()
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	own := map[string]bool{}
	for _, e := range left {
		if e.Release != nil {
			err := n.lockStore(e.Release.Store)
			// Nobody sweeps a store that is gone.
			own[e.Release.Store] = err == nil || errors.Is(err, fs.ErrNotExist)
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	return n.engine.Settle(ctx, func(store string) bool { return own[store] })
}

// finished are the undos that an earlier run left half way and settling put back, and the
// IDs that stand for them alone: their own, and their sweep's. Of asked, also the adoptions
// that were taken back by it.
func finished(entries []journal.Entry, settled []sweep.Settled, asked []string) (done []sweep.Undone, ids map[string]bool) {
	ids = map[string]bool{}
	for _, s := range settled {
		if up := s.Release.Undoes; up != "" && s.Outcome == journal.OutcomeReleased && slices.Contains(asked, up) {
			done = append(done, sweep.Undone{ID: up, ReleasedAs: s.ID, Release: s.Release, Outcome: s.Outcome, Steps: s.Steps})
			ids[up] = true
		}
		if s.Outcome != journal.UndoRestored {
			continue
		}
		done = append(done, sweep.Undone{ID: s.ID, Release: s.Release, Outcome: s.Outcome, Steps: s.Steps})
		ids[s.ID] = true
		for _, e := range entries {
			if e.ID == s.ID {
				ids[e.Sweep] = true // one with releases left to undo was replaced by them
			}
		}
	}
	return done, ids
}

// lockStore takes the reaper locks of a store and of its data directory.
func (n *node) lockStore(dir string) error {
	if err := n.lockDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return n.lockDir(dir)
}

// undoDocument publishes what was undone, and whether all of it was put back.
func undoDocument(undone []sweep.Undone) (doc *api.Undo, whole bool) {
	doc = &api.Undo{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindUndo}, Undone: []api.Undone{}}
	whole = true
	for _, u := range undone {
		d := api.Undone{ReleaseID: u.ID, Outcome: u.Outcome, ReleasedAs: u.ReleasedAs, Steps: stepsOf(u.Steps), Lost: stepsOf(u.Lost)}
		if u.Release != nil {
			d.Path = u.Release.Path
			if u.Release.Addr.IsValid() {
				d.Address = u.Release.Addr.String()
			}
		}
		if u.Err != nil {
			d.Error = u.Err.Error()
		}
		failed := slices.ContainsFunc(u.Steps, func(s journal.StepResult) bool { return s.State == journal.StepFailed })
		whole = whole && (u.Outcome == journal.UndoRestored || u.Outcome == journal.OutcomeReleased) && u.Err == nil && !failed
		doc.Undone = append(doc.Undone, d)
	}
	return doc, whole
}

func undoText(w io.Writer, doc *api.Undo) {
	for _, u := range doc.Undone {
		what := u.Address
		if what == "" {
			what = report.Clean(u.Path)
		}
		switch {
		case u.Outcome == journal.UndoRestored:
			fmt.Fprintf(w, "%s is back and held (release %s)\n", what, u.ReleaseID)
			if u.Error != "" {
				fmt.Fprintf(w, "  %s\n", report.Clean(u.Error))
			}
		case u.Outcome == journal.OutcomeReleased:
			fmt.Fprintf(w, "%s is not reserved any more, and is held (adoption %s; \"holdfast undo %s\" reserves it again)\n", what, u.ReleaseID, u.ReleasedAs)
			if u.Error != "" {
				fmt.Fprintf(w, "  %s\n", report.Clean(u.Error))
			}
		case u.ReleasedAs != "":
			fmt.Fprintf(w, "%s is not taken back: %s\n", what, report.Clean(u.Error))
		default:
			fmt.Fprintf(w, "%s is not back: %s\n", what, report.Clean(u.Error))
		}
		for _, s := range u.Steps {
			if s.State != "done" {
				fmt.Fprintf(w, "  %s %s: %s %s\n", s.Step, report.Clean(s.Object), s.State, report.Clean(s.Detail))
			}
		}
		for _, s := range u.Lost {
			fmt.Fprintf(w, "  cannot be brought back: %s %s\n", s.Step, report.Clean(s.Object))
		}
	}
}

// expandSweeps puts the undoable releases of a sweep in place of its ID.
func expandSweeps(entries []journal.Entry, ids []string, boot string) []string {
	var out []string
	for _, id := range ids {
		n := len(out)
		for _, e := range entries {
			if e.Sweep == id && e.ID != id && e.Undoable(boot) {
				out = append(out, e.ID)
			}
		}
		if len(out) == n {
			out = append(out, id)
		}
	}
	return out
}

// chooseUndo picks what --last or --all-since mean, newest first. The last release is an
// attachment's: both addresses of a dual-stack one. An adoption is taken back only by its ID:
// that takes the reservation of somebody who lives.
func chooseUndo(entries []journal.Entry, boot string, from time.Time, last bool) []string {
	var ids []string
	var newest journal.Entry
	for i := len(entries) - 1; i >= 0; i-- {
		e := entries[i]
		if e.Release == nil || e.Adopts || !e.Undoable(boot) || !last && e.Intent.Wall.Before(from) || last && !e.Release.Addr.IsValid() {
			continue
		}
		if last && len(ids) > 0 {
			l := newest.Release
			if e.Sweep != newest.Sweep || e.Release.Owner != l.Owner || e.Release.Owner.ID == "" || e.Release.Network != l.Network {
				continue
			}
		}
		if len(ids) == 0 {
			newest = e
		}
		ids = append(ids, e.ID)
	}
	return ids
}

// parseTime reads RFC 3339 or a duration before now.
func parseTime(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, usagef("%q: want a time such as 2026-11-30T06:00:00Z, or how long ago, such as 15m", s)
}
