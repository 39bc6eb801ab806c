package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/proc"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

const earlierBoot = "11111111-2222-4333-8444-555555555555"

// history is what the state directory knows once the next boot is on.
func (s *site) history(next string) []string {
	s.t.Helper()
	d, err := state.Open(s.path("state"), state.Options{ReadOnly: true})
	if err != nil {
		return nil
	}
	defer d.Close()
	facts, err := d.ObserveBoot(next)
	if err != nil {
		s.t.Fatal(err)
	}
	return facts.Past
}

// The first call of a boot notes it, ADD or DEL, so that it is known as past in the next one
// though holdfast itself never ran; the boot before it is past then.
func TestBootIsNoted(t *testing.T) {
	id, err := boot.ReadID("/proc")
	if err != nil || !proc.InInitialPIDNS("/proc") {
		t.Logf("not in the node's own PID namespace (%v), where no boot is noted", err)
		return
	}
	const next = "66666666-7777-4888-8999-aaaaaaaaaaaa"
	for _, x := range []struct {
		name     string
		commands []string
		set      func(s *site)
		want     []string
	}{
		{name: "ADD", commands: []string{"ADD"}, want: []string{id.Value}},
		{name: "DEL", commands: []string{"DEL"}, want: []string{id.Value}},
		{name: "DEL, then ADD", commands: []string{"DEL", "ADD"}, want: []string{id.Value}},
		{name: "ADD of a full network", set: func(s *site) { s.fill(0); s.heal["disabled"] = true }, commands: []string{"ADD"}, want: []string{id.Value}},
		{name: "VERSION", commands: []string{"VERSION"}},
		{name: "after an earlier boot", commands: []string{"ADD"}, set: func(s *site) {
			d, err := state.Open(s.path("state"), state.Options{})
			if err == nil {
				_, err = d.ObserveBoot(earlierBoot)
			}
			if err := errors.Join(err, d.Close()); err != nil {
				s.t.Fatal(err)
			}
		}, want: []string{earlierBoot, id.Value}},
		{name: "the state directory is a file", commands: []string{"ADD"}, set: func(s *site) { s.write("state", "") }},
		{name: "others may write to it", commands: []string{"ADD"}, set: func(s *site) {
			if err := errors.Join(os.Mkdir(s.path("state"), 0o777), os.Chmod(s.path("state"), 0o777)); err != nil {
				s.t.Fatal(err)
			}
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newSite(t)
			if x.set != nil {
				x.set(s)
			}
			for _, c := range x.commands {
				r := s.do(c, "pod-1", nil)
				if r.msg != "" && !strings.Contains(r.msg, "healing is switched off") || strings.Contains(r.stderr, "state") {
					t.Errorf("%s: %q, stderr %q", c, r.msg, r.stderr)
				}
			}
			if got := s.history(next); !slices.Equal(got, x.want) {
				t.Errorf("past in the next boot are %q, want %q", got, x.want)
			}
		})
	}
}

// It is written once in a boot, not by each ADD.
func TestBootIsNotedOnce(t *testing.T) {
	s := newSite(t)
	for _, id := range []string{"a", "b"} {
		if r := s.do("ADD", id, nil); r.addr == "" {
			t.Fatal(r.msg)
		}
		if err := os.RemoveAll(s.path("state")); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.do("DEL", "a", nil); r.msg != "" {
		t.Fatal(r.msg)
	}
	if _, err := os.Stat(s.path("state")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was opened again: %v", err)
	}
}

// A nested PID namespace may show a boot of its own (case F23): nothing is noted.
func TestNestedBootIsNotNoted(t *testing.T) {
	testenv.Need(t, testenv.PIDNS)
	s := newSite(t)
	s.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if r := s.do("ADD", "pod-1", nil); r.addr == "" {
		t.Fatal(r.msg)
	}
	if _, err := os.Stat(s.path("state")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was opened: %v", err)
	}
}

func TestStateDirIsAbsolute(t *testing.T) {
	s := newSite(t)
	s.ipam["stateDir"] = "state"
	if r := s.do("ADD", "pod-1", nil); r.code != 7 || !strings.Contains(r.msg, `ipam.stateDir is "state"; allowed is an absolute path`) {
		t.Errorf("code %d %q", r.code, r.msg)
	}
}
