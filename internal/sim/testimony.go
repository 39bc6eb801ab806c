package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// How the witnesses fail, beside being silent (1). The kernel witness with a bad vantage
// still speaks.
const (
	speaks      = 0
	silent      = 1
	noVantage   = 2 // kernel: sees another PID namespace, and no proof of the node's
	halfVantage = 3 // kernel: not the initial PID namespace; every runtime shares it
	noBoot      = 2 // boot: silent, and the clock does not know the boot either
	otherBoot   = 3 // boot: another view of it, as in a container (case F23)
	noHost      = 4 // kernel: did not see the host's own namespace
	slow        = 5 // any: takes six seconds to answer
	otherPID    = 6 // kernel: another PID namespace than that of the runtimes
	nModes      = 7
)

// half reports whether the kernel witness does not see the whole node.
func (m modes) half() bool {
	return m.kernel == noVantage || m.kernel == noHost || m.kernel == otherPID
}

// askKernel tells the namespaces and the processes: one snapshot of /proc.
func (w *World) askKernel() []claim.Testimony {
	k := claim.Testimony{Witness: claim.WitnessKernel, State: claim.StateSilent, Detail: "the dump was interrupted", Asked: w.now()}
	p := claim.Testimony{Witness: claim.WitnessProcess, State: claim.StateSilent, Detail: "/proc changed while it was read", Asked: k.Asked}
	if w.mode.kernel == slow {
		w.pass(6*time.Second, true)
	}
	if w.mode.kernel != silent {
		k.State, k.Detail, k.Kernel = claim.StateComplete, "", w.kernelFacts()
	}
	if w.mode.process != silent {
		p.State, p.Detail, p.Process = claim.StateComplete, "", w.processFacts()
	}
	return []claim.Testimony{k, p}
}

func (w *World) kernelFacts() *claim.KernelFacts {
	f := &claim.KernelFacts{Vantage: claim.Vantage{Proven: true, InitialPIDNS: true, PIDNS: 4026531836}}
	switch w.mode.kernel {
	case noVantage:
		f.Vantage = claim.Vantage{InitialPIDNS: true, Checks: []claim.Check{{Name: "pid-namespace", Detail: "sees half of the node"}}}
	case halfVantage, otherPID:
		f.Vantage.InitialPIDNS, f.Vantage.PIDNS = false, 4026533000
	}
	f.Netns = make([]claim.Netns, 0, len(w.namespaces)+1)
	if w.mode.kernel != noHost {
		f.Netns = append(f.Netns, claim.Netns{ID: 4026531840, Host: true, Procs: 100, PIDs: []int{1}})
	}
	for _, n := range w.namespaces {
		if w.mode.half() && n.id%2 == 0 {
			continue // what lies in the other half
		}
		ns := claim.Netns{ID: n.id, Addrs: slices.Clone(n.addrs)}
		if n.mount != "" {
			ns.Mounts = []string{n.mount}
		}
		if n.c.proc {
			ns.Procs, ns.PIDs = 1, []int{n.c.pid}
		}
		if n.c.adding && n.c.visible {
			ns.FDHolders = 1
		}
		if ns.Procs > 0 || len(ns.Mounts) > 0 || ns.FDHolders > 0 {
			f.Netns = append(f.Netns, ns)
		}
	}
	return f
}

func (w *World) processFacts() *claim.ProcessFacts {
	f := &claim.ProcessFacts{Hits: []claim.ProcessHit{}}
	for _, c := range w.traces {
		if w.mode.half() && c.nsID%2 == 0 {
			continue
		}
		if c.adding && c.visible {
			f.Hits = append(f.Hits, claim.ProcessHit{ID: c.id, PID: 90000 + c.n, Netns: 4026531840, Via: "cni"})
		}
		if !c.proc {
			continue
		}
		rt := w.rts[c.rt]
		shim := claim.Shim{PID: c.pid + 50000, ID: c.id}
		via := "shim"
		switch rt.name {
		case "containerd":
			shim.Namespace, shim.Address = "k8s.io", strings.TrimPrefix(rt.endpoint, "unix://")+".ttrpc"
		case "cri-o":
			shim.Namespace, via = "cri-o", "conmon"
		default:
			via = "conmon"
		}
		f.Shims = append(f.Shims, shim)
		f.Hits = append(f.Hits, claim.ProcessHit{ID: c.id, PID: shim.PID, Netns: 4026531840, Via: via})
		if c.ns != nil && c.kind != vfio {
			f.Hits = append(f.Hits, claim.ProcessHit{ID: c.id, PID: c.pid, Netns: c.ns.id, Via: "cgroup"})
		}
	}
	return f
}

// askCRI is the union over the runtimes' sockets, as cri.Witness makes it. known are the
// endpoints that have answered here before.
func (w *World) askCRI(known []string, detail bool) claim.Testimony {
	t := claim.Testimony{Witness: claim.WitnessCRI, State: claim.StateSilent, Asked: w.now(), CRI: &claim.CRIFacts{Runtimes: []claim.Runtime{}, Sandboxes: []claim.Sandbox{}}}
	var reasons []string
	answered := 0
	for i, r := range w.rts {
		if r.endpoint == "" {
			continue
		}
		rt := claim.Runtime{Endpoint: r.endpoint, State: claim.StateSilent, Known: slices.Contains(known, r.endpoint)}
		mode := r.mode
		if mode == rtEmpty && r.name == "cri-o" {
			mode = rtHung // it listens only when it has read everything
		}
		if !r.there {
			mode = rtGone
		}
		switch {
		case mode == rtOK || mode == rtEmpty:
			answered++
			rt.State, rt.Name, rt.Version, rt.PeerPID, rt.PeerPIDNS = claim.StateComplete, r.name, "1.0", 10+i, 4026531836
			if w.mode.kernel == halfVantage {
				rt.PeerPIDNS = 4026533000
			}
			if mode == rtOK {
				t.CRI.Sandboxes = append(t.CRI.Sandboxes, w.sandboxes(i, detail)...)
			}
		case mode == rtGone && !rt.Known:
			continue
		case mode == rtDown && !rt.Known:
			rt.State = claim.StateNone
		default:
			reasons = append(reasons, r.endpoint+" gave no answer")
		}
		t.CRI.Runtimes = append(t.CRI.Runtimes, rt)
	}
	switch {
	case len(reasons) > 0:
		t.Detail = strings.Join(reasons, "; ")
	case answered == 0:
		t.Detail = "no runtime answered"
	default:
		t.State, t.CRI.Detailed = claim.StateComplete, detail
		slices.SortFunc(t.CRI.Sandboxes, func(a, b claim.Sandbox) int {
			return strings.Compare(a.Endpoint+a.ID, b.Endpoint+b.ID)
		})
		return t
	}
	t.CRI.Sandboxes = nil
	return t
}

func (w *World) sandboxes(rt int, detail bool) []claim.Sandbox {
	var out []claim.Sandbox
	for _, c := range w.traces {
		if c.rt != rt || !c.listed {
			continue
		}
		b := claim.Sandbox{
			ID: c.id, Endpoint: w.rts[rt].endpoint, Ready: c.ready, Created: c.created, Attempt: uint32(c.n),
			Pod: claim.Pod{Namespace: "default", Name: podName(c.slot), UID: c.uid}, FromAPI: c.slot != staticSlot,
		}
		if detail {
			if c.ns != nil {
				b.Netns = c.ns.mount
			}
			// A runtime forgets the addresses of what does not run.
			if c.ready {
				b.Addrs = slices.Clone(c.addrs)
			}
		}
		out = append(out, b)
	}
	return out
}

func podName(slot int) string { return fmt.Sprintf("web-%d", slot/2) }

// askBoot tells the boot ID; what is past is for the subject's own history to say.
func (w *World) askBoot() (id string, err error) {
	switch w.mode.boot {
	case silent, noBoot:
		return "", fmt.Errorf("boot ID: permission denied")
	case otherBoot:
		return bootID(0x1000 + w.bootN), nil
	}
	return w.boot(), nil
}

// Pod is what the API server says of a Pod of this node.
type Pod struct {
	Name, UID string
	IPs       []string
	Phase     string
}

// apiServer is the API server: what it holds lags behind the node.
type apiServer struct {
	now, stale []Pod
}

const (
	apiFresh   = 0
	apiFailing = 1
	apiEmpty   = 2 // the first list after "synced"
	apiStale   = 3 // from a watch cache of long ago
	nAPIModes  = 4
)

// staticSlot has a static Pod whose mirror Pod is missing (case F16).
const staticSlot = 5

// created: a Pod is there before its sandbox, without addresses.
func (a *apiServer) created(w *World, c *container) {
	if c.slot == staticSlot || w.rts[c.rt].endpoint == "" {
		return
	}
	a.deleted(c.uid)
	a.now = append(slices.Clip(a.now), Pod{Name: podName(c.slot), UID: c.uid, Phase: "Pending"})
}

func (a *apiServer) deleted(uid string) {
	a.now = slices.DeleteFunc(slices.Clone(a.now), func(p Pod) bool { return p.UID == uid })
}

// sync writes the status of every Pod, as the kubelet does when it comes to it.
func (a *apiServer) sync(w *World) {
	a.now = slices.Clone(a.now)
	for i := range a.now {
		a.now[i].IPs, a.now[i].Phase = nil, "Pending"
		for _, c := range w.traces {
			if c.up && c.uid == a.now[i].UID {
				a.now[i].Phase = "Running"
				for _, addr := range c.addrs {
					a.now[i].IPs = append(a.now[i].IPs, addr.String())
				}
			}
		}
	}
}

// settle is what comes of it when kubelet and controllers work: every Pod that runs is there,
// with its addresses, and no other.
func (a *apiServer) settle(w *World) {
	a.now = nil
	for _, c := range w.traces {
		if c.up {
			a.created(w, c)
		}
	}
	a.sync(w)
}

// askKube is the testimony of the API server. It fails at once or slowly; an empty list is
// another node's at times.
func (w *World) askKube() claim.Testimony {
	t := claim.Testimony{Witness: claim.WitnessKube, State: claim.StateSilent, Asked: w.now()}
	mode := w.mode.api
	list, err := w.pods.list(mode)
	if err != nil {
		if w.seq%2 == 1 {
			w.pass(8*time.Second, true)
		}
		t.Detail = err.Error()
		return t
	}
	t.State, t.Kube = claim.StateComplete, &claim.KubeFacts{Node: "n1", Pods: []claim.KubePod{}}
	for _, p := range list {
		k := claim.KubePod{Pod: claim.Pod{Namespace: "default", Name: p.Name, UID: p.UID}, Phase: p.Phase}
		for _, ip := range p.IPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				k.Addrs = append(k.Addrs, a)
			}
		}
		t.Kube.Pods = append(t.Kube.Pods, k)
	}
	if mode == apiEmpty && w.seq%2 == 1 {
		t.Kube.Pods = []claim.KubePod{{Pod: claim.Pod{Namespace: "default", Name: "far", UID: "far away"}, Phase: "Running"}}
	}
	return t
}

// list is what a List call gives now.
func (a *apiServer) list(mode int) ([]Pod, error) {
	switch mode {
	case apiFailing:
		return nil, fmt.Errorf("etcdserver: request timed out")
	case apiEmpty:
		return nil, nil
	case apiStale:
		return a.stale, nil
	}
	return a.now, nil
}
