package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// DefaultTimeout bounds one Ask when Config.Timeout is 0.
const DefaultTimeout = 10 * time.Second

// identityFor is how long it is believed that the Node object is this machine's: a node is
// renamed by a restart of its kubelet under another name, whose Pods are then another list.
const identityFor = 10 * time.Minute

// Config says who asks about whom.
type Config struct {
	Client *Client
	// Node is the name of the Node object of this machine.
	Node string
	// Clock reads the clocks of this machine; its boot ID is what the Node object must carry.
	Clock   func() claim.Instant
	Timeout time.Duration
	// Rand gives numbers in [0, 1) that keep the nodes of a cluster apart; nil: 0.5 always.
	Rand func() float64
}

// Witness asks the API server for the Pods of this node. Safe for concurrent use; one
// question is under way at a time.
type Witness struct {
	c    Config
	slot chan struct{} // held by the question under way

	mu sync.Mutex // guards the rest
	// identified is when the Node object was last seen to be this machine's.
	identified claim.Instant
	version    string // of the last list
	// whole is when lists from quorum were last found to be what serves best here.
	whole claim.Instant
	brake brake
}

// New is the witness; it asks nothing yet.
func New(c Config) *Witness {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Rand == nil {
		c.Rand = func() float64 { return 0.5 }
	}
	w := &Witness{c: c, slot: make(chan struct{}, 1)}
	w.slot <- struct{}{}
	return w
}

// Name returns claim.WitnessKube.
func (w *Witness) Name() string { return claim.WitnessKube }

// Ask asks for the Pods of this node. It returns within Config.Timeout and a little, whatever
// the API server, the network or a credential plugin of the kubeconfig do. The testimony is
// complete or silent (see the package comment), never none.
func (w *Witness) Ask(ctx context.Context) claim.Testimony {
	t := claim.Testimony{Witness: claim.WitnessKube, State: claim.StateSilent, Asked: w.c.Clock()}
	facts, err := w.inTime(ctx, t.Asked)
	if took, ok := w.c.Clock().Since(t.Asked); ok {
		t.Took = took
	}
	if err != nil {
		t.Detail = printable(err.Error(), 600)
		return t
	}
	t.State, t.Kube = claim.StateComplete, facts
	t.Detail = fmt.Sprintf("node %s: %d Pods", printable(w.c.Node, 80), len(facts.Pods))
	return t
}

// inTime is ask that ends in time; what still hangs then ends on its own.
func (w *Witness) inTime(ctx context.Context, now claim.Instant) (*claim.KubeFacts, error) {
	if w.c.Node == "" || strings.ContainsAny(w.c.Node, ",=/\\!") || !sane(w.c.Node) {
		return nil, fmt.Errorf("%s cannot be the name of a node", printable(w.c.Node, 80))
	}
	if now.Boot == "" {
		return nil, errors.New("the boot ID could not be read, so no Node object can be known for this machine's")
	}
	asker := ctx
	ctx, cancel := context.WithTimeout(ctx, w.c.Timeout)
	defer cancel()
	late := func() error { return &Error{"list", "pods", ctx.Err()} }
	select {
	case <-w.slot:
	case <-ctx.Done():
		return nil, late()
	}
	type answer struct {
		facts *claim.KubeFacts
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		facts, err := w.braked(ctx, asker, now)
		w.slot <- struct{}{}
		got <- answer{facts, err}
	}()
	select {
	case a := <-got:
		return a.facts, a.err
	case <-ctx.Done():
		return nil, late()
	}
}

func (w *Witness) ask(ctx context.Context, now claim.Instant) (*claim.KubeFacts, error) {
	if !w.isKnown(now) {
		if err := w.identify(ctx, now, false); err != nil {
			return nil, err
		}
	}
	list, err := w.list(ctx, now)
	if err != nil {
		return nil, err
	}
	facts, err := podsOf(w.c.Node, list)
	if err != nil {
		return nil, &Error{"list", "pods", err}
	}
	w.mu.Lock()
	before := w.version
	w.version = list.ResourceVersion
	w.mu.Unlock()
	// An etcd that was restored from a copy is believed the next time.
	if older(list.ResourceVersion, before) {
		return nil, &Error{"list", "pods", fmt.Errorf("the answer is of resourceVersion %s, older than the %s of the one before", list.ResourceVersion, before)}
	}
	if len(facts.Pods) == 0 {
		// Nothing in it says whose it is.
		if err := w.identify(ctx, now, true); err != nil {
			return nil, err
		}
	}
	return facts, nil
}

// list asks for the Pods as they are now or will be: how far the history has come, from quorum,
// and the Pods not older than that. So the API server reads neither etcd nor its memory as a
// whole, of whatever age it is.
func (w *Witness) list(ctx context.Context, now claim.Instant) (*corev1.PodList, error) {
	w.mu.Lock()
	since, ok := now.Since(w.whole)
	w.mu.Unlock()
	known := ok && since < wholeFor
	if !known {
		revision, err := w.c.Client.revision(ctx)
		if err != nil {
			return nil, err
		}
		list, err := w.c.Client.listPods(ctx, w.c.Node, revision)
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			return list, err
		}
	}
	// Its memory knows of no write of a Pod since, and an old etcd does not tell it that there
	// was none. So the Pods of all nodes are read, and if they are many, for a few nodes only.
	if !known {
		n, err := w.c.Client.countPods(ctx)
		if err != nil {
			return nil, err
		}
		if n > wholePods && w.c.Rand() >= float64(wholePods)/float64(n) {
			return nil, &Error{"list", "pods", fmt.Errorf("no Pod was written for some seconds, so the API server cannot tell how new its memory is (Kubernetes before 1.31, or etcd before 3.4.31 and 3.5.13); all %d Pods of the cluster are read now and then only", n)}
		}
		if n <= wholePods {
			w.mu.Lock()
			w.whole = now
			w.mu.Unlock()
		}
	}
	return w.c.Client.listPods(ctx, w.c.Node, "")
}

// A list from quorum is asked for where the other waited in vain, and for wholeFor at once, if
// the cluster has at most wholePods Pods. Of more, it is asked for by chance, so that so many
// Pods are read for each question, however large the cluster.
const (
	wholeFor  = 10 * time.Minute
	wholePods = 1000
)

func (w *Witness) isKnown(now claim.Instant) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := now.Since(w.identified)
	return ok && d < identityFor
}

// identify checks that the Node object is this machine's, by the boot ID that its kubelet
// wrote.
func (w *Witness) identify(ctx context.Context, now claim.Instant, fresh bool) error {
	w.mu.Lock()
	w.identified = claim.Instant{}
	w.mu.Unlock()
	n, err := w.c.Client.getNode(ctx, w.c.Node, fresh)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: was the node renamed or deleted? name it with --node-name", err)
	}
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(n.Status.NodeInfo.BootID); got != now.Boot {
		return fmt.Errorf("the Node %s is not of this machine and boot: it has the boot ID %s, and here it is %s; was the node renamed, or has its kubelet not reported yet?",
			printable(w.c.Node, 80), printable(got, 80), now.Boot)
	}
	w.mu.Lock()
	w.identified = now
	w.mu.Unlock()
	return nil
}
