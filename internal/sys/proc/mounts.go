package proc

import (
	"cmp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxMountinfo bounds one mountinfo, in bytes: 100,000 mounts or more.
const maxMountinfo = 64 << 20

// mountTable is an open mountinfo. It holds its mount namespace, so that its inode is
// not used again meanwhile, and poll tells whether the table has changed since it was
// read: the second enumeration need not read hundreds of unchanged tables.
type mountTable struct {
	fd   int
	read bool
	nets []nsMount
}

// openMounts opens the table of a key unless that was done before; opened says so.
func (s *snapshot) openMounts(key mountKey, open func() (int, error)) (opened bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tables[key] != nil {
		return false, nil
	}
	fd, err := open()
	if err != nil {
		return false, err
	}
	s.tables[key] = &mountTable{fd: fd}
	return true, nil
}

func (s *snapshot) forgetMounts(key mountKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[key]; t != nil {
		unix.Close(t.fd)
		delete(s.tables, key)
	}
}

// readTables brings every table up to date with a moment after the call began.
func (s *snapshot) readTables(keys map[mountKey][]int) error {
	var polls []unix.PollFd
	var old, due []*mountTable
	pid := map[*mountTable]int{} // of one that sees it, for people
	for key, pids := range keys {
		t := s.tables[key]
		pid[t] = pids[0]
		if !t.read {
			due = append(due, t)
			continue
		}
		polls = append(polls, unix.PollFd{Fd: int32(t.fd), Events: unix.POLLPRI})
		old = append(old, t)
	}
	if len(polls) > 0 {
		if err := poll(polls); err != nil {
			return err
		}
	}
	for i, p := range polls {
		if p.Revents != 0 {
			due = append(due, old[i])
		}
	}
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			var buf []byte
			for k := i; k < len(due) && errs[i] == nil; k += workers {
				if buf, errs[i] = due[k].readAgain(buf); errs[i] != nil {
					errs[i] = &Error{Op: "read", Object: "the mounts that process " + itoa(pid[due[k]]) + " sees", Err: errs[i]}
				}
			}
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// readAgain reads a table until it did not change meanwhile: it comes a page at a
// time, and before Linux 5.8 a change in between could hide a line. buf is used and
// returned, perhaps larger.
func (t *mountTable) readAgain(buf []byte) ([]byte, error) {
	for range 100 {
		if _, err := unix.Seek(t.fd, 0, unix.SEEK_SET); err != nil {
			return buf, err
		}
		var err error
		if buf, err = readAll(t.fd, buf, maxMountinfo); err != nil {
			return buf, err
		}
		if t.nets, err = netMounts(buf); err != nil {
			return buf, err
		}
		p := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLPRI}}
		if err := poll(p); err != nil {
			return buf, err
		}
		if p[0].Revents == 0 {
			t.read = true
			return buf, nil
		}
	}
	return buf, unix.EAGAIN
}

func poll(p []unix.PollFd) error {
	return retry(func() error {
		_, err := unix.Poll(p, 0)
		return err
	})
}

// mountKeys returns the keys in a fixed order, PID 1's first.
func mountKeys(keys map[mountKey][]int) []mountKey {
	out := make([]mountKey, 0, len(keys))
	for k := range keys {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b mountKey) int {
		initA, initB := slices.Contains(keys[a], 1), slices.Contains(keys[b], 1)
		switch {
		case initA != initB && initA:
			return -1
		case initA != initB:
			return 1
		case a.ns != b.ns && a.ns < b.ns:
			return -1
		case a.ns != b.ns:
			return 1
		case a.root < b.root:
			return -1
		}
		return 1
	})
	return out
}

// pinByMounts opens those namespaces that no process gave us access to. A path may be
// covered by another mount in one mount namespace and free in the next, so each is
// tried until one shows the namespace itself: first where the node's own mounts are,
// then where those of other user namespaces are, which may keep us waiting.
func (s *snapshot) pinByMounts(keys []mountKey, pids map[mountKey][]int) error {
	for _, foreign := range []bool{false, true} {
		for _, key := range keys {
			for _, m := range s.tables[key].nets {
				if s.spaces[m.ino] != nil {
					continue
				}
				if s.foreign(key, pids[key]) != foreign {
					break
				}
				if err := s.pinByMount(key, pids[key], m, foreign); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *snapshot) pinByMount(key mountKey, pids []int, m nsMount, foreign bool) error {
	for _, dir := range s.roots(key, pids) {
		err := s.pin(m.ino, func() (int, error) {
			root, err := openat(s.proc, dir, unix.O_PATH|unix.O_DIRECTORY)
			if err != nil {
				return -1, err
			}
			return s.openMount(root, stuckPath{key.ns, m.path, foreign}, m.ino)
		})
		if err == unix.EMFILE || err == unix.ENFILE {
			return s.failed("open", pids[0], "root/...", err)
		}
		if err == errHangs || s.spaces[m.ino] != nil {
			break
		}
	}
	return nil
}

// roots returns the directories, relative to proc, through which the paths of a table
// can be reached. PID 1's root is refused where PID 1 is guarded; then those of the
// others are tried, which is harmless: nothing but the right namespace is opened.
func (s *snapshot) roots(key mountKey, pids []int) []string {
	var out []string
	for _, pid := range pids {
		out = append(out, itoa(pid)+"/root")
	}
	if key.ns == 0 {
		out = append(out, "2/root", "self/root")
	}
	return out
}
