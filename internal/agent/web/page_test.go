package web

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-cni/holdfast/internal/agent"
	"github.com/holdfast-cni/holdfast/internal/agent/web/page"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/report"
	"github.com/holdfast-cni/holdfast/internal/verdict"
)

const drawnLeak = `document.querySelector('.cell.Leaked')`

func well() state { return state{live: true, ready: true} }

// shown is what one cell looks like.
type shown struct {
	Address, Class, Letter, Label, Back, Ink, Want, WantInk string
}

// cells reads every cell of the page, and the colours that its verdict ought to have.
func cells(b *browser) []shown {
	b.t.Helper()
	text := eval[string](b, `JSON.stringify([...document.querySelectorAll('.cell')].map((e) => {
		const css = getComputedStyle(e), name = [...e.classList].find((c) => !['cell', 'faded'].includes(c));
		const probe = document.createElement('i');
		document.body.append(probe);
		probe.style.background = 'var(--v-' + name + ')';
		probe.style.color = 'var(--v-' + name + '-ink)';
		const want = getComputedStyle(probe), out = { address: e.dataset.address, class: name, letter: e.firstChild.textContent, label: e.getAttribute('aria-label'),
			back: css.backgroundColor, ink: css.color, want: want.backgroundColor, wantInk: want.color };
		probe.remove();
		return out;
	}))`)
	var out []shown
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		b.t.Fatal(err)
	}
	return out
}

// testColours: each address looks like its verdict, in colours that differ and can be read,
// by day and by night, and has a letter for who cannot tell them apart.
func testColours(t *testing.T, b *browser) {
	p := newPort(t, well())
	s := busyNode(time.Now())
	p.sweep(s)
	b.open(p.origin, drawnLeak)
	want := map[string]string{}
	for _, f := range s.au.Judgement.Findings {
		want[f.Resource.Addr.String()] = f.Verdict.String()
	}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.shot(scheme)
		seen := map[string]int{}
		backs := map[string]string{}
		letters := map[string]string{}
		for _, c := range cells(b) {
			w, reserved := want[c.Address]
			switch {
			case !reserved && c.Class != "free" && c.Class != "out":
				t.Errorf("%s: drawn as %s and not reserved", c.Address, c.Class)
			case reserved && c.Class != w:
				t.Errorf("%s: drawn as %s, is %s", c.Address, c.Class, w)
			case reserved && (c.Back != c.Want || c.Ink != c.WantInk):
				t.Errorf("%s: %s on %s, want %s on %s", c.Address, c.Ink, c.Back, c.WantInk, c.Want)
			case reserved && c.Label != c.Address+", "+w:
				t.Errorf("%s is called %q", c.Address, c.Label)
			}
			seen[c.Class]++
			if c.Class == "out" {
				continue
			}
			backs[c.Class] = c.Back
			if c.Letter != "G" {
				letters[c.Class] = c.Letter
			}
			if r := contrast(t, c.Back, c.Ink); r < 4.5 {
				t.Errorf("%s, %s: contrast %.1f of %s on %s", scheme, c.Class, r, c.Ink, c.Back)
			}
		}
		for _, v := range verdict.All() {
			if seen[v.String()] == 0 {
				t.Errorf("%s is not drawn: this test does not see it", v)
			}
		}
		// Free addresses and everything else, all differ.
		if n := len(distinct(backs)); n != len(verdict.All())+1 || len(distinct(letters)) != n {
			t.Errorf("%s: %d colours, %d letters for %d verdicts", scheme, n, len(distinct(letters)), len(verdict.All())+1)
		}
	}
	// On paper: colours stay, what is for clicking does not.
	b.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}))
	b.shot("print")
	if eval[bool](b, `document.querySelector('#search').offsetParent !== null || document.querySelector('.cell.Leaked').offsetParent === null`) {
		t.Error("the printed page has the search and no map")
	}
	b.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{}))
	b.healthy(p.origin)
}

func distinct(m map[string]string) map[string]bool {
	out := map[string]bool{}
	for _, v := range m {
		out[v] = true
	}
	return out
}

func testClick(t *testing.T, b *browser) {
	p := newPort(t, well())
	p.sweep(busyNode(time.Now()))
	b.open(p.origin, drawnLeak)
	b.click(`.cell[data-address="10.22.0.131"]`)
	b.until(`document.querySelector('#detail .why')`)
	b.shot("light-explain")
	text := eval[string](b, `document.querySelector('#detail').innerText`)
	for _, want := range []string{"10.22.0.131", "Leaked", "more than the grace of 5m0s apart", "absent-twice", "shop/cart-", "kernel", "no process of its container", "DEL of its sandbox came and plugin portmap failed", "moved back by undo"} {
		if !strings.Contains(text, want) {
			t.Errorf("the explanation lacks %q:\n%s", want, text)
		}
	}
	if h := eval[string](b, "location.hash"); h != "#10.22.0.131" {
		t.Errorf("the address bar has %q", h)
	}
	// One that was released before, and a free one with a past.
	b.click(`.cell[data-address="10.22.0.130"]`)
	b.until(`document.querySelector('#detail h2')?.textContent === '10.22.0.130' && document.querySelector('#detail').innerText.includes('20261130-062137-1a2b3c-00001')`)
	b.click(`.cell[data-address="10.22.0.240"]`)
	b.until(`document.querySelector('#detail').innerText.includes('it was released as 20261130-062137-1a2b3c-00002') && document.querySelector('#detail ol')`)
	b.click(`.cell[data-address="10.22.0.250"]`)
	b.until(`document.querySelector('#detail').innerText.includes('it was never released')`)

	// The address of a link is opened; in the dark and on a telephone.
	b.scheme("dark")
	b.open(p.origin+"#10.22.0.200", `document.querySelector('#detail .why')?.textContent.includes('alive for 99aa')`)
	b.shot("dark-explain")
	b.size(390, 844, true)
	b.shot("narrow-explain")
	b.click(`#detail .close`)
	b.until(`document.querySelector('#detail').hidden`)
	eval[bool](b, `(scrollTo(0, 0), true)`)
	b.shot("narrow")
	if w := eval[int](b, `document.documentElement.scrollWidth`); w > 390 {
		t.Errorf("the page is %d wide on a telephone of 390", w)
	}
	b.size(1440, 1000, false)
	b.scheme("light")
	b.healthy(p.origin)
}

func testKeyboard(t *testing.T, b *browser) {
	p := newPort(t, well())
	p.sweep(busyNode(time.Now()))
	b.open(p.origin, drawnLeak)
	// One cell of each network takes part in Tab.
	if n := eval[int](b, `document.querySelectorAll('.cell[tabindex="0"]').length`); n != 4 {
		t.Errorf("%d cells in the order of Tab, want one for each network", n)
	}
	focused := func() string {
		return eval[string](b, `document.activeElement.dataset.address || document.activeElement.className`)
	}
	eval[bool](b, `document.querySelector('.cell[tabindex="0"]').focus() || true`)
	if f := focused(); f != "10.22.0.200" {
		t.Errorf("Tab leads to %s, want the worst", f)
	}
	for _, step := range []struct{ key, want string }{
		{kb.ArrowRight, "10.22.0.201"}, {kb.ArrowUp, "10.22.0.169"}, {kb.ArrowLeft, "10.22.0.168"}, {kb.ArrowDown, "10.22.0.200"}, {kb.Home, "10.22.0.0"}, {kb.ArrowLeft, "10.22.0.0"}, {kb.ArrowRight, "10.22.0.1"}, {kb.ArrowRight, "10.22.0.2"},
	} {
		b.press(step.key)
		if f := focused(); f != step.want {
			t.Fatalf("the key leads to %s, want %s", f, step.want)
		}
	}
	b.press(kb.Enter)
	b.until(`document.querySelector('#detail .why')?.textContent.includes('lists the sandbox')`)
	b.press(kb.Escape)
	b.until(`document.querySelector('#detail').hidden`)
	if f := focused(); f != "10.22.0.2" {
		t.Errorf("after Escape the focus is on %s", f)
	}
	b.press("/")
	if id := eval[string](b, `document.activeElement.id`); id != "query" {
		t.Errorf("the focus is on %q", id)
	}
	// Every button and field says what it is.
	if bad := eval[string](b, `[...document.querySelectorAll('button, input, [role=img], [role=group]')].filter((e) => e.offsetParent && !(e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML).join('\n')`); bad != "" {
		t.Errorf("without a name:\n%s", bad)
	}
	b.healthy(p.origin)
}

// testLive: what a sweep changed is there some seconds later, and what was asked stays open.
func testLive(t *testing.T, b *browser) {
	p := newPort(t, well())
	p.sweep(busyNode(time.Now()))
	b.open(p.origin, drawnLeak)
	b.click(`.cell[data-address="10.22.0.131"]`)
	b.until(`document.querySelector('#detail .why')`)
	eval[bool](b, `(document.querySelector('.cell[data-address="10.22.0.131"]').kept = true) && document.querySelector('.cell[data-address="10.22.0.131"]').focus() || true`)
	after := busyNode(time.Now())
	after.au.Judgement.Findings = slices.DeleteFunc(after.au.Judgement.Findings, func(f verdict.Finding) bool { return f.Verdict == verdict.Leaked })
	start := time.Now()
	p.sweep(after)
	b.until(`document.querySelector('.cell[data-address="10.22.0.131"]').classList.contains('free')`)
	t.Logf("seen after %s", time.Since(start).Round(time.Millisecond))
	b.until(`document.querySelector('#detail .why').textContent.includes('is not reserved here')`)
	if n := eval[int](b, `document.querySelectorAll('.cell.Leaked').length`); n != 0 {
		t.Errorf("%d leaked after all went", n)
	}
	if !eval[bool](b, `document.activeElement.kept === true`) {
		t.Error("the focus was lost when the map was drawn anew")
	}
	if s := eval[string](b, `document.querySelector('#headline .say').textContent`); strings.Contains(s, "leaked") {
		t.Errorf("the headline says %q", s)
	}
	b.healthy(p.origin)
}

func testSearch(t *testing.T, b *browser) {
	p := newPort(t, well())
	p.sweep(busyNode(time.Now()))
	b.open(p.origin, drawnLeak)
	find := func(text, want string) {
		t.Helper()
		eval[bool](b, `(document.querySelector('#query').value = '') === ''`)
		b.run(chromedp.SendKeys(chromedp.CSS("#query"), text+kb.Enter))
		b.until(fmt.Sprintf("document.querySelector('#detail').innerText.includes(%q)", want))
	}
	find("10.22.0.202", "without any process")
	find("::ffff:10.22.0.203", "names no owner")
	find("fd00:22::5", "lists the sandbox")
	find("shop/cart-3", "10.22.0.5")
	if a := eval[string](b, `document.querySelector('.cell[aria-current=true]').dataset.address`); a != "10.22.0.5" {
		t.Errorf("%s is marked", a)
	}
	find(fmt.Sprintf("%064x", 0xabc0000002), "10.22.0.4")
	find("0000", "not unique")
	find("shop/nobody", "nothing on this node matches")
	find("10.22.0.250", "never released")
	// One verdict alone.
	b.click(`#legend [data-verdict="Leaked"]`)
	if n := eval[int](b, `document.querySelectorAll('.cell:not(.faded)').length`); n != 8 {
		t.Errorf("%d cells are lit, want those that leak", n)
	}
	b.click(`#legend [data-verdict="Leaked"]`)
	if n := eval[int](b, `document.querySelectorAll('.cell.faded').length`); n != 0 {
		t.Errorf("%d cells are still faded", n)
	}
	b.healthy(p.origin)
}

// hostileNode names everything so that it would be markup.
func hostileNode(at time.Time) *scene {
	s := newScene(at)
	s.network(evil, "10.22.0.1", "10.22.0.254", 253)
	s.put(evil, verdict.Leaked, addr("10.22.0.5"))
	f := &s.au.Judgement.Findings[0]
	f.Pod = claim.Pod{Namespace: evil, Name: evil, UID: evil}
	f.Why, f.Rule = evil, evil
	f.Says = []verdict.Say{{Witness: evil, Word: verdict.Word(evil), Detail: evil}}
	c := s.causes[f.Resource.Path]
	c.Why, c.Plugin = evil, evil
	s.causes[f.Resource.Path] = c
	s.au.Case.Testimonies[0].Detail = evil
	s.au.Case.Snapshots[0].Notes = []claim.Note{{Path: evil, Text: evil}}
	s.stops = []line.Stop{{Store: dataDir + "/" + evil, Since: s.au.Case.Now, Why: evil}}
	return s
}

func testHostile(t *testing.T, b *browser) {
	p := newPort(t, state{live: true, reasons: []string{evil}})
	s := hostileNode(time.Now())
	p.src.show(s)
	pass := s.pass()
	pass.Node, pass.Err = evil, fmt.Errorf("%s", evil)
	p.m.Observe(context.Background(), pass)
	b.open(p.origin, drawnLeak)
	b.click(`.cell[data-address="10.22.0.5"]`)
	b.until(`document.querySelector('#detail .why')`)
	b.shot("hostile")
	harmless(t, b)
	if strings.Contains(eval[string](b, `document.documentElement.textContent`), "\u202e") {
		t.Error("a direction mark is in the page")
	}
	b.healthy(p.origin)
}

// harmless checks that the hostile names are text, and that they are there.
func harmless(t *testing.T, b *browser) {
	t.Helper()
	if n := eval[int](b, `document.querySelectorAll('main img, main script, header img').length`); n != 0 {
		t.Errorf("%d elements came from names", n)
	}
	if title := eval[string](b, `document.title`); title == "owned" {
		t.Error("a name was run")
	}
	for _, in := range []string{"#networks h2", "#detail dd", "#detail .why", "#trouble", "#witnesses", "#notes", "#alerts"} {
		if in == "#witnesses" || in == "#alerts" && eval[bool](b, `document.body.classList.contains('static')`) {
			continue
		}
		if !eval[bool](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.textContent.includes('<img src=x onerror='))`, in)) {
			t.Errorf("%s does not show the name: this test sees nothing", in)
		}
	}
}

// testBeginning: before the first sweep the page says why it is empty, and then draws.
func testBeginning(t *testing.T, b *browser) {
	p := newPort(t, state{live: true, reasons: []string{"cri has not answered yet"}})
	b.open(p.origin, `document.querySelector('#alerts').innerText.includes('cri has not answered yet')`)
	if !eval[bool](b, `document.querySelector('#headline').innerText.includes('Waiting for the first sweep')`) {
		t.Error("it does not say that it waits")
	}
	p.sweep(newScene(time.Now()))
	b.now()
	b.until(`document.querySelector('#headline').innerText.includes('No network with reservations')`)
	clean := newScene(time.Now())
	clean.network("podnet", "10.22.0.1", "10.22.0.62", 61)
	clean.put("podnet", verdict.InUse, span("10.22.0.2", 20)...)
	p.sweep(clean)
	b.now()
	b.until(`document.querySelector('#headline.good')?.innerText.includes('Nothing is leaked')`)
	b.shot("clean")
	if !eval[bool](b, `document.querySelector('#trouble').hidden && document.querySelectorAll('.cell').length === 64`) {
		t.Error("a clean /26 shows more than its addresses")
	}
	b.healthy(p.origin)
}

// testTrouble: what keeps the agent from its work cannot be missed.
func testTrouble(t *testing.T, b *browser) {
	p := newPort(t, well())
	s := busyNode(time.Now())
	s.au.Case.Testimonies[2].State, s.au.Case.Testimonies[2].Detail = claim.StateSilent, "containerd.sock: connection refused"
	s.au.Judgement.Vantage = "hostPID is not set"
	s.stops = []line.Stop{{Store: dataDir + "/podnet", Since: s.au.Case.Now, Why: "10.22.0.9 was released and is alive"}}
	p.sweep(s)
	p.m.Observe(context.Background(), &agent.Pass{Node: "node-1", Started: s.au.Case.Now, Err: fmt.Errorf("no space left on device")})
	b.open(p.origin, drawnLeak)
	b.shot("trouble")
	text := eval[string](b, `document.querySelector('#alerts').innerText`)
	for _, want := range []string{"no space left on device", "hostPID is not set", "connection refused", "Releases of podnet are stopped", "10.22.0.9 was released and is alive", "holdfast resume"} {
		if !strings.Contains(text, want) {
			t.Errorf("the banners lack %q:\n%s", want, text)
		}
	}
	b.healthy(p.origin)
}

func testUnreachable(t *testing.T, b *browser) {
	p := newPort(t, well())
	p.sweep(busyNode(time.Now()))
	b.open(p.origin, drawnLeak)
	b.click(`.cell[data-address="10.22.0.131"]`)
	b.until(`document.querySelector('#detail .why')`)
	p.stop()
	b.now()
	b.until(`document.body.classList.contains('stale') && document.querySelector('#alerts').innerText.includes('does not answer since')`)
	b.shot("unreachable")
	if !eval[bool](b, `document.querySelectorAll('.cell.Leaked').length === 8 && document.querySelector('#detail .why') !== null`) {
		t.Error("what was known is gone")
	}
	b.healthy(p.origin)
}

// pixels counts those of all tiles by the verdict whose colour they have.
const pixels = `(() => {
		const css = getComputedStyle(document.documentElement), names = ['free', 'InUse', 'Leaked', 'Suspect'], out = { other: 0 };
		const g = document.createElement('canvas').getContext('2d');
		const colour = new Map(names.map((n) => { g.fillStyle = css.getPropertyValue('--v-' + n).trim(); g.fillRect(0, 0, 1, 1); out[n] = 0; return [g.getImageData(0, 0, 1, 1).data.join(), n]; }));
		for (const c of document.querySelectorAll('.tile canvas')) {
			const d = c.getContext('2d').getImageData(0, 0, 16, 16).data;
			for (let i = 0; i < d.length; i += 4) { const n = d[i + 3] === 0 ? '' : colour.get(d.slice(i, i + 4).join()) ?? 'other'; if (n) out[n]++; }
		}
		return out;
	})()`

func testLarge(t *testing.T, b *browser) {
	p := newPort(t, well())
	s := fullNode(time.Now())
	p.sweep(s)
	start := time.Now()
	b.open(p.origin, `document.querySelectorAll('.tile').length === 256`)
	t.Logf("65,536 addresses drawn after %s", time.Since(start).Round(time.Millisecond))
	b.shot("large")
	b.scheme("dark")
	b.shot("dark-large")
	b.scheme("light")
	if n := eval[int](b, `document.querySelectorAll('.tile.has').length`); n != 4 {
		t.Errorf("%d blocks have a badge, want 4", n)
	}
	// Every pixel of every tile, against what was found. The page draws anew when the scheme has
	// changed, a moment later.
	var counts map[string]int
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		counts = eval[map[string]int](b, pixels)
		if counts["other"] == 0 || time.Now().After(deadline) {
			break
		}
	}
	want := map[string]int{"other": 0, "InUse": 0, "Leaked": 0, "Suspect": 0}
	for _, f := range s.au.Judgement.Findings {
		want[f.Verdict.String()]++
	}
	want["free"] = 65534 - len(s.au.Judgement.Findings)
	if d := cmp.Diff(want, counts); d != "" {
		t.Errorf("pixels (-want +got):\n%s", d)
	}
	b.click(`.tile[data-key="32/671824"]`) // 10.64.80.0
	b.until(`document.querySelector(".cell[data-address=\"10.64.80.17\"]")`)
	b.click(`.cell[data-address="10.64.80.17"]`)
	b.until(`document.querySelector("#detail .why")`)
	b.healthy(p.origin)
}

// testFile opens the page of `holdfast report` from a file.
func testFile(t *testing.T, b *browser) {
	write := func(name string, s *scene) string {
		path := filepath.Join(t.TempDir(), name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		m := report.Map(&s.au.Case, s.au.Judgement, report.Meta{Node: evil}, report.After{Causes: s.causes})
		j := oldReleases(time.Now())
		if err := page.Static(f, m, report.Explained(&s.au.Case, s.au.Judgement, nil, j.Entries), j); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return "file://" + path
	}
	url := write("busy.html", busyNode(time.Now()))
	b.open(url, drawnLeak)
	b.click(`.cell[data-address="10.22.0.130"]`)
	b.until(`document.querySelector('#detail .why')?.textContent.includes('absent twice')`)
	b.shot("file")
	if text := eval[string](b, `document.querySelector('#detail').innerText`); !strings.Contains(text, "20261130-062137-1a2b3c-00001") || !strings.Contains(text, "moved back by undo") {
		t.Errorf("no history, no plan:\n%s", text)
	}
	b.run(chromedp.SendKeys(chromedp.CSS("#query"), "shop/cart-3"+kb.Enter))
	b.until(`document.querySelector('#detail h2')?.textContent === '10.22.0.5'`)
	b.click(`.cell[data-address="10.22.0.240"]`)
	b.until(`document.querySelector('#detail').innerText.includes('is not reserved') && document.querySelector('#detail ol')`)
	b.healthy(url)

	b.forget()
	url = write("hostile.html", hostileNode(time.Now()))
	b.open(url, drawnLeak)
	b.click(`.cell[data-address="10.22.0.5"]`)
	b.until(`document.querySelector('#detail .why')`)
	harmless(t, b)
	b.healthy(url)
}

// testLooks: a page that nobody touches causes no look at the node.
func testLooks(t *testing.T, b *browser) {
	p := newPort(t, well())
	p.sweep(busyNode(time.Now()))
	b.open(p.origin, drawnLeak)
	for range 3 {
		b.now()
	}
	b.until(`true`)
	if n := p.src.count(); n != 0 {
		t.Errorf("%d looks for a page that only polls", n)
	}
	b.click(`.cell[data-address="10.22.0.131"]`)
	b.until(`document.querySelector('#detail .why')`)
	if n := p.src.count(); n != 1 {
		t.Errorf("%d looks for one click", n)
	}
	b.healthy(p.origin)
}

var rgb = regexp.MustCompile(`^rgb\((\d+), (\d+), (\d+)\)$`)

// contrast is WCAG's ratio of two colours.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + .05) / (min(x, y) + .05)
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	m := rgb.FindStringSubmatch(colour)
	if m == nil {
		t.Fatalf("colour %q", colour)
	}
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		var n int
		if _, err := fmt.Sscan(m[i+1], &n); err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= .04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
