package ipam

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// audience is who has to pass a row.
type audience int

const (
	everyone audience = iota
	onlyUpstream
	onlyOurs
)

// row is one scene: a network and what happens in it.
type row struct {
	name    string
	config  config
	only    audience
	differs string // the name of the difference, if not for everyone
	steps   []step
}

func (r row) concerns(p Plugin) bool {
	return r.only == everyone || (r.only == onlyUpstream) == p.upstream()
}

func rows() []row {
	return slices.Concat(
		versionRows(), environmentRows(), configErrorRows(), rangeRows(), orderRows(), requestRows(),
		allOrNothingRows(), ownerRows(), releaseRows(), checkRows(), gcRows(), statusRows(), storeRows(), resultRows(),
	)
}

// TestContract runs every row against every program it concerns.
func TestContract(t *testing.T) {
	for _, p := range programs() {
		t.Run(p.Type, func(t *testing.T) {
			seen := map[string]bool{}
			for _, r := range rows() {
				if !r.concerns(p) {
					continue
				}
				if seen[r.name] {
					t.Errorf("two rows are called %q", r.name)
				}
				seen[r.name] = true
				t.Run(r.name, func(t *testing.T) {
					t.Parallel()
					s := newSite(t, p, r.config)
					for _, do := range r.steps {
						do(s)
					}
				})
			}
		})
	}
}

// TestParallelAdd: what is asked for at once is handed out once.
func TestParallelAdd(t *testing.T) {
	const n = 20
	for _, p := range programs() {
		t.Run(p.Type, func(t *testing.T) {
			s := newSite(t, p, config{ipam: `"ranges": [[{"subnet": "198.18.0.0/27"}], [{"subnet": "2001:db8::/120"}]]`})
			replies := make([]reply, n)
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					r := request{command: "ADD", id: "c" + string(rune('a'+i)), ifname: "eth0", netns: "/proc/0/ns/net", config: s.config}
					replies[i], errs[i] = p.run(t.Context(), r.call(p))
				})
			}
			wg.Wait()
			seen := map[string]bool{}
			for i, r := range replies {
				addresses, err := r.addresses()
				if errs[i] != nil || err != nil || len(addresses) != 2 {
					t.Fatalf("ADD %d: %v %v, %d addresses; %+v", i, errs[i], err, len(addresses), r)
				}
				for _, a := range addresses {
					if seen[a] {
						t.Errorf("%s was handed out twice", a)
					}
					seen[a] = true
				}
			}
		})
	}
}

// TestParallelSameOwner: of ADDs of one attachment at once, one succeeds.
func TestParallelSameOwner(t *testing.T) {
	const n = 8
	for _, p := range programs() {
		t.Run(p.Type, func(t *testing.T) {
			s := newSite(t, p, config{ipam: slash24})
			replies := make([]reply, n)
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					r := request{command: "ADD", id: "a", ifname: "eth0", netns: "/proc/0/ns/net", config: s.config}
					replies[i], errs[i] = p.run(t.Context(), r.call(p))
				})
			}
			wg.Wait()
			good := 0
			for i, r := range replies {
				if errs[i] != nil {
					t.Fatal(errs[i])
				}
				if r.exit == 0 {
					good++
				}
			}
			if got := len(snapshot(t, s.dir())); good != 1 || got != 3 { // lock, last_reserved_ip.0, the address
				t.Errorf("%d of %d succeeded, %d files; want 1 and 3", good, n, got)
			}
		})
	}
}

// TestLock: whoever changes the reservations waits for host-local's lock. Else an ADD
// could pass between another's look for a duplicate and its reservation.
func TestLock(t *testing.T) {
	const held = 300 * time.Millisecond
	for _, p := range programs() {
		for command, owner := range map[string]string{"ADD": "b", "DEL": "a"} {
			t.Run(p.Type+"/"+command, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, p, config{ipam: slash24})
				add("a")(s)
				f, err := os.Open(filepath.Join(s.dir(), "lock"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				unlock := time.AfterFunc(held, func() { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) })
				defer unlock.Stop()
				do(command, owner)(s)
				if took := time.Since(began); took < held {
					t.Errorf("%s was done after %v, with the lock held for %v", command, took, held)
				}
			})
		}
	}
}
