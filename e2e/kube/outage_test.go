package kube

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-cni/holdfast/internal/journal"
	room "github.com/holdfast-cni/holdfast/internal/testenv/kube"
)

// within shortens what make e2e-long does for minutes.
func within(short, long time.Duration) time.Duration {
	if *longFlag {
		return long
	}
	return short
}

// plant reserves an address for a container that never was, as an ADD leaves it whose sandbox
// was forgotten (case L9). It is free before.
func (n *node) plant(t *testing.T, a netip.Addr) map[netip.Addr]string {
	t.Helper()
	var id [32]byte
	_, _ = rand.Read(id[:])
	path := filepath.Join(n.Runtime.DataDir(), n.Runtime.Network().Name, a.String())
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = f.WriteString(hex.EncodeToString(id[:]) + "\r\neth0")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return map[netip.Addr]string{a: hex.EncodeToString(id[:])}
}

// high is an address that host-local comes to last.
func (n *node) high(i int) netip.Addr {
	a := n.subnet().Masked().Addr().As4()
	a[3] = byte(250 - i)
	return netip.AddrFrom4(a)
}

// The API server says nothing, in one way after another, and never says anything between:
// nothing in use is released, and the leak stays, since the API server is required. When it is
// back, the leak goes.
func apiSilent(t *testing.T, n *node) {
	pods := n.run(t, "a-"+n.Name, "b-"+n.Name)
	live := n.of(t, pods...)
	binding := n.revoke(t)
	dead := n.plant(t, n.high(0))
	held := func() error { return errors.Join(n.held(t, live), n.held(t, dead)) }
	long := within(grace+2*interval, 2*time.Minute)

	stays(t, long, "the account has no right any more", held)
	n.API.Down(t)
	n.grant(t, binding)
	stays(t, long, "the API server refuses connections", held)
	slow := room.All(room.NotFromKubelet, room.Reads("pods"))
	n.API.Fault(room.Delayed(time.Minute, slow))
	n.API.Up(t)
	stays(t, long, "the API server answers the agent after a minute", held)
	n.API.Fault(room.Truncating(64, slow))
	stays(t, grace, "the API server's answers are cut off", held)
	n.API.Fault(room.Failing(503, slow))
	stays(t, grace, "the API server is overloaded", held)
	if code, text, err := n.get(t.Context(), "/healthz"); err != nil || code != 200 {
		t.Errorf("healthz: %d %s, %v", code, text, err)
	}
	n.API.Fault(nil)
	n.settle(t, reclaimed, "the API server is back")
	n.wasReleased(t, dead)
	n.neverReleased(t, live)
	if err := n.held(t, live); err != nil {
		t.Error(err)
	}
	n.remove(t, pods...)
	n.settle(t, soon, "all deleted")
}

func (n *node) revoke(t *testing.T) *rbacv1.ClusterRoleBinding {
	t.Helper()
	bindings := n.s.Admin.RbacV1().ClusterRoleBindings()
	b, err := bindings.Get(t.Context(), "holdfast-agent-"+n.Name, getOptions())
	if err == nil {
		err = bindings.Delete(t.Context(), b.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (n *node) grant(t *testing.T, b *rbacv1.ClusterRoleBinding) {
	t.Helper()
	b.ResourceVersion, b.UID = "", ""
	if _, err := n.s.Admin.RbacV1().ClusterRoleBindings().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The API server's lists stand still: a Pod that came since is not in them, one that went still is.
// The first is not touched; the address of the second is kept, whoever has it, until lists move on.
func apiStale(t *testing.T, n *node) {
	pods := n.run(t, "old-"+n.Name, "went-"+n.Name)
	went := room.PodIP(t, pods[1])
	live := n.of(t, pods[0])
	// The first list is asked for when something is dead.
	n.API.Fault(room.Stale(room.All(room.NotFromKubelet, room.Reads("pods"))))
	first := n.plant(t, n.high(1))
	until(t, reclaimed, "a list that is not yet old is believed", func() error {
		if n.held(t, first) == nil {
			return errors.New("the leak is there")
		}
		return nil
	})
	n.remove(t, pods[1])
	until(t, soon, "its address is free", func() error {
		if id, ok := n.reservations(t)[went]; ok {
			return fmt.Errorf("reserved for %s", id)
		}
		return nil
	})
	dead := n.plant(t, went)
	young := n.run(t, "young-"+n.Name)
	live[room.PodIP(t, young[0])] = n.of(t, young[0])[room.PodIP(t, young[0])]
	stays(t, grace+2*interval, "the lists stand still", func() error { return errors.Join(n.held(t, live), n.held(t, dead)) })
	n.API.Fault(nil)
	n.settle(t, reclaimed, "the lists move on")
	n.wasReleased(t, dead)
	n.neverReleased(t, live)
	n.remove(t, pods[0], young[0])
	n.settle(t, soon, "all deleted")
}

// With kube.required: false a node goes on without the API server: what is dead goes, what lives
// stays.
func apiNotRequired(t *testing.T, n *node) {
	pods := n.run(t, "a-"+n.Name)
	live := n.of(t, pods...)
	n.config["kube"] = object{"required": false}
	if out, err := n.s.Kubectl(t, "apply", "-f", n.render(t)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.restart(t) // a new Pod has the new configuration at once
	n.API.Down(t)
	dead := n.plant(t, n.high(2))
	until(t, reclaimed+soon, "the leak goes without the API server", func() error {
		if n.held(t, dead) == nil {
			return errors.New("the leak is there")
		}
		return n.held(t, live)
	})
	n.wasReleased(t, dead)
	n.neverReleased(t, live)
	n.API.Up(t)
	delete(n.config, "kube")
	if out, err := n.s.Kubectl(t, "apply", "-f", n.render(t)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.restart(t)
	n.remove(t, pods...)
	n.settle(t, soon, "all deleted")
}

// containerd stands still, and then is dead: nothing is released, and when it is back all is well.
func containerdStopped(t *testing.T, n *node) {
	pods := n.run(t, "a-"+n.Name, "b-"+n.Name)
	live := n.of(t, pods...)
	dead := map[netip.Addr]string{}
	held := func() error { return errors.Join(n.held(t, live), n.held(t, dead)) }
	n.Runtime.Freeze(t)
	dead = n.plant(t, n.high(3))
	stays(t, within(2*time.Minute, 10*time.Minute), "containerd stands still", held)
	n.Runtime.Thaw(t)
	n.settle(t, reclaimed, "containerd goes on")
	n.wasReleased(t, dead)

	n.Runtime.Kill(t)
	dead = n.plant(t, n.high(4))
	stays(t, within(grace+2*interval, 2*time.Minute), "containerd is dead", held)
	n.Runtime.Restart(t)
	n.settle(t, reclaimed, "containerd is back")
	n.wasReleased(t, dead)
	n.neverReleased(t, live)
	if err := n.held(t, live); err != nil {
		t.Error(err)
	}
	n.remove(t, pods...)
	n.settle(t, soon, "all deleted")
}

// The network's directory is emptied under living Pods (case F12): they get their reservations
// back, and the next ADD finds none of their addresses free.
func directoryWiped(t *testing.T, n *node) {
	pods := n.run(t, "a-"+n.Name, "b-"+n.Name, "c-"+n.Name)
	live := n.of(t, pods...)
	dir := filepath.Join(n.Runtime.DataDir(), n.Runtime.Network().Name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	until(t, reclaimed, "the living have their reservations back", func() error { return n.held(t, live) })
	adopted := map[netip.Addr]string{}
	for _, e := range n.entries(t) {
		if e.State == journal.StateAdopted {
			adopted[e.Release.Addr] = e.Release.Owner.ID
		}
	}
	if diff := cmp.Diff(live, adopted, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("adopted by the journal (-the living +adopted):\n%s", diff)
	}
	young := n.run(t, "d-"+n.Name, "e-"+n.Name, "f-"+n.Name)
	for _, p := range young {
		if _, ok := live[room.PodIP(t, p)]; ok {
			t.Errorf("Pod %s has the address of a living one, %s", p.Name, p.Status.PodIP)
		}
	}
	n.settle(t, soon, "new Pods run")
	n.neverReleased(t, live)
	n.remove(t, append(pods, young...)...)
	n.settle(t, soon, "all deleted")
}
