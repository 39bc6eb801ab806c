package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/cnicache"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/kube"
	"github.com/holdfast-cni/holdfast/internal/sys/kubelet"
	"github.com/holdfast-cni/holdfast/internal/sys/links"
	"github.com/holdfast-cni/holdfast/internal/sys/proc"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// node is the engine with its drivers, opened for one command.
type node struct {
	o       *options
	policy  verdict.Policy
	engine  *sweep.Engine
	state   *state.Dir // nil when it cannot be opened; then nothing is remembered
	journal *journal.Journal
	cri     *cri.Witness
	proc    *proc.Witness
	// kube is the API server's witness; nil where it is not asked.
	kube *kube.Witness
	// kubelet is by whose time-out the grace is set, unless a person set it.
	kubelet kubelet.Answer
	holds   *holdBook
	// quarantine lies below the state directory.
	quarantine *hostlocal.Quarantine
	reapers    []*hostlocal.Reaper
	// unwritable says why nothing can be written; then nothing is released.
	unwritable error
	locked     map[string]bool // data directories whose reaper lock is held
	// lockHolds are how long the allocator's lock was held, each time.
	lockHolds []time.Duration
	clock     *boot.Clock
	warnings  []string
	trouble   trouble
	// stops are the networks of which nothing is released, as of the last look.
	stops []line.Stop
	// watch is nil but in the agent.
	watch *watch
}

// trouble is what a look met that it can do without, in the order met, each once.
type trouble struct {
	mu   sync.Mutex
	said map[string]bool
	news []string
}

func (t *trouble) add(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said == nil {
		t.said = map[string]bool{}
	}
	if !t.said[text] {
		t.said[text] = true
		t.news = append(t.news, text)
	}
}

// take returns what came since the last time.
func (t *trouble) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	news := t.news
	t.news = nil
	return news
}

// access says what a command is going to do.
type access int

const (
	readOnly  access = iota // writes nothing
	remembers               // writes sightings if it can
	releases                // must be able to write everything
)

// openNode wires drivers and engine. With releases it fails unless journal, quarantine
// and sightings can be written and no other reaper uses the state directory (I3, I9).
func openNode(o *options, want access) (n *node, err error) {
	if err := o.dialKube(); err != nil {
		return nil, err
	}
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	var warnings []string
	if os.Geteuid() != 0 {
		warnings = append(warnings, "not root: most of the node cannot be seen from here, and nothing can be released; run it as root")
	}
	for _, d := range []struct {
		flag string
		dirs []string
	}{{"data-dir", o.dataDirs}, {"cni-conf-dir", o.confDirs}, {"cni-cache-dir", o.cacheDirs}} {
		for _, dir := range d.dirs {
			if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
				warnings = append(warnings, fmt.Sprintf("--%s %s: there is no such directory", d.flag, dir))
			}
		}
	}
	n = &node{o: o, policy: policy, locked: map[string]bool{}, clock: boot.NewClock(o.proc), warnings: warnings}
	defer func() {
		if err != nil {
			n.Close()
			n = nil
		}
	}()
	if err := n.openState(want); err != nil {
		return n, withheldError{err}
	}
	n.setGrace()
	n.holds = &holdBook{state: n.state, unread: n.unwritable, now: n.clock.Now}
	known, knownErr := n.knownRuntimes()
	n.cri, err = cri.New(cri.Config{Endpoints: o.criEndpoints, WellKnown: cri.DefaultEndpoints(), Known: known, Clock: n.clock.Now, Timeout: o.timeout})
	if err != nil {
		var bad *cri.EndpointError
		if errors.As(err, &bad) {
			return n, usageError{err}
		}
		return n, err
	}
	now := n.clock.Now
	hl := hostlocal.New(hostlocal.Config{
		ConfDirs: confDirs(o), DataDirs: o.dataDirs, WellKnown: len(o.dataDirs)+len(o.confDirs) == 0, Clock: now, Keep: o.stays,
	})
	cache := cnicache.New(cnicache.Config{Dirs: o.cacheDirs, Clock: now})
	inInit := func(kind string) (bool, error) { return proc.InInit(o.proc, kind) }
	openInit := func(kind string) (*os.File, error) { return proc.OpenInit(o.proc, kind) }
	lnk := links.New(links.Config{InInit: inInit, OpenInit: openInit, Clock: now})
	bins := orDefault(o.binDirs, defaultBinDirs())
	n.quarantine = &hostlocal.Quarantine{Dir: filepath.Join(o.stateDir, "quarantine"), Proc: o.proc}
	n.proc = proc.New(proc.Config{Proc: o.proc, CNIBinDirs: bins, Clock: now, Timeout: o.timeout})
	n.engine = &sweep.Engine{
		Inventories:  []sweep.Inventory{cache, lnk},
		Reservations: reservations{hl, n.holds, n.hosts},
		// Whoever says where to look wants nothing else looked at.
		Follow: len(o.dataDirs)+len(o.confDirs) == 0,
		Witnesses: []sweep.Witness{
			procWitness{n.proc},
			criWitness{n.cri, knownErr, now},
			bootWitness{n},
		},
		Memory:  memory{n},
		Journal: logOf(n.journal),
		Vault:   vault{n.quarantine, func(d time.Duration) { n.lockHolds = append(n.lockHolds, d) }},
		Maker:   maker{&hostlocal.Adopter{Proc: o.proc, Held: func(d time.Duration) { n.lockHolds = append(n.lockHolds, d) }}},
		Sides:   &sides{cache: cache, links: lnk, bins: bins, now: now, inInit: inInit, openInit: openInit},
		Holds:   n.holds,
		Clock:   now,
		Rand:    rand.Reader,
	}
	if k := o.kube; k != nil {
		n.kube = kube.New(kube.Config{Client: k.client, Node: k.node, Clock: now, Timeout: o.timeout, Rand: mathrand.Float64})
		n.engine.Late = []sweep.Witness{kubeWitness{n.kube}}
	}
	return n, nil
}

// setGrace sets the grace by this node's kubelet, unless a person has set it.
func (n *node) setGrace() {
	if n.o.grace > 0 {
		return
	}
	var err error
	// The usual place, as PID 1 sees it.
	n.kubelet, err = kubelet.Find(n.o.proc, filepath.Join(n.o.proc, "1/root", cmp.Or(n.o.kubeletConfig, "/var/lib/kubelet/config.yaml")))
	n.policy.Grace = max(n.policy.Grace, kubelet.Grace(n.kubelet.Timeout))
	// Who stays is told; for others doctor says it.
	if err != nil && n.o.stays {
		n.warnings = append(n.warnings, fmt.Sprintf("the grace of %s may be too short, since it cannot be known how long the kubelet waits for its runtime: %v", n.policy.Grace, err))
	}
}

// dialKube makes of --kubeconfig whom to ask. It does not connect yet.
func (o *options) dialKube() error {
	if o.kubeconfig == "" || o.kube != nil {
		return nil
	}
	cfg, err := kube.Load(o.kubeconfig)
	if err != nil {
		return usageError{fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)}
	}
	c, err := kube.NewClient(cfg, "holdfast/"+version)
	if err != nil {
		return usageError{fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)}
	}
	// The kubelet takes the host name in small letters.
	o.kube = &kubeOptions{c, cmp.Or(o.nodeName, os.Getenv("NODE_NAME"), strings.ToLower(nodeName())), true}
	return nil
}

// openState opens the state directory and the journal as far as the command needs.
func (n *node) openState(want access) error {
	st, err := state.Open(n.o.stateDir, state.Options{ReadOnly: want == readOnly})
	if err != nil && want != readOnly {
		n.unwritable = err
		if want == releases {
			return fmt.Errorf("nothing can be journalled, so nothing is released or put back: %w", err)
		}
		if st, err = state.Open(n.o.stateDir, state.Options{ReadOnly: true}); err != nil {
			st = nil
		}
	}
	if err != nil && want == readOnly && !errors.Is(err, fs.ErrNotExist) {
		st, n.unwritable = nil, err
		n.warnings = append(n.warnings, err.Error())
	}
	n.state = st
	if want != readOnly && n.unwritable == nil {
		// Sightings and journal have one writer at a time.
		if err := n.reaper(n.o.stateDir); err != nil {
			err = fmt.Errorf("state directory %s: %w", n.o.stateDir, err)
			if want == releases {
				return err
			}
			n.unwritable = err
		}
	}
	j, err := journal.Open(n.o.stateDir, journal.Options{ReadOnly: want != releases})
	if err != nil {
		if want == releases {
			return fmt.Errorf("nothing can be journalled, so nothing is released or put back: %w", err)
		}
		n.warnings = append(n.warnings, err.Error())
		return nil
	}
	n.journal = j
	if want == releases {
		if err := j.Writable(); err != nil {
			return fmt.Errorf("nothing can be journalled, so nothing is released or put back: %w", err)
		}
	}
	return nil
}

// hosts reports whether a directory is the one that the node has there.
func (n *node) hosts(dir string) (bool, error) { return proc.InitSees(n.o.proc, dir) }

func (n *node) knownRuntimes() ([]string, error) {
	if n.policy.CRINone {
		return nil, nil
	}
	if n.state == nil {
		// Nothing was ever written, or nobody knows which runtimes must be asked.
		return nil, n.unwritable
	}
	return n.state.KnownRuntimes()
}

// reaper takes the lock that lets one process release at a time.
func (n *node) reaper(dir string) error {
	r, err := hostlocal.AcquireReaper(nil, n.o.runDir, dir)
	if err != nil {
		return err
	}
	n.reapers = append(n.reapers, r)
	return nil
}

// lockStores takes the reaper locks of every store in the audit that this process does
// not hold yet: of the data directory, and of the store's own, which a link in another
// data directory may lead to. What could not be locked is returned with the reason, by
// store.
func (n *node) lockStores(a *sweep.Audit) map[string]string {
	busy := map[string]string{}
	for _, s := range a.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Network == "" || n.locked[st.Dir] {
				continue
			}
			if err := n.lockStore(st.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				busy[st.Dir] = err.Error()
			}
		}
	}
	return busy
}

func (n *node) lockDir(dir string) error {
	if n.locked[dir] {
		return nil
	}
	err := n.reaper(dir)
	var mine *hostlocal.ErrBusy
	if errors.As(err, &mine) && mine.PID == os.Getpid() {
		err = nil // the same directory by another path
	}
	if err == nil {
		n.locked[dir] = true
	}
	return err
}

// look is one audit; record remembers its sightings.
func (n *node) look(ctx context.Context) (*sweep.Audit, error) {
	// While the inventories are listed.
	var wg sync.WaitGroup
	wg.Go(n.proc.Room)
	a, err := n.engine.Look(ctx, n.policy)
	wg.Wait()
	if err != nil {
		return nil, err
	}
	n.rememberRuntimes(a)
	n.loadStops(a)
	return a, nil
}

// unknownNetworks checks --network against what there is: a typo must not look like a clean
// node. It is no error, since a network's directory may go with its last address.
func (n *node) unknownNetworks(a *sweep.Audit) []string {
	var there []string
	for _, s := range a.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Network != "" && !slices.Contains(there, st.Network) {
				there = append(there, st.Network)
			}
		}
		for i := range s.Resources {
			if r := &s.Resources[i]; r.Network != "" && !slices.Contains(there, r.Network) {
				there = append(there, r.Network)
			}
		}
	}
	slices.Sort(there)
	var out []string
	for _, w := range n.o.networks {
		if !slices.Contains(there, w) {
			out = append(out, fmt.Sprintf("--network %q: there is no such network here; there are: %s", w, strings.Join(there, ", ")))
		}
	}
	return out
}

// rememberRuntimes: an endpoint that answered once is required from then on.
func (n *node) rememberRuntimes(a *sweep.Audit) {
	if n.unwritable != nil || n.state == nil {
		return
	}
	var seen []string
	// Not by rt.Known: a witness that was asked twice in one look knows it by itself the second time.
	known, err := n.state.KnownRuntimes()
	if err != nil {
		return // which is why nothing is released, and said
	}
	for _, t := range a.Case.Testimonies {
		if t.CRI == nil {
			continue
		}
		for _, rt := range t.CRI.Runtimes {
			if rt.State == claim.StateComplete && !slices.Contains(known, rt.Endpoint) {
				seen = append(seen, rt.Endpoint)
			}
		}
	}
	if len(seen) == 0 {
		return
	}
	if err := n.state.RememberRuntimes(seen...); err != nil && a.Unremembered == nil && !errors.Is(err, state.ErrReadOnly) {
		a.Unremembered = err
	}
}

func (n *node) meta(a *sweep.Audit) report.Meta {
	return report.Meta{Node: nodeName(), Took: a.Took, Networks: n.o.networks, MaxReleases: n.o.maxReleases, ForceOverCap: n.o.forceOverCap}
}

// Close releases locks and files, locks last.
func (n *node) Close() {
	if n.cri != nil {
		n.cri.Close()
	}
	if n.journal != nil {
		n.journal.Close()
	}
	if n.state != nil {
		n.state.Close()
	}
	for _, r := range slices.Backward(n.reapers) {
		r.Close()
	}
}

// confDirs: naming data directories alone still reads the default configuration, which
// gives them capacity and ranges.
func confDirs(o *options) []string {
	if len(o.confDirs) == 0 && len(o.dataDirs) > 0 {
		return []string{hostlocal.DefaultConfDir}
	}
	return o.confDirs
}

// defaultBinDirs are the places of CNI plugins: a plugin that runs from one of them shows
// an ADD or DEL in flight. Upstream's, Debian's, Fedora's, podman's, OpenShift's,
// MicroK8s', k3s'.
func defaultBinDirs() []string {
	return []string{
		"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/usr/local/libexec/cni", "/usr/local/lib/cni", "/var/lib/cni/bin",
		"/var/snap/microk8s/current/opt/cni/bin", "/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/k3s/data/cni",
	}
}

// dropGone gives the locks of directories back that are no longer those that were locked: one
// that was made anew is another one, and is locked anew.
func (n *node) dropGone() {
	for dir := range n.locked {
		if !slices.ContainsFunc(n.reapers, func(r *hostlocal.Reaper) bool { return r.Of(dir) }) {
			delete(n.locked, dir)
		}
	}
	n.reapers = slices.DeleteFunc(n.reapers, func(r *hostlocal.Reaper) bool {
		if r.Of(n.o.stateDir) {
			return false
		}
		for dir := range n.locked {
			if r.Of(dir) {
				return false
			}
		}
		r.Close()
		return true
	})
}
