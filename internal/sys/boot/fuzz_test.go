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

// FuzzCovers: a mount over the boot ID is seen whatever stands around its line, and what
// only looks like one is not.
func FuzzCovers(f *testing.F) {
	f.Add("27 1 0:1 / / rw - ext4 x rw\n", "/proc/sys/kernel/random", "shared:5")
	f.Add("", "/proc/sys/kernel", "")
	f.Add("garbage\n\n  \n", "/proc/sys", "master:1 shared:2")
	f.Add("", "/proc/sys/kernel/random/boot_id", "")
	f.Add("", "/x/proc/sys/kernel", "")
	f.Fuzz(func(t *testing.T, others, point, optional string) {
		if strings.ContainsAny(point+optional, "\n\\\t\v\f\r ") || point == "" || coversBootID([]byte(others)) {
			return
		}
		for _, r := range point + optional {
			if r > '~' || r < ' ' {
				return
			}
		}
		line := fmt.Sprintf("90 27 0:4 / %s rw %s - tmpfs tmpfs rw\n", point, optional)
		covers := point == "/proc/sys/kernel" || point == "/proc/sys/kernel/random" || point == "/proc/sys/kernel/random/boot_id"
		if got := coversBootID([]byte(others + "\n" + line + others)); got != covers {
			t.Errorf("%q over the boot ID: %t", line, got)
		}
	})
}
