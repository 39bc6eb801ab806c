package ipam

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// interleaving lets two programs work on one network at once, kills some of their
// processes, and holds the outcome to what every caller may rely on:
//
//   - an address that was handed out is not handed out again before its DEL began;
//   - what was handed out has its file, until its DEL begins;
//   - an attachment whose ADD failed or whose DEL succeeded has none;
//   - a search that finds nothing had nothing to find;
//   - files of others stay as they are.
//
// An empty file is host-local's when it is killed, and counted; where no host-local
// process was killed it breaks the rules.
//
// Every attachment belongs to one worker: a runtime does not work on one in parallel.
type interleaving struct {
	programs [2]Plugin
	kill     [2]bool // whose processes may be killed
	dataDir  string  // empty
	seed     uint64
	ops      int
}

const (
	interleaved      = "shared"
	interleavedIPAM  = `"ranges": [[{"subnet": "198.18.0.0/24", "rangeEnd": "198.18.0.20"}], [{"subnet": "2001:db8::/122"}]]`
	interleavedRoom  = 19 // addresses of the first set: .1 is the gateway
	workers          = 4
	ownersPerWorker  = 8 // more attachments than addresses
	opsPerRound      = 50
	killProbability  = 0.2
	latestKill       = 8 * time.Millisecond
	emptyReservation = ""
)

// tally says what happened.
type tally struct {
	Adds, Dels, Checks, Kills int
	Refused, Full             int // ADDs that failed, as they had to
	Empty, EmptyLast          int // files that a killed host-local left empty
}

// life is what is known of an attachment.
type life int

const (
	free    life = iota // holds nothing
	held                // an ADD succeeded
	unknown             // a call was killed; it may hold something
)

type attachment struct {
	id, ifname string
	life       life
	addresses  []string
	freedAt    int // the ledger's clock, when it became free
}

func (a *attachment) content() string { return a.id + "\r\n" + a.ifname }

// ledger is what all workers know. Its mutex also guards every attachment.
type ledger struct {
	mu          sync.Mutex
	clock       int
	holder      map[string]*attachment
	attachments []*attachment
	lost        int // ADDs of host-local that were killed in this round: each may have left an empty file
	tally       tally
	problems    []string
}

func (l *ledger) problem(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// planted are files that are none of the programs' business.
func planted() map[string]string {
	return map[string]string{
		"198.18.0.7":     "0ld1d",             // a release that wrote the ID alone
		"198.18.0.9":     "by hand\n",         // a person
		"2001:db8::9":    "other\r\neth0\n",   // another runtime's
		"notes.txt":      "do not touch",      // no address
		"sub/198.18.0.8": "elsewhere\r\neth0", // a directory is no address either
	}
}

// run returns the first broken rules as its error.
func (in interleaving) run(ctx context.Context) (tally, error) {
	net := filepath.Join(in.dataDir, interleaved)
	for name, content := range planted() {
		path := filepath.Join(net, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return tally{}, err
		}
	}
	// Without these ours would compare each candidate with all of the node's namespaces for
	// some minutes, which is not what is looked at here.
	for name, last := range map[string]string{"last_reserved_ip.0": "198.18.0.20", "last_reserved_ip.1": "2001:db8::3f"} {
		if err := os.WriteFile(filepath.Join(net, name), []byte(last), 0o600); err != nil {
			return tally{}, err
		}
	}
	l := &ledger{holder: map[string]*attachment{}}
	for i := range workers * ownersPerWorker {
		l.attachments = append(l.attachments, &attachment{id: fmt.Sprintf("c%02d", i/2), ifname: fmt.Sprintf("eth%d", i%2)})
	}
	for round := 0; round*opsPerRound < in.ops; round++ {
		n := min(opsPerRound, in.ops-round*opsPerRound)
		if err := in.round(ctx, l, round, n); err != nil {
			return l.tally, err
		}
		if err := in.settle(l); err != nil {
			return l.tally, fmt.Errorf("seed %d, round %d: %w", in.seed, round, err)
		}
	}
	if err := in.clear(ctx, l); err != nil {
		return l.tally, fmt.Errorf("seed %d, at the end: %w", in.seed, err)
	}
	return l.tally, nil
}

func (in interleaving) round(ctx context.Context, l *ledger, round, ops int) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(in.seed, uint64(round*workers+w)))
			for range (ops + workers - 1 - w) / workers {
				a := l.attachments[w*ownersPerWorker+rnd.IntN(ownersPerWorker)]
				if errs[w] = in.act(ctx, l, a, rnd); errs[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// act does what the attachment's life asks for, most of the time.
func (in interleaving) act(ctx context.Context, l *ledger, a *attachment, rnd *rand.Rand) error {
	l.mu.Lock()
	life := a.life
	l.mu.Unlock()
	command, odd := "ADD", rnd.IntN(100)
	switch {
	case life == held && odd >= 50, life == unknown && odd >= 25, life == free && odd >= 95:
		command = "DEL"
	case life == held && odd >= 15:
		command = "CHECK"
	}
	which := rnd.IntN(2)
	t := turn{command: command, program: in.programs[which]}
	if rnd.Float64() < killProbability && in.kill[which] {
		t.killOnCreate = command == "ADD" && rnd.IntN(3) > 0
		if !t.killOnCreate {
			t.killAfter = 1 + time.Duration(rnd.Int64N(int64(latestKill)))
		}
	}
	return in.call(ctx, l, a, t)
}

type turn struct {
	command      string
	program      Plugin
	killAfter    time.Duration
	killOnCreate bool
}

func (in interleaving) call(ctx context.Context, l *ledger, a *attachment, t turn) error {
	l.mu.Lock()
	was, began := a.life, l.clock
	switch t.command {
	case "DEL":
		// From here on its addresses may go to others.
		for _, x := range a.addresses {
			delete(l.holder, x)
		}
		a.life, a.addresses = unknown, nil
	case "ADD":
		if was == free {
			a.life = unknown
		}
	}
	l.mu.Unlock()

	r := request{command: t.command, id: a.id, ifname: a.ifname, netns: "/var/run/netns/" + a.id,
		config: config{version: "1.1.0", name: interleaved, dataDir: in.dataDir, ipam: interleavedIPAM}}
	c := r.call(t.program)
	c.killAfter = t.killAfter
	if t.killOnCreate {
		c.killOnCreate = filepath.Join(in.dataDir, interleaved)
	}
	got, err := t.program.run(ctx, c)
	if err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	if got.killed {
		l.tally.Kills++
		if t.command == "ADD" && was != held && t.program.upstream() {
			l.lost++
		}
		return nil // what was free or being released is unknown, what was held is held
	}
	switch t.command {
	case "ADD":
		l.added(in, a, was, began, got)
	case "DEL":
		l.tally.Dels++
		if got.exit != 0 {
			l.problem("DEL of %s/%s failed: %s", a.id, a.ifname, got.stdout)
			return nil
		}
		a.life, a.freedAt = free, l.clock
	case "CHECK":
		l.tally.Checks++
		if got.exit != 0 {
			l.problem("CHECK of %s/%s, which holds %v, failed: %s", a.id, a.ifname, a.addresses, got.stdout)
		}
	}
	return nil
}

// added books an ADD that was not killed.
func (l *ledger) added(in interleaving, a *attachment, was life, began int, got reply) {
	l.tally.Adds++
	if got.exit == 0 {
		addresses, err := got.addresses()
		if was == held || err != nil || len(addresses) != 2 {
			l.problem("ADD of %s/%s, which was %d and holds %v, gave %v, %v", a.id, a.ifname, was, a.addresses, addresses, err)
			return
		}
		a.life = held
		for _, x := range addresses {
			x, _, _ = strings.Cut(x, "/")
			a.addresses = append(a.addresses, x)
			if other := l.holder[x]; other != nil {
				l.problem("%s was handed to %s/%s and is %s/%s's", x, a.id, a.ifname, other.id, other.ifname)
			}
			l.holder[x] = a
			if content, err := os.ReadFile(filepath.Join(in.dataDir, interleaved, x)); err != nil || string(content) != a.content() {
				l.problem("%s was handed to %s/%s and its file holds %q, %v", x, a.id, a.ifname, content, err)
			}
		}
		return
	}
	f, err := got.failure()
	switch {
	case err != nil:
		l.problem("ADD of %s/%s: %v; stdout %q, stderr %q", a.id, a.ifname, err, got.stdout, got.stderr)
	case strings.Contains(f.Msg, "duplicate allocation is not allowed"):
		l.tally.Refused++
		if was == free {
			l.problem("ADD of %s/%s, which holds nothing: %s", a.id, a.ifname, f.Msg)
		}
	case was != held && strings.Contains(f.Msg, "no IP addresses available in range set"):
		l.tally.Full++
		// Whoever holds or may hold something now, or did while the search went on.
		taken := l.lost + 2 // and what is planted in the range
		for _, x := range l.attachments {
			if x != a && (x.life != free || x.freedAt > began) {
				taken++
			}
		}
		if was == unknown {
			taken++
		}
		if taken < interleavedRoom {
			l.problem("ADD of %s/%s found nothing, and at most %d of %d are taken", a.id, a.ifname, taken, interleavedRoom)
		}
		if was == free {
			a.life, a.freedAt = free, l.clock
		}
	default:
		l.problem("ADD of %s/%s: %s", a.id, a.ifname, f.Msg)
	}
}

// settle looks at the directory when nothing runs, takes away the empty files, as an
// operator would, and returns the broken rules.
func (in interleaving) settle(l *ledger) error {
	net := filepath.Join(in.dataDir, interleaved)
	files, err := readTree(net)
	if err != nil {
		return err
	}
	mayBeEmpty := in.kill[0] && in.programs[0].upstream() || in.kill[1] && in.programs[1].upstream()
	owners := map[string]*attachment{}
	for _, a := range l.attachments {
		owners[a.content()] = a
		for _, x := range a.addresses {
			if files[x] != a.content() {
				l.problem("%s of %s/%s is lost: its file holds %q", x, a.id, a.ifname, files[x])
			}
		}
	}
	for name, content := range planted() {
		if got, ok := files[name]; !ok || got != content {
			l.problem("%s held %q, now %q (there: %v)", name, content, got, ok)
		}
		delete(files, name)
	}
	delete(files, "lock")
	delete(files, "sub/")
	for name, content := range files {
		_, notAddress := netip.ParseAddr(name)
		last := name == "last_reserved_ip.0" || name == "last_reserved_ip.1"
		_, notLast := netip.ParseAddr(content)
		a := owners[content]
		switch {
		case last && content == "" && mayBeEmpty:
			l.tally.EmptyLast++
		case last && notLast == nil:
		case notAddress == nil && content == emptyReservation && mayBeEmpty:
			l.tally.Empty++
			if err := os.Remove(filepath.Join(net, name)); err != nil {
				return err
			}
		case notAddress == nil && a != nil && a.life == unknown:
		case notAddress == nil && a != nil && slices.Contains(a.addresses, name):
		case notAddress == nil && a != nil:
			l.problem("%s is a leak: %s/%s is %d and holds %v", name, a.id, a.ifname, a.life, a.addresses)
		default:
			l.problem("%s holds %q", name, content)
		}
	}
	l.lost = 0
	if len(l.problems) > 0 {
		return errors.New(strings.Join(l.problems, "\n"))
	}
	return nil
}

// clear deletes every attachment, by the programs in turn and without a kill, after
// which only what was planted may be there.
func (in interleaving) clear(ctx context.Context, l *ledger) error {
	for i, a := range l.attachments {
		if err := in.call(ctx, l, a, turn{command: "DEL", program: in.programs[i%2]}); err != nil {
			return err
		}
	}
	return in.settle(l)
}

func TestInterleaved(t *testing.T) {
	up, our := upstream(), ours()
	for _, p := range []struct {
		name string
		in   interleaving
	}{
		{"ours, both killed", interleaving{programs: [2]Plugin{our, our}, kill: [2]bool{true, true}}},
		// What is empty here is ours.
		{"ours and host-local, ours killed", interleaving{programs: [2]Plugin{up, our}, kill: [2]bool{false, true}}},
		{"ours and host-local, both killed", interleaving{programs: [2]Plugin{up, our}, kill: [2]bool{true, true}}},
	} {
		t.Run(p.name, func(t *testing.T) {
			p.in.dataDir, p.in.seed, p.in.ops = t.TempDir(), *seedFlag, *interleavedFlag
			got, err := p.in.run(t.Context())
			t.Logf("%+v", got)
			if err != nil {
				t.Fatal(err)
			}
			if done := got.Adds + got.Dels + got.Checks + got.Kills; done < *interleavedFlag || *interleavedFlag >= 200 && (got.Kills == 0 || got.Full == 0) {
				t.Errorf("%d calls of %d came to an end; a kill and a full range have to be among them", done, *interleavedFlag)
			}
		})
	}
}

// TestInterleavedFinds: programs that break a rule are found out.
func TestInterleavedFinds(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want string }{
		"nothing":                      {want: ""},
		"hands out twice":              {before: `[ "$CNI_COMMAND" != ADD ] || rm -f "$NET"/198.18.0.[2345] "$NET"/last_reserved_ip.0`, want: "was handed to"},
		"loses a reservation":          {before: `rm -f "$NET"/198.18.0.[23456]`, want: "is lost"},
		"does not release":             {before: `[ "$CNI_COMMAND" != DEL ] || exit 0`, want: "is a leak"},
		"leaves an empty file":         {after: `[ "$CNI_COMMAND" != DEL ] || [ -e "$NET/198.18.0.21" ] || : > "$NET/198.18.0.21"`, want: `198.18.0.21 holds ""`},
		"leaves half a file":           {after: `[ "$CNI_COMMAND" != DEL ] || [ -e "$NET/198.18.0.21" ] || printf c0 > "$NET/198.18.0.21"`, want: `198.18.0.21 holds "c0"`},
		"leaves a temporary file":      {after: `: > "$NET/.198.18.0.2.tmp"`, want: `.198.18.0.2.tmp holds`},
		"removes what is another's":    {after: `rm -f "$NET/198.18.0.9"`, want: "198.18.0.9 held"},
		"walks into directories":       {after: `rm -f "$NET/sub/198.18.0.8"`, want: "sub/198.18.0.8 held"},
		"finds nothing where there is": {after: `[ "$CNI_COMMAND" != ADD ] || { out='{"code": 999, "msg": "no IP addresses available in range set: x"}'; code=1; }`, want: "found nothing"},
		"breaks the last address":      {after: `echo 198 > "$NET/last_reserved_ip.1"`, want: "last_reserved_ip.1 holds"},
		"refuses CHECK":                {before: `[ "$CNI_COMMAND" != CHECK ] || exit 1`, want: "CHECK of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := interleaving{dataDir: t.TempDir(), seed: *seedFlag, ops: 60}
			w := wrong(t, filepath.Join(in.dataDir, interleaved), c.before, c.after)
			in.programs = [2]Plugin{w, w}
			_, err := in.run(t.Context())
			if c.want == "" {
				if err != nil {
					t.Errorf("a program that breaks no rule: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v; want %q", err, c.want)
			}
		})
	}
}
