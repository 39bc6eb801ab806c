package hostlocal

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// maxCapacity is where a capacity saturates, as claim.Store promises.
const maxCapacity = uint64(1) << 62

// rangeError says which key of a range is wrong and what would be right.
type rangeError struct{ field, text string }

func (e *rangeError) Error() string { return e.field + " " + e.text }

// rangeText is one range as it stands in a configuration.
type rangeText struct {
	subnet, start, end, gateway string
}

// resolve fills in what host-local fills in (allocator.Range.Canonicalize of plugins
// v1.10.0): the gateway is the first address after the network's unless given; the
// range goes from there to the last address before the broadcast (IPv4) or to the
// last address (IPv6). An explicit start or end may be any address of the subnet,
// even the network's own: then host-local hands it out.
func (t rangeText) resolve() (claim.Range, error) {
	none := claim.Range{}
	p, err := netip.ParsePrefix(t.subnet)
	if err != nil || p.Addr().Is4In6() {
		return none, &rangeError{"subnet", fmt.Sprintf("%q is no subnet; allowed is CIDR such as 10.1.0.0/24 or fd00::/64", t.subnet)}
	}
	if p.Bits() > p.Addr().BitLen()-2 {
		return none, &rangeError{"subnet", fmt.Sprintf("%s is too small; allowed is a prefix of at most /%d", p, p.Addr().BitLen()-2)}
	}
	if p.Masked() != p {
		return none, &rangeError{"subnet", fmt.Sprintf("%s has host bits set; allowed is %s", p, p.Masked())}
	}
	r := claim.Range{Gateway: p.Addr().Next(), First: p.Addr().Next(), Last: lastOf(p)}
	for _, f := range []struct {
		field, text string
		into        *netip.Addr
	}{{"gateway", t.gateway, &r.Gateway}, {"rangeStart", t.start, &r.First}, {"rangeEnd", t.end, &r.Last}} {
		if f.text == "" {
			continue
		}
		a, err := netip.ParseAddr(f.text)
		if err != nil || a.Zone() != "" {
			return none, &rangeError{f.field, fmt.Sprintf("%q is no IP address; allowed is an address of %s", f.text, p)}
		}
		if a = a.Unmap(); !p.Contains(a) {
			return none, &rangeError{f.field, fmt.Sprintf("%s lies outside; allowed is an address of %s", a, p)}
		}
		*f.into = a
	}
	if r.First.Compare(r.Last) > 0 {
		return none, &rangeError{"rangeStart", fmt.Sprintf("%s lies after rangeEnd %s; allowed is one before it", r.First, r.Last)}
	}
	return r, nil
}

// lastOf returns the last address that host-local hands out of p by default.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	if a.Is4() {
		return a.Prev()
	}
	return a
}

// Capacity returns how many addresses host-local can hand out of the ranges: every
// address once, without those that are their range's gateway. Saturates at 1<<62; 0
// for no ranges.
func Capacity(ranges []claim.Range) uint64 {
	rs := slices.Clone(ranges)
	slices.SortFunc(rs, func(a, b claim.Range) int { return a.First.Compare(b.First) })
	var total uint64
	var last netip.Addr // of what is counted so far
	for _, r := range rs {
		first := r.First
		if last.IsValid() && last.BitLen() == first.BitLen() && first.Compare(last) <= 0 {
			if r.Last.Compare(last) <= 0 {
				continue
			}
			first = last.Next()
		}
		total = min(maxCapacity, total+span(first, r.Last))
		last = r.Last
	}
	if total == maxCapacity {
		return total
	}
	seen := make(map[netip.Addr]bool)
	for _, r := range rs {
		if !r.Gateway.IsValid() || seen[r.Gateway] || !r.Contains(r.Gateway) {
			continue
		}
		seen[r.Gateway] = true
		// Another range that covers it with another gateway would hand it out.
		if !slices.ContainsFunc(rs, func(o claim.Range) bool { return o.Contains(r.Gateway) && o.Gateway != r.Gateway }) {
			total--
		}
	}
	return total
}

// span counts the addresses from first to last, both included, saturating.
func span(first, last netip.Addr) uint64 {
	if first.Compare(last) > 0 {
		return 0
	}
	f, l := words(first), words(last)
	lo, borrow := bits.Sub64(l[1], f[1], 0)
	hi, _ := bits.Sub64(l[0], f[0], borrow)
	if hi != 0 || lo >= maxCapacity {
		return maxCapacity
	}
	return lo + 1
}

func words(a netip.Addr) [2]uint64 {
	b := a.As16()
	var w [2]uint64
	for i, c := range b {
		w[i/8] = w[i/8]<<8 | uint64(c)
	}
	return w
}
