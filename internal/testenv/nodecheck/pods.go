package nodecheck

import (
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

func (c *checker) pods() {
	holder := map[netip.Addr]string{}
	for _, p := range c.Pods {
		has, known := c.addresses(p)
		for _, a := range p.Addrs {
			if other, ok := holder[a]; ok {
				c.add(Twice, p.Name, "%s is %s's as well", a, other)
			}
			holder[a] = p.Name
			if known && !slices.Contains(has, a) {
				c.add(NoAddress, p.Name, "%s is not among %v", a, has)
			}
			c.reservedFor(p, a)
		}
	}
}

func (c *checker) reservedFor(p Pod, a netip.Addr) {
	var others []string
	for _, net := range c.reserved {
		for _, r := range net[a] {
			if r.id == p.ContainerID {
				return
			}
			others = append(others, r.id)
		}
	}
	if len(others) > 0 {
		c.add(Misreserved, p.Name, "%s is reserved for %v, not for %s", a, others, p.ContainerID)
		return
	}
	c.add(Unreserved, p.Name, "%s of %s is not reserved", a, p.ContainerID)
}

// addresses asks the kernel what the Pod has. known is false when it was not asked or
// did not answer.
func (c *checker) addresses(p Pod) (has []netip.Addr, known bool) {
	if p.Netns == "" {
		return nil, false
	}
	err := testenv.OnDoomedThread(func() error {
		fd, err := unix.Open(p.Netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: p.Netns, Err: err}
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		// One dump on a socket of this thread's.
		list, err := net.InterfaceAddrs()
		if err != nil {
			return err
		}
		for _, l := range list {
			if n, ok := l.(*net.IPNet); ok {
				if a, ok := netip.AddrFromSlice(n.IP); ok {
					has = append(has, a.Unmap())
				}
			}
		}
		return nil
	})
	if err != nil {
		c.add(Unreadable, p.Name, "%v", err)
		return nil, false
	}
	return has, true
}
