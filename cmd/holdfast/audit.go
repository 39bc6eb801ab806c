package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// maxInUse is how many addresses in use the table shows; the rest is counted.
const maxInUse = 20

func newAudit(a *app) *cobra.Command {
	var exitCode, forget bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show every reserved address with its verdict, worst first; changes nothing",
		Long: `audit lists what is reserved on this node, asks every witness, and shows a verdict with
its reason for each address, worst first, then one line for each network.

It changes nothing on the node. In the state directory it remembers what it saw, so that
a later look can count as the second sighting; --no-record leaves that out.`,
		Example: `  holdfast audit
  holdfast audit -o wide --network podnet
  holdfast audit --exit-code            exits 3 when anything but InUse was found
  holdfast audit -o json > node1.json   for "holdfast explain --from node1.json"
  holdfast audit --cri-endpoint unix:///run/k3s/containerd/containerd.sock`,
		Args: args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			want := remembers
			if forget {
				want = readOnly
			}
			n, err := openNode(a.opts, want)
			if err != nil {
				return err
			}
			defer n.Close()
			a.warn(n)
			au, err := a.look(cmd.Context(), n)
			if err != nil {
				return err
			}
			for _, w := range n.unknownNetworks(au) {
				a.say("warning: %s", w)
			}
			a.sayUnheld(au)
			// Saving waits for the disk; the report is made meanwhile. Nothing is written
			// to stdout before, since whoever reads it may end us by going away.
			remembered := n.remember(a, au, want)
			m := n.meta(au)
			found := report.Sorted(au.Judgement, m.Networks)
			if a.isText() {
				err = a.auditText(a.stdout, au, m, found, remembered)
			} else {
				doc := report.Audit(&au.Case, au.Judgement, m)
				remembered()
				err = a.emit(doc, nil)
			}
			if err != nil {
				return err
			}
			bad := slices.ContainsFunc(found, func(f *verdict.Finding) bool { return f.Verdict != verdict.InUse })
			if exitCode && (bad || !sawAll(au)) {
				return exitError(exitFindings)
			}
			return nil
		},
	}
	a.opts.addNode(cmd.Flags())
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit 3 when anything but InUse was found, or when not everything could be seen")
	cmd.Flags().BoolVar(&forget, "no-record", false, "do not remember what was seen")
	return cmd
}

// sawAll reports whether every directory could be listed and every witness spoke: what
// was not seen is no clean node.
func sawAll(au *sweep.Audit) bool {
	return au.Judgement.Vantage == "" && len(au.Judgement.Silent) == 0 && len(unlisted(au)) == 0
}

// unlisted are the directories of reservations that could not be listed whole.
func unlisted(au *sweep.Audit) []string {
	var out []string
	for _, s := range au.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Problem != "" && (st.Network != "" || st.Dir == st.DataDir) {
				out = append(out, st.Dir)
			}
		}
	}
	return out
}

// look is a look, and says what it could do without.
func (a *app) look(ctx context.Context, n *node) (*sweep.Audit, error) {
	au, err := n.look(ctx)
	for _, w := range n.trouble.take() {
		a.say("warning: %s", w)
	}
	return au, err
}

// sayUnheld says that nobody knows what a person wanted kept.
func (a *app) sayUnheld(au *sweep.Audit) {
	if au.Unheld != nil {
		a.say("the holds cannot be read, so nothing may be released: %v", au.Unheld)
	}
}

// remember begins to keep the sightings, but for stores on which another reaper works: its
// sightings are the ones that count. The function returned waits for the end and says
// what went wrong. Meanwhile au's findings may be read.
func (n *node) remember(a *app, au *sweep.Audit, want access) (wait func()) {
	if want == readOnly {
		return func() {}
	}
	done := make(chan []string, 1)
	go func() {
		var say []string
		busy := n.lockStores(au)
		for _, dir := range slices.Sorted(maps.Keys(busy)) {
			say = append(say, dir+": what was seen there is not remembered: "+busy[dir])
		}
		n.engine.Remember(au, func(store string) bool { return busy[store] == "" })
		var other *hostlocal.ErrBusy
		switch {
		case errors.As(au.Unremembered, &other):
			// Beside an agent that is how it should be: one line, and not one for each store.
			say = []string{fmt.Sprintf("what was seen is not remembered: %v; its own sightings count", other)}
		case au.Unremembered != nil:
			say = append(say, fmt.Sprintf("what was seen is not remembered, so this look will not count as a sighting: %v", au.Unremembered))
		}
		done <- say
	}()
	return func() {
		for _, why := range <-done {
			a.say("%s", why)
		}
	}
}

// warn prints what works and is dangerous, and what could not be opened.
func (a *app) warn(n *node) {
	for _, w := range a.opts.warnings() {
		a.say("warning: %s", w)
	}
	for _, w := range n.warnings {
		a.say("warning: %s", w)
	}
}

// auditText makes the audit for people and writes it after remembered has returned.
func (a *app) auditText(out io.Writer, au *sweep.Audit, m report.Meta, found []*verdict.Finding, remembered func()) error {
	if !a.wide() {
		found = report.FoldFindings(found)
	}
	header, rows := report.AuditRows(report.Resources(found, au.Case.Now), au.Case.Now.Wall, a.wide(), maxInUse)
	widths := widthsOf(header, rows)
	networks, counts := report.Networks(&au.Case, au.Judgement, m.Networks), report.Summary(found)
	hidden := 0
	if !a.wide() {
		hidden = max(0, counts[string(verdict.InUse)]-maxInUse)
	}
	gate := &gate{out: out, before: func() {
		remembered()
		a.complain(report.Vantage(&au.Case, au.Judgement), report.Witnesses(&au.Case, au.Judgement), report.Notes(&au.Case))
	}}
	// An ordinary node's table fits in, and is ready when the disk is.
	w := bufio.NewWriterSize(gate, 1<<20)
	if len(found) > hidden {
		a.rows(w, header, widths, rows)
	}
	if hidden > 0 {
		fmt.Fprintf(w, "and %d more in use (-o wide shows all)\n", hidden)
	}
	a.summary(w, networks, counts)
	if len(found) == 0 && !sawAll(au) {
		fmt.Fprintln(w, "which says little: not everything could be seen")
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}

// gate is a writer that does something before the first bytes go through.
type gate struct {
	out    io.Writer
	before func()
}

func (g *gate) Write(b []byte) (int, error) {
	if g.before != nil {
		g.before()
		g.before = nil
	}
	return g.out.Write(b)
}

// summary is a line for each network, then the counts.
func (a *app) summary(w io.Writer, networks []api.Network, counts map[string]int) {
	if len(networks) > 0 {
		fmt.Fprintln(w)
		a.table(w, report.NetworkTable(networks))
	}
	fmt.Fprintf(w, "\n%s\n", report.Counts(counts))
}

func (a *app) complain(v api.Vantage, ws []api.Witness, notes []api.Note) {
	for _, c := range report.Complaints(v, ws, notes) {
		a.say("%s", c)
	}
}
