package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// target is one fuzz target.
type target struct{ pkg, name string }

// fuzzTargets finds every fuzz target of the packages that the patterns name.
func fuzzTargets(ctx context.Context, patterns []string) ([]target, error) {
	args := append([]string{"list", "-f", "{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}}\t{{$p.Dir}}\t{{.}}\n{{end}}" +
		"{{range .XTestGoFiles}}{{$p.ImportPath}}\t{{$p.Dir}}\t{{.}}\n{{end}}"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list for fuzz targets: %w", err)
	}
	var targets []target
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 3 {
			continue
		}
		src, err := os.ReadFile(filepath.Join(f[1], f[2]))
		if err != nil {
			return nil, err
		}
		names, err := fuzzNames(src)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			targets = append(targets, target{f[0], n})
		}
	}
	return targets, nil
}

// fuzzNames returns the names of the fuzz targets in one test file.
func fuzzNames(src []byte) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") || len(fn.Type.Params.List) != 1 {
			continue
		}
		if star, ok := fn.Type.Params.List[0].Type.(*ast.StarExpr); ok {
			if sel, ok := star.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "F" {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names, nil
}

// share is the time for the next target: each, but no more than an even share of
// what is left of the total, and at least one second so that every target runs.
func share(each, left time.Duration, targets int) time.Duration {
	return max(time.Second, min(each, left/time.Duration(targets)).Truncate(100*time.Millisecond))
}

// onlyDeadline reports whether a fuzz run failed because its own time was over
// while an input was being run or minimised: Go then fails the target with
// "context deadline exceeded" and no failing input (golang/go #56238 and others).
// That is no finding; the caller runs it again.
func onlyDeadline(output string) bool {
	return strings.Contains(output, "context deadline exceeded") && !strings.Contains(output, "Failing input written")
}
