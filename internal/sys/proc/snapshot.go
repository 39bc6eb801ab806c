package proc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	// workers is how many threads walk, and how many dump. More are of no use where
	// the kernel's locks are the limit, and the node has other work.
	workers = 2
	// maxHits bounds the container IDs that are reported.
	maxHits = 1 << 18
	// maxShownMounts bounds the mounts that are reported of one namespace: every
	// container that has the host's /run mounted shows them again.
	maxShownMounts = 256
	// hopeless is how many enumerations in a row may see a namespace that cannot be
	// opened by any path.
	hopeless = 6
)

// Error is why a snapshot could not be taken whole.
type Error struct {
	Op     string // "open", "read", ...
	Object string
	Err    error
}

func (e *Error) Error() string { return e.Op + " " + e.Object + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// powers are the capabilities that a whole snapshot needs.
type powers struct{ ptrace, admin bool }

func (p powers) both() bool { return p.ptrace && p.admin }

// snapshot is one snapshot while it is taken.
type snapshot struct {
	path    string
	proc    int // the proc file system
	selfFD  int // our own descriptors
	self    int // our PID there, 0 if we are not in it
	powers  powers
	exe     fileIdentity // our own executable, zero if unknown
	mark    int          // see markName; open as long as anything else is
	nsDev   uint64       // the device of the file system of namespaces
	binDirs []string

	mu     sync.Mutex
	spaces map[uint64]*space
	tables map[mountKey]*mountTable
	host   uint64
	guard  uint64 // inode of PID 1's net/dev, when it is guarded

	known  map[process]bool // whose IDs were read; not written during a walk
	dents  []byte
	rounds int
	procs  int // in the last enumeration
	at     *progress
	last   map[uint64]*sighting
	before map[uint64]*sighting
	unseen map[uint64]int // namespaces that could not be opened, and how often
	hits   map[hitKey]int
	shims  map[int]claim.Shim
	exempt bool // PID 1 was guarded
	// initSeen: the last enumeration read PID 1's mounts and network namespace.
	initSeen bool

	// See stranger: when the host's links were first looked at, which there were, and
	// how long a namespace may take to end.
	peersAt time.Time
	peers   []uint32
	linger  time.Duration

	uncovers int // private copies made, see uncover

	// See foreign: whose mounts the last enumeration saw, which of their namespaces are
	// others', what was therefore left out, and which paths hang.
	keys      []mountKey
	keyPIDs   map[mountKey][]int
	initUser  uint64
	foreignNS map[uint64]bool
	others    map[uint64]string
	stuck     map[stuckPath]bool
	hangs     *hangs
	deaf      map[int]bool // those of other users, see memory

	coveredAt  []string // the mounts of namespaces entered that way
	uncoverErr error    // why one was not
}

func newSnapshot(cfg Config) (*snapshot, error) {
	s := &snapshot{
		path: cfg.Proc, proc: -1, selfFD: -1, mark: -1, binDirs: binDirs(cfg.Proc, cfg.CNIBinDirs), powers: ownPowers(),
		spaces: map[uint64]*space{}, tables: map[mountKey]*mountTable{}, known: map[process]bool{},
		unseen: map[uint64]int{}, hits: map[hitKey]int{}, shims: map[int]claim.Shim{},
		dents: make([]byte, 32<<10), linger: min(maxLinger, cfg.Timeout/2),
		at: new(progress), hangs: new(hangs), foreignNS: map[uint64]bool{}, others: map[uint64]string{}, stuck: map[stuckPath]bool{}, deaf: map[int]bool{},
	}
	var err error
	if s.mark, err = makeMark(); err != nil {
		return s, &Error{Op: "create", Object: "a file in memory", Err: err}
	}
	if s.proc, err = openat(unix.AT_FDCWD, cfg.Proc, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return s, &Error{Op: "open", Object: fmt.Sprintf("%q", cfg.Proc), Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.proc, &fs); err != nil {
		return s, &Error{Op: "statfs", Object: fmt.Sprintf("%q", cfg.Proc), Err: err}
	}
	if int64(fs.Type) != unix.PROC_SUPER_MAGIC {
		return s, &Error{Op: "use", Object: fmt.Sprintf("%q", cfg.Proc), Err: errNotProc}
	}
	if s.exe, err = cached(unix.AT_FDCWD, "/proc/self/exe", 0); err != nil {
		s.exe = fileIdentity{}
	}
	ns, err := cached(unix.AT_FDCWD, "/proc/self/ns/net", 0)
	if err != nil {
		return s, &Error{Op: "stat", Object: "/proc/self/ns/net", Err: err}
	}
	s.nsDev = ns.dev
	var link [32]byte
	if n, err := readlinkat(s.proc, "self", link[:]); err == nil && n < len(link) {
		s.self, _ = decimalPrefix(append(link[:n:n], 0))
	}
	if s.selfFD, err = openat(s.proc, "self/fd", unix.O_PATH|unix.O_DIRECTORY); err != nil {
		if s.selfFD, err = openat(unix.AT_FDCWD, "/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return s, &Error{Op: "open", Object: "/proc/self/fd", Err: err}
		}
	}
	return s, nil
}

var errNotProc = errors.New("it is no proc file system")

func (s *snapshot) close() {
	for _, sp := range s.spaces {
		unix.Close(sp.fd)
	}
	for _, t := range s.tables {
		unix.Close(t.fd)
	}
	if s.selfFD >= 0 {
		unix.Close(s.selfFD)
	}
	if s.proc >= 0 {
		unix.Close(s.proc)
	}
	if s.mark >= 0 {
		unix.Close(s.mark) // the last: see ours
	}
}

// forget closes the namespaces that neither of the last two enumerations showed. We are
// the only ones who are known to hold them. One that is about to end can; one that lives
// on, kept by a socket, is a stranger like any other (see stranger), also where somebody
// passed through it while we looked.
func (s *snapshot) forget() {
	for ino, sp := range s.spaces {
		if s.last[ino] == nil && s.before[ino] == nil {
			unix.Close(sp.fd)
			delete(s.spaces, ino)
		}
	}
}

func (s *snapshot) failed(op string, pid int, what string, err error) error {
	object := s.path + "/" + itoa(pid)
	if what != "" {
		object += "/" + what
	}
	if refused(err) && !s.powers.both() {
		err = fmt.Errorf("%w: CAP_SYS_PTRACE and CAP_SYS_ADMIN are needed", err)
	}
	return &Error{Op: op, Object: object, Err: err}
}

// markName names the file in memory that is open in a process while it takes a snapshot.
const markName = "holdfast-snapshot"

// makeMark opens the mark. Not to be executable is asked for, since Linux 6.3 to 6.5 refuse
// all else with vm.memfd_noexec=2; kernels before do not know the flag.
func makeMark() (int, error) {
	fd, err := unix.MemfdCreate(markName, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(markName, unix.MFD_CLOEXEC)
	}
	return fd, err
}

// ours reports whether a process takes a snapshot, or runs the same executable as we do.
// A snapshot holds and enters every namespace for a moment, which is no use of them:
// without this, one holdfast would take what another looks at for something in use. The
// other may be another build of it, as beside an agent that is just being upgraded.
//
// A snapshot has its mark before it holds anything and until after it holds nothing.
func (s *snapshot) ours(dir int) bool {
	if exe, err := cached(dir, "exe", 0); err == nil && exe == s.exe && s.exe.ino != 0 {
		return true
	}
	list, err := openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer unix.Close(list)
	err = numbers(list, make([]byte, 4<<10), true, func(fd int) error {
		var link [64]byte
		n, err := readlinkat(list, itoa(fd), link[:])
		if err == nil && string(link[:n]) == "/memfd:"+markName+" (deleted)" {
			return errOurs
		}
		return nil
	})
	return err == errOurs
}

func (s *snapshot) setHost(ino uint64) {
	s.mu.Lock()
	s.host = ino
	s.mu.Unlock()
}

func (s *snapshot) setGuarded(netDev uint64) {
	s.mu.Lock()
	s.guard = netDev
	s.mu.Unlock()
}

// pin opens a namespace unless it is held already. That what open opens is not there
// any more, or is another, is no error: the namespace may be met elsewhere, and if it
// is not, settled finds it missing.
func (s *snapshot) pin(ino uint64, open func() (int, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spaces[ino] != nil {
		return nil
	}
	fd, err := open()
	if gone(err) || err == errMoved {
		return nil
	}
	if err != nil {
		return err
	}
	if err := verify(fd, s.nsDev, ino); err != nil {
		unix.Close(fd)
		if err == errMoved {
			return nil
		}
		return err
	}
	s.spaces[ino] = &space{fd: fd}
	return nil
}

// take enumerates until nothing new is met.
func (s *snapshot) take(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return s.unsettled(err)
		}
		s.rounds++
		if err := s.enumerate(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return s.unsettled(err)
			}
			return err
		}
		missing, err := s.missing()
		if err != nil {
			return err
		}
		fresh := false
		for _, sp := range s.spaces {
			fresh = fresh || !sp.dumped
		}
		pause := 50 * time.Millisecond
		if s.rounds > 1 && !fresh && !missing {
			ending, err := s.stranger(ctx)
			if err != nil || !ending {
				return err
			}
			pause *= 10
		}
		if err := dumpAll(ctx, s.spaces); err != nil {
			return err
		}
		if s.rounds > 1 {
			// Something is being built or torn down: let it.
			select {
			case <-ctx.Done():
			case <-time.After(min(time.Millisecond<<min(s.rounds, 10), pause)):
			}
		}
	}
}

func (s *snapshot) unsettled(err error) error {
	return fmt.Errorf("the set of network namespaces did not settle in %d enumerations: %w", s.rounds, err)
}

// missing reports whether a namespace of the last enumeration is not held. One that
// was merely vanishing is not seen again; one that stays is an error in the end, unless
// nothing but the mounts of other user namespaces shows it (see foreign).
func (s *snapshot) missing() (bool, error) {
	found := false
	for ino, x := range s.last {
		if s.spaces[ino] != nil {
			continue
		}
		s.unseen[ino]++
		if s.unseen[ino] > 1 && x.procs == 0 && x.fdHolders == 0 {
			if where, others := s.where(ino); others {
				s.others[ino] = where
				continue
			}
		}
		found = true
		if s.unseen[ino] < hopeless {
			continue
		}
		where := "held by a process"
		if len(x.mounts) > 0 {
			if where, _ = s.where(ino); where == "" {
				where = fmt.Sprintf("mounted at %q", x.mounts[0])
			}
			switch {
			case s.isStuck(ino):
				where += ", where a file system does not answer"
			case s.uncoverErr != nil:
				where += fmt.Sprintf(", perhaps below another mount; not uncovered: %q", s.uncoverErr.Error())
			default:
				where += ", perhaps below another mount"
			}
		}
		return true, &Error{Op: "enter", Object: fmt.Sprintf("network namespace %d", ino),
			Err: fmt.Errorf("no path leads to it (%s)", where)}
	}
	maps.DeleteFunc(s.unseen, func(ino uint64, _ int) bool { return s.last[ino] == nil })
	return found, nil
}

// enumerate walks the processes, then reads the mounts. In this order a namespace
// that goes from a process to a mount meanwhile is met in one of the two.
func (s *snapshot) enumerate(ctx context.Context) error {
	if _, err := unix.Seek(s.proc, 0, unix.SEEK_SET); err != nil {
		return &Error{Op: "list", Object: fmt.Sprintf("%q", s.path), Err: err}
	}
	var pids []int
	err := numbers(s.proc, s.dents, false, func(pid int) error {
		pids = append(pids, pid)
		return nil
	})
	if err != nil {
		return &Error{Op: "list", Object: fmt.Sprintf("%q", s.path), Err: err}
	}
	s.procs = len(pids)
	walkers := make([]*walker, workers)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range walkers {
		walkers[i] = newWalker(s)
		wg.Go(func() {
			defer s.at[i].Store(0)
			for k := i; k < len(pids); k += workers {
				if errs[i] = ctx.Err(); errs[i] != nil {
					return
				}
				s.at[i].Store(int64(pids[k]))
				if errs[i] = walkers[i].process(pids[k]); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // one is enough, and every one says the same
		}
	}
	return s.merge(ctx, walkers)
}

func (s *snapshot) merge(ctx context.Context, walkers []*walker) error {
	seen := map[uint64]*sighting{}
	pids := map[mountKey][]int{}
	exempt := false
	for _, w := range walkers {
		for ino, x := range w.seen {
			if seen[ino] == nil {
				seen[ino] = &sighting{}
			}
			seen[ino].add(x)
		}
		for k, p := range w.keys {
			pids[k] = append(pids[k], p...)
		}
		for k, pid := range w.hits {
			if p, ok := s.hits[k]; !ok || pid < p {
				s.hits[k] = pid
			}
		}
		for _, sh := range w.shims {
			s.shims[sh.PID] = sh
		}
		for _, p := range w.read {
			s.known[p] = true
		}
		for _, pid := range w.deaf {
			s.deaf[pid] = true
		}
		exempt = exempt || w.exempt
	}
	s.exempt = exempt
	if len(s.hits) > maxHits {
		return fmt.Errorf("more than %d container IDs in the processes", maxHits)
	}
	for _, p := range pids {
		slices.Sort(p)
	}
	if err := s.readTables(pids); err != nil {
		return err
	}
	keys := mountKeys(pids)
	s.keys, s.keyPIDs = keys, pids
	s.initSeen = len(keys) > 0 && pids[keys[0]][0] == 1
	for _, key := range keys {
		for _, m := range s.tables[key].nets {
			x := seen[m.ino]
			if x == nil {
				x = &sighting{}
				seen[m.ino] = x
			}
			if len(x.mounts) < maxShownMounts && !slices.Contains(x.mounts, m.path) {
				x.mounts = append(x.mounts, m.path)
			}
		}
	}
	if err := s.pinByMounts(keys, pids); err != nil {
		return err
	}
	if err := s.uncover(ctx, keys, pids); err != nil {
		return err
	}
	s.before, s.last = s.last, seen
	if exempt {
		if err := s.placeInit(); err != nil {
			return err
		}
	}
	s.forget()
	return nil
}

// placeInit finds out in which namespace a guarded PID 1 is: in that of a process
// whose net/dev is the same file. Each namespace has one of its own.
func (s *snapshot) placeInit() error {
	var link [64]byte
	for ino, x := range s.last {
		for _, pid := range x.pids {
			var st unix.Stat_t
			if err := unix.Fstatat(s.proc, itoa(pid)+"/net/dev", &st, 0); err != nil || st.Ino != s.guard {
				continue
			}
			// The process may have moved since it was seen there.
			n, err := readlinkat(s.proc, itoa(pid)+"/ns/net", link[:])
			if now, ok := nsLink(link[:max(n, 0)], "net"); err != nil || !ok || now != ino {
				continue
			}
			s.host = ino
			x.procs++
			x.pids = append([]int{1}, x.pids...)
			return nil
		}
	}
	return s.failed("read", 1, "ns/net", unix.EACCES)
}

// netns returns the namespaces of the last two enumerations.
func (s *snapshot) netns() []claim.Netns {
	out := make([]claim.Netns, 0, len(s.spaces))
	for ino, sp := range s.spaces {
		x, y := s.last[ino], s.before[ino]
		if x == nil {
			x, y = y, nil
		}
		if x == nil {
			continue // met in an enumeration that failed
		}
		n := claim.Netns{
			ID: ino, Host: ino == s.host, Mounts: x.mounts, Procs: x.procs, PIDs: x.pids,
			FDHolders: x.fdHolders, Addrs: sp.addrs,
		}
		if y != nil {
			n.Procs, n.FDHolders = max(n.Procs, y.procs), max(n.FDHolders, y.fdHolders)
			if len(n.PIDs) == 0 {
				n.PIDs = y.pids
			}
		}
		n.PIDs = slices.Clone(n.PIDs)
		slices.Sort(n.PIDs)
		n.PIDs = slices.Compact(n.PIDs)
		n.PIDs = n.PIDs[:min(len(n.PIDs), maxPIDs)]
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b claim.Netns) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

// processes returns the IDs of every enumeration: more of them only keep more.
func (s *snapshot) processes() *claim.ProcessFacts {
	facts := &claim.ProcessFacts{Hits: make([]claim.ProcessHit, 0, len(s.hits))}
	for k, pid := range s.hits {
		facts.Hits = append(facts.Hits, claim.ProcessHit{ID: k.id, PID: pid, Netns: k.netns, Via: k.via})
	}
	slices.SortFunc(facts.Hits, compareHits)
	for _, pid := range slices.Sorted(maps.Keys(s.shims)) {
		facts.Shims = append(facts.Shims, s.shims[pid])
	}
	return facts
}
