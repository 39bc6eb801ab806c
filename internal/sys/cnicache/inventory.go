package cnicache

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"golang.org/x/sys/unix"
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
}

// Inventory lists libcni caches. It holds no state between calls; safe for
// concurrent use.
type Inventory struct {
	dirs  []string // cleaned cache directories
	clock func() claim.Instant
}

// New returns the inventory of the caches in cfg.
func New(cfg Config) *Inventory {
	dirs := cfg.Dirs
	if len(dirs) == 0 {
		dirs = []string{DefaultDir}
	}
	v := &Inventory{clock: cfg.Clock}
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
	l := lister{seen: map[fileID]bool{}, confs: confMemo{}}
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

type fileID struct{ dev, ino uint64 }

// lister carries what one List shares between its directories.
type lister struct {
	seen  map[fileID]bool
	confs confMemo
	buf   []byte
}

func (l *lister) dir(ctx context.Context, results string, snap *claim.Snapshot) error {
	dir, err := openDir(results)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	id := fileID{uint64(st.Dev), st.Ino}
	if l.seen[id] {
		return nil
	}
	l.seen[id] = true
	for n := 0; ; {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if n++; n > maxEntries {
				return errors.New("too many entries")
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			l.entry(dir, results, name, snap)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *lister) entry(dir *os.File, results, name string, snap *claim.Snapshot) {
	path := filepath.Join(results, name)
	if strings.HasPrefix(name, tempPrefix) {
		snap.Notes = append(snap.Notes, claim.Note{Path: path, Text: "left by an interrupted undo of ours; may be removed"})
		return
	}
	f, err := readAt(dir, name, &l.buf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // removed since the names were read
	case errors.Is(err, errNotRegular):
		snap.Notes = append(snap.Notes, claim.Note{Path: path, Text: errNotRegular.Error()})
		return
	}
	var r claim.Resource
	if err != nil {
		r = broken(name, clean(err))
	} else {
		r = parse(name, f.content, l.confs)
	}
	r.Kind, r.Store, r.Path, r.Inc = claim.KindCache, results, path, f.inc
	snap.Resources = append(snap.Resources, r)
}
