package cri

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// None, as the only endpoint, says that this node has no container runtime that
// speaks CRI.
const None = "none"

// Scheme is the only scheme that a CRI socket can have here.
const Scheme = "unix://"

// maxPath is PATH_MAX less the trailing NUL: no longer path reaches the kernel.
const maxPath = 4095

// EndpointError says which endpoint cannot be used, where it was given, and what
// would be allowed.
type EndpointError struct {
	Source   string // "--cri-endpoint", "the list of known endpoints", ...
	Endpoint string // as given; Error quotes it
	Problem  string
}

// Error names the source, the quoted endpoint and what is allowed.
func (e *EndpointError) Error() string {
	return fmt.Sprintf("%s %s: %s; allowed are unix:///path/to/socket, /path/to/socket, or %q alone",
		e.Source, printable(e.Endpoint, 200), e.Problem, None)
}

// ParsePath returns the cleaned absolute path of an endpoint given as
// unix:///path or /path. It does not touch the file system. The path is taken
// literally: no %-escapes, no query.
func ParsePath(endpoint string) (string, error) {
	path, hasScheme := strings.CutPrefix(endpoint, Scheme)
	problem := ""
	switch {
	case endpoint == "":
		problem = "is empty"
	case !hasScheme && strings.Contains(endpoint, "://"):
		problem = "only unix sockets can be asked"
	case hasScheme && !strings.HasPrefix(path, "/"):
		problem = "unix:// wants three slashes and an absolute path"
	case !strings.HasPrefix(path, "/"):
		problem = "is not an absolute path"
	case len(path) > maxPath:
		problem = fmt.Sprintf("is longer than %d bytes", maxPath)
	case strings.HasSuffix(path, "/"), filepath.Clean(path) == "/":
		problem = "is a directory, not a socket"
	case !clean(path):
		problem = "holds control characters or is not UTF-8"
	}
	if problem != "" {
		return "", &EndpointError{Source: "endpoint", Endpoint: endpoint, Problem: problem}
	}
	return filepath.Clean(path), nil
}

// parseNamed reads what the operator gave. none is true for "none", which stands
// alone.
func parseNamed(source string, endpoints []string) (paths []string, none bool, err error) {
	for _, e := range endpoints {
		if e == None {
			if len(endpoints) > 1 {
				return nil, false, &EndpointError{Source: source, Endpoint: e, Problem: "does not go together with other endpoints"}
			}
			return nil, true, nil
		}
		p, err := ParsePath(e)
		if err != nil {
			return nil, false, from(source, err)
		}
		paths = append(paths, p)
	}
	return paths, false, nil
}

// from says where an endpoint came from.
func from(source string, err error) error {
	var e *EndpointError
	if errors.As(err, &e) {
		return &EndpointError{Source: source, Endpoint: e.Endpoint, Problem: e.Problem}
	}
	return err
}

// clean reports whether s is UTF-8 without control or other unprintable characters.
func clean(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
