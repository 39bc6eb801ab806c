package ipam

import (
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
)

// The plugin is started for every Pod: as it is released it is static, has at most 8 MB, and
// nothing of Kubernetes, of a runtime's client or of the judge is linked into it.
func TestSmallAndStatic(t *testing.T) {
	const most = 8_000_000
	bin := released(t, "-s -w")
	fi, err := os.Stat(bin)
	must(t, err)
	if fi.Size() > most {
		t.Errorf("%d bytes, want at most %d", fi.Size(), most)
	}
	f, err := elf.Open(bin)
	must(t, err)
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("not static")
	}
	info, err := buildinfo.ReadFile(bin)
	must(t, err)
	for _, m := range info.Deps {
		if strings.HasPrefix(m.Path, "k8s.io/") || strings.HasPrefix(m.Path, "google.golang.org/") {
			t.Errorf("links %s", m.Path)
		}
	}
	// The state files' package knows the judge's nouns, and none of its functions is kept.
	whole, err := elf.Open(released(t, ""))
	must(t, err)
	defer whole.Close()
	symbols, err := whole.Symbols()
	must(t, err)
	const internal = "github.com/holdfast-cni/holdfast/internal/"
	seen := map[string]bool{}
	for _, s := range symbols {
		pkg, ok := strings.CutPrefix(s.Name, internal)
		if ok {
			pkg, _, _ = strings.Cut(pkg, ".")
			seen[pkg] = true
		}
	}
	if !seen["sys/hostlocal"] {
		t.Errorf("the store is not among what is linked: %v", seen)
	}
	for _, pkg := range []string{"verdict", "sweep", "plan", "journal", "sys/cri"} {
		if seen[pkg] {
			t.Errorf("links functions of internal/%s", pkg)
		}
	}
	t.Logf("%d bytes", fi.Size())
}

// released builds the program as it is released but for the linker's flags.
func released(t *testing.T, flags string) string {
	t.Helper()
	wd, err := os.Getwd()
	must(t, err)
	root, err := prebuilt.FindRoot(wd)
	must(t, err)
	bin := filepath.Join(t.TempDir(), oursType)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", bin, oursPackage)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}
