package fsys

import (
	"encoding/binary"
	"strings"
	"testing"
)

// What a directory holds is the kernel's word, and still not trusted to be well formed.
func FuzzEachDirent(f *testing.F) {
	f.Add(dirent("10.0.0.1", 8))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, buf []byte) {
		if _, err := eachDirent(buf, func(name []byte, _ byte) bool {
			if len(name) == 0 {
				t.Error("an empty name")
			}
			return true
		}); err == nil && len(buf) > 0 && len(buf) < 20 {
			t.Error("a record without a head was taken")
		}
	})
}

func dirent(name string, typ byte) []byte {
	n := (19 + len(name) + 1 + 7) &^ 7
	b := make([]byte, n)
	binary.NativeEndian.PutUint64(b, 1)
	binary.NativeEndian.PutUint16(b[16:], uint16(n))
	b[18] = typ
	copy(b[19:], name)
	return b
}

func TestEachDirent(t *testing.T) {
	whole := append(append(dirent(".", 4), dirent("10.0.0.1", 8)...), dirent("x", 4)...)
	tests := []struct {
		name string
		in   []byte
		want string
		ok   bool
	}{
		{"whole", whole, "10.0.0.1:8 x:4 ", true},
		{"cut in a record", whole[:len(whole)-3], "10.0.0.1:8 ", false},
		{"cut in a head", append(dirent("a", 8), 1, 2, 3), "a:8 ", false},
		{"zero length", make([]byte, 24), "", false},
		{"nothing", nil, "", true},
	}
	for _, tt := range tests {
		var got strings.Builder
		more, err := eachDirent(tt.in, func(name []byte, typ byte) bool {
			got.WriteString(string(name) + ":" + string('0'+rune(typ)) + " ")
			return true
		})
		if got.String() != tt.want || (err == nil) != tt.ok || more != tt.ok {
			t.Errorf("%s: %q %v, want %q %v", tt.name, got.String(), err, tt.want, tt.ok)
		}
	}
}
