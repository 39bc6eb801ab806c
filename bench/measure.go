package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

// shellLoops are what operators do today, each with the list of sandboxes once. $1 holds
// the networks; $2 $3 $4 prints the sandboxes' IDs. host-local ends an ID with a carriage
// return, so none compares equal as it is.
var shellLoops = []struct{ name, text string }{
	// As Antrea's hack/gc-host-local.sh does it: `head` for each file, and the shell
	// compares with each sandbox.
	{"head, shell compares", `
ids=($("$2" "$3" "$4"))
for f in "$1"/*/[0-9]*; do
	owner=$(head -1 "$f") known=
	for id in "${ids[@]}"; do
		if [[ $owner == "$id"* ]]; then known=yes; break; fi
	done
	[[ $known ]] || echo "leaked: $f"
done
`},
	// As a line at a prompt.
	{"head | tr, grep", gripping(`$(head -1 "$f" | tr -d '\r')`)},
	// With the fewest processes for each file that such a loop can have: the shell itself
	// takes the carriage return off.
	{"head, grep", gripping(`$(head -1 "$f"); id=${id%$'\r'}`)},
}

// gripping is a loop that has grep look for each file's owner.
func gripping(owner string) string {
	return `
ids=$(mktemp)
trap 'rm -f "$ids"' EXIT
"$2" "$3" "$4" > "$ids"
for f in "$1"/*/[0-9]*; do
	id=` + owner + `
	grep -q "$id" "$ids" || echo "leaked: $f"
done
`
}

// summary is several runs of one program.
type summary struct {
	name      string
	wall, cpu []time.Duration
	rss       int64
}

func (s *summary) add(u usage) {
	s.wall, s.cpu = append(s.wall, u.Wall), append(s.cpu, u.CPU)
	s.rss = max(s.rss, u.RSS)
}

func median(list []time.Duration) time.Duration {
	l := slices.Sorted(slices.Values(list))
	if len(l) == 0 {
		return 0
	}
	return (l[(len(l)-1)/2] + l[len(l)/2]) / 2
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }

func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "  %-28s runs %2d  wall median %9s ms (min %s, max %s)  CPU median %8s ms (min %s)  RSS max %.1f MB\n",
		s.name, len(s.wall), ms(median(s.wall)), ms(slices.Min(s.wall)), ms(slices.Max(s.wall)),
		ms(median(s.cpu)), ms(slices.Min(s.cpu)), float64(s.rss)/1e6)
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// clock runs a program through clockMain, its output thrown away.
func (n *node) clock(ctx context.Context, argv ...string) (usage, error) {
	var u usage
	r, w, err := os.Pipe()
	if err != nil {
		return u, err
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, n.self, append([]string{roleClock}, argv...)...)
	cmd.ExtraFiles = []*os.File{w}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Start()
	w.Close()
	if err != nil {
		return u, err
	}
	err = json.NewDecoder(r).Decode(&u)
	if err = errors.Join(cmd.Wait(), err); err != nil {
		return u, fmt.Errorf("%s: %w: %s", argv[0], err, stderr.Bytes())
	}
	if u.Exit != 0 {
		return u, fmt.Errorf("%s: exit %d: %s", argv[0], u.Exit, stderr.Bytes())
	}
	return u, nil
}

// check runs one audit and looks that it did the work that is to be measured.
func (n *node) check(ctx context.Context, holdfast string, count, live int) error {
	cmd := exec.CommandContext(ctx, holdfast, append([]string{"audit", "-o", "json"}, n.flags()...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("audit: %w: %s", err, stderr.Bytes())
	}
	var doc struct {
		Resources []struct{ Kind, Verdict string }
		Witnesses []struct{ Name, State, Detail string }
		Vantage   struct{ Proven bool }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return err
	}
	got := map[string]int{}
	for _, r := range doc.Resources {
		if r.Kind == "reservation" {
			got[r.Verdict]++
		}
	}
	if got["InUse"] != live || got["Suspect"] != count-live || !doc.Vantage.Proven {
		return fmt.Errorf("audit found %v instead of %d InUse and %d Suspect (vantage proven: %t, witnesses %+v)",
			got, live, count-live, doc.Vantage.Proven, doc.Witnesses)
	}
	return nil
}

// compare runs audit and floor by turns, and who goes first by turns as well.
func (n *node) compare(ctx context.Context, s settings, out io.Writer) (audit, floor *summary, err error) {
	audit, floor = &summary{name: "holdfast audit"}, &summary{name: "floor"}
	runAudit := func() error {
		u, err := n.clock(ctx, append([]string{s.holdfast, "audit"}, n.flags()...)...)
		audit.add(u)
		return err
	}
	runFloor := func() error {
		u, err := n.clock(ctx, s.floor, n.dataDir(), n.socket())
		floor.add(u)
		return err
	}
	for i := range s.rounds {
		turn := []func() error{runAudit, runFloor}
		if i%2 == 1 {
			slices.Reverse(turn)
		}
		for _, f := range turn {
			if err := f(); err != nil {
				return nil, nil, err
			}
		}
	}
	audit.print(out)
	floor.print(out)
	return audit, floor, nil
}

func nodePart(ctx context.Context, s settings, out io.Writer) (audit *summary, err error) {
	n, err := s.newNode(ctx, s.limits.reservations, s.limits.live, out)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.check(ctx, s.holdfast, s.limits.reservations, s.limits.live); err != nil {
		return nil, err
	}
	audit, floor, err := n.compare(ctx, s, out)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "  audit / floor: wall %.2f, CPU %.2f (target: wall at most 1.5); RSS %.1f MB (target: at most 40)\n",
		ratio(median(audit.wall), median(floor.wall)), ratio(median(audit.cpu), median(floor.cpu)), float64(audit.rss)/1e6)
	if !slices.Contains(s.parts, "shell") {
		return audit, nil
	}
	for _, loop := range shellLoops {
		shell := &summary{name: "shell: " + loop.name}
		u, err := n.clock(ctx, "bash", "-c", loop.text, "bash", n.dataDir(), n.self, roleSandboxes, n.socket())
		if err != nil {
			return nil, err
		}
		shell.add(u)
		shell.print(out)
		fmt.Fprintf(out, "  shell loop / audit: wall %.0f, CPU %.0f (target: wall at least 300)\n",
			ratio(median(shell.wall), median(audit.wall)), ratio(median(shell.cpu), median(audit.cpu)))
	}
	return audit, nil
}

func largePart(ctx context.Context, s settings, out io.Writer, small *summary) (err error) {
	n, err := s.newNode(ctx, s.limits.manyReservs, s.limits.manyNet, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.check(ctx, s.holdfast, s.limits.manyReservs, s.limits.manyNet); err != nil {
		return err
	}
	audit, floor, err := n.compare(ctx, s, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  audit / floor: wall %.2f, CPU %.2f; RSS %.1f MB (target: at most 100)\n",
		ratio(median(audit.wall), median(floor.wall)), ratio(median(audit.cpu), median(floor.cpu)), float64(audit.rss)/1e6)
	if small != nil {
		fmt.Fprintf(out, "  growth from %d to %d reservations (x%.2f) and %d to %d namespaces (x%.2f): wall x%.2f, CPU x%.2f\n",
			s.limits.reservations, s.limits.manyReservs, float64(s.limits.manyReservs)/float64(s.limits.reservations),
			s.limits.live, s.limits.manyNet, float64(s.limits.manyNet)/float64(s.limits.live),
			ratio(median(audit.wall), median(small.wall)), ratio(median(audit.cpu), median(small.cpu)))
	}
	return nil
}

// newNode makes a node and says what it is.
func (s settings) newNode(ctx context.Context, count, live int, out io.Writer) (*node, error) {
	n, err := newNode()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := n.build(ctx, count, live); err != nil {
		return nil, errors.Join(err, n.close())
	}
	fmt.Fprintf(out, "\n%d reservations in %d networks, %d of them live: a namespace with a process, a sandbox, a cache entry each (made in %s)\n",
		count, networks, live, time.Since(start).Round(time.Second))
	return n, nil
}

// binaries returns the directory of programs that hack/testbin builds.
func binaries(ctx context.Context, names ...string) (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return "", err
	}
	cache, err := prebuilt.DefaultCache(os.Getenv)
	if err != nil {
		return "", err
	}
	dirs, err := prebuilt.Builder{Root: root, Cache: cache, Progress: os.Stderr}.Ensure(ctx, names...)
	if err != nil {
		return "", err
	}
	return dirs[0], nil
}

// machine says where and of what the figures are, and what else the machine does.
func machine(out io.Writer, commit, when string) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s: %s, %d cores, Linux %s, %s, load %s, commit %s\n", when, time.Now().UTC().Format(time.DateTime),
		runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.Version(), strings.Join(strings.Fields(string(load))[:3], " "), commit)
	return err
}
