package cnicache

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/holdfast-cni/holdfast/internal/claim"
)

// defaultDataDir is where host-local keeps networks when its configuration names
// no dataDir.
const defaultDataDir = "/var/lib/cni/networks"

// entry is the part of libcni's cachedInfo that we read, in the spelling of
// libcni 0.8 and later. Config stays base64 text: most entries of a node share one.
type entry struct {
	Kind        string          `json:"kind"`
	ContainerID string          `json:"containerId"`
	Config      string          `json:"config"`
	IfName      string          `json:"ifName"`
	NetworkName string          `json:"networkName"`
	Netns       string          `json:"netns"`
	CNIArgs     [][2]string     `json:"cniArgs"`
	Result      json.RawMessage `json:"result"`

	// Of a bare result, as libcni wrote before 0.8.
	CNIVersion *string         `json:"cniVersion"`
	IP4        json.RawMessage `json:"ip4"`
	IP6        json.RawMessage `json:"ip6"`
}

// parse reads the content of the file called name. It gives Network, Owner, Cache
// and Problem of a Resource, and never fails: what cannot be understood whole has
// a Problem.
//
// The content says whose entry it is. Two exceptions: a bare result (libcni before
// 0.8) names nobody, so its owner is read from the file name, and where that can be
// read in two ways the entry has a Problem. And an entry with a Problem carries the
// owner that its file name suggests, if it suggests one: a guess, used to show the
// entry beside its attachment and to remove it together with that, never as
// evidence of absence or of life (cases L6, L13).
func parse(name string, content []byte, confs confMemo) claim.Resource {
	if len(content) == 0 {
		return broken(name, "empty")
	}
	var e entry
	if err := json.Unmarshal(content, &e); err != nil {
		return broken(name, "no JSON of a cache entry: "+clean(err))
	}
	switch {
	case e.Kind == libcni.CNICacheV1:
		return parseV1(name, &e, confs)
	case e.Kind != "":
		return broken(name, "unknown kind "+quote(e.Kind))
	case e.CNIVersion == nil && e.IP4 == nil && e.IP6 == nil:
		return broken(name, "neither a cache entry nor a CNI result")
	}
	a, ok := splitName(name)
	if !ok {
		return broken(name, "a bare result, and its file name can be read in more than one way or in none")
	}
	r := claim.Resource{Network: a.Network, Owner: owner(a), Cache: &claim.CacheEntry{}}
	if err := fillResult(r.Cache, content); err != nil {
		return broken(name, clean(err))
	}
	return r
}

func parseV1(name string, e *entry, confs confMemo) claim.Resource {
	a := claim.Attachment{Network: e.NetworkName, ContainerID: e.ContainerID, IfName: e.IfName}
	if err := validate(a); err != nil {
		return broken(name, clean(err))
	}
	// libcni looks an entry up by its path, so under another name it is a copy that
	// nobody reads: a person's backup, or a trap.
	if a.Network+"-"+a.ContainerID+"-"+a.IfName != name {
		return broken(name, "names another attachment than its file name does")
	}
	c := &claim.CacheEntry{Netns: e.Netns, Pod: podOf(e.CNIArgs)}
	if len(e.Result) > 0 && string(e.Result) != "null" {
		if err := fillResult(c, e.Result); err != nil {
			return broken(name, clean(err))
		}
	}
	if e.Config != "" {
		conf, err := confs.get(e.Config)
		if err != nil {
			return broken(name, clean(err))
		}
		c.Plugins, c.IPAM, c.DataDir = conf.plugins, conf.ipam, conf.dataDir
	}
	return claim.Resource{Network: a.Network, Owner: owner(a), Cache: c}
}

// broken is an entry that could not be understood.
func broken(name, problem string) claim.Resource {
	r := claim.Resource{Problem: problem}
	if a, ok := splitName(name); ok {
		r.Network, r.Owner = a.Network, owner(a)
	}
	return r
}

func validate(a claim.Attachment) error {
	if err := utils.ValidateNetworkName(a.Network); err != nil {
		return fmt.Errorf("network name: %w", err)
	}
	if err := utils.ValidateContainerID(a.ContainerID); err != nil {
		return fmt.Errorf("container ID: %w", err)
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return fmt.Errorf("interface name: %w", err)
	}
	if !claim.IsIfName(a.IfName) {
		return errIfName
	}
	return nil
}

var errIfName = errors.New("interface name: holds control characters")

// owner is sound for a validated attachment only: no field holds a line break.
func owner(a claim.Attachment) claim.Owner {
	return claim.ParseOwner([]byte(a.ContainerID + "\n" + a.IfName))
}

// podOf names the Pod where CNI_ARGS name it whole. Podman sets K8S_POD_NAME alone,
// to a container's name: that is no Pod.
func podOf(args [][2]string) claim.Pod {
	var p claim.Pod
	for _, kv := range args {
		switch kv[0] {
		case "K8S_POD_NAMESPACE":
			p.Namespace = kv[1]
		case "K8S_POD_NAME":
			p.Name = kv[1]
		case "K8S_POD_UID":
			p.UID = kv[1]
		}
	}
	if p.Namespace == "" || p.Name == "" {
		return claim.Pod{}
	}
	return p
}

// fillResult takes addresses and host-side interfaces from a CNI result of any
// version that the cni module knows.
func fillResult(c *claim.CacheEntry, raw []byte) error {
	res, err := create.CreateFromBytes(raw)
	if err != nil {
		return fmt.Errorf("cached result: %w", err)
	}
	switch r := res.(type) {
	case *types100.Result:
		hosts := make([]bool, len(r.Interfaces))
		for i, f := range r.Interfaces {
			if f != nil && f.Sandbox == "" {
				hosts[i] = true
				c.HostIfs = append(c.HostIfs, claim.HostIf{Name: f.Name, MAC: f.Mac})
			}
		}
		for _, ip := range r.IPs {
			if ip == nil {
				return errNoAddress
			}
			if err := addAddr(c, ip.Address, ip.Interface, hosts); err != nil {
				return err
			}
		}
	case *types040.Result:
		hosts := make([]bool, len(r.Interfaces))
		for i, f := range r.Interfaces {
			if f != nil && f.Sandbox == "" {
				hosts[i] = true
				c.HostIfs = append(c.HostIfs, claim.HostIf{Name: f.Name, MAC: f.Mac})
			}
		}
		for _, ip := range r.IPs {
			if ip == nil {
				return errNoAddress
			}
			if err := addAddr(c, ip.Address, ip.Interface, hosts); err != nil {
				return err
			}
		}
	case *types020.Result:
		for _, ip := range []*types020.IPConfig{r.IP4, r.IP6} {
			if ip == nil {
				continue
			}
			if err := addAddr(c, ip.IP, nil, nil); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("cached result: version %s has no reader", quote(res.Version()))
	}
	return nil
}

var errNoAddress = errors.New("cached result: an IP without an address")

// addAddr adds one address, unless the result says that it sits on a host-side
// interface.
func addAddr(c *claim.CacheEntry, n net.IPNet, iface *int, hosts []bool) error {
	if iface != nil && *iface >= 0 && *iface < len(hosts) && hosts[*iface] {
		return nil
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return errNoAddress
	}
	c.Addrs = append(c.Addrs, a.Unmap())
	return nil
}

// conf is what we take from a cached configuration. Its slice is shared between
// entries: never written to.
type conf struct {
	plugins       []string
	ipam, dataDir string
}

// confMemo keeps parsed configurations by their base64 text. A node has a handful
// of them and thousands of entries.
type confMemo map[string]conf

// maxMemo bounds the memo against a cache in which no two configurations agree.
const maxMemo = 256

func (m confMemo) get(text string) (conf, error) {
	if c, ok := m[text]; ok {
		return c, nil
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return conf{}, fmt.Errorf("cached configuration: %w", err)
	}
	c, err := parseConf(raw)
	if err != nil {
		return conf{}, err
	}
	if len(m) < maxMemo {
		m[text] = c
	}
	return c, nil
}

type ipamConf struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
}

type pluginConf struct {
	Type     string    `json:"type"`
	IPAM     *ipamConf `json:"ipam"`
	Delegate *struct {
		IPAM *ipamConf `json:"ipam"`
	} `json:"delegate"`
}

// parseConf reads a conflist, or a single plugin's configuration.
func parseConf(raw []byte) (conf, error) {
	var list struct {
		pluginConf
		Plugins []pluginConf `json:"plugins"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return conf{}, fmt.Errorf("cached configuration: %w", err)
	}
	plugins := list.Plugins
	if plugins == nil && list.Type != "" {
		plugins = []pluginConf{list.pluginConf}
	}
	var c conf
	for _, p := range plugins {
		c.plugins = append(c.plugins, p.Type)
		if c.ipam == "" {
			c.ipam, c.dataDir = ipamOf(p)
		}
	}
	return c, nil
}

// ipamOf finds the IPAM of one plugin. Flannel delegates to bridge with host-local
// unless told otherwise, and writes neither into its own configuration.
func ipamOf(p pluginConf) (typ, dataDir string) {
	for _, i := range []*ipamConf{p.IPAM, delegateIPAM(p)} {
		if i == nil {
			continue
		}
		if typ == "" {
			typ = i.Type
		}
		if dataDir == "" {
			dataDir = i.DataDir
		}
	}
	if typ == "" && p.Type == "flannel" {
		typ = "host-local"
	}
	switch {
	case typ != "host-local" && typ != "holdfast-ipam": // ours keeps host-local's files
		dataDir = ""
	case dataDir == "":
		dataDir = defaultDataDir
	}
	return typ, dataDir
}

func delegateIPAM(p pluginConf) *ipamConf {
	if p.Delegate == nil {
		return nil
	}
	return p.Delegate.IPAM
}

// clean makes an error printable: it may quote hostile content.
func clean(err error) string {
	var te *types.Error
	if errors.As(err, &te) {
		return trim(te.Msg) // Details holds the hostile text itself
	}
	return trim(err.Error())
}

// quote shows hostile text.
func quote(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strconv.QuoteToASCII(s)
}

// trim bounds a text and escapes what is not printable ASCII in it.
func trim(s string) string {
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return s
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}
