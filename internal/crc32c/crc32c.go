// Package crc32c computes the CRC-32C (Castagnoli, RFC 3720 appendix B.4) that the files of
// Holdfast carry.
//
// Scope: the same sum as hash/crc32, without its tables while little is summed up. They
// take 0.13 ms to make, a tenth of a plugin's whole life, whose files have some hundred
// bytes. Non-scope: any other polynomial.
package crc32c

import "hash/crc32"

// small is how many bytes are summed up a nibble at a time, about 3 ns each, before the
// standard library's tables pay.
const small = 16 << 10

// nibbles is the table of the reversed polynomial 0x82F63B78 for four bits at a time.
var nibbles = [16]uint32{
	0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
	0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
}

// Digest is a running sum. Its zero value has seen nothing. Not for concurrent use.
type Digest struct {
	sum  uint32
	seen int
}

// Add takes in more bytes.
func (d *Digest) Add(p []byte) {
	if d.seen += len(p); d.seen > small {
		d.sum = crc32.Update(d.sum, crc32.MakeTable(crc32.Castagnoli), p)
		return
	}
	sum := ^d.sum
	for _, b := range p {
		sum ^= uint32(b)
		sum = sum>>4 ^ nibbles[sum&15]
		sum = sum>>4 ^ nibbles[sum&15]
	}
	d.sum = ^sum
}

// Sum is the checksum of all bytes so far.
func (d *Digest) Sum() uint32 { return d.sum }

// Checksum is the sum of p alone.
func Checksum(p []byte) uint32 {
	var d Digest
	d.Add(p)
	return d.sum
}
