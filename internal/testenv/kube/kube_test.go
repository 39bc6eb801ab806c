package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

func TestControlPlane(t *testing.T) {
	began := time.Now()
	c := Start(t, Options{WithoutControllers: true})
	t.Logf("up in %s", time.Since(began))
	ns, err := c.Admin.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(ns.Items) == 0 {
		t.Errorf("%v, %v", ns, err)
	}
	c.APIServer.Kill(t)
	began = time.Now()
	c.APIServer.Start(t)
	t.Logf("up again in %s", time.Since(began))
}

func TestControllers(t *testing.T) {
	began := time.Now()
	Start(t, Options{})
	t.Logf("up in %s", time.Since(began))
}

func TestNode(t *testing.T) {
	c := Start(t, Options{})
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		began := time.Now()
		n := c.AddNode(t, NodeOptions{Containerd: v})
		t.Logf("%s with containerd %s in %s", n.Name, v, time.Since(began))
		began = time.Now()
		pod := c.RunPod(t, PausePod("pod-"+n.Name, n.Name))
		t.Logf("Pod in %s: %s", time.Since(began), pod.Status.PodIP)
		t.Log(n.Runtime.Reservations(t, n.Runtime.Network().Name))
	}
}
