package sim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// fault is one rule that failed in the field.
type fault uint

const (
	statusIsTruth   fault = 1 << iota // status.podIPs alone says who is alive
	witnessesFirst                    // the witnesses are asked before the stores are listed
	errorIsGone                       // whoever fails to answer has said "absent"
	podNameOwns                       // a dead attempt takes all of its Pod name along
	prefixMatches                     // what begins with a dead ID goes with it
	emptyIsDead                       // the runtimes' list alone says who is alive, and may be empty
	mtimeBeforeBoot                   // a file older than the boot is dead
	noGrace                           // one sighting
	late                              // what is decided is done at the next sweep, whatever lies there then
	oneRuntime                        // the list of one runtime alone says who is alive
	kubeConvicts                      // a sandbox whose Pod the API does not have is dead
)

// collector is a small and careful one: it lists before it asks, hears silence and a bad
// vantage, waits for two sightings with the grace between them, and looks at the file
// again before it goes. Each fault takes one of these away. Even without any it knows
// nothing of conflicts, siblings and crashes.
type collector struct {
	fault
	absent map[verdict.Key]claim.Instant
	names  map[string]string // Pod names by container ID
	due    []claim.Resource  // of late
	known  []string          // endpoints that answered before
}

func (f fault) has(x fault) bool { return f&x != 0 }

func (f fault) subject() Subject {
	c := &collector{fault: f, absent: map[verdict.Key]claim.Instant{}, names: map[string]string{}}
	return Policy(c.sweep)
}

// words are the answers of one pass.
type words struct {
	kernel  *claim.KernelFacts
	process *claim.ProcessFacts
	cri     *claim.CRIFacts
	pods    []Pod
}

func (c *collector) sweep(n *Node) error {
	var list []claim.Resource
	if !c.has(witnessesFirst) {
		list = c.list(n)
	}
	w, err := c.ask(n)
	if err != nil {
		return err
	}
	if c.has(witnessesFirst) {
		list = c.list(n)
	}
	dead := c.judge(n, list, w)
	if c.has(podNameOwns) {
		dead = widen(list, dead, func(d, r *claim.Resource) bool {
			return c.names[d.Owner.ID] != "" && c.names[d.Owner.ID] == c.names[r.Owner.ID]
		})
	}
	if c.has(prefixMatches) {
		dead = widen(list, dead, func(d, r *claim.Resource) bool { return strings.HasPrefix(r.Owner.ID, d.Owner.ID) })
	}
	if c.has(late) {
		dead, c.due = c.due, dead
	}
	for _, r := range dead {
		if ok, err := hostlocal.Stands(n.FS(), r.Path, r.Inc); (!ok || err != nil) && !c.has(late) {
			continue
		}
		_ = n.Remove(r.Path) // what could not be removed is tried again
	}
	return nil
}

// list is the reservations of containers in stores that were listed whole.
func (c *collector) list(n *Node) []claim.Resource {
	snap := n.List()
	return slices.DeleteFunc(snap.Resources, func(r claim.Resource) bool {
		whole := !slices.ContainsFunc(snap.Stores, func(s claim.Store) bool { return s.Dir == r.Store && s.Problem != "" })
		return !whole || r.Problem != "" || r.Owner.Shape != claim.ShapeContainer
	})
}

// ask asks everybody. An error: somebody was silent, or sees half of the node.
func (c *collector) ask(n *Node) (words, error) {
	var w words
	var err error
	if c.has(statusIsTruth) {
		w.pods, err = n.Pods()
		return w, err
	}
	for _, t := range n.Kernel() {
		if t.Kernel != nil {
			w.kernel = t.Kernel
		}
		if t.Process != nil {
			w.process = t.Process
		}
	}
	if t := n.Runtimes(c.known, true); t.State == claim.StateComplete {
		w.cri = t.CRI
	}
	if c.has(kubeConvicts) {
		if w.pods, err = n.Pods(); err != nil {
			return w, err
		}
	}
	_, err = n.Boot()
	if w.cri != nil {
		for _, rt := range w.cri.Runtimes {
			if rt.State == claim.StateComplete && !slices.Contains(c.known, rt.Endpoint) {
				c.known = append(c.known, rt.Endpoint)
			}
		}
		for _, b := range w.cri.Sandboxes {
			c.names[b.ID] = b.Pod.Name
		}
	}
	if c.has(errorIsGone) {
		w.kernel, w.process, w.cri = orNone(w.kernel), orNone(w.process), orNone(w.cri)
		return w, nil
	}
	switch {
	case err != nil:
		return w, err
	case w.cri == nil:
		return w, errors.New("no runtime answered")
	case c.has(emptyIsDead | oneRuntime):
		w.kernel, w.process = orNone(w.kernel), orNone(w.process)
		return w, nil
	case w.kernel == nil || w.process == nil:
		return w, errors.New("the kernel or the processes could not be read")
	case !w.kernel.Vantage.Proven || !w.kernel.Vantage.InitialPIDNS || !slices.ContainsFunc(w.kernel.Netns, func(n claim.Netns) bool { return n.Host }):
		return w, errors.New("no vantage")
	}
	for _, rt := range w.cri.Runtimes {
		if !slices.ContainsFunc(w.cri.Sandboxes, func(b claim.Sandbox) bool { return b.Endpoint == rt.Endpoint }) && len(w.process.Shims) > 0 {
			return w, errors.New("an empty list while shims run")
		}
	}
	return w, nil
}

func orNone[T any](p *T) *T {
	if p == nil {
		p = new(T)
	}
	return p
}

// judge returns what is dead and may go.
func (c *collector) judge(n *Node, list []claim.Resource, w words) []claim.Resource {
	now, next := n.Now(), map[verdict.Key]claim.Instant{}
	var dead []claim.Resource
	for _, r := range list {
		key := verdict.Key{Path: r.Path, Inc: r.Inc}
		if c.has(mtimeBeforeBoot) && time.Unix(0, r.Inc.Ctime).Before(now.Wall.Add(-now.Mono)) {
			dead = append(dead, r)
			continue
		}
		if c.alive(&r, w) {
			continue
		}
		since, ok := c.absent[key]
		age, same := now.Since(since)
		if !ok || !same {
			since, age = now, 0
		}
		next[key] = since
		if age >= grace || c.has(noGrace|statusIsTruth) {
			dead = append(dead, r)
		}
	}
	c.absent = next
	return dead
}

func (c *collector) alive(r *claim.Resource, w words) bool {
	if c.has(statusIsTruth) {
		return slices.ContainsFunc(w.pods, func(p Pod) bool { return slices.Contains(p.IPs, r.Addr.String()) })
	}
	if c.has(kubeConvicts) && slices.ContainsFunc(w.cri.Sandboxes, func(b claim.Sandbox) bool {
		return b.ID == r.Owner.ID && !slices.ContainsFunc(w.pods, func(p Pod) bool { return p.UID == b.Pod.UID })
	}) {
		return false
	}
	listed := func(b claim.Sandbox) bool { return b.ID == r.Owner.ID || slices.Contains(b.Addrs, r.Addr) }
	switch {
	case c.has(oneRuntime):
		return slices.ContainsFunc(w.cri.Sandboxes, func(b claim.Sandbox) bool { return b.Endpoint == w.cri.Runtimes[0].Endpoint && listed(b) })
	case slices.ContainsFunc(w.cri.Sandboxes, listed):
		return true
	case c.has(emptyIsDead):
		return false
	}
	return slices.ContainsFunc(w.process.Hits, func(h claim.ProcessHit) bool { return h.ID == r.Owner.ID }) ||
		slices.ContainsFunc(w.kernel.Netns, func(n claim.Netns) bool {
			return slices.ContainsFunc(n.Addrs, func(a claim.IfAddr) bool { return a.Addr == r.Addr })
		})
}

// widen adds what goes along with the dead.
func widen(list, dead []claim.Resource, along func(d, r *claim.Resource) bool) []claim.Resource {
	var out []claim.Resource
	for _, r := range list {
		if slices.ContainsFunc(dead, func(d claim.Resource) bool { return d.Path == r.Path || along(&d, &r) }) {
			out = append(out, r)
		}
	}
	return out
}

// policySeeds are the seeds that every policy is tried on. TestSeeds plays ours on all of
// them and more.
const policySeeds = seeds / 2

// The rules that failed in the field are found out, each by its own fault: the same
// script breaks nothing with that one fault mended. Nor does it with ours. within is how
// many seeds that may take; it is several times what it took when it was written, since
// every change of the simulator shuffles the seeds.
func TestKnownBadPolicies(t *testing.T) {
	doc, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| policy | seen in | it breaks | found in, of %d seeds | median seeds to find it | median step | must be found within | ours |\n|---|---|---|---|---|---|---|---|\n", policySeeds)
	for _, p := range []struct {
		name, seen string
		bad, fixed fault
		within     int // seeds
	}{
		{"releases whatever is not in `status.podIPs`", "antrea #8239", statusIsTruth, 0, 2},
		{"asks the witnesses before it lists the stores", "whereabouts #207", witnessesFirst | noGrace, noGrace, 80},
		{"reads an error as \"gone\"", "whereabouts", errorIsGone | noGrace, noGrace, 120},
		{"knows owners by Pod name", "whereabouts #176", podNameOwns, 0, 30},
		{"compares IDs by prefix", "gc-host-local.sh", prefixMatches, 0, 200},
		{"believes an empty list", "gc-host-local.sh", emptyIsDead, 0, 30},
		{"takes a file older than the boot for dead", "azure #947", mtimeBeforeBoot, 0, 80},
		{"one sighting, no grace", "most loops that operators run", noGrace, 0, 30},
		{"does later what it decided, without looking again", "calico #3589", late, 0, 120},
		{"collects by one runtime's list", "cni #1086", oneRuntime, 0, 30},
		{"believes the API that a Pod is gone", "k8s #29845", kubeConvicts, 0, 30},
	} {
		t.Run(p.seen+" "+p.name, func(t *testing.T) {
			if row := fmt.Sprintf("| %s | %s |", p.name, p.seen); !strings.Contains(string(doc), row) {
				t.Errorf("docs/proof.md has no row %q", row)
			}
			var found, at []int
			broken := map[string]int{}
			for seed := range policySeeds {
				if testing.Short() && len(found) > 0 {
					break
				}
				res := Generate(uint64(seed), steps, p.bad.subject())
				if res.Fail == nil {
					continue
				}
				if mended, err := Play(res.Script, p.fixed.subject()); err != nil || mended.Fail != nil {
					continue // something else was found out
				}
				if len(found) == 0 {
					if ours, err := Play(res.Script, NewHoldfast()); err != nil || ours.Fail != nil {
						t.Errorf("ours, on the script of seed %d: %v, %v", seed, ours.Fail, err)
					}
				}
				found, at = append(found, seed), append(at, res.Fail.Step)
				broken[res.Fail.Invariant]++
			}
			if len(found) == 0 || found[0] >= p.within {
				t.Fatalf("found out in the seeds %v; want one below %d", found, p.within)
			}
			slices.Sort(at)
			fmt.Fprintf(&table, "| %s | %s | %s | %d | %d | %d | %d | 0 |\n", p.name, p.seen, strings.Join(sortedKeys(broken), ", "), len(found), medianGap(found), at[len(at)/2], p.within)
		})
	}
	if !testing.Short() {
		t.Logf("\n%s", table.String())
	}
}

// medianGap is how many seeds it takes to come to one of found, from half of all seeds.
func medianGap(found []int) int {
	var gaps []int
	for seed := range policySeeds {
		next := policySeeds + found[0] // around the end, so that the last ones count too
		if i, _ := slices.BinarySearch(found, seed); i < len(found) {
			next = found[i]
		}
		gaps = append(gaps, next-seed+1)
	}
	slices.Sort(gaps)
	return gaps[len(gaps)/2]
}
