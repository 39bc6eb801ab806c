package deptest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestRequires holds go.mod and the page on dependencies of this very module together.
func TestRequires(t *testing.T) {
	found, err := CheckRequires(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

func TestCheckRequires(t *testing.T) {
	const (
		mod = "module m.example/m\n\ngo 1.26\n\nrequire x.example/one v1.0.0 // why not\n\n" +
			"require (\n\tx.example/two/v2 v2.0.0\n\tx.example/deep v1.0.0 // indirect\n)\n"
		page   = "# Title\n\n| module | why |\n|---|---|\n| x.example/one | a |\n| x.example/two/v2 | b |\n\n| module | why |\n|:--|--:|\n| hack/t | c |\n"
		source = "package a\nimport (\n_ \"x.example/one\"\n_ \"x.example/two/v2/sub\"\n)\n"
	)
	replace := func(text, from, to string) string {
		t.Helper()
		if !strings.Contains(text, from) {
			t.Fatalf("no %q", from)
		}
		return strings.Replace(text, from, to, 1)
	}
	for _, tc := range []struct {
		name, mod, page, source string
		want                    []string
	}{
		{"all agree", mod, page, source, nil},
		{"not imported", mod, page, replace(source, "/v2/sub", "/v22/sub"),
			[]string{"go.mod: requires x.example/two/v2 directly, which no file imports (dependencies)"}},
		{"not named", mod, replace(page, "| x.example/one | a |\n", ""), source,
			[]string{"docs/dependencies.md: does not name x.example/one (dependencies)"}},
		{"nested and not named", mod, replace(page, "| hack/t | c |\n", ""), source,
			[]string{"docs/dependencies.md: does not name hack/t (dependencies)"}},
		{"named and indirect", mod, replace(page, "| hack/t", "| x.example/deep | d |\n| hack/t"), source,
			[]string{"docs/dependencies.md: names x.example/deep, which is neither required directly nor a module in here (dependencies)"}},
		{"named twice", mod, replace(page, "| hack/t", "| x.example/one | d |\n| hack/t"), source,
			[]string{"docs/dependencies.md: names x.example/one twice (dependencies)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, err := CheckRequires(fstest.MapFS{
				"go.mod":            {Data: []byte(tc.mod)},
				dependenciesDoc:     {Data: []byte(tc.page)},
				"cmd/a/a_test.go":   {Data: []byte(tc.source)},
				"hack/t/go.mod":     {Data: []byte("module m.example/m/hack/t\n")},
				"hack/t/a.go":       {Data: []byte("package t\nimport _ \"x.example/deep\"\n")},
				"a/testdata/go.mod": {Data: []byte("module x\n")},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range found {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
