// Package page is the page that draws a node's addresses: one HTML file without anything
// from elsewhere, which asks the agent that served it, or holds its data itself.
//
// Scope: putting the file together. What it shows is in page.js. Non-scope: serving it.
package page

import (
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"html"
	"io"
	"iter"
	"strings"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

//go:embed page.html
var frame string

//go:embed page.css
var style string

//go:embed page.js
var script string

// Page is the page with its Content-Security-Policy.
type Page struct {
	HTML   []byte
	Policy string
}

// Live is the page that asks the agent it came from.
func Live() Page {
	p := policy("'self'")
	head, tail := parts("Holdfast", p)
	return Page{HTML: []byte(head + tail), Policy: p + "; frame-ancestors 'none'"}
}

// Static writes the page with its data: the map, what is to say of each resource, and the
// journal. items is walked once, and nothing of it kept.
func Static(w io.Writer, m *api.Map, items iter.Seq[*api.ExplainedItem], journal *api.Journal) error {
	head, tail := parts("Holdfast: "+m.Node, policy("'none'"))
	if _, err := io.WriteString(w, head); err != nil {
		return err
	}
	// Compressed, since a full node's is large and says the same again and again; and as
	// base64 nothing in it can be taken for HTML.
	b64 := base64.NewEncoder(base64.StdEncoding, w)
	z := gzip.NewWriter(b64)
	if err := embed(z, m, items, journal); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := b64.Close(); err != nil {
		return err
	}
	_, err := io.WriteString(w, tail)
	return err
}

func embed(w io.Writer, m *api.Map, items iter.Seq[*api.ExplainedItem], journal *api.Journal) error {
	e := json.NewEncoder(w)
	var err error
	text := func(s string) {
		if err == nil {
			_, err = io.WriteString(w, s)
		}
	}
	value := func(v any) {
		if err == nil {
			err = e.Encode(v)
		}
	}
	text(`{"map":`)
	value(m)
	text(`,"journal":`)
	value(journal)
	text(`,"items":[`)
	sep := ""
	for it := range items {
		text(sep)
		value(it)
		sep = ","
		if err != nil {
			return err
		}
	}
	text("]}")
	return err
}

// policy allows our own style and script, and to ask whom connect says.
func policy(connect string) string {
	sum := func(s string) string {
		h := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "'"
	}
	return "default-src 'none'; style-src " + sum(style) + "; script-src " + sum(script) + "; connect-src " + connect +
		"; img-src data:; base-uri 'none'; form-action 'none'"
}

// parts are the page before and after the data.
func parts(title, policy string) (head, tail string) {
	head, tail, _ = strings.Cut(frame, "{{data}}")
	fill := strings.NewReplacer("{{title}}", html.EscapeString(title), "{{policy}}", policy, "{{style}}", style, "{{script}}", script)
	return fill.Replace(head), fill.Replace(tail)
}
