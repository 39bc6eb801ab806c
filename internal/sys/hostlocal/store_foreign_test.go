package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// hostLocal is host-local 1.10 as far as others can see it: under its lock it makes a name,
// writes the content then, and writes last_reserved_ip in place.
type hostLocal struct {
	y    *yard
	p    *memfs.Process
	lock int
	fd   int
}

// begin takes the lock; false when another has it.
func (h *hostLocal) begin() bool {
	h.y.t.Helper()
	h.p = h.y.disk.Process()
	var err error
	h.lock, err = h.p.Openat(unix.AT_FDCWD, filepath.Join(memStore, lockName), unix.O_RDWR|unix.O_CREAT, 0o750)
	h.y.must(err)
	if err := h.p.Flock(h.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		h.p.Kill()
		return false
	}
	return true
}

func (h *hostLocal) end() { h.p.Kill() }

func (h *hostLocal) create(addr string) {
	h.y.t.Helper()
	var err error
	h.fd, err = h.p.Openat(unix.AT_FDCWD, filepath.Join(memStore, addr), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	h.y.must(err)
}

func (h *hostLocal) fill(owner string) {
	h.y.t.Helper()
	_, err := h.p.Write(h.fd, Content(owner, "eth0"))
	h.y.must(err)
	h.y.must(h.y.disk.WriteFile(filepath.Join(memStore, lastPrefix+"0"), []byte("10.0.0.9")))
}

func (h *hostLocal) remove(addr string) {
	h.y.t.Helper()
	h.y.must(h.y.disk.Remove(filepath.Join(memStore, addr)))
}

// TestForeignBetweenAnyTwoCalls lets host-local work between any two file calls of ours,
// with clocks of every step, in one go or stopped on its way: it is always noticed.
func TestForeignBetweenAnyTwoCalls(t *testing.T) {
	type half func(h *hostLocal)
	nothing := func(*hostLocal) {}
	deeds := []struct {
		name        string
		first, then half
	}{
		{"ADD", func(h *hostLocal) { h.create("10.0.0.9") }, func(h *hostLocal) { h.fill("d") }},
		{"DEL", func(h *hostLocal) { h.remove("10.0.0.3") }, nothing},
		{"DEL, and ADD of the same address and inode", func(h *hostLocal) {
			h.remove("10.0.0.3")
			h.create("10.0.0.3")
		}, func(h *hostLocal) { h.fill("e") }},
		{"DEL, and ADD of another address in the same inode", func(h *hostLocal) {
			h.remove("10.0.0.3")
			h.create("10.0.0.8")
		}, func(h *hostLocal) { h.fill("e") }},
		{"killed half-way", func(h *hostLocal) { h.create("10.0.0.9") }, nothing},
	}
	turns := []struct {
		name string
		run  func(y *yard, p *memfs.Process) error
	}{
		{"ADD", func(y *yard, p *memfs.Process) error { return y.add(p, "c", "10.0.0.4") }},
		{"DEL", func(y *yard, p *memfs.Process) error { return y.del(p, "a") }},
		{"nothing", func(y *yard, p *memfs.Process) error {
			s, err := OpenStore(y.config(p))
			if err != nil {
				return err
			}
			defer s.Close()
			tx, err := s.Begin(context.Background())
			if err == nil {
				tx.End()
			}
			return err
		}},
	}
	clocks := []struct {
		name       string
		pace, tick int64
		pause      time.Duration // around each half
	}{
		{"fine", 1000, 1, 0},
		{"4 ms", 1000, 4e6, 0},
		{"10 ms, and it stands still", 0, 10e6, 0},
		{"10 ms, and all is slow", 3e6, 10e6, 0},
		{"4 ms, and host-local is slow", 1000, 4e6, 30 * time.Millisecond},
		{"1 s", 1000, 1e9, 0},
	}
	for _, deed := range deeds {
		for _, turn := range turns {
			for _, clock := range clocks {
				t.Run(deed.name+"/"+turn.name+"/"+clock.name, func(t *testing.T) {
					worked := 0
					for at := int64(1); ; at++ {
						reached := false
						for gap := int64(0); gap < 12; gap++ {
							y := newYard(t, memfs.Caps{})
							y.pace, y.tick = clock.pace, clock.tick
							p := y.disk.Process()
							y.must(y.add(p, "a", "10.0.0.2"))
							p.Kill()
							y.foreign("10.0.0.3", "b")
							y.later(time.Second)
							y.known("before") // an index that counts

							h := &hostLocal{y: y}
							n, working := int64(0), false
							p = y.disk.Process()
							p.SetHook(func(memfs.Call) error {
								n++
								if n == at {
									reached = true
									y.wall.Add(int64(clock.pause))
									if working = h.begin(); working {
										worked++
										deed.first(h)
										y.wall.Add(int64(clock.pause))
									}
								}
								if working && n >= at+gap {
									working = false
									deed.then(h)
									h.end()
								}
								return nil
							})
							err := turn.run(y, p)
							p.SetHook(nil)
							if working { // we were told that it holds the lock, or came to the end
								deed.then(h)
								h.end()
							}
							var locked *ErrLocked
							if errors.As(err, &locked) {
								err = turn.run(y, p)
							}
							if err != nil {
								t.Fatalf("host-local at call %d for %d: %v", at, gap, err)
							}
							p.Kill()
							y.known(fmt.Sprintf("host-local at call %d for %d", at, gap))
						}
						if !reached {
							break
						}
					}
					if worked < 50 {
						t.Errorf("it worked %d times", worked)
					}
				})
			}
		}
	}
}

// TestForeignWithinOneTick: the clock stands still, so that no time of any file tells one
// change from another.
func TestForeignWithinOneTick(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	y.pace, y.tick = 0, 10e6
	p := y.disk.Process()
	defer p.Kill()
	y.must(y.add(p, "a", "10.0.0.2"))
	y.known("ours")
	y.foreign("10.0.0.9", "b")
	for i := range 20 {
		name := fmt.Sprintf("10.0.0.%d", 3+i%5)
		y.must(y.disk.Remove(filepath.Join(memStore, "10.0.0.9"))) // all of it is as before but the content
		y.foreign("10.0.0.9", fmt.Sprintf("o%d", i%2))
		switch i % 4 {
		case 0:
			y.foreign(name, "b")
		case 1: // the inode is used again, and its ctime is the same
			y.must(y.disk.Remove(filepath.Join(memStore, fmt.Sprintf("10.0.0.%d", 3+(i-1)%5))))
			y.foreign(name, "d")
		case 2:
			y.must(y.add(p, fmt.Sprintf("n%d", i), "10.0.0.15"))
			y.must(y.del(p, fmt.Sprintf("n%d", i)))
		case 3:
			y.must(y.disk.Remove(filepath.Join(memStore, fmt.Sprintf("10.0.0.%d", 3+(i-2)%5))))
		}
		y.known(fmt.Sprintf("after %d", i))
	}
}

// TestConcurrentTurns: processes that pick the same next address, on one directory.
func TestConcurrentTurns(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	const procs, turns = 6, 15
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[netip.Addr]string{}
	for n := range procs {
		wg.Go(func() {
			for i := range turns {
				id := fmt.Sprintf("p%d-%d", n, i)
				p := y.disk.Process()
				addr, err := y.next(p, id)
				p.Kill()
				mu.Lock()
				switch {
				case err != nil:
					t.Errorf("%s: %v", id, err)
				case got[addr] != "":
					t.Errorf("%s was handed to %s and to %s", addr, got[addr], id)
				}
				got[addr] = id
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	there, _ := y.files()
	if len(there) != procs*turns {
		t.Errorf("%d reservations, want %d", len(there), procs*turns)
	}
	for addr, id := range got {
		if there[addr.String()] != string(Content(id, "eth0")) {
			t.Errorf("%s of %s holds %q", addr, id, there[addr.String()])
		}
	}
	y.known("in the end")
}

// next reserves the first address that is free, waiting for the lock.
func (y *yard) next(p *memfs.Process, id string) (netip.Addr, error) {
	cfg := y.config(p)
	cfg.Serial = false
	s, err := OpenStore(cfg)
	if err != nil {
		return netip.Addr{}, err
	}
	defer s.Close()
	d, err := s.Draft(id, "eth0", 1)
	if err != nil {
		return netip.Addr{}, err
	}
	defer s.Discard(d)
	tx, err := s.Begin(context.Background())
	if err != nil {
		return netip.Addr{}, err
	}
	defer tx.End()
	for addr := netip.MustParseAddr("10.0.0.1"); ; addr = addr.Next() {
		if tx.Taken(addr) {
			continue
		}
		if ok, err := tx.Reserve(d, addr); ok || err != nil {
			return addr, err
		}
	}
}
