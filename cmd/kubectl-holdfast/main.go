package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/report"
)

// Set by the linker.
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
)

// The exit codes, as those of holdfast.
const (
	exitOK      = 0
	exitError   = 1 // also: a node did not answer
	exitUsage   = 2
	exitFinding = 3 // with --exit-code
)

// exit is an exit code that needs no words.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

type usageError struct{ error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newRoot(stdout, stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var code exit
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "kubectl holdfast:", report.Clean(err.Error()))
		return exitUsage
	}
	fmt.Fprintln(stderr, "kubectl holdfast:", report.Clean(err.Error()))
	return exitError
}

// app is one run.
type app struct {
	stdout, stderr io.Writer
	rules          *clientcmd.ClientConfigLoadingRules
	overrides      *clientcmd.ConfigOverrides
	namespace      string
	output         string
	timeout        time.Duration
	atOnce         int
	exitCode       bool
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdout: stdout, stderr: stderr, rules: clientcmd.NewDefaultClientConfigLoadingRules(), overrides: &clientcmd.ConfigOverrides{}}
	root := &cobra.Command{
		Use: "kubectl-holdfast", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
		Short: "Ask Holdfast's agents on the nodes of a cluster",
		Long: `kubectl holdfast asks the agents through the API server, by port forwarding, with your own
permissions: list pods and get/create pods/portforward in the agents' namespace (the Role
holdfast-viewer). It only reads.

It exits 1 when a node did not answer, which is named, and the others are shown.`,
		Version: version + " (" + commit + ")", SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command %q", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	fs := root.PersistentFlags()
	fs.StringVar(&a.rules.ExplicitPath, "kubeconfig", "", "`file` with clusters and credentials (default $KUBECONFIG, else ~/.kube/config)")
	fs.StringVarP(&a.namespace, "namespace", "n", "holdfast-system", "`namespace` of the agents")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	// Its own means the agents', whatever the context says; and what is asked is the
	// server's business alone.
	flags.ContextOverrideFlags.Namespace = clientcmd.FlagInfo{}
	clientcmd.BindOverrideFlags(a.overrides, fs, flags)
	fs.StringVarP(&a.output, "output", "o", "table", "output `format`: table, wide, json or yaml")
	fs.DurationVar(&a.timeout, "timeout", 20*time.Second, "how long each node may take")
	fs.IntVar(&a.atOnce, "parallel", 16, "how many nodes are asked at once (1 to 256)")
	root.AddCommand(newStatus(a), newAudit(a), newExplain(a))
	return root
}

// connect checks the flags and lists the agents.
func (a *app) connect(ctx context.Context) (*fleet, []agent, error) {
	if !slices.Contains([]string{"table", "wide", "json", "yaml"}, a.output) {
		return nil, nil, usagef("--output %q: want table, wide, json or yaml", a.output)
	}
	if a.timeout <= 0 {
		return nil, nil, usagef("--timeout %s: want more than 0", a.timeout)
	}
	if a.atOnce < 1 || a.atOnce > 256 {
		return nil, nil, usagef("--parallel %d: want 1 to 256", a.atOnce)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(a.rules, a.overrides).ClientConfig()
	if err != nil {
		return nil, nil, err
	}
	f, err := newFleet(config, a.namespace)
	if err != nil {
		return nil, nil, err
	}
	f.timeout, f.atOnce = a.timeout, a.atOnce
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, fmt.Errorf("the API server gave no answer within %s", a.timeout))
	defer cancel()
	agents, err := f.agents(ctx)
	if err != nil {
		return nil, nil, told(ctx, err)
	}
	if len(agents) == 0 {
		return nil, nil, fmt.Errorf("no agent runs in namespace %s (Pods with %s)", a.namespace, selector)
	}
	return f, agents, nil
}

func newStatus(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "A line for each node's agent: is it well, what did its latest sweep see",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, agents, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			return a.finish(f.gather(agents, "status", func(ag agent, n *api.FleetNode) error {
				return f.ask(cmd.Context(), ag, "status", &n.Status)
			}))
		},
	}
	cmd.Flags().BoolVar(&a.exitCode, "exit-code", false, "exit 3 if an agent is not ready or anything but InUse and Held was found")
	return cmd
}

func newAudit(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "audit NODE... | --all-nodes",
		Short: "Every address of nodes with its verdict, looked at now",
		Long: `audit lets agents look at their nodes now, which changes nothing there. For several nodes the
table leaves out what is in use; -o wide has all of it.`,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usagef("audit wants nodes by name, or --all-nodes")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, agents, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			if !all {
				agents = pick(agents, args)
			}
			return a.finish(f.gather(agents, "audit", func(ag agent, n *api.FleetNode) error {
				return f.ask(cmd.Context(), ag, "audit", &n.Audit)
			}))
		},
	}
	cmd.Flags().BoolVarP(&all, "all-nodes", "A", false, "of every node that has an agent")
	cmd.Flags().BoolVar(&a.exitCode, "exit-code", false, "exit 3 if anything but InUse and Held was found, or a node was not seen whole")
	return cmd
}

// pick keeps the named nodes; one without an agent is told as such.
func pick(agents []agent, names []string) []agent {
	var out []agent
	for _, name := range names {
		if slices.ContainsFunc(out, func(a agent) bool { return a.node == name }) {
			continue
		}
		if i := slices.IndexFunc(agents, func(a agent) bool { return a.node == name }); i >= 0 {
			out = append(out, agents[i])
		} else {
			out = append(out, agent{node: name, problem: "no agent runs on it"})
		}
	}
	return out
}

func newExplain(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain ADDRESS",
		Short: "Which node has an address, and everything that is said of it there",
		Long: `explain asks every agent for the map of its node, which it has at hand, and those that have
the address reserved, missing, or in a range of theirs, for everything that is said of it now.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("explain wants one address")
			}
			if _, err := netip.ParseAddr(args[0]); err != nil {
				return usagef("explain %q: want an address", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f, agents, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			addr := netip.MustParseAddr(args[0]).Unmap().WithZone("")
			doc, ranges := f.explain(cmd.Context(), agents, addr)
			answered := slices.ContainsFunc(doc.Nodes, func(n api.FleetNode) bool { return n.Explanation != nil })
			if err := a.finish(doc); err != nil {
				return err
			}
			switch {
			case answered:
				return nil
			case len(ranges) > 0:
				return fmt.Errorf("%s: nothing is known of it; it is in a range of %s", addr, strings.Join(ranges, ", "))
			}
			return fmt.Errorf("%s: no node has it, in its reservations or its ranges", addr)
		},
	}
}

// gather asks every agent and collects the answers, worst first.
func (f *fleet) gather(agents []agent, query string, ask func(agent, *api.FleetNode) error) *api.Fleet {
	doc := &api.Fleet{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindFleet}, Query: query, Nodes: make([]api.FleetNode, len(agents))}
	f.each(agents, func(i int, ag agent) {
		n := api.FleetNode{Node: ag.node, Pod: ag.pod}
		if err := ask(ag, &n); err != nil {
			n = api.FleetNode{Node: ag.node, Pod: ag.pod, Error: report.Clean(err.Error())}
		}
		doc.Nodes[i] = n
	})
	settle(doc)
	return doc
}

// explain finds whose an address is, and asks them. ranges are the nodes that could hand it
// out and know nothing of it.
func (f *fleet) explain(ctx context.Context, agents []agent, addr netip.Addr) (doc *api.Fleet, ranges []string) {
	maps := make([]api.Map, len(agents))
	f.each(agents, func(i int, ag agent) {
		if err := f.ask(ctx, ag, "map", &maps[i]); err != nil {
			agents[i].problem = err.Error()
		}
	})
	var having, could []agent
	for i, ag := range agents {
		has, may := owns(&maps[i], addr)
		switch {
		case ag.problem != "" || has:
			having = append(having, ag)
		case may:
			could = append(could, ag)
		}
	}
	// What was reserved since the latest sweep is in no map yet.
	asked := having
	if !slices.ContainsFunc(having, func(a agent) bool { return a.problem == "" }) {
		asked = slices.Concat(having, could)
	}
	doc = f.gather(asked, addr.String(), func(ag agent, n *api.FleetNode) error {
		return f.ask(ctx, ag, "explain?address="+addr.String(), &n.Explanation)
	})
	// That nothing is known is an answer.
	doc.Nodes = slices.DeleteFunc(doc.Nodes, func(n api.FleetNode) bool {
		nothing := strings.HasPrefix(n.Error, (&refusal{code: 404}).Error())
		if nothing {
			ranges = append(ranges, n.Node)
		}
		return nothing
	})
	settle(doc)
	slices.Sort(ranges)
	return doc, ranges
}

// owns reports whether a node's map has an address, and whether it is in one of its ranges.
func owns(m *api.Map, addr netip.Addr) (has, may bool) {
	within := func(first, last string) bool {
		a, err := netip.ParseAddr(first)
		b, err2 := netip.ParseAddr(last)
		return err == nil && err2 == nil && a.BitLen() == addr.BitLen() && a.Compare(addr) <= 0 && addr.Compare(b) <= 0
	}
	for _, n := range m.Networks {
		for _, r := range n.Ranges {
			may = may || within(r.First, r.Last)
		}
		for _, list := range n.Addresses {
			for _, s := range list {
				first, last, many := strings.Cut(s, "-")
				if !many {
					last = first
				}
				has = has || within(first, last)
			}
		}
	}
	return has, may
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s: unexpected argument %q", cmd.Name(), args[0])
	}
	return nil
}
