package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
	"github.com/holdfast-cni/holdfast/internal/wire"
)

const (
	healLimit = 5 * time.Second
	// pressureGrace is the least age of what goes under pressure, where the evidence is
	// stronger; see verdict.Policy.
	pressureGrace = 30 * time.Second
)

func newHeal(a *app) *cobra.Command {
	var request string
	var limit, pressure time.Duration
	cmd := &cobra.Command{
		Use:   "heal",
		Short: "One bounded emergency sweep of a network that is full; holdfast-ipam starts it",
		Long: `heal is what the IPAM plugin holdfast-ipam starts when a network has no free address and no
agent answers: one sweep of one network, bounded in time, by the same judge, gates and
witnesses as gc.

What holdfast-ipam reserved carries a stamp that proves its age, its boot and its network
namespace. So no second sighting is needed: what every witness says is absent goes
if it is older than --grace, or of an earlier boot, or older than --pressure-grace and made for
a network namespace that is gone. What host-local reserved has no stamp and waits as it
does for gc. Port mappings and firewall rules go before their address; other side resources and
cache files are left for the next gc.

With --request it reads a HealRequest (one line of JSON) and answers with a HealResponse on
standard output, whatever happens: {"apiVersion": "holdfast.dev/v1alpha1", "kind":
"HealRequest", "dataDir": ..., "network": ...}, and optionally "spare", the container that is
being added, and "validAttachments", those that a runtime has: neither is ever released. With
"validAttachments", as CNI's GC sends them, --pressure-grace does not hold: nothing is said to be full.`,
		Example: `  holdfast heal --data-dir /var/lib/cni/networks --network podnet`,
		Args:    args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			if limit <= 0 || pressure < 0 {
				return usagef("--limit %s, --pressure-grace %s: want more than 0, and 0 or more", limit, pressure)
			}
			p := wire.HealResponse{APIVersion: wire.APIVersion, Kind: wire.KindHealResponse}
			q, err := a.healRequest(request)
			if err != nil {
				if request == "" {
					return err
				}
				p.Error = report.Clean(err.Error())
				return errors.Join(err, wire.Write(a.stdout, p))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			err = a.heal(ctx, q, pressure, &p)
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("the %s of --limit were over: %w", limit, err)
			}
			if request != "" {
				if err != nil {
					p.Error = report.Clean(err.Error())
				}
				return wire.Write(a.stdout, p)
			}
			if err != nil {
				return err
			}
			return a.emit(p, func(w io.Writer) { fmt.Fprintln(w, p) })
		},
	}
	a.opts.addNode(cmd.Flags())
	a.opts.addRelease(cmd.Flags())
	cmd.Flags().StringVar(&request, "request", "", "read the request from this `file`, - for standard input")
	cmd.Flags().DurationVar(&limit, "limit", healLimit, "how long it may take; what is begun then is ended")
	cmd.Flags().DurationVar(&pressure, "pressure-grace", pressureGrace, "least age of a stamped reservation whose network namespace is gone; 0 switches that rule off")
	return cmd
}

// healRequest is the one that was sent, or one made of the flags.
func (a *app) healRequest(from string) (wire.HealRequest, error) {
	if from == "" {
		if len(a.opts.dataDirs) != 1 || len(a.opts.networks) != 1 {
			return wire.HealRequest{}, usagef("heal works on one network: say --data-dir and --network, once each")
		}
		return wire.HealRequest{DataDir: a.opts.dataDirs[0], Network: a.opts.networks[0]}, nil
	}
	in := io.Reader(os.Stdin)
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return wire.HealRequest{}, err
		}
		defer f.Close()
		in = f
	}
	q, err := wire.ReadRequest(in)
	if err == nil {
		err = checkHeal("--request "+from, q)
	} else {
		err = usagef("--request %s: %w", from, err)
	}
	return q, err
}

func checkHeal(what string, q wire.HealRequest) error {
	switch {
	case !filepath.IsAbs(q.DataDir):
		return usagef("%s: dataDir is %q; allowed is an absolute path", what, q.DataDir)
	case q.Network == "" || filepath.Base(q.Network) != q.Network || q.Network == "." || q.Network == "..":
		return usagef("%s: network is %q; allowed is the name of a directory", what, q.Network)
	}
	return nil
}

func (a *app) heal(ctx context.Context, q wire.HealRequest, pressure time.Duration, p *wire.HealResponse) error {
	a.opts.dataDirs, a.opts.networks = []string{q.DataDir}, []string{q.Network}
	a.opts.timeout = min(a.opts.timeout, 3*time.Second)
	n, err := openWaiting(ctx, a.opts)
	if err != nil {
		return err
	}
	defer n.Close()
	a.warn(n)
	n.healing(q, pressure)
	r := &sweepRun{a: a, n: n}
	// A healer may have been killed, as by the runtime that gave its ADD up.
	if r.settled, r.unsettled = n.settle(ctx); r.unsettled != nil {
		a.say("%v", r.unsettled)
	}
	return r.heal(ctx, q, p)
}

// healing makes the policy that of an emergency sweep.
func (n *node) healing(q wire.HealRequest, pressure time.Duration) {
	n.policy.PressureGrace, n.policy.Pressed = 0, nil
	if q.Valid == nil { // nothing says that a network is full when its runtime collects
		n.policy.PressureGrace = pressure
	}
	n.policy.Valid = nil
	if q.Spare != "" {
		n.policy.Valid = append(n.policy.Valid, claim.Attachment{Network: q.Network, ContainerID: q.Spare})
	}
	if q.Valid != nil {
		for _, v := range *q.Valid {
			n.policy.Valid = append(n.policy.Valid, claim.Attachment{Network: q.Network, ContainerID: v.ContainerID, IfName: v.IfName})
		}
	}
}

// forHeal lets an open node look at one network alone, as `holdfast heal` does, and gives back
// what restores it.
func (n *node) forHeal(q wire.HealRequest, pressure time.Duration) (*node, func()) {
	o := *n.o
	o.dataDirs, o.networks, o.confDirs = []string{q.DataDir}, []string{q.Network}, n.o.confDirs
	engine := *n.engine
	engine.Follow = false
	engine.Reservations = reservations{hostlocal.New(hostlocal.Config{ConfDirs: confDirs(&o), DataDirs: o.dataDirs, Clock: n.clock.Now}), n.holds, n.hosts}
	oldO, oldPolicy, oldEngine := n.o, n.policy, n.engine
	n.o, n.engine = &o, &engine
	n.healing(q, pressure)
	return n, func() { n.o, n.policy, n.engine = oldO, oldPolicy, oldEngine }
}

// heal is the sweep of one network.
func (r *sweepRun) heal(ctx context.Context, q wire.HealRequest, p *wire.HealResponse) error {
	n := r.n
	if err := r.look(ctx); err != nil {
		return err
	}
	if n.watch != nil {
		// It may come before the first sweep, and the rate is of those before, too.
		if err := n.watch.load(n.engine.Journal, n.clock.Now(), plan.Caps(r.audit.Judgement, n.o.maxReleases)); err != nil {
			return err
		}
	}
	o := n.o
	store := filepath.Join(q.DataDir, q.Network)
	going := map[string]bool{} // containers
	for i := range r.audit.Judgement.Findings {
		if f := &r.audit.Judgement.Findings[i]; f.Releasable && f.Resource.Kind == claim.KindReservation {
			going[f.Resource.Owner.ID] = true
		}
	}
	r.plan = plan.Make(r.audit.Judgement, plan.Options{
		MaxReleases: o.maxReleases, ForceOverCap: o.forceOverCap, NoDel: o.noDel, Used: n.paced(r.audit, map[string]int{}),
		Skip: func(res *claim.Resource) string {
			if res.Kind != claim.KindReservation && !(going[res.Owner.ID] && leadsTo(res)) {
				return "left for the next gc"
			}
			return r.skip(res)
		},
	})
	if len(r.plan.Groups) > 0 && !r.dryRun {
		res, err := n.reap(ctx, r.audit, r.plan)
		r.results = append(r.results, res)
		r.err = err
	}
	r.response(p, store)
	return r.err
}

// leadsTo reports whether a cache entry is of plugins that made rules for the address, such as
// of a port of the node: they go before somebody else gets it (I8). What others left is only
// litter.
func leadsTo(res *claim.Resource) bool {
	return res.Cache != nil && (slices.Contains(res.Cache.Plugins, "portmap") || slices.Contains(res.Cache.Plugins, "firewall"))
}

// openWaiting is openNode for releases that waits for another reaper, for half of the time
// there is: a Pod need not fail since a gc of half a second is at work, or since another
// network is full too.
func openWaiting(ctx context.Context, o *options) (*node, error) {
	until := time.Now()
	if d, ok := ctx.Deadline(); ok {
		until = until.Add(time.Until(d) / 2)
	}
	for {
		n, err := openNode(o, releases)
		var busy *hostlocal.ErrBusy
		if !errors.As(err, &busy) || time.Now().After(until) || ctx.Err() != nil {
			return n, err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// response counts what became of the reservations of one store.
func (r *sweepRun) response(p *wire.HealResponse, store string) {
	gone := map[string]bool{}
	withheld := func(why string) {
		if why != "" && !slices.Contains(p.Withheld, why) && len(p.Withheld) < 8 {
			p.Withheld = append(p.Withheld, why)
		}
	}
	for _, res := range r.results {
		for _, rel := range res.Released {
			gone[rel.Finding.Resource.Path] = true
			if rel.Finding.Resource.Kind == claim.KindReservation {
				p.Released++
			}
		}
		for _, f := range res.Reprieved {
			withheld("no longer certain when the witnesses were asked again: " + f.Now.Why)
		}
		for _, f := range res.Failed {
			if f.Err != nil {
				withheld(f.Err.Error())
			}
		}
	}
	for _, w := range r.plan.Withheld {
		if w.Finding.Resource.Kind == claim.KindReservation {
			withheld(w.Why)
		}
	}
	p.Counts = map[string]int{}
	var wait time.Duration
	for i := range r.audit.Judgement.Findings {
		f := &r.audit.Judgement.Findings[i]
		if f.Resource.Kind != claim.KindReservation || f.Resource.Store != store || gone[f.Resource.Path] || f.Verdict == verdict.Missing {
			continue
		}
		p.Counts[f.Verdict.String()]++
		if f.Verdict == verdict.Unknown {
			withheld(f.Why)
		}
		if f.Verdict == verdict.Suspect && f.Wait > 0 && (wait == 0 || f.Wait < wait) {
			wait = f.Wait
		}
	}
	if wait > 0 {
		withheld("the first suspect is due in " + seconds(wait))
	}
	if !slices.ContainsFunc(r.audit.Case.Snapshots, func(s claim.Snapshot) bool {
		return slices.ContainsFunc(s.Stores, func(st claim.Store) bool { return st.Dir == store })
	}) {
		withheld(store + " was not listed by that name: is it a link, or listed by another name?")
	}
	for _, dir := range unlisted(r.audit) {
		withheld(dir + " could not be listed")
	}
	if r.audit.Judgement.Vantage != "" {
		withheld("nothing can be released from here: run `holdfast gc` or the agent in the node's own PID namespace, as root; `holdfast doctor` says what is missing")
	}
	for i := range p.Withheld {
		p.Withheld[i] = report.Clean(p.Withheld[i])
	}
}
