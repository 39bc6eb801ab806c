package web

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/sweep"
)

// between is the least time from the end of one look to the beginning of the next.
const between = time.Second

// looks makes looks at the node for whoever asks, one at a time: who comes during one,
// or shortly after it, gets that one. Nothing is kept longer.
type looks struct {
	fresh func(ctx context.Context) (*sweep.Audit, error)
	most  time.Duration

	mu  sync.Mutex
	now *flight
}

// flight is one look. au and err are set before done is closed.
type flight struct {
	done chan struct{}
	au   *sweep.Audit
	err  error
}

// errSlow: the look takes too long to be waited for.
var errSlow = errors.New("it takes too long; ask again")

// get waits for a look until ctx ends, or as long as a look may take.
func (l *looks) get(ctx context.Context) (*sweep.Audit, error) {
	l.mu.Lock()
	f := l.now
	if f == nil {
		f = &flight{done: make(chan struct{})}
		l.now = f
		go l.fly(f)
	}
	l.mu.Unlock()
	t := time.NewTimer(l.most)
	defer t.Stop()
	select {
	case <-f.done:
		return f.au, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.C:
		return nil, errSlow
	}
}

// fly looks for all who wait, so nobody who goes away ends it.
func (l *looks) fly(f *flight) {
	ctx, stop := context.WithTimeout(context.Background(), l.most)
	defer stop()
	f.au, f.err = l.fresh(ctx)
	close(f.done)
	time.AfterFunc(between, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.now = nil
	})
}
