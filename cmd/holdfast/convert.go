package main

import (
	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/report"
)

// stepsOf publishes the results of steps.
func stepsOf(list []journal.StepResult) []api.Step {
	var out []api.Step
	for _, s := range list {
		out = append(out, api.Step{Step: s.Step, Object: s.Object, State: s.State, Detail: s.Detail, Irreversible: s.Irreversible})
	}
	return out
}

// published are journal entries as documents have them.
func published(list []journal.Entry, boot string) []api.JournalEntry {
	out := make([]api.JournalEntry, 0, len(list))
	for _, e := range list {
		out = append(out, entryOf(e, boot))
	}
	return out
}

// entryOf publishes one journal entry.
func entryOf(e journal.Entry, boot string) api.JournalEntry {
	out := api.JournalEntry{
		ReleaseID: e.ID, SweepID: e.Sweep, At: e.Intent.Wall, BootID: e.Intent.Boot, State: string(e.State), Detail: e.Detail,
		Steps: stepsOf(e.Steps), Undoable: e.Undoable(boot), Adoption: e.Adopts, Problems: e.Problems,
	}
	r := e.Release
	if r == nil {
		return out
	}
	out.Kind, out.Network, out.ContainerID, out.IfName, out.Path = string(r.Kind), r.Network, r.Owner.ID, r.Owner.IfName, r.Path
	out.Undoes = r.Undoes
	if e.Adopts {
		out.IfName = r.Attachment.IfName
	}
	out.Pod, out.Verdict, out.Rule, out.Why = report.Pod(r.Pod), r.Verdict, r.Rule, r.Why
	if r.Addr.IsValid() {
		out.Address = r.Addr.String()
	}
	for _, s := range r.Says {
		out.Says = append(out.Says, api.Say(s))
	}
	return out
}
