package plan_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	pods  = "/var/lib/cni/networks/pods"
	other = "/var/lib/cni/networks/other"
)

func id(i int) string { return fmt.Sprintf("%064x", 0xa000000000000+i) }

// reservation is a Leaked, releasable finding; edits make it something else.
func reservation(store string, addr, owner string, edits ...func(*verdict.Finding)) verdict.Finding {
	o := claim.ParseOwner([]byte(owner))
	if o.Shape == claim.ShapeContainer && o.IfName == "" {
		o.IfName = "eth0"
	}
	f := verdict.Finding{
		Resource: &claim.Resource{
			Kind: claim.KindReservation, Store: store, Network: store[strings.LastIndexByte(store, '/')+1:],
			Addr: netip.MustParseAddr(addr), Owner: o, Path: store + "/" + addr,
		},
		Verdict: verdict.Leaked, Releasable: true, Sight: &verdict.Sighting{Absent: claim.Instant{Boot: "b", Mono: time.Hour}},
	}
	for _, e := range edits {
		e(&f)
	}
	return f
}

func cache(owner string, edits ...func(*verdict.Finding)) verdict.Finding {
	f := verdict.Finding{
		Resource: &claim.Resource{
			Kind: claim.KindCache, Store: "/var/lib/cni/results", Network: "pods",
			Owner: claim.Owner{Shape: claim.ShapeContainer, ID: owner, IfName: "eth0"}, Path: "/var/lib/cni/results/pods-" + owner + "-eth0",
			Cache: &claim.CacheEntry{HostIfs: []claim.HostIf{{Name: "cni0"}, {Name: "veth" + owner[60:]}}, Plugins: []string{"bridge", "portmap"}},
		},
		Verdict: verdict.Leaked, Releasable: true, Sight: &verdict.Sighting{Absent: claim.Instant{Boot: "b", Mono: time.Hour}},
	}
	for _, e := range edits {
		e(&f)
	}
	return f
}

func kept(v verdict.Verdict) func(*verdict.Finding) {
	return func(f *verdict.Finding) { f.Verdict, f.Releasable = v, false }
}

func since(mono time.Duration) func(*verdict.Finding) {
	return func(f *verdict.Finding) { f.Sight.Absent.Mono = mono }
}

func booted(f *verdict.Finding) { f.BootProven = true }

func pinned(ids ...uint64) func(*verdict.Finding) {
	return func(f *verdict.Finding) {
		f.Verdict = verdict.Orphaned
		for _, i := range ids {
			f.Netns = append(f.Netns, verdict.Pin{ID: i, Path: fmt.Sprintf("/run/netns/cni-%d", i)})
		}
	}
}

func make1(opt Options, findings ...verdict.Finding) *Plan {
	return Make(&verdict.Judgement{Findings: findings}, opt)
}

func steps(p *Plan) (list []string) {
	for _, g := range p.Groups {
		for _, s := range g.Steps {
			list = append(list, string(s.Kind)+" "+s.Object)
		}
	}
	return list
}

// I8, plugins #666: what can hold the address alive goes first and blocks it, the address
// goes last, whatever the order of the findings.
func TestOrderWithinAnAttachment(t *testing.T) {
	list := []verdict.Finding{
		reservation(pods, "10.1.0.9", id(1), pinned(50)),
		reservation(pods, "fd00::9", id(1), pinned(50, 51)),
		cache(id(1)),
	}
	r := rand.New(rand.NewSource(1))
	for range 10 {
		r.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
		p := make1(Options{}, list...)
		if len(p.Groups) != 1 || !p.Groups[0].Execs || len(p.Groups[0].Findings) != 3 {
			t.Fatalf("one container makes %d groups: %+v", len(p.Groups), p.Groups)
		}
		var kinds []StepKind
		count := map[string]int{}
		for _, s := range p.Groups[0].Steps {
			kinds = append(kinds, s.Kind)
			count[string(s.Kind)+" "+s.Object]++
			blocks := s.Kind == StepVeth || s.Kind == StepNetns
			if s.Blocks != blocks {
				t.Errorf("%s %s: blocks %v", s.Kind, s.Object, s.Blocks)
			}
			if undo := s.Kind == StepCache || s.Kind == StepReservation; s.Irreversible == undo {
				t.Errorf("%s %s: irreversible %v", s.Kind, s.Object, s.Irreversible)
			}
			if (s.Kind == StepReservation || s.Kind == StepCache || s.Kind == StepDel) && s.Resource == nil {
				t.Errorf("%s %s has no precondition", s.Kind, s.Object)
			}
			if s.Kind == StepNetns && s.NetnsID == 0 {
				t.Errorf("netns %s has no identity", s.Object)
			}
		}
		want := []StepKind{StepVeth, StepVeth, StepNetns, StepNetns, StepDel, StepCache, StepReservation, StepReservation}
		if d := cmp.Diff(want, kinds); d != "" {
			t.Fatal(d)
		}
		for s, n := range count {
			if n != 1 {
				t.Errorf("%s comes %d times", s, n)
			}
		}
	}
}

func TestNoDel(t *testing.T) {
	for _, r := range []struct {
		name string
		opt  Options
		edit func(*verdict.Finding)
		del  bool
		veth bool
	}{
		{"by default", Options{}, func(*verdict.Finding) {}, true, true},
		{"--no-del", Options{NoDel: true}, func(*verdict.Finding) {}, false, true},
		{"broken entry", Options{}, func(f *verdict.Finding) { f.Resource.Problem, f.Resource.Cache = "EOF", nil }, false, false},
		{"entry with a problem", Options{}, func(f *verdict.Finding) { f.Resource.Problem = "no config" }, false, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			p := make1(r.opt, cache(id(1), r.edit), reservation(pods, "10.1.0.9", id(1)))
			var del, veth, file, addr bool
			for _, s := range p.Groups[0].Steps {
				del, veth = del || s.Kind == StepDel, veth || s.Kind == StepVeth
				file, addr = file || s.Kind == StepCache, addr || s.Kind == StepReservation
			}
			if del != r.del || veth != r.veth || !file || !addr || p.Groups[0].Execs != r.del {
				t.Errorf("del %v, veth %v, cache %v, address %v, execs %v", del, veth, file, addr, p.Groups[0].Execs)
			}
		})
	}
}

// A host interface that results of two containers name is a bridge, living or dead as
// they may be: it is nobody's veth.
func TestSharedInterfaceIsNoVeth(t *testing.T) {
	for _, beside := range []verdict.Finding{cache(id(2)), cache(id(2), kept(verdict.InUse)), cache(id(2), kept(verdict.Unknown))} {
		p := make1(Options{}, cache(id(1)), reservation(pods, "10.1.0.9", id(1)), beside)
		got := steps(p)
		if slices.Contains(got, "veth cni0") || !slices.Contains(got, "veth veth"+id(1)[60:]) {
			t.Errorf("beside a cache entry that is %s: %v", beside.Verdict, got)
		}
	}
	// Two networks of one container name its veth twice; it is still its own.
	second := cache(id(1), func(f *verdict.Finding) { f.Resource.Path += "2" })
	if got := steps(make1(Options{}, cache(id(1)), second)); !slices.Contains(got, "veth veth"+id(1)[60:]) {
		t.Errorf("a container's own veth stays: %v", got)
	}
}

// An attachment goes as a whole: one reservation that stays keeps the others, by whatever
// verdict; another attachment and another owner do not.
func TestAttachmentAsAWhole(t *testing.T) {
	for _, v := range verdict.All() {
		if v == verdict.Missing {
			continue
		}
		p := make1(Options{},
			reservation(pods, "10.1.0.9", id(1)), reservation(pods, "fd00::9", id(1), kept(v)),
			reservation(other, "10.2.0.9", id(1)), reservation(pods, "10.1.0.10", id(2)))
		want := []string{"reservation " + other + "/10.2.0.9", "reservation " + pods + "/10.1.0.10"}
		got := steps(p)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("beside %s: %s", v, d)
		}
		if len(p.Withheld) != 1 || p.Withheld[0].Cap || p.Withheld[0].Why == "" {
			t.Errorf("beside %s: withheld %+v", v, p.Withheld)
		}
	}
	// A Missing one is no file that stays.
	if p := make1(Options{}, reservation(pods, "10.1.0.9", id(1)), reservation(pods, "fd00::9", id(1), kept(verdict.Missing))); len(p.Groups) != 1 {
		t.Errorf("a Missing sibling withholds: %+v", p.Withheld)
	}
}

// Nothing that is not releasable ever becomes a step.
func TestOnlyReleasable(t *testing.T) {
	var list []verdict.Finding
	for i, v := range verdict.All() {
		list = append(list, reservation(pods, fmt.Sprintf("10.1.0.%d", 10+i), id(i), kept(v)), cache(id(i), kept(v)))
	}
	if p := make1(Options{ForceOverCap: true, MaxReleases: 1000}, list...); len(p.Groups)+len(p.Withheld) != 0 {
		t.Errorf("%v, withheld %v", steps(p), p.Withheld)
	}
}

func many(store, prefix string, n, from int, edits ...func(*verdict.Finding)) (list []verdict.Finding) {
	for i := range n {
		a := netip.MustParseAddr(prefix)
		b := a.As4()
		b[2], b[3] = byte(i/200), byte(i%200+10)
		list = append(list, reservation(store, netip.AddrFrom4(b).String(), id(from+i), edits...))
	}
	return list
}

func TestCap(t *testing.T) {
	for _, r := range []struct {
		name  string
		dead  int
		alive int
		opt   Options
		boot  int
		want  int
	}{
		{"the least", 16, 0, Options{}, 0, 16},
		{"one over the least", 17, 0, Options{}, 0, 16},
		{"a tenth is the least", 30, 130, Options{}, 0, 16},
		{"a tenth, rounded up", 30, 131, Options{}, 0, 17},
		{"a tenth of many", 500, 500, Options{}, 0, 100},
		{"a person's number", 30, 500, Options{MaxReleases: 3}, 0, 3},
		{"a person's larger number", 30, 0, Options{MaxReleases: 30}, 0, 30},
		{"zero is the default", 30, 0, Options{MaxReleases: 0}, 0, 16},
		{"below zero is the default", 30, 0, Options{MaxReleases: -1}, 0, 16},
		{"forced", 30, 0, Options{ForceOverCap: true}, 0, 30},
		{"what the boot proves is not counted", 10, 0, Options{}, 200, 210},
		{"nor does it lend its place", 20, 0, Options{MaxReleases: 5}, 100, 105},
	} {
		t.Run(r.name, func(t *testing.T) {
			list := slices.Concat(
				many(pods, "10.1.0.0", r.dead, 0), many(pods, "10.2.0.0", r.alive, 10000, kept(verdict.InUse)), many(pods, "10.3.0.0", r.boot, 20000, booted))
			p := make1(r.opt, list...)
			if n := len(steps(p)); n != r.want {
				t.Errorf("%d go, want %d", n, r.want)
			}
			left := r.dead + r.boot - r.want
			if len(p.Withheld) != left || p.Over[pods] != left {
				t.Errorf("%d withheld, %d over; want %d", len(p.Withheld), p.Over[pods], left)
			}
			for _, w := range p.Withheld {
				if !w.Cap || w.Finding.BootProven || w.Why == "" {
					t.Errorf("withheld %+v", w)
				}
			}
		})
	}
}

// The cap is one per network, and never parts what belongs together.
func TestCapPerNetworkAndWhole(t *testing.T) {
	p := make1(Options{MaxReleases: 4}, slices.Concat(many(pods, "10.1.0.0", 9, 0), many(other, "10.2.0.0", 3, 100))...)
	if len(steps(p)) != 7 || p.Over[pods] != 5 || p.Over[other] != 0 {
		t.Errorf("%d go, over %v", len(steps(p)), p.Over)
	}
	// Three dual-stack containers under a cap of 5: two go, whole, the third stays, whole.
	var list []verdict.Finding
	for i := range 3 {
		list = append(list, reservation(pods, fmt.Sprintf("10.1.0.%d", 10+i), id(i)), reservation(pods, fmt.Sprintf("fd00::%d", 10+i), id(i)), cache(id(i)))
	}
	p = make1(Options{MaxReleases: 5}, list...)
	if len(p.Groups) != 2 || p.Over[pods] != 2 {
		t.Errorf("%d groups, over %v", len(p.Groups), p.Over)
	}
	for _, w := range p.Withheld {
		if w.Finding.Resource.Owner.ID != id(2) {
			t.Errorf("%s is parted", w.Finding.Resource.Path)
		}
	}
	// An owner over the cap in one network stays in the other, too.
	list = slices.Concat(many(pods, "10.1.0.0", 4, 0), []verdict.Finding{
		reservation(pods, "10.9.0.1", id(50), since(2*time.Hour)), reservation(other, "10.9.0.2", id(50), since(2*time.Hour))})
	p = make1(Options{MaxReleases: 4}, list...)
	for _, s := range steps(p) {
		if strings.Contains(s, "10.9.0.") {
			t.Errorf("%s goes", s)
		}
	}
}

// Proven by the boot first, then the oldest death; then by place.
func TestOldestFirst(t *testing.T) {
	p := make1(Options{},
		reservation(pods, "10.1.0.14", id(4), since(3)), reservation(pods, "10.1.0.13", id(3), since(2)),
		reservation(pods, "10.1.0.12", id(2), since(9), booted), reservation(pods, "10.1.0.11", id(1), since(3)),
		reservation(other, "10.1.0.15", id(5), since(3)), reservation(pods, "10.1.0.9", "", since(3)))
	want := []string{
		"reservation " + pods + "/10.1.0.12", "reservation " + pods + "/10.1.0.13", "reservation " + other + "/10.1.0.15",
		"reservation " + pods + "/10.1.0.9", "reservation " + pods + "/10.1.0.11", "reservation " + pods + "/10.1.0.14",
	}
	if d := cmp.Diff(want, steps(p)); d != "" {
		t.Error(d)
	}
}

// Files that name no container belong to nobody else: each stands alone.
func TestNamelessFilesStandAlone(t *testing.T) {
	p := make1(Options{}, reservation(pods, "10.1.0.9", ""), reservation(pods, "10.1.0.10", ""), reservation(pods, "10.1.0.11", "reserved-vip"), reservation(pods, "10.1.0.12", "reserved-vip", kept(verdict.Foreign)))
	if len(p.Groups) != 3 {
		t.Errorf("%d groups: %v", len(p.Groups), steps(p))
	}
}

func TestSkip(t *testing.T) {
	opt := Options{Skip: func(r *claim.Resource) string {
		if r.Store == pods {
			return "the file system is read-only"
		}
		return ""
	}}
	p := make1(opt, reservation(pods, "10.1.0.9", id(1)), reservation(other, "10.2.0.9", id(2)))
	if d := cmp.Diff([]string{"reservation " + other + "/10.2.0.9"}, steps(p)); d != "" {
		t.Error(d)
	}
	if len(p.Withheld) != 1 || p.Withheld[0].Why != "the file system is read-only" || p.Withheld[0].Cap {
		t.Errorf("withheld %+v", p.Withheld)
	}
}

// sameAddr compares addresses as values.
var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// Every releasable finding goes or is withheld with a reason, exactly once; the plan is
// the same for the same judgement, which is not changed; and no cap is burst.
func TestRandomPlans(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		var list []verdict.Finding
		for i := range 1 + r.Intn(60) {
			v := verdict.All()[r.Intn(len(verdict.All()))]
			edits := []func(*verdict.Finding){since(time.Duration(r.Intn(4)))}
			if r.Intn(3) == 0 {
				edits = append(edits, kept(v))
			}
			if r.Intn(4) == 0 {
				edits = append(edits, booted)
			}
			owner := id(r.Intn(30))
			if r.Intn(10) == 0 {
				owner = ""
			}
			if owner != "" && r.Intn(4) == 0 {
				list = append(list, cache(owner, edits...))
			} else {
				list = append(list, reservation([]string{pods, other}[r.Intn(2)], fmt.Sprintf("10.1.%d.%d", i/200, i%200+10), owner, edits...))
			}
		}
		j := &verdict.Judgement{Findings: list}
		opt := Options{MaxReleases: r.Intn(6), ForceOverCap: r.Intn(4) == 0}
		before, _ := json.Marshal(list)
		p := Make(j, opt)
		if after, _ := json.Marshal(list); string(after) != string(before) {
			t.Fatalf("seed %d: the findings were changed", seed)
		}
		if again := Make(j, opt); !reflect.DeepEqual(p, again) {
			t.Fatalf("seed %d: two plans differ: %s", seed, cmp.Diff(p, again, sameAddr))
		}
		where := map[*verdict.Finding]int{}
		used := map[string]int{}
		for _, g := range p.Groups {
			seenAddr := false
			for _, f := range g.Findings {
				where[f]++
				if f.Resource.Kind == claim.KindReservation && !f.BootProven {
					used[f.Resource.Store]++
				}
			}
			for _, s := range g.Steps {
				if seenAddr && s.Kind != StepReservation {
					t.Errorf("seed %d: %s after the address", seed, s.Kind)
				}
				seenAddr = seenAddr || s.Kind == StepReservation
			}
		}
		for _, w := range p.Withheld {
			where[w.Finding]++
			if w.Why == "" {
				t.Errorf("seed %d: withheld without a reason", seed)
			}
		}
		for i := range list {
			if n := where[&list[i]]; n != 0 && n != 1 || (n == 1) != list[i].Releasable {
				t.Errorf("seed %d: %s, releasable %v, appears %d times", seed, list[i].Resource.Path, list[i].Releasable, n)
			}
		}
		limit := opt.MaxReleases
		if limit == 0 {
			limit = MinCap
		}
		for st, n := range used {
			// One container with more addresses than the cap goes alone.
			in := 0
			for _, g := range p.Groups {
				if slices.ContainsFunc(g.Findings, func(f *verdict.Finding) bool {
					return f.Resource.Store == st && f.Resource.Kind == claim.KindReservation && !f.BootProven
				}) {
					in++
				}
			}
			if n > limit && !opt.ForceOverCap && in > 1 {
				t.Errorf("seed %d: %d released in %s over the cap of %d", seed, n, st, limit)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}
