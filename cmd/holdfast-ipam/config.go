package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/holdfast-cni/holdfast/cmd/holdfast-ipam/allocator"
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
	Cooldown time.Duration
	// LockTimeout bounds the wait for host-local's lock.
	LockTimeout time.Duration
	// RunDir holds the index and the healer's lock.
	RunDir string
	// StateDir is holdfast's, where the boots that were seen are noted.
	StateDir string
	Heal     healConfig
}

// healConfig says how a full network is healed.
type healConfig struct {
	Disabled bool `json:"disabled"`
	// Binary is holdfast; the one beside this plugin if empty.
	Binary string `json:"binary"`
	// Args are further arguments of `holdfast heal`.
	Args []string `json:"args"`
	// Timeout is a duration as text.
	Timeout json.RawMessage `json:"timeout"`
	// Socket is the agent's.
	Socket string `json:"socket"`

	timeout time.Duration
}

// request is one call of the plugin.
type request struct {
	args    *cmdArgs
	conf    *allocator.IPAMConfig
	version string // of the result
	extras  extras
	clock   *boot.Clock
}

// parse reads configuration and environment; what it refuses, host-local refuses with the
// same words.
func parse(args *cmdArgs) (*request, error) {
	conf, v, err := allocator.LoadIPAMConfig(args.StdinData, args.Args)
	var null *allocator.NullError
	if errors.As(err, &null) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	if err != nil {
		return nil, err
	}
	own, err := parseOwn(conf.Own)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	// The name becomes a directory's. libcni refuses most of this, but not every caller is libcni.
	if n := conf.Name; n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("name is %q; allowed is what can be the name of a directory", n), "")
	}
	conf.DataDir = cmp.Or(conf.DataDir, defaultDataDir)
	return &request{args: args, conf: conf, version: v, extras: own, clock: boot.NewClock("/proc")}, nil
}

// parseOwn reads our own keys. An error names the key.
func parseOwn(keys allocator.Own) (extras, error) {
	var own extras
	for _, f := range []struct {
		name string
		text json.RawMessage
		into any
	}{
		{"ipam.cooldown", keys.Cooldown, &own.Cooldown},
		{"ipam.lockTimeout", keys.LockTimeout, &own.LockTimeout},
		{"ipam.runDir", keys.RunDir, &own.RunDir},
		{"ipam.stateDir", keys.StateDir, &own.StateDir},
		{"ipam.heal", keys.Heal, &own.Heal},
	} {
		if f.text == nil {
			continue
		}
		var err error
		if d, ok := f.into.(*time.Duration); ok {
			*d, err = parseDuration(f.text)
		} else {
			err = json.Unmarshal(f.text, f.into)
		}
		name := f.name
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
			name += "." + wrong.Field
		}
		if err != nil {
			return own, fmt.Errorf("%s: %w", name, err)
		}
	}
	own.Heal.timeout = defaultHeal
	if own.Heal.Timeout != nil {
		d, err := parseDuration(own.Heal.Timeout)
		if err != nil {
			return own, fmt.Errorf("ipam.heal.timeout: %w", err)
		}
		own.Heal.timeout = cmp.Or(d, defaultHeal)
	}
	for _, f := range []struct{ name, path string }{
		{"ipam.runDir", own.RunDir}, {"ipam.stateDir", own.StateDir}, {"ipam.heal.binary", own.Heal.Binary}, {"ipam.heal.socket", own.Heal.Socket},
	} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			return own, fmt.Errorf("%s is %q; allowed is an absolute path", f.name, f.path)
		}
	}
	own.RunDir = cmp.Or(own.RunDir, defaultRunDir)
	own.Heal.Socket = cmp.Or(own.Heal.Socket, filepath.Join(own.RunDir, "agent.sock"))
	return own, nil
}

// parseDuration reads a Go duration as JSON text.
func parseDuration(text json.RawMessage) (time.Duration, error) {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return 0, fmt.Errorf("%s is no duration such as \"30s\" or \"5m\"", text)
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 || v > maxWait {
		return 0, fmt.Errorf("%q is no duration from \"0s\" to \"1h\", such as \"30s\" or \"5m\"", s)
	}
	return v, nil
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
		Dir: r.dir(), RunDir: r.extras.RunDir, LockWait: r.extras.LockTimeout, Proc: "/proc",
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
