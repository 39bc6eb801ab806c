package hostlocal

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/fsys"
)

const maxLocksSize = 4 << 20

// LockHolders returns the PIDs that hold a flock on path, as <proc>/locks shows them
// in the PID namespace of that procfs; ascending, nil when nobody is seen.
//
// The kernel records who took the lock, and a child may hold it after its parent is
// gone (flock(1) on an inherited descriptor). When that PID lives no more, the
// processes that have the file open are named instead. On file systems whose st_dev
// differs from what /proc/locks prints (btrfs, some overlays), a holder with the same
// inode number counts only if it has the file open.
func LockHolders(proc, path string) []int { return lockHolders(fsys.OS{}, proc, path) }

func lockHolders(fs fsys.FS, proc, path string) []int {
	st, err := fsys.StatPath(fs, path)
	if err != nil {
		return nil
	}
	// Its size is unknown to stat: read what comes, bounded.
	f, err := os.Open(filepath.Join(proc, "locks"))
	if err != nil {
		return nil
	}
	defer f.Close()
	data := make([]byte, 0, 16<<10)
	for len(data) < maxLocksSize {
		data = slices.Grow(data, 16<<10)
		n, err := f.Read(data[len(data) : len(data)+16<<10])
		data = data[:len(data)+n]
		if err != nil {
			break
		}
	}
	exact, maybe := parseLocks(string(data), unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for _, pid := range maybe {
		if hasOpen(proc, pid, st.Key()) {
			exact = append(exact, pid)
		}
	}
	alive := slices.DeleteFunc(slices.Clone(exact), func(pid int) bool {
		_, err := os.Stat(filepath.Join(proc, strconv.Itoa(pid)))
		return err != nil
	})
	if len(alive) == 0 && len(exact) > 0 {
		alive = openers(proc, st.Key())
	}
	slices.Sort(alive)
	return slices.Compact(alive)
}

// parseLocks reads /proc/locks: "1: FLOCK  ADVISORY  WRITE 4242 fe:00:1835016 0 EOF",
// with "->" before the kind for one that waits. maybe are those that agree by inode
// only.
func parseLocks(text string, major, minor uint32, ino uint64) (exact, maybe []int) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			continue
		}
		id := strings.Split(f[5], ":")
		if len(id) != 3 {
			continue
		}
		ma, err1 := strconv.ParseUint(id[0], 16, 32)
		mi, err2 := strconv.ParseUint(id[1], 16, 32)
		in, err3 := strconv.ParseUint(id[2], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil || in != ino {
			continue
		}
		if uint32(ma) == major && uint32(mi) == minor {
			exact = append(exact, pid)
		} else {
			maybe = append(maybe, pid)
		}
	}
	return exact, maybe
}

// openers returns the processes but ourselves that have the file open.
func openers(proc string, key fsys.Key) []int {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && hasOpen(proc, pid, key) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func hasOpen(proc string, pid int, key fsys.Key) bool {
	dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if st, err := fsys.StatPath(fsys.OS{}, filepath.Join(dir, fd.Name())); err == nil && st.Key() == key {
			return true
		}
	}
	return false
}
