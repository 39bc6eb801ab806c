package cnicache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

func frozen() claim.Instant { return claim.Instant{Boot: "b", Mono: time.Second} }

// cacheDir makes a cache directory with entries.
func cacheDir(t testing.TB, entries map[string][]byte) (dir, results string) {
	t.Helper()
	dir = t.TempDir()
	results = filepath.Join(dir, "results")
	if err := os.Mkdir(results, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range entries {
		if err := os.WriteFile(filepath.Join(results, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, results
}

func TestListHostileDirectory(t *testing.T) {
	a := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
	b := claim.Attachment{Network: "cbr0", ContainerID: hexB, IfName: "eth0"}
	dir, results := cacheDir(t, map[string][]byte{
		nameOf(a):             v1(t, a, bridgeList, result100),
		nameOf(b):             {},
		"big":                 bytes.Repeat([]byte("x"), maxFile+1),
		tempPrefix + "1-0":    []byte("x"),
		"\x1b[2J" + nameOf(a): []byte("{"),
	})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, v1(t, a, bridgeList, result100), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Symlink(secret, filepath.Join(results, "link")),
		os.Symlink(filepath.Join(results, "nowhere"), filepath.Join(results, "dangling")),
		os.Mkdir(filepath.Join(results, "sub"), 0o700),
		syscall.Mkfifo(filepath.Join(results, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	done := make(chan claim.Snapshot, 1)
	go func() {
		done <- New(Config{Dirs: []string{dir, dir + "/", filepath.Join(dir, "none")}, Clock: frozen}).List(context.Background())
	}()
	var snap claim.Snapshot
	select {
	case snap = <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("List hangs")
	}

	if snap.Source != "cnicache" || snap.Listed != frozen() || len(snap.Stores) != 2 || snap.Stores[0].Problem != "" {
		t.Errorf("snapshot = %+v", snap)
	}
	problems := map[string]string{}
	for _, r := range snap.Resources {
		if r.Kind != claim.KindCache || r.Store != results || r.Inc.Ino == 0 || r.Inc.Ctime == 0 {
			t.Errorf("resource %+v", r)
		}
		if (r.Inc.Sum == "") != (filepath.Base(r.Path) == "big") {
			t.Errorf("sum of %q is %q", r.Path, r.Inc.Sum)
		}
		problems[filepath.Base(r.Path)] = r.Problem
	}
	if len(problems) != 4 || problems[nameOf(a)] != "" || problems[nameOf(b)] != "empty" || problems["big"] == "" || problems["\x1b[2J"+nameOf(a)] == "" {
		t.Errorf("resources: %q", problems)
	}
	notes := map[string]bool{}
	for _, n := range snap.Notes {
		notes[filepath.Base(n.Path)] = true
	}
	for _, want := range []string{"link", "dangling", "sub", "fifo", tempPrefix + "1-0"} {
		if !notes[want] {
			t.Errorf("no note of %s in %+v", want, snap.Notes)
		}
	}
	if len(notes) != 5 {
		t.Errorf("notes: %v", notes)
	}
}

func TestListOneDirectoryUnderTwoNames(t *testing.T) {
	a := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
	dir, _ := cacheDir(t, map[string][]byte{nameOf(a): v1(t, a, bridgeList, result100)})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	snap := New(Config{Dirs: []string{dir, link}, Clock: frozen}).List(context.Background())
	if len(snap.Resources) != 1 {
		t.Errorf("%d resources, want 1", len(snap.Resources))
	}
}

func TestListMissingAndUnreadable(t *testing.T) {
	missing := New(Config{Dirs: []string{filepath.Join(t.TempDir(), "none")}, Clock: frozen}).List(context.Background())
	if len(missing.Stores) != 1 || missing.Stores[0].Problem != "" || len(missing.Notes)+len(missing.Resources) != 0 {
		t.Errorf("a missing directory holds nothing: %+v", missing)
	}

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "results"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad := New(Config{Dirs: []string{dir}, Clock: frozen}).List(context.Background())
	if len(bad.Stores) != 1 || bad.Stores[0].Dir != filepath.Join(dir, "results") || bad.Stores[0].Problem == "" || len(bad.Notes) != 1 {
		t.Errorf("an unreadable directory must say so: %+v", bad)
	}

	a := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
	dir, _ = cacheDir(t, map[string][]byte{nameOf(a): v1(t, a, bridgeList, result100)})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cut := New(Config{Dirs: []string{dir}, Clock: frozen}).List(ctx)
	if len(cut.Stores) != 1 || cut.Stores[0].Problem == "" {
		t.Errorf("a listing that was cut off must say so: %+v", cut)
	}
}

func TestRemoveAndRestore(t *testing.T) {
	a := claim.Attachment{Network: "cbr0", ContainerID: hexA, IfName: "eth0"}
	content := v1(t, a, bridgeList, result100)
	ctx := context.Background()

	setup := func(t *testing.T) (*Inventory, claim.Resource) {
		dir, _ := cacheDir(t, map[string][]byte{nameOf(a): content})
		v := New(Config{Dirs: []string{dir}, Clock: frozen})
		return v, v.List(ctx).Resources[0]
	}
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }

	t.Run("unchanged", func(t *testing.T) {
		v, r := setup(t)
		if got, err := v.Read(ctx, r.Path, r.Inc); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("Read: %v", err)
		}
		got, err := v.Remove(ctx, r.Path, r.Inc)
		if err != nil || !bytes.Equal(got, content) || exists(r.Path) {
			t.Fatalf("Remove: %v", err)
		}
		if _, err := v.Remove(ctx, r.Path, r.Inc); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("second Remove: %v, want fs.ErrNotExist", err)
		}
		if err := v.Restore(ctx, r.Path, got); err != nil {
			t.Fatal(err)
		}
		back := v.List(ctx).Resources[0]
		if back.Problem != "" || back.Inc.Sum != r.Inc.Sum || back.Inc == r.Inc {
			t.Errorf("restored as %+v, was %+v", back, r)
		}
		if err := v.Restore(ctx, r.Path, []byte("x")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Restore over an entry: %v, want fs.ErrExist", err)
		}
		if now, _ := os.ReadFile(r.Path); !bytes.Equal(now, content) {
			t.Error("Restore changed an entry that was there")
		}
	})
	t.Run("restore without O_TMPFILE", func(t *testing.T) {
		v, r := setup(t)
		dir, name, err := v.locate(r.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if err := restoreTemp(dir, name, []byte("x")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("over an entry: %v, want fs.ErrExist", err)
		}
		if err := os.Remove(r.Path); err != nil {
			t.Fatal(err)
		}
		if err := restoreTemp(dir, name, content); err != nil {
			t.Fatal(err)
		}
		snap := v.List(ctx)
		if len(snap.Resources) != 1 || snap.Resources[0].Inc.Sum != r.Inc.Sum || len(snap.Notes) != 0 {
			t.Errorf("after the restore: %+v", snap)
		}
	})

	for _, tc := range []struct {
		what   string
		change func(t *testing.T, path string)
	}{
		{"other content", func(t *testing.T, path string) {
			write(t, path, bytes.Replace(content, []byte("cart-0"), []byte("cart-1"), 1))
		}},
		{"the same content again", func(t *testing.T, path string) { write(t, path, content) }},
		{"same content in another file", func(t *testing.T, path string) {
			write(t, path+"2", content)
			if err := os.Rename(path+"2", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"emptied", func(t *testing.T, path string) { write(t, path, nil) }},
		{"a link to the same content", func(t *testing.T, path string) {
			other := filepath.Join(t.TempDir(), "x")
			if err := errors.Join(os.Rename(path, other), os.Symlink(other, path)); err != nil {
				t.Fatal(err)
			}
		}},
		{"a FIFO", func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			v, r := setup(t)
			time.Sleep(10 * time.Millisecond) // past the granularity of ctime
			tc.change(t, r.Path)
			_, err := v.Remove(ctx, r.Path, r.Inc)
			var e *Error
			if !errors.Is(err, ErrChanged) || !errors.As(err, &e) || e.Op != "remove" {
				t.Errorf("Remove = %v, want ErrChanged", err)
			}
			if !exists(r.Path) {
				t.Error("removed what was not judged (I7)")
			}
		})
	}
	t.Run("never read whole", func(t *testing.T) {
		v, r := setup(t)
		r.Inc.Sum = ""
		if _, err := v.Remove(ctx, r.Path, r.Inc); !errors.Is(err, ErrChanged) || !exists(r.Path) {
			t.Errorf("Remove = %v, want ErrChanged", err)
		}
	})
	t.Run("outside", func(t *testing.T) {
		v, r := setup(t)
		results := filepath.Dir(r.Path)
		for _, p := range []string{
			filepath.Join(filepath.Dir(results), "x"), results + "/sub/x", results + "/..", results + "/.", results + "/", results, "/etc/passwd", "x", "",
		} {
			if _, err := v.Remove(ctx, p, r.Inc); !errors.Is(err, ErrOutside) {
				t.Errorf("Remove(%q) = %v, want ErrOutside", p, err)
			}
			if err := v.Restore(ctx, p, nil); !errors.Is(err, ErrOutside) {
				t.Errorf("Restore(%q) = %v, want ErrOutside", p, err)
			}
		}
	})
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkList(b *testing.B) {
	entries := map[string][]byte{}
	for i := range 10_000 {
		a := claim.Attachment{Network: "cbr0", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"}
		result := strings.ReplaceAll(result100, "10.1.0.7", fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
		entries[nameOf(a)] = v1(b, a, bridgeList, result)
	}
	dir, _ := cacheDir(b, entries)
	v := New(Config{Dirs: []string{dir}, Clock: frozen})
	for b.Loop() {
		if n := len(v.List(context.Background()).Resources); n != 10_000 {
			b.Fatal(n)
		}
	}
}
