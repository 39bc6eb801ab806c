package crc32c

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// The sum is the standard library's, whatever the lengths of the parts, on both sides of
// where the tables begin to pay.
func TestSameAsHashCRC32(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	if got := Checksum([]byte("123456789")); got != 0xe3069283 { // the check value of the published catalogue
		t.Errorf("of 123456789: %08x", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var d Digest
		var all []byte
		for range 1 + r.IntN(6) {
			part := make([]byte, r.IntN(1+r.IntN(2*small)))
			for i := range part {
				part[i] = byte(r.Uint32())
			}
			all = append(all, part...)
			d.Add(part)
			if want := crc32.Checksum(all, table); d.Sum() != want {
				t.Fatalf("%08x after %d bytes, want %08x", d.Sum(), len(all), want)
			}
		}
		if got, want := Checksum(all), crc32.Checksum(all, table); got != want {
			t.Fatalf("%08x of %d bytes, want %08x", got, len(all), want)
		}
	}
}
