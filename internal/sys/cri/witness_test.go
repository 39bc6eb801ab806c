package cri_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
	"github.com/holdfast-cni/holdfast/internal/sys/cri/critest"
)

// short bounds an Ask that is expected to run into its bound. late is how much later
// it may come back on a busy machine.
const (
	short = 300 * time.Millisecond
	late  = 5 * time.Second
)

var (
	idA = strings.Repeat("a", 64)
	idB = strings.Repeat("b", 64)
)

func sandboxA() critest.Sandbox {
	return critest.Sandbox{
		ID: idA, Namespace: "default", Name: "web-0", UID: "uid-a", Created: 10,
		Netns: "/var/run/netns/cni-a", IPs: []string{"10.1.0.2", "fd00::2"},
	}
}

func sandboxB() critest.Sandbox {
	return critest.Sandbox{ID: idB, Namespace: "default", Name: "web-1", UID: "uid-b", Attempt: 2, NotReady: true, Created: 20, HostNetwork: true}
}

func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "cri") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	return d
}

func listen(t *testing.T, socket string, sandboxes ...critest.Sandbox) *critest.Server {
	t.Helper()
	s, err := critest.Listen(socket, sandboxes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func newWitness(t *testing.T, c cri.Config) *cri.Witness {
	t.Helper()
	c.Clock = critest.Clock
	if c.Timeout == 0 {
		c.Timeout = 20 * time.Second
	}
	w, err := cri.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// ask asks and holds what is true of every testimony.
func ask(t *testing.T, w *cri.Witness, detail bool) claim.Testimony {
	t.Helper()
	got := w.Ask(t.Context(), detail)
	if got.Witness != w.Name() || got.Asked.Mono == 0 || got.Detail == "" {
		t.Errorf("testimony %+v", got)
	}
	if strings.ContainsFunc(got.Detail, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.Errorf("detail %q is not fit to print", got.Detail)
	}
	if got.State != claim.StateComplete && got.CRI != nil && (len(got.CRI.Sandboxes) > 0 || got.CRI.Detailed) {
		t.Errorf("a testimony that is %s has sandboxes: %+v", got.State, got.CRI)
	}
	return got
}

func ids(got claim.Testimony) []string {
	out := []string{}
	if got.CRI != nil {
		for _, s := range got.CRI.Sandboxes {
			out = append(out, s.ID)
		}
	}
	return out
}

func TestContract(t *testing.T) {
	s := listen(t, filepath.Join(dir(t), "cri.sock"), sandboxA())
	critest.RunContract(t, "unix://"+s.Socket)
}

// ownPIDNS is the inode of this process's PID namespace.
func ownPIDNS(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestFacts(t *testing.T) {
	s := listen(t, filepath.Join(dir(t), "cri.sock"), sandboxB(), sandboxA())
	w := newWitness(t, cri.Config{Endpoints: []string{s.Socket}})
	endpoint := "unix://" + s.Socket
	a := claim.Sandbox{ID: idA, Endpoint: endpoint, Ready: true, Created: 10, Pod: claim.Pod{Namespace: "default", Name: "web-0", UID: "uid-a"}}
	b := claim.Sandbox{ID: idB, Endpoint: endpoint, Attempt: 2, Created: 20, Pod: claim.Pod{Namespace: "default", Name: "web-1", UID: "uid-b"}}
	want := claim.CRIFacts{
		Runtimes: []claim.Runtime{{
			Endpoint: endpoint, Name: "critest", Version: "1.0", State: claim.StateComplete, Detail: "2 sandboxes",
			Named: true, PeerPID: os.Getpid(), PeerPIDNS: ownPIDNS(t),
		}},
		Sandboxes: []claim.Sandbox{a, b},
	}
	equal := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	got := ask(t, w, false)
	if diff := cmp.Diff(want, *got.CRI, equal); diff != "" || got.State != claim.StateComplete {
		t.Errorf("%s: %s\n%s", got.State, got.Detail, diff)
	}
	want.Detailed, want.Runtimes[0].Known = true, true
	want.Sandboxes[0].Netns = "/var/run/netns/cni-a"
	want.Sandboxes[0].Addrs = []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")}
	got = ask(t, w, true)
	if diff := cmp.Diff(want, *got.CRI, equal); diff != "" {
		t.Error(diff)
	}
	if n := s.Calls("accept"); n != 1 {
		t.Errorf("%d connections for two questions", n)
	}
	if n := s.Calls("PodSandboxStatus"); n != 2 {
		t.Errorf("%d status calls, want one for each sandbox and only when asked for details", n)
	}
}

// Case F18 and its kin. Each failure is tried on a socket that was named, one that
// answered here before, and one that is merely found.
func TestFailures(t *testing.T) {
	const silent, none, complete = claim.StateSilent, claim.StateNone, claim.StateComplete
	for _, c := range []struct {
		mode     critest.Mode
		detail   bool
		required claim.State // state of the runtime when named or known
		found    claim.State // when found; "" means not listed
		text     string
	}{
		{critest.OK, true, complete, complete, "sandbox"},
		{critest.Empty, true, complete, complete, "0 sandboxes"}, // F6: the judge contradicts it
		{critest.Hang, false, silent, silent, "no whole answer within"},
		{critest.HangList, false, silent, silent, "no whole answer within"},
		{critest.HangStatus, true, silent, silent, "no whole answer within"},
		{critest.HangStatus, false, complete, complete, "sandbox"},
		{critest.Mute, false, silent, silent, "no whole answer within"},
		{critest.Error, false, silent, silent, "ListPodSandbox: "},
		{critest.ErrorStatus, true, silent, silent, "PodSandboxStatus: "},
		{critest.NotFoundStatus, true, complete, complete, "gone when asked"},
		{critest.WrongStatus, true, silent, silent, "answered for"},
		{critest.BadInfo, true, silent, silent, "no JSON"},
		{critest.PermissionDenied, false, silent, silent, "PermissionDenied"},
		{critest.CutOff, false, silent, silent, "ListPodSandbox: "},
		{critest.TooLarge, false, silent, silent, "ResourceExhausted"},
		{critest.Nameless, false, silent, silent, "without a runtime name"},
		{critest.Unimplemented, false, silent, none, "serves no CRI"},
		{critest.ListUnimplement, false, silent, silent, "ListPodSandbox: "},
		{critest.OldOnly, false, silent, silent, "v1alpha2"},
	} {
		for _, how := range []string{"named", "known", "found"} {
			t.Run(fmt.Sprintf("%s/%s/detail=%t", c.mode, how, c.detail), func(t *testing.T) {
				d := dir(t)
				s := listen(t, filepath.Join(d, "a.sock"), sandboxA())
				s.SetMode(c.mode)
				good := listen(t, filepath.Join(d, "good.sock"), sandboxB())
				config := cri.Config{WellKnown: []string{good.Socket}}
				want := c.required
				switch how {
				case "named":
					config.Endpoints = []string{s.Socket}
				case "known":
					config.Known = []string{s.Socket}
				case "found":
					config.WellKnown = append(config.WellKnown, s.Socket)
					want = c.found
				}
				if strings.HasPrefix(c.text, "no whole") {
					config.Timeout = short
				}
				w := newWitness(t, config)
				start := time.Now()
				got := ask(t, w, c.detail)
				if took := time.Since(start); took > 20*time.Second+late || config.Timeout == short && took > short+late {
					t.Errorf("took %s", took)
				}
				r := got.CRI.Runtimes[0]
				if r.Endpoint != "unix://"+s.Socket || r.State != want || !strings.Contains(r.Detail, c.text) {
					t.Errorf("runtime %+v, want %s and %q", r, want, c.text)
				}
				if r.Named != (how == "named") || r.Known != (how == "known") {
					t.Errorf("runtime %+v was %s", r, how)
				}
				wantWhole := complete
				if want == silent {
					wantWhole = silent
				}
				if got.State != wantWhole {
					t.Errorf("testimony is %s, want %s: %s", got.State, wantWhole, got.Detail)
				}
				if want != complete && !strings.Contains(got.Detail, r.Endpoint) {
					t.Errorf("detail %q does not name the runtime", got.Detail)
				}
				if g := got.CRI.Runtimes[1]; g.State != complete {
					t.Errorf("the other runtime is %+v", g)
				}
				if _, err := json.Marshal(got); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What lies at the path when no server is behind it.
func TestPaths(t *testing.T) {
	const silent, none = claim.StateSilent, claim.StateNone
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, path string)
		found claim.State // "" means not listed
		text  string
	}{
		{"missing", func(*testing.T, string) {}, "", "no such socket"},
		{"dangling symlink", func(t *testing.T, p string) { must(t, os.Symlink("nowhere", p)) }, "", "no such socket"},
		{"symlink loop", func(t *testing.T, p string) { must(t, os.Symlink(p, p)) }, silent, "too many levels"},
		{"regular file", func(t *testing.T, p string) { must(t, os.WriteFile(p, nil, 0o600)) }, none, "not a socket"},
		{"directory", func(t *testing.T, p string) { must(t, os.Mkdir(p, 0o700)) }, none, "not a socket"},
		{"killed runtime", func(t *testing.T, p string) { listen(t, p).Kill() }, none, "nobody listens"},
	} {
		for _, how := range []string{"named", "known", "found"} {
			t.Run(c.name+"/"+how, func(t *testing.T) {
				d := dir(t)
				path := filepath.Join(d, "a.sock")
				c.make(t, path)
				good := listen(t, filepath.Join(d, "good.sock"), sandboxB())
				config := cri.Config{WellKnown: []string{good.Socket}}
				want := silent
				switch how {
				case "named":
					config.Endpoints = []string{path}
				case "known":
					config.Known = []string{path}
				case "found":
					config.WellKnown = append(config.WellKnown, path)
					want = c.found
				}
				got := ask(t, newWitness(t, config), false)
				listed := got.CRI.Runtimes[0].Endpoint == "unix://"+path
				switch {
				case want == "" && (listed || got.State != claim.StateComplete):
					t.Errorf("%s: %+v", got.State, got.CRI.Runtimes)
				case want != "" && (!listed || got.CRI.Runtimes[0].State != want || !strings.Contains(got.CRI.Runtimes[0].Detail, c.text)):
					t.Errorf("%s: %+v, want %s and %q", got.State, got.CRI.Runtimes, want, c.text)
				case (got.State == silent) != (want == silent):
					t.Errorf("testimony is %s: %s", got.State, got.Detail)
				}
			})
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A node without a runtime that answered has no testimony, whatever the reason;
// only a person can say that there is none.
func TestNoRuntime(t *testing.T) {
	d := dir(t)
	path := filepath.Join(d, "a.sock")
	for _, c := range []struct {
		name   string
		config cri.Config
		state  claim.State
		text   string
	}{
		{"nothing to look for", cri.Config{}, claim.StateSilent, "no container runtime socket found; name one with --cri-endpoint, or say --cri-endpoint none"},
		{"nothing found", cri.Config{WellKnown: []string{path}}, claim.StateSilent, "no container runtime socket found; name one with --cri-endpoint, or say --cri-endpoint none"},
		{"none", cri.Config{Endpoints: []string{cri.None}, WellKnown: []string{path}}, claim.StateNone, "--cri-endpoint none"},
		{"none, though known", cri.Config{Endpoints: []string{cri.None}, Known: []string{path}}, claim.StateNone, "--cri-endpoint none"},
		{"an unreadable memory", cri.Config{Known: []string{"\x1b[31m"}}, claim.StateSilent, "list of known endpoints"},
	} {
		got := ask(t, newWitness(t, c.config), false)
		if got.State != c.state || !strings.Contains(got.Detail, c.text) {
			t.Errorf("%s: %s %q", c.name, got.State, got.Detail)
		}
	}
	// Docker's containerd alone, or a runtime that is down when we first look.
	s := listen(t, path, sandboxA())
	s.SetMode(critest.Unimplemented)
	w := newWitness(t, cri.Config{WellKnown: []string{path}})
	for _, text := range []string{"serves no CRI", "nobody listens"} {
		got := ask(t, w, false)
		if got.State != claim.StateSilent || !strings.Contains(got.Detail, text) || !strings.Contains(got.Detail, "--cri-endpoint none") ||
			got.CRI.Runtimes[0].State != claim.StateNone {
			t.Errorf("%s %q", got.State, got.Detail)
		}
		s.Kill()
	}
	// An unreadable memory silences also beside a runtime that answers.
	good := listen(t, filepath.Join(d, "good.sock"))
	if got := ask(t, newWitness(t, cri.Config{Endpoints: []string{good.Socket}, Known: []string{"x"}}), false); got.State != claim.StateSilent {
		t.Errorf("%s %q", got.State, got.Detail)
	}
}

// Case F15: each runtime lists only its own; the union decides. And case F17: an ID
// is compared whole, so a prefix of another stays a sandbox of its own.
func TestUnion(t *testing.T) {
	d := dir(t)
	prefix := critest.Sandbox{ID: idA[:13], Netns: "/run/netns/p", IPs: []string{"10.1.0.9"}}
	one := listen(t, filepath.Join(d, "1.sock"), sandboxB(), prefix, sandboxA())
	two := listen(t, filepath.Join(d, "2.sock"), sandboxA(), critest.Sandbox{ID: idA + "a", HostNetwork: true})
	w := newWitness(t, cri.Config{WellKnown: []string{two.Socket, one.Socket}})
	got := ask(t, w, true)
	if diff := cmp.Diff([]string{idA[:13], idA, idA, idA + "a", idB}, ids(got)); diff != "" {
		t.Fatalf("%s: %s\n%s", got.State, got.Detail, diff)
	}
	s := got.CRI.Sandboxes
	if s[0].Netns != "/run/netns/p" || s[1].Netns != "/var/run/netns/cni-a" {
		t.Errorf("a status went to the wrong sandbox: %+v", s)
	}
	if s[1].Endpoint != "unix://"+one.Socket || s[2].Endpoint != "unix://"+two.Socket {
		t.Errorf("order of one ID at two runtimes: %+v", s)
	}
	// The same ID twice from one runtime is odd, and no reason for silence.
	one.SetSandboxes(sandboxA(), sandboxA())
	if diff := cmp.Diff([]string{idA, idA, idA, idA + "a"}, ids(ask(t, w, true))); diff != "" {
		t.Error(diff)
	}
	// One entry that no runtime writes, and nothing of that answer is believed.
	two.SetSandboxes(sandboxA(), critest.Sandbox{ID: "../\x1b[31m"})
	if got := ask(t, w, true); got.State != claim.StateSilent || !strings.Contains(got.Detail, "which no runtime writes") {
		t.Errorf("%s: %s", got.State, got.Detail)
	}
}

// A runtime that answered once in the life of a Witness is required from then on: it
// may die between judgement and re-check, before anyone wrote down that it works.
func TestAnsweredOnceIsRequired(t *testing.T) {
	for name, die := range map[string]func(*critest.Server){
		"killed":        (*critest.Server).Kill,
		"gone":          (*critest.Server).Stop,
		"unimplemented": func(s *critest.Server) { s.SetMode(critest.Unimplemented) },
	} {
		t.Run(name, func(t *testing.T) {
			d := dir(t)
			dying := listen(t, filepath.Join(d, "dying.sock"), sandboxA())
			good := listen(t, filepath.Join(d, "good.sock"), sandboxB())
			w := newWitness(t, cri.Config{WellKnown: []string{dying.Socket, good.Socket}})
			if got := ask(t, w, false); got.State != claim.StateComplete || got.CRI.Runtimes[0].Known {
				t.Fatalf("%s: %+v", got.State, got.CRI.Runtimes)
			}
			die(dying)
			got := ask(t, w, false)
			if r := got.CRI.Runtimes[0]; got.State != claim.StateSilent || r.State != claim.StateSilent || !r.Known {
				t.Errorf("%s: %+v", got.State, got.CRI.Runtimes)
			}
			// Back again: nothing of the old connection stays in the way.
			dying.Stop()
			listen(t, dying.Socket, sandboxA())
			if got := ask(t, w, false); got.State != claim.StateComplete || len(got.CRI.Sandboxes) != 2 {
				t.Errorf("after its return: %s: %s", got.State, got.Detail)
			}
		})
	}
}

// The old listener lives on without its socket file, as a runtime does that is being
// replaced: the kept connection must not be asked any more.
func TestReplacedSocket(t *testing.T) {
	path := filepath.Join(dir(t), "cri.sock")
	listen(t, path, sandboxA())
	w := newWitness(t, cri.Config{Endpoints: []string{path}})
	if diff := cmp.Diff([]string{idA}, ids(ask(t, w, false))); diff != "" {
		t.Fatal(diff)
	}
	listen(t, path, sandboxB())
	if diff := cmp.Diff([]string{idB}, ids(ask(t, w, false))); diff != "" {
		t.Error(diff)
	}
}

func TestOneSocketByTwoPaths(t *testing.T) {
	d := dir(t)
	must(t, os.Mkdir(filepath.Join(d, "run"), 0o700))
	must(t, os.Symlink("run", filepath.Join(d, "a-run")))
	s := listen(t, filepath.Join(d, "run", "cri.sock"), sandboxA())
	alias := filepath.Join(d, "a-run", "cri.sock")
	hard := filepath.Join(d, "hard.sock")
	must(t, os.Link(s.Socket, hard))
	for _, c := range []struct {
		name         string
		config       cri.Config
		speaker      string
		named, known bool
	}{
		{"found", cri.Config{WellKnown: []string{s.Socket, alias, hard}}, alias, false, false},
		{"known", cri.Config{WellKnown: []string{s.Socket, alias}, Known: []string{hard}}, hard, false, true},
		{"named", cri.Config{WellKnown: []string{alias, hard}, Known: []string{hard}, Endpoints: []string{"unix://" + s.Socket}}, s.Socket, true, true},
	} {
		before := s.Calls("ListPodSandbox")
		got := ask(t, newWitness(t, c.config), false)
		if got.State != claim.StateComplete || len(got.CRI.Runtimes) != 1 || len(got.CRI.Sandboxes) != 1 || s.Calls("ListPodSandbox") != before+1 {
			t.Errorf("%s: %s %+v", c.name, got.State, got.CRI)
			continue
		}
		if r := got.CRI.Runtimes[0]; r.Endpoint != "unix://"+c.speaker || r.Named != c.named || r.Known != c.known {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	// Gone by one path, still there by another that was never named: the named one
	// is required all the same.
	must(t, os.Remove(hard))
	if got := ask(t, newWitness(t, cri.Config{WellKnown: []string{alias}, Endpoints: []string{hard}}), false); got.State != claim.StateSilent {
		t.Errorf("%s: %+v", got.State, got.CRI)
	}
}

func TestLongPath(t *testing.T) {
	d := dir(t)
	for len(d) < 150 {
		d = filepath.Join(d, strings.Repeat("d", 40))
	}
	must(t, os.MkdirAll(d, 0o700))
	s := listen(t, filepath.Join(d, "cri.sock"), sandboxA())
	w := newWitness(t, cri.Config{Endpoints: []string{"unix://" + s.Socket}})
	got := ask(t, w, true)
	if got.State != claim.StateComplete || len(got.CRI.Sandboxes) != 1 || got.CRI.Runtimes[0].PeerPID != os.Getpid() {
		t.Errorf("%s: %s", got.State, got.Detail)
	}
	s.Kill()
	if got := ask(t, newWitness(t, cri.Config{WellKnown: []string{s.Socket}}), false); got.CRI.Runtimes[0].State != claim.StateNone {
		t.Errorf("killed runtime at a long path: %+v", got.CRI.Runtimes)
	}
}

func TestManySandboxes(t *testing.T) {
	var sandboxes []critest.Sandbox
	for i := range 500 {
		sandboxes = append(sandboxes, critest.Sandbox{
			ID: fmt.Sprintf("%064x", i), Netns: fmt.Sprintf("/run/netns/%d", i), IPs: []string{fmt.Sprintf("10.2.%d.%d", i/200, i%200+1)},
		})
	}
	s := listen(t, filepath.Join(dir(t), "cri.sock"), sandboxes...)
	w := newWitness(t, cri.Config{Endpoints: []string{s.Socket}})
	got := ask(t, w, true)
	if got.State != claim.StateComplete || len(got.CRI.Sandboxes) != len(sandboxes) {
		t.Fatalf("%s: %s", got.State, got.Detail)
	}
	for i, sb := range got.CRI.Sandboxes {
		if sb.ID != sandboxes[i].ID || sb.Netns != sandboxes[i].Netns || len(sb.Addrs) != 1 || sb.Addrs[0].String() != sandboxes[i].IPs[0] {
			t.Fatalf("sandbox %d: %+v", i, sb)
		}
	}
	// The order of an answer is no fact (I10).
	slices.Reverse(sandboxes)
	s.SetSandboxes(sandboxes...)
	again := ask(t, w, true)
	one, err1 := json.Marshal(got.CRI.Sandboxes)
	two, err2 := json.Marshal(again.CRI.Sandboxes)
	if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
		t.Error("the same sandboxes in another order gave other facts")
	}
}

func TestConcurrentAsksAndClose(t *testing.T) {
	s := listen(t, filepath.Join(dir(t), "cri.sock"), sandboxA(), sandboxB())
	w := newWitness(t, cri.Config{Endpoints: []string{s.Socket}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if got := w.Ask(t.Context(), true); got.State != claim.StateComplete || len(got.CRI.Sandboxes) != 2 {
					t.Errorf("%s: %s", got.State, got.Detail)
				}
			}
		})
	}
	wg.Wait()
	if n := s.Calls("accept"); n != 1 {
		t.Errorf("%d connections", n)
	}
	s.SetMode(critest.Hang)
	wg.Go(func() { w.Ask(t.Context(), false) })
	w.Close()
	w.Close()
	if got := ask(t, w, false); got.State != claim.StateSilent || !strings.Contains(got.Detail, "closed") {
		t.Errorf("%s: %s", got.State, got.Detail)
	}
	s.Kill()
	wg.Wait()
}

func TestCancelledQuestion(t *testing.T) {
	s := listen(t, filepath.Join(dir(t), "cri.sock"), sandboxA())
	w := newWitness(t, cri.Config{WellKnown: []string{s.Socket}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := w.Ask(ctx, true); got.State != claim.StateSilent {
		t.Errorf("%s: %s", got.State, got.Detail)
	}
	if got := ask(t, w, true); got.State != claim.StateComplete {
		t.Errorf("the next question: %s: %s", got.State, got.Detail)
	}
}
