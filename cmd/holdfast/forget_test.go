package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/sys/state"
)

func TestForgetRuntime(t *testing.T) {
	const one, two = "unix:///run/one.sock", "unix:///run/two.sock"
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
		left []string
	}{
		{"no argument lists", nil, exitOK, "", []string{one, two}},
		{"one", []string{one}, exitOK, "no longer waited for", []string{two}},
		{"by its path", []string{"/run//two.sock"}, exitOK, two, []string{one}},
		{"both", []string{one, two}, exitOK, "", nil},
		{"an unknown one changes nothing", []string{one, "unix:///run/three.sock"}, exitFailed, "known are " + one, []string{one, two}},
		{"no endpoint at all", []string{"tcp://127.0.0.1:1"}, exitUsage, "", []string{one, two}},
		{"a document", []string{"-o", "json"}, exitOK, "", []string{one, two}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			st, err := state.Open(dir, state.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			if err := st.RememberRuntimes(one, two); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := invoke(t, append([]string{"forget-runtime", "--state-dir", dir}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.says) {
				t.Errorf("exit %d, want %d, saying %q: %s", code, c.code, c.says, stderr)
			}
			if len(c.args) == 0 && stdout != one+"\n"+two+"\n" {
				t.Errorf("listed %q", stdout)
			}
			left, err := st.KnownRuntimes()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.left, left); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestForgetRuntimeWithoutState(t *testing.T) {
	dir := t.TempDir() + "/none"
	if code, out, _ := invoke(t, "forget-runtime", "--state-dir", dir); code != exitOK || !strings.Contains(out, "no runtime has answered") {
		t.Errorf("exit %d, %q", code, out)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("listing made the state directory")
	}
}
