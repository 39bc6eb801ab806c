package cniexec

import (
	"regexp"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

var (
	uuidID    = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(\.|$)`)
	nerdctlID = regexp.MustCompile(`-[0-9a-f]{64}$`)
)

// ReusableOwner reports whether a runtime may start a container again under the ID
// of this cache entry, and why. No plugin is run for such an ID: the new run may
// have the same chains before the old one's are gone (case F21).
//
// A Pod sandbox gets a new random ID each time, so only an entry that names one is
// not reusable: CNI_ARGS with K8S_POD_NAMESPACE, K8S_POD_NAME, and the ID itself as
// K8S_POD_INFRA_CONTAINER_ID, as containerd, CRI-O and cri-dockerd write them.
// Podman 4 sets K8S_POD_NAME alone, to the container's name; podman 3 set all three,
// with the name as the namespace and no UID. Content that cannot be read is
// reusable.
func ReusableOwner(content []byte) (reusable bool, why string) {
	c, err := parseCached(content)
	if err != nil {
		return true, "the cache entry cannot be read"
	}
	why = c.reusable()
	return why != "", why
}

// reusable gives the reason, or "".
func (c *cached) reusable() string {
	switch {
	case uuidID.MatchString(c.ContainerID):
		return "a UUID: Nomad starts an allocation again under its ID"
	case nerdctlID.MatchString(c.ContainerID):
		return "<namespace>-<ID>: nerdctl starts a container again under its ID"
	case !claim.IsContainerID(c.ContainerID):
		return "an ID of unknown shape"
	}
	var namespace, name, infra, uid string
	for _, kv := range c.CNIArgs {
		switch kv[0] {
		case "K8S_POD_NAMESPACE":
			namespace = kv[1]
		case "K8S_POD_NAME":
			name = kv[1]
		case "K8S_POD_INFRA_CONTAINER_ID":
			infra = kv[1]
		case "K8S_POD_UID":
			uid = kv[1]
		}
	}
	switch {
	case namespace == "" || name == "" || infra == "":
		return "no Pod in CNI_ARGS: podman and others start a container again under its ID"
	case infra != c.ContainerID:
		return "CNI_ARGS name another sandbox"
	case uid == "" && namespace == name:
		return "CNI_ARGS as podman 3 writes them: it starts a container again under its ID"
	}
	return ""
}
