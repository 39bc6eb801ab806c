package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/config"
	"github.com/holdfast-cni/holdfast/internal/agent/control"
	"github.com/holdfast-cni/holdfast/internal/agent/events"
	"github.com/holdfast-cni/holdfast/internal/agent/health"
	"github.com/holdfast-cni/holdfast/internal/agent/logbook"
	"github.com/holdfast-cni/holdfast/internal/agent/metrics"
	"github.com/holdfast-cni/holdfast/internal/agent/web"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/sweep"
	"github.com/holdfast-cni/holdfast/internal/sys/kube"
)

// agentFlags are the flags of `holdfast agent`, which count more than the file's fields.
type agentFlags struct {
	config, nodeName, http, kubeconfig, logLevel string
	interval                                     time.Duration
	dryRun                                       bool
}

func newAgent(a *app) *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Stay on the node: sweep by itself, tell what leaked and why, serve CLI and plugin",
		Long: `agent is the collector that stays: it sweeps at start, at every interval, when a range runs
low or addresses are lost fast, and when it is asked. It releases by the same judge, gates and
witnesses as gc, and is the one reaper of its node: gc, undo and the IPAM plugin work through
its socket, <run-dir>/agent.sock, which answers root alone.

Its configuration is a file of apiVersion holdfast.dev/v1alpha1, kind AgentConfiguration;
docs/agent.md has every field. Unknown fields are refused, and all mistakes are told at once. A
changed file is read again; one with mistakes is refused and the old one stays in force. A few
flags stand for fields of it and count more.

On HTTP (127.0.0.1:9617 unless told otherwise) it serves a page that shows the node's ranges,
/metrics, /healthz and /readyz. All of it only reads.

It ends on SIGTERM or SIGINT: a sweep in flight is ended first. SIGHUP reads the file again.`,
		Example: `  holdfast agent --config /etc/holdfast/agent.yaml
  holdfast agent --dry-run --interval 30s       look and tell, release nothing`,
		Args: args0,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.opts.checkGlobal(); err != nil {
				return err
			}
			return runAgent(cmd.Context(), a, func() (*config.Config, error) { return agentConfig(cmd, a.opts, &f) }, f.config)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.config, "config", "", "configuration `file`; none: the defaults")
	fs.StringVar(&f.nodeName, "node-name", "", "the node's `name` in Kubernetes (field nodeName; default: the environment's NODE_NAME, else the host name)")
	fs.DurationVar(&f.interval, "interval", time.Minute, "time between two sweeps (field interval)")
	fs.StringVar(&f.http, "http", config.DefaultHTTP, "`address` of the page, metrics and probes, or none (field http.address)")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` with which the API is asked (field kube.kubeconfig)")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error (field log.level)")
	fs.BoolVar(&f.dryRun, "dry-run", false, "look, judge and tell, release nothing (field dryRun)")
	return cmd
}

// agentConfig reads the file, and lets the flags that were given count more.
func agentConfig(cmd *cobra.Command, o *options, f *agentFlags) (*config.Config, error) {
	text := []byte("apiVersion: holdfast.dev/v1alpha1\nkind: AgentConfiguration\n")
	if f.config != "" {
		var err error
		if text, err = readAgentConfig(f.config); err != nil {
			return nil, usageError{err}
		}
	}
	c, err := config.Parse(f.config, text)
	if err != nil {
		return nil, usageError{err}
	}
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	set := func(name string, to *string, v string) {
		if given(name) {
			*to = v
		}
	}
	set("state-dir", &c.Paths.StateDir, o.stateDir)
	set("run-dir", &c.Paths.RunDir, o.runDir)
	set("proc", &c.Paths.Proc, o.proc)
	set("node-name", &c.NodeName, f.nodeName)
	set("kubeconfig", &c.Kubeconfig, f.kubeconfig)
	if given("interval") {
		if f.interval < time.Second || f.interval > time.Hour {
			return nil, usagef("--interval %s: want 1s to 1h", f.interval)
		}
		c.Interval = f.interval
	}
	if given("http") || given("log-level") {
		// By the same rules as in the file.
		extra := fmt.Sprintf("apiVersion: holdfast.dev/v1alpha1\nkind: AgentConfiguration\nhttp: {address: %q}\nlog: {level: %q}\n", f.http, f.logLevel)
		x, err := config.Parse("flags", []byte(extra))
		if err != nil {
			return nil, usageError{err}
		}
		if given("http") {
			c.HTTPAddress = x.HTTPAddress
		}
		if given("log-level") {
			c.LogLevel = x.LogLevel
		}
	}
	c.DryRun = c.DryRun || f.dryRun
	if c.NodeName == "" {
		c.NodeName = os.Getenv("NODE_NAME")
	}
	if c.NodeName == "" {
		c.NodeName = strings.ToLower(nodeName()) // as the kubelet takes it
	}
	if _, err := optionsOf(c).policy(); err != nil {
		return nil, err
	}
	return c, nil
}

func readAgentConfig(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > config.MaxSize {
		return nil, fmt.Errorf("%s: want a regular file of at most %d bytes", path, config.MaxSize)
	}
	return os.ReadFile(path)
}

// newLogger writes to standard error, as the configuration says.
func newLogger(w *os.File, c *config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked by config
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// runAgent runs a service for each configuration, one after the other, until ctx ends.
func runAgent(ctx context.Context, a *app, load func() (*config.Config, error), file string) error {
	conf, err := load()
	if err != nil {
		return err
	}
	changed, err := watchFile(ctx, file)
	if err != nil {
		return err
	}
	// The heap of who stays is collected when it has doubled; see largeGC.
	debug.SetGCPercent(100)
	s, err := newService(conf, newLogger(a.stderr, conf))
	for err == nil {
		inner, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(inner)
		}()
		var next *service
		for next == nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case asked := <-changed:
				next = s.reload(a.stderr, load, asked)
			}
		}
		stop()
		<-done
		if ctx.Err() != nil {
			return nil
		}
		s = next
	}
	return err
}

// reload reads the configuration again and makes the service of it, nil if there is nothing new, or
// nothing that could be served: then this one goes on. The same mistakes are said again only to who
// asks (SIGHUP): a log that lies beside the file wakes the watch with each of its lines.
func (s *service) reload(stderr *os.File, load func() (*config.Config, error), asked bool) *service {
	conf, err := load()
	if err == nil && configsEqual(conf, s.conf) {
		s.reloaded(true)
		if asked || s.told != "" {
			s.told = ""
			s.log.Info("the configuration is the one in force")
		}
		return nil
	}
	var next *service
	if err == nil {
		// Also what is only found by using it, such as a kubeconfig that is not there.
		next, err = newService(conf, newLogger(stderr, conf))
	}
	if err == nil {
		s.log.Info("the configuration has changed")
		return next
	}
	s.reloaded(false)
	var usage usageError
	if errors.As(err, &usage) {
		err = usage.err
	}
	var mistakes []string
	for _, e := range each(err) {
		mistakes = append(mistakes, report.Clean(e.Error()))
	}
	if now := strings.Join(mistakes, "\n"); asked || now != s.told {
		s.told = now
		s.log.Error("the configuration has mistakes; the old one stays in force", "mistakes", mistakes)
	}
	return nil
}

// watchFile tells when the file may have changed, and on SIGHUP, which is true. Its directory is
// watched, since editors and Kubernetes replace files (and links to directories of files).
func watchFile(ctx context.Context, file string) (<-chan bool, error) {
	out := make(chan bool, 1)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	var events chan fsnotify.Event
	var lost chan error // nothing more comes while one of these is not taken
	var w *fsnotify.Watcher
	if file != "" {
		var err error
		if w, err = fsnotify.NewWatcher(); err == nil {
			err = w.Add(filepath.Dir(file))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: cannot be watched for changes: %w", file, err)
		}
		events, lost = w.Events, w.Errors
	}
	go func() {
		defer signal.Stop(hup)
		if w != nil {
			defer w.Close()
		}
		for {
			asked := false
			select {
			case <-ctx.Done():
				return
			case <-hup:
				asked = true
			case <-lost:
			case <-events:
				// A file is written in steps.
				t := time.NewTimer(500 * time.Millisecond)
				for quiet := false; !quiet; {
					select {
					case <-ctx.Done():
						t.Stop()
						return
					case <-events:
					case <-lost:
					case <-t.C:
						quiet = true
					}
				}
			}
			select {
			case out <- asked:
			default:
			}
		}
	}()
	return out, nil
}

// service is the agent with all that it serves, for one configuration.
type service struct {
	conf  *config.Config
	log   *slog.Logger
	node  *agentNode
	agent *agent.Agent
	fill  *agent.Fill
	// watcher is nil where inotify is not to be had.
	watcher *agent.Watcher
	// told are the mistakes of the file that were logged last.
	told string

	health  *health.Health
	metrics *metrics.Metrics
	page    *web.Map
	// events and kube are nil where the API is not asked.
	events *events.Recorder
	kube   *kube.Client
}

func newService(conf *config.Config, log *slog.Logger) (*service, error) {
	s := &service{conf: conf, log: log, page: &web.Map{}}
	o := optionsOf(conf)
	if err := s.askKube(o); err != nil {
		return nil, err
	}
	s.node = newAgentNode(conf, o, log)
	s.fill = &agent.Fill{Threshold: conf.PressureThreshold}
	s.health = health.New(health.Options{
		Interval: conf.Interval, Missed: 3, Longest: 4*conf.WitnessTimeout + 5*time.Minute, Started: s.node.clock.Now(),
	})
	s.health.Fault("socket", "it is not served yet")
	told := metrics.Options{Version: version, Commit: commit, Start: time.Now()}
	if s.events != nil {
		told.Events = s.events.Stats
	}
	s.metrics = metrics.New(told)
	observers := []agent.Observer{logbook.New(log), s.health, s.metrics, s.page}
	if s.events != nil {
		observers = append(observers, s.events)
	}
	watcher, err := agent.NewWatcher(s.fill, func(why agent.Trigger) { s.agent.Wake(why) })
	if err != nil {
		log.Warn("ranges are not watched between sweeps", "error", err.Error())
	} else {
		observers = append(observers, watcher)
		s.watcher = watcher
	}
	s.agent = agent.New(agent.Config{
		Node: s.node, Interval: conf.Interval, PressureInterval: conf.PressureInterval, Fill: s.fill, Observers: observers, Rand: rand.Float64,
	})
	return s, nil
}

// run serves until ctx ends; then it gives everything back.
func (s *service) run(ctx context.Context) {
	s.log.Info("the agent begins", "node", s.conf.NodeName, "version", version, "commit", commit, "stateDir", s.conf.Paths.StateDir, "dryRun", s.conf.DryRun)
	defer s.log.Info("the agent has ended")
	defer s.node.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.watcher != nil {
		wg.Go(func() { s.watcher.Run(ctx) })
	}
	if s.events != nil {
		wg.Go(func() { s.events.Run(ctx) })
	}
	if s.kube != nil {
		w := &kube.Watcher{Client: s.kube, Node: s.conf.NodeName, Wake: func() { s.agent.Wake(agent.OnWatch) }, Rand: rand.Float64, Trouble: func(err error) {
			s.log.Debug("the watch of Pods ended, and begins anew", "why", report.Clean(err.Error()))
		}}
		wg.Go(func() { w.Run(ctx) })
	}
	wg.Go(func() { s.serveSocket(ctx) })
	if s.conf.HTTPAddress != "" {
		wg.Go(func() { s.serveHTTP(ctx) })
	}
	s.agent.Run(ctx)
}

// ready is "" when the agent does its work, else why it does not.
func (s *service) ready() string {
	_, why := s.health.Ready()
	return strings.Join(why, "; ")
}

// askKube makes the API server a witness, where it is to be: told so, or in a Pod.
func (s *service) askKube(o *options) error {
	inPod := os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	want := inPod || s.conf.Kubeconfig != ""
	if s.conf.KubeEnabled != nil {
		want = *s.conf.KubeEnabled
	}
	if !want {
		return nil
	}
	rest, err := kube.Load(s.conf.Kubeconfig)
	if err != nil {
		return usageError{fmt.Errorf("kube: the API server cannot be asked: %w; name a kubeconfig, or say kube.enabled: false", err)}
	}
	if s.kube, err = kube.NewClient(rest, "holdfast/"+version); err != nil {
		return usageError{fmt.Errorf("kube: %w", err)}
	}
	o.kube = &kubeOptions{s.kube, s.conf.NodeName, s.conf.KubeRequired}
	if s.conf.KubeEvents {
		s.events = events.New(events.Options{Node: s.conf.NodeName, Sink: eventSink{s.kube, s.conf.NodeName}})
	}
	return nil
}

// serveHTTP serves the page, metrics and probes. A port that cannot be had is asked for again: the
// agent goes on without, and is not ready.
func (s *service) serveHTTP(ctx context.Context) {
	handler := web.New(web.Config{
		Node: s.conf.NodeName, Version: version, Source: s, Map: s.page, Health: s.health, Clock: s.node.clock.Now,
		Metrics: s.metrics.Handler(), Pprof: s.conf.Pprof, Names: s.conf.HTTPHosts,
	})
	srv := &web.Server{Handler: handler, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)}
	for said := ""; ctx.Err() == nil; {
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", s.conf.HTTPAddress)
		if err == nil {
			s.health.Fault("http", "")
			s.log.Info("the page is served", "address", ln.Addr().String())
			err = srv.Serve(ctx, ln)
		}
		if ctx.Err() != nil || err == nil {
			return
		}
		why := report.Clean(err.Error())
		s.health.Fault("http", why)
		if why != said {
			s.log.Error("the page is not served", "why", why)
			said = why
		}
		select {
		case <-ctx.Done():
		case <-time.After(socketRetry):
		}
	}
}

// Fresh looks at the node for the page. It records nothing.
func (s *service) Fresh(ctx context.Context) (au *sweep.Audit, err error) {
	exErr := s.agent.Exclusive(ctx, func() {
		if err = s.node.open(); err == nil {
			au, err = s.node.n.engine.Look(ctx, s.node.n.policy)
		}
	})
	return au, errors.Join(exErr, err)
}

// Journal is what the page shows of releases.
func (s *service) Journal(context.Context) (*api.Journal, error) { return readJournal(s.node.app.opts) }

// socketRetry is how long a socket that cannot be had is left alone.
const socketRetry = 2 * time.Second

func (s *service) serveSocket(ctx context.Context) {
	srv := &control.Server{
		Path:     filepath.Join(s.conf.Paths.RunDir, "agent.sock"),
		Handlers: s.handlers(),
		Refused:  func(why string) { s.log.Warn("a request on the socket was refused", "why", why) },
	}
	for said := ""; ; {
		err := srv.Listen()
		why := ""
		if err != nil {
			why = "it cannot be had: " + report.Clean(err.Error())
		}
		s.health.Fault("socket", why)
		if err == nil {
			s.log.Info("the socket is served", "path", srv.Path)
			srv.Serve(ctx)
			return
		}
		if why != said {
			s.log.Error("the socket is not served", "why", why)
			said = why
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(socketRetry):
		}
	}
}

// reloaded notes whether the configuration could be read again.
func (s *service) reloaded(ok bool) {
	why := ""
	if !ok {
		why = "the file has mistakes, and an older one is in force"
	}
	s.health.Fault("configuration", why)
}

func configsEqual(a, b *config.Config) bool { return reflect.DeepEqual(a, b) }
