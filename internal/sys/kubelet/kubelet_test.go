package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestGrace(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: 5 * time.Minute, 2 * time.Minute: 5 * time.Minute, 2*time.Minute + time.Second: 5*time.Minute + 2*time.Second,
		15 * time.Minute: 31 * time.Minute, 1 << 62: 48*time.Hour + time.Minute, -time.Hour: 5 * time.Minute,
	} {
		if got := Grace(timeout); got != want {
			t.Errorf("%s: %s, want %s", timeout, got, want)
		}
	}
}

func TestFlagsOf(t *testing.T) {
	for _, r := range []struct {
		line string
		want flags
		ok   bool
	}{
		{"/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --v=2", flags{config: "/var/lib/kubelet/config.yaml"}, true},
		{"kubelet --config /a --runtime-request-timeout 5m", flags{config: "/a", timeout: "5m"}, true},
		{"kubelet -config=/a --runtime_request_timeout=5m --config-dir=/d", flags{config: "/a", timeout: "5m", configDir: "/d"}, true},
		{"kubelet --config=/a --config=/b", flags{config: "/b"}, true},
		{"kubelet --config", flags{}, true},
		{"kubelet config=/a", flags{}, true},
		{"/usr/local/bin/k3s server --kubelet-arg=runtime-request-timeout=7m --kubelet-arg --config=/k", flags{config: "/k", timeout: "7m"}, true},
		{"/usr/local/bin/k3s server --config=/etc/rancher/k3s/config.yaml", flags{}, true},
		{"/usr/bin/containerd --config=/a", flags{}, false},
		{"/usr/bin/my-kubelet --config=/a", flags{}, false},
		{"", flags{}, false},
	} {
		if got, ok := flagsOf(strings.Fields(r.line)); got != r.want || ok != r.ok {
			t.Errorf("%s: %+v, %v", r.line, got, ok)
		}
	}
}

func TestTimeoutOf(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nruntimeRequestTimeout: 15m0s\n": 15 * time.Minute,
		`{"runtimeRequestTimeout":"3m"}`: 3 * time.Minute,
		"runtimeRequestTimeout: 0s":      DefaultTimeout,
		"runtimeRequestTimeout: \"\"":    0,
		"syncFrequency: 1m":              0,
		"":                               0,
		"runtimeRequestTimeout: 9999h":   longest,
	} {
		if got, err := timeoutOf([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"runtimeRequestTimeout: soon", "runtimeRequestTimeout: {}", "a: b: c", "- 1"} {
		if got, err := timeoutOf([]byte(text)); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// place is a node's /proc and files in a temporary directory.
type place struct {
	t          *testing.T
	proc, file string
}

func newPlace(t *testing.T) place {
	dir := t.TempDir()
	p := place{t, filepath.Join(dir, "proc"), filepath.Join(dir, "config.yaml")}
	p.put(filepath.Join(p.proc, "1", "comm"), "systemd\n")
	p.put(filepath.Join(p.proc, "1", "cmdline"), "/sbin/init\x00")
	return p
}

func (p place) put(path, text string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// process is one whose root is its own directory.
func (p place) process(pid, comm string, args ...string) {
	p.put(filepath.Join(p.proc, pid, "comm"), comm+"\n")
	p.put(filepath.Join(p.proc, pid, "cmdline"), strings.Join(args, "\x00")+"\x00")
}

func TestFind(t *testing.T) {
	const timeout = "runtimeRequestTimeout: "
	for _, r := range []struct {
		name string
		set  func(p place)
		want time.Duration
		from string
		err  string
	}{
		{"nothing at all", func(place) {}, DefaultTimeout, "no kubelet was found here: its default", ""},
		{"no process, a file", func(p place) { p.put(p.file, timeout+"10m") }, 10 * time.Minute, "config.yaml", ""},
		{"no process, a file that says nothing", func(p place) { p.put(p.file, "a: 1") }, DefaultTimeout, "no kubelet", ""},
		{"no process, a broken file", func(p place) { p.put(p.file, timeout+"x") }, DefaultTimeout, "no kubelet", "is no time"},
		{"a process without flags", func(p place) { p.process("700", "kubelet", "/usr/bin/kubelet") }, DefaultTimeout, "kubelet 700: its default", ""},
		{"a process without flags does not read the usual file", func(p place) { p.put(p.file, timeout+"10m"); p.process("700", "kubelet", "kubelet") }, DefaultTimeout, "kubelet 700: its default", ""},
		{"its file", func(p place) {
			p.process("700", "kubelet", "kubelet", "--config=/etc/k.yaml")
			p.put(filepath.Join(p.proc, "700", "root/etc/k.yaml"), timeout+"10m")
		}, 10 * time.Minute, "kubelet 700: /etc/k.yaml", ""},
		{"its file is not there", func(p place) { p.process("700", "kubelet", "kubelet", "--config=/etc/k.yaml") }, DefaultTimeout, "its default", "kubelet 700"},
		{"a flag counts more", func(p place) {
			p.process("700", "kubelet", "kubelet", "--config=/etc/k.yaml", "--runtime-request-timeout=4m")
			p.put(filepath.Join(p.proc, "700", "root/etc/k.yaml"), timeout+"10m")
		}, 4 * time.Minute, "kubelet 700: --runtime-request-timeout", ""},
		{"the last drop-in counts more than the file", func(p place) {
			p.process("700", "kubelet", "kubelet", "--config=/etc/k.yaml", "--config-dir=/etc/k.d")
			root := filepath.Join(p.proc, "700", "root")
			p.put(root+"/etc/k.yaml", timeout+"10m")
			p.put(root+"/etc/k.d/10-a.conf", timeout+"11m")
			p.put(root+"/etc/k.d/20-b.conf", timeout+"12m")
			p.put(root+"/etc/k.d/30-c.conf", "a: 1")
			p.put(root+"/etc/k.d/40-d.yaml", timeout+"13m")
		}, 12 * time.Minute, "kubelet 700: /etc/k.d/20-b.conf", ""},
		{"the longest of two", func(p place) {
			p.process("700", "kubelet", "kubelet", "--runtime-request-timeout=4m")
			p.process("800", "kubelet", "kubelet", "--runtime-request-timeout=3m")
		}, 4 * time.Minute, "kubelet 700", ""},
		{"k3s", func(p place) {
			p.process("700", "k3s-server", "/usr/local/bin/k3s", "server", "--kubelet-arg=runtime-request-timeout=6m")
		}, 6 * time.Minute, "kubelet 700", ""},
		{"only a name", func(p place) { p.process("700", "kubelet", "sleep", "--runtime-request-timeout=6m") }, DefaultTimeout, "no kubelet", ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			p := newPlace(t)
			r.set(p)
			a, err := Find(p.proc, p.file)
			if a.Timeout != r.want || !strings.Contains(a.From, r.from) || (err != nil) != (r.err != "") || err != nil && !strings.Contains(err.Error(), r.err) {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	if a, err := Find(filepath.Join(t.TempDir(), "none"), "/none"); err == nil || a.Timeout != DefaultTimeout {
		t.Errorf("%+v, %v", a, err)
	}
}

// FuzzCommandLine: no command line panics, and a time-out that is found is one that stands in it.
func FuzzCommandLine(f *testing.F) {
	f.Add("kubelet\x00--config=/a\x00--runtime-request-timeout\x005m")
	f.Add("k3s\x00server\x00--kubelet-arg=runtime-request-timeout=5m\x00--kubelet-arg")
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := flagsOf(strings.Split(line, "\x00"))
		if !ok && got != (flags{}) {
			t.Errorf("%+v of what is no kubelet", got)
		}
		for _, v := range []string{got.config, got.configDir, got.timeout} {
			if !strings.Contains(line, v) {
				t.Errorf("%q does not stand in it", v)
			}
		}
	})
}

// FuzzConfiguration: a time-out in bounds, nothing, or an error.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte("kind: KubeletConfiguration\nruntimeRequestTimeout: 15m0s\n"))
	f.Add([]byte(`{"runtimeRequestTimeout":"-1s"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := timeoutOf(text)
		if d < 0 || d > longest || err != nil && d != 0 {
			t.Errorf("%s, %v", d, err)
		}
		if g := Grace(d); g < 5*time.Minute || g > 2*longest+time.Minute {
			t.Errorf("grace %s", g)
		}
	})
}
