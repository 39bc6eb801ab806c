package ipam

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The flags make a soak of the tests below: go test ./e2e/ipam -run
// 'Differential|Interleaved' -ops 100000 -seed 7.
var (
	opsFlag = flag.Int("ops", 500, "random operations of TestDifferential")
	// Three parts make 10,000; make soak sets any number.
	interleavedFlag = flag.Int("interleaved", 3334, "random operations of each part of TestInterleaved")
	seedFlag        = flag.Uint64("seed", 1, "seed of the random operations")
)

// differential compares two programs: the same random operations on a directory each.
type differential struct {
	a, b     Plugin
	dirA     string // data directories, empty
	dirB     string
	seed     uint64
	ops      int
	explains map[string]int // intended differences that were met, by name
}

// operation is a call, or a change of the directory behind the program's back.
type operation struct {
	request request
	network string
	write   string // a file of the network that is written, and its content
	content string
	remove  string // a file of the network that is removed
}

func (o operation) String() string {
	switch {
	case o.write != "":
		return fmt.Sprintf("write %s/%s %q", o.network, o.write, o.content)
	case o.remove != "":
		return fmt.Sprintf("remove %s/%s", o.network, o.remove)
	}
	r := o.request
	return fmt.Sprintf("%s %s/%s in %s: version %s args %q, %s, %s", r.command, r.id, r.ifname, o.network, r.config.version, r.args, r.config.top, r.config.ipam)
}

// run goes on until the programs differ, which is the error.
func (d *differential) run(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(d.seed, 1))
	d.explains = map[string]int{}
	var log []string
	for i := range d.ops {
		o := randomOperation(rnd)
		log = append(log, fmt.Sprintf("%d: %v", i, o))
		if err := d.step(ctx, o); err != nil {
			return fmt.Errorf("seed %d: %w\nafter\n%s", d.seed, err, strings.Join(log[max(0, len(log)-8):], "\n"))
		}
	}
	return nil
}

func (d *differential) step(ctx context.Context, o operation) error {
	before, err := readTree(d.dirA)
	if err != nil {
		return err
	}
	replies, err := d.apply(ctx, o)
	if err != nil {
		return err
	}
	if err := d.sameReply(replies[0], replies[1]); err != nil {
		return err
	}
	afterA, errA := readTree(d.dirA)
	afterB, errB := readTree(d.dirB)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if !d.b.upstream() && d.rolledBack(o, replies[0], before, afterA, afterB) {
		d.explains[diffRollback]++
		return d.forget(afterA, afterB)
	}
	if diff := cmp.Diff(afterA, afterB); diff != "" {
		return fmt.Errorf("directories (-%s +%s):\n%s", d.a.Type, d.b.Type, diff)
	}
	return nil
}

// apply does the operation on both sides, at once.
func (d *differential) apply(ctx context.Context, o operation) (replies [2]reply, err error) {
	var errs [2]error
	var wg sync.WaitGroup
	for i, side := range []struct {
		p   Plugin
		dir string
	}{{d.a, d.dirA}, {d.b, d.dirB}} {
		wg.Go(func() {
			net := filepath.Join(side.dir, o.network)
			switch {
			case o.write != "":
				errs[i] = errors.Join(os.MkdirAll(net, 0o755), os.WriteFile(filepath.Join(net, o.write), []byte(o.content), 0o600))
			case o.remove != "":
				if err := os.Remove(filepath.Join(net, o.remove)); !os.IsNotExist(err) {
					errs[i] = err
				}
			default:
				r := o.request
				r.config.name, r.config.dataDir = o.network, side.dir
				replies[i], errs[i] = side.p.run(ctx, r.call(side.p))
			}
		})
	}
	wg.Wait()
	return replies, errors.Join(errs[:]...)
}

// sameReply compares what is printed, with the paths and the words that differ.
func (d *differential) sameReply(a, b reply) error {
	fa, errA := a.failure()
	fb, errB := b.failure()
	if errA == nil && errB == nil {
		fa.Msg, fb.Msg = strings.ReplaceAll(fa.Msg, d.dirA, "DIR"), strings.ReplaceAll(fb.Msg, d.dirB, "DIR")
		// Ours goes on with numbers (diffFull).
		if strings.Contains(fa.Msg, "no IP addresses available in range set: ") && strings.HasPrefix(fb.Msg, fa.Msg) {
			fb.Msg = fa.Msg
		}
		fa.Msg, fb.Msg = inOrder(fa.Msg), inOrder(fb.Msg)
		fa.CNIVersion, fb.CNIVersion = "", ""
		if diff := cmp.Diff(fa, fb); diff != "" {
			return fmt.Errorf("errors (-%s +%s):\n%s", d.a.Type, d.b.Type, diff)
		}
		return nil
	}
	if a.exit != b.exit || a.stdout != b.stdout {
		return fmt.Errorf("replies: %s exit %d %q %q, %s exit %d %q %q", d.a.Type, a.exit, a.stdout, a.stderr, d.b.Type, b.exit, b.stdout, b.stderr)
	}
	return nil
}

// inOrder sorts the requested addresses that were left over: host-local keeps them in a
// map.
func inOrder(msg string) string {
	const left = "failed to allocate all requested IPs: "
	if !strings.HasPrefix(msg, left) {
		return msg
	}
	list := strings.Fields(strings.TrimPrefix(msg, left))
	slices.Sort(list)
	return left + strings.Join(list, " ")
}

// rolledBack reports whether all that differs is diffRollback: an ADD failed, and
// host-local took what its owner had before.
func (d *differential) rolledBack(o operation, a reply, before, afterA, afterB map[string]string) bool {
	if o.request.command != "ADD" || a.exit == 0 {
		return false
	}
	lost := 0
	for name, content := range afterB {
		if _, ok := afterA[name]; ok {
			continue
		}
		id, ifname, exact := strings.Cut(strings.TrimSpace(content), "\r\n")
		if was, ok := before[name]; !ok || was != content || id != o.request.id || exact && ifname != o.request.ifname {
			return false
		}
		lost++
	}
	rest := maps.Clone(afterB)
	maps.DeleteFunc(rest, func(name, _ string) bool { _, ok := afterA[name]; return !ok })
	return lost > 0 && maps.Equal(rest, afterA)
}

// forget removes on b's side what a does not have, so that the comparison can go on.
func (d *differential) forget(afterA, afterB map[string]string) error {
	for name := range afterB {
		if _, ok := afterA[name]; !ok {
			if err := os.Remove(filepath.Join(d.dirB, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// randomConfigs are small, so that they are full soon. No two requested addresses of
// randomOperation lie in one set: which of them host-local takes is random.
func randomConfigs() []config {
	return []config{
		{version: "1.1.0", ipam: `"subnet": "198.18.0.0/29"`},
		{version: "0.2.0", ipam: `"subnet": "198.18.0.0/29", "gateway": "198.18.0.3"`},
		{version: "0.4.0", ipam: `"ranges": [[{"subnet": "198.18.0.0/30"}, {"subnet": "198.18.1.0/29"}]]`},
		{version: "1.0.0", ipam: `"ranges": [[{"subnet": "198.18.0.0/29"}], [{"subnet": "2001:db8::/125"}]]`},
		{version: "1.1.0", ipam: `"ranges": [[{"subnet": "198.18.0.0/29"}], [{"subnet": "198.18.1.0/30"}]]`},
		{version: "0.3.1", ipam: `"ranges": [[{"subnet": "198.18.1.0/29"}], [{"subnet": "198.18.0.0/29"}]]`}, // other indexes
		{version: "1.1.0", ipam: `"subnet": "198.18.0.0/29", "routes": [{"dst": "0.0.0.0/0"}]`, top: `"runtimeConfig": {"ipRanges": [[{"subnet": "2001:db8::/125", "rangeStart": "2001:db8::6"}]]}`},
		{version: "1.1.0", ipam: `"subnet": "198.18.0.0/29", "rangeStart": "198.18.0.5", "rangeEnd": "198.18.0.4"`}, // wrong
	}
}

func randomOperation(rnd *rand.Rand) operation {
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	v4 := func() string { return fmt.Sprintf("198.18.%d.%d", rnd.IntN(2), rnd.IntN(9)) }
	v6 := func() string { return fmt.Sprintf("2001:db8::%d", rnd.IntN(9)) }
	o := operation{network: pick("net", "net", "net2")}
	id, ifname := pick("a", "b", "c", "d", "ab"), pick("eth0", "eth0", "eth1")
	switch n := rnd.IntN(100); {
	case n < 4:
		o.write, o.content = pick(v4(), v6()), pick(id, id+"\r\n"+ifname, id+"\r\n"+ifname+"\n", id+"\n"+ifname, "", "a person")
		return o
	case n < 7:
		o.write, o.content = pick("last_reserved_ip.0", "last_reserved_ip.1"), pick(v4(), v6(), v4()+"\n", "", "nonsense")
		return o
	case n < 10:
		o.remove = pick(v4(), v6(), "last_reserved_ip.0", "last_reserved_ip.1", "lock")
		return o
	case n < 60:
		o.request.command = "ADD"
	case n < 90:
		o.request.command = "DEL"
	default:
		o.request.command = "CHECK"
	}
	configs := randomConfigs()
	c := configs[rnd.IntN(len(configs))]
	r := &o.request
	r.id, r.ifname, r.netns, r.config = id, ifname, pick("/var/run/netns/x", "/var/run/netns/y"), c
	if r.command == "DEL" && rnd.IntN(4) == 0 {
		r.netns = ""
	}
	if c.top != "" || r.command == "CHECK" {
		return o
	}
	switch rnd.IntN(12) {
	case 0:
		r.args = "IgnoreUnknown=1;K8S_POD_NAME=p;IP=" + v4()
	case 1:
		r.args = pick("IP="+v6(), "K8S_POD_NAME=p", "IP=")
	case 2:
		r.config.top = fmt.Sprintf(`"args": {"cni": {"ips": [%q, %q]}}`, v4()+pick("", "/24"), v6())
	case 3:
		r.config.top = fmt.Sprintf(`"runtimeConfig": {"ips": [%q]}`, pick(v4(), v6()))
	}
	return o
}

func TestDifferential(t *testing.T) {
	dir := t.TempDir()
	d := &differential{a: upstream(), b: ours(), dirA: filepath.Join(dir, "a"), dirB: filepath.Join(dir, "b"), seed: *seedFlag, ops: *opsFlag}
	if err := d.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s and %s agree on %d operations; intended differences met: %v", d.a.Type, d.b.Type, d.ops, d.explains)
}

// TestDifferentialFinds: programs that are a little wrong are found out.
func TestDifferentialFinds(t *testing.T) {
	for name, after := range map[string]string{
		"forgets the order":      `rm -f "$NET/last_reserved_ip.0"`,
		"leaves something":       `[ "$CNI_COMMAND" != DEL ] || : > "$NET/198.18.0.6"`,
		"says it otherwise":      `out=$(printf %s "$out" | sed s/duplicate/repeated/)`,
		"is content with less":   `code=0`,
		"writes another content": `for f in "$NET"/198.*; do [ ! -s "$f" ] || printf '\n' >> "$f"; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := &differential{a: upstream(), dirA: filepath.Join(dir, "a"), dirB: filepath.Join(dir, "b"), seed: *seedFlag, ops: 200}
			d.b = wrong(t, filepath.Join(d.dirB, "net"), "", after)
			if err := d.run(t.Context()); err == nil {
				t.Error("no difference was found")
			}
		})
	}
}

// wrong is host-local with shell before and after it. NET is the network's directory,
// out and code are what host-local answered.
func wrong(t *testing.T, net, before, after string) Plugin {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wrong")
	script := fmt.Sprintf("#!/bin/sh\nNET='%s'\n%s\nout=$('%s')\ncode=$?\n%s\nprintf %%s \"$out\"\nexit $code\n", net, before, upstream().Path, after)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return Plugin{Path: path, Type: oursType}
}

// TestRandomOperations: the generator makes what it is meant to make.
func TestRandomOperations(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	seen := map[string]int{}
	for range 2000 {
		o := randomOperation(rnd)
		switch {
		case o.write != "":
			seen["write"]++
		case o.remove != "":
			seen["remove"]++
		default:
			seen[o.request.command]++
			if o.request.args+o.request.config.top != "" {
				seen["request"]++
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(map[string]int{"write": 0, "remove": 0, "ADD": 0, "DEL": 0, "CHECK": 0, "request": 0})) {
		if seen[k] < 50 {
			t.Errorf("%s: %d of 2000", k, seen[k])
		}
	}
}
