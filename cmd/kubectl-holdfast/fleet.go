package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	selector    = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=agent"
	defaultPort = 9617
	// maxAnswer bounds one node's answer, in bytes: 65,536 reservations take some 60 MB.
	maxAnswer = 256 << 20
)

// fleet is the agents of a cluster.
type fleet struct {
	api     rest.Interface
	forward *forwarder
	timeout time.Duration // of one node
	atOnce  int
}

// newFleet speaks to the API server that a configuration names.
func newFleet(config *rest.Config, namespace string) (*fleet, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &corev1.SchemeGroupVersion, "/api"
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.UserAgent = "kubectl-holdfast/" + version
	api, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	pods := api.Get().Namespace(namespace).Resource("pods").URL()
	return &fleet{api: api, forward: &forwarder{config: c, pods: pods, namespace: namespace}}, nil
}

// agent is one node's agent.
type agent struct {
	node, pod string
	port      int32
	// problem says why it cannot be asked.
	problem string
}

// agents lists the agents, one for each node, by the node's name.
func (f *fleet) agents(ctx context.Context) ([]agent, error) {
	best := map[string]*corev1.Pod{}
	opts := metav1.ListOptions{LabelSelector: selector, Limit: 500}
	for {
		list := &corev1.PodList{}
		err := f.api.Get().Namespace(f.forward.namespace).Resource("pods").
			Param("labelSelector", opts.LabelSelector).Param("limit", strconv.FormatInt(opts.Limit, 10)).Param("continue", opts.Continue).
			Do(ctx).Into(list)
		if err != nil {
			return nil, fmt.Errorf("list the agents in namespace %s: %w", f.forward.namespace, err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Spec.NodeName != "" && (best[p.Spec.NodeName] == nil || rank(p) > rank(best[p.Spec.NodeName])) {
				best[p.Spec.NodeName] = p
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			break
		}
	}
	out := []agent{}
	for node, p := range best {
		a := agent{node: node, pod: p.Name, port: portOf(p)}
		switch {
		case p.DeletionTimestamp != nil:
			a.problem = "its agent is being deleted"
		case p.Status.Phase != corev1.PodRunning:
			a.problem = "its agent is " + string(p.Status.Phase)
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b agent) int { return cmp.Compare(a.node, b.node) })
	return out, nil
}

// rank prefers who runs and stays: in an upgrade a node has two for a moment.
func rank(p *corev1.Pod) int {
	n := 0
	if p.Status.Phase == corev1.PodRunning {
		n++
	}
	if p.DeletionTimestamp == nil {
		n += 2
	}
	return n
}

// portOf is the port that the probes ask.
func portOf(p *corev1.Pod) int32 {
	for _, c := range p.Spec.Containers {
		if c.Name != "agent" {
			continue
		}
		for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
			if probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Port.IntVal > 0 {
				return probe.HTTPGet.Port.IntVal
			}
		}
	}
	return defaultPort
}

// refusal is an answer of an agent that is none.
type refusal struct {
	code int
	text string
}

func (e *refusal) Error() string { return fmt.Sprintf("the agent answers %d: %s", e.code, e.text) }

// ask gets one document of one agent.
func (f *fleet) ask(ctx context.Context, a agent, path string, into any) error {
	if a.problem != "" {
		return errors.New(a.problem)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("no answer within %s", f.timeout))
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return f.forward.dial(ctx, a.pod, a.port) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(int(a.port))+"/api/v1alpha1/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return told(ctx, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return told(ctx, err)
	case len(body) > maxAnswer:
		return fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	case resp.StatusCode != http.StatusOK:
		var said struct{ Error string }
		if json.Unmarshal(body, &said) != nil || said.Error == "" {
			said.Error = string(body[:min(len(body), 200)])
		}
		return &refusal{resp.StatusCode, said.Error}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer is no document: %w", err)
	}
	return nil
}

// told prefers the reason for which a request was given up.
func told(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	// Nobody asked for the URL that it names.
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// each calls do for every agent, some at once.
func (f *fleet) each(agents []agent, do func(i int, a agent)) {
	slots := make(chan struct{}, f.atOnce)
	var wg sync.WaitGroup
	for i, a := range agents {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i, a)
		})
	}
	wg.Wait()
}
