package links

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// FuzzMountEntry writes the kernel's lines for mounts with any path, root and source, and
// reads them back whole. Of all bytes the kernel escapes these four
// (fs/proc_namespace.c: mangle).
func FuzzMountEntry(f *testing.F) {
	f.Add("/run/netns/cni-1", "/", "none", uint32(4026532281), false)
	f.Add("/a b\tc\nd\\e", "/x y", "overlay", uint32(9), true)
	f.Add("/a\v-\vnsfs\vb", "/\u0085\u00a0\f\r", "", uint32(1), true)
	f.Add("/n\xff\x1b[2J", "/net:[7]", "-", uint32(2), false)
	mangle := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace
	f.Fuzz(func(t *testing.T, path, root, source string, ino uint32, shared bool) {
		if strings.Contains(path+root+source, "\x00") || !strings.HasPrefix(path, "/") || !strings.HasPrefix(root, "/") || ino == 0 {
			return
		}
		optional := ""
		if shared {
			optional = "shared:4 master:2 "
		}
		table := fmt.Sprintf("1 0 0:1 %s / rw %s- ext4 %s rw\n", mangle(root), optional, mangle(source)) +
			fmt.Sprintf("2 1 0:4 net:[%d] %s rw %s- nsfs %s rw\n", ino, mangle(path), optional, mangle(source)) +
			fmt.Sprintf("3 1 0:5 %s %s rw %s- tmpfs %s rw\n", mangle(root), mangle(path), optional, mangle(source))
		got, err := parseMounts([]byte(table))
		want := []entry{
			{id: "1", parent: "0", dev: "0:1", root: root, path: "/", shared: shared},
			{id: "2", parent: "1", dev: "0:4", root: fmt.Sprintf("net:[%d]", ino), path: path, shared: shared, netns: uint64(ino)},
			{id: "3", parent: "1", dev: "0:5", root: root, path: path, shared: shared},
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("parseMounts(%q) = %+v, %v", table, got, err)
		}
	})
}
