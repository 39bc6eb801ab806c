package allocator

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// RangeSet are ranges of one family that are searched one after the other.
type RangeSet []Range

// Range is a part of a subnet. Once it is loaded, all of it is given, and IPv4 addresses
// have 4 bytes.
type Range struct {
	RangeStart net.IP      `json:"rangeStart,omitempty"` // the first one
	RangeEnd   net.IP      `json:"rangeEnd,omitempty"`   // the last one
	Subnet     types.IPNet `json:"subnet"`
	Gateway    net.IP      `json:"gateway,omitempty"`
}

func (r *Range) subnet() *net.IPNet { return (*net.IPNet)(&r.Subnet) }

// canonicalize fills in what is not given, and refuses what cannot be.
func (r *Range) canonicalize() error {
	if err := canonical(&r.Subnet.IP); err != nil {
		return err
	}
	ones, length := r.Subnet.Mask.Size()
	if ones > length-2 {
		//lint:ignore ST1005 host-local's words
		return fmt.Errorf("Network %s too small to allocate from", r.subnet())
	}
	if len(r.Subnet.IP) != len(r.Subnet.Mask) {
		return errors.New("IPNet IP and Mask version mismatch")
	}
	if network := r.Subnet.IP.Mask(r.Subnet.Mask); !r.Subnet.IP.Equal(network) {
		//lint:ignore ST1005 host-local's words
		return fmt.Errorf("Network has host bits set. For a subnet mask of length %d the network address is %s", ones, network)
	}
	if r.Gateway == nil {
		r.Gateway = next(r.Subnet.IP)
	} else {
		if err := canonical(&r.Gateway); err != nil {
			return err
		}
		if len(r.Gateway) != len(r.Subnet.IP) || !r.subnet().Contains(r.Gateway) {
			return fmt.Errorf("gateway %s not in network %s", r.Gateway, r.subnet())
		}
	}
	if r.RangeStart == nil {
		r.RangeStart = next(r.Subnet.IP)
	} else {
		if err := canonical(&r.RangeStart); err != nil {
			return err
		}
		if !r.Contains(r.RangeStart) {
			return fmt.Errorf("RangeStart %s not in network %s", r.RangeStart, r.subnet())
		}
	}
	if r.RangeEnd == nil {
		r.RangeEnd = r.lastOfSubnet()
	} else {
		if err := canonical(&r.RangeEnd); err != nil {
			return err
		}
		if !r.Contains(r.RangeEnd) {
			return fmt.Errorf("RangeEnd %s not in network %s", r.RangeEnd, r.subnet())
		}
	}
	if compare(r.RangeStart, r.RangeEnd) > 0 {
		return fmt.Errorf("RangeStart %s is after RangeEnd %s in network %s", r.RangeStart, r.RangeEnd, r.subnet())
	}
	return nil
}

// Contains reports whether an address lies in the range. A start or end that is not given
// yet is no bound.
func (r *Range) Contains(addr net.IP) bool {
	return canonical(&addr) == nil && len(addr) == len(r.Subnet.IP) && r.subnet().Contains(addr) &&
		(r.RangeStart == nil || compare(addr, r.RangeStart) >= 0) &&
		(r.RangeEnd == nil || compare(addr, r.RangeEnd) <= 0)
}

func (r *Range) overlaps(o *Range) bool {
	return len(r.RangeStart) == len(o.RangeStart) &&
		(r.Contains(o.RangeStart) || r.Contains(o.RangeEnd) || o.Contains(r.RangeStart) || o.Contains(r.RangeEnd))
}

func (r *Range) String() string { return r.RangeStart.String() + "-" + r.RangeEnd.String() }

// Contains reports whether an address lies in a range of the set.
func (s *RangeSet) Contains(addr net.IP) bool {
	r, _ := s.RangeFor(addr)
	return r != nil
}

// RangeFor returns the range in which an address lies.
func (s *RangeSet) RangeFor(addr net.IP) (*Range, error) {
	if err := canonical(&addr); err != nil {
		return nil, err
	}
	for i := range *s {
		if (*s)[i].Contains(addr) {
			return &(*s)[i], nil
		}
	}
	return nil, fmt.Errorf("%s not in range set %s", addr, s)
}

func (s RangeSet) overlaps(o RangeSet) bool {
	for i := range s {
		for j := range o {
			if s[i].overlaps(&o[j]) {
				return true
			}
		}
	}
	return false
}

func (s RangeSet) canonicalize() error {
	if len(s) == 0 {
		return errors.New("empty range set")
	}
	for i := range s {
		if err := s[i].canonicalize(); err != nil {
			return err
		}
		if len(s[i].RangeStart) != len(s[0].RangeStart) {
			return errors.New("mixed address families")
		}
	}
	for i := range s {
		for j := i + 1; j < len(s); j++ {
			if s[i].overlaps(&s[j]) {
				return fmt.Errorf("subnets %s and %s overlap", &s[i], &s[j])
			}
		}
	}
	return nil
}

func (s *RangeSet) String() string {
	var out []string
	for i := range *s {
		out = append(out, (*s)[i].String())
	}
	return strings.Join(out, ",")
}

// canonical gives an address the bytes of its family.
func canonical(addr *net.IP) error {
	if a := addr.To4(); a != nil {
		*addr = a
		return nil
	}
	if addr.To16() != nil {
		return nil
	}
	return fmt.Errorf("IP %s not v4 nor v6", *addr)
}

// compare orders two addresses of one family; those of two are neither less nor more than
// each other, as in host-local: less than 0 both ways.
func compare(a, b net.IP) int {
	if canonical(&a) != nil || canonical(&b) != nil || len(a) != len(b) {
		return -2
	}
	return bytes.Compare(a, b)
}

// next is the address behind one, which is not its family's last.
func next(addr net.IP) net.IP {
	out := bytes.Clone(addr)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]++; out[i] != 0 {
			break
		}
	}
	return out
}

// lastOfSubnet is the last address of the subnet, in IPv4 the one before the broadcast.
func (r *Range) lastOfSubnet() net.IP {
	end := make(net.IP, len(r.Subnet.IP))
	for i := range end {
		end[i] = r.Subnet.IP[i] | ^r.Subnet.Mask[i]
	}
	if len(end) == net.IPv4len {
		end[3]--
	}
	return end
}
