package journal

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// TestAppendEndsAtEveryCall ends the process at each file call of opening and appending,
// and the power with it: what was acknowledged is there afterwards, and the journal
// opens and takes more.
func TestAppendEndsAtEveryCall(t *testing.T) {
	const dir = "/var/lib/holdfast"
	ended := false
	for k := int64(1); !ended; k++ {
		for seed := range uint64(12) {
			d := memfs.New(memfs.Options{})
			p := d.Process()
			p.KillAt(k)
			acked := 0
			j, err := Open(dir, Options{FS: p})
			for i := 0; err == nil && i < 3; i++ {
				if err = j.Append(intent(i)); err == nil {
					acked++
				}
			}
			ended = p.Alive()
			if ended && acked != 3 || err != nil && !errors.Is(err, memfs.ErrKilled) {
				t.Fatalf("call %d: %v", k, err)
			}
			p.Kill()
			if seed > 0 {
				d.Crash(rand.New(rand.NewPCG(seed, 4)))
			}
			if j, err = Open(dir, Options{FS: d.Process()}); err != nil {
				t.Fatalf("call %d, seed %d: %v", k, seed, err)
			}
			recs, damages, err := j.Load()
			if err != nil || len(damages) > 0 || len(recs) < acked {
				t.Fatalf("call %d, seed %d: %d acknowledged, %d there, %v, %v", k, seed, acked, len(recs), damages, err)
			}
			if err := j.Append(intent(9)); err != nil {
				t.Fatalf("call %d, seed %d: %v", k, seed, err)
			}
		}
		if k > 200 {
			t.Fatal("it never ends")
		}
	}
}
