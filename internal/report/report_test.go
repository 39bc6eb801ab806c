package report_test

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	. "github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	dataDir  = "/var/lib/cni/networks"
	endpoint = "unix:///run/containerd/containerd.sock"
	grace    = 5 * time.Minute
	// evil drives a terminal, turns text around, hides it, and is no UTF-8.
	evil = "a\x1b[2Jb\x00\t\r\nc\x7f\u009b31m\u202ed\u2066e\u200bf\ufeff\U000e0041g\xff\xc3(h\u2028i"
)

var (
	idLive  = strings.Repeat("a1b2c3d4", 8)
	idDead  = strings.Repeat("b0b1b2b3", 8)
	idFresh = strings.Repeat("c9c8c7c6", 8)
	start   = claim.Instant{Boot: "boot-2", Mono: 100 * time.Hour, Wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func at(d time.Duration) claim.Instant {
	return claim.Instant{Boot: start.Boot, Mono: start.Mono + d, Wall: start.Wall.Add(d)}
}

func reservation(network, addr, content string, ino uint64) claim.Resource {
	dir := dataDir + "/" + network
	return claim.Resource{
		Kind: claim.KindReservation, Store: dir, Network: network, Addr: ip(addr), Owner: claim.ParseOwner([]byte(content)), Path: dir + "/" + addr,
		Inc: claim.Incarnation{Dev: 1, Ino: ino, Ctime: int64(ino), Size: int64(len(content)), Sum: "x"},
	}
}

// someCase is a node with one of everything, seen at now; memory is of an earlier look.
func someCase(now claim.Instant, memory verdict.Memory) *verdict.Case {
	pods := claim.Store{
		Dir: dataDir + "/pods", DataDir: dataDir, Network: "pods", Capacity: 6, Writable: true, Configs: []string{"/etc/cni/net.d/10-pods.conflist"},
		Ranges: []claim.Range{{First: ip("10.1.0.1"), Last: ip("10.1.0.7"), Gateway: ip("10.1.0.1")}},
	}
	renamed := claim.Store{Dir: dataDir + "/" + evil, DataDir: dataDir, Network: evil, Writable: false}
	broken := claim.Store{Dir: dataDir + "/broken", DataDir: dataDir, Network: "broken", Problem: "EIO " + evil}
	cacheOf := claim.Resource{
		Kind: claim.KindCache, Store: "/var/lib/cni/results", Network: "pods", Path: "/var/lib/cni/results/pods-" + idDead + "-eth0",
		Owner: claim.Owner{Shape: claim.ShapeContainer, ID: idDead, IfName: "eth0"}, Inc: claim.Incarnation{Ino: 90},
		Cache: &claim.CacheEntry{
			DataDir: dataDir, Addrs: []netip.Addr{ip("10.1.0.3")}, Plugins: []string{"bridge", "portmap"},
			HostIfs: []claim.HostIf{{Name: "veth" + evil, MAC: "aa:bb:cc:dd:ee:ff"}}, Pod: claim.Pod{Namespace: "default", Name: "web-0", UID: "u1"},
		},
	}
	hostile := reservation("pods", "10.1.0.5", evil, 5)
	odd := reservation(evil, "10.9.0.1", evil, 6)
	unread := reservation("pods", "10.1.0.6", "", 7)
	unread.Problem = "is a FIFO " + evil
	asked := claim.Instant{Boot: now.Boot, Mono: now.Mono - time.Second, Wall: now.Wall.Add(-time.Second)}
	listed := claim.Instant{Boot: now.Boot, Mono: now.Mono - 2*time.Second, Wall: now.Wall.Add(-2 * time.Second)}
	c := &verdict.Case{
		Now: now, Memory: memory,
		Policy: verdict.Policy{
			Required: []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI}, Grace: grace, OrphanGrace: time.Hour,
			Exclude: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}, Holds: []verdict.Hold{{Addr: ip("10.1.0.7"), Why: "printer " + evil}},
		},
		Snapshots: []claim.Snapshot{
			{
				Source: "hostlocal", Listed: listed, Stores: []claim.Store{pods, renamed, broken},
				Resources: []claim.Resource{
					reservation("pods", "10.1.0.2", idLive+"\r\neth0", 1), reservation("pods", "10.1.0.3", idDead+"\r\neth0", 2),
					reservation("pods", "10.1.0.4", "", 4), hostile, unread, reservation("pods", "10.1.0.7", idFresh+"\r\neth0", 8),
					reservation("pods", "10.99.0.9", idDead+"\r\neth0", 9), odd,
				},
				Notes: []claim.Note{{Path: "/etc/cni/net.d/" + evil, Text: "no JSON: " + evil}},
			},
			{Source: "cnicache", Listed: listed, Resources: []claim.Resource{cacheOf}},
		},
		Testimonies: []claim.Testimony{
			{Witness: claim.WitnessKernel, Kernel: &claim.KernelFacts{
				Vantage: claim.Vantage{Proven: true, InitialPIDNS: true, Checks: []claim.Check{{Name: "pid namespace", OK: true}}},
				Netns: []claim.Netns{
					{ID: 1, Host: true, Procs: 99},
					{ID: 5, Procs: 1, Mounts: []string{"/run/netns/" + evil}, Addrs: []claim.IfAddr{{If: evil, Addr: ip("10.1.0.2")}}},
				},
			}},
			{Witness: claim.WitnessProcess, Process: &claim.ProcessFacts{}},
			{Witness: claim.WitnessCRI, Detail: evil, CRI: &claim.CRIFacts{
				Detailed: true, Runtimes: []claim.Runtime{{Endpoint: endpoint, Name: "containerd", State: claim.StateComplete}},
				Sandboxes: []claim.Sandbox{{ID: idLive, Endpoint: endpoint, Ready: true, Pod: claim.Pod{Namespace: evil, Name: evil, UID: evil}}},
			}},
			{Witness: claim.WitnessBoot, Boot: &claim.BootFacts{Current: now.Boot}},
		},
	}
	for i := range c.Testimonies {
		c.Testimonies[i].State, c.Testimonies[i].Asked, c.Testimonies[i].Took = claim.StateComplete, asked, 1234567*time.Nanosecond
	}
	return c
}

// audit is the second look of the node, ten minutes after the first.
func audit(t *testing.T) (*verdict.Case, *verdict.Judgement, *api.Audit) {
	t.Helper()
	first := verdict.Judge(someCase(start, nil))
	c := someCase(at(10*time.Minute), first.Memory)
	j := verdict.Judge(c)
	return c, j, Audit(c, j, Meta{Node: "node-1", Took: 12 * time.Millisecond})
}

// harmless checks that text can be shown on a terminal: printable UTF-8 and newlines.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s is no UTF-8: %q", what, text)
	}
	for i, r := range text {
		if r != '\n' && (!unicode.IsPrint(r) || unicode.Is(unicode.Cf, r)) {
			t.Errorf("%s holds %U raw: %q", what, r, text[max(0, i-20):min(len(text), i+20)])
		}
	}
}

// layout joins a table as the command does.
func layout(t Table) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		_, _ = w.Write([]byte(strings.Join(row, "\t") + "\n"))
	}
	w.Flush()
	var out []string
	for line := range strings.Lines(b.String()) {
		out = append(out, strings.TrimRight(line, " \n"))
	}
	return strings.Join(out, "\n") + "\n"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	harmless(t, name, got)
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// auditTable collects the rows of AuditRows.
func auditTable(list []api.Resource, now time.Time, wide bool, maxInUse int) Table {
	resources := func(yield func(*api.Resource) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
	var t Table
	header, rows := AuditRows(resources, now, wide, maxInUse)
	t.Header = header
	for mark, row := range rows {
		t.Rows, t.Marks = append(t.Rows, slices.Clone(row)), append(t.Marks, mark)
	}
	return t
}

func TestAuditTable(t *testing.T) {
	_, _, doc := audit(t)
	for _, wide := range []bool{false, true} {
		name := map[bool]string{false: "audit.txt", true: "audit-wide.txt"}[wide]
		list := doc.Resources
		if !wide {
			list = Fold(list, func(r api.Resource) (string, string) { return r.Kind, r.ContainerID })
		}
		table := auditTable(list, doc.At, wide, 20)
		for _, row := range table.Rows {
			if len(row) != len(table.Header) || strings.ContainsAny(strings.Join(row, ""), "\n\t") {
				t.Errorf("row %q of %q", row, table.Header)
			}
		}
		golden(t, name, layout(table))
	}
}

// What is in use is counted beyond the limit, in the plain table only; the worst are first.
func TestAuditTableHidesInUse(t *testing.T) {
	var list []api.Resource
	for range 5 {
		list = append(list, api.Resource{Kind: "reservation", Address: "10.0.0.1", Verdict: "InUse"})
	}
	list = append(list, api.Resource{Kind: "reservation", Address: "10.0.0.2", Verdict: "Leaked"})
	if table := auditTable(list, start.Wall, false, 2); len(table.Rows) != 3 {
		t.Errorf("%d rows", len(table.Rows))
	}
	if table := auditTable(list, start.Wall, true, 2); len(table.Rows) != 6 {
		t.Errorf("wide: %d rows", len(table.Rows))
	}
	_, _, doc := audit(t)
	if !slices.IsSortedFunc(doc.Resources, func(a, b api.Resource) int {
		return verdict.Verdict(strings.TrimPrefix(a.Verdict, "Unknown")).Rank() - verdict.Verdict(strings.TrimPrefix(b.Verdict, "Unknown")).Rank()
	}) {
		t.Error("not worst first")
	}
}

func TestNetworkTable(t *testing.T) {
	_, _, doc := audit(t)
	golden(t, "networks.txt", layout(NetworkTable(doc.Networks))+Counts(doc.Summary)+"\n")
}

func TestExplain(t *testing.T) {
	_, j, doc := audit(t)
	var b strings.Builder
	for i := range doc.Resources {
		e := &api.ExplainedItem{Resource: doc.Resources[i]}
		if doc.Resources[i].Releasable {
			for _, g := range plan.Make(j, plan.Options{}).Groups {
				e.Plan = append(e.Plan, Planned(g)...)
			}
			e.Releases = []api.JournalEntry{{ReleaseID: "20260301-121000-abcdef-00001", At: doc.At, State: "undone", Why: evil}}
		}
		b.WriteString(Explain(e, doc.At))
	}
	golden(t, "explain.txt", b.String())
}

// A stamp is told in plain words: age, boot, namespace; and it survives a saved document.
func TestExplainStamp(t *testing.T) {
	c := someCase(start, nil)
	c.Policy.PressureGrace = 30 * time.Second
	for i, st := range []claim.Stamp{{Boot: "boot-2", Mono: start.Mono - 90*time.Second, Netns: 4026530000}, {Boot: "boot-1"}} {
		c.Snapshots[0].Resources[1+i].Stamp = &st
	}
	doc := Audit(c, verdict.Judge(c), Meta{Node: "node-1"})
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var back api.Audit
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	replayed := Audit(back.Evidence, verdict.Judge(back.Evidence), Meta{Node: "node-1"})
	for i, r := range doc.Resources {
		got := replayed.Resources[i]
		if d := cmp.Diff(r.Stamp, got.Stamp); d != "" || r.Verdict != got.Verdict || r.Rule != got.Rule {
			t.Errorf("%s was %s by %s, judged again from the saved document %s by %s; stamps (-then +now):\n%s", r.Path, r.Verdict, r.Rule, got.Verdict, got.Rule, d)
		}
	}
	if doc.Policy.PressureGrace != "30s" {
		t.Errorf("the policy says pressure grace %q", doc.Policy.PressureGrace)
	}
	var text strings.Builder
	for i := range doc.Resources {
		text.WriteString(Explain(&api.ExplainedItem{Resource: doc.Resources[i]}, doc.At))
	}
	harmless(t, "the text", text.String())
	for _, want := range []string{
		"reserved by holdfast-ipam 1m30s ago, in this boot, for network namespace net:[4026530000]\n",
		"reserved by holdfast-ipam in boot boot-1, which is not this one\n",
		"its stamp says reserved 1m30s ago, for a network namespace that is gone",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("nothing says %q:\n%s", want, text.String())
		}
	}
}

// Nothing must be missed: who was silent, what was not seen, and hostile notes are tame.
func TestComplaints(t *testing.T) {
	notes := []api.Note{}
	for range 12 {
		notes = append(notes, api.Note{Path: evil, Text: evil})
	}
	lines := Complaints(api.Vantage{Detail: evil}, []api.Witness{
		{Name: "cri", State: "silent", Required: true, Detail: "refused " + evil},
		{Name: "kernel", State: "complete", Required: true},
		{Name: "process", State: "silent", Required: false, Detail: "not asked for"},
	}, notes)
	for _, l := range lines {
		if strings.Contains(l, "\n") {
			t.Errorf("two lines: %q", l)
		}
	}
	golden(t, "complaints.txt", strings.Join(lines, "\n")+"\n")
	if lines := Complaints(api.Vantage{Proven: true}, []api.Witness{{Name: "cri", State: "complete", Required: true}}, nil); len(lines) != 0 {
		t.Errorf("all is well: %q", lines)
	}
}

// I10: a saved document gives the same verdicts again, through JSON, hostile bytes and all.
func TestAuditReplays(t *testing.T) {
	_, j, doc := audit(t)
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var back api.Audit
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	type word struct {
		Path, Rule string
		Verdict    verdict.Verdict
		Releasable bool
		Wait       time.Duration
	}
	words := func(j *verdict.Judgement) (out []word) {
		for _, f := range j.Findings {
			out = append(out, word{strings.ToValidUTF8(f.Resource.Path, "\ufffd"), f.Rule, f.Verdict, f.Releasable, f.Wait})
		}
		return out
	}
	again := verdict.Judge(back.Evidence)
	want, got := words(j), words(again)
	for i := range want {
		// encoding/json writes one U+FFFD for each bad byte.
		want[i].Path = strings.ReplaceAll(strings.ReplaceAll(want[i].Path, "\ufffd", ""), "(", "")
		got[i].Path = strings.ReplaceAll(strings.ReplaceAll(got[i].Path, "\ufffd", ""), "(", "")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("judged again (-before +after):\n%s", d)
	}
	second := Audit(back.Evidence, again, Meta{Node: back.Node, Took: 12 * time.Millisecond})
	b2, err := json.Marshal(second)
	if err != nil {
		t.Fatal(err)
	}
	var a1, a2 map[string]any
	if err := json.Unmarshal(b, &a1); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b2, &a2); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a1["summary"], a2["summary"]); d != "" {
		t.Errorf("summary: %s", d)
	}
	leaked, kinds := 0, map[string]bool{}
	for _, f := range j.Findings {
		kinds[f.Verdict.String()] = true
		if f.Releasable {
			leaked++
		}
	}
	if leaked == 0 || len(kinds) < 5 {
		t.Errorf("the case proves little: %d releasable, verdicts %v", leaked, kinds)
	}
}

func TestNetworks(t *testing.T) {
	c, j, _ := audit(t)
	nets := Networks(c, j, nil)
	i := slices.IndexFunc(nets, func(n api.Network) bool { return n.Name == "pods" })
	if len(nets) != 3 || i < 0 {
		t.Fatalf("%+v", nets)
	}
	n := nets[i]
	// Six in the ranges, one outside, which takes nothing from them (L16).
	if n.Capacity != 6 || n.Reserved != 7 || n.Free != 0 || n.InUse != 1 || n.Leaked != 2 {
		t.Errorf("%+v", n)
	}
	sum := 0
	for _, k := range n.Verdicts {
		sum += k
	}
	if sum != n.Reserved {
		t.Errorf("verdicts %v add up to %d of %d", n.Verdicts, sum, n.Reserved)
	}
	for _, tt := range []struct {
		name           string
		capacity, free uint64
	}{{"unknown capacity", 0, 0}, {"room", 10, 4}, {"more reserved than fit", 3, 0}, {"huge", 1 << 62, 1<<62 - 6}} {
		c.Snapshots[0].Stores[0].Capacity = tt.capacity
		nets := Networks(c, j, []string{"pods"})
		if len(nets) != 1 || nets[0].Free != tt.free {
			t.Errorf("%s: %+v", tt.name, nets)
		}
	}
	if nets := Networks(c, j, []string{"none"}); nets == nil || len(nets) != 0 {
		t.Errorf("%#v", nets)
	}
}

// A testimony that did not count is silent in the document, with the judge's reason.
func TestWitnesses(t *testing.T) {
	c := someCase(start, nil)
	c.Testimonies[2].Asked.Mono = 0 // before the listing (I6)
	c.Testimonies[1] = claim.Testimony{Witness: claim.WitnessProcess, Detail: "EPERM"}
	j := verdict.Judge(c)
	ws := Witnesses(c, j)
	got := map[string]string{}
	for _, w := range ws {
		got[w.Name] = w.State
		if w.State == "silent" && w.Detail == "" || !w.Required {
			t.Errorf("%+v", w)
		}
	}
	want := map[string]string{"boot": "complete", "cri": "silent", "kernel": "complete", "process": "silent"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	c.Policy.CRINone = true
	for _, w := range Witnesses(c, verdict.Judge(c)) {
		if w.Name == "cri" && w.Required {
			t.Error("cri is required on a node that has none")
		}
	}
}

func TestClean(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"plain text, 10.1.0.2", "plain text, 10.1.0.2"},
		{"Grüße 日本", "Grüße 日本"},
		{"a\x1b[31m", `a\x1b[31m`},
		{"a\u202eb", `a\u202eb`},
		{"\x7f", `\x7f`},
		{"\u009b", `\u009b`},
		{"\xff", `\xff`},
		{"\U000e0041", `\U000e0041`},
		{"a\u00a0b", `a\u00a0b`},
		{"", ""},
	} {
		if got := Clean(tt.in); got != tt.want {
			t.Errorf("Clean(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add(evil)
	f.Add("日本語")
	f.Fuzz(func(t *testing.T, s string) {
		got := Clean(s)
		harmless(t, "clean text", got)
		if strings.Contains(got, "\n") || Clean(got) != got {
			t.Errorf("Clean(%q) = %q", s, got)
		}
	})
}

func TestAge(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Hour, "0s"}, {0, "0s"}, {119 * time.Second, "119s"}, {2 * time.Minute, "2m"}, {119 * time.Minute, "119m"},
		{2 * time.Hour, "2h"}, {47 * time.Hour, "47h"}, {48 * time.Hour, "2d"}, {1000 * time.Hour, "41d"},
	} {
		first := start.Wall.Add(-tt.d)
		if got := Age(&first, start.Wall); got != tt.want {
			t.Errorf("Age(%v) = %q, want %q", tt.d, got, tt.want)
		}
	}
	if got := Age(nil, start.Wall); got != "-" {
		t.Errorf("Age(nil) = %q", got)
	}
}
