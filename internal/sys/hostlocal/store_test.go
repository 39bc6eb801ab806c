package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// turn runs do under the lock.
func (y *yard) turn(do func(s *Store, tx *Tx)) {
	y.t.Helper()
	p := y.disk.Process()
	defer p.Kill()
	s, err := OpenStore(y.config(p))
	y.must(err)
	defer s.Close()
	tx, err := s.Begin(y.t.Context())
	y.must(err)
	defer tx.End()
	do(s, tx)
}

// reserve reserves within a turn.
func (y *yard) reserve(s *Store, tx *Tx, id, addr string) bool {
	y.t.Helper()
	d, err := s.Draft(id, "eth0", 7)
	y.must(err)
	defer s.Discard(d)
	ok, err := tx.Reserve(d, netip.MustParseAddr(addr))
	y.must(err)
	return ok
}

// TestStoreExclusive: an index that wrongly says that an address is free does not hand it
// out, and is not believed afterwards.
func TestStoreExclusive(t *testing.T) {
	for name, caps := range fileSystemCaps() {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, caps)
			p := y.disk.Process()
			y.must(y.add(p, "a", "10.0.0.2"))
			y.foreign("10.0.0.3", "b")
			y.later(time.Second)
			y.turn(func(s *Store, tx *Tx) {
				tx.x.drop(netip.MustParseAddr("10.0.0.3"), 1)
				if y.reserve(s, tx, "n", "10.0.0.3") {
					t.Error("handed out twice")
				}
				if !tx.Taken(netip.MustParseAddr("10.0.0.3")) {
					t.Error("still said to be free")
				}
				if !y.reserve(s, tx, "n", "10.0.0.4") {
					t.Error("what is free is not to be had")
				}
			})
			y.known("afterwards")
			if there, temps := y.files(); there["10.0.0.3"] != "b\r\neth0" || len(temps) > 0 {
				t.Errorf("%v, %v", there, temps)
			}
		})
	}
}

// TestUnstamped: no attributes and no boot ID are no errors, and are said.
func TestUnstamped(t *testing.T) {
	for name, c := range map[string]struct {
		caps memfs.Caps
		boot string
		want error
	}{
		"stamped":            {boot: bootA},
		"no attributes":      {memfs.Caps{NoXattr: true}, bootA, unix.EOPNOTSUPP},
		"no boot ID":         {memfs.Caps{}, "", errNoBoot},
		"a boot ID of sorts": {memfs.Caps{}, "boot-1", errNoBoot},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, c.caps)
			y.boot = c.boot
			y.turn(func(s *Store, tx *Tx) {
				if !y.reserve(s, tx, "a", "10.0.0.2") || !errors.Is(s.Unstamped, c.want) {
					t.Errorf("unstamped: %v, want %v", s.Unstamped, c.want)
				}
				own, _, err := tx.Owned("a", "eth0")
				if err != nil || len(own) != 1 || (own[0].Stamp != nil) != (c.want == nil) {
					t.Errorf("%+v, %v", own, err)
				}
				if c.want == nil && *own[0].Stamp != (stampOf(bootA)) {
					st := stampOf(bootA)
					if st.Netns = 7; *own[0].Stamp != st {
						t.Errorf("stamp %+v", own[0].Stamp)
					}
				}
			})
		})
	}
}

// TestStampFollowsContent: a stamp that was copied to other content proves nothing.
func TestStampFollowsContent(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	p := y.disk.Process()
	y.must(y.add(p, "a", "10.0.0.2"))
	p.Kill()
	y.must(y.disk.WriteFile(filepath.Join(memStore, "10.0.0.2"), []byte("b\r\neth0"))) // in place
	y.foreign("10.0.0.3", "c")
	y.turn(func(_ *Store, tx *Tx) {
		own, _, err := tx.Owned("b", "eth0")
		if err != nil || len(own) != 1 || own[0].Stamp != nil {
			t.Errorf("%+v, %v", own, err)
		}
	})
}

// TestOwners: whose a reservation is, in the spellings of a person too.
func TestOwners(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	y.must(y.disk.MkdirAll(memStore))
	for name, content := range map[string]string{
		"10.0.0.2":                   "a\r\neth0",
		"::ffff:10.0.0.3":            "a\r\neth0\n",
		"2001:DB8::1":                " a\r\neth0",
		"2001:0db8:0:0:0:0:0:2":      "a",
		"10.0.0.4":                   "a\r\neth1",
		"10.0.0.5":                   "",
		"10.0.0.05":                  "a\r\neth0", // no address
		"10.0.0.6.bak":               "a\r\neth0",
		"fe80::1%eth0":               "a\r\neth0",
		lastPrefix + "0":             "a\r\neth0",
		"10.0.0.7":                   strings.Repeat("x", maxContent+1),
		"::ffff:10.0.0.8":            "z\r\neth0",
		"10.0.0.8":                   "y\r\neth0",
		"2001:db8:0:0::8":            "z\r\neth0",
		"2001:db8::8":                "y\r\neth0",
		"sub.with.dots":              "a\r\neth0",
		"10.0.0.9 ":                  "a\r\neth0",
		strings.Repeat("1", 200):     "a\r\neth0",
		"last_reserved_ip.holdfast-": "a\r\neth0",
	} {
		y.must(y.disk.WriteFile(filepath.Join(memStore, name), []byte(content)))
	}
	y.must(y.disk.Mkfifo(filepath.Join(memStore, "10.0.0.10")))
	y.must(y.disk.Symlink("10.0.0.2", filepath.Join(memStore, "10.0.0.11")))
	y.must(y.disk.MkdirAll(filepath.Join(memStore, "10.0.0.12")))
	y.later(time.Second)
	for range 2 { // read, and by the index
		y.turn(func(_ *Store, tx *Tx) {
			own, legacy, err := tx.Owned("a", "eth0")
			var got []string
			for _, h := range append(own, legacy...) {
				got = append(got, h.Addr.String()+" "+h.name)
			}
			want := "10.0.0.2 10.0.0.2,10.0.0.3 ::ffff:10.0.0.3,2001:db8::1 2001:DB8::1,2001:db8::2 2001:0db8:0:0:0:0:0:2"
			if sorted := sortedJoin(got); err != nil || sorted != want || len(legacy) != 1 {
				t.Errorf("%s, %v; want %s", sorted, err, want)
			}
			if own, _, err := tx.Owned("y", "eth0"); err != nil || len(own) != 2 {
				t.Errorf("beside another spelling: %+v, %v", own, err)
			}
			for _, addr := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.7", "10.0.0.8", "10.0.0.10", "10.0.0.11", "10.0.0.12", "2001:db8::1", "2001:db8::2"} {
				if !tx.Taken(netip.MustParseAddr(addr)) {
					t.Errorf("%s is not said to be taken", addr)
				}
			}
			for _, addr := range []string{"10.0.0.6", "10.0.0.9", "10.0.0.1", "fe80::1"} {
				if tx.Taken(netip.MustParseAddr(addr)) {
					t.Errorf("%s is said to be taken", addr)
				}
			}
		})
	}
	p := y.disk.Process()
	defer p.Kill()
	y.must(y.del(p, "a"))
	for _, name := range []string{"10.0.0.2", "::ffff:10.0.0.3", "2001:DB8::1"} {
		if _, err := y.disk.Lstat(filepath.Join(memStore, name)); err == nil {
			t.Errorf("%s is there after DEL", name)
		}
	}
	for _, name := range []string{"10.0.0.4", "10.0.0.05", "10.0.0.6.bak", "fe80::1%eth0", "10.0.0.8", "10.0.0.11", "2001:0db8:0:0:0:0:0:2"} {
		if _, err := y.disk.Lstat(filepath.Join(memStore, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRemoveOnlyWhatWasSeen: I7, also where the file is written again in place.
func TestRemoveOnlyWhatWasSeen(t *testing.T) {
	for name, do := range map[string]func(y *yard, path string){
		"replaced":  func(y *yard, path string) { y.must(y.disk.Remove(path)); y.foreign("10.0.0.2", "a") },
		"rewritten": func(y *yard, path string) { y.must(y.disk.WriteFile(path, []byte("b\r\neth0"))) },
		"a FIFO":    func(y *yard, path string) { y.must(y.disk.Remove(path)); y.must(y.disk.Mkfifo(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, memfs.Caps{})
			y.foreign("10.0.0.2", "a")
			y.turn(func(_ *Store, tx *Tx) {
				own, _, err := tx.Owned("a", "eth0")
				if err != nil || len(own) != 1 {
					t.Fatalf("%+v, %v", own, err)
				}
				do(y, filepath.Join(memStore, "10.0.0.2"))
				if err := tx.Remove(own[0]); err == nil {
					t.Error("removed")
				}
				if err := tx.Renew(own[0], 1); err == nil {
					t.Error("renewed")
				}
			})
			if _, err := y.disk.Lstat(filepath.Join(memStore, "10.0.0.2")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStaysAfterRemoval: a file system that reports success and keeps the name (L18).
func TestStaysAfterRemoval(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	y.foreign("10.0.0.2", "a")
	p := y.disk.Process()
	defer p.Kill()
	p.SetHook(func(c memfs.Call) error {
		if c.Op == "Unlinkat" {
			return unix.ENOENT // as unlinkIfThere passes over
		}
		return nil
	})
	if err := y.del(p, "a"); !errors.Is(err, errStays) {
		t.Errorf("%v", err)
	}
}

// TestCooling: from when an address was freed, by us or by host-local, within one boot.
func TestCooling(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	p := y.disk.Process()
	y.must(y.add(p, "a", "10.0.0.2"))
	y.foreign("10.0.0.3", "b")
	y.known("host-local's is seen")
	y.must(y.del(p, "a"))
	y.must(y.disk.Remove(filepath.Join(memStore, "10.0.0.3")))
	y.known("and that it is gone")
	cooling := func(what string, d time.Duration, want ...string) {
		t.Helper()
		y.turn(func(_ *Store, tx *Tx) {
			var got []string
			for i := range 8 {
				if addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}); tx.Cooling(addr, d) {
					got = append(got, addr.String())
				}
			}
			if sortedJoin(got) != sortedJoin(want) {
				t.Errorf("%s: %v are cooling, want %v", what, got, want)
			}
		})
	}
	cooling("at once", time.Minute, "10.0.0.2", "10.0.0.3")
	cooling("without", 0)
	y.later(59 * time.Second)
	y.foreign("10.0.0.7", "x") // so that the directory is read
	cooling("within it", time.Minute, "10.0.0.2", "10.0.0.3")
	y.must(y.add(p, "c", "10.0.0.2"))
	cooling("used again", time.Minute, "10.0.0.3")
	y.must(y.del(p, "c"))
	y.later(time.Second)
	cooling("after it", time.Minute, "10.0.0.2")
	y.later(time.Minute)
	cooling("after both", time.Minute)
	y.must(y.add(p, "d", "10.0.0.4"))
	y.must(y.del(p, "d"))
	cooling("again", time.Minute, "10.0.0.4")
	p.Kill()
	y.boot = bootB // the index is on a disk; its clock began anew, and may be anywhere
	cooling("in another boot", time.Hour)
	y.later(time.Second)
	cooling("in another boot, later", time.Hour)
}

// TestDistrust: when an address without a reservation may be in use all the same (I11).
func TestDistrust(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	type state struct{ distrust, lost bool }
	look := func(what string, want state, do func(tx *Tx)) {
		t.Helper()
		y.later(time.Second)
		y.turn(func(_ *Store, tx *Tx) {
			if got := (state{tx.Distrust != 0, tx.Lost()}); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
			if do != nil {
				do(tx)
			}
		})
	}
	trust := func(tx *Tx) { tx.Trust() }
	last := func(want bool) func(tx *Tx) {
		return func(tx *Tx) {
			if _, ok := tx.Last(0); ok != want {
				t.Errorf("last_reserved_ip can be read: %v", ok)
			}
		}
	}
	set := func(tx *Tx) { y.must(tx.SetLast(0, netip.MustParseAddr("10.0.0.2"))) }
	name := filepath.Join(memStore, lastPrefix+"0")

	look("a new directory", state{true, true}, nil)
	look("it lasts", state{true, true}, set)
	look("until it is trusted", state{true, true}, trust)
	look("trusted", state{}, last(true))
	look("that lasts too", state{}, nil)
	y.foreign("10.0.0.3", "b")
	look("host-local's ADD is no reason", state{}, nil)
	y.must(y.disk.Remove(filepath.Join(memStore, "10.0.0.3")))
	look("names that others removed are", state{true, false}, nil)
	look("it lasts", state{true, false}, trust)
	for what, do := range map[string]func(){
		"gone":        func() { y.must(y.disk.Remove(name)) },
		"empty":       func() { y.must(y.disk.WriteFile(name, nil)) },
		"no address":  func() { y.must(y.disk.WriteFile(name, []byte("10.0.0"))) },
		"a FIFO":      func() { y.must(y.disk.Remove(name)); y.must(y.disk.Mkfifo(name)) },
		"a link":      func() { y.must(y.disk.Remove(name)); y.must(y.disk.Symlink("/dev/null", name)) },
		"a large one": func() { y.must(y.disk.WriteFile(name, make([]byte, 1<<16))) },
	} {
		y.must(y.disk.WriteFile(name, []byte("10.0.0.3")))
		do()
		look("before last_reserved_ip is read: "+what, state{}, last(false))
		look(what, state{true, true}, trust)
		_ = y.disk.Remove(name)
		y.must(y.disk.WriteFile(name, []byte("10.0.0.3")))
		look("after it: "+what, state{}, last(true))
	}
	y.reboot()
	look("another boot", state{true, false}, nil)
	look("it lasts", state{true, false}, trust)
	look("trusted in this boot", state{}, nil)
	y.boot = bootA
	look("another boot, and the index on a disk", state{true, false}, func(tx *Tx) { trust(tx); last(true)(tx) })
	y.boot = ""
	look("in no boot that is known", state{true, false}, trust)
	look("which is never trusted", state{true, false}, nil)

	// Another directory in the same place.
	y.boot = bootB
	look("the boot is known again", state{true, false}, trust)
	y.must(y.disk.Rename(memStore, memStore+".old"))
	look("wiped", state{true, true}, nil)
	y.must(y.disk.Rename(memStore, memStore+".new"))
	y.must(y.disk.Rename(memStore+".old", memStore))
	look("and put back", state{}, nil)
}

// TestAnewDistrusts: a directory that turns out to have lost names, where the index counted,
// is not trusted from that moment on.
func TestAnewDistrusts(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	y.turn(func(s *Store, tx *Tx) {
		y.reserve(s, tx, "a", "10.0.0.2")
		y.must(tx.SetLast(0, netip.MustParseAddr("10.0.0.2")))
		tx.Trust()
	})
	anew := func() (distrust time.Duration) {
		y.later(time.Second)
		p := y.disk.Process()
		defer p.Kill()
		s, err := OpenStore(y.config(p))
		y.must(err)
		s.Anew()
		tx, err := s.Begin(t.Context())
		y.must(err)
		defer tx.End()
		return tx.Distrust
	}
	if anew() != 0 {
		t.Error("nothing is lost, and it is not trusted")
	}
	st, err := y.disk.Lstat(memStore)
	y.must(err)
	y.must(y.disk.Remove(filepath.Join(memStore, "10.0.0.2")))
	// As if nobody had touched it, which only reading tells.
	p := y.disk.Process()
	fd, err := p.Openat(unix.AT_FDCWD, memStore, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	y.must(err)
	y.must(p.Utimes(fd, st.Atime, st.Mtime))
	p.Kill()
	if anew() == 0 {
		t.Error("a name is lost, and it is trusted")
	}
	if anew() == 0 {
		t.Error("it does not last")
	}
}

// TestUnread: a file that cannot be read, or never stands still, has its name taken, and may
// be anybody's: Owned says so to whoever finds nothing else.
func TestUnread(t *testing.T) {
	for name, odd := range map[string]func(y *yard) error{
		"an error": func(*yard) error { return unix.EIO },
		"changing": func(y *yard) error {
			b, err := y.disk.ReadFile(filepath.Join(memStore, "10.0.0.3"))
			y.must(err)
			y.must(y.disk.WriteFile(filepath.Join(memStore, "10.0.0.3"), append(b, 'x')))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, memfs.Caps{})
			y.foreign("10.0.0.2", "a")
			y.foreign("10.0.0.3", "b")
			p := y.disk.Process()
			defer p.Kill()
			p.SetHook(func(c memfs.Call) error {
				if c.Op == "Pread" && filepath.Base(c.Path()) == "10.0.0.3" {
					return odd(y)
				}
				return nil
			})
			s, err := OpenStore(y.config(p))
			y.must(err)
			defer s.Close()
			tx, err := s.Begin(t.Context())
			y.must(err)
			defer tx.End()
			if !tx.Taken(netip.MustParseAddr("10.0.0.3")) {
				t.Error("its name is free")
			}
			own, _, err := tx.Owned("b", "eth0")
			if err != nil || len(own) > 0 || tx.Unread == nil {
				t.Errorf("of b: %v, %v, unread: %v; want that it cannot be told", own, err, tx.Unread)
			}
			if own, _, err := tx.Owned("a", "eth0"); err != nil || len(own) != 1 {
				t.Errorf("of a: %v, %v", own, err)
			}
		})
	}
}

// TestManyFiles: 65,536 reservations are read once, and then a turn makes a handful of
// calls, whatever it does; after a foreign change, one for each file under no lock.
func TestManyFiles(t *testing.T) {
	const many = 65536
	y := newYard(t, memfs.Caps{})
	y.must(y.disk.MkdirAll(memStore))
	for i := range many {
		name := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String()
		y.must(y.disk.WriteFile(filepath.Join(memStore, name), Content(fmt.Sprintf("c%d", i), "eth0")))
	}
	y.later(time.Second)
	count := func(what string, most int64, do func(p *memfs.Process) error) {
		t.Helper()
		p := y.disk.Process()
		defer p.Kill()
		if err := do(p); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := p.Calls(); n > most {
			t.Errorf("%s: %d calls, want at most %d", what, n, most)
		}
	}
	add := func(id, addr string) func(*memfs.Process) error {
		return func(p *memfs.Process) error { return y.add(p, id, addr) }
	}
	count("the first ADD", 5*many+200, add("a", "10.0.0.2"))
	count("the second", 70, add("b", "10.0.0.3"))
	count("DEL", 70, func(p *memfs.Process) error { return y.del(p, "a") })
	count("DEL of the last", 70, func(p *memfs.Process) error { return y.del(p, fmt.Sprintf("c%d", many-1)) })
	count("DEL of nothing", 50, func(p *memfs.Process) error { return y.del(p, "nobody") })
	y.foreign("10.0.0.4", "d")
	y.later(time.Second)
	locked := int64(-1) // calls when the lock is taken, the last time
	count("after host-local", many+many/8, func(p *memfs.Process) error {
		p.SetHook(func(c memfs.Call) error {
			if c.Op == "Flock" {
				locked = p.Calls()
			}
			return nil
		})
		err := add("e", "10.0.0.5")(p)
		if under := p.Calls() - locked; under > 70 {
			t.Errorf("%d calls after the lock", under)
		}
		return err
	})
	y.turn(func(_ *Store, tx *Tx) {
		if n := tx.Reserved(); n != many-1+3 {
			t.Errorf("%d reservations", n)
		}
	})
}

// TestOpenStore: a place that cannot be one is an error that names it.
func TestOpenStore(t *testing.T) {
	for name, do := range map[string]func(y *yard){
		"a file":      func(y *yard) { y.must(y.disk.WriteFile(memStore, nil)) },
		"a dead link": func(y *yard) { y.must(y.disk.Symlink("nowhere", memStore)) },
		"denied":      func(y *yard) { y.must(y.disk.MkdirAll(memStore)); y.must(y.disk.Deny(memStore, unix.EACCES)) },
		"read-only":   func(y *yard) { y.must(y.disk.SetReadOnly("/", true)) },
		"full":        func(y *yard) { y.must(y.disk.SetFree("/", 100)) },
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, memfs.Caps{})
			y.must(y.disk.MkdirAll(filepath.Dir(memStore)))
			do(y)
			p := y.disk.Process()
			defer p.Kill()
			_, err := OpenStore(y.config(p))
			var e *Error
			if !errors.As(err, &e) || e.Object != memStore {
				t.Errorf("%v", err)
			}
			if open := p.OpenFiles(); len(open) > 0 {
				t.Errorf("left open: %v", open)
			}
		})
	}
}
