package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const store = "/n/pods"

// audit is a look at one store with some reservations.
func audit(reserved int, capacity uint64, silent ...string) *sweep.Audit {
	snap := claim.Snapshot{Stores: []claim.Store{{Dir: "/n", DataDir: "/n"}, {Dir: store, DataDir: "/n", Network: "pods", Capacity: capacity}}}
	j := &verdict.Judgement{Silent: silent}
	addr := netip.MustParseAddr("10.1.0.1")
	for range reserved {
		j.Findings = append(j.Findings, verdict.Finding{Resource: &claim.Resource{Kind: claim.KindReservation, Store: store, Addr: addr}})
		addr = addr.Next()
	}
	// What is no reservation that is there does not fill a range.
	j.Findings = append(j.Findings, verdict.Finding{Resource: &claim.Resource{Kind: claim.KindCache, Store: "/r"}},
		verdict.Finding{Verdict: verdict.Missing, Resource: &claim.Resource{Kind: claim.KindReservation, Store: store, Addr: addr}})
	return &sweep.Audit{Case: verdict.Case{Snapshots: []claim.Snapshot{snap}}, Judgement: j}
}

func TestFill(t *testing.T) {
	f := &Fill{Threshold: 0.85}
	if f.Changed(store, 1) || len(f.Pressed()) > 0 {
		t.Error("a store that was never seen is under pressure")
	}
	f.Note(&Pass{Audit: audit(84, 100)})
	if len(f.Pressed()) > 0 {
		t.Errorf("84 of 100: %v", f.Pressed())
	}
	if !f.Changed(store, 1) {
		t.Error("the 85th did not put it under pressure")
	}
	if f.Changed(store, 1) {
		t.Error("the 86th was told again")
	}
	if !slices.Equal(f.Pressed(), []string{store}) {
		t.Errorf("86 of 100: %v", f.Pressed())
	}
	f.Changed(store, -2)
	if len(f.Pressed()) > 0 {
		t.Errorf("84 of 100 again: %v", f.Pressed())
	}
	// A pass that saw nothing changes nothing; what it released counts.
	f.Note(&Pass{Audit: audit(90, 100)})
	f.Note(&Pass{})
	if len(f.Pressed()) != 1 {
		t.Error("a pass without a look made a full range free")
	}
	p := &Pass{Audit: audit(90, 100)}
	p.Results = []*sweep.Result{{Released: slices.Repeat([]sweep.Released{{Finding: &p.Audit.Judgement.Findings[0]}}, 6)}}
	f.Note(p)
	if len(f.Pressed()) > 0 {
		t.Error("90 less 6 of 100 is under pressure")
	}
	// Without a capacity nobody can say, but lost fast counts.
	f.Note(&Pass{Audit: audit(90, 0)})
	if len(f.Pressed()) > 0 {
		t.Error("under pressure without a capacity")
	}
	f.Note(&Pass{Audit: audit(2, 100), Fast: []string{store}})
	if len(f.Pressed()) != 1 {
		t.Error("addresses are lost fast, and it is not under pressure")
	}
}

// recorder is a node that says what it is asked, and an observer.
type recorder struct {
	mu     sync.Mutex
	asked  []Request
	passes []*Pass
	next   func(n int) *Pass
	got    chan Trigger
}

func (r *recorder) Pass(_ context.Context, q Request) *Pass {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, q)
	return r.next(len(r.asked))
}

func (r *recorder) Observe(_ context.Context, p *Pass) {
	r.mu.Lock()
	r.passes = append(r.passes, p)
	r.mu.Unlock()
	r.got <- p.Trigger
}

func (r *recorder) expect(t *testing.T, want Trigger) {
	t.Helper()
	select {
	case got := <-r.got:
		if got != want {
			t.Fatalf("a sweep by %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no sweep by %q", want)
	}
}

func start(t *testing.T, r *recorder, interval time.Duration) (*Agent, *Fill) {
	t.Helper()
	return startWith(t, r, interval, 0.5)
}

func startWith(t *testing.T, r *recorder, interval time.Duration, random float64) (*Agent, *Fill) {
	t.Helper()
	r.got = make(chan Trigger, 100)
	f := &Fill{Threshold: 0.85}
	a := New(Config{Node: r, Interval: interval, PressureInterval: 20 * time.Millisecond, Fill: f, Observers: []Observer{r}, Rand: func() float64 { return random }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return a, f
}

func TestTriggers(t *testing.T) {
	r := &recorder{next: func(int) *Pass { return &Pass{Audit: audit(10, 100)} }}
	a, f := start(t, r, time.Hour)
	r.expect(t, AtStart)
	a.Wake(OnWatch)
	r.expect(t, OnWatch)
	if !f.Changed(store, 80) {
		t.Fatal("not under pressure")
	}
	a.Wake(OnPressure)
	r.expect(t, OnPressure)
	r.mu.Lock()
	last := r.asked[len(r.asked)-1]
	r.mu.Unlock()
	if !slices.Equal(last.Pressed, []string{store}) {
		t.Errorf("the sweep was told %v", last.Pressed)
	}
}

// While a range is under pressure the next sweep comes soon, without being asked for.
func TestPressureGoesOn(t *testing.T) {
	r := &recorder{next: func(n int) *Pass { return &Pass{Audit: audit(map[bool]int{true: 90, false: 1}[n < 4], 100)} }}
	start(t, r, time.Hour)
	r.expect(t, AtStart)
	r.expect(t, OnPressure)
	r.expect(t, OnPressure)
	r.expect(t, OnPressure) // the fourth, which sees that it is over
	select {
	case got := <-r.got:
		t.Errorf("one more, by %q", got)
	case <-time.After(200 * time.Millisecond):
	}
}

// At start it tries again soon until every required witness has answered; a failed pass and one
// with a silent witness do not count.
func TestStart(t *testing.T) {
	r := &recorder{next: func(n int) *Pass {
		switch n {
		case 1:
			return &Pass{Err: context.DeadlineExceeded}
		case 2:
			return &Pass{Audit: audit(1, 100, "cri: no such socket")}
		case 3:
			return &Pass{Audit: audit(1, 100), Unanswered: "kube: refused"}
		}
		return &Pass{Audit: audit(1, 100)}
	}}
	a, _ := start(t, r, time.Hour)
	r.expect(t, AtStart)
	r.expect(t, AtStart)
	r.expect(t, AtStart)
	if a.Answered() {
		t.Error("answered, though a required witness is silent")
	}
	r.expect(t, AtStart)
	for deadline := time.Now().Add(10 * time.Second); !a.Answered(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("all have answered, and that does not count")
		}
	}
	a.Wake(OnRequest)
	r.expect(t, OnRequest)
}

// One at a time; who waits can go away; who yields lets the others in.
func TestExclusive(t *testing.T) {
	a := New(Config{})
	ctx := context.Background()
	inside := make(chan struct{})
	leave := make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- a.Exclusive(ctx, func() {
			close(inside)
			<-leave
			a.Yield(func() { <-leave })
		})
	}()
	<-inside
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := a.Exclusive(short, func() { t.Error("two at once") }); err == nil {
		t.Error("the one who went away got no error")
	}
	leave <- struct{}{}
	ran := false
	if err := a.Exclusive(ctx, func() { ran = true }); err != nil || !ran {
		t.Errorf("nobody was let in: %v", err)
	}
	leave <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	done, stop := context.WithCancel(ctx)
	stop()
	if err := a.Exclusive(done, func() { t.Error("ran after the end") }); err == nil {
		t.Error("no error after the end")
	}
}

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	net := filepath.Join(dir, "pods")
	if err := os.Mkdir(net, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &Pass{Audit: audit(84, 100)}
	p.Audit.Case.Snapshots[0].Stores[1].Dir, p.Audit.Case.Snapshots[0].Stores[1].DataDir = net, dir
	for i := range p.Audit.Judgement.Findings {
		p.Audit.Judgement.Findings[i].Resource.Store = net
	}
	f := &Fill{Threshold: 0.85}
	f.Note(p)
	woken := make(chan Trigger, 10)
	w, err := NewWatcher(f, func(why Trigger) { woken <- why })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	w.Observe(ctx, p)
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(net, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("lock")
	write("last_reserved_ip.0")
	select {
	case why := <-woken:
		t.Fatalf("woken by %q for what is no reservation", why)
	case <-time.After(100 * time.Millisecond):
	}
	write("10.1.0.200")
	select {
	case why := <-woken:
		if why != OnPressure {
			t.Errorf("woken by %q", why)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("not woken by the 85th reservation")
	}
	if d := cmp.Diff([]string{net}, f.Pressed()); d != "" {
		t.Error(d)
	}
	if err := os.Remove(filepath.Join(net, "10.1.0.200")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); len(f.Pressed()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("still under pressure when it has gone again")
		}
	}
}

// Agents whose witnesses are silent at their start do not ask again at the same time: after half
// to one and a half of a second first.
func TestStartIsSpread(t *testing.T) {
	silent := func(int) *Pass { return &Pass{Audit: audit(1, 100), Unanswered: "kube: refused"} }
	took := map[float64]time.Duration{}
	for _, random := range []float64{0, 0.99} {
		t.Run(fmt.Sprint(random), func(t *testing.T) {
			r := &recorder{next: silent}
			began := time.Now()
			startWith(t, r, time.Hour, random)
			r.expect(t, AtStart)
			r.expect(t, AtStart)
			took[random] = time.Since(began)
		})
	}
	if took[0] < startDelay/2 || took[0.99] < startDelay*149/100 || took[0.99]-took[0] < startDelay/4 {
		t.Errorf("again after %v", took)
	}
}
