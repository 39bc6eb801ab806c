package testenv

import (
	"errors"
	"os"
	"path/filepath"
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
	for _, c := range []string{Root, Netns, Mount, PIDNS, CRI, Kube, Podman, IPTables, NFT, IFB, Cgroup, Overlay, Immutable, Nobody, Long} {
		err := check(c)
		if errors.Is(err, errUnknown) {
			t.Errorf("%s is unknown", c)
		}
		t.Logf("%s: %v", c, err)
	}
}

// TestAsNobody: the body runs without root, whoever started the test, and in a
// temporary directory that it can use.
func TestAsNobody(t *testing.T) {
	t.Run("a name with a/slash (and more)", func(t *testing.T) {
		if !AsNobody(t) {
			return
		}
		if uid := os.Geteuid(); uid == 0 {
			t.Fatal("still root")
		}
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := os.ReadFile(file); !errors.Is(err, os.ErrPermission) {
			t.Errorf("read a file of mode 0: %v", err)
		}
	})
}

func TestOnlyTest(t *testing.T) {
	if got, want := onlyTest("TestA/b.c/d"), `^TestA$/^b\.c$/^d$`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
