package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sys/cri/critest"
)

const networks = 4

// node is a node that looks full: many reservations, of which some live.
type node struct {
	dir    string // everything lies below it
	self   string // this program
	cgroup string // of the Pods, "" where there is no cgroup2
	rng    *rand.ChaCha8
	base   [2]byte // of the addresses

	pods    []*exec.Cmd
	cri     *exec.Cmd
	mounted []string
	starter chan func()
}

// attachment is one reservation.
type attachment struct {
	id, network string
	addr        netip.Addr
	netns, uid  string // when it lives
}

// newNode makes the directory and nothing else. The caller closes it.
func newNode() (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := &node{self: self, starter: make(chan func())}
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	n.rng = rand.NewChaCha8(seed)
	// 100.64.0.0/10 is nobody's Pod network, and the addresses exist in our own
	// namespaces only.
	n.base = [2]byte{100, 64 + 4*byte(rand.IntN(16))}
	if n.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return nil, err
	}
	// A child gets its death signal when the thread ends that started it.
	go func() {
		runtime.LockOSThread()
		for f := range n.starter {
			f()
		}
	}()
	return n, nil
}

func (n *node) path(elem ...string) string { return filepath.Join(append([]string{n.dir}, elem...)...) }
func (n *node) dataDir() string            { return n.path("networks") }
func (n *node) socket() string             { return n.path("cri.sock") }
func (n *node) network(i int) string       { return "bench" + strconv.Itoa(i%networks) }

func (n *node) id() string {
	var raw [32]byte
	_, _ = n.rng.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

func (n *node) uuid() string {
	s := n.id()
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:32]
}

// attachments spreads count addresses over the networks.
func (n *node) attachments(count int) []*attachment {
	list := make([]*attachment, count)
	for i := range list {
		k := i/networks + 2 // past the network's address and the gateway
		list[i] = &attachment{
			id: n.id(), network: n.network(i),
			addr: netip.AddrFrom4([4]byte{n.base[0], n.base[1] + byte(i%networks), byte(k >> 8), byte(k)}),
		}
	}
	return list
}

// build makes the node: count reservations, live of them with namespace, process,
// sandbox and cache entry.
func (n *node) build(ctx context.Context, count, live int) error {
	list := n.attachments(count)
	for _, dir := range []string{"root", "netns", "net.d", "bin", "cni/results", "state", "run"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := n.configs(); err != nil {
		return err
	}
	if err := n.reserve(list); err != nil {
		return err
	}
	// Spread them, and never the first and last only.
	var living []*attachment
	for i := range live {
		a := list[i*count/live]
		a.netns, a.uid = n.path("netns", "cni-"+n.uuid()), n.uuid()
		living = append(living, a)
	}
	if err := n.makeCgroup(); err != nil {
		return err
	}
	// First every process, then the mounts: a process that starts copies them.
	for _, a := range living {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := n.startPod(a); err != nil {
			return err
		}
	}
	for i, a := range living {
		if err := n.pin(n.pods[i].Process.Pid, a.netns); err != nil {
			return err
		}
		if err := n.cache(a); err != nil {
			return err
		}
	}
	if err := n.startCRI(living); err != nil {
		return err
	}
	unix.Sync() // what was written now must not be written during a measurement
	return nil
}

func (n *node) subnet(i int) string {
	return fmt.Sprintf("%d.%d.0.0/16", n.base[0], int(n.base[1])+i)
}

func (n *node) conf(i int) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "name": n.network(i),
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni" + strconv.Itoa(i), "isGateway": true, "ipMasq": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": n.dataDir(),
					"ranges": [][]any{{map[string]any{"subnet": n.subnet(i)}}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}
}

func (n *node) configs() error {
	for i := range networks {
		text, err := json.Marshal(n.conf(i))
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.path("net.d", fmt.Sprintf("10-bench%d.conflist", i)), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// reserve writes the files as host-local writes them.
func (n *node) reserve(list []*attachment) error {
	for i := range networks {
		dir := filepath.Join(n.dataDir(), n.network(i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
			return err
		}
	}
	for _, a := range list {
		dir := filepath.Join(n.dataDir(), a.network)
		if err := os.WriteFile(filepath.Join(dir, a.addr.String()), []byte(a.id+"\r\neth0"), 0o600); err != nil {
			return err
		}
	}
	for i := range networks {
		last := list[max(len(list)-networks+i, 0)]
		if err := os.WriteFile(filepath.Join(n.dataDir(), last.network, "last_reserved_ip.0"), []byte(last.addr.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// cache writes libcni's entry of a live attachment.
func (n *node) cache(a *attachment) error {
	i, err := strconv.Atoi(strings.TrimPrefix(a.network, "bench"))
	if err != nil {
		return err
	}
	conf, err := json.Marshal(n.conf(i))
	if err != nil {
		return err
	}
	entry := map[string]any{
		"kind": "cniCacheV1", "containerId": a.id, "config": base64.StdEncoding.EncodeToString(conf), "ifName": "eth0",
		"networkName": a.network, "netns": a.netns,
		"cniArgs": [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "pod-" + a.uid[:8]},
			{"K8S_POD_INFRA_CONTAINER_ID", a.id}, {"K8S_POD_UID", a.uid},
		},
		"capabilityArgs": map[string]any{"portMappings": []any{}},
		"result": map[string]any{
			"cniVersion": "1.0.0", "dns": map[string]any{},
			"interfaces": []any{
				map[string]any{"name": "cni" + strconv.Itoa(i), "mac": "ba:3c:00:00:00:01"},
				map[string]any{"name": "veth" + a.uid[:8], "mac": "ba:3c:00:00:00:02"},
				map[string]any{"name": "eth0", "mac": "ba:3c:00:00:00:03", "sandbox": a.netns},
			},
			"ips":    []any{map[string]any{"address": a.addr.String() + "/16", "interface": 2}},
			"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		},
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	return os.WriteFile(n.path("cni/results", a.network+"-"+a.id+"-eth0"), text, 0o600)
}

// makeCgroup makes a cgroup for the Pods where there is a cgroup2 to make it in.
func (n *node) makeCgroup() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(table) {
		f := bytes.Fields(line)
		if len(f) > 5 && bytes.Contains(line, []byte(" - cgroup2 ")) && string(f[3]) == "/" {
			dir := filepath.Join(string(f[4]), filepath.Base(n.dir))
			if os.Mkdir(dir, 0o755) == nil {
				n.cgroup = dir
			}
			return nil
		}
	}
	return nil
}

// startPod starts a process in namespaces and a cgroup of its own and waits until it
// has become the program that sleeps.
func (n *node) startPod(a *attachment) error {
	cmd := exec.Command(n.self, rolePod, a.addr.String()+"/16", n.path("root"))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
	}
	if n.cgroup != "" {
		dir := filepath.Join(n.cgroup, "pod"+a.uid, a.id)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	n.pods = append(n.pods, cmd)
	return n.start(cmd)
}

// start starts a role and waits for what it reports: nothing is success.
func (n *node) start(cmd *exec.Cmd) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stderr = os.Stderr
	done := make(chan error)
	n.starter <- func() { done <- cmd.Start() }
	err = <-done
	w.Close()
	if err != nil {
		return err
	}
	report, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if len(report) > 0 {
		return fmt.Errorf("%s: %s", cmd.Args[1], report)
	}
	return nil
}

// pin mounts the network namespace of a process, as runtimes do.
func (n *node) pin(pid int, path string) error {
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", pid), path, "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	n.mounted = append(n.mounted, path)
	return nil
}

func (n *node) startCRI(living []*attachment) error {
	var list []critest.Sandbox
	for i, a := range living {
		list = append(list, critest.Sandbox{
			ID: a.id, Namespace: "default", Name: "pod-" + a.uid[:8], UID: a.uid, Created: int64(1_700_000_000_000_000_000 + i),
			Netns: a.netns, IPs: []string{a.addr.String()},
		})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	file := n.path("sandboxes.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	n.cri = exec.Command(n.self, roleCRI, n.socket(), file)
	n.cri.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return n.start(n.cri)
}

// flags are what makes holdfast look at this node and nothing else of the machine but
// its /proc.
func (n *node) flags() []string {
	return []string{
		"--cni-conf-dir", n.path("net.d"), "--data-dir", n.dataDir(), "--cni-cache-dir", n.path("cni"), "--cni-bin-dir", n.path("bin"),
		"--cri-endpoint", "unix://" + n.socket(), "--state-dir", n.path("state"), "--run-dir", n.path("run"),
	}
}

// close removes everything by its own name.
func (n *node) close() error {
	var errs []error
	for _, p := range n.mounted {
		errs = append(errs, os.NewSyscallError("umount", unix.Unmount(p, unix.MNT_DETACH)))
	}
	for _, cmd := range append(n.pods, n.cri) {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	}
	for _, cmd := range append(n.pods, n.cri) {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Wait() // killed: its error says so
		}
	}
	close(n.starter)
	if n.cgroup != "" {
		errs = append(errs, removeCgroup(n.cgroup))
	}
	// Not a tree that has something mounted in it: nothing below is anybody else's.
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeCgroup(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(append(errs, unix.Rmdir(dir))...)
}
