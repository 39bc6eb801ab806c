package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/agent/web/page"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
)

func newReport(a *app) *cobra.Command {
	var file, from string
	cmd := &cobra.Command{
		Use:   "report -o FILE",
		Short: "Write one HTML file that draws every address with its verdict; changes nothing",
		Long: `report looks at the node as audit does and writes what it saw as one HTML file: each
network's range drawn as a map, and for each address what explain says of it. The file
needs nothing else, no agent and no network; any browser shows it.

It is readable by its owner only: it names Pods and paths of the node. --from makes it of
a document of "holdfast audit -o json", whose node has no journal here.`,
		Example: `  holdfast report -o report.html
  holdfast report -o podnet.html --network podnet
  holdfast report -o node1.html --from node1.json
  holdfast report -o - | ssh desk 'cat > node1.html'`,
		Args: args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			if file == "" {
				return usagef("report wants -o FILE, or -o - for standard output")
			}
			au, meta, journal, err := a.reported(cmd, from)
			if err != nil {
				return err
			}
			return a.writeReport(file, func(w io.Writer) error {
				m := report.Map(&au.Case, au.Judgement, meta, report.After{})
				return page.Static(w, m, report.Explained(&au.Case, au.Judgement, meta.Networks, journal.Entries), journal)
			})
		},
	}
	a.opts.addNode(cmd.Flags())
	// In the place of --output, the format, which a page does not have.
	cmd.Flags().StringVarP(&file, "output", "o", "", "write this `file`, \"-\" for standard output")
	cmd.Flags().StringVar(&from, "from", "", "judge this saved audit `file` again, \"-\" for standard input")
	return cmd
}

// reported is what a report is about: a look, or a saved one judged again.
func (a *app) reported(cmd *cobra.Command, from string) (*sweep.Audit, report.Meta, *api.Journal, error) {
	journal := &api.Journal{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindJournal}, Entries: []api.JournalEntry{}}
	if from != "" {
		au, name, err := replay(from)
		return au, report.Meta{Node: name, Networks: a.opts.networks}, journal, err
	}
	n, err := openNode(a.opts, readOnly)
	if err != nil {
		return nil, report.Meta{}, nil, err
	}
	defer n.Close()
	a.warn(n)
	au, err := a.look(cmd.Context(), n)
	if err != nil {
		return nil, report.Meta{}, nil, err
	}
	for _, w := range n.unknownNetworks(au) {
		a.say("warning: %s", w)
	}
	a.sayUnheld(au)
	if j, err := readJournal(a.opts); err == nil {
		journal = j
	} else if !errors.Is(err, fs.ErrNotExist) {
		a.say("the journal cannot be read: %v", err)
	}
	return au, n.meta(au), journal, nil
}

// writeReport writes a file beside its place and then puts it there, so that nobody finds
// half a report.
func (a *app) writeReport(file string, write func(io.Writer) error) (err error) {
	out := a.stdout
	if file == "-" && isTerminal(a.stdout) {
		return usagef("report -o - writes a page, and standard output is a terminal")
	}
	if file != "-" {
		if fi, err := os.Lstat(file); err == nil && !fi.Mode().IsRegular() {
			return fmt.Errorf("%s: is no regular file, so nothing is put in its place", file)
		}
		// Not through a link that somebody else left in /tmp: the name is a new one.
		if out, err = os.CreateTemp(filepath.Dir(file), ".holdfast-report-"); err != nil {
			return err
		}
		name := out.Name()
		defer func() {
			if cerr := out.Close(); err == nil {
				err = cerr
			}
			if err == nil {
				err = os.Rename(name, file)
			}
			if err != nil {
				os.Remove(name)
			}
		}()
	}
	w := bufio.NewWriterSize(out, 64<<10)
	if err := write(w); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}
