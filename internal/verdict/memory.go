package verdict

import (
	"cmp"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Key names one incarnation of one path: a file that was replaced is another key,
// so what was seen of the old one never counts for the new one (I7, case F11).
type Key struct {
	Path string            `json:"path"`
	Inc  claim.Incarnation `json:"inc"`
}

// Sighting is what is remembered of one incarnation between sweeps.
type Sighting struct {
	Key
	// First is when this incarnation was first seen, dead or alive. A First under a
	// boot that is past proves that its sandbox is dead (case L4).
	First claim.Instant `json:"first"`
	// Absent is the start of the present run of sightings in which every required
	// witness said absent. Zero Boot: there is no such run.
	Absent claim.Instant `json:"absent,omitzero"`
	// Witnesses are what testified at Absent, sorted; see scene.witnessSet. A later
	// sighting by more witnesses starts the run anew: the first one was weaker.
	Witnesses []string `json:"witnesses,omitempty"`
}

// Memory is a set of sightings in the order of path and incarnation. It is written by one
// reaper at a time (I9).
//
// Memories share their sightings, which are never written to.
type Memory []*Sighting

// NewMemory orders sightings, which stay in list; of two with one key the later one counts.
func NewMemory(list []Sighting) Memory {
	m := slices.Grow(Memory(nil), len(list))
	for i := range list {
		m = append(m, &list[i])
	}
	return m.ordered()
}

func compareKeys(a, b *Key) int {
	// The path decides nearly always; the rest is not looked at before.
	if c := strings.Compare(a.Path, b.Path); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Inc.Ino, b.Inc.Ino),
		cmp.Compare(a.Inc.Ctime, b.Inc.Ctime), cmp.Compare(a.Inc.Dev, b.Inc.Dev),
		cmp.Compare(a.Inc.Size, b.Inc.Size), cmp.Compare(a.Inc.Sum, b.Inc.Sum))
}

// Get returns the sighting of k, nil if there is none.
func (m Memory) Get(k Key) *Sighting {
	i, ok := slices.BinarySearchFunc(m, k, func(s *Sighting, k Key) int { return compareKeys(&s.Key, &k) })
	if !ok {
		return nil
	}
	return m[i]
}

// near is Get that searches around index at first, and returns where it ended. What is
// asked for in nearly the memory's order, as the addresses of a store are, is found in
// a few steps.
func (m Memory) near(k *Key, at int) (*Sighting, int) {
	// k lies in m[low:high], if anywhere.
	low, high := 0, len(m)
	for step := 1; at < len(m); step *= 4 {
		c := compareKeys(&m[at].Key, k)
		if c == 0 {
			return m[at], at
		}
		if c < 0 {
			low = at + 1
			if at += step; at >= high {
				break
			}
		} else {
			high = at
			if at -= step; at < low {
				break
			}
		}
	}
	for low < high {
		mid := int(uint(low+high) >> 1)
		switch c := compareKeys(&m[mid].Key, k); {
		case c == 0:
			return m[mid], mid
		case c < 0:
			low = mid + 1
		default:
			high = mid
		}
	}
	return nil, low
}

// With returns m and more; of two with one key the later stays. m must not be used any
// more.
func (m Memory) With(more ...*Sighting) Memory {
	if len(more) == 0 {
		return m
	}
	return append(m, more...).ordered()
}

// ordered puts sightings in any order, as a saved document may hold them, into that of a
// Memory. They are returned as they are where nothing is to be done.
func (m Memory) ordered() Memory {
	inOrder := !slices.Contains(m, nil)
	for i := 1; i < len(m) && inOrder; i++ {
		inOrder = compareKeys(&m[i-1].Key, &m[i].Key) < 0
	}
	if inOrder {
		return m
	}
	out := slices.DeleteFunc(slices.Clone(m), func(s *Sighting) bool { return s == nil })
	slices.SortStableFunc(out, func(a, b *Sighting) int { return compareKeys(&a.Key, &b.Key) })
	slices.Reverse(out) // of equals the first stays
	out = slices.CompactFunc(out, func(a, b *Sighting) bool { return a.Key == b.Key })
	slices.Reverse(out)
	return out
}
