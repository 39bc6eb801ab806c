package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// bench is a store with two reservations, a quarantine beside it, and its moves.
type bench struct {
	store string
	q     *Quarantine
	moves map[string]Move
}

func newBench(t *testing.T, dir string) bench {
	t.Helper()
	b := bench{store: makeStore(t, dir), q: &Quarantine{Dir: filepath.Join(dir, "q")}}
	put(t, b.path("10.0.0.2"), hexID64+"\r\neth0")
	put(t, b.path("10.0.0.3"), hexID64)
	b.moves = judged(t, b.store)
	if len(b.moves) != 2 {
		t.Fatalf("moves: %v", b.moves)
	}
	return b
}

// separate puts the quarantine on another file system, or on another mount of the same
// one: there st_dev agrees and only the rename says EXDEV.
func (b bench) separate(t *testing.T, where string) {
	t.Helper()
	switch where {
	case "EXDEV":
		mount(t, "tmpfs", b.q.Dir, 0, "size=1m")
	case "bind":
		mount(t, t.TempDir(), b.q.Dir, unix.MS_BIND, "")
	}
}

func (b bench) path(name string) string { return filepath.Join(b.store, name) }

func (b bench) inQ(m Move) string { return filepath.Join(b.q.Dir, m.ReleaseID) }

// one releases one reservation and returns its outcome.
func (b bench) one(t *testing.T, m Move) (Outcome, error) {
	t.Helper()
	out, err := b.q.Release(t.Context(), b.store, []Move{m}, ReleaseOptions{})
	if len(out) != 1 || out[0].ReleaseID != m.ReleaseID {
		t.Fatalf("outcomes %v", out)
	}
	return out[0], err
}

func (b bench) wantPlace(t *testing.T, m Move, origin, quarantined bool) {
	t.Helper()
	o, q, err := b.q.Place(m)
	if err != nil || o != origin || q != quarantined {
		t.Errorf("Place = %v, %v, %v; want %v, %v", o, q, err, origin, quarantined)
	}
}

func TestRelease(t *testing.T) {
	tests := []struct {
		name   string
		before func(t *testing.T, b bench, m *Move) // after the listing
		state  State
		stands bool // something lies at the path afterwards
	}{
		{"unchanged", func(*testing.T, bench, *Move) {}, Moved, false},
		{"content changed in place", func(t *testing.T, b bench, m *Move) { put(t, m.Path, "another") }, Changed, true},
		{"same content in another inode", func(t *testing.T, b bench, m *Move) {
			put(t, b.path("x"), hexID64+"\r\neth0")
			if err := os.Rename(b.path("x"), m.Path); err != nil {
				t.Fatal(err)
			}
		}, Changed, true},
		{"removed and made again with the same content (ext4 re-uses the inode)", func(t *testing.T, b bench, m *Move) {
			if err := os.Remove(m.Path); err != nil {
				t.Fatal(err)
			}
			put(t, m.Path, hexID64+"\r\neth0")
		}, Changed, true},
		{"touched only", func(t *testing.T, b bench, m *Move) {
			if err := os.Chmod(m.Path, 0o640); err != nil {
				t.Fatal(err)
			}
		}, Changed, true},
		{"truncated", func(t *testing.T, b bench, m *Move) {
			if err := os.Truncate(m.Path, 0); err != nil {
				t.Fatal(err)
			}
		}, Changed, true},
		{"gone", func(t *testing.T, b bench, m *Move) {
			if err := os.Remove(m.Path); err != nil {
				t.Fatal(err)
			}
		}, Gone, false},
		{"the whole directory gone", func(t *testing.T, b bench, m *Move) {
			if err := os.RemoveAll(b.store); err != nil {
				t.Fatal(err)
			}
		}, Gone, false},
		{"a FIFO now", func(t *testing.T, b bench, m *Move) {
			if err := errors.Join(os.Remove(m.Path), unix.Mkfifo(m.Path, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, Changed, true},
		{"a link now", func(t *testing.T, b bench, m *Move) {
			if err := errors.Join(os.Rename(m.Path, b.path("x")), os.Symlink("x", m.Path)); err != nil {
				t.Fatal(err)
			}
		}, Changed, true},
		{"too large now", func(t *testing.T, b bench, m *Move) {
			if err := os.Truncate(m.Path, 1<<30); err != nil {
				t.Fatal(err)
			}
		}, Changed, true},
		{"release ID in use", func(t *testing.T, b bench, m *Move) {
			if err := b.q.Check(b.store); err != nil {
				t.Fatal(err)
			}
			put(t, b.inQ(*m), "older")
		}, Failed, true},
		{"release ID that climbs", func(t *testing.T, b bench, m *Move) { m.ReleaseID = "../x" }, Failed, true},
		{"release ID of a temporary file", func(t *testing.T, b bench, m *Move) { m.ReleaseID = ".tmp-x" }, Failed, true},
		{"path of another store", func(t *testing.T, b bench, m *Move) { m.Path = filepath.Dir(b.store) + "/net2/10.0.0.2" }, Failed, true},
		{"path that climbs", func(t *testing.T, b bench, m *Move) { m.Path = b.store + "/../10.0.0.2" }, Failed, true},
		{"host-local's own file", func(t *testing.T, b bench, m *Move) { m.Path = b.path(lockName) }, Failed, true},
		{"nothing judged", func(t *testing.T, b bench, m *Move) { m.Inc.Sum = "" }, Changed, true},
	}
	for _, tt := range tests {
		for _, where := range []string{"same file system", "EXDEV", "bind"} {
			t.Run(where+"/"+tt.name, func(t *testing.T) {
				dir := t.TempDir()
				b := newBench(t, dir)
				b.separate(t, where)
				m := b.moves["10.0.0.2"]
				orig := m.Path
				tt.before(t, b, &m)
				var kept string
				if tt.name == "release ID in use" {
					kept = content(t, b.inQ(m))
				}
				out, err := b.one(t, m)
				if out.State != tt.state || err != nil || (out.Err != nil) != (tt.state == Failed) {
					t.Errorf("outcome %+v, %v; want %s", out, err, tt.state)
				}
				if exists(orig) != tt.stands {
					t.Errorf("stands: %v, want %v", exists(orig), tt.stands)
				}
				want := kept
				if tt.state == Moved {
					want = hexID64 + "\r\neth0"
					b.wantPlace(t, m, false, true)
				}
				if want == "" {
					if left, _ := os.ReadDir(b.q.Dir); len(left) != 0 {
						t.Errorf("quarantine holds %v", left)
					}
				} else if got := content(t, b.inQ(m)); got != want {
					t.Errorf("quarantine holds %q", got)
				}
				if got := exists(b.path("10.0.0.3")); got == (tt.name == "the whole directory gone") {
					t.Errorf("neighbour stands: %v", got)
				}
			})
		}
	}
}

// What a listing gave is released and comes back, on every file system. On overlay the
// file lies in a lower layer on another file system and its inode number changes.
func TestContract(t *testing.T) {
	prepare := func(t *testing.T, dir string) {
		put(t, filepath.Join(makeStore(t, dir), "10.0.0.2"), hexID64+"\r\neth0")
	}
	fileSystems(t, prepare, func(t *testing.T, dir string) {
		for _, qdir := range []string{filepath.Join(dir, "q"), filepath.Join(t.TempDir(), "q")} {
			b := bench{store: filepath.Join(dir, "networks", "net1"), q: &Quarantine{Dir: qdir}}
			m := judged(t, b.store)["10.0.0.2"]
			if m.Path == "" {
				t.Fatal("not listed")
			}
			var old unix.Stat_t
			if err := unix.Stat(m.Path, &old); err != nil {
				t.Fatal(err)
			}
			b.wantPlace(t, m, true, false)
			if out, err := b.one(t, m); out.State != Moved || out.Err != nil || err != nil {
				t.Fatalf("%+v, %v", out, err)
			}
			if exists(m.Path) {
				t.Error("still there")
			}
			b.wantPlace(t, m, false, true)
			if err := b.q.Restore(t.Context(), m.ReleaseID, m.Path); err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(m.Path, &st); err != nil {
				t.Fatal(err)
			}
			if content(t, m.Path) != hexID64+"\r\neth0" || st.Mode != old.Mode || st.Mtim != old.Mtim {
				t.Errorf("restored %+v, was %+v", st, old)
			}
			b.wantPlace(t, m, false, false)
			if err := b.q.Restore(t.Context(), m.ReleaseID, m.Path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("second Restore: %v", err)
			}
			left, err := os.ReadDir(b.store)
			if err != nil || len(left) != 2 {
				t.Errorf("store holds %v, %v", left, err)
			}
		}
	})
}

func TestQuarantineInside(t *testing.T) {
	b := newBench(t, t.TempDir())
	data := filepath.Dir(b.store)
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(data, alias); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{b.store, b.path("leaked"), data, data + "/a/b/c", alias + "/q"} {
		q := &Quarantine{Dir: dir}
		out, err := q.Release(t.Context(), b.store, []Move{b.moves["10.0.0.2"]}, ReleaseOptions{})
		if !errors.Is(err, errInside) || out[0].State != Failed {
			t.Errorf("%s: %v, %v", dir, out, err)
		}
		if err := q.Check(t.TempDir(), data); !errors.Is(err, errInside) {
			t.Errorf("Check of %s: %v", dir, err)
		}
	}
	if err := (&Quarantine{Dir: "relative"}).Check(); err == nil {
		t.Error("a relative quarantine passed")
	}
	if err := b.q.Check(data, b.store, "/", data+"/missing"); err != nil {
		t.Error(err)
	}
	if !exists(b.path("10.0.0.2")) {
		t.Error("gone")
	}
}

// L18: host-local swallows EROFS; we do not.
func TestReleaseReadOnly(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	for _, where := range []string{"bind", "tmpfs"} {
		t.Run(where, func(t *testing.T) {
			dir := t.TempDir()
			if where == "tmpfs" {
				mount(t, "tmpfs", dir+"/networks", 0, "size=1m")
			}
			b := newBench(t, dir)
			m := b.moves["10.0.0.2"]
			if where == "bind" {
				mount(t, b.store, b.store, unix.MS_BIND, "")
				if err := unix.Mount("", b.store, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
					t.Fatal(err)
				}
			} else if err := unix.Mount("tmpfs", dir+"/networks", "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			out, err := b.one(t, m)
			if out.State != Failed || !errors.Is(out.Err, unix.EROFS) || !errors.Is(err, unix.EROFS) {
				t.Errorf("%+v, %v", out, err)
			}
			b.wantPlace(t, m, true, false)
		})
	}
}

// An immutable directory gives EPERM on every removal, also to root.
func TestReleaseImmutable(t *testing.T) {
	const immutable = 0x10 // FS_IMMUTABLE_FL
	for _, where := range []string{"same file system", "EXDEV", "bind"} {
		t.Run(where, func(t *testing.T) {
			testenv.Need(t, testenv.Immutable)
			b := newBench(t, t.TempDir())
			b.separate(t, where)
			dir := openStore(t, b.store)
			flags, err := unix.IoctlGetInt(dir.fd, unix.FS_IOC_GETFLAGS)
			if err == nil {
				err = unix.IoctlSetPointerInt(dir.fd, unix.FS_IOC_SETFLAGS, flags|immutable)
			}
			if err != nil {
				t.Fatalf("make the directory immutable: %v", err)
			}
			out, rerr := b.one(t, b.moves["10.0.0.2"])
			if err := unix.IoctlSetPointerInt(dir.fd, unix.FS_IOC_SETFLAGS, flags); err != nil {
				t.Fatal(err)
			}
			if out.State != Failed || !errors.Is(out.Err, unix.EPERM) || rerr != nil {
				t.Errorf("%+v, %v", out, rerr)
			}
			if left, _ := os.ReadDir(b.q.Dir); len(left) != 0 {
				t.Errorf("quarantine holds %v", left)
			}
		})
	}
}

func TestReleaseLocked(t *testing.T) {
	for _, where := range []string{"same file system", "EXDEV", "bind"} {
		t.Run(where, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			b.separate(t, where)
			b.q.Wait = 50 * time.Millisecond
			pid, _ := lockElsewhere(t, b.path(lockName))
			moves := []Move{b.moves["10.0.0.2"], b.moves["10.0.0.3"]}
			out, err := b.q.Release(t.Context(), b.store, moves, ReleaseOptions{})
			var locked *ErrLocked
			if !errors.As(err, &locked) || len(locked.Holders) != 1 || locked.Holders[0] != pid {
				t.Fatalf("err = %v, want holder %d", err, pid)
			}
			for i, o := range out {
				if o.State != Failed || !errors.As(o.Err, &locked) {
					t.Errorf("%+v", o)
				}
				b.wantPlace(t, moves[i], true, false)
			}
			if left, _ := os.ReadDir(b.q.Dir); len(left) != 0 {
				t.Errorf("quarantine holds %v", left)
			}
		})
	}
}

func TestReleaseCancelled(t *testing.T) {
	b := newBench(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, err := b.q.Release(ctx, b.store, []Move{b.moves["10.0.0.2"]}, ReleaseOptions{})
	if !errors.Is(err, context.Canceled) || out[0].State != Failed || !exists(b.path("10.0.0.2")) {
		t.Errorf("%+v, %v", out, err)
	}
}

// The lock is given back in between, measured on the clock that was passed in.
func TestReleaseHolds(t *testing.T) {
	store := fill(t, 50)
	q := &Quarantine{Dir: filepath.Join(t.TempDir(), "q")}
	var moves []Move
	for _, m := range judged(t, store) {
		moves = append(moves, m)
	}
	var clock time.Duration
	var holds []time.Duration
	out, err := q.Release(t.Context(), store, moves, ReleaseOptions{
		MaxHold: 10 * time.Millisecond,
		Mono:    func() time.Duration { clock += time.Millisecond; return clock },
		Held:    func(d time.Duration) { holds = append(holds, d) },
	})
	if err != nil || len(out) != 50 {
		t.Fatal(err)
	}
	for _, o := range out {
		if o.State != Moved {
			t.Errorf("%+v", o)
		}
	}
	if len(holds) < 5 {
		t.Errorf("%d holds", len(holds))
	}
	for _, d := range holds {
		if d > 12*time.Millisecond {
			t.Errorf("held for %v", d)
		}
	}
}

// reserve does what host-local's ADD does to the store: lock, O_EXCL, write.
func reserve(store, addr, id string) (bool, error) {
	lock, err := os.OpenFile(filepath.Join(store, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return false, err
	}
	f, err := os.OpenFile(filepath.Join(store, addr), os.O_RDWR|os.O_EXCL|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(id + "\r\neth0")
	return true, errors.Join(err, f.Close())
}

// Allocators that take every address the moment it is free never lose one to us: what
// was released is the old incarnation only.
func TestReleaseBesideAllocators(t *testing.T) {
	const n = 200
	store := fill(t, n)
	q := &Quarantine{Dir: filepath.Join(t.TempDir(), "q")}
	var moves []Move
	for _, m := range judged(t, store) {
		moves = append(moves, m)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := reserve(store, fmt.Sprintf("10.0.0.%d", i%n), strings.Repeat("f", 64)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	// Twice over the same moves: the second time every name is another's (case F9).
	var states [2]map[State]int
	for round := range 2 {
		states[round] = make(map[State]int)
		out, err := q.Release(t.Context(), store, moves, ReleaseOptions{MaxHold: 100 * time.Microsecond})
		if err != nil {
			t.Error(err)
		}
		for _, o := range out {
			states[round][o.State]++
			if o.Err != nil {
				t.Error(o.Err)
			}
		}
	}
	close(stop)
	wg.Wait()
	if states[0][Moved] != n || states[1][Moved] != 0 {
		t.Errorf("states %v", states)
	}
	for i, m := range moves {
		if got := content(t, filepath.Join(q.Dir, m.ReleaseID)); strings.HasPrefix(got, "f") {
			t.Errorf("move %d took the allocator's reservation", i)
		}
	}
}

// Between our look and the rename somebody without the lock replaced the file.
func TestReleasePutsBackAnotherFile(t *testing.T) {
	b := newBench(t, t.TempDir())
	m := b.moves["10.0.0.2"]
	if err := b.q.Check(); err != nil {
		t.Fatal(err)
	}
	qfd, err := kernel.openDir(b.q.Dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(qfd)
	r := releaseRun{q: b.q, fs: kernel, store: openStore(t, b.store), qfd: qfd, moves: []Move{m}, out: make([]Outcome, 1), buf: make([]byte, maxContent+1)}
	// Another inode with the judged content: what overlay may make of a copied-up file.
	put(t, b.inQ(m), hexID64+"\r\neth0")
	if err := os.Rename(m.Path, b.path("x")); err != nil {
		t.Fatal(err)
	}
	if s, err := r.moved(0); s != Moved || err != nil {
		t.Errorf("%s, %v", s, err)
	}
	if err := os.Remove(b.inQ(m)); err != nil {
		t.Fatal(err)
	}
	put(t, b.path("x"), "another")
	if err := errors.Join(os.Rename(b.path("x"), m.Path), os.Rename(m.Path, b.inQ(m))); err != nil {
		t.Fatal(err)
	}
	if s, err := r.moved(0); s != Changed || err != nil {
		t.Errorf("%s, %v", s, err)
	}
	if content(t, m.Path) != "another" || exists(b.inQ(m)) {
		t.Error("not put back")
	}
	// And with the name taken meanwhile it cannot be: said, and kept.
	if err := os.Rename(m.Path, b.inQ(m)); err != nil {
		t.Fatal(err)
	}
	put(t, m.Path, "third")
	if s, err := r.moved(0); s != Failed || !errors.Is(err, errNotPutBack) || content(t, b.inQ(m)) != "another" || content(t, m.Path) != "third" {
		t.Errorf("%s, %v", s, err)
	}
}

// A file system that says success while the name stays.
func TestReleaseSeesLies(t *testing.T) {
	b := newBench(t, t.TempDir())
	m := b.moves["10.0.0.2"]
	if err := b.q.Check(); err != nil {
		t.Fatal(err)
	}
	qfd, err := kernel.openDir(b.q.Dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(qfd)
	r := releaseRun{q: b.q, fs: kernel, store: openStore(t, b.store), qfd: qfd, moves: []Move{m}, out: make([]Outcome, 1), buf: make([]byte, maxContent+1)}
	if s, err := r.moved(0); s != Failed || !errors.Is(err, errLost) {
		t.Errorf("%s, %v", s, err)
	}
	if err := os.Link(m.Path, b.inQ(m)); err != nil {
		t.Fatal(err)
	}
	if s, err := r.moved(0); s != Failed || !errors.Is(err, errStays) || !exists(m.Path) || exists(b.inQ(m)) {
		t.Errorf("%s, %v", s, err)
	}
}

// Without RENAME_NOREPLACE: link, then unlink.
func TestLinkMove(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a", "a")
	put(t, dir+"/b", "b")
	fd := openStore(t, dir).fd
	if err := kernel.linkMove(fd, "a", fd, "b"); err != unix.EEXIST || content(t, dir+"/a") != "a" || content(t, dir+"/b") != "b" {
		t.Errorf("err = %v", err)
	}
	if err := kernel.linkMove(fd, "a", fd, "c"); err != nil || exists(dir+"/a") || content(t, dir+"/c") != "a" {
		t.Errorf("err = %v", err)
	}
}
