package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// oursAt is a directory on which our program works, and nothing of which lies elsewhere.
func oursAt(t *testing.T, data string) *killSite {
	t.Helper()
	dir := t.TempDir()
	return &killSite{t: t, bin: ours(), dir: dir, data: data, run: filepath.Join(dir, "run")}
}

// refuses wants an error whose text has all of these, and the reservations to be as before.
func (m *killSite) refuses(command, id string, texts ...string) {
	m.t.Helper()
	before := m.reservations()
	got, _ := m.call(m.bin, command, id)
	f, err := got.failure()
	if err != nil {
		m.t.Errorf("%s %s: %v; %+v", command, id, err, got)
	}
	for _, text := range texts {
		if !strings.Contains(f.Msg+f.Details, text) {
			m.t.Errorf("%s %s: %+v; want %q in it", command, id, f, text)
		}
	}
	if now := m.reservations(); !maps.Equal(now, before) {
		m.t.Errorf("%s %s leaves %v of %v", command, id, now, before)
	}
}

// TestDiskFull: an ADD on a full disk fails, names the place, and leaves nothing; a DEL makes
// room again.
func TestDiskFull(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	for name, option := range map[string]string{"no blocks": "size=64k", "no inodes": "size=1m,nr_inodes=12"} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, option))
			t.Cleanup(func() { must(t, unix.Unmount(disk, 0)) })
			m := oursAt(t, filepath.Join(disk, "networks"))
			m.ok("ADD", "early")
			for i := 0; ; i++ {
				if err := os.WriteFile(filepath.Join(disk, fmt.Sprintf("filler%d", i)), make([]byte, 4096), 0o600); err != nil {
					if !errors.Is(err, unix.ENOSPC) {
						t.Fatal(err)
					}
					break
				}
			}
			m.refuses("ADD", "late", "no space left on device", m.net())
			m.refuses("STATUS", "", "no space left on device", m.net())
			m.ok("CHECK", "early")
			m.ok("DEL", "early")
			must(t, os.Remove(filepath.Join(disk, "filler0")))
			must(t, os.RemoveAll(filepath.Join(disk, "filler1")))
			m.ok("ADD", "late")
			m.ok("CHECK", "late")
			m.ok("DEL", "late")
			for name := range snapshot(t, m.net()) {
				if name != "lock" && !strings.HasPrefix(name, "last_reserved_ip.") || strings.Contains(name, "holdfast") {
					t.Errorf("left %s", name)
				}
			}
		})
	}
}

func TestReadOnlyDisk(t *testing.T) {
	testenv.Need(t, testenv.Mount)
	disk := t.TempDir()
	must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(disk, 0)) })
	m := oursAt(t, filepath.Join(disk, "networks"))
	m.ok("ADD", "early")
	must(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, command := range []string{"ADD", "STATUS", "DEL"} {
		m.refuses(command, "early", "read-only file system", m.net())
	}
	must(t, unix.Mount("", disk, "", unix.MS_REMOUNT, ""))
	m.ok("DEL", "early")
	must(t, os.RemoveAll(m.data))
	must(t, unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	m.refuses("ADD", "late", "read-only file system", m.net())
	m.refuses("STATUS", "", "read-only file system", m.net())
	m.ok("DEL", "late") // there is nothing
}

// TestLockHeld: a lock that is held too long is an error that names who holds it (L7).
func TestLockHeld(t *testing.T) {
	m := oursAt(t, filepath.Join(t.TempDir(), "networks"))
	m.ok("ADD", "early")
	lock, err := os.OpenFile(filepath.Join(m.net(), "lock"), os.O_RDWR, 0)
	must(t, err)
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	m.extras = `, "lockTimeout": "100ms"`
	for _, command := range []string{"ADD", "DEL", "STATUS"} {
		start := time.Now()
		m.refuses(command, "early", fmt.Sprintf("held by PID [%d]", os.Getpid()), "waited 100ms", lock.Name())
		if took := time.Since(start); took > 20*time.Second { // the machine may be busy
			t.Errorf("%s took %s", command, took)
		}
	}
	must(t, lock.Close())
	m.ok("DEL", "early")
	m.ok("ADD", "late")
}

// TestFewDescriptors: whatever a process cannot open, it reserves all or nothing.
func TestFewDescriptors(t *testing.T) {
	m := oursAt(t, filepath.Join(t.TempDir(), "networks"))
	m.ok("ADD", "early")
	failed, done := 0, 0
	for n := 3; n < 24; n++ {
		id := fmt.Sprintf("n%d", n)
		before := m.reservations()
		r := request{command: "ADD", id: id, ifname: "eth0", netns: "/var/run/netns/x", config: m.config(m.bin)}
		c := r.call(m.bin)
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ulimit -n "$1" && exec "$2"`, "sh", fmt.Sprint(n), m.bin.Path)
		cmd.Env, cmd.Stdin = c.env, strings.NewReader(c.stdin)
		var out bytes.Buffer
		cmd.Stdout = &out
		err := cmd.Run()
		now := m.reservations()
		switch {
		case err != nil && maps.Equal(now, before):
			failed++
		case err == nil && len(now) == len(before)+2 && m.count(id) == 2:
			done++
		default:
			t.Errorf("%d descriptors: %v, %s; %v of %v", n, err, out.String(), now, before)
		}
	}
	if failed == 0 || done == 0 {
		t.Errorf("%d failed, %d succeeded", failed, done)
	}
	m.ok("CHECK", "early")
	m.ok("DEL", "early")
}

// TestResultCannotBePrinted: an ADD whose result nobody gets takes its addresses back.
func TestResultCannotBePrinted(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	read, broken, err := os.Pipe()
	must(t, err)
	must(t, read.Close())
	defer broken.Close()
	for name, out := range map[string]*os.File{"full": full, "a pipe that nobody reads": broken} {
		t.Run(name, func(t *testing.T) {
			m := oursAt(t, filepath.Join(t.TempDir(), "networks"))
			m.ok("ADD", "early")
			before := m.reservations()
			r := request{command: "ADD", id: "late", ifname: "eth0", netns: "/var/run/netns/x", config: m.config(m.bin)}
			c := r.call(m.bin)
			cmd := exec.CommandContext(t.Context(), m.bin.Path)
			cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env, strings.NewReader(c.stdin), out, out
			if err := cmd.Run(); err == nil {
				t.Error("success")
			}
			if now := m.reservations(); !maps.Equal(now, before) {
				t.Errorf("left %v of %v", now, before)
			}
			m.ok("ADD", "late")
		})
	}
}

// TestRefusedBeforeAnything: what cannot be right is refused before anything is made, and
// the field is named.
func TestRefusedBeforeAnything(t *testing.T) {
	base := filepath.Join(t.TempDir(), "networks")
	for _, c := range []struct {
		name, netns, network, extras, want string
	}{
		{name: "its own namespace", netns: "/proc/self/ns/net", want: "should not be the same"},
		{name: "a cooldown of nothing", extras: `"cooldown": "soon"`, want: "ipam.cooldown"},
		{name: "a negative cooldown", extras: `"cooldown": "-1s"`, want: "ipam.cooldown"},
		{name: "a cooldown without a unit", extras: `"cooldown": 30`, want: "ipam.cooldown"},
		{name: "a cooldown for ever", extras: `"cooldown": "61m"`, want: "ipam.cooldown"},
		{name: "a lock time-out of nothing", extras: `"lockTimeout": "x"`, want: "ipam.lockTimeout"},
		{name: "a healing time-out of nothing", extras: `"heal": {"timeout": true}`, want: "ipam.heal.timeout"},
		{name: "a relative run directory", extras: `"runDir": "run"`, want: "ipam.runDir"},
		{name: "a relative state directory", extras: `"stateDir": "../x"`, want: "ipam.stateDir"},
		{name: "a relative healer", extras: `"heal": {"binary": "holdfast"}`, want: "ipam.heal.binary"},
		{name: "a relative socket", extras: `"heal": {"socket": "agent.sock"}`, want: "ipam.heal.socket"},
		{name: "a run directory that is no text", extras: `"runDir": 7`, want: "runDir"},
		{name: "a healer that is a list", extras: `"heal": []`, want: "heal"},
		{name: "arguments that are a text", extras: `"heal": {"args": "--force"}`, want: "heal.args"},
		{name: "no name", network: "-", want: ""},
		{name: "the directory itself", network: ".", want: ""},
		{name: "the one above", network: "..", want: ""},
		{name: "a path", network: "a/b", want: ""},
		{name: "a path out of it", network: "../out", want: ""},
		{name: "a root", network: "/out", want: ""},
		{name: "a NUL", network: `a\u0000b`, want: ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := filepath.Join(base, "data")
			if c.extras == "" {
				c.extras = `"cooldown": "0s"`
			}
			if c.netns == "" {
				c.netns = "/var/run/netns/x"
			}
			network := "net"
			if c.network == "-" {
				network = ""
			} else if c.network != "" {
				network = c.network
			}
			for _, command := range []string{"ADD", "DEL", "CHECK", "STATUS"} {
				if c.want == "should not be the same" && command != "ADD" {
					continue
				}
				stdin := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "%s", "type": "bridge", "ipam": {"type": "holdfast-ipam", "dataDir": %q, %s, %s}}`, network, data, slash24, c.extras)
				r := request{command: command, id: "a", ifname: "eth0", netns: c.netns, stdin: stdin}
				got, err := ours().run(t.Context(), r.call(ours()))
				must(t, err)
				f, err := got.failure()
				if err != nil || !strings.Contains(f.Msg+f.Details, c.want) {
					t.Errorf("%s: %+v, %v; want %q", command, f, err, c.want)
				}
			}
			if made := snapshot(t, base); len(made) > 0 {
				t.Errorf("made %v", made)
			}
		})
	}
}
