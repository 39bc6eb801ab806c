package leak

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// survey returns everything of ours that is there, by what tells one from the other: of
// mark, who inherited it ("": children alone), of owned, what carries such a name.
func survey(mark string, owned []string) map[string]Finding {
	s := surveyor{found: map[string]Finding{}, mark: mark, owned: owned}
	for what, look := range map[string]func() error{
		"open files": s.files, "goroutines": s.goroutines, "threads": s.threads, "processes": s.processes,
		"mounts": s.mounts, "links": s.links, "cgroups": s.cgroups, "files": s.paths,
	} {
		if err := look(); err != nil {
			s.add(what, Unread, what, err.Error())
		}
	}
	return s.found
}

type surveyor struct {
	found map[string]Finding
	mark  string
	owned []string
}

func (s *surveyor) add(id string, k Kind, object, text string) {
	s.found[string(k)+" "+id] = Finding{k, object, text}
}

// ours returns the owned name that a name carries, "" for none.
func (s *surveyor) ours(name string) string {
	for _, o := range s.owned {
		if !filepath.IsAbs(o) && strings.Contains(name, o) {
			return o
		}
		if filepath.IsAbs(o) && (name == o || strings.HasPrefix(name, strings.TrimSuffix(o, "/")+"/")) {
			return o
		}
	}
	return ""
}

// gone reports errors about something that ended while we looked.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func (s *surveyor) files() error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if gone(err) {
			continue // such as the one that ReadDir had open
		}
		if err != nil {
			return err
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		kind := FD
		if bytes.Contains(info, []byte("\nlock:")) {
			kind = Flock
		}
		s.add(fd.Name()+target, kind, fd.Name(), target)
	}
	return nil
}

// goroutines of the testing package are tests that run or wait for their turn; the
// signal loop lives as long as the process once it was needed.
func lasting(createdBy string) bool {
	return createdBy == "" || strings.HasPrefix(createdBy, "testing.") || strings.HasPrefix(createdBy, "runtime.") ||
		strings.HasPrefix(createdBy, "os/signal.")
}

func (s *surveyor) goroutines() error {
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for i, g := range strings.Split(string(buf), "\n\n") {
		lines := strings.Split(g, "\n")
		var by string
		for _, line := range lines {
			if rest, ok := strings.CutPrefix(line, "created by "); ok {
				by, _, _ = strings.Cut(rest, " in goroutine")
			}
		}
		if i == 0 || lasting(by) || len(lines) < 2 {
			continue // the first is this one
		}
		id, _, _ := strings.Cut(lines[0], " [")
		s.add(id, Goroutine, by, "\n"+g)
	}
	return nil
}

// threads finds those that change a namespace and go on to serve other goroutines, which
// then see another node.
func (s *surveyor) threads() error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, kind := range []string{"net", "mnt"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		for _, t := range tasks {
			ns, err := os.Readlink("/proc/self/task/" + t.Name() + "/ns/" + kind)
			if gone(err) {
				continue
			}
			if err != nil {
				return err
			}
			if ns != own {
				s.add(t.Name()+ns, Thread, t.Name(), fmt.Sprintf("is in %s, the process in %s", ns, own))
			}
		}
	}
	return nil
}

func (s *surveyor) processes() error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	self := strconv.Itoa(os.Getpid())
	mark := []byte(MarkEnv + "=" + s.mark)
	for _, p := range procs {
		pid := p.Name()
		if pid[0] < '0' || pid[0] > '9' || pid == self {
			continue
		}
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue // it ended; and another's stat is readable for everybody
		}
		// pid (comm) state ppid ... starttime, which is the 22nd field.
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 20 {
			continue
		}
		why := "child"
		if f[1] != self && s.mark == "" {
			continue
		}
		if f[1] != self {
			// Unreadable environments are of other users, or of the dead.
			env, err := os.ReadFile("/proc/" + pid + "/environ")
			if err != nil || !bytes.Contains(env, mark) {
				continue
			}
			why = "child of another by now"
		}
		args, _ := os.ReadFile("/proc/" + pid + "/cmdline") // empty for a zombie
		s.add(pid+" "+f[19], Process, pid, fmt.Sprintf("(%s, state %s) %q", why, f[0], bytes.ReplaceAll(args, []byte{0}, []byte(" "))))
	}
	return nil
}

func (s *surveyor) mounts() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		// id parent dev root point options [optional ...] - type source options
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if len(f) < 5 || dash < 0 || dash+1 >= len(f) || s.ours(f[4]) == "" {
			continue
		}
		kind := Mount
		if f[dash+1] == "nsfs" {
			kind = Netns
		}
		s.add(f[0]+" "+f[4], kind, f[4], f[3])
	}
	return nil
}

func (s *surveyor) links() error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		if o := s.ours(l.Name); o != "" {
			s.add(l.Name, Link, l.Name, "carries "+o)
		}
	}
	return nil
}

// cgroups looks two levels deep: below the unified hierarchy, or below each controller.
func (s *surveyor) cgroups() error {
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, n := range names {
			if o := s.ours(filepath.Base(n)); o != "" {
				s.add(n, Cgroup, n, "carries "+o)
			}
		}
	}
	return nil
}

func (s *surveyor) paths() error {
	for _, o := range s.owned {
		if !filepath.IsAbs(o) || strings.HasSuffix(o, "/") {
			continue
		}
		_, err := os.Lstat(o)
		if err == nil {
			s.add(o, File, o, "is left")
		} else if !gone(err) {
			return err
		}
	}
	return nil
}
