package claim_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "github.com/holdfast-cni/holdfast/internal/claim"
)

const uuid = "0a1b2c3d-1111-2222-3333-444455556666"

var hex64 = strings.Repeat("a1b2c3d4", 8)

// Case L8: what host-local and its users have written in the course of time, and what
// people write. Each owner stands beside the text that is one step away from it.
func TestParseOwner(t *testing.T) {
	for _, r := range []struct {
		name, in string
		want     Owner
	}{
		{"ID alone, host-local < 0.7", hex64, Owner{ShapeContainer, hex64, ""}},
		{"ID and interface", hex64 + "\r\neth0", Owner{ShapeContainer, hex64, "eth0"}},
		{"ID and interface, LF", hex64 + "\neth0", Owner{ShapeContainer, hex64, "eth0"}},
		{"with an end of line", hex64 + "\r\neth0\r\n", Owner{ShapeContainer, hex64, "eth0"}},
		{"trailing blanks", hex64 + "  \t\r\n  eth0 \n", Owner{ShapeContainer, hex64, "eth0"}},
		{"leading blanks", " \n" + hex64, Owner{ShapeContainer, hex64, ""}},
		{"a lone CR is no line break", hex64 + "\reth0", Owner{ShapeForeign, hex64 + "\reth0", ""}},
		{"12 hex digits", "a1b2c3d4e5f6", Owner{ShapeContainer, "a1b2c3d4e5f6", ""}},
		{"11 hex digits", "a1b2c3d4e5f", Owner{ShapeForeign, "a1b2c3d4e5f", ""}},
		{"65 hex digits", hex64 + "0", Owner{ShapeForeign, hex64 + "0", ""}},
		{"64 decimal digits", strings.Repeat("1234567890123456", 4), Owner{ShapeContainer, strings.Repeat("1234567890123456", 4), ""}},
		{"63 decimal digits", strings.Repeat("1234567890123456", 4)[1:], Owner{ShapeForeign, strings.Repeat("1234567890123456", 4)[1:], ""}},
		{"a PID", "4711", Owner{ShapeForeign, "4711", ""}},
		{"a long number", "123456789012", Owner{ShapeForeign, "123456789012", ""}},
		{"UUID", uuid, Owner{ShapeContainer, uuid, ""}},
		{"UUID and interface", uuid + "\r\neth0", Owner{ShapeContainer, uuid, "eth0"}},
		{"UUID, one digit short", uuid[1:], Owner{ShapeForeign, uuid[1:], ""}},
		{"UUID.UUID", uuid + "." + uuid, Owner{ShapeContainer, uuid + "." + uuid, ""}},
		{"UUID.", uuid + ".", Owner{ShapeForeign, uuid + ".", ""}},
		{"nerdctl", "default-" + hex64, Owner{ShapeContainer, "default-" + hex64, ""}},
		{"nerdctl, capital digits", "default-" + strings.ToUpper(hex64), Owner{ShapeForeign, "default-" + strings.ToUpper(hex64), ""}},
		{"nerdctl, way out", "../x-" + hex64, Owner{ShapeForeign, "../x-" + hex64, ""}},
		{"cnitool", "cnitool-a1b2c3d4a1b2c3d4a1b2", Owner{ShapeContainer, "cnitool-a1b2c3d4a1b2c3d4a1b2", ""}},
		{"cnitool, 19 digits", "cnitool-a1b2c3d4a1b2c3d4a1b", Owner{ShapeForeign, "cnitool-a1b2c3d4a1b2c3d4a1b", ""}},
		{"a person", "reserved-vip", Owner{ShapeForeign, "reserved-vip", ""}},
		{"a person's two lines", "reserved-vip\r\neth0", Owner{ShapeForeign, "reserved-vip", "eth0"}},
		{"a word of hex digits", "deadbeef", Owner{ShapeForeign, "deadbeef", ""}},
		{"three lines", hex64 + "\r\neth0\r\neth1", Owner{ShapeForeign, hex64, "eth0\r\neth1"}},
		{"no interface name", hex64 + "\r\nmy interface", Owner{ShapeForeign, hex64, "my interface"}},
		{"interface name with a slash", hex64 + "\r\n../../etc", Owner{ShapeForeign, hex64, "../../etc"}},
		{"interface name of 15", hex64 + "\r\nabcdefghijklmno", Owner{ShapeContainer, hex64, "abcdefghijklmno"}},
		{"interface name of 16", hex64 + "\r\nabcdefghijklmnop", Owner{ShapeForeign, hex64, "abcdefghijklmnop"}},
		{"text after the ID", hex64 + " eth0", Owner{ShapeForeign, hex64 + " eth0", ""}},
		{"NUL after the ID", hex64 + "\x00", Owner{ShapeForeign, hex64 + "\x00", ""}},
		{"NUL in the interface", hex64 + "\neth\x000", Owner{ShapeForeign, hex64, "eth\x000"}},
		{"escape sequence", "\x1b[2J" + hex64, Owner{ShapeForeign, "\x1b[2J" + hex64, ""}},
		{"binary", "\x7fELF\xff\xfe", Owner{ShapeForeign, "\x7fELF\xff\xfe", ""}},
		{"way out", "../../etc/passwd", Owner{ShapeForeign, "../../etc/passwd", ""}},
		{"empty", "", Owner{}},
		{"blanks", " \t\r\n\n", Owner{}},
		{"NULs", strings.Repeat("\x00", 64), Owner{}},
		{"NULs and blanks", "\x00 \x00\r\n", Owner{}},
	} {
		t.Run(r.name, func(t *testing.T) {
			if d := cmp.Diff(r.want, ParseOwner([]byte(r.in))); d != "" {
				t.Errorf("ParseOwner(%q): %s", r.in, d)
			}
		})
	}
}

func TestAliases(t *testing.T) {
	for _, r := range []struct {
		id   string
		want []string
	}{
		{hex64, []string{hex64}},
		{hex64[:12], []string{hex64[:12]}}, // never expanded, never cut (case F17)
		{uuid + "." + uuid, []string{uuid + "." + uuid}},
		{"default-" + hex64, []string{"default-" + hex64, hex64}},
		{"a-b-" + hex64, []string{"a-b-" + hex64, hex64}},
		{"cnitool-a1b2c3d4a1b2c3d4a1b2", []string{"cnitool-a1b2c3d4a1b2c3d4a1b2"}},
		{"reserved-vip", nil},
		{"", nil},
	} {
		if d := cmp.Diff(r.want, ParseOwner([]byte(r.id)).Aliases()); d != "" {
			t.Errorf("%q: %s", r.id, d)
		}
	}
}

// FuzzParseOwner: no content panics, and what is taken for a container can be printed,
// used in a path, and read again.
func FuzzParseOwner(f *testing.F) {
	for _, s := range []string{"", hex64, hex64 + "\r\neth0", uuid, "default-" + hex64, "4711", "reserved-vip", "\x00\x00", "a\nb\nc", "../" + hex64, hex64 + "\r\n../x", hex64 + "\n..", hex64 + "\n\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		o := ParseOwner(b)
		if !slices.Equal(before, b) {
			t.Fatal("the content was changed")
		}
		if (o.Shape == ShapeNone) != (strings.Trim(strings.TrimSpace(string(b)), "\x00 \t\r\n") == "") {
			t.Errorf("%q: none is not the same as blank", b)
		}
		if o.Shape != ShapeContainer {
			if o.Aliases() != nil {
				t.Errorf("%q is no container, yet has aliases", b)
			}
			return
		}
		if !IsContainerID(o.ID) || strings.ContainsAny(o.ID, "/\\ \x00\r\n\t\x1b") || o.IfName != "" && !IsIfName(o.IfName) || len(o.ID) > 400 && !strings.Contains(o.ID, ".") {
			t.Errorf("%q passes as container %q on %q", b, o.ID, o.IfName)
		}
		if strings.HasPrefix(o.ID, ".") || strings.HasPrefix(o.ID, "-") {
			t.Errorf("container ID %q could be a path or an option", o.ID)
		}
		for _, a := range o.Aliases() {
			if !strings.HasSuffix(o.ID, a) || !IsContainerID(a) {
				t.Errorf("%q has the alias %q", o.ID, a)
			}
		}
		if again := ParseOwner([]byte(o.ID + "\r\n" + o.IfName)); again != o {
			t.Errorf("%+v reads back as %+v", o, again)
		}
	})
}

// FuzzIsIfName compares with the kernel's rule, byte for byte (net/core/dev.c:
// dev_valid_name), of which ours allows a part.
func FuzzIsIfName(f *testing.F) {
	for _, s := range []string{"eth0", "", ".", "..", "a/b", "a:1", "123456789012345", "1234567890123456", "a b", "a\x00", "\x1b[2J", "a\u00a0b", "\u0085", "\xff", "日本"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		kernel := s != "" && len(s) < 16 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r\x00")
		control := strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
		if got := IsIfName(s); got && (!kernel || control) || !got && kernel && isASCIIGraphic(s) {
			t.Errorf("IsIfName(%q) = %t", s, got)
		}
	})
}

func isASCIIGraphic(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
