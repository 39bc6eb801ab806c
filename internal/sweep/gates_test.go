package sweep_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// What was alive at the last moment is remembered so: its next absence begins a new grace.
func TestAliveAtTheLastMomentIsRemembered(t *testing.T) {
	for _, alive := range []bool{true, false} {
		n := newNode(t)
		path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
		e := n.engine()
		a, p := n.due(e)
		if alive {
			n.live[id(1)] = true
		}
		reap(t, n, e, a, p)
		i := -1
		for k, s := range n.memory {
			if s.Path == path {
				i = k
			}
		}
		if i < 0 || (n.memory[i].Absent.Boot == "") != alive {
			t.Errorf("alive %v: remembered as %+v", alive, n.memory)
		}
	}
}

// An address that could not be moved after all has its cache file back, since that is
// what DEL and the next try need.
func TestAddressThatStaysHasItsCacheFileBack(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	c := n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
	e := n.engine()
	a, p := n.due(e)
	removed := false
	n.at = func(op string) error {
		if op == "move pods" {
			removed = !exists(c)
			return errors.New("EROFS")
		}
		return nil
	}
	r := reap(t, n, e, a, p)
	if !removed || !exists(path) || !exists(c) || len(r.Released) > 0 {
		t.Errorf("cache file removed %v, and there %v; address there %v; %v", removed, exists(c), exists(path), outcomes(r))
	}
}

// The same when it was a crash that kept the address.
func TestSettledAddressHasItsCacheFileBack(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	c := n.result("pods", id(1), "eth0", "", 0, "10.1.0.2")
	n.open(path, false)
	if exists(c) || !exists(path) {
		t.Fatalf("cache file there %v, address there %v", exists(c), exists(path))
	}
	if _, err := n.engine().Settle(t.Context(), everywhere); err != nil || !exists(c) || !exists(path) {
		t.Errorf("cache file there %v, address there %v, %v", exists(c), exists(path), err)
	}
}

// Nobody knows what a person wanted kept: nothing goes, whatever else says so.
func TestNothingGoesWhileHoldsAreUnread(t *testing.T) {
	n := newNode(t)
	path := n.reserve("pods", "10.1.0.2", id(1), "eth0")
	e := n.engine()
	a, p := n.due(e)
	e.Holds = unreadHolds{e.Holds.(holdTap)}
	r, err := e.Reap(t.Context(), a, p)
	if err == nil || !strings.Contains(err.Error(), "holds") || !exists(path) || len(r.Released) > 0 {
		t.Errorf("%v, %v", outcomes(r), err)
	}
}

type unreadHolds struct{ holdTap }

func (unreadHolds) List() ([]verdict.Hold, error) { return nil, errors.New("EIO") }
