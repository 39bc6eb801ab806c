package prebuilt

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestResolve(t *testing.T) {
	wants, err := resolve([]string{"host-local", "pause", "bridge", "host-local"})
	if err != nil {
		t.Fatal(err)
	}
	if len(wants) != 2 || wants[0].group.name != "cniplugins" || wants[1].group.name != "pause" {
		t.Fatalf("groups in another order than named: %+v", wants)
	}
	if n := len(wants[0].packages); n != 2 {
		t.Errorf("a program named twice counts once: got %d of 2", n)
	}
	wants, err = resolve([]string{"containerd"})
	if err != nil || len(wants) != 1 || len(wants[0].packages) != 2 {
		t.Errorf("the group containerd has the shim as well: %+v, %v", wants, err)
	}
	if _, err := resolve([]string{"dockerd"}); err == nil {
		t.Error("an unknown name was accepted")
	}
}

func TestDefaultCache(t *testing.T) {
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	if d, err := DefaultCache(env(map[string]string{"HOLDFAST_CACHE": "/x/y"})); err != nil || d != "/x/y" {
		t.Errorf("HOLDFAST_CACHE is not heeded: %q, %v", d, err)
	}
	if d, err := DefaultCache(env(map[string]string{"HOLDFAST_CACHE": "x"})); err == nil {
		t.Errorf("a relative cache was accepted as %q", d)
	}
}

func TestFindRoot(t *testing.T) {
	root := testRoot(t)
	if got, err := FindRoot(filepath.Join(root, "hack", "testbin", "containerd")); err != nil || got != root {
		t.Errorf("from a nested module: %q, %v; want %q", got, err, root)
	}
	if got, err := FindRoot("/"); err == nil {
		t.Errorf("found %q above nothing", got)
	}
}

func TestKeyFollowsItsInputs(t *testing.T) {
	root := t.TempDir()
	g := group{name: "g", dir: "d", inputs: []string{"*.go"}, packages: []string{"."}}
	file := filepath.Join(root, "d", "main.go")
	write(t, file, "package main\nfunc main() {}\n")
	b := Builder{Root: root}
	first, err := b.key(g)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := b.key(g); again != first {
		t.Errorf("same inputs, keys %s and %s", first, again)
	}
	write(t, file, "package main\nfunc main() { }\n")
	if changed, _ := b.key(g); changed == first {
		t.Error("the source changed, the key did not")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := b.key(g); err == nil {
		t.Error("no inputs gave a key")
	}
}

// Two runs at once must build once. The pause program is small enough to build for
// real.
func TestEnsureBuildsOnce(t *testing.T) {
	cache := t.TempDir()
	var mu sync.Mutex
	var progress bytes.Buffer
	w := lockedWriter{mu: &mu, w: &progress}
	b := Builder{Root: testRoot(t), Cache: cache, Progress: w}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			dirs, err := b.Ensure(context.Background(), "pause")
			if err != nil {
				t.Error(err)
				return
			}
			if fi, err := os.Stat(filepath.Join(dirs[0], "pause")); err != nil || fi.Mode()&0o111 == 0 {
				t.Errorf("no program: %v", err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(progress.String(), "testbin: built "); n != 1 {
		t.Errorf("built %d times, want 1:\n%s", n, progress.String())
	}
	left, _ := filepath.Glob(filepath.Join(cache, "*", scratchPrefix+"*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The wait for another build ends with the context.
func TestEnsureWaitIsBounded(t *testing.T) {
	b := Builder{Root: testRoot(t), Cache: t.TempDir()}
	g, _, _ := lookup("pause")
	key, err := b.key(g)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(context.Background(), filepath.Join(b.Cache, "pause-"+key+".lock"), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.Ensure(ctx, "pause"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func testRoot(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := FindRoot(wd)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
