package deptest

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// dependenciesDoc is the page that says of every dependency why it is there. It is
// compared for what it names; the reasons are for people.
const dependenciesDoc = "docs/dependencies.md"

const requireRule = "dependencies"

// CheckRequires returns what go.mod, the imports of the module's files, and
// dependenciesDoc disagree on: a direct requirement that no file imports, one that the
// page does not name, a module that the page names and go.mod does not require
// directly, and the same for the modules nested in this one. The error is of reading
// or parsing; then nothing is known.
//
// Direct means that go.mod has no "// indirect" beside it. That the mark is right is
// for `go mod tidy -diff` to say.
func CheckRequires(fsys fs.FS) ([]Finding, error) {
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	page, err := fs.ReadFile(fsys, dependenciesDoc)
	if err != nil {
		return nil, err
	}
	files, err := load(fsys)
	if err != nil {
		return nil, err
	}
	nested, err := nestedModules(fsys)
	if err != nil {
		return nil, err
	}
	direct := directRequires(string(mod))
	named := firstCells(string(page))

	var found []Finding
	report := func(pos, format string, args ...any) {
		found = append(found, Finding{Rule: requireRule, Pos: pos, Text: fmt.Sprintf(format, args...)})
	}
	for _, m := range direct {
		imported := slices.ContainsFunc(files, func(f *file) bool {
			return slices.ContainsFunc(f.imports(""), func(i imported) bool { return under(i.path, m) })
		})
		if !imported {
			report("go.mod", "requires %s directly, which no file imports", m)
		}
	}
	wanted := slices.Concat(direct, nested)
	for _, m := range wanted {
		if !slices.Contains(named, m) {
			report(dependenciesDoc, "does not name %s", m)
		}
	}
	for i, m := range named {
		if !slices.Contains(wanted, m) {
			report(dependenciesDoc, "names %s, which is neither required directly nor a module in here", m)
		}
		if slices.Contains(named[:i], m) {
			report(dependenciesDoc, "names %s twice", m)
		}
	}
	return found, nil
}

// directRequires returns the modules that a go.mod requires without "// indirect", in
// its order.
func directRequires(mod string) []string {
	var list []string
	block := false
	for line := range strings.Lines(mod) {
		code, comment, _ := strings.Cut(line, "//")
		f := strings.Fields(code)
		switch {
		case len(f) == 0:
			continue
		case f[0] == "require" && len(f) > 1 && f[1] == "(":
			block = true
			continue
		case f[0] == ")":
			block = false
			continue
		case f[0] == "require":
			f = f[1:]
		case !block:
			continue
		}
		if len(f) == 2 && strings.TrimSpace(comment) != "indirect" {
			list = append(list, strings.Trim(f[0], `"`))
		}
	}
	return list
}

// firstCells returns the first cell of every row of every table in a Markdown text.
// The head of a table is the row above the one of dashes.
func firstCells(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !ok {
			continue
		}
		cell, _, _ := strings.Cut(rest, "|")
		if cell = strings.TrimSpace(cell); strings.Trim(cell, "-:") == "" {
			if len(list) > 0 && cell != "" {
				list = list[:len(list)-1]
			}
			continue
		}
		list = append(list, strings.Trim(cell, "`"))
	}
	return list
}

// nestedModules returns the directories with a go.mod of their own, in order.
func nestedModules(fsys fs.FS) ([]string, error) {
	var list []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (base == "testdata" || base[0] == '.' || base[0] == '_'):
			return fs.SkipDir
		case base == "go.mod" && name != "go.mod":
			list = append(list, path.Dir(name))
		}
		return nil
	})
	return list, err
}
