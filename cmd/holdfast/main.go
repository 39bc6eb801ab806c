// Command holdfast finds Pod addresses that nobody uses any more, releases them safely,
// says why, and can take it back. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-cni/holdfast/internal/report"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// The exit codes, documented in `holdfast --help`.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitFindings = 3
	exitWithheld = 4
)

// usageError is a command line that cannot be meant: exit 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// withheldError says why nothing at all could be released: exit 4.
type withheldError struct{ err error }

func (e withheldError) Error() string { return e.err.Error() }
func (e withheldError) Unwrap() error { return e.err }

// exitError ends with a code whose reason has been printed already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// How much the heap may grow before it is collected, in percent of what is in use. An
// ordinary node's whole look fits into some MB, which are hardly worth a collection; of
// a large one what is in use counts.
const (
	smallGC = 400
	largeGC = 10
	// large is a node's number of reservations from which largeGC holds.
	large = 20_000
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once; the next run settles what it left.
	context.AfterFunc(ctx, stop)
	debug.SetGCPercent(smallGC)
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	a.args = args
	return execute(ctx, a, newRoot(a), args)
}

// execute does one command and says its exit code.
func execute(ctx context.Context, a *app, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var code exitError
	var usage usageError
	var withheld withheldError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		for _, e := range each(usage.err) {
			fmt.Fprintln(a.stderr, "holdfast:", report.Clean(e.Error()))
		}
		fmt.Fprintf(a.stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintln(a.stderr, "holdfast:", report.Clean(err.Error()))
	if errors.As(err, &withheld) {
		return exitWithheld
	}
	return exitFailed
}

// each returns the errors that one joins, so that each is told on a line of its own.
func each(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Find leaked Pod addresses of this node, release them safely, explain it, undo it",
		Long: `holdfast looks at the addresses that the CNI plugin host-local has reserved on this
node, asks the kernel, the processes and every container runtime who is alive, and says
for each address whether it is in use or leaked, and why.

Nothing is released on one look: every witness must say absent twice, a grace apart, and
once more right before. A witness that is silent keeps everything that it could speak for.

Exit codes: 0 done; 1 error; 2 usage; 3 findings (with --exit-code); 4 something that
should go was withheld (silent witness, cap, lock, read-only file system).`,
		Example: `  holdfast audit                    what is there, worst first
  holdfast gc --wait                look, wait for the grace, look again, release
  holdfast explain 10.22.0.17       everything that was said of one address
  holdfast undo --last              put the last release back
  holdfast doctor                   what this node lets holdfast see`,
		Version:       version + ", commit " + commit,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          args0,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	a.opts.addGlobal(root.PersistentFlags())
	root.AddCommand(newAudit(a), newGC(a), newHeal(a), newExplain(a), newReport(a), newUndo(a), newJournal(a), newHold(a), newUnhold(a), newResume(a), newVersion(a),
		newDoctor(a), newBundle(a), newForgetRuntime(a), newMan(), newAgent(a))
	addCompletion(root)
	return root
}

// args0 refuses arguments; on the root that is an unknown command.
func args0(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasParent() {
		if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
			return usagef("unknown command %q; did you mean %s?", args[0], strings.Join(s, " or "))
		}
		return usagef("unknown command %q", args[0])
	}
	return usagef("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
}
