package verdict_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/verdict"
)

// The IDs of the tests. idAA begins with idA's first 63 digits and is as long; idShort
// is a prefix of idA (case F17).
var (
	idA     = strings.Repeat("a1b2c3d4", 8)
	idB     = strings.Repeat("b0b1b2b3", 8)
	idC     = strings.Repeat("c9c8c7c6", 8)
	idAA    = idA[:63] + "0"
	idShort = idA[:12]
)

const (
	dataDir     = "/var/lib/cni/networks"
	netDir      = dataDir + "/pods"
	otherDir    = dataDir + "/other"
	endpoint    = "unix:///run/containerd/containerd.sock"
	crioSock    = "unix:///run/crio/crio.sock"
	cniMount    = "/run/netns/cni-0a1b2c3d-1111-2222-3333-444455556666"
	cniMount2   = "/run/netns/cni-99999999-1111-2222-3333-444455556666"
	podmanMount = "/run/netns/netns-0a1b2c3d-1111-2222-3333-444455556666"

	grace       = 5 * time.Minute
	orphanGrace = time.Hour
)

// node is the truth of a node. Every sweep makes a Case of it, as the engine would: it
// lists, asks, and answers what the judge needs.
type node struct {
	t        testing.TB
	now      claim.Instant
	past     []string
	policy   Policy
	stores   []claim.Store
	files    []claim.Resource
	caches   []claim.Resource
	mounts   []claim.Resource
	nets     []claim.Netns
	hits     []claim.ProcessHit
	shims    []claim.Shim
	boxes    []claim.Sandbox
	runtimes []claim.Runtime
	vantage  claim.Vantage
	silent   map[string]string
	memory   Memory
	// apiServer: there is one that can be asked; pods are its. asked: it was.
	apiServer, asked bool
	pods             []claim.KubePod
	// deaf: the engine does not answer what the judge needs.
	deaf bool
	// relisted is what the second listing finds besides files.
	relisted []claim.Resource
	// tweak is the adversary's last word on a Case.
	tweak func(*Case)
	ino   uint64
}

func newNode(t testing.TB) *node {
	return &node{
		t: t,
		now: claim.Instant{
			Boot: "boot-2", Mono: 100 * time.Hour, Wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		},
		policy: Policy{
			Required: []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI},
			Grace:    grace, OrphanGrace: orphanGrace,
		},
		stores: []claim.Store{
			{Dir: netDir, DataDir: dataDir, Network: "pods", Writable: true, Capacity: 250, Ranges: []claim.Range{
				{First: ip("10.1.0.1"), Last: ip("10.1.0.254"), Gateway: ip("10.1.0.1")},
				{First: ip("fd00::1"), Last: ip("fd00::ffff"), Gateway: ip("fd00::1")},
			}},
			{Dir: otherDir, DataDir: dataDir, Network: "other", Writable: true},
		},
		nets: []claim.Netns{{ID: 1, Host: true, Procs: 90, PIDs: []int{1}, Addrs: []claim.IfAddr{
			{If: "eth0", Addr: ip("192.0.2.1")}, {If: "cni0", Addr: ip("10.1.0.1")},
		}}},
		runtimes: []claim.Runtime{{Endpoint: endpoint, Name: "containerd", State: claim.StateComplete, Known: true, PeerPID: 700}},
		vantage:  claim.Vantage{Proven: true, InitialPIDNS: true},
		silent:   map[string]string{},
	}
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func (n *node) inc(content string) claim.Incarnation {
	n.ino++
	return claim.Incarnation{Dev: 8, Ino: n.ino, Ctime: int64(1000 + n.ino), Size: int64(len(content)), Sum: content}
}

// file lays a reservation of addr with content into dir and returns its path.
func (n *node) file(dir, addr, content string) string {
	r := claim.Resource{
		Kind: claim.KindReservation, Store: dir, Network: dir[strings.LastIndexByte(dir, '/')+1:], Addr: ip(addr),
		Owner: claim.ParseOwner([]byte(content)), Path: dir + "/" + addr, Inc: n.inc(content),
	}
	n.files = append(n.files, r)
	return r.Path
}

// reserve lays a reservation as host-local writes it.
func (n *node) reserve(addr, id string) string { return n.file(netDir, addr, id+"\r\neth0") }

// at finds the resource at a path.
func (n *node) at(path string) *claim.Resource {
	for _, list := range [][]claim.Resource{n.files, n.caches, n.mounts} {
		for i := range list {
			if list[i].Path == path {
				return &list[i]
			}
		}
	}
	n.t.Fatalf("nothing lies at %s", path)
	return nil
}

func (n *node) remove(path string) {
	gone := func(r claim.Resource) bool { return r.Path == path }
	n.files, n.caches, n.mounts = slices.DeleteFunc(n.files, gone), slices.DeleteFunc(n.caches, gone), slices.DeleteFunc(n.mounts, gone)
}

// cache lays a libcni result for network "pods" and returns its path.
func (n *node) cache(id, netns string, addrs ...string) string {
	e := &claim.CacheEntry{Netns: netns, IPAM: "host-local", DataDir: dataDir, Plugins: []string{"bridge"}}
	for _, a := range addrs {
		e.Addrs = append(e.Addrs, ip(a))
	}
	r := claim.Resource{
		Kind: claim.KindCache, Store: "/var/lib/cni/results", Network: "pods",
		Owner: claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: "eth0"},
		Path:  "/var/lib/cni/results/pods-" + id + "-eth0", Inc: n.inc(id + netns), Cache: e,
	}
	n.caches = append(n.caches, r)
	return r.Path
}

// netns makes a namespace with procs processes, pinned at mount if that is not empty.
func (n *node) netns(id uint64, procs int, mount string, addrs ...string) *claim.Netns {
	ns := claim.Netns{ID: id, Procs: procs}
	for i := range procs {
		ns.PIDs = append(ns.PIDs, int(id)*100+i)
	}
	if mount != "" {
		ns.Mounts = []string{mount}
		n.mounts = append(n.mounts, claim.Resource{
			Kind: claim.KindNetns, Store: mount[:strings.LastIndexByte(mount, '/')], Path: mount, NetnsID: id, Inc: n.inc(mount),
		})
	}
	for _, a := range addrs {
		ns.Addrs = append(ns.Addrs, claim.IfAddr{If: "eth0", Addr: ip(a)})
	}
	n.nets = append(n.nets, ns)
	return &n.nets[len(n.nets)-1]
}

// proc is a process that carries id.
func (n *node) proc(id, via string, netns uint64) {
	n.hits = append(n.hits, claim.ProcessHit{ID: id, PID: 4000 + len(n.hits), Netns: netns, Via: via})
	if via == "shim" {
		n.shims = append(n.shims, claim.Shim{PID: 4000 + len(n.shims), ID: id, Namespace: "k8s.io", Address: "/run/containerd/containerd.sock"})
	}
}

// box makes a sandbox of containerd; pod is the Pod's UID. Later ones are newer.
func (n *node) box(id, pod string, ready bool) *claim.Sandbox {
	n.boxes = append(n.boxes, claim.Sandbox{
		ID: id, Endpoint: endpoint, Ready: ready, Created: int64(1000 + len(n.boxes)),
		Pod: claim.Pod{Namespace: "default", Name: "web-0", UID: pod}, FromAPI: true,
	})
	return &n.boxes[len(n.boxes)-1]
}

// kube gives the node an API server, which has a Pod for each sandbox there is.
func (n *node) kube(required bool) {
	n.apiServer = true
	if required {
		n.policy.Required = append(n.policy.Required, claim.WitnessKube)
	}
	for _, b := range n.boxes {
		n.pod(b.Pod.UID, "Running")
	}
}

// pod is what the API server has of the Pod uid.
func (n *node) pod(uid, phase string, addrs ...string) *claim.KubePod {
	p := claim.KubePod{Pod: claim.Pod{Namespace: "default", Name: "web-0", UID: uid}, Phase: phase}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, ip(a))
	}
	n.pods = append(n.pods, p)
	return &n.pods[len(n.pods)-1]
}

// bystander is a living Pod of the runtime, so that its list is not empty.
func (n *node) bystander() {
	n.box(idC, "bystander", true)
	n.proc(idC, "shim", 1)
}

func (n *node) wait(d time.Duration) {
	n.now.Mono += d
	n.now.Wall = n.now.Wall.Add(d)
}

func (n *node) reboot(boot string) {
	n.past = append(n.past, n.now.Boot)
	n.now.Boot, n.now.Mono = boot, time.Minute
	n.now.Wall = n.now.Wall.Add(2 * time.Minute)
	n.nets, n.hits, n.shims, n.mounts = n.nets[:1], nil, nil, nil
}

func (n *node) before(d time.Duration) claim.Instant {
	i := n.now
	i.Mono -= d
	i.Wall = i.Wall.Add(-d)
	return i
}

// build makes the Case of this moment: listed 3 s ago, asked 2 s ago, listed again 1 s ago.
func (n *node) build(detail, relist bool) *Case {
	listed, asked := n.before(3*time.Second), n.before(2*time.Second)
	c := &Case{
		Now: n.now, Policy: n.policy, Memory: slices.Clone(n.memory),
		Snapshots: []claim.Snapshot{
			{Source: "hostlocal", Listed: listed, Stores: slices.Clone(n.stores), Resources: slices.Clone(n.files)},
			{Source: "cnicache", Listed: listed, Stores: listedWhole("/var/lib/cni/results"), Resources: slices.Clone(n.caches)},
			{Source: "links", Listed: listed, Stores: listedWhole("/run/netns"), Resources: slices.Clone(n.mounts)},
		},
	}
	boxes := slices.Clone(n.boxes)
	if !detail {
		for i := range boxes {
			boxes[i].Netns, boxes[i].Addrs = "", nil
		}
	}
	c.Testimonies = []claim.Testimony{
		{Witness: claim.WitnessKernel, Kernel: &claim.KernelFacts{Netns: slices.Clone(n.nets), Vantage: n.vantage}},
		{Witness: claim.WitnessProcess, Process: &claim.ProcessFacts{Hits: slices.Clone(n.hits), Shims: slices.Clone(n.shims)}},
		{Witness: claim.WitnessCRI, CRI: &claim.CRIFacts{Runtimes: slices.Clone(n.runtimes), Sandboxes: boxes, Detailed: detail}},
		{Witness: claim.WitnessBoot, Boot: &claim.BootFacts{Current: n.now.Boot, Past: slices.Clone(n.past)}},
	}
	if n.asked {
		c.Testimonies = append(c.Testimonies, claim.Testimony{Witness: claim.WitnessKube, Kube: &claim.KubeFacts{Node: "n1", Pods: slices.Clone(n.pods)}})
	}
	for i := range c.Testimonies {
		t := &c.Testimonies[i]
		t.State, t.Asked, t.Took = claim.StateComplete, asked, time.Millisecond
		if why, ok := n.silent[t.Witness]; ok {
			*t = claim.Testimony{Witness: t.Witness, State: claim.StateSilent, Detail: why, Asked: asked}
		}
	}
	if relist {
		c.Relisted = &claim.Snapshot{
			Source: "hostlocal", Listed: n.before(time.Second), Stores: slices.Clone(n.stores),
			Resources: slices.Concat(n.files, n.relisted),
		}
	}
	if n.tweak != nil {
		n.tweak(c)
	}
	return c
}

// sweep is one pass: it judges, answers what the judge needs, and remembers.
func (n *node) sweep() *outcome {
	n.t.Helper()
	n.asked = false
	c := n.build(false, false)
	j := Judge(c)
	first, needs := j.Needs, Needs{}
	for range 3 {
		more := Needs{Detail: needs.Detail || j.Needs.Detail, Relist: needs.Relist || j.Needs.Relist, Kube: n.apiServer && (needs.Kube || j.Needs.Kube)}
		if n.deaf || more == needs {
			break
		}
		needs, n.asked = more, more.Kube
		c = n.build(needs.Detail, needs.Relist)
		j = Judge(c)
	}
	n.memory = j.Memory
	return &outcome{n.t, c, j, first}
}

// sweeps makes two sweeps, d apart, and returns the second.
func (n *node) sweeps(d time.Duration) *outcome {
	n.t.Helper()
	n.sweep()
	n.wait(d)
	return n.sweep()
}

type outcome struct {
	t     testing.TB
	c     *Case
	j     *Judgement
	needs Needs // of the first look
}

// at gives the finding for a path; the zero one where there is none.
func (o *outcome) at(path string) Finding {
	for _, f := range o.j.Findings {
		if f.Resource.Path == path {
			return f
		}
	}
	return Finding{Resource: &claim.Resource{}, Rule: "no-finding"}
}

func (o *outcome) want(path string, v Verdict, releasable bool) {
	o.t.Helper()
	f := o.at(path)
	if f.Rule == "no-finding" {
		o.t.Fatalf("%s: no finding", path)
	}
	if f.Verdict != v || f.Releasable != releasable {
		says, _ := json.Marshal(f.Says)
		o.t.Errorf("%s is %s, releasable %v, by %s (%s); want %s, %v\nsays %s", path, f.Verdict, f.Releasable, f.Rule, f.Why, v, releasable, says)
	}
}

// kept wants that nothing of path can be released, whatever it is called.
func (o *outcome) kept(path string) {
	o.t.Helper()
	if f := o.at(path); f.Releasable {
		says, _ := json.Marshal(f.Says)
		o.t.Errorf("FALSE RELEASE: %s is %s by %s (%s)\nsays %s", path, f.Verdict, f.Rule, f.Why, says)
	}
}

// listedWhole is the store of a directory that an inventory without networks looked at.
func listedWhole(dir string) []claim.Store {
	return []claim.Store{{Dir: dir, Writable: true}}
}
