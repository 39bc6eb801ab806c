package e2e

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

// Case F12: the network's directory is wiped while sandboxes live, last_reserved_ip with it,
// so that host-local would begin at the first address again. With the reservations made
// again it gives nobody's address away, and a DEL finds what was made.
func TestAdoptedAddressIsNotGivenAgain(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) {
			node := cri.Start(t, v)
			network := node.Network().Name
			first := node.RunSandbox(t, cri.Pod{Name: "first"})
			live := node.RunSandboxes(t, "live", 4)
			s := scene{node: node, networks: []string{network}, live: of(network, live...)}
			if err := os.RemoveAll(filepath.Join(node.DataDir(), network)); err != nil {
				t.Fatal(err)
			}
			c := newCLI(t, s)
			o := c.holdfast(t, append([]string{"gc", "--adopt", "-o", "json"}, c.node()...)...)
			var doc api.Sweep
			if err := json.Unmarshal([]byte(o.stdout), &doc); err != nil || o.code != 0 {
				t.Fatalf("%+v, %v", o, err)
			}
			for _, a := range doc.Adopted {
				if a.Outcome != "adopted" {
					t.Errorf("%s: %s: %s", a.Address, a.Outcome, a.Error)
				}
			}
			s.check(t, "adopted", s.live, of(network, first))
			// Of sandboxes that are deleted as ever, what was made goes as ever.
			node.RemoveSandbox(t, first.ID)
			s.check(t, "one is deleted", s.live)
			young := node.RunSandboxes(t, "young", 3)
			for _, y := range young {
				if slices.ContainsFunc(s.live, func(r reservation) bool { return r.addr == y.IP }) {
					t.Errorf("%s was given to a second sandbox", y.IP)
				}
			}
			s.live = append(s.live, of(network, young...)...)
			s.check(t, "more sandboxes", s.live)
			seen := map[netip.Addr]bool{}
			for _, r := range s.live {
				if seen[r.addr] {
					t.Errorf("%s is held twice", r.addr)
				}
				seen[r.addr] = true
			}
		})
	}
}
