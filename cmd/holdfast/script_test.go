package main

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/holdfast-cni/holdfast/internal/sys/proc"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
)

// The scripts of testdata/script run the real command as processes of their own, on the
// real kernel, with hand-made stores and a scripted runtime. Their verbs are in
// verbs_*_test.go; the general ones are testscript's.
//
// What each script may take for granted: directories of its own for state, locks, data,
// configuration and cache, all named on every command line; a /24 that no other test of
// this machine has ($P.1 to $P.254); random container IDs. So scripts run beside each
// other, and beside a second run of themselves.

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		// A test that runs itself again, as nobody perhaps, who cannot set the scripts up.
		os.Exit(m.Run())
	}
	// Scripts mostly wait for a grace to pass, not for a processor.
	if f := flag.Lookup("test.parallel"); f != nil {
		_ = f.Value.Set("8")
	}
	testscript.Main(m, map[string]func(){
		"holdfast": func() { os.Exit(run(os.Args[1:])) },
		"within":   func() { os.Exit(within(os.Args[1:])) },
	})
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	// The scripts run beside each other: their process is looked at when all have ended.
	leak.Watch(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			testscript.RunT(script{t}, testscript.Params{
				Files:              []string{file},
				RequireUniqueNames: true,
				Setup:              func(env *testscript.Env) error { return newWorld(t, env) },
				Cmds:               verbs(),
				Condition: func(cond string) (bool, error) {
					// What cniexec demands before it runs a plugin.
					if cond == "hostns" {
						return inHostNamespaces(), nil
					}
					return false, usagef("unknown condition %q", cond)
				},
			})
		})
	}
}

// script lets one script run inside of the test that was made for it, so that its verbs
// have a *testing.T whose clean-up comes after the script.
type script struct{ *testing.T }

func (s script) Run(_ string, f func(testscript.T)) { f(s) }
func (script) Parallel()                            {}

// Skip is for what a script finds lacking by itself (hostns): where root is required, so is that.
func (s script) Skip(args ...any) {
	s.Helper()
	if slices.Contains(strings.Split(os.Getenv(testenv.RequireEnv), ","), testenv.Root) {
		s.Fatalf("skipped, though %s names %s: %v", testenv.RequireEnv, testenv.Root, args)
	}
	s.T.Skip(args...)
}
func (script) Verbose() bool { return testing.Verbose() }

// verbs are the commands of a script beside testscript's own. A verb that is not made for
// "!" fails with it.
func verbs() map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	plain := map[string]func(w *world, ts *testscript.TestScript, args []string){
		"need":            (*world).need,
		"network":         (*world).network,
		"plant":           (*world).plant,
		"plant-stamped":   (*world).plantStamped,
		"plant-raw":       (*world).plantRaw,
		"plant-many":      (*world).plantMany,
		"plant-odd":       (*world).plantOdd,
		"immutable":       (*world).immutable,
		"remove":          (*world).remove,
		"touch":           (*world).touch,
		"conf":            (*world).conf,
		"heal-request":    (*world).healRequest,
		"cache":           (*world).cache,
		"plugin":          (*world).plugin,
		"pod":             (*world).pod,
		"orphan-pod":      (*world).orphanPod,
		"kill-pod":        (*world).killPod,
		"unpin":           (*world).unpin,
		"add-address":     (*world).addAddress,
		"shim":            (*world).shim,
		"runtime":         (*world).runtime,
		"sandbox":         (*world).sandbox,
		"api-server":      (*world).apiServer,
		"api-asked":       (*world).apiAsked,
		"api-quiet":       (*world).apiQuiet,
		"forget":          (*world).forget,
		"hold-lock":       (*world).holdLock,
		"free-lock":       (*world).freeLock,
		"sleep":           (*world).sleep,
		"agent-conf":      (*world).agentConf,
		"await-journal":   (*world).awaitJournal,
		"send-agent":      (*world).sendAgent,
		"ask":             (*world).ask,
		"await-said":      (*world).awaitSaid,
		"small-state":     (*world).smallState,
		"fill-state":      (*world).fillState,
		"await-gone":      (*world).awaitGone,
		"hf-signal":       (*world).signal,
		"hf":              (*world).holdfast,
		"hf-start":        (*world).start,
		"hf-until":        (*world).until,
		"hf-wait":         (*world).wait,
		"hf-kill":         (*world).kill,
		"await-intent":    (*world).awaitIntent,
		"await-file":      (*world).awaitFile,
		"release-id":      (*world).releaseID,
		"owner-id":        (*world).ownerID,
		"expect-verdict":  (*world).expectVerdict,
		"expect-report":   (*world).expectReport,
		"expect-said":     (*world).expectSaid,
		"expect-witness":  (*world).expectWitness,
		"expect-released": (*world).expectReleased,
		"expect-withheld": (*world).expectWithheld,
		"expect-outcome":  (*world).expectOutcome,
		"expect-adopted":  (*world).expectAdopted,
		"expect-settled":  (*world).expectSettled,
		"expect-count":    (*world).expectCount,
		"expect-network":  (*world).expectNetwork,
		"expect-check":    (*world).expectCheck,
		"expect-undone":   (*world).expectUndone,
		"expect-journal":  (*world).expectJournal,
		"expect-file":     (*world).expectFile,
		"expect-no-file":  (*world).expectNoFile,
		"expect-finding":  (*world).expectFinding,
		"expect-cost":     (*world).expectCost,
		"note-tree":       (*world).noteTree,
		"expect-tree":     (*world).expectTree,
		"move-wall":       (*world).moveWall,
	}
	out := map[string]func(ts *testscript.TestScript, neg bool, args []string){}
	for name, f := range plain {
		out[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("%s takes no !", name)
			}
			f(worldOf(ts), ts, args)
		}
	}
	return out
}

// need ends the script unless the machine has each capability.
func (w *world) need(_ *testscript.TestScript, args []string) {
	for _, c := range args {
		testenv.Need(w.t, c)
	}
}

// inHostNamespaces reports whether plugins would be run here: this process is in PID 1's
// namespaces.
func inHostNamespaces() bool {
	for _, kind := range []string{"net", "mnt"} {
		if same, err := proc.InInit("/proc", kind); err != nil || !same {
			return false
		}
	}
	return true
}
