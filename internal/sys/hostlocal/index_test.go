package hostlocal

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/crc32c"
	"github.com/holdfast-cni/holdfast/internal/fsys"
	"github.com/holdfast-cni/holdfast/internal/fsys/memfs"
)

// indexed is a store with some reservations and an index that counts.
func indexed(t testing.TB) (y *yard, path string) {
	t.Helper()
	y = newYard(t, memfs.Caps{})
	p := y.disk.Process()
	y.must(y.add(p, "a", "10.0.0.2"))
	y.must(y.add(p, "c", "10.0.0.4"))
	y.must(y.add(p, "gone", "10.0.0.5"))
	y.must(y.del(p, "gone"))
	p.Kill()
	y.foreign("10.0.0.3", "b")
	y.later(time.Second)
	y.known("made")
	names, err := y.disk.List(memRun)
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	return y, filepath.Join(memRun, names[0])
}

// TestIndexDamaged: whatever lies in the place of the index, the store says what is there,
// ADD and DEL work, and a good index is there afterwards where it may be.
func TestIndexDamaged(t *testing.T) {
	type damage struct {
		name string
		do   func(y *yard, path string, b []byte)
		// stays: what lies there is not ours to replace.
		stays bool
	}
	write := func(change func(b []byte) []byte) func(*yard, string, []byte) {
		return func(y *yard, path string, b []byte) { y.must(y.disk.WriteFile(path, change(b))) }
	}
	crc := func(b []byte) []byte {
		sum := crc32c.Checksum(b[:indexHeader-4])
		b[indexHeader-4], b[indexHeader-3], b[indexHeader-2], b[indexHeader-1] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		return b
	}
	table := []damage{
		{name: "removed", do: func(y *yard, path string, _ []byte) { y.must(y.disk.Remove(path)) }},
		{name: "empty", do: write(func([]byte) []byte { return nil })},
		{name: "garbage", do: write(func(b []byte) []byte { return bytes.Repeat([]byte("hold"), len(b)) })},
		{name: "zeros", do: write(func(b []byte) []byte { return make([]byte, len(b)) })},
		{name: "longer", do: write(func(b []byte) []byte { return append(b, "more"...) })},
		{name: "a newer version", do: write(func(b []byte) []byte { copy(b, "hfipam2\n"); return crc(b) })},
		{name: "of another directory", do: write(func(b []byte) []byte { b[16]++; return crc(b) })},
		{name: "of another device", do: write(func(b []byte) []byte { b[8]++; return crc(b) })},
		{name: "of another boot", do: write(func(b []byte) []byte { copy(b[32:], bootB); return crc(b) })},
		{name: "of another time", do: write(func(b []byte) []byte { b[24]++; return crc(b) })},
		{name: "says more than there is", do: write(func(b []byte) []byte { b[80]++; return crc(b) })},
		{name: "says more than can be", do: write(func(b []byte) []byte { b[83] = 0xff; return crc(b) })},
		{name: "never without distrust", do: write(func(b []byte) []byte { b[79] = 0xff; return crc(b) })},
		{name: "somebody's", do: func(y *yard, path string, _ []byte) { y.must(y.disk.Chown(path, 1234, 1234)) }},
		{name: "unreadable", do: func(y *yard, path string, _ []byte) { y.must(y.disk.Deny(path, unix.EACCES)) }, stays: true},
		{name: "a FIFO", do: func(y *yard, path string, _ []byte) {
			y.must(y.disk.Remove(path))
			y.must(y.disk.Mkfifo(path))
		}, stays: true},
		{name: "a link", do: func(y *yard, path string, b []byte) {
			y.must(y.disk.Remove(path))
			y.must(y.disk.WriteFile("/etc-passwd", b))
			y.must(y.disk.Symlink("/etc-passwd", path))
		}, stays: true},
		{name: "a directory", do: func(y *yard, path string, _ []byte) {
			y.must(y.disk.Remove(path))
			y.must(y.disk.MkdirAll(path))
		}, stays: true},
		{name: "no run directory", do: func(y *yard, path string, _ []byte) {
			y.must(y.disk.Remove(path))
			y.must(y.disk.Remove(memRun))
		}},
		{name: "full run directory", do: func(y *yard, path string, _ []byte) {
			y.must(y.disk.Remove(path))
			y.must(y.disk.SetFree(memRun, 256+indexHeader+20))
		}, stays: true},
	}
	_, path := indexed(t)
	y, _ := indexed(t)
	whole, err := y.disk.ReadFile(path)
	y.must(err)
	for n := range len(whole) {
		table = append(table, damage{name: fmt.Sprintf("cut at %d", n), do: write(func(b []byte) []byte { return b[:n] })})
	}
	for n := range indexHeader {
		table = append(table, damage{name: fmt.Sprintf("bit %d of the header", n), do: write(func(b []byte) []byte { b[n] ^= 1 << (n % 8); return b })})
	}
	for _, d := range table {
		y, path := indexed(t)
		b, err := y.disk.ReadFile(path)
		y.must(err)
		d.do(y, path, b)
		y.known(d.name)
		p := y.disk.Process()
		if err := y.add(p, "n", "10.0.0.3"); err != errTaken {
			t.Fatalf("%s: ADD of what is taken: %v", d.name, err)
		}
		y.must(y.add(p, "n", "10.0.0.6"))
		y.must(y.del(p, "b"))
		y.known(d.name + ", after ADD and DEL")
		good := loadIndex(p, path)
		if counts := good != nil && good.head.boot == y.boot; counts == d.stays {
			t.Errorf("%s: a good index is there: %v", d.name, counts)
		}
		p.Kill()
		if b, err := y.disk.ReadFile("/etc-passwd"); err == nil && !bytes.Equal(b, whole) && len(b) != len(whole) {
			t.Errorf("%s: what the link leads to was written", d.name)
		}
	}
}

// TestModificationTimeSetBack: a backup that is restored, or rsync, sets the directory's
// modification time back to what the index knows, over names that it does not know.
func TestModificationTimeSetBack(t *testing.T) {
	y, _ := indexed(t)
	p := y.disk.Process()
	defer p.Kill()
	fd, err := p.Openat(unix.AT_FDCWD, memStore, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	y.must(err)
	st, err := p.Fstat(fd)
	y.must(err)
	y.foreign("10.0.0.7", "restored")
	y.must(p.Utimes(fd, st.Atime, st.Mtime))
	y.must(y.del(p, "restored"))
	if there, _ := y.files(); there["10.0.0.7"] != "" {
		t.Error("DEL succeeded and the reservation is there")
	}
	y.known("after DEL")
}

// TestIndexLies: entries that are not true, below a header that is, which nothing of ours
// writes. An address is handed out once all the same, nothing of another's is removed, and
// what is taken is known to who reads anew.
func TestIndexLies(t *testing.T) {
	y, path := indexed(t)
	whole, err := y.disk.ReadFile(path)
	y.must(err)
	for n := indexHeader; n < len(whole); n++ {
		y, path := indexed(t)
		b, err := y.disk.ReadFile(path)
		y.must(err)
		b[n] ^= 1
		y.must(y.disk.WriteFile(path, b))
		p := y.disk.Process()
		for i := 2; i < 8; i++ {
			before, _ := y.files()
			addr := fmt.Sprintf("10.0.0.%d", i)
			err := y.add(p, fmt.Sprintf("n%d", i), addr)
			there, _ := y.files()
			if was, ok := before[addr]; ok && (err == nil || there[addr] != was) {
				t.Fatalf("byte %d: %s is %q's and was handed out: %v", n, addr, was, err)
			}
		}
		y.must(y.del(p, "b")) // whether it is found or not, nothing else goes
		there, _ := y.files()
		for _, addr := range []string{"10.0.0.2", "10.0.0.4"} {
			if there[addr] == "" {
				t.Fatalf("byte %d: DEL of b removed %s", n, addr)
			}
		}
		s, err := OpenStore(y.config(p))
		y.must(err)
		s.Anew()
		tx, err := s.Begin(t.Context())
		y.must(err)
		there, _ = y.files()
		for i := range 12 {
			addr := fmt.Sprintf("10.0.0.%d", i)
			if _, want := there[addr]; tx.Taken(netip.MustParseAddr(addr)) != want {
				t.Fatalf("byte %d, read anew: %s is said to be taken: %v", n, addr, !want)
			}
		}
		tx.End()
		s.Close()
		p.Kill()
	}
}

// TestIndexRemovedMeanwhile: somebody empties /run between our look at the index and our
// writing to it. What is written then holds all.
func TestIndexRemovedMeanwhile(t *testing.T) {
	for name, do := range map[string]func(y *yard, path string){
		"removed": func(y *yard, path string) { y.must(y.disk.Remove(path)) },
		"cut":     func(y *yard, path string) { y.must(y.disk.WriteFile(path, nil)) },
		"replaced": func(y *yard, path string) {
			y.must(y.disk.Remove(path))
			y.must(y.disk.WriteFile(path, make([]byte, 4096)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			y, path := indexed(t)
			p := y.disk.Process()
			defer p.Kill()
			p.SetHook(func(c memfs.Call) error {
				if c.Op == "LinkFD" {
					do(y, path)
				}
				return nil
			})
			y.must(y.add(p, "n", "10.0.0.6"))
			p.SetHook(nil)
			y.known("after it")
		})
	}
}

// TestIndexStaysSmall: a network as wide as IPv6 comes back to no address, and the index
// does not remember each for ever.
func TestIndexStaysSmall(t *testing.T) {
	y := newYard(t, memfs.Caps{})
	p := y.disk.Process()
	defer p.Kill()
	addr := netip.MustParseAddr("2001:db8::1")
	y.must(y.add(p, "a", "10.0.0.2"))
	for i := range 300 {
		addr = addr.Next()
		y.must(y.add(p, "n", addr.String()))
		y.later(time.Minute)
		if i%50 == 0 {
			y.foreign("10.0.0.3", "b") // so that all is read anew now and then
		}
		y.must(y.del(p, "n"))
	}
	names, err := y.disk.List(memRun)
	y.must(err)
	if x := loadIndex(p, filepath.Join(memRun, names[0])); x == nil || x.slots() > 70 {
		t.Errorf("%d slots", x.slots())
	}
	y.known("in the end")
}

// FuzzIndex: an index file is believed whole or not at all; what was read is written and
// read again as it was, and looking for anything in it ends.
func FuzzIndex(f *testing.F) {
	y, path := indexed(f)
	b, err := y.disk.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:indexHeader])
	f.Add([]byte(indexMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := memfs.New(memfs.Options{})
		if err := d.WriteFile("/index", b); err != nil {
			t.Fatal(err)
		}
		p := d.Process()
		x := loadIndex(p, "/index")
		if x == nil {
			return
		}
		if len(b) < indexHeader+x.slots()*indexEntry || crc32c.Checksum(b[:indexHeader-4]) != crc32c.Checksum(x.head.marshal()[:indexHeader-4]) && bytes.Equal(b[84:indexHeader-4], make([]byte, indexHeader-4-84)) && bytes.IndexByte(b[32:72], 0) == len(x.head.boot) {
			t.Errorf("a header of %+v is believed", x.head)
		}
		for i := range x.slots() {
			e := x.slot(i)
			if j, ok := x.find(e.addr()); e.addr().Is6() && (!ok || x.slot(j).addr() != e.addr()) {
				t.Errorf("%v is at %d and found at %d, %v", e.addr(), i, j, ok)
			}
			for _, addr := range x.withKey(e.key()) {
				if !addr.IsValid() {
					t.Error("no address")
				}
			}
		}
		was := bytes.Clone(x.data)
		x.whole = true
		if err := x.save(p, "/again"); err != nil {
			t.Fatal(err)
		}
		z := loadIndex(p, "/again")
		if z == nil || z.head != x.head || !bytes.Equal(z.data, was) {
			t.Errorf("%+v was written and %+v read", x.head, z)
		}
		x.take(netip.MustParseAddr("192.0.2.1"), ownerKey{1}, &fsys.Stat{Ino: 7}, 0)
		if i, ok := x.find(netip.MustParseAddr("192.0.2.1")); !ok || !x.slot(i).used() {
			t.Error("what was taken is not")
		}
	})
}
