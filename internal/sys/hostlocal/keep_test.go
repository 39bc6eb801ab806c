package hostlocal

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// reads counts the files of a store that are opened.
type reads struct {
	fsys.FS
	n atomic.Int64
}

func (r *reads) Openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	if _, kind := parseName(name); kind == nameReservation {
		r.n.Add(1)
	}
	return r.FS.Openat(dirfd, name, flags, mode)
}

// An inventory that keeps its last listing reads what changed and nothing else, and never says
// anything that one does not say which reads everything.
func TestKeepReadsWhatChanged(t *testing.T) {
	dir := t.TempDir()
	store := filepath.Join(dir, "pods")
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(i int, id string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(store, fmt.Sprintf("10.1.%d.%d", i/250, i%250)), []byte(id+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	id := func(i int) string { return fmt.Sprintf("%064x", i+1) }
	const n = 700 // enough for both goroutines
	for i := range n {
		write(i, id(i))
	}
	fs := &reads{FS: fsys.OS{}}
	clock := func() claim.Instant { return claim.Instant{} }
	inv := New(Config{DataDirs: []string{dir}, Clock: clock, FS: fs, Keep: true})
	plain := New(Config{DataDirs: []string{dir}, Clock: clock})
	list := func(what string, want int) {
		t.Helper()
		fs.n.Store(0)
		got := inv.List(context.Background())
		if d := cmp.Diff(plain.List(context.Background()), got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Errorf("%s: another word than one that reads everything:\n%s", what, d)
		}
		if want >= 0 && fs.n.Load() != int64(want) {
			t.Errorf("%s: %d files were read, want %d", what, fs.n.Load(), want)
		}
	}
	list("first", n)
	time.Sleep(150 * time.Millisecond)
	list("old enough now, and read once more", -1)
	list("unchanged", 0)
	write(5, id(5000)) // the same size, in the same inode
	if err := os.Remove(filepath.Join(store, "10.1.0.7")); err != nil {
		t.Fatal(err)
	}
	write(n, id(n))
	list("one rewritten, one gone, one new", 2)
	time.Sleep(150 * time.Millisecond)
	list("both again, if they were young", -1)
	list("unchanged again", 0)
	// Another file under the name, with the same size.
	write(9999, id(8))
	if err := os.Rename(filepath.Join(store, "10.1.39.249"), filepath.Join(store, "10.1.0.8")); err != nil {
		t.Fatal(err)
	}
	list("replaced by a rename", 1)
	write(6, id(6000))
	list("just written", -1)
	write(6, id(6001))
	list("written again at once", -1)
	// Times that are set change nothing: ctime moves.
	if err := os.Chtimes(filepath.Join(store, "10.1.0.9"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(150 * time.Millisecond)
	list("times were set", -1)
	list("nothing since", 0)
	// A directory that was made anew is another one.
	if err := os.Rename(store, store+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(store+".old", "10.1.0.9"), filepath.Join(store, "10.1.0.9")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(store + ".old"); err != nil {
		t.Fatal(err)
	}
	list("another directory", 1)
}
