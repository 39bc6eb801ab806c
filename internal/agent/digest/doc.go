// Package digest counts one pass once, for everybody who shows numbers of it: how many
// addresses of each network are what, which were lost, which witness spoke.
//
// Scope: numbers and short texts, bounded and safe to print, as they are when the pass has
// ended. Non-scope: showing them (packages metrics, events, logbook), one address's
// evidence (package report).
package digest
