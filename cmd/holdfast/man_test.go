package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const manDir = "../../docs/man"

// TestManPagesAreCurrent compares the committed pages with the commands.
func TestManPagesAreCurrent(t *testing.T) {
	fresh := t.TempDir()
	if code, _, stderr := invoke(t, "man", fresh); code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	const again = "write them again with\n\trm docs/man/*.8 && go run ./cmd/holdfast man docs/man"
	names := map[string]bool{}
	for _, dir := range []string{fresh, manDir} {
		pages, err := filepath.Glob(filepath.Join(dir, "*.8"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pages {
			names[filepath.Base(p)] = true
		}
	}
	if !names["holdfast.8"] || !names["holdfast-gc.8"] || !names["holdfast-doctor.8"] {
		t.Errorf("pages are missing: %v", names)
	}
	for name := range names {
		want, err := os.ReadFile(filepath.Join(fresh, name))
		have, err2 := os.ReadFile(filepath.Join(manDir, name))
		if err != nil || err2 != nil || !bytes.Equal(want, have) {
			t.Errorf("docs/man/%s differs from the command's help (%v, %v); %s", name, err, err2, again)
		}
	}
}

func TestManWants(t *testing.T) {
	for _, args := range [][]string{{"man"}, {"man", ""}, {"man", "a", "b"}} {
		if code, _, _ := invoke(t, args...); code != exitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, file + "-none"} {
		if code, _, _ := invoke(t, "man", dir); code != exitFailed {
			t.Errorf("%q: exit %d", dir, code)
		}
	}
}

func TestCompletionScripts(t *testing.T) {
	for shell, has := range map[string]string{"bash": "complete -o default", "zsh": "#compdef holdfast", "fish": "complete -c holdfast"} {
		code, out, stderr := invoke(t, "completion", shell)
		if code != exitOK || !strings.Contains(out, has) || len(out) < 1000 {
			t.Errorf("%s: exit %d, %d bytes: %s", shell, code, len(out), stderr)
		}
	}
	for _, shell := range []string{"powershell", "tcsh"} {
		if code, out, _ := invoke(t, "completion", shell); code == exitOK && strings.Contains(out, "Register") || strings.Contains(out, "powershell") {
			t.Errorf("%s: exit %d: %s", shell, code, out)
		}
	}
}

func TestCompletionOfValues(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"audit", "-o", ""}, "table\nwide\njson\nyaml\n:4\n"},
		{[]string{"--output", "y"}, "table\nwide\njson\nyaml\n:4\n"},
		{[]string{"gc", "--witness", ""}, "kernel\nprocess\ncri\n:4\n"},
		{[]string{"doctor", "--witness", ""}, "kernel\nprocess\ncri\n:4\n"},
		{[]string{"explain", "--witness", ""}, "kernel\nprocess\ncri\n:4\n"},
		{[]string{"audit", "--state-dir", ""}, ":16\n"}, // directories
		{[]string{"audit", "--data-dir", ""}, ":16\n"},
		{[]string{"man", ""}, ":16\n"},
	} {
		code, out, _ := invoke(t, append([]string{"__complete"}, c.args...)...)
		if code != exitOK || out != c.want {
			t.Errorf("%q: exit %d, %q, want %q", c.args, code, out, c.want)
		}
	}
}
