package deptest

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// kernelWatched: a file of tests that changes the kernel's state (namespaces, mounts,
// links), or starts processes that do, goes through testenv.Need in every test
// of it that has such a call or names such a function of its own, directly or through
// others of the same file. Need makes the test watched for what it leaves
// (testenv/leak); the fixtures below testenv demand the same when they are called.
//
// A function that takes the testing value may call Need for its callers. Not found:
// calls through another file, where the function there must have its own Need, or
// through a variable. A test called ...Child runs in a process of its own, in namespaces that
// end with it, and the test that starts it is watched.
func kernelWatched(f *file, module string) (bs []breach) {
	if !f.test || under(f.dir, "internal/testenv") {
		return nil
	}
	names := map[string]string{} // name in this file -> import path
	for _, i := range f.imports(module) {
		names[i.name] = i.path
	}
	type fn struct {
		decl            *ast.FuncDecl
		touches, needed bool
		calls           []string
	}
	funcs := map[string]*fn{}
	for _, d := range f.ast.Decls {
		decl, ok := d.(*ast.FuncDecl)
		if !ok || decl.Body == nil {
			continue
		}
		g := &fn{decl: decl}
		ast.Inspect(decl.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				g.calls = append(g.calls, n.Name)
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok || x.Obj != nil {
					return true
				}
				g.touches = g.touches || changesKernel(names[x.Name], n.Sel.Name)
				g.needed = g.needed || names[x.Name] == module+"/internal/testenv" && n.Sel.Name == "Need"
			case *ast.KeyValueExpr:
				if k, ok := n.Key.(*ast.Ident); ok && (k.Name == "Cloneflags" || k.Name == "Unshareflags") {
					g.touches = true
				}
			}
			return true
		})
		funcs[decl.Name.Name] = g
	}
	// reaches follows the names of a function's body until want is true of one.
	var reaches func(name string, seen []string, want func(*fn) bool) bool
	reaches = func(name string, seen []string, want func(*fn) bool) bool {
		g := funcs[name]
		if g == nil || slices.Contains(seen, name) {
			return false
		}
		if want(g) {
			return true
		}
		return slices.ContainsFunc(g.calls, func(c string) bool { return reaches(c, append(seen, name), want) })
	}
	for name, g := range funcs {
		if !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Benchmark") || name == "TestMain" || strings.HasSuffix(name, "Child") {
			continue
		}
		if reaches(name, nil, func(g *fn) bool { return g.touches }) && !reaches(name, nil, func(g *fn) bool { return g.needed }) {
			bs = append(bs, breach{f.at(g.decl), fmt.Sprintf("%s changes the kernel's state and does not call testenv.Need", name)})
		}
	}
	return bs
}

// changesKernel reports whether a function makes something that outlives its caller.
func changesKernel(path, name string) bool {
	switch path {
	case "golang.org/x/sys/unix", "syscall":
		return slices.Contains([]string{"Mount", "Unshare", "Setns", "PivotRoot", "Chroot"}, name)
	case "github.com/vishvananda/netlink":
		return strings.HasSuffix(name, "Add") || strings.HasSuffix(name, "Del")
	}
	// testenv/cri calls Need itself.
	return strings.HasSuffix(path, "/internal/testenv/netns") && strings.HasPrefix(name, "New")
}
