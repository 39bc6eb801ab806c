package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const killed = syscall.SIGKILL

// stage is the mount namespace of a kubelet: the machine's, but for the places that a
// kubelet has no setting for. So it changes no sysctl, and two kubelets do not meet.
type stage struct {
	dir string // of what is mounted over those places
	// shared is where mounts show on both sides: the kubelet mounts volumes there, and
	// containerd, which is outside, binds them into containers.
	shared string
}

// sysctls are those that a kubelet sets, with the values it wants to find.
func sysctls() map[string]string {
	return map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
}

// places are directories that a kubelet has no setting for: symbolic links to the logs,
// and the sockets and checkpoints of device plugins.
func places() []string { return []string{"/var/log/containers", "/var/lib/kubelet"} }

// newStage makes what the namespace needs below dir.
func newStage(dir, shared string) (*stage, error) {
	s := &stage{dir: dir, shared: shared}
	for _, p := range places() {
		// Where to mount; it stays, empty, as /var/lib/cni does.
		if err := os.MkdirAll(p, 0o755); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			return nil, err
		}
	}
	for name, value := range sysctls() {
		path := filepath.Join(dir, "sysctl", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// enter moves the calling thread, which must end with whatever it starts, into a new
// namespace of this kind.
func (s *stage) enter() error {
	// A thread that shares its root directory with others cannot change its mount
	// namespace.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare(CLONE_NEWNS)", err)
	}
	points, err := mountPoints()
	if err != nil {
		return err
	}
	// Each by itself, since what is shared must not be made private first: it would have
	// left its peers for good.
	for _, p := range points {
		if p == "/run/netns" || p == s.shared || strings.HasPrefix(p, s.shared+"/") || strings.HasPrefix(p, "/run/netns/") {
			continue
		}
		// What is covered by another mount, or just went, cannot be reached by its path.
		if err := unix.Mount("", p, "", unix.MS_PRIVATE, ""); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return &os.PathError{Op: "make private", Path: p, Err: err}
		}
	}
	for _, p := range places() {
		if err := bind(filepath.Join(s.dir, p), p); err != nil {
			return err
		}
	}
	for name := range sysctls() {
		if err := bind(filepath.Join(s.dir, "sysctl", name), filepath.Join("/proc/sys", name)); err != nil {
			return err
		}
	}
	return nil
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind to " + to, Path: from, Err: err}
	}
	return nil
}

// mountPoints returns the mount points of the calling thread's namespace.
func mountPoints() ([]string, error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	octal := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, octal.Replace(f[4]))
		}
	}
	return out, nil
}

// shareMount makes a directory a mount of its own whose mounts show in copies of this
// namespace, and the other way round.
func shareMount(dir string) error {
	if err := bind(dir, dir); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return &os.PathError{Op: "make shared", Path: dir, Err: err}
	}
	return nil
}

// unmountBelow unmounts everything below dir, the last mounted first.
func unmountBelow(dir string) error {
	points, err := mountPoints()
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		if !strings.HasPrefix(p, dir+"/") {
			continue
		}
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
			return &os.PathError{Op: "umount", Path: p, Err: err}
		}
	}
	return nil
}
