package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

func parseHold(addr, store string) (netip.Addr, error) {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return a, usagef("%q: want an address such as 10.22.0.17", addr)
	}
	if store != "" && !filepath.IsAbs(store) {
		return a, usagef("--store %q: want an absolute path, such as /var/lib/cni/networks/podnet", store)
	}
	return a.Unmap().WithZone(""), nil
}

func newHold(a *app) *cobra.Command {
	var store, why string
	cmd := &cobra.Command{
		Use:   "hold [ADDRESS ...]",
		Short: "Keep addresses whatever the witnesses say; without one, list the holds",
		Long: `hold keeps an address from being released until "holdfast unhold". A gc that is under way
reads the holds again each time before it acts; what it has released already, "holdfast
undo" puts back.`,
		Example: `  holdfast hold 10.22.0.17 --why "the printer"
  holdfast hold                       list`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			var list []state.Hold
			// A boot ID that cannot be read does not matter here: At is for people.
			now, _ := boot.Now(a.opts.proc)
			for _, s := range args {
				addr, err := parseHold(s, store)
				if err != nil {
					return err
				}
				list = append(list, state.Hold{Store: filepath.Clean("/" + store), Addr: addr, Why: why, By: state.ByPerson, At: now})
				if store == "" {
					list[len(list)-1].Store = ""
				}
			}
			d, err := state.Open(a.opts.stateDir, state.Options{ReadOnly: len(args) == 0})
			if err != nil {
				return err
			}
			defer d.Close()
			if len(list) > 0 {
				if _, err := d.AddHolds(list...); err != nil {
					return err
				}
			}
			if len(list) > 0 && a.isText() {
				return a.emit(nil, func(w io.Writer) {
					for _, h := range list {
						fmt.Fprintf(w, "%s is held\n", h.Addr)
					}
				})
			}
			return a.printHolds(d)
		},
	}
	cmd.Flags().StringVar(&store, "store", "", "only in this `directory` (default: in every one)")
	cmd.Flags().StringVar(&why, "why", "", "a `note` for the next person")
	return cmd
}

func newUnhold(a *app) *cobra.Command {
	var store string
	cmd := &cobra.Command{
		Use:     "unhold ADDRESS ...",
		Short:   "End the holds of addresses, those of an undo too",
		Example: `  holdfast unhold 10.22.0.17`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("unhold wants at least one address")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			d, err := state.Open(a.opts.stateDir, state.Options{})
			if err != nil {
				return err
			}
			defer d.Close()
			for _, s := range args {
				addr, err := parseHold(s, store)
				if err != nil {
					return err
				}
				gone, err := d.RemoveHolds(func(h state.Hold) bool {
					return h.Addr == addr && (store == "" || h.Store == filepath.Clean(store))
				})
				if err != nil {
					return err
				}
				if len(gone) == 0 {
					return fmt.Errorf("%s is not held", addr)
				}
			}
			if a.isText() {
				return a.emit(nil, func(w io.Writer) {
					for _, s := range args {
						fmt.Fprintf(w, "%s is no longer held\n", report.Clean(s))
					}
				})
			}
			return a.printHolds(d)
		},
	}
	cmd.Flags().StringVar(&store, "store", "", "only in this `directory`")
	return cmd
}

func (a *app) printHolds(d *state.Dir) error {
	list, err := d.Holds()
	if err != nil {
		return err
	}
	doc := &api.Holds{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindHolds}, Holds: []api.Hold{}}
	t := report.Table{Header: []string{"ADDRESS", "STORE", "BY", "OF", "SINCE", "WHY"}}
	now, _ := boot.Now(a.opts.proc)
	for _, h := range list {
		end := expired(h, now.Boot)
		doc.Holds = append(doc.Holds, api.Hold{
			Address: h.Addr.String(), Store: h.Store, ContainerID: h.Owner.ID, IfName: h.Owner.IfName, Why: h.Why, By: h.By, At: h.At.Wall, ReleaseID: h.ReleaseID, Expired: end,
		})
		store, of, why := h.Store, "whoever has it", h.Why
		if store == "" {
			store = "every one"
		}
		if h.Owner.ID != "" {
			of = h.Owner.ID[:min(13, len(h.Owner.ID))]
		}
		if end != "" {
			why += " (expired: " + end + ")"
		}
		t.Rows = append(t.Rows, []string{h.Addr.String(), report.Clean(store), h.By, of, h.At.Wall.UTC().Format(time.RFC3339), report.Clean(why)})
	}
	return a.emit(doc, func(w io.Writer) {
		if len(t.Rows) == 0 {
			fmt.Fprintln(w, "nothing is held")
			return
		}
		a.table(w, t)
	})
}

// expired says why a hold holds nothing any more, or "". It stays in the list until an unhold
// or the first undo after a reboot.
func expired(h state.Hold, bootID string) string {
	if !h.Counts(bootID) {
		return "the node was rebooted since"
	}
	if h.Owner.ID == "" {
		return ""
	}
	owner, err := hostlocal.OwnerAt(filepath.Join(h.Store, h.Addr.String()))
	if errors.Is(err, fs.ErrNotExist) || err == nil && owner != h.Owner {
		return "its reservation is gone"
	}
	return ""
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version and commit",
		Args:  args0,
		RunE: func(*cobra.Command, []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			doc := &api.Version{
				TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindVersion},
				Version:  version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
			}
			return a.emit(doc, func(w io.Writer) {
				fmt.Fprintf(w, "holdfast %s, commit %s, %s, %s\n", doc.Version, doc.Commit, doc.Go, doc.Platform)
			})
		},
	}
}
