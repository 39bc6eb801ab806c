package events

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// The reasons, as people filter by them.
const (
	ReasonReleased   = "LeakedAddressesReleased"
	ReasonStopped    = "ReleasesStopped"
	ReasonResumed    = "ReleasesResumed"
	ReasonRangeLow   = "AddressRangeLow"
	ReasonLostFast   = "AddressesLostFast"
	ReasonBlind      = "NodeNotSeenWhole"
	ReasonSees       = "NodeSeenWhole"
	ReasonUnwritable = "JournalNotWritable"
	ReasonPodLeaks   = "SandboxesLeakAddresses"
)

// maxLosses is how many losses are remembered one by one.
const maxLosses = 512

// The shares of a range in use, in percent, that are told of when they are reached.
func levels() []uint64 { return []uint64{85, 95, 100} }

// watch is what the pass before was like, to tell of changes once.
type watch struct {
	stops      map[string]bool // by store
	level      map[digest.Name]int
	losses     []loss
	vantage    string
	unwritable string
}

// loss is one address that was lost within agent.LossTime.
type loss struct {
	at          claim.Instant
	store, path string
	pod         claim.Pod
	plugin      string
}

func newWatch() watch { return watch{stops: map[string]bool{}, level: map[digest.Name]int{}} }

// Observe takes a pass. It never waits for the API.
func (r *Recorder) Observe(_ context.Context, p *agent.Pass) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := digest.Of(p)
	now := time.Now()
	node := Object{Kind: "Node", Name: r.opt.Node, UID: r.opt.Node} // as the kubelet does
	add := func(reason string, warning bool, head, subject, detail string) {
		r.add(now, note{object: node, reason: reason, warning: warning, head: head, subject: subject, detail: detail, n: 1})
	}
	r.released(now, node, p, d)
	r.stops(p, d, add)
	if why := d.Unwritable; why != "" && r.watch.unwritable == "" {
		add(ReasonUnwritable, true, "Holdfast cannot write its journal, so nothing is released", "", why)
	}
	r.watch.unwritable = d.Unwritable
	if !d.Seen {
		return
	}
	switch before := r.watch.vantage; {
	case d.Vantage != "" && before == "":
		add(ReasonBlind, true, "Holdfast does not see the whole node, so nothing is released", "", d.Vantage)
	case d.Vantage == "" && before != "":
		add(ReasonSees, false, "Holdfast sees the whole node again", "", "")
	}
	r.watch.vantage = d.Vantage
	r.ranges(d, add)
	r.lost(p, d, add)
}

// released tells of what went, and each Pod whose sandboxes leak what failed.
func (r *Recorder) released(now time.Time, node Object, p *agent.Pass, d *digest.Digest) {
	type podCause struct {
		pod  claim.Pod
		what string
	}
	byNetwork, byPod := map[string]int{}, map[podCause]int{}
	for _, res := range p.Results {
		for i := range res.Released {
			f := res.Released[i].Finding
			if f.Resource.Kind != claim.KindReservation {
				continue
			}
			c := p.Causes[f.Resource.Path]
			byNetwork[networkOf(d.NameOf(f.Resource.Store))+": "+words(c)]++
			if c.Kind == cause.AddFailed || c.Kind == cause.DelFailed {
				if pod := podOf(f, c); namesPod(pod) {
					byPod[podCause{pod, words(c)}]++
				}
			}
		}
	}
	// In an order of its own, so that what is dropped when there is no room is the same
	// again: the most frequent stay.
	for _, k := range sorted(byNetwork, func(a, b string) int { return cmp.Compare(a, b) }) {
		r.add(now, note{object: node, reason: ReasonReleased, head: "Released %d leaked addresses", detail: k, n: byNetwork[k]})
	}
	compare := func(a, b podCause) int {
		return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name), cmp.Compare(a.pod.UID, b.pod.UID), cmp.Compare(a.what, b.what))
	}
	for _, k := range sorted(byPod, compare) {
		pod := Object{Kind: "Pod", Namespace: k.pod.Namespace, Name: k.pod.Name, UID: k.pod.UID}
		r.add(now, note{
			object: pod, reason: ReasonPodLeaks, warning: true,
			head: "Sandboxes of this Pod left %d addresses behind on node " + r.opt.Node, detail: k.what, n: byPod[k],
		})
	}
}

// sorted gives the keys, the most frequent first.
func sorted[K comparable](m map[K]int, compare func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Or(cmp.Compare(m[b], m[a]), compare(a, b)) })
	return keys
}

// words is a cause in short, with its plugin.
func words(c cause.Cause) string {
	plugin := ""
	if c.Plugin != "" {
		plugin = fmt.Sprintf(" in plugin %q", digest.Text(c.Plugin))
	}
	switch c.Kind {
	case cause.AddFailed:
		return "ADD failed" + plugin
	case cause.DelFailed:
		return "DEL failed" + plugin
	case cause.NoDel:
		return "DEL never came"
	case cause.Reboot:
		return "the node was rebooted"
	case cause.RuntimeWiped:
		return "the runtime lost its state"
	case cause.AddCrashed:
		return "ADD never ended"
	case cause.NetworkRenamed:
		return "the network was renamed or removed"
	case cause.EmptyFile:
		return "a reservation without an owner"
	}
	return "cause not known"
}

func podOf(f *verdict.Finding, c cause.Cause) claim.Pod {
	if c.Pod.Name != "" {
		return c.Pod
	}
	return f.Pod
}

// namesPod reports whether p can be a Pod's name in the API: it comes from the node, so
// it may be any text.
func namesPod(p claim.Pod) bool {
	plain := func(s string, most int, dots bool) bool {
		bad := func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && (c != '.' || !dots)
		}
		return s != "" && len(s) <= most && !strings.ContainsFunc(s, bad) && strings.Trim(s, "-.") == s
	}
	return plain(p.Namespace, 63, false) && plain(p.Name, 253, true) && (p.UID == "" || plain(strings.ToLower(p.UID), 64, false))
}

// tell adds a note on the Node.
type tell func(reason string, warning bool, head, subject, detail string)

func networkOf(n digest.Name) string { return "network " + n.Network }

// stops tells of lines that were stopped, and that go again. One that was stopped before
// the agent was restarted is told of again.
func (r *Recorder) stops(p *agent.Pass, d *digest.Digest, add tell) {
	now := map[string]bool{}
	for _, s := range slices.Concat(p.Stopped, p.Stops) {
		stopped := slices.ContainsFunc(p.Stopped, func(o line.Stop) bool { return o.Store == s.Store })
		if !now[s.Store] && (stopped || !r.watch.stops[s.Store]) {
			add(ReasonStopped, true, "Releases are stopped", where(d, s.Store), s.Why)
		}
		now[s.Store] = true
	}
	for store := range r.watch.stops {
		if now[store] {
			continue
		}
		why := "nobody says why"
		if i := slices.IndexFunc(p.Resumed, func(e line.Ended) bool { return e.Store == store }); i >= 0 {
			why = p.Resumed[i].Reason
		}
		add(ReasonResumed, false, "Releases go on", where(d, store), why)
	}
	r.watch.stops = now
}

func where(d *digest.Digest, store string) string {
	if store == "" {
		return "every network"
	}
	return networkOf(d.NameOf(store))
}

// ranges tells of a range that reaches another level, once for each.
func (r *Recorder) ranges(d *digest.Digest, add tell) {
	now := map[digest.Name]int{}
	for i := range d.Networks {
		n := &d.Networks[i]
		if n.Capacity == 0 {
			continue
		}
		used := n.Capacity - n.Free
		reached := func(l int) bool {
			share := levels()[l-1]
			return used >= n.Capacity/100*share+(n.Capacity%100*share+99)/100
		}
		l := 0
		for l < len(levels()) && reached(l+1) {
			l++
		}
		before := r.watch.level[n.Name]
		if l > before {
			add(ReasonRangeLow, true, "A range of addresses runs low", networkOf(n.Name), fmt.Sprintf("%d of %d addresses are reserved, %d of them leaked",
				used, n.Capacity, n.Count(verdict.Leaked)+n.Count(verdict.Orphaned)))
		}
		// One that goes up and down at an edge tells once: it is better when it is better by
		// a twentieth.
		if used += n.Capacity / 20; l < before && reached(before) {
			l = before
		}
		now[n.Name] = l
	}
	r.watch.level = now
}

// lost tells when addresses are lost fast, with the Pod and the plugin that lose most.
func (r *Recorder) lost(p *agent.Pass, d *digest.Digest, add tell) {
	w, now := &r.watch, p.Audit.Case.Now
	w.losses = slices.DeleteFunc(w.losses, func(l loss) bool {
		age, ok := now.Since(l.at)
		return !ok || age > agent.LossTime
	})
	for _, f := range p.Lost {
		if !f.BootProven {
			w.losses = append(w.losses, loss{at: now, store: f.Resource.Store, path: f.Resource.Path, pod: f.Pod})
		}
	}
	if n := len(w.losses) - maxLosses; n > 0 {
		w.losses = slices.Delete(w.losses, 0, n)
	}
	for i := range w.losses {
		// The plugin is known when the address is Leaked, which may be later.
		l := &w.losses[i]
		if c, ok := p.Causes[l.path]; ok {
			l.plugin = cmp.Or(c.Plugin, l.plugin)
			if c.Pod.Name != "" {
				l.pod = c.Pod
			}
		}
	}
	for _, store := range p.Fast {
		if !slices.ContainsFunc(p.Lost, func(f *verdict.Finding) bool { return f.Resource.Store == store }) {
			continue // nothing new
		}
		n, pods, plugins := 0, map[string]int{}, map[string]int{}
		for _, l := range w.losses {
			if l.store != store {
				continue
			}
			n++
			if l.pod.Name != "" {
				pods[digest.Text(l.pod.Namespace)+"/"+digest.Text(l.pod.Name)]++
			}
			if l.plugin != "" {
				plugins[digest.Text(l.plugin)]++
			}
		}
		text := fmt.Sprintf("%d in %s", n, strings.TrimSuffix(agent.LossTime.String(), "0s"))
		if most := sorted(pods, strings.Compare); len(most) > 0 {
			text += fmt.Sprintf(", %d of Pod %s", pods[most[0]], most[0])
		}
		if most := sorted(plugins, strings.Compare); len(most) > 0 {
			text += fmt.Sprintf(", %d failed in plugin %q", plugins[most[0]], most[0])
		}
		add(ReasonLostFast, true, "Addresses are being lost fast", networkOf(d.NameOf(store)), text)
	}
}
