package nodecheck

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// reservation is one file of a store.
type reservation struct {
	path string
	id   string // the owner as written, "" when it cannot be read
}

func (c *checker) dataDir(dir string) {
	for _, e := range c.list(dir) {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			c.add(Odd, path, "lies beside the networks")
			continue
		}
		if len(c.Networks) == 0 || slices.Contains(c.Networks, e.Name()) {
			c.network(path)
		}
	}
}

func (c *checker) network(dir string) {
	all := c.reserved[filepath.Base(dir)]
	if all == nil {
		all = map[netip.Addr][]reservation{}
		c.reserved[filepath.Base(dir)] = all
	}
	here := map[netip.Addr]string{}
	for _, e := range c.list(dir) {
		name, path := e.Name(), filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(name, "last_reserved_ip.holdfast-undo-"), isTemporary(name):
			c.add(Leftover, path, "of an interrupted write")
			continue
		case name == "lock":
			if c.regular(path, e) {
				c.unlocked(path)
			}
			continue
		case strings.HasPrefix(name, "last_reserved_ip."):
			c.regular(path, e)
			continue
		}
		addr, err := netip.ParseAddr(name)
		if err != nil || addr.Zone() != "" {
			c.add(Odd, path, "is no allocator's")
			continue
		}
		if !c.regular(path, e) {
			continue
		}
		if addr.String() != name || addr.Is4In6() {
			c.add(Spelling, path, "host-local writes %s", addr.Unmap())
		}
		addr = addr.Unmap()
		if other := here[addr]; other != "" {
			c.add(Twice, path, "and %s", other)
		}
		here[addr] = path
		all[addr] = append(all[addr], reservation{path: path, id: c.reservation(path)})
	}
}

func isTemporary(name string) bool {
	return strings.HasPrefix(name, ".tmp") || strings.HasSuffix(name, ".tmp")
}

// partOfID: whole IDs have 64 digits, short forms at most 32. One of 63 is not called half: it
// stands for another container in tests of whole IDs (case F17).
var partOfID = regexp.MustCompile(`^[0-9a-f]{1,11}$|^[0-9a-f]{33,62}$`)

// reservation returns the owner's ID.
func (c *checker) reservation(path string) string {
	b, ok := c.read(path)
	if !ok {
		return ""
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		c.add(Unreadable, path, "%v", err)
	} else if st.Nlink != 1 {
		c.add(HalfMoved, path, "has %d names", st.Nlink)
	}
	id, ifName, two := strings.Cut(string(b), "\r\n")
	switch {
	case strings.Trim(id, "\x00 \r\n") == "":
		c.add(Half, path, "names nobody: %q", b)
	case two && ifName == "" || strings.HasSuffix(string(b), "\r"):
		c.add(Half, path, "ends where the interface begins: %q", b)
	case partOfID.MatchString(id):
		c.add(Half, path, "holds the beginning of an ID: %q", b)
	}
	id, _, _ = strings.Cut(strings.TrimSpace(id), "\n")
	return strings.TrimSpace(id)
}

// entry is what a cache file says, in cniCacheV1.
type entry struct {
	ContainerID string `json:"containerId"`
	Network     string `json:"networkName"`
	Result      struct {
		IPs []struct {
			Address string
		}
	}
}

// cacheDir looks at the entries of networks that have a directory here: others are the
// machine's, or of networks without host-local.
func (c *checker) cacheDir(dir string) {
	for _, e := range c.list(dir) {
		name, path := e.Name(), filepath.Join(dir, e.Name())
		var network string
		for n := range c.reserved {
			// The longest: one network's name may begin another's.
			if strings.HasPrefix(name, n+"-") && len(n) > len(network) {
				network = n
			}
		}
		if network == "" {
			continue
		}
		if isTemporary(name) {
			c.add(Leftover, path, "of an interrupted write")
			continue
		}
		if c.regular(path, e) {
			c.cacheEntry(path, network)
		}
	}
}

func (c *checker) cacheEntry(path, network string) {
	b, ok := c.read(path)
	if !ok {
		return
	}
	var got entry
	if err := json.Unmarshal(b, &got); err != nil || got.ContainerID == "" {
		c.add(CacheBad, path, "%d bytes: %v", len(b), err)
		return
	}
	if got.Network != network {
		return // of a network that has no directory
	}
	for _, ip := range got.Result.IPs {
		p, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			c.add(CacheBad, path, "address %q", ip.Address)
			continue
		}
		addr := p.Addr().Unmap()
		if !slices.ContainsFunc(c.reserved[network][addr], func(r reservation) bool { return r.id == got.ContainerID }) {
			c.add(CacheOnly, path, "%s is not reserved for %s", addr, got.ContainerID)
		}
	}
}

// within reports whether path is dir or below it, by the files themselves.
func within(path, dir string) (bool, error) {
	want, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return false, err
	}
	for {
		st, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		if os.SameFile(st, want) {
			return true, nil
		}
		if path == "/" {
			return false, nil
		}
		path = filepath.Dir(path)
	}
}
