package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/holdfast-cni/holdfast/cmd/holdfast-ipam/allocator"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/proc"
)

// kernelTimeout bounds one look at the kernel.
const kernelTimeout = 5 * time.Second

// trustAfter is how long after a directory was found new or wound back candidates are compared with the kernel at least: an ADD that was in flight
// then has its address on a link by now, or never gets it.
const trustAfter = 5 * time.Minute

func cmdAdd(args *cmdArgs) error {
	r, err := parse(args)
	if err != nil {
		return err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Routes: r.conf.Routes}
	if r.conf.ResolvConf != "" {
		dns, err := parseResolvConf(r.conf.ResolvConf)
		if err != nil {
			return err
		}
		result.DNS = *dns
	}
	// The CNI library says so too, but after ADD, when the address is reserved.
	netns := r.netns()
	if netns != 0 && netns == ownNetns() {
		return types.NewError(types.ErrInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same", "")
	}
	store, err := r.open()
	if err != nil {
		return err
	}
	defer r.close(store)
	ctx := context.Background()
	a := &adder{r: r, store: store, netns: netns, from: map[int]netip.Addr{}}
	ips, err := a.allocate(ctx)
	var full *fullError
	if errors.As(err, &full) {
		// More may wait than one sweep releases, which is capped: then another is due.
		until := time.Now().Add(r.extras.Heal.timeout)
		for more := true; more && errors.As(err, &full); {
			healed := r.heal(ctx, full)
			// Whatever it says: some may have gone before it failed, or by a DEL meanwhile.
			if still, lookErr := r.exhausted(ctx, store); lookErr != nil || still == nil {
				a.view, a.looks = nil, 0
				ips, err = a.allocate(ctx)
			}
			if more = healed.Released > 0 && healed.Error == "" && time.Now().Before(until); !more && errors.As(err, &full) {
				return fmt.Errorf("failed to allocate for range %d: %w; %s", full.set, full, healed)
			}
		}
	}
	if err != nil {
		return err
	}
	result.IPs = ips
	if err := printResult(os.Stdout, result, r.version); err != nil {
		return errors.Join(err, a.takeBack(ctx))
	}
	return nil
}

// adder is one ADD.
type adder struct {
	r     *request
	store *hostlocal.Store
	netns uint64
	// view is what the kernel holds, when it was needed.
	view  *kernelView
	looks int
	// anew: the directory was read whatever the index said.
	anew bool
	// made are the addresses that this ADD reserved.
	made []netip.Addr
	// from is where the first try began to search in each set: another begins there too.
	from map[int]netip.Addr
}

// fullError: nothing is free in a range set.
type fullError struct {
	set      int
	ranges   string
	reserved int // addresses of the store with a reservation
	held     int // addresses that the kernel holds although nobody reserved them
}

func (e *fullError) Error() string { return "no IP addresses available in range set: " + e.ranges }

// errLook: the kernel must be asked first, without the lock.
var errLook = errors.New("the kernel must be asked")

// errAnew: nothing is free by the index, on whose word alone nobody is told so. Reading the
// directory takes long, so that is done without the lock.
var errAnew = errors.New("the directory must be read")

// allocate reserves one address of each range set, or none at all.
func (a *adder) allocate(ctx context.Context) ([]*current.IPConfig, error) {
	ips, err := a.try(ctx)
	for errors.Is(err, errLook) || errors.Is(err, errAnew) {
		if errors.Is(err, errAnew) {
			a.store.Anew()
			a.anew = true
		} else {
			if err := a.store.SyncName(); err != nil {
				return nil, err
			}
			a.view = lookAtKernel(ctx, a.r.clock.Now)
			a.looks++
		}
		ips, err = a.try(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := a.store.Sync(); err != nil {
		return nil, errors.Join(err, a.takeBack(ctx))
	}
	if len(a.made) > 0 && a.store.Unstamped != nil {
		say("reserved without a stamp, so its age proves nothing later: %v", a.store.Unstamped)
	}
	return ips, nil
}

// try is one turn at the store.
func (a *adder) try(ctx context.Context) (ips []*current.IPConfig, err error) {
	// Whole, stamped and durable before the lock is taken, which is held across no fsync.
	drafts := make([]*hostlocal.Draft, len(a.r.conf.Ranges))
	defer func() {
		for _, d := range drafts {
			if d != nil {
				a.store.Discard(d)
			}
		}
	}()
	for i := range drafts {
		if drafts[i], err = a.store.Draft(a.r.args.ContainerID, a.r.args.IfName, a.netns); err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", i, err)
		}
	}
	tx, err := a.store.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.End()
	t := &turn{a: a, tx: tx, drafts: drafts}
	if ips, err = t.all(); err != nil {
		if left := t.undo(); left != nil {
			// Not to be taken for what is tried again: that would meet what is left.
			return nil, fmt.Errorf("%v; and it could not be taken back: %w", err, left)
		}
		return nil, err
	}
	a.made = t.made
	return ips, nil
}

// takeBack removes what this ADD reserved, after its turn.
func (a *adder) takeBack(ctx context.Context) error {
	if len(a.made) == 0 {
		return nil
	}
	tx, err := a.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.End()
	own, _, err := tx.Owned(a.r.args.ContainerID, a.r.args.IfName)
	if err != nil {
		return err
	}
	for _, h := range own {
		if slices.Contains(a.made, h.Addr) {
			err = errors.Join(err, tx.Remove(h))
		}
	}
	a.made = nil
	return err
}

const (
	// viewGood is how old a look at the kernel may be. Who waits long for the lock after it
	// would take for free what others were given meanwhile, if the directory was emptied.
	viewGood = 2 * time.Second
	// maxLooks bounds the looks of one ADD, where each takes longer than that.
	maxLooks = 3
)

// mustLook reports whether the kernel must be asked, again or at all.
func (a *adder) mustLook() bool {
	if a.view == nil {
		return true
	}
	age, ok := a.r.clock.Now().Since(a.view.asked)
	return (!ok || age > viewGood) && a.looks < maxLooks
}

// turn is what happens under the lock.
type turn struct {
	a      *adder
	tx     *hostlocal.Tx
	drafts []*hostlocal.Draft
	made   []netip.Addr
}

func (t *turn) undo() (err error) {
	for _, addr := range t.made {
		err = errors.Join(err, t.tx.Unreserve(addr))
	}
	return err
}

func (t *turn) all() ([]*current.IPConfig, error) {
	r := t.a.r
	own, legacy, err := t.tx.Owned(r.args.ContainerID, r.args.IfName)
	if err != nil {
		return nil, err
	}
	own = append(own, legacy...)
	if len(own) > 0 && t.a.view == nil && slices.ContainsFunc(own, func(h hostlocal.Held) bool { return h.Stamp != nil }) {
		return nil, errLook // it may be dead, and then it is taken over
	}
	requested := map[string]net.IP{}
	for _, ip := range r.conf.IPArgs {
		requested[ip.String()] = ip
	}
	var ips []*current.IPConfig
	for i := range r.conf.Ranges {
		set := &r.conf.Ranges[i]
		var want net.IP
		for _, k := range slices.Sorted(maps.Keys(requested)) {
			if set.Contains(requested[k]) {
				want = requested[k]
				delete(requested, k)
				break
			}
		}
		ip, err := t.one(i, set, want, own)
		var full *fullError
		switch {
		case errors.Is(err, errLook), errors.Is(err, errAnew), errors.As(err, &full):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("failed to allocate for range %d: %w", i, err)
		}
		ips = append(ips, ip)
	}
	if len(requested) > 0 {
		text := "failed to allocate all requested IPs:"
		for _, k := range slices.Sorted(maps.Keys(requested)) {
			text += " " + k
		}
		return nil, errors.New(text)
	}
	return ips, nil
}

// one reserves an address of one set: the one that is wanted, the one that is taken over,
// or the next.
func (t *turn) one(i int, set *allocator.RangeSet, want net.IP, own []hostlocal.Held) (*current.IPConfig, error) {
	for _, h := range own {
		in := set.Contains(h.Addr.AsSlice())
		if !in || want != nil && addrOf(want) != h.Addr {
			continue
		}
		if !t.a.view.provesDead(h, t.a.r.clock.Now().Boot, t.a.netns) {
			if want != nil {
				break // host-local's words for it are below
			}
			return nil, fmt.Errorf("%s has been allocated to %s, duplicate allocation is not allowed", h.Addr, t.a.r.args.ContainerID)
		}
		rng, err := set.RangeFor(h.Addr.AsSlice())
		if err != nil {
			return nil, err
		}
		if err := t.tx.Renew(h, t.a.netns); err != nil {
			return nil, err
		}
		say("%s was left by an earlier run of this container and is taken over", h.Addr)
		return &current.IPConfig{Address: net.IPNet{IP: h.Addr.AsSlice(), Mask: rng.Subnet.Mask}, Gateway: rng.Gateway}, nil
	}
	if want != nil {
		return t.wanted(i, set, want)
	}
	return t.next(i, set)
}

// anyFree reports whether a set has an address that could be handed out, else how many the
// kernel alone holds.
func anyFree(tx *hostlocal.Tx, view *kernelView, set *allocator.RangeSet) (free bool, held int) {
	w := newWalk(set, netip.Addr{})
	for {
		addr, s := w.next()
		switch {
		case s == nil:
			return false, held
		case tx.Taken(addr):
		case view.holds(addr):
			held++
		default:
			return true, held
		}
	}
}

// reserve also moves the place where the next search begins, as host-local does even where
// the ADD fails later on; what it cannot note is taken back with the rest (case L19).
func (t *turn) reserve(i int, addr netip.Addr) (bool, error) {
	ok, err := t.tx.Reserve(t.drafts[i], addr)
	if ok {
		t.made = append(t.made, addr)
		if err == nil {
			err = t.tx.SetLast(i, addr)
		}
	}
	return ok, err
}

func (t *turn) wanted(i int, set *allocator.RangeSet, want net.IP) (*current.IPConfig, error) {
	rng, err := set.RangeFor(want)
	if err != nil {
		return nil, err
	}
	if want.Equal(rng.Gateway) {
		return nil, fmt.Errorf("requested ip %s is subnet's gateway", want)
	}
	addr := addrOf(want)
	taken := t.tx.Taken(addr)
	if !taken && t.tx.Distrust != 0 {
		if t.a.mustLook() {
			return nil, errLook
		}
		taken = t.a.view.holds(addr)
	}
	if !taken {
		ok, err := t.reserve(i, addr)
		if err != nil {
			return nil, err
		}
		taken = !ok
	}
	if taken {
		return nil, fmt.Errorf("requested IP address %s is not available in range set %s", want, set)
	}
	return &current.IPConfig{Address: net.IPNet{IP: want, Mask: rng.Subnet.Mask}, Gateway: rng.Gateway}, nil
}

// next goes round from the last reserved address, as host-local does.
func (t *turn) next(i int, set *allocator.RangeSet) (*current.IPConfig, error) {
	last, _ := t.tx.Last(i)
	if from, tried := t.a.from[i]; tried {
		last = from
	} else {
		t.a.from[i] = last
	}
	if t.tx.Distrust != 0 && t.a.mustLook() {
		return nil, errLook
	}
	held := 0
	for _, cooldown := range []time.Duration{t.a.r.extras.Cooldown, 0} {
		held = 0
		for w := newWalk(set, last); ; {
			addr, s := w.next()
			if s == nil {
				break
			}
			if t.tx.Taken(addr) || cooldown > 0 && t.tx.Cooling(addr, cooldown) {
				continue
			}
			if t.tx.Distrust != 0 && t.a.view.holds(addr) {
				held++
				continue
			}
			ok, err := t.reserve(i, addr)
			if err != nil {
				return nil, err
			}
			if ok {
				t.mayTrust()
				return &current.IPConfig{Address: s.ip(addr), Gateway: s.gw}, nil
			}
		}
	}
	if !t.a.anew {
		return nil, errAnew
	}
	return nil, &fullError{set: i, ranges: set.String(), reserved: t.tx.Reserved(), held: held}
}

// mayTrust ends the distrust when it has lasted long enough, and everything that the
// kernel holds in our ranges has a reservation.
func (t *turn) mayTrust() {
	if t.tx.Distrust == 0 || t.a.view == nil || t.a.view.why != "" ||
		t.tx.Lost() && t.a.r.clock.Now().Mono-t.tx.Distrust < trustAfter {
		return
	}
	for addr := range t.a.view.addrs {
		for i := range t.a.r.conf.Ranges {
			if t.a.r.conf.Ranges[i].Contains(addr.AsSlice()) && !t.tx.Taken(addr) && !t.a.isGateway(addr) {
				return
			}
		}
	}
	t.tx.Trust()
}

func (a *adder) isGateway(addr netip.Addr) bool {
	for _, set := range a.r.conf.Ranges {
		for _, rng := range set {
			if addrOf(rng.Gateway) == addr {
				return true
			}
		}
	}
	return false
}

// kernelView is what the kernel of this node holds.
type kernelView struct {
	addrs map[netip.Addr]bool
	netns map[uint64]bool
	// asked is when.
	asked claim.Instant
	// why it could not be seen; then nothing is known to be held, and nothing to be dead.
	why string
}

func (v *kernelView) holds(addr netip.Addr) bool { return v.addrs[addr] }

// provesDead: the stamp says that the reservation is of an earlier boot, or of a namespace
// that is gone, and no namespace of the node holds the address. It is asked for the very
// attachment that is being added, so nothing else can be using it.
func (v *kernelView) provesDead(h hostlocal.Held, bootID string, own uint64) bool {
	if v == nil || v.why != "" || h.Stamp == nil || bootID == "" || v.holds(h.Addr) {
		return false
	}
	if h.Stamp.Boot != bootID {
		return true
	}
	// What was stamped after the look, by another ADD that took it over, was not looked for (I6).
	if _, ok := v.asked.Since(claim.Instant{Boot: h.Stamp.Boot, Mono: h.Stamp.Mono}); !ok {
		return false
	}
	return h.Stamp.Netns != 0 && h.Stamp.Netns != own && !v.netns[h.Stamp.Netns]
}

// lookAtKernel asks the kernel of the node, 10 to 20 ms for 250 namespaces.
func lookAtKernel(ctx context.Context, now func() claim.Instant) *kernelView {
	v := &kernelView{addrs: map[netip.Addr]bool{}, netns: map[uint64]bool{}, asked: now()}
	for _, t := range proc.New(proc.Config{Clock: now, Timeout: kernelTimeout}).Ask(ctx) {
		if t.Witness != claim.WitnessKernel {
			continue
		}
		if t.State != claim.StateComplete || t.Kernel == nil {
			v.why = t.Detail
			continue
		}
		// What is shown is held, also where not all is shown.
		host := false
		for _, n := range t.Kernel.Netns {
			host = host || n.Host
			v.netns[n.ID] = true
			for _, a := range n.Addrs {
				v.addrs[a.Addr] = true
			}
		}
		switch {
		case !t.Kernel.Vantage.Proven:
			v.why = "no vantage: this is not the node's own PID namespace"
		case !host:
			v.why = "the host's own network namespace is not among them"
		}
	}
	if v.why != "" {
		say("the node's namespaces cannot be seen from here, so addresses in use without a reservation would not be noticed: %s", v.why)
	}
	return v
}
