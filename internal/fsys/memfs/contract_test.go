package memfs_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// script makes calls below one directory and writes down what they gave.
type script struct {
	t   *testing.T
	fs  fsys.FS
	dir int    // descriptor of an empty directory
	at  string // its path
	out []string
}

func word(err error) string {
	var no unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &no) && err == error(no):
		return unix.ErrnoName(no)
	}
	return "no bare errno: " + err.Error()
}

func (s *script) say(what string, err error) { s.out = append(s.out, what+": "+word(err)) }

func (s *script) sayf(format string, args ...any) {
	s.out = append(s.out, fmt.Sprintf(format, args...))
}

// open says what came of it and returns the descriptor, which ends with the test.
func (s *script) open(name string, flags int) int {
	fd, err := s.fs.Openat(s.dir, name, flags, 0o640)
	s.say("open "+name, err)
	if err == nil {
		s.t.Cleanup(func() { s.fs.Close(fd) })
	}
	return fd
}

// file makes a file without saying so.
func (s *script) file(name, content string) {
	s.t.Helper()
	fd, err := s.fs.Openat(s.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o640)
	must(s.t, err)
	_, err = s.fs.Write(fd, []byte(content))
	must(s.t, err)
	must(s.t, s.fs.Close(fd))
}

func (s *script) mkdir(name string) int {
	s.t.Helper()
	must(s.t, s.fs.Mkdirat(s.dir, name, 0o755))
	fd, err := s.fs.Openat(s.dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(s.t, err)
	s.t.Cleanup(func() { s.fs.Close(fd) })
	return fd
}

func (s *script) stat(name string) fsys.Stat {
	st, err := s.fs.Fstatat(s.dir, name, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		s.say("stat "+name, err)
	}
	return st
}

func (s *script) read(fd int) string {
	buf := make([]byte, 4096)
	n, err := s.fs.Pread(fd, buf, 0)
	if err != nil {
		return word(err)
	}
	return string(buf[:n])
}

func (s *script) content(name string) string {
	fd, err := s.fs.Openat(s.dir, name, unix.O_RDONLY, 0)
	if err != nil {
		return word(err)
	}
	defer s.fs.Close(fd)
	return s.read(fd)
}

func (s *script) names() string {
	fd, err := s.fs.Openat(s.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return word(err)
	}
	defer s.fs.Close(fd)
	var names []string
	if err := fsys.ReadDir(s.fs, fd, func(name []byte, typ byte) bool {
		names = append(names, fmt.Sprintf("%s(%d)", name, typ))
		return true
	}); err != nil {
		return word(err)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is one file system that the contract runs over.
type world struct {
	fs  fsys.FS
	dir string
	// symlink and mkfifo are calls that fsys.FS has no need of.
	symlink func(target, name string) error
	mkfifo  func(name string) error
}

func kernel(dir string) world {
	return world{fsys.OS{}, dir, unix.Symlink, func(n string) error { return unix.Mkfifo(n, 0o600) }}
}

func memory(t *testing.T) world {
	d := memfs.New(memfs.Options{})
	must(t, d.MkdirAll("/a/b"))
	return world{d.Process(), "/a/b", d.Symlink, d.Mkfifo}
}

// mounted gives an empty tmpfs.
func mounted(t *testing.T) string {
	t.Helper()
	testenv.Need(t, "mount")
	dir := t.TempDir()
	must(t, unix.Mount("holdfast-test", dir, "tmpfs", 0, "size=4m"))
	unmountAfter(t, dir)
	return dir
}

func unmountAfter(t *testing.T, dir string) {
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func overlaid(t *testing.T) string {
	t.Helper()
	testenv.Need(t, "overlay")
	dir := mounted(t)
	var paths []any
	for _, n := range []string{"lower", "upper", "work", "merged"} {
		p := filepath.Join(dir, n)
		must(t, unix.Mkdir(p, 0o755))
		paths = append(paths, p)
	}
	merged := paths[3].(string)
	must(t, unix.Mount("holdfast-test", merged, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", paths[:3]...)))
	unmountAfter(t, merged)
	return merged
}

// TestContract runs one table over the kernel's file systems and over the one in memory:
// what holds there must hold here, or the simulator proves nothing.
func TestContract(t *testing.T) {
	t.Run("disk", func(t *testing.T) { contract(t, kernel(t.TempDir())) })
	t.Run("memfs", func(t *testing.T) { contract(t, memory(t)) })
	t.Run("tmpfs", func(t *testing.T) { contract(t, kernel(mounted(t))) })
	t.Run("overlay", func(t *testing.T) { contract(t, kernel(overlaid(t))) })
}

func contract(t *testing.T, w world) {
	for i, c := range rules() {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(w.dir, fmt.Sprintf("c%d", i))
			must(t, w.fs.Mkdirat(unix.AT_FDCWD, dir, 0o755))
			fd, err := w.fs.Openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			must(t, err)
			t.Cleanup(func() { w.fs.Close(fd) })
			s := &script{t: t, fs: w.fs, dir: fd, at: dir}
			c.do(s, w)
			if diff := cmp.Diff(c.want, s.out); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
