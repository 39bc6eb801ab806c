package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

const (
	bootA  = "11111111-1111-4111-8111-111111111111"
	bootB  = "22222222-2222-4222-8222-222222222222"
	memRun = "/run/holdfast"
)

// yard is a node's disk with one network's directory, for allocating.
type yard struct {
	t    testing.TB
	disk *memfs.Disk
	boot string
	mono time.Duration
	// wall is the clock that file times are taken from, in ns; it goes on by pace at each
	// look and is seen in steps of tick.
	wall       atomic.Int64
	pace, tick int64
}

func newYard(t testing.TB, caps memfs.Caps) *yard {
	t.Helper()
	y := &yard{t: t, boot: bootA, mono: time.Minute, pace: 1000, tick: 1}
	y.wall.Store(1_800_000_000_000_000_000)
	y.disk = memfs.New(memfs.Options{Now: y.now})
	y.must(y.disk.SetCaps("/", caps))
	y.must(y.disk.MkdirAll("/var/lib/cni"))
	y.must(y.disk.MkdirAll("/run"))
	y.must(y.disk.Mount("/run", memfs.Caps{}))
	y.disk.Sync()
	return y
}

func (y *yard) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) now() int64 { at := y.wall.Add(y.pace); return at - at%y.tick }

// later lets time pass on both clocks.
func (y *yard) later(d time.Duration) { y.mono += d; y.wall.Add(int64(d)) }

func (y *yard) config(fs fsys.FS) StoreConfig {
	return StoreConfig{
		FS: fs, Serial: true, Dir: memStore, RunDir: memRun, Proc: "/nonexistent",
		Boot: y.boot, Mono: func() time.Duration { return y.mono }, Wall: y.now,
	}
}

// foreign writes what host-local writes, whole and without fsync.
func (y *yard) foreign(addr, owner string) {
	y.t.Helper()
	y.must(y.disk.MkdirAll(memStore))
	y.must(y.disk.WriteFile(filepath.Join(memStore, addr), Content(owner, "eth0")))
}

// add is the ADD of the plugin as far as the store goes: it takes the address, or takes
// back all that it did.
func (y *yard) add(fs fsys.FS, id, addr string) error {
	s, err := OpenStore(y.config(fs))
	if err != nil {
		return err
	}
	defer s.Close()
	d, err := s.Draft(id, "eth0", 4026532000)
	if err != nil {
		return err
	}
	defer s.Discard(d)
	tx, err := s.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.End()
	own, _, err := tx.Owned(id, "eth0")
	if err != nil {
		return err
	}
	if len(own) > 0 {
		return errDuplicate
	}
	at := netip.MustParseAddr(addr)
	if tx.Taken(at) {
		return errTaken
	}
	ok, err := tx.Reserve(d, at)
	switch {
	case !ok && err == nil:
		return errTaken
	case ok && err == nil:
		err = tx.SetLast(0, at)
	}
	if err != nil && ok {
		return errors.Join(err, tx.Unreserve(at))
	}
	if err != nil {
		return err
	}
	tx.End()
	if err := s.Sync(); err != nil {
		return errors.Join(err, y.delete(s, id))
	}
	return nil
}

var (
	errDuplicate = errors.New("duplicate")
	errTaken     = errors.New("taken")
)

// del is the DEL of the plugin.
func (y *yard) del(fs fsys.FS, id string) error {
	s, err := OpenStore(y.config(fs))
	if err != nil {
		return err
	}
	defer s.Close()
	return y.delete(s, id)
}

func (y *yard) delete(s *Store, id string) error {
	tx, err := s.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.End()
	own, _, err := tx.Owned(id, "eth0")
	for _, h := range own {
		err = errors.Join(err, tx.Remove(h))
	}
	return err
}

// renew takes over what id has.
func (y *yard) renew(fs fsys.FS, id string) error {
	s, err := OpenStore(y.config(fs))
	if err != nil {
		return err
	}
	defer s.Close()
	tx, err := s.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.End()
	own, _, err := tx.Owned(id, "eth0")
	for _, h := range own {
		err = errors.Join(err, tx.Renew(h, 4026533000))
	}
	return err
}

// files are the reservations that are there, content by name, and the temporary names.
func (y *yard) files() (reservations map[string]string, temps []string) {
	y.t.Helper()
	reservations = map[string]string{}
	names, err := y.disk.List(memStore)
	if errors.Is(err, unix.ENOENT) {
		return reservations, nil
	}
	y.must(err)
	for _, name := range names {
		switch _, kind := parseName(name); {
		case kind == nameReservation:
			b, err := y.disk.ReadFile(filepath.Join(memStore, name))
			if err != nil {
				b = nil // a FIFO and the like
			}
			reservations[name] = string(b)
		case strings.HasPrefix(name, tempPrefix):
			temps = append(temps, name)
		}
	}
	return reservations, temps
}

// stamped returns the names whose stamp counts.
func (y *yard) stamped() (out []string) {
	y.t.Helper()
	p := y.disk.Process()
	defer p.Kill()
	f := files{p, true}
	fd, err := f.openDir(memStore, false)
	y.must(err)
	reservations, _ := y.files()
	for name, content := range reservations {
		one, err := f.openReservation(fd, name)
		y.must(err)
		st, err := f.stamp(one, sum([]byte(content)))
		y.must(err)
		if st != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// known compares what the store says, by its index, with what is there.
func (y *yard) known(what string) {
	y.t.Helper()
	p := y.disk.Process()
	defer p.Kill()
	s, err := OpenStore(y.config(p))
	if err != nil {
		y.t.Fatalf("%s: %v", what, err)
	}
	tx, err := s.Begin(context.Background())
	if err != nil {
		y.t.Fatalf("%s: %v", what, err)
	}
	defer tx.End()
	y.agrees(what, tx)
}

func (y *yard) agrees(what string, tx *Tx) {
	y.t.Helper()
	reservations, _ := y.files()
	owners := map[string][]string{}
	there := map[netip.Addr]bool{}
	for name, content := range reservations {
		there[netip.MustParseAddr(name).Unmap()] = true
		owners[content] = append(owners[content], netip.MustParseAddr(name).Unmap().String())
	}
	for i := range 20 {
		addr := netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i))
		if got := tx.Taken(addr); got != there[addr] {
			y.t.Fatalf("%s: %s is said to be taken: %v; the directory has %v", what, addr, got, slices.Sorted(maps.Keys(reservations)))
		}
	}
	if got := tx.Reserved(); got != len(there) {
		y.t.Fatalf("%s: %d are said to be reserved, and %d are", what, got, len(there))
	}
	for content, want := range owners {
		id, _, ok := strings.Cut(content, "\r\n")
		if !ok {
			continue
		}
		own, _, err := tx.Owned(id, "eth0")
		if err != nil {
			y.t.Fatalf("%s: %v", what, err)
		}
		var got []string
		for _, h := range own {
			got = append(got, h.Addr.String())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			y.t.Fatalf("%s: %s is said to have %v, and has %v", what, id, got, want)
		}
	}
}

// reboot ends every process and begins another boot, which empties /run.
func (y *yard) reboot() {
	y.t.Helper()
	y.must(y.disk.Unmount("/run"))
	y.must(y.disk.Mount("/run", memfs.Caps{}))
	y.nextBoot()
}

func (y *yard) nextBoot() { y.boot, y.mono = bootB, 10*time.Second }

func stampOf(boot string) claim.Stamp {
	return claim.Stamp{Boot: boot, Mono: time.Minute, Netns: 4026532000}
}

func sortedJoin(list []string) string {
	list = slices.Clone(list)
	slices.Sort(list)
	return strings.Join(list, ",")
}
