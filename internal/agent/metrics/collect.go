package metrics

import (
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-cni/holdfast/internal/agent/digest"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

// descs are the metrics that are made when they are asked for.
type descs struct {
	capacity, free, reserved, addresses, oldest, lost, stopped, busy, withheld, networks *prometheus.Desc
	releases, failures, undone, adopted                                                  *prometheus.Desc
	witnessUp, witnessRequired, runtimeUp, vantage, check, writable                      *prometheus.Desc
	success, build, start, events                                                        *prometheus.Desc
}

func newDescs() descs {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	byNetwork := func(name, help string, more ...string) *prometheus.Desc {
		return d(name, help, append([]string{"network", "data_dir"}, more...)...)
	}
	return descs{
		capacity:  byNetwork("holdfast_ipam_capacity_addresses", "Addresses that the configured ranges of a network can hand out on this node; not there where no configuration says."),
		free:      byNetwork("holdfast_ipam_free_addresses", "Addresses of the configured ranges that nobody has reserved; not there where no configuration says."),
		reserved:  byNetwork("holdfast_ipam_reserved_addresses", "Reservations on this node, those outside of the configured ranges too."),
		addresses: byNetwork("holdfast_ipam_addresses", "Addresses by verdict, when the last sweep had ended. missing are alive without a reservation.", "verdict"),
		oldest:    byNetwork("holdfast_ipam_oldest_leak_age_seconds", "How long ago the oldest leaked or orphaned address was first found absent, by CLOCK_MONOTONIC; 0 when there is none."),
		lost:      byNetwork("holdfast_ipam_lost_addresses_total", "Addresses whose owner went without a DEL, counted when they have been absent for half a minute. Its rate is the loss rate."),
		stopped:   byNetwork("holdfast_ipam_line_stopped", "1 while the releases of a network are stopped, since something contradicted one."),
		busy:      byNetwork("holdfast_ipam_reaper_busy", "1 while another process is the reaper of the network's directory."),
		withheld:  byNetwork("holdfast_ipam_withheld_addresses", "Addresses that could go and were withheld from the last sweep: by the cap, another reaper, a stopped line, a read-only file system."),
		networks:  d("holdfast_ipam_networks", "Networks found on this node. More than are told apart are counted together as (other)."),
		releases:  byNetwork("holdfast_releases_total", "Addresses released, by what had lost them.", "cause"),
		failures:  byNetwork("holdfast_release_failures_total", "Addresses that were to be released and were not, by what came of it.", "outcome"),
		undone:    byNetwork("holdfast_undone_total", "Releases that were taken back since something contradicted them, by what came of it.", "outcome"),
		adopted:   byNetwork("holdfast_adoptions_total", "Live attachments without a reservation that were to get it back, by what came of it.", "outcome"),

		witnessUp:       d("holdfast_witness_up", "1 when what the witness said in the last sweep counts, 0 when it is silent.", "witness"),
		witnessRequired: d("holdfast_witness_required", "1 when nothing is released while this witness is silent.", "witness"),
		runtimeUp:       d("holdfast_runtime_up", "1 when the container runtime at this CRI endpoint answered completely.", "endpoint", "runtime"),
		vantage:         d("holdfast_vantage_proven", "1 when the agent sees the whole node. Without that nothing is released."),
		check:           d("holdfast_vantage_check_ok", "1 when this check of the vantage is well.", "check"),
		writable:        d("holdfast_journal_writable", "0 when the journal or the sightings cannot be written. Then nothing is released."),
		success:         d("holdfast_sweep_last_success_timestamp_seconds", "When the last sweep that was made to its end ended; 0 before the first."),
		build:           d("holdfast_build_info", "1; the labels say which version runs.", "version", "commit", "go_version"),
		start:           d("holdfast_agent_start_time_seconds", "When the agent started."),
		events:          d("holdfast_events_total", "Kubernetes Events by what became of them: sent, aggregated into a later one, dropped, failed.", "result"),
	}
}

func (d *descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.capacity, d.free, d.reserved, d.addresses, d.oldest, d.lost, d.stopped, d.busy, d.withheld, d.networks,
		d.releases, d.failures, d.undone, d.adopted, d.witnessUp, d.witnessRequired, d.runtimeUp, d.vantage, d.check, d.writable,
		d.success, d.build, d.start, d.events,
	}
}

// Describe sends what Collect may send.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs.all() {
		ch <- d
	}
}

// Word is a verdict as a label's value.
func Word(v verdict.Verdict) string {
	if v == verdict.InUse {
		return "live"
	}
	return strings.ToLower(v.String())
}

// Collect sends what the last pass said.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &m.descs
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	counter := func(desc *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(d.build, 1, m.opt.Version, m.opt.Commit, runtime.Version())
	gauge(d.start, seconds(m.opt.Start))
	gauge(d.success, seconds(m.success))
	gauge(d.writable, number(m.writable))
	if m.opt.Events != nil {
		s := m.opt.Events()
		for result, n := range map[string]int{"sent": s.Sent, "aggregated": s.Aggregated, "dropped": s.Dropped, "failed": s.Failed} {
			counter(d.events, n, result)
		}
	}
	for name, c := range m.done {
		each := func(desc *prometheus.Desc, counts map[string]int, words []string) {
			for _, w := range words {
				counter(desc, counts[w], name.Network, name.DataDir, w)
			}
		}
		each(d.releases, c.releases, kinds())
		each(d.failures, c.failures, releaseOutcomes())
		each(d.undone, c.undone, undoOutcomes())
		each(d.adopted, c.adopted, adoptOutcomes())
		counter(d.lost, c.lost, name.Network, name.DataDir)
		gauge(d.stopped, number(m.stopped[name]), name.Network, name.DataDir)
		gauge(d.busy, number(m.busy[name]), name.Network, name.DataDir)
	}
	if m.seen == nil {
		return // nobody knows yet
	}
	for i := range m.seen.Networks {
		m.collectNetwork(&m.seen.Networks[i], gauge)
	}
	gauge(d.networks, float64(m.seen.Found))
	for _, w := range m.seen.Witnesses {
		gauge(d.witnessUp, number(w.Up), w.Name)
		gauge(d.witnessRequired, number(w.Required), w.Name)
	}
	for _, r := range m.runtimes {
		gauge(d.runtimeUp, number(r.up), r.name, r.runtime)
	}
	gauge(d.vantage, number(m.seen.Vantage == ""))
	for name, ok := range m.checks {
		gauge(d.check, number(ok), name)
	}
}

func (m *Metrics) collectNetwork(n *digest.Network, gauge func(*prometheus.Desc, float64, ...string)) {
	d := &m.descs
	if n.Capacity > 0 {
		gauge(d.capacity, float64(n.Capacity), n.Name.Network, n.DataDir)
		gauge(d.free, float64(n.Free), n.Name.Network, n.DataDir)
	}
	gauge(d.reserved, float64(n.Reserved), n.Name.Network, n.DataDir)
	gauge(d.oldest, n.OldestLeak.Seconds(), n.Name.Network, n.DataDir)
	gauge(d.withheld, float64(m.withheld[n.Name]), n.Name.Network, n.DataDir)
	for _, v := range verdict.All() {
		gauge(d.addresses, float64(n.Count(v)), n.Name.Network, n.DataDir, Word(v))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
