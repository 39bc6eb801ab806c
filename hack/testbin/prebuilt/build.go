package prebuilt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// modulePath tells our own go.mod from those of the nested modules.
const modulePath = "github.com/holdfast-cni/holdfast"

// FindRoot returns the directory of the project's go.mod at or above dir.
func FindRoot(dir string) (string, error) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		b, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && slices.Contains(strings.Split(string(b), "\n"), "module "+modulePath) {
			return d, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no clone of %s at or above %s", modulePath, dir)
		}
	}
}

// DefaultCache returns the cache's directory: $HOLDFAST_CACHE, else
// /var/cache/holdfast where it can be written, else holdfast in the user's cache
// directory ($XDG_CACHE_HOME or ~/.cache).
func DefaultCache(getenv func(string) string) (string, error) {
	if d := getenv("HOLDFAST_CACHE"); d != "" {
		if !filepath.IsAbs(d) {
			return "", fmt.Errorf("HOLDFAST_CACHE=%q is no absolute path", d)
		}
		return d, nil
	}
	const shared = "/var/cache/holdfast"
	if os.MkdirAll(shared, 0o755) == nil && syscall.Access(shared, 2 /* W_OK */) == nil {
		return shared, nil
	}
	if d := getenv("XDG_CACHE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "holdfast"), nil
	}
	if d := getenv("HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, ".cache", "holdfast"), nil
	}
	return "", errors.New("no place for the cache: set HOLDFAST_CACHE to an absolute path")
}

// Builder builds programs into a cache.
type Builder struct {
	Root  string // the clone
	Cache string // absolute; made when missing
	// Progress gets a line before and after each build, and the compiler's messages.
	// Nil discards them.
	Progress io.Writer
}

// Ensure builds what the cache lacks of the named groups and programs, and returns
// the directory of each distinct group, in the order in which the groups were first
// named. Several runs may call it at once: the second waits for the first (which can
// take minutes; ctx ends the wait) and then finds everything there. A program appears
// in its directory by rename, so what is there is whole.
func (b Builder) Ensure(ctx context.Context, names ...string) ([]string, error) {
	if b.Progress == nil {
		b.Progress = io.Discard
	}
	wants, err := resolve(names)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, w := range wants {
		dir, err := b.ensure(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.group.name, err)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// Missing returns those of the named programs, and of the programs of the named groups,
// that the cache lacks. It builds nothing.
func (b Builder) Missing(names ...string) ([]string, error) {
	wants, err := resolve(names)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range wants {
		key, err := b.key(w.group)
		if err != nil {
			return nil, err
		}
		for _, i := range missing(filepath.Join(b.Cache, w.group.name+"-"+key), w) {
			out = append(out, w.group.programs()[i])
		}
	}
	return out, nil
}

func (b Builder) ensure(ctx context.Context, w want) (string, error) {
	key, err := b.key(w.group)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.Cache, w.group.name+"-"+key)
	if len(missing(dir, w)) == 0 {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, dir+".lock", b.Progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	return dir, b.build(ctx, dir, w)
}

// flags are the build's flags. -buildvcs=false, since the clone's commit says nothing
// of a foreign program and would differ from one clone to the next.
func (g group) flags() []string {
	return []string{"-buildvcs=false", "-trimpath", strings.Join(append([]string{"-ldflags=-s -w"}, g.ldflags...), " ")}
}

// key is a hash of all that decides what comes out of the build.
func (b Builder) key(g group) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q CGO_ENABLED=0 %q\n", runtime.Version(), runtime.GOARCH, g.flags(), g.packages)
	for _, glob := range g.inputs {
		files, err := filepath.Glob(filepath.Join(b.Root, g.dir, glob))
		if err != nil {
			return "", err
		}
		if len(files) == 0 {
			return "", fmt.Errorf("nothing matches %s in %s", glob, g.dir)
		}
		for _, f := range files { // sorted by Glob
			content, err := os.ReadFile(f)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s %x\n", filepath.Base(f), sha256.Sum256(content))
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func missing(dir string, w want) []int {
	var out []int
	programs := w.group.programs()
	for _, i := range w.packages {
		fi, err := os.Stat(filepath.Join(dir, programs[i]))
		if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
			out = append(out, i)
		}
	}
	return out
}

// build runs under the lock of dir.
func (b Builder) build(ctx context.Context, dir string, w want) error {
	todo := missing(dir, w)
	if len(todo) == 0 {
		return nil // another run built it while we waited
	}
	if err := sweepScratch(dir); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(dir, scratchPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)

	programs := w.group.programs()
	var names, packages []string
	for _, i := range todo {
		names = append(names, programs[i])
		packages = append(packages, w.group.packages[i])
	}
	fmt.Fprintf(b.Progress, "testbin: building %s\n", strings.Join(names, " "))
	began := time.Now()
	args := slices.Concat([]string{"build"}, w.group.flags(), []string{"-o", scratch + "/"}, packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.Root, w.group.dir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = b.Progress, b.Progress
	// The compiler runs as children of go: on an interrupt, go gets the chance to end
	// them itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build in %s: %w", w.group.dir, err)
	}
	for _, n := range names {
		if err := os.Rename(filepath.Join(scratch, n), filepath.Join(dir, n)); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.Progress, "testbin: built %s in %s\n", strings.Join(names, " "), time.Since(began).Round(time.Second))
	return nil
}

const scratchPrefix = ".build-"

// sweepScratch removes what a killed build left. The caller holds the lock, so no
// living build owns any of it.
func sweepScratch(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, scratchPrefix+"*"))
	if err != nil {
		return err
	}
	for _, d := range left {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	return nil
}

// lock takes an exclusive flock on path. The kernel drops it with the process, so a
// killed build never blocks the next one; the file stays, since removing it would let
// two runs lock two files of one name.
func lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	said := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		if !said {
			fmt.Fprintf(progress, "testbin: another run builds into this cache, waiting (%s)\n", path)
			said = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
