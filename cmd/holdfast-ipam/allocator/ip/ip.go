// Package ip is the address that a configuration asks for: with or without the length of a
// prefix. It is the type of that name in the plugins module's pkg/ip (v1.10.0, Apache-2.0, the
// CNI authors), which would bring firewall libraries along; package allocator says more.
//
// Scope: reading it. Non-scope: calculating with addresses.
package ip

import (
	"fmt"
	"net"
	"strings"
)

// IP is an address; its mask is nil where no length is given.
type IP struct{ net.IPNet }

// ToIP is the address in the bytes of its family; nil if there is none.
func (i *IP) ToIP() net.IP {
	if a := i.IP.To4(); a != nil {
		return a
	}
	return i.IP.To16()
}

// UnmarshalText reads "10.1.2.3" or "10.1.2.3/24". Empty text is no address.
func (i *IP) UnmarshalText(b []byte) error {
	*i = IP{}
	if len(b) == 0 {
		return nil
	}
	s := string(b)
	if strings.Contains(s, "/") {
		if addr, network, err := net.ParseCIDR(s); err == nil {
			i.IP, i.Mask = addr, network.Mask
			return nil
		}
	} else if i.IP = net.ParseIP(s); i.IP != nil {
		return nil
	}
	return fmt.Errorf("invalid IP address %s", s)
}
