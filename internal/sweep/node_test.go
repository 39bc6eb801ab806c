package sweep_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	. "github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/cnicache"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const (
	grace       = 5 * time.Minute
	orphanGrace = time.Hour
	endpoint    = "unix:///run/containerd/containerd.sock"
)

func id(n int) string { return fmt.Sprintf("%064x", 0xabc0000+n) }

// node is a node with real stores, cache, journal and quarantine in a temp directory, and
// witnesses, namespaces and plugins that the test decides. One node outlives its engines,
// as a real one outlives a process that is killed.
type node struct {
	t         testing.TB
	root      string
	dataDir   string
	cacheDir  string
	stateDir  string
	policy    verdict.Policy
	planOpt   plan.Options
	mu        sync.Mutex // now and asked: witnesses are asked concurrently
	now       claim.Instant
	past      []string
	live      map[string]bool // container IDs that the runtime lists
	unready   []claim.Sandbox // NotReady ones; their namespaces are told in detail only
	nets      map[uint64]claim.Netns
	silent    map[string]string // witness -> why
	asked     int
	onAsk     func(n int) // before the nth asking, from 1
	onList    func(n int)
	listed    int
	memory    verdict.Memory
	memErr    error
	saveErr   error
	holds     map[verdict.Hold]bool
	planted   map[string]string // reservation path -> content, the latest
	contents  map[string]int    // content -> how many reservations were written with it
	cached    map[string][]byte // cache path -> content
	ops       []string          // what was done, in order
	at        func(op string) error
	sideState func(s plan.Step) (journal.StepResult, bool)
	rng       *rand.Rand
	log       *journal.Journal
	inv       *hostlocal.Inventory
	cache     *cnicache.Inventory
	vault     *hostlocal.Quarantine
	maker     *hostlocal.Adopter
}

func newNode(t testing.TB) *node { return newNodeIn(t, t.TempDir()) }

func newNodeIn(t testing.TB, root string) *node {
	n := &node{
		t: t, root: root, dataDir: filepath.Join(root, "data"), cacheDir: filepath.Join(root, "cni"), stateDir: filepath.Join(root, "state"),
		now:  claim.Instant{Boot: "boot-2", Mono: 100 * time.Hour, Wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
		live: map[string]bool{}, nets: map[uint64]claim.Netns{}, silent: map[string]string{}, holds: map[verdict.Hold]bool{},
		planted: map[string]string{}, contents: map[string]int{}, cached: map[string][]byte{}, rng: rand.New(rand.NewSource(7)),
		policy: verdict.Policy{
			Required: []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI}, Grace: grace, OrphanGrace: orphanGrace,
		},
	}
	for _, d := range []string{n.dataDir, filepath.Join(n.cacheDir, "results"), n.stateDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.inv = hostlocal.New(hostlocal.Config{DataDirs: []string{n.dataDir}, Clock: n.clock})
	n.cache = cnicache.New(cnicache.Config{Dirs: []string{n.cacheDir}, Clock: n.clock})
	n.maker = &hostlocal.Adopter{Wait: 50 * time.Millisecond}
	n.vault = &hostlocal.Quarantine{Dir: filepath.Join(n.stateDir, "quarantine"), Wait: 50 * time.Millisecond}
	t.Cleanup(func() {
		if n.log != nil {
			n.log.Close()
		}
	})
	return n
}

// clock advances with every reading, as a real one does.
func (n *node) clock() claim.Instant {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now.Mono += time.Microsecond
	n.now.Wall = n.now.Wall.Add(time.Microsecond)
	return n.now
}

func (n *node) wait(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now.Mono += d
	n.now.Wall = n.now.Wall.Add(d)
}

func (n *node) reboot(boot string) {
	n.past = append(n.past, n.now.Boot)
	n.now.Boot, n.now.Mono = boot, time.Minute
}

func (n *node) store(network string) string { return filepath.Join(n.dataDir, network) }

// reserve writes a reservation as host-local does.
func (n *node) reserve(network, addr, owner, ifName string) string {
	n.t.Helper()
	dir := n.store(network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	content := owner
	if ifName != "" {
		content += "\r\n" + ifName
	}
	path := filepath.Join(dir, addr)
	n.put(path, content)
	n.planted[path] = content
	n.contents[content]++
	return path
}

func (n *node) put(path, content string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// replace gives a name to another file of the same content: F11 at its meanest.
func (n *node) replace(path string) {
	n.t.Helper()
	n.put(path+".tmp", n.planted[path])
	if err := os.Rename(path+".tmp", path); err != nil {
		n.t.Fatal(err)
	}
}

// result writes a libcni cache file; pad makes it larger.
func (n *node) result(network, owner, ifName, netns string, pad int, addrs ...string) string {
	n.t.Helper()
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"bridge","x":%q,"ipam":{"type":"host-local","dataDir":%q}}]}`, network, strings.Repeat("x", pad), n.dataDir)
	var ips []map[string]string
	for _, a := range addrs {
		ips = append(ips, map[string]string{"address": a + "/24"})
	}
	b, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": owner, "config": base64.StdEncoding.EncodeToString([]byte(conf)), "ifName": ifName,
		"networkName": network, "netns": netns, "result": map[string]any{"cniVersion": "1.0.0", "ips": ips},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	path := filepath.Join(n.cacheDir, "results", network+"-"+owner+"-"+ifName)
	n.put(path, string(b))
	n.cached[path] = b
	return path
}

// netns makes a namespace pinned as containerd pins its own.
func (n *node) netns(ino uint64, procs int, addrs ...string) string {
	mount := fmt.Sprintf("/run/netns/cni-%08x-1111-2222-3333-444455556666", ino)
	ns := claim.Netns{ID: ino, Mounts: []string{mount}, Procs: procs}
	for _, a := range addrs {
		ns.Addrs = append(ns.Addrs, claim.IfAddr{If: "eth0", Addr: netip.MustParseAddr(a)})
	}
	n.nets[ino] = ns
	return mount
}

// engine opens the journal anew, as a new process does.
func (n *node) engine() *Engine {
	n.t.Helper()
	if n.log != nil {
		n.log.Close()
	}
	var err error
	if n.log, err = journal.Open(n.stateDir, journal.Options{}); err != nil {
		n.t.Fatal(err)
	}
	return &Engine{
		Inventories: []Inventory{invTap{n, n.cache}}, Reservations: resTap{n}, Follow: true, Witnesses: []Witness{oracle{n}}, Memory: memTap{n},
		Journal: logTap{n}, Vault: vaultTap{n}, Maker: makerTap{n}, Sides: sideTap{n}, Holds: holdTap{n}, Clock: n.clock, Rand: n.rng,
	}
}

// op notes what is about to happen, and lets the test fail or end it. Each effect has two
// moments: "op" before it and "op+" after it.
func (n *node) op(format string, args ...any) error {
	op := fmt.Sprintf(format, args...)
	if !strings.HasSuffix(op, "+") {
		n.ops = append(n.ops, op)
	}
	if n.at != nil {
		return n.at(op)
	}
	return nil
}

type invTap struct {
	n   *node
	inv Inventory
}

func (i invTap) Name() string { return i.inv.Name() }
func (i invTap) List(ctx context.Context) claim.Snapshot {
	i.n.mu.Lock()
	i.n.listed++
	nth, hook := i.n.listed, i.n.onList
	i.n.mu.Unlock()
	s := i.inv.List(ctx)
	if hook != nil {
		hook(nth)
	}
	return s
}

// resTap lists the addresses.
type resTap struct{ n *node }

func (r resTap) Name() string { return r.n.inv.Name() }
func (r resTap) List(ctx context.Context, dataDirs []string) claim.Snapshot {
	return invTap{r.n, also{r.n, dataDirs}}.List(ctx)
}

type also struct {
	n    *node
	dirs []string
}

func (a also) Name() string                            { return a.n.inv.Name() }
func (a also) List(ctx context.Context) claim.Snapshot { return a.n.inv.ListAlso(ctx, a.dirs) }

// oracle speaks for all four witnesses from the node's truth.
type oracle struct{ n *node }

func (oracle) Name() string { return "oracle" }
func (o oracle) Ask(ctx context.Context, detail bool) []claim.Testimony {
	n := o.n
	asked := n.clock()
	n.asked++
	if n.onAsk != nil {
		n.onAsk(n.asked)
	}
	kernel := &claim.KernelFacts{Vantage: claim.Vantage{Proven: true, InitialPIDNS: true}}
	kernel.Netns = append(kernel.Netns, claim.Netns{ID: 1, Host: true, Procs: 100})
	for _, ino := range sortedKeys(n.nets) {
		kernel.Netns = append(kernel.Netns, n.nets[ino])
	}
	cri := &claim.CRIFacts{
		Runtimes: []claim.Runtime{{Endpoint: endpoint, Name: "containerd", State: claim.StateComplete}}, Detailed: detail,
		// One that always lives: an empty list would be another case.
		Sandboxes: []claim.Sandbox{{ID: id(0xffff), Endpoint: endpoint, Ready: true}},
	}
	for _, l := range sortedKeys(n.live) {
		if n.live[l] {
			cri.Sandboxes = append(cri.Sandboxes, claim.Sandbox{ID: l, Endpoint: endpoint, Ready: true})
		}
	}
	for _, b := range n.unready {
		if !detail {
			b.Netns = ""
		}
		cri.Sandboxes = append(cri.Sandboxes, b)
	}
	ts := []claim.Testimony{
		{Witness: claim.WitnessKernel, Kernel: kernel}, {Witness: claim.WitnessProcess, Process: &claim.ProcessFacts{}},
		{Witness: claim.WitnessCRI, CRI: cri}, {Witness: claim.WitnessBoot, Boot: &claim.BootFacts{Current: asked.Boot, Past: n.past}},
	}
	for i := range ts {
		ts[i].State, ts[i].Asked = claim.StateComplete, asked
		why := n.silent[ts[i].Witness]
		if err := ctx.Err(); err != nil {
			why = err.Error()
		}
		if why != "" {
			ts[i] = claim.Testimony{Witness: ts[i].Witness, State: claim.StateSilent, Asked: asked, Detail: why}
		}
	}
	return ts
}

func sortedKeys[K interface{ ~string | ~uint64 }, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

type memTap struct{ n *node }

func (m memTap) Load() (verdict.Memory, error) { return m.n.memory, m.n.memErr }
func (m memTap) Save(list verdict.Memory) error {
	if m.n.saveErr != nil {
		return m.n.saveErr
	}
	m.n.memory = slices.Clone(list)
	return nil
}

type logTap struct{ n *node }

func (l logTap) Load() ([]journal.Record, []journal.Damage, error) { return l.n.log.Load() }
func (l logTap) Append(recs ...journal.Record) error {
	op := "append " + string(recs[0].Type)
	if err := l.n.op("%s", op); err != nil {
		// A crash inside of it may leave some of the first records.
		if errors.Is(err, errHalf) {
			if err := l.n.log.Append(recs[:len(recs)/2]...); err != nil { // of one record, none
				l.n.t.Fatal(err)
			}
			panic(killed{})
		}
		return err
	}
	if err := l.n.log.Append(recs...); err != nil {
		return err
	}
	return l.n.op("%s+", op)
}

var (
	errHalf = errors.New("half")
	errFull = errors.New("no space left on device")
)

// killed is what a simulated SIGKILL panics with.
type killed struct{}

// vaultTap does to the quarantine what the adapter in cmd does.
type vaultTap struct{ n *node }

func (v vaultTap) Release(ctx context.Context, dir string, moves []Move, fresh func() bool) ([]Moved, error) {
	if err := v.n.op("move %s", filepath.Base(dir)); err != nil {
		if !errors.Is(err, errHalf) {
			return nil, err
		}
		v.release(ctx, dir, moves[:(len(moves)+1)/2], fresh)
		panic(killed{})
	}
	out, err := v.release(ctx, dir, moves, fresh)
	return out, errors.Join(err, v.n.op("move %s+", filepath.Base(dir)))
}

func (v vaultTap) release(ctx context.Context, dir string, moves []Move, fresh func() bool) ([]Moved, error) {
	list := make([]hostlocal.Move, len(moves))
	for i, m := range moves {
		list[i] = hostlocal.Move(m)
	}
	outs, err := v.n.vault.Release(ctx, dir, list, hostlocal.ReleaseOptions{Fresh: fresh})
	moved := make([]Moved, len(outs))
	for i, o := range outs {
		word := map[hostlocal.State]string{
			hostlocal.Moved: journal.OutcomeReleased, hostlocal.Changed: journal.OutcomeChanged, hostlocal.Gone: journal.OutcomeGone,
		}[o.State]
		if word == "" {
			word = journal.OutcomeFailed
		}
		moved[i] = Moved{ReleaseID: o.ReleaseID, Outcome: word, Err: o.Err}
		if errors.Is(o.Err, hostlocal.ErrStale) {
			moved[i].Err = ErrStale
		}
	}
	if errors.Is(err, hostlocal.ErrStale) {
		err = nil
	}
	return moved, err
}

func (v vaultTap) Place(m Move) (origin, quarantined bool, err error) {
	return v.n.vault.Place(hostlocal.Move(m))
}

func (v vaultTap) Restore(ctx context.Context, m Move) (bool, error) {
	if err := v.n.op("restore %s", filepath.Base(m.Path)); err != nil {
		return false, err
	}
	err := v.n.vault.Restore(ctx, m.ReleaseID, m.Path)
	if errors.Is(err, hostlocal.ErrTaken) {
		return true, nil
	}
	return false, errors.Join(err, v.n.op("restore %s+", filepath.Base(m.Path)))
}

func (v vaultTap) Discard(releaseID string) error {
	if err := v.n.op("discard"); err != nil {
		return err
	}
	return errors.Join(v.n.vault.Discard(releaseID), v.n.op("discard+"))
}

// makerTap does to the adopter what the adapter in cmd does.
type makerTap struct{ n *node }

func (m makerTap) Adopt(ctx context.Context, dir string, list []Adoption, fresh func() bool) ([]Made, error) {
	if err := m.n.op("make %s", filepath.Base(dir)); err != nil {
		return nil, err
	}
	in := make([]hostlocal.Adoption, len(list))
	for i, a := range list {
		in[i] = hostlocal.Adoption(a)
	}
	outs, err := m.n.maker.Adopt(ctx, dir, in, fresh)
	made := make([]Made, len(outs))
	for i, o := range outs {
		made[i] = Made{ReleaseID: o.ReleaseID, Outcome: string(o.State), Inc: o.Inc, Err: o.Err}
	}
	if errors.Is(err, hostlocal.ErrStale) {
		err = ErrStale
	}
	return made, errors.Join(err, m.n.op("make %s+", filepath.Base(dir)))
}

func (m makerTap) Look(a Adoption) (claim.Incarnation, bool, error) {
	return m.n.maker.Look(hostlocal.Adoption(a))
}

// sideTap removes cache files for real and namespaces from the node's truth.
type sideTap struct{ n *node }

func (s sideTap) Run(ctx context.Context, step plan.Step) journal.StepResult {
	res := journal.StepResult{Step: string(step.Kind), Object: step.Object, State: journal.StepDone}
	fail := func(err error) journal.StepResult {
		res.State, res.Detail = journal.StepFailed, err.Error()
		return res
	}
	if err := s.n.op("%s %s", step.Kind, filepath.Base(step.Object)); err != nil {
		return fail(err)
	}
	if s.n.sideState != nil {
		if r, ok := s.n.sideState(step); ok {
			return r
		}
	}
	switch step.Kind {
	case plan.StepNetns:
		if _, ok := s.n.nets[step.NetnsID]; !ok {
			res.State = journal.StepSkipped
		}
		delete(s.n.nets, step.NetnsID)
	case plan.StepCache:
		_, err := s.n.cache.Remove(ctx, step.Resource.Path, step.Resource.Inc)
		switch {
		case errors.Is(err, os.ErrNotExist):
			res.State = journal.StepSkipped
		case err != nil:
			return fail(err)
		}
	}
	if err := s.n.op("%s %s+", step.Kind, filepath.Base(step.Object)); err != nil {
		return fail(err)
	}
	return res
}

func (s sideTap) Content(step plan.Step) ([]byte, error) {
	return s.n.cache.Read(context.Background(), step.Resource.Path, step.Resource.Inc)
}

func (s sideTap) Restore(path string, content []byte) error {
	if err := s.n.op("cache-restore %s", filepath.Base(path)); err != nil {
		return err
	}
	return errors.Join(s.n.cache.Restore(context.Background(), path, content), s.n.op("cache-restore %s+", filepath.Base(path)))
}

type holdTap struct{ n *node }

func bare(h verdict.Hold) verdict.Hold {
	return verdict.Hold{Store: h.Store, Addr: h.Addr, Owner: h.Owner}
}

func (h holdTap) Hold(v verdict.Hold, _ string) (bool, error) {
	if err := h.n.op("hold %s", v.Addr); err != nil {
		return false, err
	}
	added := !h.n.holds[bare(v)]
	h.n.holds[bare(v)] = true
	return added, h.n.op("hold %s+", v.Addr)
}

func (h holdTap) List() ([]verdict.Hold, error) { return sortedHolds(h.n.holds), nil }

func (h holdTap) Unhold(v verdict.Hold) error {
	if err := h.n.op("unhold %s", v.Addr); err != nil {
		return err
	}
	delete(h.n.holds, bare(v))
	return nil
}

// look is one audit, remembered.
func (n *node) look(e *Engine) *Audit {
	n.t.Helper()
	p := n.policy
	a, err := e.Look(n.t.Context(), p)
	if err != nil {
		n.t.Fatal(err)
	}
	e.Remember(a, everywhere)
	return a
}

func sortedHolds(m map[verdict.Hold]bool) []verdict.Hold {
	var out []verdict.Hold
	for h := range m {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b verdict.Hold) int { return a.Addr.Compare(b.Addr) })
	return out
}

func (n *node) plan(a *Audit) *plan.Plan { return plan.Make(a.Judgement, n.planOpt) }

// due looks once, lets every grace pass and looks again: what may go, may go now.
func (n *node) due(e *Engine) (*Audit, *plan.Plan) {
	n.t.Helper()
	n.look(e)
	n.wait(2 * orphanGrace)
	a := n.look(e)
	return a, n.plan(a)
}

// sweep is gc as the command does it: look, settle, reap.
func (n *node) sweep(e *Engine) *Result {
	n.t.Helper()
	a := n.look(e)
	if _, err := e.Settle(n.t.Context(), everywhere); err != nil {
		n.t.Fatal(err)
	}
	r, err := e.Reap(n.t.Context(), a, n.plan(a))
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

func everywhere(string) bool { return true }

func (n *node) entries() []journal.Entry {
	n.t.Helper()
	recs, damage, err := n.log.Load()
	if err != nil || len(damage) > 0 {
		n.t.Fatalf("journal: %v, %v", damage, err)
	}
	return journal.Replay(recs)
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// quarantine returns the quarantined files' contents by release ID.
func (n *node) quarantine() map[string]string {
	n.t.Helper()
	out := map[string]string{}
	list, err := os.ReadDir(n.vault.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	for _, f := range list {
		b, err := os.ReadFile(filepath.Join(n.vault.Dir, f.Name()))
		if err != nil {
			n.t.Fatal(err)
		}
		out[f.Name()] = string(b)
	}
	return out
}

// once checks that every reservation that was ever written lies in exactly one place,
// unchanged: in its store or in the quarantine. Contents tell them apart.
func (n *node) once(when string) {
	n.t.Helper()
	have := map[string]int{}
	stores, err := filepath.Glob(filepath.Join(n.dataDir, "*", "*"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, path := range stores {
		if b, err := os.ReadFile(path); err == nil && filepath.Base(path) != "lock" {
			have[string(b)]++
		}
	}
	for _, content := range n.quarantine() {
		have[content]++
	}
	for content, w := range n.contents {
		if have[content] != w {
			n.t.Fatalf("%s: %d files of %q, want %d; stores %q, quarantine %q", when, have[content], content, w, stores, n.quarantine())
		}
	}
}

// honest checks the journal against the disk when nothing is under way: a release that
// says released has its file in the quarantine, any other has none, and a cache file that
// went can be brought back from the journal.
func (n *node) honest(when string) {
	n.t.Helper()
	q := n.quarantine()
	kept := map[string]bool{}
	for _, en := range n.entries() {
		if en.State.Unsettled() {
			n.t.Fatalf("%s: %s is %s", when, en.ID, en.State)
		}
		if len(en.Problems) > 0 {
			n.t.Fatalf("%s: %s: %q", when, en.ID, en.Problems)
		}
		if c := en.Release.Cache; c != nil && bytes.Equal(c.Content, n.cached[c.Path]) {
			kept[c.Path] = true
		}
		if en.Release.Kind != claim.KindReservation {
			continue
		}
		_, there := q[en.ID]
		if there != (en.State == journal.StateReleased) {
			n.t.Fatalf("%s: %s of %s is %s, in the quarantine: %v", when, en.ID, en.Release.Path, en.State, there)
		}
		delete(q, en.ID)
	}
	if len(q) > 0 {
		n.t.Fatalf("%s: quarantined without a record: %q", when, q)
	}
	for path := range n.cached {
		if !exists(path) && !kept[path] {
			n.t.Fatalf("%s: %s went and the journal does not hold it", when, path)
		}
	}
}

func outcomes(r *Result) map[string]string {
	m := map[string]string{}
	for _, x := range r.Released {
		m[filepath.Base(x.Finding.Resource.Path)] = "released"
	}
	for _, x := range r.Failed {
		m[filepath.Base(x.Finding.Resource.Path)] = x.Outcome
	}
	for _, x := range r.Reprieved {
		if b := filepath.Base(x.Resource.Path); m[b] == "" {
			m[b] = "reprieved"
		}
	}
	return m
}
