package state

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sealed makes a sound file of any lines, nil if they are too many or too long for one:
// nearly no input has the right checksums.
func sealed(t testing.TB, name string, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	lw := newLineWriter(&b, name)
	for line := range bytes.Lines(text) {
		if line = bytes.TrimRight(line, "\n"); !bytes.HasPrefix(line, []byte("end ")) {
			lw.line(line)
		}
	}
	if lw.finish() != nil {
		return nil
	}
	return b.Bytes()
}

// given opens a state directory with that file.
func given(t testing.TB, name string, content []byte) *Dir {
	t.Helper()
	dir := memDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
	return openDir(t, dir, false)
}

// refusal fails unless err, if any, is that of a damaged file.
func refusal(t testing.TB, err error) bool {
	t.Helper()
	var corrupt *CorruptError
	if err != nil && !errors.As(err, &corrupt) {
		t.Fatal(err)
	}
	return err != nil
}

// FuzzLines: what was written comes back; with one byte changed, cut or added it never
// does.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nb \x00\n"), uint(3), byte(1))
	f.Add([]byte{}, uint(9), byte(0x80))
	f.Add([]byte("{\"current\":\"x\"}\n"), uint(21), byte(0))
	f.Fuzz(func(t *testing.T, text []byte, at uint, flip byte) {
		good := sealed(t, holdsFile, text)
		if good == nil {
			return
		}
		var lines, want [][]byte
		for line := range bytes.Lines(text) {
			if line = bytes.TrimRight(line, "\n"); !bytes.HasPrefix(line, []byte("end ")) {
				want = append(want, line)
			}
		}
		read := func(b []byte) error {
			lines = nil
			return readLines(bytes.NewReader(b), int64(len(b)), holdsFile, func(line []byte) error {
				lines = append(lines, bytes.Clone(line))
				return nil
			})
		}
		if err := read(good); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(lines, want, bytes.Equal) {
			t.Fatalf("%q came back as %q", want, lines)
		}
		i := int(at % uint(len(good)))
		if flip != 0 {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			if read(bad) == nil {
				t.Fatalf("byte %d of %q changed, and nobody sees it", i, good)
			}
		}
		if read(good[:i]) == nil || read(append(bytes.Clone(good), flip)) == nil {
			t.Fatalf("%q, cut at %d or with a byte added, is whole", good, i)
		}
		// Bytes of any kind are a refusal and no crash.
		if err := read(text); err == nil && !bytes.HasPrefix(text, []byte("holdfast-")) {
			t.Fatalf("%q is a file", text)
		}
	})
}

func FuzzHolds(f *testing.F) {
	for _, s := range []string{
		`{"addr":"10.0.0.1","by":"person","at":{}}` + "\n" + `{"store":"/n","addr":"fd00::1","by":"undo","at":{"boot":"b","mono":5},"releaseID":"20261130-062137-1a2b3c"}`,
		`{"addr":"10.0.0.1","owner":{"shape":"container","id":"a1b2c3d4a1b2","ifName":"eth0"},"by":"undo","at":{"boot":"b"}}` + "\n" + `{"addr":"10.0.0.1","by":"undo","at":{"boot":"c"}}`,
		`{"addr":"::ffff:10.0.0.1","by":"person"}`, `{"addr":"fe80::1%\u001b[2J","by":"person"}`, `{"addr":"","by":"person"}`, `null`, `{"addr":"10.0.0.1","by":""}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		content := sealed(t, holdsFile, text)
		if content == nil {
			return
		}
		d := given(t, holdsFile, content)
		list, err := d.Holds()
		if refusal(t, err) {
			if list != nil {
				t.Fatalf("an error and %v", list)
			}
			// A list that nobody can read is not begun anew: a person wanted something kept.
			if _, err := d.AddHolds(hold(1)); err == nil {
				t.Fatal("a hold was added to a file that cannot be read")
			}
			return
		}
		if lines := bytes.Count(content, []byte{'\n'}) - 2; len(list) != lines {
			t.Fatalf("%d holds in %d lines", len(list), lines)
		}
		for _, h := range list {
			if h.check() != nil || h.Addr.Zone() != "" {
				t.Fatalf("hold %+v", h)
			}
		}
		added, err := d.AddHolds(list...)
		if err != nil || len(added) > 0 {
			t.Fatalf("holds that are there were added: %v, %v", added, err)
		}
		// One more, unless it is there: the file is written anew.
		if added, err = d.AddHolds(hold(1)); err != nil {
			t.Fatal(err)
		}
		again, err := d.Holds()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append(list, added...), again, cmpAddr); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzRuntimes(f *testing.F) {
	for _, s := range []string{"\"unix:///run/a.sock\"\n\"unix:///run/b.sock\"", `""`, `null`, `"\u001b[2J"`, `"\ud800"`, "1", "\"b\"\n\"a\"\n\"a\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		content := sealed(t, runtimesFile, text)
		if content == nil {
			return
		}
		d := given(t, runtimesFile, content)
		list, err := d.KnownRuntimes()
		if refusal(t, err) {
			if list != nil || d.RememberRuntimes("unix:///x") == nil {
				t.Fatalf("an error and %v, or it was begun anew", list)
			}
			return
		}
		// A runtime that was known is known for ever.
		if len(list) < MaxRuntimes {
			if err := d.RememberRuntimes("unix:///x"); err != nil {
				t.Fatal(err)
			}
		}
		again, err := d.KnownRuntimes()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if s == "" || !slices.Contains(again, s) {
				t.Fatalf("%q of %q is not in %q", s, list, again)
			}
		}
	})
}

func FuzzBoots(f *testing.F) {
	for _, s := range []string{
		`{"current":"` + boot(1) + `","past":["` + boot(2) + `"]}`, `{"current":"` + boot(1) + `","past":["` + boot(9) + `"]}`,
		`{"current":"` + boot(9) + `"}`, `{"current":"` + boot(1) + `","returned":"x"}`, `{"current":""}`, `{}`, `null`, "{}\n{}", `{"current":1}`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		content := sealed(t, bootsFile, text)
		if content == nil {
			return
		}
		d := given(t, bootsFile, content)
		was, readErr := d.readBoots()
		facts, err := d.ObserveBoot(boot(9))
		if facts.Current != boot(9) || slices.Contains(facts.Past, boot(9)) {
			t.Fatalf("%+v, %v", facts, err)
		}
		// Past is only what stood there as seen (F23); in doubt, nothing.
		for _, p := range facts.Past {
			if !isBootID(p) || p != was.Current && !slices.Contains(was.Past, p) {
				t.Fatalf("%q is past, and there was %+v", p, was)
			}
		}
		if err != nil && len(facts.Past) > 0 || refusal(t, readErr) && err == nil {
			t.Fatalf("%+v with %v, read with %v", facts, err, readErr)
		}
		// Whatever it was, it is a sound file now and says the same again.
		again, err2 := d.ObserveBoot(boot(9))
		if errors.Is(err, ErrBootReturned) != errors.Is(err2, ErrBootReturned) || err == nil && (err2 != nil || !slices.Equal(again.Past, facts.Past)) {
			t.Fatalf("%+v, %v, then %+v, %v", facts, err, again, err2)
		}
	})
}
