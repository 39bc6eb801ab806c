package state

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// TestSaveEndsAtEveryCall ends the process at each file call of a save, and the power
// with it: the old file is there, or the new one, whole, and once the save was
// acknowledged the new one.
func TestSaveEndsAtEveryCall(t *testing.T) {
	const dir = "/var/lib/holdfast"
	before, after := sightings(2), sightings(5)
	ended := false
	for k := int64(1); !ended; k++ {
		for seed := range uint64(12) {
			disk := memfs.New(memfs.Options{})
			p := disk.Process()
			d, err := Open(dir, Options{FS: p})
			if err == nil {
				err = d.SaveSightings(before)
			}
			if err != nil {
				t.Fatal(err)
			}
			p.KillAt(k)
			err = d.SaveSightings(after)
			ended = p.Alive()
			if ended && err != nil || err != nil && !errors.Is(err, memfs.ErrKilled) {
				t.Fatalf("call %d: %v", k, err)
			}
			p.Kill()
			if seed > 0 {
				disk.Crash(rand.New(rand.NewPCG(seed, 5)))
			}
			if d, err = Open(dir, Options{FS: disk.Process()}); err != nil {
				t.Fatalf("call %d, seed %d: %v", k, seed, err)
			}
			got, lerr := d.LoadSightings()
			if lerr != nil || len(got) != len(after) && (len(got) != len(before) || ended) {
				t.Fatalf("call %d, seed %d: %d sightings, %v", k, seed, len(got), lerr)
			}
		}
		if k > 200 {
			t.Fatal("it never ends")
		}
	}
}
