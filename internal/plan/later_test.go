package plan_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	. "github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// F21: podman has started the container again under its old ID: its new reservation is a
// new incarnation and so Suspect, its old cache entry is still Leaked. Neither DEL nor the
// removal of the veth may touch the new run: an attachment goes as a whole (I8).
func TestLaterCacheStaysWithItsReservation(t *testing.T) {
	id := strings.Repeat("a1b2c3d4", 8)
	owner := claim.Owner{Shape: claim.ShapeContainer, ID: id, IfName: "eth0"}
	res := &claim.Resource{Kind: claim.KindReservation, Store: "/n/pods", Network: "pods", Addr: netip.MustParseAddr("10.1.0.9"), Owner: owner, Path: "/n/pods/10.1.0.9"}
	cache := &claim.Resource{Kind: claim.KindCache, Store: "/r", Network: "pods", Owner: owner, Path: "/r/x", Cache: &claim.CacheEntry{HostIfs: []claim.HostIf{{Name: "veth1"}}}}
	leaked := verdict.Finding{Resource: cache, Verdict: verdict.Leaked, Releasable: true}
	for name, c := range map[string]struct {
		res verdict.Finding
		opt Options
	}{
		"suspect":  {res: verdict.Finding{Resource: res, Verdict: verdict.Suspect}},
		"held":     {res: verdict.Finding{Resource: res, Verdict: verdict.Held}},
		"conflict": {res: verdict.Finding{Resource: res, Verdict: verdict.Conflict}},
		"read-only": {res: verdict.Finding{Resource: res, Verdict: verdict.Leaked, Releasable: true}, opt: Options{Skip: func(r *claim.Resource) string {
			if r.Store == "/n/pods" {
				return "read-only"
			}
			return ""
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := Make(&verdict.Judgement{Findings: []verdict.Finding{c.res, leaked}}, c.opt)
			for _, g := range p.Groups {
				for _, s := range g.Steps {
					t.Errorf("step %s on %s, though the reservation stays", s.Kind, s.Object)
				}
			}
		})
	}
}
