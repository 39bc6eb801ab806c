package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/sys/unix"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/sys/cri/critest"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/state"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// desk is a small node in a temporary directory: one network with one reservation. The
// kernel and the processes are the machine's own.
type desk struct{ dir, state, run, data, store, conf string }

const deskNet = "desk-net"

func newDesk(t *testing.T) *desk {
	t.Helper()
	dir := t.TempDir()
	d := &desk{dir: dir, state: filepath.Join(dir, "state"), run: filepath.Join(dir, "run"), data: filepath.Join(dir, "networks"), conf: filepath.Join(dir, "net.d")}
	d.store = filepath.Join(d.data, deskNet)
	d.write(t, filepath.Join(d.store, "10.200.0.2"), "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\neth0")
	d.write(t, filepath.Join(d.conf, "10-desk.conflist"), `{"cniVersion":"1.0.0","name":"`+deskNet+`","plugins":[{"type":"bridge","ipam":{"type":"host-local","dataDir":"`+d.data+`","ranges":[[{"subnet":"10.200.0.0/24"}]]}}]}`)
	return d
}

func (d *desk) write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// flags look at the desk alone.
func (d *desk) flags(more ...string) []string {
	return append([]string{"--state-dir", d.state, "--run-dir", d.run, "--data-dir", d.data, "--cni-conf-dir", d.conf, "--cni-cache-dir", filepath.Join(d.dir, "cache"), "--timeout", "30s"}, more...)
}

// tree names everything under the desk with what a write would change.
func (d *desk) tree(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		out = append(out, fmt.Sprint(path, fi.Mode(), fi.Size(), fi.ModTime()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// invoke runs one command line in this process.
func invoke(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	files := make([]*os.File, 2)
	for i := range files {
		f, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	root := newRoot(newApp(null, files[0], files[1]))
	root.SetArgs(args)
	err = root.ExecuteContext(context.Background())
	text := make([]string, 2)
	for i, f := range files {
		b, rerr := os.ReadFile(f.Name())
		if rerr != nil {
			t.Fatal(rerr)
		}
		text[i] = string(b)
	}
	var exit exitError
	var usage usageError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		code = int(exit)
	case errors.As(err, &usage):
		code, text[1] = exitUsage, text[1]+err.Error()
	default:
		code, text[1] = exitFailed, text[1]+err.Error()
	}
	return code, text[0], text[1]
}

// doctor runs it and checks what holds for every answer.
func (d *desk) doctor(t *testing.T, more ...string) *api.Doctor {
	t.Helper()
	code, stdout, stderr := invoke(t, append([]string{"doctor", "-o", "json"}, d.flags(more...)...)...)
	var doc api.Doctor
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("exit %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if want := map[bool]int{true: exitOK, false: exitWithheld}[doc.OK]; code != want {
		t.Errorf("exit %d, want %d", code, want)
	}
	accepts(t, stdout)
	var names []string
	for _, s := range doc.Sections {
		names = append(names, s.Name)
		for _, c := range s.Checks {
			if c.Name == "" || c.OK && c.Fix != "" || !c.OK && (c.Fix == "" || c.Detail == "") {
				t.Errorf("%s: %+v: a check has a name, and what is not ok a detail and what to do", s.Name, c)
			}
		}
	}
	want := []string{"vantage", "capabilities", "witnesses", "grace", "runtime sockets", "stores", "locks", "state", "configuration", "allocator", "versions", "boots"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("sections: -want +got\n%s", diff)
	}
	return &doc
}

// accepts validates a document against the published schema.
func accepts(t *testing.T, text string) {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("../../api/v1alpha1/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(v); err != nil {
		t.Errorf("not what schema.json says: %v", err)
	}
}

// check finds one by section and name, or else by a part of its name.
func check(t *testing.T, doc *api.Doctor, section, name string) api.Check {
	t.Helper()
	for _, fits := range []func(string) bool{
		func(s string) bool { return s == name },
		func(s string) bool { return strings.Contains(s, name) },
	} {
		for _, s := range doc.Sections {
			for _, c := range s.Checks {
				if s.Name == section && fits(c.Name) {
					return c
				}
			}
		}
	}
	t.Fatalf("no check %q in section %q: %+v", name, section, doc.Sections)
	return api.Check{}
}

// TestDoctorTellsAndWritesNothing: as any user, on a node where nothing was ever written.
func TestDoctorTellsAndWritesNothing(t *testing.T) {
	d := newDesk(t)
	before := d.tree(t)
	doc := d.doctor(t, "--cri-endpoint", "none")
	if c := check(t, doc, "state", d.state); !c.OK || !strings.Contains(c.Detail, "not there yet") {
		t.Errorf("state directory: %+v", c)
	}
	if c := check(t, doc, "stores", d.store); !c.OK || !strings.Contains(c.Detail, "1 reservation,") || !strings.Contains(c.Detail, "writable yes") {
		t.Errorf("store: %+v", c)
	}
	if c := check(t, doc, "configuration", "10-desk.conflist"); !c.OK || !strings.Contains(c.Detail, deskNet) {
		t.Errorf("configuration: %+v", c)
	}
	for _, format := range []string{"table", "wide", "yaml"} {
		if _, out, _ := invoke(t, append([]string{"doctor", "-o", format}, d.flags("--cri-endpoint", "none")...)...); !strings.Contains(out, d.store) {
			t.Errorf("-o %s: the store is missing:\n%s", format, out)
		}
	}
	if diff := cmp.Diff(before, d.tree(t)); diff != "" {
		t.Errorf("doctor wrote: -before +after\n%s", diff)
	}
}

// TestDoctorObstacles pairs a desk on which a release is possible with one obstacle each.
func TestDoctorObstacles(t *testing.T) {
	testenv.Need(t, testenv.Root)
	none := []string{"--cri-endpoint", "none"}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, d *desk) []string // flags
		// where it shows, and what is said.
		section, check, says string
		ok                   bool // nothing is withheld for it
	}{
		{name: "nothing", prepare: func(*testing.T, *desk) []string { return none }, ok: true},
		{"a broken configuration", func(t *testing.T, d *desk) []string {
			d.write(t, filepath.Join(d.conf, "99-broken.conf"), `{"name": `)
			return none
		}, "configuration", "99-broken.conf", "", true},
		{"a named socket that is missing", func(_ *testing.T, d *desk) []string {
			return []string{"--cri-endpoint", filepath.Join(d.dir, "no.sock")}
		}, "runtime sockets", "no.sock", "it was named", false},
		{"a witness left out", func(*testing.T, *desk) []string {
			return []string{"--cri-endpoint", "none", "--witness", "kernel"}
		}, "witnesses", "process", "", false},
		{"state inside the data directory", func(_ *testing.T, d *desk) []string {
			return append(none, "--state-dir", filepath.Join(d.data, "holdfast"))
		}, "state", "quarantine outside", "lies inside", false},
		{"the same by a link", func(t *testing.T, d *desk) []string {
			link := filepath.Join(d.dir, "link")
			if err := os.Symlink(d.data, link); err != nil {
				t.Fatal(err)
			}
			return append(none, "--state-dir", filepath.Join(link, "holdfast"))
		}, "state", "quarantine outside", "lies inside", false},
		{"host-local's lock is held", func(t *testing.T, d *desk) []string {
			d.write(t, filepath.Join(d.store, "lock"), "")
			f, err := os.Open(filepath.Join(d.store, "lock"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			return none
		}, "locks", deskNet + "/lock", fmt.Sprintf("PID %d", os.Getpid()), false},
		{"another holdfast on the data directory", func(t *testing.T, d *desk) []string {
			r, err := hostlocal.AcquireReaper(nil, d.run, d.data)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			return none
		}, "locks", "/reaper-", fmt.Sprintf("PID %d", os.Getpid()), false},
		{"another holdfast elsewhere", func(t *testing.T, d *desk) []string {
			r, err := hostlocal.AcquireReaper(nil, d.run, d.conf)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			return none
		}, "", "", "", true},
		{"damaged holds", func(t *testing.T, d *desk) []string {
			d.write(t, filepath.Join(d.state, "holds"), "rubbish\n")
			return none
		}, "state", "holds", "", false},
		{"damaged runtimes", func(t *testing.T, d *desk) []string {
			d.write(t, filepath.Join(d.state, "runtimes"), "rubbish\n")
			return nil
		}, "state", "runtimes", "", false},
		{"damaged sightings", func(t *testing.T, d *desk) []string {
			d.write(t, filepath.Join(d.state, "sightings"), "rubbish\n")
			return none
		}, "state", "sightings", "", true},
		{"a journal without its header", func(t *testing.T, d *desk) []string {
			d.write(t, filepath.Join(d.state, "journal"), "rubbish\nmore\n")
			return none
		}, "state", "journal", "", false},
		{"a state directory that others may write to", func(t *testing.T, d *desk) []string {
			if err := os.Mkdir(d.state, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(d.state, 0o770); err != nil {
				t.Fatal(err)
			}
			return none
		}, "state", "/state", "0770", false},
		{"a state directory that is a file", func(t *testing.T, d *desk) []string {
			d.write(t, d.state, "")
			return none
		}, "state", "/state", "", false},
		{"an empty /proc", func(t *testing.T, d *desk) []string {
			return append(none, "--proc", t.TempDir())
		}, "vantage", "whole node", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			flags := c.prepare(t, d)
			before := d.tree(t)
			doc := d.doctor(t, flags...)
			if doc.OK != c.ok {
				t.Errorf("ok is %t, want %t: %s", doc.OK, c.ok, failed(doc))
			}
			if c.section != "" {
				if f := check(t, doc, c.section, c.check); f.OK || !strings.Contains(f.Detail, c.says) {
					t.Errorf("%+v: want it not ok, saying %q", f, c.says)
				}
			}
			if diff := cmp.Diff(before, d.tree(t)); diff != "" {
				t.Errorf("doctor wrote: -before +after\n%s", diff)
			}
		})
	}
}

func failed(doc *api.Doctor) string {
	var b bytes.Buffer
	for _, s := range doc.Sections {
		for _, c := range s.Checks {
			if !c.OK {
				fmt.Fprintf(&b, "\n%s: %s: %s", s.Name, c.Name, c.Detail)
			}
		}
	}
	return b.String()
}

// childEnv marks a test process that was started to be somebody else.
const childEnv = "HOLDFAST_DOCTOR_CHILD"

// TestDoctorChild runs inside of the process that the tests below start.
func TestDoctorChild(t *testing.T) {
	d := newDesk(t)
	switch os.Getenv(childEnv) {
	case "":
		return
	case "nobody":
		unreadable := os.Getenv(childEnv + "_STATE")
		doc := d.doctor(t, "--cri-endpoint", "none", "--state-dir", unreadable)
		if doc.OK {
			t.Error("a release would be possible for nobody")
		}
		for _, c := range [][2]string{{"vantage", "whole node"}, {"vantage", "capabilities"}, {"capabilities", "CAP_SYS_PTRACE"}, {"witnesses", "kernel"}, {"witnesses", "process"}, {"state", unreadable}} {
			if f := check(t, doc, c[0], c[1]); f.OK {
				t.Errorf("%v: ok: %s", c, f.Detail)
			}
		}
		if f := check(t, doc, "stores", d.store); !f.OK {
			t.Errorf("its own store: %+v", f)
		}
	case "netns":
		if f := check(t, d.doctor(t, "--cri-endpoint", "none"), "capabilities", "network namespace"); f.OK || !strings.Contains(f.Fix, "hostNetwork") {
			t.Errorf("in a network namespace of our own: %+v", f)
		}
	case "pidns":
		mount := filepath.Join(d.dir, "proc")
		if err := errors.Join(os.Mkdir(mount, 0o755), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", mount, "proc", 0, "")); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(mount, unix.MNT_DETACH)
		doc := d.doctor(t, "--cri-endpoint", "none", "--proc", mount)
		if doc.OK {
			t.Error("a release would be possible from a PID namespace of its own")
		}
		if f := check(t, doc, "vantage", "whole node"); f.OK {
			t.Errorf("%+v", f)
		}
		if f := check(t, doc, "vantage", "pid-namespace"); f.OK || !strings.Contains(f.Fix, "hostPID") {
			t.Errorf("%+v", f)
		}
	}
}

func runChild(t *testing.T, who string, attr *syscall.SysProcAttr, env ...string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDoctorChild$", "-test.v")
	cmd.Env = append(slices.Clip(os.Environ()), append(env, childEnv+"="+who, "TMPDIR=/tmp")...)
	cmd.Dir = "."
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestDoctorChild")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDoctorAsNobody(t *testing.T) {
	testenv.Need(t, testenv.Root)
	runChild(t, "nobody", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, childEnv+"_STATE="+filepath.Join(t.TempDir(), "state"))
}

func TestDoctorInItsOwnPIDNamespace(t *testing.T) {
	testenv.Need(t, testenv.PIDNS)
	testenv.Need(t, testenv.Mount)
	runChild(t, "pidns", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS})
}

func TestDoctorInItsOwnNetwork(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	d := newDesk(t)
	if f := check(t, d.doctor(t, "--cri-endpoint", "none"), "capabilities", "network namespace"); !f.OK {
		t.Errorf("on the node itself: %+v", f)
	}
	runChild(t, "netns", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
}

// TestDoctorSockets: what is said of a runtime through its life, and that the advice
// works.
func TestDoctorSockets(t *testing.T) {
	d := newDesk(t)
	path := filepath.Join(d.dir, "cri.sock")
	endpoint := "unix://" + path
	srv, err := critest.Listen(path, critest.Sandbox{ID: strings.Repeat("a", 64), Namespace: "default", Name: "web", UID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	expect := func(ok bool, detail, fix string, flags ...string) {
		t.Helper()
		c := check(t, d.doctor(t, flags...), "runtime sockets", endpoint)
		if c.OK != ok || !strings.Contains(c.Detail, detail) || !strings.Contains(c.Fix, fix) {
			t.Errorf("%+v: want ok %t, %q, %q", c, ok, detail, fix)
		}
	}
	expect(true, "1 sandbox", "", "--cri-endpoint", endpoint)
	srv.SetMode(critest.CutOff)
	expect(false, "it was named", "correct --cri-endpoint", "--cri-endpoint", endpoint)

	st, err := state.Open(d.state, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := st.RememberRuntimes(endpoint); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	expect(false, "answered here before", "holdfast forget-runtime "+endpoint)
	if code, _, stderr := invoke(t, "forget-runtime", "--state-dir", d.state, endpoint); code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, s := range d.doctor(t).Sections {
		for _, c := range s.Checks {
			if s.Name == "runtime sockets" && c.Name == endpoint {
				t.Errorf("forgotten, and still asked: %+v", c)
			}
		}
	}
}

// TestDoctorCleansHostileText: names from the node do not reach the terminal raw.
func TestDoctorCleansHostileText(t *testing.T) {
	d := newDesk(t)
	d.write(t, filepath.Join(d.conf, "50-\x1b[2J.conf"), `{"name":`)
	d.write(t, filepath.Join(d.store, "\x1b[31mred"), "")
	for _, format := range []string{"wide", "json", "yaml"} {
		_, out, stderr := invoke(t, append([]string{"doctor", "-o", format}, d.flags("--cri-endpoint", "none")...)...)
		if strings.Contains(out+stderr, "\x1b") {
			t.Errorf("-o %s: a control character", format)
		}
		if !strings.Contains(out, "50-") {
			t.Errorf("-o %s: the broken file is not named", format)
		}
	}
}

// TestRealDocumentsFitTheSchema holds what the commands print to what is published.
func TestRealDocumentsFitTheSchema(t *testing.T) {
	d := newDesk(t)
	none := d.flags("--cri-endpoint", "none")
	state := []string{"--state-dir", d.state}
	for _, args := range [][]string{
		append([]string{"audit"}, none...),
		append([]string{"audit", "--no-record", "--exclude", "10.200.0.0/30", "--network", deskNet}, none...),
		append([]string{"explain", "10.200.0.2"}, none...),
		append([]string{"gc", "--dry-run", "--exclude", "0.0.0.0/0", "--exclude", "::/0"}, none...),
		append([]string{"doctor"}, none...),
		append([]string{"journal"}, state...),
		append([]string{"hold", "10.200.0.3", "--why", "test"}, state...),
		append([]string{"unhold", "10.200.0.3"}, state...),
		{"version"},
	} {
		t.Run(args[0], func(t *testing.T) {
			_, out, stderr := invoke(t, append(args, "-o", "json")...)
			if out == "" {
				t.Fatal(stderr)
			}
			accepts(t, out)
		})
	}
}
