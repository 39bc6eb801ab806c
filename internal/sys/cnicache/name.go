package cnicache

import (
	"regexp"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/holdfast-cni/holdfast/internal/claim"
)

// libcni names an entry "<network>-<containerID>-<ifname>", and each of the three
// may hold dashes itself. The name alone is therefore read by the shape of the ID,
// the most telling shape first:
//
//   - 64 hex digits (containerd, CRI-O, Docker, podman);
//   - a UUID (Nomad), whose last group would pass for a short hex ID;
//   - cnitool-<20 hex>;
//   - 12 to 63 hex digits.
//
// Nerdctl's "<namespace>-<64 hex>" cannot be told from a network with a dash in its
// name; the 64 digits are taken, which are that owner's alias too.
var (
	longHex  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	uuid     = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	cnitool  = regexp.MustCompile(`^cnitool-[0-9a-f]{20}$`)
	shortHex = regexp.MustCompile(`^[0-9a-fA-F]{12,63}$`)
)

// splitName reads an attachment from a file name. ok is false unless exactly one
// reading has the most telling shape.
func splitName(name string) (a claim.Attachment, ok bool) {
	if len(name) > 255 || strings.Count(name, "-") > 64 {
		return claim.Attachment{}, false
	}
	best, hits := len(shapes()), 0
	for i, c := range name {
		if c != '-' {
			continue
		}
		// An interface name has at most 15 bytes.
		for j := max(i+1, len(name)-16); j < len(name); j++ {
			if name[j] != '-' {
				continue
			}
			network, id, ifName := name[:i], name[i+1:j], name[j+1:]
			if utils.ValidateNetworkName(network) != nil || !claim.IsIfName(ifName) {
				continue
			}
			rank := shapeRank(id)
			switch {
			case rank > best || rank == len(shapes()):
			case rank == best:
				hits++
			default:
				best, hits = rank, 1
				a = claim.Attachment{Network: network, ContainerID: id, IfName: ifName}
			}
		}
	}
	if hits != 1 {
		return claim.Attachment{}, false
	}
	return a, true
}

func shapes() [4]*regexp.Regexp {
	return [...]*regexp.Regexp{longHex, uuid, cnitool, shortHex}
}

// shapeRank is the index of the first shape that id has, or their number.
func shapeRank(id string) int {
	all := shapes()
	for i, re := range all {
		if re.MatchString(id) && claim.IsContainerID(id) {
			return i
		}
	}
	return len(all)
}
