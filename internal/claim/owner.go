package claim

import (
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
//
// IsContainerID reports whether s has the whole shape of a container ID that a
// known runtime writes. A decimal number of fewer than 64 digits is none: that is
// a PID or a number that a person wrote.
func IsContainerID(s string) bool {
	switch {
	case len(s) >= 12 && len(s) <= 64 && all(s, isHex):
		return len(s) == 64 || !all(s, isDigit)
	case isUUIDs(s), isNerdctl(s):
		return true
	}
	rest, ok := strings.CutPrefix(s, "cnitool-")
	return ok && len(rest) == 20 && all(rest, isLowerHex)
}

// These are written out, since compiling regular expressions at every start costs a
// plugin a tenth of its time; a test holds them to the expressions.

func all(s string, is func(byte) bool) bool {
	for i := range len(s) {
		if !is(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool    { return c >= '0' && c <= '9' }
func isLowerHex(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' }
func isHex(c byte) bool      { return isLowerHex(c) || c >= 'A' && c <= 'F' }

// IsUUID reports whether s is a UUID in lower case, as the kernel spells boot IDs and
// runtimes their network namespaces.
func IsUUID(s string) bool {
	return len(s) == 36 && isUUIDs(s) && !strings.ContainsFunc(s, func(r rune) bool { return r >= 'A' && r <= 'F' })
}

// isUUIDs: one UUID, or several with dots between.
func isUUIDs(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if len(part) != 36 {
			return false
		}
		for i := range len(part) {
			if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (part[i] == '-') || !dash && !isHex(part[i]) {
				return false
			}
		}
	}
	return true
}

// isNerdctl: "<namespace>-<64 hex>", the namespace of 1 to 76 characters.
func isNerdctl(s string) bool {
	n := len(s) - 65
	if n < 1 || n > 76 || s[n] != '-' || !all(s[n+1:], isLowerHex) {
		return false
	}
	if c := s[0]; !isDigit(c) && (c < 'a' || c > 'z') {
		return false
	}
	return all(s[:n], func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'z' || c == '.' || c == '_' || c == '-' })
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
	if isNerdctl(o.ID) {
		return []string{o.ID, o.ID[len(o.ID)-64:]}
	}
	return []string{o.ID}
}
