package killmatrix

import (
	"errors"
	"fmt"
	"maps"
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
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// scenario is a command on a node that is made the same for every cell.
type scenario struct {
	name string
	args []string
	// state is what the state directory holds, nil for none.
	state snapshot
	// leaked: the dead have left everything; otherwise nothing.
	leaked bool
	// cross: the state directory lies in another file system than the store.
	cross bool
	// lines are failpoints for every run but the recovery.
	lines []string
	// crash is a failpoint at which the command was killed before, once.
	crash string
	// robbed: what the living have reserved is gone; dirGone: with its directory. adopted: and
	// was made again, which the command takes back.
	robbed, dirGone, adopted bool
	// only are the points for which cells are made; nil for all that are passed.
	only []failpoint.Point
}

// switches are points at which an error is what a kernel or a file system says that cannot
// do something: then it is done another way, and the command succeeds.
func switches() []failpoint.Point {
	return []failpoint.Point{failpoint.MoveNoReplace, failpoint.RestoreTmpfile, failpoint.CacheRestoreTmpfile, failpoint.AdoptTmpfile}
}

// cell is one point of one scenario: what is done at its passage of that number.
type cell struct {
	s      *scenario
	point  failpoint.Point
	nth    int
	action string
}

func TestKillMatrix(t *testing.T) {
	testenv.Need(t, testenv.Netns)
	testenv.Need(t, testenv.Mount)
	m := &matrix{t: t, node: newNode(t, build(t)), hit: map[failpoint.Point]map[string]bool{}, commands: map[string]bool{}}
	m.here, m.other = filepath.Join(m.node.dir, "state"), filepath.Join(m.node.dir, "other/state")
	must(t, os.Mkdir(filepath.Dir(m.other), 0o755))
	must(t, unix.Mount("tmpfs", filepath.Dir(m.other), "tmpfs", 0, "size=16m"))
	t.Cleanup(func() {
		if err := unix.Unmount(filepath.Dir(m.other), 0); err != nil {
			t.Error(err)
		}
	})

	start := time.Now()
	for _, s := range m.scenarios() {
		t.Run(s.name, func(t *testing.T) { m.run(t, s) })
	}
	proof, err := os.ReadFile("../../docs/proof.md")
	must(t, err)
	for _, p := range failpoint.Names() {
		if strings.HasPrefix(string(p), "ipam.") {
			continue // holdfast-ipam's own matrix is in e2e/ipam
		}
		if m.hit[p] == nil {
			t.Errorf("no cell died at %s", p)
		}
		cells := ""
		for _, command := range []string{"audit", "gc", "undo"} {
			if m.hit[p][command] {
				cells += " x |"
			} else {
				cells += "  |"
			}
		}
		t.Logf("covered: |%s|%s", p, strings.TrimSuffix(cells, " |"))
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(string(p)) + "` \\| [^|]+ \\|" + regexp.QuoteMeta(cells) + "$")
		if !row.Match(proof) {
			t.Errorf("docs/proof.md should have for %s: |%s", p, cells)
		}
	}
	fmt.Printf("kill matrix: %d cells, %d points, %d commands: %d converged (%s)\n",
		m.cells, len(m.hit), len(m.commands), m.converged, time.Since(start).Round(time.Second))
}

func build(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	must(t, err)
	root, err := prebuilt.FindRoot(wd)
	must(t, err)
	bin := filepath.Join(t.TempDir(), "holdfast")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags", "failpoint", "-o", bin, "./cmd/holdfast")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

type matrix struct {
	t           *testing.T
	node        *node
	here, other string                              // state directories
	hit         map[failpoint.Point]map[string]bool // the commands that died there
	commands    map[string]bool
	cells       int
	converged   int
}

func (m *matrix) scenarios() []*scenario {
	gc, undo := []string{"gc", "--wait"}, []string{"undo", "--all-since", "1h"}
	copies := []failpoint.Point{
		failpoint.CopyWritten, failpoint.CopySynced, failpoint.ReleaseCopyPlaced, failpoint.ReleaseCopiesSynced, failpoint.ReleaseLockHad,
		failpoint.ReleaseUnlinkBefore, failpoint.ReleaseUnlinkAfter, failpoint.ReleaseVaultSynced, failpoint.ReleaseStoreSynced,
	}
	back := []failpoint.Point{
		failpoint.CopyWritten, failpoint.CopySynced, failpoint.RestoreTmpfile, failpoint.RestorePlaced,
		failpoint.RestoreStoreSynced, failpoint.RestoreVaultUnlinked, failpoint.RestoreVaultSynced, failpoint.MoveNoReplace,
	}
	settle := []failpoint.Point{
		failpoint.SettleBefore, failpoint.SettleAfter, failpoint.SettleWritten, failpoint.DiscardUnlinked, failpoint.DiscardSynced,
		failpoint.CacheRestoreWritten, failpoint.CacheRestoreSynced, failpoint.CacheRestoreLinked, failpoint.CacheRestoreDirSynced,
	}
	unsettle := []failpoint.Point{
		failpoint.SettleBefore, failpoint.SettleAfter, failpoint.SettleWritten, failpoint.RestorePlaced, failpoint.RestoreVaultUnlinked,
		failpoint.CacheRestoreWritten, failpoint.CacheRestoreLinked,
	}
	adopt, unadopt := []string{"gc", "--adopt"}, []string{"undo"}
	making := []failpoint.Point{
		failpoint.AdoptTmpfile, failpoint.AdoptDraftWritten, failpoint.AdoptDraftSynced, failpoint.AdoptLockHad, failpoint.AdoptLinked,
		failpoint.AdoptStoreSynced, failpoint.AdoptIntents, failpoint.AdoptMade, failpoint.AdoptOutcomes, failpoint.JournalAppendWritten,
	}
	taking := []failpoint.Point{
		failpoint.UnadoptIntent, failpoint.UnadoptHeld, failpoint.UnadoptMoved, failpoint.UnadoptOutcome, failpoint.ReleaseRenameBefore, failpoint.ReleaseRenameAfter,
	}
	released, crossed := m.released(false), m.released(true)
	return []*scenario{
		{name: "audit", args: []string{"audit"}, leaked: true},
		{name: "gc", args: gc, leaked: true},
		{name: "gc of an old state", args: gc, leaked: true, state: oldJournal(m.t), only: []failpoint.Point{
			failpoint.JournalTempWritten, failpoint.JournalTempSynced, failpoint.JournalRenamed, failpoint.JournalNameSynced,
			failpoint.JournalCutTruncated, failpoint.StateAsideRenamed, failpoint.DiscardUnlinked, failpoint.DiscardSynced,
		}},
		{name: "gc without NOREPLACE", args: gc, leaked: true, lines: []string{"move.noreplace error(no)"}, only: []failpoint.Point{failpoint.MoveLinked}},
		{name: "gc across file systems", args: gc, leaked: true, cross: true, only: copies},
		{name: "gc after a crash", args: gc, leaked: true, crash: "release.rename.after 1*off->1*kill", only: settle},
		{name: "gc after a crash across file systems", args: gc, leaked: true, cross: true, crash: "release.unlink.after 1*off->1*kill", only: settle},
		{name: "undo", args: undo, state: released},
		{name: "undo without NOREPLACE", args: undo, state: released, lines: []string{"move.noreplace error(no)"}, only: []failpoint.Point{failpoint.MoveLinked}},
		{name: "undo without O_TMPFILE", args: undo, state: released, lines: []string{"cache.restore.tmpfile error(no)"}, only: []failpoint.Point{
			failpoint.CacheRestoreTemp, failpoint.CacheRestoreWritten, failpoint.CacheRestoreSynced,
		}},
		{name: "undo across file systems", args: undo, state: crossed, cross: true, only: back},
		{name: "undo across file systems without O_TMPFILE", args: undo, state: crossed, cross: true, lines: []string{"restore.tmpfile error(no)"}, only: without(back, failpoint.RestoreTmpfile)},
		{name: "adopt", args: adopt, state: released, robbed: true, only: making},
		{name: "adopt without the directory", args: adopt, state: released, robbed: true, dirGone: true, only: []failpoint.Point{failpoint.AdoptDirMade, failpoint.AdoptLinked}},
		{name: "adopt without O_TMPFILE", args: adopt, state: released, robbed: true, lines: []string{"adopt.tmpfile error(no)"}, only: []failpoint.Point{
			failpoint.AdoptDraftWritten, failpoint.AdoptDraftSynced, failpoint.AdoptLinked,
		}},
		{name: "adopt after a crash", args: adopt, state: released, robbed: true, crash: "adopt.linked 1*kill", only: []failpoint.Point{
			failpoint.SettleBefore, failpoint.SettleAfter, failpoint.SettleWritten,
		}},
		{name: "undo of an adoption", args: unadopt, state: released, robbed: true, adopted: true, only: taking},
		{name: "undo of an adoption after a crash", args: unadopt, state: released, robbed: true, adopted: true, crash: "unadopt.moved 1*kill", only: []failpoint.Point{
			failpoint.SettleBefore, failpoint.SettleAfter, failpoint.SettleWritten,
		}},
		{name: "undo after a crash", args: undo, state: released, crash: "undo.held 1*off->1*kill", only: unsettle},
	}
}

func without(list []failpoint.Point, p failpoint.Point) []failpoint.Point {
	return slices.DeleteFunc(slices.Clone(list), func(q failpoint.Point) bool { return q == p })
}

// released is the state directory after a gc without failpoints.
func (m *matrix) released(cross bool) snapshot {
	s := &scenario{args: []string{"gc", "--wait"}, leaked: true, cross: cross}
	m.prepare(m.t, s)
	m.converges(m.t, s)
	return take(m.t, m.state(s))
}

func (m *matrix) state(s *scenario) string {
	if s.cross {
		return m.other
	}
	return m.here
}

// prepare makes the node as the scenario finds it.
func (m *matrix) prepare(t *testing.T, s *scenario) {
	t.Helper()
	s.state.restore(t, m.state(s))
	if s.leaked {
		m.node.leak(t)
	} else {
		m.node.reclaim(t)
	}
	m.node.returned(t)
	if s.robbed {
		m.node.rob(t, s)
	}
	if s.adopted {
		o := m.node.holdfast(t, m.state(s), "", "gc", "--adopt")
		entries, err := readJournal(m.state(s))
		entries = slices.DeleteFunc(entries, func(e journal.Entry) bool { return e.State != journal.StateAdopted })
		if err != nil || o.code != 0 || len(entries) != len(m.node.live) {
			t.Fatalf("not adopted: %+v, %v", o, err)
		}
		s.args = []string{"undo", entries[0].ID}
		m.node.bare = entries[0].Release.Path
	}
	if s.crash != "" {
		if o, left := m.armed(t, s, s.crash); !o.killed || strings.Contains(left, "kill") {
			t.Fatalf("the crash before did not happen: %+v\n%s", o, left)
		}
	}
}

// armed runs the command with failpoints and returns what is left of them.
func (m *matrix) armed(t *testing.T, s *scenario, lines ...string) (outcome, string) {
	t.Helper()
	file := filepath.Join(m.node.dir, "failpoints")
	names := map[string]bool{}
	var text strings.Builder
	for _, l := range append(lines, s.lines...) {
		name, _, _ := strings.Cut(l, " ")
		if !names[name] {
			names[name] = true
			fmt.Fprintln(&text, l)
		}
	}
	must(t, os.WriteFile(file, []byte(text.String()), 0o600))
	o := m.node.holdfast(t, m.state(s), file, s.args...)
	left, err := os.ReadFile(file)
	must(t, err)
	return o, string(left)
}

// passages counts how often the command passes each point.
func (m *matrix) passages(t *testing.T, s *scenario) map[failpoint.Point]int {
	t.Helper()
	const many = 1_000_000
	var lines []string
	fixed := strings.Join(s.lines, "\n")
	for _, p := range failpoint.Names() {
		if !strings.Contains(fixed, string(p)+" ") {
			lines = append(lines, fmt.Sprintf("%s %d*off", p, many))
		}
	}
	var o outcome
	var left string
	for try := 1; try == 1 || try <= tries && m.watched(s, o); try++ {
		m.prepare(t, s)
		o, left = m.armed(t, s, lines...)
	}
	if o.code != 0 {
		t.Fatalf("without anything injected: %+v", o)
	}
	n := map[failpoint.Point]int{}
	for line := range strings.Lines(left) {
		name, terms, _ := strings.Cut(strings.TrimSpace(line), " ")
		times, ok := strings.CutSuffix(terms, "*off")
		if !ok {
			continue
		}
		k, err := strconv.Atoi(times)
		must(t, err)
		if k < many {
			n[failpoint.Point(name)] = many - k
		}
	}
	m.converges(t, s)
	return n
}

func (m *matrix) run(t *testing.T, s *scenario) {
	m.commands[s.args[0]] = true
	passed := m.passages(t, s)
	for _, p := range s.only {
		if passed[p] == 0 {
			t.Errorf("%s is not passed any more", p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(passed)) {
		if s.only != nil && !slices.Contains(s.only, p) {
			continue
		}
		nths := []int{1, 2, passed[p]}
		slices.Sort(nths)
		for _, nth := range slices.Compact(nths) {
			if nth <= passed[p] {
				m.one(t, cell{s, p, nth, "kill"})
			}
		}
		m.one(t, cell{s, p, 1, "error(injected)"})
		// These are passed for one thing after the other.
		if passed[p] > 1 && (strings.HasPrefix(string(p), "state.") || strings.HasPrefix(string(p), "journal.append.")) {
			m.one(t, cell{s, p, passed[p], "error(injected)"})
		}
	}
}

// one runs a cell: the failure, a look, the command once more without, and the node must
// be as if nothing had happened.
func (m *matrix) one(t *testing.T, c cell) {
	name := fmt.Sprintf("%s/%d/%.4s", c.point, c.nth, c.action)
	t.Run(name, func(t *testing.T) {
		m.cells++
		line := fmt.Sprintf("%s 1*%s", c.point, c.action)
		if c.nth > 1 {
			line = fmt.Sprintf("%s %d*off->1*%s", c.point, c.nth-1, c.action)
		}
		var o outcome
		// On a machine that stands still for seconds a confirmation is too old, and gc
		// rightly releases nothing; where somebody looks at the orphan's namespace, it stays.
		// Then the point was not passed, or not all was done, and the cell is made anew.
		for try := 1; ; try++ {
			m.prepare(t, c.s)
			var left string
			o, left = m.armed(t, c.s, line)
			came := strings.Contains("\n"+left, fmt.Sprintf("\n%s off\n", c.point))
			if came && (try == tries || !m.watched(c.s, o)) {
				break
			}
			if !came && (try == tries || o.code != 0 && o.code != 4) {
				t.Fatalf("never came to the point: %s\n%+v", left, o)
			}
		}
		if c.action == "kill" {
			if !o.killed {
				t.Fatalf("not killed: %+v", o)
			}
			if m.hit[c.point] == nil {
				m.hit[c.point] = map[string]bool{}
			}
			m.hit[c.point][c.s.args[0]] = true
		} else {
			m.told(t, c, o)
		}
		if err := m.node.sound(m.state(c.s)); err != nil {
			t.Errorf("right after it: %v\n%s", err, o.output)
		}
		m.converges(t, c.s)
		if !t.Failed() {
			m.converged++
		} else {
			t.Logf("the first run: %+v", o)
		}
	})
}

// tries is how often something is done that others on the machine may disturb. What is
// wrong fails each time.
const tries = 3

// watched reports whether a gc that found no fault left the orphan's namespace alone: it
// was in use, as by whoever lists the namespaces of this machine just then.
func (m *matrix) watched(s *scenario, o outcome) bool {
	return s.args[0] == "gc" && o.code == 0 && m.node.isPinned()
}

// told: an error is reported, and success is claimed only where the command has done all
// that it was asked for.
func (m *matrix) told(t *testing.T, c cell, o outcome) {
	t.Helper()
	switch {
	case slices.Contains(switches(), c.point):
		if err := m.goal(c.s); o.code != 0 || err != nil {
			t.Errorf("the other way does not work: %v\n%+v", err, o)
		}
		return
	case o.code == 0:
		if err := m.goal(c.s); err != nil {
			t.Errorf("success is claimed: %v", err)
		}
	case o.code != 1 && o.code != 4:
		t.Errorf("exit %d, want 1 or 4", o.code)
	}
	if !strings.Contains(o.output, "injected") {
		t.Errorf("not reported")
	}
}

// goal holds when the command has done all that it was asked for.
func (m *matrix) goal(s *scenario) error {
	dir := m.state(s)
	errs := []error{m.node.sound(dir), m.node.settled(dir)}
	switch s.args[0] {
	case "audit":
		errs = append(errs, m.node.leaked())
	case "gc":
		errs = append(errs, m.node.gone())
	case "undo":
		if s.adopted {
			errs = append(errs, m.node.unadopted(dir))
			break
		}
		errs = append(errs, m.node.leaked(), m.node.held(dir))
	}
	if s.args[0] == "gc" && s.robbed {
		errs = append(errs, m.node.living())
	}
	return errors.Join(errs...)
}

// converges runs the command again, without failpoints, and checks the node.
func (m *matrix) converges(t *testing.T, s *scenario) {
	t.Helper()
	o := m.recover(t, s)
	for try := 1; try < tries && m.watched(s, o); try++ {
		o = m.recover(t, s)
	}
	if err := m.goal(s); err != nil {
		t.Errorf("after another run: %v\n%+v", err, o)
	}
}

func (m *matrix) recover(t *testing.T, s *scenario) outcome {
	t.Helper()
	// To undo what is undone is an error.
	done := s.args[0] == "undo" && m.goal(s) == nil
	o, _ := m.armed(t, s)
	// On a busy machine a witness may be silent for once, and then nothing is made.
	for try := 1; try < tries && s.robbed && o.code == 4; try++ {
		o, _ = m.armed(t, s)
	}
	if o.code != 0 && !(done && o.code == 1) {
		t.Errorf("another run: %+v", o)
	}
	return o
}
