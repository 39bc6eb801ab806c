package memfs_test

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

type rule struct {
	name string
	do   func(s *script, w world)
	want []string
}

const (
	rdonly = unix.O_RDONLY
	wronly = unix.O_WRONLY
	rdwr   = unix.O_RDWR
	creat  = unix.O_CREAT
	excl   = unix.O_CREAT | unix.O_EXCL
	noRepl = unix.RENAME_NOREPLACE
)

// rules are sequences of calls, and what every file system says to them.
func rules() []rule {
	return append(append(openRules(), nameRules()...), contentRules()...)
}

func openRules() []rule {
	return []rule{
		{"exclusive creation", func(s *script, _ world) {
			s.open("f", wronly|excl)
			s.open("f", wronly|excl)
			s.open("f", wronly|creat)
			s.open("none", rdonly)
			s.open("none/f", wronly|creat)
			s.open("f/g", wronly|creat)
			s.open("f/", rdonly)
			s.open("g/", wronly|creat)
			s.open(strings.Repeat("n", 256), wronly|creat)
			s.open("", rdonly)
		}, []string{"open f: ok", "open f: EEXIST", "open f: ok", "open none: ENOENT", "open none/f: ENOENT", "open f/g: ENOTDIR",
			"open f/: ENOTDIR", "open g/: EISDIR", "open " + strings.Repeat("n", 256) + ": ENAMETOOLONG", "open : ENOENT"}},
		{"directories", func(s *script, _ world) {
			s.mkdir("d")
			s.file("f", "x")
			s.open("d", rdonly)
			s.open("d", rdwr)
			s.open("d", rdonly|creat)
			s.open("f", rdonly|unix.O_DIRECTORY)
			s.open("d/../f", rdonly)
			s.open("d/./../../"+s.at[strings.LastIndexByte(s.at, '/')+1:]+"/f", rdonly)
			s.say("mkdir d", s.fs.Mkdirat(s.dir, "d", 0o755))
			s.say("mkdir f", s.fs.Mkdirat(s.dir, "f", 0o755))
			s.say("mkdir n/d", s.fs.Mkdirat(s.dir, "n/d", 0o755))
			_, err := s.fs.Pread(s.open("d", rdonly), make([]byte, 8), 0)
			s.say("read d", err)
			_, err = s.fs.Getdents(s.open("f", rdonly), make([]byte, 512))
			s.say("getdents f", err)
			s.say("fsync d", s.fs.Fsync(s.dir))
		}, []string{"open d: ok", "open d: EISDIR", "open d: EISDIR", "open f: ENOTDIR", "open d/../f: ok", "open d/./../../c1/f: ok",
			"mkdir d: EEXIST", "mkdir f: EEXIST", "mkdir n/d: ENOENT", "open d: ok", "read d: EISDIR", "open f: ok", "getdents f: ENOTDIR",
			"fsync d: ok"}},
		{"symlinks", func(s *script, w world) {
			s.file("f", "x")
			s.mkdir("d")
			for name, target := range map[string]string{"l": "f", "ld": "d", "dangling": "new", "loop": "loop", "abs": s.at + "/f"} {
				must(s.t, w.symlink(target, s.at+"/"+name))
			}
			s.open("l", rdonly)
			s.open("l", rdonly|unix.O_NOFOLLOW)
			s.open("l", wronly|creat|unix.O_NOFOLLOW)
			s.open("l", wronly|excl)
			s.open("ld", rdonly|unix.O_DIRECTORY)
			s.open("ld", rdonly|unix.O_DIRECTORY|unix.O_NOFOLLOW)
			s.open("ld/.", rdonly|unix.O_NOFOLLOW)
			s.open("dangling", rdonly)
			s.open("loop", rdonly)
			s.open("abs", rdonly)
			s.open("dangling", wronly|creat)
			s.sayf("%s", s.names())
			_, err := s.fs.Fstatat(s.dir, "loop", 0)
			s.say("stat loop", err)
			s.sayf("lstat l: %o, size %d", s.stat("l").Mode, s.stat("l").Size)
			s.say("link l", s.fs.Linkat(s.dir, "l", s.dir, "l2", 0))
			s.sayf("lstat l2: %o", s.stat("l2").Mode&unix.S_IFMT)
			s.say("unlink l", s.fs.Unlinkat(s.dir, "l", 0))
			s.sayf("f: %s", s.content("f"))
		}, []string{"open l: ok", "open l: ELOOP", "open l: ELOOP", "open l: EEXIST", "open ld: ok", "open ld: ENOTDIR", "open ld/.: ok",
			"open dangling: ENOENT", "open loop: ELOOP", "open abs: ok", "open dangling: ok",
			"abs(10) d(4) dangling(10) f(8) l(10) ld(10) loop(10) new(8)", "stat loop: ELOOP", "lstat l: 120777, size 1",
			"link l: ok", "lstat l2: 120000", "unlink l: ok", "f: x"}},
		{"FIFO", func(s *script, w world) {
			must(s.t, w.mkfifo(s.at+"/p"))
			fd := s.open("p", rdonly|unix.O_NONBLOCK|unix.O_NOFOLLOW)
			s.open("p", rdonly|unix.O_DIRECTORY|unix.O_NONBLOCK)
			st, err := s.fs.Fstat(fd)
			s.sayf("%o %v", st.Mode&unix.S_IFMT, err)
			_, err = s.fs.Pread(fd, make([]byte, 1), 0)
			s.say("pread", err)
			s.say("truncate", s.fs.Ftruncate(fd, 0))
			s.say("fsync", s.fs.Fsync(fd))
			s.say("close", s.fs.Close(fd))
			s.open("p", wronly|unix.O_NONBLOCK)
			s.sayf("%s", s.names())
			s.say("unlink", s.fs.Unlinkat(s.dir, "p", 0))
		}, []string{"open p: ok", "open p: ENOTDIR", "10000 <nil>", "pread: ESPIPE", "truncate: EINVAL", "fsync: EINVAL", "close: ok",
			"open p: ENXIO", "p(1)", "unlink: ok"}},
		{"O_TMPFILE", func(s *script, _ world) {
			s.file("there", "old")
			fd := s.open(".", unix.O_TMPFILE|wronly)
			_, err := s.fs.Write(fd, []byte("new"))
			s.say("write", err)
			s.sayf("%s", s.names())
			s.say("link there", s.fs.LinkFD(fd, s.dir, "there"))
			s.say("link f", s.fs.LinkFD(fd, s.dir, "f"))
			s.say("link g", s.fs.LinkFD(fd, s.dir, "g"))
			s.sayf("f: %s, links %d", s.content("f"), s.stat("f").Nlink)
			s.open(".", unix.O_TMPFILE|rdonly)
			s.open("there", unix.O_TMPFILE|wronly)
			s.open("none", unix.O_TMPFILE|wronly)
			fd = s.open(".", unix.O_TMPFILE|unix.O_EXCL|wronly)
			s.say("link excl", s.fs.LinkFD(fd, s.dir, "h"))
		}, []string{"open .: ok", "write: ok", "there(8)", "link there: EEXIST", "link f: ok", "link g: ok", "f: new, links 2",
			"open .: EINVAL", "open there: ENOTDIR", "open none: ENOENT", "open .: ok", "link excl: ENOENT"}},
		{"descriptors", func(s *script, _ world) {
			s.file("f", "x")
			r, wr := s.open("f", rdonly), s.open("f", wronly)
			_, err := s.fs.Write(r, []byte("y"))
			s.say("write", err)
			_, err = s.fs.Pread(wr, make([]byte, 1), 0)
			s.say("read", err)
			s.say("truncate", s.fs.Ftruncate(r, 0))
			_, err = s.fs.Openat(wr, "g", rdonly, 0)
			s.say("below a file", err)
			_, err = s.fs.Openat(-7, "g", rdonly, 0)
			s.say("below nothing", err)
			_, err = s.fs.Fstat(-7)
			s.say("fstat", err)
			s.say("close", s.fs.Close(-7))
			path := s.open(".", unix.O_PATH|unix.O_DIRECTORY)
			_, err = s.fs.Getdents(path, make([]byte, 512))
			s.say("getdents", err)
			st, err := s.fs.Fstat(path)
			s.sayf("%v %v", st.Key() == key(s.stat(".")), err)
			ro, err := s.fs.ReadOnly(s.dir)
			s.sayf("read-only %v %v", ro, err)
			s.say("access", s.fs.Faccessat(s.dir, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS))
			s.say("access none", s.fs.Faccessat(s.dir, "none", unix.W_OK, unix.AT_EACCESS))
		}, []string{"open f: ok", "open f: ok", "write: EBADF", "read: EBADF", "truncate: EINVAL", "below a file: ENOTDIR",
			"below nothing: EBADF", "fstat: EBADF", "close: EBADF", "open .: ok", "getdents: EBADF", "true <nil>",
			"read-only false <nil>", "access: ok", "access none: ENOENT"}},
	}
}

func key(st fsys.Stat) fsys.Key { return st.Key() }

func nameRules() []rule {
	return []rule{
		{"rename", func(s *script, _ world) {
			s.file("a", "a")
			s.file("b", "b")
			d := s.mkdir("d")
			ino, ctime := s.stat("a").Ino, s.stat("a").Ctime
			s.say("a to b, no replacing", s.fs.Renameat2(s.dir, "a", s.dir, "b", noRepl))
			s.say("a to c", s.fs.Renameat2(s.dir, "a", s.dir, "c", noRepl))
			s.say("a again", s.fs.Renameat2(s.dir, "a", s.dir, "e", noRepl))
			s.say("none to b", s.fs.Renameat2(s.dir, "a", s.dir, "b", noRepl))
			s.say("c to d", s.fs.Renameat2(s.dir, "c", s.dir, "d", 0))
			s.say("d to c", s.fs.Renameat2(s.dir, "d", s.dir, "c", 0))
			s.say("c to d/c", s.fs.Renameat2(s.dir, "c", d, "c", noRepl))
			s.say("d into d", s.fs.Renameat2(s.dir, "d", d, "d", 0))
			s.say("d/c over b", s.fs.Renameat2(d, "c", s.dir, "b", 0))
			s.sayf("%s: %s", s.names(), s.content("b"))
			s.sayf("same inode %v, ctime went back %v", s.stat("b").Ino == ino, s.stat("b").Ctime < ctime)
			s.say("dot", s.fs.Renameat2(s.dir, ".", s.dir, "x", 0))
			s.say("flags", s.fs.Renameat2(s.dir, "b", s.dir, "x", 1<<15))
			s.say("b to n/b", s.fs.Renameat2(s.dir, "b", s.dir, "n/b", 0))
			s.file("d/x", "x")
			s.say("mkdir", s.fs.Mkdirat(s.dir, "e", 0o755))
			s.say("e over d", s.fs.Renameat2(s.dir, "e", s.dir, "d", 0))
			s.say("d over e", s.fs.Renameat2(s.dir, "d", s.dir, "e", 0))
			s.sayf("%s: %s", s.names(), s.content("e/x"))
		}, []string{"a to b, no replacing: EEXIST", "a to c: ok", "a again: ENOENT", "none to b: ENOENT", "c to d: EISDIR", "d to c: ENOTDIR",
			"c to d/c: ok", "d into d: EINVAL", "d/c over b: ok", "b(8) d(4): a", "same inode true, ctime went back false", "dot: EBUSY",
			"flags: EINVAL", "b to n/b: ENOENT", "mkdir: ok", "e over d: ENOTEMPTY", "d over e: ok", "b(8) e(4): x"}},
		{"link", func(s *script, _ world) {
			s.file("a", "a")
			s.file("b", "b")
			s.mkdir("d")
			s.say("over b", s.fs.Linkat(s.dir, "a", s.dir, "b", 0))
			s.say("a to c", s.fs.Linkat(s.dir, "a", s.dir, "c", 0))
			s.say("none", s.fs.Linkat(s.dir, "none", s.dir, "x", 0))
			s.say("d", s.fs.Linkat(s.dir, "d", s.dir, "x", 0))
			s.sayf("links %d, same %v", s.stat("a").Nlink, s.stat("a").Ino == s.stat("c").Ino)
			s.say("rename a to its other name", s.fs.Renameat2(s.dir, "a", s.dir, "c", 0))
			s.sayf("%s", s.names())
			s.say("unlink a", s.fs.Unlinkat(s.dir, "a", 0))
			s.sayf("links %d", s.stat("c").Nlink)
		}, []string{"over b: EEXIST", "a to c: ok", "none: ENOENT", "d: EPERM", "links 2, same true", "rename a to its other name: ok",
			"a(8) b(8) c(8) d(4)", "unlink a: ok", "links 1"}},
		{"unlink", func(s *script, _ world) {
			s.file("f", "content")
			s.mkdir("d")
			s.file("d/f", "")
			fd := s.open("f", rdwr)
			s.say("f as directory", s.fs.Unlinkat(s.dir, "f", unix.AT_REMOVEDIR))
			s.say("f", s.fs.Unlinkat(s.dir, "f", 0))
			s.say("f again", s.fs.Unlinkat(s.dir, "f", 0))
			st, err := s.fs.Fstat(fd)
			s.sayf("links %d %v: %s", st.Nlink, err, s.read(fd))
			s.say("link it again", s.fs.LinkFD(fd, s.dir, "f"))
			s.say("d", s.fs.Unlinkat(s.dir, "d", 0))
			s.say("rmdir d", s.fs.Unlinkat(s.dir, "d", unix.AT_REMOVEDIR))
			s.say("d/f", s.fs.Unlinkat(s.dir, "d/f", 0))
			d := s.open("d", rdonly|unix.O_DIRECTORY)
			s.say("rmdir d", s.fs.Unlinkat(s.dir, "d", unix.AT_REMOVEDIR))
			_, err = s.fs.Openat(d, "f", wronly|creat, 0o600)
			s.say("below what is gone", err)
			s.say("rmdir .", s.fs.Unlinkat(s.dir, ".", unix.AT_REMOVEDIR))
			s.sayf("%q", s.names())
		}, []string{"open f: ok", "f as directory: ENOTDIR", "f: ok", "f again: ENOENT", "links 0 <nil>: content", "link it again: ENOENT",
			"d: EISDIR", "rmdir d: ENOTEMPTY", "d/f: ok", "open d: ok", "rmdir d: ok", "below what is gone: ENOENT", "rmdir .: EINVAL", `""`}},
		{"many names", func(s *script, _ world) {
			for i := range 255 {
				s.file(string(rune('a'+i%26))+strings.Repeat("x", i), "")
			}
			d := s.open(".", rdonly|unix.O_DIRECTORY)
			seen := map[string]bool{}
			for calls := 0; calls < 300; calls++ {
				// A buffer for a few at a time, and removals between.
				buf := make([]byte, 2048)
				n, err := s.fs.Getdents(d, buf)
				if err != nil || n <= 0 {
					s.sayf("end: %d %v, several calls %v", n, err, calls > 10)
					break
				}
				must(s.t, fsys.ReadDir(&feed{buf: buf[:n]}, 0, func(name []byte, _ byte) bool {
					if seen[string(name)] {
						s.sayf("twice: %s", name)
					}
					seen[string(name)] = true
					must(s.t, s.fs.Unlinkat(s.dir, string(name), 0))
					return true
				}))
			}
			s.sayf("%d names, left %q", len(seen), s.names())
			d = s.open(".", rdonly|unix.O_DIRECTORY)
			_, err := s.fs.Getdents(d, make([]byte, 8))
			s.say("no room", err)
		}, []string{"open .: ok", "end: 0 <nil>, several calls true", `255 names, left ""`, "open .: ok", "no room: EINVAL"}},
	}
}

// feed gives one filled buffer of Getdents.
type feed struct {
	fsys.FS
	buf []byte
}

func (f *feed) Getdents(_ int, buf []byte) (int, error) {
	n := copy(buf, f.buf)
	f.buf = f.buf[n:]
	return n, nil
}

func contentRules() []rule {
	return []rule{
		{"write, truncate, append", func(s *script, _ world) {
			fd := s.open("f", rdwr|creat)
			n, err := s.fs.Write(fd, []byte("hello"))
			s.sayf("%d %v", n, err)
			n, err = s.fs.Pwrite(fd, []byte("J"), 0)
			s.sayf("%d %v", n, err)
			_, err = s.fs.Write(fd, []byte("!"))
			s.say("write on", err)
			s.sayf("%q", s.read(fd))
			s.say("shorter", s.fs.Ftruncate(fd, 2))
			s.say("longer", s.fs.Ftruncate(fd, 4))
			s.sayf("%q", s.read(fd))
			_, err = s.fs.Write(fd, []byte("?"))
			s.say("behind the end", err)
			s.sayf("%q", s.read(fd))
			app := s.open("f", wronly|unix.O_APPEND)
			_, err = s.fs.Write(app, []byte("A"))
			s.say("append", err)
			_, err = s.fs.Pwrite(app, []byte("B"), 0)
			s.say("append", err)
			s.sayf("%q", s.read(fd))
			s.open("f", wronly|unix.O_TRUNC)
			s.sayf("%q", s.read(fd))
			_, err = s.fs.Pread(fd, make([]byte, 1), -1)
			s.say("read before", err)
			s.say("negative", s.fs.Ftruncate(fd, -1))
			s.say("fsync", s.fs.Fsync(fd))
		}, []string{"open f: ok", "5 <nil>", "1 <nil>", "write on: ok", `"Jello!"`, "shorter: ok", "longer: ok", `"Je\x00\x00"`,
			"behind the end: ok", `"Je\x00\x00\x00\x00?"`, "open f: ok", "append: ok", "append: ok", `"Je\x00\x00\x00\x00?AB"`, "open f: ok",
			`""`, "read before: EINVAL", "negative: EINVAL", "fsync: ok"}},
		{"attributes", func(s *script, _ world) {
			fd := s.open("f", rdwr|creat)
			s.say("chmod", s.fs.Fchmod(fd, 0o604))
			st, _ := s.fs.Fstat(fd)
			s.say("chown", s.fs.Fchown(fd, int(st.UID), int(st.GID)))
			s.say("utimes", s.fs.Utimes(fd, 1_000_000_001, 2_000_000_002))
			st, err := s.fs.Fstat(fd)
			s.sayf("%o %d %v, ctime is now %v", st.Mode, st.Mtime, err, st.Ctime > 1e18)
			buf := make([]byte, 64)
			_, err = s.fs.Fgetxattr(fd, "user.holdfast", buf)
			s.say("get none", err)
			s.say("set", s.fs.Fsetxattr(fd, "user.holdfast", []byte("value"), 0))
			s.say("create", s.fs.Fsetxattr(fd, "user.holdfast", []byte("v"), unix.XATTR_CREATE))
			n, err := s.fs.Fgetxattr(fd, "user.holdfast", buf)
			s.sayf("%q %v", buf[:max(0, n)], err)
			_, err = s.fs.Fgetxattr(fd, "user.holdfast", buf[:2])
			s.say("get short", err)
			n, err = s.fs.Flistxattr(fd, buf)
			s.sayf("%v %v", strings.Contains(string(buf[:max(0, n)]), "user.holdfast\x00"), err)
		}, []string{"open f: ok", "chmod: ok", "chown: ok", "utimes: ok", "100604 2000000002 <nil>, ctime is now true", "get none: ENODATA",
			"set: ok", "create: EEXIST", `"value" <nil>`, "get short: ERANGE", "true <nil>"}},
		{"flock", func(s *script, _ world) {
			s.file("lock", "")
			a, b, c := s.open("lock", rdwr), s.open("lock", rdonly), s.open("lock", rdonly)
			lock := func(what string, fd, how int) { s.say(what, s.fs.Flock(fd, how|unix.LOCK_NB)) }
			lock("a ex", a, unix.LOCK_EX)
			lock("a again", a, unix.LOCK_EX)
			lock("b ex", b, unix.LOCK_EX)
			lock("b sh", b, unix.LOCK_SH)
			lock("a sh", a, unix.LOCK_SH)
			lock("b sh", b, unix.LOCK_SH)
			lock("a ex", a, unix.LOCK_EX)
			lock("c ex", c, unix.LOCK_EX)
			lock("b un", b, unix.LOCK_UN)
			lock("c ex", c, unix.LOCK_EX)
			lock("c un", c, unix.LOCK_UN)
			lock("b ex", b, unix.LOCK_EX)
			lock("nothing", a, 0)
			lock("directory", s.dir, unix.LOCK_EX)
			done := make(chan error, 1)
			go func() { done <- s.fs.Flock(a, unix.LOCK_EX) }()
			lock("b un", b, unix.LOCK_UN)
			s.say("a waited", <-done)
		}, []string{"open lock: ok", "open lock: ok", "open lock: ok", "a ex: ok", "a again: ok", "b ex: EAGAIN", "b sh: EAGAIN", "a sh: ok",
			"b sh: ok", "a ex: EAGAIN", "c ex: EAGAIN", "b un: ok", "c ex: ok", "c un: ok", "b ex: ok", "nothing: EINVAL", "directory: ok",
			"b un: ok", "a waited: ok"}},
		{"ctime", func(s *script, _ world) {
			fd := s.open("f", rdwr|creat)
			last := s.stat("f").Ctime
			grew := func(what string, err error) {
				now := s.stat("f").Ctime
				s.sayf("%s: %s, went back %v", what, word(err), now < last)
				last = now
			}
			_, err := s.fs.Write(fd, []byte("x"))
			grew("write", err)
			grew("link", s.fs.Linkat(s.dir, "f", s.dir, "g", 0))
			grew("unlink", s.fs.Unlinkat(s.dir, "g", 0))
			must(s.t, s.fs.Renameat2(s.dir, "f", s.dir, "h", 0))
			grew("rename", s.fs.Renameat2(s.dir, "h", s.dir, "f", 0))
			s.read(fd)
			s.sayf("reading leaves it: %v", s.stat("f").Ctime == last)
		}, []string{"open f: ok", "write: ok, went back false", "link: ok, went back false", "unlink: ok, went back false",
			"rename: ok, went back false", "reading leaves it: true"}},
	}
}
