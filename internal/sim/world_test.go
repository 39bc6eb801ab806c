package sim

import (
	"testing"
)

// The generator's scripts read back as they were written, and the same script gives the
// same run.
func TestScriptReadsBack(t *testing.T) {
	for seed := range uint64(50) {
		res := Generate(seed, 60, Policy(func(*Node) error { return nil }))
		if res.Fail != nil {
			t.Fatalf("seed %d: a subject that does nothing: %v\n%s", seed, res.Fail, res.Script)
		}
		s, err := ParseScript(res.Script.String())
		if err != nil || s.String() != res.Script.String() {
			t.Fatalf("seed %d: reads back as\n%s, %v", seed, s, err)
		}
		again, err := Play(s, Policy(func(*Node) error { return nil }))
		if err != nil || again.Fail != nil || again.Stats.Commands != res.Stats.Commands {
			t.Fatalf("seed %d: %v, %v, %+v and %+v", seed, err, again.Fail, again.Stats, res.Stats)
		}
	}
}
