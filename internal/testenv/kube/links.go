package kube

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// nodeBridge is in the control plane's namespace.
const nodeBridge = "nodes"

// bridge makes the network of the nodes in the control plane's namespace.
func (c *Cluster) bridge() error {
	return c.net.Do(func() error {
		b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: nodeBridge}}
		if err := netlink.LinkAdd(b); err != nil {
			return fmt.Errorf("bridge of the nodes: %w", err)
		}
		return address(nodeBridge, netip.MustParseAddr(controlPlaneIP), 16)
	})
}

// nodeAddr is the address of the n-th node, from 0 on.
func nodeAddr(n int) netip.Addr {
	a := netip.MustParseAddr(controlPlaneIP).As4()
	a[3] += byte(10 + n)
	return netip.AddrFrom4(a)
}

// connect gives a node an eth0 in the network of the nodes, and the service address on
// its loopback, where its Interposer listens in the place of a kube-proxy. Each netlink
// call happens on a thread in the namespace that it is about.
func (c *Cluster) connect(n *Node, number int) error {
	port := fmt.Sprintf("node%d", number)
	err := n.Runtime.OnNode(func() error {
		v := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: port, PeerNamespace: netlink.NsFd(c.net.FD()),
		}
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		if err := address("eth0", n.IP, 16); err != nil {
			return err
		}
		return address("lo", netip.MustParseAddr(serviceIP), 32)
	})
	if err != nil {
		return fmt.Errorf("links of node %s: %w", n.Name, err)
	}
	return c.net.Do(func() error {
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		master, err := netlink.LinkByName(nodeBridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(link, master); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

// route lets the control plane reach the Pods of a node.
func (c *Cluster) route(n *Node, pods netip.Prefix) error {
	return c.net.Do(func() error {
		err := netlink.RouteReplace(&netlink.Route{Dst: ipNet(pods), Gw: n.IP.AsSlice()})
		if err != nil {
			return fmt.Errorf("route to the Pods of %s: %w", n.Name, err)
		}
		return nil
	})
}

// address gives a link of the calling thread's namespace an address, and sets it up.
func address(link string, addr netip.Addr, bits int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, bits))}); err != nil {
		return fmt.Errorf("address %s of %s: %w", addr, link, err)
	}
	return netlink.LinkSetUp(l)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
