package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// settings are the flags.
type settings struct {
	holdfast string // the binary
	floor    string
	ipam     string
	commit   string
	rounds   int
	parts    []string
	limits   limits
}

// limits are the targets, and what is to be measured.
type limits struct {
	reservations, live   int
	manyReservs, manyNet int
	releases, contenders int
	contentionSeconds    int
	agents, podsEach     int
}

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is one of the roles that this program plays for itself, or the benchmark.
func run(args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case rolePod:
			return podMain(args[1:])
		case roleCRI:
			return criMain(args[1:])
		case roleSandboxes:
			return sandboxesMain(args[1:], out)
		case roleClock:
			return clockMain(args[1:])
		case roleContend:
			return contendMain(args[1:])
		}
	}
	s, err := parse(args)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed: it makes network namespaces and looks at every process")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return bench(ctx, s, out)
}

func parse(args []string) (settings, error) {
	var s settings
	var parts string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&s.holdfast, "holdfast", "bin/holdfast", "the holdfast `binary` to measure")
	fs.StringVar(&s.floor, "floor", "bin/floor", "the `binary` of bench/floor, built with the same flags")
	fs.StringVar(&s.ipam, "ipam", "bin/holdfast-ipam", "the holdfast-ipam `binary` to measure")
	fs.StringVar(&s.commit, "commit", "unknown", "what the binary was built from")
	fs.IntVar(&s.rounds, "rounds", 11, "how often each program is run")
	fs.StringVar(&parts, "parts", "node,shell,large,locks,ipam,heal,agent,api", "what to measure: node, shell, large, locks, ipam, heal, agent, api")
	fs.IntVar(&s.limits.reservations, "reservations", 10_000, "reservations of the node")
	fs.IntVar(&s.limits.live, "netns", 250, "live namespaces of the node")
	fs.IntVar(&s.limits.manyReservs, "large-reservations", 65_536, "reservations of the large node")
	fs.IntVar(&s.limits.manyNet, "large-netns", 1_000, "live namespaces of the large node")
	fs.IntVar(&s.limits.releases, "releases", 10_000, "releases of the sweep beside host-local")
	fs.IntVar(&s.limits.contenders, "contenders", 8, "host-local processes beside the sweep")
	fs.IntVar(&s.limits.contentionSeconds, "contention-limit", 900, "seconds after which the sweep beside host-local is given up")
	fs.IntVar(&s.limits.agents, "agents", 200, "nodes of the cluster whose agents ask one API server")
	fs.IntVar(&s.limits.podsEach, "pods", 30, "Pods of each of those nodes")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	if fs.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	s.parts = strings.Split(parts, ",")
	for _, p := range s.parts {
		if !slices.Contains([]string{"node", "shell", "large", "locks", "ipam", "heal", "agent", "api"}, p) {
			return s, fmt.Errorf("unknown part %q", p)
		}
	}
	return s, nil
}

func bench(ctx context.Context, s settings, out io.Writer) error {
	if err := machine(out, s.commit, "before"); err != nil {
		return err
	}
	var small *summary
	if slices.Contains(s.parts, "node") || slices.Contains(s.parts, "shell") {
		var err error
		if small, err = nodePart(ctx, s, out); err != nil {
			return err
		}
	}
	if slices.Contains(s.parts, "large") {
		if err := largePart(ctx, s, out, small); err != nil {
			return err
		}
	}
	if slices.Contains(s.parts, "locks") {
		if err := locksPart(ctx, s, out); err != nil {
			return err
		}
	}
	if slices.Contains(s.parts, "ipam") {
		if err := ipamPart(ctx, s, out); err != nil {
			return err
		}
	}
	if slices.Contains(s.parts, "heal") {
		if err := healPart(ctx, s, out); err != nil {
			return err
		}
	}
	if slices.Contains(s.parts, "agent") {
		if err := agentPart(ctx, s, out); err != nil {
			return err
		}
	}
	if slices.Contains(s.parts, "api") {
		if err := apiPart(ctx, s, out); err != nil {
			return err
		}
	}
	return machine(out, s.commit, "after")
}
