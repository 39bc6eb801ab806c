package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-cni/holdfast/hack/testbin/prebuilt"
	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
	"github.com/holdfast-cni/holdfast/internal/testenv/netns"
)

// Addresses in the namespaces of a cluster. Nothing of it shows on the machine, so every
// cluster has the same.
const (
	apiAddr     = "127.0.0.1:6443" // in the control plane's namespace
	serviceIP   = "10.96.0.1"      // of the service "kubernetes", on every node's loopback
	serviceCIDR = "10.96.0.0/16"
	etcdURL     = "http://127.0.0.1:2379"
	// The control plane and the nodes are neighbours: see nodeAddr.
	controlPlaneIP  = "10.97.0.1"
	controllerReady = "127.0.0.1:10257"
	schedulerReady  = "127.0.0.1:10259"
)

// Options choose what a cluster has. The zero value is the whole.
type Options struct {
	// WithoutControllers leaves out the controller-manager and the scheduler: Pods need
	// a NodeName, nobody makes ServiceAccounts, and their tokens are not mounted.
	WithoutControllers bool
	// Etcd is the program, Debian's (3.4) when empty.
	Etcd string
}

// Cluster is a control plane with its nodes. Its methods are for one goroutine at a time
// but where they say otherwise.
type Cluster struct {
	// Admin may do everything (system:masters). Usable concurrently, and never subject
	// to an Interposer.
	Admin kubernetes.Interface
	// Config is Admin's. Copy it before changing it.
	Config *rest.Config
	// Kubeconfig is a file with the same, for programs of this machine.
	Kubeconfig string

	Etcd, APIServer *Program
	// Nil without controllers.
	Controllers, Scheduler *Program

	dir    string
	bin    string // the directory of the built programs
	owner  *os.File
	net    *netns.NS
	ca     *authority
	front  *authority
	server tls.Certificate
	proxy  tls.Certificate
	door   *Interposer  // for the machine
	http   *http.Client // Admin's
	nodes  int
}

// Start starts a control plane and waits until it serves: with controllers, until the
// default ServiceAccount is there. It fails where the programs are not built yet
// (testenv.Kube). Everything is taken away when the test ends.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	testenv.Need(t, testenv.Kube)
	removeAbandoned(t)
	c := &Cluster{}
	if err := c.prepare(t.Context()); err != nil {
		t.Fatalf("prepare a cluster: %v", err)
	}
	leak.Own(t, c.dir)
	t.Cleanup(func() { c.close(t) })
	c.net = netns.New(t)
	c.net.Unpin() // our descriptor keeps it, and a killed test leaves no mount
	if err := c.bridge(); err != nil {
		t.Fatal(err)
	}
	if err := c.secure(); err != nil {
		t.Fatalf("certificates: %v", err)
	}
	c.door = c.interpose(t, func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	if err := c.admin(); err != nil {
		t.Fatal(err)
	}
	c.programs(o)
	c.Etcd.Start(t)
	c.APIServer.Start(t)
	if !o.WithoutControllers {
		for _, p := range []*Program{c.Controllers, c.Scheduler} {
			if err := p.launch(); err != nil {
				t.Fatalf("start %s: %v", p.Name, err)
			}
		}
		c.Controllers.await(t)
		c.Scheduler.await(t)
		c.AwaitNamespace(t, "default")
	}
	return c
}

func (c *Cluster) prepare(ctx context.Context) (err error) {
	if c.bin, err = binaries(ctx); err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp("", "hfk-"); err != nil {
		return err
	}
	if c.owner, err = own(c.dir); err != nil {
		return errors.Join(err, os.RemoveAll(c.dir))
	}
	return nil
}

// binaries returns the directory of the Kubernetes programs, which are in the cache:
// testenv.Need has looked.
func binaries(ctx context.Context) (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	root, err := prebuilt.FindRoot(wd)
	if err != nil {
		return "", err
	}
	cache, err := prebuilt.DefaultCache(os.Getenv)
	if err != nil {
		return "", err
	}
	dirs, err := prebuilt.Builder{Root: root, Cache: cache, Progress: os.Stderr}.Ensure(ctx, "kubernetes")
	if err != nil {
		return "", err
	}
	return dirs[0], nil
}

const ownerFile = "owner"

// own marks the directory as belonging to a living test by a lock that ends with it.
func own(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownerFile+".new"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, ownerFile))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeAbandoned removes the directories of test binaries that were killed. Their
// processes ended with them.
func removeAbandoned(t testing.TB) {
	owners, err := filepath.Glob(filepath.Join(os.TempDir(), "hfk-*", ownerFile))
	if err != nil {
		t.Fatal(err) // the pattern is sound
	}
	for _, path := range owners {
		dir := filepath.Dir(path)
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // just removed by another
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := os.RemoveAll(dir); err != nil {
				t.Logf("removing what a killed test left: %v", err)
			}
		}
		f.Close()
	}
}

// secure makes the certificates and keys.
func (c *Cluster) secure() (err error) {
	if c.ca, err = newAuthority("holdfast-test"); err != nil {
		return err
	}
	if c.front, err = newAuthority("holdfast-test-front-proxy"); err != nil {
		return err
	}
	server, err := c.ca.server([]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		net.ParseIP("127.0.0.1"), net.ParseIP(serviceIP), net.ParseIP(controlPlaneIP))
	if err != nil {
		return err
	}
	if c.server, err = server.tls(); err != nil {
		return err
	}
	proxy, err := c.front.client("front-proxy")
	if err != nil {
		return err
	}
	if c.proxy, err = proxy.tls(); err != nil {
		return err
	}
	kubeletClient, err := c.ca.client("kube-apiserver", "system:masters")
	if err != nil {
		return err
	}
	accounts, err := newAuthority("service-accounts") // for its key
	if err != nil {
		return err
	}
	key, err := x509.MarshalECPrivateKey(accounts.key)
	if err != nil {
		return err
	}
	return errors.Join(
		server.write(c.dir, "server"), kubeletClient.write(c.dir, "kubelet-client"),
		os.WriteFile(c.file("ca.crt"), c.ca.pem, 0o644),
		os.WriteFile(c.file("front-ca.crt"), c.front.pem, 0o644),
		os.WriteFile(c.file("accounts.key"), pemOf("EC PRIVATE KEY", key), 0o600),
	)
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// admin writes the administrator's kubeconfig files, one for the machine and one for the
// control plane, and makes the client.
func (c *Cluster) admin() (err error) {
	c.Kubeconfig = c.file("admin.kubeconfig")
	if err := c.kubeconfig(c.Kubeconfig, c.door.URL, "admin", "system:masters"); err != nil {
		return err
	}
	if err := c.kubeconfig(c.file("control-plane.kubeconfig"), "https://"+apiAddr, "system:control-plane", "system:masters"); err != nil {
		return err
	}
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	// Tests poll; the client's own brakes would only slow them down.
	c.Config.QPS, c.Config.Burst = 1000, 2000
	if c.http, err = rest.HTTPClientFor(c.Config); err != nil {
		return err
	}
	c.Admin, err = kubernetes.NewForConfigAndClient(c.Config, c.http)
	return err
}

// kubeconfig writes a file for a user with a client certificate.
func (c *Cluster) kubeconfig(path, server, user string, groups ...string) error {
	p, err := c.ca.client(user, groups...)
	if err != nil {
		return err
	}
	return writeKubeconfig(path, server, c.ca.pem, p)
}

// WriteKubeconfig writes a kubeconfig file for a user with a client certificate, such as
// for an agent that runs on a node and outside of a Pod: server is the node's API.URL.
func (c *Cluster) WriteKubeconfig(t testing.TB, path, server, user string, groups ...string) {
	t.Helper()
	if err := c.kubeconfig(path, server, user, groups...); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) programs(o Options) {
	log := func(name string) string { return c.file(name + ".log") }
	c.Etcd = &Program{
		Name: "etcd", Log: log("etcd"), within: c.net.Do,
		args: []string{cmp.Or(o.Etcd, "/usr/bin/etcd"), "--data-dir=" + c.file("etcd"), "--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=default=http://127.0.0.1:2380", "--logger=zap", "--log-level=warn", "--log-outputs=stderr", "--snapshot-count=10000"},
		ready: c.healthy(etcdURL+"/health", nil),
	}
	c.APIServer = &Program{
		Name: "kube-apiserver", Log: log("kube-apiserver"), within: c.net.Do,
		args: []string{filepath.Join(c.bin, "kube-apiserver"), "--etcd-servers=" + etcdURL,
			"--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address=" + controlPlaneIP, "--endpoint-reconciler-type=none",
			"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"), "--cert-dir=" + c.dir,
			"--client-ca-file=" + c.file("ca.crt"),
			"--requestheader-client-ca-file=" + c.file("front-ca.crt"), "--requestheader-allowed-names=front-proxy",
			"--requestheader-username-headers=" + userHeader, "--requestheader-group-headers=" + groupHeader,
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--kubelet-client-certificate=" + c.file("kubelet-client.crt"), "--kubelet-client-key=" + c.file("kubelet-client.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.file("accounts.key"),
			"--service-account-signing-key-file=" + c.file("accounts.key"), "--service-cluster-ip-range=" + serviceCIDR,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"},
		ready: c.apiReady,
	}
	if o.WithoutControllers {
		c.APIServer.args = append(c.APIServer.args, "--disable-admission-plugins=ServiceAccount")
		return
	}
	kubeconfig := "--kubeconfig=" + c.file("control-plane.kubeconfig")
	insecure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // their own certificates; only asked whether they are up
	c.Controllers = &Program{
		Name: "kube-controller-manager", Log: log("kube-controller-manager"), within: c.net.Do,
		args: []string{filepath.Join(c.bin, "kube-controller-manager"), kubeconfig, "--leader-elect=false",
			"--bind-address=127.0.0.1", "--cert-dir=" + c.file("controllers"),
			"--service-account-private-key-file=" + c.file("accounts.key"), "--root-ca-file=" + c.file("ca.crt"),
			"--kube-api-qps=200", "--kube-api-burst=400",
			"--controllers=" + strings.Join(controllers(), ",")},
		ready: c.healthy("https://"+controllerReady+"/healthz", insecure),
	}
	c.Scheduler = &Program{
		Name: "kube-scheduler", Log: log("kube-scheduler"), within: c.net.Do,
		args: []string{filepath.Join(c.bin, "kube-scheduler"), kubeconfig, "--leader-elect=false",
			"--bind-address=127.0.0.1", "--cert-dir=" + c.file("scheduler"), "--kube-api-qps=200", "--kube-api-burst=400"},
		ready: c.healthy("https://"+schedulerReady+"/healthz", insecure),
	}
}

// controllers are those that workloads and their Pods on nodes need.
func controllers() []string {
	return []string{
		"namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
		"daemonset-controller", "deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller",
		"garbage-collector-controller", "pod-garbage-collector-controller", "clusterrole-aggregation-controller",
		"node-lifecycle-controller", "taint-eviction-controller",
		"endpoints-controller", "endpointslice-controller",
	}
}

// Dial connects to the API server itself. Usable concurrently.
func (c *Cluster) Dial(ctx context.Context) (net.Conn, error) {
	return c.dial(ctx, "tcp", apiAddr)
}

// dial connects from the control plane's namespace.
func (c *Cluster) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = c.net.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// healthy asks an URL of the control plane for 200.
func (c *Cluster) healthy(url string, config *tls.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		client := http.Client{Transport: &http.Transport{DialContext: c.dial, TLSClientConfig: config, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	}
}

func (c *Cluster) apiReady(ctx context.Context) error {
	return c.Admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// Interpose gives a proxy of the API server that listens on this machine's loopback,
// for a client of the test itself. Nodes have one of their own.
func (c *Cluster) Interpose(t testing.TB) *Interposer {
	t.Helper()
	return c.interpose(t, relisten("127.0.0.1:0", func(f func() error) error { return f() }))
}

// relisten returns a listen function that takes the same address again each time.
func relisten(addr string, within func(func() error) error) func() (net.Listener, error) {
	return func() (l net.Listener, err error) {
		err = within(func() error {
			l, err = net.Listen("tcp", addr)
			return err
		})
		if err == nil {
			addr = l.Addr().String()
		}
		return l, err
	}
}

func (c *Cluster) interpose(t testing.TB, listen func() (net.Listener, error)) *Interposer {
	t.Helper()
	target := &url.URL{Scheme: "https", Host: apiAddr}
	via := func(certs ...tls.Certificate) *http.Transport {
		return &http.Transport{
			DialContext: c.dial, ForceAttemptHTTP2: true, DisableCompression: true, IdleConnTimeout: time.Minute,
			TLSClientConfig: &tls.Config{RootCAs: c.ca.pool(), Certificates: certs},
		}
	}
	asUser, asIs := via(c.proxy), via()
	i := &Interposer{
		listen: listen, asUser: forward(target, asUser), asIs: forward(target, asIs),
		tls: &tls.Config{
			Certificates: []tls.Certificate{c.server}, ClientCAs: c.ca.pool(), ClientAuth: tls.VerifyClientCertIfGiven,
			NextProtos: []string{"h2", "http/1.1"},
		},
	}
	t.Cleanup(func() {
		i.Down(t)
		asUser.CloseIdleConnections()
		asIs.CloseIdleConnections()
	})
	i.Up(t)
	return i
}

// Kubectl runs the built kubectl as the administrator and returns its standard output.
func (c *Cluster) Kubectl(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return output(t.Context(), filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)...)
}

func (c *Cluster) close(t testing.TB) {
	var errs []error
	for _, p := range []*Program{c.Scheduler, c.Controllers, c.APIServer, c.Etcd} {
		if p == nil {
			continue
		}
		if t.Failed() && p.cmd != nil {
			t.Log(p.LogTail())
		}
		// Nothing of it is needed again.
		errs = append(errs, p.signal(unix.SIGKILL))
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	errs = append(errs, c.owner.Close(), os.RemoveAll(c.dir))
	if err := errors.Join(errs...); err != nil {
		t.Errorf("taking the cluster away: %v", err)
	}
}
