package cri

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Places that containerd has no setting for.
const (
	libcniCache = "/var/lib/cni" // with its directory results
	shimSockets = "/run/containerd/s"
)

// close takes away everything, each thing by its exact name, and says what it could
// not take away. It runs when the test is over, so it must not stop half way.
func (r *Runtime) close(t testing.TB) {
	if t.Failed() {
		t.Logf("the end of containerd's log:\n%s", r.logTail())
	}
	recs, err := r.p.recorded()
	errs := []error{err}
	if r.alive() {
		errs = append(errs, r.cmd.Process.Kill())
		<-r.exited
	}
	if r.conn != nil {
		errs = append(errs, r.conn.Close())
	}
	errs = append(errs, r.killShims(""), killCgroup(r.cgroup))
	for _, rec := range recs {
		errs = append(errs, dropNetns(rec.netns), removeCache(rec.id))
		// The name of a shim's socket: containerd runtime/v2/shim/util_unix.go.
		sum := sha256.Sum256([]byte(filepath.Join(r.p.socket, "k8s.io", rec.id)))
		errs = append(errs, removeIfThere(filepath.Join(shimSockets, fmt.Sprintf("%x", sum))))
	}
	errs = append(errs, unmountBelow(r.p.dir), removeCgroups(r.cgroup), r.host.close(), os.RemoveAll(r.p.dir))
	if err := errors.Join(errs...); err != nil {
		t.Errorf("taking containerd away: %v", err)
	}
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
