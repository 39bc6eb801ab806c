package hostlocal

import (
	"errors"
	"testing"
)

// What the caller knew is too old when the lock is had: nothing is moved, and the lock is
// given back.
func TestReleaseStale(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		b := newBench(t, t.TempDir())
		m := b.moves["10.0.0.2"]
		out, err := b.q.Release(t.Context(), b.store, []Move{m}, ReleaseOptions{Fresh: func() bool { return fresh }})
		if fresh {
			if err != nil || out[0].State != Moved {
				t.Errorf("%v, %v", out, err)
			}
			continue
		}
		if !errors.Is(err, ErrStale) || out[0].State != Failed || !errors.Is(out[0].Err, ErrStale) {
			t.Errorf("%v, %v", out, err)
		}
		b.wantPlace(t, m, true, false)
		if o, err := b.one(t, m); err != nil || o.State != Moved {
			t.Errorf("afterwards: %v, %v", o, err)
		}
	}
}
