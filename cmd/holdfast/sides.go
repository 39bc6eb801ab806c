package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/plan"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sys/cnicache"
	"github.com/holdfast-cni/holdfast/internal/sys/cniexec"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
	"github.com/holdfast-cni/holdfast/internal/sys/links"
)

// sides releases what is not a reservation: veths, namespaces, what plugins left, and
// cache files.
type sides struct {
	cache *cnicache.Inventory
	links *links.Inventory
	bins  []string
	now   func() claim.Instant
	// inInit reports whether this thread is in PID 1's namespace of a kind.
	inInit func(kind string) (bool, error)
	// openInit opens PID 1's namespace of a kind.
	openInit func(kind string) (*os.File, error)
}

// Run does one step; the drivers check each precondition again right before.
func (s *sides) Run(ctx context.Context, step plan.Step) journal.StepResult {
	res := journal.StepResult{Step: string(step.Kind), Object: step.Object}
	var err error
	switch step.Kind {
	case plan.StepVeth:
		err = s.veth(ctx, step)
	case plan.StepNetns:
		err = s.links.RemoveNetns(ctx, step.Object, step.NetnsID)
	case plan.StepCache:
		_, err = s.cache.Remove(ctx, step.Resource.Path, step.Resource.Inc)
	case plan.StepDel:
		return s.del(ctx, step)
	default:
		err = fmt.Errorf("no driver does %q", step.Kind)
	}
	switch {
	case err == nil:
		res.State = journal.StepDone
	case errors.Is(err, fs.ErrNotExist):
		res.State = journal.StepSkipped
	default:
		res.State, res.Detail = journal.StepFailed, report.Clean(err.Error())
	}
	return res
}

// veth removes a host-side veth that the cached result names, by name and MAC, and only
// if both ends are on the host: otherwise some namespace lives that holds the other, and
// the kernel removes the pair with it.
func (s *sides) veth(ctx context.Context, step plan.Step) error {
	list, err := s.links.Veths(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(v links.Veth) bool {
		return v.Name == step.HostIf.Name && v.PeerHere && step.HostIf.MAC != "" && strings.EqualFold(v.MAC, step.HostIf.MAC)
	})
	if i < 0 {
		return fs.ErrNotExist
	}
	return s.links.RemoveVeth(ctx, list[i])
}

// del runs what cniexec allows of the attachment's cached configuration.
func (s *sides) del(ctx context.Context, step plan.Step) journal.StepResult {
	res := journal.StepResult{Step: string(step.Kind), Object: step.Object, State: journal.StepSkipped}
	content, err := s.cache.Read(ctx, step.Resource.Path, step.Resource.Inc)
	if err != nil {
		res.State, res.Detail = journal.StepFailed, report.Clean(err.Error())
		return res
	}
	calls, skipped, err := cniexec.Plan(content, false)
	if err != nil {
		res.State, res.Detail = journal.StepFailed, report.Clean(err.Error())
		return res
	}
	runner := cniexec.New(cniexec.Config{BinDirs: s.bins, InInit: s.inInit, OpenInit: s.openInit})
	var done, failed []string
	for _, c := range calls {
		if why := s.notOurs(c, step); why != "" {
			failed = append(failed, c.Plugin+": not run, since "+why)
			continue
		}
		if err := runner.Run(ctx, c); err != nil {
			failed = append(failed, err.Error())
			continue
		}
		done = append(done, string(c.Step)+" "+c.Plugin)
	}
	switch {
	case len(failed) > 0:
		res.State, res.Detail = journal.StepFailed, report.Clean(strings.Join(failed, "; "))
	case len(done) > 0:
		res.State, res.Detail = journal.StepDone, report.Clean(strings.Join(done, ", "))
	case len(skipped) > 0:
		// Told in the journal: what these plugins may have left stays.
		var not []string
		for _, k := range skipped {
			not = append(not, k.Plugin+": "+k.Why)
		}
		res.Detail = report.Clean(strings.Join(not, "; "))
	}
	return res
}

// notOurs says why a call that deletes by address must not run: right now the address must
// still be reserved for this dead attachment, or somebody else may have it.
func (s *sides) notOurs(c cniexec.Call, step plan.Step) string {
	for _, a := range c.ByAddress {
		i := slices.IndexFunc(step.Own, func(r *claim.Resource) bool { return r.Addr == a })
		if i < 0 {
			return "it deletes by an address that is not this attachment's alone"
		}
		stands, err := hostlocal.Stands(nil, step.Own[i].Path, step.Own[i].Inc)
		if err != nil {
			return err.Error()
		}
		if !stands {
			return "it deletes by an address that is reserved for another by now"
		}
	}
	return ""
}

// Content reads a cache file that is still the judged incarnation.
func (s *sides) Content(step plan.Step) ([]byte, error) {
	return s.cache.Read(context.Background(), step.Resource.Path, step.Resource.Inc)
}

// Restore writes a cache file again, unless one is there. The path is from our own
// journal, so it need not lie in a cache directory that this command line names.
func (s *sides) Restore(path string, content []byte) error {
	dir := filepath.Dir(filepath.Dir(path))
	err := cnicache.New(cnicache.Config{Dirs: []string{dir}, Clock: s.now}).Restore(context.Background(), path, content)
	if errors.Is(err, fs.ErrExist) {
		if have, e := os.ReadFile(path); e == nil && bytes.Equal(have, content) {
			return nil // it never went
		}
	}
	return err
}
