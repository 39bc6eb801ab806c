package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/journal"
	"github.com/holdfast-cni/holdfast/internal/line"
	"github.com/holdfast-cni/holdfast/internal/sys/boot"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// listed are the stores of all inventories, those with reservations first.
func (x *examination) listed(reservations bool) []claim.Store {
	var out []claim.Store
	for _, s := range x.au.Case.Snapshots {
		if (s.Source == "hostlocal") == reservations {
			out = append(out, s.Stores...)
		}
	}
	return out
}

// dataDirs are the parents of the stores, each once.
func (x *examination) dataDirs() []string {
	var out []string
	for _, s := range x.listed(true) {
		if !slices.Contains(out, s.DataDir) {
			out = append(out, s.DataDir)
		}
	}
	return out
}

// stores tells of each directory of reservations, and of the caches and namespace
// directories that could not be read.
func (x *examination) stores() []finding {
	files := map[string]int{}
	odd := map[string]int{}
	for _, s := range x.au.Case.Snapshots {
		for i := range s.Resources {
			files[s.Resources[i].Store]++
		}
		if s.Source != "hostlocal" {
			continue
		}
		for _, n := range s.Notes {
			for _, st := range s.Stores {
				if inStore([]claim.Store{st}, n.Path) {
					odd[st.Dir]++
					break
				}
			}
		}
	}
	var out []finding
	for _, s := range x.listed(true) {
		if s.Network == "" && s.Problem == "" {
			continue // a data directory that was read whole
		}
		if s.Network == "" {
			out = append(out, finding{blocks: true, Check: api.Check{
				Name: s.Dir, Detail: s.Problem, Fix: "make the directory readable for holdfast; until then nothing in it is judged",
			}})
			continue
		}
		f := finding{blocks: true, Check: api.Check{Name: s.Dir, OK: s.Problem == "" && s.Writable}}
		parts := []string{fmt.Sprintf("network %q, %s", s.Network, count(files[s.Dir], "reservation"))}
		if len(s.Configs) == 0 {
			parts = append(parts, "no configuration names it")
		}
		if s.Capacity > 0 {
			parts = append(parts, fmt.Sprintf("%d addresses", s.Capacity))
		}
		if _, err := os.Stat(s.Dir); errors.Is(err, fs.ErrNotExist) {
			parts = append(parts, "not made yet")
			// Nothing is there that could be withheld.
			f.OK, f.blocks = s.Problem == "", s.Problem != ""
		} else {
			parts = append(parts, "readable "+yesNo(s.Problem == ""), "writable "+yesNo(s.Writable), fileSystem(s.Dir))
		}
		if n := odd[s.Dir]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d entries that are not host-local's", n))
		}
		switch {
		case s.Problem != "":
			parts = append(parts, s.Problem)
			f.Fix = "make the directory readable for holdfast; until then everything in it is kept"
		case !f.OK:
			f.Fix = "remount the file system read-write, or run as a user who may write there; until then everything in it is kept"
		}
		f.Detail = strings.Join(parts, ", ")
		out = append(out, f)
	}
	if len(out) == 0 {
		out = append(out, finding{Check: api.Check{
			Name: "host-local", Detail: "no directory of reservations was found",
			Fix: "name the data directory with --data-dir or the configuration with --cni-conf-dir if this node's CNI uses host-local; else there is nothing to do",
		}})
	}
	for _, s := range x.listed(false) {
		if s.Problem != "" {
			out = append(out, finding{Check: api.Check{Name: s.Dir, Detail: s.Problem, Fix: "make the directory readable for holdfast; until then what belongs to it is kept or named without its Pod"}})
		}
	}
	return out
}

// lockLooks is how often a held lock is looked at before it counts as stuck: host-local
// holds it for milliseconds, and a Pod that just starts is no obstacle.
const lockLooks = 3

// locks tells who holds the allocator's locks and the reaper's, now. Locks are looked
// up, never taken: a lock taken for a moment would turn away a gc at that moment. A
// holder in a PID namespace that this /proc does not show is not seen.
func (x *examination) locks(ctx context.Context) []finding {
	var out []finding
	held := map[string][]int{}
	var paths []string
	for _, s := range x.listed(true) {
		if s.Network == "" {
			continue
		}
		path := filepath.Join(s.Dir, "lock")
		paths = append(paths, path)
		if h := hostlocal.LockHolders(x.o.proc, path); len(h) > 0 {
			held[path] = h
		}
	}
	for range lockLooks - 1 {
		if len(held) == 0 {
			break
		}
		pause(ctx, 400*time.Millisecond)
		for path, before := range held {
			now := hostlocal.LockHolders(x.o.proc, path)
			// Another holder at each look is an allocator at work.
			now = slices.DeleteFunc(now, func(pid int) bool { return !slices.Contains(before, pid) })
			if held[path] = now; len(now) == 0 {
				delete(held, path)
			}
		}
	}
	for _, path := range paths {
		f := finding{blocks: true, Check: api.Check{Name: path, OK: true, Detail: "free"}}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			f.Detail = "not made yet"
		} else if err != nil {
			f.OK, f.blocks = false, false // the store says so itself
			f.Detail, f.Fix = "cannot be looked at: "+rootCause(err), "run as root"
		}
		if pids := held[path]; len(pids) > 0 {
			f.OK = false
			f.Detail = "held by " + x.processes(pids)
			f.Fix = "see what that process does; while it holds the lock, neither host-local nor holdfast can work here"
		}
		out = append(out, f)
	}
	return append(out, x.reaperLocks(ctx)...)
}

// reaperLocks are those of this node. The agent is meant to hold its own: beside it everybody else
// asks it to do the work, so that stands in nobody's way.
func (x *examination) reaperLocks(ctx context.Context) []finding {
	of := map[string]string{}
	for _, dir := range append(x.dataDirs(), x.o.stateDir) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			of[fmt.Sprintf("reaper-%d-%d.lock", st.Dev, st.Ino)] = dir
		}
	}
	entries, err := os.ReadDir(x.o.runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []finding{{blocks: true, Check: api.Check{Name: x.o.runDir, Detail: "cannot be read: " + rootCause(err), Fix: "make it readable and writable, or name another with --run-dir"}}}
	}
	writable, detail := mayWrite(x.o.runDir)
	out := []finding{{blocks: true, Check: api.Check{
		Name: x.o.runDir, OK: writable, Detail: detail, Fix: "make it writable, or name another with --run-dir that every holdfast of this node uses",
	}}}
	agent, err := askStatus(ctx, x.o.runDir)
	if err == nil {
		f := finding{Check: api.Check{Name: "agent", OK: agent.Ready, Fix: "docs/agent.md, \"When something is not well\""}}
		f.Detail = fmt.Sprintf("PID %d, %s, is this node's reaper, by its own configuration", agent.PID, agent.Version)
		if !agent.Ready {
			f.Detail += "; not ready: " + agent.NotReady
		}
		out = append(out, f)
	}
	others := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "reaper-") || !strings.HasSuffix(e.Name(), ".lock") {
			continue
		}
		path := filepath.Join(x.o.runDir, e.Name())
		dir, ours := of[e.Name()]
		f := finding{blocks: ours, Check: api.Check{Name: path, OK: true, Detail: "free"}}
		if pids := hostlocal.LockHolders(x.o.proc, path); len(pids) > 0 {
			f.OK = !ours || agent.PID != 0 && slices.Equal(pids, []int{agent.PID})
			f.Detail = "held by " + x.processes(pids)
			f.Fix = "let that holdfast end: one at a time releases"
		}
		switch {
		case ours:
			f.Detail += ", for " + dir
		case f.Detail == "free":
			others++ // each directory that was ever released from leaves one until the next boot
			continue
		default:
			f.Detail += ", for a directory that is not among these"
		}
		out = append(out, f)
	}
	if others > 0 {
		out = append(out, finding{Check: api.Check{Name: "locks of other directories", OK: true, Detail: fmt.Sprintf("%d, free", others)}})
	}
	return out
}

// processes names PIDs with their commands.
func (x *examination) processes(pids []int) string {
	var out []string
	for i, pid := range pids {
		if i == 8 {
			out = append(out, fmt.Sprintf("%d more", len(pids)-i))
			break
		}
		s := fmt.Sprintf("PID %d", pid)
		if comm, err := readSmall(filepath.Join(x.o.proc, fmt.Sprint(pid), "comm")); err == nil {
			s += fmt.Sprintf(" (%q)", strings.TrimSuffix(comm, "\n"))
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// stateDir tells whether what must be written before a release can be.
func (x *examination) stateDir() []finding {
	dir := x.o.stateDir
	f := finding{blocks: true, Check: api.Check{Name: dir, Fix: "make it a directory of root's with mode 0700 on a writable file system, or name another with --state-dir; nothing is released without a journal"}}
	fi, err := os.Lstat(dir)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing:
		var detail string
		f.OK, detail = mayWrite(dir)
		f.Detail = "not there yet; gc makes it. " + detail
	case err != nil:
		f.Detail = rootCause(err)
	default:
		f.Detail = fmt.Sprintf("mode %04o", fi.Mode().Perm())
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil {
			f.Detail += fmt.Sprintf(", owner %d:%d", st.Uid, st.Gid)
		}
		var detail string
		f.OK, detail = mayWrite(dir)
		f.Detail += ", " + detail
		if x.closed != nil {
			f.OK = false
			f.Detail += "; " + x.closed.Error()
		}
	}
	out := []finding{f, spaceFor(dir)}
	if x.closed != nil {
		out = append(out, finding{blocks: true, Check: api.Check{
			Name: "journal, quarantine, sightings, runtimes, holds, stops", Detail: "not looked at, since the directory cannot be opened", Fix: "see the directory itself",
		}})
		return append(out, x.quarantinePlace())
	}
	out = append(out, x.journalState(), x.quarantineFiles(), x.quarantinePlace())
	return append(out, x.stateFiles()...)
}

// lowSpace is what a journal with a large sweep needs, generously, in bytes.
const lowSpace = 16 << 20

func spaceFor(dir string) finding {
	at := standing(dir)
	f := finding{blocks: true, Check: api.Check{Name: "free space", OK: true, Fix: "free some space on that file system, or name another --state-dir; without room for the journal nothing is released"}}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		f.OK, f.blocks, f.Detail = false, false, err.Error()
		return f
	}
	free := fs.Bavail * uint64(fs.Bsize) //nolint:gosec // the kernel's block size is positive
	f.Detail = fmt.Sprintf("%d MiB free at %s (%s)", free>>20, at, fileSystem(at))
	f.OK = free >= lowSpace && (fs.Files == 0 || fs.Ffree > 0)
	if fs.Files > 0 && fs.Ffree == 0 {
		f.Detail += ", no inodes left"
	}
	return f
}

func (x *examination) journalState() finding {
	f := finding{blocks: true, Check: api.Check{Name: "journal", OK: true}}
	path := filepath.Join(x.o.stateDir, journal.FileName)
	j, err := journal.Open(x.o.stateDir, journal.Options{ReadOnly: true})
	if err != nil {
		f.OK, f.Detail, f.Fix = false, err.Error(), "make the journal readable; nothing is released without it"
		return f
	}
	defer j.Close()
	recs, damage, err := j.Load()
	if err != nil {
		f.OK, f.Detail, f.Fix = false, err.Error(), "move "+path+" aside; what it knows can then no longer be undone"
		return f
	}
	var open []string
	entries := journal.Replay(recs)
	for _, e := range entries {
		if e.State.Unsettled() {
			open = append(open, e.ID)
		}
	}
	f.Detail = fmt.Sprintf("%d bytes, %s, %d unsettled", j.Size(), count(len(entries), "release"), len(open))
	if len(open) > 0 {
		f.Detail += " (a crash left them half way; the next gc settles them)"
	}
	for i, d := range damage {
		if i == 3 {
			f.Detail += fmt.Sprintf("; and %d more", len(damage)-i)
			break
		}
		f.Detail += "; " + d.String()
	}
	switch err := j.Writable(); {
	case err != nil && !errors.Is(err, journal.ErrReadOnly):
		f.OK, f.Fix = false, "use the newer holdfast, or move "+path+" aside; what it knows can then no longer be undone"
		f.Detail += "; " + err.Error()
	case len(damage) > 0 && damage[0].Offset == 0 && !damage[0].Torn:
		// Nobody knows the version of what follows, so nothing is appended.
		f.OK, f.Fix = false, "move "+path+" aside; what it knows can then no longer be undone"
	case slices.ContainsFunc(damage, func(d journal.Damage) bool { return !d.Torn }):
		// A release that is lost to damage cannot be undone by its ID; new ones can.
		f.OK, f.blocks, f.Fix = false, false, "keep a copy of "+path+" and look at what was lost; the file in the quarantine is still there"
	}
	return f
}

func (x *examination) quarantine() string { return filepath.Join(x.o.stateDir, "quarantine") }

func (x *examination) quarantineFiles() finding {
	f := finding{Check: api.Check{Name: "quarantine", OK: true, Detail: "not made yet", Fix: "make " + x.quarantine() + " readable for holdfast"}}
	entries, err := os.ReadDir(x.quarantine())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		f.OK, f.blocks, f.Detail = false, true, rootCause(err)
	default:
		ok, detail := mayWrite(x.quarantine())
		f.OK, f.blocks = ok, true
		f.Detail = count(len(entries), "released reservation") + ", " + detail
	}
	return f
}

// quarantinePlace looks whether the quarantine lies, or would lie, inside a data
// directory, where host-local would still read it (case L20).
func (x *examination) quarantinePlace() finding {
	f := finding{blocks: true, Check: api.Check{Name: "quarantine outside of the data directories", OK: true, Fix: "name a --state-dir that lies outside of them"}}
	at := standing(x.quarantine())
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		f.OK, f.Detail = false, rootCause(err)
		return f
	}
	dirs := x.dataDirs()
	for _, s := range x.listed(true) {
		dirs = append(dirs, s.Dir)
	}
	for up := real; ; up = filepath.Dir(up) {
		ui, err := os.Stat(up)
		if err != nil {
			f.OK, f.Detail = false, up+": "+rootCause(err)
			return f
		}
		for _, dir := range dirs {
			if filepath.Clean(dir) == "/" {
				continue // everything lies inside; the store itself tells
			}
			di, err := os.Stat(dir)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				f.OK, f.Detail = false, fmt.Sprintf("cannot be told: %s: %s", dir, rootCause(err))
				return f
			case os.SameFile(ui, di):
				f.OK, f.Detail = false, "it lies inside "+dir
				return f
			}
		}
		if up == "/" || up == "." {
			break
		}
	}
	f.Detail = "yes"
	return f
}

// stateFiles tells whether the small files can be read.
func (x *examination) stateFiles() []finding {
	st := x.n.state
	list := func(name string, n int, err error, fix string) finding {
		f := finding{Check: api.Check{Name: name, OK: err == nil, Detail: fmt.Sprintf("%d remembered", n), Fix: fix}}
		if err != nil {
			f.Detail = err.Error()
		}
		return f
	}
	sightings, err := st.LoadSightings()
	out := []finding{list("sightings", len(sightings), err, "nothing: the next audit or gc begins it anew, and every grace with it")}
	runtimes, err := st.KnownRuntimes()
	out = append(out, list("runtimes", len(runtimes), err, "look at the file runtimes in the state directory and remove it when every runtime of this node is running"))
	if err == nil && len(runtimes) > 0 {
		out[len(out)-1].Detail += ": " + strings.Join(runtimes, ", ")
	}
	out[len(out)-1].blocks = true
	holds, err := st.Holds()
	out = append(out, list("holds", len(holds), err, "look at the file holds in the state directory, remove it, and hold again what is to be held"))
	now, _ := boot.Now(x.o.proc)
	ended := 0
	for _, h := range holds {
		if expired(h, now.Boot) != "" {
			ended++
		}
	}
	if ended > 0 {
		out[len(out)-1].Detail += fmt.Sprintf(", %d of them expired", ended)
	}
	out[len(out)-1].blocks = true
	stops, err := st.LoadStops(now)
	out = append(out, list("stops", len(stops), err, "look at what was kept of the file stops in the state directory, then say holdfast resume --all"))
	if err == nil {
		out[len(out)-1].Detail = fmt.Sprintf("releases of %d networks are stopped", len(line.Next(stops, now, nil).Stops))
	}
	return out
}

// standing is path, or the nearest directory above it that is there.
func standing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

// mayWrite says whether we could write to a directory, or make it, without doing so.
func mayWrite(dir string) (ok bool, detail string) {
	at := standing(dir)
	err := unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	what := "writable"
	if at != dir {
		what = at + " is writable"
	}
	if err != nil {
		if at != dir {
			return false, fmt.Sprintf("%s is not writable: %v", at, err)
		}
		return false, fmt.Sprintf("not writable: %v", err)
	}
	return true, what
}

// rootCause is an error without the path, which stands beside it already.
func rootCause(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// fileSystem names the kind of file system that path lies on.
func fileSystem(path string) string {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return "on an unknown file system"
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", unix.RAMFS_MAGIC: "ramfs",
		unix.FUSE_SUPER_MAGIC: "fuse", unix.SQUASHFS_MAGIC: "squashfs", 0x2fc12fc1: "zfs", 0x00c36400: "ceph", 0xff534d42: "cifs",
	}
	name := cmp.Or(names[int64(fs.Type)], fmt.Sprintf("file system %#x", fs.Type)) //nolint:unconvert // 32 bits on some architectures
	if int64(fs.Flags)&unix.ST_RDONLY != 0 {                                       //nolint:unconvert // likewise
		name += " mounted read-only"
	}
	return name
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
