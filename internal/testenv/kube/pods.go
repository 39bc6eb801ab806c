package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

// podsWithin is how long a Pod may take to run or to go; a second or two when quiet.
const podsWithin = 2 * time.Minute

// PausePod is a Pod in the namespace "default" with one container that does nothing, and
// that ends at once on SIGTERM. With a node's name it needs no scheduler.
func PausePod(name, node string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "pause", Image: cri.PauseImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
}

// AwaitNamespace waits until Pods can be made in a namespace: until its default
// ServiceAccount and the certificate of the API server are there.
func (c *Cluster) AwaitNamespace(t testing.TB, namespace string) {
	t.Helper()
	until(t, podsWithin, "namespace "+namespace+" is furnished", func() error {
		_, err := c.Admin.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = c.Admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}

// CreatePod makes a Pod and does not wait for it.
func (c *Cluster) CreatePod(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	out, err := c.Admin.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create Pod %s: %v", pod.Name, err)
	}
	return out
}

// RunPod makes a Pod and waits until it runs.
func (c *Cluster) RunPod(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	c.CreatePod(t, pod)
	return c.WaitRunning(t, pod.Namespace, pod.Name)
}

// WaitRunning waits until all containers of a Pod are ready and it has an address.
func (c *Cluster) WaitRunning(t testing.TB, namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	until(t, podsWithin, "Pod "+name+" runs", func() (err error) {
		if pod, err = c.Admin.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return running(pod)
	})
	return pod
}

func running(pod *corev1.Pod) error {
	ready := false
	for _, cond := range pod.Status.Conditions {
		ready = ready || cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue
	}
	if pod.Status.Phase != corev1.PodRunning || !ready || pod.Status.PodIP == "" {
		return fmt.Errorf("phase %s, ready %t, address %q, containers %+v", pod.Status.Phase, ready, pod.Status.PodIP, pod.Status.ContainerStatuses)
	}
	return nil
}

// DeletePod deletes a Pod and does not wait. With force it is gone from the API at once,
// whatever its kubelet does.
func (c *Cluster) DeletePod(t testing.TB, namespace, name string, force bool) {
	t.Helper()
	var o metav1.DeleteOptions
	if force {
		o = *metav1.NewDeleteOptions(0)
	}
	if err := c.Admin.CoreV1().Pods(namespace).Delete(t.Context(), name, o); err != nil {
		t.Fatalf("delete Pod %s: %v", name, err)
	}
}

// WaitGone waits until the API knows no Pod of this name. Its sandbox may still be there,
// after a deletion by force.
func (c *Cluster) WaitGone(t testing.TB, namespace, name string) {
	t.Helper()
	until(t, podsWithin, "Pod "+name+" is gone", func() error {
		_, err := c.Admin.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// PodIP returns a Pod's first address, which it must have.
func PodIP(t testing.TB, pod *corev1.Pod) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		t.Fatalf("address of Pod %s: %v", pod.Name, err)
	}
	return a
}

// Token issues a token of a ServiceAccount by a TokenRequest. It is valid for an hour,
// and bound to nothing.
func (c *Cluster) Token(ctx context.Context, namespace, account string) (string, error) {
	tr, err := c.Admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, tokenRequest(3600), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return tr.Status.Token, nil
}
