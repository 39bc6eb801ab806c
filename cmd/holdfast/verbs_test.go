package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sys/cri/critest"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
	"github.com/holdfast-cni/holdfast/internal/testenv/nodecheck"
)

// world is the node of one script.
type world struct {
	t      *testing.T
	dir    string // $WORK
	subnet netip.Prefix
	ids    map[string]string // owner's name in the script -> random container ID
	pods   map[string]*scriptPod
	links  *netns.NS // the other ends of the Pods' veths
	made   int       // how many of them
	nets   []string  // networks of --network
	// asking: an agent is there, which has the places.
	asking bool
	named  bool // whether --network is given

	api       *apiServer
	server    *critest.Server
	endpoint  string
	sandboxes map[string]critest.Sandbox

	locks   map[string]*os.File
	running map[string]*job
	trees   map[string]string
	mutable []func() error    // ends what immutable did
	keep    map[string]string // reservation of a living Pod -> content

	odd      []string         // paths that no allocator and no runtime would have made
	expected []nodecheck.Kind // what the node check must find at the end
}

type scriptPod struct {
	ns   *netns.NS
	stop func() // nil: nobody is in it
}

type worldKey struct{}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

// newWorld lays out the node of a script, with one network, "pods", in $P.0/24. $P6:0/112
// is as random, and only as free of others.
func newWorld(t *testing.T, env *testscript.Env) error {
	w := &world{
		t: t, dir: env.WorkDir, subnet: netns.Subnet(t), ids: map[string]string{}, pods: map[string]*scriptPod{},
		endpoint: "none", sandboxes: map[string]critest.Sandbox{}, locks: map[string]*os.File{}, running: map[string]*job{},
		trees: map[string]string{}, keep: map[string]string{}, named: true,
	}
	for _, d := range []string{"data", "conf", "cache/results", "bin", "state", "run"} {
		if err := os.MkdirAll(filepath.Join(w.dir, d), 0o755); err != nil {
			return err
		}
	}
	// An empty directory is what a first run finds.
	if err := os.Remove(filepath.Join(w.dir, "state")); err != nil {
		return err
	}
	env.Values[worldKey{}] = w
	env.Setenv(leak.MarkEnv, os.Getenv(leak.MarkEnv))
	env.Setenv("P", strings.TrimSuffix(w.subnet.Addr().String(), ".0"))
	ula := make([]byte, 8)
	rand.Read(ula)
	env.Setenv("P6", fmt.Sprintf("fd%02x:%x:%x:%x:0:0:0", ula[0], ula[1:3], ula[3:5], ula[5:7]))
	env.Setenv("DATA", filepath.Join(w.dir, "data"))
	env.Setenv("STATE", filepath.Join(w.dir, "state"))
	// Living Pods keep their reservations, whatever the script does.
	env.Defer(w.check)
	return w.addNetwork("pods", w.subnet.String())
}

// check holds at the end of every script: no living Pod lost its reservation, and the node
// agrees with itself, but for what the script planted, or expects with expect-finding.
func (w *world) check() {
	for path, want := range w.keep {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			w.t.Errorf("the living Pod's reservation %s is now %q (%v), was %q", path, got, err, want)
		}
	}
	for name, j := range w.running {
		w.t.Errorf("job %s still runs at the end of the script", name)
		j.kill()
	}
	for _, f := range w.locks {
		f.Close()
	}
	w.node().Verify(w.t)
	for _, f := range w.mutable {
		if err := f(); err != nil {
			w.t.Error(err)
		}
	}
	if w.server != nil {
		w.server.Stop()
	}
}

// node is what the node check is to look at.
func (w *world) node() nodecheck.Node {
	n := nodecheck.Node{
		DataDirs: []string{filepath.Join(w.dir, "data")}, CacheDir: filepath.Join(w.dir, "cache"),
		StateDir: filepath.Join(w.dir, "state"), RunDir: filepath.Join(w.dir, "run"),
		Planted: w.odd, Expected: w.expected,
	}
	for name, p := range w.pods {
		if p.stop == nil {
			continue
		}
		pod := nodecheck.Pod{Name: name, ContainerID: w.id(name), Netns: p.ns.Path}
		for path, content := range w.keep {
			if addr, err := netip.ParseAddr(filepath.Base(path)); err == nil && strings.HasPrefix(content, pod.ContainerID+"\r") {
				pod.Addrs = append(pod.Addrs, addr)
			}
		}
		n.Pods = append(n.Pods, pod)
	}
	return n
}

// expect-finding KIND ... says what the script leaves on purpose, in the words of nodecheck:
// each must be found at the end, and nothing else.
func (w *world) expectFinding(_ *testscript.TestScript, args []string) {
	for _, k := range args {
		w.expected = append(w.expected, nodecheck.Kind(k))
	}
}

// id returns the container ID of a name, made when first used: 64 random hex digits;
// "short:NAME" is NAME's ID without its last digit, "uuid" a UUID as Nomad writes it.
func (w *world) id(name string) string {
	if id, ok := w.ids[name]; ok {
		return id
	}
	raw := make([]byte, 32)
	rand.Read(raw)
	id := hex.EncodeToString(raw)
	if of, ok := strings.CutPrefix(name, "short:"); ok {
		id = w.id(of)[:63]
	}
	if name == "uuid" {
		id = fmt.Sprintf("%s-%s-%s-%s-%s", id[:8], id[8:12], id[12:16], id[16:20], id[20:32])
	}
	w.ids[name] = id
	return id
}

// flags are those of every command that looks at the node.
func (w *world) flags(verb string) []string {
	f := []string{"--state-dir", filepath.Join(w.dir, "state"), "--run-dir", filepath.Join(w.dir, "run")}
	if w.asking {
		return f
	}
	if verb == "agent" {
		return append(f, "--config", filepath.Join(w.dir, "agent.yaml"))
	}
	if !slices.Contains([]string{"audit", "gc", "heal", "explain", "report", "doctor", "bundle"}, verb) {
		return f
	}
	f = append(f, "--data-dir", filepath.Join(w.dir, "data"), "--cni-conf-dir", filepath.Join(w.dir, "conf"),
		"--cni-cache-dir", filepath.Join(w.dir, "cache"), "--cni-bin-dir", filepath.Join(w.dir, "bin"),
		"--cri-endpoint", w.endpoint, "--grace", "300ms", "--orphan-grace", "600ms", "--timeout", "30s")
	if w.api != nil {
		f = append(f, "--kubeconfig", w.api.kubeconfig, "--node-name", "n1")
	}
	for _, n := range w.nets {
		if w.named {
			f = append(f, "--network", n)
		}
	}
	return f
}

func (w *world) store(network string) string { return filepath.Join(w.dir, "data", network) }

func (w *world) write(ts *testscript.TestScript, path, content string) {
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	ts.Check(os.WriteFile(path, []byte(content), 0o644))
}

func arity(ts *testscript.TestScript, args []string, least, most int, usage string) {
	if len(args) < least || len(args) > most {
		ts.Fatalf("usage: %s", usage)
	}
}

func (w *world) addNetwork(name, cidr string) error {
	if !slices.Contains(w.nets, name) {
		w.nets = append(w.nets, name)
	}
	if err := os.MkdirAll(w.store(name), 0o755); err != nil {
		return err
	}
	if cidr == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(w.dir, "conf", name+".conflist"), w.conflist(name, cidr, "bridge"), 0o644)
}

// conflist is a configuration of one host-local network and its plugins; portmap and
// firewall ones declare what a runtime would.
func (w *world) conflist(name, cidr string, plugins ...string) []byte {
	var list []map[string]any
	for i, p := range plugins {
		c := map[string]any{"type": p}
		if i == 0 {
			c["ipam"] = map[string]any{"type": "host-local", "dataDir": filepath.Join(w.dir, "data"), "ranges": [][]any{{map[string]any{"subnet": cidr}}}}
		}
		if p == "portmap" {
			c["capabilities"] = map[string]any{"portMappings": true}
		}
		list = append(list, c)
	}
	b, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": list})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// network NAME [CIDR] adds a network; without a range it has no configuration.
func (w *world) network(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 2, "network NAME [CIDR]")
	ts.Check(w.addNetwork(args[0], strings.Join(args[1:], "")))
}

// conf FILE CONTENT writes a configuration file, with Go escapes in CONTENT.
func (w *world) conf(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "conf FILE CONTENT")
	w.write(ts, filepath.Join(w.dir, "conf", args[0]), unescape(ts, args[1]))
}

func unescape(ts *testscript.TestScript, s string) string {
	out, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
	if err != nil {
		ts.Fatalf("%q: %v", s, err)
	}
	return out
}

// plant NET ADDR OWNER [IFNAME] writes a reservation as host-local does.
func (w *world) plant(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 4, "plant NET ADDR OWNER [IFNAME]")
	ifName := "eth0"
	if len(args) == 4 {
		ifName = args[3]
	}
	path := filepath.Join(w.store(args[0]), args[1])
	content := w.id(args[2]) + "\r\n" + ifName
	w.write(ts, path, content)
	if p := w.pods[args[2]]; p != nil && p.stop != nil {
		w.keep[path] = content
	}
}

// plant-raw NET NAME CONTENT writes any file; Go escapes in both, and {OWNER} in CONTENT
// stands for an ID.
func (w *world) plantRaw(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 3, "plant-raw NET NAME CONTENT")
	content := unescape(ts, args[2])
	for {
		before, rest, ok := strings.Cut(content, "{")
		name, after, ok2 := strings.Cut(rest, "}")
		if !ok || !ok2 {
			break
		}
		content = before + w.id(name) + after
	}
	path := filepath.Join(w.store(args[0]), unescape(ts, args[1]))
	w.odd = append(w.odd, path)
	w.write(ts, path, content)
}

// plant-many NET FIRST N writes N reservations of N dead containers.
func (w *world) plantMany(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 3, "plant-many NET FIRST N")
	addr, err := netip.ParseAddr(args[1])
	ts.Check(err)
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	raw := make([]byte, 32)
	for range n {
		rand.Read(raw)
		path := filepath.Join(w.store(args[0]), addr.String())
		ts.Check(os.WriteFile(path, fmt.Appendf(nil, "%x\r\neth0", raw), 0o600))
		addr = addr.Next()
	}
}

// plant-odd KIND NET NAME makes what no allocator makes: fifo, link, dir, device, socket,
// sparse (1 GiB without blocks).
func (w *world) plantOdd(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 3, "plant-odd KIND NET NAME")
	path := filepath.Join(w.store(args[1]), unescape(ts, args[2]))
	w.odd = append(w.odd, path)
	switch args[0] {
	case "fifo":
		ts.Check(unix.Mkfifo(path, 0o644))
	case "link":
		ts.Check(os.Symlink(filepath.Join(w.dir, "outside"), path))
	case "dir":
		ts.Check(os.MkdirAll(filepath.Join(path, "below"), 0o755))
	case "device": // /dev/zero: reading it never ends
		ts.Check(unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))))
	case "socket":
		ts.Check(unix.Mknod(path, unix.S_IFSOCK|0o644, 0))
	case "sparse":
		ts.Check(os.WriteFile(path, nil, 0o644))
		ts.Check(os.Truncate(path, 1<<30))
	default:
		ts.Fatalf("unknown kind %q", args[0])
	}
}

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

// immutable NET NAME lets nobody remove or move a file, root included, until the end of the
// script.
func (w *world) immutable(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "immutable NET NAME")
	testenv.Need(w.t, testenv.Immutable)
	f, err := os.Open(filepath.Join(w.store(args[0]), args[1]))
	ts.Check(err)
	w.t.Cleanup(func() { f.Close() })
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	ts.Check(err)
	ts.Check(unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutableFlag))
	w.mutable = append(w.mutable, func() error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) })
}

// remove NET NAME removes one file, as the allocator does.
func (w *world) remove(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "remove NET NAME")
	ts.Check(os.Remove(filepath.Join(w.store(args[0]), args[1])))
}

// touch NET NAME SHIFT moves a file's times; its ctime becomes now.
func (w *world) touch(ts *testscript.TestScript, args []string) {
	arity(ts, args, 3, 3, "touch NET NAME SHIFT")
	d, err := time.ParseDuration(args[2])
	ts.Check(err)
	path := filepath.Join(w.store(args[0]), args[1])
	st, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.Chtimes(path, st.ModTime().Add(d), st.ModTime().Add(d)))
}

// cache NET OWNER [key=value ...] writes a libcni cache entry: addr, pod (namespace/name),
// netns, plugins (comma-separated, "bridge" alone unless said), content (instead of all).
func (w *world) cache(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 9, "cache NET OWNER [key=value ...]")
	network, id := args[0], w.id(args[1])
	opt := map[string]string{"plugins": "bridge", "if": "eth0"}
	for _, a := range args[2:] {
		k, v, _ := strings.Cut(a, "=")
		opt[k] = v
	}
	path := filepath.Join(w.dir, "cache/results", network+"-"+id+"-"+opt["if"])
	if content, ok := opt["content"]; ok {
		w.odd = append(w.odd, path)
		w.write(ts, path, unescape(ts, content))
		return
	}
	entry := map[string]any{
		"kind": "cniCacheV1", "containerId": id, "ifName": opt["if"], "networkName": network, "netns": opt["netns"],
		"config": base64.StdEncoding.EncodeToString(w.conflist(network, w.subnet.String(), strings.Split(opt["plugins"], ",")...)),
	}
	if ns, name, ok := strings.Cut(opt["pod"], "/"); ok {
		// As containerd writes them: without them an ID may be used again, and gets no DEL.
		entry["cniArgs"] = [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", ns}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", "uid-" + id[:8]},
		}
	}
	if strings.Contains(opt["plugins"], "portmap") {
		entry["capabilityArgs"] = map[string]any{"portMappings": []map[string]any{{"hostPort": 1, "containerPort": 80, "protocol": "tcp"}}}
	}
	if a := opt["addr"]; a != "" {
		entry["result"] = map[string]any{"cniVersion": "1.0.0", "ips": []map[string]any{{"address": a + "/24"}}}
	}
	b, err := json.Marshal(entry)
	ts.Check(err)
	w.write(ts, path, string(b))
}

// plugin TYPE SCRIPT puts a plugin into the bin directory, a shell script.
func (w *world) plugin(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "plugin TYPE SCRIPT")
	path := filepath.Join(w.dir, "bin", args[0])
	text := "#!/bin/sh\n" + strings.ReplaceAll(args[1], "$WORK", w.dir) + "\n"
	ts.Check(os.WriteFile(path, []byte(text), 0o755))
}

// pod NAME [ADDR ...] makes a namespace with a veth that has the addresses, and a process
// in it. NAME is its owner's too.
func (w *world) pod(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 5, "pod NAME [ADDR ...]")
	p := &scriptPod{ns: netns.New(w.t)}
	w.veth(p)
	w.pods[args[0]] = p
	for _, a := range args[1:] {
		p.ns.AddAddr("eth0", withPrefix(ts, a))
	}
	var pid int
	pid, p.stop = p.ns.Hold()
	ts.Setenv("NETNS_"+args[0], p.ns.Path)
	ts.Setenv("PID_POD_"+args[0], strconv.Itoa(pid))
}

func withPrefix(ts *testscript.TestScript, addr string) string {
	a, err := netip.ParseAddr(addr)
	ts.Check(err)
	if a.Is4() {
		return addr + "/24"
	}
	return addr + "/64"
}

func (w *world) podOf(ts *testscript.TestScript, name string) *scriptPod {
	p := w.pods[name]
	if p == nil {
		ts.Fatalf("no Pod %q", name)
	}
	return p
}

// orphan-pod NAME ADDR [busy] makes a namespace with the address, pinned where and as
// containerd pins its own; nobody is in it unless it is busy.
func (w *world) orphanPod(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 3, "orphan-pod NAME ADDR [busy]")
	ts.Check(os.MkdirAll("/run/netns", 0o755))
	uuid := make([]byte, 16)
	rand.Read(uuid)
	path := fmt.Sprintf("/run/netns/cni-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	p := &scriptPod{ns: netns.NewAt(w.t, path)}
	w.veth(p)
	p.ns.AddAddr("eth0", withPrefix(ts, args[1]))
	if len(args) == 3 {
		_, p.stop = p.ns.Hold()
	}
	p.ns.Close()
	w.pods[args[0]] = p
	ts.Setenv("NETNS_"+args[0], path)
}

func (w *world) veth(p *scriptPod) {
	if w.links == nil {
		w.links = netns.New(w.t)
	}
	w.links.Veth(fmt.Sprintf("veth%d", w.made), p.ns, "eth0")
	w.made++
}

// add-address POD ADDR gives a Pod one more address.
func (w *world) addAddress(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 2, "add-address POD ADDR")
	w.podOf(ts, args[0]).ns.AddAddr("eth0", withPrefix(ts, args[1]))
}

// kill-pod NAME ends the process. The namespace stays while it is pinned.
func (w *world) killPod(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "kill-pod NAME")
	p := w.podOf(ts, args[0])
	p.stop()
	p.stop = nil
	w.notLiving(args[0])
}

// unpin NAME takes the namespace's mount away, and our own descriptor of it, and waits
// until nobody has it: another mount namespace may have a copy of the mount for as long as
// it lives, and any other holdfast on this machine a descriptor while it takes its
// snapshot, both of which are a use for ours.
func (w *world) unpin(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "unpin NAME")
	ns := w.podOf(ts, args[0]).ns
	ns.Unpin()
	ns.Close()
	name := fmt.Sprintf("net:[%d]", ns.ID)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		// In this order: who has no mount to open cannot get a descriptor any more.
		if !mounted(ts, name) && !opened(ts, name) {
			return
		}
	}
	ts.Fatalf("somebody keeps %s", name)
}

func mounted(ts *testscript.TestScript, name string) bool {
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	ts.Check(err)
	return slices.ContainsFunc(tables, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), " "+name+" ")
	})
}

func opened(ts *testscript.TestScript, name string) bool {
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	ts.Check(err)
	return slices.ContainsFunc(fds, func(path string) bool {
		link, err := os.Readlink(path)
		return err == nil && link == name
	})
}

// notLiving ends the promise that a Pod's reservations stay.
func (w *world) notLiving(name string) {
	maps.DeleteFunc(w.keep, func(_, content string) bool { return strings.HasPrefix(content, w.id(name)) })
}

// shim OWNER starts a process that calls itself the Kubernetes shim of a container of the
// scripted runtime. It ends with the script.
func (w *world) shim(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "shim OWNER")
	cmd := exec.Command("/bin/sh")
	cmd.Args = []string{"containerd-shim-runc-v2", "-c", "read x", "-namespace", "k8s.io", "-id", w.id(args[0]), "-address", filepath.Join(w.dir, "cri.sock")}
	stdin, err := cmd.StdinPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	w.t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
}

// sleep D waits.
func (w *world) sleep(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "sleep D")
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.Sleep(d)
}

// hold-lock NET takes host-local's lock of a network; $LOCKPID is who holds it.
func (w *world) holdLock(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "hold-lock NET")
	f, err := os.OpenFile(filepath.Join(w.store(args[0]), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	ts.Check(err)
	ts.Check(unix.Flock(int(f.Fd()), unix.LOCK_EX))
	w.locks[args[0]] = f
	ts.Setenv("LOCKPID", strconv.Itoa(os.Getpid()))
}

// free-lock NET gives it back.
func (w *world) freeLock(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "free-lock NET")
	f := w.locks[args[0]]
	if f == nil {
		ts.Fatalf("the lock of %s is not held", args[0])
	}
	delete(w.locks, args[0])
	ts.Check(f.Close())
}

// runtime MODE starts the scripted CRI runtime or changes it. missing: there is no socket;
// refused: a socket file without a listener; the others are critest's. none ends the
// naming of an endpoint.
func (w *world) runtime(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "runtime MODE")
	socket := filepath.Join(w.dir, "cri.sock")
	mode := critest.Mode(args[0])
	switch args[0] {
	case "none":
		w.endpoint = "none"
		return
	case "error-list":
		mode = critest.Error
	case "denied":
		mode = critest.PermissionDenied
	case "cutoff":
		mode = critest.CutOff
	case "refused", "missing":
		if w.server != nil {
			w.server.Kill()
		}
		if args[0] == "missing" && w.server != nil {
			w.server.Stop()
		}
		w.server, w.endpoint = nil, "unix://"+socket
		return
	}
	if w.server == nil {
		s, err := critest.Listen(socket)
		ts.Check(err)
		w.server, w.endpoint = s, "unix://"+socket
		// Somebody is always there: a runtime that lists nothing at all is doubted.
		w.sandboxes["bystander"] = critest.Sandbox{ID: w.id("bystander"), Namespace: "kube-system", Name: "bystander", UID: "uid-" + w.id("bystander")[:8], Created: 1, HostNetwork: true}
		w.script()
	}
	w.server.SetMode(mode)
}

func (w *world) script() {
	if w.server != nil {
		w.server.SetSandboxes(slices.Collect(maps.Values(w.sandboxes))...)
	}
}

// sandbox OWNER ready|notready NAMESPACE/NAME UID [key=value ...] lists a sandbox: ip,
// netns, created.
func (w *world) sandbox(ts *testscript.TestScript, args []string) {
	arity(ts, args, 4, 7, "sandbox OWNER ready|notready NAMESPACE/NAME UID [key=value ...]")
	ns, name, _ := strings.Cut(args[2], "/")
	s := critest.Sandbox{ID: w.id(args[0]), Namespace: ns, Name: name, UID: args[3], NotReady: args[1] == "notready", Created: int64(len(w.sandboxes) + 1), Source: "api"}
	for _, a := range args[4:] {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "ip":
			s.IPs = append(s.IPs, v)
		case "netns":
			s.Netns = v
		case "source":
			s.Source = v
		default:
			ts.Fatalf("unknown key %q", k)
		}
	}
	w.sandboxes[args[0]] = s
	w.script()
}

// forget OWNER takes a sandbox off the list.
func (w *world) forget(ts *testscript.TestScript, args []string) {
	arity(ts, args, 1, 1, "forget OWNER")
	delete(w.sandboxes, args[0])
	w.script()
}
