package cri

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Version names a containerd.
type Version string

// The versions that tests run against.
const (
	// Debian is /usr/bin/containerd: 1.6.20 on Debian 12.
	Debian Version = "debian"
	// V2 is containerd 2.4.2, built from its module.
	V2 Version = "2.4.2"
)

// paths are the places of one Runtime. All lie in dir, which is short: a socket's
// path may have 107 bytes.
type paths struct {
	dir, root, state, run, socket, config, log string
	confDir, binDir, realDir, dataDir          string
	image, record, owner                       string
}

func pathsIn(dir string) paths {
	in := func(name string) string { return filepath.Join(dir, name) }
	return paths{
		dir: dir, root: in("root"), state: in("state"), run: in("run"), socket: in("run/containerd/containerd.sock"), config: in("config.toml"),
		log: in("containerd.log"), confDir: in("net.d"), binDir: in("bin"), realDir: in("real"),
		dataDir: in("networks"), image: in("pause.tar"), record: in("netns.log"), owner: in("owner"),
	}
}

// config is containerd's configuration. Common to both versions: everything lies in
// our directory; the native snapshotter, since it also works where the temporary
// directory is an overlay; no AppArmor; OOM scores are only lowered where that is
// allowed (machines without CAP_SYS_RESOURCE).
func (p paths) containerdConfig(v Version, hooked bool) string {
	text := p.fill(configV24)
	if v == Debian {
		text = p.fill(configV16)
	}
	if hooked {
		const runc = "runtime_type = "
		text = strings.Replace(text, runc, fmt.Sprintf("base_runtime_spec = %q\n      %s", p.spec(), runc), 1)
	}
	return text
}

func (p paths) fill(template string) string {
	return strings.NewReplacer(
		"@ROOT@", p.root, "@STATE@", p.state, "@SOCKET@", p.socket, "@DIR@", p.dir,
		"@BIN@", p.binDir, "@CONF@", p.confDir, "@IMAGE@", PauseImage,
	).Replace(template)
}

const configV16 = `version = 2
root = "@ROOT@"
state = "@STATE@"
[grpc]
  address = "@SOCKET@"
[plugins."io.containerd.internal.v1.opt"]
  path = "@DIR@/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "@IMAGE@"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "@BIN@"
    conf_dir = "@CONF@"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "@DIR@/runc"
`

const configV24 = `version = 4
root = "@ROOT@"
state = "@STATE@"
imports = []
[plugins."io.containerd.server.v1.grpc"]
  address = "@SOCKET@"
[plugins."io.containerd.server.v1.ttrpc"]
  address = "@SOCKET@.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "@DIR@/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "@IMAGE@"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_unprivileged_ports = false
  enable_unprivileged_icmp = false
  cdi_spec_dirs = []
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["@BIN@"]
    conf_dir = "@CONF@"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "@DIR@/runc"
`

// programs says which containerd to run and where its shim lies.
func programs(v Version, built string) (containerd, shimDir string, err error) {
	if v == V2 {
		return filepath.Join(built, "containerd"), built, nil
	}
	containerd, err = exec.LookPath("containerd")
	if err != nil {
		return "", "", fmt.Errorf("containerd of Debian: %w", err)
	}
	return containerd, filepath.Dir(containerd), nil
}
