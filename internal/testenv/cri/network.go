package cri

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Network is a CNI configuration list: bridge with host-local or another IPAM, and what is chained.
type Network struct {
	Name   string
	Bridge string       // at most 15 bytes
	Subnet netip.Prefix // IPv4
	// First and Last bound the range; zero means the whole subnet.
	First, Last netip.Addr
	// Chain are plugin types after the bridge. "portmap" gets its capability.
	Chain []string
	// IPAM are members of "ipam" beside or instead of those above, such as "type".
	IPAM map[string]any
}

// newNetwork draws a network that no other test run has: 64 bits of name, a /24 out
// of 10.128.0.0/9. Two runs draw the same /24 once in 32,768 times; then each takes
// the other's addresses for alive, and fails.
func newNetwork() (Network, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return Network{}, err
	}
	n := binary.BigEndian.Uint64(b[:])
	return Network{
		Name:   "hf-" + hex.EncodeToString(b[:]),
		Bridge: "hf" + hex.EncodeToString(b[:5]), // 12 bytes
		Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 | byte(n>>8)&0x7f, byte(n), 0}), 24),
	}, nil
}

// conflist renders the network for libcni. Masquerading is off: it would need
// iptables and prove nothing about addresses.
func (n Network) conflist(dataDir string) ([]byte, error) {
	type object = map[string]any
	r := object{"subnet": n.Subnet.String()}
	if n.First.IsValid() {
		r["rangeStart"] = n.First.String()
	}
	if n.Last.IsValid() {
		r["rangeEnd"] = n.Last.String()
	}
	ipam := object{"type": "host-local", "dataDir": dataDir, "ranges": [][]object{{r}}}
	maps.Copy(ipam, n.IPAM)
	plugins := []object{{"type": "bridge", "bridge": n.Bridge, "isGateway": true, "ipMasq": false, "ipam": ipam}}
	for _, t := range n.Chain {
		p := object{"type": t}
		if t == "portmap" {
			p["capabilities"] = object{"portMappings": true}
		}
		plugins = append(plugins, p)
	}
	return json.MarshalIndent(object{"cniVersion": "1.0.0", "name": n.Name, "plugins": plugins}, "", "  ")
}

// SetNetwork makes n the runtime's network and waits until a running runtime has
// loaded it. Sandboxes that run keep what they have.
func (r *Runtime) SetNetwork(t testing.TB, n Network) {
	t.Helper()
	b, err := n.conflist(r.p.dataDir)
	if err != nil {
		t.Fatal(err)
	}
	// By rename: a runtime that watches the directory must not read half a file.
	path := filepath.Join(r.p.confDir, "10-net.conflist")
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
	r.net = n
	if !r.alive() {
		return
	}
	r.poll(t, "the runtime has loaded network "+n.Name, func() (bool, error) {
		loaded, err := r.loadedNetwork(t.Context())
		return err == nil && loaded == signature(n), err
	})
}

// signature tells one version of a network from the next: its name and chain.
func signature(n Network) string {
	return n.Name + ":" + strings.Join(append([]string{"bridge"}, n.Chain...), ",")
}

// InstallPlugin puts a CNI plugin that is a shell script into the runtime's bin
// directory.
func (r *Runtime) InstallPlugin(t testing.TB, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.p.binDir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// InstallProgram puts a program into the runtime's bin directory, under its own name.
func (r *Runtime) InstallProgram(t testing.TB, path string) {
	t.Helper()
	if err := linkOrCopy(path, filepath.Join(r.p.binDir, filepath.Base(path))); err != nil {
		t.Fatal(err)
	}
}

// FailingPlugin is the script of a plugin that fails ADD and DEL alike (case L10).
const FailingPlugin = `#!/bin/sh
cat >/dev/null
if [ "$CNI_COMMAND" = VERSION ]; then
	echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'
	exit 0
fi
echo '{"cniVersion":"1.0.0","code":999,"msg":"this plugin always fails"}'
exit 1
`

// Reservations returns what lies in the host-local directory of the named network:
// the container ID by address.
func (r *Runtime) Reservations(t testing.TB, network string) map[netip.Addr]string {
	t.Helper()
	out := map[netip.Addr]string{}
	dir := filepath.Join(r.p.dataDir, network)
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // "lock", "last_reserved_ip.0"
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if os.IsNotExist(err) {
			continue // released since
		}
		if err != nil {
			t.Fatal(err)
		}
		id, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
		out[addr] = strings.TrimSpace(id)
	}
	return out
}

// writeLoopbackRecorder wraps the loopback plugin, which every containerd calls for
// every sandbox, failed ones included: so we learn of every container ID and netns
// that ever was, and can take them away by name.
func (p paths) writeLoopbackRecorder() error {
	script := fmt.Sprintf("#!/bin/sh\n[ -z \"$CNI_CONTAINERID\" ] || echo \"$CNI_CONTAINERID $CNI_NETNS\" >>%s\nexec %s\n",
		p.record, filepath.Join(p.realDir, "loopback"))
	return os.WriteFile(filepath.Join(p.binDir, "loopback"), []byte(script), 0o755)
}

var netnsPath = regexp.MustCompile(`^(/var)?/run/netns/[a-z]+-[0-9a-f-]+$`)

// recorded is a container ID and the netns that it was given.
type recorded struct{ id, netns string }

func (p paths) recorded() ([]recorded, error) {
	b, err := os.ReadFile(p.record)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seen := map[recorded]bool{}
	var out []recorded
	for line := range strings.Lines(string(b)) {
		id, netns, _ := strings.Cut(strings.TrimSpace(line), " ")
		rec := recorded{id: id, netns: netns}
		// A DEL may come with an empty netns.
		if netnsPath.MatchString(netns) && !seen[rec] {
			seen[rec] = true
			out = append(out, rec)
		}
	}
	return out, nil
}

// recordNetns adds what no loopback plugin told us.
func (p paths) recordNetns(id, netns string) error {
	f, err := os.OpenFile(p.record, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, id, netns)
	return errors.Join(err, f.Close())
}

// pollEvery is short beside anything that is waited for, and long beside its cost.
const (
	pollEvery = 50 * time.Millisecond
	pollFor   = 60 * time.Second
)
