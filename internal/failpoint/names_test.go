package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every point that is declared is in Names, is called at exactly one place of the product
// and is told of in docs/proof.md; and no place makes a name of its own.
func TestNames(t *testing.T) {
	declared := map[string]Point{} // by identifier
	for _, d := range parse(t, "names.go").Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			declared[v.Names[0].Name] = Point(strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))
		}
	}
	listed := map[Point]bool{}
	for _, p := range Names() {
		if listed[p] {
			t.Errorf("%s is listed twice", p)
		}
		listed[p] = true
	}
	proof, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for _, file := range product(t) {
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || selector(call.Fun) != "At" {
				return true
			}
			if name := selector(call.Args[0]); name == "" {
				t.Errorf("%s: At is called with something that is no constant of this package", file)
			} else {
				calls[name]++
			}
			return true
		})
	}
	for name, p := range declared {
		if !listed[p] {
			t.Errorf("%s is not in Names", name)
		}
		if calls[name] != 1 {
			t.Errorf("%s is called at %d places, want one", name, calls[name])
		}
		if !strings.Contains(string(proof), "`"+string(p)+"`") {
			t.Errorf("docs/proof.md does not tell of %s", p)
		}
		delete(calls, name)
	}
	for name := range calls {
		t.Errorf("At(failpoint.%s): no such point", name)
	}
	if len(declared) != len(listed) || len(declared) < 40 {
		t.Errorf("%d points are declared and %d listed", len(declared), len(listed))
	}
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// selector returns X of failpoint.X.
func selector(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != "failpoint" {
		return ""
	}
	return s.Sel.Name
}

// product lists the Go files of the product but this package's own.
func product(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, top := range []string{"../../cmd", "../../internal"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && (d.Name() == "testdata" || d.Name() == "failpoint" || d.Name() == "testenv") {
				return fs.SkipDir
			}
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				out = append(out, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
