package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

func request() HealRequest {
	return HealRequest{
		APIVersion: APIVersion, Kind: KindHealRequest, DataDir: "/var/lib/cni/networks", Network: "podnet", Spare: "c1",
		Valid: &[]Attachment{{ContainerID: "c2", IfName: "eth0"}},
	}
}

func TestDocuments(t *testing.T) {
	var buf bytes.Buffer
	q := request()
	p := HealResponse{APIVersion: APIVersion, Kind: KindHealResponse, Released: 2, Counts: map[string]int{"InUse": 1}, Withheld: []string{"x"}}
	if err := Write(&buf, q); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRequest(&buf); err != nil || cmp.Diff(q, got) != "" {
		t.Errorf("%v: %s", err, cmp.Diff(q, got))
	}
	if err := Write(&buf, p); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadResponse(&buf); err != nil || cmp.Diff(p, got) != "" {
		t.Errorf("%v: %s", err, cmp.Diff(p, got))
	}
}

// TestAbsentList: no list of valid attachments is not an empty one (GC would mean that
// nothing is valid).
func TestAbsentList(t *testing.T) {
	for text, want := range map[string]int{`[]`: 0, `null`: -1, ``: -1} {
		line := `{"apiVersion":"` + APIVersion + `","kind":"` + KindHealRequest + `"`
		if text != "" {
			line += `,"validAttachments":` + text
		}
		q, err := ReadRequest(strings.NewReader(line + "}\n"))
		got := -1
		if q.Valid != nil {
			got = len(*q.Valid)
		}
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	whole, err := json.Marshal(request())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing":           "",
		"half":              string(whole[:len(whole)/2]),
		"no JSON":           "heal\n",
		"a response":        `{"apiVersion":"` + APIVersion + `","kind":"` + KindHealResponse + `"}`,
		"another version":   strings.Replace(string(whole), "v1alpha1", "v9", 1),
		"too long":          `{"network":"` + strings.Repeat("x", MaxLine) + `"}`,
		"wrong kind of key": `{"apiVersion":1}`,
	} {
		if _, err := ReadRequest(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if err := Write(io.Discard, HealRequest{Network: strings.Repeat("x", MaxLine)}); err == nil {
		t.Error("a document that nobody reads was written")
	}
}

func TestString(t *testing.T) {
	p := HealResponse{Released: 1, Counts: map[string]int{"Suspect": 3, "InUse": 2}, Withheld: []string{"kernel: no\x1b[2J\u202e", "cap"}, Error: "late"}
	const want = "healing released 1 (InUse 2, Suspect 3); withheld: kernel: no?[2J?; cap; late"
	if got := p.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzResponse: what comes from a socket or a child is read whole or refused, and is fit
// for a terminal.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{"", "{}", `{"apiVersion":"holdfast.dev/v1alpha1","kind":"HealResponse","released":3,"counts":{"InUse":1},"withheld":["a\u001b"],"error":"\u0007"}`, "[", "null\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadResponse(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, r := range p.String() {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q", p.String())
			}
		}
		var buf bytes.Buffer
		if err := Write(&buf, p); err != nil {
			t.Fatal(err)
		}
		again, err := ReadResponse(&buf)
		if err != nil || again.String() != p.String() {
			t.Fatalf("%q reads back as %q, %v", p.String(), again.String(), err)
		}
	})
}
