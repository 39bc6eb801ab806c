package kubelet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxFile bounds a configuration file or a command line, in bytes.
const maxFile = 1 << 20

// Answer is how long this node's kubelet waits for its runtime.
type Answer struct {
	// Timeout is its runtimeRequestTimeout, of several kubelets the longest. It is
	// DefaultTimeout where nobody says anything else.
	Timeout time.Duration
	// From says who says so, for people.
	From string
}

// Find looks for living kubelets below proc, and where there is none reads file, the usual
// place of its configuration. With an error, what was found stands all the same, and may be
// too short: something that would have said more could not be read.
func Find(proc, file string) (Answer, error) {
	a := Answer{From: "no kubelet was found here: its default"}
	found := false
	var errs []error
	take := func(d time.Duration, from string) {
		if !found || d > a.Timeout {
			a.Timeout, a.From = d, from
		}
		found = true
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		errs = append(errs, err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !maybe(filepath.Join(proc, e.Name(), "comm")) {
			continue
		}
		// A process may end at any time, which is no error.
		text, err := read(filepath.Join(proc, e.Name(), "cmdline"))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		f, ok := flagsOf(strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"))
		if !ok {
			continue
		}
		d, from, err := f.resolve(filepath.Join(proc, e.Name(), "root"))
		if err != nil {
			errs = append(errs, fmt.Errorf("kubelet %d: %w", pid, err))
		}
		take(d, fmt.Sprintf("kubelet %d: %s", pid, from))
	}
	if !found {
		switch d, err := fileTimeout(file); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case d > 0:
			take(d, file)
		}
	}
	if a.Timeout == 0 {
		a.Timeout = DefaultTimeout
	}
	return a, errors.Join(errs...)
}

// maybe reports whether a process may be a kubelet by its short name, so that few command
// lines are read.
func maybe(comm string) bool {
	text, err := read(comm)
	name := strings.TrimSpace(string(text))
	return err == nil && (name == "kubelet" || strings.HasPrefix(name, "k3s"))
}

// resolve reads the files that the flags name, below the process's root. The flag counts most,
// then the last drop-in that says something, then the file.
func (f flags) resolve(root string) (d time.Duration, from string, err error) {
	if f.timeout != "" {
		if d, err = duration(f.timeout); err == nil {
			return d, "--runtime-request-timeout", nil
		}
		return DefaultTimeout, "its default", err
	}
	d, from = DefaultTimeout, "its default"
	var errs []error
	say := func(path string) {
		switch got, err := fileTimeout(filepath.Join(root, path)); {
		case err != nil:
			errs = append(errs, err)
		case got > 0:
			d, from = got, path
		}
	}
	if f.config != "" {
		say(f.config)
	}
	if f.configDir != "" {
		var list []string
		err := filepath.WalkDir(filepath.Join(root, f.configDir), func(p string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && strings.HasSuffix(p, ".conf") {
				list = append(list, strings.TrimPrefix(p, root))
			}
			return err
		})
		if err != nil {
			errs = append(errs, err)
		}
		slices.Sort(list)
		for _, p := range list {
			say(p)
		}
	}
	return d, from, errors.Join(errs...)
}

func fileTimeout(path string) (time.Duration, error) {
	text, err := read(path)
	if err != nil {
		return 0, err
	}
	d, err := timeoutOf(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: longer than %d bytes", path, maxFile)
	}
	return text, err
}
