package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
)

// expectReport FILE COUNT [NAME VERDICT] [RELEASES]: the page holds COUNT resources beside namespaces, says
// VERDICT of the one called NAME, and knows RELEASES releases of its address.
func (w *world) expectReport(ts *testscript.TestScript, args []string) {
	arity(ts, args, 2, 5, "expect-report FILE COUNT [NAME VERDICT] [RELEASES]")
	text := ts.ReadFile(args[0])
	m := regexp.MustCompile(`<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]*)</script>`).FindStringSubmatch(text)
	if m == nil {
		ts.Fatalf("%s: no data", args[0])
	}
	packed, err := base64.StdEncoding.DecodeString(m[1])
	ts.Check(err)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	ts.Check(err)
	var doc struct {
		Map     api.Map             `json:"map"`
		Items   []api.ExplainedItem `json:"items"`
		Journal api.Journal         `json:"journal"`
	}
	ts.Check(json.NewDecoder(z).Decode(&doc))
	// A namespace that nobody uses may be another test's.
	n := 0
	for i := range doc.Items {
		if doc.Items[i].Kind != "netns" {
			n++
		}
	}
	if n != atoi(ts, args[1]) {
		ts.Fatalf("%d resources, want %s", n, args[1])
	}
	if strings.Contains(text, "http://") || strings.Contains(text, "https://") {
		ts.Fatalf("%s names another site", args[0])
	}
	if len(args) == 2 {
		return
	}
	i := slices.IndexFunc(doc.Items, func(e api.ExplainedItem) bool { return w.names(args[2], &e.Resource) })
	if i < 0 || doc.Items[i].Verdict != args[3] || len(doc.Items[i].Says) == 0 {
		ts.Fatalf("%s is not %s in %s", args[2], args[3], m[0][:40])
	}
	drawn := 0
	for _, n := range doc.Map.Networks {
		for v, list := range n.Addresses {
			if v == args[3] && slices.Contains(list, doc.Items[i].Address) {
				drawn++
			}
		}
	}
	if drawn != 1 {
		ts.Fatalf("%s is drawn %d times", args[2], drawn)
	}
	if len(args) == 5 && len(doc.Items[i].Releases) != atoi(ts, args[4]) {
		ts.Fatalf("%d releases of %s, want %s", len(doc.Items[i].Releases), args[2], args[4])
	}
}

func atoi(ts *testscript.TestScript, text string) int {
	n, err := strconv.Atoi(text)
	ts.Check(err)
	return n
}
