package cri

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of every call
	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// decode reads a message with the codec that grpc uses for ours.
func decode(data []byte, into any) error {
	return encoding.GetCodecV2("proto").Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, into)
}

func wire(t testing.TB, m any) []byte {
	b, err := encoding.GetCodecV2("proto").Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b.Materialize()
}

// FuzzAnswers reads a list and a status from bytes, as a runtime sends them. An answer
// is taken whole or not at all, and only the word NOTREADY makes a sandbox not ready.
func FuzzAnswers(f *testing.F) {
	id := strings.Repeat("0123456789abcdef", 4)
	seed := func(list []*runtimeapi.PodSandbox, st *runtimeapi.PodSandboxStatusResponse) {
		f.Add(wire(f, &runtimeapi.ListPodSandboxResponse{Items: list}), wire(f, st))
	}
	status := func(id, ip, info string) *runtimeapi.PodSandboxStatusResponse {
		return &runtimeapi.PodSandboxStatusResponse{
			Status: &runtimeapi.PodSandboxStatus{Id: id, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: ip, AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::1%x"}}}},
			Info:   map[string]string{"info": info},
		}
	}
	pod := &runtimeapi.PodSandboxMetadata{Name: "web-0", Namespace: "default", Uid: "u", Attempt: 1}
	seed([]*runtimeapi.PodSandbox{{Id: id, Metadata: pod, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: 5}},
		status(id, "10.1.0.5", `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/run/netns/a"}]}}}`))
	// Case F17: the runtime finds sandboxes by prefix.
	seed([]*runtimeapi.PodSandbox{{Id: id[:12], State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}}, status(id, "::ffff:10.1.0.5", ""))
	seed([]*runtimeapi.PodSandbox{{Id: id, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}}, status(id[:12], "10.1.0.5", ""))
	// A state of a later version of the CRI.
	seed([]*runtimeapi.PodSandbox{{Id: id, State: 7, Metadata: pod}}, status(id, "", ""))
	seed([]*runtimeapi.PodSandbox{{Id: id, State: 7, Metadata: &runtimeapi.PodSandboxMetadata{Name: "\x1b[2J"}}, {}}, status(id, "10.1.0.5/24", `{"runtimeSpec":1}`))
	// Case F18: cut off half way.
	f.Add([]byte{0x0a, 0x50, 0x0a}, []byte{0x0a})
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, listBytes, statusBytes []byte) {
		var list runtimeapi.ListPodSandboxResponse
		if decode(listBytes, &list) != nil {
			return
		}
		var st runtimeapi.PodSandboxStatusResponse
		if decode(statusBytes, &st) != nil {
			return
		}
		for _, item := range list.GetItems() {
			s, err := sandboxOf("unix:///run/x.sock", item)
			if err != nil {
				if !clean(err.Error()) {
					t.Fatalf("%q is not fit to print", err)
				}
				continue
			}
			if s.ID != item.GetId() || !saneID(s.ID) || s.Ready == (item.GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY) {
				t.Fatalf("%+v of %v", s, item)
			}
			if !clean(s.Pod.Namespace + s.Pod.Name + s.Pod.UID) {
				t.Fatalf("Pod %+v", s.Pod)
			}
			was := s
			if err := addDetail(&s, &st); err != nil {
				if !clean(err.Error()) {
					t.Fatalf("%q is not fit to print", err)
				}
				if cmp.Compare(compareSandboxes(s, was), 0) != 0 {
					t.Fatalf("a refused answer left %+v", s)
				}
				continue
			}
			if st.GetStatus().GetId() != s.ID {
				t.Fatalf("sandbox %s was told by the status of %s", s.ID, st.GetStatus().GetId())
			}
			if was.Ready && !s.Ready || s.Netns != "" && (s.Netns[0] != '/' || !clean(s.Netns)) {
				t.Fatalf("%+v became %+v", was, s)
			}
			texts := 0
			for _, ip := range append(slices.Clone(st.GetStatus().GetNetwork().GetAdditionalIps()), &runtimeapi.PodIP{Ip: st.GetStatus().GetNetwork().GetIp()}) {
				if ip.GetIp() != "" {
					texts++
				}
			}
			if len(s.Addrs) != texts {
				t.Fatalf("%d addresses of %d: %v", len(s.Addrs), texts, s.Addrs)
			}
			for _, a := range s.Addrs {
				if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
					t.Fatalf("address %v", a)
				}
			}
		}
	})
}

// FuzzPrintable: what a runtime says of itself is shown tame and short.
func FuzzPrintable(f *testing.F) {
	f.Add("containerd", uint8(64))
	f.Add("a\x1b[2J\u202e\xff\u2028", uint8(3))
	f.Add("", uint8(0))
	f.Fuzz(func(t *testing.T, s string, limit uint8) {
		got := printable(s, int(limit))
		// Quoting takes at most ten bytes for one, U+0001F600-like forms included.
		if !clean(got) || got == "" || len(got) > 10*int(limit)+5 {
			t.Errorf("printable(%q, %d) = %q", s, limit, got)
		}
		if clean(s) && s != "" && len(s) <= int(limit) && got != s {
			t.Errorf("%q became %q", s, got)
		}
		if !bytes.Contains([]byte(got), []byte("...")) && len(s) > int(limit) {
			t.Errorf("%q does not say that it was cut", got)
		}
	})
}
