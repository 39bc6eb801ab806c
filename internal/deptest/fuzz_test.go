package deptest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestFuzz holds the fuzz targets of this very module, their corpora and the table of
// the page on the proof together.
func TestFuzz(t *testing.T) {
	found, err := CheckFuzz(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

func TestCheckFuzz(t *testing.T) {
	const (
		page   = "# Proof\n\n| policy | seeds |\n|---|---|\n| x | 1 |\n\n| target | reads |\n|---|---|\n| `a/b.FuzzOne` | x |\n"
		source = "package b\nimport \"testing\"\nfunc FuzzOne(f *testing.F) {}\n"
	)
	for _, tc := range []struct {
		name, page, source string
		files              map[string]string
		want               []string
	}{
		{"all agree", page, source, nil, nil},
		{"no row", strings.ReplaceAll(page, "FuzzOne", "other"), source, nil,
			[]string{"a/b/b_test.go:3: a/b.FuzzOne has no row in docs/proof.md (fuzz)"}},
		{"no target", page + "| `a/c.FuzzOne` | x |\n", source, nil, []string{"docs/proof.md: names a/c.FuzzOne, which is no target, or twice (fuzz)"}},
		{"twice", page + "| `a/b.FuzzOne` | x |\n", source, nil, []string{"docs/proof.md: names a/b.FuzzOne, which is no target, or twice (fuzz)"}},
		{"no corpus", page + "| `a/b.FuzzTwo` | x |\n", source + "func FuzzTwo(f *testing.F) {}\n", nil, []string{"a/b/b_test.go:4: a/b.FuzzTwo has no corpus (fuzz)"}},
		{"a corpus of nothing", page, source, map[string]string{"a/testdata/fuzz/FuzzOld/1": "x"}, []string{"a/testdata/fuzz/FuzzOld: a.FuzzOld is no target (fuzz)"}},
		{"a large file", page, source, map[string]string{"a/b/testdata/fuzz/FuzzOne/2": strings.Repeat("x", maxCorpusBytes+1)},
			[]string{fmt.Sprintf("a/b/testdata/fuzz/FuzzOne/2: %d bytes, more than %d (fuzz)", maxCorpusBytes+1, maxCorpusBytes)}},
		{"many files", page, source, many(maxCorpusFiles), []string{fmt.Sprintf("a/b/testdata/fuzz/FuzzOne: %d files, more than %d (fuzz)", maxCorpusFiles+1, maxCorpusFiles)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := fstest.MapFS{
				"go.mod":                      {Data: []byte("module m.example/m\n")},
				proofDoc:                      {Data: []byte(tc.page)},
				"a/b/b_test.go":               {Data: []byte(tc.source)},
				"a/b/testdata/fuzz/FuzzOne/1": {Data: []byte("go test fuzz v1\n")},
			}
			for name, text := range tc.files {
				fsys[name] = &fstest.MapFile{Data: []byte(text)}
			}
			found, err := CheckFuzz(fsys)
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

func many(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprintf("a/b/testdata/fuzz/FuzzOne/n%d", i)] = "x"
	}
	return out
}
