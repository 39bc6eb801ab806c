package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

func newGC(a *app) *cobra.Command {
	var wait, dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Release what is leaked: one sweep, or with --wait both sightings",
		Long: `gc is one sweep: it looks, judges, asks every witness once more about what may go,
writes down what it is about to do, and releases it. A released reservation is moved into
the quarantine below the state directory; "holdfast undo" puts it back.

One look is never enough. An address that was not seen absent before is only remembered,
and a later gc, or this one with --wait, releases it when the grace is over. For what
holdfast-ipam reserved its stamp stands for the first look, if it is older than the grace.

--adopt makes the reservations of live containers again whose file is gone (Missing), so
that the next ADD does not hand their address out: where the libcni cache names the
attachment, exactly its namespace holds the address, and its runtime lists it. It is
written down first, never overwrites anything, and "holdfast undo" takes it back.`,
		Example: `  holdfast gc --wait                    stay, look twice, release
  holdfast gc --dry-run                 what would be released now
  holdfast gc --wait --network podnet
  holdfast gc --force-over-cap          for scripts: release more than the cap
  holdfast gc --adopt                   the directory was emptied while Pods ran`,
		Args: args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			if done, err := a.viaAgent(cmd.Context()); done {
				return err
			}
			return a.gc(cmd.Context(), wait, dryRun)
		},
	}
	a.opts.addNode(cmd.Flags())
	a.opts.addRelease(cmd.Flags())
	cmd.Flags().BoolVar(&wait, "wait", false, "stay until the grace is over, look again and release")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be released, release nothing")
	cmd.Flags().BoolVar(&a.opts.adopt, "adopt", false, "reserve the address of a live container again whose reservation is gone")
	return cmd
}

// sweepRun is one gc command: up to two looks, and what they came to.
type sweepRun struct {
	a       *app
	n       *node
	dryRun  bool
	busy    map[string]string // store -> why it cannot be locked
	audit   *sweep.Audit
	plan    *plan.Plan
	results []*sweep.Result
	adopted []sweep.Adopted
	settled []sweep.Settled
	// unsettled says why some of what an earlier run left half way still is.
	unsettled error
	// paced: the cap is the agent's rate.
	paced bool
	err   error
}

func (a *app) gc(ctx context.Context, wait, dryRun bool) error {
	want := releases
	if dryRun {
		want = remembers
	}
	n, closeNode, err := a.open(want)
	if err != nil {
		return err
	}
	defer func() { closeNode() }()
	if a.served == nil {
		a.warn(n)
	}
	r := &sweepRun{a: a, n: n, dryRun: dryRun}
	if !dryRun {
		// Before the look, which then sees what settling put back: otherwise an address
		// would go without the cache file that was restored for it (I8).
		if r.settled, r.unsettled = n.settle(ctx); r.unsettled != nil {
			a.say("%v", r.unsettled)
		}
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	r.adopt(ctx)
	r.reap(ctx)
	if d := r.due(); wait && d > 0 && r.err == nil {
		if a.served == nil {
			err = a.waitFor(ctx, r, d)
		} else {
			// The agent's own sweeps go on meanwhile, by its own policy.
			opts := *a.opts
			closeNode()
			a.served.agent.Yield(func() { err = a.waitFor(ctx, r, d) })
			*a.opts = opts
			if r.n, closeNode, err = reopen(a, want, err); err != nil {
				closeNode = func() {}
			}
		}
		if err != nil {
			return err
		}
		if err := r.look(ctx); err != nil {
			return err
		}
		r.adopt(ctx)
		r.reap(ctx)
	}
	r.retain()
	a.tell(ctx, r)
	return r.finish(ctx)
}

// retain drops releases from the journal that nothing needs any more, with their
// quarantined files. A failure is reported; it releases and keeps nothing.
func (r *sweepRun) retain() {
	if r.dryRun || r.n.journal == nil {
		return
	}
	if _, err := r.n.journal.Compact(journal.Policy{Discard: r.n.engine.Vault.Discard}, r.n.clock.Now()); err != nil {
		r.a.say("the journal could not be shortened: %v", err)
	}
}

// look lists, asks and judges, and remembers it.
func (r *sweepRun) look(ctx context.Context) error {
	au, err := r.a.look(ctx, r.n)
	if err != nil {
		return err
	}
	if r.audit == nil {
		for _, w := range r.n.unknownNetworks(au) {
			r.a.say("warning: %s", w)
		}
	}
	if au.Unheld != nil {
		return withheldError{fmt.Errorf("the holds cannot be read, so nothing may be released: %w", au.Unheld)}
	}
	before := r.busy
	r.busy = r.n.lockStores(au)
	for _, dir := range slices.Sorted(maps.Keys(r.busy)) {
		if before[dir] == "" {
			r.a.say("%s: %s", dir, r.busy[dir])
		}
	}
	if !r.dryRun {
		if err := r.n.quarantine.Check(storeDirs(au)...); err != nil {
			return withheldError{fmt.Errorf("the quarantine cannot be used, so nothing is released: %w", err)}
		}
	}
	r.n.engine.Remember(au, func(store string) bool { return r.busy[store] == "" })
	if au.Unremembered != nil {
		r.a.say("what was seen is not remembered: %v", au.Unremembered)
		if !r.dryRun {
			return withheldError{fmt.Errorf("nothing is released without a memory of what was seen: %w", au.Unremembered)}
		}
	}
	r.audit = au
	return nil
}

// storeDirs are the data directories and stores of an audit; host-local walks all that lies
// below them.
func storeDirs(au *sweep.Audit) []string {
	var out []string
	for _, s := range au.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Network != "" || st.Dir == st.DataDir {
				out = append(out, st.Dir, st.DataDir)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// skip gives the reasons outside of the judge why something does not go now.
func (r *sweepRun) skip(res *claim.Resource) string {
	if !report.Selected(res, r.a.opts.networks) {
		return "not among the networks asked for"
	}
	if why := r.n.stopped(res); why != "" {
		return why
	}
	for _, s := range r.audit.Case.Snapshots {
		for _, st := range s.Stores {
			if st.Dir != res.Store || st.Network == "" {
				continue
			}
			if why := r.busy[st.Dir]; why != "" {
				return why
			}
			if !r.n.locked[st.Dir] && !r.dryRun {
				return "its directory was not there when the locks were taken"
			}
			if !st.Writable {
				return "its directory is read-only"
			}
		}
	}
	return ""
}

func (r *sweepRun) reap(ctx context.Context) {
	o := r.a.opts
	opt := plan.Options{MaxReleases: o.maxReleases, ForceOverCap: o.forceOverCap, NoDel: o.noDel, Skip: r.skip, Used: r.used()}
	r.plan = plan.Make(r.audit.Judgement, opt)
	if n := overCap(r.plan); n > 0 && !r.dryRun && r.a.interactive() {
		if r.a.ask(fmt.Sprintf("%d addresses are leaked beyond the cap of one sweep. A mass death is more often a wrong witness than a real one. Release them too?", n)) {
			opt.ForceOverCap = true
			r.plan = plan.Make(r.audit.Judgement, opt)
		}
	}
	if r.dryRun || len(r.plan.Groups) == 0 || r.err != nil {
		return
	}
	res, err := r.n.reap(ctx, r.audit, r.plan)
	r.results = append(r.results, res)
	r.err = err
}

// used counts what this command has released already: the cap is for the command, not for
// each of its looks.
func (r *sweepRun) used() map[string]int {
	used := map[string]int{}
	for _, res := range r.results {
		for _, rel := range res.Released {
			if rel.Finding.Resource.Kind == claim.KindReservation && !rel.Finding.BootProven {
				used[rel.Finding.Resource.Store]++
			}
		}
	}
	if r.paced {
		return r.n.paced(r.audit, used)
	}
	return used
}

func overCap(p *plan.Plan) int {
	n := 0
	for _, c := range p.Over {
		n += c
	}
	return n
}

// due is how long to wait until everything that only waits for the grace is due; the
// longer orphan grace is not waited for.
func (r *sweepRun) due() time.Duration {
	var d time.Duration
	limit := r.n.policy.Grace + time.Second
	for i := range r.audit.Judgement.Findings {
		f := &r.audit.Judgement.Findings[i]
		if !f.Releasable && f.Wait > 0 && f.Wait <= limit && report.Selected(f.Resource, r.a.opts.networks) {
			d = max(d, f.Wait)
		}
	}
	return d
}

// waitFor waits by the monotonic clock, as the grace counts, with a progress display.
func (a *app) waitFor(ctx context.Context, r *sweepRun, d time.Duration) error {
	n := 0
	for i := range r.audit.Judgement.Findings {
		if f := &r.audit.Judgement.Findings[i]; f.Wait > 0 && !f.Releasable && f.Resource.Kind == claim.KindReservation && report.Selected(f.Resource, a.opts.networks) {
			n++
		}
	}
	tty := isTerminal(a.stderr)
	if !tty {
		a.say("%d suspected; waiting %s, until %s, for the second sighting", n, seconds(d), time.Now().Add(d).Format("15:04:05"))
	}
	start := r.n.clock.Now()
	tick := time.NewTicker(min(time.Second, max(d/10, 10*time.Millisecond)))
	defer tick.Stop()
	for {
		passed, ok := r.n.clock.Now().Since(start)
		if !ok {
			return errors.New("the clock cannot be read; nothing is released")
		}
		if passed > d {
			break
		}
		if tty {
			const width = 24
			full := int(width * passed / d)
			fmt.Fprintf(a.stderr, "\r%d suspected; second sighting in %-6s [%s%s]", n, seconds(d-passed), bar(full, '='), bar(width-full, ' '))
		}
		select {
		case <-ctx.Done():
			if tty {
				fmt.Fprintln(a.stderr)
			}
			return errors.New("interrupted while waiting for the grace; nothing was released, and what was seen is remembered")
		case <-tick.C:
		}
	}
	if tty {
		fmt.Fprintf(a.stderr, "\r%79s\r", "")
	}
	return nil
}

func bar(n int, c rune) string {
	b := make([]rune, max(n, 0))
	for i := range b {
		b[i] = c
	}
	return string(b)
}

// finish prints the document and sets the exit code.
func (r *sweepRun) finish(ctx context.Context) error {
	doc := r.document()
	if r.a.isText() {
		r.complain(doc)
	}
	if err := r.a.emit(doc, func(w io.Writer) { r.text(w, doc) }); err != nil {
		return err
	}
	switch {
	case r.err != nil && ctx.Err() != nil:
		return fmt.Errorf("interrupted: %w", r.err)
	case r.err != nil:
		r.a.say("%v", r.err)
		return exitError(exitWithheld)
	}
	if why := r.withheld(doc); why != "" {
		r.a.say("exit %d, for something that should go may have stayed: %s", exitWithheld, why)
		return exitError(exitWithheld)
	}
	return nil
}

// withheld says why something that should go may not have gone, or "": exit 4.
func (r *sweepRun) withheld(doc *api.Sweep) string {
	for _, e := range doc.Errors {
		// Changed, gone: somebody else was quicker, nothing is left to do.
		if e.Outcome != "gone" && e.Outcome != "changed" {
			return e.Path + ": " + e.Error
		}
	}
	for _, rel := range doc.Released {
		for _, s := range rel.Steps {
			if s.State == journal.StepFailed {
				return fmt.Sprintf("%s: %s %s failed", rel.Path, s.Step, s.Object)
			}
		}
	}
	for _, k := range doc.Kept {
		if k.Withheld != "" {
			return k.Path + ": " + k.Withheld
		}
	}
	if r.unsettled != nil {
		return r.unsettled.Error()
	}
	for _, dir := range slices.Sorted(maps.Keys(r.busy)) {
		return r.busy[dir]
	}
	for _, dir := range unlisted(r.audit) {
		// Nobody knows what lies in a directory that could not be listed.
		return dir + " could not be listed"
	}
	for _, k := range doc.Kept {
		// A silent witness or a missing vantage withholds what it could have spoken for,
		// whatever that is called; so does a file that cannot be read.
		if slices.Contains([]string{"witness-silent", "may-not-convict", "unreadable", "store-incomplete", lockHeld}, k.Rule) {
			return k.Path + ": " + k.Why
		}
	}
	return ""
}

// lockHeld is the rule for what nobody can release while its store's lock is held.
const lockHeld = "lock-held"

func (r *sweepRun) document() *api.Sweep {
	au := r.audit
	m := r.n.meta(au)
	full := report.Head(&au.Case, au.Judgement, m)
	published := report.Resource
	if r.a.isText() {
		published = report.Brief // text does not show the words
	}
	d := &api.Sweep{
		TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindSweep},
		Node:     full.Node, BootID: full.BootID, At: full.At, DryRun: r.dryRun, Policy: full.Policy, Vantage: full.Vantage,
		Witnesses: full.Witnesses, Networks: full.Networks, Notes: full.Notes, Summary: full.Summary,
		Released: []api.Release{}, Kept: []api.Kept{}, Errors: []api.SweepError{},
	}
	gone := map[string]bool{}
	for _, res := range r.results {
		if d.SweepID == "" {
			d.SweepID = res.Sweep
		}
		for _, rel := range res.Released {
			gone[rel.Finding.Resource.Path] = true
			for _, st := range rel.Steps {
				if st.Step == string(plan.StepCache) && st.State == journal.StepDone {
					gone[st.Object] = true
				}
			}
			d.Released = append(d.Released, api.Release{ReleaseID: rel.ID, Resource: published(rel.Finding, au.Case.Now), Steps: stepsOf(rel.Steps)})
			if rel.Err != nil {
				d.Errors = append(d.Errors, api.SweepError{ReleaseID: rel.ID, Path: rel.Finding.Resource.Path, Outcome: journal.OutcomeReleased, Error: rel.Err.Error()})
			}
		}
		for _, f := range res.Failed {
			e := api.SweepError{ReleaseID: f.ID, Path: f.Finding.Resource.Path, Outcome: f.Outcome, Steps: stepsOf(f.Steps)}
			if f.Finding.Resource.Addr.IsValid() {
				e.Address = f.Finding.Resource.Addr.String()
			}
			if f.Err != nil {
				e.Error = f.Err.Error()
			} else {
				e.Error = map[string]string{"gone": "somebody else removed it", "changed": "it was replaced by another; not touched"}[f.Outcome]
			}
			if f.Outcome == "gone" {
				gone[e.Path] = true
			}
			d.Errors = append(d.Errors, e)
		}
	}
	if r.dryRun {
		for _, g := range r.plan.Groups {
			for _, f := range g.Findings {
				gone[f.Resource.Path] = true
				d.Released = append(d.Released, api.Release{Resource: published(f, au.Case.Now)})
			}
		}
	}
	r.publishAdopted(d, gone, published)
	withheld := map[string]string{}
	for _, w := range r.plan.Withheld {
		withheld[w.Finding.Resource.Path] = w.Why
	}
	for _, res := range r.results {
		for _, rep := range res.Reprieved {
			// Alive after all is as it should be; a witness that fell silent is not.
			if rep.Now.Verdict != verdict.InUse {
				withheld[rep.Resource.Path] = "no longer certain when the witnesses were asked again: " + rep.Now.Why
			}
		}
	}
	for _, ad := range r.adopted {
		if ad.Outcome == "withheld" && ad.Err != nil {
			withheld[ad.Finding.Resource.Path] = "it has no reservation yet: " + ad.Err.Error()
		}
	}
	stuck := map[string]string{} // stores whose lock could not be had (case L7)
	for _, res := range r.results {
		for _, f := range res.Failed {
			var locked *hostlocal.ErrLocked
			if errors.As(f.Err, &locked) {
				stuck[f.Finding.Resource.Store] = locked.Error()
			}
		}
	}
	found := report.Sorted(au.Judgement, m.Networks)
	d.Kept = slices.Grow(d.Kept, max(0, len(found)-len(d.Released)))
	for _, f := range found {
		res := published(f, au.Case.Now)
		d.Summary[res.Verdict]++
		if why := stuck[res.Store]; why != "" && res.Releasable && !gone[res.Path] {
			d.Summary[res.Verdict]--
			res.Verdict, res.Rule, res.Why, res.Releasable = verdict.Unknown.String(), lockHeld, why, false
			d.Summary[res.Verdict]++
		}
		if !gone[res.Path] {
			d.Kept = append(d.Kept, api.Kept{Resource: res, Withheld: withheld[res.Path]})
		}
	}
	for _, s := range r.settled {
		d.Settled = append(d.Settled, api.Settled{ReleaseID: s.ID, Path: s.Release.Path, Outcome: s.Outcome, Steps: stepsOf(s.Steps)})
	}
	return d
}

// pieces counts addresses, and the rest beside them.
func pieces[T any](list []T, kind func(T) string) string {
	addrs := 0
	for _, e := range list {
		if kind(e) == string(claim.KindReservation) {
			addrs++
		}
	}
	out := fmt.Sprintf("%d addresses", addrs)
	if addrs == 1 {
		out = "1 address"
	}
	if n := len(list) - addrs; n > 0 {
		out += fmt.Sprintf(" (and %d cache files or namespaces)", n)
	}
	return out
}

func (r *sweepRun) text(w io.Writer, d *api.Sweep) {
	a := r.a
	for _, s := range d.Settled {
		fmt.Fprintf(w, "settled %s, which an earlier run left half way: %s (%s)\n", s.ReleaseID, s.Outcome, report.Clean(s.Path))
	}
	r.textAdopted(w, d)
	if len(d.Released) > 0 {
		t := report.Table{Header: []string{"RELEASED", "NETWORK", "OWNER", "VERDICT", "RELEASE ID", "WHY"}}
		if d.DryRun {
			t.Header[0] = "WOULD RELEASE"
		}
		shown := map[string]bool{}
		for i := range d.Released {
			if d.Released[i].Kind == string(claim.KindReservation) {
				shown[d.Released[i].ContainerID] = true
			}
		}
		for i := range d.Released {
			rel := &d.Released[i]
			if rel.Kind == string(claim.KindCache) && shown[rel.ContainerID] && !a.wide() {
				continue
			}
			id := rel.ReleaseID
			if id == "" {
				id = "-"
			}
			t.Rows = append(t.Rows, []string{report.Object(&rel.Resource), report.Clean(rel.Network), report.Owner(&rel.Resource, a.wide()), rel.Verdict, id, report.Clean(rel.Why)})
			t.Marks = append(t.Marks, "")
		}
		a.table(w, t)
		fmt.Fprintln(w)
	}
	hidden := r.textKept(w, d)
	if hidden > 0 {
		fmt.Fprintf(w, "%d in use, kept.\n", hidden)
	}
	verb := "released"
	if d.DryRun {
		verb = "would be released"
	}
	fmt.Fprintf(w, "%s %s, %s kept, %d errors.", pieces(d.Released, func(r api.Release) string { return r.Kind }), verb,
		pieces(d.Kept, func(k api.Kept) string { return k.Kind }), len(d.Errors))
	if len(d.Released) > 0 && !d.DryRun {
		fmt.Fprintf(w, " \"holdfast undo %s\" puts all of it back, \"--last\" the last address.", d.SweepID)
	}
	fmt.Fprintln(w)
}

// textKept writes the table of what was kept, and returns how many in use it leaves out.
func (r *sweepRun) textKept(w io.Writer, d *api.Sweep) (hidden int) {
	a := r.a
	kept := make([]*api.Kept, len(d.Kept))
	for i := range d.Kept {
		kept[i] = &d.Kept[i]
	}
	if !a.wide() {
		kept = report.Fold(kept, func(k *api.Kept) (string, string) { return k.Kind, k.ContainerID })
		for _, k := range kept {
			if k.Verdict == string(verdict.InUse) {
				hidden++
			}
		}
	}
	if len(kept) == hidden {
		return hidden
	}
	resources := func(yield func(*api.Resource) bool) {
		var res api.Resource
		for _, k := range kept {
			res = k.Resource
			if k.Withheld != "" {
				res.Why = "withheld: " + k.Withheld
			}
			if !yield(&res) {
				return
			}
		}
	}
	header, rows := report.AuditRows(resources, d.At, a.wide(), 0)
	fmt.Fprintln(w, "Kept:")
	a.rows(w, header, widthsOf(header, rows), rows)
	fmt.Fprintln(w)
	return hidden
}

// complain says what must not be missed, before the text.
func (r *sweepRun) complain(d *api.Sweep) {
	a := r.a
	for _, e := range d.Errors {
		a.say("%s: %s: %s", e.Path, e.Outcome, e.Error)
	}
	for _, rel := range d.Released {
		for _, s := range rel.Steps {
			if s.State == "failed" {
				a.say("%s: %s %s failed, which does not keep the address: %s", rel.Path, s.Step, s.Object, s.Detail)
			}
		}
	}
	for _, s := range d.Settled {
		for _, st := range s.Steps {
			if st.State == journal.StepFailed {
				a.say("%s: settled, but %s %s failed: %s", s.Path, st.Step, st.Object, st.Detail)
			}
		}
	}
	if n := overCap(r.plan); n > 0 {
		a.say("%d more are leaked beyond the cap of one gc; run it again, or say --force-over-cap", n)
	}
	if due := r.due(); due > 0 {
		a.say("some need a second sighting: run gc again in %s, or with --wait", seconds(due+time.Second))
	}
	a.complain(d.Vantage, d.Witnesses, d.Notes)
}
