package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

const (
	// nSlots is how many places for containers there are. Two neighbours share a Pod name.
	nSlots = 10
	// addMax is how long an ADD that nobody sees can take: the kubelet waits twice its
	// runtimeRequestTimeout of 2 min for RunPodSandbox. The grace is longer.
	addMax      = 4 * time.Minute
	grace       = 5 * time.Minute
	orphanGrace = time.Hour

	dataDir  = "/var/lib/cni/networks"
	cacheDir = "/var/lib/cni"
	confDir  = "/etc/cni/net.d"
	stateDir = "/var/lib/holdfast"
	runDir   = "/run/holdfast"
	netnsDir = "/run/netns"
)

// kind is what sort of container it is: what of it the witnesses can see.
type kind int

const (
	plain  kind = iota // a process in a namespace that holds the addresses
	gvisor             // a process in a namespace from whose link the address is gone
	vfio               // nor is its process known by its cgroup; a shim carries the ID
	noproc             // CRI-O without an infra container: no process, a pinned namespace
	nKinds
)

// container is one attempt to run a sandbox, under one ID. It is the truth.
type container struct {
	n     int // from 1, in the order of creation
	id    string
	slot  int
	rt    int
	kind  kind
	nets  int // bit mask of networks
	uid   string
	since time.Duration // CLOCK_MONOTONIC when its ADD began
	boot  int

	adding             bool // an ADD is in flight, or ended and the sandbox is not started yet
	visible            bool // and its plugin shows as a process
	up                 bool // it runs
	proc               bool // a process carries its ID
	pid                int
	listed             bool // its runtime has a record
	ready              bool
	created            int64
	ns                 *netns
	nsID               uint64    // of ns, also when that is gone
	todo               []addStep // what of its ADD is to come
	addrs              []netip.Addr
	ours               bool // holdfast-ipam adds and deletes it, else host-local does
	plug               *plugin
	dieAt              int64         // the file call at which its plugin is killed; 0: none
	robbed             bool          // its reservations were lost while its ADD was in flight, and so that ours may not know; see rob
	robbedAt, linkedAt time.Duration // when they were lost, and when its addresses came to a link
}

// living is the truth that every release is held against.
func (c *container) living() bool { return c.adding || c.up }

// netns is a network namespace that exists.
type netns struct {
	id    uint64
	mount string // "" when nothing pins it
	addrs []claim.IfAddr
	c     *container
}

// runtime is a container runtime.
type runtime struct {
	name, endpoint string // no endpoint: it does not speak CRI
	mode           rtMode
	there          bool
}

type rtMode int

const (
	rtOK    rtMode = iota
	rtHung         // no answer in time
	rtDown         // a socket without a listener
	rtGone         // no socket
	rtEmpty        // just restarted, and lists nothing yet
	nRTModes
)

// witness modes: 0 speaks, 1 is silent, what else there is says testimony.go.
type modes struct{ kernel, process, boot, api int }

// network is one CNI network, under its present name.
type network struct {
	name  string
	gen   int // how often it was renamed
	v4    [4]byte
	n     int // addresses of each family, the first is .2
	lock  *container
	dirs  []string // every directory that it ever had
	stuck bool     // a stranger holds its lock
}

func (n *network) dir() string { return dataDir + "/" + n.name }

// World is the truth about one node, and the run of one script.
type World struct {
	cfg     Config
	subject Subject
	disk    *memfs.Disk
	up      *memfs.Process // upstream: host-local, libcni, people
	locks   map[string]int // store -> descriptor of a lock that upstream holds
	rng     *rand.Rand     // what the power leaves; the same for one script

	bootN int
	mono  time.Duration
	wall  time.Time

	slots      [nSlots]*container
	attempts   [nSlots]int
	all        []*container // by number
	traces     []*container // those of which anything shows
	nets       [2]*network
	rts        [3]*runtime
	namespaces []*netns
	nextNS     uint64
	nextPID    int
	mode       modes
	pods       apiServer

	table  []opDef
	seq    int // counts changes of the truth
	wiped  int // seq of the last wipe, or of the last reservation of a living one that was written over
	ledger ledger
	// seen is what all processes know together; knownBoots are in our own history.
	seen       map[mark]*seen
	knownBoots map[int]bool
	pend       []pending
	run        *run
	last       lastRun
	faults     bool // something is set to go wrong on the disk
	stats      Stats
	fail       *Violation
	adoptions  map[string]bool    // that the oracle has seen, by ID
	shared     map[string]bool    // addresses that two living ones had once; see taint
	aging      *rand.Rand         // the numbers of our allocator
	stamps     map[string][]stamp // what our allocator stamped, by path and content
}

// Config is what a script's config line says.
type Config struct {
	Dual    bool // networks have IPv6 as well
	Runtime int  // bit mask: containerd, CRI-O, podman
	Small   bool // ranges of six addresses
	Cap     int  // of releases per store and sweep; 0 is the default
	Follow  bool // stores that only the cache names are looked at too
	Kube    int  // the API server is a witness: 0 no, 1 it must answer, 2 it need not
	IPAM    int  // who adds: 0 host-local, 1 holdfast-ipam, 2 either in turn, on the same directories
	Agent   bool // gc is a sweep of the agent, to which every range runs low; see agent.go
	Cross   bool // the state directory lies on a device of its own, which may lack O_TMPFILE
}

// cri reports whether some runtime speaks CRI.
func (c Config) cri() bool { return c.Runtime&3 != 0 }

// pending is an operation that happens in the middle of the next command.
type pending struct {
	op   Op
	done bool
}

// newWorld makes an empty node. cfg without a runtime has containerd.
func newWorld(cfg Config, subject Subject) *World {
	if cfg.Runtime == 0 {
		cfg.Runtime = 1
	}
	w := &World{
		cfg: cfg, subject: subject, rng: rand.New(rand.NewPCG(1, 2)), locks: map[string]int{},
		bootN: 1, mono: 10 * time.Hour, wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), nextNS: 4026532000, nextPID: 1000,
	}
	w.disk = memfs.New(memfs.Options{Now: func() int64 { w.wall = w.wall.Add(time.Microsecond); return w.wall.UnixNano() }})
	w.up = w.disk.Process()
	size := 24
	if cfg.Small {
		size = 6
	}
	w.nets[0] = &network{name: "podnet", v4: [4]byte{10, 0, 0, 0}, n: size}
	w.nets[1] = &network{name: "net1", v4: [4]byte{10, 0, 1, 0}, n: size}
	w.rts[0] = &runtime{name: "containerd", endpoint: "unix:///run/containerd/containerd.sock", there: cfg.Runtime&1 != 0}
	w.rts[1] = &runtime{name: "cri-o", endpoint: "unix:///var/run/crio/crio.sock", there: cfg.Runtime&2 != 0}
	w.rts[2] = &runtime{name: "podman", there: cfg.Runtime&4 != 0}
	w.table = ops()
	w.stamps = map[string][]stamp{}
	w.shared, w.aging = map[string]bool{}, rand.New(rand.NewPCG(3, 4))
	w.ledger.files = map[string]*file{}
	w.seen, w.knownBoots = map[mark]*seen{}, map[int]bool{}
	w.ledger.holds, w.ledger.undone = map[string]bool{}, map[string]int{}
	for _, d := range []string{dataDir, cacheDir + "/results", confDir, "/var/lib", "/run"} {
		_ = w.disk.MkdirAll(d)
	}
	if cfg.Cross {
		_ = w.disk.MkdirAll(stateDir)
		_ = w.disk.Mount(stateDir, memfs.Caps{NoReplace: cfg.Small})
		_ = w.disk.SetCaps("/", memfs.Caps{NoTmpfile: cfg.Dual})
	}
	for i := range w.nets {
		w.named(i)
	}
	w.disk.Sync()
	return w
}

// named makes the directory of a network's present name known.
func (w *World) named(i int) {
	n := w.nets[i]
	n.dirs = append(n.dirs, n.dir())
	w.ledger.dirs = append(w.ledger.dirs, n.dir())
}

func (w *World) boot() string { return bootID(w.bootN) }

func bootID(n int) string { return fmt.Sprintf("%08x-1111-4222-8333-444455556666", n) }

// now advances with every reading, as real clocks do.
func (w *World) now() claim.Instant {
	w.mono += time.Microsecond
	w.wall = w.wall.Add(time.Microsecond)
	boot := w.boot()
	if w.mode.boot == noBoot {
		boot = ""
	}
	return claim.Instant{Boot: boot, Mono: w.mono, Wall: w.wall}
}

// pass lets time go by. mono is false in suspend.
func (w *World) pass(d time.Duration, mono bool) {
	w.wall = w.wall.Add(d)
	if mono {
		w.mono += d
		w.expire()
	}
}

// expire ends the ADDs that nobody sees and that no runtime waits for any more.
func (w *World) expire() {
	for _, c := range w.traces {
		if c.adding && !c.visible && w.mono-c.since >= addMax {
			w.abort(c)
		}
	}
}

// violate notes the first violation; what follows is not looked at.
func (w *World) violate(invariant, format string, args ...any) {
	if w.fail == nil {
		w.fail = &Violation{Invariant: invariant, Text: fmt.Sprintf(format, args...)}
	}
}

// Stats count what a run did.
type Stats struct {
	Steps    int
	Commands int
	Released int
	Undone   int
	Kills    int
	Races    int // operations that happened in the middle of a command
	Crashes  int
	Ours     int // reservations by our allocator
	Healed   int // ADDs that found a place after healing
	Taken    int // reservations that were taken over
	Adopted  int // reservations that were made again for the living
	Pairs    map[[2]string]int
}

// Violation is one broken invariant.
type Violation struct {
	Invariant string // I1 and so on; "expect" for an expectation of the script
	Text      string
	Step      int
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s violated at step %d: %s", v.Invariant, v.Step, v.Text)
}
