package proc

import (
	"golang.org/x/sys/unix"
)

const (
	// perProcess is how many descriptors a snapshot holds at most of an ordinary process:
	// its network namespace and the mounts that it sees.
	perProcess = 2
	// maxRoom bounds the table of descriptors that is made beforehand, 8 bytes each.
	maxRoom = 16 << 10
)

// Room makes this process's table of descriptors large enough for a snapshot. The kernel
// doubles a table that threads share when it is full, and makes whoever opens the next
// file wait each time until every processor has passed a grace period of RCU
// (expand_fdtable), 5 to 15 ms in which the others that open something wait as well.
// Called while something else is at work, Room has that behind it before the snapshot
// begins. It is safe for concurrent use. That it does not succeed is no error: then the
// table grows as it is needed.
func (w *Witness) Room() {
	dir, err := openat(unix.AT_FDCWD, w.cfg.Proc, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return
	}
	// The root of a proc file system counts every process as a link (proc_root_getattr).
	want := min(perProcess*int(st.Nlink)+64, maxRoom)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return
	}
	want = min(want, int(min(limit.Cur, 2*maxRoom))-1)
	// The lowest free number from there on: no descriptor of anybody is replaced.
	if high, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, want); err == nil {
		unix.Close(high)
	}
}
