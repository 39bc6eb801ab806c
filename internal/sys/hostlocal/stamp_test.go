package hostlocal

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

func TestParseStamp(t *testing.T) {
	content := []byte("a\r\neth0")
	good := string(formatStamp(stampOf(bootA), content))
	if st, err := parseStamp([]byte(good), sum(content)); err != nil || st != stampOf(bootA) {
		t.Fatalf("%+v, %v", st, err)
	}
	if len(good) > 56 {
		t.Errorf("it has %d bytes, and ext4 keeps 56 in an inode of 256", len(good))
	}
	for name, text := range map[string]string{
		"empty":                       "",
		"cut":                         good[:len(good)-1],
		"more":                        good + "\n",
		"a newer version":             "3" + good[1:],
		"before the boot":             good[:24] + "\x80" + good[25:],
		"of other content":            string(formatStamp(stampOf(bootA), []byte("b\r\neth0"))),
		"the version before, as text": fmt.Sprintf("1 %s 60000000000 4026532000 %s", bootA, sum(content)),
	} {
		if st, err := parseStamp([]byte(text), sum(content)); err == nil || st != (claim.Stamp{}) {
			t.Errorf("%s: %q is read as %+v, %v", name, text, st, err)
		}
	}
}

func TestIsBootID(t *testing.T) {
	for id, want := range map[string]bool{
		bootA: true, "": false, bootA[:35]: false, bootA + "1": false,
		strings.Replace(bootA, "-", "1", 1): false, strings.Replace(bootA, "1", "-", 1): false,
		"g" + bootA[1:]: false, "A" + bootA[1:]: false, strings.Repeat("-", 36): false,
	} {
		if claim.IsUUID(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}

// FuzzStamp: what is read as a stamp is what formatStamp writes, to the byte, and for this
// content alone.
func FuzzStamp(f *testing.F) {
	content := []byte("a\r\neth0")
	f.Add(formatStamp(stampOf(bootA), content), content)
	f.Add(formatStamp(claim.Stamp{Boot: bootB, Mono: 1<<63 - 1, Netns: 1<<64 - 1}, content), content)
	f.Add([]byte("1 "+bootA+" 1 0 "+sum(content)), content)
	f.Fuzz(func(t *testing.T, text, content []byte) {
		st, err := parseStamp(text, sum(content))
		if err != nil {
			if st != (claim.Stamp{}) {
				t.Errorf("an error and %+v", st)
			}
		} else {
			if again := formatStamp(st, content); string(again) != string(text) {
				t.Errorf("%q is read, and %q written", text, again)
			}
			if _, err := parseStamp(text, sum(append([]byte("x"), content...))); err == nil {
				t.Error("counts for other content")
			}
		}
		want := claim.Stamp{Boot: bootA, Mono: time.Duration(len(text)), Netns: uint64(len(content))}
		if got, err := parseStamp(formatStamp(want, content), sum(content)); err != nil || got != want {
			t.Errorf("wrote %+v, read %+v, %v", want, got, err)
		}
	})
}
