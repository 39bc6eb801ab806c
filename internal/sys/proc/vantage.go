package proc

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

// initialPIDNS is the inode of the initial PID namespace (PROC_PID_INIT_INO in
// include/linux/proc_ns.h, part of the user-space interface).
const initialPIDNS = 0xEFFFFFFC

// InInitialPIDNS reports whether this process is in the initial PID namespace, so that PID 1 of
// /proc is the node's. What cannot be read is false.
func InInitialPIDNS(proc string) bool {
	id, err := identity(filepath.Join(proc, "self/ns/pid"))
	return err == nil && id.ino == initialPIDNS
}

// ownPowers reads our effective capabilities.
func ownPowers() powers {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return powers{}
	}
	has := func(c uint) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	return powers{ptrace: has(unix.CAP_SYS_PTRACE), admin: has(unix.CAP_SYS_ADMIN)}
}

// binDirs returns directories as configured and as executables show them, since
// /opt/cni/bin is often a link: ours, and in a container that of the node.
func binDirs(proc string, dirs []string) []string {
	var out []string
	root, err := initRoot(proc)
	if err == nil {
		defer unix.Close(root)
	}
	for _, d := range dirs {
		out = append(out, filepath.Clean(d))
		if r, err := filepath.EvalSymlinks(d); err == nil {
			out = append(out, r)
		}
		if root < 0 {
			continue
		}
		fd, err := unix.Openat2(root, d, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err != nil {
			continue
		}
		// The kernel names it as it names executables there.
		if r, err := os.Readlink("/proc/self/fd/" + itoa(fd)); err == nil {
			out = append(out, r)
		}
		unix.Close(fd)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// vantage says whether the snapshot shows the whole node (I13). failure is why it was
// not taken, if it was not.
func (s *snapshot) vantage(failure error) claim.Vantage {
	var v claim.Vantage
	mandatory := true
	check := func(c claim.Check) {
		if c.OK {
			c.Fix = ""
		}
		mandatory = mandatory && c.OK
		v.Checks = append(v.Checks, c)
	}
	isProc := false
	if s.proc >= 0 {
		var fs unix.Statfs_t
		isProc = unix.Fstatfs(s.proc, &fs) == nil && int64(fs.Type) == unix.PROC_SUPER_MAGIC
	}
	check(claim.Check{
		Name: "proc", OK: isProc, Detail: fmt.Sprintf("%q is a proc file system: %t", s.path, isProc),
		Fix: "name the node's proc file system with --proc",
	})
	check(claim.Check{
		Name: "capabilities", OK: s.powers.both(),
		Detail: fmt.Sprintf("CAP_SYS_PTRACE: %t, CAP_SYS_ADMIN: %t", s.powers.ptrace, s.powers.admin),
		Fix:    "run as root; in a container, privileged",
	})
	if isProc {
		pidns, detail := s.pidNamespace()
		initial := pidns == initialPIDNS
		v.InitialPIDNS, v.PIDNS = initial, pidns
		c := claim.Check{Name: "pid-namespace", OK: initial, Detail: detail}
		if !initial {
			c.Fix = "run in the node's PID namespace (hostPID: true), or name its proc file system with --proc"
		}
		v.Checks = append(v.Checks, c) // not mandatory here: package verdict combines
		check(s.hidepid())
	}
	check(claim.Check{
		Name: "processes", OK: s.initSeen && s.procs > 1,
		Detail: fmt.Sprintf("%d processes, PID 1 and its mounts among them: %t", s.procs, s.initSeen),
		Fix:    "this shows no node: run in the node's PID namespace, or name its proc file system with --proc",
	})
	if s.exempt {
		v.Checks = append(v.Checks, claim.Check{
			Name: "init-descriptors", OK: true,
			Detail: "a security module refuses PID 1 to us: its network namespace and its mounts were learnt otherwise, its open descriptors were not",
		})
	}
	if n := len(s.coveredAt); n > 0 {
		v.Checks = append(v.Checks, claim.Check{
			Name: "covered-mounts", OK: true,
			Detail: fmt.Sprintf("%d network namespaces were entered through a private copy of the mounts, since another mount lies above theirs: at %q",
				n, s.coveredAt[:min(n, 8)]),
		})
	}
	left := s.leftOut()
	if n := len(left); n > 0 {
		v.Checks = append(v.Checks, claim.Check{
			Name: "other-users-mounts", OK: true,
			Detail: fmt.Sprintf("%d network namespaces were left out: nothing but mounts of other user namespaces shows them, and no path leads there: %s",
				n, strings.Join(left[:min(n, 8)], "; ")),
		})
	}
	if n := len(s.deaf); n > 0 {
		pids := slices.Sorted(maps.Keys(s.deaf))
		v.Checks = append(v.Checks, claim.Check{
			Name: "other-users-memory", OK: true,
			Detail: fmt.Sprintf("the command lines of %d processes of other users than root were left out, since a file system does not answer: of PIDs %v", n, pids[:min(n, 8)]),
		})
	}
	if isProc && !v.InitialPIDNS {
		v.Checks = append(v.Checks, claim.Check{
			Name: "host-links", OK: true,
			Detail: "not looked at: below another PID namespace, the node's own links may lead to namespaces that only that one shows",
		})
	}
	c := claim.Check{Name: "enumeration", OK: failure == nil}
	if failure != nil {
		c.Detail = failure.Error()
		c.Fix = "see the detail; while it lasts, nothing is released"
	} else {
		c.Detail = fmt.Sprintf("%d network namespaces, every one entered; settled after %d enumerations", len(s.last)-len(left), s.rounds)
	}
	check(c)
	v.Proven = mandatory
	return v
}

// pidNamespace returns the PID namespace of which the proc file system is, 0 when that
// cannot be told. It shows the processes of its own namespace and of those below it, and
// nothing lies above the initial one: so one process in the initial namespace
// proves it. PID 1 is asked, and kthreadd where PID 1 is guarded.
func (s *snapshot) pidNamespace() (ino uint64, detail string) {
	var link [64]byte
	for _, pid := range []string{"1", "2"} {
		n, err := readlinkat(s.proc, pid+"/ns/pid", link[:])
		if err != nil {
			detail = fmt.Sprintf("%s/%s/ns/pid: %v", s.path, pid, err)
			continue
		}
		ino, ok := nsLink(link[:n], "pid")
		switch {
		case ok && ino == initialPIDNS:
			return ino, "initial"
		case !ok || pid != "1":
			// Another process may be in a namespace below the one that is shown.
			return 0, fmt.Sprintf("PID %s is not in the initial PID namespace (%d)", pid, uint64(initialPIDNS))
		}
		return ino, fmt.Sprintf("PID %s is in PID namespace %d, not in the initial one (%d)", pid, ino, uint64(initialPIDNS))
	}
	return 0, detail
}

// hidepid looks for a mount option that hides processes. Whoever may ptrace a process
// sees it all the same.
func (s *snapshot) hidepid() claim.Check {
	c := claim.Check{Name: "hidepid", OK: true, Detail: "processes are not hidden", Fix: "run with CAP_SYS_PTRACE"}
	if s.powers.ptrace {
		c.Detail = "CAP_SYS_PTRACE sees hidden processes"
		return c
	}
	text, err := readFile(s.proc, "self/mountinfo", nil, maxMountinfo)
	if err != nil {
		c.OK = false
		c.Detail = fmt.Sprintf("the mount options are unknown: %v", err)
		return c
	}
	if hidesPIDs(text, s.path) {
		c.OK = false
		c.Detail = "mounted with hidepid"
	}
	return c
}

// hidesPIDs reports whether the last proc mount at a path has a hidepid option other
// than off.
func hidesPIDs(mountinfo []byte, at string) bool {
	hides := false
	for line := range bytes.Lines(mountinfo) {
		f := mountFields(line)
		if len(f) < 9 || string(f[4]) != filepath.Clean(at) {
			continue
		}
		i := slices.IndexFunc(f, func(x []byte) bool { return len(x) == 1 && x[0] == '-' })
		if i < 0 || i+3 >= len(f) || string(f[i+1]) != "proc" {
			continue
		}
		hides = false
		for o := range bytes.SplitSeq(f[i+3], []byte(",")) {
			v, ok := bytes.CutPrefix(o, []byte("hidepid="))
			hides = hides || ok && string(v) != "0" && string(v) != "off"
		}
	}
	return hides
}
