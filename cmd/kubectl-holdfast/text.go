package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/report"
)

// settle counts who did not answer, and sorts worst first.
func settle(doc *api.Fleet) {
	doc.Unanswered = 0
	for _, n := range doc.Nodes {
		if n.Error != "" {
			doc.Unanswered++
		}
	}
	slices.SortStableFunc(doc.Nodes, func(a, b api.FleetNode) int {
		return cmp.Or(slices.Compare(badness(&b), badness(&a)), cmp.Compare(a.Node, b.Node))
	})
}

// badness orders nodes: not answering, not seen whole or not ready, then by what was found.
func badness(n *api.FleetNode) []int {
	found, well := counts(n), true
	switch {
	case n.Status != nil:
		well = n.Status.Ready.OK && n.Status.Live.OK
	case n.Audit != nil:
		well = n.Audit.Vantage.Proven
	}
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return []int{flag(n.Error != ""), flag(!well), found["Conflict"] + found["Missing"], found["Leaked"] + found["Orphaned"] + found["Malformed"], found["Unknown"], found["Suspect"]}
}

// counts are what was found, by verdict.
func counts(n *api.FleetNode) map[string]int {
	switch {
	case n.Status != nil && n.Status.Seen != nil:
		return n.Status.Seen.Summary
	case n.Audit != nil:
		return n.Audit.Summary
	}
	return nil
}

// finish prints the document and says how to exit.
func (a *app) finish(doc *api.Fleet) error {
	var b []byte
	var err error
	switch a.output {
	case "json":
		b, err = json.MarshalIndent(doc, "", "  ")
		b = append(b, '\n')
	case "yaml":
		b, err = yaml.Marshal(doc)
	default:
		var text strings.Builder
		a.text(&text, doc)
		b = []byte(text.String())
	}
	if err != nil {
		return err
	}
	if _, err := a.stdout.Write(b); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	for _, n := range doc.Nodes {
		if n.Error != "" {
			fmt.Fprintf(a.stderr, "kubectl holdfast: %s: %s\n", report.Clean(n.Node), n.Error)
		}
	}
	if doc.Unanswered > 0 {
		fmt.Fprintf(a.stderr, "kubectl holdfast: %d of %d nodes did not answer: nothing is known of them\n", doc.Unanswered, len(doc.Nodes))
		return exit(exitError)
	}
	bad := func(n api.FleetNode) bool {
		found := 0
		for verdict, count := range counts(&n) {
			if verdict != "InUse" && verdict != "Held" {
				found += count
			}
		}
		return found > 0 || badness(&n)[1] > 0
	}
	if a.exitCode && slices.ContainsFunc(doc.Nodes, bad) {
		return exit(exitFinding)
	}
	return nil
}

func (a *app) text(w io.Writer, doc *api.Fleet) {
	switch {
	case doc.Query == "status":
		a.statusText(w, doc)
	case doc.Query == "audit":
		a.auditText(w, doc)
	default:
		first := true
		for _, n := range doc.Nodes {
			if n.Explanation == nil {
				continue
			}
			if !first {
				fmt.Fprintln(w)
			}
			first = false
			fmt.Fprintf(w, "On node %s:\n", report.Clean(n.Node))
			for i := range n.Explanation.Resources {
				_, _ = io.WriteString(w, report.Explain(&n.Explanation.Resources[i], n.Explanation.At))
			}
			for _, c := range report.Complaints(n.Explanation.Vantage, n.Explanation.Witnesses, nil) {
				fmt.Fprintln(w, report.Clean(c))
			}
		}
	}
}

func (a *app) statusText(w io.Writer, doc *api.Fleet) {
	rows := [][]string{{"NODE", "READY", "VERSION", "RESERVED", "CAPACITY", "LEAKED", "SUSPECT", "OTHER", "LAST SWEEP", "WHY"}}
	for _, n := range doc.Nodes {
		row := []string{n.Node, "?", "", "", "", "", "", "", "", n.Error}
		if s := n.Status; s != nil {
			row = []string{n.Node, "yes", s.Version, "", "", "", "", "", "none yet", ""}
			if !s.Ready.OK || !s.Live.OK {
				row[1] = "no"
				row[9] = strings.Join(append(s.Live.Reasons, s.Ready.Reasons...), "; ")
			}
			if s.Seen != nil {
				reserved, capacity := 0, uint64(0)
				for _, net := range s.Seen.Networks {
					reserved += net.Reserved
					capacity += net.Capacity
				}
				leaked, suspect := s.Seen.Summary["Leaked"], s.Seen.Summary["Suspect"]
				other := -leaked - suspect - s.Seen.Summary["InUse"]
				for _, count := range s.Seen.Summary {
					other += count
				}
				row[3], row[4] = strconv.Itoa(reserved), strconv.FormatUint(capacity, 10)
				row[5], row[6], row[7] = strconv.Itoa(leaked), strconv.Itoa(suspect), strconv.Itoa(other)
				row[8] = s.Seen.At.Local().Format(time.DateTime)
				for _, stop := range s.Seen.Stops {
					row[9] = strings.TrimPrefix(row[9]+"; releases of "+stop.Network+" are stopped: "+stop.Why, "; ")
				}
				if s.Seen.Failed != "" {
					row[9] = strings.TrimPrefix(row[9]+"; "+s.Seen.Failed, "; ")
				}
			}
		}
		rows = append(rows, row)
	}
	table(w, rows)
}

// maxInUse is how many addresses in use are shown of one node.
const maxInUse = 20

func (a *app) auditText(w io.Writer, doc *api.Fleet) {
	rows := [][]string{}
	most, hidden := maxInUse, 0
	if len(doc.Nodes) > 1 {
		most = 0
	}
	networks := [][]string{}
	total := map[string]int{}
	for _, n := range doc.Nodes {
		au := n.Audit
		if au == nil {
			continue
		}
		for verdict, count := range au.Summary {
			total[verdict] += count
		}
		list := au.Resources
		if a.output != "wide" {
			list = report.Fold(list, func(r api.Resource) (string, string) { return r.Kind, r.ContainerID })
			inUse := 0
			for _, r := range list {
				if r.Verdict == "InUse" {
					inUse++
				}
			}
			hidden += max(0, inUse-most)
		}
		header, found := report.AuditRows(pointers(list), au.At, a.output == "wide", most)
		if len(rows) == 0 {
			rows = append(rows, append([]string{"NODE"}, header...))
		}
		for _, row := range found {
			rows = append(rows, append([]string{n.Node}, row...))
		}
		t := report.NetworkTable(au.Networks)
		if len(networks) == 0 {
			networks = append(networks, append([]string{"NODE"}, t.Header...))
		}
		for _, row := range t.Rows {
			networks = append(networks, append([]string{n.Node}, row...))
		}
	}
	if len(rows) > 1 {
		table(w, rows)
	}
	if hidden > 0 {
		fmt.Fprintf(w, "and %d in use (-o wide shows all)\n", hidden)
	}
	if len(networks) > 1 {
		fmt.Fprintln(w)
		table(w, networks)
	}
	fmt.Fprintf(w, "\n%s\n", report.Counts(total))
	for _, n := range doc.Nodes {
		if n.Audit == nil {
			continue
		}
		for _, c := range report.Complaints(n.Audit.Vantage, n.Audit.Witnesses, n.Audit.Notes) {
			fmt.Fprintf(a.stderr, "kubectl holdfast: %s: %s\n", report.Clean(n.Node), report.Clean(c))
		}
	}
}

func pointers(list []api.Resource) iter.Seq[*api.Resource] {
	return func(yield func(*api.Resource) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

// table prints rows in columns. Their text is other programs', so it is cleaned.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = report.Clean(row[i])
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	_ = tw.Flush() // a strings.Builder
}
