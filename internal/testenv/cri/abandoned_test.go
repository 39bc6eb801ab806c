package cri

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-cni/holdfast/internal/testenv"
)

const abandonEnv = "HOLDFAST_TEST_ABANDON"

// A test binary that is killed leaves a runtime with sandboxes; the next run takes all
// of it away, and nothing of a run that lives.
func TestAbandonedIsTakenAway(t *testing.T) {
	testenv.Need(t, testenv.CRI)
	alive := Start(t, Debian)
	living := alive.RunSandbox(t, Pod{Name: "living"})

	child := exec.Command(os.Args[0], "-test.run=^TestAbandon$", "-test.v")
	child.Env = append(os.Environ(), abandonEnv+"=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var dir, id, netns string
	lines := bufio.NewScanner(out)
	for netns == "" && lines.Scan() {
		_, after, ok := strings.Cut(lines.Text(), "ABANDONED ")
		if ok {
			fmt.Sscan(after, &dir, &id, &netns)
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // says that it was killed
	if netns == "" {
		t.Fatal("the child made no sandbox")
	}
	if _, err := os.Stat(netns); err != nil {
		t.Fatalf("nothing was abandoned: %v", err)
	}

	if err := takeAwayAbandoned(); err != nil {
		t.Fatal(err)
	}
	cached, _ := filepath.Glob(filepath.Join(libcniCache, "results", "*"+id+"*"))
	for _, path := range append(cached, dir, netns) {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if err := killAll(func(q process) bool {
		if strings.Contains(strings.Join(q.args, " "), dir) {
			t.Errorf("left: %q", q.args)
		}
		return false
	}); err != nil {
		t.Error(err)
	}
	alive.Ping(t, living.IP)
	if got := alive.Listed(t); !got[living.ID] {
		t.Errorf("the living runtime lost its sandbox: %v", got)
	}
}

// TestAbandon is the child of the test above, and nothing by itself.
func TestAbandon(t *testing.T) {
	if os.Getenv(abandonEnv) == "" {
		return
	}
	r := Start(t, V2)
	s := r.RunSandbox(t, Pod{Name: "abandoned"})
	fmt.Println("ABANDONED", r.p.dir, s.ID, s.Netns)
	select {} // until it is killed
}
