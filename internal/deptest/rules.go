package deptest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
)

// breach is a finding before it knows its rule.
type breach struct{ pos, text string }

type fileRule struct {
	name  string
	check func(f *file, module string) []breach
}

type packageRule struct {
	name  string
	check func(files []*file) []breach
}

func fileRules() []fileRule {
	return []fileRule{
		{"direction", direction},
		{"testroom", testRoom},
		{"pure imports", pureImports},
		{"pure calls", pureCalls},
		{"no logging", noLogging},
		{"api has no behaviour", apiBehaviour},
		{"no init", noInit},
		{"file length", fileLength},
		{"skip only in testenv", skipOnlyInTestenv},
		{"kernel tests are watched", kernelWatched},
		{"package name", packageName},
	}
}

func packageRules() []packageRule {
	return []packageRule{
		{"placed", placed},
		{"no function variable", noFuncVar},
		{"no mutable global", noMutableGlobal},
	}
}

// direction: cmd -> {services, drivers} -> engine -> pure.
func direction(f *file, module string) (bs []breach) {
	if f.test {
		return nil
	}
	for _, i := range f.imports(module) {
		if i.dir == "" {
			continue
		}
		if why, ok := mayImport(f.dir, i.dir); !ok {
			bs = append(bs, breach{f.at(i.spec), fmt.Sprintf("imports %s: %s", i.dir, why)})
		}
	}
	return bs
}

// testRoom: what serves tests is never linked into the product. (Failpoints are no test
// room: they are in the product's source, and empty in its build.)
func testRoom(f *file, module string) (bs []breach) {
	r := ringOf(f.dir)
	if f.test || r == ringTest || r == ringTool {
		return nil
	}
	for _, i := range f.imports(module) {
		if i.dir == "" || ringOf(i.dir) != ringTest {
			continue
		}
		bs = append(bs, breach{f.at(i.spec), fmt.Sprintf("imports %s outside of a test", i.dir)})
	}
	return bs
}

// pureImports: ring 0 has no I/O, clock, context, log, randomness (I10), and neither
// has api, which is types. They import nothing from outside of the module and the
// standard library.
func pureImports(f *file, module string) (bs []breach) {
	if r := ringOf(f.dir); f.test || r != ringPure && r != ringAPI {
		return nil
	}
	for _, i := range f.imports(module) {
		if i.dir != "" {
			continue
		}
		switch {
		case !standard(i.path):
			bs = append(bs, breach{f.at(i.spec), fmt.Sprintf("imports %s: the standard library only", i.path)})
		case impure(i.path):
			bs = append(bs, breach{f.at(i.spec), fmt.Sprintf("imports %s: no I/O, context, log, randomness, concurrency", i.path)})
		}
	}
	return bs
}

// impure reports whether a package of the standard library does what ring 0 must not.
func impure(p string) bool {
	if p == "net/netip" {
		return false
	}
	for _, top := range []string{
		"os", "net", "context", "log", "syscall", "io/ioutil", "math/rand", "crypto/rand",
		"runtime", "unsafe", "plugin", "testing", "embed", "expvar", "flag", "database", "path/filepath",
	} {
		if under(p, top) {
			return true
		}
	}
	return false
}

// pureCalls: time is there for its types; what reads the clock or waits is not called.
// No goroutines, no printing.
func pureCalls(f *file, module string) (bs []breach) {
	if f.test || ringOf(f.dir) != ringPure {
		return nil
	}
	names := map[string]string{} // name in this file -> import path
	for _, i := range f.imports(module) {
		names[i.name] = i.path
	}
	banned := map[string][]string{
		"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Local", "LoadLocation"},
		"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			bs = append(bs, breach{f.at(n), "starts a goroutine"})
		case *ast.SelectorExpr:
			// Any mention counts, not only a call: a function handed on is called.
			x, ok := n.X.(*ast.Ident)
			if ok && x.Obj == nil && slices.Contains(banned[names[x.Name]], n.Sel.Name) {
				bs = append(bs, breach{f.at(n), fmt.Sprintf("uses %s.%s: the clock and the terminal are passed in", x.Name, n.Sel.Name)})
			}
		}
		return true
	})
	return bs
}

// noLogging: the engine and the drivers return errors and facts; cmd logs.
func noLogging(f *file, module string) (bs []breach) {
	if r := ringOf(f.dir); f.test || r != ringEngine && r != ringDriver {
		return nil
	}
	for _, i := range f.imports(module) {
		if under(i.path, "log") {
			bs = append(bs, breach{f.at(i.spec), fmt.Sprintf("imports %s: return it instead", i.path)})
		}
	}
	return bs
}

// apiBehaviour: published types carry no code that a reader of a document would need.
func apiBehaviour(f *file, _ string) (bs []breach) {
	if f.test || ringOf(f.dir) != ringAPI {
		return nil
	}
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			bs = append(bs, breach{f.at(fn), fmt.Sprintf("declares func %s", fn.Name.Name)})
		}
	}
	return bs
}

// noInit: what happens at start-up is written in main.
func noInit(f *file, _ string) (bs []breach) {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			bs = append(bs, breach{f.at(fn), "declares init()"})
		}
	}
	return bs
}

// maxLines is what a reader still holds in the head, with some room.
const maxLines = 700

func fileLength(f *file, _ string) []breach {
	if f.lines <= maxLines {
		return nil
	}
	return []breach{{f.name, fmt.Sprintf("%d lines, at most %d", f.lines, maxLines)}}
}

// skipOnlyInTestenv: a skip goes through testenv.Need, where REQUIRE makes it a
// failure. Seen by the usual names of a testing value, so one called otherwise is not
// found.
func skipOnlyInTestenv(f *file, _ string) (bs []breach) {
	if under(f.dir, "internal/testenv") {
		return nil
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f", "tb", "tt"}, x.Name) {
			bs = append(bs, breach{f.at(call), fmt.Sprintf("calls %s.%s: use testenv.Need", x.Name, sel.Sel.Name)})
		}
		return true
	})
	return bs
}

// packageName: a package is a noun that says what is in it.
func packageName(f *file, _ string) []breach {
	name := strings.TrimSuffix(f.ast.Name.Name, "_test")
	for _, n := range []string{name, path.Base(f.dir)} {
		if slices.Contains([]string{"util", "utils", "common", "types", "helper", "helpers", "manager", "managers", "misc", "base", "shared"}, n) {
			return []breach{{f.at(f.ast.Name), fmt.Sprintf("package %q says nothing of what is in it", n)}}
		}
	}
	return nil
}

// placed: a package outside of the table of rings would escape every rule of direction.
func placed(files []*file) []breach {
	dir := files[0].dir
	if ringOf(dir) != ringNone {
		return nil
	}
	return []breach{{dir, "belongs to no ring: add it to docs/design.md and to ringOf"}}
}

// globals returns the names of the package-level variables in product code, with their
// declarations.
func globals(files []*file, visit func(f *file, spec *ast.ValueSpec)) {
	for _, f := range files {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					if v, ok := s.(*ast.ValueSpec); ok {
						visit(f, v)
					}
				}
			}
		}
	}
}

// noFuncVar: a package-level variable of a function type is a hook for a test to
// change, and a data race with the next one. Found: a function type, also by a name of
// the same package; a function literal; a function of the same package; and a plain
// function of the standard library's or netlink's that hooks are usually made of.
func noFuncVar(files []*file) (bs []breach) {
	funcs, funcTypes := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					funcs[d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok {
						if _, ok := ts.Type.(*ast.FuncType); ok {
							funcTypes[ts.Name.Name] = true
						}
					}
				}
			}
		}
	}
	hooks := map[string]func(name string) bool{
		"time": oneOf("Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"),
		"os": oneOf("Open", "OpenFile", "Create", "ReadFile", "WriteFile", "ReadDir", "Stat", "Lstat", "Readlink", "Remove", "RemoveAll",
			"Rename", "Mkdir", "MkdirAll", "Getenv", "LookupEnv", "Getpid", "Getuid", "Geteuid", "Hostname", "Exit"),
		"exec":     oneOf("Command", "CommandContext", "LookPath"),
		"rand":     oneOf("Read", "Int", "IntN", "Intn", "Int64", "Int64N", "Uint32", "Uint64", "Float64", "Perm", "Shuffle", "Text"),
		"net":      oneOf("Dial", "DialTimeout", "Listen", "ListenPacket", "Interfaces", "LookupHost", "LookupIP"),
		"filepath": oneOf("Walk", "WalkDir", "Glob", "EvalSymlinks", "Abs"),
		"unix":     mixedCase, "syscall": mixedCase, "netlink": mixedCase, "netns": mixedCase, "user": mixedCase,
	}
	isFunc := func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.FuncLit:
			return true
		case *ast.Ident:
			return funcs[e.Name]
		case *ast.SelectorExpr:
			x, ok := e.X.(*ast.Ident)
			return ok && hooks[x.Name] != nil && hooks[x.Name](e.Sel.Name)
		}
		return false
	}
	globals(files, func(f *file, v *ast.ValueSpec) {
		typed := false
		switch t := v.Type.(type) {
		case *ast.FuncType:
			typed = true
		case *ast.Ident:
			typed = funcTypes[t.Name]
		}
		for i, name := range v.Names {
			if name.Name != "_" && (typed || i < len(v.Values) && isFunc(v.Values[i])) {
				bs = append(bs, breach{f.at(name), fmt.Sprintf("package-level variable %s holds a function: pass it in", name.Name)})
			}
		}
	})
	return bs
}

func oneOf(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// mixedCase tells the functions of the packages that name constants in capitals.
func mixedCase(name string) bool {
	return !strings.HasPrefix(name, "Err") && strings.ToUpper(name) != name
}

// noMutableGlobal: a package-level variable is set where it is declared and never
// again. Found: an assignment to it, or to its elements or fields, or ++ and --, in any
// function of the package, tests included. Not found: a change through a pointer or a
// method.
func noMutableGlobal(files []*file) (bs []breach) {
	vars := map[string]bool{}
	globals(files, func(_ *file, v *ast.ValueSpec) {
		for _, n := range v.Names {
			vars[n.Name] = n.Name != "_"
		}
	})
	for _, f := range files {
		// An external test package has other names in scope.
		if f.test && strings.HasSuffix(f.ast.Name.Name, "_test") {
			continue
		}
		report := func(lhs ast.Expr) {
			id := root(lhs)
			// A name with an object of an inner scope is a local variable; one of the
			// file's scope has a ValueSpec at the top level, one of another file none.
			if id == nil || !vars[id.Name] || id.Obj != nil && f.ast.Scope.Lookup(id.Name) != id.Obj {
				return
			}
			bs = append(bs, breach{f.at(id), fmt.Sprintf("changes the package-level variable %s", id.Name)})
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, l := range n.Lhs {
						report(l)
					}
				}
			case *ast.IncDecStmt:
				report(n.X)
			case *ast.RangeStmt:
				if n.Tok == token.ASSIGN {
					report(n.Key)
					report(n.Value)
				}
			}
			return true
		})
	}
	return bs
}

// root is the variable that an assignable expression begins with.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}
