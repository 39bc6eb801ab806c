package proc

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

var (
	hex64  = strings.Repeat("0123456789abcdef", 4)
	other  = strings.Repeat("fedcba9876543210", 4)
	uuid   = "9b2d3c4e-1f20-4a5b-8c6d-0123456789ab"
	uuid2  = "1b2d3c4e-1f20-4a5b-8c6d-0123456789ac"
	under  = strings.ReplaceAll(uuid, "-", "_")
	dozens = "0123456789abcdef0123456789"
)

func TestNsLink(t *testing.T) {
	for _, tc := range []struct {
		text, kind string
		want       uint64
	}{
		{"net:[4026531840]", "net", 4026531840},
		{"mnt:[4026531841]", "mnt", 4026531841},
		{"mnt:[4026531841]", "net", 0},
		{"net:[]", "net", 0},
		{"net:[0]", "net", 0},
		{"net:[12", "net", 0},
		{"net:[-1]", "net", 0},
		{"net:[99999999999999999999999]", "net", 0},
		{"/net:[12]", "net", 0},
		{"", "net", 0},
	} {
		got, ok := nsLink([]byte(tc.text), tc.kind)
		if ok != (tc.want != 0) || ok && got != tc.want {
			t.Errorf("nsLink(%q, %q) = %d, %t", tc.text, tc.kind, got, ok)
		}
	}
}

func TestDead(t *testing.T) {
	for text, want := range map[string]bool{
		"12 (cat) S 1 2":       false,
		"12 (cat) Z 1 2":       true,
		"12 (cat) X 1 2":       true,
		"12 (a) Z (b) S 1 2":   false, // a hostile name
		"12 (a) S (b) Z 1 2":   true,
		"12 (cat":              false,
		"":                     false,
		"12 (cat)":             false,
		"12 (\n) R 1 (x y) D ": false,
	} {
		if dead([]byte(text)) != want {
			t.Errorf("dead(%q) = %t", text, !want)
		}
	}
}

const plainMounts = "22 27 0:21 / /proc rw,relatime - proc proc rw\n" +
	"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"

func TestNetMounts(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []nsMount
		fails      bool
	}{
		{name: "none", text: plainMounts},
		{
			name: "two, and a mount namespace",
			text: plainMounts +
				"90 27 0:4 net:[4026532281] /run/netns/cni-1 rw shared:5 - nsfs nsfs rw\n" +
				"91 27 0:4 mnt:[4026532282] /run/snapd/ns/x.mnt rw - nsfs nsfs rw\n" +
				"92 27 0:4 net:[4026532283] /run/netns/a\\040b\\134 rw - nsfs nsfs rw",
			want: []nsMount{{4026532281, "/run/netns/cni-1"}, {4026532283, `/run/netns/a b\`}},
		},
		{name: "of another kind with a like name", text: "90 27 0:4 net:[1] /nsfs rw - tmpfs nsfs rw\n"},
		{name: "cut off", text: plainMounts + "90 27 0:4 - nsfs nsfs rw\n", fails: true},
		{name: "no number", text: "90 27 0:4 net:[x] /a rw - nsfs nsfs rw\n", fails: true},
		{name: "bad escape", text: "90 27 0:4 net:[12] /a\\09 rw - nsfs nsfs rw\n", fails: true},
		{name: "cut-off escape", text: "90 27 0:4 net:[12] /a\\04 rw - nsfs nsfs rw\n", fails: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := netMounts([]byte(tc.text))
			if (err != nil) != tc.fails {
				t.Fatalf("error %v", err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(nsMount{})); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestCgroupIDs(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		want       []string
	}{
		{"cgroupfs driver", "/kubepods/burstable/pod" + uuid + "/" + hex64, []string{hex64}},
		{"systemd driver, containerd", "/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + hex64 + ".scope",
			[]string{"cri-containerd-" + hex64, "containerd-" + hex64, hex64}},
		{"CRI-O", "/crio-" + hex64 + ".scope", []string{"crio-" + hex64, hex64}},
		{"podman below its scope", "/machine.slice/libpod-" + hex64 + ".scope/container", []string{"libpod-" + hex64, hex64}},
		{"Docker", "/system.slice/docker-" + hex64 + ".scope", []string{"docker-" + hex64, hex64}},
		{"runc's colons", "/system.slice:cri-containerd:" + hex64, []string{hex64}},
		{"nerdctl", "/default/default-" + hex64, []string{"default-" + hex64, hex64}},
		{"short ID", "/lxc/0123456789ab", []string{"0123456789ab"}},
		{"UUID whole (Nomad)", "/nomad/" + uuid + ".web.scope", []string{uuid}},
		{"the end of a UUID is none", "/kubepods/pod" + uuid, nil},
		{"nor with underscores", "/kubepods-pod" + under + ".slice", nil},
		{"nor with underscores, alone", "/" + under, nil},
		{"Mesos' nested", "/mesos/" + uuid + "." + uuid2, []string{uuid + "." + uuid2}},
		{"a UUID with something that is none", "/mesos/" + uuid + ".slice", []string{uuid}},
		{"longer than an ID (F17)", "/" + hex64 + "0", nil},
		{"longer with a prefix (F17)", "/crio-a" + hex64 + ".scope", nil},
		{"a prefix is an ID of its own length only (F17)", "/" + dozens, []string{dozens}},
		{"part of a word", "/x" + hex64, nil},
		{"decimal number", "/user@1000123456789.service", nil},
		{"two", "/" + hex64 + "/" + other, []string{hex64, other}},
		{"deleted", "/" + hex64 + " (deleted)", nil},
		{"nothing", "/", nil},
		{"seen from a cgroup namespace", "/../../" + hex64, []string{hex64}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := cgroupIDs([]byte("9:name=systemd:" + tc.path + "\n8:pids:" + tc.path + "\n0::" + tc.path + "\n"))
			if d := cmp.Diff(tc.want, got, cmpopts.SortSlices(func(a, b string) bool { return a < b })); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
	if got := cgroupIDs([]byte("garbage\n" + hex64)); got != nil {
		t.Errorf("lines of another form gave %q", got)
	}
}

func args(a ...string) []byte { return []byte(strings.Join(a, "\x00") + "\x00") }

func TestShimOf(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want claim.Shim
		via  string
	}{
		{"containerd", []string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", hex64, "-address", "/run/containerd/containerd.sock"},
			claim.Shim{ID: hex64, Namespace: "k8s.io", Address: "/run/containerd/containerd.sock"}, "shim"},
		{"with equal signs", []string{"containerd-shim-kata-v2", "--id=" + hex64, "--namespace=moby"},
			claim.Shim{ID: hex64, Namespace: "moby"}, "shim"},
		{"the old shim", []string{"containerd-shim", "-namespace", "moby", "-workdir", "/var/lib/containerd/io.containerd.runtime.v1.linux/moby/" + hex64},
			claim.Shim{ID: hex64, Namespace: "moby"}, "shim"},
		{"conmon", []string{"/usr/libexec/podman/conmon", "--api-version", "1", "-c", hex64, "-u", other, "-r", "/usr/bin/crun"},
			claim.Shim{ID: hex64}, "conmon"},
		{"conmon of podman", []string{"/usr/bin/conmon", "--api-version", "1", "-c", hex64, "-u", hex64, "-r", "/usr/bin/crun",
			"-b", "/var/lib/containers/storage/overlay-containers/" + hex64 + "/userdata", "-n", "k8s_like", "--exit-dir", "/run/libpod/exits",
			"--persist-dir", "/run/libpod/persist/" + hex64, "--full-attach", "--exit-command", "/usr/bin/podman", "--exit-command-arg", "--root"},
			claim.Shim{ID: hex64}, "conmon"},
		{"conmon of CRI-O", []string{"/usr/libexec/crio/conmon", "-b", "/run/containers/storage/overlay-containers/" + hex64 + "/userdata", "-c", hex64,
			"--exit-dir", "/var/run/crio/exits", "-l", "/var/log/pods/x/0.log", "-n", "k8s_web_web-0_demo_uid_0", "--socket-dir-path", "/var/run/crio"},
			claim.Shim{ID: hex64, Namespace: "cri-o"}, "conmon"},
		{"conmon of CRI-O with directories of its own", []string{"conmon", "-c", hex64, "--exit-dir", "/srv/exits", "-n", "k8s_POD_web-0_demo_uid_0", "--socket-dir-path", "/srv/s"},
			claim.Shim{ID: hex64, Namespace: "cri-o"}, "conmon"},
		{"conmon of a container that is called so", []string{"conmon", "-c", hex64, "--exit-dir", "/run/mycrio/exits", "-n", "crio"},
			claim.Shim{ID: hex64}, "conmon"},
		{"a flag at the end", []string{"conmon", "-c"}, claim.Shim{}, "conmon"},
		{"hostile", []string{"containerd-shim-x", "-id", "../\x1b[2J", "-address", "a b"},
			claim.Shim{ID: `"../\x1b[2J"`, Address: `"a b"`}, "shim"},
		{"another program", []string{"/usr/bin/cat", "-id", hex64}, claim.Shim{}, ""},
		{"named like one further on", []string{"sh", "containerd-shim-runc-v2", "-id", hex64}, claim.Shim{}, ""},
		{"nothing", []string{""}, claim.Shim{}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, via, ok := shimOf(args(tc.args...))
			if ok != (tc.via != "") || via != tc.via {
				t.Errorf("via %q, %t; want %q", via, ok, tc.via)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestCNIContainer(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"ADD", []string{"PATH=/bin", "CNI_COMMAND=ADD", "CNI_CONTAINERID=" + hex64}, hex64},
		{"DEL, the other way round", []string{"CNI_CONTAINERID=" + uuid, "CNI_COMMAND=DEL"}, uuid},
		{"CHECK does not build", []string{"CNI_COMMAND=CHECK", "CNI_CONTAINERID=" + hex64}, ""},
		{"no command", []string{"CNI_CONTAINERID=" + hex64}, ""},
		{"no ID", []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID="}, ""},
		{"the first counts", []string{"CNI_COMMAND=GC", "CNI_COMMAND=ADD", "CNI_CONTAINERID=" + hex64}, ""},
		{"names that only end so", []string{"XCNI_COMMAND=ADD", "XCNI_CONTAINERID=" + hex64}, ""},
		{"nothing", nil, ""},
	} {
		if got, ok := cniContainer(args(tc.env...)); got != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: %q, %t", tc.name, got, ok)
		}
	}
}

func TestHidesPIDs(t *testing.T) {
	for _, tc := range []struct {
		options string
		want    bool
	}{{"rw", false}, {"rw,hidepid=2", true}, {"rw,gid=5,hidepid=invisible", true}, {"rw,hidepid=0", false}, {"rw,hidepid=off", false}} {
		text := "22 27 0:21 / /proc rw - proc proc " + tc.options + "\n23 27 0:22 / /other rw - proc proc rw,hidepid=2\n"
		if got := hidesPIDs([]byte(text), "/proc/"); got != tc.want {
			t.Errorf("%s: %t", tc.options, got)
		}
	}
}

// message builds a netlink message.
func message(typ, flags uint16, seq uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, body...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func attr(typ uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func newAddr(flags uint16, family byte, index uint32, attrs ...[]byte) []byte {
	body := binary.NativeEndian.AppendUint32([]byte{family, 24, 0, 0}, index)
	for _, a := range attrs {
		body = append(body, a...)
	}
	return message(unix.RTM_NEWADDR, flags, 7, body)
}

func TestAddresses(t *testing.T) {
	v4, peer, v6 := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.1"), netip.MustParseAddr("fd00::3")
	done := message(unix.NLMSG_DONE, 0, 7, make([]byte, 4))
	ptp := newAddr(0, unix.AF_INET, 2, attr(unix.IFA_ADDRESS, peer.AsSlice()), attr(unix.IFA_LOCAL, v4.AsSlice()), attr(unix.IFA_LABEL, []byte("eth0:1\x00")))
	ptpTurned := newAddr(0, unix.AF_INET, 2, attr(unix.IFA_LOCAL, v4.AsSlice()), attr(unix.IFA_ADDRESS, peer.AsSlice()))
	six := newAddr(0, unix.AF_INET6, 3, attr(unix.IFA_ADDRESS, v6.AsSlice()))
	mapped := netip.AddrFrom16(v4.As16())
	failed := message(unix.NLMSG_DONE, 0, 7, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EBUSY)+1))
	for _, tc := range []struct {
		name              string
		data              []byte
		want              []address
		done, interrupted bool
		err               error
	}{
		{name: "point-to-point, its own not the peer's", data: ptp, want: []address{{2, v4, "eth0"}}},
		{name: "in the other order", data: ptpTurned, want: []address{{2, v4, ""}}},
		{name: "both families and the end", data: append(append(append([]byte{}, ptp...), six...), done...),
			want: []address{{2, v4, "eth0"}, {3, v6, ""}}, done: true},
		{name: "mapped", data: newAddr(0, unix.AF_INET6, 3, attr(unix.IFA_ADDRESS, mapped.AsSlice())), want: []address{{3, v4, ""}}},
		{name: "interrupted", data: newAddr(unix.NLM_F_DUMP_INTR, unix.AF_INET6, 3, attr(unix.IFA_ADDRESS, v6.AsSlice())),
			want: []address{{3, v6, ""}}, interrupted: true},
		{name: "interrupted in the end", data: message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 7, make([]byte, 4)), done: true, interrupted: true},
		{name: "another dump's", data: message(unix.NLMSG_DONE, 0, 6, make([]byte, 4))},
		{name: "ended by an error", data: failed, err: unix.EBUSY},
		{name: "an error", data: message(unix.NLMSG_ERROR, 0, 7, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EPERM)+1)), err: unix.EPERM},
		{name: "cut off", data: ptp[:len(ptp)-4], err: errShort},
		{name: "attribute cut off", data: newAddr(0, unix.AF_INET, 2, []byte{200, 0, 1, 0}), err: errShort},
		{name: "another family", data: newAddr(0, unix.AF_BRIDGE, 2)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []address
			done, interrupted, err := addresses(tc.data, 7, func(a address) { got = append(got, a) })
			if done != tc.done || interrupted != tc.interrupted || !errors.Is(err, tc.err) {
				t.Errorf("done %t, interrupted %t, %v", done, interrupted, err)
			}
			if len(got) != len(tc.want) {
				t.Fatalf("got %v, want %v", got, tc.want)
			}
			for i := range got {
				if got[i] != tc.want[i] {
					t.Errorf("got %v, want %v", got[i], tc.want[i])
				}
			}
		})
	}
	if _, _, err := addresses(newAddr(0, unix.AF_INET, 2, attr(unix.IFA_ADDRESS, []byte{1, 2, 3})), 7, func(address) {}); err == nil {
		t.Error("an address of 3 bytes was taken")
	}
	if _, _, err := addresses(newAddr(0, unix.AF_INET, 2), 7, func(address) {}); err == nil {
		t.Error("an entry without address was taken")
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte(plainMounts + "90 27 0:4 net:[4026532281] /run/netns/cni-1 rw shared:5 - nsfs nsfs rw\n"))
	f.Add([]byte("90 27 0:4 net:[12] /a\\040 rw - nsfs nsfs rw"))
	f.Add([]byte(" - nsfs  - nsfs \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		mounts, err := netMounts(data)
		if err != nil && mounts != nil {
			t.Fatal("an error and an answer")
		}
		for _, m := range mounts {
			if m.ino == 0 {
				t.Fatal("a namespace without inode")
			}
		}
		hidesPIDs(data, "/proc")
	})
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/kubepods.slice/cri-containerd-" + hex64 + ".scope")
	f.Add("9:name=systemd:/" + uuid + "." + uuid2 + "\n")
	f.Add("0::/" + strings.Repeat("0123456789ab-", 19))
	f.Fuzz(func(t *testing.T, data string) {
		for _, id := range cgroupIDs([]byte(data)) {
			i := strings.Index(data, id)
			if !claim.IsContainerID(id) || i < 0 {
				t.Fatalf("%q is no ID of %q", id, data)
			}
			// Whole (F17): somewhere in the text it stands between separators.
			found := false
			for ; i >= 0 && !found; i = next(data, id, i) {
				before, after := i == 0 || boundary(data[i-1]), i+len(id) == len(data) || boundary(data[i+len(id)])
				found = before && after
			}
			if !found {
				t.Fatalf("%q is a part of something in %q", id, data)
			}
		}
	})
}

func boundary(c byte) bool { return isSeparator(c) || c == '/' || c == '\n' }

func next(data, id string, i int) int {
	j := strings.Index(data[i+1:], id)
	if j < 0 {
		return -1
	}
	return i + 1 + j
}

func FuzzCmdline(f *testing.F) {
	f.Add(args("/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", hex64))
	f.Add(args("conmon", "-c", hex64))
	f.Add([]byte("conmon\x00-c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, _, _ := shimOf(data)
		for _, text := range []string{s.ID, s.Namespace, s.Address} {
			for _, c := range []byte(text) {
				if c < ' ' || c > '~' {
					t.Fatalf("%q is printed raw", text)
				}
			}
		}
		arguments(data)
		dead(data)
	})
}

func FuzzEnviron(f *testing.F) {
	f.Add(args("CNI_COMMAND=ADD", "CNI_CONTAINERID="+hex64))
	f.Add([]byte("CNI_COMMAND=DEL\x00\x00CNI_CONTAINERID=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if id, ok := cniContainer(data); ok != claim.IsContainerID(id) {
			t.Fatalf("%q, %t", id, ok)
		}
	})
}

func FuzzAddresses(f *testing.F) {
	f.Add(newAddr(0, unix.AF_INET, 2, attr(unix.IFA_LOCAL, []byte{10, 1, 2, 3})))
	f.Add(message(unix.NLMSG_DONE, 0, 7, make([]byte, 4)))
	f.Fuzz(func(t *testing.T, data []byte) {
		addresses(data, 7, func(a address) {
			if !a.addr.IsValid() || a.addr.Is4In6() {
				t.Fatalf("address %v", a.addr)
			}
		})
		dirent(data)
	})
}

// TestCNINetns: the namespace that a plugin works on counts as used, so its path must be
// read as the plugin itself reads it.
func TestCNINetns(t *testing.T) {
	for env, want := range map[string]string{
		"CNI_COMMAND=ADD\x00CNI_NETNS=/run/netns/cni-1\x00":  "/run/netns/cni-1",
		"CNI_NETNS=\x00CNI_NETNS=/run/netns/second\x00":      "",
		"XCNI_NETNS=/run/netns/x\x00":                        "",
		"CNI_NETNS=relative\x00":                             "",
		"A=1\x00CNI_NETNS=/proc/1/ns/net\x00CNI_IFNAME=eth0": "/proc/1/ns/net",
	} {
		if got, ok := cniNetns([]byte(env)); ok != (want != "") || ok && got != want {
			t.Errorf("%q gives %q, %v; want %q", env, got, ok, want)
		}
	}
}
