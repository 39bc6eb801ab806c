package events_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/events"
	"github.com/holdfast-cni/holdfast/internal/cause"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/testenv/passes"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// fake is an API. It keeps what it was told, and fails as it is told.
type fake struct {
	mu     sync.Mutex
	writes []write
	events map[string]events.Event
	hang   bool
	err    error
}

type write struct {
	at     time.Time
	create bool
	events.Event
}

func (f *fake) Create(ctx context.Context, e events.Event) error { return f.write(ctx, e, true) }
func (f *fake) Patch(ctx context.Context, e events.Event) error  { return f.write(ctx, e, false) }

func (f *fake) write(ctx context.Context, e events.Event, create bool) error {
	f.mu.Lock()
	hang, err := f.hang, f.err
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes = append(f.writes, write{time.Now(), create, e})
	if err != nil {
		return err
	}
	if _, there := f.events[e.Name]; !create && !there {
		return events.ErrNotFound
	} else if create && there {
		return errors.New("already exists")
	}
	f.events[e.Name] = e
	return nil
}

func (f *fake) set(hang bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang, f.err = hang, err
}

// of are the writes for a reason.
func (f *fake) of(reason string) []write {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []write
	for _, w := range f.writes {
		if w.Reason == reason {
			out = append(out, w)
		}
	}
	return out
}

// with runs a recorder against a fake API in a bubble of its own time.
func with(t *testing.T, f func(t *testing.T, r *events.Recorder, api *fake)) {
	synctest.Test(t, func(t *testing.T) {
		api := &fake{events: map[string]events.Event{}}
		r := events.New(events.Options{Node: passes.Node, Sink: api})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx) })
		f(t, r, api)
		cancel()
		wg.Wait()
	})
}

func pass(d time.Duration) time.Duration { time.Sleep(d); synctest.Wait(); return d }

var podnet = passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.30")

// releases is a pass at now that released n addresses for a cause, each of its own Pod
// unless the cause names one.
func releases(now time.Duration, n int, c cause.Cause) *agent.Pass {
	var list []verdict.Finding
	for i := range n {
		f := passes.Finding(podnet, fmt.Sprintf("10.1.%d.%d", i/256, i%256), verdict.Leaked)
		f.Sight.Absent = passes.At(-time.Hour)
		f.Pod = claim.Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d", i), UID: fmt.Sprintf("u-%d", i)}
		list = append(list, f)
	}
	p := passes.Of(passes.At(now), []claim.Store{podnet}, list...)
	for i := range n {
		passes.Release(p, i, c)
	}
	return p
}

func web() claim.Pod { return claim.Pod{Namespace: "default", Name: "web-0", UID: "u-1"} }

// One event on the Node with the number of releases, one on the Pod that leaks; what comes
// within ten minutes is counted into them.
func TestReleases(t *testing.T) {
	with(t, func(t *testing.T, r *events.Recorder, api *fake) {
		c := cause.Cause{Kind: cause.AddFailed, Plugin: "portmap", Pod: web()}
		r.Observe(t.Context(), releases(0, 3, c))
		synctest.Wait()
		node, pod := api.of(events.ReasonReleased), api.of(events.ReasonPodLeaks)
		if len(node) != 1 || len(pod) != 1 {
			t.Fatalf("%d events on the Node and %d on the Pod", len(node), len(pod))
		}
		if e := node[0]; e.Count != 3 || e.Warning || e.Namespace != "default" || e.Object != (events.Object{Kind: "Node", Name: passes.Node, UID: passes.Node}) ||
			e.Message != `Released 3 leaked addresses: network podnet: ADD failed in plugin "portmap"` || !strings.HasPrefix(e.Name, passes.Node+".") {
			t.Errorf("%+v", e.Event)
		}
		if e := pod[0]; e.Count != 3 || !e.Warning || e.Namespace != "default" || e.Object != (events.Object{Kind: "Pod", Namespace: "default", Name: "web-0", UID: "u-1"}) ||
			e.Message != `Sandboxes of this Pod left 3 addresses behind on node node-1: ADD failed in plugin "portmap"` {
			t.Errorf("%+v", e.Event)
		}
		for i := range 5 {
			pass(time.Minute)
			r.Observe(t.Context(), releases(time.Duration(i)*time.Minute, 2, cause.Cause{Kind: cause.NoDel}))
		}
		synctest.Wait()
		if n := len(api.of(events.ReasonReleased)); n != 1 {
			t.Errorf("%d writes within ten minutes", n)
		}
		pass(6 * time.Minute)
		node = api.of(events.ReasonReleased)
		if len(node) != 2 || node[1].create || node[1].Count != 13 || node[1].Message != "Released 10 leaked addresses: network podnet: DEL never came" {
			t.Fatalf("%+v", node)
		}
		if n := len(api.of(events.ReasonPodLeaks)); n != 1 {
			t.Errorf("%d events on Pods", n)
		}
		if s := r.Stats(); s.Sent != 3 || s.Aggregated != 13 || s.Dropped+s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Ten thousand releases of ten thousand Pods: few writes, one after the other, and most
// occurrences are dropped and counted.
func TestStorm(t *testing.T) {
	with(t, func(t *testing.T, r *events.Recorder, api *fake) {
		began := time.Now()
		r.Observe(t.Context(), releases(0, 10_000, cause.Cause{Kind: cause.DelFailed, Plugin: "bridge"}))
		synctest.Wait()
		api.mu.Lock()
		n := len(api.writes)
		api.mu.Unlock()
		if n != 10 {
			t.Errorf("%d writes at once, want 10", n)
		}
		pass(time.Minute)
		api.mu.Lock()
		n = len(api.writes)
		api.mu.Unlock()
		if n != 20 {
			t.Errorf("%d writes after a minute, want 20", n)
		}
		for range 5 {
			r.Observe(t.Context(), releases(0, 10_000, cause.Cause{Kind: cause.DelFailed, Plugin: "bridge"}))
			pass(10 * time.Minute)
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		if most := 10 + int(time.Since(began)/(6*time.Second)); len(api.writes) > most {
			t.Errorf("%d writes in %s, at most %d", len(api.writes), time.Since(began), most)
		}
		last := map[string]time.Time{}
		for _, w := range api.writes {
			k := w.Object.Kind + w.Object.Name + w.Reason
			if at, ok := last[k]; ok && w.at.Sub(at) < 10*time.Minute {
				t.Fatalf("%s: written again after %s", k, w.at.Sub(at))
			}
			last[k] = w.at
		}
		s := r.Stats()
		if s.Dropped < 6*10_000-6*256 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
		if i := slices.IndexFunc(api.writes, func(w write) bool { return w.Reason == events.ReasonReleased }); i < 0 || api.writes[i].Count < 10_000 {
			t.Error("the event on the Node was not written, or does not count them all")
		}
	})
}

// An API that hangs, or refuses, keeps nobody waiting; what it did not take comes later, once.
func TestSilentAPI(t *testing.T) {
	for name, fail := range map[string]func(*fake, bool){
		"hangs":   func(f *fake, bad bool) { f.set(bad, nil) },
		"refuses": func(f *fake, bad bool) { f.set(false, map[bool]error{true: errors.New("forbidden")}[bad]) },
	} {
		t.Run(name, func(t *testing.T) {
			with(t, func(t *testing.T, r *events.Recorder, api *fake) {
				fail(api, true)
				for i := range 60 {
					before := time.Now()
					r.Observe(t.Context(), releases(time.Duration(i)*time.Minute, 2, cause.Cause{Kind: cause.NoDel}))
					if time.Since(before) != 0 {
						t.Fatal("a pass was kept waiting")
					}
					pass(time.Minute)
				}
				s := r.Stats()
				if s.Sent != 0 || s.Failed < 5 || s.Failed > 20 {
					t.Errorf("%+v: tries in an hour, with longer and longer waits", s)
				}
				fail(api, false)
				pass(11 * time.Minute)
				var good []write
				for _, w := range api.of(events.ReasonReleased) {
					if w.at.After(time.Now().Add(-11 * time.Minute)) {
						good = append(good, w)
					}
				}
				if len(good) != 1 || good[0].Count != 120 || !strings.HasPrefix(good[0].Message, "Released 120 ") {
					t.Errorf("%+v", good)
				}
			})
		})
	}
}

// An event that the API has forgotten is made anew.
func TestForgottenEvent(t *testing.T) {
	with(t, func(t *testing.T, r *events.Recorder, api *fake) {
		one := releases(0, 1, cause.Cause{Kind: cause.NoDel})
		r.Observe(t.Context(), one)
		pass(time.Minute)
		api.mu.Lock()
		clear(api.events)
		api.mu.Unlock()
		r.Observe(t.Context(), one)
		pass(10 * time.Minute)
		w := api.of(events.ReasonReleased)
		if len(w) != 3 || w[1].create || !w[2].create || w[2].Count != 1 || w[2].Name == w[0].Name {
			t.Fatalf("%+v", w)
		}
		// And before the API forgets it by itself.
		pass(50 * time.Minute)
		r.Observe(t.Context(), one)
		pass(time.Minute)
		if w = api.of(events.ReasonReleased); len(w) != 4 || !w[3].create || w[3].Count != 1 {
			t.Errorf("%+v", w)
		}
	})
}

// What changes is told once: vantage, journal, the line, a range.
func TestChanges(t *testing.T) {
	with(t, func(t *testing.T, r *events.Recorder, api *fake) {
		minute := 0
		observe := func(change func(*agent.Pass)) {
			pass(11 * time.Minute)
			minute++
			p := passes.Of(passes.At(time.Duration(minute)*time.Minute), []claim.Store{podnet})
			change(p)
			r.Observe(t.Context(), p)
			synctest.Wait()
		}
		blind := func(p *agent.Pass) { p.Audit.Judgement.Vantage = "hidepid" }
		full := func(p *agent.Pass) { p.Unwritable = errors.New("ENOSPC") }
		stop := func(p *agent.Pass) { p.Stops = []line.Stop{{Store: podnet.Dir, Why: "10.1.0.7 is held twice"}} }
		again := func(p *agent.Pass) { stop(p); p.Stopped = p.Stops }
		nothing := func(*agent.Pass) {}
		for _, c := range []struct {
			change func(*agent.Pass)
			reason string
			want   int
		}{
			{nothing, events.ReasonBlind, 0}, {nothing, events.ReasonSees, 0},
			{blind, events.ReasonBlind, 1}, {blind, events.ReasonBlind, 1}, {nothing, events.ReasonSees, 1}, {blind, events.ReasonBlind, 2},
			{full, events.ReasonUnwritable, 1}, {full, events.ReasonUnwritable, 1}, {nothing, events.ReasonUnwritable, 1}, {full, events.ReasonUnwritable, 2},
			{again, events.ReasonStopped, 1}, {stop, events.ReasonStopped, 1}, {again, events.ReasonStopped, 2},
			{stop, events.ReasonResumed, 0}, {nothing, events.ReasonResumed, 1}, {nothing, events.ReasonResumed, 1},
			{stop, events.ReasonStopped, 3}, // stopped before this agent was there
		} {
			observe(c.change)
			if n := len(api.of(c.reason)); n != c.want {
				t.Fatalf("%d writes of %s, want %d", n, c.reason, c.want)
			}
		}
		everything := func(p *agent.Pass) { p.Stops = []line.Stop{line.All(passes.At(0), "EIO")} }
		observe(everything)
		observe(func(p *agent.Pass) { p.Resumed = []line.Ended{{Stop: line.Stop{}, Reason: "a person said so"}} })
		w, o := api.of(events.ReasonStopped), api.of(events.ReasonResumed)
		if got := w[len(w)-1].Message; got != "Releases are stopped: every network: EIO" {
			t.Error(got)
		}
		if got := o[len(o)-1].Message; got != "Releases go on: every network: a person said so" {
			t.Error(got)
		}
		if m := api.of(events.ReasonStopped)[0].Message; m != "Releases are stopped: network podnet: 10.1.0.7 is held twice" {
			t.Error(m)
		}
	})
}

func TestRangeLow(t *testing.T) {
	with(t, func(t *testing.T, r *events.Recorder, api *fake) {
		s := passes.Store(passes.DataDir, "podnet", "10.1.0.1", "10.1.0.100")
		for i, c := range []struct{ used, want int }{
			{84, 0}, {85, 1}, {86, 1}, {84, 1}, {85, 1}, {95, 2}, {100, 3}, {98, 3}, {100, 3}, {70, 3}, {85, 4},
		} {
			pass(11 * time.Minute)
			var list []verdict.Finding
			for a := range c.used {
				v := verdict.InUse
				if a == 0 {
					v = verdict.Leaked
				}
				list = append(list, passes.Finding(s, fmt.Sprintf("10.1.0.%d", a+1), v))
			}
			r.Observe(t.Context(), passes.Of(passes.At(time.Duration(i)*time.Minute), []claim.Store{s}, list...))
			synctest.Wait()
			if n := len(api.of(events.ReasonRangeLow)); n != c.want {
				t.Fatalf("step %d, %d in use: %d writes, want %d", i, c.used, n, c.want)
			}
		}
		if m := api.of(events.ReasonRangeLow)[0].Message; m != "A range of addresses runs low: network podnet: 85 of 100 addresses are reserved, 1 of them leaked" {
			t.Error(m)
		}
	})
}

// Addresses lost fast: the event names the Pod and the plugin (case L10). As many lost
// slowly make none.
func TestLostFast(t *testing.T) {
	for _, c := range []struct {
		every time.Duration
		want  int
	}{{time.Minute, 1}, {5 * time.Minute, 0}} {
		with(t, func(t *testing.T, r *events.Recorder, api *fake) {
			a := agent.New(agent.Config{Observers: []agent.Observer{r}})
			var list []verdict.Finding
			causes := map[string]cause.Cause{}
			for i := range 7 {
				now := time.Duration(i) * c.every
				p := passes.Of(passes.At(now), []claim.Store{podnet}, slices.Clone(list)...)
				p.Causes = causes
				a.Tell(t.Context(), p)
				pass(c.every)
				// One more in each pass: Suspect at first, its cause known later.
				f := passes.Finding(podnet, fmt.Sprintf("10.1.0.%d", i+1), verdict.Suspect)
				f.Sight.Absent = passes.At(now)
				f.Pod = web()
				list = append(list, f)
				if i > 0 {
					causes[list[i-1].Resource.Path] = cause.Cause{Kind: cause.AddFailed, Plugin: "portmap", Pod: web()}
				}
			}
			w := api.of(events.ReasonLostFast)
			if len(w) != c.want {
				t.Fatalf("every %s: %d writes, want %d", c.every, len(w), c.want)
			}
			if c.want > 0 && w[0].Message != `Addresses are being lost fast: network podnet: 5 in 10m, 5 of Pod default/web-0, 4 failed in plugin "portmap"` {
				t.Error(w[0].Message)
			}
		})
	}
}

// Text from the node is safe, short, and never the name of an object in the API.
func TestHostileNames(t *testing.T) {
	with(t, func(t *testing.T, r *events.Recorder, api *fake) {
		r.Observe(t.Context(), passes.Full())
		for i, pod := range []claim.Pod{
			{Namespace: passes.Evil, Name: passes.Evil}, {Namespace: "../../x", Name: "y"}, {Namespace: "a/b", Name: "y"}, {Namespace: "a", Name: "Y"},
			{Namespace: "a", Name: "-y"}, {Namespace: "", Name: "y"}, {Namespace: "a", Name: strings.Repeat("y", 254)}, {Namespace: "a", Name: "y", UID: "u/../v"},
		} {
			r.Observe(t.Context(), releases(time.Duration(i), 1, cause.Cause{Kind: cause.AddFailed, Plugin: fmt.Sprint(i) + strings.Repeat(passes.Evil, 100), Pod: pod}))
		}
		pass(time.Hour)
		api.mu.Lock()
		defer api.mu.Unlock()
		pods := 0
		for _, w := range api.writes {
			if w.Object.Kind == "Pod" {
				pods++
			}
			bad := func(r rune) bool { return !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) }
			if len(w.Message) > 1024 || strings.ContainsFunc(w.Message, bad) || strings.ContainsFunc(w.Name, bad) {
				t.Errorf("%q: %q", w.Name, w.Message)
			}
		}
		if pods != 1 { // the one of Full
			t.Errorf("%d events on Pods", pods)
		}
	})
}

// docs/monitoring.md lists every reason.
func TestPageListsEveryReason(t *testing.T) {
	source, err := os.ReadFile("watch.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	found := func(expr string, in []byte) (list []string) {
		for _, m := range regexp.MustCompile(expr).FindAllSubmatch(in, -1) {
			list = append(list, string(m[1]))
		}
		slices.Sort(list)
		return list
	}
	reasons := found(`(?m)^\tReason\w+ += "(\w+)"$`, source)
	if listed := found("(?m)^\\| `(\\w+)` \\| (?:Normal|Warning)", text); len(reasons) < 5 || !slices.Equal(reasons, listed) {
		t.Errorf("reasons: %q\nlisted: %q", reasons, listed)
	}
}
