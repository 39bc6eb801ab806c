package ipam

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// TestRefused: the directory takes no change.
func TestRefused(t *testing.T) {
	if !testenv.AsNobody(t) {
		return
	}
	for _, p := range programs() {
		t.Run(p.Type, func(t *testing.T) {
			s := newSite(t, p, config{ipam: slash24})
			add("a")(s)
			if err := os.Chmod(s.dir(), 0o555); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.Chmod(s.dir(), 0o755); err != nil {
					t.Error(err)
				}
			})
			add("b", failsLike(999, "failed to allocate for range 0: "))(s)
			check("a")(s)
			if p.upstream() {
				del("a", silent())(s)
			} else {
				del("a", failsLike(999, ""))(s)
			}
			reserved("198.18.0.2 a/eth0")(s)
		})
	}
}

// TestDefaultDirectory: without dataDir it is /var/lib/cni/networks, which nobody may
// change; so this leaves nothing there.
func TestDefaultDirectory(t *testing.T) {
	if !testenv.AsNobody(t) {
		return
	}
	for _, p := range programs() {
		t.Run(p.Type, func(t *testing.T) {
			const name = "holdfast-contract-default"
			s := newSite(t, p, config{name: name, ipam: slash24})
			add("a", dataDirectory(""), looks(func(s *site, r reply) {
				// The message names it, or the first parent that is not there.
				f, err := r.failure()
				if err != nil || !strings.Contains(f.Msg, "/var/lib/cni") || !strings.HasSuffix(f.Msg, "permission denied") {
					s.t.Errorf("error %+v, %v; want that it may not make /var/lib/cni/networks/%s", f, err, name)
				}
			}))(s)
		})
	}
}
