package state

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// MaxRuntimes is how many endpoints are remembered.
const MaxRuntimes = 256

// KnownRuntimes returns the endpoints that ever answered here, sorted; each is
// required of the cri witness. With an error the list is not known and that witness
// must be silent: a runtime that is missing from it would not be asked, and its
// sandboxes would look dead.
func (d *Dir) KnownRuntimes() ([]string, error) {
	var out []string
	_, err := d.read(runtimesFile, func(line []byte) error {
		var s string
		if err := json.Unmarshal(line, &s); err != nil || checkEndpoint(s) != nil || len(out) == MaxRuntimes {
			return damaged("it cannot be read")
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func checkEndpoint(s string) error {
	if s == "" || len(s) > 4096 || !utf8.ValidString(s) {
		return fmt.Errorf("%w: an endpoint of %d bytes, or not UTF-8", ErrInvalid, len(s))
	}
	return nil
}

// RememberRuntimes adds endpoints that answered. It writes only if one is new. A
// damaged file is an error and stays. More than MaxRuntimes is ErrInvalid.
func (d *Dir) RememberRuntimes(endpoints ...string) error {
	for _, e := range endpoints {
		if err := checkEndpoint(e); err != nil {
			return &Error{Op: "write", Object: d.file(runtimesFile), Err: err}
		}
	}
	return d.editRuntimes(func(list []string) []string { return append(list, endpoints...) })
}

// ForgetRuntime removes an endpoint, for a runtime that a person says is gone for
// good. One that is not known is no error.
func (d *Dir) ForgetRuntime(endpoint string) error {
	return d.editRuntimes(func(list []string) []string {
		return slices.DeleteFunc(list, func(s string) bool { return s == endpoint })
	})
}

func (d *Dir) editRuntimes(edit func([]string) []string) error {
	return d.locked(func() error {
		was, err := d.KnownRuntimes()
		if err != nil {
			return err
		}
		now := edit(slices.Clone(was))
		slices.Sort(now)
		now = slices.Compact(now)
		if slices.Equal(was, now) {
			return nil
		}
		if len(now) > MaxRuntimes {
			return &Error{Op: "write", Object: d.file(runtimesFile), Err: fmt.Errorf("%w: more than %d endpoints", ErrInvalid, MaxRuntimes)}
		}
		lines := make([]any, len(now))
		for i, s := range now {
			lines[i] = s
		}
		return d.replaceJSON(runtimesFile, lines...)
	})
}
