package deptest

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"slices"
	"strings"
)

const (
	// proofDoc has a row for each fuzz target, the first cell of which is
	// <directory>.<name>.
	proofDoc = "docs/proof.md"
	fuzzRule = "fuzz"
	// A corpus is read with every test run, and by people when it grows.
	maxCorpusFiles = 40
	maxCorpusBytes = 16 << 10 // of one file
)

// CheckFuzz returns what the fuzz targets of the module, the table in proofDoc and the
// corpora below testdata/fuzz disagree on: a target without a row or a corpus, a row or
// a corpus without a target, a corpus that is too large. The error is of reading or
// parsing; then nothing is known.
func CheckFuzz(fsys fs.FS) ([]Finding, error) {
	page, err := fs.ReadFile(fsys, proofDoc)
	if err != nil {
		return nil, err
	}
	files, err := load(fsys)
	if err != nil {
		return nil, err
	}
	var found []Finding
	report := func(pos, format string, args ...any) {
		found = append(found, Finding{Rule: fuzzRule, Pos: pos, Text: fmt.Sprintf(format, args...)})
	}
	var named []string
	for _, cell := range firstCells(string(page)) {
		if _, name, ok := strings.Cut(path.Base(cell), "."); ok && strings.HasPrefix(name, "Fuzz") {
			named = append(named, cell)
		}
	}
	var targets []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !f.test || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			name := fn.Name.Name
			target := f.dir + "." + name
			targets = append(targets, target)
			if !slices.Contains(named, target) {
				report(f.at(fn), "%s has no row in %s", target, proofDoc)
			}
			if corpus, err := fs.ReadDir(fsys, path.Join(f.dir, "testdata/fuzz", name)); err != nil || len(corpus) == 0 {
				report(f.at(fn), "%s has no corpus", target)
			}
		}
	}
	for i, cell := range named {
		if !slices.Contains(targets, cell) || slices.Contains(named[:i], cell) {
			report(proofDoc, "names %s, which is no target, or twice", cell)
		}
	}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name == ".git" {
			return fs.SkipDir
		}
		parent := path.Dir(name)
		if path.Base(parent) != "fuzz" || path.Base(path.Dir(parent)) != "testdata" {
			return nil
		}
		if target := path.Dir(path.Dir(parent)) + "." + path.Base(name); !slices.Contains(targets, target) {
			report(name, "%s is no target", target)
		}
		corpus, err := fs.ReadDir(fsys, name)
		if err != nil {
			return err
		}
		if len(corpus) > maxCorpusFiles {
			report(name, "%d files, more than %d", len(corpus), maxCorpusFiles)
		}
		for _, e := range corpus {
			if i, err := e.Info(); err != nil {
				return err
			} else if i.Size() > maxCorpusBytes {
				report(path.Join(name, e.Name()), "%d bytes, more than %d", i.Size(), maxCorpusBytes)
			}
		}
		return fs.SkipDir
	})
	return found, err
}
