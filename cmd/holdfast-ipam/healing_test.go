package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/wire"
)

// The plugin's half of healing, as processes, against healers and agents that are scripted
// here. The test binary is the plugin when CNI's variables are set.

func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// capacity is how many addresses the network has: a /28 without network, broadcast, gateway.
const capacity = 13

// site is a network of that capacity with directories of its own.
type site struct {
	t    *testing.T
	dir  string
	heal map[string]any // ipam.heal
	ipam map[string]any // further members of ipam
	attr *syscall.SysProcAttr
}

func newSite(t *testing.T) *site {
	s := &site{t: t, dir: t.TempDir(), ipam: map[string]any{}}
	s.heal = map[string]any{"binary": s.path("healer"), "timeout": "20s"}
	if err := os.MkdirAll(s.net(), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }
func (s *site) net() string             { return s.path("networks/pods") }

// fill reserves all but free addresses, as host-local does.
func (s *site) fill(free int) {
	for i := range capacity - free {
		s.write(fmt.Sprintf("networks/pods/198.18.77.%d", i+2), fmt.Sprintf("%064x\r\neth0", i+1))
	}
}

func (s *site) write(name, content string) {
	if err := errors.Join(os.WriteFile(s.path(name), []byte(content), 0o755), os.Chmod(s.path(name), 0o755)); err != nil {
		s.t.Fatal(err)
	}
}

// healer writes a healer: it notes its request and its start, and does what body says. In it,
// "release N" removes the first N reservations and answers so, "go" waits for start's sign.
func (s *site) healer(body string) {
	s.write("healer", strings.NewReplacer("$DIR", s.dir, "$NET", s.net()).Replace(`#!/bin/sh
cat >$DIR/request
echo "$@" >>$DIR/runs
release() {
	for f in $(ls $NET | grep -v -e lock -e last | sort -t. -k4 -n | head -n $1); do rm $NET/$f; done
	answer '"released":'$1',"counts":{"InUse":2,"Suspect":'$((11-$1))'},"withheld":["the first suspect is due in 4m10s"]'
}
answer() { echo '{"apiVersion":"holdfast.dev/v1alpha1","kind":"HealResponse",'"$1"'}'; }
go() { i=0; while [ ! -e $DIR/go ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done; }
`+body+"\n"))
}

// runs are the healers that were started, by their arguments.
func (s *site) runs() []string {
	b, _ := os.ReadFile(s.path("runs"))
	return strings.Split(strings.TrimSuffix("\n"+string(b), "\n"), "\n")[1:]
}

func (s *site) request() (q wire.HealRequest) {
	s.t.Helper()
	f, err := os.Open(s.path("request"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if q, err = wire.ReadRequest(f); err != nil {
		s.t.Fatal(err)
	}
	return q
}

// running is one call of the plugin.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	start          time.Time
}

// reply is how it ended. msg is the error document's, empty when it succeeded.
type reply struct {
	code           uint
	msg            string
	addr           string
	stdout, stderr string
	took           time.Duration
}

func (s *site) start(command, id string, top map[string]any) *running {
	s.t.Helper()
	ipam := map[string]any{
		"type": "holdfast-ipam", "dataDir": s.path("networks"), "runDir": s.path("run"), "stateDir": s.path("state"),
		"heal": s.heal, "subnet": "198.18.77.0/28",
	}
	for k, v := range s.ipam {
		if ipam[k] = v; v == nil {
			delete(ipam, k)
		}
	}
	conf := map[string]any{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam}
	for k, v := range top {
		conf[k] = v
	}
	b, err := json.Marshal(conf)
	if err != nil {
		s.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	r := &running{cmd: exec.Command(self), start: time.Now()}
	r.cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin", "CNI_NETNS=/run/netns/of-" + id}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = bytes.NewReader(b), &r.stdout, &r.stderr
	r.cmd.SysProcAttr = s.attr
	r.cmd.WaitDelay = 100 * time.Millisecond
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (r *running) wait(t *testing.T) reply {
	t.Helper()
	stop := time.AfterFunc(time.Minute, func() { _ = r.cmd.Process.Kill() })
	err := r.cmd.Wait()
	stop.Stop()
	out := reply{stdout: r.stdout.String(), stderr: r.stderr.String(), took: time.Since(r.start)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var doc struct {
		Code uint
		Msg  string
		IPs  []struct{ Address string }
	}
	if len(out.stdout) > 0 {
		if err := json.Unmarshal(r.stdout.Bytes(), &doc); err != nil {
			t.Fatalf("stdout %q: %v", out.stdout, err)
		}
	}
	if (err != nil) != (doc.Msg != "") {
		t.Fatalf("%v, stdout %q, stderr %q", err, out.stdout, out.stderr)
	}
	out.code, out.msg = doc.Code, doc.Msg
	for i, ip := range doc.IPs {
		if i > 0 {
			out.addr += " "
		}
		out.addr += ip.Address
	}
	return out
}

func (s *site) do(command, id string, top map[string]any) reply {
	s.t.Helper()
	return s.start(command, id, top).wait(s.t)
}

// waiting counts who waits for the lock of healers.
func (s *site) waiting() int {
	locks, _ := filepath.Glob(s.path("run/heal-*.lock"))
	if len(locks) != 1 {
		return 0
	}
	var st unix.Stat_t
	if unix.Stat(locks[0], &st) != nil {
		return 0
	}
	b, _ := os.ReadFile("/proc/locks")
	return countLines(string(b), "-> ", fmt.Sprintf(":%d ", st.Ino))
}

func countLines(text string, parts ...string) (n int) {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Twenty ADDs on a full network: one healer at a time, for which all wait without holding
// host-local's lock; as many succeed as were released. A sweep releases no more than its cap,
// so there is another until one releases none, and then all who are left fail with it, at once.
func TestManyADDsOneHealer(t *testing.T) {
	const adds = 20
	for _, x := range []struct{ released, runs int }{{0, 1}, {7, 2}, {11, 3}} {
		t.Run(fmt.Sprint(x.released), func(t *testing.T) {
			s := newSite(t)
			s.fill(0)
			s.healer(fmt.Sprintf(`go
case $(wc -l <$DIR/runs) in
1) release %d;;
2) [ %[2]d = 3 ] || { release 0; exit; }
   for i in 9 10 11 12; do rm $NET/198.18.77.$i; done; answer '"released":4';;
*) release 0;;
esac`, min(x.released, 7), x.runs))
			var calls []*running
			for i := range adds {
				calls = append(calls, s.start("ADD", fmt.Sprintf("pod-%d", i), nil))
			}
			eventually(t, "all but one wait for the healer", func() bool { return len(s.runs()) == 1 && s.waiting() == adds-1 })
			lock, err := os.Open(filepath.Join(s.net(), "lock"))
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				t.Errorf("host-local's lock while they heal: %v", err)
			}
			lock.Close()
			s.write("go", "")
			went := time.Now()
			got := map[string]bool{}
			for _, c := range calls {
				r := c.wait(t)
				if r.msg == "" {
					if got[r.addr] {
						t.Errorf("%s twice", r.addr)
					}
					got[r.addr] = true
					continue
				}
				const want = "failed to allocate for range 0: no IP addresses available in range set: 198.18.77.1-198.18.77.14; healing released 0 (InUse 2, Suspect 11); withheld: the first suspect is due in 4m10s"
				if r.msg != want {
					t.Errorf("the error is %q, want %q", r.msg, want)
				}
			}
			if len(got) != x.released {
				t.Errorf("%d got an address, want %d", len(got), x.released)
			}
			if runs := s.runs(); len(runs) != x.runs {
				t.Errorf("%d healers, want %d: %q", len(runs), x.runs, runs)
			}
			if d := time.Since(went); d > 10*time.Second {
				t.Errorf("they took %s after the first healer", d)
			}
		})
	}
}

// What the healer is told: the network, and the container that must not be taken for dead.
func TestHealRequest(t *testing.T) {
	s := newSite(t)
	s.fill(0)
	s.healer("release 1")
	s.heal["args"] = []string{"--cri-endpoint", "none"}
	if r := s.do("ADD", "pod-1", nil); r.addr != "198.18.77.2/28" {
		t.Fatalf("%+v", r)
	}
	if got, want := s.runs(), []string{"heal --request - --limit 20s --state-dir " + s.path("state") + " --cri-endpoint none"}; !slices.Equal(got, want) {
		t.Errorf("started as %q, want %q", got, want)
	}
	q := s.request()
	if q.DataDir != s.path("networks") || q.Network != "pods" || q.Spare != "pod-1" || q.Valid != nil {
		t.Errorf("the request is %+v", q)
	}
}

// A healer that is of no use fails the ADD, in time, with what went wrong.
func TestUselessHealer(t *testing.T) {
	for _, x := range []struct {
		name, body string
		set        func(s *site)
		want       string
		runs       int
		rests      bool // it is no error, so the next one waits a little
	}{
		{name: "switched off", body: "release 1", set: func(s *site) { s.heal["disabled"] = true }, want: "healing is switched off (ipam.heal.disabled)"},
		{name: "missing", set: func(s *site) { s.heal["binary"] = s.path("nowhere") }, want: "the holdfast binary is not there; put it beside this plugin, or name it in ipam.heal.binary"},
		{name: "not beside the plugin", set: func(s *site) { delete(s.heal, "binary") }, want: "the holdfast binary is not there"},
		{name: "no program", set: func(s *site) {
			s.write("healer", "")
			if err := os.Chmod(s.path("healer"), 0o644); err != nil {
				s.t.Fatal(err)
			}
		}, want: "permission denied"},
		{name: "fails", body: "echo broken >&2; exit 3", want: `heal: exit status 3: "broken"`, runs: 1},
		{name: "says nothing", body: "exit 0", want: "heal: EOF", runs: 1},
		{name: "garbage", body: "echo lorem", want: "no whole document", runs: 1},
		{name: "another document", body: `echo '{"apiVersion":"v1","kind":"Pod"}'`, want: `wanted is "holdfast.dev/v1alpha1" "HealResponse"`, runs: 1},
		{name: "its own error", body: `answer '"released":0,"error":"no vantage"'`, want: "healing released 0; no vantage", runs: 1},
		{name: "drives the terminal", body: `answer '"released":0,"error":"\u001b[2Jx\u009b"'`, want: "healing released 0; ?[2Jx?", runs: 1},
		{name: "hangs", body: "exec sleep 50", want: "signal: killed", runs: 1},
		{name: "leaves a child with its pipes", body: "sleep 5 & release 0", want: "healing released 0 (InUse 2, Suspect 11)", runs: 1, rests: true},
		{name: "dies", body: "kill -9 $$", want: "signal: killed", runs: 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.fill(0)
			s.heal["timeout"] = "1s"
			if x.body != "" {
				s.healer(x.body)
			}
			if x.set != nil {
				x.set(s)
			}
			r := s.do("ADD", "pod-1", nil)
			if want := "failed to allocate for range 0: no IP addresses available in range set: 198.18.77.1-198.18.77.14; "; !strings.HasPrefix(r.msg, want) || !strings.Contains(r.msg, x.want) {
				t.Errorf("the error is %q, want %q and %q in it", r.msg, want, x.want)
			}
			if got := len(s.runs()); got != x.runs {
				t.Errorf("%d healers, want %d", got, x.runs)
			}
			if r.took > 15*time.Second {
				t.Errorf("it took %s", r.took)
			}
			// The lock was given back: the next one heals.
			s.healer("release 1")
			s.heal = map[string]any{"binary": s.path("healer"), "timeout": "20s"}
			if x.rests {
				time.Sleep(restAfter)
			}
			if r := s.do("ADD", "pod-2", nil); r.addr == "" {
				t.Errorf("the next ADD: %q", r.msg)
			}
		})
	}
}

// An address that went although the healer failed, or that a DEL gave back meanwhile, is taken.
func TestADDTriesAgainWhateverTheHealerSays(t *testing.T) {
	s := newSite(t)
	s.fill(0)
	s.healer("release 1 >/dev/null; exit 1")
	if r := s.do("ADD", "pod-1", nil); r.addr == "" {
		t.Errorf("%q", r.msg)
	}
}

// The plugin is killed while its healer works: that one ends what it began, and until then no
// second one is started.
func TestKilledPluginLeavesOneHealer(t *testing.T) {
	s := newSite(t)
	s.fill(0)
	s.healer("if [ -e $DIR/second ]; then release 1; exit; fi; go; touch $DIR/ended")
	one := s.start("ADD", "pod-1", nil)
	eventually(t, "a healer", func() bool { return len(s.runs()) == 1 })
	if err := one.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = one.cmd.Wait() // says that it was killed
	s.write("second", "")
	two := s.start("ADD", "pod-2", nil)
	eventually(t, "the second ADD waits", func() bool { return s.waiting() == 1 })
	if runs := s.runs(); len(runs) != 1 {
		t.Errorf("%d healers at once", len(runs))
	}
	s.write("go", "")
	if r := two.wait(t); r.addr == "" {
		t.Errorf("the second ADD: %q", r.msg)
	}
	if _, err := os.Stat(s.path("ended")); err != nil || len(s.runs()) != 2 {
		t.Errorf("%d healers, the first ended: %v", len(s.runs()), err)
	}
}

// agent listens on the site's socket and hands each connection over.
func (s *site) agent(serve func(net.Conn)) (asked func() int) {
	s.t.Helper()
	// A socket's address has 107 bytes.
	dir, err := os.MkdirTemp("", "hfa")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.heal["socket"] = path
	var mu sync.Mutex
	n := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			n++
			mu.Unlock()
			wg.Go(func() { serve(c); c.Close() })
		}
	})
	s.t.Cleanup(func() { l.Close(); wg.Wait() })
	return func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// answers is an agent that reads the request and says text.
func answers(text string) func(*site, net.Conn) {
	return func(_ *site, c net.Conn) {
		_, _ = wire.ReadRequest(c)
		_, _ = io.WriteString(c, text)
	}
}

// An agent is asked first. One that takes its time is waited for; one that gives no answer that
// can be read is as good as none, and the reapers' lock keeps a healer from standing in its way.
func TestAgent(t *testing.T) {
	for _, x := range []struct {
		name  string
		serve func(s *site, c net.Conn)
		want  string // of the error; empty: ADD succeeds
		heals bool   // a healer is started after it
	}{
		{name: "heals", serve: func(s *site, c net.Conn) {
			q, err := wire.ReadRequest(c)
			if err != nil || q.Network != "pods" || q.Spare != "pod-1" || q.DataDir != s.path("networks") {
				s.t.Errorf("asked %+v: %v", q, err)
			}
			os.Remove(filepath.Join(s.net(), "198.18.77.9"))
			_ = wire.Write(c, wire.HealResponse{APIVersion: wire.APIVersion, Kind: wire.KindHealResponse, Released: 1})
		}},
		{name: "releases nothing", serve: func(_ *site, c net.Conn) {
			_, _ = wire.ReadRequest(c)
			_ = wire.Write(c, wire.HealResponse{APIVersion: wire.APIVersion, Kind: wire.KindHealResponse, Counts: map[string]int{"InUse": 13}})
		}, want: "healing released 0 (InUse 13)"},
		{name: "hangs", serve: func(_ *site, c net.Conn) { _, _ = io.Copy(io.Discard, c) }, want: "no healing: agent at "},
		{name: "closes at once", serve: func(*site, net.Conn) {}, heals: true},
		{name: "garbage", serve: answers("lorem ipsum\n"), heals: true},
		{name: "endless garbage", serve: func(_ *site, c net.Conn) {
			for b := bytes.Repeat([]byte("x"), 1<<16); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}, heals: true},
		{name: "half a document", serve: answers(`{"apiVersion":"holdfast.dev/v1alpha1","kind":"Heal`), heals: true},
		{name: "another document", serve: answers("{}\n"), heals: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newSite(t)
			s.fill(0)
			s.healer("release 1")
			s.heal["timeout"] = "1s"
			asked := s.agent(func(c net.Conn) { x.serve(s, c) })
			r := s.do("ADD", "pod-1", nil)
			if (r.addr != "") != (x.want == "") || !strings.Contains(r.msg, x.want) {
				t.Errorf("got %q, error %q, want %q in it", r.addr, r.msg, x.want)
			}
			healers := 0
			if x.heals {
				healers = 1
			}
			if n := asked(); n != 1 || len(s.runs()) != healers {
				t.Errorf("asked %d times; healers started: %q", n, s.runs())
			}
			if r.took > 10*time.Second {
				t.Errorf("it took %s", r.took)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		s := newSite(t)
		s.fill(0)
		s.healer("release 1")
		s.write("agent.sock", "")
		s.heal["socket"] = s.path("agent.sock")
		if r := s.do("ADD", "pod-1", nil); r.addr == "" || len(s.runs()) != 1 {
			t.Errorf("%q; healers %q", r.msg, s.runs())
		}
	})
}

// Two range sets, of which the second is full: it is healed and both addresses are reserved, or
// neither is.
func TestSecondSetIsHealed(t *testing.T) {
	s := newSite(t)
	s.ipam["subnet"] = nil
	s.ipam["ranges"] = []any{
		[]any{map[string]any{"subnet": "198.18.77.0/28"}},
		[]any{map[string]any{"subnet": "fd12:77::/125", "rangeStart": "fd12:77::2", "rangeEnd": "fd12:77::3"}},
	}
	for _, a := range []string{"fd12:77::2", "fd12:77::3"} {
		s.write("networks/pods/"+a, fmt.Sprintf("%064x\r\neth0", 1))
	}
	s.healer("release 0")
	r := s.do("ADD", "pod-1", nil)
	if !strings.HasPrefix(r.msg, "failed to allocate for range 1: no IP addresses available in range set: fd12:77::2-fd12:77::3; healing released 0") {
		t.Errorf("full: %q", r.msg)
	}
	if left, _ := filepath.Glob(filepath.Join(s.net(), "198.*")); len(left) > 0 {
		t.Errorf("it failed and left %q", left)
	}
	time.Sleep(restAfter)
	s.healer("rm $NET/fd12:77::3; answer '\"released\":1'")
	if r := s.do("ADD", "pod-1", nil); !strings.HasPrefix(r.addr, "198.18.77.") || !strings.HasSuffix(r.addr, " fd12:77::3/125") {
		t.Errorf("healed: %q, %q", r.addr, r.msg)
	}
}

// GC passes on what is valid, and never takes the answer of a healer that was not told.
func TestGC(t *testing.T) {
	valid := func(list any) map[string]any { return map[string]any{"cni.dev/valid-attachments": list} }
	s := newSite(t)
	s.fill(0)
	s.healer("release 3")
	if r := s.do("GC", "", nil); !strings.Contains(r.msg, "cni.dev/valid-attachments is absent") || len(s.runs()) != 0 {
		t.Errorf("without a list: %q, healers %q", r.msg, s.runs())
	}
	for _, entry := range []any{nil, map[string]any{"ifname": "eth0"}} {
		if r := s.do("GC", "", valid([]any{map[string]any{"containerID": "a"}, entry})); !strings.Contains(r.msg, "cni.dev/valid-attachments[1] has no containerID") || len(s.runs()) != 0 {
			t.Errorf("with the entry %v: %q, healers %q", entry, r.msg, s.runs())
		}
	}
	if r := s.do("GC", "", valid([]any{map[string]any{"containerID": "a", "ifname": "eth0"}, map[string]any{"containerID": "b", "ifname": "net1"}})); r.msg != "" || !strings.Contains(r.stderr, "healing released 3") {
		t.Errorf("with a list: %q, stderr %q", r.msg, r.stderr)
	}
	if q := s.request(); q.Valid == nil || !slices.Equal(*q.Valid, []wire.Attachment{{ContainerID: "a", IfName: "eth0"}, {ContainerID: "b", IfName: "net1"}}) || q.Spare != "" {
		t.Errorf("the request is %+v", q)
	}
	if r := s.do("GC", "", valid([]any{})); r.msg != "" {
		t.Errorf("with an empty list: %q", r.msg)
	}
	if q := s.request(); q.Valid == nil || len(*q.Valid) != 0 {
		t.Errorf("an empty list came as %v", q.Valid)
	}
	s.healer(`answer '"released":0,"error":"another reaper"'`)
	if r := s.do("GC", "", valid([]any{})); !strings.Contains(r.msg, "another reaper") {
		t.Errorf("a healer that could not: %q", r.msg)
	}
	s.heal["binary"] = s.path("nowhere")
	if r := s.do("GC", "", valid([]any{})); r.msg != "" || !strings.Contains(r.stderr, "GC removed nothing") {
		t.Errorf("without a healer: %q, stderr %q", r.msg, r.stderr)
	}

	// Beside an ADD's healer GC has one of its own.
	s = newSite(t)
	s.fill(0)
	s.healer("if grep -q valid $DIR/request; then release 2; else go; release 1; fi")
	add := s.start("ADD", "pod-1", nil)
	eventually(t, "the ADD's healer", func() bool { return len(s.runs()) == 1 })
	gc := s.start("GC", "", valid([]any{}))
	eventually(t, "GC waits", func() bool { return s.waiting() == 1 })
	s.write("go", "")
	if r := add.wait(t); r.addr == "" {
		t.Errorf("ADD: %q", r.msg)
	}
	if r := gc.wait(t); r.msg != "" || len(s.runs()) != 2 {
		t.Errorf("GC: %q, healers %q", r.msg, s.runs())
	}
}

// STATUS heals as ADD does before it says that there is no address. What released nothing is not
// done again at once: a full network is asked for an address again and again.
func TestStatus(t *testing.T) {
	s := newSite(t)
	s.fill(1)
	s.healer("release 0")
	if r := s.do("STATUS", "", nil); r.msg != "" || len(s.runs()) != 0 {
		t.Errorf("one is free: %q, healers %q", r.msg, s.runs())
	}
	s.fill(0)
	if r := s.do("STATUS", "", nil); r.code != 50 || !strings.Contains(r.msg, "range 0: no IP addresses available in range set: 198.18.77.1-198.18.77.14; healing released 0 (InUse 2, Suspect 11)") {
		t.Errorf("full: code %d %q", r.code, r.msg)
	}
	s.healer("release 1")
	if r := s.do("STATUS", "", nil); r.code != 50 || len(s.runs()) != 1 {
		t.Errorf("asked again at once: code %d %q, healers %q", r.code, r.msg, s.runs())
	}
	time.Sleep(restAfter)
	if r := s.do("STATUS", "", nil); r.msg != "" || len(s.runs()) != 2 {
		t.Errorf("healed: %q, healers %q", r.msg, s.runs())
	}
}
