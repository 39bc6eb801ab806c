package report

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// maxExplained bounds how much one query may mean.
const maxExplained = 500

// What is wrong with a query; a *QueryError holds one of them.
var (
	ErrNothing   = errors.New("nothing matches")
	ErrAmbiguous = errors.New("not unique")
	ErrTooMany   = errors.New("too many match")
)

// QueryError says why there is nothing to explain.
type QueryError struct {
	Query string
	// Why is the whole sentence, for people.
	Why string
	Err error
}

func (e *QueryError) Error() string { return e.Why }
func (e *QueryError) Unwrap() error { return e.Err }

// Explanation picks what the query means, an address, a container ID or a unique prefix of
// one, or namespace/pod, and says all of it. entries are the journal, oldest first. What
// matches nothing is a *QueryError.
func Explanation(c *verdict.Case, j *verdict.Judgement, entries []api.JournalEntry, m Meta, query string) (*api.Explanation, error) {
	found, err := Match(j, query)
	if err != nil {
		return nil, err
	}
	if len(found) > maxExplained {
		why := fmt.Sprintf("%q: %d resources match, more than %d; name one by its address or container ID", query, len(found), maxExplained)
		return nil, &QueryError{Query: query, Why: why, Err: ErrTooMany}
	}
	doc := &api.Explanation{
		TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindExplanation},
		Node:     m.Node, At: c.Now.Wall, Query: query, Vantage: Vantage(c, j), Witnesses: Witnesses(c, j), Resources: []api.ExplainedItem{},
	}
	for _, f := range found {
		item := explained(f, c.Now, entries)
		if f.Releasable || f.Wait > 0 {
			item.Plan = planFor(j, f)
		}
		doc.Resources = append(doc.Resources, item)
	}
	if len(found) > 0 {
		return doc, nil
	}
	return nil, &QueryError{Query: query, Why: nothing(entries, query), Err: ErrNothing}
}

// Explained explains every finding of the networks, worst first, one at a time.
func Explained(c *verdict.Case, j *verdict.Judgement, networks []string, entries []api.JournalEntry) iter.Seq[*api.ExplainedItem] {
	return func(yield func(*api.ExplainedItem) bool) {
		plans := map[*claim.Resource][]api.PlannedStep{}
		for _, g := range groups(j, func(*verdict.Finding) bool { return true }) {
			steps := Planned(g)
			for _, f := range g.Findings {
				plans[f.Resource] = steps
			}
		}
		for _, f := range Sorted(j, networks) {
			item := explained(f, c.Now, entries)
			if f.Releasable || f.Wait > 0 {
				item.Plan = plans[f.Resource]
			}
			if !yield(&item) {
				return
			}
		}
	}
}

func explained(f *verdict.Finding, now claim.Instant, entries []api.JournalEntry) api.ExplainedItem {
	item := api.ExplainedItem{Resource: Resource(f, now)}
	if item.Address == "" {
		return item
	}
	for _, e := range entries {
		// The journal keeps a reservation's path, whose directory is the store.
		if e.Address == item.Address && path.Dir(e.Path) == f.Resource.Store {
			item.Releases = append(item.Releases, e)
		}
	}
	return item
}

// nothing says what is known of what is not there.
func nothing(entries []api.JournalEntry, query string) string {
	addr, err := netip.ParseAddr(query)
	if err != nil {
		return fmt.Sprintf("%q: nothing on this node matches; want an address, a container ID or a unique prefix of one, or namespace/pod", query)
	}
	// Released and gone: the journal still knows it.
	for _, e := range slices.Backward(entries) {
		if e.Address == addr.Unmap().String() {
			return fmt.Sprintf("%s is not reserved; it was released as %s at %s (holdfast journal %s)", addr, e.ReleaseID, e.At.UTC().Format(time.RFC3339), e.ReleaseID)
		}
	}
	return fmt.Sprintf("%s is not reserved here, and it was never released", addr)
}

// planFor is what a release of f and what goes with it would do.
func planFor(j *verdict.Judgement, f *verdict.Finding) []api.PlannedStep {
	var out []api.PlannedStep
	same := func(g *verdict.Finding) bool {
		return g.Resource == f.Resource || g.Resource.Owner.ID != "" && g.Resource.Owner == f.Resource.Owner
	}
	for _, g := range groups(j, same) {
		out = append(out, Planned(g)...)
	}
	return out
}

// groups plans the release of what may go now or later, of those that want is true for.
func groups(j *verdict.Judgement, want func(*verdict.Finding) bool) []plan.Group {
	// All of them are there, so that the plan knows a bridge from a Pod's veth.
	whole := verdict.Judgement{Findings: slices.Clone(j.Findings)}
	for i := range whole.Findings {
		g := &whole.Findings[i]
		g.Releasable = (g.Releasable || g.Wait > 0) && want(g)
	}
	return plan.Make(&whole, plan.Options{ForceOverCap: true}).Groups
}

// Match finds what a query names, worst first: an address in any spelling, a namespace/pod,
// or a whole container ID or a prefix of exactly one. Nothing is no error.
func Match(j *verdict.Judgement, query string) ([]*verdict.Finding, error) {
	var out []*verdict.Finding
	all := Sorted(j, nil)
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
		why := fmt.Sprintf("%q: not unique: %d containers begin with it", query, len(ids))
		return nil, &QueryError{Query: query, Why: why, Err: ErrAmbiguous}
	}
	for _, f := range all {
		if ids[f.Resource.Owner.ID] {
			out = append(out, f)
		}
	}
	return out, nil
}
