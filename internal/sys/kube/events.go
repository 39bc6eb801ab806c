package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

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

// Event is a core/v1 Event as far as we fill one in.
type Event struct {
	// Namespace and Name are of the Event itself.
	Namespace, Name string
	Object          Object
	Warning         bool // else Normal
	Reason, Message string
	Count           int
	First, Last     time.Time
	// Host is the node that tells it.
	Host string
}

// Object is what an Event is about: a Node, or a Pod.
type Object struct{ Kind, Namespace, Name, UID string }

// CreateEvent stores a new Event.
func (c *Client) CreateEvent(ctx context.Context, e Event) error {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	body := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: e.Object.Kind, Namespace: e.Object.Namespace, Name: e.Object.Name, UID: types.UID(e.Object.UID),
		},
		Type: kind, Reason: e.Reason, Message: e.Message, Count: int32(min(e.Count, math.MaxInt32)),
		FirstTimestamp: metav1.NewTime(e.First), LastTimestamp: metav1.NewTime(e.Last),
		Source: corev1.EventSource{Component: "holdfast", Host: e.Host}, ReportingController: "holdfast.dev/agent", ReportingInstance: e.Host,
	}
	return c.send(ctx, "create", e, c.rest.Post().Namespace(e.Namespace).Resource("events").Body(body))
}

// PatchEvent sets Count, Message and Last of an Event that is there; fs.ErrNotExist if it is
// not.
func (c *Client) PatchEvent(ctx context.Context, e Event) error {
	patch, err := json.Marshal(map[string]any{"count": e.Count, "message": e.Message, "lastTimestamp": metav1.NewTime(e.Last)})
	if err != nil {
		return err
	}
	return c.send(ctx, "patch", e, c.rest.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch))
}

func (c *Client) send(ctx context.Context, op string, e Event, r *rest.Request) error {
	err := error(nil)
	if e.Namespace == "" || e.Name == "" {
		err = errors.New("an Event needs a namespace and a name") // or the path is that of others
	} else if _, err = r.MaxRetries(0).Do(quiet(ctx)).Raw(); apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return &Error{op, "events " + printable(e.Namespace+"/"+e.Name, 120), err}
	}
	return nil
}
