package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// ipamLoads are how many reservations a directory has, and how often each call is made.
var ipamLoads = []struct{ reservations, rounds int }{{0, 41}, {250, 41}, {5_000, 15}, {60_000, 7}}

// ipamParallel is how many ADDs are made at once.
const ipamParallel = 50

// ipamPart runs host-local and holdfast-ipam by turns, each as a whole process on a
// directory of its own with the same content.
func ipamPart(ctx context.Context, s settings, out io.Writer) (err error) {
	n, err := newNode()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	bin, err := binaries(ctx, "host-local")
	if err != nil {
		return err
	}
	pair := []*ipamProgram{{name: "host-local", path: filepath.Join(bin, "host-local"), n: n}, {name: "holdfast-ipam", path: s.ipam, n: n}}
	for _, p := range pair {
		if err := p.install(); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\nwhole processes, wall time in ms, median (min); ratio of the medians\n")
	if err := compareIPAM(out, "VERSION", 41, pair, func(p *ipamProgram, i int) (time.Duration, error) {
		return p.call(ctx, "VERSION", i)
	}); err != nil {
		return err
	}
	for _, load := range ipamLoads {
		if err := n.ipamLoad(ctx, out, pair, load.reservations, load.rounds); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) ipamLoad(ctx context.Context, out io.Writer, pair []*ipamProgram, count, rounds int) error {
	for _, p := range pair {
		if err := p.fill(ctx, count); err != nil {
			return err
		}
	}
	name := func(verb string) string { return fmt.Sprintf("%s, %d reservations", verb, count) }
	adds, dels := map[*ipamProgram][]time.Duration{}, map[*ipamProgram][]time.Duration{}
	both := func(list map[*ipamProgram][]time.Duration, verb string, i int) error {
		for k := range pair {
			p := pair[(k+i)%len(pair)] // who goes first by turns
			d, err := p.call(ctx, verb, i)
			if err != nil {
				return err
			}
			list[p] = append(list[p], d)
		}
		return nil
	}
	for i := range rounds {
		if err := errors.Join(both(adds, "ADD", i), both(dels, "DEL", i)); err != nil {
			return err
		}
	}
	printIPAM(out, name("ADD"), pair, adds)
	printIPAM(out, name("DEL"), pair, dels)
	if count == 0 {
		return nil
	}
	// The search begins behind all that is free, so that it passes everything reserved.
	wrapped := map[*ipamProgram][]time.Duration{}
	for i := range rounds {
		for _, p := range pair {
			if err := p.last(p.top()); err != nil {
				return err
			}
		}
		if err := errors.Join(both(wrapped, "ADD", i), both(map[*ipamProgram][]time.Duration{}, "DEL", i)); err != nil {
			return err
		}
	}
	printIPAM(out, name("ADD, wrapped search"), pair, wrapped)
	// Two addresses are left, behind everything.
	for _, p := range pair {
		p.end = p.addr(count + 1)
	}
	narrow := map[*ipamProgram][]time.Duration{}
	for i := range rounds {
		if err := errors.Join(both(narrow, "ADD", i), both(map[*ipamProgram][]time.Duration{}, "DEL", i)); err != nil {
			return err
		}
	}
	printIPAM(out, name("ADD, two addresses free"), pair, narrow)
	for _, p := range pair {
		p.end = netip.Addr{}
	}
	if count != 250 && count != 60_000 {
		return nil
	}
	return compareIPAM(out, name(fmt.Sprintf("%d ADDs at once", ipamParallel)), 3, pair, func(p *ipamProgram, i int) (time.Duration, error) {
		return p.parallel(ctx, i)
	})
}

// compareIPAM measures by turns.
func compareIPAM(out io.Writer, name string, rounds int, pair []*ipamProgram, f func(*ipamProgram, int) (time.Duration, error)) error {
	got := map[*ipamProgram][]time.Duration{}
	for i := range rounds {
		for k := range pair {
			p := pair[(k+i)%len(pair)]
			d, err := f(p, i)
			if err != nil {
				return err
			}
			got[p] = append(got[p], d)
		}
	}
	printIPAM(out, name, pair, got)
	return nil
}

func printIPAM(out io.Writer, name string, pair []*ipamProgram, got map[*ipamProgram][]time.Duration) {
	fmt.Fprintf(out, "  %-42s", name)
	for _, p := range pair {
		fmt.Fprintf(out, " %s %s (%s) ", p.name, ms(median(got[p])), ms(slices.Min(got[p])))
	}
	fmt.Fprintf(out, " ratio %.3f\n", ratio(median(got[pair[1]]), median(got[pair[0]])))
}

// ipamProgram is one plugin with a directory of its own.
type ipamProgram struct {
	name, path string
	n          *node
	end        netip.Addr // of the range, if it is cut short
	heal       map[string]any
	network    string
}

// install copies the program, so that all are written in the same way: one as the linker wrote
// it, or as it was read again from a disk, lies in other pages of the cache and starts up to a fifth slower.
func (p *ipamProgram) install() error {
	b, err := os.ReadFile(p.path)
	if err != nil {
		return err
	}
	p.path = p.n.path("bin-" + p.name)
	return os.WriteFile(p.path, b, 0o755)
}

func (p *ipamProgram) dataDir() string { return p.n.path("ipam-" + p.name) }
func (p *ipamProgram) dir() string     { return filepath.Join(p.dataDir(), p.net()) }
func (p *ipamProgram) net() string {
	if p.network != "" {
		return p.network
	}
	return "bench"
}

// addr is the i-th address behind the gateway of 198.18.0.0/15's first half, which is nobody's.
func (p *ipamProgram) addr(i int) netip.Addr {
	v := 2 + i
	return netip.AddrFrom4([4]byte{198, 18, byte(v >> 8), byte(v)})
}

func (p *ipamProgram) top() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 255, 254}) }

func (p *ipamProgram) last(a netip.Addr) error {
	return os.WriteFile(filepath.Join(p.dir(), "last_reserved_ip.0"), []byte(a.String()), 0o600)
}

// fill makes the directory anew, with files as host-local writes them, and lets one ADD and
// DEL pass: the first look at a directory in a boot is another thing.
func (p *ipamProgram) fill(ctx context.Context, count int) error {
	if err := os.RemoveAll(p.dataDir()); err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir(), 0o755); err != nil {
		return err
	}
	for i := range count {
		if err := os.WriteFile(filepath.Join(p.dir(), p.addr(i).String()), []byte(p.n.id()+"\r\neth0"), 0o600); err != nil {
			return err
		}
	}
	if err := p.last(p.addr(max(count-1, 0))); err != nil {
		return err
	}
	unix.Sync()
	_, err1 := p.call(ctx, "ADD", 1_000_000)
	_, err2 := p.call(ctx, "DEL", 1_000_000)
	return errors.Join(err1, err2)
}

// call runs the plugin for the i-th container, and returns how long it took.
func (p *ipamProgram) call(ctx context.Context, verb string, i int) (time.Duration, error) {
	ipam := map[string]any{
		"type": p.name, "dataDir": p.dataDir(), "subnet": "198.18.0.0/16", "runDir": p.n.path("run"), "stateDir": p.n.path("state"),
	}
	if p.heal != nil {
		ipam["heal"], ipam["subnet"] = p.heal, "198.18.0.0/24"
	} else {
		ipam["heal"] = map[string]any{"disabled": true}
	}
	if p.end.IsValid() {
		ipam["rangeEnd"] = p.end
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": p.net(), "type": "bridge", "ipam": ipam})
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, p.path)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent", "CNI_NETNS=/nonexistent",
		fmt.Sprintf("CNI_CONTAINERID=%064x", i+1),
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &stdout, &stderr
	start := time.Now()
	err = cmd.Run()
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w: %s %s", p.name, verb, err, stdout.Bytes(), stderr.Bytes())
	}
	return took, nil
}

// parallel makes many ADDs at once, and takes them back.
func (p *ipamProgram) parallel(ctx context.Context, round int) (time.Duration, error) {
	errs := make([]error, ipamParallel)
	each := func(verb string) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for k := range errs {
			wg.Go(func() {
				_, err := p.call(ctx, verb, 2_000_000+round*1000+k)
				errs[k] = errors.Join(errs[k], err)
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	took := each("ADD")
	each("DEL")
	return took, errors.Join(errs...)
}

// healPart fills a /24 with dead reservations on a node with 100 live sandboxes, and times
// the ADD that finds it full.
func healPart(ctx context.Context, s settings, out io.Writer) (err error) {
	n, err := s.newNode(ctx, 100, 100, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	holdfast, err := filepath.Abs(s.holdfast)
	if err != nil {
		return err
	}
	p := &ipamProgram{name: "holdfast-ipam", path: s.ipam, n: n, network: "healed"}
	p.heal = map[string]any{"binary": holdfast, "args": append(n.flags(), "--grace", "1s")}
	clock := boot.NewClock("/proc")
	now := clock.Now()
	store, err := hostlocal.OpenStore(hostlocal.StoreConfig{
		Dir: p.dir(), RunDir: n.path("run"), Proc: "/proc", Boot: now.Boot, Mono: func() time.Duration { return clock.Now().Mono },
	})
	if err != nil {
		return err
	}
	defer store.Close()
	tx, err := store.Begin(ctx)
	if err != nil {
		return err
	}
	for i := range 253 {
		d, err := store.Draft(n.id(), "eth0", 0)
		if err != nil {
			return err
		}
		if _, err := tx.Reserve(d, p.addr(i)); err != nil {
			return err
		}
	}
	if err := tx.SetLast(0, p.addr(252)); err != nil {
		return err
	}
	tx.End()
	time.Sleep(1100 * time.Millisecond) // the grace that this is measured with
	took, err := p.call(ctx, "ADD", 1)
	if err != nil {
		return err
	}
	next, err := p.call(ctx, "ADD", 2)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  ADD into a /24 full of dead reservations, healed: %s ms; the ADD after it: %s ms\n", ms(took), ms(next))
	return nil
}
