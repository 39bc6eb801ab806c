package claim

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// The shapes of IsContainerID, as expressions.
var shapes = []*regexp.Regexp{
	regexp.MustCompile(`^[0-9a-fA-F]{12,64}$`),
	regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(\.[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})*$`),
	regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,75}-[0-9a-f]{64}$`),
	regexp.MustCompile(`^cnitool-[0-9a-f]{20}$`),
}

func TestShapes(t *testing.T) {
	decimal := regexp.MustCompile(`^[0-9]+$`)
	hex := strings.Repeat("0123456789abcdef", 4)
	seeds := []string{
		"", hex, hex[:12], hex[:11], hex + "0", strings.ToUpper(hex), "default-" + hex, "-" + hex, "a-" + hex, "A-" + hex, "a_b.c-d-" + hex,
		strings.Repeat("a", 76) + "-" + hex, strings.Repeat("a", 77) + "-" + hex, "cnitool-" + hex[:20], "cnitool-" + hex[:21],
		"0a1b2c3d-1111-2222-3333-444455556666", "0a1b2c3d-1111-2222-3333-444455556666.0a1b2c3d-1111-2222-3333-444455556666",
		"0a1b2c3d-1111-2222-3333-444455556666.", strings.Repeat("1", 64), strings.Repeat("1", 63), strings.Repeat("1", 12), "x\n" + hex, hex + "\n",
	}
	want := func(s string) bool {
		return shapes[0].MatchString(s) && (len(s) == 64 || !decimal.MatchString(s)) ||
			shapes[1].MatchString(s) || shapes[2].MatchString(s) || shapes[3].MatchString(s)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	const letters = "0129abfgzAFGZ-._ \n/"
	for range 20_000 {
		b := []byte(seeds[rng.IntN(len(seeds))])
		for range rng.IntN(3) {
			switch i := rng.IntN(len(b) + 1); {
			case i == len(b) || rng.IntN(3) == 0:
				b = append(b[:i:i], append([]byte{letters[rng.IntN(len(letters))]}, b[i:]...)...)
			case rng.IntN(2) == 0:
				b = append(b[:i:i], b[i+1:]...)
			default:
				b[i] = letters[rng.IntN(len(letters))]
			}
		}
		if s := string(b); IsContainerID(s) != want(s) {
			t.Fatalf("%q: %v", s, IsContainerID(s))
		}
	}
	for _, s := range seeds {
		if IsContainerID(s) != want(s) {
			t.Errorf("%q: %v", s, IsContainerID(s))
		}
	}
}
