package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/fsys"
)

const (
	bootID = "sys/kernel/random/boot_id"
	// maxMountinfo bounds PID 1's mountinfo, in bytes. A node with 10,000 mounts has
	// about 2 MiB.
	maxMountinfo = 64 << 20
)

// ID is the boot ID and where it was read.
type ID struct {
	Value string
	// Fallback is true when it is not from PID 1's own view; see the package's word
	// on why it is the same.
	Fallback bool
}

// ReadID reads the boot ID through proc, such as "/proc". An error means that it is
// not known, or that our clocks are not PID 1's, and then nothing may be released. It
// never guesses.
func ReadID(proc string) (ID, error) {
	if err := hostClocks(proc, "/proc/self/ns/time"); err != nil {
		return ID{}, fmt.Errorf("boot ID: of no use here: %w", err)
	}
	value, err := readUUID(filepath.Join(proc, "1/root/proc", bootID), nil)
	if err == nil {
		return ID{Value: value}, nil
	}
	if !errors.Is(err, fs.ErrPermission) {
		return ID{}, fmt.Errorf("boot ID in PID 1's view: %w", err)
	}
	if err := notCovered(filepath.Join(proc, "1/mountinfo")); err != nil {
		return ID{}, fmt.Errorf("boot ID: PID 1's root is refused, and %w", err)
	}
	var root unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(statfs(proc, &root), stat(proc, &st)); err != nil {
		return ID{}, fmt.Errorf("boot ID: %w", err)
	}
	if root.Type != unix.PROC_SUPER_MAGIC {
		return ID{}, fmt.Errorf("boot ID: %q is no proc file system", proc)
	}
	value, err = readUUID(filepath.Join(proc, bootID), &st.Dev)
	if err != nil {
		return ID{}, fmt.Errorf("boot ID: %w", err)
	}
	return ID{Value: value, Fallback: true}, nil
}

// initialTimeNS is the inode of the initial time namespace (PROC_TIME_INIT_INO in
// include/linux/proc_ns.h, part of the user-space interface), as initialPIDNS of
// package proc is.
const initialTimeNS = 0xEFFFFFFA

// hostClocks reports an error unless the time namespace at own is PID 1's. In another
// one CLOCK_MONOTONIC is moved by any amount, and a grace that was measured partly there
// is over at once. Which namespace is for children does not matter: it takes effect with
// the next fork or exec, so never for us.
//
// Where PID 1 is refused to us (a security module, or no root), the initial time
// namespace is taken for PID 1's.
func hostClocks(proc, own string) error {
	var mine, host unix.Stat_t
	if err := stat(own, &mine); err != nil {
		var dir unix.Stat_t
		if errors.Is(err, fs.ErrNotExist) && stat(filepath.Dir(own), &dir) == nil {
			return nil // a kernel before 5.6, or built without them
		}
		return fmt.Errorf("our time namespace: %w", err)
	}
	err := stat(filepath.Join(proc, "1/ns/time"), &host)
	if errors.Is(err, fs.ErrPermission) {
		if mine.Ino == initialTimeNS {
			return nil
		}
		return fmt.Errorf("we are in time namespace %d, not in the initial one (%d), and PID 1's is refused to us: our clocks may be moved: %w",
			mine.Ino, uint64(initialTimeNS), err)
	}
	if err != nil {
		return fmt.Errorf("PID 1's time namespace: %w", err)
	}
	if mine.Dev != host.Dev || mine.Ino != host.Ino {
		return fmt.Errorf("we are in time namespace %d, PID 1 in %d: our clocks are moved; run outside of it", mine.Ino, host.Ino)
	}
	return nil
}

// readUUID reads a file that holds one UUID in the kernel's spelling. With dev, the
// file must lie on that device.
func readUUID(path string, dev *uint64) (string, error) {
	text, at, err := readFile(path, 128)
	if err != nil {
		return "", err
	}
	if dev != nil && at != *dev {
		return "", fmt.Errorf("another file system is mounted over %q", path)
	}
	value := string(bytes.TrimSuffix(text, []byte("\n")))
	if !IsUUID(value) {
		return "", fmt.Errorf("%q holds %q, which is no boot ID", path, value)
	}
	return value, nil
}

// readFile reads at most limit bytes of a file, and says on which device it lies. It does
// not go through package os, whose poller takes longer to set up than all else here.
func readFile(path string, limit int) (text []byte, dev uint64, err error) {
	fail := func(op string, err error) ([]byte, uint64, error) {
		return nil, 0, &fs.PathError{Op: op, Path: path, Err: err}
	}
	var k fsys.OS
	fd, err := k.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return fail("open", err)
	}
	defer k.Close(fd)
	st, err := k.Fstat(fd)
	if err != nil {
		return fail("fstat", err)
	}
	// The kernel fills a page at most with each call.
	for text = make([]byte, 0, min(limit, 8<<10)); len(text) < limit; {
		text = slices.Grow(text, min(limit-len(text), 4<<10))
		n, err := k.Pread(fd, text[len(text):min(cap(text), limit)], int64(len(text)))
		if err != nil {
			return fail("read", err)
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	return text, st.Dev, nil
}

// notCovered reports an error unless PID 1's mounts can be read and none of them lies
// over the boot ID.
func notCovered(mountinfo string) error {
	text, _, err := readFile(mountinfo, maxMountinfo)
	switch {
	case err != nil:
		return err
	case len(text) == 0:
		return fmt.Errorf("%q is empty", mountinfo)
	case len(text) == maxMountinfo:
		return fmt.Errorf("%q is longer than %d bytes", mountinfo, maxMountinfo)
	}
	if coversBootID(text) {
		return fmt.Errorf("a mount covers the boot ID there")
	}
	return nil
}

// coversBootID reports whether a mountinfo names a mount point at or above the boot
// ID but below /proc. /proc/sys itself does not count: container engines mount it
// over itself, read-only, and it is the same file system.
func coversBootID(mountinfo []byte) bool {
	if !bytes.Contains(mountinfo, []byte(" /proc/sys/kernel")) {
		return false // nearly always, and then no line need be looked at
	}
	for line := range bytes.Lines(mountinfo) {
		// One blank between fields; the kernel leaves other white space in a path as it is.
		field := bytes.Split(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		if len(field) < 5 {
			continue
		}
		switch string(field[4]) {
		case "/proc/sys/kernel", "/proc/sys/kernel/random", "/proc/sys/kernel/random/boot_id":
			return true
		}
	}
	return false
}

func statfs(path string, st *unix.Statfs_t) error {
	if err := unix.Statfs(path, st); err != nil {
		return &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return nil
}

func stat(path string, st *unix.Stat_t) error {
	if err := unix.Stat(path, st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return nil
}

// IsUUID reports whether s is a UUID as the kernel spells a boot ID: lower-case hex,
// and not all zeros.
func IsUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	zero := true
	for i := range len(s) {
		switch c := s[i]; i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
			zero = zero && c == '0'
		}
	}
	return !zero
}

// Now reads the boot ID and the clocks. With an error, Boot is empty, which makes every
// comparison of instants fail; Wall is still right, Mono only if the error is not about
// the time namespace.
func Now(proc string) (claim.Instant, error) {
	id, err := ReadID(proc)
	if err != nil {
		id = ID{}
	}
	at, clockErr := read(id.Value)
	return at, errors.Join(err, clockErr)
}

func read(boot string) (claim.Instant, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		// Without a clock no interval can be proven: an Instant of no boot.
		return claim.Instant{Wall: time.Now()}, os.NewSyscallError("clock_gettime", err)
	}
	return claim.Instant{Boot: boot, Mono: time.Duration(ts.Nano()), Wall: time.Now().Round(0)}, nil
}

// Clock gives instants with a boot ID that is read once: it cannot change under a
// running process. Safe for use by several goroutines.
type Clock struct {
	once func() (ID, error)
}

// NewClock returns a clock that reads the boot ID through proc when first used.
func NewClock(proc string) *Clock {
	return &Clock{once: sync.OnceValues(func() (ID, error) { return ReadID(proc) })}
}

// Now returns an instant. When the boot ID or the clock cannot be read, Boot is
// empty, which makes every comparison of instants fail; ID says why.
func (c *Clock) Now() claim.Instant {
	id, err := c.once()
	if err != nil {
		id = ID{}
	}
	at, _ := read(id.Value)
	return at
}

// ID returns the boot ID that Now uses.
func (c *Clock) ID() (ID, error) { return c.once() }
