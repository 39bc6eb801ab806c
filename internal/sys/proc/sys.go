package proc

import (
	"errors"
	"io"
	"strconv"

	"golang.org/x/sys/unix"
)

// gone reports whether err says that the process, or the thing in it, is not there.
// A process that ends is never an error.
func gone(err error) bool { return err == unix.ENOENT || err == unix.ESRCH }

// refused reports whether err says that we may not look. See alive.
func refused(err error) bool { return err == unix.EACCES || err == unix.EPERM }

// alive reports whether the process (or thread) behind a /proc/PID directory that was
// opened earlier is still there. The descriptor stands for that process, not for its
// number, so a PID that was used again does not deceive it.
//
// Reading a link of a process that ends between the path walk and the operation gives
// EACCES, not ENOENT (fs/proc/namespaces.c, fs/proc/base.c). Whoever got EACCES and
// then finds the process alive was truly refused.
func alive(dir int) bool {
	fd, err := openat(dir, "stat", unix.O_RDONLY)
	if err != nil {
		return !gone(err)
	}
	defer unix.Close(fd)
	var buf [512]byte
	n, err := read(fd, buf[:])
	if err != nil {
		return !gone(err)
	}
	return n > 0 && !dead(buf[:n])
}

func openat(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func readlinkat(dir int, path string, buf []byte) (int, error) {
	for {
		n, err := unix.Readlinkat(dir, path, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}

func read(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}

var errTooLong = errors.New("longer than expected")

// readAll reads fd from its position to its end into buf, which grows up to limit
// bytes. Longer content is errTooLong, never a cut-off answer.
func readAll(fd int, buf []byte, limit int) ([]byte, error) {
	buf = buf[:cap(buf)]
	if len(buf) == 0 {
		buf = make([]byte, 4096)
	}
	used := 0
	for {
		if used == len(buf) {
			if used >= limit {
				return buf[:used], errTooLong
			}
			buf = append(buf, make([]byte, min(len(buf), limit-len(buf)))...)
		}
		n, err := read(fd, buf[used:])
		if err != nil {
			return buf[:used], err
		}
		if n == 0 {
			return buf[:used], nil
		}
		used += n
	}
}

// readFile is readAll of a file below dir.
func readFile(dir int, path string, buf []byte, limit int) ([]byte, error) {
	fd, err := openat(dir, path, unix.O_RDONLY)
	if err != nil {
		return buf[:0], err
	}
	defer unix.Close(fd)
	return readAll(fd, buf, limit)
}

// numbers calls each with every entry of an open directory whose name is a decimal
// number above 0, which are PIDs, thread IDs and descriptors (0 as well, with zero).
func numbers(fd int, buf []byte, zero bool, each func(n int) error) error {
	for {
		n, err := unix.Getdents(fd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		for b := buf[:n]; len(b) > 0; {
			num, size, ok := dirent(b)
			if size <= 0 || size > len(b) {
				return io.ErrUnexpectedEOF
			}
			b = b[size:]
			if !ok || num == 0 && !zero {
				continue
			}
			if err := each(num); err != nil {
				return err
			}
		}
	}
}

// dirent reads the first linux_dirent64 of b: its size, and its name as a number.
func dirent(b []byte) (num, size int, ok bool) {
	const header = 8 + 8 + 2 + 1 // ino, off, reclen, type
	if len(b) < header {
		return 0, 0, false
	}
	size = int(b[16]) | int(b[17])<<8
	if size < header || size > len(b) {
		return 0, 0, false
	}
	num, ok = decimalPrefix(b[header:size])
	return num, size, ok
}

// decimalPrefix reads a NUL-terminated decimal number of up to 9 digits (a PID has at
// most 7, a descriptor 10 but never here).
func decimalPrefix(name []byte) (int, bool) {
	n := 0
	for i, c := range name {
		switch {
		case c == 0:
			return n, i > 0
		case c < '0' || c > '9' || i >= 10:
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return 0, false
}

func itoa(n int) string { return strconv.Itoa(n) }
