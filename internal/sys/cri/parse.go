package cri

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// Bounds on what a runtime may send before it is not trusted. A container ID has 64
// bytes, a Kubernetes name at most 253, a UID 36.
const (
	maxID   = 256
	maxMeta = 1024
)

// configSource is the annotation by which every kubelet says where it has a Pod from: "api",
// "file" or "http" (pkg/kubelet/types: ConfigSourceAnnotationKey).
const configSource = "kubernetes.io/config.source"

// sandboxOf turns one entry of a list into a fact. An entry that no runtime writes
// makes the whole answer untrustworthy, so it is an error and never skipped.
func sandboxOf(endpoint string, s *runtimeapi.PodSandbox) (claim.Sandbox, error) {
	if s == nil {
		return claim.Sandbox{}, errors.New("listed an entry without content")
	}
	if !saneID(s.GetId()) {
		return claim.Sandbox{}, fmt.Errorf("listed a sandbox with the ID %s, which no runtime writes", printable(s.GetId(), 80))
	}
	m := s.GetMetadata()
	for _, text := range []string{m.GetNamespace(), m.GetName(), m.GetUid()} {
		if len(text) > maxMeta || !clean(text) {
			return claim.Sandbox{}, fmt.Errorf("sandbox %s carries the name %s, which no kubelet writes", s.GetId(), printable(text, 80))
		}
	}
	return claim.Sandbox{
		ID:       s.GetId(),
		Endpoint: endpoint,
		// Only the explicit word counts against a sandbox: a state that we do not know
		// is alive.
		Ready:   s.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
		Pod:     claim.Pod{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()},
		FromAPI: s.GetAnnotations()[configSource] == "api",
		Attempt: m.GetAttempt(),
		Created: s.GetCreatedAt(),
	}, nil
}

// addDetail completes s with the answer to its status call.
func addDetail(s *claim.Sandbox, r *runtimeapi.PodSandboxStatusResponse) error {
	st := r.GetStatus()
	if st == nil {
		return errors.New("answered without a status")
	}
	if st.GetId() != s.ID {
		// Runtimes look IDs up by unique prefix too; ours is whole (case F17), so
		// another ID in the answer is about another sandbox.
		return fmt.Errorf("answered for %s", printable(st.GetId(), 80))
	}
	addrs, err := addrsOf(st.GetNetwork())
	if err != nil {
		return err
	}
	netns, err := netnsOf(r.GetInfo())
	if err != nil {
		return err
	}
	s.Addrs, s.Netns = addrs, netns
	// Alive by either word: the two were said at different moments.
	s.Ready = s.Ready || st.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	return nil
}

// addrsOf returns the addresses in the runtime's order, unmapped and without zone.
// No network, or an empty IP, is what runtimes say for the host's network.
func addrsOf(n *runtimeapi.PodSandboxNetworkStatus) ([]netip.Addr, error) {
	texts := []string{n.GetIp()}
	for _, ip := range n.GetAdditionalIps() {
		texts = append(texts, ip.GetIp())
	}
	var out []netip.Addr
	for _, t := range texts {
		if t == "" {
			continue
		}
		a, err := netip.ParseAddr(t)
		if err != nil {
			return nil, fmt.Errorf("gave the address %s, which is none", printable(t, 80))
		}
		out = append(out, a.Unmap().WithZone(""))
	}
	return out, nil
}

// verboseInfo is the part of a verbose status that we read. containerd (1.x and
// 2.x) and CRI-O both send the OCI spec as "runtimeSpec"; containerd 2.x sends none
// for a sandbox whose task is gone, but its own record as "sandboxMetadata".
type verboseInfo struct {
	RuntimeSpec *struct {
		Linux *struct {
			Namespaces []struct {
				Type string `json:"type"`
				Path string `json:"path"`
			} `json:"namespaces"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
	SandboxMetadata *struct {
		Metadata struct {
			NetNSPath string `json:"NetNSPath"`
		} `json:"Metadata"`
	} `json:"sandboxMetadata"`
}

// netnsOf returns the path of the sandbox's network namespace as the runtime spells
// it, or "" where it gives none (host network, cri-dockerd). Text that is there but
// cannot be read is an error: a path that a runtime knows must not be taken for one
// that it does not know.
func netnsOf(info map[string]string) (string, error) {
	text, ok := info["info"]
	if !ok || text == "" {
		return "", nil
	}
	var v verboseInfo
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return "", errors.New("gave verbose info that is no JSON of the expected shape")
	}
	path := ""
	if v.RuntimeSpec != nil && v.RuntimeSpec.Linux != nil {
		for _, ns := range v.RuntimeSpec.Linux.Namespaces {
			if ns.Type == "network" && ns.Path != "" {
				path = ns.Path
				break
			}
		}
	}
	if path == "" && v.SandboxMetadata != nil {
		path = v.SandboxMetadata.Metadata.NetNSPath
	}
	if path == "" {
		return "", nil
	}
	if !strings.HasPrefix(path, "/") || len(path) > maxPath || !clean(path) {
		return "", fmt.Errorf("gave the netns path %s, which is none", printable(path, 80))
	}
	return path, nil
}

// compareSandboxes is a total order over what we keep, so that equal answers in
// another order give equal testimonies (I10).
func compareSandboxes(a, b claim.Sandbox) int {
	return cmp.Or(
		strings.Compare(a.ID, b.ID),
		strings.Compare(a.Endpoint, b.Endpoint),
		cmp.Compare(a.Created, b.Created),
		cmp.Compare(a.Attempt, b.Attempt),
		strings.Compare(a.Pod.Namespace, b.Pod.Namespace),
		strings.Compare(a.Pod.Name, b.Pod.Name),
		strings.Compare(a.Pod.UID, b.Pod.UID),
		compareBool(a.Ready, b.Ready),
		compareBool(a.FromAPI, b.FromAPI),
		strings.Compare(a.Netns, b.Netns),
		slices.CompareFunc(a.Addrs, b.Addrs, netip.Addr.Compare),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// saneID reports whether id could be a container ID at all: printable ASCII without
// blanks, 1 to maxID bytes.
func saneID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// printable returns foreign text fit for a detail: quoted when it holds anything but
// printable characters, or is empty, and cut to about limit bytes.
func printable(s string, limit int) string {
	cut := ""
	if len(s) > limit {
		s, cut = strings.ToValidUTF8(s[:limit], ""), "..."
	}
	if s == "" || !clean(s) {
		s = strconv.Quote(s)
	}
	return s + cut
}
