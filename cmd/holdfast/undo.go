package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
)

func newUndo(a *app) *cobra.Command {
	var last bool
	var since string
	cmd := &cobra.Command{
		Use:   "undo RELEASE-ID ... | --last | --all-since TIME",
		Short: "Put released reservations back, and hold them",
		Long: `undo moves a released reservation from the quarantine back to where it was, while its
address is free and the node has not been rebooted, and marks it held so that the next
sweep leaves it ("holdfast unhold" ends that). It says what it cannot bring back.`,
		Example: `  holdfast undo --last
  holdfast undo 20261130-062137-1a2b3c-00001
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
			n, err := openNode(a.opts, releases)
			if err != nil {
				return err
			}
			defer n.Close()
			recs, _, err := n.engine.Journal.Load()
			if err != nil {
				return err
			}
			entries := journal.Replay(recs)
			ids := args
			if last || since != "" {
				ids = chooseUndo(entries, n.clock.Now().Boot, from, last)
				if len(ids) == 0 {
					return errors.New("nothing to undo: the quarantine holds no release of this boot that fits")
				}
			}
			// The stores must not be swept by another while files go back into them.
			locked := map[string]bool{}
			for _, e := range entries {
				if e.Release == nil || !slices.Contains(ids, e.ID) || e.Release.Store == "" {
					continue
				}
				dir := filepath.Dir(e.Release.Store)
				if locked[dir] || !e.Release.Addr.IsValid() {
					continue
				}
				locked[dir] = true
				if err := n.reaper(dir); err != nil {
					return err
				}
			}
			undone, err := n.engine.Undo(cmd.Context(), ids)
			if err != nil && len(undone) == 0 {
				return err
			}
			doc := &api.Undo{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindUndo}, Undone: []api.Undone{}}
			failed := err != nil
			for _, u := range undone {
				d := api.Undone{ReleaseID: u.ID, Outcome: u.Outcome, Steps: stepsOf(u.Steps), Lost: stepsOf(u.Lost)}
				if u.Release != nil {
					d.Path = u.Release.Path
					if u.Release.Addr.IsValid() {
						d.Address = u.Release.Addr.String()
					}
				}
				if u.Err != nil {
					d.Error = u.Err.Error()
				}
				failed = failed || u.Outcome != journal.UndoRestored
				doc.Undone = append(doc.Undone, d)
			}
			if e := a.emit(doc, func(w io.Writer) { undoText(w, doc) }); e != nil {
				return e
			}
			if err != nil {
				a.say("%v", err)
			}
			if failed {
				return exitError(exitFailed)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "undo the newest release of an address")
	cmd.Flags().StringVar(&since, "all-since", "", "undo every release since `time`: RFC 3339, or how long ago, such as 15m")
	return cmd
}

func undoText(w io.Writer, doc *api.Undo) {
	for _, u := range doc.Undone {
		what := u.Address
		if what == "" {
			what = report.Clean(u.Path)
		}
		if u.Outcome == journal.UndoRestored {
			fmt.Fprintf(w, "%s is back and held (release %s)\n", what, u.ReleaseID)
		} else {
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

// chooseUndo picks what --last or --all-since mean, newest first.
func chooseUndo(entries []journal.Entry, boot string, from time.Time, last bool) []string {
	var ids []string
	for i := len(entries) - 1; i >= 0; i-- {
		e := entries[i]
		if e.Release == nil || !e.Undoable(boot) || !last && e.Intent.Wall.Before(from) || last && !e.Release.Addr.IsValid() {
			continue
		}
		ids = append(ids, e.ID)
		if last {
			break
		}
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
