package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// A store of which nobody can tell whether it is the node's own counts as unreadable, as one
// that is not.
func TestStoreThatMayNotBeTheNodes(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pods", "10.1.0.2"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		same    bool
		err     error
		problem bool
	}{"the node's": {true, nil, false}, "another": {false, nil, true}, "nobody can tell": {false, errors.New("refused"), true}} {
		r := reservations{inv: hostlocal.New(hostlocal.Config{DataDirs: []string{dir}, Clock: func() claim.Instant { return claim.Instant{} }}),
			hosts: func(string) (bool, error) { return c.same, c.err }}
		snap := r.List(context.Background(), nil)
		if len(snap.Stores) == 0 {
			t.Fatal("no store")
		}
		for _, st := range snap.Stores {
			if (st.Problem != "") != c.problem {
				t.Errorf("%s: %s has the problem %q", name, st.Dir, st.Problem)
			}
		}
	}
}
