package logbook

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// Logbook is an agent.Observer.
type Logbook struct {
	log *slog.Logger
	// What the pass before was like, to tell of changes once.
	first      bool
	up         map[string]bool   // by witness; one that is not asked in each pass stays as it was
	vantage    string            // why the node was not seen whole
	unwritable string            // why the journal could not be written
	stops      map[string]bool   // by store
	busy       map[string]string // by store
	withheld   map[held]int
}

// held are addresses with which something was to be done and nothing was begun.
type held struct{ store, why string }

func heldBy(f *verdict.Finding, err error) held {
	if err == nil {
		return held{store: f.Resource.Store}
	}
	return held{f.Resource.Store, err.Error()}
}

// New writes to log.
func New(log *slog.Logger) *Logbook {
	return &Logbook{log: log, first: true, up: map[string]bool{}}
}

// Observe writes what is new in a pass.
func (l *Logbook) Observe(ctx context.Context, p *agent.Pass) {
	d := digest.Of(p)
	l.sees(ctx, d)
	for _, res := range p.Results {
		for i := range res.Released {
			l.released(ctx, p, res.Sweep, d, &res.Released[i])
		}
	}
	l.failures(ctx, p, d)
	l.stopped(ctx, p, d)
	for _, id := range slices.Sorted(maps.Keys(p.Undone)) {
		level := slog.LevelInfo
		if p.Undone[id] != journal.UndoRestored {
			level = slog.LevelWarn
		}
		l.log.LogAttrs(ctx, level, "undone", text("release", id), text("outcome", p.Undone[id]))
	}
	for i := range p.Adopted {
		if p.Adopted[i].ID == "" {
			continue // withheld
		}
		l.adopted(ctx, &p.Adopted[i], d)
	}
	for _, s := range p.Settled {
		attrs := []slog.Attr{text("release", s.ID), text("outcome", s.Outcome)}
		if r := s.Release; r != nil {
			attrs = append(attrs, network(d.NameOf(r.Store)), text("address", address(r.Addr.IsValid(), r.Addr.String())), text("path", r.Path), text("container", r.Owner.ID))
		}
		l.log.LogAttrs(ctx, slog.LevelInfo, "settled what was left half way", append(attrs, steps(s.Steps))...)
	}
	l.summary(ctx, p, d)
	l.first = false
}

// text is an attribute from the node, safe to print.
func text(key, value string) slog.Attr { return slog.String(key, report.Clean(value)) }

func address(valid bool, s string) string {
	if !valid {
		return ""
	}
	return s
}

func network(n digest.Name) slog.Attr {
	return slog.Group("", slog.String("network", n.Network), slog.String("data_dir", n.DataDir))
}

func pod(p claim.Pod) slog.Attr {
	if p.Name == "" && p.Namespace == "" {
		return slog.Attr{}
	}
	return slog.Group("pod", text("namespace", p.Namespace), text("name", p.Name), text("uid", p.UID))
}

func instant(key string, i claim.Instant) slog.Attr {
	if i.Boot == "" {
		return slog.Attr{}
	}
	return slog.Time(key, i.Wall)
}

type say struct {
	Witness string `json:"witness"`
	Word    string `json:"word"`
	Detail  string `json:"detail,omitempty"`
}

type step struct {
	Step   string `json:"step"`
	Object string `json:"object,omitempty"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

func steps(list []journal.StepResult) slog.Attr {
	if len(list) == 0 {
		return slog.Attr{}
	}
	out := make([]step, 0, len(list))
	for _, s := range list {
		out = append(out, step{report.Clean(s.Step), report.Clean(s.Object), report.Clean(s.State), report.Clean(s.Detail)})
	}
	return slog.Any("steps", out)
}

// evidence is everything that is known of a finding.
func evidence(f *verdict.Finding, d *digest.Digest) []slog.Attr {
	r := f.Resource
	says := make([]say, 0, len(f.Says))
	for _, s := range f.Says {
		says = append(says, say{report.Clean(s.Witness), report.Clean(string(s.Word)), report.Clean(s.About(r))})
	}
	return []slog.Attr{
		network(d.NameOf(r.Store)), text("kind", string(r.Kind)), text("address", address(r.Addr.IsValid(), r.Addr.String())),
		text("path", r.Path), text("container", r.Owner.ID), text("interface", r.Owner.IfName), pod(f.Pod),
		text("verdict", f.Verdict.String()), text("rule", f.Rule), text("why", f.Why), slog.Any("witnesses", says),
		instant("first_seen", f.First()), instant("absent_since", f.Absent()),
	}
}

func causeOf(p *agent.Pass, path string) slog.Attr {
	c, ok := p.Causes[path]
	if !ok {
		c.Kind = cause.Unknown
	}
	return slog.Group("cause", text("kind", string(c.Kind)), optional("plugin", c.Plugin), pod(c.Pod), optional("why", c.Why))
}

func optional(key, value string) slog.Attr {
	if value == "" {
		return slog.Attr{}
	}
	return text(key, value)
}

func failed(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return text("error", err.Error())
}

// failures writes what should have gone and did not. What was begun has a line each. With what
// is withheld nothing was begun: it may be thousands in every sweep for one reason, so it
// has one line for each reason, when that is new.
func (l *Logbook) failures(ctx context.Context, p *agent.Pass, d *digest.Digest) {
	now := map[held]int{}
	for i := range p.Adopted {
		if a := &p.Adopted[i]; a.ID == "" && a.Finding != nil {
			now[heldBy(a.Finding, a.Err)]++
		}
	}
	for _, res := range p.Results {
		for i := range res.Failed {
			f := &res.Failed[i]
			if f.ID == "" {
				now[heldBy(f.Finding, f.Err)]++
				continue
			}
			l.log.LogAttrs(ctx, slog.LevelWarn, "not released", slices.Concat([]slog.Attr{text("release", f.ID), text("sweep", res.Sweep), text("outcome", f.Outcome), failed(f.Err)},
				evidence(f.Finding, d), []slog.Attr{causeOf(p, f.Finding.Resource.Path), steps(f.Steps)})...)
		}
		for i := range res.Reprieved {
			r := &res.Reprieved[i]
			l.log.LogAttrs(ctx, slog.LevelWarn, "kept at the last moment", append([]slog.Attr{text("sweep", res.Sweep), text("now", r.Now.Verdict.String()), text("now_why", r.Now.Why)},
				evidence(r.Finding, d)...)...)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(now), func(a, b held) int { return cmp.Or(cmp.Compare(a.store, b.store), cmp.Compare(a.why, b.why)) }) {
		if _, told := l.withheld[k]; !told {
			l.log.LogAttrs(ctx, slog.LevelWarn, "withheld", network(d.NameOf(k.store)), slog.Int("resources", now[k]), text("error", k.why))
		}
	}
	l.withheld = now
}
