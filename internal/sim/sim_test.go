package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

const (
	seeds = 400
	steps = 200
)

// No seed of a fixed set breaks an invariant. More of them are for hack/soak.
func TestSeeds(t *testing.T) {
	n := seeds
	if testing.Short() {
		n /= 10
	}
	var sum Stats
	pairs := map[[2]string]int{}
	for seed := range uint64(n) {
		res := Generate(seed, steps, NewHoldfast())
		if res.Fail != nil {
			s, fail := Shrink(res.Script, func() Subject { return NewHoldfast() }, 2000)
			t.Fatalf("seed %d: %v\n# %v\n%s", seed, res.Fail, fail, s)
		}
		sum.Add(res.Stats)
		for p := range res.Stats.Pairs {
			pairs[p]++
		}
	}
	t.Logf("%d seeds, %d of %d action pairs: %+v", n, len(pairs), PairsOf(), sum)
	// A simulator that does nothing finds nothing.
	if sum.Released < n || sum.Undone == 0 || sum.Kills < n/10 || sum.Crashes == 0 || sum.Races < n {
		t.Errorf("too little happened: %+v", sum)
	}
}

// The same seed gives the same run, to the last byte on the disk.
func TestSameSeedSameRun(t *testing.T) {
	for seed := range uint64(30) {
		a, b := digest(seed), digest(seed)
		if a != b {
			t.Fatalf("seed %d gives %s and %s", seed, a, b)
		}
	}
	if digest(1) == digest(2) {
		t.Error("two seeds give the same run")
	}
}

func digest(seed uint64) string {
	w, res := generate(seed, steps, NewHoldfast())
	h := sha256.New()
	fmt.Fprintln(h, res.Script, res.Stats, w.mono, w.wall)
	err := w.disk.Walk("/", func(name string, st fsys.Stat, data []byte) {
		fmt.Fprintf(h, "%s %+v %q\n", name, st, data)
	})
	return fmt.Sprint(hex.EncodeToString(h.Sum(nil)), err)
}

// What was found once stays found. Each file is a script with what it is about.
func TestRegressions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			s, err := ParseScript(string(b))
			if err != nil {
				t.Fatal(err)
			}
			if res, err := Play(s, NewHoldfast()); err != nil || res.Fail != nil {
				t.Errorf("%v, %v", res.Fail, err)
			}
		})
	}
}

// A failing script is shrunk to what it needs.
func TestShrink(t *testing.T) {
	bad := func() Subject { return Policy(func(n *Node) error { return removeAll(n, listAndAsk(n)) }) }
	res := Generate(3, steps, bad())
	if res.Fail == nil {
		t.Fatal("nothing to shrink")
	}
	s, fail := Shrink(res.Script, bad, 2000)
	if fail == nil || fail.Invariant != res.Fail.Invariant || len(s) > 4 {
		t.Errorf("%v shrinks to %v\n%s", res.Fail, fail, s)
	}
	if again, err := Play(s, bad()); err != nil || again.Fail == nil {
		t.Errorf("does not fail any more: %v\n%s", err, s)
	}
}

func TestParseScriptRefuses(t *testing.T) {
	for _, text := range []string{"nonsense", "add x", "add 1 2 3 4", "@file:0 gc", "@never:1 gc", "@file:1", "add -1"} {
		if s, err := ParseScript(text); err == nil {
			t.Errorf("%q reads as %v", text, s)
		}
	}
	s, err := ParseScript("# nothing\n\n  @ask:2 del 3 # late\nexpect kept podnet/10.0.0.2\n")
	if err != nil || s.String() != "@ask:2 del 3\nexpect kept podnet/10.0.0.2\n" {
		t.Errorf("%q, %v", s, err)
	}
}

func BenchmarkSteps(b *testing.B) {
	n := 0
	for seed := uint64(0); n < b.N; seed++ {
		n += Generate(seed, steps, NewHoldfast()).Stats.Steps
	}
}
