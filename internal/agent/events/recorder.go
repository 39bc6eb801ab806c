package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent/digest"
)

const (
	// period is the least time between two writes for one object and reason.
	period = 10 * time.Minute
	// burst writes may go at once, then one in each refill.
	burst  = 10
	refill = 6 * time.Second
	// maxEntries is how many pairs of object and reason are known at a time.
	maxEntries = 256
	// maxDetails is how many details one event counts apart, shown how many it names.
	maxDetails, shown = 32, 4
	// callTime bounds one call of the sink.
	callTime = 10 * time.Second
	// backoff is the first wait after the sink failed; it doubles up to period.
	backoff = 15 * time.Second
	// reuse is how long an event is patched before a new one is made: the API server
	// forgets events after an hour, by default.
	reuse = 45 * time.Minute
	// forget is how long an entry that says nothing any more is kept.
	forget = time.Hour
	// maxMessage is what the API takes, in bytes.
	maxMessage = 1024
)

// Object is what an event is about.
type Object struct{ Kind, Namespace, Name, UID string }

// Event is a core/v1 Event as far as we fill it in. Its texts are safe to print.
type Event struct {
	// Namespace and Name are of the event itself.
	Namespace, Name string
	Object          Object
	Warning         bool // else Normal
	Reason, Message string
	Count           int
	First, Last     time.Time
}

// ErrNotFound: there is no such event any more; it is made anew.
var ErrNotFound = errors.New("no such event")

// Sink writes events. Both calls end when ctx does.
type Sink interface {
	// Create makes an event.
	Create(ctx context.Context, e Event) error
	// Patch sets Count, Message and Last of an event that was made before. ErrNotFound when it
	// is not there.
	Patch(ctx context.Context, e Event) error
}

// Stats are what became of the occurrences and writes since the start.
type Stats struct {
	Sent       int // writes that the API took
	Aggregated int // occurrences that were counted into an event of others
	Dropped    int // occurrences for which there was no room
	Failed     int // writes that the API refused or did not answer
}

// Options say for which node, and where to.
type Options struct {
	Node string
	Sink Sink
}

// Recorder is an agent.Observer that turns passes into events. Observe never waits; Run
// writes. Their methods may be called concurrently.
type Recorder struct {
	opt  Options
	wake chan struct{}

	mu      sync.Mutex
	entries map[key]*entry
	writing *entry // is with the sink
	tidied  time.Time
	stats   Stats
	seq     int
	watch   watch
}

type key struct {
	object Object
	reason string
}

// entry is one event in the making.
type entry struct {
	key
	warning bool
	head    string
	pending batch // what is not written yet
	total   int   // occurrences of the event that is written
	first   time.Time
	last    time.Time
	due     time.Time // no write before
	wait    time.Duration
	name    string // of the event that was made; empty when there is none
	made    time.Time
}

// batch is what came between two writes.
type batch struct {
	n       int
	details []detail
}

// detail is one thing that is told apart, counted; or what is known last of a subject.
type detail struct {
	subject, text string
	n             int
}

func (b *batch) add(d detail) {
	i := slices.IndexFunc(b.details, func(o detail) bool { return o.subject == d.subject && (d.subject != "" || o.text == d.text) })
	switch {
	case d.text == "":
	case i >= 0 && d.subject != "":
		b.details[i].text = d.text
	case i >= 0:
		b.details[i].n += d.n
	case len(b.details) < maxDetails:
		b.details = append(b.details, d)
	}
}

// New makes a recorder; nothing is written until Run.
func New(opt Options) *Recorder {
	return &Recorder{opt: opt, wake: make(chan struct{}, 1), entries: map[key]*entry{}, watch: newWatch()}
}

// Stats may be called at any time.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// note is something that happened n times. In head, "%d" stands for their number. What is said of
// a subject replaces what was said of it before; without one, equal details are counted.
type note struct {
	object          Object
	reason          string
	warning         bool
	head            string
	subject, detail string
	n               int
}

// add counts a note. The caller holds the lock.
func (r *Recorder) add(now time.Time, n note) {
	k := key{n.object, n.reason}
	e := r.entries[k]
	if e == nil {
		if len(r.entries) >= maxEntries && now.Sub(r.tidied) > time.Minute {
			r.tidy(now)
		}
		if len(r.entries) >= maxEntries {
			r.stats.Dropped += n.n
			return
		}
		e = &entry{key: k}
		r.entries[k] = e
	}
	// All but the first of what is not written yet is told by a count.
	r.stats.Aggregated += n.n
	if e.pending.n == 0 {
		r.stats.Aggregated--
	}
	e.warning, e.head, e.last = n.warning, n.head, now
	if e.total == 0 && e.pending.n == 0 {
		e.first = now
	}
	e.pending.n += n.n
	e.pending.add(detail{digest.Text(n.subject), digest.Text(n.detail), n.n})
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// tidy forgets what says nothing any more.
func (r *Recorder) tidy(now time.Time) {
	r.tidied = now
	for k, e := range r.entries {
		if e.pending.n == 0 && e != r.writing && now.Sub(e.last) > forget {
			delete(r.entries, k)
		}
	}
}

// Run writes events until ctx ends. It is called once.
func (r *Recorder) Run(ctx context.Context) {
	tokens, filled := burst, time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
		for {
			now := time.Now()
			if n := int(now.Sub(filled) / refill); n > 0 {
				tokens, filled = min(burst, tokens+n), filled.Add(time.Duration(n)*refill)
			}
			e, next := r.next(now)
			if e == nil {
				timer.Reset(next)
				break
			}
			if tokens == 0 {
				timer.Reset(filled.Add(refill).Sub(now))
				break
			}
			tokens--
			r.write(ctx, e, now)
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// next is what has been due for longest; else how long until something is.
func (r *Recorder) next(now time.Time) (best *entry, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = period
	for _, e := range r.entries {
		if e.pending.n == 0 {
			continue
		}
		if d := e.due.Sub(now); d > 0 {
			wait = min(wait, d)
		} else if best == nil || before(e, best) {
			best = e
		}
	}
	return best, wait
}

// before orders what is due: the Node's, of which there are few, before those of many Pods,
// then who has waited for longest.
func before(a, b *entry) bool {
	if node := a.object.Kind == "Node"; node != (b.object.Kind == "Node") {
		return node
	}
	return cmp.Or(a.due.Compare(b.due), a.first.Compare(b.first), cmp.Compare(a.reason, b.reason), cmp.Compare(a.object.Name, b.object.Name)) < 0
}

// event says what to write of e now. The caller holds the lock.
func (r *Recorder) event(e *entry, now time.Time) (ev Event, create bool) {
	if e.name != "" && now.Sub(e.made) > reuse {
		e.name, e.total, e.first = "", 0, e.last
	}
	create = e.name == ""
	name := e.name
	if create {
		r.seq++
		// As client-go names them: the object, a dot, hex digits.
		name = fmt.Sprintf("%s.%x%04x", strings.TrimRight(e.object.Name[:min(len(e.object.Name), 200)], ".-"), now.UnixNano(), r.seq%0x10000)
	}
	return Event{
		Namespace: cmp.Or(e.object.Namespace, "default"), Name: name, Object: e.object, Warning: e.warning, Reason: e.reason,
		Message: message(e.head, e.pending), Count: e.total + e.pending.n, First: e.first, Last: e.last,
	}, create
}

// message names the most frequent details.
func message(head string, b batch) string {
	head = strings.Replace(head, "%d", strconv.Itoa(b.n), 1)
	list := slices.Clone(b.details)
	slices.SortStableFunc(list, func(a, b detail) int { return cmp.Compare(b.n, a.n) })
	var parts []string
	for _, d := range list[:min(shown, len(list))] {
		switch {
		case d.subject != "":
			parts = append(parts, d.subject+": "+d.text)
		case len(list) == 1:
			parts = append(parts, d.text)
		default:
			parts = append(parts, fmt.Sprintf("%s (%d)", d.text, d.n))
		}
	}
	if more := len(list) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	if len(parts) > 0 {
		head += ": " + strings.Join(parts, "; ")
	}
	return digest.Clip(head, maxMessage)
}

// write calls the sink, without the lock, and takes what came of it. Only Run calls it.
func (r *Recorder) write(ctx context.Context, e *entry, now time.Time) {
	r.mu.Lock()
	ev, create := r.event(e, now)
	sent := e.pending
	e.pending, r.writing = batch{}, e
	r.mu.Unlock()

	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var err error
	if create {
		err = r.opt.Sink.Create(call, ev)
	} else {
		err = r.opt.Sink.Patch(call, ev)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	now, r.writing = time.Now(), nil
	if err == nil {
		r.stats.Sent++
		if create {
			e.made = now
		}
		e.name, e.total, e.due, e.wait = ev.Name, ev.Count, now.Add(period), 0
		return
	}
	// What came meanwhile is added to what was not written.
	for _, d := range e.pending.details {
		sent.add(d)
	}
	sent.n += e.pending.n
	e.pending = sent
	if !create && errors.Is(err, ErrNotFound) {
		e.name, e.total = "", 0
		return
	}
	r.stats.Failed++
	e.wait = min(max(backoff, 2*e.wait), period)
	e.due = now.Add(e.wait)
}
