package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/holdfast-cni/holdfast"

// switchPackage is in no source tree: only the overlay has it.
const switchPackage = "internal/mutant"

const switchSource = `// Package mutant says which mutant a program is.
package mutant

import (
	"os"
	"strconv"
)

// On is the number of the mutant, 0 for none.
var On, _ = strconv.Atoi(os.Getenv("HOLDFAST_MUTANT"))
`

// piece is one edit, as it stands in its file.
type piece struct {
	mutant   int
	at       int
	old, new string
	body     *ast.FuncDecl
}

// writeOverlay writes sources into dir in which all mutants live at once, each in a copy
// of the functions that it changes, and returns the file for go build -overlay. So one
// build makes all of them, and the product has no switch in it.
func writeOverlay(root, dir string, list []mutation) (string, error) {
	byFile := map[string][]piece{}
	for i, m := range list {
		for _, e := range m.Edits {
			byFile[e.File] = append(byFile[e.File], piece{mutant: i + 1, old: e.Old, new: e.New})
		}
	}
	replace := map[string]string{}
	write := func(name, text string) error {
		p := filepath.Join(dir, filepath.FromSlash(name))
		replace[filepath.Join(root, filepath.FromSlash(name))] = p
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			return err
		}
		return os.WriteFile(p, []byte(text), 0o600)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(byFile)) {
		pieces := byFile[name]
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return "", err
		}
		text, err := withMutants(name, string(src), pieces)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := write(name, text); err != nil {
			return "", err
		}
	}
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	if err := write(switchPackage+"/mutant.go", switchSource); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	p := filepath.Join(dir, "overlay.json")
	return p, os.WriteFile(p, b, 0o600)
}

// withMutants puts before the body of each function the bodies of its mutants:
//
//	func f() int { if mutant.On == 3 { ...mutated... }; ...original... }
func withMutants(name, src string, pieces []piece) (string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments)
	if err != nil {
		return "", err
	}
	var errs []error
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	for i := range pieces {
		p := &pieces[i]
		if n := strings.Count(src, p.old); n != 1 {
			errs = append(errs, fmt.Errorf("%s: %q stands there %d times, not once: bring the mutation up to date", name, p.old, n))
			continue
		}
		p.at = strings.Index(src, p.old)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && offset(f.Body.Lbrace) < p.at && p.at+len(p.old) <= offset(f.Body.Rbrace) {
				p.body = f
			}
		}
		if p.body == nil {
			errs = append(errs, fmt.Errorf("%s: %q lies in no function", name, p.old))
		}
	}
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	// From the back, so that what is before keeps its place.
	type insert struct {
		at   int
		text string
	}
	var inserts []insert
	done := map[[2]int]bool{}
	for _, p := range pieces {
		start, end := offset(p.body.Body.Lbrace)+1, offset(p.body.Body.Rbrace)
		if done[[2]int{p.mutant, start}] {
			continue
		}
		done[[2]int{p.mutant, start}] = true
		body := src[start:end]
		for _, q := range pieces { // all edits of this mutant in this function
			if q.mutant == p.mutant && q.body == p.body {
				body = strings.Replace(body, q.old, q.new, 1)
			}
		}
		if p.body.Type.Results == nil {
			body += "\nreturn\n"
		}
		inserts = append(inserts, insert{start, fmt.Sprintf("\nif mutant.On == %d {%s}\n", p.mutant, body)})
	}
	inserts = append(inserts, insert{offset(file.Name.End()), "\nimport \"" + module + "/" + switchPackage + "\"\n"})
	slices.SortStableFunc(inserts, func(a, b insert) int { return cmp.Compare(b.at, a.at) })
	for _, in := range inserts {
		src = src[:in.at] + in.text + src[in.at:]
	}
	return src, nil
}
