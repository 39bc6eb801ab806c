package hostlocal

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// helperEnv makes the test binary a second process: "flock:<file>" takes a flock
// there, says "held" and keeps it until its stdin ends; "release:<store>:<quarantine>"
// says "held" and releases everything.
const helperEnv = "HOSTLOCAL_TEST_HELPER"

func TestMain(m *testing.M) {
	if what := os.Getenv(helperEnv); what != "" {
		os.Exit(helper(what))
	}
	os.Exit(m.Run())
}

func helper(what string) int {
	verb, path, _ := strings.Cut(what, ":")
	if verb == "release" {
		store, dir, _ := strings.Cut(path, ":")
		var moves []Move
		for _, m := range movesOf(New(Config{DataDirs: []string{filepath.Dir(store)}, Clock: now}).List(context.Background()), store) {
			moves = append(moves, m)
		}
		fmt.Println("held")
		if _, err := (&Quarantine{Dir: dir}).Release(context.Background(), store, moves, ReleaseOptions{}); err != nil {
			return 1
		}
		return 0
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 1
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return 1
	}
	fmt.Println("held")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	f.Close()
	return 0
}

// lockElsewhere has another process hold a flock on path until stop is called.
func lockElsewhere(t *testing.T, path string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=flock:"+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("helper said %q, %v", line, err)
	}
	return cmd.Process.Pid, stop
}

// store makes <dir>/networks/net1 as host-local does.
func makeStore(t *testing.T, dir string) string {
	t.Helper()
	store := filepath.Join(dir, "networks", "net1")
	if err := os.MkdirAll(store, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(store, lockName), "")
	return store
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func now() claim.Instant { return claim.Instant{Boot: "b", Mono: 1, Wall: time.Unix(0, 0)} }

func listDirs(t *testing.T, dataDirs ...string) claim.Snapshot {
	t.Helper()
	return networksOnly(New(Config{DataDirs: dataDirs, Clock: now}).List(t.Context()))
}

// judged lists the store and returns a move for every reservation, by base name.
func judged(t *testing.T, store string) map[string]Move {
	t.Helper()
	return movesOf(listDirs(t, filepath.Dir(store)), store)
}

func movesOf(snap claim.Snapshot, store string) map[string]Move {
	moves := make(map[string]Move)
	for i, r := range snap.Resources {
		if r.Store == store && r.Problem == "" {
			moves[filepath.Base(r.Path)] = Move{ReleaseID: fmt.Sprintf("r%d", i), Path: r.Path, Inc: r.Inc}
		}
	}
	return moves
}

// mount mounts a file system for one test, or skips it where mounting needs more than
// there is. flags may be MS_RDONLY.
func mount(t *testing.T, fstype, target string, flags uintptr, data string) {
	t.Helper()
	testenv.Need(t, testenv.Mount)
	if fstype == "overlay" {
		testenv.Need(t, testenv.Overlay)
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fstype, target, fstype, flags, data); err != nil {
		t.Fatalf("mount %s: %v", fstype, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

// fileSystems runs f on the temp directory's own file system, on tmpfs, and on an
// overlay whose lower layer holds what prepare made.
func fileSystems(t *testing.T, prepare func(t *testing.T, dir string), f func(t *testing.T, dir string)) {
	t.Run("tempdir", func(t *testing.T) {
		dir := t.TempDir()
		prepare(t, dir)
		f(t, dir)
	})
	t.Run("tmpfs", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "m")
		mount(t, "tmpfs", dir, 0, "size=4m")
		prepare(t, dir)
		f(t, dir)
	})
	t.Run("overlay", func(t *testing.T) {
		base := t.TempDir()
		for _, d := range []string{"lower", "rw"} {
			if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// Upper and lower on two file systems: the case in which inode numbers change.
		mount(t, "tmpfs", filepath.Join(base, "rw"), 0, "size=4m")
		for _, d := range []string{"rw/upper", "rw/work"} {
			if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		prepare(t, filepath.Join(base, "lower"))
		dir := filepath.Join(base, "m")
		mount(t, "overlay", dir, 0, fmt.Sprintf("xino=off,lowerdir=%s/lower,upperdir=%s/rw/upper,workdir=%s/rw/work", base, base, base))
		f(t, dir)
	})
}

// networksOnly leaves out the stores that only say that a data directory was read whole.
func networksOnly(snap claim.Snapshot) claim.Snapshot {
	snap.Stores = slices.DeleteFunc(snap.Stores, func(s claim.Store) bool { return s.Network == "" && s.Problem == "" })
	return snap
}
