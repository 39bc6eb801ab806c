package web

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const dataDir = "/var/lib/cni/networks"

// evil would be interpreted as markup, end a script, or turn text around.
const evil = `<img src=x onerror="document.title='owned'"></script><script>document.title='owned'</script>` + "\u202e"

// scene is a node as the judge left it, made by hand: the judge has tests of its own.
type scene struct {
	au     *sweep.Audit
	causes map[string]cause.Cause
	stops  []line.Stop
}

func newScene(at time.Time) *scene {
	s := &scene{au: &sweep.Audit{Judgement: &verdict.Judgement{}, Took: 41 * time.Millisecond}, causes: map[string]cause.Cause{}}
	c := &s.au.Case
	c.Now = claim.Instant{Boot: "b", Mono: 100 * time.Hour, Wall: at}
	c.Policy = verdict.Policy{Required: []string{"kernel", "process", "cri"}, Grace: 5 * time.Minute, OrphanGrace: time.Hour}
	for _, w := range []string{"kernel", "process", "cri", "boot"} {
		t := claim.Testimony{Witness: w, State: claim.StateComplete, Asked: c.Now, Took: 7 * time.Millisecond}
		if w == "kernel" {
			t.Kernel = &claim.KernelFacts{Vantage: claim.Vantage{Proven: true}}
		}
		c.Testimonies = append(c.Testimonies, t)
	}
	c.Snapshots = []claim.Snapshot{{Source: "hostlocal", Listed: c.Now}}
	return s
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func (s *scene) network(name, first, last string, capacity uint64) {
	st := claim.Store{Dir: dataDir + "/" + name, DataDir: dataDir, Network: name, Capacity: capacity, Writable: true}
	if first != "" {
		st.Ranges = []claim.Range{{First: addr(first), Last: addr(last), Gateway: addr(first)}}
		st.Configs = []string{"/etc/cni/net.d/10-" + name + ".conflist"}
	}
	c := &s.au.Case.Snapshots[0]
	c.Stores = append(c.Stores, st)
}

// words are a rule, a reason and what three witnesses say, by verdict.
func words(v verdict.Verdict) (rule, why string, says []verdict.Say) {
	say := func(k, p, c verdict.Word, kd string) []verdict.Say {
		return []verdict.Say{{Witness: "kernel", Word: k, Detail: kd}, {Witness: "process", Word: p, Detail: "no process of its container"}, {Witness: "cri", Word: c, Detail: "unix:///run/containerd/containerd.sock does not list it"}}
	}
	gone := say(verdict.Absent, verdict.Absent, verdict.Absent, "no network namespace of this node holds it")
	switch v {
	case verdict.Leaked:
		return "absent-twice", "every witness said absent twice, more than the grace of 5m0s apart", gone
	case verdict.Suspect:
		return "absent-once", "every witness says absent, for less than the grace of 5m0s", gone
	case verdict.Conflict:
		return "held-by-other", "the address is alive for 99aa99aa99aa, which has no reservation for it", say(verdict.Other, verdict.Absent, verdict.Absent, "network namespace net:[4026532512] holds the address for 99aa99aa99aa")
	case verdict.Missing:
		return "no-reservation", "a live container holds it and nothing is reserved: the next ADD may hand it out again", say(verdict.Alive, verdict.Alive, verdict.Alive, "network namespace net:[4026532513] holds the address")
	case verdict.Orphaned:
		return "netns-unused", "only a network namespace without any process holds the address", say(verdict.Alive, verdict.Absent, verdict.Absent, "/run/netns/cni-1 holds the address, and no process uses it")
	case verdict.Unknown:
		return "witness-silent", "cri is silent: no runtime answered in 10s", say(verdict.Absent, verdict.Absent, verdict.Silent, "no network namespace of this node holds it")
	case verdict.Malformed:
		return "empty", "the file names no owner", gone
	case verdict.Foreign:
		return "foreign-owner", "its owner is no container ID", gone
	case verdict.Held:
		return "held", "held by a person: printer", gone
	case verdict.InUse:
	}
	return "sandbox-listed", "its runtime lists the sandbox", say(verdict.Alive, verdict.Alive, verdict.Alive, "network namespace net:[4026532499] holds the address")
}

// put reserves addresses, each for a Pod of its own.
func (s *scene) put(network string, v verdict.Verdict, addrs ...netip.Addr) {
	for _, a := range addrs {
		id := fmt.Sprintf("%064x", 0xabc0000000+uint64(len(s.au.Judgement.Findings)))
		dir := dataDir + "/" + network
		r := &claim.Resource{Kind: claim.KindReservation, Store: dir, Network: network, Addr: a, Path: dir + "/" + a.String(), Owner: claim.ParseOwner([]byte(id + "\r\neth0"))}
		f := verdict.Finding{Resource: r, Verdict: v}
		f.Rule, f.Why, f.Says = words(v)
		f.Pod = claim.Pod{Namespace: "shop", Name: fmt.Sprintf("cart-%d", len(s.au.Judgement.Findings)), UID: "u"}
		ago := func(d time.Duration) claim.Instant {
			now := s.au.Case.Now
			return claim.Instant{Boot: now.Boot, Mono: now.Mono - d, Wall: now.Wall.Add(-d)}
		}
		f.Wait = -1
		switch v {
		case verdict.Leaked:
			f.Releasable = true
			f.Sight = &verdict.Sighting{First: ago(3 * time.Hour), Absent: ago(11 * time.Minute)}
			s.causes[r.Path] = cause.Cause{Kind: cause.DelFailed, Plugin: "portmap", Pod: f.Pod, Why: "DEL of its sandbox came and plugin portmap failed"}
		case verdict.Suspect:
			f.Wait = 3 * time.Minute
			f.Sight = &verdict.Sighting{First: ago(2 * time.Hour), Absent: ago(2 * time.Minute)}
		case verdict.Malformed, verdict.Foreign:
			f.Pod = claim.Pod{}
		default:
		}
		s.au.Judgement.Findings = append(s.au.Judgement.Findings, f)
	}
}

func (s *scene) pass() *agent.Pass {
	return &agent.Pass{Trigger: agent.AtInterval, Node: "node-1", Started: s.au.Case.Now, Took: s.au.Took, Audit: s.au, Causes: s.causes, Stops: s.stops}
}

// span are n addresses from first on.
func span(first string, n int) []netip.Addr {
	out := make([]netip.Addr, 0, n)
	for a := addr(first); len(out) < n; a = a.Next() {
		out = append(out, a)
	}
	return out
}

// busyNode has one of everything.
func busyNode(at time.Time) *scene {
	s := newScene(at)
	s.network("podnet", "10.22.0.1", "10.22.0.254", 253)
	s.put("podnet", verdict.InUse, span("10.22.0.2", 120)...)
	s.put("podnet", verdict.Leaked, span("10.22.0.130", 5)...)
	s.put("podnet", verdict.Leaked, addr("10.22.0.77").Next().Next())
	s.put("podnet", verdict.InUse, span("10.22.0.140", 40)...)
	s.put("podnet", verdict.Suspect, span("10.22.0.190", 3)...)
	s.put("podnet", verdict.Conflict, addr("10.22.0.200"))
	s.put("podnet", verdict.Missing, addr("10.22.0.201"))
	s.put("podnet", verdict.Orphaned, addr("10.22.0.202"))
	s.put("podnet", verdict.Malformed, addr("10.22.0.203"))
	s.put("podnet", verdict.Unknown, addr("10.22.0.204"))
	s.put("podnet", verdict.Foreign, addr("10.22.0.205"))
	s.put("podnet", verdict.Held, addr("10.22.0.210"))
	s.put("podnet", verdict.InUse, addr("10.99.0.7"))
	s.network("storage", "10.23.0.65", "10.23.0.94", 29)
	s.put("storage", verdict.InUse, span("10.23.0.66", 29)...)
	s.network("six", "fd00:22::1", "fd00:22::ffff:ffff", 1<<32-2)
	s.put("six", verdict.InUse, span("fd00:22::2", 30)...)
	s.network("oldnet", "", "", 0)
	s.put("oldnet", verdict.Leaked, span("10.30.4.9", 2)...)
	// .79 was put twice, as one address in two spellings may be.
	s.au.Judgement.Findings = slices.DeleteFunc(s.au.Judgement.Findings, func(f verdict.Finding) bool {
		return f.Resource.Addr == addr("10.22.0.79") && f.Verdict == verdict.InUse
	})
	return s
}

// fullNode is a /16 with every address reserved but each 50th, and some in trouble.
func fullNode(at time.Time) *scene {
	s := newScene(at)
	s.network("podnet", "10.64.0.1", "10.64.255.254", 65533)
	for i, a := range span("10.64.0.2", 65533) {
		switch {
		case i%20011 == 777:
			s.put("podnet", verdict.Leaked, a)
		case i%9001 == 5:
			s.put("podnet", verdict.Suspect, a)
		case i%50 != 0:
			s.put("podnet", verdict.InUse, a)
		}
	}
	return s
}

// source is a Source that shows a scene.
type source struct {
	mu      sync.Mutex
	looks   int
	look    func(ctx context.Context) (*sweep.Audit, error)
	journal *api.Journal
	err     error
}

func (s *source) Fresh(ctx context.Context) (*sweep.Audit, error) {
	s.mu.Lock()
	s.looks++
	look := s.look
	s.mu.Unlock()
	return look(ctx)
}

func (s *source) show(sc *scene) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look = func(context.Context) (*sweep.Audit, error) { return sc.au, nil }
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

func (s *source) Journal(context.Context) (*api.Journal, error) {
	if s.err != nil {
		return nil, s.err
	}
	return s.journal, nil
}

// oldReleases is a journal that knows two addresses.
func oldReleases(at time.Time) *api.Journal {
	entry := func(n int, address string, ago time.Duration) api.JournalEntry {
		return api.JournalEntry{
			ReleaseID: fmt.Sprintf("20261130-062137-1a2b3c-%05d", n), At: at.Add(-ago), BootID: "b", State: "released", Kind: "reservation", Network: "podnet",
			Address: address, ContainerID: strings.Repeat("f0", 32), Path: dataDir + "/podnet/" + address, Verdict: "Leaked", Rule: "absent-twice",
			Why: "every witness said absent twice, more than the grace of 5m0s apart", Pod: &api.Pod{Namespace: "shop", Name: "cart-old"}, Undoable: ago < 24*time.Hour,
		}
	}
	return &api.Journal{
		TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindJournal},
		Entries:  []api.JournalEntry{entry(1, "10.22.0.130", 49*time.Hour), entry(2, "10.22.0.240", 3*time.Hour)},
	}
}

// state is a Health.
type state struct {
	live, ready bool
	reasons     []string
}

func (s state) Live(claim.Instant) (bool, string) { return s.live, strings.Join(s.reasons, "; ") }
func (s state) Ready() (bool, []string)           { return s.ready, s.reasons }
