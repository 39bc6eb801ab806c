package claim

import (
	"regexp"
	"strings"
	"unicode"
)

// OwnerShape says what kind of text stands in a reservation's first line.
type OwnerShape string

// The shapes. The zero value is ShapeNone.
const (
	// ShapeNone: the file is empty or holds only blanks (case L3).
	ShapeNone OwnerShape = ""
	// ShapeContainer: an ID as a container runtime makes them; see ParseOwner.
	ShapeContainer OwnerShape = "container"
	// ShapeForeign: anything else, such as "reserved-vip" or a PID (case L8).
	ShapeForeign OwnerShape = "foreign"
)

// Owner is what a reservation says of the attachment it belongs to.
type Owner struct {
	Shape OwnerShape `json:"shape,omitempty"`
	// ID is the container ID, whole, as written. It is hostile text until Shape is
	// ShapeContainer: never print it raw, never use it in a path.
	ID string `json:"id,omitempty"`
	// IfName is the interface of the attachment, empty in files of host-local < 0.7.
	IfName string `json:"ifName,omitempty"`
}

// Known spellings of a container ID, with who writes them:
//   - 12 to 64 hex digits: containerd, CRI-O, Docker, podman (64); short forms;
//   - a UUID: Nomad (allocation ID), rkt, Mesos;
//   - UUID.UUID: Mesos' nested containers;
//   - <namespace>-<64 hex>: nerdctl passes its namespace along;
//   - cnitool-<20 hex>: the cnitool of the CNI project.
var (
	hexID     = regexp.MustCompile(`^[0-9a-fA-F]{12,64}$`)
	uuidID    = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(\.[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})*$`)
	nerdctlID = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,75}-[0-9a-f]{64}$`)
	cnitoolID = regexp.MustCompile(`^cnitool-[0-9a-f]{20}$`)
	decimal   = regexp.MustCompile(`^[0-9]+$`)
)

// IsContainerID reports whether s has the whole shape of a container ID that a
// known runtime writes. A decimal number of fewer than 64 digits is none: that is
// a PID or a number that a person wrote.
func IsContainerID(s string) bool {
	switch {
	case hexID.MatchString(s):
		return len(s) == 64 || !decimal.MatchString(s)
	case uuidID.MatchString(s), nerdctlID.MatchString(s), cnitoolID.MatchString(s):
		return true
	}
	return false
}

// IsIfName reports whether s can name a network interface: what the kernel allows
// (net/core/dev.c: dev_valid_name: 1 to 15 bytes, no slash, colon or white space, not "."
// or ".."), without control characters, which libcni lets pass and nobody uses.
func IsIfName(s string) bool {
	if s == "" || len(s) > 15 || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) || unicode.IsControl(r) })
}

// ParseOwner reads the content of a host-local reservation: "ID", "ID\nIFNAME" or
// "ID\r\nIFNAME", with blanks around each (host-local's backend/disk writes
// LineBreak "\r\n" since 0.7; older ones wrote the ID alone). It never fails: what
// is no container ID is Foreign, what is blank is None. A second line that is no
// interface name, or a third line, makes the whole content Foreign, since then
// nobody we know wrote it.
func ParseOwner(content []byte) Owner {
	text := strings.TrimSpace(string(content))
	if text == "" || strings.Trim(text, "\x00 \t\r\n") == "" {
		// A file of NULs is what some file systems leave after a power loss.
		return Owner{}
	}
	first, rest, _ := strings.Cut(text, "\n")
	o := Owner{ID: strings.TrimSpace(first), IfName: strings.Trim(rest, " \t\r"), Shape: ShapeForeign}
	if IsContainerID(o.ID) && (o.IfName == "" || IsIfName(o.IfName)) {
		o.Shape = ShapeContainer
	}
	return o
}

// Aliases returns every whole ID under which a runtime may know this owner: the ID
// itself, and for "<namespace>-<64 hex>" the hex part as well. Comparison is always
// by whole ID (case F17). Nothing for an owner that is no container.
func (o Owner) Aliases() []string {
	// Small enough to be inlined, so that the usual slice of one needs no memory of its
	// own: this is asked of every resource several times in a pass.
	if o.Shape == ShapeContainer && len(o.ID) <= 64 {
		return []string{o.ID}
	}
	return o.longAliases()
}

// longAliases is Aliases for what the shape "<namespace>-<64 hex>" is long enough for.
func (o Owner) longAliases() []string {
	if o.Shape != ShapeContainer {
		return nil
	}
	if nerdctlID.MatchString(o.ID) {
		return []string{o.ID, o.ID[len(o.ID)-64:]}
	}
	return []string{o.ID}
}
