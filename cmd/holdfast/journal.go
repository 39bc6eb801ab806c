package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
)

func newJournal(a *app) *cobra.Command {
	var since string
	var limit int
	cmd := &cobra.Command{
		Use:   "journal [RELEASE-ID ...]",
		Short: "List what was released, why, and what became of it",
		Example: `  holdfast journal
  holdfast journal --since 24h -o wide
  holdfast journal 20261130-062137-1a2b3c-00001    everything of one release`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			if limit < 0 {
				return usagef("--limit %d: want 0 (all) or more", limit)
			}
			for _, id := range args {
				if !journal.ValidID(id) {
					return usagef("journal %q: not a release ID", id)
				}
			}
			var from time.Time
			if since != "" {
				var err error
				if from, err = parseTime(since, time.Now()); err != nil {
					return err
				}
			}
			if _, err := os.Stat(a.opts.stateDir); errors.Is(err, fs.ErrNotExist) {
				a.say("warning: --state-dir %s: there is no such directory", a.opts.stateDir)
			}
			doc, err := readJournal(a.opts)
			if err != nil {
				return err
			}
			doc.Entries = filterEntries(doc.Entries, args, from, limit)
			if len(args) > 0 && len(doc.Entries) == 0 {
				return fmt.Errorf("the journal has no release %q", args[0])
			}
			return a.emit(doc, func(w io.Writer) { a.journalText(w, doc, len(args) > 0) })
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only releases since `time`: RFC 3339, or how long ago, such as 24h")
	cmd.Flags().IntVar(&limit, "limit", 0, "only the newest `n`; 0 is all")
	return cmd
}

// readJournal publishes the whole journal, oldest first.
func readJournal(o *options) (*api.Journal, error) {
	j, err := journal.Open(o.stateDir, journal.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	recs, damage, err := j.Load()
	if err != nil {
		return nil, err
	}
	// Without a boot ID nothing is called undoable.
	now, _ := boot.Now(o.proc)
	doc := &api.Journal{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindJournal}, Entries: published(journal.Replay(recs), now.Boot)}
	for _, d := range damage {
		doc.Damage = append(doc.Damage, d.String())
	}
	return doc, nil
}

func filterEntries(list []api.JournalEntry, ids []string, from time.Time, limit int) []api.JournalEntry {
	out := []api.JournalEntry{}
	for _, e := range list {
		named := len(ids) == 0
		for _, id := range ids {
			// The ID of a sweep names all of its releases.
			named = named || e.ReleaseID == id || e.SweepID == id
		}
		if named && !e.At.Before(from) {
			out = append(out, e)
		}
	}
	if limit > 0 && len(out) > limit {
		out = out[len(out)-limit:]
	}
	return out
}

func (a *app) journalText(w io.Writer, doc *api.Journal, whole bool) {
	t := report.Table{Header: []string{"RELEASE ID", "AT", "STATE", "ADDRESS", "NETWORK", "OWNER", "UNDO", "WHY"}}
	for _, e := range doc.Entries {
		r := api.Resource{Kind: e.Kind, Address: e.Address, Path: e.Path, ContainerID: e.ContainerID, Pod: e.Pod}
		undo := "no"
		if e.Undoable {
			undo = "yes"
		}
		t.Rows = append(t.Rows, []string{e.ReleaseID, e.At.UTC().Format(time.RFC3339), e.State, report.Object(&r), report.Clean(e.Network), report.Owner(&r, a.wide()), undo, report.Clean(e.Why)})
	}
	if len(t.Rows) == 0 {
		fmt.Fprintf(w, "no release is in the journal of %s\n", report.Clean(a.opts.stateDir))
	} else {
		a.table(w, t)
	}
	if whole {
		for _, e := range doc.Entries {
			fmt.Fprintf(w, "\n%s  %s\n", e.ReleaseID, report.Clean(e.Path))
			for _, s := range e.Says {
				fmt.Fprintf(w, "  said      %-8s %-7s %s\n", report.Clean(s.Witness), report.Clean(s.Word), report.Clean(s.Detail))
			}
			for _, s := range e.Steps {
				fmt.Fprintf(w, "  step      %-8s %-7s %s %s\n", report.Clean(s.Step), report.Clean(s.State), report.Clean(s.Object), report.Clean(s.Detail))
			}
			if e.Detail != "" {
				fmt.Fprintf(w, "  outcome   %s\n", report.Clean(e.Detail))
			}
			for _, p := range e.Problems {
				fmt.Fprintf(w, "  problem   %s\n", report.Clean(p))
			}
		}
	}
	for _, d := range doc.Damage {
		a.say("the journal is damaged: %s", d)
	}
}
