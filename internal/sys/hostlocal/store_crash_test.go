package hostlocal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// storeTurn is one thing that a process does at a store.
type storeTurn struct {
	name    string
	empty   bool // there is no directory yet
	stamped bool // it is about a stamp
	run     func(y *yard, fs fsys.FS) error
	// done: what was said to be done is.
	done func(there map[string]string) bool
}

func storeTurns() []storeTurn {
	has := func(name, id string) func(map[string]string) bool {
		return func(there map[string]string) bool { return there[name] == string(Content(id, "eth0")) }
	}
	add := func(y *yard, fs fsys.FS) error { return y.add(fs, "c", "10.0.0.4") }
	return []storeTurn{
		{name: "ADD", run: add, done: has("10.0.0.4", "c")},
		{name: "ADD in a new directory", empty: true, run: add, done: has("10.0.0.4", "c")},
		{name: "DEL", run: func(y *yard, fs fsys.FS) error { return y.del(fs, "a") },
			done: func(there map[string]string) bool { _, ok := there["10.0.0.2"]; return !ok }},
		{name: "take over", stamped: true, run: func(y *yard, fs fsys.FS) error { return y.renew(fs, "a") }, done: has("10.0.0.2", "a")},
	}
}

// prepare makes what a turn begins with: one reservation of ours and one of host-local's.
func (turn *storeTurn) prepare(t *testing.T, caps memfs.Caps) *yard {
	t.Helper()
	y := newYard(t, caps)
	if !turn.empty {
		p := y.disk.Process()
		y.must(y.add(p, "a", "10.0.0.2"))
		p.Kill()
		y.foreign("10.0.0.3", "b")
	}
	y.disk.Sync()
	y.later(time.Minute)
	return y
}

// whole: no name stands for less than a whole reservation, what was there is there, and
// ours are stamped where that is possible.
func (turn *storeTurn) whole(y *yard, what string, stamps bool) {
	y.t.Helper()
	there, _ := y.files()
	for name, content := range there {
		if !slices.Contains([]string{"a\r\neth0", "b\r\neth0", "c\r\neth0"}, content) {
			y.t.Fatalf("%s: %s holds %q", what, name, content)
		}
	}
	if turn.empty && len(there) == 0 {
		return
	}
	_, a := there["10.0.0.2"]
	_, b := there["10.0.0.3"]
	if !turn.empty && (!b || !a && turn.name != "DEL") {
		y.t.Fatalf("%s: lost what was there: %v", what, there)
	}
	var want []string
	for name, content := range there {
		if content != "b\r\neth0" && stamps {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if got := y.stamped(); !slices.Equal(got, want) {
		y.t.Fatalf("%s: stamped are %v, want %v", what, got, want)
	}
}

func fileSystemCaps() map[string]memfs.Caps {
	return map[string]memfs.Caps{
		"all":             {},
		"no O_TMPFILE":    {NoTmpfile: true},
		"nothing, as NFS": {NoTmpfile: true, NoReplace: true, NoXattr: true},
	}
}

// TestTurnEndsAtEveryCall kills the process at each of its file calls, and the machine too:
// a name never stands for less than a whole reservation, no reservation that was acknowledged is
// lost, the index is never believed wrongly, and the same turn again gets there.
func TestTurnEndsAtEveryCall(t *testing.T) {
	for _, turn := range storeTurns() {
		for name, caps := range fileSystemCaps() {
			if turn.stamped && caps.NoXattr {
				continue
			}
			t.Run(turn.name+"/"+name, func(t *testing.T) {
				cells, ended := 0, false
				for k := int64(1); !ended; k++ {
					for seed := range uint64(7) {
						cells++
						ended = turn.die(t, caps, k, seed)
					}
					if k > 300 {
						t.Fatal("it never ends")
					}
				}
				t.Logf("%d ends", cells)
			})
		}
	}
}

// die runs the turn, ends it at its call k, and with a seed takes the power away too; in
// every second of these the index is on a disk, so that some of it survives. It returns true
// when the turn came to its end before.
func (turn *storeTurn) die(t *testing.T, caps memfs.Caps, k int64, seed uint64) bool {
	t.Helper()
	y := turn.prepare(t, caps)
	what := fmt.Sprintf("ended at call %d, seed %d", k, seed)
	p := y.disk.Process()
	p.KillAt(k)
	err := turn.run(y, p)
	alive := p.Alive()
	if alive && err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	p.Kill()
	if seed > 0 {
		y.disk.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
		if seed%2 == 0 {
			y.nextBoot()
		} else {
			y.reboot()
		}
	}
	there, _ := y.files()
	// What a DEL removed the power may bring back, whole and stamped, beside all else that the boot
	// leaves behind dead: that is not fsynced.
	if back := turn.name == "DEL" && seed > 0; alive && !back && !turn.done(there) {
		t.Fatalf("%s: said to be done, and there is %v", what, there)
	}
	turn.whole(y, what, !caps.NoXattr)
	if !turn.empty || len(there) > 0 {
		y.known(what)
	}
	// Somebody comes by later, and the runtime tries again.
	y.later(11 * time.Minute)
	p = y.disk.Process()
	defer p.Kill()
	if err := turn.run(y, p); err != nil && !errors.Is(err, errDuplicate) {
		t.Fatalf("%s, again: %v", what, err)
	}
	there, _ = y.files()
	if !turn.done(there) {
		t.Fatalf("%s, again: there is %v", what, there)
	}
	turn.whole(y, what+", again", !caps.NoXattr)
	y.foreign("10.0.0.9", "b") // so that the directory is read
	y.known(what + ", again")
	if _, temps := y.files(); len(temps) > 0 {
		t.Fatalf("%s, again: left %v", what, temps)
	}
	return alive
}

// TestTurnFailsAtEveryCall makes each file call of a turn fail once: the turn did all of it
// or nothing, and the error names a path.
func TestTurnFailsAtEveryCall(t *testing.T) {
	for _, turn := range storeTurns() {
		for name, caps := range fileSystemCaps() {
			if turn.stamped && caps.NoXattr {
				continue
			}
			t.Run(turn.name+"/"+name, func(t *testing.T) {
				failed := 0
				for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EDQUOT, unix.EMFILE, unix.EACCES} {
					for k := int64(1); ; k++ {
						y := turn.prepare(t, caps)
						before, _ := y.files()
						p := y.disk.Process()
						var op string
						p.SetHook(func(c memfs.Call) error {
							if k--; k == 0 {
								op = c.Op + " " + c.Path()
								return errno
							}
							return nil
						})
						at := k
						err := turn.run(y, p)
						if op == "" {
							break
						}
						k = at
						p.Kill()
						what := fmt.Sprintf("%v at call %d (%s): %v", errno, at, op, err)
						there, _ := y.files()
						if err != nil {
							failed++
							if !strings.Contains(err.Error(), "/var/lib/cni") {
								t.Errorf("%s: names no path", what)
							}
							if turn.name == "ADD" || turn.empty {
								if len(there) != len(before) {
									t.Errorf("%s: left %v", what, there)
								}
							}
						} else if !turn.done(there) {
							t.Errorf("%s: success, and there is %v", what, there)
						}
						// An attribute that cannot be set is no error of an ADD.
						if !strings.HasPrefix(op, "Fsetxattr") {
							turn.whole(y, what, !caps.NoXattr)
						}
						y.known(what)
					}
				}
				if failed < 20 {
					t.Errorf("%d failures", failed)
				}
			})
		}
	}
}

// A directory whose maker was killed before its name was durable: whoever makes sure of the
// name, as ADD does at its look at the kernel, loses nothing with the power. Who does not
// may.
func TestSyncName(t *testing.T) {
	for _, sync := range []bool{true, false} {
		lost := 0
		for seed := range uint64(40) {
			y := newYard(t, memfs.Caps{})
			maker := y.disk.Process()
			y.must(maker.Mkdirat(unix.AT_FDCWD, filepath.Dir(memStore), 0o755))
			y.must(maker.Mkdirat(unix.AT_FDCWD, memStore, 0o755))
			maker.Kill()
			p := y.disk.Process()
			if sync {
				s, err := OpenStore(y.config(p))
				y.must(err)
				y.must(s.SyncName())
				y.must(s.Close())
			}
			y.must(y.add(p, "c", "10.0.0.4"))
			p.Kill()
			y.disk.Crash(rand.New(rand.NewPCG(seed, 1)))
			if there, _ := y.files(); there["10.0.0.4"] != string(Content("c", "eth0")) {
				lost++
			}
		}
		if sync != (lost == 0) {
			t.Errorf("name made durable: %v, and %d of 40 lost it", sync, lost)
		}
	}
}
