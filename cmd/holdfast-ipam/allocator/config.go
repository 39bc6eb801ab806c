package allocator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/holdfast-cni/holdfast/cmd/holdfast-ipam/allocator/ip"
)

// Net is the configuration that a plugin passes on: the network's, with "ipam" in it.
type Net struct {
	Name          string      `json:"name"`
	CNIVersion    string      `json:"cniVersion"`
	IPAM          *IPAMConfig `json:"ipam"`
	RuntimeConfig struct {
		IPRanges []RangeSet `json:"ipRanges,omitempty"`
		IPs      []*ip.IP   `json:"ips,omitempty"`
	} `json:"runtimeConfig,omitempty"`
	Args *struct {
		A *IPAMArgs `json:"cni"`
	} `json:"args"`
}

// IPAMConfig is "ipam". Once it is loaded, Range is nil, and Ranges has at least one set.
type IPAMConfig struct {
	*Range
	Name       string
	Type       string         `json:"type"`
	Routes     []*types.Route `json:"routes"`
	DataDir    string         `json:"dataDir"`
	ResolvConf string         `json:"resolvConf"`
	Ranges     []RangeSet     `json:"ranges"`
	// IPArgs are the addresses that are asked for, in the order CNI_ARGS, args, runtimeConfig.
	IPArgs []net.IP `json:"-"`
	Own
}

// Own are the keys that host-local does not have, nil where they are absent. Any value is
// taken: host-local would not look at it.
type Own struct {
	Cooldown    json.RawMessage `json:"cooldown"`
	LockTimeout json.RawMessage `json:"lockTimeout"`
	RunDir      json.RawMessage `json:"runDir"`
	StateDir    json.RawMessage `json:"stateDir"`
	Heal        json.RawMessage `json:"heal"`
}

// IPAMEnvArgs is what CNI_ARGS may have.
type IPAMEnvArgs struct {
	types.CommonArgs
	IP ip.IP `json:"ip,omitempty"`
}

// IPAMArgs is args.cni.
type IPAMArgs struct {
	IPs []*ip.IP `json:"ips"`
}

// NullError is a null among the requested addresses, on which host-local panics.
type NullError struct{ Field string }

func (e *NullError) Error() string {
	return e.Field + " has a null; allowed are addresses such as \"10.1.2.3\" or \"10.1.2.3/24\""
}

// LoadIPAMConfig reads a configuration and CNI_ARGS, and returns "ipam" and the CNI version.
func LoadIPAMConfig(conf []byte, envArgs string) (*IPAMConfig, string, error) {
	n, ok := plain(conf)
	if !ok {
		n = Net{}
		if err := json.Unmarshal(conf, &n); err != nil {
			return nil, "", err
		}
	}
	c := n.IPAM
	if c == nil {
		return nil, "", errors.New("IPAM config missing 'ipam' key")
	}
	if err := n.requested(envArgs); err != nil {
		return nil, "", err
	}
	// Ranges of the runtime come first, then the one that stands in "ipam" itself.
	if c.Range != nil && c.Range.Subnet.IP != nil {
		c.Ranges = append([]RangeSet{{*c.Range}}, c.Ranges...)
	}
	c.Range = nil
	if len(n.RuntimeConfig.IPRanges) > 0 {
		c.Ranges = append(n.RuntimeConfig.IPRanges, c.Ranges...)
	}
	if len(c.Ranges) == 0 {
		return nil, "", errors.New("no IP ranges specified")
	}
	numV4, numV6 := 0, 0
	for i := range c.Ranges {
		if err := c.Ranges[i].canonicalize(); err != nil {
			return nil, "", fmt.Errorf("invalid range set %d: %w", i, err)
		}
		if c.Ranges[i][0].RangeStart.To4() != nil {
			numV4++
		} else {
			numV6++
		}
	}
	if numV4 > 1 || numV6 > 1 {
		if ok, _ := version.GreaterThanOrEqualTo(n.CNIVersion, "0.3.0"); !ok {
			return nil, "", fmt.Errorf("CNI version %v does not support more than 1 address per family", n.CNIVersion)
		}
	}
	for i := range c.Ranges {
		for j := i + 1; j < len(c.Ranges); j++ {
			if c.Ranges[i].overlaps(c.Ranges[j]) {
				return nil, "", fmt.Errorf("range set %d overlaps with %d", i, j)
			}
		}
	}
	c.Name = n.Name
	return c, n.CNIVersion, nil
}

// requested collects the addresses that are asked for.
func (n *Net) requested(envArgs string) error {
	c := n.IPAM
	if envArgs != "" {
		e := IPAMEnvArgs{}
		if err := types.LoadArgs(envArgs, &e); err != nil {
			return err
		}
		if addr := e.IP.ToIP(); addr != nil {
			c.IPArgs = []net.IP{addr}
		}
	}
	add := func(field string, list []*ip.IP) error {
		for _, i := range list {
			if i == nil {
				return &NullError{field}
			}
			c.IPArgs = append(c.IPArgs, i.ToIP())
		}
		return nil
	}
	if n.Args != nil && n.Args.A != nil {
		if err := add("args.cni.ips", n.Args.A.IPs); err != nil {
			return err
		}
	}
	if err := add("runtimeConfig.ips", n.RuntimeConfig.IPs); err != nil {
		return err
	}
	for i := range c.IPArgs {
		if err := canonical(&c.IPArgs[i]); err != nil {
			return fmt.Errorf("cannot understand ip: %w", err)
		}
	}
	return nil
}
