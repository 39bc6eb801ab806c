package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

const (
	memStore = "/var/lib/cni/networks/net"
	memQuar  = "/var/lib/holdfast/quarantine"
	memMoves = 3
)

// memNode is a disk with some reservations that are to be released.
type memNode struct {
	disk  *memfs.Disk
	moves []Move
}

func newMemNode(t *testing.T, caps memfs.Caps, across bool) *memNode {
	t.Helper()
	n := &memNode{disk: memfs.New(memfs.Options{})}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(n.disk.SetCaps("/", caps))
	must(n.disk.MkdirAll(memStore))
	must(n.disk.MkdirAll("/var/lib/holdfast"))
	if across {
		must(n.disk.Mount("/var/lib/holdfast", caps))
	}
	for i := range memMoves {
		must(n.disk.WriteFile(filepath.Join(memStore, fmt.Sprintf("10.0.0.%d", i+2)), []byte(hexID64+"\r\neth0")))
	}
	n.disk.Sync()
	p := n.disk.Process()
	defer p.Kill()
	snap := New(Config{DataDirs: []string{filepath.Dir(memStore)}, Clock: func() claim.Instant { return claim.Instant{} }, FS: p, Serial: true}).
		List(context.Background())
	for i, r := range snap.Resources {
		if r.Problem != "" {
			t.Fatal(r.Problem)
		}
		n.moves = append(n.moves, Move{ReleaseID: fmt.Sprintf("r%d", i), Path: r.Path, Inc: r.Inc})
	}
	if len(n.moves) != memMoves {
		t.Fatalf("listed %+v", snap)
	}
	return n
}

func (n *memNode) quarantine() (*Quarantine, *memfs.Process) {
	p := n.disk.Process()
	return &Quarantine{Dir: memQuar, Proc: "/nonexistent", FS: p, Serial: true}, p
}

// held says where each reservation is now. One that is nowhere is lost: no undo brings
// it back (I3).
func (n *memNode) held(t *testing.T, what string) (moved int) {
	t.Helper()
	q, p := n.quarantine()
	defer p.Kill()
	for _, m := range n.moves {
		origin, quarantined, err := q.Place(m)
		if err != nil || !origin && !quarantined {
			t.Fatalf("%s: %s is at its origin %v, in the quarantine %v, err %v", what, m.Path, origin, quarantined, err)
		}
		if !origin {
			moved++
		}
	}
	return moved
}

// TestReleaseEndsAtEveryCall ends the process at each of its file calls, and the machine
// too, on a file system that can do all, on one that can do little, and across two: each
// reservation is at its origin or whole in the quarantine (I4).
func TestReleaseEndsAtEveryCall(t *testing.T) {
	for _, tt := range []struct {
		name   string
		caps   memfs.Caps
		across bool
	}{
		{name: "rename"},
		{name: "link and unlink", caps: memfs.Caps{NoReplace: true}},
		{name: "two file systems", across: true},
		{name: "two file systems that can do little", caps: memfs.Caps{NoReplace: true, NoXattr: true, NoTmpfile: true}, across: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ended := false
			for k := int64(1); !ended; k++ {
				for seed := range uint64(9) {
					n := newMemNode(t, tt.caps, tt.across)
					q, p := n.quarantine()
					p.KillAt(k)
					out, err := q.Release(context.Background(), memStore, n.moves, ReleaseOptions{})
					ended = p.Alive()
					what := fmt.Sprintf("killed at call %d", k)
					claimed := 0 // what is said to be moved and durable
					for _, o := range out {
						if o.State == Moved && o.Err == nil {
							claimed++
						}
					}
					if err != nil && !errors.Is(err, memfs.ErrKilled) || ended && claimed != memMoves {
						t.Fatalf("%s: %v, %+v", what, err, out)
					}
					p.Kill()
					n.held(t, what)
					if seed > 0 { // and without, which is a kill alone
						what = fmt.Sprintf("%s, power lost with seed %d", what, seed)
						n.disk.Crash(rand.New(rand.NewPCG(seed, 3)))
					}
					if moved := n.held(t, what); moved < claimed {
						t.Fatalf("%s: %d are said to be released, and %d are", what, claimed, moved)
					}
					n.undo(t, what, seed)
				}
				if k > 500 {
					t.Fatal("it never ends")
				}
			}
		})
	}
}

// A reservation that somebody without the lock wrote over between our look and our move is put
// back, and so that a power loss leaves it there and nothing of it in the quarantine, whose
// journal calls it changed. Beside others that are moved, too.
func TestReleasePutsBackForGood(t *testing.T) {
	for moves := 1; moves <= memMoves; moves++ {
		for seed := range uint64(40) {
			n := newMemNode(t, memfs.Caps{}, false)
			q, p := n.quarantine()
			p.SetHook(func(c memfs.Call) error {
				if c.Op != "Renameat2" {
					return nil
				}
				p.SetHook(nil)
				err := n.disk.WriteFile(n.moves[0].Path, []byte("another"))
				n.disk.Sync()
				return err
			})
			out, err := q.Release(context.Background(), memStore, n.moves[:moves], ReleaseOptions{})
			if err != nil || out[0].State != Changed || moves > 1 && out[1].State != Moved {
				t.Fatalf("%v, %+v", err, out)
			}
			p.Kill()
			n.disk.Crash(rand.New(rand.NewPCG(seed, 5)))
			what := fmt.Sprintf("%d moves, power lost with seed %d", moves, seed)
			data, err := n.disk.ReadFile(n.moves[0].Path)
			if err != nil || string(data) != "another" {
				t.Errorf("%s: %q, %v", what, data, err)
			}
			q, p = n.quarantine()
			if _, quarantined, err := q.Place(n.moves[0]); err != nil || quarantined {
				t.Errorf("%s: in the quarantine %v, %v", what, quarantined, err)
			}
			p.Kill()
		}
	}
}

// undo brings back all that is in the quarantine alone. The first try is ended on its
// way, by a kill or, with a seed, by the power; after the second the power goes too.
func (n *memNode) undo(t *testing.T, what string, seed uint64) {
	t.Helper()
	content := hexID64 + "\r\neth0"
	for _, k := range []int64{int64(3 + 11*seed), 0} {
		q, p := n.quarantine()
		p.KillAt(k)
		for _, m := range n.moves {
			origin, quarantined, err := q.Place(m)
			if err == nil && !origin && quarantined {
				err = q.Restore(context.Background(), m.ReleaseID, m.Path)
			}
			if err != nil && k == 0 {
				t.Fatalf("%s: undo of %s: %v", what, m.Path, err)
			}
		}
		p.Kill()
		if seed > 0 {
			n.disk.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
		}
		q, p = n.quarantine()
		for _, m := range n.moves {
			data, rerr := n.disk.ReadFile(m.Path)
			back := rerr == nil && string(data) == content
			_, quarantined, err := q.Place(m)
			if err != nil || !back && (k == 0 || !quarantined) {
				t.Fatalf("%s, undo ended at %d: %s is %q, %v; in the quarantine %v, %v", what, k, m.Path, data, rerr, quarantined, err)
			}
		}
		p.Kill()
	}
}
