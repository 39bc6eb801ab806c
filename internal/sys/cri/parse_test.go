package cri

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

func TestParsePath(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"unix:///run/x.sock", "/run/x.sock"},
		{"/run/x.sock", "/run/x.sock"},
		{"unix:////run//./x.sock", "/run/x.sock"},
		{"/run/100%.sock", "/run/100%.sock"},
		{"/run/with blank.sock", "/run/with blank.sock"},
		{"/" + strings.Repeat("a", maxPath-1), "/" + strings.Repeat("a", maxPath-1)},
		{"/" + strings.Repeat("a", maxPath), ""},
		{"", ""},
		{"run/x.sock", ""},
		{"unix://run/x.sock", ""},
		{"unix://", ""},
		{"unix:/run/x.sock", ""},
		{"/", ""},
		{"/run/", ""},
		{"/run/..", ""},
		{"@abstract", ""},
		{"tcp://127.0.0.1:2375", ""},
		{"npipe:////./pipe/containerd-containerd", ""},
		{"http:///run/x.sock", ""},
		{"/run/\x00x", ""},
		{"/run/\x1b[31mx", ""},
		{"/run/\xffx", ""},
		{"None", ""},
		{"none", ""},
	} {
		got, err := ParsePath(c.in)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("ParsePath(%.60q) = %.60q, %v; want %.60q", c.in, got, err, c.want)
		}
	}
}

func TestNewNamesTheFlag(t *testing.T) {
	clock := func() claim.Instant { return claim.Instant{} }
	for _, endpoints := range [][]string{
		{"tcp://1.2.3.4:5"}, {"npipe:////./pipe/x"}, {"x.sock"}, {""}, {"/ok", "none"}, {"none", "/ok"}, {"none", "none"},
	} {
		_, err := New(Config{Endpoints: endpoints, Clock: clock})
		var e *EndpointError
		if !errors.As(err, &e) {
			t.Errorf("New(%q): %v, want an EndpointError", endpoints, err)
			continue
		}
		for _, want := range []string{"--cri-endpoint", "unix:///path", "/path", "none"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("New(%q): %q does not name %q", endpoints, err, want)
			}
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New without a clock succeeded")
	}
	if _, err := New(Config{Clock: clock, Timeout: -1}); err == nil {
		t.Error("New with a negative timeout succeeded")
	}
}

func TestDefaultPlaces(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range DefaultPlaces() {
		path, err := ParsePath(p.Endpoint)
		if err != nil || Scheme+path != p.Endpoint || p.Reason == "" || seen[path] {
			t.Errorf("place %+v: %v", p, err)
		}
		seen[path] = true
	}
	if len(DefaultEndpoints()) != len(DefaultPlaces()) {
		t.Error("DefaultEndpoints and DefaultPlaces differ")
	}
}

func TestNetnsOf(t *testing.T) {
	spec := func(ns string) map[string]string {
		return map[string]string{"info": `{"pid":1,"runtimeSpec":{"linux":{"namespaces":[` + ns + `]}}}`}
	}
	for _, c := range []struct {
		name string
		info map[string]string
		want string
		ok   bool
	}{
		{"containerd, CRI-O", spec(`{"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"}`), "/var/run/netns/cni-1", true},
		{"host network", spec(`{"type":"pid"}`), "", true},
		{"a network namespace of its own, without path", spec(`{"type":"network"}`), "", true},
		{"no info at all (cri-dockerd)", nil, "", true},
		{"empty info", map[string]string{"info": ""}, "", true},
		{"other keys", map[string]string{"version": "x"}, "", true},
		{"no spec", map[string]string{"info": `{"pid":0,"runtimeSpec":null}`}, "", true},
		{"containerd 2, task gone", map[string]string{"info": `{"runtimeSpec":null,"sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":"/run/netns/cni-2"}}}`}, "/run/netns/cni-2", true},
		{"both", map[string]string{"info": `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/a"}]}},"sandboxMetadata":{"Metadata":{"NetNSPath":"/b"}}}`}, "/a", true},
		{"cut off", map[string]string{"info": `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","pa`}, "", false},
		{"another shape", map[string]string{"info": `{"runtimeSpec":{"linux":{"namespaces":"none"}}}`}, "", false},
		{"text", map[string]string{"info": "running"}, "", false},
		{"relative", spec(`{"type":"network","path":"netns/x"}`), "", false},
		{"control character", spec(`{"type":"network","path":"/run/\u001bx"}`), "", false},
		{"endless", spec(`{"type":"network","path":"/` + strings.Repeat("a", maxPath) + `"}`), "", false},
	} {
		got, err := netnsOf(c.info)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestSandboxOf(t *testing.T) {
	item := func(id, name string) *runtimeapi.PodSandbox {
		return &runtimeapi.PodSandbox{
			Id: id, CreatedAt: 5, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
			Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "ns", Name: name, Uid: "u", Attempt: 3},
		}
	}
	got, err := sandboxOf("unix:///x", item("abc", "web-0"))
	want := claim.Sandbox{
		ID: "abc", Endpoint: "unix:///x", Created: 5, Attempt: 3,
		Pod: claim.Pod{Namespace: "ns", Name: "web-0", UID: "u"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, c := range []struct {
		state runtimeapi.PodSandboxState
		ready bool
	}{{runtimeapi.PodSandboxState_SANDBOX_READY, true}, {runtimeapi.PodSandboxState_SANDBOX_NOTREADY, false}, {7, true}} {
		it := item("abc", "n")
		it.State = c.state
		if got, _ := sandboxOf("", it); got.Ready != c.ready {
			t.Errorf("state %d: ready %t", c.state, got.Ready)
		}
	}
	// Case F16: only the kubelet's own word that a Pod came from the API says so.
	for source, api := range map[string]bool{"api": true, "file": false, "http": false, "API": false, "": false} {
		it := item("abc", "n")
		it.Annotations = map[string]string{"kubernetes.io/config.seen": "api", "kubernetes.io/config.source": source}
		it.Labels = map[string]string{"kubernetes.io/config.source": "api"}
		if got, _ := sandboxOf("", it); got.FromAPI != api {
			t.Errorf("source %q: from the API %t", source, got.FromAPI)
		}
	}
	if _, err := sandboxOf("", &runtimeapi.PodSandbox{Id: strings.Repeat("a", maxID)}); err != nil {
		t.Errorf("no metadata, long ID: %v", err)
	}
	for _, bad := range []*runtimeapi.PodSandbox{
		nil, item("", "n"), item("a b", "n"), item("a\nb", "n"), item("a\x00", "n"), item("a\x7f", "n"), item("ä", "n"),
		item(strings.Repeat("a", maxID+1), "n"), item("a", "n\x1b[31m"), item("a", strings.Repeat("n", maxMeta+1)),
	} {
		_, err := sandboxOf("", bad)
		if err == nil {
			t.Errorf("%.60v was taken", bad)
		} else if !clean(err.Error()) {
			t.Errorf("%q is not fit to print", err)
		}
	}
}

func TestAddDetail(t *testing.T) {
	answer := func(id string, ips ...string) *runtimeapi.PodSandboxStatusResponse {
		n := &runtimeapi.PodSandboxNetworkStatus{}
		for i, ip := range ips {
			if i == 0 {
				n.Ip = ip
			} else {
				n.AdditionalIps = append(n.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
			}
		}
		return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: id, Network: n, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}}
	}
	s := claim.Sandbox{ID: "abc", Ready: true}
	if err := addDetail(&s, answer("abc", "::ffff:10.0.0.1", "", "2001:DB8:0:0::1")); err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}
	if diff := cmp.Diff(want, s.Addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if !s.Ready {
		t.Error("NotReady in the later answer took away the Ready of the list")
	}
	for name, r := range map[string]*runtimeapi.PodSandboxStatusResponse{
		"nothing":            nil,
		"no status":          {},
		"a longer ID (F17)":  answer("abcd"),
		"a shorter ID (F17)": answer("ab"),
		"no address":         answer("abc", "10.0.0"),
		"a CIDR":             answer("abc", "10.0.0.1/24"),
	} {
		s := claim.Sandbox{ID: "abc"}
		if err := addDetail(&s, r); err == nil {
			t.Errorf("%s: was taken as %+v", name, s)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":          "plain",
		"":               `""`,
		"a\nb":           `"a\nb"`,
		"\x1b[31m":       `"\x1b[31m"`,
		"0123456789abcd": "0123456789...",
		"123456789äöü":   "123456789...",
	} {
		if got := printable(in, 10); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzInfo(f *testing.F) {
	f.Add(`{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/var/run/netns/cni-1"}]}}}`)
	f.Add(`{"runtimeSpec":null,"sandboxMetadata":{"Metadata":{"NetNSPath":"/run/netns/x"}}}`)
	f.Add(`{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"../x\u0000"}]}}}`)
	f.Add(`[[[[[[`)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		path, err := netnsOf(map[string]string{"info": text})
		if err != nil {
			if path != "" {
				t.Errorf("an error and the path %q", path)
			}
			if !clean(err.Error()) {
				t.Errorf("%q is not fit to print", err)
			}
			return
		}
		if path != "" && (path[0] != '/' || len(path) > maxPath || !clean(path)) {
			t.Errorf("path %q", path)
		}
	})
}

func FuzzEndpoint(f *testing.F) {
	for _, s := range []string{"unix:///run/x.sock", "/run/x", "tcp://1", "none", "", "unix://", "/\x00", "/a/../../b", "unix:////", "/.", "/run/.."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := ParsePath(text)
		if err != nil {
			if path != "" || !utf8.ValidString(err.Error()) || !clean(err.Error()) {
				t.Errorf("path %q with error %q", path, err)
			}
			return
		}
		if path[0] != '/' || len(path) > maxPath || !clean(path) {
			t.Errorf("path %q", path)
		}
		if again, err := ParsePath(Scheme + path); err != nil || again != path {
			t.Errorf("%q does not survive the state directory: %q, %v", path, again, err)
		}
	})
}
