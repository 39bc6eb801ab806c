// Package metrics counts passes for Prometheus.
//
// Scope: a registry of its own, what each metric means, how many series there can be.
// Non-scope: serving it (package web), alerts and dashboards (deploy/monitoring, which
// tests here hold to the registry). docs/monitoring.md lists every metric.
//
// By network there are gauges of what is there when a pass has ended, and counters of
// what was done. Both are made when they are asked for, from what the last pass said, so the
// series of a network that is gone are gone with it.
package metrics
