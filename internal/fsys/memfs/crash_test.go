package memfs_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// hand is a process that must succeed.
type hand struct {
	t *testing.T
	*memfs.Process
}

func (h hand) open(name string, flags int) int {
	h.t.Helper()
	fd, err := h.Openat(unix.AT_FDCWD, name, flags, 0o600)
	must(h.t, err)
	return fd
}

func (h hand) write(fd int, text string) {
	h.t.Helper()
	if n, err := h.Write(fd, []byte(text)); err != nil || n != len(text) {
		h.t.Fatal(n, err)
	}
}

func (h hand) rename(from, to string) {
	h.t.Helper()
	must(h.t, h.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0))
}

func (h hand) syncDir(name string) {
	h.t.Helper()
	must(h.t, fsys.SyncDir(h, name))
}

// TestCrash runs the same few calls, loses the power, and says which outcomes there may
// be; over the seeds each of them must come, and no other.
func TestCrash(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(h hand)
		want string // outcomes, "path=content" for each file, separated by " | "
	}{
		{"fsynced content and name", func(h hand) {
			fd := h.open("/d/f", wronly|creat)
			h.write(fd, "abc")
			must(h.t, h.Fsync(fd))
			h.syncDir("/d")
			h.rename("/d/f", "/d/f") // changes nothing
		}, "f=abc"},
		{"name without content", func(h hand) {
			h.write(h.open("/d/f", wronly|creat), "ab")
			h.syncDir("/d")
		}, `f= | f=a | f=ab | f=\0\0 | f=a\0`},
		{"content without name", func(h hand) {
			fd := h.open("/d/f", wronly|creat)
			h.write(fd, "ab")
			must(h.t, h.Fsync(fd))
		}, " | f=ab"},
		{"append", func(h hand) {
			fd := h.open("/d/f", wronly|creat|unix.O_APPEND)
			h.write(fd, "ab")
			must(h.t, h.Fsync(fd))
			h.syncDir("/d")
			h.write(fd, "c")
		}, `f=ab | f=abc | f=ab\0`},
		{"truncation", func(h hand) {
			fd := h.open("/d/f", wronly|creat)
			h.write(fd, "abc")
			must(h.t, h.Fsync(fd))
			h.syncDir("/d")
			must(h.t, h.Ftruncate(fd, 1))
		}, "f=abc | f=a"},
		{"order in one directory", func(h hand) {
			h.open("/d/a", wronly|creat)
			h.open("/d/b", wronly|creat)
		}, " | a= | a= b="},
		{"no order between two", func(h hand) {
			h.open("/d/a", wronly|creat)
			h.open("/e/b", wronly|creat)
		}, " | a= | b= | a= b="},
		{"rename between two is whole", func(h hand) {
			fd := h.open("/d/f", wronly|creat)
			h.write(fd, "x")
			must(h.t, h.Fsync(fd))
			h.syncDir("/d")
			h.rename("/d/f", "/e/g")
		}, "f=x | g=x"},
		{"one directory fsynced takes the rename along", func(h hand) {
			fd := h.open("/d/f", wronly|creat)
			must(h.t, h.Fsync(fd))
			h.syncDir("/d")
			h.open("/e/before", wronly|creat)
			h.rename("/d/f", "/e/g")
			h.open("/e/after", wronly|creat)
			h.syncDir("/d")
		}, "before= g= | after= before= g="},
		{"replacement is whole", func(h hand) {
			for i, s := range []string{"old", "new"} {
				fd := h.open("/d/tmp", wronly|creat)
				h.write(fd, s)
				must(h.t, h.Fsync(fd))
				h.rename("/d/tmp", "/d/f")
				if i == 0 {
					h.syncDir("/d")
				}
			}
		}, "f=old | f=old tmp=new | f=new"},
		{"link, then unlink, never neither", func(h hand) {
			fd := h.open("/d/f", wronly|creat)
			must(h.t, h.Fsync(fd))
			h.syncDir("/d")
			must(h.t, h.Linkat(unix.AT_FDCWD, "/d/f", unix.AT_FDCWD, "/e/f", 0))
			must(h.t, h.Unlinkat(unix.AT_FDCWD, "/d/f", 0))
		}, "f= | f= f= "},
		{"a number used again", func(h hand) {
			fd := h.open("/d/a", wronly|creat)
			must(h.t, h.Close(fd))
			h.syncDir("/d")
			must(h.t, h.Unlinkat(unix.AT_FDCWD, "/d/a", 0))
			h.open("/e/b", wronly|creat)
		}, "a= |  | b="},
		{"O_TMPFILE", func(h hand) {
			fd := h.open("/d", wronly|unix.O_TMPFILE)
			h.write(fd, "x")
			must(h.t, h.Fsync(fd))
			fd2 := h.open("/d", wronly|unix.O_TMPFILE)
			must(h.t, h.Fsync(fd2))
			d := h.open("/d", rdonly)
			must(h.t, h.LinkFD(fd, d, "f"))
		}, " | f=x"},
		{"directory whose own name was not fsynced", func(h hand) {
			must(h.t, h.Mkdirat(unix.AT_FDCWD, "/d/sub", 0o700))
			fd := h.open("/d/sub/f", wronly|creat)
			h.write(fd, "x")
			must(h.t, h.Fsync(fd))
			h.syncDir("/d/sub")
		}, " | f=x"},
		{"removed directory", func(h hand) {
			must(h.t, h.Mkdirat(unix.AT_FDCWD, "/d/sub", 0o700))
			h.open("/d/sub/f", wronly|creat)
			h.syncDir("/d/sub")
			h.syncDir("/d")
			must(h.t, h.Unlinkat(unix.AT_FDCWD, "/d/sub/f", 0))
			must(h.t, h.Unlinkat(unix.AT_FDCWD, "/d/sub", unix.AT_REMOVEDIR))
			h.syncDir("/d")
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]int{}
			for seed := range uint64(600) {
				d := memfs.New(memfs.Options{})
				must(t, d.MkdirAll("/d"))
				must(t, d.MkdirAll("/e"))
				d.Sync()
				tt.do(hand{t, d.Process()})
				d.Crash(rand.New(rand.NewPCG(seed, 1)))
				got[files(t, d)]++
			}
			for want := range strings.SplitSeq(tt.want, "|") {
				want = strings.TrimSpace(want)
				if got[want] == 0 {
					t.Errorf("%q never came", want)
				}
				delete(got, want)
			}
			if len(got) > 0 {
				t.Errorf("came, and must not: %v", got)
			}
		})
	}
}

// files lists every regular file by its last name, with its content.
func files(t *testing.T, d *memfs.Disk) string {
	t.Helper()
	var out []string
	must(t, d.Walk("/", func(name string, st fsys.Stat, data []byte) {
		if st.Regular() {
			text := strings.ReplaceAll(string(data), "\x00", `\0`)
			out = append(out, name[strings.LastIndexByte(name, '/')+1:]+"="+text)
		}
	}))
	return strings.Join(out, " ")
}

// What a crash left is durable: a second one changes nothing.
func TestCrashTwice(t *testing.T) {
	for seed := range uint64(100) {
		d := memfs.New(memfs.Options{})
		h := hand{t, d.Process()}
		for i := range 10 {
			h.write(h.open(fmt.Sprintf("/%d", i), wronly|creat), "0123456789")
		}
		rng := rand.New(rand.NewPCG(seed, 2))
		d.Crash(rng)
		first := files(t, d)
		d.Crash(rng)
		if second := files(t, d); first != second {
			t.Fatalf("seed %d: %s, then %s", seed, first, second)
		}
	}
}

func TestKill(t *testing.T) {
	d := memfs.New(memfs.Options{})
	must(t, d.WriteFile("/lock", nil))
	a, b := hand{t, d.Process()}, hand{t, d.Process()}
	fa, fb := a.open("/lock", rdwr), b.open("/lock", rdwr)
	must(t, a.Flock(fa, unix.LOCK_EX))
	done := make(chan error)
	go func() { done <- b.Flock(fb, unix.LOCK_EX) }()
	a.KillAt(2)
	if _, err := a.Fstat(fa); err != nil {
		t.Error(err)
	}
	if _, err := a.Write(fa, []byte("x")); !errors.Is(err, memfs.ErrKilled) || a.Alive() {
		t.Errorf("second call: %v", err)
	}
	if err := a.Close(fa); !errors.Is(err, memfs.ErrKilled) {
		t.Errorf("after it: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the lock of the dead: %v", err)
	}
	if data, err := d.ReadFile("/lock"); err != nil || len(data) != 0 {
		t.Errorf("the call at which it died was done: %q %v", data, err)
	}
	// Who waits for a lock when it is killed waits no more.
	c := hand{t, d.Process()}
	fc := c.open("/lock", rdwr)
	go func() { done <- c.Flock(fc, unix.LOCK_EX) }()
	c.Kill()
	if err := <-done; !errors.Is(err, memfs.ErrKilled) {
		t.Errorf("a waiter: %v", err)
	}
	must(t, b.Flock(fb, unix.LOCK_UN))
}

func TestHook(t *testing.T) {
	d := memfs.New(memfs.Options{})
	must(t, d.MkdirAll("/d"))
	p := hand{t, d.Process()}
	dir := p.open("/d", rdonly)
	var calls []string
	p.SetHook(func(c memfs.Call) error {
		calls = append(calls, c.Op+" "+c.Path())
		switch c.Op {
		case "Mkdirat": // a foreign hand is faster
			must(t, d.MkdirAll("/d/sub"))
		case "Fsync":
			return unix.EIO
		case "Unlinkat":
			p.Kill()
		}
		return nil
	})
	if err := p.Mkdirat(dir, "sub", 0o700); err != unix.EEXIST {
		t.Error(err)
	}
	if err := p.Fsync(dir); err != unix.EIO {
		t.Error(err)
	}
	if err := p.Unlinkat(unix.AT_FDCWD, "/d/sub", unix.AT_REMOVEDIR); !errors.Is(err, memfs.ErrKilled) {
		t.Error(err)
	}
	if names, err := d.List("/d"); err != nil || len(names) != 1 {
		t.Error(names, err)
	}
	if got, want := strings.Join(calls, ", "), "Mkdirat /d/sub, Fsync /d, Unlinkat /d/sub"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestFaults(t *testing.T) {
	d := memfs.New(memfs.Options{})
	for _, dir := range []string{"/d", "/other", "/denied"} {
		must(t, d.MkdirAll(dir))
	}
	must(t, d.Mount("/other", memfs.Caps{NoXattr: true, NoTmpfile: true, NoReplace: true}))
	p := hand{t, d.Process()}
	fd := p.open("/d/f", rdwr|creat)
	p.open("/other/g", wronly|creat)
	try := func(what string, got, want error) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	rename := func(from, to string, flags uint) error {
		return p.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	}
	open := func(name string, flags int) error {
		_, err := p.Openat(unix.AT_FDCWD, name, flags, 0o600)
		return err
	}
	try("rename across devices", rename("/d/f", "/other/f", 0), unix.EXDEV)
	try("link across devices", p.Linkat(unix.AT_FDCWD, "/d/f", unix.AT_FDCWD, "/other/f", 0), unix.EXDEV)
	try("no RENAME_NOREPLACE", rename("/other/g", "/other/h", unix.RENAME_NOREPLACE), unix.EINVAL)
	try("no O_TMPFILE", open("/other", unix.O_TMPFILE|wronly), unix.EOPNOTSUPP)
	_, err := p.Flistxattr(p.open("/other/g", rdonly), nil)
	try("no xattr", err, unix.EOPNOTSUPP)
	try("a mount point", p.Unlinkat(unix.AT_FDCWD, "/other", unix.AT_REMOVEDIR), unix.EBUSY)
	up, err := p.Fstatat(unix.AT_FDCWD, "/other/..", 0)
	root, err2 := p.Fstatat(unix.AT_FDCWD, "/", 0)
	if up != root || err != nil || err2 != nil {
		t.Errorf("above a mount: %v %v, %v %v", up, err, root, err2)
	}

	must(t, d.SetFree("/", 3))
	n, err := p.Write(fd, []byte("hello"))
	if n != 3 || err != nil {
		t.Errorf("short write: %d %v", n, err)
	}
	_, err = p.Write(fd, []byte("lo"))
	try("full", err, unix.ENOSPC)
	try("no room for an inode", open("/d/new", wronly|creat), unix.ENOSPC)
	must(t, p.Ftruncate(fd, 0))
	_, err = p.Pwrite(fd, []byte("xyz"), 0)
	try("room again", err, nil)
	must(t, d.SetFree("/", -1))

	must(t, d.SetReadOnly("/d", true))
	_, err = p.Write(fd, []byte("x"))
	try("write", err, unix.EROFS)
	for what, err := range map[string]error{
		"create": open("/d/new", wronly|creat), "open": open("/d/f", wronly), "truncate": p.Ftruncate(fd, 0),
		"unlink": p.Unlinkat(unix.AT_FDCWD, "/d/f", 0), "rename": rename("/d/f", "/d/x", 0), "mkdir": p.Mkdirat(unix.AT_FDCWD, "/d/x", 0o700),
		"access": p.Faccessat(unix.AT_FDCWD, "/d", unix.W_OK, unix.AT_EACCESS), "chmod": p.Fchmod(fd, 0o600),
	} {
		try("read-only "+what, err, unix.EROFS)
	}
	try("reading is possible", open("/d/f", rdonly), nil)
	ro, err := p.ReadOnly(fd)
	if !ro || err != nil {
		t.Error(ro, err)
	}
	must(t, d.SetReadOnly("/d", false))

	must(t, d.Deny("/denied", unix.EACCES))
	try("denied", open("/denied", rdonly|unix.O_DIRECTORY), unix.EACCES)
	try("denied to make", open("/denied/f", wronly|creat), unix.EACCES)
	must(t, d.Deny("/denied", nil))
	try("permitted", open("/denied/f", wronly|creat), nil)
}

// A file that is gone gives its number to the next at once, as on ext4.
func TestNumbersAreUsedAgain(t *testing.T) {
	d := memfs.New(memfs.Options{})
	must(t, d.WriteFile("/a", nil))
	was, err := d.Lstat("/a")
	must(t, err)
	must(t, d.Remove("/a"))
	must(t, d.WriteFile("/b", nil))
	now, err := d.Lstat("/b")
	must(t, err)
	if was.Ino != now.Ino || was.Ctime >= now.Ctime {
		t.Errorf("%+v, then %+v", was, now)
	}
}

func BenchmarkOpenReadClose(b *testing.B) {
	d := memfs.New(memfs.Options{})
	if d.MkdirAll("/var/lib/cni/networks/net") != nil || d.WriteFile("/var/lib/cni/networks/net/10.0.0.1", []byte("hello")) != nil {
		b.Fatal("no file")
	}
	p := d.Process()
	p.SetHook(func(memfs.Call) error { return nil })
	buf := make([]byte, 4096)
	dir, err := p.Openat(unix.AT_FDCWD, "/var/lib/cni/networks/net", unix.O_DIRECTORY, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		fd, err := p.Openat(dir, "10.0.0.1", unix.O_RDONLY, 0)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = p.Fstat(fd)
		_, _ = p.Pread(fd, buf, 0)
		_ = p.Close(fd)
	}
}
