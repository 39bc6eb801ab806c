package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/holdfast-cni/holdfast/cmd/holdfast-ipam/allocator"
	"github.com/holdfast-cni/holdfast/internal/sys/hostlocal"
)

// cmdArgs is what a call of the plugin is given.
type cmdArgs struct {
	ContainerID, Netns, IfName, Args string
	StdinData                        []byte
}

// verbs are the commands of CNI but VERSION.
type verbs struct{ add, del, check, gc, status func(*cmdArgs) error }

// protocol is one call of a plugin as CNI has it: what is asked for is read from the
// environment and standard input. It does what package skel of the CNI module does, error texts
// included, without the expressions that are compiled for it whenever the process starts, and
// without reflection: a twentieth of a DEL. skel judges it in TestProtocol.
func protocol(v verbs, about string) *types.Error {
	supported := cniversion.All.SupportedVersions()
	command := os.Getenv("CNI_COMMAND")
	args, missing, err := readEnv(command)
	if err != nil {
		return err
	}
	if command == "" {
		fmt.Fprintf(os.Stderr, "%s\nCNI protocol versions supported: %s\n", about, strings.Join(supported, ", "))
		return nil
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	if command == "VERSION" {
		if err := cniversion.All.Encode(os.Stdout); err != nil {
			return types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return nil
	}
	stdin, readErr := io.ReadAll(os.Stdin)
	if readErr != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("error reading from stdin: %v", readErr), "")
	}
	args.StdinData = stdin
	version, err := readHead(stdin)
	if err != nil {
		return err
	}
	call := map[string]struct {
		since   string // the version of the configuration that has it
		run     func(*cmdArgs) error
		inNetns bool // in the end its namespace may not be ours
	}{
		"ADD": {run: v.add, inNetns: true}, "DEL": {run: v.del, inNetns: true},
		"CHECK": {since: "0.4.0", run: v.check}, "GC": {since: "1.1.0", run: v.gc}, "STATUS": {since: "1.1.0", run: v.status},
	}
	c, ok := call[command]
	if !ok {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown CNI_COMMAND: %v", command), "")
	}
	decoded, decodeErr := version()
	if decodeErr != nil {
		return types.NewError(types.ErrDecodingFailure, decodeErr.Error(), "")
	}
	if c.since != "" {
		if err := sinceVersion(command, c.since, decoded, supported); err != nil {
			return err
		}
	}
	if wrong := new(cniversion.Reconciler).CheckRaw(decoded, supported); wrong != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", wrong.Details())
	}
	if err := c.run(args); err != nil {
		var e *types.Error
		if errors.As(err, &e) {
			return e
		}
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
	if override := os.Getenv("CNI_NETNS_OVERRIDE"); c.inNetns && strings.ToUpper(override) != "TRUE" && override != "1" {
		return notOurs(args.Netns)
	}
	return nil
}

// notOurs refuses a namespace that is the one of this process. What is no namespace, or gone,
// is none.
func notOurs(path string) *types.Error {
	theirs := netnsOf(path)
	if theirs == 0 {
		return nil
	}
	switch ownNetns() {
	case 0:
		return types.NewError(types.ErrInvalidNetNS, "get plugin's netns failed", "")
	case theirs:
		return types.NewError(types.ErrInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same", "")
	}
	return nil
}

// sinceVersion refuses a command that the configuration's version does not have, or that is of
// a version beyond all of ours.
func sinceVersion(command, since, version string, supported []string) *types.Error {
	ok, err := cniversion.GreaterThanOrEqualTo(version, since)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if !ok {
		return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+command, "")
	}
	for _, s := range supported {
		if ok, err := cniversion.GreaterThanOrEqualTo(s, version); err == nil && ok {
			return nil
		}
	}
	return types.NewError(types.ErrIncompatibleCNIVersion, "plugin version does not allow "+command, "")
}

// readEnv reads the environment of a command, and says what of it is missing.
func readEnv(command string) (*cmdArgs, []string, *types.Error) {
	a := &cmdArgs{}
	attachment := command == "ADD" || command == "DEL" || command == "CHECK"
	var missing []string
	for _, f := range []struct {
		name   string
		into   *string
		needed bool
		check  func(string) *types.Error
	}{
		{"CNI_CONTAINERID", &a.ContainerID, attachment, validID},
		{"CNI_NETNS", &a.Netns, attachment && command != "DEL", nil},
		{"CNI_IFNAME", &a.IfName, attachment, validIfName},
		{"CNI_ARGS", &a.Args, false, nil},
		{"CNI_PATH", new(string), attachment || command == "GC" || command == "STATUS", nil},
	} {
		*f.into = os.Getenv(f.name)
		switch {
		case !f.needed:
		case *f.into == "":
			missing = append(missing, f.name)
		case f.check != nil:
			if err := f.check(*f.into); err != nil {
				return nil, nil, err
			}
		}
	}
	return a, missing, nil
}

// readHead checks the name of the network, and returns what reads the CNI version: which comes
// later, and of which less is asked.
func readHead(stdin []byte) (version func() (string, error), err *types.Error) {
	name, v, ok := allocator.Head(stdin)
	if !ok {
		var conf struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(stdin, &conf); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("error unmarshall network config: %v", err), "")
		}
		name = conf.Name
	}
	if name == "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if !hostlocal.IsName(name) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "invalid characters found in network name", name)
	}
	return func() (string, error) {
		if ok && v != "" {
			return v, nil
		}
		return new(cniversion.ConfigDecoder).Decode(stdin)
	}, nil
}

func validID(id string) *types.Error {
	if !hostlocal.IsName(id) {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid characters in containerID", id)
	}
	return nil
}

// validIfName: what Linux allows as the name of an interface.
func validIfName(s string) *types.Error {
	invalid := func(msg, details string) *types.Error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, msg, details)
	}
	switch {
	case len(s) > 15:
		return invalid("interface name is too long", "interface name should be less than 16 characters")
	case s == "." || s == "..":
		return invalid("interface name is . or ..", "")
	case strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		return invalid("interface name contains / or : or whitespace characters", "")
	}
	return nil
}
