package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const ifName = "eth0"

// pod is one "Pod": a namespace, pinned by a mount, with a process in it.
type pod struct {
	name  string
	id    string // container ID, 64 hex digits
	netns string // path of the mount
	addr  netip.Addr
	proc  *exec.Cmd
	stdin io.Closer // its end ends the process
}

// newPod makes the namespace and starts its process.
func newPod(dir, name string) (*pod, error) {
	id := make([]byte, 32)
	rand.Read(id) // never fails, since Go 1.24
	p := &pod{name: name, id: hex.EncodeToString(id), netns: filepath.Join(dir, "netns", "cni-"+name)}
	if err := os.WriteFile(p.netns, nil, 0o444); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p.proc = exec.Command(self, "pause")
	if p.stdin, err = p.proc.StdinPipe(); err != nil {
		return nil, err
	}
	return p, onDoomedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(own, p.netns, "", unix.MS_BIND, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		return p.proc.Start() // a child is born in its parent thread's namespace
	})
}

// kill is the Pod's end: process and namespace go, and nobody tells CNI.
func (p *pod) kill() error {
	if err := p.proc.Process.Kill(); err != nil {
		return err
	}
	_ = p.proc.Wait() // "signal: killed" is what was asked for
	p.stdin.Close()
	return unpin(p.netns)
}

func (p *pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.netns, IfName: ifName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "demo"}, {"K8S_POD_NAME", p.name}, {"K8S_POD_INFRA_CONTAINER_ID", p.id},
		},
	}
}

// add runs ADD for the Pod and remembers its address.
func (p *pod) add(ctx context.Context, cni *libcni.CNIConfig, list *libcni.NetworkConfigList) error {
	result, err := cni.AddNetworkList(ctx, list, p.runtimeConf())
	if err != nil {
		return fmt.Errorf("ADD for %s: %w", p.name, err)
	}
	r, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	if len(r.IPs) != 1 {
		return fmt.Errorf("ADD for %s gave %d addresses", p.name, len(r.IPs))
	}
	addr, ok := netip.AddrFromSlice(r.IPs[0].Address.IP)
	if !ok {
		return fmt.Errorf("ADD for %s gave no address", p.name)
	}
	p.addr = addr.Unmap()
	return nil
}

// alive returns nil when the Pod's interface holds its address and the Pod answers on
// the wire: a port without a listener refuses, and only a living stack refuses.
func (p *pod) alive(ctx context.Context) error {
	ns, err := vnetns.GetFromPath(p.netns)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	defer h.Close()
	link, err := h.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", p.name, ifName, err)
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("%s: addresses: %w", p.name, err)
	}
	if len(addrs) != 1 || !addrs[0].IP.Equal(p.addr.AsSlice()) {
		return fmt.Errorf("%s: has addresses %v, had %s", p.name, addrs, p.addr)
	}
	d := net.Dialer{Timeout: 2 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(p.addr, 9).String())
	if err == nil {
		conn.Close()
	} else if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s: does not answer: %w", p.name, err)
	}
	return nil
}

// onDoomedThread runs f on a thread that ends with it, so that what f does to its
// namespace ends too. The main thread cannot end and is never taken.
func onDoomedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onDoomedThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked
	}()
	return <-done
}
