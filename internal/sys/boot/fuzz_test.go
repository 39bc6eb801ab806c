package boot

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// FuzzIsUUID compares with the shape as RFC 9562 has it, in the kernel's spelling.
func FuzzIsUUID(f *testing.F) {
	const id = "6a3c1e52-0b1f-4b53-8d2e-1f0f5d1c9a77"
	for _, s := range []string{id, strings.ToUpper(id), id + "\n", "", "00000000-0000-0000-0000-000000000000", strings.Repeat("-", 36), strings.ReplaceAll(id, "-", "0")} {
		f.Add(s)
	}
	shape := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	f.Fuzz(func(t *testing.T, s string) {
		want := shape.MatchString(s) && strings.Trim(s, "0-") != ""
		if got := IsUUID(s); got != want {
			t.Errorf("IsUUID(%q) = %t", s, got)
		}
	})
}

// FuzzCovers: a mount over the boot ID is seen whatever stands around it in its line and
// in others, and what only looks like one is not. The root of a bind mount may have any
// name; the kernel escapes these four bytes of it (fs/proc_namespace.c: mangle).
func FuzzCovers(f *testing.F) {
	f.Add("27 1 0:1 / / rw - ext4 x rw\n", "/proc/sys/kernel/random", "/a")
	f.Add("", "/proc/sys/kernel", "/a b\\")
	f.Add("garbage\n\n  \n", "/proc/sys", "/")
	f.Add("", "/proc/sys/kernel/random/boot_id", "/a\vb\u00a0c\r")
	f.Add("", "/x/proc/sys/kernel", "")
	mangle := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace
	f.Fuzz(func(t *testing.T, others, point, root string) {
		if strings.Contains(point+root, "\x00") || coversBootID([]byte(others)) {
			return
		}
		line := fmt.Sprintf("90 27 0:4 %s %s rw - tmpfs tmpfs rw\n", mangle(root), mangle(point))
		covers := point == "/proc/sys/kernel" || point == "/proc/sys/kernel/random" || point == "/proc/sys/kernel/random/boot_id"
		if got := coversBootID([]byte(others + "\n" + line + others)); got != covers {
			t.Errorf("%q over the boot ID: %t", line, got)
		}
	})
}
