// Testsum runs the module's tests and says at the end, on one line, how many
// passed, failed and were skipped.
//
// Scope: it starts `go test -json` for every run it is given, prints one line per
// package while they go, prints failures whole, sorts the tests into levels, lists
// what was skipped and why, and ends with "N passed, N failed, N skipped". With
// -check it runs other commands first (gofmt, vet, lint) and with -fuzz every fuzz
// target of the given packages for a few seconds.
//
// Non-scope: choosing what must not be skipped. That is package testenv, by the
// environment variable REQUIRE.
//
// Usage:
//
//	testsum [-check NAME=COMMAND]... [-fuzz 3s -fuzz-total 30s -fuzz-in ./...] [-- GO-TEST-ARGS]...
//
// Each "--" starts one run of go test; its arguments are passed through. The exit
// code is 0 only when something passed and nothing failed.
package main
