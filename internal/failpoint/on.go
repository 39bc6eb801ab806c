//go:build failpoint

package failpoint

import "os"

// At does what the file named by HOLDFAST_FAILPOINTS says about a point, if there is such
// a variable. It may be called concurrently. The error is an *Injected; a file that cannot
// be used is a panic.
func At(p Point) error {
	path := os.Getenv(Env)
	if path == "" {
		return nil
	}
	act, err := pass(path, p)
	if err != nil {
		panic(err)
	}
	return act.do(p)
}
