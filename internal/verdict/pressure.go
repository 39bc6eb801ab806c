package verdict

import (
	"slices"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// The pressure rule for what carries no stamp.
//
// The grace is as long as it is since an ADD takes as long as that: until it has ended and its
// sandbox is listed, no witness need know of it. In a range that runs out that is too long,
// as when a chained plugin fails each ADD and each DEL of a Pod, and every retry loses an
// address (case L10). So the rule asks for proof that no ADD is in flight at all.
//
// The proof is the network namespace. CNI has a runtime make it before the ADD and keep it
// until the ADD and what follows has ended, and pass its path. So the ADD that made a
// reservation, if it is in flight, has a namespace on this node now, and it is
//   - not the host's, nor one in which a container is known to live that a process, a runtime
//     or a namespace in use shows: that is another's, as no two containers of the IDs that the
//     rule is for share one. If it is its own, it is not absent;
//   - not known for as long as the grace: it was made for this ADD, which by then is over;
//   - without a process, or named as containerd and CRI-O name theirs. What merely holds a
//     descriptor of it is no process in it: CRI-O and podman hold those of an ADD in flight.
//
// By runtime:
//   - containerd 1.6 and 2, CRI-O: made and mounted before ADD (cni-UUID, UUID), listed when the
//     sandbox runs, removed after DEL. Between ADD and the list it stands idle, or the pause
//     process is in it, whose cgroup has the ID;
//   - kata, gVisor, vfio: likewise; the address may never show in it, which the rule does not
//     ask for. The shim has the ID from its start;
//   - multus, thick: its shim is a CNI plugin that waits for the daemon, and so is a process with
//     the ID until the ADD has ended; the namespace is the runtime's. A daemon that goes on
//     when its client is dead works for a namespace that the runtime has removed;
//   - podman: mounted (netns-UUID) before its ADD, without a process. Docker under cri-dockerd:
//     the pause process is there before the ADD, and its cgroup has the ID;
//   - Nomad starts Docker's pause process under Docker's ID and adds under its own, which is a
//     UUID; nerdctl adds from within the container; others add for a process that is there already.
//     A process then is in the namespace that says nothing of the ID. So the rule is
//     for IDs as CRI runtimes, Docker and podman make them: 64 hex digits.
//
// A namespace that nothing shows makes the kernel witness silent, or there is no vantage. A
// runtime that does not say which namespaces its sandboxes have lets every idle one count. And an
// idle one that a person made counts too: then the grace holds, as without pressure.

// underPressure reports whether r's store is said to run out, or that of a cache entry's
// reservations.
func (s *scene) underPressure(r *claim.Resource) bool {
	if len(s.c.Policy.Pressed) == 0 {
		return false
	}
	dir := r.Store
	if r.Kind == claim.KindCache {
		if r.Cache == nil || r.Cache.DataDir == "" {
			return false
		}
		dir = s.reservedAs(r).Network
	}
	return slices.Contains(s.c.Policy.Pressed, dir)
}

// mayBePressed reports whether the rule is for a, whatever namespaces there are.
func (s *scene) mayBePressed(a *assessment) bool {
	return s.c.Policy.PressureGrace > 0 && s.cri != nil && !a.slow && !(a.odd != nil && a.odd.podGone) &&
		isHex64(a.Resource.Owner.ID) && s.underPressure(a.Resource)
}

// pressed reports whether two sightings the pressure grace apart are enough for a. why says
// what stands against it, if nothing but an ADD that may be in flight does.
func (s *scene) pressed(a *assessment) (ok bool, why string) {
	if !s.mayBePressed(a) || !s.cri.Detailed {
		return false, ""
	}
	return s.mayBeAdding == "", s.mayBeAdding
}

// addInFlight describes a namespace that may be that of an ADD in flight, "" if there is none.
func (s *scene) addInFlight(old Memory) string {
	if len(s.c.Policy.Pressed) == 0 || s.kernel == nil {
		return ""
	}
	known := map[uint64]bool{}
	for i := range s.c.Snapshots {
		for j := range s.c.Snapshots[i].Resources {
			r := &s.c.Snapshots[i].Resources[j]
			if r.Kind != claim.KindNetns {
				continue
			}
			if v := old.Get(Key{r.Path, r.Inc}); v != nil {
				d, ok := s.now.Since(v.First)
				known[r.NetnsID] = known[r.NetnsID] || ok && d >= s.c.Policy.Grace
			}
		}
	}
	for i := range s.kernel.Netns {
		n := &s.kernel.Netns[i]
		if n.Host || n.Procs > 0 && !runtimeNamed(n) || known[n.ID] || slices.ContainsFunc(s.tenants[n.ID], s.living) {
			continue
		}
		return s.describe(n) + " may be that of an ADD in flight"
	}
	return ""
}

// isHex64: an ID as CRI runtimes, Docker and podman make them.
func isHex64(id string) bool {
	return len(id) == 64 && !slices.ContainsFunc([]byte(id), func(c byte) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'f')
	})
}
