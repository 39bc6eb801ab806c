package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// DefaultTimeout bounds one Ask when Config.Timeout is 0.
const DefaultTimeout = 10 * time.Second

// Reasons that name the way out.
const (
	noSocket  = "no container runtime socket found; name one with --cri-endpoint, or say --cri-endpoint none"
	noRuntime = "no container runtime answered; name one with --cri-endpoint, or say --cri-endpoint none"
)

// Config says which sockets to ask. The zero value of every field but Clock works.
type Config struct {
	// Endpoints are named by the operator: unix:///path or /path, or "none" alone.
	// Each is required.
	Endpoints []string
	// Source names where Endpoints came from, for errors; "--cri-endpoint" if empty.
	Source string
	// WellKnown are looked for; see DefaultEndpoints.
	WellKnown []string
	// Known have answered on this node before, from the state directory. Each is
	// required. One that cannot be parsed makes every testimony silent, since it
	// stood for a runtime.
	Known []string
	// Clock stamps testimonies. Required.
	Clock func() claim.Instant
	// Timeout bounds a whole Ask, over all runtimes; DefaultTimeout if 0.
	Timeout time.Duration
}

// Witness asks the container runtimes. Safe for concurrent use; questions to one
// runtime are asked one after the other. Close it when done.
type Witness struct {
	none      bool
	endpoints []*endpoint // sorted by path, one for each path
	badKnown  []string    // reasons
	clock     func() claim.Instant
	timeout   time.Duration

	mu     sync.Mutex // guards closed, every endpoint's answered and the putting back of slots
	closed bool
}

// endpoint is one path. Everything but answered is fixed.
type endpoint struct {
	path  string
	named bool
	known bool
	// answered: a runtime has answered here in the life of this Witness. From then on
	// it is required: a runtime that dies between judgement and re-check must silence
	// the re-check, even before anybody wrote it into Known.
	answered bool
	// look holds the turn to stat the path, and slot the turn to ask, with the link
	// that is kept for the next question, or nil. Whoever took one puts it back. A file
	// system that hangs keeps it, so that at most one thread hangs for each.
	look chan struct{}
	slot chan *link
}

// New checks the configuration and touches nothing. The error is an *EndpointError
// when it is about an endpoint.
func New(c Config) (*Witness, error) {
	if c.Clock == nil {
		return nil, errors.New("cri: Config.Clock is missing")
	}
	if c.Timeout < 0 {
		return nil, fmt.Errorf("cri: the timeout %s is negative", c.Timeout)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Source == "" {
		c.Source = "--cri-endpoint"
	}
	w := &Witness{clock: c.Clock, timeout: c.Timeout}
	named, none, err := parseNamed(c.Source, c.Endpoints)
	if err != nil {
		return nil, err
	}
	if none {
		w.none = true
		return w, nil
	}
	byPath := map[string]*endpoint{}
	at := func(path string) *endpoint {
		e, ok := byPath[path]
		if !ok {
			e = &endpoint{path: path, look: make(chan struct{}, 1), slot: make(chan *link, 1)}
			e.look <- struct{}{}
			e.slot <- nil
			byPath[path] = e
			w.endpoints = append(w.endpoints, e)
		}
		return e
	}
	for _, p := range named {
		at(p).named = true
	}
	for _, k := range c.Known {
		p, err := ParsePath(k)
		if err != nil {
			w.badKnown = append(w.badKnown, from("the list of known endpoints", err).Error())
			continue
		}
		at(p).known = true
	}
	for _, k := range c.WellKnown {
		p, err := ParsePath(k)
		if err != nil {
			return nil, from("the table of well-known endpoints", err)
		}
		at(p)
	}
	slices.SortFunc(w.endpoints, func(a, b *endpoint) int { return strings.Compare(a.path, b.path) })
	return w, nil
}

// Name returns claim.WitnessCRI.
func (w *Witness) Name() string { return claim.WitnessCRI }

// Close drops the kept connections. A question under way may fail by it; a later one
// is answered with silence. Never blocks.
func (w *Witness) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, e := range w.endpoints {
		select {
		case l := <-e.slot:
			l.close()
			e.slot <- nil
		default: // under way: putBack closes it
		}
	}
}

// putBack ends a turn.
func (w *Witness) putBack(e *endpoint, l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		l.close()
		l = nil
	}
	e.slot <- l
}

// Ask asks every runtime for its sandboxes, and with detail for the status of each.
// It returns within Config.Timeout and a little, whatever runtimes or file systems do.
//
// The testimony is complete, silent, or none (see the package comment). Also a silent
// one carries CRIFacts.Runtimes, with no sandboxes: doctor shows them, and the caller
// remembers those that are complete as Known.
func (w *Witness) Ask(ctx context.Context, detail bool) claim.Testimony {
	asked := w.clock()
	t := w.ask(ctx, detail)
	t.Witness, t.Asked = claim.WitnessCRI, asked
	if took, ok := w.clock().Since(asked); ok {
		t.Took = took
	}
	return t
}

func (w *Witness) ask(ctx context.Context, detail bool) claim.Testimony {
	if w.none {
		return claim.Testimony{State: claim.StateNone, Detail: "--cri-endpoint none: no container runtime is asked"}
	}
	w.mu.Lock()
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return claim.Testimony{State: claim.StateSilent, Detail: "the witness was closed"}
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()

	targets := w.locateAll(ctx)
	outcomes := each(ctx, targets, func(t target) outcome { return w.visitOne(ctx, t, detail) }, func(t target) outcome {
		return outcome{target: t, err: context.Cause(ctx)}
	})
	return w.unite(outcomes, detail)
}

// target is one socket file, by the path under which it is asked and reported.
type target struct {
	*endpoint
	aliases   []*endpoint // all of its paths, path itself included
	required  bool
	isNamed   bool
	wasKnown  bool
	locateErr error
}

// outcome is what came of one target.
type outcome struct {
	target
	answer answer
	err    error
}

// each runs f for every item at once (there are about a dozen) and returns in their
// order. An item that has not come back when ctx ends gets the value of late; its
// goroutine ends on its own.
func each[T, R any](ctx context.Context, items []T, f func(T) R, late func(T) R) []R {
	type indexed struct {
		i int
		r R
	}
	results := make(chan indexed, len(items))
	for i, item := range items {
		go func() { results <- indexed{i, f(item)} }()
	}
	out := make([]R, len(items))
	came := make([]bool, len(items))
	for range items {
		select {
		case r := <-results:
			out[r.i], came[r.i] = r.r, true
			continue
		default:
		}
		select {
		case r := <-results:
			out[r.i], came[r.i] = r.r, true
		case <-ctx.Done():
		}
	}
	for i := range items {
		if !came[i] {
			out[i] = late(items[i])
		}
	}
	return out
}

// locateAll stats every path and joins those that are the same socket file, such as
// /var/run and /run. A named path speaks for its socket, else a known one, else the
// first.
func (w *Witness) locateAll(ctx context.Context) []target {
	type place struct {
		e   *endpoint
		id  identity
		err error
	}
	// One hanging mount must leave the others time to answer, and not look as if
	// they hung too.
	ctx, cancel := context.WithTimeout(ctx, w.timeout/4)
	defer cancel()
	places := each(ctx, w.endpoints, func(e *endpoint) place {
		select {
		case <-e.look:
		case <-ctx.Done():
			return place{e: e, err: context.Cause(ctx)}
		}
		id, err := locate(e.path)
		e.look <- struct{}{}
		return place{e, id, err}
	}, func(e *endpoint) place { return place{e: e, err: context.Cause(ctx)} })

	w.mu.Lock()
	defer w.mu.Unlock()
	var out []target
	byFile := map[[2]uint64]int{}
	for _, p := range places {
		known := p.e.known || p.e.answered
		t := target{endpoint: p.e, aliases: []*endpoint{p.e}, isNamed: p.e.named, wasKnown: known, locateErr: p.err}
		if p.err == nil {
			file := [2]uint64{p.id.dev, p.id.ino}
			if i, ok := byFile[file]; ok {
				out[i] = join(out[i], t)
				continue
			}
			byFile[file] = len(out)
		}
		out = append(out, t)
	}
	for i := range out {
		out[i].required = out[i].isNamed || out[i].wasKnown
	}
	return out
}

func join(a, b target) target {
	speaker := a.endpoint
	if (b.named && !a.named) || (b.named == a.named && (b.known || b.answered) && !(a.known || a.answered)) {
		speaker = b.endpoint
	}
	return target{
		endpoint: speaker,
		aliases:  append(a.aliases, b.aliases...),
		isNamed:  a.isNamed || b.isNamed,
		wasKnown: a.wasKnown || b.wasKnown,
	}
}

// visitOne asks one target in its turn.
func (w *Witness) visitOne(ctx context.Context, t target, detail bool) outcome {
	o := outcome{target: t, err: t.locateErr}
	if o.err != nil {
		return o
	}
	var held *link
	select {
	case held = <-t.slot:
	case <-ctx.Done():
		o.err = context.Cause(ctx)
		return o
	}
	var keep *link
	o.answer, keep, o.err = visit(ctx, t.path, detail, held)
	if o.err == nil {
		w.mu.Lock()
		for _, e := range t.aliases {
			e.answered = true
		}
		w.mu.Unlock()
	}
	w.putBack(t.endpoint, keep)
	return o
}

// unite makes one testimony of all outcomes.
func (w *Witness) unite(outcomes []outcome, detail bool) claim.Testimony {
	slices.SortFunc(outcomes, func(a, b outcome) int { return strings.Compare(a.path, b.path) })
	facts := &claim.CRIFacts{Runtimes: []claim.Runtime{}, Sandboxes: []claim.Sandbox{}}
	reasons := slices.Clone(w.badKnown)
	var absent, spoken []string
	answered := 0
	for _, o := range outcomes {
		r := claim.Runtime{Endpoint: Scheme + o.path, Named: o.isNamed, Known: o.wasKnown}
		if o.err == nil {
			answered++
			r.State, r.Name, r.Version, r.PeerPID = claim.StateComplete, o.answer.name, o.answer.version, o.answer.peer
			r.PeerPIDNS = pidNamespace(o.answer.peer)
			r.Detail = summary(o.answer)
			facts.Sandboxes = append(facts.Sandboxes, o.answer.sandboxes...)
			spoken = append(spoken, fmt.Sprintf("%s %s at %s: %s", r.Name, r.Version, r.Endpoint, r.Detail))
			facts.Runtimes = append(facts.Runtimes, r)
			continue
		}
		text, proves := explain(o.err, w.timeout)
		if proves == provesNoPath && o.locateErr == nil {
			// It lay there a moment ago: a runtime that restarts unlinks and binds anew.
			text, proves = "disappeared while it was asked", provesNothing
		}
		switch {
		case !o.required && proves == provesNoPath:
			continue
		case !o.required && proves == provesNoServer:
			r.State, r.Detail = claim.StateNone, text
			absent = append(absent, r.Endpoint+" "+text)
		default:
			r.State, r.Detail = claim.StateSilent, text+why(o.target)
			reasons = append(reasons, r.Endpoint+": "+r.Detail)
		}
		facts.Runtimes = append(facts.Runtimes, r)
	}
	t := claim.Testimony{State: claim.StateSilent, CRI: facts}
	switch {
	case len(reasons) > 0:
		t.Detail = strings.Join(reasons, "; ")
	case len(facts.Runtimes) == 0:
		t.Detail = noSocket
	case answered == 0:
		t.Detail = noRuntime + " (" + strings.Join(absent, "; ") + ")"
	default:
		t.State = claim.StateComplete
		t.Detail = strings.Join(append(spoken, absent...), "; ")
		facts.Detailed = detail
		slices.SortFunc(facts.Sandboxes, compareSandboxes)
		return t
	}
	facts.Sandboxes = nil // half of an answer is none (I5)
	return t
}

// why says why a failure counts.
func why(t target) string {
	switch {
	case t.isNamed:
		return " (it is required: it was named)"
	case t.wasKnown:
		return " (it is required: it has answered here before)"
	}
	return " (it was found, and this does not prove that no runtime is behind it)"
}

func summary(a answer) string {
	text := fmt.Sprintf("%d sandboxes", len(a.sandboxes))
	if len(a.sandboxes) == 1 {
		text = "1 sandbox"
	}
	if a.noNetns > 0 {
		text += fmt.Sprintf(", %d without a netns path", a.noNetns)
	}
	if a.vanished > 0 {
		text += fmt.Sprintf(", %d gone when asked for details", a.vanished)
	}
	return text
}
