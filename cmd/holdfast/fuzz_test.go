package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
)

const (
	fuzzHex  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	fuzzBoot = "6a3c1e52-0b1f-4b53-8d2e-1f0f5d1c9a77"
	// savedAudit has a dead and a live reservation, an empty and a foreign one, an entry
	// of the cache, and four witnesses.
	savedAudit = `{"apiVersion":"` + api.APIVersion + `","kind":"Audit","node":"n1","evidence":{
"now":{"boot":"` + fuzzBoot + `","mono":900000000000,"wall":"2026-11-30T06:00:00Z"},
"policy":{"grace":300000000000,"orphanGrace":3600000000000,"required":["kernel","process","cri"]},
"snapshots":[{"source":"hostlocal","listed":{"boot":"` + fuzzBoot + `","mono":899000000000,"wall":"2026-11-30T05:59:59Z"},
"stores":[{"dir":"/n/a","dataDir":"/n","network":"a","capacity":253,"writable":true,"ranges":[{"first":"10.1.0.1","last":"10.1.0.254"}]}],
"resources":[
{"kind":"reservation","store":"/n/a","network":"a","addr":"10.1.0.2","owner":{"shape":"container","id":"` + fuzzHex + `","ifName":"eth0"},"path":"/n/a/10.1.0.2","inc":{"ino":1,"sum":"x"}},
{"kind":"reservation","store":"/n/a","network":"a","addr":"10.1.0.3","owner":{"shape":"container","id":"f` + fuzzHex + `"},"path":"/n/a/10.1.0.3","inc":{"ino":2}},
{"kind":"reservation","store":"/n/a","network":"a","addr":"10.1.0.4","path":"/n/a/10.1.0.4","inc":{"ino":3}},
{"kind":"reservation","store":"/n/a","network":"a","addr":"10.1.0.5","owner":{"shape":"foreign","id":"reserved\u001b[2J"},"path":"/n/a/10.1.0.5"}]},
{"source":"cnicache","listed":{"boot":"` + fuzzBoot + `","mono":899000000000,"wall":"2026-11-30T05:59:59Z"},
"resources":[{"kind":"cache","network":"a","owner":{"shape":"container","id":"` + fuzzHex + `","ifName":"eth0"},"path":"/c/a","cache":{"netns":"/run/netns/x","addrs":["10.1.0.2"],"pod":{"namespace":"default","name":"web-0"}}}]}],
"testimonies":[
{"witness":"kernel","state":"complete","asked":{"boot":"` + fuzzBoot + `","mono":899500000000,"wall":"2026-11-30T06:00:00Z"},"kernel":{"vantage":{"proven":true,"initialPIDNS":true,"pidNS":5},"netns":[{"id":1,"host":true},{"id":2,"procs":1,"addrs":[{"if":"eth0","addr":"10.1.0.3"}]}]}},
{"witness":"process","state":"complete","asked":{"boot":"` + fuzzBoot + `","mono":899500000000,"wall":"2026-11-30T06:00:00Z"},"process":{"hits":[]}},
{"witness":"cri","state":"complete","asked":{"boot":"` + fuzzBoot + `","mono":899500000000,"wall":"2026-11-30T06:00:00Z"},"cri":{"runtimes":[{"endpoint":"unix:///r","state":"complete","peerPID":9,"peerPIDNS":5}],"sandboxes":[]}},
{"witness":"boot","state":"complete","asked":{"boot":"` + fuzzBoot + `","mono":899500000000,"wall":"2026-11-30T06:00:00Z"},"boot":{"current":"` + fuzzBoot + `"}}],
"memory":[{"path":"/n/a/10.1.0.2","inc":{"ino":1,"sum":"x"},"first":{"boot":"` + fuzzBoot + `","mono":1,"wall":"2026-11-30T05:00:00Z"},"absent":{"boot":"` + fuzzBoot + `","mono":1,"wall":"2026-11-30T05:00:00Z"},"witnesses":["cri","kernel","process"]}]}}`
)

// saved puts a document where --from finds it, in memory if there is such a place.
func saved(t testing.TB, doc []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-saved-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "audit.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// FuzzReplay judges any saved document again, as "explain --from" does: what a stranger
// sent neither panics nor drives the terminal, and the document that comes of it, saved
// and judged once more, says the same.
func FuzzReplay(f *testing.F) {
	f.Add([]byte(savedAudit), "10.1.0.2")
	f.Add([]byte(savedAudit), "default/web-0")
	for _, r := range [][2]string{
		{`"10.1.0.2"`, `"fe80::2%\u001b[2J"`}, {`"kernel"`, `"k\u202e"`}, {`"reservation"`, `"r\u001b"`}, {`"web-0"`, `"\u009b"`}, {`"n1"`, `"\u001b"`},
		{`"eth0"`, `"\u0007"`}, {`"network":"a"`, `"network":"\u001b"`}, {`"proven":true`, `"proven":false`}, {`"complete"`, `"silent"`},
	} {
		f.Add([]byte(strings.ReplaceAll(savedAudit, r[0], r[1])), fuzzHex)
	}
	f.Add([]byte(strings.ReplaceAll(savedAudit, "2026-11-30T06", "9999-12-31T23")), "")
	f.Add([]byte(`{"apiVersion":"`+api.APIVersion+`","kind":"Audit","evidence":{"snapshots":[{"resources":[{}]}],"relisted":{},"memory":[null]}}`), "x")
	f.Fuzz(func(t *testing.T, b []byte, query string) {
		au, node, err := replay(saved(t, b))
		if err != nil {
			tame(t, report.Clean(err.Error()))
			return
		}
		queries := []string{query}
		for _, x := range au.Judgement.Findings {
			if len(queries) < 8 && x.Resource != nil {
				queries = append(queries, x.Resource.Owner.ID, x.Pod.Namespace+"/"+x.Pod.Name)
				if x.Resource.Addr.IsValid() {
					queries = append(queries, x.Resource.Addr.String())
				}
			}
		}
		for _, q := range queries {
			doc, err := report.Explanation(&au.Case, au.Judgement, nil, report.Meta{Node: node}, q)
			if err != nil {
				continue
			}
			for i := range doc.Resources {
				tame(t, report.Explain(&doc.Resources[i], doc.At))
			}
			for _, c := range report.Complaints(doc.Vantage, doc.Witnesses, nil) {
				tame(t, c)
			}
			for _, write := range []func(any) ([]byte, error){marshal, marshalYAML} {
				if text, err := write(doc); err == nil {
					tame(t, string(text))
				}
			}
		}
		header, rows := report.AuditRows(report.Resources(report.Sorted(au.Judgement, nil), au.Case.Now), au.Case.Now.Wall, true, 1)
		for _, row := range rows {
			if len(row) != len(header) {
				t.Fatalf("%d cells under %d headings", len(row), len(header))
			}
			tame(t, strings.Join(row, " "))
		}
		for _, row := range report.NetworkTable(report.Networks(&au.Case, au.Judgement, nil)).Rows {
			tame(t, strings.Join(row, " "))
		}
		first, err := marshal(report.Audit(&au.Case, au.Judgement, report.Meta{Node: node}))
		if err != nil {
			return // a year that JSON has no text for
		}
		au, node, err = replay(saved(t, first))
		if err != nil {
			t.Fatalf("%v: %s", err, first)
		}
		again, err := marshal(report.Audit(&au.Case, au.Judgement, report.Meta{Node: node}))
		if err != nil || !bytes.Equal(first, again) {
			t.Fatalf("judged again it is another: %v\n%s\n%s", err, first, again)
		}
	})
}

// FuzzJournalText shows any records of a journal in each form. The journal is our own,
// and what it quotes is not.
func FuzzJournalText(f *testing.F) {
	const id = "20261130-062137-1a2b3c-00001"
	f.Add([]byte(`[{"type":"intent","at":{"boot":"b","mono":1,"wall":"2026-11-30T06:00:00Z"},"releaseID":"` + id + `","release":{"kind":"reservation","store":"/n/a","path":"/n/a/10.1.0.2","addr":"10.1.0.2","owner":{"shape":"container","id":"` + fuzzHex + `"},"verdict":"Leaked","says":[{"witness":"cri","word":"absent","detail":"x"}]}},{"type":"outcome","releaseID":"` + id + `","outcome":"released","steps":[{"step":"veth","object":"v","state":"done"}]}]`))
	f.Add([]byte(`[{"type":"intent","releaseID":"` + id + `","release":{"kind":"k\u001b","path":"\u202e","addr":"fe80::1%\u001b[2J","verdict":"\u0007","says":[{"witness":"\u001b","word":"\u009b"}]}},{"type":"outcome","releaseID":"` + id + `","outcome":"failed","detail":"\u0000","steps":[{"step":"\u001b","object":"\u001b","state":"\u001b"}]}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var recs []journal.Record
		if json.Unmarshal(b, &recs) != nil {
			return
		}
		recs = slices.DeleteFunc(recs, func(r journal.Record) bool { return r.Check() != nil })
		doc := &api.Journal{Entries: []api.JournalEntry{}, Damage: []string{evil}}
		for _, e := range journal.Replay(recs) {
			doc.Entries = append(doc.Entries, entryOf(e, "b"))
		}
		out, err := os.CreateTemp(filepath.Dir(saved(t, nil)), "out")
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		a := newApp(os.Stdin, out, out)
		for _, format := range []string{"table", "wide", "json", "yaml"} {
			a.opts.output = format
			if err := a.emit(doc, func(w io.Writer) { a.journalText(w, doc, true) }); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		tame(t, string(text))
		for _, e := range doc.Entries {
			if got := filterEntries(doc.Entries, []string{e.ReleaseID}, time.Time{}, 0); !slices.ContainsFunc(got, func(x api.JournalEntry) bool { return x.ReleaseID == e.ReleaseID }) {
				t.Fatalf("%s is not found by its ID", e.ReleaseID)
			}
		}
	})
}

// FuzzFlags reads any flags of audit and gc. What passes is a policy in which nothing is
// negative, every path is absolute and every excluded prefix is one of the address
// family that reservations have; what does not pass is a usage error.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"--grace=10m\n--orphan-grace=2h\n--exclude=10.1.0.5,fd00::/64,::ffff:10.1.0.0/120", "--grace=-1s", "--timeout=0", "--grace=1h\n--timeout=9999999h",
		"--witness=cri,kernel\n--cri-endpoint=none", "--cri-endpoint=none\n--cri-endpoint=/x", "--witness=", "--data-dir=x", "--exclude=fe80::1%\x1b", "--exclude=10.0.0.0/33",
		"--max-releases=-1", "--network=a,b\n-o\nyaml", "--grace=2562047h48m", "--exclude=::ffff:0.0.0.0/95", "--state-dir=\x1b", "-o=\x1b[2J",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o := &options{}
		fs := pflag.NewFlagSet("audit", pflag.ContinueOnError)
		fs.SetOutput(io.Discard)
		fs.Usage = func() {}
		o.addGlobal(fs)
		o.addNode(fs)
		o.addRelease(fs)
		if err := fs.Parse(strings.Split(text, "\n")); err != nil {
			tame(t, report.Clean(err.Error()))
			return
		}
		refused := func(err error) bool {
			var usage usageError
			if err != nil && !errors.As(err, &usage) {
				t.Fatalf("%v is no usage error", err)
			}
			return err != nil
		}
		if refused(o.checkGlobal()) {
			return
		}
		p, err := o.policy()
		if refused(err) {
			return
		}
		if p.Grace < 0 || p.OrphanGrace < 0 || o.timeout <= 0 || o.maxReleases < 0 || len(p.Required) == 0 || !filepath.IsAbs(o.stateDir) {
			t.Fatalf("%+v, %+v", p, o)
		}
		for _, w := range p.Required {
			if w != claim.WitnessKernel && w != claim.WitnessProcess && w != claim.WitnessCRI {
				t.Fatalf("witness %q", w)
			}
		}
		if len(p.Exclude) != len(o.exclude) {
			t.Fatalf("%d of %d exclusions", len(p.Exclude), len(o.exclude))
		}
		for i, x := range p.Exclude {
			if !x.IsValid() || x.Addr().Is4In6() || x != x.Masked() {
				t.Fatalf("excluded %v", x)
			}
			// An address that is named is one that is kept.
			if a, err := netip.ParseAddr(o.exclude[i]); err == nil && !x.Contains(a.Unmap().WithZone("")) {
				t.Fatalf("%v does not keep %v", x, a)
			}
			if q, err := netip.ParsePrefix(o.exclude[i]); err == nil && !x.Contains(q.Addr().Unmap()) {
				t.Fatalf("%v does not keep %v", x, q)
			}
		}
		for _, w := range o.warnings() {
			tame(t, report.Clean(w))
		}
	})
}

// FuzzTime compares with both of the readings that the help names.
func FuzzTime(f *testing.F) {
	for _, s := range []string{"2026-11-30T06:00:00Z", "15m", "-15m", "", "1e9h", "2562047h47m16.854775807s", "2026-02-30T00:00:00Z", "0", "9999-12-31T23:59:59+14:00"} {
		f.Add(s)
	}
	now := time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseTime(s, now)
		at, atErr := time.Parse(time.RFC3339, s)
		ago, agoErr := time.ParseDuration(s)
		switch {
		case atErr == nil:
			if err != nil || !got.Equal(at) {
				t.Errorf("parseTime(%q) = %v, %v", s, got, err)
			}
		case agoErr == nil && ago >= 0:
			// Never after now: "since" an overflow would list, and undo, nothing.
			if err != nil || got.After(now) || now.Sub(got) != ago {
				t.Errorf("parseTime(%q) = %v, %v", s, got, err)
			}
		default:
			var usage usageError
			if !errors.As(err, &usage) {
				t.Errorf("parseTime(%q) = %v, %v", s, got, err)
			}
		}
	})
}

// FuzzHold: what a person wants kept is an address as reservations are compared.
func FuzzHold(f *testing.F) {
	for _, s := range [][2]string{{"10.22.0.17", ""}, {"::ffff:10.22.0.17", "/n/a"}, {"fe80::1%\x1b", ""}, {"10.1.0.1", "n"}, {"10.22.0.017", "/../x"}, {"", "/"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, addr, store string) {
		got, err := parseHold(addr, store)
		var usage usageError
		if err != nil {
			if !errors.As(err, &usage) {
				t.Errorf("%v is no usage error", err)
			}
			return
		}
		want, err := netip.ParseAddr(addr)
		if err != nil || got != want.Unmap().WithZone("") || got.Is4In6() || store != "" && !filepath.IsAbs(store) {
			t.Errorf("parseHold(%q, %q) = %v", addr, store, got)
		}
	})
}
