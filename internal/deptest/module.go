package deptest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Finding is one breach of one rule.
type Finding struct {
	Rule string
	Pos  string // file:line, or the directory of a package
	Text string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s (%s)", f.Pos, f.Text, f.Rule) }

// file is one parsed Go file.
type file struct {
	name  string // path within the module
	dir   string // directory within the module, "." for its root
	test  bool   // name ends in _test.go
	lines int
	ast   *ast.File
	fset  *token.FileSet
}

func (f *file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.name, f.fset.Position(n.Pos()).Line)
}

// imported is one import of a file.
type imported struct {
	path string
	name string // the name under which the file knows it; "" for "." and "_"
	// dir is the directory within the module, "" for a package from elsewhere.
	dir  string
	spec *ast.ImportSpec
}

func (f *file) imports(module string) []imported {
	var list []imported
	for _, s := range f.ast.Imports {
		p, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			continue // the parser has complained already
		}
		i := imported{path: p, name: nameOf(p), spec: s}
		if s.Name != nil {
			i.name = strings.Trim(s.Name.Name, "._")
		}
		if p == module {
			i.dir = "."
		} else if rest, ok := strings.CutPrefix(p, module+"/"); ok {
			i.dir = rest
		}
		list = append(list, i)
	}
	return list
}

// nameOf guesses a package's name from its import path: the last element, or the one
// before a major version.
func nameOf(p string) string {
	base := path.Base(p)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(p))
	}
	return base
}

// standard reports whether an import path is of the standard library: its first
// element has no dot, which the go command guarantees.
func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// load parses every Go file of the module at the root of fsys. Directories that the go
// command leaves out (testdata, vendor, names that begin with "." or "_") and nested
// modules are left out.
func load(fsys fs.FS) ([]*file, error) {
	var files []*file
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_' {
				return fs.SkipDir
			}
			if _, err := fs.Stat(fsys, name+"/go.mod"); err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(base) != ".go" || base[0] == '.' || base[0] == '_' || !d.Type().IsRegular() {
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		// Object resolution is deprecated for type checkers, and just right for what
		// is asked here: does this name belong to a scope of this file?
		parsed, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, &file{
			name: name, dir: path.Dir(name), test: strings.HasSuffix(base, "_test.go"),
			lines: bytes.Count(src, []byte("\n")), ast: parsed, fset: fset,
		})
		return nil
	})
	return files, err
}

// modulePath reads the module's path out of go.mod.
func modulePath(fsys fs.FS) (string, error) {
	text, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "module" {
			return strings.Trim(f[1], `"`), nil
		}
	}
	return "", fmt.Errorf("go.mod names no module")
}

// Check returns every breach of every rule in the module at the root of fsys, in the
// order of their positions. The error is of reading or parsing; then nothing is known.
func Check(fsys fs.FS) ([]Finding, error) {
	module, err := modulePath(fsys)
	if err != nil {
		return nil, err
	}
	files, err := load(fsys)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, f := range files {
		for _, r := range fileRules() {
			for _, b := range r.check(f, module) {
				found = append(found, Finding{Rule: r.name, Pos: b.pos, Text: b.text})
			}
		}
	}
	byDir := map[string][]*file{}
	for _, f := range files {
		byDir[f.dir] = append(byDir[f.dir], f)
	}
	for _, group := range byDir {
		for _, r := range packageRules() {
			for _, b := range r.check(group) {
				found = append(found, Finding{Rule: r.name, Pos: b.pos, Text: b.text})
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return strings.Compare(a.Pos+"\x00"+a.Rule+"\x00"+a.Text, b.Pos+"\x00"+b.Rule+"\x00"+b.Text)
	})
	return found, nil
}
