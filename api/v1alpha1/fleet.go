package v1alpha1

// KindFleet is the kind of what `kubectl holdfast` prints.
const KindFleet = "Fleet"

// Fleet is what the agents of several nodes answered, worst first.
type Fleet struct {
	TypeMeta
	// Query is what was asked for: "status", "audit", or an address.
	Query string      `json:"query"`
	Nodes []FleetNode `json:"nodes"`
	// Unanswered is how many of Nodes have an Error.
	Unanswered int `json:"unanswered"`
}

// FleetNode is one node's answer: one of Status, Audit and Explanation, or an Error.
type FleetNode struct {
	Node string `json:"node"`
	// Pod is the agent's.
	Pod string `json:"pod,omitempty"`
	// Error says why there is no answer; then nothing is known of the node.
	Error       string       `json:"error,omitempty"`
	Status      *Status      `json:"status,omitempty"`
	Audit       *Audit       `json:"audit,omitempty"`
	Explanation *Explanation `json:"explanation,omitempty"`
}
