package journal

import (
	"encoding/hex"
	"fmt"
	"io"
	"time"
)

// shape is what an ID looks like, with 0 for a digit and a for a hex digit. It is deliberately
// narrow: no dot, no slash, no blank, ASCII alone. Such an ID is safe as a file name.
const shape = "00000000-000000-aaaaaa-000000"

// MaxBatch is the highest counter of BatchID.
const MaxBatch = 999_999

// NewID makes the ID of a sweep, or of a single release: the second in UTC and 24
// random bits, such as "20261130-062137-1a2b3c". It sorts by time, can be read
// aloud, and two of one second differ but for one case in 16 million; the journal
// and the quarantine both refuse to overwrite, so even that loses nothing.
//
// It fails when rand fails, or when at is outside the years 1 to 9999.
func NewID(at time.Time, rand io.Reader) (string, error) {
	var b [3]byte
	if _, err := io.ReadFull(rand, b[:]); err != nil {
		return "", fmt.Errorf("make a release ID: %w", err)
	}
	id := at.UTC().Format("20060102-150405-") + hex.EncodeToString(b[:])
	if !ValidID(id) {
		return "", fmt.Errorf("make a release ID: the clock shows year %d", at.UTC().Year())
	}
	return id, nil
}

// BatchID makes the ID of the nth release of a sweep from the sweep's ID, such as
// "20261130-062137-1a2b3c-00007". n is 0 to MaxBatch; anything else gives an ID
// that ValidID refuses. Up to 99,999 the IDs of a sweep sort by n as text.
func BatchID(sweep string, n int) string { return fmt.Sprintf("%s-%05d", sweep, n) }

// ValidID reports whether s has the whole shape of an ID from NewID or BatchID.
// Text that fails it is never used as a file name.
func ValidID(s string) bool {
	if n := len(s); n != len("00000000-000000-aaaaaa") && n != len(shape)-1 && n != len(shape) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		digit := c >= '0' && c <= '9'
		switch shape[i] {
		case '0':
			if !digit {
				return false
			}
		case 'a':
			if !digit && (c < 'a' || c > 'f') {
				return false
			}
		default:
			if c != shape[i] {
				return false
			}
		}
	}
	return true
}
