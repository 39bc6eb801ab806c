package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/proc"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

const (
	defaultDataDir = "/var/lib/cni/networks"
	defaultRunDir  = "/run/holdfast"
	defaultState   = "/var/lib/holdfast"
	defaultHeal    = 5 * time.Second
	// stateWait bounds the wait for the lock of the boots that were seen.
	stateWait = 200 * time.Millisecond
	// maxWait bounds what a person can ask for: the kubelet gives an ADD 2 minutes.
	maxWait = time.Hour
	// largeDir is the size in bytes of a directory of some thousand names.
	largeDir = 64 << 10
)

// extras are the keys of "ipam" that host-local does not have. All are optional.
type extras struct {
	// Cooldown: an address is not handed out again for that long while others are free.
	Cooldown duration `json:"cooldown"`
	// LockTimeout bounds the wait for host-local's lock.
	LockTimeout duration `json:"lockTimeout"`
	// RunDir holds the index and the healer's lock.
	RunDir string `json:"runDir"`
	// StateDir is holdfast's, where the boots that were seen are noted.
	StateDir string     `json:"stateDir"`
	Heal     healConfig `json:"heal"`
}

// healConfig says how a full network is healed.
type healConfig struct {
	Disabled bool `json:"disabled"`
	// Binary is holdfast; the one beside this plugin if empty.
	Binary string `json:"binary"`
	// Args are further arguments of `holdfast heal`.
	Args    []string `json:"args"`
	Timeout duration `json:"timeout"`
	// Socket is the agent's.
	Socket string `json:"socket"`
}

// duration is a Go duration as text.
type duration time.Duration

func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is no duration such as \"30s\" or \"5m\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 || v > maxWait {
		return fmt.Errorf("%q is no duration from \"0s\" to \"1h\", such as \"30s\" or \"5m\"", s)
	}
	*d = duration(v)
	return nil
}

// request is one call of the plugin.
type request struct {
	args    *skel.CmdArgs
	conf    *allocator.IPAMConfig
	version string // of the result
	extras  extras
	clock   *boot.Clock
}

// parse reads configuration and environment; what it refuses, host-local refuses with the
// same words.
func parse(args *skel.CmdArgs) (*request, error) {
	if err := checkRequested(args.StdinData); err != nil {
		return nil, err
	}
	conf, v, err := allocator.LoadIPAMConfig(args.StdinData, args.Args)
	if err != nil {
		return nil, err
	}
	if err := checkDurations(args.StdinData); err != nil {
		return nil, err
	}
	var own struct {
		IPAM extras `json:"ipam"`
	}
	// Reflection on a type costs more than all else here, and few configurations have these.
	if mentions(args.StdinData, "cooldown", "locktimeout", "rundir", "statedir", "heal") {
		if err := json.Unmarshal(args.StdinData, &own); err != nil {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, "ipam: "+err.Error(), "")
		}
	}
	for field, path := range map[string]string{"ipam.runDir": own.IPAM.RunDir, "ipam.stateDir": own.IPAM.StateDir, "ipam.heal.binary": own.IPAM.Heal.Binary, "ipam.heal.socket": own.IPAM.Heal.Socket} {
		if path != "" && !filepath.IsAbs(path) {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%s is %q; allowed is an absolute path", field, path), "")
		}
	}
	// The name becomes a directory's. libcni refuses most of this, but not every caller is libcni.
	if n := conf.Name; n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("name is %q; allowed is what can be the name of a directory", n), "")
	}
	conf.DataDir = cmp.Or(conf.DataDir, defaultDataDir)
	own.IPAM.RunDir = cmp.Or(own.IPAM.RunDir, defaultRunDir)
	own.IPAM.Heal.Timeout = cmp.Or(own.IPAM.Heal.Timeout, duration(defaultHeal))
	own.IPAM.Heal.Socket = cmp.Or(own.IPAM.Heal.Socket, filepath.Join(own.IPAM.RunDir, "agent.sock"))
	return &request{args: args, conf: conf, version: v, extras: own.IPAM, clock: boot.NewClock("/proc")}, nil
}

func (r *request) dir() string { return filepath.Join(r.conf.DataDir, r.conf.Name) }

// open opens the store. A boot ID that cannot be read leaves reservations unstamped.
func (r *request) open() (*hostlocal.Store, error) {
	if st, err := os.Stat(r.dir()); err == nil && st.Size() > largeDir {
		// A process of some milliseconds and MB is through before a collection pays. To say so stops
		// the world once, which a small network would pay for nothing.
		debug.SetGCPercent(-1)
	}
	return hostlocal.OpenStore(hostlocal.StoreConfig{
		Dir: r.dir(), RunDir: r.extras.RunDir, LockWait: time.Duration(r.extras.LockTimeout), Proc: "/proc",
		Boot: r.clock.Now().Boot, Mono: func() time.Duration { return r.clock.Now().Mono },
	})
}

// close closes the store. The first look of a boot, which may be a DEL's, notes the boot in
// holdfast's history: so what this boot leaves behind is known to be past after the next one,
// even if holdfast never ran in it. Where that cannot be written nothing is said: it costs the
// dead of a reboot their grace, and nobody else anything.
func (r *request) close(s *hostlocal.Store) {
	_ = s.Close()
	current := r.clock.Now().Boot
	// Of a nested boot nothing is known (case F23).
	if !s.NewBoot || current == "" || !proc.InInitialPIDNS("/proc") {
		return
	}
	d, err := state.Open(cmp.Or(r.extras.StateDir, defaultState), state.Options{LockWait: stateWait})
	if err != nil {
		return
	}
	_, _ = d.ObserveBoot(current)
	_ = d.Close()
}

// mentions reports whether a JSON text may have one of these words, which are in lower
// case, somewhere: keys match in any case, and any character may be written as an escape.
func mentions(text []byte, words ...string) bool {
	text = bytes.ToLower(text)
	for _, w := range append(words, `\u`) {
		if bytes.Contains(text, []byte(w)) {
			return true
		}
	}
	return false
}

// checkDurations refuses what is no duration, by the name of its field, which the error of
// encoding/json does not have.
func checkDurations(stdin []byte) error {
	var c struct {
		IPAM struct {
			Cooldown    json.RawMessage `json:"cooldown"`
			LockTimeout json.RawMessage `json:"lockTimeout"`
			Heal        struct {
				Timeout json.RawMessage `json:"timeout"`
			} `json:"heal"`
		} `json:"ipam"`
	}
	if json.Unmarshal(stdin, &c) != nil {
		return nil // what is wrong is told by who reads all of it
	}
	for _, f := range []struct {
		name string
		text json.RawMessage
	}{{"ipam.cooldown", c.IPAM.Cooldown}, {"ipam.lockTimeout", c.IPAM.LockTimeout}, {"ipam.heal.timeout", c.IPAM.Heal.Timeout}} {
		if f.text == nil {
			continue
		}
		if err := new(duration).UnmarshalJSON(f.text); err != nil {
			return types.NewError(types.ErrInvalidNetworkConfig, f.name+": "+err.Error(), "")
		}
	}
	return nil
}

// checkRequested refuses a null among the requested addresses, on which host-local's loader
// panics. What is not of this shape is for the loader to refuse.
func checkRequested(stdin []byte) error {
	var c struct {
		Args struct {
			CNI struct {
				IPs []*json.RawMessage `json:"ips"`
			} `json:"cni"`
		} `json:"args"`
		RuntimeConfig struct {
			IPs []*json.RawMessage `json:"ips"`
		} `json:"runtimeConfig"`
	}
	if !mentions(stdin, "null") || json.Unmarshal(stdin, &c) != nil {
		return nil
	}
	for field, list := range map[string][]*json.RawMessage{"args.cni.ips": c.Args.CNI.IPs, "runtimeConfig.ips": c.RuntimeConfig.IPs} {
		if slices.Contains(list, nil) {
			return types.NewError(types.ErrInvalidNetworkConfig, field+" has a null; allowed are addresses such as \"10.1.2.3\" or \"10.1.2.3/24\"", "")
		}
	}
	return nil
}

// netns is the nsfs inode of the attachment's namespace; 0 if it is none, or none was given.
func (r *request) netns() uint64 {
	if r.args.Netns == "" {
		return 0
	}
	return netnsOf(r.args.Netns)
}

func ownNetns() uint64 { return netnsOf("/proc/self/ns/net") }

func netnsOf(path string) uint64 {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(path, &fs) != nil || fs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// say writes a message for the runtime's log. stdout is the result's.
func say(format string, a ...any) { fmt.Fprintf(os.Stderr, "holdfast-ipam: "+format+"\n", a...) }

func addrOf(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
