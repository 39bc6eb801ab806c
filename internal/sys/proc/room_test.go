package proc

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

func TestRoom(t *testing.T) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	processes := 0
	for _, e := range entries {
		if n := e.Name(); n[0] >= '0' && n[0] <= '9' {
			processes++
		}
	}
	open := len(descriptors(t))
	New(Config{}).Room()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for line := range bytes.Lines(status) {
		_, _ = fmt.Sscanf(string(line), "FDSize:\t%d", &size)
	}
	// Some processes may have begun since.
	if want := min(perProcess*(processes-8), maxRoom/2); size < want {
		t.Errorf("the table has room for %d descriptors, want %d or more", size, want)
	}
	if now := len(descriptors(t)); now != open {
		t.Errorf("%d descriptors are open, %d before", now, open)
	}
	// What cannot be read is left alone.
	New(Config{Proc: "/nowhere"}).Room()
}

func descriptors(t *testing.T) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return list
}
