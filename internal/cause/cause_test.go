package cause

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	store    = "/var/lib/cni/networks/pods"
	other    = "/var/lib/cni/networks/other"
	endpoint = "unix:///run/containerd/containerd.sock"
)

func id(n int) string { return fmt.Sprintf("%064x", 0xabc0000+n) }

// world is what passes see.
type world struct {
	now    claim.Instant
	files  map[string]string // path -> owner's ID
	cached map[string]bool   // by ID
	boxes  map[string]bool
	configs,
	otherConfigs []string
	criSilent bool
	problem   string // of the store
	inUse     map[string]bool
	h         History
	c         *verdict.Case
}

func newWorld() *world {
	return &world{
		now: claim.Instant{Boot: "b", Mono: time.Hour}, files: map[string]string{}, cached: map[string]bool{}, boxes: map[string]bool{}, inUse: map[string]bool{},
		configs: []string{"/etc/cni/net.d/10-pods.conflist"}, otherConfigs: []string{"/etc/cni/net.d/20-other.conflist"},
	}
}

func owner(id string) claim.Owner {
	if id == "" {
		return claim.Owner{}
	}
	return claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: "eth0"}
}

// has makes everything of a living container.
func (w *world) has(n int) {
	w.files[fmt.Sprintf("%s/10.0.0.%d", store, n)] = id(n)
	w.cached[id(n)], w.boxes[id(n)], w.inUse[id(n)] = true, true, true
}

// dies leaves file and cache entry; its runtime forgets it.
func (w *world) dies(n int) { w.boxes[id(n)], w.inUse[id(n)] = false, false }

func sorted(m map[string]bool) (out []string) {
	for k, ok := range m {
		if ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// pass is fed to the history.
func (w *world) pass() {
	w.now.Mono += time.Minute
	c := &verdict.Case{Now: w.now}
	hl := claim.Snapshot{Stores: []claim.Store{
		{Dir: store, Network: "pods", Configs: w.configs, Problem: w.problem}, {Dir: other, Network: "other", Configs: w.otherConfigs},
	}}
	var paths []string
	for p := range w.files {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		hl.Resources = append(hl.Resources, claim.Resource{Kind: claim.KindReservation, Store: store, Network: "pods", Path: p, Owner: owner(w.files[p])})
	}
	cache := claim.Snapshot{Stores: []claim.Store{{Dir: "/var/lib/cni/results"}}}
	for _, k := range sorted(w.cached) {
		cache.Resources = append(cache.Resources, claim.Resource{Kind: claim.KindCache, Owner: owner(k), Network: "pods"})
	}
	c.Snapshots = []claim.Snapshot{cache, hl}
	cri := &claim.CRIFacts{}
	for _, k := range sorted(w.boxes) {
		cri.Sandboxes = append(cri.Sandboxes, claim.Sandbox{ID: k, Endpoint: endpoint, Ready: true})
	}
	c.Testimonies = []claim.Testimony{{Witness: claim.WitnessCRI, State: claim.StateComplete, CRI: cri}}
	j := &verdict.Judgement{Reasons: map[string]string{}}
	if w.criSilent {
		j.Reasons[claim.WitnessCRI] = "EOF"
	}
	for i := range hl.Resources {
		if r := &hl.Resources[i]; w.inUse[r.Owner.ID] {
			j.Findings = append(j.Findings, verdict.Finding{Resource: r, Verdict: verdict.InUse})
		}
	}
	w.h.Feed(c, j)
	w.c = c
}

func (w *world) of(n int) Cause {
	return Of(w.finding(n), w.c, &w.h)
}

func (w *world) finding(n int) *verdict.Finding {
	p := fmt.Sprintf("%s/10.0.0.%d", store, n)
	return &verdict.Finding{Verdict: verdict.Leaked, Resource: &claim.Resource{Kind: claim.KindReservation, Store: store, Network: "pods", Path: p, Owner: owner(w.files[p])}}
}

// Every cause where it can be told, and beside each what is too little to tell it.
func TestOf(t *testing.T) {
	pod := claim.Pod{Namespace: "shop", Name: "web", UID: "uid-1"}
	reserve := func(w *world, n int) { w.files[fmt.Sprintf("%s/10.0.0.%d", store, n)] = id(n) }
	for _, r := range []struct {
		name   string
		run    func(w *world)
		kind   Kind
		plugin string
	}{
		{"no DEL ever came", func(w *world) { w.has(1); w.has(9); w.pass(); w.dies(1); w.pass() }, NoDel, ""},
		{"no DEL, seen some passes later", func(w *world) {
			w.has(1)
			w.has(9)
			w.pass()
			w.dies(1)
			w.pass()
			w.pass()
			w.pass()
		}, NoDel, ""},
		{"nobody saw it listed", func(w *world) { w.has(1); w.dies(1); w.pass(); w.pass() }, Unknown, ""},
		{"a DEL came, and the file stayed", func(w *world) {
			w.has(1)
			w.has(9)
			w.pass()
			w.dies(1)
			w.cached[id(1)] = false
			w.pass()
		}, Unknown, ""},
		{"it is still listed", func(w *world) { w.has(1); w.has(9); w.pass(); w.inUse[id(1)] = false; w.pass() }, Unknown, ""},
		{"the runtime was silent meanwhile", func(w *world) {
			w.has(1)
			w.has(9)
			w.pass()
			w.dies(1)
			w.criSilent = true
			w.pass()
		}, Unknown, ""},
		{"another boot has other containers", func(w *world) {
			w.has(1)
			w.has(9)
			w.pass()
			w.dies(1)
			w.now.Boot = "c"
			w.pass()
		}, Unknown, ""},

		{"the runtime forgot all at once", func(w *world) {
			for n := range 4 {
				w.has(n)
			}
			w.pass()
			for n := range 4 {
				w.dies(n)
			}
			w.has(9) // a young one
			w.pass()
		}, RuntimeWiped, ""},
		{"the runtime forgot all at once, with the cache lost too", func(w *world) {
			for n := range 4 {
				w.has(n)
			}
			w.pass()
			for n := range 4 {
				w.dies(n)
				w.cached[id(n)] = false
			}
			w.pass()
			w.pass()
		}, RuntimeWiped, ""},
		{"it forgot all but one", func(w *world) {
			for n := range 5 {
				w.has(n)
			}
			w.pass()
			for n := range 4 {
				w.dies(n)
			}
			w.pass()
		}, NoDel, ""},
		{"it forgot all of two", func(w *world) {
			w.has(1)
			w.has(2)
			w.pass()
			w.dies(1)
			w.dies(2)
			w.pass()
		}, NoDel, ""},
		{"it forgot them one after the other", func(w *world) {
			for n := range 4 {
				w.has(n)
			}
			w.pass()
			for n := range 4 {
				w.dies(3 - n)
				w.pass()
			}
		}, NoDel, ""},
		{"it forgot all, and it came back, and then it went", func(w *world) {
			for n := range 4 {
				w.has(n)
			}
			w.has(9)
			w.pass()
			for _, n := range []int{0, 1, 2, 3, 9} {
				w.dies(n)
			}
			w.pass()
			w.has(1)
			w.has(9)
			w.pass()
			w.dies(1)
			w.pass()
		}, NoDel, ""},
		{"all were drained but this one", func(w *world) {
			for n := range 8 {
				w.has(n)
			}
			w.pass()
			for n := range 8 {
				w.dies(n)
				if n != 1 {
					delete(w.files, fmt.Sprintf("%s/10.0.0.%d", store, n))
					w.cached[id(n)] = false
				}
			}
			w.pass()
		}, NoDel, ""},

		{"its ADD ended in nothing", func(w *world) { w.pass(); reserve(w, 1); w.pass(); w.pass() }, AddCrashed, ""},
		{"it was there before we were", func(w *world) { reserve(w, 1); w.pass(); w.pass() }, Unknown, ""},
		{"its directory could not be listed before", func(w *world) { w.problem = "EIO"; w.pass(); w.problem = ""; reserve(w, 1); w.pass() }, Unknown, ""},
		{"its result was kept once", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.cached[id(1)] = true
			w.pass()
			w.cached[id(1)] = false
			w.pass()
		}, Unknown, ""},
		{"it was listed once", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.boxes[id(1)] = true
			w.pass()
			w.boxes[id(1)] = false
			w.pass()
		}, Unknown, ""},
		{"it was in use once", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.inUse[id(1)] = true
			w.pass()
			w.inUse[id(1)] = false
			w.pass()
		}, Unknown, ""},

		{"an Event tells of its ADD", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.h.Hints([]Hint{{ContainerID: id(1), Pod: pod, Plugin: "portmap", Verb: VerbAdd}})
			w.pass()
		}, AddFailed, "portmap"},
		{"the Event is told before the address is seen, and not again", func(w *world) {
			w.h.Hints([]Hint{{ContainerID: id(1), Pod: pod, Plugin: "portmap", Verb: VerbAdd}})
			w.pass()
			reserve(w, 1)
			w.h.Hints([]Hint{{ContainerID: id(2), Pod: pod, Plugin: "bridge", Verb: VerbAdd}})
			w.pass()
		}, AddFailed, "portmap"},
		{"an Event tells of another's ADD", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.h.Hints([]Hint{{ContainerID: id(2), Pod: pod, Plugin: "portmap", Verb: VerbAdd}})
			w.pass()
		}, AddCrashed, ""},
		{"an Event without a sandbox tells of an ADD", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.h.Hints([]Hint{{Pod: pod, Plugin: "portmap", Verb: VerbAdd}})
			w.pass()
		}, AddCrashed, ""},
		{"an Event names no plugin", func(w *world) {
			w.pass()
			reserve(w, 1)
			w.h.Hints([]Hint{{ContainerID: id(1), Pod: pod, Verb: VerbAdd}})
			w.pass()
		}, AddCrashed, ""},
		{"its ADD failed once, and it lived all the same", func(w *world) {
			w.has(1)
			w.has(9)
			w.h.Hints([]Hint{{ContainerID: id(1), Pod: pod, Plugin: "portmap", Verb: VerbAdd}})
			w.pass()
			w.dies(1)
			w.pass()
		}, NoDel, ""},
		{"an Event tells of its DEL", func(w *world) {
			w.has(1)
			w.has(9)
			w.pass()
			w.dies(1)
			w.h.Hints([]Hint{{ContainerID: id(1), Pod: pod, Plugin: "firewall", Verb: VerbDel}})
			w.pass()
		}, DelFailed, "firewall"},

		{"no configuration names the network", func(w *world) {
			w.has(1)
			w.has(9)
			w.configs = nil
			w.pass()
			w.dies(1)
			w.pass()
		}, NetworkRenamed, ""},
		{"no configuration names any network", func(w *world) {
			w.has(1)
			w.has(9)
			w.configs, w.otherConfigs = nil, nil
			w.pass()
			w.dies(1)
			w.pass()
		}, NoDel, ""},
		{"an empty file", func(w *world) { w.files[store+"/10.0.0.1"] = ""; w.pass() }, EmptyFile, ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newWorld()
			r.run(w)
			c := w.of(1)
			if c.Kind != r.kind || c.Plugin != r.plugin || (c.Why == "") != (r.kind == Unknown) {
				t.Errorf("%+v; want %s %s", c, r.kind, r.plugin)
			}
			if r.plugin != "" && c.Pod != pod {
				t.Errorf("the Pod is %+v", c.Pod)
			}
			if !slices.Contains(Kinds(), c.Kind) {
				t.Errorf("%s is not among the kinds", c.Kind)
			}
		})
	}
}

// What the judge knows already, and the Pod that it knows.
func TestOfJudged(t *testing.T) {
	w := newWorld()
	w.pass()
	f := w.finding(1)
	f.Resource.Owner = owner(id(1))
	f.BootProven = true
	f.Pod = claim.Pod{Namespace: "a", Name: "b", UID: "u"}
	if c := Of(f, w.c, &w.h); c.Kind != Reboot || c.Pod != f.Pod {
		t.Errorf("%+v", c)
	}
	f.BootProven = false
	w.h.Hints([]Hint{{Pod: claim.Pod{UID: "u"}, Plugin: "firewall", Verb: VerbDel}})
	if c := Of(f, w.c, &w.h); c.Kind != DelFailed || c.Plugin != "firewall" {
		t.Errorf("by its Pod: %+v", c)
	}
	f.Pod.UID = "v"
	if c := Of(f, w.c, &w.h); c.Kind != Unknown {
		t.Errorf("by another Pod: %+v", c)
	}
	f.Pod.UID = ""
	f.Resource.Owner = claim.Owner{Shape: claim.ShapeForeign, ID: "reserved-vip"}
	if c := Of(f, w.c, &w.h); c.Kind != Unknown {
		t.Errorf("a person's: %+v", c)
	}
	f.Resource.Owner, f.Resource.Problem = claim.Owner{}, "EIO"
	if c := Of(f, w.c, &w.h); c.Kind != Unknown {
		t.Errorf("unreadable: %+v", c)
	}
}

// A full /16 is remembered in a few MB, and Events without end are not.
func TestHistoryIsBounded(t *testing.T) {
	c := &verdict.Case{Now: claim.Instant{Boot: "b", Mono: 1}, Snapshots: []claim.Snapshot{{Stores: []claim.Store{{Dir: store}}}}}
	for n := range 65_536 {
		c.Snapshots[0].Resources = append(c.Snapshots[0].Resources, claim.Resource{Kind: claim.KindReservation, Store: store, Owner: owner(id(n))})
	}
	var before, after runtime.MemStats
	h := &History{}
	runtime.GC()
	runtime.ReadMemStats(&before)
	h.Feed(c, &verdict.Judgement{})
	h.Feed(c, &verdict.Judgement{})
	runtime.GC()
	runtime.ReadMemStats(&after)
	if mb := float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / 1e6; mb > 5 {
		t.Errorf("%.1f MB", mb)
	}
	for n := range 3 * maxHints {
		h.Hints([]Hint{{ContainerID: id(n), Plugin: "x", Verb: VerbAdd}, {ContainerID: id(n), Plugin: strings.Repeat("y", 3), Verb: VerbAdd}})
	}
	if len(h.hints) != maxHints || len(h.order) != maxHints || h.hints[id(3*maxHints-1)].Plugin != "yyy" {
		t.Errorf("%d hints, %d in order", len(h.hints), len(h.order))
	}
	c.Snapshots[0].Resources = nil
	h.Feed(c, &verdict.Judgement{})
	if len(h.ids) > 0 {
		t.Errorf("%d containers are remembered that have nothing here", len(h.ids))
	}
	runtime.KeepAlive(c)
}
