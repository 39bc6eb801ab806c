package proc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// space is a network namespace that is held open until the snapshot ends.
type space struct {
	fd     int
	dumped bool
	addrs  []claim.IfAddr
}

// errMoved: what was opened is not the namespace that was looked for, since a process
// moved, a mount covers it, or a descriptor was closed and used again.
var errMoved = errors.New("another file is there")

// verify reports whether fd is the namespace with that inode. device is that of the file
// system of namespaces. Where fd is another file, whoever has that file system is not
// asked: a container's may never answer.
func verify(fd int, device, ino uint64) error {
	got, err := cached(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	if got != (fileIdentity{device, ino}) {
		return errMoved
	}
	return nil
}

// cached returns what file a path names, by what the kernel knows of it already.
func cached(dir int, path string, flags int) (fileIdentity, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
	return fileIdentity{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, err
}

// openPath opens a namespace at a path that others control. Nothing but the namespace
// is ever opened: a FIFO would hang, a device would act. So the path is only
// resolved first (O_PATH), and opened through our own descriptor once it is known to
// be a namespace.
func (s *snapshot) openPath(dir int, path string, ino uint64, flags int) (int, error) {
	at, err := openat(dir, path, unix.O_PATH|flags)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	if err := verify(at, s.nsDev, ino); err != nil {
		return -1, err
	}
	return openat(s.selfFD, itoa(at), unix.O_RDONLY)
}

// dumpAll reads the addresses of namespaces, each once.
func dumpAll(ctx context.Context, spaces map[uint64]*space) error {
	type job struct {
		ino uint64
		sp  *space
	}
	var jobs []job
	for ino, sp := range spaces {
		if !sp.dumped {
			jobs = append(jobs, job{ino, sp})
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, min(workers, len(jobs)))
	for i := range errs {
		wg.Go(func() {
			errs[i] = visiting(func() error {
				buf := make([]byte, 32<<10)
				for {
					k := int(next.Add(1)) - 1
					if k >= len(jobs) {
						return nil
					}
					if err := ctx.Err(); err != nil {
						return err
					}
					addrs, err := dump(ctx, jobs[k].sp.fd, buf)
					if err != nil {
						next.Store(int64(len(jobs)))
						return &Error{Op: "read the addresses of", Object: fmt.Sprintf("network namespace %d", jobs[k].ino), Err: err}
					}
					jobs[k].sp.addrs, jobs[k].sp.dumped = addrs, true
				}
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// onDoomedThread runs f on a thread that ends with it, so that no goroutine is ever
// run on a thread that is left in a foreign namespace: there is no way back that
// could fail. The main thread cannot end, and /proc/PID/ns/net is its namespace, so f
// is not run there.
func onDoomedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine keeps the main thread, another runs elsewhere.
			done <- onDoomedThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}

// visiting runs f, which enters network namespaces, on a doomed thread. The thread goes
// back before visiting returns if it can, for it may end much later: another holdfast
// must not find it in a namespace when we have no mark any more (see ours).
func visiting(f func() error) error {
	return onDoomedThread(func() error {
		if home, err := openat(unix.AT_FDCWD, "/proc/thread-self/ns/net", unix.O_RDONLY); err == nil {
			defer func() {
				_ = unix.Setns(home, unix.CLONE_NEWNET) // if not, the thread ends where it is
				unix.Close(home)
			}()
		}
		return f()
	})
}

// dump enters a namespace and reads its addresses. It leaves the thread there.
func dump(ctx context.Context, ns int, buf []byte) ([]claim.IfAddr, error) {
	sock, err := routeSocket(ns)
	if err != nil {
		return nil, err
	}
	defer unix.Close(sock)
	for seq := uint32(1); ; seq++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		addrs, interrupted, err := dumpOnce(sock, seq, buf)
		if err != nil {
			return nil, err
		}
		if !interrupted {
			return addrs, nil
		}
	}
}

// routeSocket enters a namespace, leaves the thread there, and opens a netlink socket.
func routeSocket(ns int) (int, error) {
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return -1, os.NewSyscallError("setns", err)
	}
	sock, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// The kernel answers at once; this only bounds a fault.
	if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		unix.Close(sock)
		return -1, os.NewSyscallError("setsockopt", err)
	}
	return sock, nil
}

// request sends a message to the kernel.
func request(sock int, msg []byte) error {
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	return os.NewSyscallError("sendto", retry(func() error { return unix.Sendto(sock, msg, 0, kernel) }))
}

// datagram reads the next datagram of the kernel into buf.
func datagram(sock int, buf []byte) ([]byte, error) {
	for {
		var n int
		var from unix.Sockaddr
		err := retry(func() (err error) {
			n, from, err = unix.Recvfrom(sock, buf, unix.MSG_TRUNC)
			return err
		})
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if n > len(buf) {
			return nil, fmt.Errorf("netlink: a message of %d bytes was cut off", n)
		}
		if nl, ok := from.(*unix.SockaddrNetlink); ok && nl.Pid == 0 {
			return buf[:n], nil
		} // else not from the kernel
	}
}

func dumpOnce(sock int, seq uint32, buf []byte) (out []claim.IfAddr, interrupted bool, err error) {
	if err := request(sock, dumpRequest(seq)); err != nil {
		return nil, false, err
	}
	var names map[uint32]string
	nameOf := func(a address) string {
		name, ok := names[a.index]
		if !ok {
			if names == nil {
				names = map[uint32]string{}
			}
			if name = a.label; name == "" {
				name = ifName(sock, a.index)
			}
			names[a.index] = name
		}
		return name
	}
	for done := false; !done; {
		msg, err := datagram(sock, buf)
		if err != nil {
			return nil, false, err
		}
		var again bool
		done, again, err = addresses(msg, seq, func(a address) {
			if claim.KernelSpeaksFor(a.addr) {
				out = append(out, claim.IfAddr{If: nameOf(a), Addr: a.addr})
			}
		})
		if err != nil {
			return nil, false, err
		}
		interrupted = interrupted || again
	}
	slices.SortFunc(out, compareAddrs)
	return out, interrupted, nil
}

func compareAddrs(a, b claim.IfAddr) int {
	if c := strings.Compare(a.If, b.If); c != 0 {
		return c
	}
	return a.Addr.Compare(b.Addr)
}

func dumpRequest(seq uint32) []byte {
	const size = unix.SizeofNlMsghdr + unix.SizeofIfAddrmsg
	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint32(b, size)
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETADDR)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, make([]byte, unix.SizeofIfAddrmsg)...) // AF_UNSPEC: both families
}

// ifName asks for the name of an interface of the socket's namespace.
func ifName(sock int, index uint32) string {
	var req unix.Ifreq
	req.SetUint32(index)
	if err := unix.IoctlIfreq(sock, unix.SIOCGIFNAME, &req); err != nil || req.Name() == "" {
		return "#" + itoa(int(index)) // it has just gone
	}
	return printable(req.Name())
}

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
