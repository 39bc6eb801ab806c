package proc

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mangled writes a path as the kernel does in mountinfo (fs/proc_namespace.c: mangle):
// of all bytes only these four are escaped.
func mangled(path string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
}

// FuzzMountLine writes the kernel's line for a mount of a namespace with any path below
// any other mount, and reads it back whole. The owner of a mount namespace chooses
// paths, sources and the names of roots.
func FuzzMountLine(f *testing.F) {
	f.Add("/run/netns/cni-1", "/", "none", uint32(4026532281), false)
	f.Add("/a b\tc\nd\\e", "/x y", "overlay", uint32(9), true)
	f.Add("/a\v-\vnsfs\vb", "/\u0085\u00a0\f\r", "", uint32(1), true)
	f.Add("/n\xff\x1b[2J", "/net:[7]", "-", uint32(2), false)
	f.Fuzz(func(t *testing.T, path, root, source string, ino uint32, shared bool) {
		if strings.Contains(path+root+source, "\x00") || !strings.HasPrefix(path, "/") || !strings.HasPrefix(root, "/") || ino == 0 {
			return
		}
		optional := ""
		if shared {
			optional = "shared:4 "
		}
		table := []byte(fmt.Sprintf("1 0 0:1 %s / rw %s- ext4 %s rw,errors=x\n", mangled(root), optional, mangled(source)) +
			fmt.Sprintf("2 1 0:4 net:[%d] %s rw %s- nsfs %s rw\n", ino, mangled(path), optional, mangled(source)) +
			fmt.Sprintf("3 1 0:5 %s %s rw %s- tmpfs %s rw\n", mangled(root), mangled(path), optional, mangled(source)) +
			fmt.Sprintf("4 1 0:6 / /proc rw %s- proc %s rw,hidepid=2\n", optional, mangled(source)))
		nets, err := netMounts(table)
		if want := []nsMount{{ino: uint64(ino), path: path}}; err != nil || !slices.Equal(nets, want) {
			t.Fatalf("netMounts(%q) = %+v, %v", table, nets, err)
		}
		tree, err := mountTree(table)
		want := []mountLine{
			{id: "1", parent: "0", path: "/", shared: shared}, {id: "2", parent: "1", path: path, shared: shared, ino: uint64(ino)},
			{id: "3", parent: "1", path: path, shared: shared}, {id: "4", parent: "1", path: "/proc", shared: shared},
		}
		if err != nil || !slices.Equal(tree, want) {
			t.Fatalf("mountTree(%q) = %+v, %v", table, tree, err)
		}
		if path != "/proc" && !hidesPIDs(table, "/proc") {
			t.Fatalf("hidepid in %q is not seen", table)
		}
	})
}

// FuzzNsLink reads back what the kernel prints, and takes nothing else for a namespace.
func FuzzNsLink(f *testing.F) {
	f.Add("net:[4026531840]", uint64(4026531840))
	f.Add("net:[]", uint64(0))
	f.Add("mnt:[1]", uint64(1)<<33)
	f.Add("net:[0x1]", uint64(1))
	f.Add("net:[18446744073709551617]", uint64(1)<<62)
	f.Fuzz(func(t *testing.T, text string, ino uint64) {
		got, ok := nsLink([]byte(text), "net")
		if ok && (got == 0 || strings.TrimLeft(strings.TrimSuffix(strings.TrimPrefix(text, "net:["), "]"), "0") != fmt.Sprint(got)) {
			t.Fatalf("nsLink(%q) = %d", text, got)
		}
		if ino %= 1 << 32; ino > 0 { // the kernel's inodes of namespaces have 32 bits
			if got, ok := nsLink(fmt.Appendf(nil, "net:[%d]", ino), "net"); !ok || got != ino {
				t.Fatalf("%d came back as %d, %t", ino, got, ok)
			}
		}
	})
}

// FuzzStat: the state of a process is the one behind its name, whatever the name is.
func FuzzStat(f *testing.F) {
	f.Add([]byte("sleep"), byte('S'), "")
	f.Add([]byte("a) Z (b"), byte('R'), "")
	f.Add([]byte(") X 1"), byte('D'), "12 (x) Z")
	f.Add([]byte{}, byte('Z'), "(")
	f.Fuzz(func(t *testing.T, comm []byte, state byte, other string) {
		// fs/proc/array.c: do_task_stat. The name has at most 15 bytes.
		stat := fmt.Appendf(nil, "4242 (%s) %c 1 4242 4242 0 -1 4194560 107 0 0 0 0 0 0 0 20 0 1 0 12 2 3 4", comm[:min(len(comm), 15)], state&0x7f)
		if state &= 0x7f; state == ')' {
			return
		}
		if got, want := dead(stat), state == 'Z' || state == 'X' || state == 'x'; got != want {
			t.Fatalf("dead(%q) = %t", stat, got)
		}
		for i := range stat {
			// Cut off before the state, it says nothing.
			if i <= bytes.LastIndexByte(stat, ')')+2 && !bytes.Contains(comm, []byte(")")) && dead(stat[:i]) {
				t.Fatalf("dead(%q)", stat[:i])
			}
		}
		if dead([]byte(other)) && !strings.ContainsAny(other, "ZXx") {
			t.Fatalf("dead(%q)", other)
		}
	})
}

// FuzzNetlink compares with the standard library's reading of a datagram and of its
// attributes, where that reads it whole.
func FuzzNetlink(f *testing.F) {
	a := netip.MustParseAddr("10.1.2.3")
	f.Add(newAddr(0, unix.AF_INET, 2, attr(unix.IFA_ADDRESS, []byte{10, 1, 2, 1}), attr(unix.IFA_LOCAL, a.AsSlice()), attr(unix.IFA_LABEL, []byte("eth0:1\x00"))))
	f.Add(append(newAddr(unix.NLM_F_DUMP_INTR, unix.AF_INET6, 3, attr(unix.IFA_ADDRESS, netip.MustParseAddr("fd00::3").AsSlice())), message(unix.NLMSG_DONE, 0, 7, make([]byte, 4))...))
	f.Add(append(newLink(7, attribute(nil, unix.IFLA_LINK_NETNSID, 3)), message(unix.NLMSG_ERROR, 0, 7, []byte{0xf0, 0xff, 0xff, 0xff})...))
	f.Add(newAddr(0, unix.AF_INET, 2, attr(unix.IFA_LOCAL, a.AsSlice()))[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		const seq = 7
		ref, refErr := syscall.ParseNetlinkMessage(b)
		type read struct {
			typ  uint16
			body string
		}
		var got, want []read
		done, interrupted, err := messages(b, seq, func(typ uint16, body []byte) error {
			got = append(got, read{typ, string(body)})
			return nil
		})
		whole := 0 // bytes; the library passes over a rest that is shorter than a header
		for _, m := range ref {
			whole += align4(int(m.Header.Len))
		}
		if refErr != nil || whole < len(b) {
			return
		}
		ended, failed, again := false, false, false
		for _, m := range ref {
			if m.Header.Seq != seq || ended {
				continue
			}
			again = again || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			if m.Header.Type == unix.NLMSG_ERROR || m.Header.Type == unix.NLMSG_DONE {
				ended = true
				failed = len(m.Data) >= 4 && int32(uint32(m.Data[0])|uint32(m.Data[1])<<8|uint32(m.Data[2])<<16|uint32(m.Data[3])<<24) < 0
				continue
			}
			want = append(want, read{m.Header.Type, string(m.Data)})
		}
		if !slices.Equal(got, want) || done != (ended && !failed) || (err != nil) != failed || interrupted != again {
			t.Fatalf("messages(%x) = %v, done %t, again %t, %v; want %v, done %t, failed %t, again %t", b, got, done, interrupted, err, want, ended, failed, again)
		}
		for _, m := range ref {
			if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg {
				continue
			}
			// The library panics where the last attribute lacks its padding.
			m.Data = append(bytes.Clone(m.Data), make([]byte, align4(len(m.Data))-len(m.Data))...)
			attrs, err := syscall.ParseNetlinkRouteAttr(&m)
			if err != nil {
				continue
			}
			var local, other netip.Addr
			sound := true
			for _, x := range attrs {
				if x.Attr.Type != unix.IFA_LOCAL && x.Attr.Type != unix.IFA_ADDRESS {
					continue
				}
				addr, ok := netip.AddrFromSlice(x.Value)
				sound = sound && ok
				if x.Attr.Type == unix.IFA_LOCAL {
					local = addr.Unmap()
				} else {
					other = addr.Unmap()
				}
			}
			if !local.IsValid() {
				local = other
			}
			one, err := addressOf(m.Data)
			if f := m.Data[0]; f != unix.AF_INET && f != unix.AF_INET6 {
				if err != nil || one.addr.IsValid() {
					t.Fatalf("of family %d: %+v, %v", f, one, err)
				}
				continue
			}
			if (err == nil) != (sound && local.IsValid()) || err == nil && one.addr != local {
				t.Fatalf("addressOf(%x) = %v, %v; want %v", m.Data, one.addr, err, local)
			}
		}
	})
}
