package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

const (
	// maxList bounds the answer to a list: 64 MiB hold some 100,000 sandboxes.
	maxList = 64 << 20
	// maxStatus bounds the answer to one status call; a real one has about 20 KiB.
	maxStatus = 8 << 20
	// maxStatusCalls bounds the status calls under way at one runtime.
	maxStatusCalls = 8
	// bufferSize of the connection. The messages are small or rare, and grpc-go's
	// default of 32 KiB each way is kept for as long as the connection is.
	bufferSize = 4 << 10
	// maxSunPath is what fits into sockaddr_un with the trailing NUL that Go adds.
	maxSunPath = 107
)

var (
	// errUnimplemented: the listener speaks gRPC and serves no CRI of any version.
	errUnimplemented = errors.New("serves no CRI")
	// errNotSocket: something else than a socket lies at the path.
	errNotSocket = errors.New("is not a socket")
	// errSpent: grpc asked for a second connection; see newLink.
	errSpent = errors.New("the connection is used up")
)

// identity tells one listening socket's file from another. A socket file is never
// rewritten, so a change of ctime is a new one or a chmod, and either is worth a new
// connection.
type identity struct {
	dev, ino uint64
	ctime    int64 // ns
}

// locate stats the path, following symlinks. The error is an errno or errNotSocket.
func locate(path string) (identity, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return identity{}, err
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return identity{}, errNotSocket
	}
	return identity{dev: st.Dev, ino: st.Ino, ctime: st.Ctim.Nano()}, nil
}

// dial connects to a unix socket whatever the length of its path. connect(2) takes
// at most 107 bytes; a longer path is opened with O_PATH and connected to through
// the descriptor's own magic link, which needs /proc of this process and also works
// where the last element alone is too long.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if len(path) > maxSunPath {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("dialing gave a %T", conn)
	}
	return uc, nil
}

// peerPID returns the PID that called listen(2) on the other side, in our PID
// namespace; 0 when it lives where we cannot see it, or is not known.
func peerPID(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// link is one connection to one runtime. It never reconnects: when its connection
// is gone, so is the link, and the next one is dialled to whatever listens then. Not
// safe for concurrent use, except for close.
type link struct {
	id   identity
	peer int
	raw  *net.UnixConn
	cc   *grpc.ClientConn
}

// newLink wraps a connection that was already made, so that the errno of connect(2)
// stays visible and the peer's PID belongs to the very connection that is asked.
func newLink(id identity, raw *net.UnixConn) (*link, error) {
	var spent atomic.Bool
	cc, err := grpc.NewClient("passthrough:///cri",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if spent.Swap(true) {
				return nil, errSpent
			}
			return raw, nil
		}),
		// What grpc-go itself sends on a unix target; some servers refuse others.
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
	)
	if err != nil {
		raw.Close()
		return nil, err
	}
	return &link{id: id, peer: peerPID(raw), raw: raw, cc: cc}, nil
}

func (l *link) close() {
	if l != nil {
		_ = l.cc.Close()
		_ = l.raw.Close() // grpc may never have taken it over
	}
}

// usable reports whether the link still leads to the socket with that identity.
func (l *link) usable(id identity) bool {
	return l != nil && l.id == id && l.cc.GetState() == connectivity.Ready
}

// answer is one runtime's whole answer.
type answer struct {
	name, version string
	peer          int
	sandboxes     []claim.Sandbox
	noNetns       int // Pod-network sandboxes for which no netns path was given
	vanished      int // listed, gone when their status was asked
}

// visit asks the runtime behind path over the held link, or a new one. It returns
// the link to hold on to, nil after any error.
func visit(ctx context.Context, path string, detail bool, held *link) (answer, *link, error) {
	id, err := locate(path)
	if err != nil {
		held.close()
		return answer{}, nil, err
	}
	if held.usable(id) {
		a, err := held.ask(ctx, path, detail)
		if err == nil {
			return a, held, nil
		}
		held.close()
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return answer{}, nil, err
		}
		// The runtime went away between two questions, perhaps for a restart. A new
		// connection is a new question, answered whole or not at all.
	} else {
		held.close()
	}
	raw, err := dial(ctx, path)
	if err != nil {
		return answer{}, nil, err
	}
	l, err := newLink(id, raw)
	if err != nil {
		return answer{}, nil, err
	}
	a, err := l.ask(ctx, path, detail)
	if err != nil {
		l.close()
		return answer{}, nil, err
	}
	return a, l, nil
}

func (l *link) ask(ctx context.Context, path string, detail bool) (answer, error) {
	client := runtimeapi.NewRuntimeServiceClient(l.cc)
	v, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.MaxCallRecvMsgSize(maxStatus))
	if status.Code(err) == codes.Unimplemented {
		return answer{}, l.askOld(ctx)
	}
	if err != nil {
		return answer{}, &callError{"Version", err}
	}
	if v.GetRuntimeName() == "" {
		// No runtime is nameless: an empty answer is not one (I5).
		return answer{}, &callError{"Version", errors.New("answered without a runtime name")}
	}
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.MaxCallRecvMsgSize(maxList))
	if err != nil {
		return answer{}, &callError{"ListPodSandbox", err}
	}
	a := answer{
		name:      printable(v.GetRuntimeName(), 64),
		version:   printable(v.GetRuntimeVersion(), 64),
		peer:      l.peer,
		sandboxes: make([]claim.Sandbox, 0, len(list.GetItems())),
	}
	for _, item := range list.GetItems() {
		s, err := sandboxOf(Scheme+path, item)
		if err != nil {
			return answer{}, &callError{"ListPodSandbox", err}
		}
		a.sandboxes = append(a.sandboxes, s)
	}
	if detail {
		if err := addDetails(ctx, client, &a); err != nil {
			return answer{}, err
		}
	}
	return a, nil
}

// askOld is called when runtime.v1 is unknown to the listener. A runtime that speaks only
// runtime.v1alpha2 (containerd before 1.6, CRI-O before 1.23) has sandboxes all
// the same, so it must not pass for "no CRI here". The messages of the two versions
// have the same wire form. Never returns nil.
func (l *link) askOld(ctx context.Context) error {
	err := l.cc.Invoke(ctx, "/runtime.v1alpha2.RuntimeService/Version",
		&runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{}, grpc.MaxCallRecvMsgSize(maxStatus))
	switch {
	case err == nil:
		return &callError{"Version", errors.New("speaks only CRI v1alpha2, and v1 is needed")}
	case status.Code(err) == codes.Unimplemented:
		return errUnimplemented
	}
	return &callError{"Version", err}
}

// addDetails asks for the status of every sandbox, at most maxStatusCalls at a time.
// The first error ends it.
func addDetails(ctx context.Context, client runtimeapi.RuntimeServiceClient, a *answer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards first and the counts of a
		first error
		next  atomic.Int64
	)
	work := func() {
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= len(a.sandboxes) {
				return
			}
			s := &a.sandboxes[i] // each index is handed out once
			pathless, vanished, err := askStatus(ctx, client, s)
			mu.Lock()
			if err != nil && first == nil {
				first = err
				cancel()
			}
			if pathless {
				a.noNetns++
			}
			if vanished {
				a.vanished++
			}
			mu.Unlock()
		}
	}
	for range min(maxStatusCalls, len(a.sandboxes)) {
		wg.Go(work)
	}
	wg.Wait()
	if first == nil && int(next.Load()) < len(a.sandboxes) {
		first = ctx.Err() // the caller's deadline, seen before any call failed by it
	}
	if first == nil {
		return nil
	}
	return &callError{"PodSandboxStatus", first}
}

// askStatus completes one sandbox. A sandbox that vanished since the list stays
// listed, without details: one word too many for the living is safe.
func askStatus(ctx context.Context, client runtimeapi.RuntimeServiceClient, s *claim.Sandbox) (pathless, vanished bool, err error) {
	r, err := client.PodSandboxStatus(ctx,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.ID, Verbose: true}, grpc.MaxCallRecvMsgSize(maxStatus))
	if status.Code(err) == codes.NotFound {
		return false, true, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("sandbox %s: %w", s.ID, err)
	}
	if err := addDetail(s, r); err != nil {
		return false, false, fmt.Errorf("sandbox %s: %w", s.ID, err)
	}
	ns := r.GetStatus().GetLinux().GetNamespaces().GetOptions()
	host := ns != nil && ns.GetNetwork() == runtimeapi.NamespaceMode_NODE
	return s.Netns == "" && !host, false, nil
}

// callError is a failed call, with the gRPC code where there is one.
type callError struct {
	Op  string
	Err error
}

// Error is fit to print: what the server wrote is cleaned and cut.
func (e *callError) Error() string { return e.Op + ": " + printable(e.Err.Error(), 300) }

// Unwrap lets status.Code see the code.
func (e *callError) Unwrap() error { return e.Err }

// proof says what a failure proves about a socket that never answered before.
type proof int

const (
	provesNothing  proof = iota // a runtime may be there
	provesNoPath                // nothing lies at the path
	provesNoServer              // no runtime with CRI is behind it
)

// explain turns a failure into a reason for people and what it proves.
func explain(err error, timeout time.Duration) (string, proof) {
	var call *callError
	switch {
	case errors.Is(err, errUnimplemented):
		return "answers, but serves no CRI (its CRI plugin is disabled or failed to load)", provesNoServer
	case errors.Is(err, errNotSocket):
		return "is not a socket", provesNoServer
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return fmt.Sprintf("no whole answer within %s", timeout), provesNothing
	case errors.Is(err, context.Canceled):
		return "the question was cancelled", provesNothing
	case errors.As(err, &call):
		return call.Error(), provesNothing
	case slices.ContainsFunc([]error{unix.ENOENT, unix.ENOTDIR}, func(e error) bool { return errors.Is(err, e) }):
		return "no such socket", provesNoPath
	case errors.Is(err, unix.ECONNREFUSED):
		return "nobody listens on it (connection refused)", provesNoServer
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "permission denied", provesNothing
	}
	return printable(err.Error(), 300), provesNothing
}

// pidNamespace returns the inode of a process's PID namespace, 0 when it cannot be read.
// It is our own /proc: the number is one of our own PID namespace (SO_PEERCRED).
func pidNamespace(pid int) uint64 {
	var st unix.Stat_t
	if pid <= 0 || unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &st) != nil {
		return 0
	}
	return st.Ino
}
