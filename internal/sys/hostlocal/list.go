package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	maxNotes = 64 // per store
	// parallelFrom is where a second goroutine pays.
	parallelFrom = 512
	ctxEvery     = 256
)

// Config says where to look.
type Config struct {
	// ConfDirs are CNI configuration directories.
	ConfDirs []string
	// DataDirs are the parents of network directories, host-local's dataDir. Those
	// that configurations name are looked at besides.
	DataDirs []string
	// WellKnown adds the places that distributions are known to use, among them
	// DefaultConfDir and DefaultDataDir.
	WellKnown bool
	// Clock reads the node's clocks. Required.
	Clock func() claim.Instant
}

// Inventory lists reservations. Safe for concurrent use.
type Inventory struct {
	cfg    Config
	places []place
}

// New returns an inventory. It does no I/O.
func New(cfg Config) *Inventory {
	inv := &Inventory{cfg: cfg}
	if cfg.WellKnown {
		inv.places = wellKnown()
	}
	return inv
}

// Name returns the inventory's name in a snapshot.
func (inv *Inventory) Name() string { return "hostlocal" }

// List reads every store. It never fails: what could not be read is a Problem of its
// store or resource, or a note. When ctx ends early, the stores that were not read
// whole have a Problem.
//
// Resources are ordered by store, address and path. A network whose directory does
// not exist yet is a store without resources.
//
// Every data directory that was read whole is a store too, without a Network: what is
// not listed below it is not there.
func (inv *Inventory) List(ctx context.Context) claim.Snapshot { return inv.ListAlso(ctx, nil) }

// ListAlso is List with further data directories, such as those that only the libcni
// cache still names.
func (inv *Inventory) ListAlso(ctx context.Context, dataDirs []string) claim.Snapshot {
	also := slices.Clone(inv.cfg.DataDirs)
	for _, d := range dataDirs {
		if filepath.IsAbs(d) && isPlain(d) && !slices.Contains(also, d) {
			also = append(also, d)
		}
	}
	d := discover(inv.cfg.ConfDirs, also, inv.places)
	slices.SortFunc(d.stores, func(a, b *candidate) int { return strings.Compare(a.Dir, b.Dir) })
	snap := claim.Snapshot{Source: inv.Name(), Notes: d.notes}
	for _, s := range d.stores {
		l := listing{store: &s.Store, named: s.named}
		if s.Problem == "" && !l.read(ctx, &snap.Resources) {
			continue
		}
		snap.Notes = append(snap.Notes, l.notes...)
		snap.Stores = append(snap.Stores, s.Store)
	}
	for _, dir := range d.whole {
		snap.Stores = append(snap.Stores, claim.Store{Dir: dir, DataDir: dir, Writable: true})
	}
	snap.Listed = inv.cfg.Clock()
	return snap
}

// entry is one reservation to be opened.
type entry struct {
	addr netip.Addr
	path string // of the store's arena
	mode uint32 // file type; 0 for unknown
}

// listing is the reading of one store.
type listing struct {
	store *claim.Store
	named bool
	notes []claim.Note
	more  int // notes left out
	own   bool
}

func (l *listing) note(name, text string) {
	if len(l.notes) >= maxNotes {
		l.more++
		return
	}
	l.notes = append(l.notes, claim.Note{Path: filepath.Join(l.store.Dir, printable(name)), Text: text})
}

// read appends the store's resources to out. It returns false when this is no store:
// gone, or a directory that no configuration names and in which nothing is
// host-local's.
func (l *listing) read(ctx context.Context, out *[]claim.Resource) bool {
	fd, err := openDir(l.store.Dir, !l.named)
	if err != nil {
		if err == unix.ENOENT || (!l.named && isNotThere(err)) {
			l.store.Writable = parentWritable(l.store.DataDir)
			return l.named
		}
		l.store.Problem = fmt.Sprintf("cannot be opened: %v", err)
		return true
	}
	defer unix.Close(fd)
	l.store.Writable = writable(fd)

	entries, err := l.names(fd)
	if err != nil {
		l.store.Problem = fmt.Sprintf("cannot be listed whole: %v", err)
	} else if !l.named && !l.own && len(entries) == 0 {
		return false
	}
	slices.SortFunc(entries, func(a, b entry) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return strings.Compare(a.path, b.path)
	})

	start := len(*out)
	*out = slices.Grow(*out, len(entries))[:start+len(entries)]
	res := (*out)[start:]
	err = l.open(ctx, fd, entries, res)
	if err != nil && l.store.Problem == "" {
		l.store.Problem = fmt.Sprintf("listing was cut off: %v", err)
	}
	// Files that vanished since readdir are simply gone.
	res = slices.DeleteFunc(res, func(r claim.Resource) bool { return r.Kind == "" })
	if l.store.Problem != "" {
		for i := range res {
			res[i].Problem = "the directory " + l.store.Problem
		}
	}
	*out = (*out)[:start+len(res)]
	if l.more > 0 {
		l.notes = append(l.notes, claim.Note{Path: l.store.Dir, Text: fmt.Sprintf("%d more entries that are not host-local's", l.more)})
	}
	return true
}

// names reads the directory. All paths of a store lie in one string: tens of
// thousands of small allocations less.
func (l *listing) names(fd int) ([]entry, error) {
	var arena strings.Builder
	type span struct {
		addr     netip.Addr
		from, to int
		mode     uint32
	}
	var spans []span
	prefix := l.store.Dir + "/"
	err := readDir(fd, func(name []byte, typ byte) {
		addr, kind := parseName(string(name))
		mode := modeOfType(typ)
		switch kind {
		case nameOwn:
			l.own = true
			if mode != 0 && mode != unix.S_IFREG {
				l.note(string(name), fmt.Sprintf("is %s; host-local keeps a regular file there", typeWord(mode)))
			}
		case nameOther:
			if mode == 0 {
				if st, ok, err := lstatAt(fd, string(name)); err == nil && ok {
					mode = st.Mode
				}
			}
			l.note(string(name), fmt.Sprintf("is %s that is not host-local's; not followed, not touched", typeWord(mode)))
		case nameReservation:
			from := arena.Len()
			arena.WriteString(prefix)
			arena.Write(name)
			spans = append(spans, span{addr, from, arena.Len(), mode})
		}
	})
	all := arena.String()
	entries := make([]entry, len(spans))
	for i, s := range spans {
		entries[i] = entry{s.addr, all[s.from:s.to], s.mode}
	}
	return entries, err
}

// open reads the entries into res, which has the same length. A second goroutine
// takes half of many: opening waits for the file system, not for the processor.
func (l *listing) open(ctx context.Context, fd int, entries []entry, res []claim.Resource) error {
	if len(entries) < parallelFrom {
		return l.openSome(ctx, fd, entries, res)
	}
	half := len(entries) / 2
	var wg sync.WaitGroup
	var err2 error
	wg.Go(func() { err2 = l.openSome(ctx, fd, entries[half:], res[half:]) })
	err1 := l.openSome(ctx, fd, entries[:half], res[:half])
	wg.Wait()
	return errors.Join(err1, err2)
}

// openSome only reads l; two of them run at once.
func (l *listing) openSome(ctx context.Context, fd int, entries []entry, res []claim.Resource) error {
	buf := make([]byte, maxContent+1)
	var owners ownerParser
	var cut error
	prefix := len(l.store.Dir) + 1
	for i := range entries {
		if i%ctxEvery == 0 && cut == nil {
			cut = ctx.Err()
		}
		e, r := &entries[i], &res[i]
		*r = claim.Resource{
			Kind: claim.KindReservation, Store: l.store.Dir, Network: l.store.Network, Addr: e.addr, Path: e.path,
		}
		if cut != nil {
			r.Problem = "not read: " + cut.Error()
			continue
		}
		if e.mode != 0 && e.mode != unix.S_IFREG {
			r.Problem = (&notRegularError{e.mode}).Error()
			continue
		}
		content, inc, err := l.readEntry(fd, e, prefix, buf)
		switch {
		case err == nil:
			r.Owner, r.Inc = owners.parse(content), inc
		case err == unix.ENOENT:
			*r = claim.Resource{} // gone
		default:
			r.Inc, r.Problem = inc, err.Error()
		}
	}
	return cut
}

func (l *listing) readEntry(fd int, e *entry, prefix int, buf []byte) ([]byte, claim.Incarnation, error) {
	name := e.path[prefix:]
	if e.mode == 0 {
		// Without d_type, look before opening: opening a device may do something.
		st, ok, err := lstatAt(fd, name)
		if err != nil {
			return nil, claim.Incarnation{}, err
		}
		if !ok {
			return nil, claim.Incarnation{}, unix.ENOENT
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, incarnationOf(&st), &notRegularError{st.Mode}
		}
	}
	return readReservation(fd, name, buf)
}

// parentWritable answers for a network directory that does not exist yet: whether it
// could be made.
func parentWritable(dir string) bool {
	for {
		fd, err := openDir(dir, false)
		if err == nil {
			defer unix.Close(fd)
			return writable(fd)
		}
		if !errors.Is(err, os.ErrNotExist) || dir == "/" || dir == "." {
			return false
		}
		dir = filepath.Dir(dir)
	}
}
