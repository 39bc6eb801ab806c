package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

func ownerOf(id, ifName string) claim.Owner {
	return claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: ifName}
}

// What is written is what host-local would have written, and nothing that is there is
// touched (case F12).
func TestAdopt(t *testing.T) {
	lives := ownerOf(hexID64, "eth0")
	for _, tt := range []struct {
		name  string
		lies  string // at the path before; "-": nothing
		path  string
		owner claim.Owner
		want  State
		err   error
		then  string
	}{
		{"free", "-", "10.0.0.9", lives, Adopted, nil, hexID64 + "\r\neth0"},
		{"free, the old form", "-", "10.0.0.9", ownerOf(hexID64, ""), Adopted, nil, hexID64},
		{"free, IPv6", "-", "fd00::9", lives, Adopted, nil, hexID64 + "\r\neth0"},
		{"another's", "other", "10.0.0.9", lives, Taken, errAnothers, "other"},
		{"empty", "", "10.0.0.9", lives, Taken, errAnothers, ""},
		{"its own", hexID64 + "\r\neth0", "10.0.0.9", lives, Taken, errItsOwn, hexID64 + "\r\neth0"},
		{"its own, on another interface", hexID64 + "\r\nnet1", "10.0.0.9", lives, Taken, errAnothers, hexID64 + "\r\nnet1"},
		{"not as host-local spells it", "-", "::ffff:a00:9", lives, Failed, errSpelling, "-"},
		{"no address", "-", "lock2", lives, Failed, errNotIP, "-"},
		{"host-local's own", "-", "last_reserved_ip.0", lives, Failed, errNotIP, "-"},
		{"elsewhere", "-", "../10.0.0.9", lives, Failed, errElsewhere, "-"},
		{"no owner", "-", "10.0.0.9", claim.Owner{}, Failed, errOwner, "-"},
		{"an owner of no known shape", "-", "10.0.0.9", claim.Owner{Shape: claim.ShapeContainer, ID: "4711\r\nx"}, Failed, errOwner, "-"},
		{"a strange interface", "-", "10.0.0.9", ownerOf(hexID64, "e\nth0"), Failed, errOwner, "-"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := makeStore(t, t.TempDir())
			p := store + "/" + tt.path
			if tt.lies != "-" {
				put(t, p, tt.lies)
			}
			held := 0
			a := Adopter{Held: func(time.Duration) { held++ }}
			out, err := a.Adopt(t.Context(), store, []Adoption{{"r1", p, tt.owner}}, func() bool { return true })
			if err != nil || out[0].State != tt.want || !errors.Is(out[0].Err, tt.err) || (out[0].Err == nil) != (tt.err == nil) {
				t.Fatalf("%+v, %v; want %s, %v", out, err, tt.want, tt.err)
			}
			if held != 1 {
				t.Errorf("%d holds of the lock are told of", held)
			}
			if tt.then == "-" {
				if exists(p) {
					t.Error("it was made")
				}
			} else if content(t, p) != tt.then {
				t.Errorf("it holds %q", content(t, p))
			}
			if tt.want != Adopted {
				return
			}
			if now := judged(t, store)[tt.path]; now.Inc != out[0].Inc {
				t.Errorf("listed as %+v, said to be %+v", now.Inc, out[0].Inc)
			}
			if fi, err := os.Stat(p); err != nil || fi.Mode() != 0o600 {
				t.Errorf("%v, %v", fi, err)
			}
			if n, err := unix.Getxattr(p, StampAttr, nil); err == nil {
				t.Errorf("it has a stamp of %d bytes", n)
			}
			if inc, stands, err := a.Look(Adoption{"r1", p, tt.owner}); err != nil || !stands || inc != out[0].Inc {
				t.Errorf("looked at: %+v, %v, %v", inc, stands, err)
			}
		})
	}
}

// A lock that came too late makes nothing.
func TestAdoptStale(t *testing.T) {
	store := makeStore(t, t.TempDir())
	p := store + "/10.0.0.9"
	var a Adopter
	out, err := a.Adopt(t.Context(), store, []Adoption{{"r1", p, ownerOf(hexID64, "eth0")}}, func() bool { return false })
	if !errors.Is(err, ErrStale) || out[0].State != Failed || exists(p) {
		t.Errorf("%+v, %v", out, err)
	}
}

// Everything that keeps it from beginning, and that last_reserved_ip stays as it was.
func TestAdoptEnds(t *testing.T) {
	store := makeStore(t, t.TempDir())
	put(t, store+"/last_reserved_ip.0", "10.0.0.4")
	p := store + "/10.0.0.9"
	list := []Adoption{{"r1", p, ownerOf(hexID64, "eth0")}}
	a := Adopter{Wait: 20 * time.Millisecond}
	pid, stop := lockElsewhere(t, store+"/lock")
	var locked *ErrLocked
	if out, err := a.Adopt(t.Context(), store, list, nil); !errors.As(err, &locked) || out[0].State != Failed || exists(p) || len(locked.Holders) != 1 || locked.Holders[0] != pid {
		t.Errorf("locked: %+v, %v", out, err)
	}
	stop()
	none := filepath.Join(t.TempDir(), "none")
	gone := []Adoption{{"r1", none + "/pods/10.0.0.9", ownerOf(hexID64, "eth0")}}
	if out, err := a.Adopt(t.Context(), none+"/pods", gone, nil); !errors.Is(err, errNoDataDir) || out[0].State != Failed || exists(none) {
		t.Errorf("no data directory: %+v, %v", out, err)
	}
	if _, stands, err := a.Look(gone[0]); stands || err != nil {
		t.Errorf("no data directory: stands %v, %v", stands, err)
	}
	if out, err := a.Adopt(t.Context(), store, list, nil); err != nil || out[0].State != Adopted {
		t.Errorf("%+v, %v", out, err)
	}
	if got := content(t, store+"/last_reserved_ip.0"); got != "10.0.0.4" {
		t.Errorf("last_reserved_ip.0 is %q", got)
	}
}

// The lock of I12: it is not held across an fsync, and host-local is waited for.
func TestAdoptSyncsWithoutTheLock(t *testing.T) {
	n := newMemNode(t, memfs.Caps{}, false)
	p := n.disk.Process()
	defer p.Kill()
	locked := false
	p.SetHook(func(c memfs.Call) error {
		switch c.Op {
		case "Flock":
			locked = true
		case "Close":
			if strings.HasSuffix(c.Path(), "/lock") {
				locked = false
			}
		case "Fsync":
			if locked {
				t.Error("fsync under the lock")
			}
		case "LinkFD":
			if !locked {
				t.Error("named without the lock")
			}
		}
		return nil
	})
	a := Adopter{FS: p, Serial: true}
	out, err := a.Adopt(context.Background(), memStore, []Adoption{{"r9", memStore + "/10.0.0.9", ownerOf(hexID64, "eth0")}}, nil)
	if err != nil || out[0].State != Adopted {
		t.Fatalf("%+v, %v", out, err)
	}
}

// TestAdoptEndsAtEveryCall ends the process at each of its file calls, and the machine
// too: a name stands for a whole reservation or is not there, what is said to stand does so
// after a power loss, and the next try ends it (I4).
func TestAdoptEndsAtEveryCall(t *testing.T) {
	for _, tt := range []struct {
		name string
		caps memfs.Caps
		dir  string
	}{
		{"O_TMPFILE", memfs.Caps{}, memStore},
		{"a file system that can do little", memfs.Caps{NoReplace: true, NoXattr: true, NoTmpfile: true}, memStore},
		{"the directory is gone", memfs.Caps{}, filepath.Dir(memStore) + "/other"},
		{"the directory is gone, without O_TMPFILE", memfs.Caps{NoTmpfile: true}, filepath.Dir(memStore) + "/other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list []Adoption
			for i := range 2 {
				list = append(list, Adoption{fmt.Sprintf("r%d", i), fmt.Sprintf("%s/10.0.0.%d", tt.dir, i+20), ownerOf(hexID64, "eth0")})
			}
			ended := false
			for k := int64(1); !ended; k++ {
				for seed := range uint64(9) {
					n := newMemNode(t, tt.caps, false)
					p := n.disk.Process()
					p.KillAt(k)
					a := Adopter{FS: p, Serial: true}
					out, err := a.Adopt(context.Background(), tt.dir, list, nil)
					ended = p.Alive()
					what := fmt.Sprintf("killed at call %d, seed %d", k, seed)
					if ended && (err != nil || out[0].State != Adopted || out[1].State != Adopted || out[0].Err != nil) {
						t.Fatalf("%s: %+v, %v", what, out, err)
					}
					p.Kill()
					if seed > 0 {
						n.disk.Crash(rand.New(rand.NewPCG(seed, 3)))
					}
					p = n.disk.Process()
					a = Adopter{FS: p, Serial: true}
					for i, m := range list {
						b, rerr := n.disk.ReadFile(m.Path)
						whole := rerr == nil && string(b) == hexID64+"\r\neth0"
						if rerr == nil && !whole {
							t.Fatalf("%s: half of one: %q", what, b)
						}
						if out[i].State == Adopted && out[i].Err == nil && ended && !whole {
							t.Fatalf("%s: said to stand, and is not there", what)
						}
						inc, stands, err := a.Look(m)
						if err != nil || stands != whole || stands && inc.Sum == "" {
							t.Fatalf("%s: looked at: %v, %v, %v; it is whole: %v", what, inc, stands, err, whole)
						}
					}
					if out, err := a.Adopt(context.Background(), tt.dir, list, nil); err != nil || out[0].State == Failed || out[1].State == Failed {
						t.Fatalf("%s, again: %+v, %v", what, out, err)
					}
					p.Kill()
					names, err := n.disk.List(tt.dir)
					if err != nil {
						t.Fatal(err)
					}
					for _, name := range names {
						if strings.HasPrefix(name, adoptPrefix) {
							t.Fatalf("%s: %s is left", what, name)
						}
					}
				}
				if k > 200 {
					t.Fatal("it never ends")
				}
			}
		})
	}
}
