package hostlocal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	lockName   = "lock"
	lastPrefix = "last_reserved_ip."
	// maxContent bounds what a reservation may hold. An ID of 64 bytes and an
	// interface of 15 are 81; nobody writes more than a line of text.
	maxContent = 4096
)

// nameKind is what a directory entry's name says it is.
type nameKind uint8

const (
	nameOther       nameKind = iota // nothing of host-local's
	nameReservation                 // an IP address in any spelling
	nameOwn                         // host-local's `lock` and `last_reserved_ip.N`
)

// parseName tells a reservation from the rest by its name. host-local writes
// net.IP.String(); other spellings (upper case, zeros, IPv4-mapped) name the same
// address for a person, so they are compared parsed. A zone is no part of an address
// that host-local could have written.
func parseName(name string) (netip.Addr, nameKind) {
	if name == lockName || strings.HasPrefix(name, lastPrefix) {
		return netip.Addr{}, nameOwn
	}
	a, err := netip.ParseAddr(name)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, nameOther
	}
	return a.Unmap(), nameReservation
}

// sum is what claim.Incarnation.Sum holds.
func sum(content []byte) string {
	h := sha256.Sum256(content)
	var b [32]byte
	hex.Encode(b[:], h[:16])
	return string(b[:])
}

// ownerParser reads owners. It takes a short cut for what containerd, CRI-O and
// podman write, 64 lower-case hex digits and "\r\n" and a plain interface name, since
// tens of thousands of them are read per pass; everything else goes to
// claim.ParseOwner, with which the short cut must agree (FuzzReservation). Not safe
// for concurrent use.
type ownerParser struct{ ifNames map[string]string }

func (p *ownerParser) parse(content []byte) claim.Owner {
	if len(content) < 64 || !isLowerHex(content[:64]) {
		return claim.ParseOwner(content)
	}
	rest := content[64:]
	if len(rest) == 0 {
		return claim.Owner{Shape: claim.ShapeContainer, ID: string(content[:64])}
	}
	rest, ok := bytes.CutPrefix(rest, []byte("\r\n"))
	if !ok || len(rest) == 0 || len(rest) > 15 || !isLowerAlnum(rest) {
		return claim.ParseOwner(content)
	}
	name, ok := p.ifNames[string(rest)]
	if !ok {
		name = string(rest)
		if p.ifNames == nil {
			p.ifNames = make(map[string]string)
		}
		if len(p.ifNames) < 64 {
			p.ifNames[name] = name
		}
	}
	return claim.Owner{Shape: claim.ShapeContainer, ID: string(content[:64]), IfName: name}
}

func isLowerHex(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isLowerAlnum(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// typeWord names a file type for a finding.
func typeWord(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "a device"
	}
	return "no regular file"
}

// modeOfType turns getdents' d_type into the file type bits of a mode; 0 for
// DT_UNKNOWN.
func modeOfType(typ byte) uint32 { return uint32(typ) << 12 }
