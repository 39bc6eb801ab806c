package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/kube"
	"github.com/holdfast-cni/holdfast/internal/wire"
)

// stuck is a connection whose other side does not read, until the time is over.
type stuck struct {
	over  chan struct{}
	wrote int
}

func (s *stuck) Write([]byte) (int, error) {
	s.wrote++
	<-s.over
	return 0, errors.New("i/o timeout")
}

// Who does not read what a command says, as a pager does not, does not keep the agent from the
// node; and when the time for one piece is over, the others are not tried each.
func TestFramesWaitForNobody(t *testing.T) {
	w := &stuck{over: make(chan struct{})}
	f := newFrames(w)
	for range maxFrames { // blocks for ever if they are not kept
		f.send(wire.Frame{Stdout: []byte("x")})
	}
	close(w.over)
	code := 0
	f.end(wire.Frame{Exit: &code})
	if w.wrote != 1 {
		t.Errorf("tried %d times", w.wrote)
	}
}

// An undo may be the first thing that an agent is asked for.
func TestUndoBeforeTheFirstSweep(t *testing.T) {
	w := newWatch()
	w.recent = []line.Release{{ID: "back"}, {ID: "taken"}}
	w.undone([]sweep.Undone{{ID: "taken", Outcome: journal.UndoTaken}, {ID: "back", Outcome: journal.UndoRestored}})
	if !w.taken["taken"] || w.taken["back"] || len(w.recent) != 1 || w.recent[0].ID != "taken" {
		t.Errorf("%+v", w)
	}
}

// An API server that hangs leaves a heal, which has seconds, the time to go on without it.
func TestKubeLeavesTime(t *testing.T) {
	over := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer srv.Close()
	defer close(over)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", srv.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := kube.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.NewClient(cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	clock := func() claim.Instant { return claim.Instant{Boot: "b", Mono: time.Hour} }
	w := kubeWitness{kube.New(kube.Config{Client: c, Node: "n1", Clock: clock, Timeout: time.Minute})}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if got := w.Ask(ctx, false); len(got) != 1 || got[0].State != claim.StateSilent || ctx.Err() != nil {
		t.Errorf("%+v, %v", got, ctx.Err())
	}
}
