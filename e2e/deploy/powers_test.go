package deploy

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	"github.com/holdfast-cni/holdfast/hack/image/archive"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

const imageName = "holdfast.test/holdfast:powers"

// ground is a node with a real containerd, on which the DaemonSet's container runs as the
// kubelet would run it, with directories of its own behind the host paths.
type ground struct {
	r   *cri.Runtime
	dir string // holds run, state and the like
}

func newGround(t *testing.T, v cri.Version) *ground {
	t.Helper()
	return prepare(t, cri.Start(t, v))
}

func prepare(t *testing.T, r *cri.Runtime) *ground {
	t.Helper()
	g := &ground{r: r, dir: filepath.Join(r.Dir(), "host")}
	for _, d := range []string{"run/containerd", "run/holdfast", "run/netns", "state", "cni", "config"} {
		if err := os.MkdirAll(filepath.Join(g.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// systemd makes all mounts shared; a machine without it may not.
	for _, m := range []struct {
		from, to string
		flags    uintptr
	}{
		{filepath.Join(g.dir, "run"), filepath.Join(g.dir, "run"), unix.MS_BIND},
		{"", filepath.Join(g.dir, "run"), unix.MS_SHARED},
		{"/run/netns", filepath.Join(g.dir, "run/netns"), unix.MS_BIND | unix.MS_REC},
		// The socket where kubeadm has it.
		{filepath.Dir(strings.TrimPrefix(r.Endpoint, "unix://")), filepath.Join(g.dir, "run/containerd"), unix.MS_BIND},
	} {
		if err := unix.Mount(m.from, m.to, "", m.flags, ""); err != nil {
			t.Fatalf("mount %q at %s: %v", m.from, m.to, err)
		}
	}
	t.Cleanup(func() {
		for _, d := range []string{"run/containerd", "run/netns", "run"} {
			if err := unix.Unmount(filepath.Join(g.dir, d), unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", d, err)
			}
		}
	})
	image := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spec := archive.Spec{Root: root(t), Name: imageName, Version: "v0", Commit: "test", Arches: []string{runtime.GOARCH}, Created: time.Unix(0, 0)}
	if err := archive.Write(t.Context(), f, spec); err != nil {
		t.Fatal(err)
	}
	r.ImportImage(t, image, imageName)
	return g
}

// behind is what this node has behind the host paths; a network's own directory is where
// its configuration says.
func (g *ground) behind() map[string]string {
	return map[string]string{
		"/run": filepath.Join(g.dir, "run"), "/run/holdfast": filepath.Join(g.dir, "run/holdfast"),
		"/var/lib/holdfast": filepath.Join(g.dir, "state"), "/var/lib/cni": filepath.Join(g.dir, "cni"),
		"/etc/cni/net.d": g.r.ConfDir(),
	}
}

// container is what a kubelet makes of the DaemonSet's only container.
func (g *ground) container(t *testing.T, ds *appsv1.DaemonSet, args ...string) cri.Run {
	t.Helper()
	pod := ds.Spec.Template.Spec
	c := pod.Containers[0]
	namespaces := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD}
	if pod.HostNetwork {
		namespaces.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.HostPID {
		namespaces.Pid = runtimeapi.NamespaceMode_NODE
	}
	sc := c.SecurityContext
	security := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces, ReadonlyRootfs: *sc.ReadOnlyRootFilesystem, RunAsUser: &runtimeapi.Int64Value{Value: *sc.RunAsUser},
		Capabilities: &runtimeapi.Capability{},
		Seccomp:      &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		Apparmor:     &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
		// As the kubelet asks for with procMount: Default.
		MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
	if o := sc.SELinuxOptions; o != nil {
		security.SelinuxOptions = &runtimeapi.SELinuxOption{Type: o.Type}
	}
	for _, c := range sc.Capabilities.Add {
		security.Capabilities.AddCapabilities = append(security.Capabilities.AddCapabilities, string(c))
	}
	for _, c := range sc.Capabilities.Drop {
		security.Capabilities.DropCapabilities = append(security.Capabilities.DropCapabilities, string(c))
	}
	behind := g.behind()
	mounts := []*runtimeapi.Mount{}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		hp := pod.Volumes[i].HostPath
		if hp == nil {
			continue // the configuration: what runs here is told by flags
		}
		from := behind[hp.Path]
		if from == "" {
			t.Fatalf("nothing stands behind %s", hp.Path)
		}
		mount := &runtimeapi.Mount{HostPath: from, ContainerPath: m.MountPath, Readonly: m.ReadOnly}
		if p := m.MountPropagation; p != nil && *p == corev1.MountPropagationHostToContainer {
			mount.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		}
		mounts = append(mounts, mount)
		if hp.Path == "/var/lib/cni" {
			mounts = append(mounts, &runtimeapi.Mount{HostPath: g.r.DataDir(), ContainerPath: g.r.DataDir(), Readonly: m.ReadOnly})
		}
	}
	return cri.Run{Image: imageName, Args: args, Mounts: mounts, Security: security}
}

// run runs one verb and returns its document.
func run[T any](t *testing.T, g *ground, ds *appsv1.DaemonSet, args ...string) (code int32, doc T) {
	t.Helper()
	t.Run("", func(t *testing.T) {
		c := g.r.StartContainer(t, "agent", g.container(t, ds, append(args, "-o", "json")...))
		var out string
		code, out = c.Wait(t)
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Fatalf("%v: exit %d, %v: %q", args, code, err, out)
		}
	})
	return code, doc
}

// leak makes a reservation whose container never was.
func (g *ground) leak(t *testing.T) (path string) {
	t.Helper()
	var id [32]byte
	_, _ = rand.Read(id[:])
	n := g.r.Network()
	path = filepath.Join(g.r.DataDir(), n.Name, n.Subnet.Masked().Addr().Next().Next().Next().Next().Next().Next().Next().Next().String())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(hex.EncodeToString(id[:])+"\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// notOK lists what doctor calls not well, as "section: name".
func notOK(doc api.Doctor) []string {
	var out []string
	for _, s := range doc.Sections {
		for _, c := range s.Checks {
			if !c.OK {
				out = append(out, s.Name+": "+c.Name)
			}
		}
	}
	return out
}

// base is the DaemonSet as shipped.
func base(t *testing.T) *appsv1.DaemonSet {
	return daemonSet(t, kustomize(t, "deploy/kustomize/base"))
}

// TestAsShipped: with what the manifests give it, and under the runtime's own seccomp
// profile, nothing is missing: doctor is content, the leak goes, and comes back on demand.
func TestAsShipped(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	for _, v := range []cri.Version{cri.Debian, cri.V2} {
		t.Run(string(v), func(t *testing.T) {
			g := newGround(t, v)
			live := g.r.RunSandboxes(t, "pod", 2)
			code, doc := run[api.Doctor](t, g, base(t), "doctor")
			// The network namespace that stands for the node's is not PID 1's here.
			if bad := notOK(doc); code != 0 || !slices.Equal(bad, []string{"capabilities: network namespace"}) {
				t.Errorf("doctor exits %d: %v", code, bad)
			}
			path := g.leak(t)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			code, sw := run[api.Sweep](t, g, base(t), "gc", "--wait", "--grace", "100ms")
			if code != 0 || len(sw.Released) != 1 || exists(t, path) {
				t.Errorf("gc exits %d, released %+v", code, sw.Released)
			}
			if code, _ := run[api.Undo](t, g, base(t), "undo", "--last"); code != 0 {
				t.Errorf("undo exits %d", code)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
				t.Errorf("after undo: %q, %v", after, err)
			}
			g.r.Ping(t, cri.Addrs(live...)...)
		})
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

func without(c corev1.Capability) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) {
		a := &p.Containers[0].SecurityContext.Capabilities.Add
		*a = slices.DeleteFunc(*a, func(x corev1.Capability) bool { return x == c })
	}
}

func unmounted(path string) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) {
		m := &p.Containers[0].VolumeMounts
		*m = slices.DeleteFunc(*m, func(x corev1.VolumeMount) bool { return x.MountPath == path })
	}
}

func readOnly(path string) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) {
		m := p.Containers[0].VolumeMounts
		m[slices.IndexFunc(m, func(x corev1.VolumeMount) bool { return x.MountPath == path })].ReadOnly = true
	}
}

// TestEachPowerIsNeeded takes one thing away at a time. What a row names is what
// docs/packaging.md says of it: the line of doctor that shows it, and whether a release is
// still made. Nothing but those lines may be not well.
func TestEachPowerIsNeeded(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	testenv.Need(t, testenv.Nobody)
	g := newGround(t, cri.Debian)
	live := g.r.RunSandboxes(t, "pod", 2)
	// Every node has processes of other users.
	other := exec.CommandContext(t.Context(), "sleep", "600")
	other.Dir, other.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: syscall.SIGKILL}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	page, err := os.ReadFile(filepath.Join(root(t), "docs/packaging.md"))
	if err != nil {
		t.Fatal(err)
	}
	// A run with everything: the runtime has answered here before.
	run[api.Sweep](t, g, base(t), "gc")
	store := filepath.Join(g.r.DataDir(), g.r.Network().Name)
	for _, c := range []struct {
		name     string
		take     func(*corev1.PodSpec)
		line     string // of doctor
		releases bool
	}{
		{"hostPID", func(p *corev1.PodSpec) { p.HostPID = false }, "vantage: the whole node is seen", false},
		{"SYS_PTRACE", without("SYS_PTRACE"), "capabilities: CAP_SYS_PTRACE", false},
		{"SYS_ADMIN", without("SYS_ADMIN"), "capabilities: CAP_SYS_ADMIN", false},
		{"DAC_READ_SEARCH", without("DAC_READ_SEARCH"), "capabilities: CAP_DAC_READ_SEARCH", false},
		{"SYS_CHROOT", without("SYS_CHROOT"), "capabilities: CAP_SYS_CHROOT", true},
		{"NET_ADMIN", without("NET_ADMIN"), "capabilities: CAP_NET_ADMIN", true},
		{"NET_RAW", without("NET_RAW"), "capabilities: CAP_NET_RAW", true},
		{"no /run", unmounted("/run"), "runtime sockets: unix:///run/containerd/containerd.sock", false},
		{"no /var/lib/cni", unmounted("/var/lib/cni"), "stores: " + store, false},
		{"/var/lib/cni read only", readOnly("/var/lib/cni"), "stores: " + store, false},
		{"no /etc/cni/net.d", unmounted("/etc/cni/net.d"), "stores: host-local", false},
		{"no /var/lib/holdfast", unmounted("/var/lib/holdfast"), "state: /var/lib/holdfast", false},
		{"/run/holdfast read only", readOnly("/run/holdfast"), "locks: /run/holdfast", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := base(t)
			c.take(&ds.Spec.Template.Spec)
			_, doc := run[api.Doctor](t, g, ds, "doctor")
			if bad := notOK(doc); !slices.Contains(bad, c.line) {
				t.Errorf("doctor does not say %q, but %q", c.line, bad)
			}
			if shown := strings.ReplaceAll(c.line, store, "<directory>"); !strings.Contains(string(page), "`"+shown+"`") {
				t.Errorf("docs/packaging.md does not have `%s`", shown)
			}
			path := g.leak(t)
			defer os.Remove(path)
			g.r.StartContainer(t, "agent", g.container(t, ds, "gc", "--wait", "--grace", "100ms")).Wait(t)
			if exists(t, path) == c.releases {
				t.Errorf("released: %t, want %t", !exists(t, path), c.releases)
			}
		})
	}
	g.r.Ping(t, cri.Addrs(live...)...)
}

// TestPropagation: a container's mounts are copies. What is mounted below /run after its
// start, such as the directory of a runtime's socket, shows with HostToContainer alone. A
// namespace that the node gives up goes in both: none is kept alive by the agent's copy of
// its mount, and the kernel witness enters those of other mount namespaces.
func TestPropagation(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	g := newGround(t, cri.Debian)
	for _, c := range []struct {
		name  string
		take  func(*corev1.PodSpec)
		shows bool
	}{
		{"as shipped", func(*corev1.PodSpec) {}, true},
		{"none", func(p *corev1.PodSpec) {
			for i := range p.Containers[0].VolumeMounts {
				p.Containers[0].VolumeMounts[i].MountPropagation = nil
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := g.r.RunSandbox(t, cri.Pod{Name: "dies"})
			ds := base(t)
			c.take(&ds.Spec.Template.Spec)
			g.leak(t) // what it waits for
			agent := g.r.StartContainer(t, "agent", g.container(t, ds, "gc", "--wait", "--grace", "10m"))

			late := filepath.Join(g.dir, "run/late")
			if err := os.MkdirAll(late, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(filepath.Dir(strings.TrimPrefix(g.r.Endpoint, "unix://")), late, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(late, unix.MNT_DETACH)
			endpoint := "unix:///run/late/" + filepath.Base(g.r.Endpoint)
			_, out, _ := agent.Exec(t, "/holdfast", "doctor", "--cri-endpoint", endpoint)
			if shows := strings.Contains(out, "ok    "+endpoint+": answered"); shows != c.shows {
				t.Errorf("the late socket shows: %t, want %t\n%s", shows, c.shows, out)
			}

			says := func() (kernel string) {
				var doc api.Audit
				_, out, stderr := agent.Exec(t, "/holdfast", "audit", "--no-record", "-o", "json")
				if err := json.Unmarshal([]byte(out), &doc); err != nil {
					t.Fatalf("%v: %q %q", err, out, stderr)
				}
				for _, r := range doc.Resources {
					for _, say := range r.Says {
						if r.Kind == "reservation" && r.ContainerID == s.ID && say.Witness == "kernel" {
							return say.Word
						}
					}
				}
				return "nothing"
			}
			if word := says(); word != "alive" {
				t.Errorf("while it lives the kernel says %s", word)
			}
			g.r.KillSandbox(t, s)
			g.r.DropNetns(t, s)
			if word := says(); word != "absent" {
				t.Errorf("when it is dead the kernel says %s", word)
			}
		})
	}
}
