package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Whoever takes any gate away is found out: by the simulator within some seeds, or by the
// tests that the mutation names.
func TestEveryGateIsMissed(t *testing.T) {
	if testing.Short() {
		t.Log("only whether the mutations fit the source")
		root, err := moduleRoot()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := writeOverlay(root, t.TempDir(), mutations()); err != nil {
			t.Fatal(err)
		}
		return
	}
	var table bytes.Buffer
	err := mutate(t.Context(), options{seeds: seeds, jobs: runtime.GOMAXPROCS(0)}, mutations(), &table)
	t.Logf("\n%s", table.String())
	if err != nil {
		t.Error(err)
	}
}

// The table in docs/proof.md has a row for each mutation, and no other.
func TestTableIsWhole(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "proof.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Gates\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range mutations() {
		if row := fmt.Sprintf("\n| %s | %s | ", m.Gate, m.What); strings.Count(section, row) != 1 {
			t.Errorf("docs/proof.md has the row %q %d times", row, strings.Count(section, row))
		}
	}
	if rows := strings.Count(section, "\n| ") - 1; rows != len(mutations()) {
		t.Errorf("docs/proof.md has %d rows for %d mutations", rows, len(mutations()))
	}
}

// A text that does not stand in its file exactly once, or in no function, is an error.
func TestMutationsMustFit(t *testing.T) {
	const src = "package p\n\nvar a = 1\n\nfunc f() int {\n\tx := 2\n\treturn x\n}\n\nfunc g(a *int) {\n\t*a++\n\t*a++\n}\n"
	for _, r := range []struct{ old, err string }{
		{"a = 1", "lies in no function"}, {"*a++", "2 times"}, {"y := 3", "0 times"}, {"x := 2", ""},
	} {
		out, err := withMutants("p.go", src, []piece{{mutant: 7, old: r.old, new: "x := 3"}})
		if r.err == "" && (err != nil || !strings.Contains(out, "if mutant.On == 7 {\n\tx := 3\n\treturn x\n}")) {
			t.Errorf("%v\n%s", err, out)
		}
		if r.err != "" && (err == nil || !strings.Contains(err.Error(), r.err)) {
			t.Errorf("%q: %v; want %q", r.old, err, r.err)
		}
	}
}
