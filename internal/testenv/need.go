package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv/leak"
)

// The capabilities that Need knows.
const (
	Root     = "root"     // effective UID 0
	Netns    = "netns"    // root, and unshare(CLONE_NEWNET) works
	Mount    = "mount"    // root, and mounting in a mount namespace of our own works
	PIDNS    = "pidns"    // root, and a child in a PID namespace of its own can be started
	CRI      = "cri"      // root, netns, and containerd and runc in PATH
	Kube     = "kube"     // cri, etcd in PATH, and the Kubernetes of hack/testbin in its cache
	Podman   = "podman"   // root, netns, and podman in PATH
	IPTables = "iptables" // root, netns, and iptables in PATH
	NFT      = "nft"      // root, netns, and nft in PATH
	Promtool = "promtool" // promtool, of Prometheus, in PATH

	// The kernel's and the file system's choices.
	IFB       = "ifb"       // root, netns, and a device of type ifb can be made
	Cgroup    = "cgroup"    // root, and a process can be moved into a cgroup below CgroupBase
	Overlay   = "overlay"   // root, mount, and an overlay can be mounted
	Immutable = "immutable" // root, and directories in os.TempDir take FS_IMMUTABLE_FL

	Chromium = "chromium" // chromium in PATH

	Nobody = "nobody" // root, and a child can become UID 65534: see AsNobody
	Long   = "long"   // nothing, but time: not in a short run
)

// RequireEnv names the environment variable that turns skips into failures: a
// comma-separated list of capabilities. A skipped test proves nothing, so a run
// that is meant to prove something lists what it must have.
const RequireEnv = "REQUIRE"

// Need ends the test unless the machine has the capability: with a failure when
// $REQUIRE names it, else with a skip. A capability that is not in the list above
// is a mistake in the test and always fails it.
//
// From here on the test is watched: whatever it leaves behind in this process or on the
// machine fails it (package leak). So it stands first in a test, before anything is made.
func Need(t testing.TB, capability string) {
	t.Helper()
	// hack/testsum sorts tests by this line.
	t.Logf("holdfast-level: %s", level(capability))
	// What REQUIRE names is not to be skipped, in a short run either.
	if testing.Short() && !required(os.Getenv(RequireEnv), capability) {
		t.Skipf("needs %s: not in a short run", capability)
	}
	demand(t, capability)
	leak.Watch(t)
}

// demand is Need without the word on levels and short runs.
func demand(t testing.TB, capability string) {
	t.Helper()
	err := check(capability)
	switch {
	case err == nil:
	case errors.Is(err, errUnknown):
		t.Fatalf("testenv: %v", err)
	case required(os.Getenv(RequireEnv), capability):
		t.Fatalf("%s=%s, but this machine lacks it: %v", RequireEnv, capability, err)
	default:
		t.Skipf("needs %s: %v", capability, err)
	}
}

// level is the level of a test that needs the capability.
func level(capability string) string {
	switch capability {
	case CRI, Kube, Podman:
		return "L3"
	case Long, Promtool:
		return "L0"
	}
	return "L1"
}

// Have reports whether the machine has the capability.
func Have(capability string) bool { return check(capability) == nil }

var errUnknown = errors.New("unknown capability")

func required(list, capability string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool {
		return strings.TrimSpace(s) == capability
	})
}

func check(capability string) error {
	switch capability {
	case Root:
		return checkRoot()
	case Netns:
		return errors.Join(checkRoot(), OnDoomedThread(func() error {
			return os.NewSyscallError("unshare(CLONE_NEWNET)", unix.Unshare(unix.CLONE_NEWNET))
		}))
	case Mount:
		return errors.Join(checkRoot(), OnDoomedThread(checkMount))
	case PIDNS:
		return errors.Join(checkRoot(), checkPIDNS())
	case CRI:
		return errors.Join(check(Netns), inPath("containerd", "runc"))
	case Kube:
		return errors.Join(check(CRI), inPath("etcd"), checkKube())
	case Podman:
		return errors.Join(check(Netns), inPath("podman"))
	case Chromium:
		return inPath("chromium")
	case IPTables:
		return errors.Join(check(Netns), inPath("iptables"))
	case NFT:
		return errors.Join(check(Netns), inPath("nft"))
	case Promtool:
		return inPath("promtool")
	case IFB:
		return errors.Join(checkRoot(), OnDoomedThread(checkIFB))
	case Cgroup:
		return errors.Join(checkRoot(), checkCgroup())
	case Overlay:
		return errors.Join(checkRoot(), OnDoomedThread(checkOverlay))
	case Immutable:
		return errors.Join(checkRoot(), checkImmutable())
	case Nobody:
		return errors.Join(checkRoot(), checkNobody())
	case Long:
		return nil
	}
	return fmt.Errorf("%w %q", errUnknown, capability)
}

func checkRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("not root (UID %d)", uid)
	}
	return nil
}

func inPath(names ...string) error {
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			return err
		}
	}
	return nil
}

// OnDoomedThread runs f on a thread that ends with it: a goroutine that exits while
// locked takes its thread along, and with it whatever f changed of the thread. The
// main thread cannot end, so f is never run there: it would stay in f's namespace, and
// /proc/PID of this whole process would show it.
func OnDoomedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine keeps the main thread, another runs elsewhere.
			done <- OnDoomedThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked
	}()
	return <-done
}
