package cniexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Step says what a Call does.
type Step string

// The steps.
const (
	// StepDEL runs the plugin with CNI_COMMAND=DEL.
	StepDEL Step = "DEL"
	// StepMasquerade tears down what bridge or ptp set up for ipMasq.
	StepMasquerade Step = "masquerade"
)

// Call is one step for one attachment. It is made by Plan only.
type Call struct {
	Step       Step
	Attachment claim.Attachment
	// Plugin is the type in the configuration.
	Plugin string
	// ByAddress, when not empty, says that this step deletes by address. The caller
	// runs it only while each of these is still reserved for this dead attachment and
	// in no live namespace; else it would take a living Pod's rules.
	ByAddress []netip.Addr
	// Stdin is the configuration that the plugin gets.
	Stdin []byte

	args    string         // CNI_ARGS
	nets    []netip.Prefix // addresses with their prefix length, host bits kept
	backend string         // ipMasqBackend or backend of the configuration
}

// Skipped is a plugin of the configuration that is not run.
type Skipped struct {
	Plugin string // as configured: hostile text
	Why    string
}

// cached is libcni's cachedInfo.
type cached struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	CNIArgs        [][2]string                `json:"cniArgs"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	Result         json.RawMessage            `json:"result"`
}

// ErrEntry says that a cache entry cannot be planned from: broken, of a format
// without configuration (libcni before 0.8), or contradicting itself.
var ErrEntry = errors.New("unusable cache entry")

func parseCached(content []byte) (*cached, error) {
	var c cached
	if err := json.Unmarshal(content, &c); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrEntry, clean(err.Error()))
	}
	if c.Kind != libcni.CNICacheV1 {
		return nil, fmt.Errorf("%w: kind %s", ErrEntry, quote(c.Kind))
	}
	if utils.ValidateNetworkName(c.NetworkName) != nil || utils.ValidateContainerID(c.ContainerID) != nil || !claim.IsIfName(c.IfName) {
		return nil, fmt.Errorf("%w: names no valid attachment", ErrEntry)
	}
	return &c, nil
}

// Plan says what is to be done for the attachment of one cache entry, in order, and
// what is not, with the reason. reusable is the caller's own knowledge that the ID
// may come back; ReusableOwner is asked in any case. Pure: same bytes in, same plan
// out (I10). Errors wrap ErrEntry.
//
// Plugins that a conflist of CNI 1.1 takes from a directory of their own
// (loadOnlyInlinedPlugins false) are in no cache entry, so they are not seen here,
// as they are not by a runtime that cleans from its cache.
func Plan(content []byte, reusable bool) ([]Call, []Skipped, error) {
	c, err := parseCached(content)
	if err != nil {
		return nil, nil, err
	}
	conf, err := parseConfig(c.Config)
	if err != nil {
		return nil, nil, err
	}
	if conf.Name != c.NetworkName {
		return nil, nil, fmt.Errorf("%w: configuration of network %s under network %s", ErrEntry, quote(conf.Name), quote(c.NetworkName))
	}
	why := c.reusable()
	if why == "" && reusable {
		why = "a runtime may use this ID again"
	}
	p := planner{cached: c, conf: conf}
	if why == "" {
		if p.args, err = joinArgs(c.CNIArgs); err != nil {
			return nil, nil, err
		}
		if err := p.loadResult(); err != nil {
			return nil, nil, err
		}
	}
	for i := len(conf.Plugins) - 1; i >= 0; i-- {
		plugin := conf.Plugins[i]
		if why != "" {
			p.skip(plugin.Network.Type, why)
			continue
		}
		p.plugin(plugin)
	}
	return p.calls, p.skipped, nil
}

// parseConfig reads a conflist, or a single configuration as a list of one.
func parseConfig(raw []byte) (*libcni.NetworkConfigList, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return nil, fmt.Errorf("%w: configuration: %s", ErrEntry, clean(err.Error()))
	}
	if _, list := keys["plugins"]; list {
		conf, err := libcni.NetworkConfFromBytes(raw)
		if err != nil {
			return nil, fmt.Errorf("%w: configuration: %s", ErrEntry, clean(err.Error()))
		}
		return conf, nil
	}
	one, err := libcni.NetworkPluginConfFromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: configuration: %s", ErrEntry, clean(err.Error()))
	}
	return &libcni.NetworkConfigList{
		Name: one.Network.Name, CNIVersion: one.Network.CNIVersion, Bytes: raw,
		Plugins: []*libcni.PluginConfig{one},
	}, nil
}

// joinArgs spells CNI_ARGS as libcni does.
func joinArgs(args [][2]string) (string, error) {
	parts := make([]string, len(args))
	for i, kv := range args {
		parts[i] = kv[0] + "=" + kv[1]
	}
	s := strings.Join(parts, ";")
	if strings.ContainsRune(s, 0) || len(s) > 64<<10 {
		return "", fmt.Errorf("%w: CNI_ARGS that no environment holds", ErrEntry)
	}
	return s, nil
}

// planner carries what the steps of one plan share.
type planner struct {
	cached  *cached
	conf    *libcni.NetworkConfigList
	args    string
	prev    json.RawMessage // for prevResult; nil where DEL gets none
	nets    []netip.Prefix
	calls   []Call
	skipped []Skipped
}

func (p *planner) skip(plugin, why string) {
	p.skipped = append(p.skipped, Skipped{Plugin: plugin, Why: why})
}

// loadResult reads the cached result: its addresses, and the form in which libcni
// hands it to DEL (since CNI 0.4.0, in the version of the configuration).
func (p *planner) loadResult() error {
	raw := p.cached.Result
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	res, err := create.CreateFromBytes(raw)
	if err != nil {
		return fmt.Errorf("%w: result: %s", ErrEntry, clean(err.Error()))
	}
	if p.nets, err = networks(res); err != nil {
		return err
	}
	if ok, err := version.GreaterThanOrEqualTo(p.conf.CNIVersion, "0.4.0"); err != nil || !ok {
		return nil
	}
	if res, err = res.GetAsVersion(p.conf.CNIVersion); err != nil {
		return fmt.Errorf("%w: result: %s", ErrEntry, clean(err.Error()))
	}
	if p.prev, err = json.Marshal(res); err != nil {
		return fmt.Errorf("%w: result: %s", ErrEntry, clean(err.Error()))
	}
	return nil
}

// networks gives every address of a result, with its prefix length. It also is what
// stands between a hostile null in a list and the cni module's converters, which
// would dereference it.
func networks(res types.Result) ([]netip.Prefix, error) {
	malformed := fmt.Errorf("%w: result holds something that is no address", ErrEntry)
	var nets []types.IPNet
	switch r := res.(type) {
	case *types100.Result:
		for _, f := range r.Interfaces {
			if f == nil {
				return nil, malformed
			}
		}
		for _, ip := range r.IPs {
			if ip == nil {
				return nil, malformed
			}
			nets = append(nets, types.IPNet(ip.Address))
		}
		for _, route := range r.Routes {
			if route == nil {
				return nil, malformed
			}
		}
	case *types040.Result:
		for _, f := range r.Interfaces {
			if f == nil {
				return nil, malformed
			}
		}
		for _, ip := range r.IPs {
			if ip == nil {
				return nil, malformed
			}
			nets = append(nets, types.IPNet(ip.Address))
		}
		for _, route := range r.Routes {
			if route == nil {
				return nil, malformed
			}
		}
	case *types020.Result:
		for _, ip := range []*types020.IPConfig{r.IP4, r.IP6} {
			if ip != nil {
				nets = append(nets, types.IPNet(ip.IP))
			}
		}
	default:
		return nil, malformed
	}
	out := make([]netip.Prefix, 0, len(nets))
	for _, n := range nets {
		a, ok := netip.AddrFromSlice(n.IP)
		ones, bits := n.Mask.Size()
		if a = a.Unmap(); !ok || bits == 0 {
			return nil, malformed
		}
		if bits == 128 && a.Is4() {
			ones -= 96
		}
		pre := netip.PrefixFrom(a, ones)
		if !pre.IsValid() {
			return nil, malformed
		}
		out = append(out, pre)
	}
	return out, nil
}

// pluginKeys are the keys of a configuration that decide here.
type pluginKeys struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
	Backend       string `json:"backend"`
	MacSpoofChk   bool   `json:"macspoofchk"`
}

func (p *planner) plugin(conf *libcni.PluginConfig) {
	typ := conf.Network.Type
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(conf.Bytes, &keys); err != nil {
		p.skip(typ, "its configuration is no object")
		return
	}
	if hasFold(keys, "delegate") {
		p.skip(typ, "delegates to another plugin, with an IPAM of its own")
		return
	}
	call := Call{
		Step: StepDEL, Plugin: typ, args: p.args, nets: p.nets,
		Attachment: claim.Attachment{Network: p.cached.NetworkName, ContainerID: p.cached.ContainerID, IfName: p.cached.IfName},
	}
	var k pluginKeys
	switch typ {
	case "bridge", "ptp", "firewall":
		if err := json.Unmarshal(conf.Bytes, &k); err != nil {
			p.skip(typ, "its configuration cannot be read: "+clean(err.Error()))
			return
		}
	}
	runtimeConfig := p.runtimeConfig(conf)
	switch typ {
	case "portmap":
		if runtimeConfig["portMappings"] == nil && !hasFold(keys, "runtimeConfig") {
			p.skip(typ, "no port mappings were asked for")
			return
		}
	case "firewall":
		if p.prev == nil || len(p.nets) == 0 {
			p.skip(typ, "deletes by address, and the cached result has none")
			return
		}
		call.backend = k.Backend
		for _, n := range p.nets {
			call.ByAddress = append(call.ByAddress, n.Addr())
		}
	case "bridge", "ptp":
		p.skip(typ, "does nothing without a network namespace")
		if k.MacSpoofChk {
			p.skip(typ, "its macspoofchk chains in nft table \"bridge nat\" stay")
		}
		p.masquerade(call, k, conf.Network.IPAM.Type)
		return
	}
	if !inList(typ) {
		p.skip(typ, whyNot(typ))
		return
	}
	var err error
	if call.Stdin, err = p.stdin(keys, runtimeConfig); err != nil {
		p.skip(typ, clean(err.Error()))
		return
	}
	p.calls = append(p.calls, call)
}

func (p *planner) masquerade(call Call, k pluginKeys, ipam string) {
	switch {
	case !k.IPMasq || ipam == "":
		return
	case len(p.nets) == 0:
		p.skip(call.Plugin, "its masquerade rules stay: the cached result has no address to find them by")
		return
	}
	call.Step, call.backend = StepMasquerade, k.IPMasqBackend
	p.calls = append(p.calls, call)
}

// runtimeConfig filters the cached capability arguments by what the plugin declares. A null
// is none: containerd writes one where a Pod has nothing for it.
func (p *planner) runtimeConfig(conf *libcni.PluginConfig) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for capability, on := range conf.Network.Capabilities {
		if arg, ok := p.cached.CapabilityArgs[capability]; on && ok {
			if len(arg) > 0 && string(arg) != "null" {
				out[capability] = arg
			}
		}
	}
	return out
}

// stdin builds the configuration as libcni does, without `ipam`. encoding/json, which
// the plugins read it with, takes a key in any case, so every spelling goes.
func (p *planner) stdin(keys, runtimeConfig map[string]json.RawMessage) ([]byte, error) {
	out := make(map[string]json.RawMessage, len(keys)+4)
	set := map[string]any{"name": p.conf.Name, "cniVersion": p.conf.CNIVersion}
	if p.prev != nil {
		set["prevResult"] = p.prev
	}
	if len(runtimeConfig) > 0 {
		set["runtimeConfig"] = runtimeConfig
	}
	for key, val := range keys {
		drop := strings.EqualFold(key, "ipam") || strings.EqualFold(key, "prevResult")
		for name := range set {
			drop = drop || strings.EqualFold(key, name)
		}
		if !drop {
			out[key] = val
		}
	}
	for name, val := range set {
		raw, err := json.Marshal(val)
		if err != nil {
			return nil, err
		}
		out[name] = raw
	}
	return json.Marshal(out)
}

func hasFold(keys map[string]json.RawMessage, want string) bool {
	for k := range keys {
		if strings.EqualFold(k, want) {
			return true
		}
	}
	return false
}

// inList reports whether a plugin type may be run at all; see the package comment.
func inList(typ string) bool {
	switch typ {
	case "portmap", "bandwidth", "tuning", "firewall":
		return true
	}
	return false
}

// whyNot says why a plugin type is in no list of ours; see the package comment.
func whyNot(typ string) string {
	switch typ {
	case "host-local", "holdfast-ipam", "dhcp", "static", "whereabouts":
		return "is an IPAM: addresses go through the gates only"
	case "flannel", "multus", "multus-shim":
		return "delegates to plugins with IPAM"
	case "macvlan", "ipvlan", "vlan", "host-device", "tap", "dummy", "sriov", "ovs", "ib-sriov", "loopback":
		return "does nothing without a network namespace, or acts on a device by name"
	case "sbr", "vrf":
		return "needs the network namespace"
	}
	return "is not known to delete by container ID"
}
