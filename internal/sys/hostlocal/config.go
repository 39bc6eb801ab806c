package hostlocal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Bounds on what one configuration file may make us do.
const (
	maxConfigSize  = 1 << 20
	maxDepth       = 8
	maxNetworks    = 256
	maxRanges      = 1024
	maxFindings    = 32
	flannelSubnets = "/run/flannel/subnet.env"
)

// network is one use of host-local in a configuration file.
type network struct {
	name    string
	dataDir string
	ranges  []claim.Range
	// subnetFile is flannel's: the ranges stand there instead.
	subnetFile string
}

// configParser walks one file. It never fails: what it cannot read becomes a
// finding, and the rest of the file still counts.
type configParser struct {
	networks []network
	findings []string
}

// plugin holds the keys that matter, each decoded on its own so that one wrong type
// does not hide the others. encoding/json matches keys without regard to case, as
// libcni and the plugins do.
type plugin struct {
	Name       json.RawMessage `json:"name"`
	Type       json.RawMessage `json:"type"`
	Plugins    json.RawMessage `json:"plugins"`
	Delegate   json.RawMessage `json:"delegate"`
	Delegates  json.RawMessage `json:"delegates"`
	IPAM       json.RawMessage `json:"ipam"`
	SubnetFile json.RawMessage `json:"subnetFile"`
}

type ipam struct {
	Type       json.RawMessage `json:"type"`
	DataDir    json.RawMessage `json:"dataDir"`
	Ranges     json.RawMessage `json:"ranges"`
	RangeSets  json.RawMessage `json:"rangeSets"`
	Subnet     json.RawMessage `json:"subnet"`
	RangeStart json.RawMessage `json:"rangeStart"`
	RangeEnd   json.RawMessage `json:"rangeEnd"`
	Gateway    json.RawMessage `json:"gateway"`
}

// parseConfig reads a *.conf, *.conflist or *.json file. fallback is the network's
// name where the file has none: libcni loads plugins from a folder that is named
// like the network. Each finding names the field and what is allowed.
func parseConfig(data []byte, fallback string) ([]network, []string) {
	var p configParser
	p.object(data, "", fallback, 0)
	return p.networks, p.findings
}

func (p *configParser) find(field, format string, args ...any) {
	if len(p.findings) < maxFindings {
		p.findings = append(p.findings, field+": "+fmt.Sprintf(format, args...))
	}
}

// object reads one network configuration or list. outer is the name that encloses it.
func (p *configParser) object(data []byte, at, outer string, depth int) {
	if depth > maxDepth {
		p.find(at, "nested too deep; allowed are %d levels", maxDepth)
		return
	}
	var c plugin
	if err := json.Unmarshal(data, &c); err != nil {
		p.find(field(at, ""), "%s; allowed is a JSON object of a CNI network", jsonError(err))
		return
	}
	name := outer
	if own := p.str(c.Name, field(at, "name")); own != "" && !strings.HasSuffix(at, "]") {
		// In a list the list's name wins: libcni writes it into every plugin.
		name = own
	}
	for i, raw := range p.list(c.Plugins, field(at, "plugins")) {
		p.object(raw, fmt.Sprintf("%s[%d]", field(at, "plugins"), i), name, depth+1)
	}
	for i, raw := range p.list(c.Delegates, field(at, "delegates")) {
		// Multus: each delegate is a whole network with a name of its own.
		p.object(raw, fmt.Sprintf("%s[%d].", field(at, "delegates"), i), name, depth+1)
	}
	kind := p.str(c.Type, field(at, "type"))
	if kind == "flannel" {
		p.flannel(c, at, name)
		return
	}
	if isSet(c.Delegate) {
		p.object(c.Delegate, field(at, "delegate"), name, depth+1)
	}
	if isSet(c.IPAM) {
		p.ipam(c.IPAM, field(at, "ipam"), name)
	}
}

// flannel reads the one plugin that makes its host-local section itself: type and
// ranges come from the subnet file of the daemon, the rest from `ipam`.
func (p *configParser) flannel(c plugin, at, name string) {
	n := network{name: name, dataDir: DefaultDataDir, subnetFile: flannelSubnets}
	if f := p.str(c.SubnetFile, field(at, "subnetFile")); filepath.IsAbs(f) {
		n.subnetFile = f
	}
	section, where := c.IPAM, field(at, "ipam")
	var d plugin
	if isSet(c.Delegate) && json.Unmarshal(c.Delegate, &d) == nil && isSet(d.IPAM) {
		section, where = d.IPAM, field(at, "delegate.ipam")
	}
	if isSet(section) {
		var s ipam
		if err := json.Unmarshal(section, &s); err != nil {
			p.find(where, "%s; allowed is a JSON object", jsonError(err))
			return
		}
		if t := p.str(s.Type, where+".type"); t != "" && !isHostLocal(t) {
			return
		}
		dir, ok := p.dataDir(s.DataDir, where+".dataDir")
		if !ok {
			return
		}
		n.dataDir = dir
	}
	p.add(n, at)
}

func (p *configParser) ipam(data []byte, at, name string) {
	var s ipam
	if err := json.Unmarshal(data, &s); err != nil {
		p.find(at, "%s; allowed is a JSON object", jsonError(err))
		return
	}
	if !isHostLocal(p.str(s.Type, at+".type")) {
		return
	}
	dir, ok := p.dataDir(s.DataDir, at+".dataDir")
	if !ok {
		return
	}
	n := network{name: name, dataDir: dir}
	if sub := p.str(s.Subnet, at+".subnet"); sub != "" {
		p.rangeInto(&n, rangeText{sub, p.str(s.RangeStart, at+".rangeStart"), p.str(s.RangeEnd, at+".rangeEnd"),
			p.str(s.Gateway, at+".gateway")}, at)
	}
	for _, sets := range []struct {
		raw json.RawMessage
		at  string
	}{{s.Ranges, at + ".ranges"}, {s.RangeSets, at + ".rangeSets"}} {
		for i, set := range p.list(sets.raw, sets.at) {
			here := fmt.Sprintf("%s[%d]", sets.at, i)
			for j, raw := range p.list(set, here) {
				p.oneRange(&n, raw, fmt.Sprintf("%s[%d]", here, j))
			}
		}
	}
	p.add(n, at)
}

func (p *configParser) oneRange(n *network, raw json.RawMessage, at string) {
	var r ipam
	if err := json.Unmarshal(raw, &r); err != nil {
		p.find(at, "%s; allowed is a JSON object with subnet", jsonError(err))
		return
	}
	p.rangeInto(n, rangeText{p.str(r.Subnet, at+".subnet"), p.str(r.RangeStart, at+".rangeStart"),
		p.str(r.RangeEnd, at+".rangeEnd"), p.str(r.Gateway, at+".gateway")}, at)
}

// rangeInto adds one range. "usePodCidr" is Calico's and Canal's word for the node's
// PodCIDR, which stands in the API only: the capacity stays unknown.
func (p *configParser) rangeInto(n *network, t rangeText, at string) {
	if strings.EqualFold(t.subnet, "usePodCidr") || strings.EqualFold(t.subnet, "usePodCidrIPv6") {
		return
	}
	if len(n.ranges) >= maxRanges {
		p.find(at, "too many ranges; allowed are %d", maxRanges)
		return
	}
	r, err := t.resolve()
	if err != nil {
		var re *rangeError
		if errors.As(err, &re) {
			p.find(at+"."+re.field, "%s", re.text)
		}
		return
	}
	n.ranges = append(n.ranges, r)
}

// IsName: what CNI allows as the name of a network, and as a container ID. It is
// utils.ValidateNetworkName of the CNI module without its regular expression, which would be
// compiled whenever holdfast-ipam starts.
func IsName(s string) bool {
	for i := range len(s) {
		b := s[i]
		alnum := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		if !alnum && (i == 0 || b != '_' && b != '.' && b != '-') {
			return false
		}
	}
	return s != ""
}

func (p *configParser) add(n network, at string) {
	if !IsName(n.name) {
		// Never a path: it may hold '/' or be "..".
		p.find("name", "%q (used by %s) is no network name; allowed are letters, digits, '_', '.', '-', the first a letter or digit",
			clip(n.name), field(at, ""))
		return
	}
	if len(p.networks) >= maxNetworks {
		p.find(at, "too many networks; allowed are %d", maxNetworks)
		return
	}
	p.networks = append(p.networks, n)
}

func (p *configParser) dataDir(raw json.RawMessage, at string) (string, bool) {
	dir := p.str(raw, at)
	if dir == "" {
		return DefaultDataDir, true
	}
	if !filepath.IsAbs(dir) || !isPlain(dir) {
		p.find(at, "%q cannot be used; allowed is an absolute path without control characters", clip(dir))
		return "", false
	}
	return filepath.Clean(dir), true
}

func (p *configParser) str(raw json.RawMessage, at string) string {
	if !isSet(raw) {
		return ""
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		p.find(at, "%s; allowed is a string", jsonError(err))
	}
	return s
}

func (p *configParser) list(raw json.RawMessage, at string) []json.RawMessage {
	if !isSet(raw) {
		return nil
	}
	var l []json.RawMessage
	if err := json.Unmarshal(raw, &l); err != nil {
		p.find(at, "%s; allowed is a list", jsonError(err))
	}
	return l
}

// isHostLocal reports whether an IPAM type keeps host-local's files: the plugin
// itself, and our drop-in replacement.
func isHostLocal(t string) bool { return t == "host-local" || t == "holdfast-ipam" }

func isSet(raw json.RawMessage) bool {
	return len(raw) > 0 && !bytes.Equal(raw, []byte("null"))
}

func field(at, name string) string {
	at = strings.TrimSuffix(at, ".")
	switch {
	case at == "" && name == "":
		return "file"
	case at == "":
		return name
	case name == "":
		return at
	}
	return at + "." + name
}

// jsonError shortens an error of encoding/json and keeps content of the file out.
func jsonError(err error) string {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return "is a JSON " + clip(te.Value)
	}
	var se *json.SyntaxError
	if errors.As(err, &se) {
		return fmt.Sprintf("broken JSON at byte %d", se.Offset)
	}
	return "broken JSON"
}

// clip bounds hostile text; the caller prints it with %q.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

// isPlain reports whether a path or name survives JSON and a terminal unchanged.
func isPlain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// parseSubnetEnv reads flannel's subnet.env: FLANNEL_SUBNET and FLANNEL_IPV6_SUBNET
// hold the gateway with the length of the node's subnet. Lists of subnets are
// comma-separated.
func parseSubnetEnv(data []byte) []claim.Range {
	var out []claim.Range
	for line := range strings.Lines(string(data)) {
		key, val, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key != "FLANNEL_SUBNET" && key != "FLANNEL_IPV6_SUBNET" {
			continue
		}
		for s := range strings.SplitSeq(val, ",") {
			p, err := netip.ParsePrefix(strings.TrimSpace(s))
			if err != nil || len(out) >= maxRanges {
				continue
			}
			if r, err := (rangeText{subnet: p.Masked().String()}).resolve(); err == nil {
				out = append(out, r)
			}
		}
	}
	return out
}
