package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	"github.com/holdfast-cni/holdfast/internal/failpoint"
)

const (
	matrixRanges = `"ranges": [[{"subnet": "198.18.0.0/24"}], [{"subnet": "2001:db8::/122"}]]`
	matrixID     = "victim"
	stampAttr    = "user.holdfast.stamp"
	many         = 1_000_000
)

// killCase is one command in one state of the directory.
type killCase struct {
	name    string
	column  string // of docs/proof.md
	command string
	// prepare makes the state, after the planted files; nil for no directory at all.
	prepare func(m *killSite)
	lines   []string // failpoints for every run of the command
	fails   bool     // by these
	only    []failpoint.Point
}

func killCases() []killCase {
	nothing := func(*killSite) {}
	before := func(m *killSite) { m.ok("ADD", "earlier") } // an index that counts
	has := func(m *killSite) { m.ok("ADD", matrixID) }
	draft := []failpoint.Point{failpoint.IpamDraftWritten, failpoint.IpamDraftStamped, failpoint.IpamDraftSynced, failpoint.IpamReserved, failpoint.IpamStoreSynced}
	return []killCase{
		{name: "ADD in a new directory", column: "ADD", command: "ADD"},
		{name: "ADD without an index", column: "ADD", command: "ADD", prepare: nothing},
		{name: "ADD with an index", column: "ADD", command: "ADD", prepare: before, only: []failpoint.Point{
			failpoint.IpamReserved, failpoint.IpamIndexMarked, failpoint.IpamIndexSlots, failpoint.IpamIndexSaved,
		}},
		{name: "ADD without O_TMPFILE", column: "ADD", command: "ADD", prepare: before, lines: []string{"ipam.tmpfile error(no)"}, only: draft},
		{name: "ADD without attributes", column: "ADD", command: "ADD", prepare: before, lines: []string{"ipam.xattr error(no)"}, only: draft},
		{name: "ADD that is taken back under the lock", column: "ADD", command: "ADD", prepare: before, fails: true,
			lines: []string{"ipam.last.cut 1*off->1*error(injected)"}, only: []failpoint.Point{failpoint.IpamRemoveBefore, failpoint.IpamRemoved}},
		{name: "ADD that is taken back after it", column: "ADD", command: "ADD", prepare: before, fails: true,
			lines: []string{"ipam.store.synced 1*error(injected)"}, only: []failpoint.Point{failpoint.IpamRemoveBefore, failpoint.IpamRemoved, failpoint.IpamIndexSaved}},
		{name: "DEL", column: "DEL", command: "DEL", prepare: has},
		{name: "DEL without an index", column: "DEL", command: "DEL", prepare: func(m *killSite) { has(m); must(m.t, os.RemoveAll(m.run)) }, only: []failpoint.Point{
			failpoint.IpamRemoved, failpoint.IpamIndexMarked, failpoint.IpamIndexCut, failpoint.IpamIndexSlots, failpoint.IpamIndexSaved,
		}},
		{name: "take over", column: "take over", command: "ADD", prepare: func(m *killSite) { has(m); m.age(matrixID) }},
	}
}

// killSite is a directory for the cells of one case after the other.
type killSite struct {
	t               *testing.T
	bin             Plugin // with failpoints
	dir, data, run  string
	extras          string // further members of "ipam", each behind a comma
	private         *strings.Replacer
	cells, finished int
	died            map[failpoint.Point]map[string]bool
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (m *killSite) net() string { return filepath.Join(m.data, "net") }

// at puts addresses that are ours alone in the place of those that every test has; see
// onItsOwn.
func (m *killSite) at(text string) string {
	if m.private == nil {
		return text
	}
	return m.private.Replace(text)
}

func (m *killSite) config(p Plugin) config {
	ipam := m.at(matrixRanges)
	if !p.upstream() {
		ipam += fmt.Sprintf(`, "runDir": %q, "stateDir": %q, "heal": {"disabled": true}`, m.run, filepath.Join(m.dir, "state")) + m.extras
	}
	return config{version: "1.1.0", name: "net", dataDir: m.data, ipam: ipam}
}

// call runs a program on the directory, with these failpoints, and returns what is left of
// them.
func (m *killSite) call(p Plugin, command, id string, lines ...string) (reply, string) {
	m.t.Helper()
	r := request{command: command, id: id, ifname: "eth0", netns: "/var/run/netns/" + id, config: m.config(p)}
	c := r.call(p)
	file := filepath.Join(m.dir, "failpoints")
	must(m.t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	c.env = append(c.env, failpoint.Env+"="+file)
	got, err := p.run(m.t.Context(), c)
	must(m.t, err)
	left, err := os.ReadFile(file)
	must(m.t, err)
	return got, string(left)
}

// ok runs ours and wants success.
func (m *killSite) ok(command, id string) {
	m.t.Helper()
	if got, _ := m.call(m.bin, command, id); got.exit != 0 {
		m.t.Fatalf("%s %s: %+v", command, id, got)
	}
}

// age makes the reservations of an ID those of an earlier boot.
func (m *killSite) age(id string) {
	m.t.Helper()
	for name, content := range m.reservations() {
		if content != id+"\r\neth0" {
			continue
		}
		stamp := m.stamp(name)
		if len(stamp) != 49 {
			m.t.Fatalf("%s has the stamp %q", name, stamp)
		}
		boot := strings.Repeat("\x00", 6) + "\x40\x00\x80" + strings.Repeat("\x00", 7)
		must(m.t, unix.Setxattr(filepath.Join(m.net(), name), stampAttr, []byte(stamp[:1]+boot+stamp[17:]), 0))
	}
}

func (m *killSite) stamp(name string) string {
	buf := make([]byte, 512)
	n, err := unix.Getxattr(filepath.Join(m.net(), name), stampAttr, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func (m *killSite) reservations() map[string]string {
	m.t.Helper()
	all := snapshot(m.t, m.net())
	maps.DeleteFunc(all, func(name, _ string) bool {
		_, err := netip.ParseAddr(name)
		return err != nil
	})
	return all
}

func (m *killSite) prepare(k killCase) {
	m.t.Helper()
	must(m.t, errors.Join(os.RemoveAll(m.data), os.RemoveAll(m.run)))
	if k.prepare == nil {
		return
	}
	must(m.t, os.MkdirAll(m.net(), 0o755))
	for name, content := range map[string]string{"198.18.0.3": "other\r\neth0", "2001:db8::3": "other\r\neth0"} {
		must(m.t, os.WriteFile(filepath.Join(m.net(), name), []byte(content), 0o600))
	}
	k.prepare(m)
}

// sound looks at the directory after the first or a later process ended.
func (m *killSite) sound(k killCase, first bool) {
	m.t.Helper()
	others := 0
	for name, content := range m.reservations() {
		switch content {
		case "other\r\neth0":
			others++
		case matrixID + "\r\neth0", "earlier\r\neth0", "next\r\neth0":
			if want := !slices.Contains(k.lines, "ipam.xattr error(no)"); first && content[0] == 'v' && (m.stamp(name) != "") != want {
				m.t.Errorf("%s has the stamp %q", name, m.stamp(name))
			}
		default:
			m.t.Errorf("%s holds %q", name, content)
		}
	}
	if k.prepare != nil && others != 2 {
		m.t.Errorf("others' reservations: %d of 2", others)
	}
}

// converges lets host-local have a turn, and brings the command to its end.
func (m *killSite) converges(k killCase) {
	m.t.Helper()
	if got, _ := m.call(upstream(), "ADD", "next"); got.exit != 0 {
		m.t.Fatalf("host-local's ADD: %+v", got)
	}
	if got, _ := m.call(m.bin, "CHECK", "next"); got.exit != 0 {
		m.t.Errorf("ours does not see what host-local did: %+v", got)
	}
	lines := k.lines
	if k.fails {
		lines = nil
	}
	if got, _ := m.call(m.bin, k.command, matrixID, lines...); got.exit != 0 {
		// As with host-local: the runtime deletes before it adds again.
		if f, err := got.failure(); err != nil || k.command != "ADD" || !strings.Contains(f.Msg, "duplicate allocation is not allowed") {
			m.t.Errorf("again: %+v", got)
		}
		m.ok("DEL", matrixID)
		m.ok("ADD", matrixID)
	}
	m.sound(k, false)
	if k.command == "ADD" {
		if n := m.count(matrixID); n != 2 {
			m.t.Errorf("%d reservations after ADD", n)
		}
		m.ok("CHECK", matrixID)
	}
	m.ok("DEL", matrixID)
	m.ok("DEL", "next")
	if n := m.count(matrixID) + m.count("next"); n != 0 {
		m.t.Errorf("%d reservations after DEL", n)
	}
	for name := range snapshot(m.t, m.net()) {
		_, err := netip.ParseAddr(name)
		if temp := strings.HasPrefix(name, "last_reserved_ip.holdfast-new-"); err != nil && name != "lock" &&
			name != "last_reserved_ip.0" && name != "last_reserved_ip.1" && (!temp || !slices.Contains(k.lines, "ipam.tmpfile error(no)")) {
			m.t.Errorf("left %s", name)
		}
	}
}

func (m *killSite) count(id string) (n int) {
	for _, content := range m.reservations() {
		if content == id+"\r\neth0" {
			n++
		}
	}
	return n
}

// costsTime: an error there costs time and nothing else.
func costsTime(p failpoint.Point) bool {
	return p == failpoint.IpamTmpfile || p == failpoint.IpamXattr || strings.HasPrefix(string(p), "ipam.index.")
}

func TestKillMatrix(t *testing.T) {
	dir := t.TempDir()
	m := &killSite{t: t, bin: Plugin{Path: buildWithFailpoints(t, dir), Type: oursType}, dir: dir,
		data: filepath.Join(dir, "networks"), run: filepath.Join(dir, "run"), died: map[failpoint.Point]map[string]bool{}}
	start := time.Now()
	for _, k := range killCases() {
		t.Run(k.name, func(t *testing.T) { m.all(t, k) })
	}
	m.t = t
	proof, err := os.ReadFile("../../docs/proof.md")
	must(t, err)
	points := 0
	for _, p := range failpoint.Names() {
		if !strings.HasPrefix(string(p), "ipam.") {
			continue
		}
		points++
		if m.died[p] == nil {
			t.Errorf("no cell died at %s", p)
		}
		cells := ""
		for _, column := range []string{"ADD", "DEL", "take over"} {
			if m.died[p][column] {
				cells += " x |"
			} else {
				cells += "  |"
			}
		}
		if !regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(string(p)) + "` \\| [^|]+ \\|" + regexp.QuoteMeta(cells) + "$").Match(proof) {
			t.Errorf("docs/proof.md should have for %s: |%s", p, cells)
		}
	}
	fmt.Printf("kill matrix of holdfast-ipam: %d cells, %d points, %d cases: %d converged (%s)\n",
		m.cells, points, len(killCases()), m.finished, time.Since(start).Round(time.Second))
}

func buildWithFailpoints(t *testing.T, dir string) string {
	t.Helper()
	wd, err := os.Getwd()
	must(t, err)
	root, err := prebuilt.FindRoot(wd)
	must(t, err)
	bin := filepath.Join(dir, "holdfast-ipam")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags", "failpoint", "-o", bin, oursPackage)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// passages counts how often the command comes to each point.
func (m *killSite) passages(k killCase) map[failpoint.Point]int {
	m.t.Helper()
	m.prepare(k)
	lines := slices.Clone(k.lines)
	for _, p := range failpoint.Names() {
		if strings.HasPrefix(string(p), "ipam.") && !strings.Contains(strings.Join(k.lines, "\n"), string(p)+" ") {
			lines = append(lines, fmt.Sprintf("%s %d*off", p, many))
		}
	}
	got, left := m.call(m.bin, k.command, matrixID, lines...)
	if (got.exit != 0) != k.fails {
		m.t.Fatalf("without anything injected: %+v", got)
	}
	n := map[failpoint.Point]int{}
	for line := range strings.Lines(left) {
		name, terms, _ := strings.Cut(strings.TrimSpace(line), " ")
		if times, ok := strings.CutSuffix(terms, "*off"); ok {
			left, err := strconv.Atoi(times)
			must(m.t, err)
			if left < many {
				n[failpoint.Point(name)] = many - left
			}
		}
	}
	return n
}

func (m *killSite) all(t *testing.T, k killCase) {
	m.t = t
	passed := m.passages(k)
	for _, p := range k.only {
		if passed[p] == 0 {
			t.Errorf("%s is not passed any more", p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(passed)) {
		if k.only != nil && !slices.Contains(k.only, p) {
			continue
		}
		nths := []int{1, passed[p]}
		for _, nth := range slices.Compact(nths) {
			for _, action := range []string{"kill", "error(injected)"} {
				if k.fails && action != "kill" {
					continue // two errors at once
				}
				t.Run(fmt.Sprintf("%s/%d/%.4s", p, nth, action), func(t *testing.T) {
					m.t = t
					m.one(k, p, nth, action)
					if !t.Failed() {
						m.finished++
					}
				})
			}
		}
	}
	m.t = t
}

func (m *killSite) one(k killCase, p failpoint.Point, nth int, action string) {
	t := m.t
	m.cells++
	m.prepare(k)
	before := m.reservations()
	line := fmt.Sprintf("%s 1*%s", p, action)
	if nth > 1 {
		line = fmt.Sprintf("%s %d*off->1*%s", p, nth-1, action)
	}
	got, left := m.call(m.bin, k.command, matrixID, append([]string{line}, k.lines...)...)
	if !strings.Contains("\n"+left, fmt.Sprintf("\n%s off\n", p)) {
		t.Fatalf("never came to the point: %s\n%+v", left, got)
	}
	switch {
	case action == "kill":
		if !got.killed {
			t.Fatalf("not killed: %+v", got)
		}
		if m.died[p] == nil {
			m.died[p] = map[string]bool{}
		}
		m.died[p][k.column] = true
		m.sound(k, true)
	case costsTime(p) && (got.exit == 0 || p != failpoint.IpamXattr || k.column != "take over"): // with the old stamp it would be dead
		if got.exit != 0 {
			t.Errorf("an error that costs time alone is one of the command: %+v", got)
		}
	default:
		f, err := got.failure()
		if err != nil || !strings.Contains(f.Msg, "injected") {
			t.Errorf("error %+v, %v; stdout %q", f, err, got.stdout)
		}
		if now := m.reservations(); k.command == "ADD" && !maps.Equal(now, before) {
			t.Errorf("a failed ADD leaves %v of %v", now, before)
		}
		m.sound(k, true)
	}
	m.converges(k)
}
