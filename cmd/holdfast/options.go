package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/sys/kube"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// safeGrace is the shortest grace that outlasts an ADD in flight: the kubelet waits up
// to twice its runtimeRequestTimeout (2 min by default) for RunPodSandbox.
const safeGrace = 5 * time.Minute

// options are the flags, as given.
type options struct {
	output string

	confDirs, dataDirs, cacheDirs, binDirs []string
	criEndpoints                           []string
	witnesses                              []string
	grace, orphanGrace, timeout            time.Duration
	orphans, foreign                       bool
	// kubeconfig and nodeName say whom to ask about which node; openNode makes kube of them.
	kubeconfig, nodeName   string
	kubeletConfig          string // "": the usual place
	networks, exclude      []string
	stateDir, runDir, proc string

	maxReleases         int
	forceOverCap, noDel bool
	adopt               bool

	// kube, unless nil, is the API server that is asked for this node's Pods.
	kube *kubeOptions

	// stays: this process looks again and again, so it keeps what it read.
	stays bool
}

// kubeOptions say who is asked about which node, and whether an answer is required.
type kubeOptions struct {
	client   *kube.Client
	node     string
	required bool
}

func (o *options) addGlobal(fs *pflag.FlagSet) {
	fs.StringVarP(&o.output, "output", "o", "table", "output `format`: table, wide, json or yaml")
	fs.StringVar(&o.stateDir, "state-dir", "/var/lib/holdfast", "`directory` of journal, quarantine, sightings and holds")
	fs.StringVar(&o.runDir, "run-dir", "/run/holdfast", "`directory` of the locks that let one reaper at a data directory")
	fs.StringVar(&o.proc, "proc", "/proc", "where the node's procfs is mounted")
}

// addNode adds the flags that say what to look at and how to judge.
func (o *options) addNode(fs *pflag.FlagSet) {
	fs.StringArrayVar(&o.confDirs, "cni-conf-dir", nil, "CNI configuration `directory`; repeatable (default: the places that distributions use)")
	fs.StringArrayVar(&o.dataDirs, "data-dir", nil, "host-local `directory`, the parent of the network directories; repeatable (default: the places that distributions use)")
	fs.StringArrayVar(&o.cacheDirs, "cni-cache-dir", nil, "libcni cache `directory`, the parent of results; repeatable (default /var/lib/cni)")
	fs.StringArrayVar(&o.binDirs, "cni-bin-dir", nil, "`directory` of CNI plugins; repeatable (default /opt/cni/bin and others)")
	fs.StringArrayVar(&o.criEndpoints, "cri-endpoint", nil, "CRI socket of a container runtime; repeatable; \"none\" says that there is no CRI runtime (default: every socket found)")
	fs.StringSliceVar(&o.witnesses, "witness", []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI}, "`witnesses` that must speak; leaving one out makes a report and no release (cri: see --cri-endpoint none)")
	fs.DurationVar(&o.grace, "grace", 0, "least time between the two sightings (default, and for 0: 5m, or if this node's kubelet has a runtimeRequestTimeout of more than 2m, twice that and 1m)")
	fs.DurationVar(&o.orphanGrace, "orphan-grace", time.Hour, "least time for what is less certain: unused namespaces, malformed and foreign files, sandboxes that stay NotReady")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long each witness may take")
	fs.BoolVar(&o.orphans, "orphans", false, "count addresses in namespaces that no process uses as releasable even where no runtime vouches for their names")
	fs.BoolVar(&o.foreign, "foreign", false, "count reservations whose owner is no container ID as releasable, judged by address")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with which the API server is asked for the Pods of this node; then it must answer (default: it is not asked)")
	fs.StringVar(&o.nodeName, "node-name", "", "the node's `name` in Kubernetes, for --kubeconfig (default: the environment's NODE_NAME, else the host name)")
	fs.StringSliceVar(&o.networks, "network", nil, "only these `networks`")
	fs.StringSliceVar(&o.exclude, "exclude", nil, "addresses or `prefixes` to leave alone")
}

func (o *options) addRelease(fs *pflag.FlagSet) {
	fs.IntVar(&o.maxReleases, "max-releases", 0, "most releases of one network in one sweep (default: 10 % of its reservations, at least 16)")
	fs.BoolVar(&o.forceOverCap, "force-over-cap", false, "release more than --max-releases without asking")
	fs.BoolVar(&o.noDel, "no-del", false, "do not run CNI DEL for side resources (port mappings, firewall rules)")
}

func (o *options) checkGlobal() error {
	if !slices.Contains([]string{"table", "wide", "json", "yaml"}, o.output) {
		return usagef("--output %q: want table, wide, json or yaml", o.output)
	}
	for _, d := range []struct{ flag, path string }{{"state-dir", o.stateDir}, {"run-dir", o.runDir}, {"proc", o.proc}} {
		if !filepath.IsAbs(d.path) {
			return usagef("--%s %q: want an absolute path", d.flag, d.path)
		}
	}
	return nil
}

// policy checks the flags and makes the judge's policy of them, without the holds.
func (o *options) policy() (verdict.Policy, error) {
	p := verdict.Policy{Grace: cmp.Or(o.grace, safeGrace), OrphanGrace: o.orphanGrace, Orphans: o.orphans, Foreign: o.foreign, Adopt: o.adopt}
	for _, d := range []struct {
		flag  string
		paths []string
	}{{"cni-conf-dir", o.confDirs}, {"data-dir", o.dataDirs}, {"cni-cache-dir", o.cacheDirs}, {"cni-bin-dir", o.binDirs}} {
		for _, path := range d.paths {
			if !filepath.IsAbs(path) {
				return p, usagef("--%s %q: want an absolute path", d.flag, path)
			}
		}
	}
	for _, d := range []struct {
		flag string
		d    time.Duration
	}{{"grace", o.grace}, {"orphan-grace", o.orphanGrace}} {
		if d.d < 0 {
			return p, usagef("--%s %s: want 0 or more", d.flag, d.d)
		}
	}
	if o.timeout <= 0 {
		return p, usagef("--timeout %s: want more than 0", o.timeout)
	}
	if o.maxReleases < 0 {
		return p, usagef("--max-releases %d: want 0 (the default) or more", o.maxReleases)
	}
	known := []string{claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI}
	for _, w := range o.witnesses {
		if !slices.Contains(known, w) {
			return p, usagef("--witness %q: want some of %s", w, strings.Join(known, ", "))
		}
		if !slices.Contains(p.Required, w) {
			p.Required = append(p.Required, w)
		}
	}
	if len(p.Required) == 0 {
		return p, usagef("--witness: want some of %s", strings.Join(known, ", "))
	}
	if o.kube != nil && o.kube.required {
		p.Required = append(p.Required, claim.WitnessKube)
	}
	if o.nodeName != "" && o.kubeconfig == "" {
		return p, usagef("--node-name %q: is for --kubeconfig, which is not given", o.nodeName)
	}
	p.CRINone = slices.Contains(o.criEndpoints, "none")
	if p.CRINone && len(o.criEndpoints) > 1 {
		return p, usagef("--cri-endpoint none: cannot be given beside another endpoint")
	}
	for _, e := range o.exclude {
		prefix, err := netip.ParsePrefix(e)
		if err != nil {
			addr, aerr := netip.ParseAddr(e)
			if aerr != nil {
				return p, usagef("--exclude %q: want an address such as 10.1.0.5 or a prefix such as 10.1.0.0/28", e)
			}
			addr = addr.Unmap().WithZone("")
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		if prefix.Addr().Is4In6() {
			// The same addresses in IPv4, as reservations are compared.
			if prefix.Bits() < 96 {
				return p, usagef("--exclude %q: want an IPv4-mapped prefix of at least /96", e)
			}
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		p.Exclude = append(p.Exclude, prefix.Masked())
	}
	return p, nil
}

// warnings are flags that work and are dangerous.
func (o *options) warnings() []string {
	var out []string
	if o.grace > 0 && o.grace < safeGrace {
		out = append(out, fmt.Sprintf("--grace %s is shorter than the safe %s: an ADD in flight may take longer", o.grace, safeGrace))
	}
	if o.orphanGrace < o.grace {
		out = append(out, fmt.Sprintf("--orphan-grace %s is shorter than --grace %s, which counts", o.orphanGrace, o.grace))
	}
	return out
}

func orDefault(list, def []string) []string {
	if len(list) > 0 {
		return list
	}
	return def
}
