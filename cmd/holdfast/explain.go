package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// maxAuditFile bounds a saved document: 65,536 reservations take some 120 MB.
const maxAuditFile = 1 << 30

func newExplain(a *app) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "explain ADDRESS | CONTAINER-ID | NAMESPACE/POD",
		Short: "Everything that every witness said of one address, container or Pod",
		Long: `explain shows what every witness said, the rule that decided, since when, when it becomes
releasable, and what a release would do. A container ID may be shortened to a prefix that
fits one container only. --from judges a document of "holdfast audit -o json" again, with
the same code and without asking anybody.`,
		Example: `  holdfast explain 10.22.0.17
  holdfast explain 3f2a9c
  holdfast explain default/web-0
  holdfast explain --from node1.json 10.22.0.17`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("explain wants one address, container ID or namespace/pod")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			var au *sweep.Audit
			var entries []journal.Entry
			var err error
			meta := report.Meta{Node: nodeName()}
			if from != "" {
				au, meta.Node, err = replay(from)
				if err != nil {
					return err
				}
			} else {
				n, err := openNode(a.opts, readOnly)
				if err != nil {
					return err
				}
				defer n.Close()
				a.warn(n)
				if au, err = a.look(cmd.Context(), n); err != nil {
					return err
				}
				a.sayUnheld(au)
				recs, _, err := n.engine.Journal.Load()
				if err != nil {
					a.say("the journal cannot be read: %v", err)
				}
				entries = journal.Replay(recs)
			}
			doc, err := report.Explanation(&au.Case, au.Judgement, published(entries, au.Case.Now.Boot), meta, args[0])
			if err != nil {
				return err
			}
			return a.emit(doc, func(w io.Writer) {
				for i := range doc.Resources {
					if i > 0 {
						fmt.Fprintln(w)
					}
					io.WriteString(w, report.Explain(&doc.Resources[i], doc.At))
				}
				a.complain(doc.Vantage, doc.Witnesses, nil)
			})
		},
	}
	a.opts.addNode(cmd.Flags())
	cmd.Flags().StringVar(&from, "from", "", "judge this saved audit `file` again, \"-\" for standard input")
	return cmd
}

// replay judges a saved audit again.
func replay(path string) (*sweep.Audit, string, error) {
	f := os.Stdin
	if path != "-" {
		var err error
		if f, err = os.Open(path); err != nil {
			return nil, "", err
		}
		defer f.Close()
	}
	b, err := io.ReadAll(io.LimitReader(f, maxAuditFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	if len(b) > maxAuditFile {
		return nil, "", fmt.Errorf("%s: larger than %d bytes", path, maxAuditFile)
	}
	var head api.TypeMeta
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, "", fmt.Errorf("%s: not a JSON document of \"holdfast audit -o json\": %w", path, err)
	}
	if head.APIVersion != api.APIVersion || head.Kind != api.KindAudit {
		return nil, "", fmt.Errorf("%s: apiVersion %q, kind %q: want %s, %s", path, head.APIVersion, head.Kind, api.APIVersion, api.KindAudit)
	}
	var doc api.Audit
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	if doc.Evidence == nil {
		return nil, "", fmt.Errorf("%s: field evidence is missing, so there is nothing to judge", path)
	}
	return &sweep.Audit{Case: *doc.Evidence, Judgement: verdict.Judge(doc.Evidence)}, doc.Node, nil
}
