package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// maxExplained bounds how much one query may mean.
const maxExplained = 500

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
			doc, err := explain(au, entries, meta, args[0])
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

// explain picks what the query means and says all of it.
func explain(au *sweep.Audit, entries []journal.Entry, m report.Meta, query string) (*api.Explanation, error) {
	found, err := match(au.Judgement, query)
	if err != nil {
		return nil, err
	}
	doc := &api.Explanation{
		TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindExplanation},
		Node:     m.Node, At: au.Case.Now.Wall, Query: query, Vantage: report.Vantage(&au.Case, au.Judgement),
		Witnesses: report.Witnesses(&au.Case, au.Judgement), Resources: []api.ExplainedItem{},
	}
	if len(found) > maxExplained {
		return nil, fmt.Errorf("%q: %d resources match, more than %d; name one by its address or container ID", query, len(found), maxExplained)
	}
	for _, f := range found {
		item := api.ExplainedItem{Resource: report.Resource(f, au.Case.Now)}
		if f.Releasable || f.Wait > 0 {
			item.Plan = planFor(au.Judgement, f)
		}
		for _, e := range entries {
			if e.Release != nil && e.Release.Addr.IsValid() && e.Release.Addr == f.Resource.Addr && e.Release.Store == f.Resource.Store {
				item.Releases = append(item.Releases, entryOf(e, au.Case.Now.Boot))
			}
		}
		doc.Resources = append(doc.Resources, item)
	}
	if len(found) > 0 {
		return doc, nil
	}
	// Released and gone: the journal still knows it.
	if addr, err := netip.ParseAddr(query); err == nil {
		for i := len(entries) - 1; i >= 0; i-- {
			if r := entries[i].Release; r != nil && r.Addr == addr.Unmap() {
				return nil, fmt.Errorf("%s is not reserved; it was released as %s at %s (holdfast journal %s)", addr, entries[i].ID, entries[i].Intent.Wall.UTC().Format("2006-01-02T15:04:05Z"), entries[i].ID)
			}
		}
	}
	if addr, err := netip.ParseAddr(query); err == nil {
		return nil, fmt.Errorf("%s is not reserved here, and it was never released", addr)
	}
	return nil, fmt.Errorf("%q: nothing on this node matches; want an address, a container ID or a unique prefix of one, or namespace/pod", query)
}

// planFor is what a release of f and what goes with it would do.
func planFor(j *verdict.Judgement, f *verdict.Finding) []api.PlannedStep {
	// All of them are there, so that the plan knows a bridge from a Pod's veth.
	whole := verdict.Judgement{Findings: slices.Clone(j.Findings)}
	for i := range whole.Findings {
		g := &whole.Findings[i]
		same := &j.Findings[i] == f || g.Resource.Owner.ID != "" && g.Resource.Owner == f.Resource.Owner
		g.Releasable = same && (g.Releasable || g.Wait > 0)
	}
	var out []api.PlannedStep
	for _, g := range plan.Make(&whole, plan.Options{ForceOverCap: true}).Groups {
		out = append(out, report.Planned(g)...)
	}
	return out
}

// match finds what a query names: an address in any spelling, a namespace/pod, or a
// whole container ID or a prefix of exactly one.
func match(j *verdict.Judgement, query string) ([]*verdict.Finding, error) {
	var out []*verdict.Finding
	all := report.Sorted(j, nil)
	if addr, err := netip.ParseAddr(query); err == nil {
		for _, f := range all {
			if f.Resource.Addr == addr.Unmap().WithZone("") {
				out = append(out, f)
			}
		}
		return out, nil
	}
	if ns, name, ok := strings.Cut(query, "/"); ok {
		if ns == "" || name == "" {
			return nil, nil
		}
		for _, f := range all {
			if f.Pod.Namespace == ns && f.Pod.Name == name {
				out = append(out, f)
			}
		}
		return out, nil
	}
	ids := map[string]bool{}
	for _, f := range all {
		id := f.Resource.Owner.ID
		if id == query {
			ids = map[string]bool{id: true}
			break
		}
		if strings.HasPrefix(id, query) {
			ids[id] = true
		}
	}
	if len(ids) > 1 {
		return nil, fmt.Errorf("%q: %w: %d containers begin with it", query, errAmbiguous, len(ids))
	}
	for _, f := range all {
		if ids[f.Resource.Owner.ID] {
			out = append(out, f)
		}
	}
	return out, nil
}

var errAmbiguous = errors.New("not unique")
