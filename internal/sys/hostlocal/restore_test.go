package hostlocal

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestRestore(t *testing.T) {
	tests := []struct {
		name   string
		before func(t *testing.T, b bench, m Move) // after the release
		want   error
		inQ    bool
		stands string // content at the path
	}{
		{"free", func(*testing.T, bench, Move) {}, nil, false, hexID64 + "\r\neth0"},
		{"taken", func(t *testing.T, b bench, m Move) { put(t, m.Path, "other") }, ErrTaken, true, "other"},
		{"taken by an empty file", func(t *testing.T, b bench, m Move) { put(t, m.Path, "") }, ErrTaken, true, ""},
		{"taken in another spelling", func(t *testing.T, b bench, m Move) { put(t, b.path("::ffff:10.0.0.2"), "other") }, ErrTaken, true, "-"},
		{"taken in another spelling by the same owner", func(t *testing.T, b bench, m Move) { put(t, b.path("::ffff:a00:2"), hexID64+"\r\neth0") }, ErrTaken, true, "-"},
		{"a directory of that name", func(t *testing.T, b bench, m Move) {
			if err := os.Mkdir(m.Path, 0o755); err != nil {
				t.Fatal(err)
			}
		}, ErrTaken, true, "-"},
		{"a dangling link of that name", func(t *testing.T, b bench, m Move) {
			if err := os.Symlink("nowhere", m.Path); err != nil {
				t.Fatal(err)
			}
		}, ErrTaken, true, "-"},
		{"there already with the same content", func(t *testing.T, b bench, m Move) { put(t, m.Path, hexID64+"\r\neth0") }, nil, false, hexID64 + "\r\neth0"},
		{"not in the quarantine", func(t *testing.T, b bench, m Move) {
			if err := b.q.Discard(m.ReleaseID); err != nil {
				t.Fatal(err)
			}
		}, fs.ErrNotExist, false, "-"},
		{"network directory gone", func(t *testing.T, b bench, m Move) {
			if err := os.RemoveAll(b.store); err != nil {
				t.Fatal(err)
			}
		}, fs.ErrNotExist, true, "-"},
	}
	for _, tt := range tests {
		for _, where := range []string{"same file system", "EXDEV", "bind"} {
			t.Run(where+"/"+tt.name, func(t *testing.T) {
				b := newBench(t, t.TempDir())
				b.separate(t, where)
				old := time.Unix(1_600_000_000, 123456789)
				if err := errors.Join(os.Chmod(b.path("10.0.0.2"), 0o640), os.Chtimes(b.path("10.0.0.2"), old, old)); err != nil {
					t.Fatal(err)
				}
				m := judged(t, b.store)["10.0.0.2"]
				if out, err := b.one(t, m); out.State != Moved || err != nil {
					t.Fatal(out, err)
				}
				tt.before(t, b, m)
				if err := b.q.Restore(t.Context(), m.ReleaseID, m.Path); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
					t.Errorf("Restore: %v, want %v", err, tt.want)
				}
				if exists(b.inQ(m)) != tt.inQ {
					t.Errorf("in quarantine: %v", exists(b.inQ(m)))
				}
				if tt.stands != "-" && content(t, m.Path) != tt.stands {
					t.Errorf("path holds %q", content(t, m.Path))
				}
				if tt.name == "free" {
					fi, err := os.Stat(m.Path)
					if err != nil || fi.Mode() != 0o640 || !fi.ModTime().Equal(old) {
						t.Errorf("%v %v", fi, err)
					}
				}
			})
		}
	}
}

func TestRestoreRefusesPaths(t *testing.T) {
	b := newBench(t, t.TempDir())
	m := b.moves["10.0.0.2"]
	if out, err := b.one(t, m); out.State != Moved || err != nil {
		t.Fatal(out, err)
	}
	for _, path := range []string{b.path("lock"), b.path("last_reserved_ip.0"), b.path("notes"), "10.0.0.2", ""} {
		if err := b.q.Restore(t.Context(), m.ReleaseID, path); !errors.Is(err, errNotIP) {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, id := range []string{"", "../q/" + m.ReleaseID, ".tmp-x", "a/b", "a\x00"} {
		if err := b.q.Restore(t.Context(), id, m.Path); !errors.Is(err, errReleaseID) {
			t.Errorf("%q: %v", id, err)
		}
		if err := b.q.Discard(id); !errors.Is(err, errReleaseID) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestRestoreLocked(t *testing.T) {
	b := newBench(t, t.TempDir())
	m := b.moves["10.0.0.2"]
	if out, err := b.one(t, m); out.State != Moved || err != nil {
		t.Fatal(out, err)
	}
	pid, _ := lockElsewhere(t, b.path(lockName))
	b.q.Wait = 20 * time.Millisecond
	var locked *ErrLocked
	if err := b.q.Restore(t.Context(), m.ReleaseID, m.Path); !errors.As(err, &locked) || len(locked.Holders) != 1 || locked.Holders[0] != pid {
		t.Errorf("err = %v", err)
	}
	b.wantPlace(t, m, false, true)
}

// Without O_TMPFILE the copy has a name that host-local's GC passes over, and none of
// it stays behind.
func TestRestoreNamedCopy(t *testing.T) {
	for _, taken := range []bool{false, true} {
		b := newBench(t, t.TempDir())
		m := b.moves["10.0.0.2"]
		if out, err := b.one(t, m); out.State != Moved || err != nil {
			t.Fatal(out, err)
		}
		if taken {
			put(t, m.Path, "other")
		}
		dir := openStore(t, b.store)
		src, err := os.Open(b.inQ(m))
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		put(t, b.path("last_reserved_ip.holdfast-undo-"+m.ReleaseID), "left by a crash")
		addr, _ := parseName("10.0.0.2")
		r := restoreRun{q: b.q, fs: kernel, store: dir, name: "10.0.0.2", addr: addr, inc: m.Inc}
		err = r.copyBackNamed(t.Context(), m.ReleaseID, int(src.Fd()), []byte(hexID64+"\r\neth0"))
		if taken != errors.Is(err, ErrTaken) || !taken && err != nil {
			t.Errorf("taken %v: %v", taken, err)
		}
		want := map[bool]string{false: hexID64 + "\r\neth0", true: "other"}[taken]
		if content(t, m.Path) != want {
			t.Errorf("taken %v: path holds %q", taken, content(t, m.Path))
		}
		if left, _ := os.ReadDir(b.store); len(left) != 3 {
			t.Errorf("store holds %v", left)
		}
	}
}

// The crash rules of Quarantine's documentation: every state that a crash can leave,
// made by hand, what Place says of it, and that the rule converges (I4).
func TestCrashRules(t *testing.T) {
	link := func(t *testing.T, from, to string) {
		t.Helper()
		if err := os.Link(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move := func(t *testing.T, from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	text := hexID64 + "\r\neth0"
	tests := []struct {
		name                string
		make                func(t *testing.T, b bench, m Move)
		origin, quarantined bool
		settle              string // "discard" or "restore" or ""
		stands              string
	}{
		{"before the rename", func(*testing.T, bench, Move) {}, true, false, "discard", text},
		{"after the rename", func(t *testing.T, b bench, m Move) { move(t, m.Path, b.inQ(m)) }, false, true, "", "-"},
		{"between link and unlink", func(t *testing.T, b bench, m Move) { link(t, m.Path, b.inQ(m)) }, true, true, "discard", text},
		{"copy half written", func(t *testing.T, b bench, m Move) { put(t, filepath.Join(b.q.Dir, tmpName(m.ReleaseID)), text[:9]) }, true, false, "discard", text},
		{"copy in place, original stands", func(t *testing.T, b bench, m Move) { put(t, b.inQ(m), text) }, true, true, "discard", text},
		{"copy in place, original gone", func(t *testing.T, b bench, m Move) { put(t, b.inQ(m), text); _ = os.Remove(m.Path) }, false, true, "", "-"},
		{"undo not begun", func(t *testing.T, b bench, m Move) { move(t, m.Path, b.inQ(m)) }, false, true, "restore", text},
		{"undo's copy placed, quarantine not emptied", func(t *testing.T, b bench, m Move) {
			move(t, m.Path, b.inQ(m))
			put(t, m.Path, text)
		}, false, true, "restore", text},
		{"undo done", func(t *testing.T, b bench, m Move) {
			move(t, m.Path, b.inQ(m))
			move(t, b.inQ(m), m.Path)
		}, false, false, "", text},
		{"address taken by another meanwhile", func(t *testing.T, b bench, m Move) {
			move(t, m.Path, b.inQ(m))
			put(t, m.Path, "other")
		}, false, true, "", "other"},
		{"quarantine's file torn by a power loss", func(t *testing.T, b bench, m Move) { put(t, b.inQ(m), ""); _ = os.Remove(m.Path) }, false, false, "", "-"},
		{"gone before we came", func(t *testing.T, b bench, m Move) { _ = os.Remove(m.Path) }, false, false, "", "-"},
		{"changed before we came", func(t *testing.T, b bench, m Move) { put(t, m.Path, "other") }, false, false, "", "other"},
		{"network directory gone", func(t *testing.T, b bench, m Move) { _ = os.RemoveAll(b.store) }, false, false, "", "-"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			m := b.moves["10.0.0.2"]
			if err := b.q.Check(b.store); err != nil {
				t.Fatal(err)
			}
			tt.make(t, b, m)
			b.wantPlace(t, m, tt.origin, tt.quarantined)
			var err error
			switch tt.settle {
			case "discard":
				err = b.q.Discard(m.ReleaseID)
			case "restore":
				err = b.q.Restore(t.Context(), m.ReleaseID, m.Path)
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.settle != "" {
				if left, _ := os.ReadDir(b.q.Dir); len(left) != 0 {
					t.Errorf("quarantine holds %v", left)
				}
			}
			if tt.stands == "-" {
				if exists(m.Path) {
					t.Error("path exists")
				}
			} else if got := content(t, m.Path); got != tt.stands {
				t.Errorf("path holds %q", got)
			}
		})
	}
	t.Run("another device number after a reboot", func(t *testing.T) {
		b := newBench(t, t.TempDir())
		m := b.moves["10.0.0.2"]
		m.Inc.Dev++
		b.wantPlace(t, m, true, false)
		m.Inc.Ctime++
		b.wantPlace(t, m, false, false)
	})
	t.Run("quarantine missing", func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.wantPlace(t, b.moves["10.0.0.2"], true, false)
	})
}

// A process killed with SIGKILL while it releases: of every reservation the original
// stands or the quarantine holds it whole, and settling leaves exactly one (I4).
func TestKilledWhileReleasing(t *testing.T) {
	for _, where := range []string{"same file system", "EXDEV"} {
		t.Run(where, func(t *testing.T) {
			moved, stood := 0, 0
			for round := range 8 {
				store := fill(t, 150)
				b := bench{store: store, q: &Quarantine{Dir: filepath.Join(t.TempDir(), "q")}}
				b.separate(t, where)
				moves := judged(t, store)
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), helperEnv+"=release:"+store+":"+b.q.Dir)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
					t.Fatalf("helper said %q, %v", line, err)
				}
				time.Sleep(time.Duration(round) * 1500 * time.Microsecond)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()

				for name, m := range moves {
					origin, quarantined, err := b.q.Place(m)
					if err != nil || !origin && !quarantined {
						t.Fatalf("%s: %v %v %v", name, origin, quarantined, err)
					}
					if origin {
						stood++
						if err := b.q.Discard(m.ReleaseID); err != nil {
							t.Fatal(err)
						}
						b.wantPlace(t, m, true, false)
						continue
					}
					moved++
					if err := b.q.Restore(t.Context(), m.ReleaseID, m.Path); err != nil {
						t.Fatal(err)
					}
				}
				if left, _ := os.ReadDir(b.q.Dir); len(left) != 0 {
					t.Errorf("quarantine holds %v", left)
				}
				for _, m := range moves {
					if n := len(content(t, m.Path)); n != 64+6 {
						t.Errorf("%s holds %d bytes", m.Path, n)
					}
				}
			}
			t.Logf("%d moved, %d stood", moved, stood)
		})
	}
}
