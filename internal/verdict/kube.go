package verdict

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// What the API server's Pods are worth. Their addresses lag behind the node (antrea #8239),
// so that one that is there keeps, and one that is not says nothing. That a Pod is gone
// says nothing of a container that lives. One thing alone follows from it: a sandbox of it
// that is NotReady will not run again.

// contradictKube: the runtime has Ready sandboxes of Pods that came from the API, and the
// API has none of these Pods. It is another node's list, or one of another time (aws-cni
// #711, case F6).
func (s *scene) contradictKube() {
	if s.kube == nil || s.cri == nil {
		return
	}
	there := map[string]bool{}
	for i := range s.kube.Pods {
		there[s.kube.Pods[i].UID] = true
	}
	n := 0
	for i := range s.cri.Sandboxes {
		b := &s.cri.Sandboxes[i]
		switch {
		case !b.Ready || !b.FromAPI || b.Pod.UID == "":
		case there[b.Pod.UID]:
			return
		default:
			n++
		}
	}
	if n > 0 {
		s.mute(claim.WitnessKube, fmt.Sprintf("the API lists %d Pods of node %q, and none of the %d whose sandboxes are Ready here: not believed", len(s.kube.Pods), s.kube.Node, n))
	}
}

func (s *scene) indexKube() {
	if s.kube == nil {
		return
	}
	s.podAddrs, s.podUIDs = map[netip.Addr][]*claim.KubePod{}, map[string][]*claim.KubePod{}
	for i := range s.kube.Pods {
		p := &s.kube.Pods[i]
		for _, uid := range []string{p.UID, p.ConfigHash} {
			if uid != "" {
				s.podUIDs[uid] = append(s.podUIDs[uid], p)
			}
		}
		if p.Ended() || p.HostNetwork {
			continue // who has ended has given its address back; a host's address is the host's
		}
		for _, a := range p.Addrs {
			s.podAddrs[plain(a)] = append(s.podAddrs[plain(a)], p)
		}
	}
}

// wantsKube reports whether what the API server knows could change what is said of a.
func (s *scene) wantsKube(a *assessment) bool {
	return s.unasked && (a.class == classAbsent || a.class == classOrphan || s.lacksKube && a.Rule == ruleSilent)
}

// sayKube: has a Pod of this node, that has not ended, the address. Whose reservation it is
// does not matter.
func (s *scene) sayKube(a *assessment, ids []string) Word {
	r := a.Resource
	if s.kube == nil {
		if !s.unasked && slices.Contains(s.c.Policy.Required, claim.WitnessKube) {
			return a.say(claim.WitnessKube, Silent, "%s", s.silent[claim.WitnessKube])
		}
		return "" // nobody asked it, or nobody waits for its word
	}
	if r.Kind != claim.KindReservation {
		return ""
	}
	for _, p := range s.podAddrs[r.Addr] {
		if s.reservedFor(p, r.Addr, ids) {
			a.Shared = true
			continue
		}
		a.Rule, a.Why = "pod-has-address", fmt.Sprintf("the Pod %q has the address in the API", p.Namespace+"/"+p.Name)
		return a.say(claim.WitnessKube, Alive, "Pod %q has it, %s", p.Namespace+"/"+p.Name, phaseOf(p))
	}
	a.Says = append(a.Says, Say{claim.WitnessKube, Absent, "no Pod that needs this reservation has ", true})
	return Absent
}

// reservedFor reports whether a living sandbox of p, other than ids, has reserved addr
// elsewhere: then p needs no other reservation of it (a renamed network: case L15).
func (s *scene) reservedFor(p *claim.KubePod, addr netip.Addr, ids []string) bool {
	if s.cri == nil {
		return false
	}
	for i := range s.cri.Sandboxes {
		b := &s.cri.Sandboxes[i]
		runs := b.Ready || len(s.hits[b.ID]) > 0 || slices.ContainsFunc(s.homes[b.ID], s.used)
		if runs && b.Pod.UID != "" && (b.Pod.UID == p.UID || b.Pod.UID == p.ConfigHash) &&
			!slices.Contains(ids, b.ID) && slices.Contains(s.ownAddrs[b.ID], addr) {
			return true
		}
	}
	return false
}

// fate is what the API says of a NotReady sandbox's Pod.
type fate uint8

const (
	fateUnknown fate = iota // nothing that helps: it must stay absent for the orphan grace
	fateLives               // it is there and has not ended: its sandbox may come back
	fateGone                // it is not there
)

// fateOf: only who came from the API can be gone there. A static Pod runs without any
// mirror (k8s #29845, case F16). Of a Pod's sandboxes only the newest can come back: the
// kubelet has stopped the others before it made that one.
func (s *scene) fateOf(b *claim.Sandbox) fate {
	if s.kube == nil || b.Pod.UID == "" {
		return fateUnknown
	}
	pods := s.podUIDs[b.Pod.UID]
	switch {
	case len(pods) == 0 && b.FromAPI:
		return fateGone
	case slices.ContainsFunc(pods, func(p *claim.KubePod) bool { return !p.Ended() }) && s.newest(b):
		return fateLives
	}
	return fateUnknown
}

// newest reports whether no sandbox of b's Pod was made later, in whatever runtime: a node may
// have been given another one.
func (s *scene) newest(b *claim.Sandbox) bool {
	return !slices.ContainsFunc(s.cri.Sandboxes, func(n claim.Sandbox) bool {
		return n.Pod.UID == b.Pod.UID && n.ID != b.ID && n.Created > b.Created
	})
}

func phaseOf(p *claim.KubePod) string {
	what := "phase unknown"
	switch p.Phase {
	case "Pending", "Running":
		what = p.Phase
	}
	if p.Deleting {
		what += ", being deleted"
	}
	return what
}
