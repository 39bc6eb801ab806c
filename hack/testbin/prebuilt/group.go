package prebuilt

import (
	"fmt"
	"path"
	"slices"
)

// group is a set of programs that share a module, and so a cache directory.
type group struct {
	name string
	// dir is where go build runs, relative to the clone.
	dir string
	// inputs are globs relative to dir. All that they match goes into the key.
	inputs []string
	// packages are import paths; the last element is the program's name.
	packages []string
	// ldflags are added to those that every group is linked with.
	ldflags []string
}

// groups returns every group. containerd and the plugins are modules of their own:
// what they need must not choose the versions that holdfast itself is built with, and
// the demo must not wait for containerd.
func groups() []group {
	const (
		plugins    = "github.com/containernetworking/plugins/plugins/"
		kubernetes = "k8s.io/kubernetes/cmd/"
		// As in hack/testbin/kubernetes/go.mod.
		kubernetesVersion = "v1.37.2"
	)
	return []group{
		{
			name: "containerd", dir: "hack/testbin/containerd", inputs: []string{"go.mod", "go.sum"},
			packages: []string{
				"github.com/containerd/containerd/v2/cmd/containerd",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			},
		},
		{
			name: "cniplugins", dir: "hack/testbin/cniplugins", inputs: []string{"go.mod", "go.sum"},
			packages: []string{
				plugins + "main/bridge", plugins + "main/ptp", plugins + "main/macvlan", plugins + "main/loopback",
				plugins + "meta/portmap", plugins + "meta/firewall", plugins + "meta/bandwidth", plugins + "meta/tuning",
				plugins + "ipam/host-local", plugins + "ipam/static",
			},
		},
		{
			name: "kubernetes", dir: "hack/testbin/kubernetes", inputs: []string{"go.mod", "go.sum"},
			packages: []string{
				kubernetes + "kube-apiserver", kubernetes + "kube-controller-manager", kubernetes + "kube-scheduler",
				kubernetes + "kubelet", kubernetes + "kubectl",
			},
			// Without a version a kubelet and an API server say v0.0.0-master, which
			// clients refuse to compare with.
			ldflags: []string{
				"-X k8s.io/component-base/version.gitVersion=" + kubernetesVersion,
				"-X k8s.io/component-base/version.gitMajor=1",
				"-X k8s.io/component-base/version.gitMinor=37",
				"-X k8s.io/client-go/pkg/version.gitVersion=" + kubernetesVersion,
			},
		},
		{
			name: "helm", dir: "hack/testbin/helm", inputs: []string{"go.mod", "go.sum"},
			packages: []string{"helm.sh/helm/v3/cmd/helm"},
			// The Kubernetes that a chart is rendered for where there is no cluster.
			ldflags: []string{
				"-X helm.sh/helm/v3/internal/version.version=v3.22.0",
				"-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
				"-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37",
				"-X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
				"-X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=37",
			},
		},
		// Not for the tests, which have Debian's: what bench/api measures depends on its age.
		{name: "etcd", dir: "hack/testbin/etcd", inputs: []string{"go.mod", "go.sum", "*.go"}, packages: []string{"."}},
		{name: "pause", dir: "hack/pause", inputs: []string{"*.go"}, packages: []string{"."}},
	}
}

// programs returns the names of the group's programs, in the order of its packages.
func (g group) programs() []string {
	var out []string
	for _, p := range g.packages {
		if p == "." {
			p = g.dir
		}
		out = append(out, path.Base(p))
	}
	return out
}

// Names returns every name that Ensure knows, groups first.
func Names() []string {
	var out []string
	for _, g := range groups() {
		out = append(out, g.name)
	}
	for _, g := range groups() {
		for _, p := range g.programs() {
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// want is what one call of Ensure needs of one group: indexes into its packages.
type want struct {
	group    group
	packages []int
}

// resolve turns names into wants, in the order in which the groups were first named.
// A group's name wins over a program's: "containerd" means the shim as well.
func resolve(names []string) ([]want, error) {
	var wants []want
	for _, name := range names {
		g, indexes, err := lookup(name)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(wants, func(w want) bool { return w.group.name == g.name })
		if i < 0 {
			i = len(wants)
			wants = append(wants, want{group: g})
		}
		for _, x := range indexes {
			if !slices.Contains(wants[i].packages, x) {
				wants[i].packages = append(wants[i].packages, x)
			}
		}
	}
	return wants, nil
}

func lookup(name string) (group, []int, error) {
	for _, g := range groups() {
		if g.name == name {
			all := make([]int, len(g.packages))
			for i := range all {
				all[i] = i
			}
			return g, all, nil
		}
	}
	for _, g := range groups() {
		if i := slices.Index(g.programs(), name); i >= 0 {
			return g, []int{i}, nil
		}
	}
	return group{}, nil, fmt.Errorf("unknown name %q; known: %v", name, Names())
}
