package web

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// shotsEnv names the directory of the screenshots; otherwise they are in dist/screenshots.
const shotsEnv = "HOLDFAST_SCREENSHOTS"

// browser is a headless Chromium of its own, which can reach this machine's loopback only.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	asked []string // URLs
	wrong []string // exceptions, violations of the policy
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("no-proxy-server", true), chromedp.WSURLReadTimeout(30*time.Second),
	)
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(t.Logf))
	// Ends the browser and waits for it.
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("chromium: %v", err)
		}
		cancel()
	})
	b := &browser{t: t, ctx: ctx}
	// The first call starts the browser, and its context must last as long.
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatal(err)
	}
	b.run(command(network.Enable, network.EnableParams{}), command(runtime.Enable, cdp.Empty{}))
	return b
}

func (b *browser) heard(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, ev.Request.URL)
	case *runtime.EventExceptionThrown:
		b.wrong = append(b.wrong, fmt.Sprintf("%+v", ev.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		b.wrong = append(b.wrong, fmt.Sprint(ev.Type, ev.Args))
	}
}

// command is an action that sends one command of the protocol.
func command[P, R any](cmd cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, cmd, params)
		return err
	})
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, 60*time.Second)
	defer stop()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("chromium: %v\n%s", err, strings.Join(b.wrong, "\n"))
	}
}

// get runs an action for its value.
func get[T any](b *browser, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, 60*time.Second)
	defer stop()
	out, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatalf("chromium: %v\n%s", err, strings.Join(b.wrong, "\n"))
	}
	return out
}

// eval is a JavaScript expression's value.
func eval[T any](b *browser, expr string) T {
	b.t.Helper()
	return get(b, chromedp.Evaluate[T](expr))
}

// until waits for a JavaScript expression to be true.
func (b *browser) until(expr string) {
	b.t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for !eval[bool](b, "!!("+expr+")") {
		if time.Now().After(deadline) {
			b.shot("failed")
			b.t.Fatalf("never: %s\nthe page says: %s", expr, eval[string](b, "document.body.innerText.slice(0, 3000)"))
		}
		time.Sleep(30 * time.Millisecond)
	}
}

func (b *browser) size(width, height int64, mobile bool) {
	b.run(chromedp.EmulateViewport(width, height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
		p.Mobile = mobile
	}))
}

func (b *browser) scheme(name string) {
	b.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}))
}

// shot keeps a picture of what the window shows.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv(shotsEnv)
	if dir == "" {
		dir = "../../../dist/screenshots"
	}
	png := get(b, chromedp.CaptureScreenshot())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// forget begins a new list of what was asked and what went wrong.
func (b *browser) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.wrong = nil, nil
}

// healthy checks that nothing went wrong in the page and nobody else was asked.
func (b *browser) healthy(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		b.t.Errorf("in the page: %s", w)
	}
	for _, u := range b.asked {
		if !strings.HasPrefix(u, origin) && !strings.HasPrefix(u, "data:,") && u != "about:blank" {
			b.t.Errorf("the page asked %s", u)
		}
	}
	if len(b.asked) == 0 {
		b.t.Error("the page asked for nothing: this test sees nothing")
	}
}

// port is an agent's port with a scene behind it.
type port struct {
	origin string
	m      *Map
	src    *source
	stop   func()
}

func newPort(t *testing.T, health state) *port {
	t.Helper()
	at := time.Now()
	p := &port{m: &Map{}, src: &source{journal: oldReleases(at)}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.origin = "http://" + ln.Addr().String() + "/"
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	srv := &Server{
		Handler:  New(Config{Node: "node-1", Version: "v1", Source: p.src, Map: p.m, Health: health, Clock: atNoon, Metrics: http.NotFoundHandler()}),
		ErrorLog: log.New(t.Output(), "", 0),
	}
	go func() { done <- srv.Serve(ctx, ln) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// sweep shows the page a scene.
func (p *port) sweep(s *scene) {
	p.src.show(s)
	p.m.Observe(context.Background(), s.pass())
}

// now makes the page ask at once, as when somebody comes back to it.
func (b *browser) now() { eval[bool](b, `document.dispatchEvent(new Event('visibilitychange'))`) }

// open shows an address and waits for the map.
func (b *browser) open(url, ready string) {
	b.t.Helper()
	// A new document even where only the fragment differs.
	b.run(chromedp.Navigate("about:blank"))
	// What the page before was just asking for was its own.
	b.mu.Lock()
	b.asked = nil
	b.mu.Unlock()
	b.run(chromedp.Navigate(url))
	b.until(ready)
}

func (b *browser) click(css string) {
	b.t.Helper()
	b.run(chromedp.Click(chromedp.CSS(css)))
}

// press sends keys to what has the focus.
func (b *browser) press(keys string) {
	b.t.Helper()
	b.run(chromedp.KeyEvent(keys))
}

// TestPage shows the page in a browser. One serves for all, since it takes a second to start.
func TestPage(t *testing.T) {
	testenv.Need(t, testenv.Chromium)
	b := newBrowser(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *browser)
	}{
		{"colours", testColours},
		{"click", testClick},
		{"keyboard", testKeyboard},
		{"live", testLive},
		{"search", testSearch},
		{"hostile", testHostile},
		{"beginning", testBeginning},
		{"trouble", testTrouble},
		{"unreachable", testUnreachable},
		{"large", testLarge},
		{"file", testFile},
		{"looks", testLooks},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.t = t
			b.forget()
			b.size(1440, 1000, false)
			b.scheme("light")
			c.test(t, b)
		})
	}
	b.t = t
}
