package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

// A hold of a directory, a person's or an undo's, is one under each name by which that
// directory is listed, and of no other directory.
func TestHoldUnderAnotherName(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"data/pods", "other/pods"} {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("data"), at("link")); err != nil {
		t.Fatal(err)
	}
	st, err := state.Open(at("state"), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	now := claim.Instant{Boot: "22222222-2222-4333-8444-555555555555", Mono: 1}
	book := &holdBook{state: st, now: func() claim.Instant { return now }}
	a, b, c := netip.MustParseAddr("198.18.77.2"), netip.MustParseAddr("198.18.77.3"), netip.MustParseAddr("198.18.77.4")
	_, err = st.AddHolds(
		state.Hold{Store: at("data/pods"), Addr: a, By: state.ByPerson, At: now},
		state.Hold{Store: at("link/pods"), Addr: b, By: state.ByUndo, At: now, ReleaseID: "20261130-062137-1a2b3c.1"},
		state.Hold{Store: at("gone/pods"), Addr: c, By: state.ByPerson, At: now},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		listed string
		want   []netip.Addr
	}{
		{"data/pods", []netip.Addr{a, b}},
		{"link/pods", []netip.Addr{a, b}},
		{"other/pods", nil},
	} {
		book.listed([]claim.Store{{Dir: at(x.listed), Network: "pods"}})
		holds, err := book.List()
		if err != nil {
			t.Fatal(err)
		}
		var got []netip.Addr
		for _, h := range holds {
			if h.Store == at(x.listed) {
				got = append(got, h.Addr)
			}
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, x.want) {
			t.Errorf("listed as %s: held are %v, want %v", x.listed, got, x.want)
		}
	}
}

// So is a stop.
func TestStopUnderAnotherName(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"data/pods", "other/pods"} {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("data"), at("link")); err != nil {
		t.Fatal(err)
	}
	book := &holdBook{}
	book.listed([]claim.Store{{Dir: at("link/pods"), Network: "pods"}, {Dir: at("other/pods"), Network: "pods"}})
	n := &node{holds: book}
	n.stops = n.byEachName([]line.Stop{{Store: at("data/pods"), Why: "w"}, {Store: at("gone/pods"), Why: "w"}}, claim.Instant{})
	for name, want := range map[string]bool{"data/pods": true, "link/pods": true, "gone/pods": true, "other/pods": false} {
		if why := n.stopped(&claim.Resource{Kind: claim.KindReservation, Store: at(name)}); (why != "") != want {
			t.Errorf("%s: stopped %q, want %v", name, why, want)
		}
	}
}
