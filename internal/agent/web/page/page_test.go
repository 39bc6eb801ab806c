package page_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/agent/web/page"
)

// inside returns the texts between <tag ...> and </tag>.
func inside(html, tag string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?s)<`+tag+`(?: [^>]*)?>(.*?)</`+tag+`>`).FindAllStringSubmatch(html, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestSelfContained: the page's own style and script are allowed by their sums, nothing
// else is, and nothing is from elsewhere.
func TestSelfContained(t *testing.T) {
	live := page.Live()
	var file bytes.Buffer
	if err := page.Static(&file, &api.Map{Node: "n"}, slices.Values([]*api.ExplainedItem{}), &api.Journal{}); err != nil {
		t.Fatal(err)
	}
	for name, html := range map[string]string{"live": string(live.HTML), "file": file.String()} {
		policy := regexp.MustCompile(`http-equiv="Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(html)
		if policy == nil {
			t.Fatalf("%s: no policy", name)
		}
		scripts, styles := inside(html, "script"), inside(html, "style")
		if len(scripts) != 2 || len(styles) != 1 {
			t.Fatalf("%s: %d scripts, %d styles", name, len(scripts), len(styles))
		}
		for _, text := range []string{scripts[1], styles[0]} {
			sum := sha256.Sum256([]byte(text))
			if !strings.Contains(policy[1], "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
				t.Errorf("%s: the policy does not allow %.40q", name, text)
			}
		}
		if !strings.HasPrefix(policy[1], "default-src 'none'; ") || strings.Contains(policy[1], "unsafe") || strings.Contains(policy[1], "*") {
			t.Errorf("%s: policy %q", name, policy[1])
		}
		if m := regexp.MustCompile(`https?://|//[a-z]+\.[a-z]+|@import|url\(`).FindString(html); m != "" {
			t.Errorf("%s: %q leads elsewhere", name, m)
		}
		// What would take text for markup or code is not used at all.
		if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\(|new Function|setAttribute\('on|srcdoc|javascript:`).FindString(html); m != "" {
			t.Errorf("%s: uses %s", name, m)
		}
	}
	if !strings.Contains(live.Policy, "connect-src 'self'") || !strings.Contains(live.Policy, "frame-ancestors 'none'") || !strings.Contains(file.String(), "connect-src 'none'") {
		t.Errorf("who may be asked: %q", live.Policy)
	}
	if strings.Contains(string(live.HTML), "{{") {
		t.Error("a place was not filled")
	}
}

// TestStatic: what was put in comes out, and cannot be taken for anything else.
func TestStatic(t *testing.T) {
	const evil = `</script><script>alert(1)</script>{{data}}{{script}}`
	m := &api.Map{Node: evil}
	m.Networks = []api.MapNetwork{{Name: evil}}
	items := []*api.ExplainedItem{{Resource: api.Resource{Path: evil, Verdict: "Leaked"}}, {Resource: api.Resource{Path: "/b"}}}
	journal := &api.Journal{Entries: []api.JournalEntry{{ReleaseID: evil}}}
	var file bytes.Buffer
	if err := page.Static(&file, m, slices.Values(items), journal); err != nil {
		t.Fatal(err)
	}
	html := file.String()
	if strings.Contains(html, "alert(1)</script>") || len(inside(html, "script")) != 2 {
		t.Error("a name became a script")
	}
	packed, err := base64.StdEncoding.DecodeString(inside(html, "script")[0])
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Map     *api.Map
		Journal *api.Journal
		Items   []*api.ExplainedItem
	}
	if err := json.NewDecoder(z).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(items, got.Items) + cmp.Diff(m, got.Map) + cmp.Diff(journal, got.Journal); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// full is a disk with room for some bytes.
type full struct{ room int }

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	if len(b) > f.room {
		return 0, errFull
	}
	f.room -= len(b)
	return len(b), nil
}

func TestStaticFails(t *testing.T) {
	many := func(yield func(*api.ExplainedItem) bool) {
		for range 10_000 {
			if !yield(&api.ExplainedItem{Resource: api.Resource{Path: "/a"}}) {
				return
			}
		}
	}
	var whole bytes.Buffer
	if err := page.Static(&whole, &api.Map{}, many, &api.Journal{}); err != nil {
		t.Fatal(err)
	}
	for _, room := range []int{0, 100, whole.Len() / 2, whole.Len() - 100, whole.Len() - 1} {
		if err := page.Static(&full{room: room}, &api.Map{}, many, &api.Journal{}); !errors.Is(err, errFull) {
			t.Errorf("room for %d of %d: %v", room, whole.Len(), err)
		}
	}
	if err := page.Static(&full{room: whole.Len()}, &api.Map{}, many, &api.Journal{}); err != nil {
		t.Errorf("room for all: %v", err)
	}
}
