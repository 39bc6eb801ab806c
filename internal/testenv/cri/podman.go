package cri

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

// Podman is a second runtime on the network of a Runtime: it shares the node's
// network namespace, the conflist, host-local's directory and the libcni cache, and
// knows nothing of the other's containers (case F15).
type Podman struct {
	r      *Runtime
	dir    string
	cgroup string
	env    []string
}

// podmanSuffix is what podman's cgroup adds to the runtime's.
const podmanSuffix = "-podman"

// Container is a podman container that was made.
type Container struct {
	ID        string
	Name      string
	IP        netip.Addr
	Netns     string // path, such as /run/netns/netns-...
	PID       int    // of the container's process
	ConmonPID int
}

// StartPodman sets podman up beside r (it has no daemon). The network that r has now
// is the one that its containers join; later changes of r's network reach podman too,
// since they share the directory. Containers are taken away with r.
func StartPodman(t testing.TB, r *Runtime) *Podman {
	t.Helper()
	testenv.Need(t, testenv.Podman)
	p := &Podman{r: r, dir: filepath.Join(r.p.dir, "podman"), cgroup: r.cgroup + podmanSuffix}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// lock_type: the default is a shared memory segment that all podmans of a machine
	// have in common. The events go to a file of ours, not to a journal.
	conf := fmt.Sprintf(`[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
default_network = "podman-unused"
[engine]
cgroup_manager = "cgroupfs"
lock_type = "file"
events_logger = "none"
tmp_dir = %q
static_dir = %q
volume_path = %q
`, r.p.binDir, r.p.confDir, filepath.Join(p.dir, "tmp"), filepath.Join(p.dir, "static"), filepath.Join(p.dir, "volumes"))
	confPath := filepath.Join(p.dir, "containers.conf")
	storagePath := filepath.Join(p.dir, "storage.conf")
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
		filepath.Join(p.dir, "root"), filepath.Join(p.dir, "run"))
	for path, content := range map[string]string{confPath: conf, storagePath: storage} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p.env = append(os.Environ(), "CONTAINERS_CONF="+confPath, "CONTAINERS_STORAGE_CONF="+storagePath,
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin:"+os.Getenv("PATH"))
	if _, err := p.podman("load", "-q", "-i", r.p.image); err != nil {
		t.Fatal(err)
	}
	return p
}

// podman runs one podman command in the node's network namespace and returns its
// standard output.
func (p *Podman) podman(args ...string) (string, error) {
	var out, msg bytes.Buffer
	cmd := exec.Command("podman", slices.Concat([]string{
		"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
		"--runtime-flag", "root=" + filepath.Join(p.dir, "runc"),
	}, args)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, &out, &msg
	if err := p.r.host.run(cmd); err != nil {
		return "", fmt.Errorf("podman %s: %w\n%s", args[0], err, msg.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// Run starts a pause container on the runtime's network.
func (p *Podman) Run(t testing.TB, name string) Container {
	t.Helper()
	// Without CAP_SYS_RESOURCE podman may not raise limits to its defaults.
	id, err := p.podman("run", "-d", "--name", name, "--network", p.r.net.Name, "--cgroup-parent", p.cgroup,
		"--ulimit", "nofile=10000:10000", "--ulimit", "nproc=10000:10000", "--pull", "never", PauseImage)
	if err != nil {
		t.Fatal(err)
	}
	c := Container{ID: id, Name: name}
	raw, err := p.podman("inspect", id)
	if err != nil {
		t.Fatal(err)
	}
	var infos []struct {
		State struct {
			Pid       int
			ConmonPid int
		}
		NetworkSettings struct {
			SandboxKey string
			Networks   map[string]struct{ IPAddress string }
		}
	}
	if err := json.Unmarshal([]byte(raw), &infos); err != nil || len(infos) != 1 {
		t.Fatalf("podman inspect: %v\n%s", err, raw)
	}
	info := infos[0]
	c.PID, c.ConmonPID, c.Netns = info.State.Pid, info.State.ConmonPid, info.NetworkSettings.SandboxKey
	if err := p.r.p.recordNetns(c.ID, c.Netns); err != nil {
		t.Fatal(err)
	}
	if c.IP, err = netip.ParseAddr(info.NetworkSettings.Networks[p.r.net.Name].IPAddress); err != nil {
		t.Fatalf("podman inspect: %v\n%s", err, raw)
	}
	return c
}

// Kill ends conmon and the container's process with SIGKILL, conmon first: it would
// otherwise run podman's clean-up, which releases the address. The netns mount stays,
// as it does on a node: see DropNetns.
func (p *Podman) Kill(t testing.TB, c Container) {
	t.Helper()
	if err := errors.Join(killConmon(c), killProcess(c)); err != nil {
		t.Fatal(err)
	}
}

// DropNetns removes the container's netns mount, as a reboot does.
func (p *Podman) DropNetns(t testing.TB, c Container) {
	t.Helper()
	if err := dropNetns(c.Netns); err != nil {
		t.Fatal(err)
	}
}

func killConmon(c Container) error {
	return killAll(func(q process) bool { return filepath.Base(q.args[0]) == "conmon" && q.flag("-c") == c.ID })
}

// killProcess ends what lies in the container's cgroup, named libpod-<ID>.
func killProcess(c Container) error {
	name := "libpod-" + c.ID
	return killAll(func(q process) bool {
		return slices.ContainsFunc(q.cgroups, func(path string) bool {
			return slices.Contains(strings.Split(path, "/"), name)
		})
	})
}

// String is for messages.
func (c Container) String() string {
	return c.Name + "=" + c.IP.String() + " pid " + strconv.Itoa(c.PID)
}
