package sim

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

// This is host-local 1.10 as it behaves on a disk: plugins/ipam/host-local/backend/disk.
// Nothing that it writes is fsynced.

// addStep is one step of an ADD. A plugin that is killed leaves what the steps before did.
type addStep struct {
	do       stepKind
	net, fam int
}

type stepKind byte

const (
	stepLock   stepKind = iota // make the directory and take its lock
	stepCreate                 // O_CREAT|O_EXCL of the next free address
	stepWrite                  // ID, CR LF, interface
	stepLast                   // last_reserved_ip.<n>
	stepUnlock
	stepAddr  // the address comes into the namespace
	stepCache // libcni saves the result

	// Of holdfast-ipam, see allocator.go.
	stepDraft // write what gets its name later
	stepTurn  // the turn under the lock, and what it leads to
	stepSync  // make the names durable: the ADD is acknowledged
)

func (w *World) planAdd(c *container) []addStep {
	var out []addStep
	for n := range w.nets {
		if c.nets&(1<<n) == 0 {
			continue
		}
		if c.ours {
			out = append(out, addStep{stepDraft, n, 0}, addStep{stepTurn, n, 0}, addStep{stepSync, n, 0}, addStep{stepAddr, n, 0}, addStep{stepCache, n, 0})
			continue
		}
		out = append(out, addStep{stepLock, n, 0})
		for fam := range w.families() {
			out = append(out, addStep{stepCreate, n, fam}, addStep{stepWrite, n, fam}, addStep{stepLast, n, fam})
		}
		out = append(out, addStep{stepUnlock, n, 0}, addStep{stepAddr, n, 0}, addStep{stepCache, n, 0})
	}
	return out
}

func (w *World) families() int {
	if w.cfg.Dual {
		return 2
	}
	return 1
}

// addr is the i-th address of a network and family.
func (n *network) addr(fam, i int) netip.Addr {
	if fam == 0 {
		a := n.v4
		a[3] = byte(2 + i)
		return netip.AddrFrom4(a)
	}
	return netip.AddrFrom16([16]byte{0xfd, 0, n.v4[2], 15: byte(2 + i)})
}

// index is the inverse of addr, -1 for none of its addresses.
func (n *network) index(a netip.Addr) (fam, i int) {
	for fam := range 2 {
		for i := range n.n {
			if n.addr(fam, i) == a {
				return fam, i
			}
		}
	}
	return 0, -1
}

func ifName(net int) string { return [...]string{"eth0", "net1"}[net] }

// step does the next step of an ADD. False: it ended, or it waits for a lock.
func (w *World) step(c *container) bool {
	if !c.adding || len(c.todo) == 0 {
		return false
	}
	s := c.todo[0]
	n := w.nets[s.net]
	ok := true
	switch s.do {
	case stepLock:
		if n.lock != nil && n.lock != c || n.stuck || !w.take(n) {
			return false
		}
		n.lock = c
		if len(w.reserved(n, c, s.net)) > 0 {
			ok = false // "duplicate allocation is not allowed"
		}
	case stepCreate:
		ok = w.create(c, n, s)
	case stepWrite:
		ok = w.write(c, n, s)
	case stepLast:
		// A failure here fails the ADD and leaves the file (case L19).
		last := c.addrs[len(c.addrs)-1]
		ok = w.put(fmt.Sprintf("%s/last_reserved_ip.%d", n.dir(), s.fam), []byte(last.String())) == nil
	case stepDraft, stepTurn, stepSync:
		var wait bool
		if ok, wait = w.stepOurs(c, n, s); wait {
			return false
		}
	case stepUnlock:
		w.unlockOf(c)
	case stepAddr:
		w.setAddrs(c, n, s.net)
	case stepCache:
		w.cache(c, n, s.net)
	}
	w.seq++
	if !ok {
		w.abort(c)
		return false
	}
	c.todo = c.todo[1:]
	return true
}

// take takes a store's lock as host-local does, but does not wait.
func (w *World) take(n *network) bool {
	if err := fsys.MkdirAll(w.up, n.dir(), 0o755); err != nil {
		return false
	}
	fd, err := w.up.Openat(unix.AT_FDCWD, n.dir()+"/lock", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return false
	}
	if err := w.up.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		w.up.Close(fd)
		return false
	}
	w.locks[n.dir()] = fd
	return true
}

func (w *World) unlock(dir string) {
	if fd, ok := w.locks[dir]; ok {
		w.up.Close(fd)
		delete(w.locks, dir)
	}
}

// unlockOf gives back what a container's plugin holds.
func (w *World) unlockOf(c *container) {
	for _, n := range w.nets {
		if n.lock == c {
			n.lock = nil
			w.unlock(n.dir())
		}
	}
}

// create reserves the next free address after the last one that was given out.
func (w *World) create(c *container, n *network, s addStep) bool {
	start := 0
	if b, err := w.disk.ReadFile(fmt.Sprintf("%s/last_reserved_ip.%d", n.dir(), s.fam)); err == nil {
		if a, err := netip.ParseAddr(string(b)); err == nil {
			if fam, i := n.index(a); i >= 0 && fam == s.fam {
				start = i + 1
			}
		}
	}
	for k := range n.n {
		a := n.addr(s.fam, (start+k)%n.n)
		p := n.dir() + "/" + a.String()
		fd, err := w.up.Openat(unix.AT_FDCWD, p, unix.O_RDWR|unix.O_EXCL|unix.O_CREAT, 0o600)
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return false
		}
		w.up.Close(fd)
		w.taint(a.String(), c)
		c.addrs = append(c.addrs, a)
		w.ledger.add(w, p, c, nil)
		return true
	}
	return false
}

func (w *World) write(c *container, n *network, s addStep) bool {
	p := n.dir() + "/" + c.addrs[len(c.addrs)-1].String()
	content := []byte(c.id + "\r\n" + ifName(s.net))
	if w.put(p, content) == nil {
		w.ledger.add(w, p, c, content)
		return true
	}
	c.addrs = c.addrs[:len(c.addrs)-1]
	if w.up.Unlinkat(unix.AT_FDCWD, p, 0) == nil {
		w.ledger.drop(p)
	}
	return false
}

// put writes a file in place, without fsync.
func (w *World) put(path string, content []byte) error {
	fd, err := w.up.Openat(unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	n, err := w.up.Write(fd, content)
	w.up.Close(fd)
	if err == nil && n < len(content) {
		err = unix.ENOSPC
	}
	return err
}

func (w *World) setAddrs(c *container, n *network, net int) {
	c.linkedAt = w.mono
	if c.ns == nil || c.kind == gvisor || c.kind == vfio {
		return
	}
	for _, a := range c.addrs {
		if _, i := n.index(a); i >= 0 {
			c.ns.addrs = append(c.ns.addrs, claim.IfAddr{If: ifName(net), Addr: a})
		}
	}
}

func cachePath(network, id, ifName string) string {
	return cacheDir + "/results/" + network + "-" + id + "-" + ifName
}

// cache is libcni's cached result. Half of the runtimes keep none.
func (w *World) cache(c *container, n *network, net int) {
	if c.slot%2 == 1 {
		return
	}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"bridge","ipam":{"type":"host-local","dataDir":%q}}]}`, n.name, dataDir)
	var ips []map[string]string
	for _, a := range c.addrs {
		if _, i := n.index(a); i >= 0 {
			ips = append(ips, map[string]string{"address": netip.PrefixFrom(a, a.BitLen()-8).String()})
		}
	}
	b, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": c.id, "config": base64.StdEncoding.EncodeToString([]byte(conf)), "ifName": ifName(net),
		"networkName": n.name, "netns": c.ns.mount, "result": map[string]any{"cniVersion": "1.0.0", "ips": ips},
	})
	if err == nil {
		_ = w.put(cachePath(n.name, c.id, ifName(net)), b)
	}
}

// reserved are the files of an attachment, as host-local's GetByID and ReleaseByID find
// them: by the whole trimmed content, in the directory that the network has now.
func (w *World) reserved(n *network, c *container, net int) []string {
	var out []string
	want := c.id + "\r\n" + ifName(net)
	for _, name := range w.names(n.dir()) {
		if _, err := netip.ParseAddr(name); err != nil {
			continue
		}
		p := filepath.Join(n.dir(), name)
		b, err := w.disk.ReadFile(p)
		if err != nil {
			continue
		}
		if s := strings.TrimSpace(string(b)); s == want || s == c.id {
			out = append(out, p)
		}
	}
	return out
}

func (w *World) names(dir string) []string {
	list, err := w.disk.List(dir)
	if err != nil {
		return nil
	}
	slices.Sort(list)
	return list
}

// del is the plugin's DEL for one attempt, under the lock; false when it is not to be had.
// libcni's cache entry goes with it.
func (w *World) del(c *container) bool {
	for i, n := range w.nets {
		if c.nets&(1<<i) == 0 {
			continue
		}
		if c.ours {
			if !w.delOurs(c, n, i) {
				return false
			}
			_ = w.up.Unlinkat(unix.AT_FDCWD, cachePath(n.name, c.id, ifName(i)), 0)
			continue
		}
		if n.lock != nil || n.stuck || !w.take(n) {
			return false
		}
		for _, p := range w.reserved(n, c, i) {
			// host-local swallows an error here (case L18).
			if w.up.Unlinkat(unix.AT_FDCWD, p, 0) == nil {
				w.deleted(p)
			}
		}
		w.unlock(n.dir())
		_ = w.up.Unlinkat(unix.AT_FDCWD, cachePath(n.name, c.id, ifName(i)), 0)
	}
	w.seq++
	return true
}
