package hostlocal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// StampAttr is the extended attribute in which a reservation of our own IPAM says when,
// in which boot and for which network namespace it was made; see docs/format/stamp.md.
// host-local neither reads nor removes it.
const StampAttr = "user.holdfast.stamp"

const stampVersion = "1"

// maxStamp bounds an attribute that is read, in bytes. Ours have about 110.
const maxStamp = 512

// errStamp is any stamp that is not whole; then the reservation counts as unstamped.
var errStamp = errors.New("not a stamp of a version that is known here")

// formatStamp writes the stamp of a reservation with this content. The sum ties it to
// the content: a stamp that was copied to other content proves nothing.
func formatStamp(s claim.Stamp, content []byte) []byte {
	return fmt.Appendf(nil, "%s %s %d %d %s", stampVersion, s.Boot, s.Mono.Nanoseconds(), s.Netns, sum(content))
}

// parseStamp reads a stamp of content with that sum.
func parseStamp(text []byte, contentSum string) (claim.Stamp, error) {
	fields := strings.Split(string(text), " ")
	if len(fields) != 5 || fields[0] != stampVersion || fields[4] != contentSum || !claim.IsUUID(fields[1]) {
		return claim.Stamp{}, errStamp
	}
	mono, err1 := strconv.ParseInt(fields[2], 10, 64)
	netns, err2 := strconv.ParseUint(fields[3], 10, 64)
	if err1 != nil || err2 != nil || mono < 0 {
		return claim.Stamp{}, errStamp
	}
	// Other spellings of a number are nothing that we write.
	if strconv.FormatInt(mono, 10) != fields[2] || strconv.FormatUint(netns, 10) != fields[3] {
		return claim.Stamp{}, errStamp
	}
	return claim.Stamp{Boot: fields[1], Mono: time.Duration(mono), Netns: netns}, nil
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
