package ipam

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	realns "github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// onItsOwn is oursAt with addresses that no other test on this machine has, since they come
// to be held by its kernel.
func onItsOwn(t *testing.T) *killSite {
	t.Helper()
	m := oursAt(t, filepath.Join(t.TempDir(), "networks"))
	b := realns.Subnet(t).Addr().As4()
	m.private = strings.NewReplacer("198.18.0.", fmt.Sprintf("%d.%d.%d.", b[0], b[1], b[2]), "2001:db8::", fmt.Sprintf("fd48:1%02x:1%02x::", b[1], b[2]))
	return m
}

// takes runs an ADD in a namespace, and wants these addresses, without their gateways.
func (m *killSite) takes(id, ns, top string, want ...string) {
	m.t.Helper()
	c := m.config(m.bin)
	c.top = m.at(top)
	r := request{command: "ADD", id: id, ifname: "eth0", netns: ns, config: c}
	got, err := m.bin.run(m.t.Context(), r.call(m.bin))
	must(m.t, err)
	addrs, err := got.addresses()
	for i := range addrs {
		addrs[i], _, _ = strings.Cut(addrs[i], " via ")
	}
	if err != nil || strings.Join(addrs, " ") != m.at(strings.Join(want, " ")) {
		m.t.Errorf("ADD %s: %v, %v; want %v\n%+v", id, addrs, err, want, got)
	}
}

func requested(addrs ...string) string {
	return fmt.Sprintf(`"args": {"cni": {"ips": ["%s"]}}`, strings.Join(addrs, `", "`))
}

// TestTakeOver: an attachment that has an address already gets it again if its stamp proves
// the former life over, and not otherwise (L17).
func TestTakeOver(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	m := onItsOwn(t)
	ns, other := realns.New(t), realns.New(t)
	// docs/format/stamp.md: a version, the boot ID, an instant, the namespace, a sum.
	restamp := func(at int, value []byte) {
		t.Helper()
		for name, content := range m.reservations() {
			if content != matrixID+"\r\neth0" {
				continue
			}
			b := []byte(m.stamp(name))
			if len(b) != 49 || b[0] != '2' {
				t.Fatalf("%s has the stamp %q", name, b)
			}
			copy(b[at:], value)
			must(t, unix.Setxattr(filepath.Join(m.net(), name), stampAttr, b, 0))
		}
	}
	const bootAt, netnsAt = 1, 25
	number := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	v4, v6 := "198.18.0.2/24", "2001:db8::2/122"
	refused := func(what string) {
		t.Helper()
		m.refuses("ADD", matrixID, "duplicate allocation is not allowed")
		if t.Failed() {
			t.Fatal(what)
		}
	}
	m.takes(matrixID, ns.Path, "", v4, v6)
	refused("its namespace is there")
	restamp(netnsAt, number(other.ID))
	refused("another's namespace is there")
	restamp(netnsAt, number(0))
	refused("no namespace is known")
	gone := number(1)
	restamp(netnsAt, gone)
	m.takes(matrixID, ns.Path, "", v4, v6) // the namespace is gone
	for name, content := range m.reservations() {
		if b := []byte(m.stamp(name)); content == matrixID+"\r\neth0" && !bytes.Equal(b[netnsAt:netnsAt+8], number(ns.ID)) {
			t.Errorf("%s has the stamp %q after it, want namespace %d", name, b, ns.ID)
		}
	}
	refused("just taken over")
	restamp(bootAt, []byte{0, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0})
	m.takes(matrixID, ns.Path, "", v4, v6) // an earlier boot
	refused("just taken over")
	restamp(netnsAt, gone)
	m.takes(matrixID, ns.Path, requested("198.18.0.2", "2001:db8::2"), v4, v6) // as requested
	restamp(netnsAt, gone)
	m.takes(matrixID, ns.Path, requested("198.18.0.9"), "198.18.0.9/24", v6) // another one is wanted
	m.ok("DEL", matrixID)
	if n := m.count(matrixID); n != 0 {
		t.Errorf("%d left after DEL", n)
	}

	// Held by the kernel: the stamp does not matter.
	m.takes(matrixID, ns.Path, requested("198.18.0.2", "2001:db8::2"), v4, v6)
	other.AddAddr("lo", m.at("198.18.0.2/32"))
	restamp(bootAt, []byte{0, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0})
	refused("a namespace holds it")

	// A stamp of other content, and host-local's reservation without one.
	stamp := m.stamp(m.at("2001:db8::2"))
	for name, content := range map[string]string{"198.18.0.7": "x\r\neth0", "2001:db8::7": "y\r\neth0"} {
		must(t, os.WriteFile(filepath.Join(m.net(), m.at(name)), []byte(content), 0o600))
	}
	must(t, unix.Setxattr(filepath.Join(m.net(), m.at("2001:db8::7")), stampAttr, []byte(stamp), 0))
	m.refuses("ADD", "x", "duplicate allocation is not allowed")
	m.refuses("ADD", "y", "duplicate allocation is not allowed")
}

// TestHeldByTheKernel: where names are lost, an address that a namespace holds is not handed
// out though nobody has reserved it (I11, cases F12 and L15).
func TestHeldByTheKernel(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	lost := map[string]func(t *testing.T, m *killSite){
		"emptied": func(t *testing.T, m *killSite) {
			names, err := os.ReadDir(m.net())
			must(t, err)
			for _, n := range names {
				must(t, os.Remove(filepath.Join(m.net(), n.Name())))
			}
		},
		"removed": func(t *testing.T, m *killSite) { must(t, os.RemoveAll(m.net())) },
		"one gone, and a new boot": func(t *testing.T, m *killSite) {
			must(t, os.RemoveAll(m.run)) // as a boot does
			for _, name := range []string{"198.18.0.2", "2001:db8::2"} {
				must(t, os.Remove(filepath.Join(m.net(), m.at(name))))
			}
			must(t, os.WriteFile(filepath.Join(m.net(), "last_reserved_ip.0"), []byte(m.at("198.18.0.1")), 0o600))
			must(t, os.WriteFile(filepath.Join(m.net(), "last_reserved_ip.1"), []byte(m.at("2001:db8::1")), 0o600))
		},
		"emptied, and the index too": func(t *testing.T, m *killSite) {
			must(t, os.RemoveAll(m.data))
			must(t, os.RemoveAll(m.run))
		},
	}
	for name, lose := range lost {
		t.Run(name, func(t *testing.T) {
			m := onItsOwn(t)
			alive, pod := realns.New(t), realns.New(t)
			m.takes("alive", alive.Path, "", "198.18.0.2/24", "2001:db8::2/122")
			alive.AddAddr("lo", m.at("198.18.0.2/32"))
			alive.AddAddr("lo", m.at("2001:db8::2/128"))
			lose(t, m)
			m.takes("new", pod.Path, "", "198.18.0.3/24", "2001:db8::3/122")
			c := m.config(m.bin)
			c.top = m.at(requested("198.18.0.2"))
			r := request{command: "ADD", id: "wants", ifname: "eth0", netns: pod.Path, config: c}
			got, err := m.bin.run(t.Context(), r.call(m.bin))
			must(t, err)
			if f, err := got.failure(); err != nil || !strings.Contains(f.Msg, "is not available in range set") {
				t.Errorf("requested: %+v, %v", got, err)
			}
			// It lasts while what is held has no reservation.
			m.takes("newer", pod.Path, "", "198.18.0.4/24", "2001:db8::4/122")
			must(t, os.WriteFile(filepath.Join(m.net(), "last_reserved_ip.0"), []byte(m.at("198.18.0.1")), 0o600))
			m.takes("newest", pod.Path, "", "198.18.0.5/24", "2001:db8::5/122")
			if m.count("wants") != 0 {
				t.Error("a refused ADD left something")
			}
		})
	}
}
