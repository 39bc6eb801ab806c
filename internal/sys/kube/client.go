package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// maxBody bounds one answer, or one connection of a watch: a Pod has some 5 KiB, and at most
// 1.5 MiB (etcd's limit).
const maxBody = 64 << 20

const protobuf = "application/vnd.kubernetes.protobuf"

// Load reads how to reach the API server: from a kubeconfig file, or for "" from the service
// account of the Pod that this process is in. A token file is read again as it is rotated.
func Load(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// Client speaks to one API server, in protobuf, of Nodes, Pods and Events alone. Safe for
// concurrent use.
type Client struct {
	rest   *rest.RESTClient
	decode runtime.Decoder
	host   string
}

// NewClient does not connect. c is not changed.
func NewClient(c *rest.Config, userAgent string) (*Client, error) {
	codecs := newCodecs()
	c = rest.CopyConfig(c)
	c.UserAgent, c.APIPath = userAgent, "/api"
	c.GroupVersion = &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = codecs.WithoutConversion()
	c.ContentType, c.AcceptContentTypes = protobuf, protobuf+",application/json"
	c.QPS = -1 // one list for each sweep, and what the caller limits
	c.Timeout = 0
	c.WarningHandler = rest.NoWarnings{}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next} })
	r, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Client{rest: r, decode: codecs.UniversalDeserializer(), host: c.Host}, nil
}

// newCodecs knows the few types of core/v1 that are used here.
func newCodecs() serializer.CodecFactory {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.Pod{}, &corev1.PodList{}, &corev1.Event{}, &corev1.EventList{})
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	s.AddKnownTypes(metav1.SchemeGroupVersion, &metav1.PartialObjectMetadata{})
	metav1.AddToGroupVersion(s, metav1.SchemeGroupVersion)
	return serializer.NewCodecFactory(s)
}

// bounded ends an answer that is longer than any should be.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxBody}
	}
	return resp, err
}

var errTooLong = errors.New("the answer is longer than 64 MiB")

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// Error is a question that the API server did not answer.
type Error struct {
	Op     string // the RBAC verb
	Object string // the RBAC resource, with the name where one was asked for
	Err    error
}

// Error is fit to print: what a server wrote is cleaned and cut.
func (e *Error) Error() string {
	what := e.Op + " " + e.Object + ": "
	switch {
	case apierrors.IsUnauthorized(e.Err):
		return what + "the API server does not accept our token or certificate (401)"
	case apierrors.IsForbidden(e.Err):
		return what + "forbidden (403): our account lacks the RBAC rule for it"
	case apierrors.IsNotFound(e.Err):
		return what + "there is none (404)"
	case errors.Is(e.Err, context.DeadlineExceeded):
		return what + "no whole answer in time"
	case errors.Is(e.Err, context.Canceled):
		return what + "the question was cancelled"
	}
	return what + printable(e.Err.Error(), 300)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// getNode reads a Node object. fresh: from quorum, otherwise from what the API server has in
// memory.
func (c *Client) getNode(ctx context.Context, name string, fresh bool) (*corev1.Node, error) {
	r := c.rest.Get().Resource("nodes").Name(name).MaxRetries(0)
	if !fresh {
		r.Param("resourceVersion", "0")
	}
	n, err := ask[*corev1.Node](ctx, c, r)
	if err == nil && n.Name != name {
		err = fmt.Errorf("answered with the Node %s", printable(n.Name, 80))
	}
	if err != nil {
		return nil, &Error{"get", "nodes " + printable(name, 80), err}
	}
	return n, nil
}

// revision reads from quorum how far the history of the Pods has come, by a list of the one
// Pod of a name, which need not exist: a read of one key, whatever the API server is.
func (c *Client) revision(ctx context.Context) (string, error) {
	r := c.rest.Get().Namespace("default").Resource("pods").MaxRetries(0).Param("fieldSelector", "metadata.name=holdfast")
	list, err := ask[*corev1.PodList](ctx, c, r)
	if err == nil && (list.ResourceVersion == "" || list.ResourceVersion == "0") {
		err = errors.New("the answer has no resourceVersion, so it is no list")
	}
	if err != nil {
		return "", &Error{"list", "pods", err}
	}
	return list.ResourceVersion, nil
}

// listPods reads the Pods of a node, not older than a revision: from the API server's memory,
// which has them by node and waits some seconds to be that new. For a revision of "" it reads
// from quorum, for which an API server before 1.31, or with an etcd before 3.4.31 and 3.5.13,
// reads the Pods of the whole cluster. Without a limit, so that the answer is of one moment.
func (c *Client) listPods(ctx context.Context, node, revision string) (*corev1.PodList, error) {
	r := c.rest.Get().Resource("pods").MaxRetries(0).Param("fieldSelector", "spec.nodeName="+node)
	if revision != "" {
		r.Param("resourceVersion", revision).Param("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	list, err := ask[*corev1.PodList](ctx, c, r)
	if err == nil && older(list.ResourceVersion, revision) {
		err = fmt.Errorf("the answer is of resourceVersion %s, older than the %s that was asked for", printable(list.ResourceVersion, 40), printable(revision, 40))
	}
	if err != nil {
		return nil, &Error{"list", "pods", err}
	}
	return list, nil
}

// countPods counts the Pods of the cluster.
func (c *Client) countPods(ctx context.Context) (int64, error) {
	list, err := ask[*corev1.PodList](ctx, c, c.rest.Get().Resource("pods").MaxRetries(0).Param("limit", "1"))
	if err == nil && list.Continue != "" && list.RemainingItemCount == nil {
		err = errors.New("the answer is a part of the list, and does not say of how many")
	}
	if err != nil {
		return 0, &Error{"list", "pods", err}
	}
	n := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		n += *list.RemainingItemCount
	}
	return n, nil
}

// ask sends r and decodes a whole answer of type T; any other is an error.
func ask[T runtime.Object](ctx context.Context, c *Client, r *rest.Request) (T, error) {
	var none T
	answer := r.Do(quiet(ctx))
	body, _ := answer.Raw()
	if err := answer.Error(); err != nil { // what the Status in the body says, where there is one
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return none, err
	}
	return decodeAs[T](c.decode, body)
}

// quiet keeps client-go from writing to the terminal what is returned as an error anyway.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// decodeAs decodes one object, protobuf or JSON.
func decodeAs[T runtime.Object](d runtime.Decoder, body []byte) (T, error) {
	var none T
	obj, _, err := d.Decode(body, nil, nil)
	if err != nil {
		return none, fmt.Errorf("the answer cannot be decoded: %w", err)
	}
	got, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("the answer is a %s", strings.TrimPrefix(fmt.Sprintf("%T", obj), "*"))
	}
	return got, nil
}
