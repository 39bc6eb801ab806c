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
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

func newResume(a *app) *cobra.Command {
	var networks []string
	var all bool
	cmd := &cobra.Command{
		Use:   "resume [--network NAME ... | --all]",
		Short: "Let the releases of a network go on that was stopped; without a flag, list what is stopped",
		Long: `The agent stops the releases of a network when two network namespaces hold one of its
addresses, or when something that was released turns out to be alive. It undoes the release
while the address is free. After an hour without another contradiction, or after a reboot, it goes
on by itself; resume does not wait for that. While what was seen lasts, the next sweep
stops the network again.

When the list of stopped networks was damaged every network is stopped, until "resume --all".

"holdfast undo" works all the time.`,
		Example: `  holdfast resume                     list
  holdfast resume --network podnet
  holdfast resume --all`,
		Args: args0,
		RunE: func(*cobra.Command, []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			if all && len(networks) > 0 {
				return usagef("resume wants --network or --all, one of them")
			}
			return a.resume(networks, all)
		},
	}
	cmd.Flags().StringSliceVar(&networks, "network", nil, "the network's `name` (may be repeated)")
	cmd.Flags().BoolVar(&all, "all", false, "every network")
	return cmd
}

func (a *app) resume(networks []string, all bool) error {
	now, err := boot.Now(a.opts.proc)
	if err != nil {
		a.say("the boot ID cannot be read, so no stop counts as over: %v", err)
	}
	d, err := state.Open(a.opts.stateDir, state.Options{ReadOnly: !all && len(networks) == 0})
	if err != nil {
		return err
	}
	defer d.Close()
	list, err := d.LoadStops(now)
	var damaged *state.CorruptError
	if err != nil && !errors.As(err, &damaged) {
		return err
	}
	if err != nil {
		a.say("every network is stopped: %v", err)
	}
	var gone []line.Stop
	if all || len(networks) > 0 {
		for _, name := range networks {
			if !slices.ContainsFunc(list, func(s line.Stop) bool { return networkOf(s) == name }) {
				if slices.ContainsFunc(list, func(s line.Stop) bool { return s.Store == "" }) {
					return fmt.Errorf("%q is not stopped by itself: every network is; say --all", name)
				}
				return fmt.Errorf("%q is not stopped", name)
			}
		}
		list, err = d.EditStops(func(list []line.Stop) (left []line.Stop) {
			gone = nil
			for _, s := range list {
				if all || s.Store != "" && slices.Contains(networks, networkOf(s)) {
					gone = append(gone, s)
				} else {
					left = append(left, s)
				}
			}
			return left
		})
		if err != nil {
			return err
		}
	}
	return a.printStops(line.Next(list, now, nil).Stops, gone)
}

// networkOf is the name of a stopped network, "" for every one.
func networkOf(s line.Stop) string {
	if s.Store == "" {
		return ""
	}
	return filepath.Base(s.Store)
}

func (a *app) printStops(list, gone []line.Stop) error {
	published := func(list []line.Stop) []api.Stop {
		out := []api.Stop{}
		for _, s := range list {
			out = append(out, api.Stop{Dir: s.Store, Network: networkOf(s), Since: s.Since.Wall, Why: s.Why, ReleaseIDs: s.ReleaseIDs})
		}
		return out
	}
	doc := &api.Stops{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindStops}, Stops: published(list), Resumed: published(gone)}
	return a.emit(doc, func(w io.Writer) {
		name := func(s api.Stop) string {
			if s.Dir == "" {
				return "every network"
			}
			return report.Clean(s.Network)
		}
		for _, s := range doc.Resumed {
			fmt.Fprintf(w, "%s: releases go on\n", name(s))
		}
		if len(list) == 0 {
			if len(gone) == 0 {
				fmt.Fprintln(w, "nothing is stopped")
			}
			return
		}
		t := report.Table{Header: []string{"NETWORK", "STORE", "SINCE", "RELEASES", "WHY"}}
		for _, s := range doc.Stops {
			t.Rows = append(t.Rows, []string{name(s), report.Clean(s.Dir), s.Since.UTC().Format(time.RFC3339), fmt.Sprint(len(s.ReleaseIDs)), report.Clean(s.Why)})
		}
		a.table(w, t)
	})
}
