package main

import (
	"net"
	"net/netip"

	"github.com/holdfast-cni/holdfast/cmd/holdfast-ipam/allocator"
)

// walk gives the addresses of a range set in the order in which host-local tries them:
// round from the one behind the last reserved, gateways left out. host-local's own iterator
// takes a microsecond for each, which is most of an ADD into a nearly full /16; a test holds
// this one to it.
type walk struct {
	spans      []span
	at         int // of spans
	cur, start netip.Addr
}

type span struct {
	first, last, gateway netip.Addr
	mask                 net.IPMask
	gw                   net.IP
}

// newWalk begins behind last, or at the start where last is in no range of the set.
func newWalk(set *allocator.RangeSet, last netip.Addr) *walk {
	w := &walk{}
	begun := false
	for i := range *set {
		r := &(*set)[i]
		s := span{addrOf(r.RangeStart), addrOf(r.RangeEnd), addrOf(r.Gateway), r.Subnet.Mask, r.Gateway}
		if !begun && last.IsValid() && r.Contains(last.AsSlice()) {
			begun, w.at, w.cur = true, i, last
		}
		w.spans = append(w.spans, s)
	}
	return w
}

// next returns the next address and its range; nil when it has been round.
func (w *walk) next() (netip.Addr, *span) {
	for {
		s := &w.spans[w.at]
		switch {
		case !w.cur.IsValid():
			w.cur, w.start = s.first, s.first
		default:
			if w.cur == s.last {
				w.at = (w.at + 1) % len(w.spans)
				s = &w.spans[w.at]
				w.cur = s.first
			} else {
				w.cur = w.cur.Next()
			}
			if !w.start.IsValid() {
				w.start = w.cur
			} else if w.cur == w.start {
				return netip.Addr{}, nil
			}
		}
		if w.cur != s.gateway {
			return w.cur, s
		}
	}
}

// ip is the address as a result has it.
func (s *span) ip(a netip.Addr) net.IPNet { return net.IPNet{IP: a.AsSlice(), Mask: s.mask} }
