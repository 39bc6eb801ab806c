package state

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

var wall = time.Date(2026, 11, 30, 6, 21, 37, 0, time.UTC)

func boot(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

func openDir(t testing.TB, dir string, readOnly bool) *Dir {
	t.Helper()
	d, err := Open(dir, Options{ReadOnly: readOnly, Now: func() time.Time { return wall }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newDir(t testing.TB) *Dir { return openDir(t, filepath.Join(t.TempDir(), "state"), false) }

// memDir is a temporary directory in memory where there is one: thousands of fsyncs
// on a disk prove nothing more.
func memDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-state-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func hold(n int) Hold {
	return Hold{Store: "/var/lib/cni/networks/net", Addr: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}),
		Why: "mine\x00\x1b[31m", By: ByPerson, At: claim.Instant{Boot: boot(1), Mono: 5, Wall: wall}}
}

// fill writes each of the four files.
func fill(t testing.TB, d *Dir) {
	t.Helper()
	if err := d.SaveSightings(sightings(3)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 3; n++ {
		if _, err := d.ObserveBoot(boot(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.RememberRuntimes("unix:///run/containerd/containerd.sock"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddHolds(hold(1)); err != nil {
		t.Fatal(err)
	}
}

// everything reads each file and returns what it holds, and the errors.
func everything(d *Dir) (out []any, errs map[string]error) {
	errs = map[string]error{}
	s, err := d.LoadSightings()
	errs[sightingsFile] = err
	b, err := d.ObserveBoot(boot(2))
	errs[bootsFile] = err
	r, err := d.KnownRuntimes()
	errs[runtimesFile] = err
	h, err := d.Holds()
	errs[holdsFile] = err
	return []any{s, b, r, h}, errs
}

var cmpAddr = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()}

func TestEmptyAndMissing(t *testing.T) {
	for _, ro := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), "a", "state")
		d := openDir(t, dir, ro)
		got, errs := everything(d)
		for name, err := range errs {
			if err != nil {
				t.Errorf("read-only %v: %s: %v", ro, name, err)
			}
		}
		want := []any{verdict.Memory(nil), claim.BootFacts{Current: boot(2)}, []string(nil), []Hold(nil)}
		if diff := cmp.Diff(want, got, cmpAddr); diff != "" {
			t.Error(diff)
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) != ro {
			t.Errorf("read-only %v: %v", ro, err)
		}
	}
}

func TestReadOnlyReadsAndRefuses(t *testing.T) {
	d := newDir(t)
	fill(t, d)
	before, _ := os.ReadDir(d.Path())
	ro := openDir(t, d.Path(), true)
	want, _ := everything(d)
	got, errs := everything(ro)
	for name, err := range errs {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, got, cmpAddr); diff != "" {
		t.Error(diff)
	}
	// A boot that it sees replaced is past for it, but it writes nothing.
	if f, err := ro.ObserveBoot(boot(9)); err != nil || !cmp.Equal(f.Past, []string{boot(1), boot(2)}) {
		t.Errorf("%+v %v", f, err)
	}
	for name, err := range writes(ro) {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: %v", name, err)
		}
	}
	after, _ := os.ReadDir(d.Path())
	if len(before) != len(after) {
		t.Errorf("files before %v, after %v", before, after)
	}
}

// writes changes each file and returns the errors; boot(3) is new.
func writes(d *Dir) map[string]error {
	_, holds := d.AddHolds(hold(2))
	_, unhold := d.RemoveHolds(func(Hold) bool { return true })
	errs := map[string]error{
		"sightings": d.SaveSightings(nil), "remember": d.RememberRuntimes("unix:///x"), "forget": d.ForgetRuntime("unix:///x"),
		"hold": holds, "unhold": unhold,
	}
	if !d.opts.ReadOnly {
		_, errs["boots"] = d.ObserveBoot(boot(3))
	}
	return errs
}

// Each file is cut at every byte and has a bit flipped in every byte. What was
// remembered to allow a release is then gone, what was remembered to forbid one is an
// error; in no case is anything read that was not written (I5).
func TestDamage(t *testing.T) {
	d := openDir(t, filepath.Join(memDir(t), "state"), false)
	fill(t, d)
	want, _ := everything(d)
	for i, name := range []string{sightingsFile, bootsFile, runtimesFile, holdsFile} {
		path := filepath.Join(d.Path(), name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var bads [][]byte
		for n := range good {
			flipped := bytes.Clone(good)
			flipped[n] ^= 1 << (n % 8)
			bads = append(bads, good[:n], flipped)
		}
		bads = append(bads, append(bytes.Clone(good), '\n'), append(bytes.Clone(good), good...), bytes.Repeat([]byte{0}, len(good)))
		for n, bad := range bads {
			kept := filepath.Join(d.Path(), name+asideMark+"20261130-062137")
			os.Remove(kept)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			ro := openDir(t, d.Path(), true)
			_, errs := everything(ro)
			var corrupt *CorruptError
			if !errors.As(errs[name], &corrupt) || corrupt.File != path || corrupt.Kept != "" {
				t.Fatalf("%s %d, read-only: %v", name, n, errs[name])
			}
			ro.Close()
			got, errs := everything(d)
			if !errors.As(errs[name], &corrupt) || corrupt.File != path {
				t.Fatalf("%s %d: %v", name, n, errs[name])
			}
			delete(errs, name)
			for other, err := range errs {
				if err != nil {
					t.Fatalf("%s is damaged, and %s: %v", name, other, err)
				}
			}
			restarts := name == sightingsFile || name == bootsFile
			if restarts {
				if b, err := os.ReadFile(kept); err != nil || !bytes.Equal(b, bad) || corrupt.Kept != kept {
					t.Fatalf("%s %d: not kept aside as %s: %v %q", name, n, kept, err, corrupt.Kept)
				}
				if _, errs := everything(d); errs[name] != nil {
					t.Fatalf("%s %d: it does not begin anew: %v", name, n, errs[name])
				}
			} else {
				if b, _ := os.ReadFile(path); !bytes.Equal(b, bad) {
					t.Fatalf("%s %d: it did not stay", name, n)
				}
				for _, w := range map[string][]string{runtimesFile: {"remember", "forget"}, holdsFile: {"hold", "unhold"}}[name] {
					if err := writes(d)[w]; !errors.As(err, &corrupt) {
						t.Fatalf("%s %d: %s: %v", name, n, w, err)
					}
				}
			}
			wantNow := append([]any{}, want...)
			wantNow[i] = []any{verdict.Memory(nil), claim.BootFacts{Current: boot(2)}, []string(nil), []Hold(nil)}[i]
			if diff := cmp.Diff(wantNow, got, cmpAddr); diff != "" {
				t.Fatalf("%s %d: %s", name, n, diff)
			}
			if !restarts { // writes changed the others
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				for _, f := range []string{sightingsFile, bootsFile, runtimesFile, holdsFile} {
					os.Remove(filepath.Join(d.Path(), f))
				}
				fill(t, d)
			}
		}
		os.Remove(path)
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewer(t *testing.T) {
	for _, name := range []string{sightingsFile, bootsFile, runtimesFile, holdsFile} {
		d := newDir(t)
		fill(t, d)
		path := filepath.Join(d.Path(), name)
		content := append(headerLine(name, 2), "something else\n"...)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs := everything(d)
		if !errors.Is(errs[name], ErrNewer) || !strings.Contains(errs[name].Error(), path) {
			t.Errorf("%s: read: %v", name, errs[name])
		}
		w := writes(d)
		for _, op := range map[string][]string{sightingsFile: {"sightings"}, bootsFile: {"boots"}, runtimesFile: {"remember", "forget"},
			holdsFile: {"hold", "unhold"}}[name] {
			if !errors.Is(w[op], ErrNewer) {
				t.Errorf("%s: %s: %v", name, op, w[op])
			}
		}
		if now, _ := os.ReadFile(path); !bytes.Equal(now, content) {
			t.Errorf("%s was replaced", name)
		}
	}
}

func TestOldAsidesGo(t *testing.T) {
	d := newDir(t)
	for i := range 7 {
		if err := os.WriteFile(filepath.Join(d.Path(), bootsFile), []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		d.opts.Now = func() time.Time { return wall.Add(time.Duration(i) * time.Minute) }
		if _, err := d.ObserveBoot(boot(1)); err == nil {
			t.Fatal("garbage was read")
		}
	}
	list, _ := filepath.Glob(filepath.Join(d.Path(), bootsFile+asideMark+"*"))
	if len(list) != asideKept || !strings.HasSuffix(list[0], "20261130-062437") {
		t.Fatal(list)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"group-writable":  func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o770)) },
		"world-writable":  func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o702)) },
		"sticky":          func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o777|fs.ModeSticky)) },
		"symlink":         func(p string) error { return errors.Join(os.Mkdir(p+"x", 0o700), os.Symlink(p+"x", p)) },
		"dangling":        func(p string) error { return os.Symlink(p+"x", p) },
		"file":            func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"below a file":    func(p string) error { return os.WriteFile(filepath.Dir(p)+"/f", nil, 0o600) },
		"of another user": func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, 12345, -1)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			if name == "of another user" {
				testenv.Need(t, testenv.Root)
			}
			if err := prepare(dir); err != nil {
				t.Fatal(err)
			}
			if name == "below a file" {
				dir = filepath.Dir(dir) + "/f/state"
			}
			for _, ro := range []bool{true, false} {
				d, err := Open(dir, Options{ReadOnly: ro})
				if err == nil {
					d.Close()
					t.Errorf("read-only %v: opened", ro)
				} else if e := (*Error)(nil); !errors.As(err, &e) || e.Object != dir {
					t.Errorf("%v", err)
				}
			}
		})
	}
	t.Run("but not a link further up", func(t *testing.T) {
		top := t.TempDir()
		if err := errors.Join(os.Mkdir(top+"/real", 0o755), os.Symlink("real", top+"/link")); err != nil {
			t.Fatal(err)
		}
		fill(t, openDir(t, top+"/link/state", false))
	})
}

// A name in the directory that is no regular file neither hangs nor is followed out.
func TestHostileEntries(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(outside, append(headerLine(holdsFile, 1), endLine(0, 0)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(string) error{
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"symlink":   func(p string) error { return os.Symlink(outside, p) },
		"huge": func(p string) error {
			return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, maxFile+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			for _, f := range []string{sightingsFile, bootsFile, runtimesFile, holdsFile} {
				if err := plant(filepath.Join(d.Path(), f)); err != nil {
					t.Fatal(err)
				}
			}
			_, errs := everything(d)
			for f, err := range errs {
				if err == nil {
					t.Errorf("%s was read", f)
				}
			}
		})
	}
}

func TestBoots(t *testing.T) {
	d := newDir(t)
	for _, tc := range []struct {
		see      int
		past     []string
		returned bool
	}{
		{1, nil, false}, {1, nil, false},
		{2, []string{boot(1)}, false}, {2, []string{boot(1)}, false},
		{3, []string{boot(1), boot(2)}, false},
		{2, nil, true},  // case F23: two views share the directory
		{3, nil, true},  // and it does not heal by itself
		{77, nil, true}, // not even with a boot that is new to both
	} {
		f, err := d.ObserveBoot(boot(tc.see))
		if errors.Is(err, ErrBootReturned) != tc.returned || !tc.returned && err != nil {
			t.Fatalf("boot %d: %v", tc.see, err)
		}
		if diff := cmp.Diff(claim.BootFacts{Current: boot(tc.see), Past: tc.past}, f, cmpAddr); diff != "" {
			t.Fatalf("boot %d: %s", tc.see, diff)
		}
	}
	if err := os.Remove(filepath.Join(d.Path(), bootsFile)); err != nil {
		t.Fatal(err)
	}
	for n := range MaxPast + 10 {
		f, err := d.ObserveBoot(boot(n))
		if err != nil || len(f.Past) != min(n, MaxPast) {
			t.Fatalf("%d: %d past boots, %v", n, len(f.Past), err)
		}
		if n > 0 && f.Past[len(f.Past)-1] != boot(n-1) {
			t.Fatal("the last boot is not the last")
		}
	}
	for _, bad := range []string{"", "x", boot(1) + "\n", strings.ToUpper("abcdef01-0000-4000-8000-000000000000")} {
		if f, err := d.ObserveBoot(bad); !errors.Is(err, ErrInvalid) || f.Current != "" {
			t.Errorf("%q: %v %v", bad, f, err)
		}
	}
}

func TestRuntimes(t *testing.T) {
	d := newDir(t)
	known := func(want ...string) {
		t.Helper()
		got, err := openDir(t, d.Path(), true).KnownRuntimes()
		if diff := cmp.Diff(want, got, cmpAddr); diff != "" || err != nil {
			t.Fatal(diff, err)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(d.RememberRuntimes("unix:///b", "unix:///a", "unix:///b"))
	known("unix:///a", "unix:///b")
	before, _ := os.Stat(filepath.Join(d.Path(), runtimesFile))
	do(d.RememberRuntimes("unix:///a"))
	do(d.RememberRuntimes())
	do(d.ForgetRuntime("unix:///c"))
	if after, _ := os.Stat(filepath.Join(d.Path(), runtimesFile)); !os.SameFile(before, after) {
		t.Fatal("written for nothing")
	}
	do(d.ForgetRuntime("unix:///b"))
	known("unix:///a")
	if err := d.RememberRuntimes("unix:///ok", "\xff"); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	known("unix:///a")
	for n := range MaxRuntimes - 1 {
		do(d.RememberRuntimes(fmt.Sprint("unix:///", n)))
	}
	if err := d.RememberRuntimes("unix:///more"); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
}

func TestHolds(t *testing.T) {
	d := newDir(t)
	undo := hold(1)
	undo.By, undo.ReleaseID = ByUndo, "20261130-062137-1a2b3c-00001"
	anywhere := Hold{Addr: netip.MustParseAddr("::ffff:10.0.0.1"), By: ByPerson}
	added, err := d.AddHolds(hold(1), undo, anywhere, hold(1))
	if err != nil || len(added) != 3 || added[2].Addr != netip.MustParseAddr("10.0.0.1") {
		t.Fatal(added, err)
	}
	if added, err := d.AddHolds(hold(1), hold(2)); err != nil || len(added) != 1 || added[0] != hold(2) {
		t.Fatal(added, err)
	}
	anywhere.Addr = netip.MustParseAddr("10.0.0.1") // as it is stored
	got, err := d.Holds()
	if diff := cmp.Diff([]Hold{hold(1), undo, anywhere, hold(2)}, got, cmpAddr); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	if v := got[0].Verdict(); v.Addr != got[0].Addr || v.Store != got[0].Store || v.Why != got[0].Why {
		t.Fatal(v)
	}
	removed, err := d.RemoveHolds(func(h Hold) bool { return h.ReleaseID == undo.ReleaseID })
	if err != nil || len(removed) != 1 || removed[0] != undo {
		t.Fatal(removed, err)
	}
	if got, err := d.Holds(); err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	for name, bad := range map[string]Hold{
		"no address":  {By: ByPerson},
		"by nobody":   {Addr: anywhere.Addr},
		"long":        {Addr: anywhere.Addr, By: ByPerson, Why: strings.Repeat("x", 5000)},
		"not UTF-8":   {Addr: anywhere.Addr, By: ByPerson, Store: "/\xff"},
		"time beyond": {Addr: anywhere.Addr, By: ByUndo, At: claim.Instant{Wall: time.Date(10001, 1, 1, 0, 0, 0, 0, time.UTC)}},
	} {
		if _, err := d.AddHolds(hold(3), bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := d.Holds(); err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
}

// An undo holds one owner's reservation: of two at one address neither is the other. With
// the first undo after a reboot those of the boot before go, and a person's stay.
func TestHoldsOfOwners(t *testing.T) {
	d := newDir(t)
	undo := func(b int, id string) Hold {
		h := hold(1)
		h.By, h.At.Boot, h.Owner = ByUndo, boot(b), claim.Owner{}
		if id != "" {
			h.Owner = claim.Owner{Shape: claim.ShapeContainer, ID: strings.Repeat(id, 8), IfName: "eth0"}
		}
		return h
	}
	first := []Hold{hold(1), undo(1, "a1b2c3d4"), undo(1, "b0b1b2b3"), undo(1, "")}
	for range 2 {
		if _, err := d.AddHolds(first...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := d.Holds()
	if diff := cmp.Diff(first, got, cmpAddr); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	if v := got[1].Verdict(); v.Owner != first[1].Owner {
		t.Error(v)
	}
	for _, h := range got[1:] {
		if !h.Counts(boot(1)) || !h.Counts("") || h.Counts(boot(2)) {
			t.Errorf("%+v counts in the wrong boot", h)
		}
	}
	// One by a person ends nothing.
	if _, err := d.AddHolds(hold(2)); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Holds(); err != nil || len(got) != 5 {
		t.Fatal(got, err)
	}
	if _, err := d.AddHolds(undo(2, "b0b1b2b3")); err != nil {
		t.Fatal(err)
	}
	got, err = d.Holds()
	if diff := cmp.Diff([]Hold{hold(1), hold(2), undo(2, "b0b1b2b3")}, got, cmpAddr); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	for _, o := range []claim.Owner{{ID: "a1b2c3d4a1b2"}, {Shape: claim.ShapeForeign, ID: "vip"}, {Shape: claim.ShapeContainer, ID: "vip"}, {Shape: claim.ShapeContainer, ID: "a1b2c3d4a1b2", IfName: "a/b"}} {
		if _, err := d.AddHolds(Hold{Addr: hold(1).Addr, By: ByUndo, Owner: o}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Two processes that hold at the same time lose nothing of each other.
func TestConcurrentHolds(t *testing.T) {
	path := newDir(t).Path()
	var wg sync.WaitGroup
	for w := range 4 {
		d := openDir(t, path, false)
		wg.Go(func() {
			for n := range 10 {
				if _, err := d.AddHolds(hold(w*100 + n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := openDir(t, path, true).Holds(); err != nil || len(got) != 40 {
		t.Fatal(len(got), err)
	}
}

func TestLockIsBounded(t *testing.T) {
	d := newDir(t)
	d.opts.LockWait = 30 * time.Millisecond
	f, err := d.openLock()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.FD()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for name, err := range writes(d) {
		if !errors.Is(err, ErrBusy) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.Close()
	for name, err := range writes(d) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// smallFS mounts a tmpfs of a few pages and takes it away again.
func smallFS(t *testing.T, options string) string {
	t.Helper()
	testenv.Need(t, testenv.Mount)
	dir := t.TempDir()
	if err := unix.Mount("holdfast-test", dir, "tmpfs", 0, "mode=0700,"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func TestFullFileSystem(t *testing.T) {
	dir := smallFS(t, "size=64k")
	d := openDir(t, dir, false)
	fill(t, d)
	want, _ := everything(d)
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the tmpfs is not full: %v", err)
	}
	errs := writes(d)
	delete(errs, "forget") // there is nothing to forget
	for name, err := range errs {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f, _ := d.ObserveBoot(boot(3)); f.Past != nil {
		t.Errorf("a boot that could not be recorded proves death: %v", f)
	}
	// What was there is there, and nothing else.
	got, _ := everything(d)
	if diff := cmp.Diff(want, got, cmpAddr); diff != "" {
		t.Error(diff)
	}
	if list, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(list) > 0 {
		t.Error(list)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := smallFS(t, "size=64k")
	d := openDir(t, dir, false)
	fill(t, d)
	want, _ := everything(d)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for name, err := range writes(d) {
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "read-only file system") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, syscall.EROFS) {
		t.Errorf("open: %v", err)
	}
	got, errs := everything(openDir(t, dir, true))
	for name, err := range errs {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, got, cmpAddr); diff != "" {
		t.Error(diff)
	}
}

// A crash leaves a temporary file; the next write takes its place.
func TestStaleTemporaryFile(t *testing.T) {
	d := newDir(t)
	if err := os.WriteFile(filepath.Join(d.Path(), sightingsFile+".tmp"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveSightings(sightings(2)); err != nil {
		t.Fatal(err)
	}
	if got, err := d.LoadSightings(); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
}
