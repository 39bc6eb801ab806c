package line_test

import (
	"encoding/json"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	pods     = "/var/lib/cni/networks/pods"
	other    = "/var/lib/cni/networks/other"
	endpoint = "unix:///run/containerd/containerd.sock"
	mount    = "/run/netns/cni-0a1b2c3d-1111-2222-3333-444455556666"
)

var (
	idA = strings.Repeat("a1b2c3d4", 8)
	idB = strings.Repeat("b0b1b2b3", 8)
	idE = strings.Repeat("e0e1e2e3", 8) // an application container
	ipX = netip.MustParseAddr("10.1.0.9")
	ipY = netip.MustParseAddr("10.1.0.10")
)

// scene is a node after one release, of idA's reservation of ipX in pods, ten minutes ago.
type scene struct {
	now      claim.Instant
	release  Release
	files    []claim.Resource
	caches   []claim.Resource
	later    []claim.Resource // only in the second listing
	nets     []claim.Netns
	hits     []claim.ProcessHit
	boxes    []claim.Sandbox
	memory   []verdict.Sighting
	required []string
	silent   string
	relists  bool // the second listing was before the witnesses
}

func newScene() *scene {
	now := claim.Instant{Boot: "b", Mono: 100 * time.Hour, Wall: time.Unix(1e9, 0)}
	s := &scene{now: now, required: []string{"kernel", "process", "cri"}}
	s.release = Release{ID: "r1", Store: pods, Addr: ipX, Owner: owner(idA, "eth0"), At: s.ago(10 * time.Minute)}
	s.nets = []claim.Netns{{ID: 1, Host: true, Procs: 90}}
	return s
}

func owner(id, ifName string) claim.Owner {
	return claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: ifName}
}

func (s *scene) ago(d time.Duration) claim.Instant {
	i := s.now
	i.Mono -= d
	return i
}

// file is a reservation that was first seen so long ago.
func (s *scene) file(dir string, addr netip.Addr, o claim.Owner, seen time.Duration) claim.Resource {
	r := claim.Resource{Kind: claim.KindReservation, Store: dir, Network: dir[strings.LastIndexByte(dir, '/')+1:], Addr: addr, Owner: o, Path: dir + "/" + addr.String(), Inc: claim.Incarnation{Ino: uint64(100 + len(s.files) + len(s.later))}}
	s.memory = append(s.memory, verdict.Sighting{Key: verdict.Key{Path: r.Path, Inc: r.Inc}, First: s.ago(seen)})
	return r
}

func (s *scene) netns(id uint64, procs int, m string, addrs ...netip.Addr) {
	n := claim.Netns{ID: id, Procs: procs}
	if m != "" {
		n.Mounts = []string{m}
	}
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, claim.IfAddr{If: "eth0", Addr: a})
	}
	s.nets = append(s.nets, n)
}

func (s *scene) proc(id, via string, netns uint64) {
	s.hits = append(s.hits, claim.ProcessHit{ID: id, PID: 4711, Netns: netns, Via: via})
}

func (s *scene) box(id string, ready bool, netns string) {
	s.boxes = append(s.boxes, claim.Sandbox{ID: id, Endpoint: endpoint, Ready: ready, Netns: netns, Pod: claim.Pod{UID: id}})
}

func (s *scene) watch(relisted bool) ([]Contradiction, bool) {
	listed, asked := s.ago(3*time.Second), s.ago(2*time.Second)
	stores := []claim.Store{{Dir: pods, Network: "pods", Writable: true}, {Dir: other, Network: "other", Writable: true}}
	c := &verdict.Case{
		Now: s.now, Policy: verdict.Policy{Required: s.required, Grace: 5 * time.Minute, OrphanGrace: time.Hour}, Memory: verdict.NewMemory(slices.Clone(s.memory)),
		Snapshots: []claim.Snapshot{{Source: "hostlocal", Listed: listed, Stores: stores, Resources: s.files}, {Source: "cnicache", Listed: listed, Resources: s.caches}},
		Testimonies: []claim.Testimony{
			{Witness: claim.WitnessKernel, Kernel: &claim.KernelFacts{Netns: s.nets, Vantage: claim.Vantage{Proven: true, InitialPIDNS: true}}},
			{Witness: claim.WitnessProcess, Process: &claim.ProcessFacts{Hits: s.hits}},
			{Witness: claim.WitnessCRI, CRI: &claim.CRIFacts{Runtimes: []claim.Runtime{{Endpoint: endpoint, Name: "containerd", State: claim.StateComplete}}, Sandboxes: s.boxes, Detailed: true}},
			{Witness: claim.WitnessBoot, Boot: &claim.BootFacts{Current: s.now.Boot}},
		},
	}
	for i := range c.Testimonies {
		t := &c.Testimonies[i]
		t.State, t.Asked = claim.StateComplete, asked
		if t.Witness == s.silent {
			t.State = claim.StateSilent
		}
	}
	if relisted {
		c.Relisted = &claim.Snapshot{Source: "hostlocal", Listed: s.ago(time.Second), Stores: stores, Resources: slices.Concat(s.files, s.later)}
		if s.relists {
			c.Relisted.Listed = s.ago(2500 * time.Millisecond)
		}
	}
	return Watch([]Release{s.release}, c, verdict.Judge(c))
}

// What contradicts a release, and right beside it what does not.
func TestWatchTable(t *testing.T) {
	for _, r := range []struct {
		name string
		set  func(*scene)
		want string // in Why; "" for no contradiction
		ids  int
	}{
		{name: "nothing", set: func(*scene) {}},

		{name: "a process in its cgroup", set: func(s *scene) { s.proc(idA, "cgroup", 50) }, want: "process 4711", ids: 1},
		{name: "in another's", set: func(s *scene) { s.proc(idB, "cgroup", 50) }},
		{name: "a late DEL of it", set: func(s *scene) { s.proc(idA, "cni", 1) }},
		{name: "a shim that cleans up", set: func(s *scene) { s.proc(idA, "shim", 1) }},
		{name: "process silent", set: func(s *scene) { s.proc(idA, "cgroup", 50); s.silent = "process" }},
		{name: "its sandbox Ready", set: func(s *scene) { s.box(idA, true, "") }, want: "lists its sandbox, Ready", ids: 1},
		{name: "NotReady", set: func(s *scene) { s.box(idA, false, "") }},
		{name: "another one Ready", set: func(s *scene) { s.box(idB, true, "") }},
		{name: "cri silent", set: func(s *scene) { s.box(idA, true, ""); s.silent = "cri" }},
		{name: "nerdctl's, by the ID within", set: func(s *scene) {
			s.release.Owner.ID = "default-" + idA
			s.proc(idA, "cgroup", 50)
		}, want: "process 4711", ids: 1},

		{name: "a namespace in use holds it", set: func(s *scene) { s.netns(50, 1, "", ipX) }, want: "a network namespace in use holds it", ids: 1},
		{name: "mapped into IPv6", set: func(s *scene) { s.netns(50, 1, "", netip.MustParseAddr("::ffff:10.1.0.9")) }, want: "a network namespace in use holds it", ids: 1},
		{name: "another address", set: func(s *scene) { s.netns(50, 1, "", ipY) }},
		{name: "an idle one", set: func(s *scene) { s.netns(50, 0, mount, ipX) }},
		{name: "the host's", set: func(s *scene) { s.nets[0].Addrs = []claim.IfAddr{{If: "eth0", Addr: ipX}} }},
		{name: "of nobody known, as its owner was none", set: func(s *scene) { s.release.Owner = claim.Owner{}; s.netns(50, 1, "", ipX) }, want: "holds it", ids: 1},
		{name: "another's by its runtime", set: func(s *scene) { s.netns(50, 1, mount, ipX); s.box(idB, true, "/var"+mount) }},
		{name: "another's by its process", set: func(s *scene) {
			s.netns(50, 1, "", ipX)
			s.proc(idB, "cgroup", 50)
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour))
		}},
		{name: "an application's, of which nobody knows", set: func(s *scene) { s.netns(50, 1, "", ipX); s.proc(idE, "cgroup", 50) }, want: "holds it", ids: 1},
		{name: "another's and its own", set: func(s *scene) {
			s.netns(50, 1, mount, ipX)
			s.box(idB, true, mount)
			s.box(idA, false, mount)
		}, want: "holds it", ids: 1},
		{name: "kernel silent", set: func(s *scene) { s.netns(50, 1, "", ipX); s.silent = "kernel" }},

		{name: "handed to a new Pod", set: func(s *scene) {
			s.netns(50, 1, "", ipX)
			s.files = append(s.files, s.file(pods, ipX, owner(idB, "eth0"), time.Minute))
		}},
		{name: "handed to a new Pod since the listing", set: func(s *scene) {
			s.netns(50, 1, "", ipX)
			s.later = append(s.later, s.file(pods, ipX, owner(idB, "eth0"), 0))
		}},
		{name: "reserved in another store, as after a renaming", set: func(s *scene) {
			s.netns(50, 1, "", ipX)
			s.files = append(s.files, s.file(other, ipX, owner(idB, "eth0"), time.Hour))
		}},
		{name: "handed on, and its own container lives", set: func(s *scene) {
			s.box(idA, true, "")
			s.files = append(s.files, s.file(pods, ipX, owner(idB, "eth0"), time.Minute))
		}, want: "lists its sandbox, Ready", ids: 1},
		{name: "F21: started again, with a new reservation", set: func(s *scene) {
			s.proc(idA, "cgroup", 50)
			s.files = append(s.files, s.file(pods, ipY, owner(idA, "eth0"), time.Minute))
		}},
		{name: "F21: the new reservation came since the listing", set: func(s *scene) {
			s.proc(idA, "cgroup", 50)
			s.later = append(s.later, s.file(pods, ipY, owner(idA, "eth0"), 0))
		}},
		{name: "F21: in another network", set: func(s *scene) {
			s.proc(idA, "cgroup", 50)
			s.files = append(s.files, s.file(other, ipY, owner(idA, "eth0"), time.Minute))
		}},
		{name: "F21: it was there before the release", set: func(s *scene) {
			s.proc(idA, "cgroup", 50)
			s.files = append(s.files, s.file(pods, ipY, owner(idA, "net1"), 11*time.Minute))
		}, want: "process 4711", ids: 1},

		{name: "the release was in another boot", set: func(s *scene) { s.proc(idA, "cgroup", 50); s.release.At.Boot = "a" }},
		{name: "long ago", set: func(s *scene) { s.proc(idA, "cgroup", 50); s.release.At = s.ago(Remembered + 1) }},
		{name: "not so long", set: func(s *scene) { s.proc(idA, "cgroup", 50); s.release.At = s.ago(Remembered) }, want: "process 4711", ids: 1},
		{name: "a listing of before the witnesses", set: func(s *scene) { s.proc(idA, "cgroup", 50); s.relists = true }},

		{name: "a duplicate", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour))
			s.netns(50, 1, "", ipY)
			s.netns(51, 1, "", ipY)
		}, want: "two network namespaces hold 10.1.0.10"},
		{name: "a duplicate with what a dead one left", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour))
			s.netns(50, 1, "", ipY)
			s.netns(51, 0, mount, ipY)
		}},
		{name: "a duplicate with an idle namespace of a Ready sandbox, as CRI-O has them", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour))
			s.netns(50, 1, "", ipY)
			s.netns(51, 0, mount, ipY)
			s.box(idE, true, mount)
		}, want: "two network namespaces hold 10.1.0.10"},
		{name: "a duplicate with the host", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour))
			s.netns(50, 1, "", ipY)
			s.nets[0].Addrs = []claim.IfAddr{{If: "cni0", Addr: ipY}}
		}, want: "two network namespaces hold 10.1.0.10"},
		{name: "overlapping ranges: both have their own reservation", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour), s.file(other, ipY, owner(idE, "eth0"), time.Hour))
			s.netns(50, 1, "", ipY)
			s.netns(51, 1, "", ipY)
			s.proc(idB, "cgroup", 50)
			s.proc(idE, "cgroup", 51)
		}},
		{name: "overlapping ranges: one of the two has its own of another address", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour), s.file(pods, ipX, owner(idE, "eth0"), time.Hour))
			s.netns(50, 1, "", ipY)
			s.netns(51, 1, "", ipY)
			s.proc(idB, "cgroup", 50)
			s.proc(idE, "cgroup", 51)
		}, want: "two network namespaces hold 10.1.0.10"},
		{name: "a duplicate of what was released, too", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipX, owner(idB, "eth0"), time.Minute))
			s.netns(50, 1, "", ipX)
			s.netns(51, 1, mount, ipX)
			s.box(idA, true, mount)
		}, want: "lists its sandbox, Ready", ids: 1},
		{name: "an address of another's namespace, held once", set: func(s *scene) {
			s.files = append(s.files, s.file(pods, ipY, owner(idB, "eth0"), time.Hour))
			s.netns(50, 1, mount, ipY)
			s.box(idA, false, mount)
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			s := newScene()
			r.set(s)
			found, _ := s.watch(true)
			switch {
			case r.want == "" && len(found) > 0:
				t.Errorf("a false alarm: %+v", found)
			case r.want != "" && (len(found) != 1 || found[0].Store != pods || !strings.Contains(found[0].Why, r.want) || len(found[0].ReleaseIDs) != r.ids):
				t.Errorf("%+v; want %q with %d releases", found, r.want, r.ids)
			}
			// Without a second listing only a duplicate counts, and what else there may be is asked for.
			found, relist := s.watch(false)
			if len(found) > 0 && !strings.Contains(found[0].Why, "two network namespaces") || r.ids > 0 && !relist {
				t.Errorf("without a second listing: %+v, asked for it: %v", found, relist)
			}
		})
	}
}

func TestRecent(t *testing.T) {
	now := claim.Instant{Boot: "b", Mono: 100 * time.Hour}
	at := func(boot string, d time.Duration) Release {
		return Release{At: claim.Instant{Boot: boot, Mono: now.Mono - d}}
	}
	list := []Release{at("a", time.Hour), at("b", Remembered+1), at("b", Remembered), at("b", 0), at("b", -1)}
	if got := Recent(slices.Clone(list), now); !cmp.Equal(got, list[2:4], cmpopts.EquateComparable(netip.Addr{})) {
		t.Errorf("%v", got)
	}
	if got := Recent(slices.Clone(list), claim.Instant{Mono: 100 * time.Hour}); len(got) != len(list) {
		t.Errorf("without a boot %d of %d are left", len(got), len(list))
	}
	var many []Release
	for range MaxRemembered + 5 {
		many = append(many, at("b", time.Hour))
	}
	many[5].ID = "first"
	if got := Recent(many, now); len(got) != MaxRemembered || got[0].ID != "first" {
		t.Errorf("%d are left, the first is %+v", len(got), got[0])
	}
}

// A stop lasts for a clean hour of its boot.
func TestNextTable(t *testing.T) {
	now := claim.Instant{Boot: "b", Mono: 100 * time.Hour}
	at := func(boot string, d time.Duration) claim.Instant { return claim.Instant{Boot: boot, Mono: now.Mono - d} }
	stop := func(boot string, d time.Duration, ids ...string) Stop {
		return Stop{Store: pods, Since: at(boot, d), Why: "w", ReleaseIDs: ids}
	}
	again := Contradiction{Store: pods, Why: "again", ReleaseIDs: []string{"r2"}}
	for _, r := range []struct {
		name  string
		stops []Stop
		found []Contradiction
		now   claim.Instant
		want  []Stop
		fresh int
		over  int
	}{
		{name: "nothing", now: now},
		{name: "a contradiction", found: []Contradiction{again}, now: now, want: []Stop{{Store: pods, Since: now, Why: "again", ReleaseIDs: []string{"r2"}}}, fresh: 1},
		{name: "of no store", found: []Contradiction{{Why: "w"}}, now: now},
		{name: "a nanosecond before the hour", stops: []Stop{stop("b", Clean-1, "r1")}, now: now, want: []Stop{stop("b", Clean-1, "r1")}},
		{name: "the hour is over", stops: []Stop{stop("b", Clean, "r1")}, now: now, over: 1},
		{name: "another contradiction", stops: []Stop{stop("b", Clean-1, "r1")}, found: []Contradiction{again}, now: now, want: []Stop{{Store: pods, Since: now, Why: "again", ReleaseIDs: []string{"r1", "r2"}}}},
		{name: "another one as the hour is over", stops: []Stop{stop("b", Clean, "r1")}, found: []Contradiction{again}, now: now, want: []Stop{{Store: pods, Since: now, Why: "again", ReleaseIDs: []string{"r2"}}}},
		{name: "one of another store", stops: []Stop{stop("b", Clean-1)}, found: []Contradiction{{Store: other, Why: "o"}}, now: now,
			want: []Stop{{Store: other, Since: now, Why: "o"}, stop("b", Clean-1)}, fresh: 1},
		{name: "another boot", stops: []Stop{stop("a", 0)}, now: now, over: 1},
		{name: "another boot, and another contradiction", stops: []Stop{stop("a", 0, "r1")}, found: []Contradiction{again}, now: now, want: []Stop{{Store: pods, Since: now, Why: "again", ReleaseIDs: []string{"r2"}}}, fresh: 1, over: 1},
		{name: "the boot is not known", stops: []Stop{stop("a", 10*Clean), {Store: other, Since: at("b", 10*Clean)}}, now: claim.Instant{Mono: now.Mono}, want: []Stop{{Store: other, Since: at("b", 10*Clean)}, stop("a", 10*Clean)}},
		{name: "of the future", stops: []Stop{stop("b", -10*Clean)}, now: now, want: []Stop{{Store: pods, Since: now, Why: "w"}}},
		{name: "every network, of another boot", stops: []Stop{All(at("a", 99*Clean), "damaged")}, now: now, want: []Stop{All(at("a", 99*Clean), "damaged")}},
		{name: "twice", stops: []Stop{stop("b", 20, "r1"), stop("b", 10, "r2")}, now: now, want: []Stop{stop("b", 10, "r1", "r2")}},
	} {
		t.Run(r.name, func(t *testing.T) {
			before, _ := json.Marshal(r.stops)
			got := Next(r.stops, r.now, r.found)
			if diff := cmp.Diff(r.want, got.Stops, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if len(got.Fresh) != r.fresh || len(got.Over) != r.over {
				t.Errorf("fresh %v, over %v", got.Fresh, got.Over)
			}
			if after, _ := json.Marshal(r.stops); string(before) != string(after) {
				t.Error("the stops were changed")
			}
		})
	}
}

// P: whatever is found and however often Next is asked, a store is stopped from each
// contradiction for Clean of its boot, and not for longer; the clock's oddities only make it longer,
// and the list stays small.
func TestNextLasts(t *testing.T) {
	for seed := range int64(500) {
		r := rand.New(rand.NewSource(seed))
		now := claim.Instant{Boot: "b", Mono: time.Hour}
		odd := seed%2 == 1
		var stops []Stop
		last := map[string]time.Duration{}
		stores := []string{pods, other, "/c"}
		for step := range 60 {
			now.Mono += time.Duration(r.Int63n(int64(Clean / 3)))
			asked := now
			if odd && r.Intn(5) == 0 {
				asked.Boot = ""
			}
			var found []Contradiction
			for _, st := range stores {
				if r.Intn(8) == 0 {
					found = append(found, Contradiction{Store: st, Why: "w", ReleaseIDs: []string{string(rune('a' + step))}})
					last[st] = now.Mono
					asked = now // else nobody knows when it was
				}
			}
			c := Next(stops, asked, found)
			stops = c.Stops
			for _, st := range stores {
				at, any := last[st]
				stopped := slices.ContainsFunc(stops, func(s Stop) bool { return s.Covers(st) })
				if due := any && now.Mono-at < Clean; due && !stopped || !due && stopped && asked.Boot != "" {
					t.Fatalf("seed %d: %s, contradicted %s ago: stopped %v", seed, st, now.Mono-at, stopped)
				}
			}
			if len(stops) > len(stores) || len(stops) > 0 && len(stops[0].ReleaseIDs) > MaxIDs {
				t.Fatalf("seed %d: %v", seed, stops)
			}
			if odd && r.Intn(10) == 0 {
				stops = append(stops, stops...) // two writers
			}
		}
	}
}
