package hostlocal

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

func TestParseName(t *testing.T) {
	tests := []struct {
		name string
		addr string
		kind nameKind
	}{
		{"10.0.0.5", "10.0.0.5", nameReservation},
		{"::ffff:10.0.0.5", "10.0.0.5", nameReservation},
		{"fd00::5", "fd00::5", nameReservation},
		{"FD00:0::5", "fd00::5", nameReservation},
		{"fd00:0000:0000:0000:0000:0000:0000:0005", "fd00::5", nameReservation},
		{"fe80::1%eth0", "", nameOther},
		{"010.0.0.5", "", nameOther},
		{"10.0.0.5.bak", "", nameOther},
		{"10.0.0.0/24", "", nameOther},
		{"lock", "", nameOwn},
		{"lock2", "", nameOther},
		{"last_reserved_ip.0", "", nameOwn},
		{"last_reserved_ip", "", nameOther},
		{"", "", nameOther},
	}
	for _, tt := range tests {
		addr, kind := parseName(tt.name)
		want := netip.Addr{}
		if tt.addr != "" {
			want = netip.MustParseAddr(tt.addr)
		}
		if addr != want || kind != tt.kind {
			t.Errorf("parseName(%q) = %v %d, want %v %d", tt.name, addr, kind, want, tt.kind)
		}
	}
}

var hexID64 = strings.Repeat("0123456789abcdef", 4)

func TestOwnerShortCutAgrees(t *testing.T) {
	for _, s := range []string{
		"", " ", hexID64, hexID64 + "\r\neth0", hexID64 + "\neth0", hexID64 + "\r\n", hexID64 + "\r\neth0\r\n", hexID64 + "\r\neth0 ",
		hexID64 + "\r\n" + strings.Repeat("a", 15), hexID64 + "\r\n" + strings.Repeat("a", 16), hexID64 + "\r\ne/0", hexID64 + "0", hexID64 + " ",
		strings.ToUpper(hexID64) + "\r\neth0", "reserved-vip", "4242", strings.Repeat("1", 64), "\x00\x00",
	} {
		var p ownerParser
		if d := cmp.Diff(claim.ParseOwner([]byte(s)), p.parse([]byte(s))); d != "" {
			t.Errorf("%q (-claim +short cut):\n%s", s, d)
		}
	}
}

func TestSum(t *testing.T) {
	if got := sum(nil); got != "e3b0c44298fc1c149afbf4c8996fb924" {
		t.Errorf("sum of nothing = %s", got)
	}
}

func FuzzReservation(f *testing.F) {
	f.Add("10.0.0.5", []byte(hexID64+"\r\neth0"))
	f.Add("FD00::5", []byte(hexID64))
	f.Add("lock", []byte{})
	f.Add("a\x1b", []byte("reserved-vip"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		addr, kind := parseName(name)
		if (kind == nameReservation) != addr.IsValid() || addr.Zone() != "" || addr.Is4In6() {
			t.Errorf("parseName(%q) = %v %d", name, addr, kind)
		}
		var p ownerParser
		for range 2 { // the second time from the cache of interface names
			if d := cmp.Diff(claim.ParseOwner(content), p.parse(content)); d != "" {
				t.Errorf("%q:\n%s", content, d)
			}
		}
	})
}
