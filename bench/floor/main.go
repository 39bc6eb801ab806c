// Command floor is what `holdfast audit` is measured against: the most direct program
// that touches the same things once. It reads every reservation file, reads /proc,
// dumps the addresses of every network namespace that a process is in or that is
// mounted, and lists the sandboxes of one CRI socket. It uses bare system calls and
// one buffer, judges nothing, looks at nothing twice, proves nothing, keeps nothing
// and prints counts.
//
//	floor DATA-DIR CRI-SOCKET
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: floor DATA-DIR CRI-SOCKET")
		os.Exit(2)
	}
	f := floor{buf: make([]byte, 64<<10), nets: map[string]string{}, mounts: map[string]bool{}}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"reservations", func() error { return f.reservations(os.Args[1]) }},
		{"proc", f.proc},
		{"addresses", f.addresses},
		{"sandboxes", func() error { return f.listSandboxes(os.Args[2]) }},
	} {
		if err := part.run(); err != nil {
			fmt.Fprintf(os.Stderr, "floor: %s: %v\n", part.name, err)
			os.Exit(1)
		}
	}
	fmt.Printf("%d reservations, %d bytes; %d processes, %d mount tables, %d nsfs descriptors; %d namespaces, %d addresses; %d sandboxes\n",
		f.files, f.bytes, f.procs, len(f.mounts), f.nsfs, len(f.nets), f.addrs, f.sandboxes)
}

type floor struct {
	buf    []byte
	nets   map[string]string // "net:[inode]" -> a path that leads to it
	mounts map[string]bool   // "mnt:[inode]"

	files, bytes, procs, nsfs, addrs, sandboxes int
}

// read reads a file below dir into the buffer, up to its size.
func (f *floor) read(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, f.buf)
	unix.Close(fd)
	return f.buf[:max(n, 0)], err
}

// readAll reads a file that may need several reads.
func (f *floor) readAll(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	total := 0
	for {
		if total == len(f.buf) {
			f.buf = append(f.buf, make([]byte, len(f.buf))...)
		}
		n, err := unix.Read(fd, f.buf[total:])
		if n <= 0 || err != nil {
			return f.buf[:total], err
		}
		total += n
	}
}

func (f *floor) reservations(dataDir string) error {
	networks, err := os.ReadDir(dataDir)
	if err != nil {
		return err
	}
	for _, n := range networks {
		dir, err := os.Open(filepath.Join(dataDir, n.Name()))
		if err != nil {
			return err
		}
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range names {
			if name[0] < '0' || name[0] > '9' {
				continue // lock, last_reserved_ip.0
			}
			b, err := f.read(int(dir.Fd()), name)
			if err != nil {
				return err
			}
			f.files++
			f.bytes += len(b)
		}
		dir.Close()
	}
	return nil
}

// proc skips a process that ends meanwhile.
func (f *floor) proc() error {
	proc, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return err
	}
	var link [256]byte
	readlink := func(dir int, name string) string {
		n, err := unix.Readlinkat(dir, name, link[:])
		if err != nil {
			return ""
		}
		return string(link[:n])
	}
	for _, pid := range names {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		dir, err := unix.Openat(int(proc.Fd()), pid, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		f.procs++
		if net := readlink(dir, "ns/net"); net != "" && f.nets[net] == "" {
			f.nets[net] = "/proc/" + pid + "/ns/net"
		}
		if _, err := f.read(dir, "cgroup"); err == nil {
			_, _ = f.read(dir, "cmdline")
		}
		if mnt := readlink(dir, "ns/mnt"); mnt != "" && !f.mounts[mnt] {
			f.mounts[mnt] = true
			table, _ := f.readAll(dir, "mountinfo")
			f.mounted(table)
		}
		if fds, err := unix.Openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			list := os.NewFile(uintptr(fds), "fd")
			open, _ := list.Readdirnames(-1)
			for _, fd := range open {
				n, err := unix.Readlinkat(fds, fd, link[:])
				if err == nil && bytes.HasPrefix(link[:n], []byte("net:[")) {
					f.nsfs++
				}
			}
			list.Close()
		}
		unix.Close(dir)
	}
	return nil
}

// mounted notes the namespaces that a mountinfo shows.
func (f *floor) mounted(table []byte) {
	for line := range bytes.Lines(table) {
		if !bytes.Contains(line, []byte(" - nsfs ")) {
			continue
		}
		fields := bytes.Fields(line)
		if net := string(fields[3]); f.nets[net] == "" && len(net) > 4 && net[:4] == "net:" {
			f.nets[net] = string(fields[4])
		}
	}
}

// addresses enters every namespace and dumps its addresses. The thread ends with it.
func (f *floor) addresses() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		for _, path := range f.nets {
			if err := f.dump(path); err != nil {
				done <- fmt.Errorf("%s: %w", path, err)
				return
			}
		}
		done <- nil
	}()
	return <-done
}

func (f *floor) dump(path string) error {
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.EACCES {
		return nil // it has ended
	}
	if err != nil {
		return err
	}
	err = unix.Setns(ns, unix.CLONE_NEWNET)
	unix.Close(ns)
	if err == unix.EINVAL {
		return nil // the path is of another mount namespace, and here no namespace
	}
	if err != nil {
		return err
	}
	sock, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	req := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.RTM_GETADDR)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(sock, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, err := unix.Read(sock, f.buf)
		if err != nil {
			return err
		}
		for b := f.buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			switch binary.NativeEndian.Uint16(b[4:]) {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return unix.EIO
			case unix.RTM_NEWADDR:
				f.addrs++
			}
			b = b[min(int(binary.NativeEndian.Uint32(b)+3)&^3, len(b)):]
		}
	}
}

func (f *floor) listSandboxes(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	list, err := runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	f.sandboxes = len(list.GetItems())
	if f.sandboxes == 0 {
		return fmt.Errorf("%s lists %s sandboxes", socket, strconv.Itoa(0))
	}
	return nil
}
