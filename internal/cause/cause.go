// Package cause names what lost an address, where that can be told.
//
// Scope: words for people, from what the judge was given and what was seen before. Ring 0:
// pure. Non-scope: deciding anything. A cause explains a release and never allows one.
package cause

import "github.com/holdfast-cni/holdfast/internal/claim"

// Kind is a cause in one word, for counting.
type Kind string

// The causes.
const (
	Unknown        Kind = "unknown"
	Reboot         Kind = "reboot"          // the sandbox was of an earlier boot
	RuntimeWiped   Kind = "runtime-wiped"   // the runtime lost its state: it forgot everything at once
	NoDel          Kind = "no-del"          // the sandbox is gone and DEL never came
	DelFailed      Kind = "del-failed"      // DEL came and plugin P failed
	AddFailed      Kind = "add-failed"      // ADD failed in plugin P, and so did its roll-back
	AddCrashed     Kind = "add-crashed"     // ADD never ended: no result was ever kept
	NetworkRenamed Kind = "network-renamed" // no configuration names the network any more
	EmptyFile      Kind = "empty-file"      // a reservation without an owner: a crash or a full disk
)

// Kinds returns all causes, in the order of documents and metrics.
func Kinds() []Kind {
	return []Kind{Reboot, RuntimeWiped, NoDel, DelFailed, AddFailed, AddCrashed, NetworkRenamed, EmptyFile, Unknown}
}

// Cause is what lost one address. Its texts are safe to print.
type Cause struct {
	Kind Kind `json:"kind"`
	// Plugin is the CNI plugin that failed, where that is known.
	Plugin string `json:"plugin,omitempty"`
	// Pod is whose sandbox it was, where that is known.
	Pod claim.Pod `json:"pod,omitzero"`
	// Why is one line for people.
	Why string `json:"why,omitempty"`
}
