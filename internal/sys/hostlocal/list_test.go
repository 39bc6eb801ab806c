package hostlocal

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

func find(snap claim.Snapshot, base string) (claim.Resource, bool) {
	for _, r := range snap.Resources {
		if filepath.Base(r.Path) == base {
			return r, true
		}
	}
	return claim.Resource{}, false
}

func hasNote(snap claim.Snapshot, path, text string) bool {
	for _, n := range snap.Notes {
		if strings.Contains(n.Path, path) && strings.Contains(n.Text, text) {
			return true
		}
	}
	return false
}

func TestListReservations(t *testing.T) {
	store := makeStore(t, t.TempDir())
	files := map[string]string{
		"10.0.0.2":        hexID64 + "\r\neth0",
		"10.0.0.3":        hexID64,
		"10.0.0.4":        "",
		"10.0.0.5":        "reserved-vip",
		"10.0.0.6":        "../../etc/passwd\x1b[2J",
		"10.0.0.9":        strings.Repeat("x", maxContent),
		"10.0.0.10":       strings.Repeat("x", maxContent+1),
		"fd00::5":         hexID64,
		"FD00:0::5":       hexID64,
		"::ffff:10.0.0.7": hexID64,
		lastPrefix + "0":  "10.0.0.3",
		"notes.txt":       "x",
	}
	for name, c := range files {
		put(t, filepath.Join(store, name), c)
	}
	in := func(name string) string { return filepath.Join(store, name) }
	if err := unix.Mkfifo(in("10.0.0.20"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(in("10.0.0.2"), in("10.0.0.21")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(in("10.0.0.22"), 0o755); err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("unix", in("10.0.0.23")); err == nil {
		defer l.Close()
	}
	if err := os.Truncate(mustCreate(t, in("10.0.0.24")), 1<<30); err != nil { // sparse
		t.Fatal(err)
	}
	if err := os.Mkdir(in("leaked"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(in("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}

	start := time.Now()
	snap := listDirs(t, filepath.Dir(store))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if snap.Source != "hostlocal" || snap.Listed != now() || len(snap.Stores) != 1 {
		t.Fatalf("source %q, listed %v, stores %v", snap.Source, snap.Listed, snap.Stores)
	}
	want := claim.Store{Dir: store, DataDir: filepath.Dir(store), Network: "net1", Writable: true}
	if d := cmp.Diff(want, snap.Stores[0]); d != "" {
		t.Error(d)
	}

	owners := map[string]claim.Owner{
		"10.0.0.2":        {Shape: claim.ShapeContainer, ID: hexID64, IfName: "eth0"},
		"10.0.0.3":        {Shape: claim.ShapeContainer, ID: hexID64},
		"10.0.0.4":        {},
		"10.0.0.5":        {Shape: claim.ShapeForeign, ID: "reserved-vip"},
		"10.0.0.6":        {Shape: claim.ShapeForeign, ID: "../../etc/passwd\x1b[2J"},
		"10.0.0.9":        {Shape: claim.ShapeForeign, ID: strings.Repeat("x", maxContent)},
		"fd00::5":         {Shape: claim.ShapeContainer, ID: hexID64},
		"FD00:0::5":       {Shape: claim.ShapeContainer, ID: hexID64},
		"::ffff:10.0.0.7": {Shape: claim.ShapeContainer, ID: hexID64},
	}
	for name, owner := range owners {
		r, ok := find(snap, name)
		if !ok || r.Problem != "" {
			t.Errorf("%s: found %v, problem %q", name, ok, r.Problem)
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(in(name), &st); err != nil {
			t.Fatal(err)
		}
		addr, _ := parseName(name)
		want := claim.Resource{
			Kind: claim.KindReservation, Store: store, Network: "net1", Addr: addr, Owner: owner, Path: in(name),
			Inc: claim.Incarnation{Dev: st.Dev, Ino: st.Ino, Ctime: st.Ctim.Nano(), Size: st.Size, Sum: sum([]byte(files[name]))},
		}
		if d := cmp.Diff(want, r, compareAddr); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
	problems := map[string]string{
		"10.0.0.10": "too large: 4097 bytes", "10.0.0.24": "too large: 1073741824 bytes",
		"10.0.0.20": "is a FIFO", "10.0.0.21": "is a symbolic link", "10.0.0.22": "is a directory", "10.0.0.23": "is a socket",
	}
	for name, text := range problems {
		if r, ok := find(snap, name); !ok || !strings.Contains(r.Problem, text) || r.Inc.Sum != "" {
			t.Errorf("%s: found %v, problem %q, want %q", name, ok, r.Problem, text)
		}
	}
	if n := len(owners) + len(problems); len(snap.Resources) != n {
		t.Errorf("%d resources, want %d", len(snap.Resources), n)
	}
	for path, text := range map[string]string{"leaked": "is a directory", "pipe": "is a FIFO", "notes.txt": "is a file"} {
		if !hasNote(snap, path, text) {
			t.Errorf("no note %q of %s in %v", text, path, snap.Notes)
		}
	}
	if len(snap.Notes) != 3 {
		t.Errorf("notes: %v", snap.Notes)
	}
	for i := 1; i < len(snap.Resources); i++ {
		if snap.Resources[i-1].Addr.Compare(snap.Resources[i].Addr) > 0 {
			t.Error("not ordered by address")
		}
	}
}

func mustCreate(t *testing.T, path string) string {
	t.Helper()
	put(t, path, "")
	return path
}

// The same as above where the kernel does not tell the type with the name.
func TestReadEntryWithoutType(t *testing.T) {
	store := makeStore(t, t.TempDir())
	put(t, filepath.Join(store, "10.0.0.2"), "x")
	if err := unix.Mkfifo(filepath.Join(store, "10.0.0.3"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := kernel.openDir(store, false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	l := listing{fs: kernel, store: &claim.Store{Dir: store}}
	for name, ok := range map[string]bool{"10.0.0.2": true, "10.0.0.3": false, "10.0.0.4": false} {
		e := entry{path: store + "/" + name}
		if _, _, err := l.readEntry(fd, &e, len(store)+1, make([]byte, maxContent+1), nil); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	// And when the name was replaced after the look: the descriptor tells, and a link
	// is not followed.
	if err := os.Symlink("10.0.0.2", filepath.Join(store, "10.0.0.5")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"10.0.0.3", "10.0.0.5"} {
		if _, _, err := kernel.readReservation(fd, name, make([]byte, maxContent+1)); !isOtherFile(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDiscoverStores(t *testing.T) {
	root := t.TempDir()
	conf, data, other := filepath.Join(root, "net.d"), filepath.Join(root, "networks"), filepath.Join(root, "other")
	for _, d := range []string{
		conf + "/ns1", conf + "/plugged", data + "/net1", data + "/renamed", data + "/unrelated", data + "/empty", data + "/bad\nname",
		other + "/here", other + "/old",
	} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	q := func(s string) string { return strings.ReplaceAll(s, "ROOT", root) }
	put(t, conf+"/10-a.conflist", q(`{"name":"net1","plugins":[{"ipam":{"type":"host-local","dataDir":"ROOT/networks","ranges":[[{"subnet":"10.1.0.0/24"}]]}}]}`))
	put(t, conf+"/20-again.conf", q(`{"name":"net1","ipam":{"type":"host-local","dataDir":"ROOT/networks","subnet":"10.1.0.0/24"}}`))
	put(t, conf+"/30-b.json", q(`{"name":"here","ipam":{"type":"host-local","dataDir":"ROOT/other"}}`))
	put(t, conf+"/40-c.conf", q(`{"name":"notyet","ipam":{"type":"host-local","dataDir":"ROOT/nowhere","subnet":"10.2.0.0/24"}}`))
	put(t, conf+"/50-evil.conf", q(`{"name":"../../net1","ipam":{"type":"host-local","dataDir":"ROOT/networks/x"}}`))
	put(t, conf+"/60-broken.conflist", `{"name":`)
	put(t, conf+"/README", `{"name":`)
	put(t, conf+"/ns1/nerdctl-x.conflist", q(`{"name":"linked","plugins":[{"ipam":{"type":"host-local","dataDir":"ROOT/networks"}}]}`))
	put(t, conf+"/plugged/10.conf", q(`{"type":"bridge","ipam":{"type":"host-local","dataDir":"ROOT/networks"}}`))
	if err := unix.Mkfifo(conf+"/70-pipe.conf", 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, data+"/renamed/10.0.0.2", hexID64)
	put(t, data+"/unrelated/file", "x")
	put(t, data+"/bad\nname/10.0.0.2", hexID64)
	put(t, other+"/old/"+lastPrefix+"0", "10.0.0.2")
	if err := os.Symlink(other+"/here", data+"/linked"); err != nil { // a configuration names it
		t.Fatal(err)
	}
	if err := os.Symlink(other+"/old", data+"/stray"); err != nil { // none does
		t.Fatal(err)
	}
	if err := os.Symlink(data, root+"/again"); err != nil {
		t.Fatal(err)
	}

	snap := networksOnly(New(Config{ConfDirs: []string{conf, conf + "/missing"}, DataDirs: []string{data, root + "/again", root + "/missing"}, Clock: now}).List(t.Context()))
	type row struct {
		Dir, Network string
		Configs      int
		Capacity     uint64
		Problem      string
	}
	var got []row
	for _, s := range snap.Stores {
		got = append(got, row{strings.TrimPrefix(s.Dir, root), s.Network, len(s.Configs), s.Capacity, s.Problem})
	}
	want := []row{
		{"/networks/net1", "net1", 2, 253, ""},
		{"/networks/plugged", "plugged", 1, 0, ""},
		{"/networks/renamed", "renamed", 0, 0, ""},
		{"/nowhere/notyet", "notyet", 1, 253, ""},
		{"/other/here", "here", 2, 0, ""},
		{"/other/old", "old", 0, 0, ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("stores (-want +got):\n%s\nnotes %v", d, snap.Notes)
	}
	for path, text := range map[string]string{
		"50-evil.conf": `name: "../../net1"`, "60-broken.conflist": "broken JSON", "70-pipe.conf": "is a FIFO",
		"/networks/stray": "symbolic link", "/networks/linked": "same directory", "/networks": `"bad\nname" has control`,
	} {
		if !hasNote(snap, path, text) {
			t.Errorf("no note %q of %s in %v", text, path, snap.Notes)
		}
	}
	for _, n := range snap.Notes {
		if !isPlain(n.Path + n.Text) {
			t.Errorf("note %q is not fit for a terminal", n)
		}
	}
}

// Antrea's agent sees the host's /var/run/antrea/cni as /var/lib/cni.
func TestDiscoverInside(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{root + "/net.d", root + "/antrea/cni/networks/antrea"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, root+"/net.d/10-antrea.conflist", fmt.Sprintf(`{"name":"antrea","plugins":[{"type":"antrea","ipam":{"type":"host-local","dataDir":%q}}]}`, root+"/lib"))
	put(t, root+"/antrea/cni/networks/antrea/10.0.0.2", hexID64)
	inv := New(Config{ConfDirs: []string{root + "/net.d"}, Clock: now})
	inv.places = []place{{dataDir: root + "/antrea/cni/networks", inside: root + "/lib"}}
	snap := networksOnly(inv.List(t.Context()))
	if len(snap.Stores) != 1 || snap.Stores[0].Dir != root+"/antrea/cni/networks/antrea" || len(snap.Stores[0].Configs) != 1 || len(snap.Resources) != 1 {
		t.Errorf("stores %v, resources %v", snap.Stores, snap.Resources)
	}
	// With a directory at the place that the configuration names, that one counts.
	if err := os.MkdirAll(root+"/lib/antrea", 0o755); err != nil {
		t.Fatal(err)
	}
	if snap = networksOnly(inv.List(t.Context())); len(snap.Stores) != 2 || len(snap.Stores[1].Configs) != 1 {
		t.Errorf("stores %v", snap.Stores)
	}
}

func TestWellKnownTable(t *testing.T) {
	for _, p := range wellKnown() {
		if p.reason == "" || p.confDir == "" && p.dataDir == "" {
			t.Errorf("row %+v says nothing", p)
		}
	}
}

func TestListUnreadable(t *testing.T) {
	root := t.TempDir()
	store := makeStore(t, root)
	put(t, filepath.Join(store, "10.0.0.2"), hexID64)
	put(t, filepath.Join(store, "10.0.0.3"), hexID64)

	t.Run("a network that is a file", func(t *testing.T) {
		put(t, root+"/networks/file", "")
		put(t, root+"/c.conf", fmt.Sprintf(`{"name":"file","ipam":{"type":"host-local","dataDir":%q}}`, root+"/networks"))
		snap := networksOnly(New(Config{ConfDirs: []string{root}, Clock: now}).List(t.Context()))
		if len(snap.Stores) != 2 || snap.Stores[0].Problem == "" || snap.Stores[1].Problem != "" {
			t.Errorf("stores %v", snap.Stores)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		snap := networksOnly(New(Config{DataDirs: []string{root + "/networks"}, Clock: now}).List(ctx))
		if len(snap.Stores) != 1 || snap.Stores[0].Problem == "" || len(snap.Resources) != 2 {
			t.Fatalf("%v", snap)
		}
		for _, r := range snap.Resources {
			if r.Problem == "" {
				t.Errorf("%s has no problem", r.Path)
			}
		}
	})
	t.Run("cut off in the middle", func(t *testing.T) {
		// What was read before is no whole listing either.
		half := fill(t, 300)
		snap := networksOnly(New(Config{DataDirs: []string{filepath.Dir(half)}, Clock: now}).List(&endingContext{Context: t.Context()}))
		if len(snap.Stores) != 1 || snap.Stores[0].Problem == "" || len(snap.Resources) != 300 {
			t.Fatalf("%v, %d resources", snap.Stores, len(snap.Resources))
		}
		for _, r := range snap.Resources {
			if r.Problem == "" {
				t.Fatalf("%s has no problem", r.Path)
			}
		}
	})
	t.Run("permissions", func(t *testing.T) {
		if !testenv.AsNobody(t) {
			return
		}
		for _, path := range []string{filepath.Join(store, "10.0.0.3"), store, root + "/networks"} {
			if err := os.Chmod(path, 0); err != nil {
				t.Fatal(err)
			}
			snap := listDirs(t, root+"/networks")
			if err := os.Chmod(path, 0o700); err != nil {
				t.Fatal(err)
			}
			bad := 0
			for _, s := range snap.Stores {
				bad += len(s.Problem)
			}
			for _, r := range snap.Resources {
				bad += len(r.Problem)
			}
			if bad == 0 {
				t.Errorf("%s unreadable, and nobody says so: %v", path, snap)
			}
		}
	})
}

// endingContext ends after it was asked once.
type endingContext struct {
	context.Context
	asked int
}

func (c *endingContext) Err() error {
	if c.asked++; c.asked > 1 {
		return context.Canceled
	}
	return nil
}

func TestListReadOnly(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	dir := filepath.Join(t.TempDir(), "m")
	mount(t, "tmpfs", dir, 0, "size=1m")
	store := makeStore(t, dir)
	put(t, filepath.Join(store, "10.0.0.2"), hexID64)
	if !listDirs(t, filepath.Dir(store)).Stores[0].Writable {
		t.Error("not writable before")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	snap := listDirs(t, filepath.Dir(store))
	if snap.Stores[0].Writable || snap.Stores[0].Problem != "" || len(snap.Resources) != 1 {
		t.Errorf("%+v", snap)
	}
}

// fill makes n reservations in a store of its own.
func fill(tb testing.TB, n int) string {
	tb.Helper()
	store := filepath.Join(tb.TempDir(), "networks", "net1")
	if err := os.MkdirAll(store, 0o755); err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		id := fmt.Sprintf("%064x\r\neth0", i+1)
		if err := os.WriteFile(fmt.Sprintf("%s/10.%d.%d.%d", store, i>>16, i>>8&255, i&255), []byte(id), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return store
}

func TestListMemory(t *testing.T) {
	testenv.Need(t, testenv.Long) // makes 65,536 files
	store := fill(t, 65536)
	inv := New(Config{DataDirs: []string{filepath.Dir(store)}, Clock: now})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	snap := inv.List(t.Context())
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(snap.Resources) != 65536 {
		t.Fatalf("%d resources", len(snap.Resources))
	}
	kept, all := after.HeapAlloc-before.HeapAlloc, after.TotalAlloc-before.TotalAlloc
	t.Logf("65,536 reservations in %v; %.1f MB kept, %.1f MB allocated in all", took, float64(kept)/1e6, float64(all)/1e6)
	if kept > 25<<20 {
		t.Errorf("%d bytes kept", kept)
	}
	runtime.KeepAlive(snap)
}

func BenchmarkList10000(b *testing.B) {
	store := fill(b, 10000)
	inv := New(Config{DataDirs: []string{filepath.Dir(store)}, Clock: now})
	b.ReportAllocs()
	for b.Loop() {
		if n := len(inv.List(b.Context()).Resources); n != 10000 {
			b.Fatal(n)
		}
	}
}
