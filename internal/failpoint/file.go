package failpoint

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Env is the environment variable that names the file.
const Env = "HOLDFAST_FAILPOINTS"

// maxSize bounds the file, in bytes.
const maxSize = 1 << 20

// Injected is the error of an "error(text)" term.
type Injected struct {
	Point Point
	Text  string
}

func (e *Injected) Error() string { return fmt.Sprintf("failpoint %s: %s", e.Point, e.Text) }

// Error says why a file cannot be used.
type Error struct {
	Op   string
	Path string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("failpoints: %s %s: %v", e.Op, e.Path, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// pass takes the next term of a point out of the file and returns what it says. Every
// read and write of the file is under its lock, whichever process or goroutine it is.
func pass(path string, p Point) (action, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return action{}, err
	}
	defer f.Close() // this unlocks
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return action{}, &Error{"lock", path, err}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return action{}, err
	}
	if len(text) > maxSize {
		return action{}, &Error{"read", path, fmt.Errorf("more than %d bytes", maxSize)}
	}
	act, rest, err := take(string(text), p)
	if err != nil {
		return action{}, &Error{"parse", path, err}
	}
	if rest != string(text) {
		if _, err := f.WriteAt([]byte(rest), 0); err != nil {
			return action{}, err
		}
		if err := f.Truncate(int64(len(rest))); err != nil {
			return action{}, err
		}
	}
	return act, nil
}

func (a action) do(p Point) error {
	switch a.kind {
	case kindError:
		return &Injected{p, a.text}
	case kindPanic:
		panic(fmt.Sprintf("failpoint %s: %s", p, a.text))
	case kindDelay:
		time.Sleep(a.delay)
	case kindKill:
		if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
			panic(fmt.Sprintf("failpoint %s: kill: %v", p, err))
		}
		select {} // nothing of ours runs between the signal and the end
	}
	return nil
}
