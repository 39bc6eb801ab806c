package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/cri"
	"github.com/holdfast-cni/holdfast/internal/sys/proc"
)

func newDoctor(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "What this node lets holdfast see and do, and what to do about the rest",
		Long: `doctor looks at everything that a release needs: the view of the whole node, the
capabilities, each witness, each runtime socket, the stores with their locks, and the
state directory. Each check that is not well says what to do.

It writes nothing and waits at most a second for locks. FAIL stands in the way of a
release, warn does not. It exits 4 when something does.`,
		Example: `  holdfast doctor
  holdfast doctor -o wide        sockets that are not there, too
  holdfast doctor -o json`,
		Args: args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			for _, w := range a.opts.warnings() {
				a.say("warning: %s", w)
			}
			x, err := examine(cmd.Context(), a.opts)
			if err != nil {
				return err
			}
			defer x.n.Close()
			doc := x.document()
			if err := a.emit(doc, func(w io.Writer) { a.doctorText(w, x) }); err != nil {
				return err
			}
			if !doc.OK {
				return exitError(exitWithheld)
			}
			return nil
		},
	}
	a.opts.addNode(cmd.Flags())
	return cmd
}

// finding is one check.
type finding struct {
	api.Check
	// blocks: while it is not well, releases are withheld.
	blocks bool
}

// room is a section of findings.
type room struct {
	name     string
	findings []finding
}

// examination is one look at the node for doctor and bundle. It only reads.
type examination struct {
	o  *options
	n  *node
	au *sweep.Audit
	// closed says why the state directory cannot be opened; n then looks without one.
	closed error
	kernel string
	rooms  []room
}

// examine looks at everything. An error is a usage error or the end of ctx: what is
// wrong with the node is a finding.
func examine(ctx context.Context, o *options) (*examination, error) {
	x := &examination{o: o}
	var err error
	if x.n, err = openNode(o, readOnly); err != nil {
		return nil, err
	}
	x.closed = x.n.unwritable
	if x.au, err = x.n.engine.Look(ctx, x.n.policy); err != nil {
		x.n.Close()
		return nil, err
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		x.kernel = unix.ByteSliceToString(u.Release[:])
	}
	x.rooms = []room{
		{"vantage", x.vantage(ctx)},
		{"capabilities", x.capabilities()},
		{"witnesses", x.witnesses(ctx)},
		{"grace", x.grace()},
		{"runtime sockets", x.sockets(ctx)},
		{"stores", x.stores()},
		{"locks", x.locks(ctx)},
		{"state", x.stateDir()},
		{"configuration", x.configuration()},
		{"allocator", x.allocator()},
		{"versions", x.versions()},
		{"boots", x.boots()},
	}
	for r := range x.rooms {
		for i := range x.rooms[r].findings {
			f := &x.rooms[r].findings[i]
			if f.OK {
				f.Fix = ""
			}
			// Details quote foreign text already where it matters; this holds for all.
			f.Name, f.Detail, f.Fix = report.Clean(f.Name), report.Clean(f.Detail), report.Clean(f.Fix)
		}
	}
	return x, nil
}

// obstacles counts what stands in the way of a release.
func (x *examination) obstacles() int {
	n := 0
	for _, r := range x.rooms {
		for _, f := range r.findings {
			if !f.OK && f.blocks {
				n++
			}
		}
	}
	return n
}

func (x *examination) document() *api.Doctor {
	d := &api.Doctor{
		TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindDoctor},
		Node:     nodeName(), BootID: x.au.Case.Now.Boot, At: x.au.Case.Now.Wall,
		Version: version, Commit: commit, Kernel: x.kernel, Sections: []api.Section{}, OK: x.obstacles() == 0,
	}
	for _, r := range x.rooms {
		s := api.Section{Name: r.name, Checks: []api.Check{}}
		for _, f := range r.findings {
			s.Checks = append(s.Checks, f.Check)
		}
		d.Sections = append(d.Sections, s)
	}
	return d
}

func (a *app) doctorText(w io.Writer, x *examination) {
	for i, r := range x.rooms {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, a.paint("\x1b[1m", strings.ToUpper(r.name)))
		absent := 0
		for _, f := range r.findings {
			if f.OK && f.Detail == notThere && !a.wide() {
				absent++
				continue
			}
			mark, colour := "ok  ", ""
			switch {
			case !f.OK && f.blocks:
				mark, colour = "FAIL", "\x1b[31m"
			case !f.OK:
				mark, colour = "warn", "\x1b[33m"
			}
			line := "  " + a.paint(colour, mark) + "  " + f.Name
			if f.Detail != "" {
				line += ": " + f.Detail
			}
			fmt.Fprintln(w, line)
			if f.Fix != "" {
				fmt.Fprintln(w, "        what to do: "+f.Fix)
			}
		}
		if absent > 0 {
			fmt.Fprintf(w, "  ok    %d more places where distributions put a socket: nothing there (-o wide names them)\n", absent)
		}
		if len(r.findings) == 0 {
			fmt.Fprintln(w, "  ok    nothing here")
		}
	}
	if n := x.obstacles(); n > 0 {
		fmt.Fprintf(w, "\nReleases would be withheld: %d of the checks above say FAIL.\n", n)
		return
	}
	fmt.Fprintln(w, "\nA release would be possible.")
}

func (a *app) paint(colour, s string) string {
	if !a.colour || colour == "" {
		return s
	}
	return colour + s + "\x1b[0m"
}

// vantage is the kernel testimony's own checks, and what the judge made of them.
func (x *examination) vantage(ctx context.Context) []finding {
	var out []finding
	if os.Geteuid() != 0 {
		out = append(out, finding{blocks: true, Check: api.Check{
			Name: "root", Detail: fmt.Sprintf("this is user %d, who cannot see most of the node; much of what follows is for that alone", os.Geteuid()), Fix: "run it as root",
		}})
	}
	v := report.Vantage(&x.au.Case, x.au.Judgement)
	if len(v.Checks) == 0 {
		// A silent witness carries no facts. It still says what it lacked.
		w := proc.New(proc.Config{Proc: x.o.proc, CNIBinDirs: orDefault(x.o.binDirs, defaultBinDirs()), Clock: x.n.clock.Now, Timeout: x.o.timeout})
		for _, c := range w.Vantage(ctx).Checks {
			v.Checks = append(v.Checks, api.Check(c))
		}
	}
	for _, c := range v.Checks {
		// The judge weighs them: a /proc of another PID namespace may still show the
		// runtimes' own processes.
		out = append(out, finding{Check: c})
	}
	f := finding{blocks: true, Check: api.Check{
		Name: "the whole node is seen", OK: v.Proven, Detail: v.Detail,
		Fix: "see the checks that are not ok above; while the node is not seen whole, nothing is released",
	}}
	if v.Proven {
		f.Detail = "proven"
	}
	return append(out, f)
}

// capabilities are those that some driver uses. Those whose lack makes a witness silent
// block; the lack of others costs only what is said.
func (x *examination) capabilities() []finding {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return []finding{{Check: api.Check{Name: "effective set", Detail: err.Error(), Fix: "run as root"}}}
	}
	has := func(c int) bool {
		// Whoever may write everything may read everything.
		if c == unix.CAP_DAC_READ_SEARCH && data[0].Effective&(1<<unix.CAP_DAC_OVERRIDE) != 0 {
			return true
		}
		return data[c/32].Effective&(1<<(c%32)) != 0
	}
	var out []finding
	for _, c := range []struct {
		name   string
		bit    int
		cost   string
		blocks bool
	}{
		{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, "other users' processes cannot be read, so the kernel and process witnesses are silent and nothing is released", true},
		{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, "network namespaces cannot be entered, so the kernel witness is silent and nothing is released", true},
		{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, "the descriptors of other users' processes cannot be read, so the kernel and process witnesses are silent and nothing is released", true},
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, "left-over veths and firewall rules cannot be removed; an address whose veth stays is kept", false},
		{"CAP_NET_RAW", unix.CAP_NET_RAW, "iptables (legacy) does not work, so port mappings and masquerade rules stay", false},
		{"CAP_SYS_CHROOT", unix.CAP_SYS_CHROOT, "PID 1's mount namespace cannot be entered, so from a container namespace mounts are neither seen nor removed", false},
	} {
		f := finding{blocks: c.blocks, Check: api.Check{Name: c.name, OK: has(c.bit), Detail: "effective", Fix: "run as root, in a container as a privileged one, or add " + c.name}}
		if !f.OK {
			f.Detail = "missing: " + c.cost
		}
		out = append(out, f)
	}
	if same, err := proc.InInit(x.o.proc, "net"); err == nil {
		f := finding{Check: api.Check{Name: "network namespace", OK: same, Detail: "the node's own", Fix: "run in the node's network namespace (hostNetwork: true)"}}
		if !same {
			f.Detail = "not PID 1's: port mappings and firewall rules of the dead are not removed"
		}
		out = append(out, f)
	}
	if m, err := readSmall(filepath.Join(x.o.proc, "self/uid_map")); err == nil {
		f := finding{Check: api.Check{
			Name: "user namespace", OK: slices.Equal(strings.Fields(m), []string{"0", "0", "4294967295"}), Detail: "all users are the node's own",
			Fix: "run in the node's user namespace",
		}}
		if !f.OK {
			f.Detail = "a user namespace of its own: the capabilities above hold in it alone"
		}
		out = append(out, f)
	}
	if label, err := readSmall(filepath.Join(x.o.proc, "self/attr/current")); err == nil {
		if label = strings.Trim(label, "\x00\n "); label != "" {
			out = append(out, finding{Check: api.Check{Name: "security module", OK: true, Detail: fmt.Sprintf("this process runs as %q", label)}})
		}
	}
	return out
}

// witnesses tells who answered, as the judge counts it.
func (x *examination) witnesses(ctx context.Context) []finding {
	fixes := map[string]string{
		claim.WitnessKernel:  "see vantage and capabilities; run as root in the node's PID namespace",
		claim.WitnessProcess: "see vantage and capabilities; run as root in the node's PID namespace",
		claim.WitnessCRI:     "see the runtime sockets; name the runtime's with --cri-endpoint, or say --cri-endpoint none if this node has no CRI runtime",
		claim.WitnessKube:    "what is needed is a Node object of this machine and, for our account, get of nodes and list of pods; --kubeconfig and --node-name say whom to ask and for whom",
		claim.WitnessBoot:    "make the boot ID readable through PID 1's /proc, or name the node's procfs with --proc",
	}
	if x.closed != nil {
		fixes[claim.WitnessCRI] = "see the state directory below: it says which runtimes must answer"
	}
	var out []finding
	c := x.au.Case
	if x.n.kube != nil && !slices.ContainsFunc(c.Testimonies, func(t claim.Testimony) bool { return t.Witness == claim.WitnessKube }) {
		// Nothing was dead, so that it was not needed.
		c.Testimonies = append(slices.Clone(c.Testimonies), x.n.kube.Ask(ctx))
	}
	for _, w := range report.Witnesses(&c, x.au.Judgement) {
		f := finding{blocks: w.Required, Check: api.Check{
			Name: w.Name, OK: w.State == string(claim.StateComplete) || !w.Required, Detail: w.State, Fix: fixes[w.Name],
		}}
		// Without these three nothing is released, but for cri where there is none.
		leftOut := !slices.Contains(x.n.policy.Required, w.Name) && w.Name != claim.WitnessBoot && w.Name != claim.WitnessKube && !(w.Name == claim.WitnessCRI && x.n.policy.CRINone)
		switch {
		case leftOut:
			f.OK, f.blocks = false, true
			f.Detail += ", left out by --witness"
			f.Fix = "name all three witnesses with --witness, or leave the flag away; nothing is released without them"
		case !w.Required:
			f.Detail += ", not required"
		}
		if w.Detail != "" {
			f.Detail += ": " + w.Detail
		}
		f.Detail += " (took " + w.Took + ")"
		out = append(out, f)
	}
	return out
}

// grace tells by whom it is set.
func (x *examination) grace() []finding {
	f := finding{Check: api.Check{Name: "least time between two sightings", OK: true, Detail: x.n.policy.Grace.String() + ", as --grace says"}}
	if k := x.n.kubelet; k.From != "" {
		f.Detail = fmt.Sprintf("%s, for a runtimeRequestTimeout of %s (%s)", x.n.policy.Grace, k.Timeout, k.From)
	} else if x.n.policy.Grace < safeGrace {
		f.OK, f.Fix = false, "leave --grace away: an ADD in flight may take longer"
	}
	return []finding{f}
}

// notThere is the detail of a place with nothing in it; the text counts these.
const notThere = "nothing there"

// sockets tells of every place where a runtime was looked for.
func (x *examination) sockets(ctx context.Context) []finding {
	if x.n.policy.CRINone {
		return []finding{{Check: api.Check{Name: "--cri-endpoint none", OK: true, Detail: "no CRI runtime is asked: kernel and processes alone speak"}}}
	}
	var runtimes []claim.Runtime
	asked := false
	for _, t := range x.au.Case.Testimonies {
		if t.CRI != nil {
			runtimes, asked = t.CRI.Runtimes, true
		}
	}
	if !asked {
		// The witness is silent for another reason, but what lies there is of use.
		if t := x.n.cri.Ask(ctx, false); t.CRI != nil {
			runtimes = t.CRI.Runtimes
		}
	}
	why := map[string]string{}
	names := []string{}
	for _, r := range runtimes {
		names = append(names, r.Endpoint)
	}
	for _, p := range cri.DefaultPlaces() {
		why[p.Endpoint] = p.Reason
		if !slices.Contains(names, p.Endpoint) {
			names = append(names, p.Endpoint)
		}
	}
	var out []finding
	for _, name := range names {
		i := slices.IndexFunc(runtimes, func(r claim.Runtime) bool { return r.Endpoint == name })
		if i >= 0 {
			out = append(out, socket(runtimes[i]))
			continue
		}
		f := finding{Check: api.Check{Name: name, OK: true, Detail: notThere}}
		path, err := cri.ParsePath(name)
		if err == nil {
			if _, err = os.Stat(path); err == nil {
				f.Detail = "another path to a socket that is asked already"
			}
		}
		if a := why[name]; a != "" && f.Detail != notThere {
			f.Detail += " (" + a + ")"
		}
		out = append(out, f)
	}
	if len(runtimes) == 0 {
		out = append(out, finding{Check: api.Check{
			Name: "a container runtime", Detail: "no socket was found in any place",
			Fix: "start the runtime, name its socket with --cri-endpoint, or say --cri-endpoint none if this node has no CRI runtime",
		}})
	}
	return out
}

// socket is one place where something lies.
func socket(r claim.Runtime) finding {
	role := "found by itself"
	switch {
	case r.Named && r.Known:
		role = "named, and has answered here before"
	case r.Named:
		role = "named by --cri-endpoint"
	case r.Known:
		role = "has answered here before"
	}
	f := finding{blocks: true, Check: api.Check{Name: r.Endpoint, OK: r.State != claim.StateSilent}}
	switch r.State {
	case claim.StateComplete:
		f.Detail = fmt.Sprintf("answered: %s %s, %s; %s", r.Name, r.Version, r.Detail, role)
		if r.PeerPID > 0 {
			f.Detail += fmt.Sprintf("; PID %d", r.PeerPID)
		}
	case claim.StateNone:
		f.Detail = "no CRI runtime: " + r.Detail + "; " + role
	default:
		f.Detail = "did not answer whole: " + r.Detail
		switch {
		case r.Named:
			f.Fix = "start the runtime, or correct --cri-endpoint"
		case r.Known:
			f.Fix = "start the runtime; if it is gone for good, say holdfast forget-runtime " + r.Endpoint
		default:
			f.Fix = "run as root and see that the runtime runs; if no runtime is behind this socket, remove it"
		}
	}
	return f
}

// boots tells which boot this is.
func (x *examination) boots() []finding {
	f := finding{blocks: true, Check: api.Check{Name: "current boot", Fix: "name the node's proc file system with --proc; without a boot ID nothing is released"}}
	id, err := x.n.clock.ID()
	if err != nil {
		f.Detail = err.Error()
		return []finding{f}
	}
	f.OK, f.Detail = true, id.Value
	if id.Fallback {
		f.Detail += " (read from our own view, which is proven to be PID 1's)"
	}
	past := finding{Check: api.Check{Name: "past boots", OK: true, Fix: "remove the file boots in the state directory when you know why; until then no boot proves a death"}}
	if x.n.state == nil || x.closed != nil {
		past.Detail = "not known: the state directory cannot be read"
		return []finding{f, past}
	}
	facts, err := x.n.state.ObserveBoot(id.Value)
	if past.OK = err == nil; err != nil {
		past.Detail = err.Error()
	} else {
		past.Detail = fmt.Sprintf("%d known", len(facts.Past))
	}
	return []finding{f, past}
}

// versions tells what is here. No binary is run: one that is found could be anything.
func (x *examination) versions() []finding {
	out := []finding{
		{Check: api.Check{Name: "holdfast", OK: true, Detail: version + ", commit " + commit}},
		{Check: api.Check{Name: "kernel", OK: x.kernel != "", Detail: x.kernel, Fix: "uname is refused; see the security module's log"}},
	}
	used := map[string]bool{}
	for _, s := range x.au.Case.Snapshots {
		for i := range s.Resources {
			if c := s.Resources[i].Cache; c != nil {
				for _, p := range c.Plugins {
					used[p] = true
				}
			}
		}
	}
	for _, t := range x.au.Case.Testimonies {
		if t.CRI == nil {
			continue
		}
		for _, r := range t.CRI.Runtimes {
			if r.State == claim.StateComplete {
				out = append(out, finding{Check: api.Check{Name: "runtime", OK: true, Detail: r.Name + " " + r.Version + " at " + r.Endpoint}})
			}
		}
	}
	bins := orDefault(x.o.binDirs, defaultBinDirs())
	for _, p := range []struct {
		name string
		runs bool // gc runs its DEL
	}{{"host-local", false}, {"bridge", false}, {"portmap", true}, {"firewall", true}, {"bandwidth", true}, {"tuning", true}} {
		var at []string
		for _, dir := range bins {
			path := filepath.Join(dir, p.name)
			if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0 {
				at = append(at, path)
			}
		}
		f := finding{Check: api.Check{
			Name: "plugin " + p.name, OK: len(at) > 0 || !(p.runs && used[p.name]), Detail: strings.Join(at, ", "),
			Fix: "name the directory of the CNI plugins with --cni-bin-dir; without it what this plugin made for dead Pods stays",
		}}
		if len(at) == 0 {
			f.Detail = "not found in " + strings.Join(bins, ", ")
			if p.runs && used[p.name] {
				f.Detail += ", and cached attachments use it"
			}
		}
		out = append(out, f)
	}
	return out
}

// configuration tells of the CNI configuration files: which networks they name, and
// which could not be read.
func (x *examination) configuration() []finding {
	var out []finding
	names := map[string][]string{}
	for _, s := range x.au.Case.Snapshots {
		for _, st := range s.Stores {
			for _, c := range st.Configs {
				names[c] = append(names[c], fmt.Sprintf("%q in %s", st.Network, st.DataDir))
			}
		}
	}
	files := make([]string, 0, len(names))
	for f := range names {
		files = append(files, f)
	}
	slices.Sort(files)
	for _, f := range files {
		out = append(out, finding{Check: api.Check{Name: f, OK: true, Detail: "names " + strings.Join(names[f], ", ")}})
	}
	for _, s := range x.au.Case.Snapshots {
		if s.Source != "hostlocal" {
			continue
		}
		for _, n := range s.Notes {
			if inStore(s.Stores, n.Path) {
				continue
			}
			out = append(out, finding{Check: api.Check{
				Name: n.Path, Detail: n.Text,
				Fix: "mend or remove the file; a network that is named only there is judged without its ranges, and a data directory that is named only there has to be given with --data-dir",
			}})
		}
	}
	if len(out) == 0 {
		out = append(out, finding{Check: api.Check{Name: "files", OK: true, Detail: "no configuration that uses host-local was found"}})
	}
	return out
}

// inStore reports whether path lies in one of the stores.
func inStore(stores []claim.Store, path string) bool {
	return slices.ContainsFunc(stores, func(s claim.Store) bool {
		return s.Network != "" && (path == s.Dir || strings.HasPrefix(path, s.Dir+"/"))
	})
}

// readSmall reads a file of a pseudo file system, at most 4 KiB.
func readSmall(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	return string(b), err
}

// pause waits, or not if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
