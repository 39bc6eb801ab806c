package cri

import (
	"testing"
	"time"
)

func TestRuntime(t *testing.T) {
	for _, v := range []Version{Debian, V2} {
		t.Run(string(v), func(t *testing.T) {
			began := time.Now()
			r := Start(t, v)
			t.Logf("started in %s", time.Since(began))
			began = time.Now()
			live := r.RunSandboxes(t, "live", 3)
			t.Logf("3 sandboxes in %s", time.Since(began))
			r.Ping(t, Addrs(live...)...)
			if got := r.Reservations(t, r.Network().Name); len(got) != 3 || got[live[0].IP] != live[0].ID {
				t.Errorf("reservations %v", got)
			}
			for id, ready := range r.Listed(t) {
				if !ready {
					t.Errorf("%s is not ready", id)
				}
			}
			r.RemoveSandbox(t, live[2].ID)
			if got := r.Reservations(t, r.Network().Name); len(got) != 2 {
				t.Errorf("reservations after one normal DEL: %v", got)
			}
			r.Restart(t)
			r.Ping(t, Addrs(live[:2]...)...)
			if got := r.Listed(t); len(got) != 2 {
				t.Errorf("after a restart over its root: %v", got)
			}
		})
	}
}

func TestPodman(t *testing.T) {
	r := Start(t, Debian)
	p := StartPodman(t, r)
	s := r.RunSandbox(t, Pod{Name: "beside"})
	a, b := p.Run(t, "a"), p.Run(t, "b")
	r.Ping(t, s.IP, a.IP, b.IP)
	if got := r.Reservations(t, r.Network().Name); got[a.IP] != a.ID || got[s.IP] != s.ID || len(got) != 3 {
		t.Errorf("reservations %v", got)
	}
	p.Kill(t, b)
	p.DropNetns(t, b)
	if got := r.Reservations(t, r.Network().Name); got[b.IP] != b.ID {
		t.Errorf("podman's container was killed; its reservation is gone: %v", got)
	}
	r.Ping(t, s.IP, a.IP)
	r.Gone(t, b.IP)
}

// A pinger that cannot fail proves nothing.
func TestKeepPingingNotices(t *testing.T) {
	r := Start(t, Debian)
	s := r.RunSandbox(t, Pod{Name: "mortal"})
	recorder := &failures{TB: t}
	stop := r.KeepPinging(recorder, s.IP)
	r.KillSandbox(t, s)
	r.DropNetns(t, s)
	r.Gone(t, s.IP)
	time.Sleep(4 * time.Second) // three echoes of a second each
	stop()
	if recorder.count != 1 {
		t.Errorf("a sandbox that died was noticed %d times, want once", recorder.count)
	}
}

// failures counts errors instead of failing.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Errorf(string, ...any) { f.count++ }
