package links

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/failpoint"
)

// netlinkTimeout bounds one read from the kernel, which holds a lock for all links.
const netlinkTimeout = 10 * time.Second

// Veth is one end of a veth pair in the host network namespace.
type Veth struct {
	Name  string
	Index int    // ifindex; the kernel hands it out again only after 2^31 others
	MAC   string // lower case, colons; empty if it has none
	// Master is the name of the bridge (or other master) that it is a port of, or
	// "#<index>" where that has no name here; empty without one.
	Master string
	// PeerIndex is the ifindex of the other end, in the other end's namespace.
	PeerIndex int
	// PeerHere is true when the other end is in the host network namespace too: then
	// no sandbox has it. A sandbox that is gone has taken both ends along.
	PeerHere bool
}

// Veths lists the veth ends of the host network namespace, sorted by name. An error
// is never an empty list; a dump that the kernel calls interrupted is repeated.
func (v *Inventory) Veths(ctx context.Context) ([]Veth, error) {
	h, err := v.hostNetlink()
	if err != nil {
		return nil, &Error{"list veths", "host netns", err}
	}
	defer h.Close()
	var all []netlink.Link
	for range 10 {
		if err := ctx.Err(); err != nil {
			return nil, &Error{"list veths", "host netns", err}
		}
		all, err = h.LinkList()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, &Error{"list veths", "host netns", err}
	}
	names := make(map[int]string, len(all))
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var out []Veth
	for _, l := range all {
		if l.Type() == "veth" {
			out = append(out, vethOf(l.Attrs(), names))
		}
	}
	slices.SortFunc(out, func(a, b Veth) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func vethOf(a *netlink.LinkAttrs, names map[int]string) Veth {
	v := Veth{
		Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), PeerIndex: a.ParentIndex,
		// The kernel adds IFLA_LINK_NETNSID when the peer is elsewhere.
		PeerHere: a.ParentIndex > 0 && a.NetNsID == -1,
	}
	if a.MasterIndex > 0 {
		if v.Master = names[a.MasterIndex]; v.Master == "" {
			v.Master = fmt.Sprintf("#%d", a.MasterIndex)
		}
	}
	return v
}

// hostNetlink opens a netlink socket in PID 1's network namespace. Whatever thread
// uses it later, it stays there.
func (v *Inventory) hostNetlink() (*netlink.Handle, error) {
	same, err := v.inInit("net")
	if err != nil {
		return nil, noView("network", err)
	}
	var h *netlink.Handle
	if same {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	} else {
		file, err := v.openInit("net")
		if err != nil {
			return nil, noView("network", err)
		}
		defer file.Close()
		h, err = netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
		if err != nil {
			return nil, fmt.Errorf("netlink in PID 1's network namespace: %w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("netlink in PID 1's network namespace: %w", err)
	}
	if err := h.SetSocketTimeout(netlinkTimeout); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// RemoveVeth deletes a host-side veth, and with it the other end, if the link with
// that ifindex is still a veth with that name and MAC. Then it looks whether it is
// gone. Errors: fs.ErrNotExist, ErrChanged, or the system's.
//
// Not covered: between the last look and the deletion, some microseconds, the link
// may be renamed or get another MAC; it is deleted by ifindex, so another link under
// its name is not hit.
func (v *Inventory) RemoveVeth(ctx context.Context, want Veth) error {
	if err := v.removeVeth(ctx, want); err != nil {
		return &Error{"remove veth", want.Name, err}
	}
	return nil
}

func (v *Inventory) removeVeth(ctx context.Context, want Veth) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if want.Index <= 0 || want.Name == "" {
		return ErrChanged
	}
	h, err := v.hostNetlink()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByIndex(want.Index)
	if gone(err) {
		return fs.ErrNotExist
	}
	if err != nil {
		return err
	}
	if a := l.Attrs(); l.Type() != "veth" || a.Index != want.Index || a.Name != want.Name || a.HardwareAddr.String() != want.MAC {
		return ErrChanged
	}
	if err := failpoint.At(failpoint.VethBefore); err != nil {
		return err
	}
	if err := h.LinkDel(l); err != nil {
		if errors.Is(err, unix.ENODEV) {
			return fs.ErrNotExist
		}
		return err
	}
	if err := failpoint.At(failpoint.VethAfter); err != nil {
		return err
	}
	switch _, err := h.LinkByIndex(want.Index); {
	case gone(err):
		return nil
	case err != nil:
		return fmt.Errorf("deleted, but it cannot be seen whether it is gone: %w", err)
	}
	return errors.New("deleted, but still there")
}

func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.As(err, new(netlink.LinkNotFoundError))
}
