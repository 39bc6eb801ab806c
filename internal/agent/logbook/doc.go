// Package logbook writes passes into the log: one line for each release with the whole
// evidence, one for each stop, undo, re-adoption and failure, one for each sweep that did something,
// and one for each change of what the agent can see.
//
// Scope: which lines, with which fields; everything from the node is made safe to print.
// Non-scope: where the log goes and in which format (cmd makes the slog.Logger), the
// journal, which is the record that undo works with.
package logbook
