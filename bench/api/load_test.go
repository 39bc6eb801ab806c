package api

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/kube"
)

var (
	agents = flag.Int("agents", 4, "how many nodes there are, each with an agent")
	pods   = flag.Int("pods", 3, "Pods of each node")
	paced  = flag.Duration("for", 2*time.Second, "how long the agents ask, each at -every")
	every  = flag.String("every", "1s", "the times between two questions of an agent, with commas; each is measured")
	churn  = flag.Float64("churn", 5, "writes of Pods per second meanwhile")
	etcd   = flag.String("etcd", "", "the etcd program instead of Debian's")
)

// agent is one node's.
type agent struct {
	witness *kube.Witness
	watcher *kube.Watcher
	rand    *rand.Rand
	woken   *atomic.Int64
}

func clock() claim.Instant {
	return claim.Instant{Boot: bootID, Mono: time.Duration(time.Now().UnixNano())}
}

func (r *room) agents(t *testing.T, received *atomic.Int64) []*agent {
	var list []*agent
	for i, node := range r.nodes {
		cfg := r.config(received)
		cfg.BearerToken = r.token
		c, err := kube.NewClient(cfg, "holdfast/bench")
		if err != nil {
			t.Fatal(err)
		}
		woken := new(atomic.Int64)
		list = append(list, &agent{
			witness: kube.New(kube.Config{Client: c, Node: node, Clock: clock}),
			watcher: &kube.Watcher{Client: c, Node: node, Wake: func() { woken.Add(1) }, Rand: rand.Float64},
			rand:    rand.New(rand.NewPCG(1, uint64(i))), woken: woken,
		})
	}
	return list
}

// answers are those of all agents to one phase.
type answers struct {
	mu     sync.Mutex
	took   []time.Duration
	silent map[string]int
}

func (a *answers) ask(ctx context.Context, g *agent) {
	start := time.Now()
	got := g.witness.Ask(ctx)
	took := time.Since(start)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.took = append(a.took, took)
	if got.State != claim.StateComplete || len(got.Kube.Pods) != *pods {
		a.silent[fmt.Sprintf("%s %.200s", got.State, got.Detail)]++
	}
}

// TestAgents is the benchmark, and with few agents a test that each gets its answer.
func TestAgents(t *testing.T) {
	r := newRoom(t, *etcd, *agents, *pods)
	version := "Debian's"
	if *etcd != "" {
		version = filepath.Base(filepath.Dir(*etcd))
	}
	t.Logf("etcd: %s", version)
	received := new(atomic.Int64)
	list := r.agents(t, received)
	ctx, stop := context.WithCancel(t.Context())
	var background sync.WaitGroup
	defer func() { stop(); background.Wait() }()

	r.measure(t, "nobody asks", received, func(*answers) { time.Sleep(*paced / 4) })
	// An API server with an old etcd cannot know that no Pod was written since.
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	if _, err := r.direct.CoreV1().ConfigMaps("default").Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"first", "second"} {
		r.measure(t, "one asks where no Pod is written, the "+when+" time", received, func(a *answers) { a.ask(ctx, list[0]) })
	}
	if *churn > 0 {
		background.Go(func() { r.write(ctx, t) })
	}
	r.measure(t, "all at once, the first time (connections, identity)", received, func(a *answers) { burst(ctx, a, list) })
	r.measure(t, "all watches opened at once", received, func(*answers) {
		for _, g := range list {
			background.Go(func() { g.watcher.Run(ctx) })
		}
		time.Sleep(min(5*time.Second, *paced))
	})
	r.measure(t, fmt.Sprintf("nobody asks, all watch, %g writes of Pods a second", *churn), received, func(*answers) { time.Sleep(*paced / 2) })
	for _, text := range strings.Split(*every, ",") {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		r.measure(t, fmt.Sprintf("each asks every %s (%.1f a second)", d, float64(*agents)/d.Seconds()), received, func(a *answers) {
			pace(ctx, a, list, d, *paced)
		})
	}
	r.measure(t, "all at once", received, func(a *answers) { burst(ctx, a, list) })
	r.awaken(t, list)
}

// awaken deletes a Pod of some nodes: their watches, and no other, tell of it.
func (r *room) awaken(t *testing.T, list []*agent) {
	now := int64(0)
	some := list[:min(len(list)-1, 10)]
	for i := range some {
		if err := r.direct.CoreV1().Pods("default").Delete(t.Context(), aPod(r.nodes[i], 1).Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for i, g := range list {
		for i < len(some) && g.woken.Load() == 0 && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if got := g.woken.Load(); (got != 0) != (i < len(some)) {
			t.Errorf("the watch of %s woke %d times", r.nodes[i], got)
		}
	}
}

func burst(ctx context.Context, a *answers, list []*agent) {
	var wg sync.WaitGroup
	for _, g := range list {
		wg.Go(func() { a.ask(ctx, g) })
	}
	wg.Wait()
}

// pace is what agents do whose every sweep finds something absent: each begins at a time of
// its own, and goes on at its interval with the loop's jitter (internal/agent).
func pace(ctx context.Context, a *answers, list []*agent, d, whole time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, whole)
	defer cancel()
	var wg sync.WaitGroup
	for _, g := range list {
		wg.Go(func() {
			wait := time.Duration(g.rand.Float64() * float64(d))
			for {
				timer := time.NewTimer(wait)
				select {
				case <-ctx.Done():
					timer.Stop()
					return
				case <-timer.C:
				}
				a.ask(context.WithoutCancel(ctx), g)
				wait = time.Duration(float64(d) * (0.9 + 0.2*g.rand.Float64()))
			}
		})
	}
	wg.Wait()
}

// write touches Pods, as the kubelets of a living cluster do.
func (r *room) write(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / *churn))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p, err := r.direct.CoreV1().Pods("default").Get(ctx, aPod(r.nodes[n%len(r.nodes)], 0).Name, metav1.GetOptions{ResourceVersion: "0"})
		if err == nil {
			p.Status.Message = fmt.Sprint("written ", n)
			_, err = r.direct.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			t.Errorf("write: %v", err)
			return
		}
	}
}

// measure runs one phase and says what it cost.
func (r *room) measure(t *testing.T, what string, received *atomic.Int64, phase func(*answers)) {
	t.Helper()
	a := &answers{silent: map[string]int{}}
	api, db := spentBy(t, r.APIServer), spentBy(t, r.Etcd)
	before, bytes, start := r.counters(t), received.Load(), time.Now()
	phase(a)
	wall, got := time.Since(start), received.Load()-bytes
	api2, db2, after := spentBy(t, r.APIServer), spentBy(t, r.Etcd), r.counters(t)
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("--- %s: %s (load %.14s)", what, wall.Round(10*time.Millisecond), load)
	t.Logf("API server: CPU %s, %.1f %% of a core, RSS %.0f MB; etcd: CPU %s, %.1f %%, RSS %.0f MB; received %.2f MB",
		api2.cpu-api.cpu, 100*float64(api2.cpu-api.cpu)/float64(wall), float64(api2.rss)/1e6,
		db2.cpu-db.cpu, 100*float64(db2.cpu-db.cpu)/float64(wall), float64(db2.rss)/1e6, float64(got)/1e6)
	if n := len(a.took); n > 0 {
		slices.Sort(a.took)
		each := func(cpu time.Duration, idle float64) float64 {
			return (cpu.Seconds() - idle*wall.Seconds()) / float64(n) * 1e3
		}
		t.Logf("%d answers, %.1f a second: p50 %s, p99 %s, max %s; CPU for each beyond the idle: API server %.2f ms, etcd %.2f ms; %d bytes", n, float64(n)/wall.Seconds(),
			a.took[n/2].Round(100*time.Microsecond), a.took[n*99/100].Round(100*time.Microsecond), a.took[n-1].Round(100*time.Microsecond),
			each(api2.cpu-api.cpu, r.idle[0]), each(db2.cpu-db.cpu, r.idle[1]), got/int64(n))
	} else {
		r.idle = [2]float64{(api2.cpu - api.cpu).Seconds() / wall.Seconds(), (db2.cpu - db.cpu).Seconds() / wall.Seconds()}
	}
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if d := after[k] - before[k]; d != 0 {
			t.Logf("  %s %+g", k, d)
		}
	}
	tell := t.Errorf
	if *agents > 10 {
		tell = t.Logf // a figure
	}
	for _, k := range slices.Sorted(maps.Keys(a.silent)) {
		tell("%d silent: %s", a.silent[k], k)
	}
}
