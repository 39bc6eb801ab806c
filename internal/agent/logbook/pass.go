package logbook

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// sees writes what has changed of what the agent sees and can write.
func (l *Logbook) sees(ctx context.Context, d *digest.Digest) {
	changed := func(was, is string, bad, good string) {
		switch {
		case is != "" && was == "":
			l.log.LogAttrs(ctx, slog.LevelWarn, bad, slog.String("why", is))
		case is == "" && was != "":
			l.log.LogAttrs(ctx, slog.LevelInfo, good)
		}
	}
	changed(l.unwritable, d.Unwritable, "the journal cannot be written, so nothing is released", "the journal can be written again")
	l.unwritable = d.Unwritable
	if !d.Seen {
		return
	}
	changed(l.vantage, d.Vantage, "the node is not seen whole, so nothing is released", "the node is seen whole again")
	l.vantage = d.Vantage
	for _, w := range d.Witnesses {
		was, known := l.up[w.Name]
		l.up[w.Name] = w.Up
		attrs := []slog.Attr{slog.String("witness", w.Name), slog.Bool("required", w.Required)}
		switch {
		case !w.Up && (was || !known):
			l.log.LogAttrs(ctx, slog.LevelWarn, "a witness is silent", append(attrs, slog.String("why", w.Why))...)
		case w.Up && known && !was:
			l.log.LogAttrs(ctx, slog.LevelInfo, "a witness speaks again", attrs...)
		case w.Up && !known:
			l.log.LogAttrs(ctx, slog.LevelInfo, "a witness speaks", attrs...)
		}
	}
}

func (l *Logbook) released(ctx context.Context, p *agent.Pass, run string, d *digest.Digest, r *sweep.Released) {
	l.log.LogAttrs(ctx, slog.LevelInfo, "released", slices.Concat([]slog.Attr{text("release", r.ID), text("sweep", run)},
		evidence(r.Finding, d), []slog.Attr{causeOf(p, r.Finding.Resource.Path), steps(r.Steps), failed(r.Err)})...)
}

// stopped writes which lines were stopped, and which go again.
func (l *Logbook) stopped(ctx context.Context, p *agent.Pass, d *digest.Digest) {
	now := map[string]bool{}
	for _, s := range slices.Concat(p.Stopped, p.Stops) {
		again := slices.ContainsFunc(p.Stopped, func(o line.Stop) bool { return o.Store == s.Store })
		if !now[s.Store] && (again || !l.stops[s.Store]) {
			l.log.LogAttrs(ctx, slog.LevelError, "releases are stopped", network(d.NameOf(s.Store)), text("store", s.Store), text("why", s.Why),
				instant("since", s.Since), slog.Any("releases", cleaned(s.ReleaseIDs)))
		}
		now[s.Store] = true
	}
	for _, store := range slices.Sorted(maps.Keys(l.stops)) {
		if !now[store] {
			why := "nobody says why"
			if i := slices.IndexFunc(p.Resumed, func(e line.Ended) bool { return e.Store == store }); i >= 0 {
				why = p.Resumed[i].Reason
			}
			l.log.LogAttrs(ctx, slog.LevelInfo, "releases go on", network(d.NameOf(store)), text("store", store), text("why", why))
		}
	}
	l.stops = now
	for _, store := range slices.Sorted(maps.Keys(p.Busy)) {
		if why := p.Busy[store]; l.busy[store] != why {
			l.log.LogAttrs(ctx, slog.LevelWarn, "another reaper is at work", network(d.NameOf(store)), text("store", store), text("why", why))
		}
	}
	for _, store := range slices.Sorted(maps.Keys(l.busy)) {
		if _, still := p.Busy[store]; !still {
			l.log.LogAttrs(ctx, slog.LevelInfo, "this is the reaper now", network(d.NameOf(store)), text("store", store))
		}
	}
	l.busy = maps.Clone(p.Busy)
}

func cleaned(list []string) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, digest.Text(s))
	}
	return out
}

func (l *Logbook) adopted(ctx context.Context, a *sweep.Adopted, d *digest.Digest) {
	level, msg := slog.LevelInfo, "adopted"
	if !digest.Adopted(a.Outcome) {
		level, msg = slog.LevelWarn, "not adopted"
	}
	attrs := []slog.Attr{optional("release", a.ID), text("outcome", a.Outcome), failed(a.Err)}
	if a.Finding != nil {
		attrs = append(attrs, evidence(a.Finding, d)...)
	}
	l.log.LogAttrs(ctx, level, msg, attrs...)
}

// summary is one line for a sweep; at debug level when nothing was done.
func (l *Logbook) summary(ctx context.Context, p *agent.Pass, d *digest.Digest) {
	count := struct{ released, failed, reprieved, withheld, adopted int }{}
	for _, res := range p.Results {
		count.released += len(res.Released)
		count.reprieved += len(res.Reprieved)
		for i := range res.Failed {
			if res.Failed[i].ID == "" {
				count.withheld++
			} else {
				count.failed++
			}
		}
	}
	for i := range p.Adopted {
		if digest.Adopted(p.Adopted[i].Outcome) {
			count.adopted++
		}
	}
	if p.Plan != nil {
		count.withheld += len(p.Plan.Withheld)
	}
	level, msg := slog.LevelDebug, "swept"
	if l.first || count.released+count.failed+count.reprieved+len(p.Undone)+count.adopted+len(p.Stopped)+len(p.Settled) > 0 {
		level = slog.LevelInfo
	}
	if p.Err != nil {
		level, msg = slog.LevelError, "the sweep failed"
	}
	if !l.log.Enabled(ctx, level) {
		return
	}
	var reserved, leaked, suspect int
	for i := range d.Networks {
		n := &d.Networks[i]
		reserved += n.Reserved
		leaked += n.Count(verdict.Leaked) + n.Count(verdict.Orphaned)
		suspect += n.Count(verdict.Suspect)
	}
	l.log.LogAttrs(ctx, level, msg, text("node", p.Node), text("trigger", string(p.Trigger)), slog.Float64("seconds", p.Took.Round(time.Microsecond).Seconds()), failed(p.Err),
		slog.Int("networks", d.Found), slog.Int("reserved", reserved), slog.Int("leaked", leaked), slog.Int("suspect", suspect),
		slog.Int("released", count.released), slog.Int("failed", count.failed), slog.Int("reprieved", count.reprieved), slog.Int("withheld", count.withheld),
		slog.Int("undone", len(p.Undone)), slog.Int("adopted", count.adopted), slog.Int("stopped", len(p.Stops)))
}
