package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Result is one run.
type Result struct {
	Script Script
	Stats  Stats
	Fail   *Violation // nil: every invariant held
}

// Play runs a script with a new Subject. Its first line may be a config.
func Play(s Script, subject Subject) (Result, error) {
	cfg := Config{}
	rest := s
	if len(s) > 0 && s[0].Name == "config" {
		var err error
		if cfg, err = parseConfig(s[0].Text); err != nil {
			return Result{}, err
		}
		rest = s[1:]
	}
	w := newWorld(cfg, subject)
	for _, o := range rest {
		if o.Name == "config" {
			return Result{}, fmt.Errorf("config is the first line")
		}
		w.Do(o)
		if w.fail != nil {
			break
		}
	}
	return Result{s, w.stats, w.fail}, nil
}

// Generate makes and runs a script of steps operations from a seed, and a quiesce at its
// end.
func Generate(seed uint64, steps int, subject Subject) Result {
	_, res := generate(seed, steps, subject)
	return res
}

func generate(seed uint64, steps int, subject Subject) (*World, Result) {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	cfg := randomConfig(r)
	cfg.Agent = seed%4 == 3
	// By numbers of its own, so that the seeds' scripts stay what they were.
	own := rand.New(rand.NewPCG(seed, 0x6b756265))
	cfg.Kube = []int{0, 0, 0, 1, 1, 2}[own.IntN(6)]
	w := newWorld(cfg, subject)
	w.stats.Pairs = map[[2]string]int{}
	s := Script{{Name: "config", Text: cfg.text()}}
	g := generator{r: r, own: own, w: w}
	for _, d := range w.table {
		g.total += d.weight
	}
	last := ""
	do := func(o Op) {
		s = append(s, o)
		w.Do(o)
		if last != "" && o.Name != "quiesce" {
			w.stats.Pairs[[2]string{last, o.Name}]++
		}
		last = o.Name
	}
	for range steps {
		if w.fail != nil {
			break
		}
		do(g.next())
	}
	if w.fail == nil {
		do(Op{Name: "quiesce"})
	}
	return w, Result{s, w.stats, w.fail}
}

type generator struct {
	r     *rand.Rand
	own   *rand.Rand
	w     *World
	total int
	story []Op // what is left of one
}

// stories are what chance alone makes too rarely: each is about a gate. S is a slot, T
// another one.
var stories = [...]string{
	// Absent, born, and dead again within the grace (gate 2).
	"begin S 0 8\n gc\n wait 3\n finish S\n audit\n wait 2\n leak S\n gc",
	// Held by an idle namespace, then by none; and the other way round.
	"add S 0 0\n crash S\n forget S\n audit\n wait 4\n rmnetns S\n gc",
	"add S 0 0\n crash S\n forget S\n gc\n wait 6\n gc",
	// A leak, and what can come between the last look and the move (gates 3 and 5).
	"add S 0 0\n leak S\n gc\n wait 4\n @lock:1 again 0 T 6\n gc",
	"add S 0 0\n leak S\n gc\n wait 4\n @lock:1 wait 1\n gc",
	"begin S 0 8\n gc\n wait 3\n wait 2\n @ask:5 finish S\n gc",
	"add S 0 0\n leak S\n gc\n wait 4\n @lock:1 keep S\n gc",
	"add S 0 0\n leak S\n gc\n wait 4\n @ask:5 reuse S 0 16\n gc\n abort S\n gc",
	"add S 0 0\n leak S\n gc\n wait 4\n @move:1 spoil S 1\n gc",
	// A runtime that knows nothing yet, while another container runs.
	"add S 0 0\n add T 0 0\n leak S\n gc\n wait 4\n rt 0 4\n gc\n speak",
	// A dead one's reservation is all that guards a living one's address (case F12).
	"wipe 0\n add T 0 0\n wipe 0\n add S 0 0\n leak S\n gc\n wait 4\n gc",
	"wipe 0\n add T 1 0\n wipe 0\n add S 0 0\n leak S\n gc\n wait 4\n gc",
	"wipe 0\n add T 3 0\n wipe 0\n add S 0 0\n leak S\n gc\n wait 6\n gc",
	// A namespace that has an address which a person holds.
	"add S 0 2\n keep S\n wipe 0\n crash S\n forget S\n gc\n wait 6\n gc",
	// An undo in another boot.
	"add S 0 0\n leak S\n gc\n wait 4\n gc\n reboot 0\n undo",
	// NotReady: for how long, and with whom.
	"add S 0 0\n crash S\n rmnetns S\n gc\n wait 4\n gc",
	"add S 0 0\n crash S\n gc\n wait 6\n gc",
	"add S 0 0\n crash S\n rmnetns S\n gc\n wait 4\n add S 0 0\n gc",
	// The history of boots is lost, or not to be had.
	"add S 0 0\n audit\n unlearn\n reboot 0\n gc",
	"add S 0 0\n leak S\n audit\n witness 2 3\n audit\n speak\n gc",
	"add S 0 0\n leak S\n audit\n witness 2 3\n gc",
	// What a stamp proves, and what not (healing).
	"begin S 0 4\n wait 2\n heal 0\n wait 3\n heal 0",
	"begin S 0 4\n abort S\n rmnetns S\n heal 0\n wait 2\n cnigc 0 0\n heal 0",
	"add S 0 0\n crash S\n rmnetns S\n wait 5\n heal 0",
	"add S 0 0\n leak S\n wait 4\n spoil S 4\n heal 0",
	"add S 0 0\n leak S\n wait 5\n reuse S 0 4\n heal 0",
	"add S 0 0\n sync\n audit\n power 1 7\n reuse S 0 4\n heal 0",
	"begin S 0 4\n abort S\n rmnetns S\n begin S 0 4\n abort S\n rmnetns S\n begin S 0 4\n abort S\n rmnetns S\n begin S 0 4\n abort S\n rmnetns S\n begin S 0 4\n abort S\n rmnetns S\n wait 2\n add S 0 0\n add T 0 0",
	// Names are lost (I11), once and again.
	"add S 0 0\n wipe 0\n add T 0 0",
	"begin S 0 3\n wipe 0\n add T 0 0\n finish S\n leak T\n add T 0 0\n leak T\n add T 0 0",
	"add S 0 0\n rename 0\n add T 0 0",
	"add S 0 0\n wipe 0\n add T 0 0\n wait 4\n leak T\n begin T 0 19\n wipe 0\n add S 0 0\n finish T\n leak S\n add S 0 0\n leak S\n add S 0 0",
	"reboot 0\n add S 0 0\n wipe 0\n leak T\n add T 0 0\n leak T\n add T 0 0",
	"add S 0 0\n leak T\n die T 0 30\n del 0\n die T 0 34\n del 0\n die T 0 38\n del 0\n die T 0 42\n del 0",
}

// agentStories are about what only the agent does, in a range that runs low.
var agentStories = [...]string{
	// An ADD that nobody sees, longer than the pressure grace: with a namespace, first or
	// again, whose address no link shows, that fails, and that ends.
	"begin S 0 8\n gc\n wait 2\n gc\n finish S",
	"begin S 2 16\n begin T 2 8\n gc\n wait 2\n wait 2\n gc\n finish T",
	"gc\n begin S 2 4\n gc\n wait 3\n gc\n finish S",
	"begin S 1 5\n gc\n wait 2\n abort S\n gc\n rmnetns S\n wait 2\n gc",
	"add S 2 0\n leak S\n begin T 2 8\n gc\n wait 2\n gc\n finish T\n gc",
	"add S 0 0\n leak S\n gc\n wait 2\n gc",
	"begin S 3 8\n gc\n wait 2\n finish S\n gc\n rt 1 1\n gc\n speak",
	"add S 0 0\n leak S\n gc\n wait 2\n @ask:5 reuse S 2 8\n gc\n gc",
	// Two have one address, and others of that network leak.
	"add S 0 0\n wipe 0\n add T 0 0\n gc\n wait 4\n gc",
	// The dead one's ID lives again, and its new reservation is lost.
	"add S 0 0\n leak S\n gc\n wait 4\n gc\n reuse S 0 8\n finish S\n gc\n wipe 0\n gc",
}

// kubeStories are about what the API server's word is worth.
var kubeStories = [...]string{
	// NotReady, and its Pod is gone in the API, or is there; an address by its status; silence.
	"add S 0 0\n crash S\n rmnetns S\n poddel S\n gc\n wait 4\n gc",
	"add S 0 0\n crash S\n rmnetns S\n gc\n wait 4\n poddel S\n gc",
	"add S 0 0\n podsync\n leak S\n gc\n wait 4\n gc\n podsync\n gc\n wait 4\n gc",
	"add S 0 0\n leak S\n api 1\n gc\n wait 4\n gc\n api 0\n gc",
}

// next picks an operation that would do something; one in seven happens in the middle of
// the next command.
func (g *generator) next() Op {
	switch {
	case len(g.story) > 0 && g.r.IntN(3) > 0:
		o := g.story[0]
		g.story = g.story[1:]
		return o
	case len(g.story) == 0 && g.r.IntN(24) == 0:
		list := stories[:]
		if g.w.cfg.Agent {
			list = slices.Concat(agentStories[:], list)
		}
		story := list[g.r.IntN(len(list))]
		if g.w.cfg.Kube > 0 && g.own.IntN(3) == 0 {
			story = kubeStories[g.own.IntN(len(kubeStories))]
		}
		g.story = g.tell(story)
	}
	for range 8 {
		d := g.pick()
		o := Op{Name: d.name}
		for i, m := range d.max {
			o.Args[i] = g.r.IntN(m)
		}
		if d.within && (d.name == "kill" || g.r.IntN(7) == 0) {
			o.At, o.K = atFile, 1+g.r.IntN(1<<(3+g.r.IntN(6)))
			switch g.r.IntN(6) {
			case 0, 1:
				o.At, o.K = atAsk, 1+g.r.IntN(9)
			case 2:
				o.At, o.K = atLock, 1+g.r.IntN(2)
			}
			g.aim(&o)
			return o
		}
		if d.can == nil || d.can(g.w, o.Args) {
			return o
		}
	}
	return Op{Name: "gc"}
}

// tell gives the places of a story numbers.
func (g *generator) tell(story string) Script {
	slot := g.r.IntN(nSlots)
	s, err := ParseScript(strings.NewReplacer(" S", fmt.Sprint(" ", slot), " T", fmt.Sprint(" ", (slot+1)%nSlots)).Replace(story))
	if err != nil {
		panic(err) // a story is no input
	}
	return s
}

// aim chooses for "again" an attempt whose reservation is left, most of the time, since
// that is what a command may be about to release.
func (g *generator) aim(o *Op) {
	if o.Name != "again" || g.r.IntN(4) == 0 {
		return
	}
	var left []int
	for b, c := range slices.Backward(g.w.all) {
		if b = len(g.w.all) - 1 - b; b >= 8 {
			break
		}
		for _, f := range g.w.ledger.files {
			if f.c == c && !c.living() {
				left = append(left, b)
				break
			}
		}
	}
	if len(left) > 0 {
		o.Args[0] = left[g.r.IntN(len(left))]
	}
}

func (g *generator) pick() *opDef {
	n := g.r.IntN(g.total)
	for i := range g.w.table {
		if n -= g.w.table[i].weight; n < 0 {
			return &g.w.table[i]
		}
	}
	return &g.w.table[0]
}

// PairsOf is how many ordered pairs of operations the generator can make.
func PairsOf() int {
	n := 0
	for _, d := range ops() {
		if d.weight > 0 {
			n++
		}
	}
	return n * n
}

// Shrink makes a failing script shorter while it still breaks the same invariant, by
// delta debugging over its operations and then over their arguments, within tries runs.
func Shrink(s Script, subject func() Subject, tries int) (Script, *Violation) {
	res, err := Play(s, subject())
	if err != nil || res.Fail == nil {
		return s, res.Fail
	}
	fail := res.Fail
	fails := func(c Script) bool {
		if tries--; tries < 0 {
			return false
		}
		res, err := Play(c, subject())
		if err != nil || res.Fail == nil || res.Fail.Invariant != fail.Invariant {
			return false
		}
		fail = res.Fail
		return true
	}
	first := 0
	if len(s) > 0 && s[0].Name == "config" {
		first = 1
	}
	s = slices.Clone(s)
	// Nothing after the failure matters.
	if end := first + fail.Step; end < len(s) && end > 0 {
		if c := s[:end]; fails(c) {
			s = c
		}
	}
	for size := (len(s) - first) / 2; size >= 1; {
		any := false
		for at := first; at+size <= len(s); {
			c := slices.Concat(s[:at], s[at+size:])
			if fails(c) {
				s, any = c, true
			} else {
				at += size
			}
		}
		if !any || size > 1 {
			size /= 2
		}
	}
	for i := range s {
		for k := range s[i].Args {
			for _, v := range []int{0, s[i].Args[k] / 2} {
				if v >= s[i].Args[k] {
					continue
				}
				c := slices.Clone(s)
				c[i].Args[k] = v
				if fails(c) {
					s = c
				}
			}
		}
	}
	return s, fail
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Add adds the counts of o, but for its pairs.
func (s *Stats) Add(o Stats) {
	s.Steps += o.Steps
	s.Commands += o.Commands
	s.Released += o.Released
	s.Undone += o.Undone
	s.Kills += o.Kills
	s.Races += o.Races
	s.Crashes += o.Crashes
	s.Ours += o.Ours
	s.Healed += o.Healed
	s.Taken += o.Taken
	s.Adopted += o.Adopted
}
