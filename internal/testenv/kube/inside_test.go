package kube

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// dialFrom connects from the network namespace of a process.
func dialFrom(proc string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		ns, err := os.Open(filepath.Join(proc, "ns/net"))
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		err = testenv.OnDoomedThread(func() error {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return os.NewSyscallError("setns", err)
			}
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}

func whoAmI(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	r, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("who am I: %v", err)
	}
	return r.Status.UserInfo.Username
}
