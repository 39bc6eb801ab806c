package hostlocal

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// StampAttr is the extended attribute in which a reservation of our own IPAM says when,
// in which boot and for which network namespace it was made; see docs/format/stamp.md.
// host-local neither reads nor removes it.
const StampAttr = "user.holdfast.stamp"

// The layout of a stamp, in bytes. ext4 keeps an attribute of this name in the inode if its
// value has at most 56; a larger one takes a block of its own, which costs an ADD 0.07 ms and
// a DEL 0.09.
const (
	stampVersion = '2'
	stampMono    = 17
	stampNetns   = 25
	stampSum     = 33
	stampSize    = 49
)

// maxStamp bounds an attribute that is read, in bytes.
const maxStamp = 512

// errStamp is any stamp that is not whole; then the reservation counts as unstamped.
var errStamp = errors.New("not a stamp of a version that is known here")

// formatStamp writes the stamp of a reservation with this content; s.Boot is a boot ID. The
// sum ties it to the content: a stamp that was copied to other content proves nothing.
func formatStamp(s claim.Stamp, content []byte) []byte {
	b := make([]byte, 0, stampSize)
	b = append(b, stampVersion)
	b = fromHex(b, strings.ReplaceAll(s.Boot, "-", ""))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Mono.Nanoseconds()))
	b = binary.LittleEndian.AppendUint64(b, s.Netns)
	return fromHex(b, sum(content))
}

// fromHex appends what lower-case hex means; text that is none makes a stamp that nobody reads.
func fromHex(b []byte, text string) []byte {
	b, _ = hex.AppendDecode(b, []byte(text))
	return b
}

// parseStamp reads a stamp of content with that sum.
func parseStamp(b []byte, contentSum string) (claim.Stamp, error) {
	if len(b) != stampSize || b[0] != stampVersion || hex.EncodeToString(b[stampSum:]) != contentSum {
		return claim.Stamp{}, errStamp
	}
	h := hex.EncodeToString(b[1:stampMono])
	s := claim.Stamp{
		Boot:  h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:],
		Mono:  time.Duration(binary.LittleEndian.Uint64(b[stampMono:])),
		Netns: binary.LittleEndian.Uint64(b[stampNetns:]),
	}
	if s.Mono < 0 || !claim.IsUUID(s.Boot) {
		return claim.Stamp{}, errStamp
	}
	return s, nil
}

// hasStamp reports whether a last_reserved_ip.N is one that our own IPAM wrote, which
// marks a directory in which reservations may have stamps; elsewhere nobody looks for one in
// each file.
func (f files) hasStamp(dirfd int, name string) bool {
	fd, err := f.openReservation(dirfd, name)
	if err != nil {
		return false
	}
	defer f.Close(fd)
	n, err := f.Fgetxattr(fd, StampAttr, make([]byte, maxStamp))
	return err == nil && n > 0
}

// stamp reads the stamp of an open reservation. Nil without an error: it has none
// that counts. An error is the file system's, and says nothing of the reservation.
func (f files) stamp(fd int, contentSum string) (*claim.Stamp, error) {
	buf := make([]byte, maxStamp)
	n, err := f.Fgetxattr(fd, StampAttr, buf)
	switch err {
	case nil:
	case unix.ENODATA, unix.EOPNOTSUPP, unix.ERANGE:
		return nil, nil
	default:
		return nil, err
	}
	s, err := parseStamp(buf[:n], contentSum)
	if err != nil {
		return nil, nil //nolint:nilerr // no stamp of ours is no stamp
	}
	return &s, nil
}
