package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// adopt gives what is Missing its reservation back, before anything is released: the next
// ADD may come at any time.
func (r *sweepRun) adopt(ctx context.Context) {
	if r.dryRun || !r.n.policy.Adopt {
		return
	}
	list, err := r.n.engine.Adopt(ctx, r.audit, r.notOurs)
	r.adopted = append(r.adopted, list...)
	r.err = err
}

// notOurs gives the reasons outside of the judge why a reservation is not made. Its
// directory may be gone; then the data directory's lock is enough.
func (r *sweepRun) notOurs(res *claim.Resource) string {
	if !report.Selected(res, r.a.opts.networks) {
		return "not among the networks asked for"
	}
	if why := r.busy[res.Store]; why != "" {
		return why
	}
	if err := r.n.lockStore(res.Store); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	if !r.n.locked[filepath.Dir(res.Store)] {
		return "its data directory is not there"
	}
	return ""
}

// publishAdopted puts what was adopted into d, and its path into gone: it is kept no longer
// as Missing.
func (r *sweepRun) publishAdopted(d *api.Sweep, gone map[string]bool, published func(*verdict.Finding, claim.Instant) api.Resource) {
	at := r.audit.Case.Now
	for _, ad := range r.adopted {
		if !report.Selected(ad.Finding.Resource, r.a.opts.networks) {
			continue
		}
		out := api.Adopted{ReleaseID: ad.ID, Resource: published(ad.Finding, at), Outcome: ad.Outcome}
		if ad.Err != nil {
			out.Error = ad.Err.Error()
		}
		d.Adopted = append(d.Adopted, out)
		gone[out.Path] = ad.Outcome == journal.AdoptAdopted
		if ad.Err != nil && (ad.Outcome == journal.AdoptFailed || ad.Outcome == journal.AdoptAdopted) {
			d.Errors = append(d.Errors, api.SweepError{ReleaseID: ad.ID, Path: out.Path, Address: out.Address, Outcome: ad.Outcome, Error: out.Error})
		}
	}
	if !r.dryRun {
		return
	}
	for i := range r.audit.Judgement.Findings {
		if f := &r.audit.Judgement.Findings[i]; f.Adoptable && report.Selected(f.Resource, r.a.opts.networks) {
			d.Adopted = append(d.Adopted, api.Adopted{Resource: published(f, at), Outcome: "adoptable"})
			gone[f.Resource.Path] = true
		}
	}
}

func (r *sweepRun) textAdopted(w io.Writer, d *api.Sweep) {
	if len(d.Adopted) == 0 {
		return
	}
	t := report.Table{Header: []string{"ADOPTED", "NETWORK", "OWNER", "OUTCOME", "RELEASE ID", "WHY"}}
	if d.DryRun {
		t.Header[0] = "WOULD ADOPT"
	}
	for i := range d.Adopted {
		ad := &d.Adopted[i]
		id, why := ad.ReleaseID, ad.Error
		if id == "" {
			id = "-"
		}
		if why == "" {
			why = ad.Why
		}
		t.Rows = append(t.Rows, []string{report.Object(&ad.Resource), report.Clean(ad.Network), report.Owner(&ad.Resource, r.a.wide()), ad.Outcome, id, report.Clean(why)})
		t.Marks = append(t.Marks, "")
	}
	r.a.table(w, t)
	fmt.Fprintln(w)
}
