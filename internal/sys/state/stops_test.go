package state

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
	"github.com/holdfast-cni/holdfast/internal/line"
)

var stopNow = claim.Instant{Boot: boot(1), Mono: 77, Wall: wall}

func stop(n int) line.Stop {
	return line.Stop{Store: fmt.Sprintf("/var/lib/cni/networks/net%d", n), Since: stopNow, Why: "two network namespaces hold 10.0.0.1\n", ReleaseIDs: []string{"20261130-062137-1a2b3c-00001"}}
}

func addStops(d *Dir, more ...line.Stop) error {
	_, err := d.EditStops(func(list []line.Stop) []line.Stop { return append(slices.Clone(list), more...) })
	return err
}

// stopsAll reports whether a list is the one that stops every network.
func stopsAll(list []line.Stop) bool {
	return len(list) == 1 && list[0].Store == "" && list[0].Why != ""
}

func TestStops(t *testing.T) {
	d := newDir(t)
	if list, err := d.LoadStops(stopNow); err != nil || len(list) > 0 {
		t.Fatalf("%v, %v", list, err)
	}
	want := []line.Stop{stop(1), stop(2)}
	if err := addStops(d, want...); err != nil {
		t.Fatal(err)
	}
	for _, ro := range []bool{false, true} {
		if list, err := openDir(t, d.Path(), ro).LoadStops(stopNow); err != nil || !cmp.Equal(list, want) {
			t.Errorf("read-only %v: %v, %v", ro, list, err)
		}
	}
	before, err := os.Stat(d.file(stopsFile))
	if err != nil {
		t.Fatal(err)
	}
	now, err := d.EditStops(func(list []line.Stop) []line.Stop { return slices.Clone(list) })
	if after, _ := os.Stat(d.file(stopsFile)); err != nil || !cmp.Equal(now, want) || !os.SameFile(before, after) {
		t.Errorf("nothing was changed, and %v, %v; written again: %v", now, err, !os.SameFile(before, after))
	}
	for _, bad := range []line.Stop{
		{Store: "networks/net", Why: "w"}, {Store: "/a\xff", Why: "w"}, {Store: "/" + strings.Repeat("a", 4096), Why: "w"}, {Store: "/a"},
		{Store: "/a", Why: strings.Repeat("w", 4097)}, {Store: "/a", Why: "w", ReleaseIDs: []string{""}}, {Store: "/a", Why: "w", ReleaseIDs: make([]string, line.MaxIDs+1)},
	} {
		if err := addStops(d, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.40q: %v", bad, err)
		}
	}
	many := make([]line.Stop, MaxStops)
	for i := range many {
		many[i] = stop(i + 10)
	}
	if err := addStops(d, many...); !errors.Is(err, ErrInvalid) {
		t.Errorf("%d stops: %v", len(many)+2, err)
	}
	if list, err := d.LoadStops(stopNow); err != nil || !cmp.Equal(list, want) {
		t.Errorf("after what was refused: %v, %v", list, err)
	}
	if err := addStops(openDir(t, d.Path(), true), stop(3)); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	if now, err := d.EditStops(func([]line.Stop) []line.Stop { return nil }); err != nil || len(now) > 0 {
		t.Errorf("%v, %v", now, err)
	}
	if list, err := d.LoadStops(stopNow); err != nil || len(list) > 0 {
		t.Errorf("after all were ended: %v, %v", list, err)
	}
}

// The file is cut at every byte and has a bit flipped in every byte: every network is stopped
// until a person resumes, and the damaged file is kept.
func TestDamagedStops(t *testing.T) {
	d := openDir(t, filepath.Join(memDir(t), "state"), false)
	if err := addStops(d, stop(1), stop(2)); err != nil {
		t.Fatal(err)
	}
	path := d.file(stopsFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range good {
		flipped := bytes.Clone(good)
		flipped[n] ^= 1 << (n % 8)
		for _, bad := range [][]byte{good[:n], flipped} {
			kept := path + asideMark + "20261130-062137"
			os.Remove(kept)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			var corrupt *CorruptError
			if list, err := openDir(t, d.Path(), true).LoadStops(stopNow); !errors.As(err, &corrupt) || corrupt.Kept != "" || !stopsAll(list) {
				t.Fatalf("%d, read-only: %v, %v", n, list, err)
			}
			if err := addStops(d, stop(3)); !errors.As(err, &corrupt) {
				t.Fatalf("%d: edited: %v", n, err)
			}
			if list, err := d.LoadStops(stopNow); !errors.As(err, &corrupt) || corrupt.Kept != kept || !stopsAll(list) {
				t.Fatalf("%d: %v, %v", n, list, err)
			}
			if b, err := os.ReadFile(kept); err != nil || !bytes.Equal(b, bad) {
				t.Fatalf("%d: not kept: %v", n, err)
			}
			if list, err := d.LoadStops(stopNow); err != nil || !stopsAll(list) {
				t.Fatalf("%d: the second time: %v, %v", n, list, err)
			}
		}
	}
	if _, err := d.EditStops(func([]line.Stop) []line.Stop { return nil }); err != nil {
		t.Fatal(err)
	}
	if list, err := d.LoadStops(stopNow); err != nil || len(list) > 0 {
		t.Errorf("resumed, and %v, %v", list, err)
	}
}

func TestStopsOfANewerVersion(t *testing.T) {
	d := newDir(t)
	content := append(headerLine(stopsFile, 2), "something else\n"...)
	if err := os.WriteFile(d.file(stopsFile), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := d.LoadStops(stopNow); !errors.Is(err, ErrNewer) || !stopsAll(list) {
		t.Errorf("%v, %v", list, err)
	}
	if err := addStops(d, stop(1)); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
	if now, _ := os.ReadFile(d.file(stopsFile)); !bytes.Equal(now, content) {
		t.Error("it was replaced")
	}
}

// The process ends at each file call of a stop, or of the replacement of a damaged file, and the power with
// it: what was stopped is stopped, always, and once it was acknowledged what is new too.
func TestStopsEndAtEveryCall(t *testing.T) {
	const dir = "/var/lib/holdfast"
	for _, damage := range []bool{false, true} {
		ended := false
		for k := int64(1); !ended; k++ {
			for seed := range uint64(8) {
				disk := memfs.New(memfs.Options{})
				p := disk.Process()
				d, err := Open(dir, Options{FS: p})
				if err == nil {
					err = addStops(d, stop(1))
				}
				if err != nil {
					t.Fatal(err)
				}
				if damage {
					if err := disk.WriteFile(dir+"/"+stopsFile, []byte("holdfast-stops")); err != nil {
						t.Fatal(err)
					}
					disk.Sync()
				}
				p.KillAt(k)
				if damage {
					_, _ = d.LoadStops(stopNow)
				} else {
					_ = addStops(d, stop(2))
				}
				ended = p.Alive()
				p.Kill()
				if seed > 0 {
					disk.Crash(rand.New(rand.NewPCG(seed, 5)))
				}
				if d, err = Open(dir, Options{FS: disk.Process()}); err != nil {
					t.Fatalf("call %d, seed %d: %v", k, seed, err)
				}
				list, err := d.LoadStops(stopNow)
				covers := func(n int) bool {
					return slices.ContainsFunc(list, func(s line.Stop) bool { return s.Covers(stop(n).Store) })
				}
				if !covers(1) || ended && !covers(2) {
					t.Fatalf("call %d, seed %d, damage %v: %v, %v", k, seed, damage, list, err)
				}
			}
			if k > 200 {
				t.Fatal("it never ends")
			}
		}
	}
}

func FuzzStops(f *testing.F) {
	for _, s := range []string{
		`{"store":"/var/lib/cni/networks/net","since":{"boot":"b","mono":5,"wall":"2026-11-30T06:21:37Z"},"why":"two network namespaces hold 10.0.0.1","releaseIDs":["20261130-062137-1a2b3c-00001"]}`,
		`{"since":{},"why":"damaged"}` + "\n" + `{"store":"/b","since":{"mono":-1},"why":"\u001b[2J"}`,
		`{"store":"b","why":"w"}`, `{"store":"/a"}`, `null`, `{"store":"/a","why":"w","releaseIDs":[""]}`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		content := sealed(t, stopsFile, text)
		if content == nil {
			return
		}
		d := given(t, stopsFile, content)
		list, err := d.LoadStops(stopNow)
		if refusal(t, err) {
			// Nobody knows what was stopped, so everything is, and stays so.
			again, err := d.LoadStops(stopNow)
			if !stopsAll(list) || !stopsAll(again) || err != nil {
				t.Fatalf("%v, then %v, %v", list, again, err)
			}
			return
		}
		if lines := bytes.Count(content, []byte{'\n'}) - 2; len(list) != lines {
			t.Fatalf("%d stops in %d lines", len(list), lines)
		}
		for _, s := range list {
			if checkStop(s) != nil {
				t.Fatalf("stop %+v", s)
			}
		}
		if len(list) == MaxStops {
			return
		}
		// One more, so that the file is written anew.
		if err := addStops(d, stop(1)); err != nil {
			t.Fatal(err)
		}
		again, err := d.LoadStops(stopNow)
		if err != nil || !slices.EqualFunc(again, append(list, stop(1)), sameStop) {
			t.Fatalf("%v, %v; there were %v", again, err, list)
		}
	})
}
