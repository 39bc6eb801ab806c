package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
)

// world is the node's side of the demo.
type world struct {
	dir      string // everything lies below
	holdfast string // binary
	network  string // name of the network, random
	subnet   netip.Prefix
	cni      *libcni.CNIConfig
	binDir   string
}

func (w *world) confDir() string  { return filepath.Join(w.dir, "net.d") }
func (w *world) dataDir() string  { return filepath.Join(w.dir, "networks") }
func (w *world) cacheDir() string { return filepath.Join(w.dir, "cache") }

// store is the directory of the network's reservations.
func (w *world) store() string { return filepath.Join(w.dataDir(), w.network) }

func (w *world) cacheFile(p *pod) string {
	return filepath.Join(w.cacheDir(), "results", w.network+"-"+p.id+"-"+ifName)
}

// conflist writes the network's configuration under a name and loads it.
func (w *world) conflist(name string) (*libcni.NetworkConfigList, error) {
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       name,
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": w.dataDir(),
				"ranges": [][]any{{map[string]any{"subnet": w.subnet.String()}}},
			},
		}},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(w.confDir(), "10-demo.conflist")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromFile(path)
}

func say(format string, args ...any) { fmt.Printf("\n# "+format+"\n", args...) }

// node is the demo itself; the process is in the node's network namespace.
func node(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: demo node DIR PLUGINS HOLDFAST (started by the demo itself)")
	}
	ctx := context.Background()
	suffix := fmt.Sprintf("%04x", rand.Uint32()&0xffff)
	w := &world{
		dir: args[0], binDir: args[1], holdfast: args[2],
		network: "demo-" + suffix,
		subnet:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 127, byte(rand.Uint32()), 0}), 24),
	}
	for _, d := range []string{w.confDir(), w.dataDir(), w.cacheDir(), filepath.Join(w.dir, "netns")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	w.cni = libcni.NewCNIConfigWithCacheDir([]string{w.binDir}, w.cacheDir(), nil)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}

	live, lost, err := w.populate(ctx)
	if err != nil {
		return err
	}
	if err := w.show(lost); err != nil {
		return err
	}
	return w.verify(ctx, live, lost)
}

// populate starts six Pods and loses the DEL of three of them.
func (w *world) populate(ctx context.Context) (live, lost []*pod, err error) {
	list, err := w.conflist(w.network)
	if err != nil {
		return nil, nil, err
	}
	say("Six Pods get their addresses from the real bridge and host-local plugins, network %q.", w.network)
	for _, name := range []string{"web-1", "web-2", "web-3", "job-1", "job-2", "job-3"} {
		p, err := newPod(w.dir, name)
		if err != nil {
			return nil, nil, fmt.Errorf("set up Pod %s: %w", name, err)
		}
		if err := p.add(ctx, w.cni, list); err != nil {
			return nil, nil, err
		}
		fmt.Printf("  %s  %-12s container %.12s\n", p.name, p.addr, p.id)
		if strings.HasPrefix(name, "web") {
			live = append(live, p)
		} else {
			lost = append(lost, p)
		}
	}

	say("job-1 is force-deleted: process and namespace go, and nobody calls DEL.")
	if err := lost[0].kill(); err != nil {
		return nil, nil, err
	}

	say("job-2 ends, but the disk was full: its entry in the libcni cache has 0 bytes.")
	if err := os.Truncate(w.cacheFile(lost[1]), 0); err != nil {
		return nil, nil, err
	}
	_, _, err = w.cni.GetNetworkListCachedConfig(list, lost[1].runtimeConf())
	if err == nil {
		return nil, nil, errors.New("an empty cache entry gave a configuration")
	}
	fmt.Printf("  a runtime that tears down by the cached configuration is told: %v\n", err)
	if err := lost[1].kill(); err != nil {
		return nil, nil, err
	}

	say("job-3 ends after somebody renamed the network: DEL looks into the new directory and finds nothing.")
	renamed, err := w.conflist(w.network + "-v2")
	if err != nil {
		return nil, nil, err
	}
	err = w.cni.DelNetworkList(ctx, renamed, lost[2].runtimeConf())
	fmt.Printf("  DEL in network %q says: %s\n", renamed.Name, outcome(err))
	if err := lost[2].kill(); err != nil {
		return nil, nil, err
	}

	say("What host-local still holds:")
	for _, p := range append(append([]*pod{}, live...), lost...) {
		fmt.Printf("  %s (%s)\n", filepath.Join(w.store(), p.addr.String()), p.name)
		if _, err := os.Stat(filepath.Join(w.store(), p.addr.String())); err != nil {
			return nil, nil, fmt.Errorf("the stage is not set: %w", err)
		}
	}
	return live, lost, nil
}

func outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "success"
}

// show runs holdfast as a person would.
func (w *world) show(lost []*pod) error {
	state := []string{"--state-dir", filepath.Join(w.dir, "state"), "--run-dir", filepath.Join(w.dir, "run")}
	node := append(state,
		"--cni-conf-dir", w.confDir(), "--data-dir", w.dataDir(), "--cni-cache-dir", w.cacheDir(), "--cni-bin-dir", w.binDir,
		"--cri-endpoint", "none", "--network", w.network, "--grace", "3s")
	say("From here on it is Holdfast. This node has no container runtime, so the kernel and the\n" +
		"# processes are the witnesses. The places are not the usual ones, so they are named; and the\n" +
		"# grace is three seconds, where it is five minutes by default:")
	fmt.Printf("STATE=%q\nNODE=%q\n", strings.Join(state, " "), "$STATE "+strings.Join(node[len(state):], " "))

	for _, step := range []struct {
		why   string
		args  []string
		name  string // of the flags, as printed
		flags []string
	}{
		{"What is leaked? Nothing is released by looking.", []string{"audit"}, "$NODE", node},
		{"Why that one?", []string{"explain", lost[0].addr.String()}, "$NODE", node},
		{"Give it back. One look is never enough: --wait stays for the second one after the grace,\n" +
			"# and every witness is asked again right before a release.", []string{"gc", "--wait"}, "$NODE", node},
		{"Changed your mind? What was released last comes back, and is held from now on.", []string{"undo", "--last"}, "$STATE", state},
		{"And now:", []string{"audit"}, "$NODE", node},
	} {
		say("%s", step.why)
		fmt.Printf("$ holdfast %s %s\n", strings.Join(step.args, " "), step.name)
		if err := w.run(slices.Concat(step.args, step.flags)...); err != nil {
			say("That should not have happened. What doctor says:")
			_ = w.run(slices.Concat([]string{"doctor"}, node)...)
			return fmt.Errorf("holdfast %s: %w", step.args[0], err)
		}
	}
	return nil
}

func (w *world) run(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.holdfast, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// verify says whether the right ones went: the living Pods keep address and
// reservation, of the lost ones exactly the undone one is back.
func (w *world) verify(ctx context.Context, live, lost []*pod) error {
	say("Checked:")
	var errs []error
	for _, p := range live {
		err := p.alive(ctx)
		if err == nil {
			err = w.reserved(p)
		}
		if err == nil {
			fmt.Printf("  %s  %-12s answers and keeps its reservation\n", p.name, p.addr)
		}
		errs = append(errs, err)
	}
	back := 0
	for _, p := range lost {
		switch err := w.reserved(p); {
		case err == nil:
			back++
			fmt.Printf("  %s  %-12s released, and brought back by undo\n", p.name, p.addr)
		case errors.Is(err, fs.ErrNotExist):
			fmt.Printf("  %s  %-12s released\n", p.name, p.addr)
		default:
			errs = append(errs, err)
		}
	}
	if back != 1 {
		errs = append(errs, fmt.Errorf("%d of the lost reservations are there, want exactly the undone one", back))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("\nAs it should be.")
	return nil
}

// reserved returns nil when the Pod's reservation is there and is the Pod's.
func (w *world) reserved(p *pod) error {
	text, err := os.ReadFile(filepath.Join(w.store(), p.addr.String()))
	if err != nil {
		return err
	}
	if id, _, _ := strings.Cut(string(text), "\r\n"); id != p.id {
		return fmt.Errorf("%s: the reservation of %s is another's: %q", p.name, p.addr, text)
	}
	return nil
}
