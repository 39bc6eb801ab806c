package digest

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// maxBits is the largest range whose addresses are told apart: 128 KiB. In a larger one, in
// IPv6, one address with two files counts twice, of a million.
const maxBits = 1 << 20

// bitmap is the set of the addresses of one range; nil takes every address as new.
type bitmap []uint64

func newBitmap(g claim.Range) bitmap {
	n, ok := distance(g.First, g.Last)
	if !ok || n >= maxBits {
		return nil
	}
	return make(bitmap, n/64+1)
}

// set adds an address of the range that begins at first, and reports whether it is new.
func (b bitmap) set(first, a netip.Addr) bool {
	if b == nil {
		return true
	}
	n, _ := distance(first, a)
	was := b[n/64]
	b[n/64] |= 1 << (n % 64)
	return b[n/64] != was
}

// distance is how far a lies behind first; ok is false for another family, an address
// before it, or 2^64 and more.
func distance(first, a netip.Addr) (n uint64, ok bool) {
	if first.BitLen() != a.BitLen() || first.Compare(a) > 0 {
		return 0, false
	}
	x, y := first.As16(), a.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(y[8:]), binary.BigEndian.Uint64(x[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(y[:8]), binary.BigEndian.Uint64(x[:8]), borrow)
	return low, high == 0
}
