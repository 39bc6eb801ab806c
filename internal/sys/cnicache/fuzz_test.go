package cnicache

import (
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// FuzzSplitName compares with every way to cut the name in three: the most telling shape
// of the ID must be there exactly once. No part of it can be a path or an option.
func FuzzSplitName(f *testing.F) {
	hex64 := strings.Repeat("0123456789abcdef", 4)
	for _, s := range []string{
		"cbr0-" + hex64 + "-eth0", "a-b-" + hex64 + "-eth0", "net-0e1f2d3c-0b1f-4b53-8d2e-1f0f5d1c9a77-eth0", "net-cnitool-77383ca0a0715733ca6f-eth0",
		"net-0123456789ab-eth0", "n-0123456789ab-a1b2c3d4e5f6-e0", "net-0123456789ab-0123456789abcd-eth0", "../x-" + hex64 + "-eth0", "-" + hex64 + "-", "n-" + hex64 + "-a-b", strings.Repeat("a-", 130),
		// Case F17: one digit less or more is another ID.
		"cbr0-" + hex64[1:] + "-eth0", "cbr0-" + hex64 + "0-eth0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a, ok := splitName(name)
		if !ok {
			if a != (claim.Attachment{}) {
				t.Fatalf("no reading, and %+v", a)
			}
		} else if a.Network+"-"+a.ContainerID+"-"+a.IfName != name || !claim.IsContainerID(a.ContainerID) ||
			strings.ContainsAny(name, "/\x00\n ") || name[0] == '.' || name[0] == '-' {
			t.Fatalf("%q is read as %+v", name, a)
		}
		if len(name) > 255 || strings.Count(name, "-") > 64 {
			return
		}
		parts := strings.Split(name, "-")
		var best []claim.Attachment
		rank := len(shapes())
		for i := 1; i < len(parts); i++ {
			for j := i + 1; j < len(parts); j++ {
				x := claim.Attachment{Network: strings.Join(parts[:i], "-"), ContainerID: strings.Join(parts[i:j], "-"), IfName: strings.Join(parts[j:], "-")}
				if utils.ValidateNetworkName(x.Network) != nil || !claim.IsIfName(x.IfName) {
					continue
				}
				if k := shapeRank(x.ContainerID); k < rank {
					rank, best = k, []claim.Attachment{x}
				} else if k == rank && k < len(shapes()) {
					best = append(best, x)
				}
			}
		}
		if ok != (len(best) == 1) || ok && !slices.Contains(best, a) {
			t.Fatalf("%q is read as %+v, %t; the ways are %+v", name, a, ok, best)
		}
	})
}
