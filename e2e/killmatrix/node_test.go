package killmatrix

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/sys/cri/critest"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

const network = "podnet"

// pod is one attachment, made by the real plugins.
type pod struct {
	name, id string
	ns       *netns.NS
	addr     netip.Addr
	path     string // its reservation
	content  []byte // of the reservation
	cache    string // path of its cache entry
	entry    []byte // its content; nil: it is lost
}

// node is a machine in which everything is real but the runtime, which is scripted. Some
// Pods live; the others are dead in ways of their own, and can be made dead again.
type node struct {
	dir, bin, plugins string
	subnet            netip.Prefix
	host              *netns.NS // where the bridge is
	live, dead        []*pod
	runtime           *critest.Server
	// orphan is the dead one whose namespace is still pinned, stranded the one whose veth
	// has both its ends on the host.
	orphan, stranded *pod
	pinned           string // path of the orphan's namespace
	veth             string
	made             int
	// robbed: the living may be without their reservations. bare is the one that an undo
	// takes away.
	robbed bool
	bare   string
}

func (n *node) dataDir() string  { return filepath.Join(n.dir, "data") }
func (n *node) store() string    { return filepath.Join(n.dataDir(), network) }
func (n *node) cacheDir() string { return filepath.Join(n.dir, "cache") }

func newNode(t *testing.T, bin string) *node {
	t.Helper()
	wd, err := os.Getwd()
	must(t, err)
	root, err := prebuilt.FindRoot(wd)
	must(t, err)
	built, err := prebuilt.DefaultCache(os.Getenv)
	must(t, err)
	dirs, err := prebuilt.Builder{Root: root, Cache: built, Progress: os.Stderr}.Ensure(t.Context(), "bridge", "host-local", "bandwidth")
	must(t, err)

	n := &node{dir: t.TempDir(), bin: bin, plugins: dirs[0], subnet: netns.Subnet(t), host: netns.New(t)}
	for _, d := range []string{n.dataDir(), n.cacheDir(), n.conf(), "/run/netns"} {
		must(t, os.MkdirAll(d, 0o755))
	}
	n.veth = fmt.Sprintf("hfk%d", os.Getpid())
	n.pinned = fmt.Sprintf("/run/netns/cni-%08x-0000-4000-8000-%012x", time.Now().UnixNano()&0xffffffff, os.Getpid())
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": network,
		"plugins": []any{
			map[string]any{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": map[string]any{
				"type": "host-local", "dataDir": n.dataDir(), "ranges": [][]any{{map[string]any{"subnet": n.subnet.String()}}},
			}},
			map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
		},
	})
	must(t, err)
	file := filepath.Join(n.conf(), "10-"+network+".conflist")
	must(t, os.WriteFile(file, conf, 0o644))
	list, err := libcni.NetworkConfFromFile(file)
	must(t, err)

	var sandboxes []critest.Sandbox
	for _, name := range []string{"live-1", "live-2", "plain", "uncached", "orphan", "stranded"} {
		p := n.add(t, list, name)
		if len(n.live) < 2 {
			n.live = append(n.live, p)
			sandboxes = append(sandboxes, critest.Sandbox{
				ID: p.id, Namespace: "shop", Name: name, UID: "uid-" + name, Created: int64(len(sandboxes) + 1), Netns: p.ns.Path, IPs: []string{p.addr.String()},
			})
			continue
		}
		n.dead = append(n.dead, p)
		p.ns.Unpin()
		p.ns.Close() // nobody is in it: it ends, and nobody tells CNI
		switch name {
		case "uncached":
			must(t, os.Remove(p.cache))
			p.entry = nil
		case "orphan":
			n.orphan = p
		case "stranded":
			n.stranded = p
		}
	}
	n.orphan.entry = edit(t, n.orphan.entry, func(e map[string]any) { e["netns"] = n.pinned })
	n.stranded.entry = edit(t, n.stranded.entry, func(e map[string]any) {
		result := e["result"].(map[string]any)
		for _, i := range result["interfaces"].([]any) {
			if i := i.(map[string]any); i["sandbox"] == nil && i["name"] != "cni0" {
				i["name"], i["mac"] = n.veth, vethMAC.String()
			}
		}
	})
	socket := filepath.Join(n.dir, "cri.sock")
	n.runtime, err = critest.Listen(socket, sandboxes...)
	must(t, err)
	t.Cleanup(n.runtime.Stop)
	t.Cleanup(func() { n.dropVeth(t) })
	return n
}

func (n *node) conf() string { return filepath.Join(n.dir, "conf") }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// edit changes a libcni cache entry.
func edit(t *testing.T, entry []byte, f func(map[string]any)) []byte {
	t.Helper()
	var e map[string]any
	must(t, json.Unmarshal(entry, &e))
	f(e)
	out, err := json.Marshal(e)
	must(t, err)
	return out
}

// add makes a namespace and runs ADD for it; the living get a process.
func (n *node) add(t *testing.T, list *libcni.NetworkConfigList, name string) *pod {
	t.Helper()
	p := &pod{name: name, ns: netns.New(t), id: fmt.Sprintf("%064x", len(n.live)+len(n.dead)+1+os.Getpid()<<8)}
	if len(n.live) < 2 {
		p.ns.Hold()
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.plugins}, n.cacheDir(), nil)
	err := n.host.Do(func() error {
		r, err := cni.AddNetworkList(context.Background(), list, &libcni.RuntimeConf{
			ContainerID: p.id, NetNS: p.ns.Path, IfName: "eth0",
			Args: [][2]string{
				{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", p.id}, {"K8S_POD_UID", "uid-" + name},
			},
		})
		if err != nil {
			return err
		}
		got, err := types100.GetResult(r)
		if err != nil || len(got.IPs) != 1 {
			return fmt.Errorf("ADD gave %v: %w", r, err)
		}
		p.addr, _ = netip.AddrFromSlice(got.IPs[0].Address.IP.To4())
		return nil
	})
	if err != nil {
		t.Fatalf("ADD for %s: %v", name, err)
	}
	p.path = filepath.Join(n.store(), p.addr.String())
	p.content, err = os.ReadFile(p.path)
	must(t, err)
	p.cache = filepath.Join(n.cacheDir(), "results", network+"-"+p.id+"-eth0")
	p.entry, err = os.ReadFile(p.cache)
	must(t, err)
	return p
}

// leak puts everything back that the dead left, whatever is there of it.
func (n *node) leak(t *testing.T) {
	t.Helper()
	for _, p := range n.dead {
		put(t, p.path, p.content)
		if p.entry != nil {
			put(t, p.cache, p.entry)
		}
	}
	n.dropVeth(t)
	la := netlink.NewLinkAttrs()
	la.Name, la.HardwareAddr = n.veth, vethMAC
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: n.veth + "p"}))
	if !n.isPinned() {
		drop(t, n.pinned) // a plain file may have stayed
		ns := netns.NewAt(t, n.pinned)
		n.made++
		n.host.Veth(fmt.Sprintf("o%d", n.made), ns, "eth0")
		ns.AddAddr("eth0", fmt.Sprintf("%s/%d", n.orphan.addr, n.subnet.Bits()))
		ns.Close()
	}
}

// isPinned reports whether the orphan's namespace is mounted.
func (n *node) isPinned() bool {
	var sfs unix.Statfs_t
	return unix.Statfs(n.pinned, &sfs) == nil && sfs.Type == unix.NSFS_MAGIC
}

// returned gives the living back what they have reserved.
func (n *node) returned(t *testing.T) {
	t.Helper()
	n.robbed, n.bare = false, ""
	must(t, os.MkdirAll(n.store(), 0o755))
	for _, p := range n.live {
		put(t, p.path, p.content)
	}
}

// rob takes it away.
func (n *node) rob(t *testing.T, s *scenario) {
	t.Helper()
	n.robbed = true
	for _, p := range n.live {
		drop(t, p.path)
	}
	if s.dirGone {
		must(t, os.RemoveAll(n.store()))
	}
}

// reclaim takes all of it away.
func (n *node) reclaim(t *testing.T) {
	t.Helper()
	for _, p := range n.dead {
		drop(t, p.path)
		drop(t, p.cache)
	}
	n.dropVeth(t)
}

var vethMAC = net.HardwareAddr{0x02, 0x68, 0x66, 0, 0, 1}

func (n *node) dropVeth(t *testing.T) {
	l, err := netlink.LinkByName(n.veth)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		t.Errorf("%s: %v", n.veth, err)
	}
}

// put writes a file if it is not there with this content already.
func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return
	}
	must(t, os.WriteFile(path, content, 0o644))
}

func drop(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// snapshot is a directory's files by relative path; directories have nil.
type snapshot map[string][]byte

func take(t *testing.T, dir string) snapshot {
	t.Helper()
	s := snapshot{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err == nil && d.IsDir() {
			s[rel] = nil
			return nil
		}
		text, rerr := os.ReadFile(path)
		s[rel] = append([]byte{}, text...)
		return errors.Join(err, rerr)
	}))
	return s
}

// restore makes dir hold exactly the snapshot; without any, dir does not exist.
func (s snapshot) restore(t *testing.T, dir string) {
	t.Helper()
	must(t, os.RemoveAll(dir))
	if s == nil {
		return
	}
	must(t, os.MkdirAll(dir, 0o700))
	for rel, text := range s {
		path := filepath.Join(dir, rel)
		if text == nil {
			must(t, os.MkdirAll(path, 0o700))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, text, 0o600))
	}
}

// outcome is how one run of holdfast ended.
type outcome struct {
	killed bool // by SIGKILL
	code   int
	output string
}

// holdfast runs one command with the failpoints in file, if any.
func (n *node) holdfast(t *testing.T, state, file string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args = append(args, "--state-dir", state, "--run-dir", filepath.Join(n.dir, "run"))
	if args[0] != "undo" {
		args = append(args, "--cni-conf-dir", n.conf(), "--data-dir", n.dataDir(), "--cni-cache-dir", n.cacheDir(), "--cni-bin-dir", n.plugins,
			"--cri-endpoint", "unix://"+n.runtime.Socket, "--network", network, "--grace", "10ms", "--orphan-grace", "10ms", "--orphans")
	}
	cmd := exec.CommandContext(ctx, n.bin, args...)
	if file != "" {
		cmd.Env = append(os.Environ(), failpoint.Env+"="+file)
	}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("holdfast %s: %v, %v\n%s", args[0], err, ctx.Err(), text)
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return outcome{killed: ws.Signaled() && ws.Signal() == syscall.SIGKILL, code: cmd.ProcessState.ExitCode(), output: string(text)}
}

// answers reports whether a Pod answers from the node: a port without a listener refuses,
// and only a living stack refuses.
func (n *node) answers(p *pod) error {
	return n.host.Do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		if err := unix.Connect(s, &unix.SockaddrInet4{Port: 9, Addr: p.addr.As4()}); err != unix.ECONNREFUSED {
			return fmt.Errorf("%s does not answer at %s: %v", p.name, p.addr, err)
		}
		return nil
	})
}

// oldJournal is a journal that is due for compaction, with a torn end.
func oldJournal(t *testing.T) snapshot {
	t.Helper()
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{})
	must(t, err)
	at := claim.Instant{Boot: "00000000-0000-4000-8000-000000000000", Wall: time.Now().Add(-200 * 24 * time.Hour)}
	const sweep = "20260101-000000-aaaaaa"
	sum := sha256.Sum256([]byte("old"))
	for i := range 6 {
		id := journal.BatchID(sweep, i+1)
		must(t, j.Append(
			journal.Record{Type: journal.Intent, At: at, Sweep: sweep, ReleaseID: id, Release: &journal.Release{
				Kind: claim.KindReservation, Store: "/gone/" + network, Path: "/gone/" + network + "/192.0.2.1", Addr: netip.MustParseAddr("192.0.2.1"), Verdict: "Leaked",
				Inc:   claim.Incarnation{Size: 3, Sum: hex.EncodeToString(sum[:16])}, // of "old", below
				Cache: &journal.CacheFile{Path: "/gone/results/x", Content: make([]byte, 200<<10)},
			}},
			journal.Record{Type: journal.Outcome, At: at, Sweep: sweep, ReleaseID: id, Outcome: journal.OutcomeReleased}))
	}
	must(t, j.Close())
	s := take(t, dir)
	s["journal"] = append(s["journal"], "0badbad0 {\"type\":\"int"...)
	s["sightings"] = []byte("damaged")
	for i := range 6 {
		s["quarantine/"+journal.BatchID(sweep, i+1)] = []byte("old")
	}
	return s
}
