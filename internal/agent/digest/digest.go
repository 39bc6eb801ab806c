package digest

import (
	"cmp"
	"errors"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// MaxNetworks is how many networks are told apart. The names are those of directories, of
// which anybody who may write there can make many; what is beyond is counted together as
// Other.
const MaxNetworks = 256

// Other is the name under which networks are counted that are not told apart, Every that of all
// of them.
const (
	Other = "(other)"
	Every = "(every network)"
)

// maxText is the longest name, in bytes.
const maxText = 256

// Name is a network as people know it: two data directories may have one of the same
// name. Safe to print. It is comparable.
type Name struct{ Network, DataDir string }

// Network is one network when the pass has ended: what was released is gone from it, what
// was adopted is in it.
type Network struct {
	Name
	// Capacity is how many addresses its ranges hold, 0 when unknown; Free is how many
	// of those nobody has reserved.
	Capacity, Free uint64
	// Reserved counts the reservation files, those outside of the ranges too.
	Reserved int
	// Verdicts are counts of addresses; see Count.
	Verdicts [Verdicts]int
	// Lost counts what this pass found lost; see agent.Pass.
	Lost int
	// OldestLeak is how long ago by CLOCK_MONOTONIC the oldest Leaked or Orphaned address
	// was first found absent; 0 when there is none. Of one that an earlier boot left,
	// it is how old this boot is.
	OldestLeak time.Duration
}

// Verdicts is the number of verdicts.
const Verdicts = 10

// Count is how many addresses have a verdict.
func (n *Network) Count(v verdict.Verdict) int { return n.Verdicts[v.Rank()] }

// Witness is one witness and whether what it said counts.
type Witness struct {
	Name     string
	Required bool
	Up       bool
	Took     time.Duration
	// Why says why it is not up. Safe to print.
	Why string
}

// Digest is one pass in numbers.
type Digest struct {
	// Seen is false when there was no look; then only Witnesses of nobody and no network
	// are here, and nothing is known.
	Seen bool
	// Networks in the order of name and data directory.
	Networks []Network
	// Found is how many there are, told apart or not.
	Found int
	// Witnesses in the order of their names, one for each name. Who was not needed, and so not
	// asked, is not here.
	Witnesses []Witness
	// Vantage says why the node is not seen whole; empty when it is. Safe to print.
	Vantage string
	// Unwritable says why the journal or the sightings cannot be written; empty when they
	// can, as far as this pass knows. Safe to print.
	Unwritable string

	byStore map[string]int // directory -> index in Networks
}

// NameOf is the network of a directory of reservations; Other where the pass did not list it,
// Every where none is named.
func (d *Digest) NameOf(store string) Name {
	if i, ok := d.byStore[store]; ok {
		return d.Networks[i].Name
	}
	if store == "" {
		return Name{Network: Every}
	}
	return Name{Network: Other}
}

// Of counts a pass. It walks the findings once.
func Of(p *agent.Pass) *Digest {
	d := &Digest{byStore: map[string]int{}, Unwritable: unwritable(p)}
	if p.Audit == nil || p.Audit.Judgement == nil {
		return d
	}
	c, j := &p.Audit.Case, p.Audit.Judgement
	d.Seen, d.Vantage = true, Text(j.Vantage)
	d.witnesses(c, j)
	counters := d.networks(c)

	gone := map[verdict.Key]bool{}
	for _, res := range p.Results {
		for i := range res.Released {
			gone[keyOf(res.Released[i].Finding)] = true
		}
	}
	back := map[verdict.Key]bool{}
	for i := range p.Adopted {
		if a := &p.Adopted[i]; a.Finding != nil && Adopted(a.Outcome) {
			back[keyOf(a.Finding)] = true
		}
	}

	// The findings of one store stand together, and most have the verdict of the one
	// before: what is looked up is looked up once for many.
	var k *counter
	store, last, rank := "\x00", verdict.InUse, verdict.InUse.Rank()
	for i := range j.Findings {
		f := &j.Findings[i]
		r := f.Resource
		if r.Kind != claim.KindReservation {
			continue
		}
		if r.Store != store {
			store = r.Store
			k = counters[store]
		}
		if k == nil {
			continue
		}
		if len(gone) > 0 && f.Releasable && gone[keyOf(f)] {
			continue
		}
		v := f.Verdict
		if v == verdict.Missing && len(back) > 0 && back[keyOf(f)] {
			v = verdict.InUse
		}
		if v != last {
			last, rank = v, v.Rank()
		}
		k.n.Verdicts[rank]++
		if v == verdict.Missing {
			continue
		}
		k.n.Reserved++
		k.take(r.Addr)
		if v == verdict.Leaked || v == verdict.Orphaned {
			k.n.OldestLeak = max(k.n.OldestLeak, leakAge(c.Now, f))
		}
	}
	for _, f := range p.Lost {
		if k := counters[f.Resource.Store]; k != nil {
			k.n.Lost++
		}
	}
	d.fold(counters)
	return d
}

// Stopped are the networks whose releases are stopped; a stop may be of all of them.
func (d *Digest) Stopped(stops []line.Stop) map[Name]bool {
	out := map[Name]bool{}
	for _, s := range stops {
		for store, i := range d.byStore {
			if s.Covers(store) {
				out[d.Networks[i].Name] = true
			}
		}
	}
	return out
}

func leakAge(now claim.Instant, f *verdict.Finding) time.Duration {
	if d, ok := now.Since(f.Absent()); ok {
		return d
	}
	return now.Mono
}

func keyOf(f *verdict.Finding) verdict.Key {
	return verdict.Key{Path: f.Resource.Path, Inc: f.Resource.Inc}
}

// Adopted reports whether an outcome of a re-adoption says that the reservation is there.
func Adopted(outcome string) bool { return outcome == "adopted" }

// unwritable: a failed Append is the journal's own error, whoever passed it on.
func unwritable(p *agent.Pass) string {
	if p.Unwritable != nil {
		return Text(p.Unwritable.Error())
	}
	var failed *journal.Error
	refused := func(err error) bool { return errors.Is(p.Err, err) }
	if errors.As(p.Err, &failed) || slices.ContainsFunc([]error{journal.ErrNewer, journal.ErrHeader, journal.ErrReadOnly, journal.ErrBroken, journal.ErrFull}, refused) {
		return Text(p.Err.Error())
	}
	if p.Audit != nil && p.Audit.Unremembered != nil {
		return Text("the sightings: " + p.Audit.Unremembered.Error())
	}
	return ""
}

func (d *Digest) witnesses(c *verdict.Case, j *verdict.Judgement) {
	for _, t := range c.Testimonies {
		w := Witness{Name: Text(t.Witness), Required: required(c.Policy, t.Witness), Up: t.State == claim.StateComplete, Took: t.Took}
		if t.State == claim.StateNone {
			continue // there is none here, and nobody misses it
		}
		why, uncounted := j.Reasons[t.Witness]
		switch {
		case w.Up && uncounted:
			w.Up, w.Why = false, Text(why)
		case !w.Up:
			w.Why = Text(cmp.Or(t.Detail, why))
		}
		if i := slices.IndexFunc(d.Witnesses, func(o Witness) bool { return o.Name == w.Name }); i >= 0 {
			if o := &d.Witnesses[i]; !w.Up {
				o.Up, o.Why, o.Took = false, w.Why, max(o.Took, w.Took)
			}
			continue
		}
		d.Witnesses = append(d.Witnesses, w)
	}
	// Who was not asked at all has said nothing. The judge has no complaint of one whom nobody
	// needed to ask, such as the API server.
	for _, name := range c.Policy.Required {
		why, missed := j.Reasons[name]
		if missed && required(c.Policy, name) && !slices.ContainsFunc(d.Witnesses, func(w Witness) bool { return w.Name == Text(name) }) {
			d.Witnesses = append(d.Witnesses, Witness{Name: Text(name), Required: true, Why: Text(why)})
		}
	}
	slices.SortFunc(d.Witnesses, func(a, b Witness) int { return cmp.Compare(a.Name, b.Name) })
}

func required(p verdict.Policy, witness string) bool {
	if witness == claim.WitnessCRI && p.CRINone {
		return false
	}
	return witness == claim.WitnessBoot || slices.Contains(p.Required, witness)
}

// counter is one store while it is counted.
type counter struct {
	n        Network
	ranges   []claim.Range
	taken    []bitmap // by range; nil where a range is too large to tell addresses apart
	inRanges uint64
	known    bool // a configuration names it
}

// networks makes a counter for each store of reservations.
func (d *Digest) networks(c *verdict.Case) map[string]*counter {
	out := map[string]*counter{}
	for i := range c.Snapshots {
		for _, s := range c.Snapshots[i].Stores {
			// Stores without reservations of their own (the libcni cache) have no network.
			if s.Network == "" || out[s.Dir] != nil {
				continue
			}
			k := &counter{
				n:      Network{Name: Name{Network: Text(s.Network), DataDir: Text(cmp.Or(s.DataDir, path.Dir(s.Dir)))}, Capacity: s.Capacity},
				ranges: s.Ranges, known: s.Capacity > 0 || len(s.Configs) > 0,
			}
			for _, g := range s.Ranges {
				k.taken = append(k.taken, newBitmap(g))
			}
			out[s.Dir] = k
		}
	}
	return out
}

// take counts an address of a range once: it may have two files, in two spellings.
func (k *counter) take(a netip.Addr) {
	for i, g := range k.ranges {
		if g.Contains(a) {
			if k.taken[i].set(g.First, a) {
				k.inRanges++
			}
			return
		}
	}
}

// fold puts the networks in order, those that a configuration names before others when not
// all can be told apart.
func (d *Digest) fold(counters map[string]*counter) {
	dirs := make([]string, 0, len(counters))
	for dir, k := range counters {
		dirs = append(dirs, dir)
		if k.n.Capacity > 0 {
			k.n.Free = k.n.Capacity - min(k.n.Capacity, k.inRanges)
		}
	}
	slices.SortFunc(dirs, func(a, b string) int {
		x, y := counters[a], counters[b]
		if x.known != y.known {
			if x.known {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.n.Network, y.n.Network), cmp.Compare(x.n.DataDir, y.n.DataDir), cmp.Compare(a, b))
	})
	d.Found = len(dirs)
	names := map[string]Name{}
	sums := map[Name]*Network{}
	for _, dir := range dirs {
		n := counters[dir].n
		// Two names may be one when they are made safe to print.
		if sums[n.Name] == nil && len(sums) >= MaxNetworks {
			n.Name = Name{Network: Other}
		}
		names[dir] = n.Name
		if s := sums[n.Name]; s != nil {
			s.add(&n)
		} else {
			sums[n.Name] = &n
		}
	}
	at := map[Name]int{}
	for _, n := range sums {
		d.Networks = append(d.Networks, *n)
	}
	slices.SortFunc(d.Networks, func(a, b Network) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.DataDir, b.DataDir))
	})
	for i := range d.Networks {
		at[d.Networks[i].Name] = i
	}
	for dir, name := range names {
		d.byStore[dir] = at[name]
	}
}

func (n *Network) add(o *Network) {
	n.Capacity += o.Capacity
	n.Free += o.Free
	n.Reserved += o.Reserved
	n.Lost += o.Lost
	n.OldestLeak = max(n.OldestLeak, o.OldestLeak)
	for i := range n.Verdicts {
		n.Verdicts[i] += o.Verdicts[i]
	}
}

// Text makes text from the node safe to print and short.
func Text(s string) string { return Clip(s, maxText) }

// Clip makes text from the node safe to print and at most n bytes long.
func Clip(s string, n int) string {
	if len(s) > n {
		s = s[:n] // what is cut within a character is escaped
	}
	if s = report.Clean(s); len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}
