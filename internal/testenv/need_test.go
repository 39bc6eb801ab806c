package testenv

import (
	"errors"
	"testing"
)

func TestRequired(t *testing.T) {
	for _, tc := range []struct {
		list, capability string
		want             bool
	}{
		{"", Netns, false},
		{"netns", Netns, true},
		{"cri, netns ,podman", Netns, true},
		{"netns2", Netns, false},
		{"root", Netns, false},
	} {
		if got := required(tc.list, tc.capability); got != tc.want {
			t.Errorf("required(%q, %q) = %v", tc.list, tc.capability, got)
		}
	}
}

func TestCheckKnowsItsNames(t *testing.T) {
	if err := check("netsn"); !errors.Is(err, errUnknown) {
		t.Fatalf("a misspelt capability gave %v", err)
	}
	for _, c := range []string{Root, Netns, Mount, PIDNS, CRI, Podman, IPTables} {
		err := check(c)
		if errors.Is(err, errUnknown) {
			t.Errorf("%s is unknown", c)
		}
		t.Logf("%s: %v", c, err)
	}
}
