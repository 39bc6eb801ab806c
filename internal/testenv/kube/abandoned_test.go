package kube

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/testenv"
	"github.com/holdfast-cni/holdfast/internal/testenv/cri"
)

const abandonEnv = "HOLDFAST_TEST_ABANDON"

// A test binary that is killed takes its programs along; its Pods, mounts and directories
// go with the next start.
func TestAbandonedIsTakenAway(t *testing.T) {
	testenv.Need(t, testenv.Kube)
	child := exec.Command(os.Args[0], "-test.run=^TestAbandon$", "-test.v")
	child.Env = append(os.Environ(), abandonEnv+"=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	var pids []int
	for lines := bufio.NewScanner(out); dirs == nil && lines.Scan(); {
		_, after, ok := strings.Cut(lines.Text(), "ABANDONED ")
		if !ok {
			continue
		}
		for _, word := range strings.Fields(after) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
				pids = append(pids, pid)
			} else {
				dirs = append(dirs, word)
			}
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // says that it was killed
	if len(dirs) != 2 || len(pids) != 5 {
		t.Fatalf("the child made %q, %d", dirs, pids)
	}
	for _, pid := range pids {
		until(t, 10*time.Second, fmt.Sprintf("process %d ends with the test", pid), func() error {
			if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	}

	removeAbandoned(t)
	cri.Start(t, cri.Debian)
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
		points, err := mountPoints()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range points {
			if strings.HasPrefix(p, dir) {
				t.Errorf("%s is left", p)
			}
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		args, err := os.ReadFile(p)
		if err == nil && (strings.Contains(string(args), dirs[0]+"/") || strings.Contains(string(args), dirs[1]+"/")) {
			t.Errorf("%s is left: %q", p, args)
		}
	}
}

// TestAbandon is the child of the test above, and nothing by itself.
func TestAbandon(t *testing.T) {
	if os.Getenv(abandonEnv) == "" {
		return
	}
	c := Start(t, Options{})
	n := c.AddNode(t, NodeOptions{Containerd: cri.V2})
	c.RunPod(t, PausePod("abandoned", n.Name))
	fmt.Println("ABANDONED", c.dir, n.Runtime.Dir(), c.Etcd.PID(), c.APIServer.PID(), c.Controllers.PID(), c.Scheduler.PID(), n.Kubelet.PID())
	select {} // until it is killed
}
