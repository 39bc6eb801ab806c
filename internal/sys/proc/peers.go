package proc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A network namespace may be kept by what no enumeration sees, such as a socket that was
// made in it. If it has a veth whose other end is the host's, as those of Pods do, the
// host's link says so: the kernel names the namespace of the other end by a number
// (IFLA_LINK_NETNSID), and says of a namespace that is held open which number it has
// (RTM_GETNSID). A number that none of the held ones has is a namespace that nobody
// showed.
//
// A namespace that has lost its last holder is in the list of numbers until the kernel
// gets to its end, which takes 70 ms, or seconds where many end at once. The kernel
// takes the number away before the links, so a link without one (-1) leads to nothing
// that lives.

// maxLinger is how long a namespace that nobody shows may be one that is just ending.
const maxLinger = 5 * time.Second

// extMaskSkipStats is RTEXT_FILTER_SKIP_STATS: no counters in a dump of links.
const extMaskSkipStats = 1 << 3

// peer is a link whose other end, or whose underlying link, is in another namespace.
type peer struct {
	index uint32
	name  string
	nsid  int32 // the namespace's number, below 0 if it has none
}

// stranger looks for links of the host's namespace that lead to a namespace that nobody
// showed. It reports whether there is one that may still be ending, and an error once it
// is too long there. Links that appear after the first call do not count: what is made
// after a snapshot began is for the grace and the live re-check, and on a busy node
// there would always be one that ends.
//
// Only the initial PID namespace is asked: elsewhere the host's own link may lead to
// where its parent is (a node in a container), which no proc file system of it shows.
func (s *snapshot) stranger(ctx context.Context) (bool, error) {
	if initial, _ := s.pidNamespace(); initial != initialPIDNS {
		return false, nil
	}
	host := s.spaces[s.host]
	if host == nil {
		return false, &Error{Op: "find", Object: "PID 1's network namespace", Err: unix.ENOENT}
	}
	var unknown []peer
	var all []uint32
	err := visiting(func() (err error) {
		unknown, all, err = s.unknownPeers(ctx, host.fd)
		return err
	})
	if err != nil {
		return false, &Error{Op: "ask", Object: "the links of the host's network namespace", Err: err}
	}
	if s.peersAt.IsZero() {
		s.peersAt, s.peers = time.Now(), all
	}
	unknown = slices.DeleteFunc(unknown, func(p peer) bool { return !slices.Contains(s.peers, p.index) })
	if len(unknown) == 0 {
		return false, nil
	}
	if time.Since(s.peersAt) < s.linger {
		return true, nil
	}
	p := unknown[0]
	return true, &Error{Op: "enter", Object: fmt.Sprintf("the network namespace at the other end of the link %q (index %d, link-netnsid %d)", p.name, p.index, p.nsid),
		Err: errStranger}
}

var errStranger = errors.New("no process, descriptor or mount shows it: a socket made in it may keep it (also a descriptor that is under way " +
	"in a unix socket, or a mount of NFS made in it); end the process that has that, or delete the link")

// unknownPeers enters the host's namespace and returns its links that lead to living
// namespaces which are not held, and the indexes of all links that lead elsewhere.
func (s *snapshot) unknownPeers(ctx context.Context, host int) (unknown []peer, all []uint32, err error) {
	sock, err := routeSocket(host)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(sock)
	buf := make([]byte, 32<<10)
	var peers []peer
	seq := uint32(1)
	for interrupted := true; interrupted; seq++ {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if err := request(sock, linkRequest(seq)); err != nil {
			return nil, nil, err
		}
		peers, interrupted = peers[:0], false
		for done := false; !done; {
			msg, err := datagram(sock, buf)
			if err != nil {
				return nil, nil, err
			}
			var again bool
			done, again, err = linkPeers(msg, seq, func(p peer) { peers = append(peers, p) })
			if err != nil {
				return nil, nil, err
			}
			interrupted = interrupted || again
		}
	}
	wanted := map[int32]bool{}
	for _, p := range peers {
		all = append(all, p.index)
		if p.nsid >= 0 {
			wanted[p.nsid] = true
		}
	}
	fds := make([]int, 0, len(s.spaces))
	for _, sp := range s.spaces {
		fds = append(fds, sp.fd)
	}
	for some := range slices.Chunk(fds, nsidBatch) {
		if len(wanted) == 0 {
			break
		}
		if err := nsids(sock, some, seq, buf, func(id int32) { delete(wanted, id) }); err != nil {
			return nil, nil, err
		}
		seq += uint32(len(some))
	}
	for _, p := range peers {
		if wanted[p.nsid] {
			unknown = append(unknown, p)
		}
	}
	return unknown, all, nil
}

// nsidBatch bounds the questions that are asked at once: the answers must find room in
// the socket (208 KiB at most by default, of which each takes about 1).
const nsidBatch = 64

// nsids asks which numbers the socket's namespace has for others, each question with a
// sequence number of its own, from seq on. A namespace without a number has -1.
func nsids(sock int, fds []int, seq uint32, buf []byte, each func(id int32)) error {
	var ask []byte
	for i, fd := range fds {
		ask = append(ask, nsidRequest(seq+uint32(i), fd)...)
	}
	if err := request(sock, ask); err != nil {
		return err
	}
	for i := range fds {
		for found := false; !found; {
			msg, err := datagram(sock, buf)
			if err != nil {
				return err
			}
			done, _, err := messages(msg, seq+uint32(i), func(typ uint16, body []byte) error {
				if typ != unix.RTM_NEWNSID {
					return nil
				}
				const header = 4 // struct rtgenmsg, aligned
				return attributes(body, header, func(typ uint16, value []byte) error {
					if typ == unix.NETNSA_NSID && len(value) == 4 {
						each(int32(binary.NativeEndian.Uint32(value)))
						found = true
					}
					return nil
				})
			})
			if err != nil {
				return err
			}
			if done && !found {
				return errors.New("netlink: an answer without a namespace's number")
			}
		}
	}
	return nil
}

// linkPeers reads a datagram of an RTM_GETLINK dump, as messages does, and calls each
// with the links that lead to another namespace.
func linkPeers(b []byte, seq uint32, each func(peer)) (done, interrupted bool, err error) {
	return messages(b, seq, func(typ uint16, body []byte) error {
		if typ != unix.RTM_NEWLINK {
			return nil
		}
		if len(body) < unix.SizeofIfInfomsg {
			return errShort
		}
		p := peer{index: binary.NativeEndian.Uint32(body[4:])}
		leads := false
		err := attributes(body, unix.SizeofIfInfomsg, func(typ uint16, value []byte) error {
			switch typ {
			case unix.IFLA_IFNAME:
				p.name = string(clip(value[:max(len(value)-1, 0)])) // without its NUL
			case unix.IFLA_LINK_NETNSID:
				if len(value) != 4 {
					return fmt.Errorf("netlink: a namespace's number of %d bytes", len(value))
				}
				p.nsid, leads = int32(binary.NativeEndian.Uint32(value)), true
			}
			return nil
		})
		if err == nil && leads {
			each(p)
		}
		return err
	})
}

// attributes calls each with the attributes that follow a message's own header.
func attributes(b []byte, header int, each func(typ uint16, value []byte) error) error {
	if len(b) < header {
		return errShort
	}
	for b = b[header:]; len(b) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return errShort
		}
		if err := each(binary.NativeEndian.Uint16(b[2:])&^unix.NLA_F_NESTED, b[unix.SizeofRtAttr:size]); err != nil {
			return err
		}
		b = b[min(align4(size), len(b)):]
	}
	return nil
}

func linkRequest(seq uint32) []byte {
	b := header(unix.RTM_GETLINK, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, seq, unix.SizeofIfInfomsg+8)
	b = append(b, make([]byte, unix.SizeofIfInfomsg)...)
	return attribute(b, unix.IFLA_EXT_MASK, extMaskSkipStats)
}

func nsidRequest(seq uint32, ns int) []byte {
	b := header(unix.RTM_GETNSID, unix.NLM_F_REQUEST, seq, 4+8)
	b = append(b, make([]byte, 4)...)
	return attribute(b, unix.NETNSA_FD, uint32(ns))
}

func header(typ, flags uint16, seq uint32, body int) []byte {
	b := make([]byte, 0, unix.SizeofNlMsghdr+body)
	b = binary.NativeEndian.AppendUint32(b, uint32(cap(b)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0)
}

func attribute(b []byte, typ uint16, value uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, value)
}
