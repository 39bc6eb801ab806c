package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
