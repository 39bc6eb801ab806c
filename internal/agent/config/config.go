// Package config reads the agent's configuration file.
//
// Scope: YAML or JSON of api/v1alpha1.AgentConfiguration, its defaults, and every mistake in
// it at once, each with the field, what it is and what is allowed. Non-scope: flags,
// watching the file.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

// MaxSize bounds a configuration file, in bytes.
const MaxSize = 1 << 20

// Config is a configuration with its defaults filled in.
type Config struct {
	NodeName                        string
	Interval                        time.Duration
	Grace                           time.Duration // 0: by the kubelet's time-out
	OrphanGrace, WitnessTimeout     time.Duration
	DryRun, Adopt, Orphans, Foreign bool
	SideResources                   bool
	MaxReleases                     int
	Exclude                         []string
	Networks                        []string
	Paths                           api.AgentPaths
	CRIEndpoints                    []string
	// KubeEnabled is nil where it depends on the surroundings.
	KubeEnabled              *bool
	KubeRequired, KubeEvents bool
	Kubeconfig               string
	PressureThreshold        float64
	PressureGrace            time.Duration // 0: off
	PressureInterval         time.Duration
	HTTPAddress              string // "" serves nothing
	HTTPHosts                []string
	Pprof                    bool
	LogLevel, LogFormat      string
}

// Default is the configuration of an empty file.
func Default() *Config {
	c, err := Parse("", []byte("apiVersion: "+api.APIVersion+"\nkind: "+api.KindAgentConfiguration+"\n"))
	if err != nil {
		panic(err) // the defaults are allowed; a test holds that
	}
	return c
}

// Parse reads a configuration. The error joins every mistake, each "NAME: FIELD: ...".
func Parse(name string, text []byte) (*Config, error) {
	p := &parser{name: name}
	if len(text) > MaxSize {
		p.fail("", "%d bytes; allowed are %d", len(text), MaxSize)
		return nil, p.err()
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		p.fail("", "no YAML: %s", oneLine(err))
		return nil, p.err()
	}
	var tree any
	if err := json.Unmarshal(doc, &tree); err != nil {
		p.fail("", "no YAML: %v", err)
		return nil, p.err()
	}
	var in api.AgentConfiguration
	p.decode(tree, &in)
	c := p.complete(&in)
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// oneLine is an error of the YAML library, which breaks lines within one mistake.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

type parser struct {
	name string
	errs []error
}

func (p *parser) fail(field, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		text = field + ": " + text
	}
	if p.name != "" {
		text = p.name + ": " + text
	}
	p.errs = append(p.errs, errors.New(text))
}

func (p *parser) err() error { return errors.Join(p.errs...) }

func (p *parser) complete(in *api.AgentConfiguration) *Config {
	if in.APIVersion != api.APIVersion {
		p.fail("apiVersion", "is %q; allowed is %q", in.APIVersion, api.APIVersion)
	}
	if in.Kind != api.KindAgentConfiguration {
		p.fail("kind", "is %q; allowed is %q", in.Kind, api.KindAgentConfiguration)
	}
	c := &Config{
		NodeName:       in.NodeName,
		Interval:       p.duration("interval", in.Interval, time.Minute, time.Second, time.Hour),
		Grace:          p.duration("grace", in.Grace, 0, time.Millisecond, 24*time.Hour),
		OrphanGrace:    p.duration("orphanGrace", in.OrphanGrace, time.Hour, time.Millisecond, 168*time.Hour),
		WitnessTimeout: p.duration("witnessTimeout", in.WitnessTimeout, 10*time.Second, 100*time.Millisecond, 5*time.Minute),
		DryRun:         in.DryRun, Adopt: or(in.Adopt, true), Orphans: in.Orphans, Foreign: in.Foreign, SideResources: or(in.SideResources, true),
		MaxReleases: in.MaxReleases, Exclude: in.Exclude, Networks: in.Networks, Paths: in.Paths,
		CRIEndpoints: in.CRI.Endpoints,
		KubeEnabled:  in.Kube.Enabled, KubeRequired: or(in.Kube.Required, true), KubeEvents: or(in.Kube.Events, true), Kubeconfig: in.Kube.Kubeconfig,
		PressureThreshold: or(in.Pressure.Threshold, 0.85),
		PressureInterval:  p.duration("pressure.interval", in.Pressure.Interval, 10*time.Second, 100*time.Millisecond, time.Hour),
		HTTPAddress:       in.HTTP.Address, HTTPHosts: in.HTTP.Hosts, Pprof: in.HTTP.Pprof,
		LogLevel: in.Log.Level, LogFormat: in.Log.Format,
	}
	if in.Pressure.Grace == "0s" || in.Pressure.Grace == "0" {
		c.PressureGrace = 0
	} else {
		c.PressureGrace = p.duration("pressure.grace", in.Pressure.Grace, 30*time.Second, time.Second, time.Hour)
	}
	if c.PressureThreshold < 0.1 || c.PressureThreshold > 1 {
		p.fail("pressure.threshold", "is %g; allowed is 0.1 to 1", c.PressureThreshold)
	}
	if c.MaxReleases < 0 {
		p.fail("maxReleases", "is %d; allowed is 0, the default, or more", c.MaxReleases)
	}
	for i, e := range c.Exclude {
		if _, err := netip.ParsePrefix(e); err != nil {
			if _, err := netip.ParseAddr(e); err != nil {
				p.fail(fmt.Sprintf("exclude[%d]", i), "is %q; allowed is an address such as 10.1.0.5 or a prefix such as 10.1.0.0/28", e)
			}
		}
	}
	p.network("networks", c.Networks)
	p.paths(&c.Paths)
	if slices.Contains(c.CRIEndpoints, "none") && len(c.CRIEndpoints) > 1 {
		p.fail("cri.endpoints", "\"none\" cannot stand beside another endpoint")
	}
	for i, e := range c.CRIEndpoints {
		if e != "none" && !filepath.IsAbs(strings.TrimPrefix(e, "unix://")) {
			p.fail(fmt.Sprintf("cri.endpoints[%d]", i), "is %q; allowed is \"none\", or the absolute path of a socket with or without unix://", e)
		}
	}
	p.absolute("kube.kubeconfig", c.Kubeconfig)
	c.HTTPAddress = p.listen(in.HTTP.Address)
	c.LogLevel = p.oneOf("log.level", in.Log.Level, "info", "debug", "warn", "error")
	c.LogFormat = p.oneOf("log.format", in.Log.Format, "json", "text")
	return c
}

func or[T any](v *T, def T) T {
	if v == nil {
		return def
	}
	return *v
}

func (p *parser) duration(field, text string, def, low, high time.Duration) time.Duration {
	if text == "" {
		return def
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < low || d > high {
		p.fail(field, "is %q; allowed is a duration from %s to %s, such as \"90s\" or \"5m\"", text, low, high)
		return def
	}
	return d
}

func (p *parser) oneOf(field, text string, allowed ...string) string {
	if text == "" {
		return allowed[0]
	}
	if !slices.Contains(allowed, text) {
		p.fail(field, "is %q; allowed is one of %s", text, strings.Join(allowed, ", "))
	}
	return text
}

func (p *parser) network(field string, names []string) {
	for i, n := range names {
		if n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
			p.fail(fmt.Sprintf("%s[%d]", field, i), "is %q; allowed is the name of a network", n)
		}
	}
}

func (p *parser) absolute(field, path string) {
	if path != "" && !filepath.IsAbs(path) {
		p.fail(field, "is %q; allowed is an absolute path", path)
	}
}

func (p *parser) paths(in *api.AgentPaths) {
	for _, d := range []struct {
		field string
		path  *string
		def   string
	}{
		{"paths.stateDir", &in.StateDir, "/var/lib/holdfast"}, {"paths.runDir", &in.RunDir, "/run/holdfast"}, {"paths.proc", &in.Proc, "/proc"},
		{"paths.kubeletConfig", &in.KubeletConfig, "/var/lib/kubelet/config.yaml"},
	} {
		p.absolute(d.field, *d.path)
		if *d.path == "" {
			*d.path = d.def
		}
	}
	for _, d := range []struct {
		field string
		paths []string
	}{
		{"paths.cniConfDirs", in.CNIConfDirs}, {"paths.dataDirs", in.DataDirs}, {"paths.cniCacheDirs", in.CNICacheDirs}, {"paths.cniBinDirs", in.CNIBinDirs},
	} {
		for i, path := range d.paths {
			if !filepath.IsAbs(path) {
				p.fail(fmt.Sprintf("%s[%d]", d.field, i), "is %q; allowed is an absolute path", path)
			}
		}
	}
}

// DefaultHTTP is where the agent listens when nothing is said.
const DefaultHTTP = "127.0.0.1:9617"

func (p *parser) listen(address string) string {
	switch address {
	case "":
		return DefaultHTTP
	case "none":
		return ""
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		var n int
		n, err = strconv.Atoi(port)
		if err == nil && (n < 0 || n > 65535) {
			err = errors.New("no port")
		}
	}
	if err == nil && host != "" && host != "localhost" {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		p.fail("http.address", "is %q; allowed is \"none\", or an address with a port such as %q or \":9617\"", address, DefaultHTTP)
	}
	return address
}
