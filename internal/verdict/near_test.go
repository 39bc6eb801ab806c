package verdict

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// near finds what Get finds, wherever it begins.
func TestMemoryNear(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	key := func(n int) Key { return Key{"/s/10.0.0." + strconv.Itoa(n/2), claim.Incarnation{Ino: uint64(n % 2)}} }
	for size := range 40 {
		var list []Sighting
		for range size {
			list = append(list, Sighting{Key: key(rng.IntN(60))})
		}
		m := NewMemory(list)
		for n := range 60 {
			k := key(n)
			want := m.Get(k)
			for at := range len(m) + 1 {
				got, next := m.near(&k, at)
				if got != want {
					t.Fatalf("%v from %d in %d: %v, want %v", k, at, len(m), got, want)
				}
				if next < 0 || next > len(m) || got != nil && m[next] != got {
					t.Fatalf("%v from %d in %d ends at %d", k, at, len(m), next)
				}
			}
		}
	}
}
