package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// The annotations of a mirror Pod (pkg/kubelet/types), each with the UID under which the
// runtime knows its static Pod.
const (
	configMirror = "kubernetes.io/config.mirror"
	configHash   = "kubernetes.io/config.hash"
)

// maxName bounds names and UIDs, in bytes: Kubernetes allows 253.
const maxName = 253

// podsOf turns a list into facts. What no API server writes makes the whole answer
// untrustworthy, so it is an error and never skipped.
func podsOf(node string, list *corev1.PodList) (*claim.KubeFacts, error) {
	switch {
	case list.ResourceVersion == "":
		return nil, errors.New("the answer has no resourceVersion, so it is no list")
	case list.Continue != "" || list.RemainingItemCount != nil:
		return nil, errors.New("the answer is a part of the list only")
	}
	f := &claim.KubeFacts{Node: node, Pods: make([]claim.KubePod, 0, len(list.Items))}
	for i := range list.Items {
		p, err := podOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if n := list.Items[i].Spec.NodeName; n != node {
			return nil, fmt.Errorf("the answer holds Pod %s/%s of node %s", p.Namespace, p.Name, printable(n, 80))
		}
		f.Pods = append(f.Pods, p)
	}
	// An order of our own, so that equal answers give equal testimonies (I10).
	slices.SortFunc(f.Pods, func(a, b claim.KubePod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	for i := range f.Pods {
		if i > 0 && f.Pods[i].UID == f.Pods[i-1].UID {
			return nil, fmt.Errorf("the answer holds the Pod %s twice", f.Pods[i].UID)
		}
	}
	return f, nil
}

func podOf(p *corev1.Pod) (claim.KubePod, error) {
	k := claim.KubePod{
		Pod:         claim.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)},
		ConfigHash:  p.Annotations[configMirror],
		Phase:       string(p.Status.Phase),
		Deleting:    p.DeletionTimestamp != nil,
		HostNetwork: p.Spec.HostNetwork,
	}
	if k.ConfigHash == "" {
		k.ConfigHash = p.Annotations[configHash]
	}
	for _, s := range []string{k.Namespace, k.Name, k.UID} {
		if s == "" || !sane(s) {
			return k, fmt.Errorf("the answer holds a Pod with the name or UID %s, which no API server gives", printable(s, 80))
		}
	}
	if !sane(k.ConfigHash) || !sane(k.Phase) {
		return k, fmt.Errorf("the Pod %s/%s has the hash %s and the phase %s, which no kubelet writes", k.Namespace, k.Name, printable(k.ConfigHash, 80), printable(k.Phase, 80))
	}
	texts := make([]string, 0, 1+len(p.Status.PodIPs))
	for _, ip := range p.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	if !slices.Contains(texts, p.Status.PodIP) {
		texts = append(texts, p.Status.PodIP)
	}
	for _, t := range texts {
		if t == "" {
			continue
		}
		a, err := netip.ParseAddr(t)
		if err != nil {
			return k, fmt.Errorf("the Pod %s/%s has the address %s, which is none", k.Namespace, k.Name, printable(t, 80))
		}
		k.Addrs = append(k.Addrs, a.Unmap().WithZone(""))
	}
	return k, nil
}

// older reports whether a list is of an earlier state than one before. Resource versions are
// decimal numbers that grow, since Kubernetes 1.35 by contract and in fact always; of others
// nothing is known.
func older(version, before string) bool {
	a, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return false
	}
	b, err := strconv.ParseUint(before, 10, 64)
	return err == nil && a < b
}

// sane reports whether s is short printable ASCII without blanks.
func sane(s string) bool {
	return len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// printable returns foreign text fit for a detail: quoted when it holds anything but
// printable characters, or is empty, and cut to about limit bytes.
func printable(s string, limit int) string {
	cut := ""
	if len(s) > limit {
		s, cut = strings.ToValidUTF8(s[:limit], ""), "..."
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
	}
	return s + cut
}
