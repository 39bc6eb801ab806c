package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

func newForgetRuntime(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "forget-runtime [ENDPOINT ...]",
		Short: "Stop waiting for a container runtime that is gone for good; without one, list them",
		Long: `A runtime that has answered on this node once must answer from then on: while it is
silent, what it could speak for is kept. That is right when it is down, and in the way when
it was removed or has moved its socket.

forget-runtime takes an endpoint off that list. Sandboxes that only that runtime knows are
then spoken for by the kernel and by processes alone, so say it only when the runtime is
gone for good. It is asked again, and required again, as soon as its socket answers.`,
		Example: `  holdfast forget-runtime                                   list them
  holdfast forget-runtime unix:///run/crio/crio.sock`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			d, err := state.Open(a.opts.stateDir, state.Options{ReadOnly: true})
			if err != nil {
				return err
			}
			defer d.Close()
			known, err := d.KnownRuntimes()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return a.printRuntimes(known, nil)
			}
			// All of them are looked up before the first is forgotten.
			var gone []string
			for _, s := range args {
				e, err := knownEndpoint(known, s)
				if err != nil {
					return err
				}
				gone = append(gone, e)
			}
			return a.forget(gone)
		},
	}
}

func (a *app) forget(gone []string) error {
	d, err := state.Open(a.opts.stateDir, state.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	for _, e := range gone {
		if err := d.ForgetRuntime(e); err != nil {
			return err
		}
		a.say("%s is forgotten: it is no longer waited for. Sandboxes that only it knows are now spoken for by kernel and processes alone. "+
			"It is required again as soon as it answers.", e)
	}
	known, err := d.KnownRuntimes()
	if err != nil {
		return err
	}
	if a.isText() {
		return nil // said already
	}
	return a.printRuntimes(known, gone)
}

func (a *app) printRuntimes(known, gone []string) error {
	doc := &api.Runtimes{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindRuntimes}, Endpoints: []string{}, Forgotten: gone}
	doc.Endpoints = append(doc.Endpoints, known...)
	return a.emit(doc, func(w io.Writer) {
		if len(known) == 0 {
			fmt.Fprintln(w, "no runtime has answered on this node yet")
		}
		for _, e := range known {
			fmt.Fprintln(w, report.Clean(e))
		}
	})
}

// knownEndpoint is the endpoint as it is remembered, for one given as it is or as a path.
func knownEndpoint(known []string, given string) (string, error) {
	if slices.Contains(known, given) {
		return given, nil
	}
	path, err := cri.ParsePath(given)
	if err != nil {
		return "", usageError{err}
	}
	for _, k := range known {
		if p, err := cri.ParsePath(k); err == nil && p == path {
			return k, nil
		}
	}
	if len(known) == 0 {
		return "", fmt.Errorf("%q is not known here: no runtime has answered yet", given)
	}
	return "", fmt.Errorf("%q is not known here; known are %s", given, strings.Join(known, ", "))
}
