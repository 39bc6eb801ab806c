package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// The waits of a brake, before they are spread by half to either side.
const (
	firstRest   = 5 * time.Second
	longestRest = 5 * time.Minute
)

// brake keeps a question from an API server that has too much to do: thousands of nodes ask the
// same one. Until it lets go, the witness is silent.
type brake struct {
	since claim.Instant
	rest  time.Duration // from since on; 0: none
	next  time.Duration // the wait after that, before it is spread
	why   string
}

// braked is ask, unless the API server is to be left alone. That asker had no more time, as who
// heals a full network has little, says nothing of the API server: only Config.Timeout does.
func (w *Witness) braked(ctx, asker context.Context, now claim.Instant) (*claim.KubeFacts, error) {
	w.mu.Lock()
	b := w.brake
	w.mu.Unlock()
	if d, ok := now.Since(b.since); ok && d < b.rest {
		return nil, fmt.Errorf("the API server is not asked again for %s, since it has too much to do: %s", (b.rest - d).Round(time.Second), b.why)
	}
	facts, err := w.ask(ctx, now)
	w.mu.Lock()
	defer w.mu.Unlock()
	if after, ok := overloaded(err); ok && (asker.Err() == nil || !errors.Is(err, context.DeadlineExceeded)) {
		w.brake.pull(w.c.Clock(), after, w.c.Rand(), err)
	} else if err == nil {
		w.brake = brake{}
	}
	return facts, err
}

// pull begins a rest: what the API server asked for and more, longer each time, and not the same
// on two nodes.
func (b *brake) pull(now claim.Instant, asked time.Duration, random float64, err error) {
	b.next = min(max(2*b.next, firstRest), longestRest)
	b.rest = min(asked, longestRest) + time.Duration(float64(b.next)*(0.5+random))
	b.since, b.why = now, printable(err.Error(), 300)
}

// overloaded reports whether an error says that the API server has too much to do, and how long
// it wants to be left alone.
func overloaded(err error) (time.Duration, bool) {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second, true
	}
	return 0, apierrors.IsTooManyRequests(err) || errors.Is(err, context.DeadlineExceeded)
}
