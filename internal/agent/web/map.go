package web

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Map is an observer that remembers the latest look as the document of the page: some
// bytes for each address. The zero value is ready.
type Map struct {
	now atomic.Pointer[drawn]
}

// drawn is one document, encoded.
type drawn struct {
	tag  string
	seq  uint64
	body []byte
}

var _ agent.Observer = (*Map)(nil)

// Observe draws a pass. One that could not look leaves what was seen before, and says so.
func (m *Map) Observe(_ context.Context, p *agent.Pass) {
	old := m.now.Load()
	d := &drawn{seq: 1}
	if old != nil {
		d.seq = old.seq + 1
	}
	var doc *api.Map
	switch {
	case p.Audit != nil:
		doc = report.Map(&p.Audit.Case, p.Audit.Judgement, report.Meta{Node: p.Node, Took: p.Audit.Took}, after(p))
		doc.Trigger = string(p.Trigger)
	case old != nil:
		doc = old.decode()
	default:
		none := &verdict.Case{Now: claim.Instant{Boot: p.Started.Boot, Mono: p.Started.Mono, Wall: p.Started.Wall}}
		doc = report.Map(none, verdict.Judge(none), report.Meta{Node: p.Node}, after(p))
		doc.Vantage = api.Vantage{Detail: "the node was not looked at yet"}
	}
	if p.Err != nil {
		at := p.Started.Wall
		doc.Failed, doc.FailedAt = report.Clean(p.Err.Error()), &at
	}
	doc.Sequence = d.seq
	var err error
	if d.body, err = json.Marshal(doc); err != nil {
		return // plain values only: it cannot fail
	}
	// The number begins again with the agent.
	d.tag = fmt.Sprintf(`"%d-%d"`, p.Started.Mono.Milliseconds(), d.seq)
	m.now.Store(d)
}

// latest is nil before the first pass.
func (m *Map) latest() *drawn { return m.now.Load() }

func (d *drawn) decode() *api.Map {
	doc := &api.Map{}
	_ = json.Unmarshal(d.body, doc) // our own
	return doc
}

// after is what a pass did to what it had seen.
func after(p *agent.Pass) report.After {
	a := report.After{Gone: map[string]bool{}, Back: map[string]bool{}, Stops: p.Stops, Busy: p.Busy, Causes: p.Causes}
	for _, r := range p.Results {
		for i := range r.Released {
			f := r.Released[i].Finding
			a.Gone[f.Resource.Path] = true
		}
	}
	for i := range p.Adopted {
		if ad := &p.Adopted[i]; ad.Err == nil && ad.Finding != nil && ad.Outcome == journal.AdoptAdopted {
			a.Back[ad.Finding.Resource.Path] = true
		}
	}
	return a
}
