package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// Watcher calls Wake when a Pod of a node is deleted or ends. What it sees decides nothing,
// so what it misses between two connections costs time alone.
type Watcher struct {
	Client *Client
	Node   string
	Wake   func()
	// Rand gives numbers in [0, 1) that keep the watches of many nodes apart.
	Rand func() float64
	// Shortest and Longest are the waits between two connections, spread by half to either
	// side; 0: 10 s and 1 min. When an API server comes back, all nodes connect.
	Shortest, Longest time.Duration
	// Hold is how long a connection is asked to last, at least; at most twice that. 0: 5 min.
	Hold time.Duration
	// Trouble, unless nil, is told why a connection ended.
	Trouble func(error)
}

// steady is how long a connection must have held to count as a good one.
const steady = time.Minute

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	shortest, longest := w.Shortest, w.Longest
	if shortest <= 0 {
		shortest = 10 * time.Second
	}
	if longest <= 0 {
		longest = time.Minute
	}
	hold := w.Hold
	if hold <= 0 {
		hold = 5 * time.Minute
	}
	wait := shortest
	for ctx.Err() == nil {
		start := time.Now()
		lasts := (hold + time.Duration(w.Rand()*float64(hold))).Truncate(time.Second)
		err := w.once(ctx, lasts)
		if err != nil && ctx.Err() == nil && w.Trouble != nil {
			w.Trouble(err)
		}
		if time.Since(start) >= steady {
			wait = shortest
		}
		if err == nil && time.Since(start) >= lasts {
			continue // it ended when it was to, and no other's with it
		}
		timer := time.NewTimer(wait/2 + time.Duration(w.Rand()*float64(wait)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = min(2*wait, longest)
	}
}

// once is one connection; nil when the API server ended it.
func (w *Watcher) once(ctx context.Context, lasts time.Duration) error {
	// From now on: a watch from resourceVersion 0 begins with all there are, and thousands of
	// nodes begin at once when an API server comes back.
	soon, cancel := context.WithTimeout(ctx, DefaultTimeout)
	revision, err := w.Client.revision(soon)
	cancel()
	if err != nil {
		return err
	}
	// Of what has ended nothing is selected, so that a Pod that ends is one that is deleted,
	// and the metadata say enough.
	r := w.Client.rest.Get().Resource("pods").MaxRetries(0).
		Param("fieldSelector", "spec.nodeName="+w.Node+",status.phase!=Succeeded,status.phase!=Failed").
		Param("watch", "true").Param("resourceVersion", revision).
		Param("timeoutSeconds", fmt.Sprint(int(lasts.Seconds()))).
		SetHeader("Accept", protobuf+";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	events, err := r.Watch(quiet(ctx))
	if err != nil {
		return &Error{"watch", "pods", err}
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events.ResultChan():
			switch {
			case !ok:
				return nil
			case e.Type == watch.Deleted:
				w.Wake()
			case e.Type == watch.Error:
				return &Error{"watch", "pods", errors.New("the API server ended it with an error")}
			}
		}
	}
}
