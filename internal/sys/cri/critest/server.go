package critest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Mode says how a Server answers.
type Mode string

// The modes. Unless said otherwise Version answers well and the list does not.
const (
	OK               Mode = "ok"
	Empty            Mode = "empty"              // lists nothing, whatever is scripted
	Hang             Mode = "hang"               // every call waits until the caller gives up
	HangList         Mode = "hang-list"          // the list does
	HangStatus       Mode = "hang-status"        // status calls do, the list is fine
	Mute             Mode = "mute"               // accepts new connections and never sends a byte on them
	Error            Mode = "error"              // the list fails with Internal
	ErrorStatus      Mode = "error-status"       // status calls fail with Internal
	NotFoundStatus   Mode = "not-found-status"   // status calls fail with NotFound
	WrongStatus      Mode = "wrong-status"       // status answers are for another ID
	BadInfo          Mode = "bad-info"           // verbose info is no JSON
	PermissionDenied Mode = "permission-denied"  // every call fails with PermissionDenied
	CutOff           Mode = "cut-off"            // the connection closes within the list
	TooLarge         Mode = "too-large"          // the list has more than 64 MiB
	Nameless         Mode = "nameless"           // Version answers an empty message
	Unimplemented    Mode = "unimplemented"      // serves no CRI, as Docker's containerd
	ListUnimplement  Mode = "list-unimplemented" // Version answers, the list is Unimplemented
	OldOnly          Mode = "v1alpha2-only"      // serves runtime.v1alpha2 alone
)

// Sandbox is one scripted sandbox.
type Sandbox struct {
	ID                   string
	Namespace, Name, UID string
	Attempt              uint32
	NotReady             bool
	Created              int64 // ns since the epoch
	Netns                string
	HostNetwork          bool
	IPs                  []string
	// Source is where its kubelet has the Pod from: "api", "file", "http".
	Source string
}

// Server is a scripted runtime. Safe for concurrent use.
type Server struct {
	// Socket is the path that it listens on.
	Socket string

	name     string
	grpc     *grpc.Server
	listener *listener

	mu        sync.Mutex
	mode      Mode
	sandboxes []Sandbox
	calls     map[string]int
}

// Listen serves on a new unix socket, which replaces one that a stopped Server left.
// The path may be longer than 107 bytes. Stop it.
func Listen(socket string, sandboxes ...Sandbox) (*Server, error) {
	raw, err := listen(socket)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Socket: socket, name: "critest", mode: OK,
		sandboxes: slices.Clone(sandboxes), calls: map[string]int{},
	}
	s.listener = &listener{UnixListener: raw, server: s}
	s.grpc = grpc.NewServer(grpc.UnaryInterceptor(s.intercept), grpc.UnknownServiceHandler(s.unknown),
		grpc.MaxSendMsgSize(256<<20))
	runtimeapi.RegisterRuntimeServiceServer(s.grpc, &service{s: s})
	go func() { _ = s.grpc.Serve(s.listener) }()
	return s, nil
}

// listen binds through the directory's descriptor, so that the length of the path
// does not matter.
func listen(socket string) (*net.UnixListener, error) {
	dir, err := os.Open(filepath.Dir(socket))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	_ = os.Remove(socket)
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // short is void by then; Stop removes the socket
	return l, nil
}

// Stop closes every connection and removes the socket.
func (s *Server) Stop() {
	s.Kill()
	_ = os.Remove(s.Socket)
}

// Kill closes every connection and leaves the socket file without a listener, as a
// runtime does that was killed.
func (s *Server) Kill() {
	s.listener.dropAll() // a handler that hangs would hold grpc.Stop up
	s.grpc.Stop()
}

// SetMode changes how it answers from now on.
func (s *Server) SetMode(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

// SetSandboxes replaces the script.
func (s *Server) SetSandboxes(sandboxes ...Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes = slices.Clone(sandboxes)
}

// Calls returns how often a method was called, such as "ListPodSandbox". "accept"
// counts connections.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

func (s *Server) count(what string) Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[what]++
	return s.mode
}

func (s *Server) snapshot() (Mode, []Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode, slices.Clone(s.sandboxes)
}

// intercept plays what a mode does to every call.
func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	switch mode := s.count(method); {
	case mode == Hang, mode == HangList && method == "ListPodSandbox", mode == HangStatus && method == "PodSandboxStatus":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case mode == PermissionDenied:
		return nil, status.Error(codes.PermissionDenied, "not for you\x1b[31m")
	case mode == Unimplemented, mode == OldOnly:
		return nil, status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
	case mode == Error && method == "ListPodSandbox", mode == ErrorStatus && method == "PodSandboxStatus":
		return nil, status.Error(codes.Internal, "the store is broken\n\x1b[31mand says so")
	case mode == NotFoundStatus && method == "PodSandboxStatus":
		return nil, status.Error(codes.NotFound, "no such sandbox")
	case mode == ListUnimplement && method == "ListPodSandbox":
		return nil, status.Error(codes.Unimplemented, "not yet")
	}
	return next(ctx, req)
}

// unknown serves runtime.v1alpha2, whose messages have the same wire form.
func (s *Server) unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if mode, _ := s.snapshot(); mode != OldOnly || method != "/runtime.v1alpha2.RuntimeService/Version" {
		return status.Error(codes.Unimplemented, "unknown service")
	}
	if err := stream.RecvMsg(&runtimeapi.VersionRequest{}); err != nil {
		return err
	}
	return stream.SendMsg(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: s.name, RuntimeApiVersion: "v1alpha2"})
}

// service is the gRPC face of a Server.
type service struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	s *Server
}

// Version names the runtime.
func (v *service) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if mode, _ := v.s.snapshot(); mode == Nameless {
		return &runtimeapi.VersionResponse{}, nil
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: v.s.name, RuntimeVersion: "1.0", RuntimeApiVersion: "v1"}, nil
}

// ListPodSandbox lists the script.
func (v *service) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	mode, sandboxes := v.s.snapshot()
	r := &runtimeapi.ListPodSandboxResponse{}
	if mode == Empty {
		return r, nil
	}
	for _, sb := range sandboxes {
		r.Items = append(r.Items, &runtimeapi.PodSandbox{
			Id: sb.ID, Metadata: sb.metadata(), State: sb.state(), CreatedAt: sb.Created,
			Annotations: map[string]string{"kubernetes.io/config.source": sb.Source},
		})
	}
	switch mode {
	case CutOff:
		// Complete entries first, then one that does not arrive whole: a reader that
		// counted what it has would find a shorter list.
		r.Items = append(r.Items, padding(256<<10))
		v.s.listener.cutAfter(32 << 10)
	case TooLarge:
		r.Items = append(r.Items, padding(65<<20))
	}
	return r, nil
}

func padding(bytes int) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: "padding", Annotations: map[string]string{"padding": strings.Repeat("x", bytes)}}
}

// PodSandboxStatus answers for whole IDs and, as real runtimes do, for a unique
// prefix of one.
func (v *service) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	mode, sandboxes := v.s.snapshot()
	i := find(sandboxes, req.GetPodSandboxId())
	if i < 0 {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	sb := sandboxes[i]
	network := &runtimeapi.PodSandboxNetworkStatus{}
	for n, ip := range sb.IPs {
		if n == 0 {
			network.Ip = ip
		} else {
			network.AdditionalIps = append(network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	ns := runtimeapi.NamespaceMode_POD
	if sb.HostNetwork {
		ns = runtimeapi.NamespaceMode_NODE
	}
	st := &runtimeapi.PodSandboxStatus{
		Id: sb.ID, Metadata: sb.metadata(), State: sb.state(), CreatedAt: sb.Created, Network: network,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{Network: ns}}},
	}
	r := &runtimeapi.PodSandboxStatusResponse{Status: st}
	if req.GetVerbose() {
		r.Info = map[string]string{"info": sb.info()}
	}
	switch mode {
	case WrongStatus:
		st.Id += "0"
	case BadInfo:
		r.Info = map[string]string{"info": `{"runtimeSpec":{"linux":`}
	}
	return r, nil
}

// RunPodSandbox adds a Ready sandbox with an address and a netns path.
func (v *service) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	var raw [32]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, err
	}
	m := req.GetConfig().GetMetadata()
	sb := Sandbox{
		ID: hex.EncodeToString(raw[:]), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Attempt: m.GetAttempt(),
		Created: time.Now().UnixNano(), Netns: "/var/run/netns/cni-" + hex.EncodeToString(raw[:16]), IPs: []string{"192.0.2.1"},
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.s.sandboxes = append(v.s.sandboxes, sb)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: sb.ID}, nil
}

// StopPodSandbox makes it NotReady and takes its address away.
func (v *service) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	i := find(v.s.sandboxes, req.GetPodSandboxId())
	if i < 0 { // as containerd 1.6 does
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	v.s.sandboxes[i].NotReady, v.s.sandboxes[i].IPs = true, nil
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox forgets it.
func (v *service) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if i := find(v.s.sandboxes, req.GetPodSandboxId()); i >= 0 {
		v.s.sandboxes = slices.Delete(v.s.sandboxes, i, i+1)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// find returns the index of the sandbox with that ID, or with that unique prefix;
// else -1.
func find(sandboxes []Sandbox, id string) int {
	hit := -1
	for i, sb := range sandboxes {
		switch {
		case sb.ID == id:
			return i
		case strings.HasPrefix(sb.ID, id) && hit >= 0:
			hit = len(sandboxes) // ambiguous
		case strings.HasPrefix(sb.ID, id):
			hit = i
		}
	}
	if hit >= len(sandboxes) {
		return -1
	}
	return hit
}

func (sb Sandbox) metadata() *runtimeapi.PodSandboxMetadata {
	return &runtimeapi.PodSandboxMetadata{Namespace: sb.Namespace, Name: sb.Name, Uid: sb.UID, Attempt: sb.Attempt}
}

func (sb Sandbox) state() runtimeapi.PodSandboxState {
	if sb.NotReady {
		return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return runtimeapi.PodSandboxState_SANDBOX_READY
}

// info is verbose info in the shape of containerd and CRI-O.
func (sb Sandbox) info() string {
	type namespace struct {
		Type string `json:"type"`
		Path string `json:"path,omitempty"`
	}
	namespaces := []namespace{{Type: "pid"}, {Type: "mount"}}
	if !sb.HostNetwork {
		namespaces = append(namespaces, namespace{"network", sb.Netns})
	}
	text, err := json.Marshal(map[string]any{
		"pid":         4711,
		"runtimeSpec": map[string]any{"ociVersion": "1.0.2", "linux": map[string]any{"namespaces": namespaces}},
	})
	if err != nil { // nothing of it can fail to marshal
		return ""
	}
	return string(text)
}
