package cnicache

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// Source is the name of this inventory in snapshots.
const Source = "cnicache"

// DefaultDir is libcni's cache directory where a runtime names none.
const DefaultDir = "/var/lib/cni"

// maxEntries bounds the names read of one directory. A directory that holds more
// is not listed whole, and says so.
const maxEntries = 1 << 20

// Config says where the caches are.
type Config struct {
	// Dirs are libcni cache directories: parents of "results". Empty means
	// DefaultDir.
	Dirs []string
	// Clock reads the node's clocks. Required.
	Clock func() claim.Instant
	// FS is where they lie; the kernel's when nil.
	FS fsys.FS
	// Serial makes List work without goroutines, so that its file calls come in one
	// order: for a simulation that must be repeatable.
	Serial bool
}

// Inventory lists libcni caches. It holds no state between calls; safe for
// concurrent use.
type Inventory struct {
	dirs   []string // cleaned cache directories
	clock  func() claim.Instant
	fs     fsys.FS
	serial bool
}

// New returns the inventory of the caches in cfg.
func New(cfg Config) *Inventory {
	dirs := cfg.Dirs
	if len(dirs) == 0 {
		dirs = []string{DefaultDir}
	}
	v := &Inventory{clock: cfg.Clock, fs: fsys.Or(cfg.FS), serial: cfg.Serial}
	for _, d := range dirs {
		if d = filepath.Clean(d); !slices.Contains(v.dirs, d) {
			v.dirs = append(v.dirs, d)
		}
	}
	return v
}

// Name returns "cnicache".
func (v *Inventory) Name() string { return Source }

// List reads every cache. Each file gives one Resource, sorted by path. A file
// that cannot be understood is a Resource with a Problem; see parse for what its
// Owner is worth then. A directory that is missing holds nothing; one that cannot
// be read whole gives a Note and a Store with a Problem, and of it nothing may be
// concluded. Every directory that was looked at is a Store, without a Network: what was
// remembered of it and is not listed is gone.
//
// Store of a Resource is the "results" directory. Two configured directories that
// are one directory under two names are listed once, under the first.
//
// Not covered: libcni writes entries in place, so one that is written right now
// may be seen empty or cut off. It is then a Problem of this listing only.
func (v *Inventory) List(ctx context.Context) claim.Snapshot {
	snap := claim.Snapshot{Source: Source}
	l := lister{fs: v.fs, seen: map[fsys.Key]bool{}, readers: make([]reader, workers)}
	if v.serial {
		l.readers = l.readers[:1]
	}
	for i := range l.readers {
		l.readers[i].confs = confMemo{}
	}
	for _, d := range v.dirs {
		results := filepath.Join(d, "results")
		st := claim.Store{Dir: results, DataDir: d, Writable: true}
		if err := l.dir(ctx, results, &snap); err != nil {
			st.Problem, st.Writable = clean(err), false
			snap.Notes = append(snap.Notes, claim.Note{Path: results, Text: "cannot be listed: " + st.Problem})
		}
		snap.Stores = append(snap.Stores, st)
	}
	slices.SortFunc(snap.Resources, func(a, b claim.Resource) int { return strings.Compare(a.Path, b.Path) })
	slices.SortStableFunc(snap.Notes, func(a, b claim.Note) int { return strings.Compare(a.Path, b.Path) })
	snap.Listed = v.clock()
	return snap
}

// workers is how many goroutines read entries.
const workers = 2

// lister carries what one List shares between its directories.
type lister struct {
	fs      fsys.FS
	seen    map[fsys.Key]bool
	readers []reader
}

// reader reads some of the entries of a directory.
type reader struct {
	confs     confMemo
	buf       []byte
	resources []claim.Resource
	notes     []claim.Note
	err       error
}

func (l *lister) dir(ctx context.Context, results string, snap *claim.Snapshot) error {
	dir, err := openDir(l.fs, results)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	st, err := l.fs.Fstat(dir.fd)
	if err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if l.seen[st.Key()] {
		return nil
	}
	l.seen[st.Key()] = true
	names, err := entryNames(ctx, dir)
	var wg sync.WaitGroup
	for i := range l.readers {
		read := func() {
			r := &l.readers[i]
			for k := i; k < len(names) && r.err == nil; k += len(l.readers) {
				if r.err = ctx.Err(); r.err == nil {
					r.entry(dir, results, names[k])
				}
			}
		}
		if len(l.readers) == 1 {
			read()
		} else {
			wg.Go(read)
		}
	}
	wg.Wait()
	for i := range l.readers {
		r := &l.readers[i]
		snap.Resources, snap.Notes = append(snap.Resources, r.resources...), append(snap.Notes, r.notes...)
		err = cmp.Or(err, r.err)
		r.resources, r.notes, r.err = nil, nil, nil
	}
	return err
}

// entryNames reads the names of a directory. Beside an error it returns those that were
// read before.
func entryNames(ctx context.Context, dir directory) (names []string, err error) {
	var cut error
	err = fsys.ReadDir(dir.fs, dir.fd, func(name []byte, _ byte) bool {
		switch {
		case len(names) == maxEntries:
			cut = errors.New("too many entries")
		case len(names)%1024 == 0:
			cut = ctx.Err()
		}
		if cut == nil {
			names = append(names, string(name))
		}
		return cut == nil
	})
	return names, cmp.Or(cut, os.NewSyscallError("getdents", err))
}

func (e *reader) entry(dir directory, results, name string) {
	path := filepath.Join(results, name)
	if strings.HasPrefix(name, tempPrefix) {
		e.notes = append(e.notes, claim.Note{Path: path, Text: "left by an interrupted undo of ours; may be removed"})
		return
	}
	f, err := readAt(dir, name, &e.buf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // removed since the names were read
	case errors.Is(err, errNotRegular):
		e.notes = append(e.notes, claim.Note{Path: path, Text: errNotRegular.Error()})
		return
	}
	var r claim.Resource
	if err != nil {
		r = broken(name, clean(err))
	} else {
		r = parse(name, f.content, e.confs)
	}
	r.Kind, r.Store, r.Path, r.Inc = claim.KindCache, results, path, f.inc
	e.resources = append(e.resources, r)
}
