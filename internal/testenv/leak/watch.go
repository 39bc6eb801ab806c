package leak

import (
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Kind says what was left.
type Kind string

// The kinds of findings.
const (
	FD        Kind = "open file"
	Flock     Kind = "lock"         // an open file with a lock on it
	Goroutine Kind = "goroutine"    //
	Thread    Kind = "thread"       // of this process, in another network or mount namespace than it
	Process   Kind = "process"      // a child, reaped or not, or who inherited MarkEnv
	Mount     Kind = "mount"        //
	Netns     Kind = "netns mount"  // a network namespace pinned by a mount
	Link      Kind = "network link" // in the network namespace of this process
	Cgroup    Kind = "cgroup"       //
	File      Kind = "file"         // at a path handed to Own
	Unread    Kind = "unread"       // it could not be told whether something was left
)

// Finding is one thing that was not there before, and is there now.
type Finding struct {
	Kind   Kind
	Object string
	Text   string
}

func (f Finding) String() string { return fmt.Sprintf("%s %s %s", f.Kind, f.Object, f.Text) }

// MarkEnv is set in the environment while a test is watched, to a value that no other
// process has: whoever inherits it was started by us, whoever the parent is now. A test
// that hands its children an environment of its own should hand this on.
const MarkEnv = "HOLDFAST_TEST_MARK"

// settle is how long something may take to end that was told to: a goroutine after
// its channel was closed, a thread after its goroutine, a process after SIGKILL.
const settle = 3 * time.Second

// Watch compares what is there at the end of the test with what is there now. Called
// first in a test, it looks last, after every other clean-up. A second call for the
// same test does nothing.
//
// Open files, goroutines and children are the process's, so of tests that run beside
// each other nobody can say whose they are: they are compared when the last of these
// tests ends, and count against that one.
func Watch(t testing.TB) {
	t.Helper()
	if !process.enter(t.Name()) {
		return
	}
	t.Cleanup(func() {
		for _, f := range process.leave(t.Name()) {
			t.Errorf("left behind: %s", f)
		}
	})
	// What is mounted in there is ours by its path. The directory itself is not asked for:
	// where a test made it before it was watched, it is removed after this.
	process.own(filepath.Dir(t.TempDir()) + "/")
}

// Own hands over names that only this test's things on the machine carry: the path of
// a file or directory that must be gone at the end, with all mounts below it (with a
// slash at its end: only the mounts), or a part of the names of links and cgroups. t must be watched, or one of its parents.
func Own(t testing.TB, names ...string) {
	t.Helper()
	if !process.watches(t.Name()) {
		t.Fatal("touches the kernel unwatched: call testenv.Need first")
	}
	process.own(names...)
}

// ledger is what is known of this process. There is one, as there is one table of open
// files.
type ledger struct {
	mu     sync.Mutex
	tests  map[string]bool
	before map[string]Finding
	owned  []string
	mark   string
}

var process ledger

func (l *ledger) enter(test string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tests[test] {
		return false
	}
	if len(l.tests) == 0 {
		l.begin()
	}
	l.tests[test] = true
	return true
}

func (l *ledger) begin() {
	// The runtime opens its poller with the first pipe, and keeps it.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	l.tests, l.owned, l.mark = map[string]bool{}, nil, rand.Text()
	if err := os.Setenv(MarkEnv, l.mark); err != nil {
		panic(err) // the name is sound
	}
	l.before = survey("", nil) // nobody has the mark yet
}

// leave ends the watch of one test. It returns what is left if that was the last one.
func (l *ledger) leave(test string) []Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tests, test)
	if len(l.tests) > 0 {
		return nil
	}
	left := l.left()
	for end := time.Now().Add(settle); len(left) > 0 && time.Now().Before(end); left = l.left() {
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

func (l *ledger) left() []Finding {
	after := survey(l.mark, l.owned)
	var out []Finding
	for _, id := range slices.Sorted(maps.Keys(after)) {
		if _, ok := l.before[id]; !ok || after[id].Kind == Unread {
			out = append(out, after[id])
		}
	}
	return out
}

func (l *ledger) own(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owned = append(l.owned, names...)
}

// watches reports whether the test or a parent of it is watched.
func (l *ledger) watches(test string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.tests {
		if name == test || strings.HasPrefix(test, name+"/") {
			return true
		}
	}
	return false
}
