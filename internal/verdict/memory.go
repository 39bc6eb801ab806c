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

// Memory is the set of sightings. It is written by one reaper at a time (I9).
//
// The sightings are shared with the list that it was made from and are not written to.
type Memory map[Key]*Sighting

// Sorted returns the sightings in the order of path and incarnation.
func (m Memory) Sorted() []Sighting {
	keys := make([]*Sighting, 0, len(m))
	for _, s := range m {
		keys = append(keys, s)
	}
	slices.SortFunc(keys, func(a, b *Sighting) int {
		// The path decides nearly always; the rest is not looked at before.
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.Inc.Ino, b.Inc.Ino),
			cmp.Compare(a.Inc.Ctime, b.Inc.Ctime), cmp.Compare(a.Inc.Dev, b.Inc.Dev),
			cmp.Compare(a.Inc.Size, b.Inc.Size), cmp.Compare(a.Inc.Sum, b.Inc.Sum))
	})
	out := make([]Sighting, len(keys))
	for i, s := range keys {
		out[i] = *s
	}
	return out
}

// NewMemory indexes sightings; of two with one key the later in the slice stays.
func NewMemory(list []Sighting) Memory {
	m := make(Memory, len(list))
	for i := range list {
		m[list[i].Key] = &list[i]
	}
	return m
}
