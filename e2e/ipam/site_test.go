package ipam

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// site is a data directory with one network and the program that serves it.
type site struct {
	t       testing.TB
	p       Plugin
	config  config
	results map[string]string // ID/interface -> what its last good ADD printed
}

func newSite(t testing.TB, p Plugin, c config) *site {
	if c.version == "" {
		c.version = "1.1.0"
	}
	if c.name == "" {
		c.name = "net"
	}
	c.dataDir = filepath.Join(t.TempDir(), "networks")
	return &site{t: t, p: p, config: c, results: map[string]string{}}
}

// dir is the network's directory.
func (s *site) dir() string { return filepath.Join(s.config.dataDir, s.config.name) }

// expand puts the site's paths and the program's type into a text of the table.
func (s *site) expand(text string) string {
	return strings.NewReplacer("${NET}", s.dir(), "${DATA}", s.config.dataDir, "${TYPE}", s.p.Type).Replace(text)
}

// step is one thing that happens in a scene.
type step func(s *site)

// opt changes a call or looks at its reply.
type opt struct {
	change func(s *site, r *request)
	check  func(s *site, r reply)
}

// splitOwner reads "ID/IFNAME"; the interface is eth0 if there is none.
func splitOwner(owner string) (id, ifname string) {
	id, ifname, ok := strings.Cut(owner, "/")
	if !ok {
		ifname = "eth0"
	}
	return id, ifname
}

// do runs a command. Without an opt that looks at the reply it has to succeed.
func do(command, owner string, opts ...opt) step {
	return func(s *site) {
		s.t.Helper()
		r := request{command: command, netns: "/var/run/netns/of-" + owner, config: s.config}
		if owner != "" {
			r.id, r.ifname = splitOwner(owner)
		}
		checked := false
		for _, o := range opts {
			if o.change != nil {
				o.change(s, &r)
			}
			checked = checked || o.check != nil
		}
		r.stdin, r.config.ipam, r.config.top = s.expand(r.stdin), s.expand(r.config.ipam), s.expand(r.config.top)
		got, err := s.p.run(s.t.Context(), r.call(s.p))
		if err != nil {
			s.t.Fatalf("%s %s: %v", command, owner, err)
		}
		if command == "ADD" && got.exit == 0 {
			s.results[owner] = got.stdout
		}
		if !checked {
			opts = append(slices.Clip(opts), succeeds())
		}
		for _, o := range opts {
			if o.check != nil {
				o.check(s, got)
			}
		}
		if s.t.Failed() {
			s.t.Fatalf("%s %s: exit %d\nstdin  %s\nstdout %s\nstderr %s", command, owner, got.exit, r.call(s.p).stdin, got.stdout, got.stderr)
		}
	}
}

func add(owner string, opts ...opt) step { return do("ADD", owner, opts...) }
func del(owner string, opts ...opt) step { return do("DEL", owner, opts...) }

// check hands over the result of the owner's ADD, as the runtime has to.
func check(owner string, opts ...opt) step {
	prev := change(func(s *site, r *request) {
		if result := s.results[owner]; result != "" {
			r.config.top = `"prevResult": ` + result
		}
	})
	return do("CHECK", owner, append([]opt{prev}, opts...)...)
}

// gc says which attachments are valid. Owners none: an empty list.
func gc(owners []string, opts ...opt) step {
	list := []string{}
	for _, o := range owners {
		id, ifname := splitOwner(o)
		list = append(list, fmt.Sprintf(`{"containerID": %q, "ifname": %q}`, id, ifname))
	}
	return do("GC", "", append([]opt{top(`"cni.dev/valid-attachments": [` + strings.Join(list, ", ") + `]`)}, opts...)...)
}

func change(f func(s *site, r *request)) opt { return opt{change: f} }

func cniArgs(args string) opt     { return change(func(_ *site, r *request) { r.args = args }) }
func without(name string) opt     { return change(func(_ *site, r *request) { r.without = name }) }
func netns(path string) opt       { return change(func(_ *site, r *request) { r.netns = path }) }
func ipam(members string) opt     { return change(func(_ *site, r *request) { r.config.ipam = members }) }
func top(members string) opt      { return change(func(_ *site, r *request) { r.config.top = members }) }
func stdin(text string) opt       { return change(func(_ *site, r *request) { r.stdin = text }) }
func networkName(name string) opt { return change(func(_ *site, r *request) { r.config.name = name }) }
func dataDirectory(dir string) opt {
	return change(func(_ *site, r *request) { r.config.dataDir = dir })
}
func workingDirectory(dir string) opt {
	return change(func(s *site, r *request) { r.dir = s.expand(dir) })
}
func container(id, ifname string) opt {
	return change(func(_ *site, r *request) { r.id, r.ifname = id, ifname })
}

func looks(f func(s *site, r reply)) opt { return opt{check: f} }

func succeeds() opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		if r.exit != 0 {
			s.t.Errorf("exit %d, want 0", r.exit)
		}
	})
}

// failure is CNI's error document.
type failure struct {
	CNIVersion string `json:"cniVersion,omitempty"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

// failure reads the error document, which a plugin that fails prints on stdout.
func (r reply) failure() (failure, error) {
	var f failure
	if r.exit != 1 {
		return f, fmt.Errorf("exit %d, want 1", r.exit)
	}
	d := json.NewDecoder(strings.NewReader(r.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return f, fmt.Errorf("no error document: %w", err)
	}
	if d.More() {
		return f, fmt.Errorf("more than one document")
	}
	return f, nil
}

// failsWith wants this very error.
func failsWith(code uint, msg, details string) opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		got, err := r.failure()
		if err != nil {
			s.t.Error(err)
			return
		}
		got.CNIVersion = "" // the specification has it, skel leaves it out
		want := failure{Code: code, Msg: s.expand(msg), Details: s.expand(details)}
		if d := cmp.Diff(want, got); d != "" {
			s.t.Errorf("error (-want +got):\n%s", d)
		}
	})
}

// fails wants this text; 999 is the code for all that has none of its own.
func fails(msg string) opt { return failsWith(999, msg, "") }

// failsLike wants a text that begins so, where the rest is the library's, the
// kernel's, or in random order.
func failsLike(code uint, prefix string) opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		got, err := r.failure()
		if err != nil {
			s.t.Error(err)
			return
		}
		if want := s.expand(prefix); got.Code != code || !strings.HasPrefix(got.Msg, want) {
			s.t.Errorf("error %d %q, want %d %q...", got.Code, got.Msg, code, want)
		}
	})
}

// result is what ADD prints, of every version.
type result struct {
	CNIVersion string `json:"cniVersion"`
	IPs        []struct {
		Version, Address, Gateway string
		Interface                 *int
	} `json:"ips"`
	IP4, IP6 *struct{ IP, Gateway string }
}

// addresses returns "ADDRESS/BITS via GATEWAY", in order; "" for a gateway that is not
// there.
func (r reply) addresses() ([]string, error) {
	if r.exit != 0 {
		return nil, fmt.Errorf("exit %d, want 0", r.exit)
	}
	var res result
	if err := json.Unmarshal([]byte(r.stdout), &res); err != nil {
		return nil, fmt.Errorf("no result: %w", err)
	}
	var out []string
	for _, i := range res.IPs {
		out = append(out, i.Address+" via "+i.Gateway)
	}
	for _, i := range []*struct{ IP, Gateway string }{res.IP4, res.IP6} {
		if i != nil {
			out = append(out, i.IP+" via "+i.Gateway)
		}
	}
	return out, nil
}

// gives wants these addresses: "ADDRESS/BITS via GATEWAY", or without the gateway where
// it does not matter.
func gives(want ...string) opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		got, err := r.addresses()
		if err != nil {
			s.t.Error(err)
			return
		}
		for i := range got {
			if i < len(want) && !strings.Contains(want[i], " via ") {
				got[i], _, _ = strings.Cut(got[i], " via ")
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			s.t.Errorf("addresses (-want +got):\n%s", d)
		}
	})
}

// prints wants stdout to be this JSON, whatever its spaces and the order of members.
func prints(want string) opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		var w, g any
		if err := json.Unmarshal([]byte(s.expand(want)), &w); err != nil {
			s.t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(r.stdout), &g); err != nil {
			s.t.Errorf("no JSON: %v", err)
			return
		}
		if d := cmp.Diff(w, g); d != "" || r.exit != 0 {
			s.t.Errorf("exit %d, stdout (-want +got):\n%s", r.exit, d)
		}
	})
}

func silent() opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		if r.exit != 0 || r.stdout != "" {
			s.t.Errorf("exit %d, stdout %q; want success without a word", r.exit, r.stdout)
		}
	})
}

func warns(text string, want bool) opt {
	return looks(func(s *site, r reply) {
		s.t.Helper()
		if strings.Contains(r.stderr, text) != want {
			s.t.Errorf("%q in stderr: want %v", text, want)
		}
	})
}

// file puts a file into the network's directory, with parents; a name may begin with
// ${DATA}.
func file(name, content string) step {
	return func(s *site) {
		s.t.Helper()
		path := s.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(s.expand(content)), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

func mkdir(name string) step {
	return func(s *site) {
		s.t.Helper()
		if err := os.MkdirAll(s.path(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) path(name string) string {
	if p := s.expand(name); filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(s.dir(), name)
}

// contains wants a file with exactly this content; lacks wants none.
func contains(name, want string) step {
	return func(s *site) {
		s.t.Helper()
		got, err := os.ReadFile(s.path(name))
		if err != nil || string(got) != want {
			s.t.Fatalf("%s holds %q, error %v; want %q", name, got, err, want)
		}
	}
}

func lacks(name string) step {
	return func(s *site) {
		s.t.Helper()
		if _, err := os.Lstat(s.path(name)); !os.IsNotExist(err) {
			s.t.Fatalf("%s: %v, want that it is not there", name, err)
		}
	}
}

// mode wants these permissions, less what the umask takes.
func mode(name string, want os.FileMode) step {
	return func(s *site) {
		s.t.Helper()
		fi, err := os.Stat(s.path(name))
		if err != nil {
			s.t.Fatal(err)
		}
		if got := fi.Mode().Perm(); got != want&^umask(s.t) {
			s.t.Fatalf("%s has mode %o, want %o less the umask", name, got, want)
		}
	}
}

// umask reads it without setting it, which would touch the whole process.
func umask(t testing.TB) os.FileMode {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var m os.FileMode
		if n, _ := fmt.Sscanf(line, "Umask: %o", &m); n == 1 {
			return m
		}
	}
	t.Fatal("no Umask in /proc/self/status")
	return 0
}

// reserved wants exactly these reservations: "ADDRESS ID/IFNAME", in any order.
func reserved(want ...string) step {
	return func(s *site) {
		s.t.Helper()
		got := []string{}
		for name, content := range snapshot(s.t, s.dir()) {
			if _, err := netip.ParseAddr(name); err == nil {
				got = append(got, name+" "+strings.ReplaceAll(content, "\r\n", "/"))
			}
		}
		slices.Sort(got)
		want := slices.Clone(want)
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" && len(want)+len(got) > 0 {
			s.t.Fatalf("reservations (-want +got):\n%s", d)
		}
	}
}

// snapshot returns every file below the directory by its relative name; a directory's
// name ends with a slash, and a symlink's content is its target.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	files, err := readTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readTree(dir string) (map[string]string, error) {
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			below, err := readTree(path)
			if err != nil {
				return nil, err
			}
			out[e.Name()+"/"] = ""
			for name, content := range maps.All(below) {
				out[e.Name()+"/"+name] = content
			}
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return nil, err
			}
			out[e.Name()] = "-> " + target
		default:
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			out[e.Name()] = string(content)
		}
	}
	return out, nil
}
