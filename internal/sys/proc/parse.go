package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// nsLink reads a namespace link such as "net:[4026531840]" of the given kind ("net").
func nsLink(text []byte, kind string) (ino uint64, ok bool) {
	rest, ok := bytes.CutPrefix(text, []byte(kind))
	if !ok || len(rest) < 4 || rest[0] != ':' || rest[1] != '[' || rest[len(rest)-1] != ']' {
		return 0, false
	}
	for _, c := range rest[2 : len(rest)-1] {
		if c < '0' || c > '9' || ino > 1<<40 {
			return 0, false
		}
		ino = ino*10 + uint64(c-'0')
	}
	return ino, ino != 0
}

// dead reports whether the text of a /proc/PID/stat is that of a zombie or of a
// process that is just being taken away. Text of another form is not: whoever is
// unsure asks on.
func dead(stat []byte) bool {
	// The name in parentheses is hostile: it may hold blanks and parentheses.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return false
	}
	c := stat[i+2]
	return c == 'Z' || c == 'X' || c == 'x'
}

// nsMount is a mount that pins a network namespace.
type nsMount struct {
	ino  uint64
	path string // as seen from the root of the process whose mountinfo it stood in
}

// netMounts returns the mounts of network namespaces in a mountinfo. A line of nsfs
// that cannot be read is an error: it may be the one that matters.
func netMounts(mountinfo []byte) ([]nsMount, error) {
	var out []nsMount
	marker := []byte(" - nsfs ")
	for len(mountinfo) > 0 {
		// Few of a node's mounts are nsfs, so lines are cut only around the marker.
		i := bytes.Index(mountinfo, marker)
		if i < 0 {
			break
		}
		start := bytes.LastIndexByte(mountinfo[:i], '\n') + 1
		line := mountinfo[start:i]
		if end := bytes.IndexByte(mountinfo[i:], '\n'); end >= 0 {
			mountinfo = mountinfo[i+end+1:]
		} else {
			mountinfo = nil
		}
		m, ok, err := netMount(line)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// mountFields splits a line of a mountinfo. One blank stands between fields, and a source
// may be empty. The kernel escapes blank, tab and newline in a path, and no other white
// space: whoever owns a mount namespace could move the fields with that.
func mountFields(line []byte) [][]byte {
	return bytes.Split(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
}

func isEmpty(b []byte) bool { return len(b) == 0 }

// netMount reads the part of an nsfs line before its " - ": "ID parent maj:min root
// mountpoint options [optional fields]". ok is false for other kinds of namespaces.
func netMount(line []byte) (m nsMount, ok bool, err error) {
	f := mountFields(line)
	if len(f) < 6 || slices.ContainsFunc(f[:6], isEmpty) {
		return m, false, fmt.Errorf("mountinfo: cannot read the nsfs line %q", clip(line))
	}
	root, err := unescape(f[3])
	if err != nil {
		return m, false, err
	}
	if !strings.HasPrefix(root, "net:") {
		return m, false, nil
	}
	if m.ino, ok = nsLink([]byte(root), "net"); !ok {
		return m, false, fmt.Errorf("mountinfo: %q is no namespace", clip(f[3]))
	}
	if m.path, err = unescape(f[4]); err != nil {
		return m, false, err
	}
	return m, true, nil
}

// unescape undoes the kernel's \ooo in mountinfo.
func unescape(b []byte) (string, error) {
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b), nil
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			out = append(out, b[i])
			continue
		}
		if i+3 >= len(b) {
			return "", fmt.Errorf("mountinfo: cut-off escape in %q", clip(b))
		}
		n, err := strconv.ParseUint(string(b[i+1:i+4]), 8, 8)
		if err != nil {
			return "", fmt.Errorf("mountinfo: bad escape in %q", clip(b))
		}
		out = append(out, byte(n))
		i += 3
	}
	return string(out), nil
}

// clip bounds text for an error message.
func clip(b []byte) []byte { return b[:min(len(b), 256)] }

// cgroupIDs returns the container IDs that stand whole in the paths of a
// /proc/PID/cgroup, each once, in the order in which they stand.
func cgroupIDs(cgroup []byte) []string {
	var out []string
	var last []byte
	for line := range bytes.Lines(cgroup) {
		f := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3)
		if len(f) != 3 || bytes.Equal(f[2], last) {
			continue // cgroup v1 repeats the path for every controller
		}
		last = f[2]
		for part := range bytes.SplitSeq(last, []byte("/")) {
			out = appendIDs(out, string(part))
		}
	}
	return out
}

// appendIDs adds the container IDs in one path component: every text of the shape of
// an ID that starts at the component's start or after one of "-_.:" and ends at its
// end or before one of these. A part of an ID is none (case F17): a run of hex digits
// is taken whole or not at all, and the last part of a UUID is no ID of its own.
func appendIDs(out []string, component string) []string {
	if len(component) < 12 || len(component) > 255 {
		return out // a directory's name has at most 255 bytes
	}
	// Where the parts between separators start; part k is [starts[k], starts[k+1]-1).
	starts := []int{0}
	for i := range len(component) {
		if isSeparator(component[i]) {
			starts = append(starts, i+1)
		}
	}
	starts = append(starts, len(component)+1)
	part := func(k int) string { return component[starts[k] : starts[k+1]-1] }
	for k := range len(starts) - 1 {
		// Every shape of an ID ends in 12 hex digits or more.
		if p := part(k); len(p) < 12 || len(p) > 64 || !isHex(p) {
			continue
		}
		end := starts[k+1] - 1
		uuid := len(part(k)) == 12 && k >= 4 && len(part(k-1)) == 4 && len(part(k-2)) == 4 && len(part(k-3)) == 4 &&
			isHex(part(k-1)+part(k-2)+part(k-3)) && endsIn8Hex(part(k-4))
		if uuid && partOfChain(component[end:]) {
			continue
		}
		for s := range k + 1 {
			if s == k && uuid {
				continue
			}
			id := component[starts[s]:end]
			if !claim.IsContainerID(id) {
				continue
			}
			if !contains(out, id) {
				out = append(out, id)
			}
			if uuid {
				break // the longest: of UUID.UUID the second is no ID of its own
			}
		}
	}
	return out
}

// partOfChain reports whether rest, the text after a UUID, makes that UUID the first
// part of a longer UUID.UUID (Mesos).
func partOfChain(rest string) bool {
	const uuid = 36
	return len(rest) >= 1+uuid && rest[0] == '.' && claim.IsContainerID(rest[1:1+uuid]) &&
		(len(rest) == 1+uuid || isSeparator(rest[1+uuid]))
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func isSeparator(c byte) bool { return c == '-' || c == '_' || c == '.' || c == ':' }

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

func endsIn8Hex(s string) bool { return len(s) >= 8 && isHex(s[len(s)-8:]) }

// shimOf reads a command line of a process that holds a container for a runtime. via
// is "shim" or "conmon"; ok is false for every other process. The name of a process
// is its own word: a container can call itself a shim, which only adds reasons to
// keep.
func shimOf(cmdline []byte) (s claim.Shim, via string, ok bool) {
	name, rest, _ := bytes.Cut(cmdline, []byte{0})
	name = name[bytes.LastIndexByte(name, '/')+1:]
	switch {
	case bytes.HasPrefix(name, []byte("containerd-shim")), string(name) == "docker-containerd-shim":
		via = "shim"
	case string(name) == "conmon":
		via = "conmon"
	default:
		return s, "", false
	}
	args := strings.Split(strings.TrimRight(string(rest), "\x00"), "\x00")
	value := func(names ...string) string {
		for i, a := range args {
			for _, n := range names {
				if a == n && i+1 < len(args) {
					return args[i+1]
				}
				if v, found := strings.CutPrefix(a, n+"="); found {
					return v
				}
			}
		}
		return ""
	}
	if via == "conmon" {
		s.ID = value("-c", "--cid")
		// CRI-O and podman call the same program. CRI-O's directories for exit files and
		// sockets are below /var/run/crio unless it is told otherwise; then the name tells,
		// and that it needs no command at the exit, as podman does.
		crio := value("--exit-command") == "" && strings.HasPrefix(value("-n", "--name"), "k8s_")
		for _, dir := range []string{value("--exit-dir"), value("--socket-dir-path"), value("--persist-dir"), value("-b", "--bundle")} {
			crio = crio || contains(strings.Split(dir, "/"), "crio")
		}
		if crio {
			s.Namespace = "cri-o"
		}
	} else {
		s.ID = value("-id", "--id")
		s.Namespace = printable(value("-namespace", "--namespace"))
		s.Address = printable(value("-address", "--address"))
		if s.ID == "" {
			// The shim of containerd < 1.2 has its container's directory only.
			if dir := value("-workdir", "--workdir"); dir != "" {
				s.ID = path.Base(dir)
			}
		}
	}
	s.ID = printable(s.ID)
	return s, via, true
}

// printable returns s if it is short printable ASCII without blanks, else its quoted
// form: hostile text that is printed by others.
func printable(s string) string {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return strconv.QuoteToASCII(string(clip([]byte(s))))
		}
	}
	return string(clip([]byte(s)))
}

// arguments returns the first two arguments of a command line: of a script these are
// the interpreter and the script.
func arguments(cmdline []byte) (first, second string) {
	a, rest, _ := bytes.Cut(cmdline, []byte{0})
	b, _, _ := bytes.Cut(rest, []byte{0})
	return string(a), string(b)
}

// cniContainer returns CNI_CONTAINERID of an environment whose CNI_COMMAND is ADD or
// DEL, if it has the shape of a container ID. As for getenv, the first of equal names
// counts.
func cniContainer(environ []byte) (id string, ok bool) {
	var command, container []byte
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if x, found := bytes.CutPrefix(v, []byte("CNI_COMMAND=")); found && command == nil {
			command = x
		}
		if x, found := bytes.CutPrefix(v, []byte("CNI_CONTAINERID=")); found && container == nil {
			container = x
		}
	}
	if c := string(command); c != "ADD" && c != "DEL" || !claim.IsContainerID(string(container)) {
		return "", false
	}
	return string(container), true
}

// cniNetns returns CNI_NETNS of an environment, if it is an absolute path.
func cniNetns(environ []byte) (path string, ok bool) {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if x, found := bytes.CutPrefix(v, []byte("CNI_NETNS=")); found {
			return string(x), len(x) > 1 && x[0] == '/'
		}
	}
	return "", false
}

// address is one entry of an RTM_GETADDR dump.
type address struct {
	index uint32
	addr  netip.Addr
	label string // the interface's name, IPv4 only
}

var errShort = errors.New("netlink: message is cut off")

// messages reads a datagram of an answer to the request seq and calls each with the
// messages that are no control messages. done is true with the last one; interrupted
// when a table changed while it was dumped, so that it must be dumped again.
func messages(b []byte, seq uint32, each func(typ uint16, body []byte) error) (done, interrupted bool, err error) {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return false, interrupted, errShort
		}
		size := int(binary.NativeEndian.Uint32(b))
		typ := binary.NativeEndian.Uint16(b[4:])
		flags := binary.NativeEndian.Uint16(b[6:])
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, interrupted, errShort
		}
		body := b[unix.SizeofNlMsghdr:size]
		foreign := binary.NativeEndian.Uint32(b[8:]) != seq
		b = b[min(align4(size), len(b)):]
		if foreign {
			continue
		}
		interrupted = interrupted || flags&unix.NLM_F_DUMP_INTR != 0
		switch typ {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			// A dump may end in DONE with an error.
			if len(body) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
					return false, interrupted, unix.Errno(-code)
				}
			}
			return true, interrupted, nil
		}
		if err := each(typ, body); err != nil {
			return false, interrupted, err
		}
	}
	return false, interrupted, nil
}

// addresses reads a datagram of an RTM_GETADDR dump, as messages does.
func addresses(b []byte, seq uint32, each func(address)) (done, interrupted bool, err error) {
	return messages(b, seq, func(typ uint16, body []byte) error {
		if typ != unix.RTM_NEWADDR {
			return nil
		}
		a, err := addressOf(body)
		if err == nil && a.addr.IsValid() {
			each(a)
		}
		return err
	})
}

// addressOf reads an ifaddrmsg with its attributes. On a point-to-point link
// IFA_ADDRESS is the peer's and IFA_LOCAL is ours. The result's addr is invalid for
// other families.
func addressOf(b []byte) (a address, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, errShort
	}
	if f := b[0]; f != unix.AF_INET && f != unix.AF_INET6 {
		return a, nil
	}
	a.index = binary.NativeEndian.Uint32(b[4:])
	local := false
	for b = b[unix.SizeofIfAddrmsg:]; len(b) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return a, errShort
		}
		value := b[unix.SizeofRtAttr:size]
		switch binary.NativeEndian.Uint16(b[2:]) {
		case unix.IFA_LOCAL, unix.IFA_ADDRESS:
			isLocal := binary.NativeEndian.Uint16(b[2:]) == unix.IFA_LOCAL
			addr, ok := netip.AddrFromSlice(value)
			if !ok {
				return a, fmt.Errorf("netlink: an address of %d bytes", len(value))
			}
			if isLocal || !local {
				a.addr, local = addr.Unmap(), isLocal
			}
		case unix.IFA_LABEL:
			name, _, _ := strings.Cut(strings.TrimRight(string(value), "\x00"), ":")
			a.label = printable(name)
		}
		b = b[min(align4(size), len(b)):]
	}
	if !a.addr.IsValid() {
		return a, errors.New("netlink: an entry without address")
	}
	return a, nil
}

func align4(n int) int { return (n + 3) &^ 3 }
