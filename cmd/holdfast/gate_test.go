package main

import (
	"bytes"
	"testing"
)

// What must be done before the first bytes is done once, and only if there are any.
func TestGate(t *testing.T) {
	var out bytes.Buffer
	opened := 0
	g := &gate{out: &out, before: func() {
		opened++
		if out.Len() > 0 {
			t.Errorf("%q went through before", out.String())
		}
	}}
	if opened > 0 {
		t.Error("opened before anything was written")
	}
	for _, s := range []string{"a", "b"} {
		if _, err := g.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if opened != 1 || out.String() != "ab" {
		t.Errorf("opened %d times, %q", opened, out.String())
	}
}
