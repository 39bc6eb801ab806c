package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

const (
	maxNotes = 64 // per store
	// parallelFrom is where a second goroutine pays.
	parallelFrom = 512
	ctxEvery     = 256
	// maxOpenStores is how many directories are open at a time.
	maxOpenStores = 64
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
	// FS is where all of these lie; the kernel's when nil.
	FS fsys.FS
	// Serial makes List work without goroutines, so that its file calls come in one
	// order: for a simulation that must be repeatable.
	Serial bool
	// Keep remembers the last listing, so that the next reads only what changed: for who lists
	// again and again. It costs the memory of one snapshot.
	Keep bool
}

// Inventory lists reservations. Safe for concurrent use.
type Inventory struct {
	cfg    Config
	places []place
	kept   *kept // nil without Keep
}

// New returns an inventory. It does no I/O.
func New(cfg Config) *Inventory {
	inv := &Inventory{cfg: cfg}
	if cfg.Keep {
		inv.kept = &kept{}
	}
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
	fs := files{fsys.Or(inv.cfg.FS), inv.cfg.Serial}
	d := discover(fs, inv.cfg.ConfDirs, also, inv.places)
	slices.SortFunc(d.stores, func(a, b *candidate) int { return strings.Compare(a.Dir, b.Dir) })
	snap := claim.Snapshot{Source: inv.Name(), Notes: d.notes}
	keep := map[string]*keptStore{}
	for batch := range slices.Chunk(d.stores, maxOpenStores) {
		inv.batchOf(ctx, fs, batch, &snap, keep)
	}
	inv.kept.replace(keep)
	for _, dir := range d.whole {
		snap.Stores = append(snap.Stores, claim.Store{Dir: dir, DataDir: dir, Writable: true})
	}
	snap.Listed = inv.cfg.Clock()
	return snap
}

// batchOf reads the names of all its stores first: then it is known how many resources
// there are, and they lie in one piece that never had to grow.
func (inv *Inventory) batchOf(ctx context.Context, fs files, stores []*candidate, snap *claim.Snapshot, keep map[string]*keptStore) {
	var list []*listing
	total := 0
	for _, s := range stores {
		l := &listing{fs: fs, store: &s.Store, named: s.named, fd: -1, at: realtime()}
		if s.Problem == "" && !l.begin() {
			continue
		}
		defer l.close()
		list = append(list, l)
		total += len(l.entries)
	}
	snap.Resources = slices.Grow(snap.Resources, total)
	for _, l := range list {
		var key fsys.Key
		sure := inv.kept != nil && l.fd >= 0 && l.at > 0
		if sure {
			var err error
			key, err = l.fs.fdKey(l.fd)
			sure = err == nil
		}
		if sure {
			l.known = inv.kept.of(l.store.Dir, key, l.stamped)
		}
		start := len(snap.Resources)
		snap.Resources = l.read(ctx, snap.Resources)
		if sure && l.store.Problem == "" {
			keep[l.store.Dir] = &keptStore{key, l.stamped, l.at, snap.Resources[start:len(snap.Resources):len(snap.Resources)]}
		}
		snap.Notes = append(snap.Notes, l.notes...)
		snap.Stores = append(snap.Stores, *l.store)
	}
}

// entry is one reservation to be opened.
type entry struct {
	addr netip.Addr
	path string // of the store's arena
	mode uint32 // file type; 0 for unknown
}

// listing is the reading of one store.
type listing struct {
	fs      files
	store   *claim.Store
	named   bool
	fd      int // of the directory, -1 when it could not be opened
	entries []entry
	notes   []claim.Note
	more    int // notes left out
	own     bool
	stamped bool // our own IPAM has worked here
	at      int64
	known   *keptStore // of the last listing, nil if there is none
}

func (l *listing) close() {
	if l.fd >= 0 {
		l.fs.Close(l.fd)
	}
}

func (l *listing) note(name, text string) {
	if len(l.notes) >= maxNotes {
		l.more++
		return
	}
	l.notes = append(l.notes, claim.Note{Path: filepath.Join(l.store.Dir, printable(name)), Text: text})
}

// begin opens the store and reads its names. It returns false when this is no store:
// gone, or a directory that no configuration names and in which nothing is
// host-local's.
func (l *listing) begin() bool {
	fd, err := l.fs.openDir(l.store.Dir, !l.named)
	if err != nil {
		if err == unix.ENOENT || (!l.named && isNotThere(err)) {
			l.store.Writable = l.fs.parentWritable(l.store.DataDir)
			return l.named
		}
		l.store.Problem = fmt.Sprintf("cannot be opened: %v", err)
		return true
	}
	l.fd = fd
	l.store.Writable = l.fs.writable(fd)
	if l.entries, err = l.names(); err != nil {
		l.store.Problem = fmt.Sprintf("cannot be listed whole: %v", err)
	} else if !l.named && !l.own && len(l.entries) == 0 {
		l.close()
		return false
	}
	slices.SortFunc(l.entries, func(a, b entry) int { return compareEntries(a.addr, a.path, &b) })
	return true
}

// compareEntries is the order of a store's resources.
func compareEntries(addr netip.Addr, path string, e *entry) int {
	if c := addr.Compare(e.addr); c != 0 {
		return c
	}
	return strings.Compare(path, e.path)
}

// read appends the store's resources to out.
func (l *listing) read(ctx context.Context, out []claim.Resource) []claim.Resource {
	if l.fd < 0 {
		return out
	}
	start := len(out)
	out = slices.Grow(out, len(l.entries))[:start+len(l.entries)]
	res := out[start:]
	err := l.open(ctx, l.fd, l.entries, res)
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
	if l.more > 0 {
		l.notes = append(l.notes, claim.Note{Path: l.store.Dir, Text: fmt.Sprintf("%d more entries that are not host-local's", l.more)})
	}
	return out[:start+len(res)]
}

// names reads the directory. The names lie in one string and so do the paths: tens of
// thousands of small allocations less.
func (l *listing) names() ([]entry, error) {
	type end struct {
		at  int // of the name in the arena
		typ byte
	}
	var arena strings.Builder
	var ends []end
	err := l.fs.readDir(l.fd, func(name []byte, typ byte) {
		arena.Write(name)
		ends = append(ends, end{arena.Len(), typ})
	})
	names := arena.String()
	prefix := l.store.Dir + "/"
	var paths strings.Builder
	paths.Grow(len(names) + len(ends)*len(prefix))
	entries := make([]entry, 0, len(ends))
	from := 0
	for _, e := range ends {
		name := names[from:e.at]
		from = e.at
		addr, kind := parseName(name)
		mode := modeOfType(e.typ)
		switch kind {
		case nameOwn:
			l.own = true
			if !l.stamped && strings.HasPrefix(name, lastPrefix) {
				l.stamped = l.fs.hasStamp(l.fd, name)
			}
			if mode != 0 && mode != unix.S_IFREG {
				l.note(name, fmt.Sprintf("is %s; host-local keeps a regular file there", typeWord(mode)))
			}
		case nameOther:
			if mode == 0 {
				if st, ok, err := l.fs.lstatAt(l.fd, name); err == nil && ok {
					mode = st.Mode
				}
			}
			l.note(name, fmt.Sprintf("is %s that is not host-local's; not followed, not touched", typeWord(mode)))
		case nameReservation:
			start := paths.Len()
			paths.WriteString(prefix)
			paths.WriteString(name)
			// Nothing is written over what is there: the path stays as it is.
			entries = append(entries, entry{addr, paths.String()[start:], mode})
		}
	}
	return entries, err
}

// open reads the entries into res, which has the same length. A second goroutine
// takes half of many: opening waits for the file system, not for the processor.
func (l *listing) open(ctx context.Context, fd int, entries []entry, res []claim.Resource) error {
	if l.fs.serial || len(entries) < parallelFrom {
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
	var before cursor
	if len(entries) > 0 {
		before = l.known.cursor(&entries[0])
	}
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
		if same := before.find(l.fs, fd, e, e.path[prefix:]); same != nil {
			r.Owner, r.Inc, r.Stamp = same.Owner, same.Inc, same.Stamp
			continue
		}
		var stamp **claim.Stamp
		if l.stamped {
			stamp = &r.Stamp
		}
		content, inc, err := l.readEntry(fd, e, prefix, buf, stamp)
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

func (l *listing) readEntry(fd int, e *entry, prefix int, buf []byte, stamp **claim.Stamp) ([]byte, claim.Incarnation, error) {
	name := e.path[prefix:]
	if e.mode == 0 {
		// Without d_type, look before opening: opening a device may do something.
		st, ok, err := l.fs.lstatAt(fd, name)
		if err != nil {
			return nil, claim.Incarnation{}, err
		}
		if !ok {
			return nil, claim.Incarnation{}, unix.ENOENT
		}
		if !st.Regular() {
			return nil, incarnationOf(&st), &notRegularError{st.Mode}
		}
	}
	return l.fs.readStamped(fd, name, buf, stamp)
}

// parentWritable answers for a network directory that does not exist yet: whether it
// could be made.
func (f files) parentWritable(dir string) bool {
	for {
		fd, err := f.openDir(dir, false)
		if err == nil {
			defer f.Close(fd)
			return f.writable(fd)
		}
		if err != unix.ENOENT || dir == "/" || dir == "." {
			return false
		}
		dir = filepath.Dir(dir)
	}
}
