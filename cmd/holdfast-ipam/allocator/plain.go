package allocator

import (
	"encoding/json"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// plain reads a configuration as encoding/json would, without its reflection, which is a
// twentieth of a DEL. It reads what nearly all of them have: keys as they are documented, each
// once, with text that has no escapes. ok is false for anything else, right or wrong, and what
// requests addresses: that is for encoding/json, which judges this in the tests.
func plain(conf []byte) (n Net, ok bool) {
	if !json.Valid(conf) {
		return n, false
	}
	c := &cursor{text: conf}
	c.object([]string{"name", "cniVersion", "ipam", "runtimeConfig", "args"}, func(key string) {
		switch key {
		case "name":
			n.Name = c.str()
		case "cniVersion":
			n.CNIVersion = c.str()
		case "ipam":
			n.IPAM = c.ipam()
		default:
			c.odd = true
		}
	})
	return n, !c.odd
}

// cursor goes through JSON that is known to be valid.
type cursor struct {
	text []byte
	at   int
	odd  bool // met what is not plain; nothing that was returned counts
}

func (c *cursor) ipam() *IPAMConfig {
	x := &IPAMConfig{}
	keys := append(rangeKeys(), "Name", "type", "routes", "dataDir", "resolvConf", "ranges",
		"cooldown", "lockTimeout", "runDir", "stateDir", "heal")
	c.object(keys, func(key string) {
		switch key {
		case "type":
			x.Type = c.str()
		case "dataDir":
			x.DataDir = c.str()
		case "resolvConf":
			x.ResolvConf = c.str()
		case "routes":
			x.Routes = []*types.Route{}
			c.array(func() { x.Routes = append(x.Routes, c.route()) })
		case "ranges":
			x.Ranges = []RangeSet{}
			c.array(func() { x.Ranges = append(x.Ranges, c.rangeSet()) })
		case "cooldown":
			x.Cooldown = c.raw()
		case "lockTimeout":
			x.LockTimeout = c.raw()
		case "runDir":
			x.RunDir = c.raw()
		case "stateDir":
			x.StateDir = c.raw()
		case "heal":
			x.Heal = c.raw()
		default:
			if x.Range == nil {
				x.Range = &Range{}
			}
			c.inRange(x.Range, key)
		}
	})
	return x
}

func rangeKeys() []string { return []string{"subnet", "rangeStart", "rangeEnd", "gateway"} }

func (c *cursor) inRange(r *Range, key string) {
	switch key {
	case "subnet":
		r.Subnet = types.IPNet(c.cidr())
	case "rangeStart":
		r.RangeStart = c.ip()
	case "rangeEnd":
		r.RangeEnd = c.ip()
	case "gateway":
		r.Gateway = c.ip()
	default:
		c.odd = true
	}
}

func (c *cursor) rangeSet() RangeSet {
	set := RangeSet{}
	c.array(func() {
		var r Range
		c.object(rangeKeys(), func(key string) { c.inRange(&r, key) })
		set = append(set, r)
	})
	return set
}

func (c *cursor) route() *types.Route {
	r := &types.Route{}
	c.object([]string{"dst", "gw", "mtu", "advmss", "priority", "table", "scope"}, func(key string) {
		switch key {
		case "dst":
			r.Dst = c.cidr()
		case "gw":
			r.GW = c.ip()
		default:
			c.odd = true
		}
	})
	return r
}

func (c *cursor) cidr() net.IPNet {
	n, err := types.ParseCIDR(c.str())
	if err != nil {
		c.odd = true
		return net.IPNet{}
	}
	return *n
}

func (c *cursor) ip() net.IP {
	addr := net.ParseIP(c.str())
	c.odd = c.odd || addr == nil
	return addr
}

// peek passes over blanks, and returns what comes then.
func (c *cursor) peek() byte {
	for c.at < len(c.text) {
		switch b := c.text[c.at]; b {
		case ' ', '\t', '\r', '\n':
			c.at++
		default:
			return b
		}
	}
	c.odd = true
	return 0
}

// take passes over one character.
func (c *cursor) take() byte {
	b := c.peek()
	c.at++
	return b
}

// str is text in ASCII without escapes.
func (c *cursor) str() string {
	if c.take() != '"' {
		c.odd = true
		return ""
	}
	for i := c.at; i < len(c.text); i++ {
		switch b := c.text[i]; {
		case b == '"':
			s := string(c.text[c.at:i])
			c.at = i + 1
			return s
		case b == '\\' || b >= 0x80:
			c.odd = true
			return ""
		}
	}
	c.odd = true
	return ""
}

// object calls field for each of the keys, which has to take the value, and passes over all others.
// A key of which encoding/json would think that it is meant, or that comes twice, is not plain.
func (c *cursor) object(keys []string, field func(key string)) {
	if c.take() != '{' {
		c.odd = true
		return
	}
	if c.peek() == '}' {
		c.at++
		return
	}
	for more := true; more && !c.odd; more = c.take() == ',' {
		key := c.str()
		c.take() // the colon
		if c.odd {
			return
		}
		switch i := slices.Index(keys, key); {
		case i >= 0:
			keys = slices.Delete(slices.Clone(keys), i, i+1)
			keys = append(keys, strings.ToUpper(key)) // once more, in whatever spelling
			field(key)
		case slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) }):
			c.odd = true
		default:
			c.raw()
		}
	}
}

// array calls item for each value, which has to take it.
func (c *cursor) array(item func()) {
	if c.take() != '[' {
		c.odd = true
		return
	}
	if c.peek() == ']' {
		c.at++
		return
	}
	for more := true; more && !c.odd; more = c.take() == ',' {
		item()
	}
}

// raw is any value, as it stands.
func (c *cursor) raw() json.RawMessage {
	c.peek()
	start, depth := c.at, 0
	for ; c.at < len(c.text); c.at++ {
		switch c.text[c.at] {
		case '"':
			for c.at++; c.at < len(c.text) && c.text[c.at] != '"'; c.at++ {
				if c.text[c.at] == '\\' {
					c.at++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return c.text[start:c.at]
			}
			depth--
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return c.text[start:c.at]
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			c.at++
			return c.text[start:c.at]
		}
	}
	c.odd = true
	return nil
}

// Head returns the name of the network and the CNI version of a plain configuration, for which
// nothing else of it need be right; ok is false for one that is not plain.
func Head(conf []byte) (name, version string, ok bool) {
	n, ok := plain(conf)
	return n.Name, n.CNIVersion, ok
}
