// Package deptest holds the module to its layout: which ring may import which, and
// the house rules that a compiler does not check.
//
// Scope: Check reads the Go files of a module, parses them, and returns what breaks a
// rule. It sees direct imports and syntax only; since every package of the module is
// looked at, a chain of imports inside of the module is seen link by link. It does not
// run the go command and needs no network.
//
// CheckRequires compares go.mod, what is imported, and docs/dependencies.md.
//
// CheckFuzz compares the fuzz targets, their corpora and docs/proof.md.
//
// Non-scope: types. A rule that would need them is approximated from syntax, on the
// side of finding less, and says so. Which foreign modules a room may import is
// depguard's matter (.depguard.yml).
package deptest
