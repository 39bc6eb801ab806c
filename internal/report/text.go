package report

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Clean makes text from the node safe for a terminal: what is not plain printable text
// is escaped as in a Go string.
func Clean(s string) string {
	if isPlain(s) {
		return s
	}
	plain := utf8.ValidString(s)
	for _, r := range s {
		// Format characters turn text around (U+202E) or hide it.
		if !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// isPlain is the short cut for nearly all text: printable ASCII.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Table is rows of cells under a header; every cell is clean.
type Table struct {
	Header []string
	Rows   [][]string
	// Marks colour a row: the verdict's name, or "".
	Marks []string
}

// All gives the rows with their marks.
func (t Table) All() iter.Seq2[string, []string] {
	return func(yield func(mark string, row []string) bool) {
		for i, row := range t.Rows {
			mark := ""
			if i < len(t.Marks) {
				mark = t.Marks[i]
			}
			if !yield(mark, row) {
				return
			}
		}
	}
}

// FoldFindings is Fold for findings.
func FoldFindings(list []*verdict.Finding) []*verdict.Finding {
	return Fold(list, func(f *verdict.Finding) (string, string) { return string(f.Resource.Kind), f.Resource.Owner.ID })
}

// Fold leaves out what a table for people need not show beside an address: the cache
// files of a container whose reservation is listed too. of gives a resource's kind and
// container ID.
func Fold[T any](list []T, of func(T) (kind, id string)) []T {
	// Cache files are few where reservations are many: false until a reservation is met.
	addressed := map[string]bool{}
	for i := range list {
		if kind, id := of(list[i]); kind == string(claim.KindCache) && id != "" {
			addressed[id] = false
		}
	}
	if len(addressed) == 0 {
		return list
	}
	for i := range list {
		if kind, id := of(list[i]); kind == string(claim.KindReservation) {
			if _, ok := addressed[id]; ok {
				addressed[id] = true
			}
		}
	}
	out := make([]T, 0, len(list))
	for i := range list {
		if kind, id := of(list[i]); kind != string(claim.KindCache) || !addressed[id] {
			out = append(out, list[i])
		}
	}
	return out
}

// Summary counts findings by verdict.
func Summary(list []*verdict.Finding) map[string]int {
	m := map[string]int{}
	for _, f := range list {
		m[f.Verdict.String()]++
	}
	return m
}

// Resources are findings as AuditRows takes them.
func Resources(list []*verdict.Finding, now claim.Instant) iter.Seq[*api.Resource] {
	return func(yield func(*api.Resource) bool) {
		var r api.Resource
		for _, f := range list {
			if r = Brief(f, now); !yield(&r) {
				return
			}
		}
	}
}

// AuditRows is a table of resources for a tired person: worst first, what is in use last
// and, unless wide, at most maxInUse of it; wide adds columns. Its rows are made as they
// are asked for, each valid until the next one, and list's elements until the next: a full
// node's table needs no memory that way, although it is walked twice, for the widths of
// its columns and to be printed.
func AuditRows(list iter.Seq[*api.Resource], now time.Time, wide bool, maxInUse int) (header []string, rows iter.Seq2[string, []string]) {
	return auditHeader(wide), func(yield func(mark string, row []string) bool) {
		var row []string
		inUse := 0
		for r := range list {
			if r.Verdict == string(verdict.InUse) && !wide {
				if inUse++; inUse > maxInUse {
					continue
				}
			}
			row = auditRow(row[:0], r, now, wide)
			if !yield(r.Verdict, row) {
				return
			}
		}
	}
}

func auditHeader(wide bool) []string {
	if wide {
		return []string{"NETWORK", "ADDRESS", "OWNER", "IFNAME", "KIND", "AGE", "VERDICT", "RULE", "RELEASABLE", "STORE", "WHY"}
	}
	return []string{"NETWORK", "ADDRESS", "OWNER", "AGE", "VERDICT", "WHY"}
}

// auditRow appends the cells of auditHeader.
func auditRow(row []string, r *api.Resource, now time.Time, wide bool) []string {
	if wide {
		return append(row, Clean(r.Network), Object(r), Owner(r, true), Clean(r.IfName), Clean(r.Kind), Age(r.FirstSeen, now), r.Verdict, Clean(r.Rule), Due(r, now), Clean(r.Store), Clean(r.Why))
	}
	return append(row, Clean(r.Network), Object(r), Owner(r, false), Age(r.FirstSeen, now), r.Verdict, Clean(r.Why))
}

// Object is the address, or for what has none the last part of its path.
func Object(r *api.Resource) string {
	if r.Address != "" {
		return Clean(r.Address) // a zone is any text
	}
	return Clean(r.Kind) + " " + Clean(r.Path[strings.LastIndexByte(r.Path, '/')+1:])
}

// Owner is the Pod where known, else the container ID, shortened unless whole.
func Owner(r *api.Resource, whole bool) string {
	id := Clean(r.ContainerID)
	if !whole {
		id = firstRunes(id, 13)
	}
	if r.Pod != nil {
		name := Clean(r.Pod.Namespace) + "/" + Clean(r.Pod.Name)
		if whole {
			return name + " " + id
		}
		return name
	}
	if id == "" {
		return "-"
	}
	return id
}

func firstRunes(s string, most int) string {
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i]
		}
	}
	return s
}

// Age is how long ago something was first seen, in one unit.
func Age(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	d := max(now.Sub(*t), 0)
	switch {
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

// Due says when something becomes releasable.
func Due(r *api.Resource, now time.Time) string {
	switch {
	case r.Releasable:
		return "now"
	case r.ReleasableAt != nil:
		return "in " + r.ReleasableAt.Sub(now).Round(time.Second).String()
	}
	return "-"
}

// NetworkTable is the summary: one line per network.
func NetworkTable(list []api.Network) Table {
	t := Table{Header: []string{"NETWORK", "CAPACITY", "RESERVED", "IN USE", "LEAKED", "SUSPECT", "OTHER", "FREE", "DIRECTORY"}}
	for _, n := range list {
		capacity, free := "?", "?"
		if n.Capacity > 0 {
			capacity, free = strconv.FormatUint(n.Capacity, 10), strconv.FormatUint(n.Free, 10)
		}
		other := 0
		for _, v := range verdict.All() {
			if v != verdict.InUse && v != verdict.Leaked && v != verdict.Suspect {
				other += n.Verdicts[v.String()]
			}
		}
		reserved := strconv.Itoa(n.Reserved)
		if n.Problem != "" {
			reserved, free = "?", "?"
		}
		dir := Clean(n.Dir)
		if n.Problem != "" {
			dir += " (" + Clean(n.Problem) + ")"
		} else if !n.Writable {
			dir += " (read-only)"
		}
		t.Rows = append(t.Rows, []string{Clean(n.Name), capacity, reserved, strconv.Itoa(n.InUse), strconv.Itoa(n.Leaked), strconv.Itoa(n.Suspect), strconv.Itoa(other), free, dir})
		mark := ""
		if n.Leaked > 0 {
			mark = string(verdict.Leaked)
		}
		t.Marks = append(t.Marks, mark)
	}
	return t
}

// Counts is "3 Leaked, 20 InUse", worst first.
func Counts(summary map[string]int) string {
	var parts []string
	for _, v := range verdict.All() {
		if n := summary[v.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	if len(parts) == 0 {
		return "nothing found"
	}
	return strings.Join(parts, ", ")
}

// Complaints are the lines that must not be missed: what was silent, what was not seen.
func Complaints(v api.Vantage, witnesses []api.Witness, notes []api.Note) []string {
	var out []string
	if !v.Proven {
		out = append(out, "no vantage: "+Clean(v.Detail)+". Nothing is released; `holdfast doctor` says what to do.")
	}
	for _, w := range witnesses {
		if w.Required && w.State != "complete" {
			out = append(out, fmt.Sprintf("witness %s is silent: %s. What it could speak for is kept.", Clean(w.Name), Clean(w.Detail)))
		}
	}
	const most = 10
	for i, n := range notes {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more (-o json shows all)", len(notes)-most))
			break
		}
		out = append(out, Clean(n.Path)+": "+Clean(n.Text))
	}
	return slices.Clip(out)
}

// stampWords is what holdfast-ipam wrote beside a reservation, in plain words.
func stampWords(st *api.Stamp) string {
	text := "reserved by holdfast-ipam in boot " + Clean(st.BootID) + ", which is not this one"
	if st.Age != "" {
		text = "reserved by holdfast-ipam " + Clean(st.Age) + " ago, in this boot"
	}
	if st.NetnsID != 0 {
		text += fmt.Sprintf(", for network namespace net:[%d]", st.NetnsID)
	}
	return text
}

// Explain is the whole reasoning for one resource, in plain words.
func Explain(e *api.ExplainedItem, now time.Time) string {
	r := &e.Resource
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "  %-13s %s\n", label, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "%s: %s\n", Object(r), r.Verdict)
	line("because", "%s (rule %s)", Clean(r.Why), Clean(r.Rule))
	if r.Network != "" {
		line("network", "%s", Clean(r.Network))
	}
	line("owner", "%s", Owner(r, true))
	if r.IfName != "" {
		line("interface", "%s", Clean(r.IfName))
	}
	line("kept in", "%s", Clean(r.Path))
	if r.Stamp != nil {
		line("stamp", "%s", stampWords(r.Stamp))
	}
	if r.FirstSeen != nil {
		line("first seen", "%s, %s ago", r.FirstSeen.UTC().Format(time.RFC3339), Age(r.FirstSeen, now))
	}
	if r.AbsentSince != nil {
		line("absent since", "%s, %s ago", r.AbsentSince.UTC().Format(time.RFC3339), Age(r.AbsentSince, now))
	}
	switch {
	case r.Releasable:
		line("releasable", "now: `holdfast gc` asks every witness once more and then releases it")
	case r.ReleasableAt != nil:
		line("releasable", "at %s, %s, if every witness still says absent then", r.ReleasableAt.UTC().Format(time.RFC3339), Due(r, now))
	default:
		line("releasable", "no")
	}
	b.WriteString("  what the witnesses said\n")
	for _, s := range r.Says {
		fmt.Fprintf(&b, "    %-9s %-7s %s\n", Clean(s.Witness), Clean(s.Word), Clean(s.Detail))
	}
	if len(e.Plan) > 0 {
		b.WriteString("  what a release would do, in this order\n")
		for _, s := range e.Plan {
			fmt.Fprintf(&b, "    %-12s %s (%s)\n", Clean(s.Step), Clean(s.Object), Clean(s.Inverse))
		}
	}
	if len(e.Releases) > 0 {
		b.WriteString("  the journal\n")
		for _, j := range e.Releases {
			fmt.Fprintf(&b, "    %s  %s  %s  %s\n", j.ReleaseID, j.At.UTC().Format(time.RFC3339), Clean(j.State), Clean(j.Why))
		}
	}
	return b.String()
}
