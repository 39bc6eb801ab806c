package deptest

import (
	"path"
	"strings"
)

// ring is a package's place in the layout (docs/design.md, "Rings").
type ring string

const (
	ringAPI     ring = "api"       // published types
	ringPure    ring = "ring 0"    // decides: values in, values out
	ringBase    ring = "base"      // what stores stand on: file calls, failpoints
	ringEngine  ring = "engine"    // waits, and defines the interfaces it consumes
	ringDriver  ring = "driver"    // talks to one foreign system
	ringService ring = "service"   // long-running parts
	ringTest    ring = "test room" // only tests import it
	ringCmd     ring = "cmd"       // wires
	ringTool    ring = "tool"      // hack/, bench/ and e2e/: of the repository, not of the product
	ringNone    ring = ""          // nowhere
)

// under reports whether dir is top or lies below it.
func under(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// ringOf places a directory of the module.
func ringOf(dir string) ring {
	// A driver's contract table and fake live beside it, in internal/sys/X/Xtest.
	if d := driverOf(dir); d != "" && dir == d+"/"+path.Base(d)+"test" {
		return ringTest
	}
	for _, p := range []struct {
		top  string
		ring ring
	}{
		{"api", ringAPI},
		{"internal/claim", ringPure},
		{"internal/verdict", ringPure},
		{"internal/plan", ringPure},
		{"internal/addr", ringPure},
		{"internal/ifstore", ringPure},
		{"internal/report", ringPure},
		{"internal/line", ringPure},
		{"internal/cause", ringPure},
		{"internal/fsys/memfs", ringTest},
		{"internal/fsys", ringBase},
		{"internal/failpoint", ringBase},
		{"internal/crc32c", ringBase},
		{"internal/sweep", ringEngine},
		{"internal/attach", ringEngine},
		{"internal/journal", ringEngine},
		{"internal/sys", ringDriver},
		{"internal/wire", ringService},
		{"internal/agent", ringService},
		{"internal/cniserver", ringService},
		{"internal/poolctl", ringService},
		{"internal/testenv", ringTest},
		{"internal/sim", ringTest},
		{"internal/deptest", ringTest},
		{"cmd", ringCmd},
		{"hack", ringTool},
		{"bench", ringTool},
		{"e2e", ringTool},
	} {
		if under(dir, p.top) {
			return p.ring
		}
	}
	return ringNone
}

// driverOf names the driver that a directory belongs to: "internal/sys/X" for it and
// everything below.
func driverOf(dir string) string {
	rest, ok := strings.CutPrefix(dir, "internal/sys/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return "internal/sys/" + name
}

// mayImport reports whether product code in directory from may import the directory
// to of the same module, and if not, why. Tests may reach anywhere; what only tests
// may import is testRoom's matter.
func mayImport(from, to string) (why string, ok bool) {
	a, b := ringOf(from), ringOf(to)
	if b == ringCmd && a != ringCmd {
		return "nothing imports cmd", false
	}
	if b == ringTool && a != ringTool && a != ringTest {
		return "the product does not import tools of the repository", false
	}
	if b == ringTest {
		return "", true
	}
	switch a {
	case ringAPI:
		return "api imports internal/claim and internal/verdict only", b == ringAPI || to == "internal/claim" || to == "internal/verdict"
	case ringPure:
		return "ring 0 imports ring 0 and api only", b == ringPure || b == ringAPI
	case ringBase:
		return "base imports nothing of the module", under(from, to)
	case ringEngine:
		// The journal's records are the engine's own nouns: what writes them may know
		// them, and the journal knows nobody.
		if b == ringEngine {
			return "within the engine only the journal is imported", to == "internal/journal" && !under(from, to)
		}
		return "the engine imports ring 0 and base only; it defines the interfaces it consumes", b == ringPure || b == ringAPI || b == ringBase
	case ringDriver:
		if b == ringDriver {
			return "drivers never import each other; only cmd sees both sides", driverOf(from) == driverOf(to)
		}
		return "a driver imports ring 0 and base only", b == ringPure || b == ringBase
	case ringService:
		return "services import engine, base and ring 0", b == ringPure || b == ringBase || b == ringAPI || b == ringEngine || b == ringService
	}
	return "", true
}
