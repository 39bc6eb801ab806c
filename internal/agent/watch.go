package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Watcher wakes an agent when names come and go in the stores. It proves nothing: what it
// misses the next sweep sees, and what it sees only brings that sweep sooner.
type Watcher struct {
	fill  *Fill
	wake  func(Trigger)
	inner *fsnotify.Watcher
}

// NewWatcher begins to watch. An error means that inotify is not to be had here; the agent
// does without.
func NewWatcher(fill *Fill, wake func(Trigger)) (*Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return &Watcher{fill: fill, wake: wake, inner: w}, nil
}

// Observe watches the stores of the pass, and the directories that hold them. What is gone the
// kernel no longer watches by itself.
func (w *Watcher) Observe(_ context.Context, p *Pass) {
	if p.Audit == nil {
		return
	}
	for i := range p.Audit.Case.Snapshots {
		for _, st := range p.Audit.Case.Snapshots[i].Stores {
			for _, dir := range []string{st.Dir, st.DataDir} {
				// Asked for again each time: a directory that was made anew is another one.
				if dir != "" {
					_ = w.inner.Add(dir)
				}
			}
		}
	}
}

// Run hands on what happens until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	defer w.inner.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.inner.Events:
			if !ok {
				return
			}
			w.event(e)
		case err, ok := <-w.inner.Errors:
			if !ok {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				w.wake(OnPressure) // nobody knows what was missed
			}
		}
	}
}

func (w *Watcher) event(e fsnotify.Event) {
	dir, name := filepath.Split(e.Name)
	dir = filepath.Clean(dir)
	if _, err := netip.ParseAddr(name); err != nil {
		return // a lock, an index, a network's directory: the next sweep sees it
	}
	switch {
	case e.Has(fsnotify.Create):
		if w.fill.Changed(dir, 1) {
			w.wake(OnPressure)
		}
	case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
		w.fill.Changed(dir, -1)
	}
}
