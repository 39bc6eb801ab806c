package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// FailedSandbox is what a kubelet told of a sandbox that it could not make or remove. It
// explains and never decides. Its texts are safe to print.
type FailedSandbox struct {
	Pod claim.Pod
	// ID is the sandbox's, whole; empty when the message does not give it.
	ID string
	// Plugin is the type of the CNI plugin that failed, Op "add" or "del"; empty when the
	// message does not say.
	Plugin, Op  string
	Count       int
	First, Last time.Time
	Message     string // cut to some hundred bytes
}

// failures are the reasons by which a kubelet tells of a failed sandbox (pkg/kubelet/events).
func failures() []string { return []string{"FailedCreatePodSandBox", "FailedKillPod"} }

// FailedSandboxes reads the Events by which this node's kubelet tells of sandboxes that it
// could not make or remove, the newest first. The API server selects by reason; the node is
// selected here. Events live for an hour by default.
func (c *Client) FailedSandboxes(ctx context.Context, node string) ([]FailedSandbox, error) {
	var out []FailedSandbox
	for _, reason := range failures() {
		r := c.rest.Get().Resource("events").MaxRetries(0).Param("resourceVersion", "0").
			Param("fieldSelector", "involvedObject.kind=Pod,reason="+reason)
		list, err := ask[*corev1.EventList](ctx, c, r)
		if err != nil {
			return nil, &Error{"list", "events", err}
		}
		out = append(out, failedOf(node, list)...)
	}
	slices.SortStableFunc(out, func(a, b FailedSandbox) int { return b.Last.Compare(a.Last) })
	return out, nil
}

// failedOf reads the Events of one node. What cannot be read is left out: nothing is decided
// by it.
func failedOf(node string, list *corev1.EventList) []FailedSandbox {
	var out []FailedSandbox
	for i := range list.Items {
		e := &list.Items[i]
		if cmp.Or(e.Source.Host, e.ReportingInstance) != node || e.InvolvedObject.Kind != "Pod" || !slices.Contains(failures(), e.Reason) {
			continue
		}
		f := FailedSandbox{
			Pod:   claim.Pod{Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name, UID: string(e.InvolvedObject.UID)},
			Count: max(int(e.Count), 1), First: e.FirstTimestamp.Time, Last: e.LastTimestamp.Time,
			Message: printable(e.Message, 300),
		}
		if !sane(f.Pod.Namespace) || !sane(f.Pod.Name) || !sane(f.Pod.UID) {
			continue
		}
		if f.Last.IsZero() {
			f.Last = e.EventTime.Time
		}
		if s := e.Series; s != nil {
			f.Count, f.Last = max(f.Count, int(s.Count)), s.LastObservedTime.Time
		}
		if f.First.IsZero() {
			f.First = f.Last
		}
		f.ID, f.Plugin, f.Op = blame(e.Message)
		out = append(out, f)
	}
	return out
}

// blame finds in a kubelet's message which sandbox and which plugin failed. containerd and
// CRI-O pass on what libcni says since 1.0:
//
//	... failed to setup network for sandbox "ID": plugin type="bandwidth" failed (add): ...
//	... create pod network sandbox k8s_web_ns_UID_0(ID): error adding pod ns_web to CNI network
//	    "net": plugin type="bridge" name="net" failed (add): ...
//	... failed to destroy network for sandbox \"ID\": plugin type=\"portmap\" failed (delete): ...
//
// The first plugin that is named counts: what follows is what it says, or what its roll-back
// says.
func blame(message string) (id, plugin, op string) {
	text := strings.ReplaceAll(message, `\`, "") // quoted once for each error that it went through
	id = hexID(text)
	for rest := text; ; {
		_, after, found := strings.Cut(rest, `plugin type="`)
		if !found {
			return id, "", ""
		}
		name, after, closed := strings.Cut(after, `"`)
		head, tail, failed := strings.Cut(after, "failed (")
		verb, _, ended := strings.Cut(tail, ")")
		if closed && failed && ended && len(head) <= 1+len(`name=""`)+maxName+1 && name != "" && sane(name) && len(name) <= 64 {
			switch verb {
			case "add":
				return id, name, "add"
			case "delete", "del":
				return id, name, "del"
			}
		}
		rest = after
	}
}

// hexID returns the first whole run of 64 hex digits, which is how containerd and CRI-O name
// their sandboxes.
func hexID(text string) string {
	isHex := func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
	isWord := func(c byte) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-'
	}
	for i := 0; i < len(text); {
		j := i
		for j < len(text) && isHex(text[j]) {
			j++
		}
		if j-i == 64 && (i == 0 || !isWord(text[i-1])) && (j == len(text) || !isWord(text[j])) {
			return text[i:j]
		}
		i = max(j, i+1)
	}
	return ""
}

// Events writes Events. Its methods are those of client-go's record.EventSink.
type Events struct {
	Client *Client
	// Timeout bounds one call; 0: 10 s.
	Timeout time.Duration
}

// Create stores a new Event.
func (s Events) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.send("create", e, func(c *Client, ctx context.Context) ([]byte, error) {
		return c.rest.Post().Namespace(e.Namespace).Resource("events").MaxRetries(0).Body(e).Do(ctx).Raw()
	})
}

// Update replaces an Event.
func (s Events) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.send("update", e, func(c *Client, ctx context.Context) ([]byte, error) {
		return c.rest.Put().Namespace(e.Namespace).Resource("events").Name(e.Name).MaxRetries(0).Body(e).Do(ctx).Raw()
	})
}

// Patch changes an Event by a strategic merge patch.
func (s Events) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.send("patch", e, func(c *Client, ctx context.Context) ([]byte, error) {
		return c.rest.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).MaxRetries(0).Body(data).Do(ctx).Raw()
	})
}

// send returns errors as the API server's client gives them, since a recorder asks for their
// type.
func (s Events) send(op string, e *corev1.Event, do func(*Client, context.Context) ([]byte, error)) (*corev1.Event, error) {
	if e.Namespace == "" {
		// The API server would take the path for another one.
		return nil, &Error{op, "events " + printable(e.Name, 80), errors.New("an Event needs a namespace")}
	}
	ctx, cancel := context.WithTimeout(quiet(context.Background()), cmp.Or(s.Timeout, DefaultTimeout))
	defer cancel()
	body, err := do(s.Client, ctx)
	if err != nil {
		return nil, err
	}
	return decodeAs[*corev1.Event](s.Client.decode, body)
}
