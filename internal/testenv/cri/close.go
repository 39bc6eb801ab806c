package cri

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
)

// Places that containerd has no setting for.
const (
	libcniCache = "/var/lib/cni" // with its directory results
	shimSockets = "/run/containerd/s"
)

// close takes away everything. It runs when the test is over.
func (r *Runtime) close(t testing.TB) {
	if t.Failed() {
		t.Logf("the end of containerd's log:\n%s", r.logTail())
	}
	var errs []error
	recs, err := r.p.recorded()
	errs = append(errs, err)
	for _, rec := range recs {
		leak.Own(t, rec.netns)
	}
	if r.conn != nil {
		errs = append(errs, r.conn.Close())
	}
	if r.alive() {
		errs = append(errs, r.cmd.Process.Kill())
		<-r.exited
	}
	errs = append(errs, r.init.end(), r.p.takeAway(r.cgroup), r.host.close(), r.owner.Close())
	if err := errors.Join(errs...); err != nil {
		t.Errorf("taking containerd away: %v", err)
	}
}

// takeAway ends and removes all that belongs to one directory, each thing by its exact
// name, and says what it could not take away. It does not stop half way; the directory
// goes last, and only if all else went, since it names the rest.
func (p paths) takeAway(cgroup string) error {
	recs, err := p.recorded()
	errs := []error{err}
	// Sandboxes in the node's own namespace call no plugin.
	unnetworked, err := p.shims()
	errs = append(errs, err,
		killAll(func(q process) bool {
			return filepath.Base(q.args[0]) == "containerd" && q.flag("--config") == p.config
		}),
		p.killShims(""),
		killAll(func(q process) bool { // before its container: it would run podman's clean-up
			return filepath.Base(q.args[0]) == "conmon" && slices.ContainsFunc(q.args, func(a string) bool {
				return strings.HasPrefix(a, p.dir+"/")
			})
		}),
		killCgroup(cgroup), killCgroup(cgroup+podmanSuffix),
		killAll(func(q process) bool { return len(q.args) == 2 && q.args[1] == p.dir }), // a stand-in
	)
	for _, rec := range recs {
		errs = append(errs, dropNetns(rec.netns), removeCache(rec.id), p.removeShimSocket(rec.id))
	}
	for _, id := range unnetworked {
		errs = append(errs, p.removeShimSocket(id))
	}
	errs = append(errs, unmountBelow(p.dir), removeCgroups(cgroup), removeCgroups(cgroup+podmanSuffix))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(p.dir)
}

// shims returns the sandbox IDs of the shims that run.
func (p paths) shims() ([]string, error) {
	var ids []string
	err := killAll(func(q process) bool {
		if p.isShim(q) {
			ids = append(ids, q.flag("-id"))
		}
		return false // only looked at
	})
	return ids, err
}

// removeShimSocket knows the name from containerd's runtime/v2/shim/util_unix.go.
func (p paths) removeShimSocket(id string) error {
	sum := sha256.Sum256([]byte(filepath.Join(p.socket, "k8s.io", id)))
	return removeIfThere(filepath.Join(shimSockets, fmt.Sprintf("%x", sum)))
}

var cgroupName = regexp.MustCompile(`^/hf-[a-z0-9]{12}$`)

// own marks the directory as belonging to a living test: a lock on a file that names
// the cgroup. It appears under its name locked, so that nobody finds it unlocked.
func (p paths) own(cgroup string) (*os.File, error) {
	f, err := os.OpenFile(p.owner+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(cgroup)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err == nil {
		err = os.Rename(f.Name(), p.owner)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// takeAwayAbandoned takes away what test binaries left that were killed (go test
// -timeout, a closed pipe): their lock is gone with them.
func takeAwayAbandoned() error {
	owners, err := filepath.Glob(filepath.Join(os.TempDir(), "hf-*", "owner"))
	errs := []error{err}
	for _, path := range owners {
		errs = append(errs, takeAwayIfAbandoned(path))
	}
	return errors.Join(errs...)
}

func takeAwayIfAbandoned(owner string) error {
	dir := filepath.Dir(owner)
	var st unix.Stat_t
	// Only what this user's test made: what it says is believed.
	if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return nil
	}
	f, err := os.OpenFile(owner, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil // just taken away by another
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // alive
	}
	content, err := os.ReadFile(owner)
	if err != nil {
		return nil
	}
	cgroup := string(content)
	if !cgroupName.MatchString(cgroup) {
		return fmt.Errorf("%s: %q is no cgroup of ours", owner, cgroup)
	}
	return pathsIn(dir).takeAway(cgroup)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeCache removes the libcni cache entries of one container ID, of whatever
// network: <network>-<ID>-<interface>.
func removeCache(id string) error {
	if len(id) < 32 {
		return fmt.Errorf("%q is no container ID", id) // never a glob that matches others
	}
	files, err := filepath.Glob(filepath.Join(libcniCache, "results", "*-"+id+"-*"))
	errs := []error{err}
	for _, f := range files {
		errs = append(errs, removeIfThere(f))
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything below dir in our mount namespace, the innermost and
// last mounted first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, &fs.PathError{Op: "umount", Path: p, Err: err})
		}
	}
	return errors.Join(errs...)
}

// removeCgroups removes a cgroup with all below it from every hierarchy (version 1,
// hybrid or 2). Nothing may run in it any more.
func removeCgroups(path string) error {
	tops, err := filepath.Glob("/sys/fs/cgroup/*" + path)
	if err != nil {
		return err
	}
	var errs []error
	for _, top := range append(tops, "/sys/fs/cgroup"+path) {
		var dirs []string
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		errs = append(errs, err)
		for _, d := range slices.Backward(dirs) {
			errs = append(errs, removeIfThere(d))
		}
	}
	return errors.Join(errs...)
}
